"""What a process that was killed left behind: files that carry our marker and its number go at the next start."""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

_MARK = re.compile(r"workbench-[a-z]+-(\d+)(?!\d)")


def marker(what: str) -> str:
    """A part of a name by which `sweep_leftovers` knows whose it is: "workbench-chrome-4711"."""
    return f"workbench-{what}-{os.getpid()}"


def sweep_leftovers(folder: Path, what: str) -> None:
    """Remove the files and folders of one kind that processes left which are no more.

    What another user owns stays, and so does everything where processes cannot be asked about.
    """
    if os.name != "posix":
        return
    for path in folder.glob(f"*workbench-{what}-*"):
        found = _MARK.search(path.name)
        if found is None or _lives(int(found[1])) or path.is_symlink():
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
