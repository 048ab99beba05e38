"""Which part of a model moves a logit: direct contributions of heads, MLPs and embeddings (Elhage et al. 2021).

The residual stream is a sum: embeddings, what each head writes, biases of the output projections, MLPs. With the last
norm frozen at the input, logits are linear in that sum, and each part has its share. A part has no share for what later
layers do with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import nan
from typing import Annotated, Literal, NamedTuple

import pandas as pd
import torch
from annotated_types import Ge
from jaxtyping import Bool, Float, Int
from torch import Tensor

from workbench.analyses.attention_map import rows_of_maps
from workbench.analyses.layer import Layer, NotApplicable, Passes, TwoOutcomes, need_product, token_attention
from workbench.analyses.registry import Analysis, OfInputs, OfMatrices, runs_again
from workbench.core.errors import InputError
from workbench.core.intervals import interval_words
from workbench.core.null_distributions import generator
from workbench.core.operands import checked_tensors
from workbench.core.options import NullSamples
from workbench.frames.estimate import over_inputs
from workbench.frames.measurement import Measurement
from workbench.frames.metric import Metric

HEAD, BIAS, MLP, EMBEDDING, _READOUT, _TOTAL = (
    "head",
    "output bias",
    "MLP",
    "embedding",
    "readout bias",
    "total",
)
_SAME = 1e-3


Target = Annotated[
    Literal["predicted", "right"] | TwoOutcomes,
    "predicted (the largest logit), right (the class of the image, the next token of the text), or a logit "
    "difference by name, as Mary/John (of texts at the last token)",
]


@dataclass(frozen=True)
class Options(OfInputs):
    """Which logit."""

    target: Target = "predicted"
    null_samples: Annotated[
        NullSamples, "random outcomes in place of the target, at least 2; 0 leaves the null out"
    ] = 20


@dataclass(frozen=True)
class PairOptions(OfMatrices):
    """Which logit, and which queries to show pair by pair."""

    target: Target = "predicted"
    query: Annotated[Annotated[int, Ge(0)] | None, "only this token as the query; none: all of them"] = None


_LOGIT_ATTRIBUTION = Metric(
    "logit_attribution",
    "Direct contribution to the logit",
    "x · g of a part x of the residual stream: its share in the target's logit less the mean of all logits, or less "
    "that of a second named outcome, with the last norm frozen, mean over tokens that predict; column candidate: head, "
    "output bias (of attention), MLP, and in layer 0 embedding, readout bias (of the last norm and linear layer) and "
    "total, the sum of all parts of all layers; null: random other outcomes as the target",
    "Elhage et al. 2021",
)


@checked_tensors
def head_contributions(
    head_out: Float[Tensor, "*batch head token head_dim"],
    weight: Float[Tensor, "head head_dim width"],
    direction: Float[Tensor, "*batch token width"],
) -> Float[Tensor, "*batch head token"]:
    """Return z W_O · g of the output z of every head at every token, in float64 (Elhage et al. 2021)."""
    read = direction[..., None, :, :].double() @ weight.double().mT
    return (head_out.double() * read).sum(-1)


@checked_tensors
def link_contributions(
    attn: Float[Tensor, "*batch head query key"],
    v: Float[Tensor, "*batch head key head_dim"],
    weight: Float[Tensor, "head head_dim width"],
    direction: Float[Tensor, "*batch query width"],
) -> Float[Tensor, "*batch head query key"]:
    """Return A_ij v_j W_O · g_i of every link of every head, in float64 (Elhage et al. 2021).

    Summed over keys they are `head_contributions`.
    """
    read = direction[..., None, :, :].double() @ weight.double().mT
    return attn.double() * (read @ v.double().mT)


class _Target(NamedTuple):
    """The outcome that every token predicts, and the tokens that predict one."""

    outcome: Int[Tensor, "batch token"]
    distance: int | None
    """From the first of two named outcomes to the second; None for one outcome over the mean of all."""
    predicts: Bool[Tensor, "batch token"]

    def weights(
        self,
        outcome: Int[Tensor, "batch token"],
        share: Float[Tensor, "batch token"],
        logits: Float[Tensor, "batch ... outcome"],
    ) -> Float[Tensor, "batch token outcome"]:
        """Return the weights of logits that make an outcome less the mean, or less the other outcome."""
        count = logits.shape[-1]

        def one_hot(outcome: Tensor) -> Tensor:
            return torch.nn.functional.one_hot(outcome, count).double()

        less = 1 / count if self.distance is None else one_hot((outcome + self.distance) % count)
        return ((one_hot(outcome) - less) * share[..., None]).to(logits.device)


def _target(layer: Layer, passes: Passes, target_name: str) -> _Target:
    """Return the outcome that an option names, at every token."""
    logits, readout = passes.logits, passes.readout
    batch, tokens, _ = readout.stream.shape
    real = layer.real_tokens(tokens)
    counted = torch.ones(batch, tokens, dtype=torch.bool) if real is None else real.cpu().clone()
    if readout.token is not None:
        counted[:] = False
        counted[:, readout.token] = True
    target = logits.argmax(-1).cpu()
    target = target if target.ndim == 2 else target[:, None].expand(batch, tokens)
    distance = None  # from the first of two named outcomes to the second
    if "/" in target_name:
        first, second = passes.two_outcomes(target_name)
        target, distance = torch.full_like(target, first), second - first
        counted &= torch.arange(tokens) == (counted * torch.arange(tokens)).argmax(-1, keepdim=True)
    if target_name == "right":
        target = passes.targets
        if target is None:
            raise InputError("the right outcomes are not known; give target='predicted'")
        target = target.cpu()
        if readout.token is None:
            target = torch.cat([target[:, 1:], target[:, :1]], 1)
            counted[:, :-1] &= counted[:, 1:].clone()
            counted[:, -1] = False
        else:
            target = target[:, None].expand(batch, tokens)
    return _Target(target, distance, counted)


def _outcomes(layer: Layer, passes: Passes, options: Options) -> list[Float[Tensor, "batch token outcome"]]:
    """Return the weights of logits that make the target, then random ones.

    Divided by the number of tokens of an input that predict, so that sums over tokens are means.
    """
    logits, target = passes.logits, _target(layer, passes, options.target)
    count, tokens = logits.shape[-1], target.outcome.shape[1]
    share = target.predicts / target.predicts.sum(-1, keepdim=True)
    draws = [generator(layer.seed, name) for name in layer.ids]
    others = [
        torch.stack([torch.randint(1, count, (tokens,), generator=draw) for draw in draws])
        for _ in range(options.null_samples)
    ]
    outcomes = (target.outcome, *[(target.outcome + other) % count for other in others])
    return [target.weights(outcome, share, logits) for outcome in outcomes]


def _need_sum(layer: Layer) -> None:
    """Raise `NotApplicable` where the stream after attention is not the stream before it plus what heads write."""
    before, written = layer.site("resid_pre"), layer.site("proj_out")
    after = layer.site("resid_mid")
    previous = [record.resid_post for record in layer.before if record.index == layer.index - 1]
    if before.shape != written.shape or (before + written - after).abs().max() > _SAME * after.abs().max():
        raise NotApplicable("scales or normalises what its heads write")
    if any(
        (stream - before).abs().max() > _SAME * before.abs().max()
        for stream in previous
        if stream is not None
    ):
        raise NotApplicable("does not read the stream that the layer before it returns")


def measure(layer: Layer, options: Options) -> Iterator[Measurement]:
    """Measure what every head, the output bias and the MLP of a layer add to the target's logit."""
    passes = layer.need_passes()
    readout = passes.readout
    head_out, stream = layer.site("head_out"), layer.site("resid_mid")
    projection = layer.output_projection()
    _need_sum(layer)
    layer.choose_heads(head_out)
    heads = layer.heads
    outcomes = _outcomes(layer, passes, options)
    directions = [readout.direction(outcome) for outcome in outcomes]

    def part(x: Tensor) -> Tensor:
        return torch.stack([(x.double() * g).sum((-2, -1)) for g in directions], -1)

    by_head = torch.stack(
        [head_contributions(head_out[:, heads], projection.weight[heads], g).sum(-1) for g in directions],
        -1,
    )
    yield _measurement(HEAD, by_head, ("input", "head"))
    parts = {MLP: part(layer.site("resid_post") - stream)}
    if projection.bias is not None:
        parts[BIAS] = part(projection.bias.expand_as(stream))
    if layer.index == 0:
        parts[EMBEDDING] = part(layer.site("resid_pre"))
        bias = readout.bias.double()
        parts[_READOUT] = torch.stack([(outcome @ bias).sum(-1) for outcome in outcomes], -1)
        logits = passes.logits.double()
        logits = logits if logits.ndim == 3 else logits[:, None]
        parts[_TOTAL] = torch.stack([(outcome * logits).sum((-2, -1)) for outcome in outcomes], -1)
    for name, values in parts.items():
        yield _measurement(name, values, ("input",))


