"""``findings``: what a result says, in sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from workbench.analyses.registry import find_analysis
from workbench.core.errors import InputError
from workbench.frames.estimate import counts_finding as counts_finding
from workbench.frames.estimate import mean_finding as mean_finding
from workbench.frames.estimate import null_finding as null_finding
from workbench.frames.estimate import range_finding as range_finding
from workbench.frames.results import COLUMNS, name_of_model, provenance_of, shared


def findings(frame: pd.DataFrame, *metrics: str, most: int | None = None) -> list[str]:
    """Describe a result in sentences: estimate, 95 % confidence interval, unit of sampling, and null distribution.

        workbench.findings(workbench.analyze("token-similarity", "bundled:digits-vit", "bundled:digits"))

    A frame of several runs, as of `workbench.analyze_many`, is described run by run; rows that were taken out of it are
    left out. Runs that differ only in options that the analysis pools, such as those of a `workbench.analyze_grid` over
    kinds of noise, are described together. Some analyses have no findings (``ANALYSES[name].findings``).

    For a caption, name the metrics of the figure and the largest number of sentences:

        caption = " ".join(["Mean cosine of tokens.", *workbench.findings(frame, "token_cosine", most=2)])

    Raises `InputError` for a frame without the record of its runs, such as one read from CSV.
    """
    runs = provenance_of(frame)
    if not runs:
        raise InputError(
            "the frame has no record of its runs: give the result of `workbench.analyze` or its like, "
            "or one read from Parquet"
        )
    if metrics:
        frame = frame[frame["metric"].isin(metrics)]
    sentences, seen = [], []
    for run in runs:
        analysis, options = find_analysis(run["analysis"], run["options"], run.get("per"))
        labels = {"checkpoint": run["model"].get("checkpoint"), **run["options"]}
        labels = {name: value for name, value in labels.items() if name not in analysis.pooled}
        described = (run["analysis"], run.get("per"), name_of_model(run["model"]), run.get("inputs"), labels)
        if described in seen:
            continue
        seen.append(described)
        rows = _rows_of(frame, run, labels)
        if not rows.empty:
            name = _name(run, labels, runs)
            sentences += [f"{name}: {sentence}." for sentence in analysis.findings(rows, options)]
    return sentences[:most]


def _rows_of(frame: pd.DataFrame, run: Mapping[str, Any], labels: Mapping[str, Any]) -> pd.DataFrame:
    """The rows of one run: those of its model, and of its checkpoint and options where a column has their name."""
    rows = frame[frame["model"] == name_of_model(run["model"])]
    # columns of another meaning than the option; "query" says how a row per token chose it
    other = {*COLUMNS, "query"} - {"checkpoint", "standardize"}
    for name, value in labels.items():
        if value is None or name in other or name not in rows:
            continue
        chosen = rows[name].isna() if value == "none" else rows[name] == value
        rows = rows[chosen.fillna(False)]
    rows.attrs = {"provenance": shared(dict(run))}
    return rows


def _name(run: Mapping[str, Any], labels: Mapping[str, Any], runs: list[dict[str, Any]]) -> str:
    """The model of a run, with the labels that differ between the runs of this model."""
    model = name_of_model(run["model"])
    others = [
        {"checkpoint": other["model"].get("checkpoint"), **other["options"]}
        for other in runs
        if name_of_model(other["model"]) == model
    ]
    differing = [
        str(value) if name == "checkpoint" else f"{name} {value}"
        for name, value in labels.items()
        if any(other.get(name) != value for other in others)
    ]
    return f"{model} ({', '.join(differing)})" if differing else model
