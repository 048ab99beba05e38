"""How long a person waits before anything happens: the import, and the help page."""

from __future__ import annotations

import statistics
import subprocess
import time

from workbench.core.children import python

_REPEATS = 7


def _seconds(*arguments: str) -> float:
    start = time.perf_counter()
    subprocess.run(python(*arguments), check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def run() -> list[dict[str, str]]:
    """Seconds over the bare interpreter, medians of interleaved runs."""
    bare, imported, helped = [], [], []
    for _ in range(_REPEATS):
        bare.append(_seconds("-c", "pass"))
        imported.append(_seconds("-c", "import workbench"))
        helped.append(_seconds("-m", "workbench", "--help"))
    base = statistics.median(bare)
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
    ]
