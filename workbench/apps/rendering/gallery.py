"""The page with every figure of a folder: `figures/index.html`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from workbench.apps.rendering.notebooks import read_notebook
from workbench.apps.rendering.state import REPORT, Outcome, read_report
from workbench.core.files import atomic_write, jsonable
from workbench.core.paths import bundled_notebooks
from workbench.frames.provenance import SCHEMA_VERSION
from workbench.frames.results import is_random

_LINKS = (
    ("pdf", "PDF"),
    ("svg", "SVG"),
    ("png", "PNG"),
    ("html", "interactive HTML"),
    ("explorer.html", "every head (saved page)"),
    ("csv", "data (CSV)"),
    ("tex", "LaTeX table"),
    ("figure.tex", "LaTeX figure"),
    ("json", "provenance (JSON)"),
    ("figure.json", "plotly figure (JSON)"),
)

QUESTIONS = (
    "Which claims hold?",
    "Is it kernel PCA?",
    "Who attends where?",
    "What happens to tokens and noise?",
    "Does it help?",
    "What does it cost?",
)
"""Sections of the gallery; the metadata of a notebook names its question."""

OTHER = "Other figures"
FEATURED = (
    "verdict_matrix", "squared_norms", "attention_heatmaps_pair", "position_logits", "robust_components",
    "segmentation_masks", "attention_as_filter_photograph", "operator_efficiency",
)  # fmt: skip
"""Figures on top of a full gallery."""


@dataclass
class Entry:
    """One figure as the page shows it."""

    name: str
    title: str
    """The finding; without one, the name in words."""
    caption: str
    """Without the finding."""
    alt: str
    width: int
    height: int
    image: str | None
    page: str | None
    links: list[tuple[str, str]]
    notebook: str | None
    parameters: dict[str, str]
    opens: bool
    """Whether the explorer has a view of this figure."""
    facts: dict[str, str] = field(default_factory=dict)


class Gallery(NamedTuple):
    """The page, and the JSON files in its folder that no render wrote."""

    index: Path
    unknown: list[str]


def write_gallery(out: str | os.PathLike[str], report: Mapping[str, Outcome] | None = None) -> Gallery:
    """Write index.html from every figure's NAME.json in a folder; failures are in `report`, else in report.json.

    The page is one file with small images to choose from, and shows one figure at a time. It works offline, with a
    keyboard and a screen reader; only its search needs a script.
    Raises `MissingResource` where the folder cannot be written.
    """
    import jinja2

    folder = Path(out).expanduser()
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("workbench.apps", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    saved = read_report(folder)
    if report is None:
        report = saved or {}
    sources = [path for path in sorted(folder.glob("*.json")) if not path.name.endswith(".figure.json")]
    read = {path.name: _entry(path) for path in sources if path.name != REPORT}
    entries = [entry for entry in read.values() if entry is not None]
    unknown = [name for name, entry in read.items() if entry is None] + ([REPORT] if saved is None else [])
    troubles = [outcome for outcome in report.values() if outcome.failed]
    groups = _groups(entries)
    entries = [entry for members in groups.values() for entry in members]
    featured = [entry for name in FEATURED for entry in entries if entry.name == name]
    if len(entries) > 2 * len(FEATURED) and featured:
        groups = {"Start here": featured} | groups
    page = environment.get_template("gallery.html").render(
        entries=entries,
        groups=groups,
        troubles=troubles,
        interrupted=[name for name, outcome in report.items() if outcome.status == "interrupted"],
        static=any(entry.image for entry in entries),
    )
    # A name that is no Unicode must not end a render after all its work.
    content = page.encode(errors="replace")
    return Gallery(atomic_write(folder / "index.html", content), unknown)


def _groups(entries: list[Entry]) -> dict[str, list[Entry]]:
    """Group entries by the question that their notebook answers; empty groups are left out."""
    questions = {name: read_notebook(path).question for name, path in bundled_notebooks().items()}
    groups: dict[str, list[Entry]] = {question: [] for question in (*QUESTIONS, OTHER)}

    def place(entry: Entry) -> tuple[str, bool, str]:
        paper = entry.name.rpartition("_")[2] if entry.notebook == "claims" else ""
        return entry.notebook or "", entry.name != "verdict_matrix", paper

    for entry in sorted(entries, key=place):
        groups[questions.get(entry.notebook or "") or OTHER].append(entry)
    return {question: members for question, members in groups.items() if members}


def _entry(path: Path) -> Entry | None:
    """Read the entry of one NAME.json; None for a JSON file that is no figure's provenance."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return _described(path, content) if content["schema"] == SCHEMA_VERSION else None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None  # a user's file in the same folder


def _described(path: Path, provenance: Mapping[str, Any]) -> Entry:
    name, figure = path.stem, provenance["figure"]
    finding = figure.get("finding") or ""
    links = [
        (f"{name}.{suffix}", label)
        for suffix, label in _LINKS
        if path.with_name(f"{name}.{suffix}").is_file()
    ]
    run = provenance.get("notebook") or {}
    executed = f"notebooks/{run['name']}.ipynb" if run.get("name") else None
    if executed and path.with_name("notebooks").joinpath(f"{run['name']}.ipynb").is_file():
        links.append((executed, "executed notebook"))
    present = {target for target, _ in links}
    image = next((file for file in (f"{name}.png", f"{name}.svg") if file in present), None)
    return Entry(
        name=name,
        title=finding or name.replace("_", " ").replace("-", " "),
        caption=figure["caption"].removeprefix(finding).strip(),
        alt=figure["alt"],
        width=figure["width_px"],
        height=figure["height_px"],
        image=image,
        page=f"{name}.html" if f"{name}.html" in present else None,
        links=links,
        notebook=run.get("name"),
        parameters={key: _text(value) for key, value in provenance["parameters"].items()},
        opens=any(model.get("spec") for model in provenance["models"][:1]),
        facts=_facts(provenance),
    )


def _facts(provenance: Mapping[str, Any]) -> dict[str, str]:
    """Describe the sources of a figure's numbers in words."""
    facts: dict[str, str] = {}
    for model in provenance["models"]:
        weights = f", weights {model['sha256'][:12]}" if model.get("sha256") else ""
        checkpoint = f" {model['checkpoint']}" if model.get("checkpoint") else ""
        checkpoint += " weights" if is_random(model.get("checkpoint")) else ""
        facts["model"] = _join(facts.get("model"), f"{model.get('spec')}{checkpoint}{weights}")
    for inputs in provenance["inputs"]:
        count = f", n = {inputs['n']}" if inputs.get("n") is not None else ""
        content = f", content {inputs['sha256'][:12]}" if inputs.get("sha256") else ""
        facts["inputs"] = _join(facts.get("inputs"), f"{inputs.get('spec')}{count}{content}")
    for record in provenance["records"]:
        facts["record"] = _join(facts.get("record"), record["path"])
    facts["data"] = f"{provenance['data']['rows']} rows"
    if provenance["figure"].get("flaws"):
        facts["flaws in print"] = "; ".join(provenance["figure"]["flaws"])
    git = provenance.get("git")
    commit = f", commit {git['commit'][:12]}{' with local changes' if git['dirty'] else ''}" if git else ""
    facts["made"] = (
        f"{provenance['created'][:10]} with workbench {provenance['versions']['workbench']}{commit}"
    )
    if provenance.get("preset"):
        facts["preset"] = provenance["preset"]
    return facts


def _join(before: str | None, text: str) -> str:
    return text if before is None else f"{before}; {text}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(jsonable(value))
