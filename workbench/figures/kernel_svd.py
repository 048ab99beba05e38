"""Attention as kernel SVD: its singular values, and by layer its ranks, what r-scores hold, and where V lies."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.figures.frames import (
    LEGEND_ABOVE,
    axis_title,
    band,
    legend_rows,
    log_ticks,
    name_null,
    null_line,
    rows_of,
    series_of,
    spread,
    whole_numbers,
)
from workbench.figures.levels import at_level, layer_traces, values_once
from workbench.figures.theme import series_style, translucent

SMALLEST = 1e-5  # of σ_1: what single precision leaves of a captured attention matrix
_CURVES = ("singular_value_relative", "explained_variance")
_LOGARITHMIC = ("effective_rank", "rank_90")
# metric, the rows meant, the null distribution drawn
_BY_LAYER = (
    ("effective_rank", {}, "gaussian", "Effective rank"),
    ("rank_90", {}, "gaussian", "Rank of 90 % of the variance"),
    ("r_score_share", {"candidate": "e_scores"}, "gaussian", "r-scores outside the e-scores"),
    ("r_score_share", {"candidate": "head_out"}, "gaussian", "r-scores outside the output"),
    ("right_singular_share", {}, "permutation", "V inside span(H<sub>r</sub>)"),
    ("right_singular_angle", {"statistic": "mean"}, "permutation", "Mean angle of V and H<sub>r</sub>"),
)


def attention_spectrum_figure(frame: pd.DataFrame) -> go.Figure:
    """Singular values over the largest, and cumulative explained variance, against rank (chen2023 Fig. 1).

    A line per model: the mean over inputs, of each the mean over its heads and layers; the band is their
    interquartile range, the thin line of the same colour the mean of the null distribution.

    Args:
        frame: the result of ``attention-spectrum``, of one or several models; of one layer, for the paper's figure.

    Raises:
        InputError: the frame holds no spectra, or was made with ``per_head``.
    """
    rows = rows_of(frame, _CURVES, needs=("rank",))
    fig = make_subplots(1, 2, horizontal_spacing=0.12)
    for column, metric in enumerate(_CURVES, start=1):
        for index, (label, part) in enumerate(series_of(rows[rows["metric"] == metric])):
            style = {"line": series_style(index)["line"]}
            colour = style["line"]["color"]
            curve = spread(values_once(at_level(part, "input")), "rank")
            place = {"row": 1, "col": column}
            low, high = (curve[name].clip(lower=SMALLEST) for name in ("low", "high"))
            fig.add_trace(band(curve["rank"], low, high, translucent(colour, 0.2)), **place)
            fig.add_trace(
                go.Scatter(
                    x=curve["rank"],
                    y=curve["mean"],
                    mode="lines",
                    name=label,
                    legendgroup=label,
                    showlegend=column == 1,
                    hovertemplate=f"{label}<br>rank %{{x}}<br>%{{y:.3g}}<extra></extra>",
                    **style,
                ),
                **place,
            )
            null_level = at_level(part, "overall").dropna(subset=["null_mean"])
            if len(null_level):
                fig.add_trace(null_line(null_level["rank"], null_level["null_mean"], colour), **place)
    name_null(fig)
    last = int(rows["rank"].max())
    fig.update_xaxes(type="log", title_text="Rank", range=[-0.02, np.log10(last) + 0.02])
    fig.update_xaxes(**log_ticks(pd.Series([1.0, min(last, 35.0)])))
    title = "Singular value σ<sub>r</sub> / σ<sub>1</sub>"
    fig.update_yaxes(title_text=title, type="log", range=[np.log10(SMALLEST), 0.1], dtick=1, row=1, col=1)
    fig.update_yaxes(title_text=axis_title("explained_variance"), range=[0, 1.03], row=1, col=2)
    margin = {"l": 56, "r": 8, "t": 10 + 18 * legend_rows(fig), "b": 38}
    return fig.update_layout(height=250, legend=LEGEND_ABOVE, margin=margin)


def attention_rank_figure(frame: pd.DataFrame) -> go.Figure:
    """Ranks of attention, the residual r-score energy, and V beside the right singular vectors, by layer.

    A line per model: the mean over inputs and heads; thin in its colour the mean of the null distribution: random
    queries and keys for the ranks, random directions for the r-scores, tokens of V permuted for V. Primal-Attention
    has no V.

    Args:
        frame: the result of ``attention-spectrum`` over all layers, of one or several models.

    Raises:
        InputError: the frame holds none of these, or was made with ``per_head``.
    """
    rows = rows_of(frame, {metric for metric, *_ in _BY_LAYER})
    labels = [label for label, _ in series_of(rows)]
    fig = make_subplots(
        2,
        3,
        horizontal_spacing=0.09,
        vertical_spacing=0.18,
        subplot_titles=[title for *_, title in _BY_LAYER],
    )
    for number, (metric, where, null, _) in enumerate(_BY_LAYER):
        place = {"row": number // 3 + 1, "col": number % 3 + 1}
        chosen = rows[rows["metric"] == metric]
        for name, word in where.items():
            chosen = chosen[chosen[name] == word]
        for label, part in series_of(chosen):
            style = series_style(labels.index(label))
            for trace in layer_traces(part, label, style, null, show=number == 0):
                fig.add_trace(trace, **place)
        if metric in _LOGARITHMIC:
            fig.update_yaxes(type="log", **log_ticks(chosen["value"]), **place)
        else:
            fig.update_yaxes(rangemode="tozero", **place)
    name_null(fig)
    fig.update_yaxes(title_text="radians", row=2, col=3)
    fig.update_xaxes(**whole_numbers(int(rows["layer"].max()) + 1))
    fig.update_xaxes(title_text="Layer", row=2)
    fig.update_annotations(font={"size": None})
    margin = {"l": 40, "r": 8, "t": 26 + 18 * legend_rows(fig), "b": 38}
    return fig.update_layout(height=370, legend=LEGEND_ABOVE, margin=margin)