def _measurement(name: str, values: Tensor, axes: tuple[str, ...]) -> Measurement:
    """Return the measurement of a part: the target first, then the null samples, along the last axis."""
    samples = {"outcomes": values[..., 1:]} if values.shape[-1] > 1 else {}
    return Measurement(
        _LOGIT_ATTRIBUTION, values[..., 0], axes, columns={"candidate": name}, null_samples=samples
    )


def pair_rows(layer: Layer, options: PairOptions) -> Iterator[pd.DataFrame]:
    """Yield A_ij v_j W_O · g_i, what every link adds to the logit at its query, with the columns of `attention-map`.

    Zero at queries that predict nothing.
    """
    passes = layer.need_passes()
    outputs = layer.site("head_out")
    projection = layer.output_projection()
    _need_sum(layer)
    attn = layer.choose_heads(token_attention(layer.record))
    v = layer.of_queries(layer.site("v"), outputs.shape[1])
    need_product(layer.choose_heads(outputs), attn.to(v.dtype) @ v)
    target = _target(layer, passes, options.target)
    weights = target.weights(target.outcome, target.predicts.double(), passes.logits)
    direction = passes.readout.direction(weights)
    links = link_contributions(attn, v, projection.weight[layer.heads], direction)
    yield from rows_of_maps(layer, links, options.query)


