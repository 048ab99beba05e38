"""Reading what a user has: the two files of a task in a folder, their lines, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from workbench.core.errors import InputError


def file_pair(task: str, root: Path | None, train: str, test: str) -> tuple[Path, Path]:
    """``NAME`` + ``train`` and ``NAME`` + ``test``, the only such pair in a folder; endings in any case."""
    takes = f"task {task} takes a folder with NAME{train} and NAME{test}"
    if root is None or not root.is_dir():
        raise InputError(f"{root} is no folder; {takes}")
    found: dict[str, dict[str, Path]] = {}
    for path in sorted(root.iterdir()):
        for ending in (train, test):
            if path.name.lower().endswith(ending.lower()):
                found.setdefault(path.name[: -len(ending)], {})[ending] = path
    if not found:
        inside = ", ".join(sorted(path.name for path in root.iterdir())[:6]) or "nothing"
        raise InputError(f"{root} holds {inside}; {takes}")
    if len(found) > 1:
        raise InputError(
            f"{root} holds files of {', '.join(sorted(found)[:6])}; {takes}: move the others elsewhere"
        )
    (name, files) = found.popitem()
    for ending, other in ((train, test), (test, train)):
        if ending not in files:
            raise InputError(
                f"{root} holds {files[other].name} but no {name}{ending}; put that file beside it"
            )
    return files[train], files[test]


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a text file that are not blank, with their numbers from 1."""
    try:
        with path.open(encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, 1):
                if line := line.strip("\r\n "):
                    yield number, line
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is not UTF-8 text: it holds the byte {error.object[error.start]:#04x}"
        ) from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error


def check_classes(where: str, labels: list[str], known: set[str]) -> None:
    """Raise InputError for a label of the test set that no training example has."""
    if unknown := sorted(set(labels) - known):
        raise InputError(
            f"{where}: class {unknown[0]!r} is in the test set, and the training set has only "
            f"{', '.join(sorted(known)[:8])}; take both from the same release, or leave its examples out"
        )
