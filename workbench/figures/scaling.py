"""How the cost of attention operators grows: time and memory along sweeps, and the exponents fitted to them."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go

from workbench.core.errors import InputError
from workbench.figures.forest import Forest, Interval, Stroke
from workbench.figures.grammar import Plot
from workbench.figures.marks import Band, Line, Points, Published
from workbench.figures.variants import LOOKS
from workbench.papers.operators import CONDITIONS, SWEEPS

_AXES = {"tokens": "Tokens n", "width": "Width d"}
_COSTS = {"seconds_per_sample": "Time (s)", "device_memory": "Peak memory (MiB)"}
_ENDED = "ended: the next size passes 30 s, or does not fit"
_REACH = (-0.7, 3.2)  # of exponents: of three points, some intervals would reach across the page


def scaling_figure(frame: pd.DataFrame, sweeps: Sequence[str]) -> go.Figure:
    """Time and peak memory along sweeps, on logarithmic axes: a column of panels per sweep and condition.

    Bands hold the interquartile range of the passes. A cross after the last point of a line says that the next size
    would take too long, or not fit.

    Args:
        frame: the result of `workbench.studies.scaling.scaling_study`, or `workbench.studies.records.scaling_record`.
        sweeps: those to draw, a column of panels for each condition.

    Raises:
        InputError: no measured point of a sweep.
    """
    parts: list[pd.DataFrame] = []
    names: dict[str, str] = {}
    for sweep in sweeps:
        rows = frame[frame["sweep"] == sweep]
        missing = [metric for metric in _COSTS if not (rows["metric"] == metric).any()]
        if missing:
            raise InputError(
                f"the frame holds no {missing[0]} of the sweep {sweep!r}; give the result of "
                "workbench.studies.scaling.scaling_study"
            )
        names |= {f"{one}: {sweep}": f"{_heading(sweep)}<br>{one}" for one in CONDITIONS}
        parts.append(rows.assign(column=rows["condition"] + f": {sweep}", size=rows[SWEEPS[sweep].axis]))
    known = pd.concat(parts)
    ended = known[known["ended"].notna()].set_index(["column", "operator"])["ended"].to_dict()
    rows = known[known["metric"].isin(_COSTS)].assign(attention=lambda own: own["operator"].map(_plain))
    mebibytes = rows["metric"].map({"device_memory": 2.0**-20}).fillna(1.0)
    rows[["value", "low", "high"]] = rows[["value", "low", "high"]].mul(mebibytes, axis=0)
    last = rows.loc[rows.groupby(["column", "metric", "operator"])["size"].idxmax()]
    reasons = [ended.get(key) for key in zip(last["column"], last["operator"], strict=True)]
    last = last.assign(words=reasons).dropna(subset="words")
    titles = {name: _AXES[SWEEPS[name.split(": ")[1]].axis] for name in names}
    plot = Plot(rows, x="size", color="attention", panel="column", names=names)
    plot = plot.metric(*_COSTS).scale(x_log=2, x_free=True, x_title=titles, y_title=_COSTS, y_log=True)
    return plot.add(
        Line(words="median over passes"), Band(columns=("low", "high"), words="their IQR"),
        Points(last, _ENDED, by=("metric", "column"), symbol="x-thin-open"),
    ).figure("page")  # fmt: skip


def exponents_figure(exponents: pd.DataFrame, printed: pd.DataFrame) -> go.Figure:
    """A row per operator and a panel per sweep, above for time, below for memory: fitted exponents with intervals.

    Of a forward pass, and of forward and backward, with 95 % intervals of the fit; strokes are what the counted
    multiply–accumulates, or bytes of tensors, come to at the same sizes; diamonds what is printed.

    Args:
        exponents: the result of `workbench.studies.scaling.scaling_exponents`.
        printed: that of `workbench.studies.scaling.printed_exponents`.

    Raises:
        InputError: no fitted exponent.
    """
    if exponents.empty:
        raise InputError(
            "no curve has the three sizes that a fit needs; measure more sizes, or raise the budget"
        )
    rows, published = (
        own.assign(attention=own["operator"].map(_plain), panel=own["sweep"] + " " + own["metric"])
        for own in (exponents, printed)
    )
    measured, counted = (rows[rows["source"] == source] for source in ("measured", "counted"))
    counted = counted[counted["condition"] == CONDITIONS[0]].groupby(["panel", "attention"])["value"].first()
    measured = measured.join(counted.rename("counted"), on=["panel", "attention"])
    quantities = measured["metric"].str.split("_").str[0]
    titles = {}
    for quantity in ("time", "memory"):
        for panel in measured.loc[quantities == quantity, "panel"].drop_duplicates():
            sweep, metric = panel.split(" ")
            axis = "d" if metric.endswith("head_dim") else "n"
            fixed = _heading(sweep).rpartition(", ")[0]
            titles[panel] = f"{quantity.capitalize()}, power of {axis}<br>({fixed})"
    forest = Forest(measured, y="attention", x=titles, panel="panel", color="condition").scale(
        range=_REACH, row=2.1
    )
    return forest.add(
        Interval(columns=("value", "low", "high"), words="fitted, 95 % CI of the fit"),
        Stroke("counted", "counted: MACs, bytes"),
        Published(published.assign(paper="wu2025", table="1"), words=" (wu2025 Table 1, one head)"),
    ).figure(columns=measured["sweep"].nunique())  # fmt: skip


def _heading(sweep: str) -> str:
    """What stays as it is along a sweep."""
    known = SWEEPS[sweep]
    causal = "causal, " * all(name.endswith("-causal") for name in known.operators)
    return f"{causal}{'d' if known.axis == 'tokens' else 'n'} = {known.fixed}, {known.heads} heads"


def _plain(operator: str) -> str:
    """An operator as `LOOKS` names it: a causal one looks like the one it is the causal form of."""
    name = operator.removesuffix("-causal")
    return name if name in LOOKS else operator
