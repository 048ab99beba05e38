"""The state of a render's folder and the inputs of its results: together they decide which notebooks run again."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from typing_extensions import TypedDict

from workbench.apps.rendering.notebooks import Notebook
from workbench.core import paths
from workbench.core.files import sha256_bytes, sha256_file, write_json
from workbench.core.options import conforming, matching, parsed
from workbench.frames.provenance import FIGURE_NAME, dump, versions

REPORT = "report.json"
SCHEMA = 2


@dataclass
class Outcome:
    """How one notebook ended. ``cell`` is the number that Jupyter shows in front of a cell: In [cell]."""

    name: str
    title: str = ""
    status: str = "waiting"  # done, unchanged, failed, interrupted
    seconds: float = 0.0
    figures: dict[Annotated[str, matching(FIGURE_NAME)], str] = field(
        default_factory=dict
    )  # name to the hash of its NAME.json
    cell: int | None = None
    error: str = ""
    message: str = ""
    exports: dict[str, str] = field(default_factory=dict)  # "NAME.pdf" to why it was not printed
    flaws: dict[str, list[str]] = field(
        default_factory=dict
    )  # by figure: what its printed page shows to be wrong
    parameters: dict[str, Any] = field(default_factory=dict)
    modules: dict[str, str] = field(
        default_factory=dict
    )  # files of local modules, from the folder of the gallery, to their hashes
    key: str = ""

    @property
    def failed(self) -> bool:
        """Whether the notebook stopped, or a static image of it could not be printed."""
        return self.status == "failed" or bool(self.exports)

    def __str__(self) -> str:
        count = f"{len(self.figures)} figure{'' if len(self.figures) == 1 else 's'}"
        if self.status == "failed":
            where = f" in cell [{self.cell}]" if self.cell else ""
            first = (self.message.strip().splitlines() or [""])[0][:300]
            text = f"{self.name}: failed{where}: {self.error}: {first}"
        elif self.status == "unchanged":
            text = f"{self.name}: unchanged, {count}"
        elif self.status == "done":
            text = f"{self.name}: done in {self.seconds:.1f} s, {count}"
        else:
            text = f"{self.name}: {self.status}"
        return text + "".join(f"\n  {file} was not exported: {why}" for file, why in self.exports.items())


class _Report(TypedDict):
    schema: int
    notebooks: dict[str, Outcome]


def write_report(out: Path, outcomes: Mapping[str, Outcome]) -> None:
    """Write report.json: the outcomes by the names of their notebooks."""
    write_json(
        out / REPORT,
        {"schema": SCHEMA, "notebooks": {name: asdict(outcome) for name, outcome in outcomes.items()}},
    )


def read_report(out: Path) -> dict[str, Outcome] | None:
    """Read the outcomes of earlier renders from report.json, by notebook; None for a file that is no report."""
    try:
        report = conforming(_Report, parsed((out / REPORT).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError):
        return None
    return report["notebooks"] if report["schema"] == SCHEMA else None


def shared_key(style: Mapping[str, str], preset: str) -> dict[str, Any]:
    """Return the inputs of every notebook's figures: the style, the preset, the package, its data, the versions."""
    package = Path(paths.__file__).resolve().parents[1]
    return {
        "style": dict(style),
        "preset": preset,
        "package": _tree_hash(package, ("*.py", "*.toml", "*.json", "*.yaml")),
        "data": _tree_hash(paths.data_dir(), ("*",)),
        "versions": versions(),
    }


def _tree_hash(folder: Path, patterns: Iterable[str]) -> str:
    files = sorted({path for pattern in patterns for path in folder.rglob(pattern) if path.is_file()})
    listed = [
        (path.relative_to(folder).as_posix(), sha256_file(path))
        for path in files
        if "_bundled" not in path.parts
    ]
    return sha256_bytes(json.dumps(listed).encode())


def result_key(notebook: Notebook, values: Mapping[str, Any], shared: Mapping[str, Any]) -> str:
    """Hash of all that a notebook's figures depend on; local files named in a parameter count by size and time."""
    defaults = {name: parameter.default for name, parameter in notebook.parameters.items()}
    local = [_local_files(value) for value in {**defaults, **values}.values() if isinstance(value, str)]
    dependencies = {"notebook": notebook.sha256, "values": values, "local": local, **shared}
    return sha256_bytes(dump(dependencies).encode())


def _local_files(value: str) -> list[Any]:
    path = Path(value.partition(":")[2] or value).expanduser()
    try:
        if path.is_file():
            return [[str(path), path.stat().st_size, path.stat().st_mtime_ns]]
        if path.is_dir() and (":" in value or os.sep in value):
            inside = sorted(item for item in path.rglob("*") if item.is_file())
            return [[str(item), item.stat().st_size, item.stat().st_mtime_ns] for item in inside]
    except OSError:
        return []  # no such path, or no path at all: then the value itself is all there is
    return []
