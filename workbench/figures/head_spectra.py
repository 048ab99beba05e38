"""Spectra of one head: of its keys' Gram matrix in every layer, and of its attention."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from workbench.core.errors import InputError
from workbench.core.options import ranges
from workbench.figures.frames import (
    LEGEND_ABOVE,
    axis_title,
    log_ticks,
    null_traces,
    rows_of,
    without_provenance,
)
from workbench.figures.kernel_svd import SMALLEST
from workbench.figures.spectra import depth_key, round_off
from workbench.figures.theme import COLOURS, GREY, depth_colours, series_style
from workbench.figures.tokens import as_array


def head_spectrum_figure(frame: pd.DataFrame, layer: int) -> go.Figure:
    """Gram eigenvalues of one head against rank, on a log axis: one layer thick, the others thin behind it.

    Others go from dark for the first to light for the last. Where the frame has null distributions, those of the
    layer are drawn as a grey band with a dotted line. Several inputs give medians. What is at or below rounding (N ε
    λ₁) is drawn there.

    Args:
        frame: the result of ``gram-spectrum`` for one head (rows of ``eigenvalue``, or of ``eigenvalue_share``), with
            option ``null_samples`` for the null distribution.
        layer: number of the layer that is drawn thick.

    Raises:
        InputError: no eigenvalues, several heads or models, no such layer, or no positive eigenvalue.
    """
    metric = "eigenvalue" if (frame["metric"] == "eigenvalue").any() else "eigenvalue_share"
    rows = rows_of(without_provenance(frame), metric, needs=("layer", "rank"))
    for column in ("head", "model"):
        if rows[column].nunique() > 1:
            raise InputError(f"the frame holds {rows[column].nunique()} {column}s; keep one of them")
    layers = sorted(int(number) for number in rows["layer"].unique())
    if layer not in layers:
        raise InputError(f"the frame has no layer {layer}; it holds {ranges(layers)}")
    floor = round_off(rows)
    clipped = rows.assign(value=rows["value"].clip(lower=floor))
    medians = clipped.groupby(["rank", "layer"])["value"].median().unstack()
    ranks, curves = medians.index.to_numpy(int), medians.to_numpy(float).T
    own = rows[rows["layer"] == layer]
    own = own[own["null_mean"].notna()]
    own = own[own["null"].astype(object).eq(own["null"].iloc[0])] if len(own) else own
    levels = own.assign(**{
        name: own[name].clip(lower=floor) for name in ("null_mean", "null_low", "null_high")
    })  # fmt: skip
    colours = depth_colours(len(layers))
    look: list[dict] = [
        {"line": {"color": colour, "dash": "solid", "width": 1}, "opacity": 0.6} for colour in colours
    ]
    front = layers.index(layer)
    look[front] = {"line": {"color": COLOURS[2], "dash": "solid", "width": 3}, "name": f"layer {layer}"}
    traces = null_traces(levels, "rank")
    traces += [
        go.Scatter(
            x=ranks,
            y=curves[place],
            mode="lines",
            showlegend=place == front,
            hovertemplate=f"layer {layers[place]}<br>rank %{{x}}<br>%{{y:.3g}}<extra></extra>",
            **look[place],
        )
        for place in (*(place for place in range(len(layers)) if place != front), front)
    ]
    layout: dict[str, Any] = {}
    if len(layers) > 1:
        key, layout["coloraxis"] = depth_key(layers)
        traces.append(key)
    shown = pd.Series([np.nanmin(curves), np.nanmax(curves), *levels["null_high"].dropna()])
    return go.Figure(traces, {
        **layout,
        "xaxis": {"title": {"text": "Rank"}},
        "yaxis": {"title": {"text": axis_title(metric)}, "type": "log", **log_ticks(shown)},
        "legend": LEGEND_ABOVE,
        "height": 270,
        "margin": {"l": 58, "r": 60, "t": 26, "b": 38},
    })  # fmt: skip


def singular_values_figure(values: Any, floor: float | None = None) -> go.Figure:
    """Singular values of one head's attention against rank, on a log axis, with two ranks marked.

    The effective rank is exp(−Σ p log p) with p = σ / Σ σ; the other is the smallest rank at which the squares hold
    90 % of their sum. Both are of all values; what lies below the floor is drawn there.

    Args:
        values: (rank,) singular values, dimensionless, in any order.
        floor: the smallest value that is known; by default 1e-5 of the largest, what single precision leaves.

    Raises:
        InputError: not one spectrum of finite values, of which one at least is positive, or a floor that is not
            positive.
    """
    sigma = as_array(values)
    if sigma.ndim != 1 or not np.isfinite(sigma).all() or (sigma < 0).any() or not sigma.any():
        raise InputError(
            f"singular values are (rank,), finite and not all zero; got shape {sigma.shape}: choose one head"
        )
    if floor is not None and floor <= 0:
        raise InputError(f"floor is {floor!r}; give a positive number, or None")
    sigma = np.sort(sigma)[::-1]
    floor = SMALLEST * sigma[0] if floor is None else floor
    ranks = np.arange(1, len(sigma) + 1)
    share = np.cumsum(sigma**2) / np.sum(sigma**2)
    effective = _effective_rank(sigma)
    holding = int(np.argmax(share >= 0.9)) + 1
    low, high = floor if (sigma <= floor).any() else sigma[-1], sigma[0]
    traces = [
        go.Scatter(
            x=ranks,
            y=np.maximum(sigma, floor),
            mode="lines",
            customdata=np.stack([sigma, share], -1),
            showlegend=False,
            hovertemplate="rank %{x}<br>σ = %{customdata[0]:.3g}<br>%{customdata[1]:.1%} of the squared sum up to here"
            "<extra></extra>",
            line=series_style(0)["line"],
        )
    ]
    marks = ((effective, f"effective rank {effective:.1f}", 1), (holding, f"rank of 90 %: {holding}", 2))
    for place, text, look in marks:
        style = series_style(look)["line"]
        traces.append(
            go.Scatter(x=[place, place], y=[low, high], mode="lines", line=style, name=text, hoverinfo="name")
        )
    layout: dict[str, Any] = {"shapes": [], "annotations": []}
    if (sigma <= floor).any():
        layout["shapes"].append(
            {"type": "line", "x0": 0, "x1": 1, "xref": "x domain", "y0": floor, "y1": floor}
            | {"line": {"color": GREY, "dash": "dot", "width": 1}}
        )
        layout["annotations"].append(
            {
                "text": "at or below round-off",
                "x": 0.5,
                "xref": "x domain",
                "y": np.log10(floor),
                "showarrow": False,
            }
            | {"xanchor": "center", "yanchor": "bottom", "font": {"color": GREY}}
        )
    shown = pd.Series(np.maximum(sigma, floor))
    return go.Figure(traces, {
        **layout,
        "xaxis": {"title": {"text": "Rank"}, "range": [0, len(sigma) + 1]},
        "yaxis": {"title": {"text": "Singular value of attention σ<sub>r</sub>"}, "type": "log", **log_ticks(shown)},
        "legend": LEGEND_ABOVE,
        "margin": {"l": 58, "r": 8, "t": 26, "b": 38},
        "height": 270,
    })  # fmt: skip


def _effective_rank(spectrum: np.ndarray) -> float:
    """exp(−Σ p log p) with p the spectrum over its sum, as `workbench.analyses`, which no figure imports, has it."""
    share = spectrum[spectrum > 0] / spectrum.sum()
    return float(np.exp(-(share * np.log(share)).sum()))
