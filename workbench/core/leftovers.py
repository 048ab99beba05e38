"""Files that a killed process left behind: those with our marker and its number are removed at the next start."""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

_MARK = re.compile(r"workbench-[a-z]+-(\d+)(?!\d)")


def marker(what: str) -> str:
    """Return the part of a file name that identifies its process for `sweep_leftovers`: "workbench-chrome-4711"."""
    return f"workbench-{what}-{os.getpid()}"


def sweep_leftovers(folder: Path, what: str) -> None:
    """Remove the files and folders of one kind that processes left when they ended.

    Another user's files stay, and so does everything on systems other than POSIX.
    """
    if os.name != "posix":
        return
    for path in folder.glob(f"*workbench-{what}-*"):
        match = _MARK.search(path.name)
        if match is None or _lives(int(match[1])) or path.is_symlink():
            continue
        with suppress(OSError):
            if path.lstat().st_uid == os.geteuid():
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def _lives(number: int) -> bool:
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # another user's, or a number that no process can have
        return True
    return True
