"""How long a person waits before anything happens: the import, and the help page."""

from __future__ import annotations

import os
import statistics
import subprocess
import time

from workbench.core.children import python

_REPEATS = 7
_LOADED = "import workbench; workbench.load('bundled:digits-vit')"


def _seconds(*arguments: str) -> float:
    start = time.perf_counter()
    subprocess.run(python(*arguments), check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def _cpu_seconds(*arguments: str) -> float:
    before = os.times()
    subprocess.run(python(*arguments), check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def run() -> list[dict[str, str]]:
    """Seconds over the bare interpreter, medians of interleaved runs."""
    bare, imported, helped = [], [], []
    for _ in range(_REPEATS):
        bare.append(_seconds("-c", "pass"))
        imported.append(_seconds("-c", "import workbench"))
        helped.append(_seconds("-m", "workbench", "--help"))
    base = statistics.median(bare)
    loaded, as_timm_comes = [], []
    for _ in range(3):
        loaded.append(_cpu_seconds("-c", _LOADED))
        as_timm_comes.append(_cpu_seconds("-c", f"import timm; {_LOADED}"))
    start = statistics.median(loaded)
    return [
        {
            "benchmark": "import workbench",
            "ratio": f"{statistics.median(imported) - base:.2f} s over the bare interpreter",
            "aim": "≤ 0.3 s",
            "detail": f"bare {base:.2f} s, {_REPEATS} runs",
        },
        {
            "benchmark": "workbench --help",
            "ratio": f"{statistics.median(helped):.2f} s",
            "aim": "≤ 0.5 s",
            "detail": f"{_REPEATS} runs",
        },
        {
            "benchmark": "a bundled model loaded, over the same with timm as it comes",
            "ratio": f"{start / statistics.median(as_timm_comes):.2f}×",
            "aim": "≤ 0.7×",
            "detail": f"{start:.1f} CPU seconds from the start of the interpreter, 3 runs in turns",
        },
    ]
