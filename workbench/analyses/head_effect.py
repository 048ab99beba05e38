"""What a model predicts without a head: every head switched off in turn (Michel et al. 2019).

The model runs again for each head, with the output of that head replaced and all else computed as usual. The null adds
a random direction of the same norm to the outputs of all heads of the layer: an effect that is no larger says that the
layer is sensitive, not that this head matters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Literal, NamedTuple

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from workbench.analyses.class_attention import is_causal
from workbench.analyses.layer import Layer, NotApplicable, Passes, need_token_attention
from workbench.analyses.reductions import UniformOutput
from workbench.analyses.registry import Analysis, OfInputs, runs_again
from workbench.analyses.tiles import layer_attention
from workbench.core.errors import InputError
from workbench.core.null_distributions import generator
from workbench.core.operands import checked_tensors
from workbench.core.options import NullSamples
from workbench.frames.estimate import over_inputs
from workbench.frames.measurement import Measurement
from workbench.frames.metric import Metric

Mode = Literal["zero", "mean", "uniform", "resample"]


@dataclass(frozen=True)
class Options(OfInputs):
    """How heads are switched off."""

    mode: Annotated[
        Mode,
        "output that replaces the head's: zero; mean (over the tokens of the input); uniform (of uniform attention to "
        "the keys that a query may see); resample (its outputs at the other tokens of the input, permuted)",
    ] = "mean"
    together: Annotated[
        bool,
        "switch the chosen heads of a layer off together (see the setting heads), beside random sets of as many heads "
        "of the layer",
    ] = False
    null_samples: Annotated[
        NullSamples,
        "random directions or sets of heads, each of which is another pass of the model, at least 2; 0 leaves the null "
        "out",
    ] = 2


_PREDICTS_NOTHING = "is of a model that predicts neither classes nor the next of its tokens"
_NULL = (
    "null: a random direction of the same norm in the outputs of all heads of the layer; of several heads together, "
    "random sets of as many heads"
)
_HEAD_EFFECT_LOSS = Metric(
    "head_effect_loss",
    "Rise of the loss without the head",
    f"cross entropy of the right class or next token without the head, less that with it; {_NULL}",
    "Michel et al. 2019",
    unit="nats",
)
_HEAD_EFFECT_DIVERGENCE = Metric(
    "head_effect_divergence",
    "Change of the prediction without the head",
    f"Kullback–Leibler divergence of the prediction without the head from that with it; {_NULL}",
    "Michel et al. 2019",
    unit="nats",
    low=0,
)
_HEAD_EFFECT_MARGIN = Metric(
    "head_effect_margin",
    "Fall of the logit difference without the head",
    "logit of the right class or next token less the largest other logit, with the head, less the same without it; "
    + _NULL,
    "Michel et al. 2019",
)
_HEAD_EFFECT_ACCURACY = Metric(
    "head_effect_accuracy",
    "Fall of the accuracy without the head",
    f"share of right predictions with the head, less that without it; {_NULL}",
    "Michel et al. 2019",
    low=-1,
    high=1,
)
METRICS = (_HEAD_EFFECT_LOSS, _HEAD_EFFECT_DIVERGENCE, _HEAD_EFFECT_MARGIN, _HEAD_EFFECT_ACCURACY)


class PredictionChange(NamedTuple):
    """How a prediction changes, each (*batch,), float64; see `METRICS`. All but divergence are NaN without a target."""

    loss: Tensor
    divergence: Tensor
    margin: Tensor
    accuracy: Tensor


@checked_tensors
def prediction_change(
    before: Float[Tensor, "*batch outcome"],
    after: Float[Tensor, "*batch outcome"],
    target: Int[Tensor, "*batch"],
) -> PredictionChange:
    """Return what replacing logits ``before`` by ``after`` does to a prediction (Michel et al. 2019).

    ``target`` is the right outcome, −1 where it is not known. Raises `InputError` for axes that do not fit.
    """
    return _change(_Outcome.of(before, target), _Outcome.of(after, target), target)


@dataclass
class _Outcome:
    """What logits say of a target: log-probabilities of all outcomes, loss and margin of the right one, float64."""

    likely: Float[Tensor, "*batch outcome"]
    loss: Float[Tensor, "*batch"]
    margin: Float[Tensor, "*batch"]

    @classmethod
    def of(cls, logits: Float[Tensor, "*batch outcome"], target: Int[Tensor, "*batch"]) -> _Outcome:
        """Compute the outcome of logits."""
        logits = logits.to(torch.float64, copy=True)
        index = target.clamp_min(0).to(logits.device)[..., None]
        likely, right = logits.log_softmax(-1), logits.gather(-1, index)[..., 0]
        others = logits.scatter_(-1, index, -torch.inf).amax(-1)
        return cls(likely, -likely.gather(-1, index)[..., 0], right - others)

    @cached_property
    def probability(self) -> Float[Tensor, "*batch outcome"]:
        """The probability of each outcome."""
        return self.likely.exp()


def _change(before: _Outcome, after: _Outcome, target: Int[Tensor, "*batch"]) -> PredictionChange:
    """Return the change between two outcomes."""
    terms = (before.likely - after.likely).mul_(before.probability)
    divergence = terms.sum(-1).clamp_min(0)  # below 0 only by rounding
    right = (before.margin > 0).double() - (after.margin > 0).double()
    changes = after.loss - before.loss, before.margin - after.margin, right
    known = (target >= 0).to(divergence.device)
    of_target = [torch.where(known, change, torch.nan) for change in changes]
    return PredictionChange(of_target[0], divergence, *of_target[1:])


@checked_tensors
def switched_off(
    head_out: Float[Tensor, "batch head token head_dim"],
    mode: Mode,
    real: Bool[Tensor, "batch token"],
    orders: list[Int[Tensor, " token"]] | None = None,
) -> Float[Tensor, "batch head token head_dim"]:
    """Return the outputs of heads that are switched off without running the model (Michel et al. 2019).

    Means and ``orders``, the permutations of "resample", are those of ``real`` tokens. Raises `InputError` for
    "uniform", which needs the values.
    """
    if mode == "zero":
        return torch.zeros_like(head_out)
    if mode == "mean":
        weight = (real / real.sum(-1, keepdim=True)).to(head_out)
        return torch.einsum("bt,bhtd->bhd", weight, head_out)[:, :, None].expand_as(head_out)
    if mode == "uniform" or orders is None:
        raise InputError(f"mode {mode!r} needs more than the outputs of heads; give zero or mean, or orders")
    permuted = head_out.clone()
    for outputs, source, mask, order in zip(permuted, head_out, real, orders, strict=True):
        tokens = mask.nonzero()[:, 0]
        outputs[:, tokens] = source[:, tokens[order.to(tokens.device)]]
    return permuted


_ENTRIES = 1 << 20
"""Logits that are compared at a time: few enough that their copies stay in the processor's cache."""


