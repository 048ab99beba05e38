"""Child Python processes that do not import from the current folder.

`python -m` looks for modules in the current folder first, so that a numpy.py there would be run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager


def python(*arguments: str | os.PathLike[str]) -> list[str]:
    """Return the command line of a child interpreter."""
    return [sys.executable, "-P", *(os.fspath(word) for word in arguments)]


@contextmanager
def safe_path() -> Generator[None]:
    """Give interpreters that a library starts (joblib's workers) the same setting through the environment."""
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONSAFEPATH"]
        else:
            os.environ["PYTHONSAFEPATH"] = before
