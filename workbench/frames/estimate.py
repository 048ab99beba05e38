"""The mean over inputs with its interval, from rows of single inputs or from rows of statistics over them."""

from __future__ import annotations

import math

import pandas as pd

from workbench.core.intervals import Finding, mean_interval
from workbench.frames.results import provenance_of


def over_inputs(rows: pd.DataFrame) -> Finding:
    """Mean of a metric over inputs and its 95 % confidence interval; of each input the mean over all else counts.

    A frame without rows per input holds the mean and its interval; how many inputs it comes from says its run. Of
    several heads it holds the mean over all of them, without an interval.
    """
    if rows["input"].notna().any():
        return mean_interval(rows[rows["input"].notna()].groupby("input")["value"].mean())
    whole = rows[rows["head"].isna()] if rows["head"].isna().any() else rows
    means = whole.groupby("statistic")["value"].mean()
    return Finding(*(float(means.get(name, math.nan)) for name in ("mean", "low", "high")), input_count(rows))


def input_count(frame: pd.DataFrame) -> int:
    """How many inputs the rows are of, or come from."""
    named = frame["input"].nunique()
    return named or max((run.get("inputs", {}).get("n") or 0 for run in provenance_of(frame)), default=0)