class _Predictions:
    """The predictions of a batch at the positions that count, to compare those of further passes with."""

    def __init__(
        self,
        logits: Tensor,
        target: Int[Tensor, "batch position"],
        counted: Bool[Tensor, "batch position"],
    ) -> None:
        self.of_tokens = logits.ndim == 3
        self.counted = counted.to(logits.device)
        rows = max(1, _ENTRIES // logits.shape[-1])
        self.positions = [*self.counted.nonzero().split(rows)]
        self.targets = [*target[counted].split(rows)]
        self.before = [*self.outcomes(logits)]

    def outcomes(self, logits: Tensor) -> Iterator[_Outcome]:
        """Compute outcomes at some of the counted positions at a time."""
        logits = logits if self.of_tokens else logits[:, None]
        for position, target in zip(self.positions, self.targets, strict=True):
            yield _Outcome.of(logits[position[:, 0], position[:, 1]], target)

    def change(self, logits: Tensor) -> PredictionChange:
        """Return the change of every input's prediction, mean over its positions."""
        parts = [
            torch.stack(_change(before, after, target))
            for before, after, target in zip(self.before, self.outcomes(logits), self.targets, strict=True)
        ]
        changes = torch.full((4, *self.counted.shape), torch.nan, dtype=torch.float64, device=logits.device)
        changes[:, self.counted] = torch.cat(parts, 1)
        return PredictionChange(*changes.nanmean(-1))


def _predictions(layer: Layer, passes: Passes, real: Bool[Tensor, "batch token"]) -> _Predictions:
    """Return where and what a model predicts: a class for each input, or the next token at each token."""
    targets, batch = passes.targets, len(real)
    if passes.logits.ndim == 2:
        known = targets is not None and targets.ndim == 1
        target = targets[:, None] if known else torch.full((batch, 1), -1)
        return _Predictions(passes.logits, target, torch.ones(batch, 1, dtype=torch.bool))
    need_next_tokens(layer, passes, real)
    if targets is None or targets.ndim != 2:
        raise NotApplicable(_PREDICTS_NOTHING)
    return _Predictions(passes.logits, targets[:, 1:].to(real.device), real[:, 1:] & real[:, :-1])


def need_next_tokens(layer: Layer, passes: Passes, real: Bool[Tensor, "batch token"]) -> None:
    """Raise `NotApplicable` where logits (batch, token, vocabulary) are not those of the next token."""
    attn = layer.record.attn
    causal = layer.record.causal if attn is None else is_causal(attn, real)
    if not causal or passes.logits.shape[1] != real.shape[1]:
        raise NotApplicable(_PREDICTS_NOTHING)


def real_outputs(
    layer: Layer, head_out: Float[Tensor, "batch head token head_dim"]
) -> Bool[Tensor, "batch token"]:
    """Return which tokens of the outputs of heads are real, on the CPU."""
    batch, _, tokens, _ = head_out.shape
    real = layer.real_tokens(tokens)
    return torch.ones(batch, tokens, dtype=torch.bool) if real is None else real.cpu()


def _off(layer: Layer, options: Options, real: Bool[Tensor, "batch token"]) -> Tensor:
    """Return the outputs of all heads of a layer as they are when switched off."""
    head_out = layer.site("head_out")
    if options.mode == "uniform":
        every = replace(layer, chosen_heads=None)
        return (
            layer_attention(every, options.method)
            .reduced(UniformOutput(layer.site("v")))["uniform_output"]
            .to(head_out)
        )
    orders = [
        torch.randperm(int(mask.sum()), generator=generator(layer.seed, name, layer.index, "resample"))
        for name, mask in zip(layer.ids, real, strict=True)
    ]
    return switched_off(head_out, options.mode, real.to(head_out.device), orders)


def random_directions(
    layer: Layer,
    like: Float[Tensor, "batch head token head_dim"],
    real: Bool[Tensor, "batch token"],
    head: int,
    sample: int,
) -> Float[Tensor, "batch head token head_dim"]:
    """Return random directions in outputs of heads, of length 1 over all of them at every real token."""
    noise = torch.zeros(like.shape)
    _, heads, _, size = like.shape
    for row, name, mask in zip(noise, layer.ids, real, strict=True):
        source = generator(layer.seed, name, layer.index, head, sample)
        drawn = torch.randn(int(mask.sum()), heads, size, generator=source)
        row[:, mask] = (drawn / drawn.flatten(1).norm(dim=-1)[:, None, None]).transpose(0, 1)
    return noise.to(like)


def measure(layer: Layer, options: Options) -> Iterator[Measurement]:
    """Measure how the prediction changes without every head, beside random directions of the same norm."""
    need_token_attention(layer)
    passes = layer.need_passes()
    head_out = layer.site("head_out")
    layer.choose_heads(head_out)
    real = real_outputs(layer, head_out)
    predictions = _predictions(layer, passes, real)
    off = _off(layer, options, real)
    if options.together:
        yield from _of_sets(layer, options, off, predictions)
        return

    changes, draws = [], []
    for head in layer.heads:
        after = passes.run({(layer.index, head): off[:, head]})
        changes.append(predictions.change(after))
        size = (off[:, head] - head_out[:, head]).norm(dim=-1)[:, None, :, None]
        of_head = []
        for sample in range(options.null_samples):
            outputs = head_out + size * random_directions(layer, head_out, real, head, sample)
            after = passes.run(
                {(layer.index, other): outputs[:, other] for other in range(head_out.shape[1])}
            )
            of_head.append(torch.stack(predictions.change(after)))
        if of_head:
            draws.append(torch.stack(of_head, -1))
    for number, metric in enumerate(METRICS):
        values = torch.stack([change[number] for change in changes], 1)
        if not values.isnan().all():
            drawn = {"isotropic": torch.stack([of_head[number] for of_head in draws], 1)} if draws else {}
            yield Measurement(metric, values, null_samples=drawn)


def _of_sets(layer: Layer, options: Options, off: Tensor, predictions: _Predictions) -> Iterator[Measurement]:
    """Measure the change without all chosen heads of a layer, beside random sets of as many of its heads."""
    passes, chosen, total = layer.need_passes(), layer.heads, off.shape[1]

    def change(heads: Sequence[int]) -> Tensor:
        return torch.stack(
            predictions.change(passes.run({(layer.index, head): off[:, head] for head in heads}))
        )

    source = generator(layer.seed, layer.index, *chosen)
    sets = [torch.randperm(total, generator=source)[: len(chosen)].sort().values for _ in range(64)]
    others = [heads.tolist() for heads in sets if heads.tolist() != chosen][: options.null_samples]
    alone = len(chosen) == total
    layer.counts.add(
        "layers have no other set of as many heads: no null",
        torch.tensor(alone and options.null_samples > 0),
    )
    values = change(chosen)
    drawn = [change(heads) for heads in others]
    for number, metric in enumerate(METRICS):
        if not values[number].isnan().all():
            samples = {"heads": torch.stack([draw[number] for draw in drawn], -1)} if drawn else {}
            yield Measurement(metric, values[number], ("input",), null_samples=samples)


def findings(frame: pd.DataFrame, options: Options) -> list[str]:
    """Report the head with the largest effect, or the layer, and how many heads exceed random directions."""
    sentences = []
    for metric in (_HEAD_EFFECT_LOSS, _HEAD_EFFECT_DIVERGENCE, _HEAD_EFFECT_ACCURACY):
        rows = frame[(frame["metric"] == metric.name) & (frame["head"].notna() | options.together)]
        if rows.empty:
            continue
        if options.together:
            sentences.append(_sentence_of_sets(rows, metric, options))
            continue
        by_head = rows.groupby(["layer", "head"])[["value", "null_mean", "null_high"]].mean()
        layer, head = by_head["value"].idxmax()
        chosen = rows[(rows["layer"] == layer) & (rows["head"] == head)]
        unit = " nats" if metric.unit else ""
        sentence = (
            f"{metric.label[0].lower()}{metric.label[1:]} ({options.mode}): largest for head {head} of layer {layer}, "
            f"{over_inputs(chosen).words('.3f')}{unit}"
        )
        if by_head["null_mean"].notna().any():
            above = int((by_head["value"] > by_head["null_high"]).sum())
            sentence += (
                f", {by_head.loc[(layer, head), 'null_mean']:z.3f} for random directions of the same norm; {above} of "
                f"{len(by_head)} heads are above the null's upper end"
            )
        sentences.append(sentence)
    return sentences


def _sentence_of_sets(rows: pd.DataFrame, metric: Metric, options: Options) -> str:
    """Report the layer whose chosen heads have the largest effect together."""
    layer = rows.groupby("layer")["value"].mean().idxmax()
    chosen = rows[rows["layer"] == layer]
    unit = " nats" if metric.unit else ""
    null = chosen["null_mean"].mean()
    return (
        f"{metric.label[0].lower()}{metric.label[1:]} ({options.mode}): the chosen heads together matter most in layer "
        f"{layer}, {over_inputs(chosen).words('.3f')}{unit}"
        + ("" if pd.isna(null) else f", {null:.3f} for random sets of as many heads")
    )


ANALYSIS = Analysis(
    "head-effect",
    "What the model predicts without each head: loss, divergence, logit difference, accuracy",
    ("v", "mask", "attn", "head_out"),
    measure,
    METRICS,
    Options,
    together=runs_again,
    findings=findings,
)
