"""Sensitivity of softmax to its logits: random ones against N, and a model's own by layer."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go

from workbench.figures.drawing import SERIES
from workbench.figures.estimates import means_and_heads, titled
from workbench.figures.frames import rows_of
from workbench.figures.grammar import Plot
from workbench.figures.marks import Band, Line, Null, Points, Rule
from workbench.figures.overlays import need_columns

CONSTANT = 0.5  # the Lipschitz constant of softmax
_BOUND = "1/2: Lipschitz constant of softmax"
_SPREAD = "logits of SD "
_SAMPLED = ("metric", "candidate", "tokens", "spread", "value", "low", "high")
_LIPSCHITZ, _MOVED = "softmax_lipschitz", "softmax_perturbation"
# Title of a row of panels, and the rows meant.
_BY_LAYER: dict[str, dict[str, str]] = {
    "Local constant, mean query": {"metric": _LIPSCHITZ, "statistic": "mean"},
    "Local constant, largest": {"metric": _LIPSCHITZ, "statistic": "max"},
    "Softmax perturbation (L2)": {"metric": _MOVED},
}


def sampled_sensitivity_figure(sampled: pd.DataFrame, fit: Sequence[tuple[float, float]]) -> go.Figure:
    """Lipschitz constant and expected perturbation of softmax against N, for random logits (abdullaev2025 Fig. 1).

    Left the largest local constant at every spread of the logits, and the largest slope of two vectors at the first
    spread with the fit of it, beside the exact constant 1/2, on logarithmic axes; right the mean perturbation by noise.

    Args:
        sampled: what `workbench.analyses.softmax_sensitivity.sampled_sensitivity` returns.
        fit: points (N, value) of the curve a/√N + b fitted to the pairs of the first spread.

    Raises:
        InputError: a column is missing, or there are no rows.
    """
    need_columns(sampled, _SAMPLED, "workbench.analyses.softmax_sensitivity.sampled_sensitivity")
    curve = "fit a/√N + b to the slopes"
    paired = sampled["candidate"] == "pairs"
    rows = sampled[~paired].assign(quantity=_SPREAD + sampled["spread"].map("{:g}".format), candidate=pd.NA)
    fitted = pd.DataFrame([*fit], columns=["tokens", "value"]).assign(metric=_LIPSCHITZ, quantity=curve)
    rows = pd.concat([rows, fitted], ignore_index=True).drop(columns="spread")
    rows["constant"] = rows["metric"].map({_LIPSCHITZ: CONSTANT}).astype(float)
    first = sampled["spread"].iloc[0]
    words = f"largest slope between two of the vectors, {_SPREAD}{first:g}"
    pairs = Points(sampled[paired & (sampled["spread"] == first)], words)
    plot = Plot(rows, x="tokens", color="quantity", names={_LIPSCHITZ: "Lipschitz constant, largest"})
    plot = plot.metric(_LIPSCHITZ, _MOVED).scale(
        x_log=True, x_title="Number of logits N", y_log={_LIPSCHITZ: True}, y_zero={_MOVED: True}
    )  # fmt: skip
    return plot.add(
        Rule(column="constant", name=_BOUND), pairs,
        Band(columns=("low", "high"), words="95 % CI over samples"),
        Line(words="left: largest, right: mean of all samples"),
    ).figure("page")  # fmt: skip


def softmax_sensitivity_figure(measured: pd.DataFrame) -> go.Figure:
    """Local Lipschitz constant and perturbation of softmax at a model's own logits, by layer; a column per model.

    Lines are means over inputs and heads, with their 95 % interval over inputs where the frame has them; the null
    distribution (random queries and keys) in grey.

    Args:
        measured: the result of ``softmax-sensitivity``, of one or several models; with ``single`` for the intervals.

    Raises:
        InputError: the frame holds neither.
    """
    rows = means_and_heads(rows_of(measured, {_LIPSCHITZ, _MOVED}))
    rows = titled(rows.assign(constant=rows["metric"].map({_LIPSCHITZ: CONSTANT})), _BY_LAYER)
    plot = Plot(rows, panel=SERIES).metric(*dict.fromkeys(rows["metric"])).scale(x_free=True, y_zero=True)
    bound = Rule(column="constant", name=_BOUND)
    return plot.add(Null(words="Gaussian q and k"), Band(), Line(), bound).figure("page", height=380)
