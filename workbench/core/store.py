"""The folder of one run: sweeps, watches, trainings and studies resume in their folder, and refuse another run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

from workbench.core.errors import InputError, MissingResource
from workbench.core.files import check_format, jsonable, write_json
from workbench.core.options import parsed

LOCK = ".lock"
LOOK_SECONDS = 0.5
"""Seconds to wait for a lock: whoever checks whether a run is at work holds it for a moment."""


class RunStore:
    """The folder of one run, and the JSON file in it that identifies the run.

        store = RunStore(out, "sweep", "manifest.json", format=1, under="plan")
        with store.locked():                        # where two processes could write into it
            content = store.open(identity, restart)    # {} in a new folder; the file's content where the run resumes
            ...                                     # a run of other settings is refused
            store.write({"plan": identity, "parts": {...}})

    The file holds the ``format`` and the identity, all settings that the numbers depend on, at its top or in its entry
    ``under``; other entries and files belong to the run. A run resumes where its identity is the same. Other settings
    are refused with both values. ``restart`` starts over and renames the old content; nothing is deleted.

    Args:
        path: the folder.
        what: the kind of run, in words: "sweep", "training run".
        file: name of the JSON file.
        format: the format of the file; a file of another one is refused.
        under: the entry that holds the identity; None where it is at the top of the file.
        unknown: a pattern of files; a folder that has some, and no JSON file, is refused.
        check: raises an error for a file that does not describe a run.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        what: str,
        file: str,
        *,
        format: int,
        under: str | None = None,
        unknown: str | None = None,
        check: Callable[[dict[str, Any]], object] = dict,
    ) -> None:
        self.path = Path(path).expanduser().absolute()
        self.what, self.file, self.format, self.under = what, self.path / file, format, under
        self.unknown, self.check = unknown, check

    def open(
        self, identity: Mapping[str, Any], restart: bool = False, *, ignored: Iterable[str] = ()
    ) -> dict[str, Any]:
        """Return the content of the folder's file, {} for a new run; make the folder where it is missing.

        ``ignored`` are entries of the identity that may differ. With ``restart`` the old content is moved aside first.
        Raises `InputError` for another run, with both values of every setting that differs, and `MissingResource` where
        the folder cannot be made.
        """
        _refuse_file(self.path)
        if restart:
            # the file that names the run goes first: a folder that keeps only a part of a run does not resume it
            set_aside(self.path, first=self.file.name)
        content = self.content()
        if content is None:
            self._refuse_unknown()
            _make_folder(self.path)
            return {}
        # as JSON has them: there a tuple is a list, and 1e-3 is 0.001
        wanted = json.loads(json.dumps(jsonable(identity)))
        stored = content if self.under is None else content[self.under]
        keys = wanted if self.under is None else {**wanted, **stored}
        if differing := differences(stored, wanted, [key for key in keys if key not in ignored]):
            raise InputError(
                f"{self.path} holds a {self.what} with other settings ({'; '.join(differing)}): give another folder "
                "(--out), or start over (--restart), which moves the old one aside"
            )
        return content

    def content(self) -> dict[str, Any] | None:
        """Return the content of the folder's file; None where there is none.

        Raises `InputError` for a file of another kind or format.
        """
        if not self.file.is_file():
            return None
        try:
            content = parsed(self.file.read_text(encoding="utf-8"))
            if not isinstance(content, dict) or not isinstance(content.get("format"), int):
                raise ValueError("it has no format")
            if content["format"] == self.format:
                self.check(content)
                if self.under is not None and not isinstance(content[self.under], dict):
                    raise ValueError(f"its {self.under} is no table")
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise InputError(
                f"{self.file} does not describe a {self.what} ({error}); give another folder"
            ) from error
        check_format(self.file, "format", content["format"], self.format)
        return content

    def write(self, content: Mapping[str, Any]) -> None:
        """Write the folder's file with the format; raises `MissingResource` where there is no room."""
        write_json(self.file, {"format": self.format, **content})

    def locked(self, patience: float = LOOK_SECONDS) -> AbstractContextManager[None]:
        """Lock the folder, as `locked` does."""
        return locked(self.path, self.what, patience)

    def is_locked(self) -> bool:
        """Return whether a run is writing into the folder."""
        return is_locked(self.path)

    def _refuse_unknown(self) -> None:
        unknown = self.path.glob(self.unknown) if self.unknown is not None else ()
        names = sorted(item.name for item in unknown if item.name != LOCK)
        if names:
            raise InputError(
                f"{self.path} holds {names[0]} and no {self.file.name}, which identifies its {self.what}; give another "
                "folder (--out)"
            )


