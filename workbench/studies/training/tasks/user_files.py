"""Read a user's files: the two files of a task in a folder, and their lines, with errors that name the problem."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from workbench.core.errors import InputError


def file_pair(task: str, root: Path | None, train: str, test: str) -> tuple[Path, Path]:
    """Return the only pair ``NAME`` + ``train``, ``NAME`` + ``test`` of a folder; endings in any case."""
    takes = f"task {task} takes a folder with NAME{train} and NAME{test}"
    if root is None or not root.is_dir():
        raise InputError(f"{root} is no folder; {takes}")
    pairs: dict[str, dict[str, Path]] = {}
    for path in sorted(root.iterdir()):
        for ending in (train, test):
            if path.name.lower().endswith(ending.lower()):
                pairs.setdefault(path.name[: -len(ending)], {})[ending] = path
    if not pairs:
        inside = ", ".join(sorted(path.name for path in root.iterdir())[:6]) or "nothing"
        raise InputError(f"{root} holds {inside}; {takes}")
    if len(pairs) > 1:
        raise InputError(
            f"{root} holds files of {', '.join(sorted(pairs)[:6])}; {takes}: move the others elsewhere"
        )
    (name, files) = pairs.popitem()
    for ending, other in ((train, test), (test, train)):
        if ending not in files:
            raise InputError(
                f"{root} holds {files[other].name} but no {name}{ending}; put that file beside it"
            )
    return files[train], files[test]


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the non-blank lines of a text file with their numbers from 1."""
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


def check_classes(where: str, labels: list[str], training_classes: set[str]) -> None:
    """Raise InputError for a test label without training examples."""
    if unknown := sorted(set(labels) - training_classes):
        raise InputError(
            f"{where}: class {unknown[0]!r} is in the test set, and the training set has only "
            f"{', '.join(sorted(training_classes)[:8])}; take both from the same release, or leave its examples out"
        )
