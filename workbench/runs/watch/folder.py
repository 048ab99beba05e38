"""The folder that a watch fills: one Parquet file per analysis and logging, what is watched, and what happened."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from workbench.core.errors import InputError, MissingResource, UnknownName
from workbench.core.files import jsonable, write_json
from workbench.core.renamed import new_settings
from workbench.frames.provenance import versions
from workbench.frames.results import join_frames, read_frame, write_frame

FORMAT = 2  # 2 has new names of options; folders of format 1 are read, and their runs can go on
WATCH_FILE, LOG_FILE = "watch.json", "log.jsonl"
SUPERSEDED = "superseded"
"""Subfolder of loggings that a run made from the step on from which it was later taken up again."""
_PART = re.compile(r"step-(\d+)\.parquet")


def checkpoint_name(step: int) -> str:
    """What rows of a step say in their column ``checkpoint``, and how its files are called."""
    return f"step-{step:09d}"


class WatchFolder:
    """Where the loggings of one run go; ``identity`` is what must be the same for a run to go on in it."""

    def __init__(self, out: str | os.PathLike[str], identity: Mapping[str, Any], resume: bool = True) -> None:
        self.out = Path(out).expanduser()
        self.identity = jsonable(identity)
        self._prepare(resume)

    def _prepare(self, resume: bool) -> None:
        if self.out.exists() and not self.out.is_dir():
            raise InputError(f"{self.out} is a file; a watch needs a folder")
        held = _identity(self.out)
        different = sorted(key for key in self.identity if held and held.get(key) != self.identity[key])
        if held and (different or not resume):
            what = f"another run: its {', '.join(different)} differ" if different else "an earlier run"
            raise InputError(f"{self.out} holds {what}; choose another folder, or remove this one")
        about = {**self.identity, "versions": versions()}
        write_json(self.out / WATCH_FILE, about)

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
    held = _identity(folder)
    if held is None:
        raise InputError(f"no watch in {folder}; give the folder that workbench.watch(…, out=FOLDER) writes")
    if analysis not in held["analyses"]:
        raise UnknownName(f"analysis in {folder}", analysis, held["analyses"])
    parts = _parts(folder / analysis)
    notes = _notes(folder)
    if not parts:
        raise InputError(f"{folder} holds no {analysis} yet" + "".join(f"; {note}" for note in notes))
    joined = join_frames([read_frame(parts[step]) for step in sorted(parts)])
    steps = {checkpoint_name(step): step for step in sorted(parts)}
    told = [note for run in joined.attrs["provenance"] for note in run.get("notes", ())]
    joined.attrs |= {"epochs": steps, "notes": [*notes, *dict.fromkeys(told)], "absent": {}}
    return joined


def _identity(folder: Path) -> dict[str, Any] | None:
    path = folder / WATCH_FILE
    if not path.is_file():
        return None
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}); choose another folder") from error
    if not isinstance(held, dict) or not isinstance(held.get("analyses"), dict):
        raise InputError(f"{path} describes no watch; choose another folder")
    if (version := held.get("format", 0)) > FORMAT:
        raise InputError(f"{path} has format {version}; this workbench reads up to {FORMAT}: update it")
    if version < FORMAT:
        held |= {"format": FORMAT, "analyses": new_settings(held["analyses"])}
    return held


def _analyses(folder: Path) -> list[str]:
    return sorted((_identity(folder) or {"analyses": {}})["analyses"])


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
    told = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        told.append(entry["note"] if entry["step"] is None else f"step {entry['step']}: {entry['note']}")
    return told
