"""Measure the whole efficiency study for the committed record: ``python -m workbench.studies.scaling.records``.

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
from workbench.studies.commands import record_parser, run_command
from workbench.studies.records import OPERATORS, POINTS_FILE, RECORD_FILE
from workbench.studies.scaling.study import MEMORY_SHARE, SECONDS_A_PASS, scaling_study

COMMAND = "python -m workbench.studies.scaling.records"


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


def main(arguments: list[str] | None = None) -> int:
    """Command line of this module."""
    parser = record_parser(
        COMMAND, "Measure the attention operators again.", "runs/operators", "finished points"
    )
    parser.add_argument("--sweeps", nargs="+", metavar="NAME", help="(default: all)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: %(default)s)")
    parser.add_argument("--dtype", default="float32", help="(default: %(default)s)")

    def make(**options: Any) -> str:
        made = record(**options)
        return f"{made['device']}, {made['dtype']}: {made['seconds'] / 60:.0f} minutes"

    return run_command(parser, arguments, make)


if __name__ == "__main__":
    sys.exit(main())
