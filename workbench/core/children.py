"""Other Python processes: what lies in the current folder has no say in what they import.

`python -m` looks for modules in the current folder first, so that a numpy.py lying there would be run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager


def python(*arguments: str | os.PathLike[str]) -> list[str]:
    """The command line of a child interpreter."""
    return [sys.executable, "-P", *(os.fspath(word) for word in arguments)]


@contextmanager
def safe_path() -> Generator[None]:
    """While this lasts, interpreters that a library starts (joblib's workers) are given the same by the environment."""
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONSAFEPATH"]
        else:
            os.environ["PYTHONSAFEPATH"] = before
