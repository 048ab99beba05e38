"""Sensitivity of softmax to its logits: random ones against N, and a model's own by layer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.core.errors import InputError
from workbench.figures.frames import (
    LEGEND_ABOVE,
    band,
    legend_rows,
    log_ticks,
    name_null,
    rows_of,
    series_of,
    whole_numbers,
)
from workbench.figures.levels import layer_traces
from workbench.figures.theme import GREY, PAGE, series_style, translucent

CONSTANT, CITED = 0.5, 1.0  # the Lipschitz constant of softmax, and the one that the paper cites
_MODELS = "legend2"
_HEIGHT, _ROW = 410, 20  # px; a row of a legend
_SAMPLED = ("metric", "candidate", "tokens", "spread", "value", "low", "high")
# metric, the rows meant, title
_BY_LAYER = (
    ("softmax_lipschitz", "mean", "Local constant, mean query"),
    ("softmax_lipschitz", "max", "Local constant, largest"),
    ("softmax_perturbation", None, "Softmax perturbation (L2)"),
)


def softmax_sensitivity_figure(
    sampled: pd.DataFrame, fit: Sequence[tuple[float, float]], measured: pd.DataFrame
) -> go.Figure:
    """Lipschitz constant and expected perturbation of softmax against N (abdullaev2025 Fig. 1), and by layer of models.

    Above, random logits of several spreads: the largest slope of two vectors at the first spread with the fit of it,
    the largest local constant at every spread, beside the exact constant 1/2 and the 1 that the paper cites; the mean
    perturbation by noise. Below, a model's own logits, mean over inputs and heads; thin the mean of the null
    distribution.

    Args:
        sampled: what `workbench.analyses.softmax_sensitivity.sampled_sensitivity` returns.
        fit: points (N, value) of the curve a/√N + b fitted to the pairs of the first spread.
        measured: the result of ``softmax-sensitivity``, of one or several models.

    Raises:
        InputError: a column is missing, or a frame holds nothing to draw.
    """
    missing = [name for name in _SAMPLED if name not in sampled]
    if missing or sampled.empty:
        raise InputError(
            f"the frame has no {'column ' + ', '.join(missing) if missing else 'rows'}; give the frame of "
            "`workbench.analyses.softmax_sensitivity.sampled_sensitivity`"
        )
    rows = rows_of(measured, {metric for metric, *_ in _BY_LAYER})
    fig = make_subplots(
        2,
        6,
        specs=[[{"colspan": 3}, None, None] * 2, [{"colspan": 2}, None] * 3],
        horizontal_spacing=0.06,
        vertical_spacing=0.24,
        subplot_titles=[
            "Random logits: Lipschitz constant",
            "Random logits: expected move under noise",
            *(title for *_, title in _BY_LAYER),
        ],
    )
    spreads = list(dict.fromkeys(sampled["spread"]))
    lipschitz = sampled[sampled["metric"] == "softmax_lipschitz"]
    _add_pairs(fig, lipschitz, spreads[0], fit)
    for index, spread in enumerate(spreads):
        style, label = series_style(index), f"spread {spread:g}"
        own = lipschitz[(lipschitz["spread"] == spread) & (lipschitz["candidate"] == "local")]
        moved = sampled[(sampled["metric"] == "softmax_perturbation") & (sampled["spread"] == spread)]
        shade = translucent(style["line"]["color"], 0.2)
        fig.add_trace(band(moved["tokens"], moved["low"], moved["high"], shade), row=1, col=4)
        for column, part in ((1, own), (4, moved)):
            fig.add_trace(
                go.Scatter(
                    x=part["tokens"],
                    y=part["value"],
                    mode="lines+markers",
                    name=label,
                    legendgroup=label,
                    showlegend=column == 1,
                    hovertemplate=f"{label}<br>N = %{{x}}<br>%{{y:.3g}}<extra></extra>",
                    **style,
                ),
                row=1,
                col=column,
            )
    _add_layers(fig, rows, len(spreads))
    last = sampled["tokens"].max()
    for column in (1, 4):
        fig.update_xaxes(type="log", title_text="N", **log_ticks(sampled["tokens"]), row=1, col=column)
        fig.update_xaxes(range=[np.log10(1.7), np.log10(last) + 0.08], row=1, col=column)
    fig.update_yaxes(range=[0, 1.08], row=1, col=1)
    fig.update_yaxes(rangemode="tozero", row=1, col=4)
    fig.update_annotations(font={"size": None})
    titles = "Random logits:  ", "Models:  "
    above, below = (
        legend_rows(fig, PAGE - 6 * len(title), legend)
        for title, legend in zip(titles, ("legend", _MODELS), strict=True)
    )
    return fig.update_layout(
        height=_HEIGHT,
        legend={**LEGEND_ABOVE, "title": {"text": titles[0]}},
        legend2={
            **LEGEND_ABOVE,
            "title": {"text": titles[1]},
            "y": 1 - _ROW * above / _HEIGHT,
            "bgcolor": "rgba(0, 0, 0, 0)",  # the first legend's letters reach below its row
        },
        margin={"l": 40, "r": 8, "t": 26 + _ROW * (above + below), "b": 38},
    )


def _add_pairs(fig: go.Figure, rows: pd.DataFrame, spread: float, fit: Sequence[tuple[float, float]]) -> None:
    pairs = rows[(rows["spread"] == spread) & (rows["candidate"] == "pairs")]
    marker = {"symbol": "circle-open", "color": GREY, "size": 6, "line": {"width": 1.2}}
    label = f"pairs, spread {spread:g}"
    place = {"row": 1, "col": 1}
    fig.add_trace(
        go.Scatter(
            x=pairs["tokens"],
            y=pairs["value"],
            mode="markers",
            marker=marker,
            name=label,
            hovertemplate=f"{label}<br>N = %{{x}}<br>%{{y:.3g}}<extra></extra>",
        ),
        **place,
    )
    if fit:
        x, y = zip(*fit, strict=True)
        style = {"color": GREY, "dash": "solid", "width": 1}
        fig.add_trace(
            go.Scatter(x=x, y=y, mode="lines", line=style, name="fit a/√N + b", hoverinfo="skip"), **place
        )
    lines = ((CONSTANT, "1/2, the constant of softmax", "bottom"), (CITED, "1, as the paper cites it", "top"))
    for level, text, anchor in lines:
        fig.add_hline(y=level, line={"color": "black", "width": 0.75}, **place)
        fig.add_annotation(
            x=1,
            y=level,
            xref="x domain",
            text=text,
            showarrow=False,
            xanchor="right",
            yanchor=anchor,
            **place,
        )


def _add_layers(fig: go.Figure, rows: pd.DataFrame, first: int) -> None:
    """The lower panels; the first model has the style after those of the spreads."""
    labels = [label for label, _ in series_of(rows)]
    for number, (metric, statistic, _) in enumerate(_BY_LAYER):
        place = {"row": 2, "col": 2 * number + 1}
        chosen = rows[rows["metric"] == metric]
        chosen = chosen if statistic is None else chosen[chosen["statistic"] == statistic]
        for label, part in series_of(chosen):
            style = series_style(first + labels.index(label))
            for trace in layer_traces(part, label, style, show=number == 0):
                fig.add_trace(trace.update(legend=_MODELS), **place)
        fig.update_yaxes(rangemode="tozero", **place)
        if metric == "softmax_lipschitz":
            fig.add_hline(y=CONSTANT, line={"color": "black", "width": 0.75}, **place)
            fig.update_yaxes(range=[0, 1.08 * CONSTANT], **place)
        fig.update_xaxes(title_text="Layer", **whole_numbers(int(rows["layer"].max()) + 1), **place)
    name_null(fig)
    fig.data[-1].legend = _MODELS
