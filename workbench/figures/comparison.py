"""Measured, published and the null distribution side by side: a panel per quantity, a row per model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pandas as pd
import plotly.graph_objects as go

from workbench.core.errors import InputError
from workbench.figures.estimates import input_count
from workbench.figures.forest import Forest, Interval
from workbench.figures.frames import rows_of, series_labels, short_name
from workbench.figures.marks import Null, Published
from workbench.frames.metrics import METRICS

# What tells one quantity from another; a panel for each.
KEYS = ("metric", "axis", "statistic", "convention", "candidate")
# Panel titles have room for about 24 letters.
_SHORT = {
    "abs_cos": "|cos|",
    "principal_angle": "Angle",
    "span_share": "Span share",
    "eigenvalue_profile": "Eigenvalue",
    "inconsistency": "Inconsistency",
    "allclose": "V equals V̇",
    "contamination_auc": "AUC",
    "contamination_share": "Energy share",
}


def comparison_figure(
    frame: pd.DataFrame,
    published: pd.DataFrame | None = None,
    columns: int = 4,
    log: bool = False,
    spread: Literal["interval", "deviation"] = "interval",
) -> go.Figure:
    """A dot per model for every quantity in the frame, beside what was published and the null distribution.

    A quantity is a metric with its axis, statistic, convention and candidate; filter the frame to choose. The dot is
    the value over all inputs, layers and heads; its bar the 95 % t interval over inputs, or their standard
    deviation. The null distribution is the 95 % band of the same average under each null.

    Args:
        frame: rows without rank from `analyze` or `analyze_many`, over everything (null input, layer and head) and, for
            the bars, one per input.
        published: the result of `workbench.published`, or columns model, metric and value, and as needed statistic,
            axis, standardize (empty: for all of them; "none": for keys as they are) and spread (a standard
            deviation). Models match by their name without scheme and repository. Of several values for one place
            the range is drawn.
        columns: panels per row.
        log: logarithmic values.
        spread: what the bar of a measured value shows.

    Raises:
        InputError: no such rows.
    """
    rows = rows_of(frame, frame["metric"].dropna().unique() if "metric" in frame else [])
    rows = rows.reset_index(drop=True)  # rows are identified by their index below
    if "rank" in rows:
        rows = rows[rows["rank"].isna()]
    rows = _with_ends(rows, spread, input_count(frame))
    rows = rows.assign(panel=_titles(rows), model=series_labels(rows), named=rows["model"])
    rows = pd.concat([own for _, own in rows.groupby("panel", sort=False)])
    titles = {title: title for title in dict.fromkeys(rows["panel"])}
    forest = Forest(rows, y="model", x=titles, panel="panel").scale(log=log)
    forest = forest.add(Null(), Interval(deviation=spread == "deviation"))
    if published is not None and len(found := _beside(rows, published)):
        several = found.duplicated(["panel", "model"]).any()
        words = " (range over models)" if several else ""
        forest = forest.add(Published(found, ranges=True, words=words))
    return forest.figure("page", columns=columns)


def with_range(published: pd.DataFrame, models: str | Sequence[str] | None, table: str) -> pd.DataFrame:
    """Published rows, and for each of `models` that they do not list all of one table's, so that their range is drawn.

    A model of ours then stands beside the models that the paper's table is about.
    """
    names = [models] if isinstance(models, str) else list(models or ())
    listed = set(published["model"].dropna().map(short_name))
    rows = published[published["table"] == table]
    others = [rows.assign(model=name) for name in names if short_name(name) not in listed]
    return pd.concat([published, *others], ignore_index=True)


def _with_ends(rows: pd.DataFrame, spread: str, inputs: int | None) -> pd.DataFrame:
    """The values alone, with the ends of their bars where a frame holds statistics over inputs, as a sweep's does.

    Those of a quantity that has a statistic of its own are called "std of max", of another "std".
    """
    if "statistic" not in rows or not rows["statistic"].str.startswith("std").fillna(False).any():
        return rows
    statistic = rows["statistic"].astype("string").fillna("mean")
    what, own = (statistic.str.extract(r"^(?:(\w+) of )?(.+)$")[part] for part in (0, 1))
    plain = rows.groupby("metric")["statistic"].transform(lambda found: (found == "std").any())
    of_mean = plain & (statistic != "mean")
    what, own = what.mask(of_mean, statistic), own.mask(of_mean, "mean")
    keys = [name for name in ("model", "metric", *KEYS[1:], "standardize", "checkpoint") if name in rows]
    together = rows[rows[[name for name in ("input", "layer", "head") if name in rows]].isna().all(axis=1)]
    ends = together.assign(statistic=own, what=what).dropna(subset=["what"])
    ends = ends.groupby([*keys, "what"], dropna=False)["value"].first().unstack("what")
    values = rows[what.isna()].assign(statistic=own[what.isna()]).join(ends[["std", "low", "high"]], on=keys)
    if spread == "deviation":
        values = values.assign(low=values["value"] - values["std"], high=values["value"] + values["std"])
    values["statistic"] = rows["statistic"].loc[values.index].where(~plain)  # "mean" says nothing there
    return values.assign(n=inputs)


def _titles(rows: pd.DataFrame) -> list[str]:
    """The quantity of each row in words."""
    if rows.empty:
        raise InputError("every row of the frame belongs to a rank; this figure compares single numbers")
    if "head" in rows and rows["head"].notna().all():
        raise InputError(
            "the frame holds single heads; give the result of `workbench.analyze` without per_head"
        )
    keys = [key for key in KEYS if key in rows]
    return [
        _title(dict(zip(keys, key, strict=True))) for key in rows[keys].itertuples(index=False, name=None)
    ]


def _title(key: dict) -> str:
    metric = key["metric"]
    known = METRICS.get(metric)
    name = _SHORT.get(metric, metric if metric.isupper() or known is None else known.label)
    unit = f" ({known.unit})" if known is not None and known.unit else ""
    parts = [str(key[name]).replace("_", " ") for name in KEYS[1:] if name in key and not pd.isna(key[name])]
    return ", ".join([name, *parts]) + unit


def _beside(rows: pd.DataFrame, published: pd.DataFrame) -> pd.DataFrame:
    """The published numbers of each row of each panel, called as the forest calls them."""
    found = []
    for _, own in rows.groupby(["panel", "model"], sort=False):
        first = own.iloc[0]
        found.append(_matching(first, published).assign(panel=first["panel"], model=first["model"]))
    return pd.concat(found)


def _matching(row: pd.Series, published: pd.DataFrame) -> pd.DataFrame:
    names = published["model"].map(short_name)
    chosen = (names == short_name(row["named"])) & (published["metric"] == row["metric"])
    for column in ("axis", "statistic", "standardize", "candidate", "convention"):
        if column in published and column in row:
            blank = published[column].isna() | (published[column] == "")
            chosen &= blank | (published[column].astype("string").fillna("") == _text(row[column]))
    return published[chosen.fillna(False) & published["value"].notna()]


def _text(value: object) -> str:
    return "none" if pd.isna(value) or not value else str(value)
