"""The folder of a sweep: a manifest, and one Parquet file for every finished task.

``manifest.json`` holds the plan, a line for each finished part and each failed task;
``parts/model=…/analysis=…/shard-00000.parquet`` what one task measured; ``merged/`` what the parts of one model and
analysis came to when they were last read. Every file is written whole or not at all, and a part carries the plan's
fingerprint and checksums of its pages, so that a damaged one is known as such.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NotRequired
from urllib.parse import quote

import pandas as pd
from annotated_types import Ge
from typing_extensions import TypedDict

from workbench.core.errors import InputError
from workbench.core.files import atomic_write, sha256_file
from workbench.core.options import conforming, parsed
from workbench.core.store import RunStore
from workbench.frames.measurement import STATE, Accumulator
from workbench.frames.provenance import versions
from workbench.runs.sweep.plan import Plan, Task

FORMAT = 3
MANIFEST, PARTS, MERGED = "manifest.json", "parts", "merged"
RUNNING = ".running"
_META = b"workbench_sweep"


_Count = Annotated[int, Ge(0)]


class _Line(TypedDict):
    """What the manifest says of a part."""

    sha256: str
    inputs: _Count
    skipped: _Count
    seconds: Annotated[float, Ge(0)]


class _Failure(TypedDict):
    """What it says of a task that was given up."""

    error: str


class _Manifest(TypedDict):
    workers: NotRequired[Annotated[int, Ge(1)]]
    plan: dict[str, Any]
    parts: dict[str, _Line]
    failed: dict[str, _Failure]


class _About(TypedDict):
    """What a part says of itself."""

    format: int
    plan: str
    task: list[int]
    skipped: list[tuple[str, str]]
    model: dict[str, Any]
    notes: list[str]
    batch: _Count
    seconds: Annotated[float, Ge(0)]
    state: dict[str, Any]
    digests: str


class DamagedPart(Exception):
    """A part that cannot be read, or that belongs to another plan; it is computed again."""


@dataclass
class PartialResult:
    """What one task measured, and where it comes from."""

    accumulated: Accumulator
    model: dict[str, Any]
    """Identity of the model."""
    skipped: list[tuple[str, str]] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list, repr=False)
    """sha256 of every input that was read, in order."""
    notes: list[str] = field(default_factory=list)
    batch: int = 0
    """Inputs per forward pass: less than the plan's where memory was short."""
    seconds: float = 0.0