def _refuse_file(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} is a file; give a folder")


def _make_folder(path: Path) -> None:
    _refuse_file(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(path, error) from error


@contextmanager
def locked(folder: Path, what: str, patience: float = LOOK_SECONDS) -> Generator[None]:
    """Lock a folder; create it if it is missing.

    Raises `InputError` where another process holds it for longer than ``patience`` seconds. The lock is the operating
    system's: it is released when the process ends, however that happens.
    """
    from filelock import FileLock, Timeout

    _make_folder(folder)
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=patience)
    except Timeout:
        raise InputError(
            f"another {what} is writing into {folder}; wait for it, or give another folder (--out)"
        ) from None
    except OSError as error:
        raise _unwritable(folder, error) from error
    try:
        yield
    finally:
        # Still locked: a process that waits for it notices that the file is gone, and locks the new one.
        with suppress(OSError):
            (folder / LOCK).unlink()
        lock.release()


def is_locked(folder: Path) -> bool:
    """Return whether a process holds a folder."""
    if not (folder / LOCK).exists():
        return False
    try:
        with locked(folder, "run", patience=0):
            return False
    except InputError:
        return True


def _unwritable(folder: Path, error: OSError) -> MissingResource:
    return MissingResource(f"cannot write {folder}: {error.strerror or error}; choose another --out")


def set_aside(folder: str | os.PathLike[str], first: str = "", stays: Collection[str] = ()) -> Path | None:
    """Move the content of a folder into a new one beside it, and return that; None where there is nothing to move.

    The item named ``first`` is moved first; those named in ``stays`` are not moved.

    Raises `InputError` for the working directory or the home folder, `MissingResource` where it cannot be moved.
    """
    path = Path(folder).expanduser().absolute()
    inside = [] if not path.is_dir() else [item for item in path.iterdir() if item.name not in (LOCK, *stays)]
    if not inside:
        return None
    if any(used.resolve().is_relative_to(path.resolve()) for used in (Path.cwd(), Path.home())):
        raise InputError(
            f"{path} is not moved aside, since it contains your working or home folder; name another folder (--out)"
        )
    number = 1
    while (aside := path.with_name(f"{path.name}.before-{number}")).exists():
        number += 1
    try:
        aside.mkdir()
        for item in sorted(inside, key=lambda item: item.name != first):
            item.rename(aside / item.name)
    except OSError as error:
        raise MissingResource(f"cannot move {path} aside: {error.strerror or error}") from error
    return aside


def differences(stored: Mapping[str, Any], wanted: Mapping[str, Any], keys: Iterable[str]) -> list[str]:
    """List the settings that differ, each with both values; of tables only the entries that differ."""
    texts = []
    for key in keys:
        old, new = stored.get(key), wanted.get(key)
        if old == new:
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
            old, new = ({name: table.get(name) for name in names} for table in (old, new))
        texts.append("{}: {} there, {} asked for".format(key, *_short(old, new)))
    return texts


def _short(*values: Any) -> list[str]:
    """Write values so that long ones begin shortly before they differ."""
    texts = [json.dumps(value, ensure_ascii=False, default=str) for value in values]
    same = sum(1 for _ in takewhile(lambda letters: len({*letters}) == 1, zip(*texts, strict=False)))
    start = max(0, same - 20) if max(map(len, texts)) > 80 else 0
    texts = [f"…{text[start:]}" if start else text for text in texts]
    return [text if len(text) <= 80 else f"{text[:79]}…" for text in texts]
