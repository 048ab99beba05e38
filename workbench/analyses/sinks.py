"""Attention sinks, the values that they hold, and massive activations.

A sink is a key that gets much attention from every query (Xiao et al. 2024). Its value is small, so that the head does
nothing (Gu et al. 2024). Sinks come with a few activations of the residual stream that are orders of magnitude larger
than the rest (Sun et al. 2024).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import pandas as pd
import torch
from annotated_types import Gt, Lt
from jaxtyping import Bool, Float
from torch import Tensor

from workbench.analyses.layer import Layer, need_token_attention
from workbench.analyses.reductions import Received
from workbench.analyses.registry import Analysis, OfInputs
from workbench.analyses.tiles import Operands, layer_attention, report_broken
from workbench.core.null_distributions import Null, generator
from workbench.core.operands import checked_tensors
from workbench.core.options import NullSamples
from workbench.frames.estimate import over_inputs
from workbench.frames.measurement import Measurement
from workbench.frames.metric import Metric

MEDIAN = 0.6744897501960817
"""Median of |x| for a standard normal x."""


@dataclass(frozen=True)
class Options(OfInputs):
    """What counts as a sink."""

    epsilon: Annotated[float, Gt(0), Lt(1), "share of attention on one key above which a head has a sink"] = (
        0.3
    )
    null_samples: Annotated[
        NullSamples, "Gaussian samples beside massive activations, at least 2; 0 leaves them out"
    ] = 20


_SINK_RATE = Metric(
    "sink_rate",
    "Sink rate",
    "1 where the most attended key has more than ε of a head's attention (mean over queries), else 0; null: uniform "
    "attention over the keys that each query may see",
    "Gu et al. 2024",
    low=0,
    high=1,
)
_SINK_VALUE_NORM = Metric(
    "sink_value_norm",
    "Value norm at the most attended key",
    "‖v_k‖ of the key k that receives most attention, over the mean of ‖v_j‖ over all keys; null: a random key",
    "Gu et al. 2024",
    low=0,
)
_MASSIVE_ACTIVATION = Metric(
    "massive_activation",
    "Largest activation over the median",
    "max |x| ÷ median |x| over tokens and features of the residual stream after the block; null: Gaussian activations",
    "Sun et al. 2024",
    low=1,
)


@checked_tensors
def massive_activation(
    stream: Float[Tensor, "*batch token width"], real: Bool[Tensor, "*batch token"]
) -> Float[Tensor, "*batch"]:
    """Return max |x| ÷ median |x| over real tokens and features, in float64 (Sun et al. 2024).

    NaN where the median is 0 or a value is not finite.
    """
    size = stream.double().abs().masked_fill(~real[..., None], math.nan).flatten(-2)
    finite = (torch.isfinite(stream) | ~real[..., None]).flatten(-2).all(-1)
    median = size.nanmedian(-1).values
    return torch.where(finite & (median > 0), size.nan_to_num(-1).amax(-1) / median, torch.nan)


def gaussian_ratios(count: int, samples: int, source: torch.Generator) -> Float[Tensor, " sample"]:
    """Return samples of max |x| ÷ median |x| of ``count`` Gaussian activations (Sun et al. 2024 compare with these).

    The maximum has the exact distribution, by inversion; the median is that of the distribution.
    """
    above = -torch.expm1(torch.rand(samples, dtype=torch.float64, generator=source).log() / count)
    return -torch.special.ndtri(above / 2) / MEDIAN


def measure(layer: Layer, options: Options) -> Iterator[Measurement]:
    """Measure sinks and their values head by head, and the largest activation of the stream after the block."""
    need_token_attention(layer)
    attention = layer_attention(layer, options.method)
    layer.count_tiled(isinstance(attention, Operands))
    asking = layer.real_queries(attention[0], attention.shape[3])
    reduced = attention.reduced(Received(asking))
    report_broken(layer, reduced)
    real = (
        torch.ones(reduced.total.shape[0], reduced.total.shape[2], dtype=torch.bool)
        if asking is None
        else asking
    )
    real = real.to(reduced.total.device)
    undefined = (reduced.faulty & real[:, None]).any(-1)
    received = reduced["received"]
    shares = [sums / real.sum(-1)[:, None, None] for sums in received]
    largest, key = shares[0].max(-1)

    def rate(share: Tensor) -> Tensor:
        return layer.per_input((share > options.epsilon).double().masked_fill(undefined, math.nan))

    uniform = Null.at(rate(shares[1].amax(-1)))
    columns = layer.window_column | {"null": "uniform"}
    yield Measurement(_SINK_RATE, rate(largest), null=uniform, columns=columns)

    v = layer.of_queries(layer.site("v"), layer.total_heads)
    norms = v.double().norm(dim=-1)
    keys = torch.ones_like(norms, dtype=torch.bool)
    keys = keys if attention.keys is None else keys & attention.keys.to(norms.device)[:, None]
    norms = norms.masked_fill(~keys, math.nan)
    norms = norms / norms.nanmean(-1, keepdim=True)
    values = norms.gather(-1, key[..., None])[..., 0].masked_fill(undefined, math.nan)
    low, high = torch.nanquantile(norms, norms.new_tensor([0.025, 0.975]), dim=-1)
    spread = ((norms - 1).square().nansum(-1) / (keys.sum(-1) - 1)).sqrt()
    null = Null(
        torch.ones_like(values), low, high, torch.where(spread > 1e-12, (values - 1) / spread, torch.nan)
    )
    if layer.record.origin is None:
        yield Measurement(_SINK_VALUE_NORM, values, null=null, columns={"null": "permutation"})

    stream = layer.record.resid_post
    if stream is None or stream.ndim != 3 or len(stream) != len(layer.ids):
        return
    mask = layer.real_tokens(stream.shape[1])
    mask = torch.ones(stream.shape[:2], dtype=torch.bool) if mask is None else mask
    ratio = massive_activation(stream, mask.to(stream.device))
    draws = [
        gaussian_ratios(
            int(tokens.sum()) * stream.shape[-1],
            options.null_samples,
            generator(layer.seed, name, layer.index),
        )
        for name, tokens in zip(layer.ids, mask, strict=True)
    ]
    samples = {"gaussian": torch.stack(draws).to(ratio)} if options.null_samples else {}
    yield Measurement(_MASSIVE_ACTIVATION, ratio, ("input",), null_samples=samples)


def findings(frame: pd.DataFrame, options: Options) -> list[str]:
    """Report the share of heads with a sink, the values there, and the layer with the largest activation."""
    rates = frame[frame["metric"] == _SINK_RATE.name]
    sentences = []
    if len(rates):
        sentence = (
            f"{over_inputs(rates).words('.0%')} of the heads give one key more than {options.epsilon:g} of their "
            f"attention ({rates['null_mean'].mean():.0%} would under uniform attention)"
        )
        norms = frame[frame["metric"] == _SINK_VALUE_NORM.name]
        places = ["layer", "head", "input"]
        sinks = norms.merge(rates.loc[rates["value"] == 1, places], on=places)
        if len(sinks):
            sentence += (
                f"; the values there have {sinks['value'].mean():.2f} of the mean norm (a random key: 1)"
            )
        sentences.append(sentence)
    massive = frame[frame["metric"] == _MASSIVE_ACTIVATION.name]
    if massive["value"].notna().any():
        by_layer = massive.groupby("layer")[["value", "null_mean"]].mean()
        layer = by_layer["value"].idxmax()
        null = by_layer.loc[layer, "null_mean"]
        sentences.append(
            f"the largest activation is {by_layer.loc[layer, 'value']:.0f} times the median after layer {layer}"
            + ("" if math.isnan(null) else f" (Gaussian activations: {null:.1f})")
        )
    return sentences


ANALYSIS = Analysis(
    "sinks",
    "Attention sinks: how many heads have one, the values there, massive activations",
    ("v", "mask", "attn"),
    measure,
    (_SINK_RATE, _SINK_VALUE_NORM, _MASSIVE_ACTIVATION),
    Options,
    also=("resid_post",),
    findings=findings,
)
