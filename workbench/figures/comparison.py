"""Measured, published and the null distribution side by side: a panel per quantity, a row per model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from workbench.core.errors import InputError
from workbench.core.options import checked
from workbench.figures.composition import with_sentences
from workbench.figures.estimates import input_count, titled
from workbench.figures.frames import rows_of, series_labels, short_name
from workbench.figures.grammar import Plot
from workbench.figures.marks import Interval, Null, Published
from workbench.frames.metric import METRICS

_HERE, _ELSEWHERE = "measured here", "published, other data"
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


@checked
def comparison_figure(
    frame: pd.DataFrame,
    published: pd.DataFrame | None = None,
    columns: int = 4,
    quantities: Mapping[str, Mapping[str, Any]] | None = None,
    null: str | None = None,
    ends: tuple[float, float] | None = None,
    random: str = "",
) -> go.Figure:
    """A dot per model for every quantity in the frame, beside what was published and the null distribution.

    A quantity is a metric with its axis, statistic, convention and candidate. The dot is the value over all inputs,
    layers and heads; its bar the 95 % t interval over inputs. The grey range is that of the same average under
    each null.

    Args:
        frame: rows without rank from `analyze` or `analyze_many`, over everything (null input, layer and head) and, for
            the bars, one per input.
        published: the result of `workbench.published`, or columns model, metric and value, and as needed statistic,
            axis, standardize (empty: for all of them; "none": for keys as they are) and spread (a standard
            deviation). Models match by their name without scheme and repository. Of several values for one place
            the range is drawn. See also `with_range`.
        columns: panels per row.
        quantities: those that are drawn, a panel each: title → {column: value}; by default all.
        null: the kind of null distribution, where there are several; by default all.
        ends: of every panel's axis.
        random: what the null distribution has at random, for the key.

    Raises:
        InputError: no such rows.
    """
    rows = rows_of(frame, frame["metric"].dropna().unique() if "metric" in frame else [])
    rows = rows.reset_index(drop=True)  # rows are identified by their index below
    if "rank" in rows:
        rows = rows[rows["rank"].isna()]
    rows = _with_ends(rows, input_count(frame))
    titles = _titles(rows)
    rows = rows.assign(named=rows["model"], model=series_labels(rows), place=_HERE)
    rows = rows.assign(panel=titles) if quantities is None else titled(rows, quantities, "panel")
    rows = pd.concat([panel_rows for _, panel_rows in rows.groupby("panel", sort=False)])
    printed = _beside(rows, published) if published is not None else pd.DataFrame()
    elsewhere = printed[printed["place"] != _HERE] if len(printed) else printed
    drawn = pd.concat([rows, elsewhere.assign(value=float("nan"))]) if len(elsewhere) else rows
    panels = {title: title for title in rows["panel"]}
    drawn.attrs = frame.attrs  # `pd.concat` drops what differs
    forest = Plot(drawn, y="model", x=panels, panel="panel", group="place" if len(elsewhere) else None)
    forest = forest.scale(x_range=ends).add(Null(null, random), Interval())
    if len(printed):
        forest = forest.add(Published(printed, ranges=True))
    fig = forest.figure("page", columns=columns)
    several = len(printed) and printed.duplicated(["panel", "model"]).any()
    return with_sentences(fig, ["Red ×: median and range over models."]) if several else fig


def with_range(
    published: pd.DataFrame, models: str | Sequence[str] | None, table: str, name: str, data: str
) -> pd.DataFrame:
    """Return published rows, those of one table in separate rows below ours: of each of `models`, or of all as `name`.

    Results of a paper on other data, or for other models, then have a separate place, with their `data`.
    """
    listed = [models] if isinstance(models, str) else models or ()
    names = {short_name(name) for name in listed if name.lower() not in ("none", "null", "false")}
    rows, rest = published[published["table"] == table], published[published["table"] != table]
    printed = rows[rows["model"].map(short_name).isin(names)]
    label = name if printed.empty else printed["model"].map(short_name)
    chosen = (rows if printed.empty else printed).assign(model=label, place=_ELSEWHERE)
    return pd.concat([rest, chosen.assign(model=chosen["model"] + f", {data}")]) if names else rest


def _with_ends(rows: pd.DataFrame, inputs: int | None) -> pd.DataFrame:
    """Return the values, with the ends of their bars if the frame holds statistics over inputs, as a sweep's does.

    A quantity that is itself a statistic has "std of max", any other "std".
    """
    if "statistic" not in rows or not rows["statistic"].str.startswith("std").fillna(False).any():
        return rows
    statistic = rows["statistic"].astype("string").fillna("mean")
    what, end = (statistic.str.extract(r"^(?:(\w+) of )?(.+)$")[part] for part in (0, 1))
    plain = rows.groupby("metric")["statistic"].transform(lambda statistics: (statistics == "std").any())
    of_mean = plain & (statistic != "mean")
    what, end = what.mask(of_mean, statistic), end.mask(of_mean, "mean")
    keys = [name for name in ("model", "metric", *KEYS[1:], "standardize", "checkpoint") if name in rows]
    together = rows[rows[[name for name in ("input", "layer", "head") if name in rows]].isna().all(axis=1)]
    ends = together.assign(statistic=end, what=what).dropna(subset=["what"])
    ends = ends.groupby([*keys, "what"], dropna=False)["value"].first().unstack("what")
    values = rows[what.isna()].assign(statistic=end[what.isna()]).join(ends[["low", "high"]], on=keys)
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
    return [*map(_title, rows[keys].to_dict("records"))]


def _title(key: dict) -> str:
    metric, entry = key["metric"], METRICS.get(key["metric"])
    name = _SHORT.get(metric, metric if metric.isupper() or entry is None else entry.label)
    unit = f" ({entry.unit})" if entry is not None and entry.unit else ""
    parts = [str(key[name]).replace("_", " ") for name in KEYS[1:] if name in key and not pd.isna(key[name])]
    return ", ".join([name, *parts]) + unit


def _beside(rows: pd.DataFrame, published: pd.DataFrame) -> pd.DataFrame:
    """Return the published numbers of each row of each panel, named as in the forest; or in a separate row."""
    published = published.assign(place=published["place"].fillna(_HERE) if "place" in published else _HERE)
    printed = []
    for _, group in rows.groupby(["panel", "model"], sort=False):
        first = group.iloc[0]
        printed.append(_matching(first, published).assign(panel=first["panel"], model=first["model"]))
    for _, group in rows.groupby("panel", sort=False):
        first, others = group.iloc[0], published[published["place"] != _HERE]
        for name, part in others.groupby("model", sort=False):
            printed.append(_matching({**first, "named": name}, part).assign(panel=first["panel"]))
    return pd.concat(printed)


def _matching(row: Mapping[Any, Any] | pd.Series, published: pd.DataFrame) -> pd.DataFrame:
    names = published["model"].map(short_name)
    chosen = (names == short_name(row["named"])) & (published["metric"] == row["metric"])
    for column in ("axis", "statistic", "standardize", "candidate", "convention"):
        if column in published and column in row:
            blank = published[column].isna() | (published[column] == "")
            chosen &= blank | (published[column].astype("string").fillna("") == _text(row[column]))
    return published[chosen.fillna(False) & published["value"].notna()]


def _text(value: object) -> str:
    return "none" if pd.isna(value) or not value else str(value)
