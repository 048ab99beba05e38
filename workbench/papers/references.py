"""References of a figure as BibTeX: software, models, papers and data, from its provenance.

The project and the papers that it studies are in CITATION.cff, to which ``data/published`` has a link. The others are
in ``data/published/references.bib``, whose field ``of`` names what an entry is the reference of.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from workbench.core import paths
from workbench.frames.provenance import read_provenance
from workbench.papers.published import PAPERS

PROJECT = "attention_workbench"
_ENTRY = re.compile(r"^@(\w+)\{(\w+),\n(.*?)^\}", re.DOTALL | re.MULTILINE)
_FIELD = re.compile(r"^  (\w+) = \{(.*)\},$", re.MULTILINE)
_UNKNOWN = "no reference is known for {}; see its own page"


def cite(figures: Iterable[str | Path]) -> str:
    """Return the BibTeX of all that figures show, by their files, with the versions and weights in comments.

        cite(["figures/gram_spectra.json"])

    Raises `InputError` for a file without provenance.
    """
    groups: dict[str, dict[str, list[str]]] = {"software": {}, "models": {}, "data": {}, "papers": {}}
    for path in map(Path, figures):
        provenance = read_provenance(path)
        for name, version in provenance["versions"].items():
            keys = [PROJECT] if name == "workbench" else [*_matching("software", name)]
            if version and keys:
                groups["software"][f"{name} {version}"] = keys
        for model in provenance["models"]:
            spec, weights = str(model.get("spec")), str(model.get("sha256") or "")[:12]
            groups["models"][f"{spec}{', weights ' if weights else ''}{weights}"] = [*_model_keys(spec)]
        for inputs in provenance["inputs"]:
            spec = str(inputs.get("spec"))
            groups["data"][spec] = [PROJECT] if "prose" in spec else [*_matching("data", spec)]
        for source in _sources(path, provenance):
            groups["papers"][source] = [*_source_keys(source)]
    parts, printed = [], set[str]()
    for group, members in groups.items():
        comments = [f"% {group}: {', '.join(members)}"] if members else []
        if group != "papers":
            comments += [f"% {_UNKNOWN.format(name)}" for name, keys in members.items() if not keys]
        keys = [key for keys in members.values() for key in keys if key not in printed]
        printed |= {*keys}
        parts += ["\n".join(comments), *(bibtex(key) for key in dict.fromkeys(keys))] if members else []
    return "\n\n".join(parts) + "\n"


def bibtex(key: str) -> str:
    """Return one entry by its key."""
    kind, fields = _entries()[key]
    lines = [f"  {name} = {{{value}}}," for name, value in fields.items() if name != "of"]
    return "\n".join([f"@{kind}{{{key},", *lines, "}"])


@cache
def _entries() -> dict[str, tuple[str, dict[str, str]]]:
    folder = paths.data_dir() / "published"
    text = (folder / "references.bib").read_text(encoding="utf-8")
    others = {key: (kind, dict(_FIELD.findall(body))) for kind, key, body in _ENTRY.findall(text)}
    project = yaml.safe_load((folder / "CITATION.cff").read_text(encoding="utf-8"))
    year = str(project["date-released"])[:4]
    ours = {PROJECT: ("software", {**_fields(project, year), "version": project["version"]})}
    for paper in project["references"]:
        fields = _fields(paper, str(paper["year"]))
        ours[next(key for key in PAPERS if key == _key(paper))] = (paper["type"], fields)
    return ours | others


def _fields(item: Mapping[str, Any], year: str) -> dict[str, str]:
    names = [
        author["name"] if "name" in author else f"{author['family-names']}, {author['given-names']}"
        for author in item["authors"]
    ]
    authors = " and ".join(f"{{{name}}}" if "," not in name else name for name in names)
    return {"author": authors, "title": f"{{{item['title']}}}", "year": year}


def _key(paper: Mapping[str, Any]) -> str:
    letters = str(paper["authors"][0]["family-names"]).lower().translate(str.maketrans("ış", "is"))
    return f"{letters}{paper['year']}"


def _matching(kind: str, name: str) -> Iterator[str]:
    """Yield the keys of entries that are the reference of something, which patterns may name."""
    for key, (_, fields) in _entries().items():
        patterns = (part.strip().partition(" ") for part in fields.get("of", "").split(";"))
        if any(what == kind and fnmatchcase(name.lower(), pattern) for what, _, pattern in patterns):
            yield key


def _model_keys(spec: str) -> Iterator[str]:
    """Yield the references of a model: of its architecture, and of the mechanism that a bundled one has."""
    from workbench.attention import VARIANTS

    scheme, _, rest = spec.partition(":")
    name = re.split(r"[@?]", rest)[0].rpartition("/")[2]
    if scheme == "bundled":
        yield PROJECT
        described = paths.data_dir() / "models" / name / "model.json"
        about = json.loads(described.read_text(encoding="utf-8")) if described.is_file() else {}
        variant = str(about.get("attention"))
        yield from (
            key for key in (VARIANTS[variant].papers if variant in VARIANTS else ()) if key in _entries()
        )
    elif scheme == "tost":
        yield "wu2025"
    yield from _matching("model", f"crate-{name}" if scheme == "crate" else name)


def _sources(path: Path, provenance: Mapping[str, Any]) -> list[str]:
    """Return the sources of the metrics that a figure shows, or else of those that its analyses have."""
    from workbench.analyses.registry import ANALYSES
    from workbench.frames.metric import METRICS

    table = path.with_name(f"{provenance['name']}.csv")
    names: Iterable[str] = []
    papers: list[str] = []
    if table.is_file():
        frame = pd.read_csv(table, dtype=str)
        names = frame["metric"].dropna().unique() if "metric" in frame else ()
        papers = [*frame["paper"].dropna().unique()] if "paper" in frame else []
    else:
        analyses = (run.get("analysis") for run in provenance["runs"])
        names = [metric.name for name in analyses if name in ANALYSES for metric in ANALYSES[name].metrics]
    sources = [METRICS[name].source for name in names if name in METRICS]
    parts = (part.strip() for source in [*sources, *papers] for part in source.split(";"))
    return [*dict.fromkeys(part for part in parts if part != "workbench")]


def _source_keys(source: str) -> Iterator[str]:
    yield from (key for key in PAPERS if source.startswith(key))
    yield from (
        key
        for key, (_, fields) in _entries().items()
        if any(
            source.startswith(part.strip().removeprefix("source "))
            for part in fields.get("of", "").split(";")
            if part.strip().startswith("source ")
        )
    )
