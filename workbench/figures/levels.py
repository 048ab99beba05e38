"""Rows of one level of averaging: per layer, per input, or over everything."""

from __future__ import annotations

from typing import Literal

import pandas as pd

from workbench.core.errors import InputError

Level = Literal["layer", "input", "overall"]
_SET = {"layer": {"layer"}, "input": {"input"}, "overall": set()}
NULL_COLUMNS = ["null", "null_mean", "null_low", "null_high", "z"]


def at_level(rows: pd.DataFrame, level: Level) -> pd.DataFrame:
    """The rows that average over everything but `level`: layers and heads, inputs and heads, or all three.

    Raises `InputError` where there are none, as in the result of an analysis run with ``per_head``: the null
    distribution of a mean comes from means of null samples, which single heads no longer hold.
    """
    chosen = pd.Series(True, index=rows.index)
    for column in ("input", "layer", "head"):
        filled = rows[column].notna() if column in rows else pd.Series(False, index=rows.index)
        chosen &= filled if column in _SET[level] else ~filled
    if not chosen.any():
        wanted = "rows over all inputs and layers" if level == "overall" else f"a row per {level}"
        raise InputError(
            f"the frame holds no {wanted}; give the result of `workbench.analyze` without per_head"
        )
    return rows[chosen]


def values_once(rows: pd.DataFrame) -> pd.DataFrame:
    """Each value once: a value with two null distributions stands in two rows, which differ in nothing else."""
    return rows.drop_duplicates([name for name in rows.columns if name not in NULL_COLUMNS])


def null_of_means(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows by layer with the null distribution of the means alone: those of single inputs beside them are wider."""
    rows = rows[rows["layer"].notna()]
    ends = [name for name in NULL_COLUMNS if name in rows]
    return rows.assign(**{name: rows[name].where(rows["input"].isna()) for name in ends})


def means_and_heads(rows: pd.DataFrame) -> pd.DataFrame:
    """The means by layer with their null distribution, and beside them the single heads of a frame that has both."""
    if rows["input"].notna().any() and rows["head"].notna().any():
        by_layer = rows["layer"].notna() & (rows["input"].isna() == rows["head"].isna())
        at_level(rows, "layer")  # refuses a frame of single heads alone
        return null_of_means(rows[by_layer])
    return at_level(rows, "layer")
