"""Measured, published and the null distribution side by side: a panel per quantity, a row per model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.core.errors import InputError
from workbench.figures.frames import LEGEND_ABOVE, legend_rows, log_ticks, rows_of, series_of, short_name
from workbench.figures.levels import at_level, deviation, interval, values_once
from workbench.figures.theme import COLOURS, PAGE, RED
from workbench.frames.metrics import METRICS, Metric

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
# The null distribution by kind of null: its place in the row (above or below the dot), colour and words.
_NULLS = {
    "gaussian": (0.2, "#8A8A8A", "Gaussian V"),
    "permutation": (-0.2, "#D9A400", "permuted tokens"),
}
_OTHER = (0.0, "#8A8A8A", "null distribution")
_ROW, _DENSE_ROW, _DENSE = 15, 11.5, 6  # px per model; less from so many models on


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
    deviation. The null distribution is the 95 % band of the same average under each null, with a tick at its mean.

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
    panels = _panels(rows)
    series = series_of(rows)
    lines = -(-len(panels) // columns)
    height = (_ROW if len(series) < _DENSE else _DENSE_ROW) * len(series) + 16
    room = 42  # px between rows of panels: ticks below, title above
    total = lines * height + (lines - 1) * room
    fig = make_subplots(
        lines,
        columns,
        shared_yaxes=True,
        horizontal_spacing=0.03,
        vertical_spacing=room / total if lines > 1 else 0,
        subplot_titles=[_title(key) for key, _ in panels],
    )
    shown_once: set[str] = set()
    for index, (_, part) in enumerate(panels):
        place = {"row": index // columns + 1, "col": index % columns + 1}
        reach: list[float] = []
        for line, (label, own) in enumerate(series):
            here = own[own.index.isin(part.index)]
            if here.empty:
                continue
            y = len(series) - 1 - line
            for trace in [
                *_null_level(here, y),
                *_published(here, published, y),
                _measured(here, y, label, spread),
            ]:
                reach += _reach(trace)
                trace.update(showlegend=trace.legendgroup not in shown_once)
                shown_once.add(trace.legendgroup)
                fig.add_trace(trace, **place)
        bounds = METRICS.get(part["metric"].iloc[0])
        fig.update_xaxes(**_range(reach, log, bounds), **place)
    names = [label for label, _ in series]
    fig.update_yaxes(
        tickmode="array",
        tickvals=list(range(len(names))),
        ticktext=names[::-1],
        range=[-0.6, len(names) - 0.4],
        ticks="",
        showgrid=True,
        gridcolor="#E6E6E6",
        gridwidth=0.5,
    )
    fig.update_annotations(font={"size": None})
    for index in range(len(panels), lines * columns):  # a short last row leaves its other places empty
        fig.update_xaxes(visible=False, row=index // columns + 1, col=index % columns + 1)
        fig.update_yaxes(visible=False, row=index // columns + 1, col=index % columns + 1)
    longest = max(len(name) for name in names)
    top, bottom = 24 + 18 * legend_rows(fig), 30
    fig.update_layout(
        legend=LEGEND_ABOVE,
        margin={"l": 12 + round(5.6 * longest), "r": 14, "t": top, "b": bottom},
        height=total + top + bottom,
        width=PAGE,
    )
    return fig


def with_range(published: pd.DataFrame, models: str | Sequence[str] | None, table: str) -> pd.DataFrame:
    """Published rows, and for each of `models` that they do not list all of one table's, so that their range is drawn.

    A model of ours then stands beside the models that the paper's table is about.
    """
    names = [models] if isinstance(models, str) else list(models or ())
    listed = set(published["model"].dropna().map(short_name))
    rows = published[published["table"] == table]
    others = [rows.assign(model=name) for name in names if short_name(name) not in listed]
    return pd.concat([published, *others], ignore_index=True)


def _panels(rows: pd.DataFrame) -> list[tuple[dict, pd.DataFrame]]:
    """One (quantity, rows) for each in the frame, in order of appearance."""
    keys = [key for key in KEYS if key in rows]
    if rows.empty:
        raise InputError("every row of the frame belongs to a rank; this figure compares single numbers")
    groups = rows.groupby(keys, sort=False, dropna=False)
    return [
        (dict(zip(keys, key if isinstance(key, tuple) else (key,), strict=True)), part)
        for key, part in groups
    ]


def _title(key: dict) -> str:
    metric = key["metric"]
    known = METRICS.get(metric)
    name = _SHORT.get(metric, metric if metric.isupper() or known is None else known.label)
    unit = f" ({known.unit})" if known is not None and known.unit else ""
    parts = [str(key[name]) for name in KEYS[1:] if name in key and not pd.isna(key[name])]
    return ", ".join([name, *parts]) + unit


def _measured(rows: pd.DataFrame, y: int, label: str, spread: str) -> go.Scatter:
    try:
        inputs = values_once(at_level(rows, "input"))["value"]
    except InputError:
        inputs = pd.Series(dtype=float)
    try:
        value = float(values_once(at_level(rows, "overall"))["value"].iloc[0])
    except InputError:  # a quantity that belongs to an input, like a statistic of its own spectrum
        if inputs.empty:
            raise
        value = float(inputs.mean())
    _, low, high = (interval if spread == "interval" else deviation)(inputs) if len(inputs) else (value,) * 3
    words = "95 % interval over inputs" if spread == "interval" else "standard deviation over inputs"
    return go.Scatter(
        x=[value],
        y=[y],
        mode="markers",
        marker={"color": COLOURS[0], "symbol": "circle", "size": 5.5, "line": {"width": 0}},
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [max(high - value, 0)],
            "arrayminus": [max(value - low, 0)],
            "color": COLOURS[0],
            "thickness": 1.2,
            "width": 2,
        },
        name=f"measured ({words})",
        legendgroup="measured",
        legendrank=1,
        hovertemplate=f"{label}<br>%{{x:.4g}}<br>{words}: {low:.4g} to {high:.4g}<extra></extra>",
    )


def _null_level(rows: pd.DataFrame, y: int) -> list[go.Scatter]:
    """A bar from null_low to null_high with a tick at the mean, for each null of the overall value."""
    if "null_mean" not in rows or rows["null_mean"].isna().all():
        return []
    traces = []
    for _, row in at_level(rows, "overall").iterrows():
        if pd.isna(row["null_mean"]):
            continue
        kind = row["null"] if "null" in row and not pd.isna(row["null"]) else ""
        shift, colour, words = _NULLS.get(kind, (*_OTHER[:2], kind or "null distribution"))
        group = f"null-{kind}"
        hover = f"null distribution, {words}<br>mean {row['null_mean']:.4g}<extra></extra>"
        # Points between the two ends, so that the pointer finds the bar anywhere.
        traces.append(
            go.Scatter(
                x=[row["null_low"], row["null_mean"], row["null_high"]],
                y=[y + shift] * 3,
                mode="lines+markers",
                line={"color": colour, "width": 3.5, "dash": "solid"},
                marker={
                    "symbol": "line-ns-open",
                    "size": [0, 7, 0],
                    "color": colour,
                    "line": {"width": 1.6, "color": colour},
                },
                name=f"null distribution: {words} (95 %)",
                legendgroup=group,
                legendrank=1001,
                hovertemplate=hover,
            )
        )
    return traces


def _published(rows: pd.DataFrame, published: pd.DataFrame | None, y: int) -> list[go.Scatter]:
    """An open diamond at the published value, its spread as a bar; a line between several."""
    found = _matching(rows.iloc[0], published)
    if found is None or found.empty:
        return []
    spread = found["spread"].fillna(0) if "spread" in found else pd.Series(0.0, index=found.index)
    several = len(found) > 1
    shown = found["value"].agg(["min", "max"]).tolist() if several else found["value"].tolist()
    paper = ", ".join(found["paper"].dropna().unique()) if "paper" in found else "published"
    return [
        go.Scatter(
            x=shown,
            y=[y] * len(shown),
            mode="lines+markers" if several else "markers",
            line={"color": RED, "width": 1, "dash": "solid"},
            marker={
                "symbol": "diamond-open",
                "size": 7.5,
                "color": RED,
                "line": {"width": 1.3, "color": RED},
            },
            error_x=None
            if several or not spread.any()
            else {"type": "data", "array": spread.tolist(), "color": RED, "thickness": 1, "width": 3},
            name="published (range over models)" if several else "published",
            legendgroup="published-range" if several else "published",
            legendrank=3 if several else 2,
            hovertemplate=f"{paper}: %{{x:.4g}}<extra></extra>",
        )
    ]


def _matching(row: pd.Series, published: pd.DataFrame | None) -> pd.DataFrame | None:
    if published is None or published.empty:
        return None
    names = published["model"].map(short_name)
    chosen = (names == short_name(row["model"])) & (published["metric"] == row["metric"])
    for column in ("axis", "statistic", "standardize", "candidate", "convention"):
        if column in published and column in row:
            blank = published[column].isna() | (published[column] == "")
            chosen &= blank | (published[column].astype("string").fillna("") == _text(row[column]))
    return published[chosen.fillna(False) & published["value"].notna()]


def _text(value: object) -> str:
    return "none" if pd.isna(value) or not value else str(value)


def _reach(trace: go.Scatter) -> list[float]:
    """Every x that a trace covers, its error bar included."""
    found = [float(x) for x in trace.x]
    bar = trace.error_x
    if bar is not None and bar.array is not None:
        found += [float(x + up) for x, up in zip(trace.x, bar.array, strict=True)]
        down = bar.arrayminus if bar.arrayminus is not None else bar.array
        found += [float(x - less) for x, less in zip(trace.x, down, strict=True)]
    return found


def _range(reach: Sequence[float], log: bool, metric: Metric | None) -> dict:
    values = np.asarray([x for x in reach if np.isfinite(x) and (x > 0 or not log)])
    if values.size == 0:
        return {}
    if log:
        values = np.log10(values)
    low, high = float(values.min()), float(values.max())
    if low == high and metric is not None and np.isfinite([metric.low, metric.high]).all() and not log:
        low, high = (
            metric.low,
            metric.high,
        )  # one value for all: where it lies in its range is what there is to see
    pad = 0.08 * ((high - low) or abs(high) or 1.0)
    more = (
        {"type": "log", **log_ticks(pd.Series(10**values), most=4, digits=(1, 3))} if log else {"nticks": 5}
    )
    return {"range": [low - pad, high + pad], "tickangle": 0, **more}
