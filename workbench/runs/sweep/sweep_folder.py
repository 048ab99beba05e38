"""The folder of a sweep: a manifest, and one Parquet file for every finished task.

``manifest.json`` holds the plan, a line for each finished part and each failed task;
``parts/model=…/analysis=…/shard-00000.parquet`` the part of one task; ``merged/`` the results that were read from whole
sweeps. Every file is written whole or not at all. A part carries the fingerprint of its model and analysis, and
checksums of its pages.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Collection, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NotRequired
from urllib.parse import quote

import pandas as pd
from annotated_types import Ge
from typing_extensions import TypedDict

from workbench.core.errors import InputError
from workbench.core.files import atomic_write, sha256_file
from workbench.core.options import conforming, parsed
from workbench.core.store import RunStore, is_locked, locked
from workbench.frames.measurement import STATE, Accumulator
from workbench.frames.provenance import versions
from workbench.runs.sweep.plan import Plan, Task

FORMAT = 4
_MANIFEST, PARTS, MERGED = "manifest.json", "parts", "merged"
_RUNNING = ".running"
_META = b"workbench_sweep"


_Count = Annotated[int, Ge(0)]


class _Line(TypedDict):
    """A part in the manifest."""

    sha256: str
    inputs: _Count
    skipped: _Count
    seconds: Annotated[float, Ge(0)]


class _Failure(TypedDict):
    """A failed task in the manifest."""

    error: str


class _Manifest(TypedDict):
    workers: NotRequired[Annotated[int, Ge(1)]]
    plan: Plan
    fingerprint: str
    parts: dict[str, _Line]
    failed: dict[str, _Failure]


class _About(TypedDict):
    """The metadata of a part."""

    format: int
    plan: str
    shard: _Count
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
    """The measurements of one task, or of several merged ones, and the model and inputs that they are of."""

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

    def merge(self, other: PartialResult) -> None:
        """Add the inputs of another. Raises `InputError` where it was measured with different weights."""
        if self.model != other.model:
            raise InputError(
                f"shards were measured with different weights of {other.model['spec']} "
                f"({self.model.get('sha256')} and {other.model.get('sha256')}); sweep again, into another folder"
            )
        self.accumulated.merge(other.accumulated)
        self.digests += other.digests
        self.skipped += other.skipped
        self.notes = [*dict.fromkeys([*self.notes, *other.notes])]


class SweepFolder:
    """Read and write the files of one sweep."""

    def __init__(self, path: str | Path) -> None:
        self.store = RunStore(
            path,
            "sweep",
            _MANIFEST,
            format=FORMAT,
            under="plan",
            unknown=PARTS,
            check=partial(conforming, _Manifest),
        )
        self.path = self.store.path

    # Plan and manifest

    def plan(self) -> tuple[Plan, dict[str, Any]]:
        """Return the plan and the manifest. Raises `InputError` where the folder holds no sweep."""
        manifest = self.store.content()
        if manifest is None:
            raise InputError(f"{self.path} holds no sweep: there is no {_MANIFEST} in it")
        plan = conforming(Plan, manifest["plan"])
        if plan.fingerprint != manifest["fingerprint"]:
            raise InputError(
                f"the plan in {self.store.file} was edited, and its parts are of the plan before; restore the file, or "
                "sweep into another folder (--out)"
            )
        return plan, manifest

    def write_manifest(self, plan: Plan, parts: dict[str, Any], failed: dict[str, Any], **more: Any) -> None:
        """Write the manifest. Raises `MissingResource` where there is no room."""
        manifest = {"plan": plan.as_json(), "fingerprint": plan.fingerprint, "versions": versions()} | more
        self.store.write(
            manifest | {"parts": dict(sorted(parts.items())), "failed": dict(sorted(failed.items()))}
        )

    # Parts

    def part_name(self, plan: Plan, task: Task) -> str:
        """Return a part's path below the folder, as the manifest names it."""
        names = {"model": plan.models[task.model].spec, "analysis": plan.analyses[task.analysis].label}
        folder = "/".join(f"{kind}={quote(name, safe='')}" for kind, name in names.items())
        return f"{PARTS}/{folder}/shard-{task.shard:05d}.parquet"

    def part_path(self, plan: Plan, task: Task) -> Path:
        """Return where a part lies."""
        return self.path / self.part_name(plan, task)

    def write_part(self, plan: Plan, task: Task, part: PartialResult) -> Path:
        """Write the part of a task. Raises `MissingResource` where there is no room."""
        table, state = part.accumulated.state()
        about = {
            **{name: value for name, value in vars(part).items() if name != "accumulated"},
            "format": FORMAT,
            "plan": plan.fingerprint_of(task.model, task.analysis),
            "shard": task.shard,
            "state": state,
            "digests": base64.b64encode(b"".join(part.digests)).decode(),
        }
        return write_table(self.part_path(plan, task), table, about)

    def read_part(self, plan: Plan, task: Task) -> PartialResult:
        """Read a part. Raises `DamagedPart` if it is incomplete, or belongs to another plan or task."""
        path = self.part_path(plan, task)
        table, metadata = read_table(path)
        try:
            about = conforming(_About, metadata)
            fingerprint = plan.fingerprint_of(task.model, task.analysis)
            if (about["format"], about["plan"], about["shard"]) != (FORMAT, fingerprint, task.shard):
                raise DamagedPart(f"{path} belongs to another plan or task")
            digests = base64.b64decode(about["digests"])
            return PartialResult(
                Accumulator.from_state(table, about["state"]),
                about["model"],
                about["skipped"],
                [digests[start : start + 32] for start in range(0, len(digests), 32)],
                about["notes"],
                about["batch"],
                about["seconds"],
            )
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise DamagedPart(f"{path} is not a whole part of a sweep: {error}") from error

    def line_of(self, plan: Plan, task: Task, listed: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return a part's line of the manifest after checking the whole file.

        Raises `DamagedPart`, also where the file is not the one that the manifest has ``listed``.
        """
        path = self.part_path(plan, task)
        try:
            content = sha256_file(path)
        except OSError as error:
            raise DamagedPart(f"{path} cannot be read: {error.strerror or error}") from error
        if listed is not None:
            if listed["sha256"] != content:
                raise DamagedPart(f"{path} is not the file that was written")
            return listed
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
        """Mark a task as begun; the mark stays where the worker is killed."""
        mark = self.path / _RUNNING / f"{task.model}-{task.analysis}-{task.shard}"
        with suppress(OSError):  # on a full disk the task itself will say so
            mark.parent.mkdir(exist_ok=True)
            mark.touch()
        try:
            yield
        finally:
            mark.unlink(missing_ok=True)

    def take_marks(self, tasks: Collection[Task]) -> set[Task]:
        """Return those of the tasks that were begun and neither finished nor failed, and remove their marks."""
        begun = set()
        for mark in [*(self.path / _RUNNING).glob("*")]:
            if re.fullmatch(r"\d+-\d+-\d+", mark.name):
                task = Task(*map(int, mark.name.split("-")))
                if task in tasks:
                    begun.add(task)
                    mark.unlink(missing_ok=True)
        return begun

    # Parts of a sweep that several processes run

    @contextmanager
    def part_locked(self, number: int, count: int) -> Generator[None]:
        """Hold one of the parts that the tasks are divided into. Raises `InputError` where another process does."""
        folder = self.path / _RUNNING / f"part-{number}-of-{count}"
        with locked(folder, f"part {number} of {count} of the sweep"):
            yield
        with suppress(OSError):  # another process may wait for it
            folder.rmdir()

    def parts_running(self) -> bool:
        """Return whether a process runs one of the parts that the tasks are divided into."""
        return any(map(is_locked, (self.path / _RUNNING).glob("part-*")))


def write_table(path: Path, table: pd.DataFrame, about: dict[str, Any]) -> Path:
    """Write the table of `Accumulator.state` with metadata, as JSON has it.

    Raises `MissingResource` where there is no room.
    """
    import pyarrow
    import pyarrow.parquet

    plain = {
        "string": pyarrow.string(),
        "Int64": pyarrow.int64(),
        "boolean": pyarrow.bool_(),
        "float64": pyarrow.float64(),
    }
    lists = {"sums": pyarrow.float64(), "bins": pyarrow.float64()}
    schema = pyarrow.schema(
        (name, plain.get(kind) or pyarrow.list_(lists.get(name, pyarrow.int64())))
        for name, kind in STATE.items()
    )
    arrow = pyarrow.Table.from_pandas(table, schema=schema, preserve_index=False)
    arrow = arrow.replace_schema_metadata(
        {**(arrow.schema.metadata or {}), _META: json.dumps(about).encode()}
    )
    return atomic_write(
        path, lambda handle: pyarrow.parquet.write_table(arrow, handle, write_page_checksum=True)
    )


def read_table(path: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Read what `write_table` wrote. Raises `DamagedPart` if it is missing or incomplete."""
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path, page_checksum_verification=True) as opened:
            table = opened.read()
        about = parsed(table.schema.metadata[_META])
        return table.to_pandas().reindex(columns=list(STATE)).astype(STATE), about
    except Exception as error:  # pandas believes what the metadata says of the columns
        raise DamagedPart(f"{path} is not a whole part of a sweep: {error}") from error
