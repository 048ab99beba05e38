"""Measure the whole efficiency study for the committed record: ``workbench study records operators``.

Every point is kept as it is finished, so an interrupted call goes on where it stopped. Everything ends in
``data/records/operators``: the numbers, and what they came from.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from workbench.core.files import atomic_write, sha256_file, write_json
from workbench.frames.provenance import versions
from workbench.papers.operators import LAYERS
from workbench.studies.records import OPERATORS, POINTS_FILE, RECORD_FILE
from workbench.studies.scaling.study import MEMORY_SHARE, SECONDS_A_PASS, scaling_study

COMMAND = "workbench study records operators"


def record(
    data: Path, work: Path, *, sweeps: list[str] | None = None, device: str = "cpu", dtype: str = "float32"
) -> dict[str, Any]:
    """Measure all sweeps (or those named), and write ``data/records/operators`` in place of what is there."""
    started = time.monotonic()
    frame = scaling_study(sweeps, device=device, dtype=dtype, out=work, progress=sys.stderr.isatty())
    folder = data / "records" / OPERATORS
    atomic_write(folder / POINTS_FILE, lambda handle: frame.to_csv(handle, index=False, lineterminator="\n"))
    run = frame.attrs["provenance"]
    made = {
        "name": OPERATORS,
        "command": COMMAND,
        "seed": run["seed"],
        **{name: run[name] for name in ("device", "dtype", "threads", "memory", "options")},
        "layers": LAYERS,
        "seconds_a_pass": SECONDS_A_PASS,
        "memory_share": MEMORY_SHARE,
        "seconds": round(time.monotonic() - started),
        "notes": list(frame.attrs["notes"]),
        "versions": versions(),
        "files": {POINTS_FILE: sha256_file(folder / POINTS_FILE)},
    }
    write_json(folder / RECORD_FILE, made)
    return made