def findings(frame: pd.DataFrame, options: Options) -> list[str]:
    """Report the logit and the head that adds most to it."""
    total = frame[frame["candidate"] == _TOTAL]
    heads = frame[frame["candidate"] == HEAD]
    if total.empty or heads.empty:
        return []
    by_head = heads.groupby(["layer", "head"])[["value", "null_mean", "null_high"]].mean()
    layer, head = by_head["value"].idxmax()
    chosen = heads[(heads["layer"] == layer) & (heads["head"] == head)]
    value = interval_words(*over_inputs(total)[:3])
    logit = f"logit of the {options.target} outcome {value} over the mean of all logits"
    if "/" in options.target:
        logit = f"logit of {options.target.replace('/', ' less that of ')} {value}"
    sentence = f"{logit}; head {head} of layer {layer} adds most, {interval_words(*over_inputs(chosen)[:3])}"
    null = by_head.loc[(layer, head), "null_mean"]
    if pd.notna(null):
        above = int((by_head["value"] > by_head["null_high"]).sum())
        sentence += (
            f", {interval_words(null, nan, nan)} to random outcomes; {above} of {len(by_head)} heads are "
            "above the null's upper end"
        )
    return [sentence]


_SITES = ("head_out", "proj_out", "resid_pre", "resid_mid", "resid_post")
ANALYSIS = Analysis(
    "logit-attribution",
    "Which part moves the logit: direct contributions of heads, MLPs and embeddings",
    _SITES,
    measure,
    (_LOGIT_ATTRIBUTION,),
    Options,
    together=runs_again,
    findings=findings,
    finer=(
        Analysis(
            "logit-attribution",
            "Which link moves the logit: direct contributions of attention from key to query",
            ("v", "mask", "attn", *_SITES),
            pair_rows,
            (),
            PairOptions,
            together=runs_again,
            per="pair",
        ),
    ),
)
