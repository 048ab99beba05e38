"""Processes that work at the same time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence


def run_together(code: str, arguments: Sequence[Sequence[object]]) -> None:
    """Run code in an interpreter for each of the arguments, all at once, until every one has ended well."""
    processes = [
        subprocess.Popen([sys.executable, "-c", code, *map(str, each)], stderr=subprocess.PIPE)
        for each in arguments
    ]
    try:
        said = [process.communicate(timeout=300)[1].decode() for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * len(processes), said
