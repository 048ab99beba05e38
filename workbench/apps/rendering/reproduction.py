"""`reproduce`: draw a figure again from its provenance, and compare."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from workbench.apps.rendering.run import render
from workbench.core.errors import InputError, UnknownName, WorkbenchError
from workbench.core.paths import bundled_notebooks
from workbench.figures.export import FORMATS
from workbench.frames.provenance import read_provenance, sha256_file
from workbench.models.loading import find_device


@dataclass
class Reproduction:
    """A comparison of a redrawn figure with the original.

    ``difference`` is the largest relative difference of the data: 0 for identical data, None if the tables cannot be
    compared, with the reason in ``compared``.
    """

    name: str
    same_data: bool
    same_figure: bool
    difference: float | None
    causes: list[str]
    compared: str = ""

    @property
    def same(self) -> bool:
        """Return whether data and drawing are the same, bit for bit."""
        return self.same_data and self.same_figure

    def __str__(self) -> str:
        if self.same:
            text = f"{self.name}: the same: data and drawing are identical"
        elif self.same_data:
            text = f"{self.name}: the same data, drawn differently"
        elif self.difference is not None:
            text = f"{self.name}: different data: largest relative difference {self.difference:.3g}"
        else:
            text = f"{self.name}: different data: {self.compared}"
        return "\n".join([text, *(f"  {cause}" for cause in self.causes)])


def reproduce(
    path: str | os.PathLike[str], out: str | os.PathLike[str] | None = None, *, trust: bool = False
) -> Reproduction:
    """Draw a figure again from its provenance, in a separate folder, and compare data and drawing.

    A bundled notebook is run from the package, even if it has changed since, which the comparison reports. Relative
    paths among its parameters are read from the current folder, and with ``trust`` from the one that it was run in.

    Args:
        path: a figure's NAME.json, or any of its files.
        out: folder to keep the new figure in; its former content is moved aside. By default nothing is kept.
        trust: run any other notebook that the provenance names, whatever its code does.

    Raises:
        InputError: no provenance, a figure that no notebook drew, a notebook that is not trusted, or one that is
            gone or takes other parameters now.
        UnknownName: a bundled notebook that this version does not have.
    """
    path = Path(os.path.abspath(os.path.expanduser(path)))
    first = read_provenance(path)
    run = first.get("notebook")
    if not run:
        raise InputError(
            f"{first['name']} was saved by a script, or by a notebook whose cells were changed: there is no "
            "notebook to run again; render the notebook with: workbench render NOTEBOOK.ipynb"
        )
    target = _notebook_to_run(run, trust, path.parent)
    if out is not None and os.path.realpath(os.path.expanduser(out)) == os.path.dirname(
        os.path.realpath(path)
    ):
        raise InputError(f"{out} holds the figure itself; give another folder, so that both can be compared")
    with tempfile.TemporaryDirectory(prefix="workbench-reproduce-") as scratch:
        folder = Path(os.path.abspath(os.path.expanduser(out) if out is not None else scratch))
        with chdir(_working_folder(path.parent, run.get("folder")) if trust else Path.cwd()):
            report = render(
                [target],
                parameters=run.get("parameters", {}),
                preset=first.get("preset") or "default",
                theme=first["figure"]["theme"],
                font=first["figure"].get("font"),
                letters=first["figure"].get("letters"),
                device=_same_device(run.get("device")),
                out=folder,
                formats=() if out is None else FORMATS,
                progress=False,
                restart=True,  # unchanged figures are drawn again, too
            )
        (outcome,) = report.outcomes
        if outcome.status != "done":
            return Reproduction(
                first["name"], False, False, None, _causes(first, first), compared=str(outcome)
            )
        drawn = folder / f"{first['name']}.json"
        if first["name"] not in outcome.figures:
            drew = ", ".join(outcome.figures) or "nothing"
            return Reproduction(first["name"], False, False, None, [], f"the notebook now draws {drew}")
        second = read_provenance(drawn)
        same_data = first["data"]["sha256"] == second["data"]["sha256"]
        difference, compared = (0.0, "") if same_data else _difference(path, drawn)
        return Reproduction(
            name=first["name"],
            same_data=same_data,
            same_figure=first["figure"]["sha256"] == second["figure"]["sha256"],
            difference=difference,
            causes=_causes(first, second),
            compared=compared,
        )


def _working_folder(figures: Path, stored: str | None) -> Path:
    """Return the folder that a notebook ran in, which is stored relative to its figure's, or the current folder."""
    folder = Path(os.path.realpath(figures / (stored or ".")))
    return folder if stored and folder.is_dir() else Path.cwd()


