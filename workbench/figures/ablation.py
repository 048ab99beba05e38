"""Models that differ in one part: every training seed of each, and how far each is from a reference."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.core.errors import InputError
from workbench.figures.frames import LEGEND_ABOVE
from workbench.figures.theme import COLOURS, GREY, PAGE, SYMBOLS

_ROW, _BOTTOM = 34, 42  # px of a model, and of the axes below
# quantity of `workbench.studies.baselines` → its axis, that of differences, factor
_AXES = {
    "accuracy": ("Test accuracy (%)", "percentage points", 100),
    "loss": ("Test loss (nats)", "nats", 1),
}
_COLUMNS = ("label", "task", "value", "difference", "difference_low", "difference_high")


def ablation_figure(
    results: pd.DataFrame, seeds: pd.DataFrame, printed: pd.DataFrame, quantity: str = "accuracy"
) -> go.Figure:
    """A row per model: on the left a panel per task with every seed and the median, on the right the differences.

    A difference from the row without one has its 95 % interval, filled where that leaves out zero; published
    differences are diamonds of one colour.

    Args:
        results: rows of `workbench.studies.baselines.versus_baseline` with a column ``label``, the words of a row; rows
            stand in the order of the frame.
        seeds: rows of `workbench.studies.baselines.ends_and_speed` with the same column.
        printed: columns label, where, difference: what a paper prints, in the unit of `results`. May be empty.
        quantity: "accuracy" or "loss".

    Raises:
        InputError: another quantity, or none of its rows.
    """
    if quantity not in _AXES:
        raise InputError(f"models are compared by {' or '.join(_AXES)}, not by {quantity!r}")
    results, seeds = (frame[frame["quantity"] == quantity] for frame in (results, seeds))
    if results.empty:
        raise InputError(
            f"the frame has no {quantity}; give the result of workbench.studies.baselines.versus_baseline"
        )
    axis, unit, factor = _AXES[quantity]
    labels = list(dict.fromkeys(results["label"]))
    places = {label: len(labels) - 1 - number for number, label in enumerate(labels)}
    tasks = list(dict.fromkeys(results["task"]))
    references = list(dict.fromkeys(results.loc[results["difference"].isna(), "label"]))
    fig = make_subplots(
        1,
        len(tasks) + 1,
        shared_yaxes=True,
        horizontal_spacing=0.05,
        column_widths=[1.0] * len(tasks) + [1.4],
        subplot_titles=[*map(str.capitalize, tasks), f"Δ vs. {_named(references)}"],
    )
    # Side by side within a row: tasks above, published ones below.
    steps = {task: 0.24 - 0.2 * number for number, task in enumerate(tasks)}
    for number, task in enumerate(tasks):
        own = seeds[seeds["task"] == task]
        fig.add_trace(_seeds(own, places, number, factor, axis), row=1, col=number + 1)
        medians = own.groupby("label", sort=False)["value"].median()
        fig.add_trace(_medians(medians, places, factor, axis), row=1, col=number + 1)
        beside = results[(results["task"] == task) & results["difference"].notna()]
        for told_apart in (True, False):
            part = beside[beside["finding"].isin(["lower", "higher"]) == told_apart]
            if len(part):
                trace = _differences(part, places, steps[task], number, factor, unit, filled=told_apart)
                fig.add_trace(trace, row=1, col=len(tasks) + 1)
        fig.add_trace(_key(task, number), row=1, col=len(tasks) + 1)
        fig.update_xaxes(title_text=axis, nticks=5, row=1, col=number + 1)
    if len(printed):
        fig.add_trace(_printed(printed, places, factor, unit), row=1, col=len(tasks) + 1)
    fig.add_vline(0, line={"color": GREY, "dash": "dot", "width": 1}, row=1, col=len(tasks) + 1)
    fig.update_xaxes(title_text=f"Difference ({unit})", nticks=7, row=1, col=len(tasks) + 1)
    fig.update_yaxes(
        tickmode="array", tickvals=list(places.values()), ticktext=labels, ticks="", showgrid=True,
        range=[-0.6, len(labels) - 0.4], gridcolor="#E6E6E6", gridwidth=0.5,
    )  # fmt: skip
    fig.update_annotations(font={"size": None})
    longest = max(len(line) for label in labels for line in label.split("<br>"))
    return fig.update_layout(
        height=_ROW * len(labels) + 44 + _BOTTOM,
        width=PAGE,
        legend=LEGEND_ABOVE,
        margin={"l": 14 + round(5.6 * longest), "r": 8, "t": 44, "b": _BOTTOM},
    )


def _named(references: list[str]) -> str:
    """The rows that the others are compared with, in the first line of their words."""
    return " or ".join(label.partition("<br>")[0] for label in references) or "the reference"


def _seeds(own: pd.DataFrame, places: dict[str, int], number: int, factor: float, axis: str) -> go.Scatter:
    return go.Scatter(
        x=factor * own["value"],
        y=own["label"].map(places),
        mode="markers",
        marker={"color": COLOURS[number], "symbol": SYMBOLS[2 * number % len(SYMBOLS)], "size": 6},
        customdata=own["seed"],
        showlegend=False,
        hovertemplate=f"{axis} %{{x:.4g}}, seed %{{customdata}}<extra></extra>",
    )


def _medians(medians: pd.Series, places: dict[str, int], factor: float, axis: str) -> go.Scatter:
    return go.Scatter(
        x=factor * medians,
        y=medians.index.map(places),
        mode="markers",
        marker={"symbol": "line-ns-open", "size": 16, "color": GREY, "line": {"color": GREY, "width": 1.5}},
        showlegend=False,
        hovertemplate=f"median {axis} %{{x:.4g}}<extra></extra>",
    )


def _differences(
    rows: pd.DataFrame,
    places: dict[str, int],
    step: float,
    number: int,
    factor: float,
    unit: str,
    *,
    filled: bool,
) -> go.Scatter:
    colour = COLOURS[number]
    value, low, high = (factor * rows[name] for name in _COLUMNS[3:])
    return go.Scatter(
        x=value,
        y=rows["label"].map(places) + step,
        error_x={
            "type": "data",
            "symmetric": False,
            "array": high - value,
            "arrayminus": value - low,
            "color": colour,
            "thickness": 1.2,
            "width": 0,
        },
        mode="markers",
        marker={
            "color": colour if filled else "white",
            "symbol": SYMBOLS[2 * number % len(SYMBOLS)],
            "size": 7,
            "line": {"color": colour, "width": 1.4},
        },
        text=rows["finding"],
        showlegend=False,
        hovertemplate=f"%{{x:+.3g}} {unit}, %{{text}}<extra></extra>",
    )


def _key(task: str, number: int) -> go.Scatter:
    """The legend's entry of a task."""
    marker = {"color": COLOURS[number], "symbol": SYMBOLS[2 * number % len(SYMBOLS)], "size": 7}
    return go.Scatter(x=[None], y=[None], mode="markers", marker=marker, name=f"{task}, 95 % interval")


def _printed(printed: pd.DataFrame, places: dict[str, int], factor: float, unit: str) -> go.Scatter:
    return go.Scatter(
        x=factor * printed["difference"],
        y=printed["label"].map(places) - 0.3,
        mode="markers",
        marker={"color": COLOURS[5], "symbol": "diamond-tall-open", "size": 8, "line": {"width": 1.2}},
        text=printed["where"],
        name="published",
        hovertemplate=f"%{{text}}: %{{x:+.3g}} {unit}<extra></extra>",
    )
