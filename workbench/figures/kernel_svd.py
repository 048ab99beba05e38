"""Attention as kernel SVD: its singular values, and by layer its ranks, what r-scores hold, and where V lies."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from workbench.figures.estimates import titled
from workbench.figures.frames import rows_of
from workbench.figures.grammar import SERIES, Plot
from workbench.figures.levels import NULL_COLUMNS, at_level
from workbench.figures.marks import Band, Line, Null

SMALLEST = 1e-5  # of σ_1: what single precision leaves of a captured attention matrix
_CURVES = {
    "singular_value_relative": "σ<sub>r</sub> / σ<sub>1</sub>",
    "explained_variance": "Cumulative explained variance",
}
_LOGARITHMIC = ("Effective rank", "Rank of 90 % of the variance")
# Title of a row of panels, and the rows meant.
_BY_LAYER: dict[str, dict[str, str]] = {
    "Effective rank": {"metric": "effective_rank"},
    "Rank of 90 % of the variance": {"metric": "rank_90"},
    "r-scores outside e-scores": {"metric": "r_score_share", "candidate": "e_scores"},
    "r-scores outside output": {"metric": "r_score_share", "candidate": "head_out"},
    "V inside span(H<sub>r</sub>)": {"metric": "right_singular_share"},
    "Angle of V and H<sub>r</sub>": {"metric": "right_singular_angle", "statistic": "mean"},
}
_OF_V = ("right_singular_share", "right_singular_angle")  # their null permutes the tokens of V


def attention_spectrum_figure(frame: pd.DataFrame) -> go.Figure:
    """Singular values over the largest, and cumulative explained variance, against rank (chen2023 Fig. 1).

    A column per model: the mean over inputs, of each the mean over its heads and layers; the band is their
    interquartile range; the null distribution in grey.

    Args:
        frame: the result of ``attention-spectrum``, of one or several models; of one layer, for the paper's figure.

    Raises:
        InputError: the frame holds no spectra, or was made with ``per_head``.
    """
    rows = rows_of(frame, [*_CURVES], needs=("rank",))
    rows = pd.concat([at_level(rows, "input"), at_level(rows, "overall")])
    plot = Plot(rows, x="rank", panel=SERIES, names=_CURVES).metric(*_CURVES)
    plot = plot.add(Null(), Band(quantiles=(25, 75), over="input"), Line(markers=False))
    log, ends = {"singular_value_relative": True}, {"singular_value_relative": (SMALLEST, 1.5)}
    return plot.scale(x_log=True, x_free=True, y_log=log, y_range=ends).figure("page")


def attention_rank_figure(frame: pd.DataFrame) -> go.Figure:
    """Ranks of attention, the residual r-score energy, and V beside the right singular vectors, by layer.

    A column per model: the mean over inputs and heads, and in grey the null distribution: random queries and keys for
    the ranks, random directions for the r-scores, tokens of V permuted for V. Primal-Attention has no V.

    Args:
        frame: the result of ``attention-spectrum`` over all layers, of one or several models.

    Raises:
        InputError: the frame holds none of these, or was made with ``per_head``.
    """
    rows = at_level(rows_of(frame, {where["metric"] for where in _BY_LAYER.values()}), "layer").copy()
    drawn = rows["metric"].isin(_OF_V).map({True: "permutation", False: "gaussian"})
    rows.loc[rows["null"] != drawn, NULL_COLUMNS] = pd.NA
    rows = titled(rows, _BY_LAYER)
    shown = [*dict.fromkeys(rows["metric"])]
    plot = Plot(rows, panel=SERIES).metric(*shown)
    log, zero = ({title: (title in _LOGARITHMIC) is one for title in shown} for one in (True, False))
    plot = plot.add(Null(), Line(words="mean over inputs and heads")).scale(
        y_log=log, y_zero=zero, x_free=True
    )
    return plot.figure("page", height=96 * len(shown) + 60)
