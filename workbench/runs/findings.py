"""``findings``: what a result says, in sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from workbench.analyses.registry import find_analysis
from workbench.core.errors import InputError
from workbench.frames.measurement import COLUMNS
from workbench.frames.results import provenance_of


def findings(frame: pd.DataFrame) -> list[str]:
    """What a result says: sentences with estimate, 95 % confidence interval, unit of sampling, and null distribution.

        workbench.findings(workbench.analyze("token-similarity", model="bundled:digits-vit", inputs="bundled:digits"))

    A frame of several runs, as of `workbench.analyze_many`, is described run by run; rows that were taken out of it are
    left out. Analyses that have nothing to say say nothing (``ANALYSES[name].findings``).

    Raises `InputError` for a frame without the record of its runs, as one that was read from CSV.
    """
    runs = provenance_of(frame)
    if not runs:
        raise InputError(
            "the frame does not say which runs it comes from: give the result of `workbench.analyze` or its like, "
            "or one read from Parquet"
        )
    sentences = []
    for run in runs:
        rows = _rows_of(frame, run)
        if not rows.empty:
            analysis, options = find_analysis(run["analysis"], run["options"], run.get("per"))
            sentences += [f"{_name(run, runs)}: {sentence}." for sentence in analysis.findings(rows, options)]
    return sentences


def _rows_of(frame: pd.DataFrame, run: Mapping[str, Any]) -> pd.DataFrame:
    """The rows of one run: those of its model, and of its options where a column has an option's name."""
    rows = frame[frame["model"] == run["model"]["spec"]]
    known = {"checkpoint": run["model"].get("checkpoint")} | {
        name: value for name, value in run["options"].items() if name not in COLUMNS or name == "standardize"
    }
    for name in (name for name, value in known.items() if name in rows and value is not None):
        chosen = rows[name].isna() if known[name] == "none" else rows[name] == known[name]
        rows = rows[chosen.fillna(False)]
    rows.attrs = {"provenance": dict(run)}
    return rows


def _name(run: Mapping[str, Any], runs: list[dict[str, Any]]) -> str:
    """The model of a run, and what sets it apart from other runs of this model."""
    model = run["model"]
    others = [other for other in runs if other["model"]["spec"] == model["spec"]]
    apart = [model["checkpoint"]] if len({other["model"].get("checkpoint") for other in others}) > 1 else []
    apart += [
        f"{name} {value}"
        for name, value in run["options"].items()
        if any(other["options"].get(name) != value for other in others)
    ]
    return " ".join([model["spec"], *([f"({', '.join(map(str, apart))})"] if apart else [])])
