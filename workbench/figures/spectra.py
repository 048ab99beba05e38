"""Eigenvalue spectra of the centred Gram matrix."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.core.errors import InputError
from workbench.figures.frames import axis_title, band, log_ticks, quartiles, rows_of, series_of, whole_numbers
from workbench.figures.theme import GREY, depth_colours, depth_scale, even_choice, translucent

MAX_PANELS = 12


def spectrum_figure(
    frame: pd.DataFrame,
    heads: Literal["mean", "panels"] = "mean",
    bands: Literal["ends", "all", "none"] = "ends",
    metric: str = "eigenvalue",
) -> go.Figure:
    """Eigenvalue against rank on a log scale: a line per layer, dark for the first to light for the last.

    One panel per model (and checkpoint), or per head with ``heads="panels"`` (at most 12, evenly chosen).
    A line is the median over inputs, and over heads where they share a panel; the band holds the interquartile range.
    A frame without rows per input brings these itself, for all heads together.

    An eigenvalue at or below rounding (N ε λ₁ in float64, where N is the number of ranks) is not known to be
    positive: a line or band that gets there is drawn at that floor, which a dotted line labelled "round-off" marks.

    Args:
        frame: rows of `metric` with columns layer, rank and value.
        heads: "mean" pools the heads, "panels" gives each its own panel.
        bands: "ends" draws the band of the first and last layer only, since many would hide each other.
        metric: any metric that has ranks.

    Raises:
        InputError: no such rows, a missing column, or panels asked for several models at once.
    """
    rows = rows_of(frame, metric, needs=("layer", "rank"))
    panels = _panels(rows, heads)
    layers = [int(layer) for layer in sorted(rows["layer"].unique())]
    colours = dict(zip(layers, depth_colours(len(layers)), strict=True))
    banded = {"ends": {layers[0], layers[-1]}, "all": set(layers), "none": set()}[bands]
    columns = min(len(panels), 2 if len(panels) <= 4 else 3)
    lines = -(-len(panels) // columns)
    fig = make_subplots(
        lines,
        columns,
        shared_xaxes="all" if heads == "panels" else False,  # models differ in how many ranks they have
        shared_yaxes="all",
        horizontal_spacing=0.04,
        vertical_spacing=0.12 if lines > 1 else 0,
        subplot_titles=[title for title, _ in panels] if len(panels) > 1 else None,
    )
    drawn: list[pd.Series] = []
    for index, (title, part) in enumerate(panels):
        place = {"row": index // columns + 1, "col": index % columns + 1}
        floor = round_off(part)
        own = {layer: part[part["layer"] == layer] for layer in layers}
        curves = {layer: _curve(rows, floor) for layer, rows in own.items() if not rows.empty}
        shown = [curve["low" if layer in banded else "median"] for layer, curve in curves.items()]
        drawn += shown
        floored = any((values <= floor).any() for values in shown)
        for layer in sorted(banded & set(curves)):  # behind every line
            curve = curves[layer]
            if (curve["high"] > curve["low"]).any():
                shade = translucent(colours[layer], 0.2)
                fig.add_trace(band(curve["rank"], curve["low"], curve["high"], shade), **place)
        where = "" if len(panels) == 1 else f", {title}"
        for layer, curve in curves.items():
            fig.add_trace(
                go.Scatter(
                    x=curve["rank"],
                    y=curve["median"],
                    mode="lines",
                    line={"color": colours[layer], "dash": "solid"},
                    name=f"layer {layer}",
                    showlegend=False,
                    hovertemplate=f"layer {layer}{where}<br>rank %{{x}}<br>%{{y:.3g}}<extra></extra>",
                ),
                **place,
            )
        if floored:
            _mark_floor(fig, floor, part["rank"].max(), place)
    fig.update_annotations(font={"size": None}, selector={"yref": "paper"})
    fig.update_xaxes(title_text="Rank", row=lines)
    for column in range(1, columns + 1):  # a short last row leaves columns whose lowest panel is higher up
        if (lines - 1) * columns + column > len(panels):
            fig.update_xaxes(title_text="Rank", showticklabels=True, row=lines - 1, col=column)
    lowest = pd.concat(drawn).clip(lower=round_off(rows))
    fig.update_yaxes(type="log", **log_ticks(pd.concat([lowest, rows["value"].nlargest(1)])))
    fig.update_yaxes(title_text=axis_title(metric), col=1)
    add_depth_key(fig, layers)
    fig.update_layout(height=170 * lines + 60 if len(panels) > 1 else 225)
    fig.update_layout(margin={"l": 58, "r": 60, "t": 24 if len(panels) > 1 else 10, "b": 38})
    return fig


def _panels(rows: pd.DataFrame, heads: str) -> list[tuple[str, pd.DataFrame]]:
    series = series_of(rows)
    if heads == "mean":
        return series
    if heads != "panels":
        raise InputError(f"heads is {heads!r}; choose 'mean' or 'panels'")
    if len(series) > 1:
        raise InputError(
            f"a panel per head takes one model; the frame holds {len(series)}: select one, or heads='mean'"
        )
    known = sorted(rows["head"].dropna().unique())
    if not known:
        raise InputError("the frame names no heads; draw it with heads='mean'")
    chosen = [known[index] for index in even_choice(len(known), MAX_PANELS)]
    return [(f"head {head}", rows[rows["head"] == head]) for head in chosen]


def round_off(part: pd.DataFrame) -> float:
    """Below this an eigenvalue is rounding error of the largest: N ε λ₁."""
    largest = float(part["value"].max())
    if not np.isfinite(largest) or largest <= 0:
        raise InputError("no eigenvalue is positive and finite: there is nothing to draw on a log scale")
    return largest * float(np.finfo(np.float64).eps) * max(int(part["rank"].max()), 1)


def _curve(rows: pd.DataFrame, floor: float) -> pd.DataFrame:
    """Median and quartiles at each rank, nothing below the floor."""
    return quartiles(rows.assign(value=rows["value"].clip(lower=floor)), "rank").reset_index()


def _mark_floor(fig: go.Figure, floor: float, last: int, place: dict[str, int]) -> None:
    fig.add_trace(
        go.Scatter(
            x=[1, last],
            y=[floor, floor],
            mode="lines",
            line={"color": GREY, "dash": "dot", "width": 1},
            showlegend=False,
            hovertemplate="at or below round-off<extra></extra>",
        ),
        **place,
    )
    fig.add_annotation(
        x=0,
        y=np.log10(floor),
        xref="x domain",
        text="round-off",
        showarrow=False,
        xanchor="left",
        yanchor="bottom",
        xshift=2,
        font={"color": GREY},
        **place,
    )


def add_depth_key(fig: go.Figure, layers: list[int]) -> None:
    """A colour bar for depth: it stays readable at 48 layers, where a legend would not."""
    if len(layers) > 1:
        trace, axis = depth_key(layers)
        fig.add_trace(trace)
        fig.update_layout(coloraxis=axis)


def depth_key(layers: list[int]) -> tuple[go.Scatter, dict]:
    """What `add_depth_key` adds: a trace that is nowhere, and the colour axis that it names."""
    trace = go.Scatter(
        x=[None],
        y=[None],
        mode="markers",
        showlegend=False,
        hoverinfo="skip",
        marker={"color": [layers[0]], "coloraxis": "coloraxis"},
    )
    return trace, {
        "colorscale": depth_scale(),
        "cmin": layers[0],
        "cmax": layers[-1],
        "colorbar": {
            "title": {"text": "Layer", "side": "right"},
            "len": 1,
            **whole_numbers(layers[-1] - layers[0] + 1, layers[0]),
        },
    }
