"""The folder that a watch fills: one Parquet file per analysis and logging, what is watched, and what happened."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NotRequired

import pandas as pd
from typing_extensions import TypedDict

from workbench.core.errors import InputError, MissingResource, UnknownName
from workbench.core.options import conforming, matching, parsed
from workbench.core.store import RunStore
from workbench.frames.provenance import versions
from workbench.frames.results import join_frames, read_frame, write_frame

FORMAT = 2
WATCH_FILE, LOG_FILE = "watch.json", "log.jsonl"
SUPERSEDED = "superseded"
"""Subfolder of loggings that a run made from the step on from which it was later taken up again."""
_PART = re.compile(r"step-(\d+)\.parquet")


def checkpoint_name(step: int) -> str:
    """What rows of a step say in their column ``checkpoint``, and how its files are called."""
    return f"step-{step:09d}"


class WatchFolder:
    """Where the loggings of one run go; ``identity`` is what must be the same for a run to go on in it."""

    def __init__(
        self, out: str | os.PathLike[str], identity: Mapping[str, Any], restart: bool = False
    ) -> None:
        store = _store(out)
        store.open(identity, restart)
        store.write({**identity, "versions": versions()})
        self.out = store.path

    def last_step(self) -> int | None:
        """The last step that any analysis was logged at; None in an empty folder."""
        return max((step for name in _analyses(self.out) for step in _parts(self.out / name)), default=None)

    def write(self, analysis: str, step: int, frame: pd.DataFrame) -> Path:
        """Write the rows of one analysis at one step, whole or not at all."""
        return write_frame(frame, self.out / analysis / f"{checkpoint_name(step)}.parquet")

    def set_aside(self, first: int) -> int:
        """Move loggings of a step and later ones out of the way: the run makes them again. Returns their number."""
        moved = 0
        for name in _analyses(self.out):
            for step, path in _parts(self.out / name).items():
                if step >= first:
                    target = self.out / SUPERSEDED / name / path.name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    os.replace(path, target)
                    moved += 1
        return moved

    def note(self, step: int | None, text: str) -> None:
        """Add a line to the log: a change of cadence, an analysis that failed.

        Raises `MissingResource` where it cannot be written.
        """
        line = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "step": step, "note": text}
        try:
            with (self.out / LOG_FILE).open("a", encoding="utf-8") as handle:
                handle.write(json.dumps(line, ensure_ascii=False) + "\n")
        except OSError as error:
            raise MissingResource(f"cannot write {self.out / LOG_FILE}: {error.strerror or error}") from error


def read_watch(folder: str | os.PathLike[str], analysis: str = "projection-error") -> pd.DataFrame:
    """What a watch logged of one analysis, all steps under one another, for figures over training.

    The column ``checkpoint`` names each row's step, ``frame.attrs["epochs"]`` says which step each is (as
    `analyze_many` says it of epochs), ``frame.attrs["notes"]`` what was noted during the run.

    Raises `InputError` where the folder holds no watch, or nothing was logged yet, and `UnknownName` for an analysis
    that was not watched.
    """
    folder = Path(folder).expanduser()
    content = _store(folder).content()
    if content is None:
        raise InputError(f"no watch in {folder}; give the folder that workbench.watch(…, out=FOLDER) writes")
    if analysis not in content["analyses"]:
        raise UnknownName(f"analysis in {folder}", analysis, content["analyses"])
    parts = _parts(folder / analysis)
    notes = _notes(folder)
    if not parts:
        raise InputError(f"{folder} holds no {analysis} yet" + "".join(f"; {note}" for note in notes))
    joined = join_frames([read_frame(parts[step]) for step in sorted(parts)])
    steps = {checkpoint_name(step): step for step in sorted(parts)}
    earlier = [note for run in joined.attrs["provenance"] for note in run.get("notes", ())]
    joined.attrs |= {"epochs": steps, "notes": [*notes, *dict.fromkeys(earlier)], "absent": {}}
    return joined


def _store(folder: str | os.PathLike[str]) -> RunStore:
    return RunStore(folder, "watch", WATCH_FILE, format=FORMAT, check=partial(conforming, _Stored))


class _Stored(TypedDict):
    """What is relied on of ``watch.json``. An analysis is a folder's name."""

    analyses: dict[Annotated[str, matching(r"\w[^/\\]*")], dict[str, Any]]
    layers: NotRequired[str | None]


class _Noted(TypedDict):
    step: int | None
    note: str


def _analyses(folder: Path) -> list[str]:
    return sorted((_store(folder).content() or {"analyses": {}})["analyses"])


def _parts(folder: Path) -> dict[int, Path]:
    """Step → file of one analysis."""
    if not folder.is_dir():
        return {}
    found = {path: _PART.fullmatch(path.name) for path in folder.iterdir()}
    return {int(match[1]): path for path, match in found.items() if match}


def _notes(folder: Path) -> list[str]:
    """The log's notes; a line that a crash cut short is left out."""
    path = folder / LOG_FILE
    if not path.is_file():
        return []
    notes = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            entry = conforming(_Noted, parsed(line))
        except ValueError:
            continue
        notes.append(entry["note"] if entry["step"] is None else f"step {entry['step']}: {entry['note']}")
    return notes
