"""How the cost of attention operators grows: time and memory along sweeps, and the exponents fitted to them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go

from workbench.core.errors import InputError
from workbench.core.options import checked
from workbench.figures.grammar import Plot
from workbench.figures.marks import Interval, Line, Points, Published, Stroke
from workbench.figures.variants import LOOKS
from workbench.papers.operators import FORWARD, SWEEPS

_AXES = {"tokens": "Tokens n", "width": "Width d"}
_COSTS = {"seconds_per_sample": "Time (s)", "device_memory": "Resident memory (MiB)"}
_ENDED = "the next size passes 30 s or does not fit"
_BESIDE = 1.3  # by which the mark of an end stands beside the last point
_REACH = (-0.7, 2.7)  # of exponents: of three points, some intervals would reach across the page


@checked
def scaling_figure(
    frame: pd.DataFrame,
    sweeps: Sequence[str],
    condition: str = FORWARD,
) -> go.Figure:
    """Time and peak memory along sweeps, on logarithmic axes: a column of panels per sweep.

    Medians over the passes. A cross behind the last point of a line says that the next size would take too long, or not
    fit.

    Args:
        frame: the result of `workbench.studies.scaling.scaling_study`, or `workbench.studies.records.scaling_record`.
        sweeps: those to draw, a column of panels each.
        condition: "forward", or "forward + backward".

    Raises:
        InputError: no measured point of a sweep.
    """
    frame = frame[frame["condition"] == condition]
    parts = {sweep: frame[frame["sweep"] == sweep] for sweep in sweeps}
    for metric, (sweep, rows) in itertools.product(_COSTS, parts.items()):
        if not (rows["metric"] == metric).any():
            raise InputError(
                f"the frame holds no {metric} of the sweep {sweep!r}; give the result of "
                "workbench.studies.scaling.scaling_study"
            )
    points = pd.concat([rows.assign(size=rows[SWEEPS[sweep].axis]) for sweep, rows in parts.items()])
    ended = points[points["ended"].notna()].set_index(["sweep", "operator"])["ended"].to_dict()
    rows = _costs(points)
    last = rows.loc[rows.groupby(["sweep", "metric", "operator"])["size"].idxmax()]
    reasons = [ended.get(key) for key in zip(last["sweep"], last["operator"], strict=True)]
    last = last.assign(words=reasons, size=last["size"] * _BESIDE).dropna(subset="words")
    names = {sweep: f"{_heading(sweep)}, {condition}" for sweep in sweeps}
    titles = {sweep: _AXES[SWEEPS[sweep].axis] for sweep in sweeps}
    passes = sorted(rows["passes"].dropna().astype(int)) if "passes" in rows else []
    many = " to ".join(f"{end}" for end in dict.fromkeys([*passes[:1], *passes[-1:]])) + " " * bool(passes)
    plot = Plot(rows, x="size", color="attention", panel="sweep", names=names)
    plot = plot.metric(*_COSTS).scale(x_log=2, x_free=True, x_title=titles, y_title=_COSTS, y_log=True)
    return plot.add(
        Line(words=f"median over {many}passes"),
        Points(last, _ENDED, by=("metric", "sweep"), symbol="x-thin-open"),
    ).figure("page", labels="key")


@checked
def exponents_figure(
    exponents: pd.DataFrame,
    printed: pd.DataFrame,
    sweeps: Sequence[str] = ("tokens", "width"),
    condition: str = FORWARD,
) -> go.Figure:
    """A row per operator, panels for time and for memory along each sweep: fitted exponents with their intervals.

    Strokes are exponents of counted multiply–accumulates, or bytes of tensors, at the same sizes; red crosses those
    printed. An interval that goes on beyond the axis ends in an arrow.

    Args:
        exponents: the result of `workbench.studies.scaling.scaling_exponents`.
        printed: that of `workbench.studies.scaling.printed_exponents`.
        sweeps: those to draw, where there are exponents of them.
        condition: "forward", or "forward + backward".

    Raises:
        InputError: no fitted exponent.
    """
    exponents = exponents[(exponents["condition"] == condition) & exponents["sweep"].isin(sweeps)]
    if exponents.empty:
        raise InputError(
            "no curve has the three sizes that a fit needs; measure more sizes, or raise the budget"
        )
    rows, published = (
        table.assign(attention=table["operator"].map(_plain), panel=table["sweep"] + " " + table["metric"])
        for table in (exponents, printed)
    )
    measured, counted = (rows[rows["source"] == source] for source in ("measured", "counted"))
    counted = counted.groupby(["panel", "attention"])["value"].first().rename("counted")
    measured = measured.join(counted, on=["panel", "attention"])
    titles = {}
    for quantity in ("time", "memory"):
        for panel in measured.loc[measured["metric"].str.startswith(quantity), "panel"].drop_duplicates():
            sweep, metric = panel.split(" ")
            axis = "d" if metric.endswith("head_dim") else "n"
            fixed = _heading(sweep).rpartition(", ")[0]
            titles[panel] = f"{quantity.capitalize()}, power of {axis}<br>({fixed})"
    forest = Plot(measured, y="attention", x=titles, panel="panel").scale(x_range=_REACH, row=2.4)
    return forest.add(
        Interval(
            columns=("value", "low", "high"),
            words=f"fitted, {condition}, 95 % CI of the slope",
        ),
        Stroke("counted", "counted: MACs, bytes of tensors"),
        Published(
            published.assign(paper="wu2025", table="1"), beside=True, words=" (Wu et al. 2025, Table 1, one head)"
        ),
    ).figure()  # fmt: skip


def _costs(frame: pd.DataFrame) -> pd.DataFrame:
    """Times in seconds and memories in MiB, with the attention as `LOOKS` names it."""
    rows = frame[frame["metric"].isin(_COSTS)]
    mebibytes = rows["metric"].map({"device_memory": 2.0**-20}).fillna(1.0)
    return rows.assign(attention=rows["operator"].map(_plain), value=rows["value"] * mebibytes)


def _heading(sweep: str) -> str:
    """Return the sizes that a sweep keeps fixed, in words."""
    study = SWEEPS[sweep]
    causal = "causal, " * all(name.endswith("-causal") for name in study.operators)
    return f"{causal}{'d' if study.axis == 'tokens' else 'n'} = {study.fixed}, {study.heads} heads"


def _plain(operator: str) -> str:
    """An operator as `LOOKS` names it: a causal one looks like the one it is the causal form of."""
    name = operator.removesuffix("-causal")
    return name if name in LOOKS else operator
