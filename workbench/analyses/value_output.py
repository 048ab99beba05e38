"""What a head writes: the norm of attention × value × output projection, by link, token and head.

A head adds Σ_j A_ij v_j W_O to the output of its layer at token i. Attention A_ij alone says nothing about the size of
v_j W_O, which is small where a model attends to a token to do nothing (Kobayashi et al. 2020).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from workbench.analyses.attention_map import PairOptions, permuted_heads, rows_of_maps
from workbench.analyses.layer import (
    Layer,
    NotApplicable,
    need_product,
    need_token_attention,
    rows_of_tokens,
    token_attention,
)
from workbench.analyses.reductions import HeadOutput, Received, UniformOutput
from workbench.analyses.registry import Analysis, OfInputs, OfMatrices, RowNull, null_kinds
from workbench.analyses.tiles import Maps, Operands, layer_attention, report_broken
from workbench.core.null_distributions import Null, null_of_draws
from workbench.core.operands import check_finite, checked_tensors
from workbench.core.options import NullSamples
from workbench.frames.estimate import over_inputs, unit_of
from workbench.frames.measurement import Measurement
from workbench.frames.metric import Metric

ATTENTION, _VALUE_OUTPUT = "attention", "value-output"


@dataclass(frozen=True)
class Options(OfInputs):
    """Options of `value-output`."""

    null: RowNull = "uniform"
    null_samples: Annotated[
        NullSamples, "samples of the null of permuted keys, at least 2; 0 leaves it out"
    ] = 4


_VALUE_OUTPUT_NORM = Metric(
    "value_output_norm",
    "Norm of what a head writes",
    "root mean square over queries of ‖Σ_j A_ij v_j W_O‖, over that of all heads of the layer together; null: the same "
    "values under uniform attention over the keys that each query may see, permuted keys, or both",
    "Kobayashi et al. 2020",
    low=0,
)
_VALUE_OUTPUT_SINK = Metric(
    "value_output_sink",
    "Share of the most attended key",
    "share of the key that receives most attention: candidate attention, of Σ_i A_ij; candidate value-output, of "
    "Σ_i ‖A_ij v_j W_O‖; null: uniform attention over the keys that each query may see",
    "Kobayashi et al. 2020",
    low=0,
    high=1,
)


@checked_tensors
def written_norms(
    x: Float[Tensor, "*batch head token head_dim"], weight: Float[Tensor, "head head_dim width"]
) -> Float[Tensor, "*batch head token"]:
    """Return ‖x W_O‖ of values or outputs x of every head, in float64 (Kobayashi et al. 2020).

    The norm comes from the product W_O W_Oᵀ of each head, so that nothing of the model's width is formed. Raises
    `InputError` for NaN or infinite weights.
    """
    check_finite("weight", weight, ("head", "head_dim", "width"))
    factor = weight.double()
    x = x.double()
    return ((x @ (factor @ factor.mT)) * x).sum(-1).clamp_min(0).sqrt()


@checked_tensors
def link_norms(
    attn: Float[Tensor, "*batch head query key"],
    v: Float[Tensor, "*batch head key head_dim"],
    weight: Float[Tensor, "head head_dim width"],
) -> Float[Tensor, "*batch head query key"]:
    """Return ‖A_ij v_j W_O‖ of every link of every head, in float64 (Kobayashi et al. 2020)."""
    return attn.double().abs() * written_norms(v, weight)[..., None, :]


def _head_weight(layer: Layer, head_out: Tensor) -> Float[Tensor, "head head_dim width"]:
    """Return the output projection of the chosen heads."""
    weight = layer.output_projection().weight
    layer.choose_heads(head_out)
    return weight[layer.heads].to(head_out.device)


def _values(layer: Layer) -> Float[Tensor, "batch head key head_dim"]:
    """Return the values that every chosen head reads."""
    return layer.of_queries(layer.site("v"), layer.site("head_out").shape[1])


def measure(layer: Layer, options: Options) -> Iterator[Measurement]:
    """Measure the norm of what every head writes, and the share that its most attended key has in it."""
    need_token_attention(layer)
    all_out = layer.site("head_out")
    attention = layer_attention(layer, options.method)
    weight, v = _head_weight(layer, all_out), _values(layer)
    layer.count_tiled(isinstance(attention, Operands), "without the null of permuted keys")
    asking = layer.real_queries(attention[0], attention.shape[3])
    reduced = attention.reduced(Received(asking), HeadOutput(v), UniformOutput(v))
    report_broken(layer, reduced)
    need_product(layer.choose_heads(all_out), reduced["output"])
    real = (
        reduced.total.new_ones(reduced.total.shape[0], reduced.total.shape[2]) if asking is None else asking
    )
    undefined = (reduced.faulty & real.bool()[:, None]).any(-1)

    layer_size = _layer_size(layer, real)
    nulls = {"uniform": Null.at(_relative(reduced["uniform_output"], weight, real, layer_size, layer))}
    values = _relative(layer.choose_heads(all_out), weight, real, layer_size, layer)
    values = values.masked_fill(layer.per_input(undefined.double()) > 0, math.nan)
    if options.null != "uniform" and options.null_samples and isinstance(attention, Maps):
        draws = _permuted_outputs(layer, attention, v, options.null_samples)
        draws = [_relative(outputs, weight, real, layer_size, layer) for outputs in draws]
        nulls["permutation"] = null_of_draws(values, torch.stack(draws, -1))
    kinds = [kind for kind in null_kinds(options.null) if kind in nulls]
    for kind in kinds or [None]:
        of_null = {} if kind is None else {"null": kind}
        yield Measurement(
            _VALUE_OUTPUT_NORM, values, null=nulls.get(kind or ""), columns=layer.window_column | of_null
        )

    received, norms = reduced["received"], written_norms(v, weight)
    sink = received.attention.argmax(-1, keepdim=True)
    for candidate, size in ((ATTENTION, torch.ones_like(norms)), (_VALUE_OUTPUT, norms)):
        share, uniform = (_share_at(sums * size, sink) for sums in received)
        share = share.masked_fill(undefined, math.nan)
        columns = layer.window_column | {"candidate": candidate, "null": "uniform"}
        yield Measurement(
            _VALUE_OUTPUT_SINK,
            layer.per_input(share),
            null=Null.at(layer.per_input(uniform)),
            columns=columns,
        )


def _share_at(received: Tensor, key: Tensor) -> Float[Tensor, "batch head"]:
    """Return the share of one key in what all keys of a head receive."""
    return received.gather(-1, key)[..., 0] / received.sum(-1)


def _layer_size(layer: Layer, real: Bool[Tensor, "batch query"]) -> Float[Tensor, " batch"]:
    """Return the root mean square over real queries of the norm of what all heads of a layer write together."""
    projection = layer.output_projection()
    together = layer.site("proj_out").double()
    if projection.bias is not None:
        together = together - projection.bias.to(together)
    return _root_mean_square(together.norm(dim=-1), real)


def _root_mean_square(norms: Float[Tensor, "*batch query"], real: Tensor) -> Float[Tensor, "*batch"]:
    """Return the root mean square over real queries."""
    real = real.to(norms.device)
    return (torch.where(real.bool(), norms, 0).square().sum(-1) / real.sum(-1)).sqrt()


def _relative(
    outputs: Float[Tensor, "batch head query head_dim"],
    weight: Tensor,
    real: Tensor,
    size: Tensor,
    layer: Layer,
) -> Float[Tensor, "input head"]:
    """Return the norm of what every head writes over that of the layer, mean over the windows of an input."""
    return layer.per_input(_root_mean_square(written_norms(outputs, weight), real[:, None]) / size[:, None])


def _permuted_outputs(
    layer: Layer, attention: Maps, v: Tensor, samples: int
) -> Iterator[Float[Tensor, "batch head query head_dim"]]:
    """Yield the outputs of heads whose weights are permuted among the keys that each query may see."""
    _, heads, queries, keys = attention.shape
    seeds = layer.seeds(len(attention.attn))
    sources = [torch.Generator().manual_seed(seed) for seed in seeds]
    visible = (
        torch.ones(1, 1, queries, keys, dtype=torch.bool)
        if attention.visible is None
        else attention.visible.cpu()
    )
    visible = visible.expand(attention.shape)
    if attention.keys is not None:
        visible = visible & attention.keys.cpu()[:, None, None]
    for _ in range(samples):
        yield torch.stack(
            [
                permuted_heads(maps.double().cpu(), seen, sources[number * heads : (number + 1) * heads])
                @ v[number].double().cpu()
                for number, (maps, seen) in enumerate(zip(attention.attn, visible, strict=True))
            ]
        ).to(v.device)


def token_rows(layer: Layer, options: OfMatrices) -> Iterator[pd.DataFrame]:
    """Yield ‖Σ_j A_ij v_j W_O‖, the norm of what each head writes at each token (Kobayashi et al. 2020)."""
    _need_tokens(layer)
    outputs = layer.site("head_out")
    weight = _head_weight(layer, outputs)
    yield rows_of_tokens(layer, written_norms(layer.choose_heads(outputs), weight), layer.heads)


def pair_rows(layer: Layer, options: PairOptions) -> Iterator[pd.DataFrame]:
    """Yield ‖A_ij v_j W_O‖ of every link (Kobayashi et al. 2020), with the columns of `attention-map` per pair."""
    yield from rows_of_maps(layer, link_norms(*_operands(layer)), options.query)


def key_norms(layer: Layer) -> Float[Tensor, "batch head key"]:
    """Return ‖v_j W_O‖ of the value that every chosen head reads at each key (Kobayashi et al. 2020), in float64.

    Raises `NotApplicable` where the outputs of heads are not attention times values, or no linear layer reads them.
    """
    _, v, weight = _operands(layer)
    return written_norms(v, weight)


def _operands(
    layer: Layer,
) -> tuple[
    Float[Tensor, "batch head query key"],
    Float[Tensor, "batch head key head_dim"],
    Float[Tensor, "head head_dim width"],
]:
    """Return attention, values and output projection of the chosen heads."""
    _need_tokens(layer)
    outputs = layer.site("head_out")
    weight, v = _head_weight(layer, outputs), _values(layer)
    attn = layer.choose_heads(token_attention(layer.record))
    need_product(layer.choose_heads(outputs), attn.to(v.dtype) @ v)
    return attn, v, weight


def _need_tokens(layer: Layer) -> None:
    """Raise `NotApplicable` for layers whose rows are no tokens of an input."""
    need_token_attention(layer)
    if layer.record.origin is not None:
        raise NotApplicable("cuts the image into windows, and each attends within itself")


def findings(frame: pd.DataFrame, options: Options) -> list[str]:
    """Report the share of the most attended key in attention and in what is written, and the largest head."""
    shares = frame[frame["metric"] == _VALUE_OUTPUT_SINK.name]
    sentences = []
    if len(shares):
        attention, written = (
            over_inputs(shares[shares["candidate"] == name]) for name in (ATTENTION, _VALUE_OUTPUT)
        )
        uniform = shares.loc[shares["candidate"] == _VALUE_OUTPUT, "null_mean"].mean()
        sentences.append(
            f"the key that receives most attention has {attention.words('.0%')} of the attention and "
            f"{written.words('.0%')} of what the head writes ({uniform:.0%} under uniform attention), mean over heads "
            f"and {unit_of(written).removeprefix('mean over ')}"
        )
    norms = frame[(frame["metric"] == _VALUE_OUTPUT_NORM.name) & frame["head"].notna()]
    if len(norms):
        by_head = norms.groupby(["layer", "head"])[["value", "null_mean"]].mean()
        layer, head = by_head["value"].idxmax()
        value, null = by_head.loc[(layer, head)]
        sentences.append(
            f"head {head} of layer {layer} writes most, {value:.2f} of its layer's norm ({null:.2f} under the null)"
        )
    return sentences


_SITES = ("v", "mask", "attn", "head_out", "proj_out")
_FINER_TITLE = "Norm of what heads write"
ANALYSIS = Analysis(
    "value-output",
    "What heads write: the norm of attention × value × output projection, and the share of the most attended key",
    _SITES,
    measure,
    (_VALUE_OUTPUT_NORM, _VALUE_OUTPUT_SINK),
    Options,
    findings=findings,
    cross="both",
    finer=(
        Analysis("value-output", _FINER_TITLE, _SITES, token_rows, (), OfMatrices, per="token"),
        Analysis("value-output", _FINER_TITLE, _SITES, pair_rows, (), PairOptions, per="pair", cross="both"),
    ),
)
