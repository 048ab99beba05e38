"""A folder that belongs to one run: sweeps, watches, trainings and studies go on in their own, and refuse others."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from workbench.core.errors import InputError, MissingResource
from workbench.core.files import check_format, jsonable, write_json
from workbench.core.options import parsed

LOCK = ".lock"
LOOK_SECONDS = 0.5
"""Whoever looks whether a run is at work holds its lock for a moment, for which one that begins waits."""


class RunStore:
    """The folder of one run, and the JSON file in it that says which run that is.

        store = RunStore(out, "sweep", "manifest.json", format=1, under="plan")
        with store.locked():                        # where two processes could write into it
            content = store.open(identity, restart)    # {} in a new folder; what the file holds where the run goes on
            ...                                     # a run that is none of ours, or has other settings, is refused
            store.write({"plan": identity, "parts": {...}})

    The file holds the ``format`` and the identity: all settings that the numbers depend on, at its top, or as its entry
    ``under``. What else it holds is the run's own affair, as are the files beside it. A run goes on wherever its
    identity is the same, and other settings are refused with both said. ``restart`` begins anew, and moves what was
    there into a folder beside it: nothing is deleted.

    Args:
        path: the folder.
        what: what it holds, in words: "sweep", "training run".
        file: name of the JSON file.
        format: the format of the file; a file of another one is refused.
        under: the entry that holds the identity; its entries stand at the top of the file where None.
        unknown: a pattern of files that without the JSON file are not ours: a folder that has some is refused.
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
        """Make sure that the folder holds this run, or nothing; returns what its file holds, {} where there is none.

        ``ignored`` are entries of the identity that may differ. With ``restart`` what is there is moved aside first.
        Raises `InputError` for another run, naming every setting that differs as it is there and as it is asked for,
        and `MissingResource` where the folder cannot be made.
        """
        self._refuse_file()
        if restart:
            self.set_aside()
        content = self.content()
        if content is None:
            self._refuse_unknown()
            self._make()
            return {}
        # as JSON has them: there a tuple is a list, and 1e-3 is 0.001
        asked = json.loads(json.dumps(jsonable(identity)))
        there = content if self.under is None else content[self.under]
        keys = [*asked, *(() if self.under is None else there)]
        differ = [
            key for key in dict.fromkeys(keys) if key not in ignored and there.get(key) != asked.get(key)
        ]
        if differ:
            both = "; ".join(_both(key, there.get(key), asked.get(key)) for key in differ)
            raise InputError(
                f"{self.path} holds a {self.what} with other settings ({both}): give another folder (--out), or begin "
                "anew (--restart), which moves the old one aside"
            )
        return content

    def content(self) -> dict[str, Any] | None:
        """What the folder's file holds; None where there is none.

        Raises `InputError` for a file that is none of ours, or of another format.
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
        """Write the folder's file anew, with the format; raises `MissingResource` where there is no room."""
        write_json(self.file, {"format": self.format, **content})

    def set_aside(self) -> Path | None:
        """Move all that the folder holds into a new one beside it, and return that; None where it holds nothing."""
        # the file that names the run goes first: a folder that keeps only a part of a run does not go on with it
        return set_aside(self.path, first=self.file.name)

    @contextmanager
    def locked(self, patience: float = LOOK_SECONDS) -> Generator[None]:
        """Hold the folder alone. Raises `InputError` where another process does, for longer than ``patience`` seconds.

        The lock is the operating system's: it goes with the process that held it, however that ended.
        """
        self._make()
        with locked(self.path, self.what, patience):
            yield

    def is_locked(self) -> bool:
        """Whether a run is writing into the folder now."""
        if not (self.path / LOCK).exists():
            return False
        try:
            with self.locked(patience=0):
                return False
        except InputError:
            return True

    def _refuse_file(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path} is a file; give a folder")

    def _make(self) -> None:
        self._refuse_file()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _unwritable(self.path, error) from error

    def _refuse_unknown(self) -> None:
        found = sorted(self.path.glob(self.unknown)) if self.unknown is not None else []
        names = [item.name for item in found if item.name != LOCK]
        if names:
            raise InputError(
                f"{self.path} holds {names[0]} and no {self.file.name}, which would say what {self.what} it is of; "
                "give another folder (--out)"
            )


@contextmanager
def locked(folder: Path, what: str, patience: float = LOOK_SECONDS) -> Generator[None]:
    """Hold a folder that is there alone, for ``what`` writes into it; as `RunStore.locked`."""
    from filelock import FileLock, Timeout

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
        # Still held: who waits for it sees that the file has no name any more, and asks for the one that has.
        with suppress(OSError):
            (folder / LOCK).unlink()
        lock.release()


def _unwritable(folder: Path, error: OSError) -> MissingResource:
    return MissingResource(f"cannot write {folder}: {error.strerror or error}; choose another --out")


def set_aside(folder: str | os.PathLike[str], first: str = "", stays: Collection[str] = ()) -> Path | None:
    """Move what a folder holds into a new one beside it, and return that; None where it holds nothing to move.

    The item named ``first`` goes first; those named in ``stays`` are not moved.

    Raises `InputError` for a folder that one works in, `MissingResource` where it cannot be moved.
    """
    path = Path(folder).expanduser().absolute()
    inside = [] if not path.is_dir() else [item for item in path.iterdir() if item.name not in (LOCK, *stays)]
    if not inside:
        return None
    if any(place.resolve().is_relative_to(path.resolve()) for place in (Path.cwd(), Path.home())):
        raise InputError(f"{path} is not moved aside, since you work in it; give a folder of its own (--out)")
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


def _both(key: str, there: Any, asked: Any) -> str:
    """A setting as it is there and as it is asked for; of tables only the entries that differ."""
    if isinstance(there, dict) and isinstance(asked, dict):
        names = [name for name in {**there, **asked} if there.get(name) != asked.get(name)]
        there, asked = ({name: table.get(name) for name in names} for table in (there, asked))
    return f"{key}: {_short(there)} there, {_short(asked)} asked for"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:79]}…"
