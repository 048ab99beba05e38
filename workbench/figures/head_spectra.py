"""Spectra of one head: of its keys' Gram matrix in every layer, and of its attention."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from workbench.core.errors import InputError
from workbench.core.options import ranges
from workbench.figures.frames import rows_of
from workbench.figures.grammar import Plot
from workbench.figures.kernel_svd import SMALLEST
from workbench.figures.marks import At, Line, Mark, Null, Rule, Series, key_entry
from workbench.figures.overlays import need_columns
from workbench.figures.spectra import round_off
from workbench.figures.tokens import as_array

_ENDS = ["null_mean", "null_low", "null_high"]


def head_spectrum_figure(frame: pd.DataFrame, layer: int) -> go.Figure:
    """Gram eigenvalues of one head against rank, on a log axis: one layer thick, the others thin behind it.

    Others go from dark for the first to light for the last. Where the frame has null distributions, that of the layer
    is drawn as a grey band. Lines are medians over the inputs. What is at or below rounding (N ε λ₁) is drawn there.

    Args:
        frame: the result of ``gram-spectrum`` for one head (rows of ``eigenvalue``, or of ``eigenvalue_share``), with
            option ``null_samples`` for the null distribution.
        layer: number of the layer that is drawn thick.

    Raises:
        InputError: no eigenvalues, several heads or models, no such layer, or no positive eigenvalue.
    """
    metric = "eigenvalue" if (frame["metric"] == "eigenvalue").any() else "eigenvalue_share"
    rows = rows_of(frame, metric, needs=("layer", "rank"))
    need_columns(rows, ("layer", "rank"), "gram-spectrum", one=("head", "model"))
    layers = sorted(int(number) for number in rows["layer"].unique())
    if layer not in layers:
        raise InputError(f"the frame has no layer {layer}; it holds {ranges(layers)}")
    floor = round_off(rows)
    lost = (rows["value"] <= floor).any()
    ends = [name for name in _ENDS if name in rows]
    rows = rows.assign(**rows[["value", *ends]].clip(lower=floor))
    rows[ends] = rows[ends].where(rows["layer"] == layer)
    marks: list[Mark] = [Null(words=f"Gaussian keys, layer {layer}"), _OneThick(layer=layer)]
    marks += [Rule(floor, "round-off")] if lost else []
    of_90 = frame.loc[(frame["metric"] == "rank_90") & (frame["layer"] == layer), "value"]
    if len(of_90) == 1:
        marks.append(At(float(of_90.iloc[0]), f"rank of 90 % in layer {layer}: {of_90.iloc[0]:.0f}"))
    plot = Plot(rows, x="rank", color="layer").metric(metric).add(*marks)
    return plot.scale(y_log=True, x_log=2).figure("page")


@dataclass(frozen=True)
class _OneThick(Line):
    """Thin lines of medians, but for the thick one of a layer, which lies over them."""

    estimator: Any = "median"
    markers: bool = False
    layer: int = 0

    def together(self, panel: Sequence[Series]) -> Iterator[go.Scatter]:
        front = str(self.layer)
        for series in sorted(panel, key=lambda one: one.group == front):
            width, opacity = (3, 1) if series.group == front else (1.2, 0.8)
            for trace in super().together([series]):
                yield trace.update(line={"width": width}, opacity=opacity)

    def key(self, drawn: Sequence[Series], style: dict[str, Any]) -> Iterator[go.Scatter]:
        front = next(series for series in drawn if series.group == str(self.layer))
        line = {**front.style["line"], "width": 3}
        yield key_entry(f"layer {self.layer}, {self._words(front)}", mode="lines", line=line)


def singular_values_figure(values: Any) -> go.Figure:
    """Singular values of one head's attention against rank, on a log axis, with two ranks marked.

    The effective rank is exp(−Σ p log p) with p = σ / Σ σ; the other is the smallest rank at which the squares hold
    90 % of their sum. Both are of all values; what lies below 1e-5 of the largest is drawn there.

    Args:
        values: (rank,) singular values, dimensionless, in any order.

    Raises:
        InputError: not one spectrum of finite values, of which one at least is positive.
    """
    sigma = as_array(values)
    if sigma.ndim != 1 or not np.isfinite(sigma).all() or (sigma < 0).any() or not sigma.any():
        raise InputError(
            f"singular values are (rank,), finite and not all zero; got shape {sigma.shape}: choose one head"
        )
    sigma = np.sort(sigma)[::-1]
    floor = SMALLEST * sigma[0]
    p = sigma[sigma > 0] / sigma.sum()
    effective = float(np.exp(-(p * np.log(p)).sum()))
    holding = int(np.argmax(np.cumsum(sigma**2) / np.sum(sigma**2) >= 0.9)) + 1
    rows = pd.DataFrame({
        "metric": "singular_value", "rank": np.arange(1, len(sigma) + 1), "value": np.maximum(sigma, floor),
    })  # fmt: skip
    marks: list[Mark] = [
        Line(markers=False, words="σ<sub>r</sub> of the head's attention"),
        At(effective, f"effective rank: {effective:.1f}"), At(holding, f"rank of 90 %: {holding}", dash="dot"),
    ]  # fmt: skip
    marks += [Rule(floor, "round-off")] if (sigma <= floor).any() else []
    return Plot(rows, x="rank").metric("singular_value").add(*marks).scale(y_log=True).figure()