class SweepFolder:
    """Reads and writes the files of one sweep."""

    def __init__(self, path: str | Path) -> None:
        self.store = RunStore(
            path, "sweep", MANIFEST, format=FORMAT, under="plan", unknown=PARTS, check=_check_manifest
        )
        self.path = self.store.path

    # Plan and manifest

    def plan(self) -> tuple[Plan, dict[str, Any]]:
        """The plan, and the whole manifest. Raises `InputError` where the folder holds no sweep."""
        manifest = self.store.content()
        if manifest is None:
            raise InputError(f"{self.path} holds no sweep: there is no {MANIFEST} in it")
        return Plan.from_json(manifest["plan"]), manifest

    def write_manifest(self, plan: Plan, parts: dict[str, Any], failed: dict[str, Any], **more: Any) -> None:
        """Write the manifest anew. Raises `MissingResource` where there is no room."""
        manifest = {"plan": plan.as_json(), "versions": versions()} | more
        self.store.write(
            manifest | {"parts": dict(sorted(parts.items())), "failed": dict(sorted(failed.items()))}
        )

    # Parts

    def part_name(self, plan: Plan, task: Task) -> str:
        """A part's path below the folder, as the manifest names it."""
        return f"{PARTS}/{_names(plan, task.model, task.analysis)}/shard-{task.shard:05d}.parquet"

    def part_path(self, plan: Plan, task: Task) -> Path:
        """Where a part lies."""
        return self.path / self.part_name(plan, task)

    def merged_path(self, plan: Plan, model: int, analysis: int) -> Path:
        """Where the parts of one model and analysis are kept as one."""
        return self.path / MERGED / f"{_names(plan, model, analysis)}.parquet"

    def write_part(self, plan: Plan, task: Task, part: PartialResult) -> Path:
        """Write what a task measured. Raises `MissingResource` where there is no room."""
        table, state = part.accumulated.state()
        about = {
            "format": FORMAT,
            "plan": plan.fingerprint,
            "task": [task.model, task.analysis, task.shard],
            "inputs": len(part.digests),
            "skipped": part.skipped,
            "model": part.model,
            "notes": part.notes,
            "batch": part.batch,
            "seconds": part.seconds,
            "state": state,
            "digests": base64.b64encode(b"".join(part.digests)).decode(),
        }
        return write_table(self.part_path(plan, task), table, about)

    def read_part(self, plan: Plan, task: Task) -> PartialResult:
        """Read a part. Raises `DamagedPart` where it is not whole, or belongs to another plan or task."""
        path = self.part_path(plan, task)
        table, said = read_table(path)
        try:
            about = conforming(_About, said)
            digests = base64.b64decode(about["digests"])
            if about["plan"] != plan.fingerprint or about["format"] != FORMAT:
                raise DamagedPart(f"{path} belongs to another plan")
            if about["task"] != [task.model, task.analysis, task.shard]:
                raise DamagedPart(f"{path} is the part of another task")
            accumulated = Accumulator.from_state(table, about["state"])
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise DamagedPart(f"{path} is not a whole part of a sweep: {error}") from error
        return PartialResult(
            accumulated,
            about["model"],
            [(name, reason) for name, reason in about["skipped"]],
            [digests[start : start + 32] for start in range(0, len(digests), 32)],
            about["notes"],
            about["batch"],
            about["seconds"],
        )

    def line_of(self, plan: Plan, task: Task, listed: dict[str, Any] | None = None) -> dict[str, Any]:
        """A part's line in the manifest, after a look at the whole file.

        Raises `DamagedPart`, also where the file is not the one that the line ``listed`` before tells of.
        """
        path = self.part_path(plan, task)
        try:
            content = sha256_file(path)
        except OSError as error:
            raise DamagedPart(f"{path} cannot be read: {error.strerror or error}") from error
        if listed is not None and listed["sha256"] == content:
            return listed
        if listed is not None:
            raise DamagedPart(f"{path} is not the file that was written")
        part = self.read_part(plan, task)
        return {
            "sha256": content,
            "inputs": len(part.digests),
            "skipped": len(part.skipped),
            "batch": part.batch,
            "seconds": round(part.seconds, 3),
        }

    # Tasks that workers have begun

    @contextmanager
    def begun(self, task: Task) -> Generator[None]:
        """A mark that a worker is at this task, which stays behind where the worker is killed."""
        mark = self.path / RUNNING / f"{task.model}-{task.analysis}-{task.shard}"
        with suppress(OSError):  # on a full disk the task itself will say so
            mark.parent.mkdir(exist_ok=True)
            mark.touch()
        try:
            yield
        finally:
            mark.unlink(missing_ok=True)

    def take_marks(self) -> set[Task]:
        """Tasks that were begun and neither finished nor failed; their marks are removed."""
        found = set()
        for mark in [*(self.path / RUNNING).glob("*")]:
            if re.fullmatch(r"\d+-\d+-\d+", mark.name):
                found.add(Task(*map(int, mark.name.split("-"))))
                mark.unlink(missing_ok=True)
        return found


def _check_manifest(manifest: dict[str, Any]) -> None:
    """Raise `ValueError` for a manifest with entries of the wrong kind, naming the first one."""
    Plan.from_json(conforming(_Manifest, manifest)["plan"])


def _names(plan: Plan, model: int, analysis: int) -> str:
    names = {"model": plan.models[model].spec, "analysis": plan.analyses[analysis].label}
    return "/".join(f"{kind}={quote(name, safe='')}" for kind, name in names.items())


def write_table(path: Path, table: pd.DataFrame, about: dict[str, Any]) -> Path:
    """Write a table in the form of `Accumulator.state` with what belongs to it, as JSON has it.

    Raises `MissingResource` where there is no room.
    """
    import pyarrow
    import pyarrow.parquet

    kinds = {
        "string": pyarrow.string(),
        "Int64": pyarrow.int64(),
        "boolean": pyarrow.bool_(),
        "float64": pyarrow.float64(),
    }
    lists = {"sums": pyarrow.float64(), "bins": pyarrow.float64()}
    schema = pyarrow.schema(
        [
            (name, kinds[kind] if kind != "object" else pyarrow.list_(lists.get(name, pyarrow.int64())))
            for name, kind in STATE.items()
        ]
    )
    made = pyarrow.Table.from_pandas(table, schema=schema, preserve_index=False)
    metadata = {**(made.schema.metadata or {}), _META: json.dumps(about).encode()}
    made = made.replace_schema_metadata(metadata)
    return atomic_write(
        path, lambda handle: pyarrow.parquet.write_table(made, handle, write_page_checksum=True)
    )


def read_table(path: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    """What `write_table` wrote. Raises `DamagedPart` where that is not there, or not whole."""
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path, page_checksum_verification=True) as opened:
            table = opened.read()
        about = parsed(table.schema.metadata[_META])
        return table.to_pandas().reindex(columns=list(STATE)).astype(STATE), about
    except Exception as error:  # pandas believes what the metadata says of the columns
        raise DamagedPart(f"{path} is not a whole part of a sweep: {error}") from error
