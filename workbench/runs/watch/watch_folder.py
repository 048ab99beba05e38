"""The folder of a watch: one Feather file per analysis and logging, and ``watch.json`` with its settings and notes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NotRequired

import pandas as pd
from annotated_types import Ge
from typing_extensions import TypedDict

from workbench.core.errors import InputError, UnknownName
from workbench.core.options import checked, conforming, matching
from workbench.core.store import RunStore
from workbench.frames.provenance import versions
from workbench.frames.results import STEP, read_frames, write_frame

FORMAT = 4
_WATCH_FILE = "watch.json"
SUPERSEDED = "superseded"
"""Subfolder of loggings that a resumed run made again."""
_PART = re.compile(r"step-(\d+)\.feather")


class _Note(TypedDict):
    time: NotRequired[str]
    step: int | None
    note: str


class _Stored(TypedDict):
    """Entries of ``watch.json`` that are relied on. An analysis is a folder's name."""

    analyses: dict[Annotated[str, matching(r"\w[^/\\]*")], dict[str, Any]]
    layers: NotRequired[str | None]
    log: NotRequired[list[_Note]]


def checkpoint_name(step: int) -> str:
    """Return the name of a step in the column ``checkpoint``, and of its files."""
    return f"step-{step:09d}"


class WatchFolder:
    """The folder of one run; a run with the same ``identity`` is resumed in it."""

    def __init__(
        self, out: str | os.PathLike[str], identity: Mapping[str, Any], restart: bool = False
    ) -> None:
        self.store, self.identity = _store(out), identity
        self.log: list[dict[str, Any]] = self.store.open(identity, restart).get("log", [])
        self._write()

    def last_step(self) -> int | None:
        """Return the last step that any analysis was logged at; None in an empty folder."""
        return max((step for _, step, _ in self._parts()), default=None)

    def write(self, analysis: str, step: int, frame: pd.DataFrame) -> Path:
        """Write the rows of one analysis at one step."""
        return write_frame(frame, self.store.path / analysis / f"{checkpoint_name(step)}.feather")

    def set_aside(self, first: int) -> int:
        """Move loggings of a step and later ones, which the run makes again; return their number."""
        later = [(name, path) for name, step, path in self._parts() if step >= first]
        for name, path in later:
            target = self.store.path / SUPERSEDED / name / path.name
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, target)
        return len(later)

    def note(self, step: int | None, text: str) -> None:
        """Note a change of cadence or a failed analysis; raises `MissingResource` where it cannot be written."""
        self.log.append({"time": datetime.now(UTC).isoformat(timespec="seconds"), "step": step, "note": text})
        self._write()

    def _write(self) -> None:
        self.store.write({**self.identity, "versions": versions(), "log": self.log})

    def _parts(self) -> Iterator[tuple[str, int, Path]]:
        for name in self.identity["analyses"]:
            for step, path in _parts(self.store.path / name).items():
                yield name, step, path


@checked
def read_watch(
    folder: str | os.PathLike[str],
    analysis: str = "projection-error",
    *,
    last: Annotated[int, Ge(1)] | None = None,
) -> pd.DataFrame:
    """Read the loggings of one analysis as one frame of all steps, or of the ``last`` ones, for figures over training.

    The column ``step`` holds each row's step, ``checkpoint`` its name, and ``frame.attrs["epochs"]`` maps one to the
    other (as `analyze_many` does with epochs); ``frame.attrs["notes"]`` lists the notes of the run.

    Raises `InputError` where the folder holds no watch, or nothing was logged yet, and `UnknownName` for an analysis
    that was not watched.
    """
    folder = Path(folder).expanduser()
    content = _store(folder).content()
    if content is None:
        raise InputError(f"no watch in {folder}; give the folder that workbench.watch(…, out=FOLDER) writes")
    if analysis not in content["analyses"]:
        raise UnknownName(
            f"analysis in {folder}", analysis, content["analyses"], "workbench.watch(analyses=…) adds others"
        )
    parts = _parts(folder / analysis)
    notes = [
        entry["note"] if entry["step"] is None else f"step {entry['step']}: {entry['note']}"
        for entry in content.get("log", ())
    ]
    if not parts:
        raise InputError(f"{folder} holds no {analysis} yet" + "".join(f"; {note}" for note in notes))
    steps = sorted(parts)[-(last or 0) :]
    frame = read_frames([parts[step] for step in steps])
    earlier = [note for run in frame.attrs["provenance"] for note in run.get("notes", ())]
    numbers = {checkpoint_name(step): step for step in steps}
    frame = frame.assign(**{STEP: frame["checkpoint"].map(numbers).astype("Int64")})
    frame.attrs |= {
        "epochs": numbers,
        "notes": [*notes, *dict.fromkeys(earlier)],
        "absent": {},
    }
    return frame


def _store(folder: str | os.PathLike[str]) -> RunStore:
    return RunStore(folder, "watch", _WATCH_FILE, format=FORMAT, check=partial(conforming, _Stored))


def _parts(folder: Path) -> dict[int, Path]:
    """The files of one analysis by their step."""
    files = {path: _PART.fullmatch(path.name) for path in (folder.iterdir() if folder.is_dir() else ())}
    return {int(match[1]): path for path, match in files.items() if match}