def _notebook_to_run(run: Mapping[str, Any], trust: bool, folder: Path) -> Path:
    """Return the bundled notebook of that name, or the file that the provenance names, if it is trusted.

    Its path is relative to the figure's folder. If the figure was moved, a notebook of that name in its folder or in
    the current one is used.
    """
    name, stored, bundled = run["name"], run.get("path"), bundled_notebooks()
    bundled_path = bundled.get(name)
    if bundled_path is not None and (not stored or run.get("sha256") == sha256_file(bundled_path)):
        return bundled_path
    if not stored:
        raise UnknownName("notebook", name, bundled)
    path = Path(os.path.realpath(folder / stored))
    neighbours = [Path(os.path.realpath(directory / path.name)) for directory in (folder, Path.cwd())]
    path = next((candidate for candidate in (path, *neighbours) if candidate.is_file()), path)
    if not path.is_file():
        raise InputError(
            f"the notebook that drew it is gone: no file at {path}; put {path.name} beside the figure"
        )
    if not trust:
        raise InputError(
            f"this would run {path} (sha256 {sha256_file(path)}), which is none of the bundled notebooks: read it, and "
            "if you trust it add --trust (in Python: trust=True)"
        )
    return path


def _same_device(device: str | None) -> str | None:
    """Return the device that a figure was drawn on, if this machine has it."""
    try:
        return None if device is None else str(find_device(device))
    except WorkbenchError:
        return None


def _difference(first: Path, second: Path) -> tuple[float | None, str]:
    """Return the largest |a − b| / max|a, b| over the numbers of two CSV files, or None and the reason."""
    before = first.with_suffix(".csv")
    if not before.is_file():
        return None, f"{before.name} is not beside {first.name}, so only their hashes could be compared"
    old, new = pd.read_csv(before), pd.read_csv(second.with_suffix(".csv"))
    if old.shape != new.shape or list(old.columns) != list(new.columns):
        return (
            None,
            f"{old.shape[0]} rows × {old.shape[1]} columns became {new.shape[0]} × {new.shape[1]}",
        )
    largest = 0.0
    for column in old.columns:
        a, b = old[column], new[column]
        if pd.api.types.is_numeric_dtype(a) and pd.api.types.is_numeric_dtype(b):
            if (a.isna() != b.isna()).any():
                return None, f"column {column!r} is empty in other rows"
            scale = pd.concat([a.abs(), b.abs()], axis=1).max(axis=1)
            relative = ((a - b).abs() / scale.where(scale > 0, 1.0)).max()
            largest = max(largest, 0.0 if pd.isna(relative) else float(relative))
        elif not (a.fillna("") == b.fillna("")).all():
            return None, f"column {column!r} holds other labels"
    return largest, ""


def _causes(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """List the changes between two runs by their provenance."""
    causes = []
    for package, before in first["versions"].items():
        now = second["versions"].get(package)
        if now != before:
            causes.append(f"{package} {before} became {now}")
    git, now_git = first.get("git") or {}, second.get("git") or {}
    if git.get("commit") != now_git.get("commit"):
        causes.append(f"commit {git.get('commit')} became {now_git.get('commit')}")
    if git.get("dirty") or now_git.get("dirty"):
        causes.append("the checkout has changes that are not committed")
    for kind, label in (("models", "weights"), ("inputs", "inputs")):
        for before, now in zip(first[kind], second[kind], strict=False):
            if before.get("sha256") != now.get("sha256"):
                causes.append(f"{label} of {before.get('spec')} have another hash")
    devices = [(run.get("notebook") or {}).get("device") or "cpu" for run in (first, second)]
    if devices[0] != devices[1]:
        causes.append(f"device {devices[0]} became {devices[1]}")
    if (first.get("notebook") or {}).get("sha256") != (second.get("notebook") or {}).get("sha256"):
        causes.append("the notebook has changed")
    before, now = ((run.get("notebook") or {}).get("modules", {}) for run in (first, second))
    changed = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    causes += [f"the module {name} has changed" for name in changed]
    for before, now in zip(first["records"], second["records"], strict=False):
        if before["sha256"] != now["sha256"]:
            causes.append(f"the record {before['path']} has changed")
    return causes
