"""Attention as kernel SVD: its singular values, and by layer its ranks, what r-scores hold, and where V lies."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from workbench.core.arguments import checked
from workbench.figures.estimates import at_level, means_and_heads, titled
from workbench.figures.frames import rows_of, series_labels
from workbench.figures.grammar import Plot
from workbench.figures.marks import Band, Line, Null, Points
from workbench.figures.specification import SERIES

SMALLEST = 1e-5  # of σ_1: what single precision leaves of a captured attention matrix
_CURVES = {
    "singular_value_relative": "Singular value<br>σ<sub>r</sub> / σ<sub>1</sub>",
    "unexplained": "Residual variance<br>Σ<sub>i&gt;r</sub> σ<sub>i</sub>² / Σ σ<sub>i</sub>²",
}
_ROUNDING = 1e-14  # of the largest: 0 in double precision
_ENDS = {"singular_value_relative": (SMALLEST, 1.5), "unexplained": (1e-6, 1.5)}
_RANK = "Effective rank<br>(log)"
# Title of a row of panels, and the rows meant.
_BY_LAYER: dict[str, dict[str, str]] = {
    _RANK: {"metric": "effective_rank"},
    "r-scores outside<br>the output (share)": {
        "metric": "r_score_share", "candidate": "head_out",
    },
    "V in span(H<sub>r</sub>)<br>(share)": {"metric": "right_singular_share"},
}  # fmt: skip
_RANDOM = "another in each row"
_OF_V = "right_singular_share"  # its null permutes the tokens of V


@checked
def attention_spectrum_figure(frame: pd.DataFrame) -> go.Figure:
    """Singular values over the largest, and the variance that they leave, against rank (chen2023 Fig. 1).

    The paper draws the variance that they explain: one minus this, on a linear axis on which it is soon 1. A column
    per model: the mean over inputs, of each the mean over its heads and layers, between their quartiles (see `Band`);
    the null distribution in grey. An arrow marks where a curve leaves the axis.

    Args:
        frame: the result of ``attention-spectrum``, of one or several models; of one layer, for the paper's figure.

    Raises:
        InputError: the frame holds no spectra, or was made with ``per_head``.
    """
    rows = rows_of(frame, ["singular_value_relative", "explained_variance"], needs=("rank",))
    rows = pd.concat([at_level(rows, "input"), at_level(rows, "overall")])
    explained = rows["metric"] == "explained_variance"
    ends = {"value": "value", "null_mean": "null_mean", "null_low": "null_high", "null_high": "null_low"}
    left = {name: 1 - rows.loc[explained, other] for name, other in ends.items() if other in rows}
    rows = pd.concat([rows[~explained], rows[explained].assign(metric="unexplained", **left)])
    rows = rows[rows["value"] > _ROUNDING]  # what is 0 by construction is not drawn as falling below the axis
    plot = Plot(rows, x="rank", panel=SERIES, names=_CURVES).metric(*_CURVES)
    plot = plot.add(Null(words="random q and k"), Band(quantiles=(25, 75), over="input"), Line(markers=False))
    return plot.scale(x_log=True, x_title="Rank r", y_log=True, y_range=_ENDS).figure("page")


@checked
def attention_rank_figure(frame: pd.DataFrame) -> go.Figure:
    """Effective rank of attention, the residual r-score energy, and V beside the right singular vectors, by layer.

    A column per model: the mean over inputs and heads, its 95 % interval over inputs where the frame has them, and
    the null distribution: random queries and keys for the rank, random directions for the r-scores, tokens of V
    permuted for V. Where Primal-Attention has no V, words replace the panel.

    Args:
        frame: the result of ``attention-spectrum`` over all layers, of one or several models; with ``single`` for the
            intervals.

    Raises:
        InputError: the frame holds none of these, or was made with ``per_head``.
    """
    rows = means_and_heads(rows_of(frame, {where["metric"] for where in _BY_LAYER.values()}))
    drawn = rows["metric"].eq(_OF_V).map({True: "permutation", False: "gaussian"})
    rows = rows[rows["null"].isna() | (rows["null"] == drawn)].assign(null=_RANDOM)
    rows = titled(rows.assign(series=series_labels(rows)), _BY_LAYER)
    metrics = [*dict.fromkeys(rows["metric"])]
    measured = rows[["series", "layer"]].drop_duplicates()
    places = pd.MultiIndex.from_frame(measured)
    absent = []
    for metric, metric_rows in rows.groupby("metric", sort=False):
        kept = places.isin(pd.MultiIndex.from_frame(metric_rows[["series", "layer"]]))
        absent.append(measured[~kept].assign(metric=metric, value=0.5))
    without = Points(pd.concat(absent), "no V", by=("metric", SERIES), symbol="")
    shares = {title: (-0.04, 1.04) for title in metrics if title != _RANK}
    plot = Plot(rows, panel=SERIES).metric(*metrics).scale(y_log={_RANK: True}, y_range=shares, x_free=True)
    return plot.add(Null(), Band(), Line(), without).figure("page", height=112 * len(metrics) + 64)
