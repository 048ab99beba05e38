"""The mean over inputs with its interval, from rows of single inputs or from rows of statistics over them."""

from __future__ import annotations

import math

import pandas as pd

from workbench.core.intervals import Finding, mean_interval
from workbench.frames.results import provenance_of


def over_inputs(rows: pd.DataFrame) -> Finding:
    """Mean of a metric over inputs and its 95 % confidence interval; of each input the mean over all else counts.

    A frame without rows per input holds the mean and its interval; how many inputs it comes from says its run. Of
    several heads, and where only means were kept, it holds the mean over all of them, without an interval.
    """
    if rows["input"].notna().any():
        return mean_interval(rows[rows["input"].notna()].groupby("input")["value"].mean())
    whole = rows[rows["head"].isna()] if rows["head"].isna().any() else rows
    means = whole.groupby("statistic")["value"].mean()
    mean = float(means.get("mean", whole["value"].mean()))
    return Finding(mean, *(float(means.get(name, math.nan)) for name in ("low", "high")), input_count(rows))


def beside_null(rows: pd.DataFrame, format: str = ".2f") -> str:
    """In how many layers a metric lies above and below its null distribution: its kind, its band's unit, its mean.

    Of rows with one kind of null distribution; "" where they have none.
    """
    known = rows[rows["layer"].notna() & rows[["null_low", "null_high"]].notna().all(axis=1)]
    if known.empty:
        return ""
    by_layer = known.groupby("layer")[["value", "null_mean", "null_low", "null_high"]].mean()
    unit = "of one head" if known["head"].notna().any() else "of the mean over heads"
    sides = {
        "above": (by_layer["value"] > by_layer["null_high"]).sum(),
        "below": (by_layer["value"] < by_layer["null_low"]).sum(),
    }
    told = [f"{side} in {count}" for side, count in sides.items() if count] or ["inside in all"]
    kind, level = known["null"].iloc[0], by_layer["null_mean"].mean()
    return f"; {kind} null {level:{format}}, its 95 % band {unit}: {' and '.join(told)} of {len(by_layer)} layers"


def input_count(frame: pd.DataFrame) -> int:
    """How many inputs the rows are of, or come from."""
    named = frame["input"].nunique()
    return named or max((run.get("inputs", {}).get("n") or 0 for run in provenance_of(frame)), default=0)
