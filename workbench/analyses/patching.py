"""Which head carries the difference of two inputs: activation patching (Wang et al. 2023).

Inputs are pairs, a clean and a corrupted one in turn. Each is run again with the output of one head taken from the
other input of its pair: the corrupted input is denoised, the clean one noised. A pair is one sample: its value is the
mean of both directions. Attribution patching (Nanda 2023) estimates the same from one gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from workbench.analyses.head_effect import need_next_tokens, random_directions, real_outputs
from workbench.analyses.layer import Layer, Passes, TwoOutcomes, need_token_attention, rows_of_tokens
from workbench.analyses.registry import Analysis, OfInputs, OfMatrices, runs_again
from workbench.core.errors import InputError
from workbench.core.options import NullSamples
from workbench.frames.estimate import over_inputs
from workbench.frames.measurement import Measurement
from workbench.frames.metric import Metric

Target = Annotated[
    Literal["predicted", "right"] | TwoOutcomes,
    "the outcomes of a pair: predicted (the largest logit of each input; of texts at the last token), right (the class "
    "of each image; the last token of each text, predicted from the one before), or two by name, as Mary/John (of "
    "texts at the last token)",
]


@dataclass(frozen=True)
class Options(OfInputs):
    """Which logits are compared."""

    target: Target = "predicted"
    direction: Annotated[
        Literal["both", "denoising", "noising"],
        "denoising (the corrupted input with heads of the clean one), noising (the reverse), or the mean of both",
    ] = "both"
    null: Annotated[
        Literal["isotropic", "others"],
        "null distribution: isotropic (the head's outputs moved as far in a random direction) or others (the head's "
        "outputs for inputs of the next pairs of the batch with as many tokens)",
    ] = "isotropic"
    null_samples: Annotated[
        NullSamples,
        "null samples per head, each of which is another pass of the model, at least 2; 0 leaves the null out",
    ] = 2


@dataclass(frozen=True)
class TokenOptions(OfMatrices):
    """Which logits are compared, for rows per token."""

    target: Target = "predicted"


_SAME = 1e-5  # relative: two logit differences that differ by rounding only
_NULLS = {"isotropic": "for random directions of the same norm", "others": "with outputs from other pairs"}
_PATCHING_EFFECT = Metric(
    "patching_effect",
    "Normalised effect of patching",
    "share of the way from an input's logit difference to that of the other input of its pair, once the head's outputs "
    "are those of the other input: 0 changes nothing, 1 is all of the way; logit difference of the two outcomes of the "
    "pair; mean of both directions, a row per pair; null: the head's outputs moved as far in a random direction, or "
    "taken from inputs of other pairs",
    "Wang et al. 2023",
    z_samples=10,
)
_PATCHING_ATTRIBUTION = Metric(
    "patching_attribution",
    "Attribution patching",
    "first-order estimate of patching_effect: change of the head's outputs · gradient of the logit difference, over "
    "the same normaliser",
    "Nanda 2023",
)
_PATCHING_BASELINE = Metric(
    "patching_baseline",
    "Logit difference without patching",
    "logit of the clean input's outcome less that of the corrupted input's; column candidate: of the clean, or of the "
    "corrupted input; patching_effect is a share of the way from one to the other",
    "Wang et al. 2023",
)
METRICS = (_PATCHING_EFFECT, _PATCHING_ATTRIBUTION, _PATCHING_BASELINE)


class _Pairs(NamedTuple):
    """The logits that each input of a batch is read by; an input's partner is the other of its pair."""

    position: Int[Tensor, " batch"] | None
    outcome: Int[Tensor, " batch"]
    partner_outcome: Int[Tensor, " batch"]
    distinct: Bool[Tensor, " batch"]
    """Whether both outcomes are known and differ."""

    def difference(self, logits: Float[Tensor, "batch ..."]) -> Float[Tensor, " batch"]:
        """Return the logit of the partner's outcome minus that of its own outcome."""
        at = logits_at(logits, self.position).double()
        outcome, other = (index[:, None].to(at.device) for index in (self.outcome, self.partner_outcome))
        return (at.gather(-1, other) - at.gather(-1, outcome))[:, 0]


def logits_at(
    logits: Float[Tensor, "batch ..."], position: Int[Tensor, " batch"] | None
) -> Float[Tensor, "batch outcome"]:
    """Return the logits at one position of every input; those of a classifier have none."""
    return logits if position is None else logits[torch.arange(len(logits)), position.to(logits.device)]


def _swapped(values: Tensor) -> Tensor:
    """Return the rows of a batch with the two of every pair exchanged."""
    return values.unflatten(0, (-1, 2)).flip(1).flatten(0, 1)


def _pairs(layer: Layer, passes: Passes, real: Bool[Tensor, "batch token"], target: str) -> _Pairs:
    """Return the outcomes of every pair. Raises `InputError` for inputs that are no pairs of equal token counts."""
    batch = len(real)
    if batch % 2:
        raise InputError(
            f"patching takes pairs, a clean and a corrupted input in turn; got a batch of {batch}; give an even number "
            "of inputs and an even batch_size"
        )
    counts = real.sum(-1).tolist()
    for first, name in enumerate(layer.ids[::2]):
        count, other = counts[2 * first : 2 * first + 2]
        if count != other:
            raise InputError(
                f"{name} and {layer.ids[2 * first + 1]} have {count} and {other} tokens; give pairs of equal token "
                "counts"
            )
    logits, position = passes.logits, None
    if logits.ndim == 3:
        need_next_tokens(layer, passes, real)
        last = (real * torch.arange(real.shape[1])).argmax(-1)
        position = last - 1 if target == "right" else last
    if "/" in target:
        outcome = torch.tensor(passes.two_outcomes(target)).repeat(batch // 2)
    elif target == "predicted":
        outcome = logits_at(logits, position).argmax(-1).cpu()
    elif passes.targets is None:
        raise InputError("the right outcomes are not known; give target='predicted'")
    else:
        outcome = (passes.targets if position is None else logits_at(passes.targets, position + 1)).cpu()
    other = _swapped(outcome)
    distinct = (outcome >= 0) & (other >= 0) & (outcome != other)
    return _Pairs(position, outcome.clamp_min(0), other.clamp_min(0), distinct)


class _Patching(NamedTuple):
    """What is patched in a layer, and how the effect is read."""

    head_out: Float[Tensor, "batch head token head_dim"]
    donor: Float[Tensor, "batch head token head_dim"]
    real: Bool[Tensor, "batch token"]
    pairs: _Pairs
    difference: Float[Tensor, " batch"]
    passes: Passes
    layer: int

    def run(self, outputs: Mapping[int, Tensor], grad: bool = False) -> Float[Tensor, " batch"]:
        """Return the logit differences with other outputs of some heads."""
        changes = {(self.layer, head): out for head, out in outputs.items()}
        return self.pairs.difference(self.passes.run(changes, grad=grad))

    @property
    def gap(self) -> Float[Tensor, " batch"]:
        """The gap to the logit difference of the partner, NaN without two outcomes; equal differences have none."""
        partner = -_swapped(self.difference)
        gap = partner - self.difference
        some = self.pairs.distinct.to(gap.device) & (
            gap.abs() > _SAME * (partner.abs() + self.difference.abs())
        )
        return torch.where(some, gap, torch.nan)

    def share(self, change: Float[Tensor, " batch"]) -> Float[Tensor, " batch"]:
        """Return a change of the logit difference as a share of the way to the partner's."""
        return change / self.gap

    def effect(self, head: int, outputs: Tensor) -> Float[Tensor, " batch"]:
        """Return the normalised effect of other outputs of one head."""
        return self.share(self.run({head: outputs}) - self.difference)


def _patching(layer: Layer, target: str) -> _Patching:
    need_token_attention(layer)
    passes = layer.need_passes()
    head_out = layer.site("head_out")
    layer.choose_heads(head_out)
    real = real_outputs(layer, head_out)
    pairs = _pairs(layer, passes, real, target)
    difference = pairs.difference(passes.logits)
    patching = _Patching(head_out, _swapped(head_out), real, pairs, difference, passes, layer.index)
    distinct, none = pairs.distinct[::2], patching.gap.cpu().isnan()[::2]
    layer.counts.add(
        f"pairs, counted per layer, have no value: both inputs have the same outcome (target={target!r}); "
        "target='right' or 'Mary/John' gives two",
        ~distinct,
    )
    layer.counts.add(
        "pairs, counted per layer, have no value: both inputs have the same logit difference; let them differ before "
        "the token that is predicted",
        distinct & none,
    )
    return patching


def _gradients(patching: _Patching, heads: list[int]) -> Float[Tensor, "batch head token head_dim"]:
    """Return the gradient of each input's logit difference in the outputs of heads."""
    outputs = {head: patching.head_out[:, head].detach().clone().requires_grad_() for head in heads}
    with torch.enable_grad():
        difference = patching.run(outputs, grad=True).sum()
        return torch.stack(torch.autograd.grad(difference, [*outputs.values()]), 1)


def _null_effects(layer: Layer, patching: _Patching, options: Options) -> Float[Tensor, "batch head sample"]:
    """Return the effect of outputs that do not come from the other input of the pair."""
    head_out, batch = patching.head_out, len(patching.real)
    counts = patching.real.sum(-1)

    def effect(head: int, sample: int) -> Tensor:
        if options.null == "isotropic":
            size = (patching.donor[:, head] - head_out[:, head]).norm(dim=-1, keepdim=True)
            noise = random_directions(layer, head_out[:, [head]], patching.real, head, sample)[:, 0]
            return patching.effect(head, head_out[:, head] + size * noise)
        rows = torch.arange(batch).roll(2 * (sample + 1))
        unrelated = (rows != torch.arange(batch)) & (counts[rows] == counts)
        outputs = head_out[rows.to(head_out.device), head]
        return patching.effect(head, outputs).masked_fill(~unrelated.to(head_out.device), torch.nan)

    samples = [
        torch.stack([effect(head, n) for n in range(options.null_samples)], -1) for head in layer.heads
    ]
    effects = torch.stack(samples, 1)
    if options.null == "others":
        lacking = effects[::2, 0].isnan().any(-1) & ~patching.gap[::2].isnan()
        layer.counts.add(
            f"pairs, counted per layer, have no null: null='others' needs {options.null_samples} other pairs with as "
            "many tokens in a batch",
            lacking,
        )
    return effects


def measure(layer: Layer, options: Options) -> Iterator[Measurement]:
    """Measure the effect of every head's outputs on the other input of its pair, and its estimate by gradient."""
    patching = _patching(layer, options.target)
    donor, names = patching.donor, tuple(layer.ids[::2])

    def of_pairs(values: Tensor) -> Tensor:
        noising, denoising = values[::2], values[1::2]
        return {"both": (noising + denoising) / 2, "noising": noising, "denoising": denoising}[
            options.direction
        ]

    effects = torch.stack([patching.effect(head, donor[:, head]) for head in layer.heads], 1)
    null_samples: dict[str, Tensor] = {}
    if options.null_samples:
        null_effects = of_pairs(_null_effects(layer, patching, options))
        null_samples[options.null] = null_effects
        layer.counts.add(
            "pairs, counted per layer, have logit differences so close that a null change of one head moves one to the "
            "other, or farther: their effects are large by chance",
            (null_effects.abs() >= 1).any((1, 2)),
        )
    if not layer.before:  # of the pairs, and so the same for every layer
        baselines = {"clean": -patching.difference[::2], "corrupted": patching.difference[1::2]}
        for name, values in baselines.items():
            measured = values.where(patching.pairs.distinct[::2].to(values.device), torch.nan)
            columns = {"candidate": name}
            yield Measurement(
                _PATCHING_BASELINE, measured, ("input",), columns=columns, form="across", inputs=names
            )
    yield Measurement(_PATCHING_EFFECT, of_pairs(effects), null_samples=null_samples, inputs=names)

    gradients = _gradients(patching, layer.heads).double()
    moved = ((donor - patching.head_out)[:, layer.heads].double() * gradients).sum((-2, -1))
    estimates = torch.stack([patching.share(row) for row in moved.unbind(1)], 1)
    yield Measurement(_PATCHING_ATTRIBUTION, of_pairs(estimates), inputs=names)


def token_rows(layer: Layer, options: TokenOptions) -> Iterator[pd.DataFrame]:
    """Yield the effect of every head's output at every single token, by the input that runs."""
    patching = _patching(layer, options.target)
    of_heads = []
    for head in layer.heads:
        head_out, of_tokens = patching.head_out[:, head], []
        for token in range(head_out.shape[1]):
            outputs = head_out.clone()
            outputs[:, token] = patching.donor[:, head, token]
            of_tokens.append(patching.effect(head, outputs))
        of_heads.append(torch.stack(of_tokens, -1))
    yield rows_of_tokens(layer, torch.stack(of_heads, 1), layer.heads)


def findings(frame: pd.DataFrame, options: Options) -> list[str]:
    """Report the head with the largest effect, the null, and how attribution patching ranks the heads."""
    rows = frame[frame["head"].notna()]
    by_head = {
        metric: rows[rows["metric"] == metric.name]
        .groupby(["layer", "head"])[["value", "null_mean", "null_high"]]
        .mean()
        for metric in METRICS
    }
    exact = by_head[_PATCHING_EFFECT].dropna(subset="value")
    if exact.empty:
        return []
    layer, head = exact["value"].idxmax()
    chosen = rows[
        (rows["metric"] == _PATCHING_EFFECT.name) & (rows["layer"] == layer) & (rows["head"] == head)
    ].dropna(subset="value")
    sentence = (
        f"patching head {head} of layer {layer} moves the logit difference most, {over_inputs(chosen).words('.2f')} of "
        "the way to the other input of the pair"
    )
    if exact["null_mean"].notna().any():
        above = int((exact["value"] > exact["null_high"]).sum())
        sentence += (
            f" ({exact.loc[(layer, head), 'null_mean']:.2f} {_NULLS[options.null]}); {above} of "
            f"{len(exact)} heads are above the null's upper end"
        )
    sentences = [sentence]
    if len(exact) > 2:
        rank = exact["value"].corr(by_head[_PATCHING_ATTRIBUTION]["value"], method="spearman")
        sentences.append(
            f"attribution patching: rank correlation {rank:.2f} with patching, over {len(exact)} heads"
        )
    return sentences


_SITES = ("v", "mask", "attn", "head_out")


ANALYSIS = Analysis(
    "patching",
    "Which head carries the difference of two inputs: activation patching of pairs, and attribution patching",
    _SITES,
    measure,
    METRICS,
    Options,
    together=runs_again,
    findings=findings,
    finer=(
        Analysis(
            "patching",
            "Activation patching, token by token",
            _SITES,
            token_rows,
            (),
            TokenOptions,
            per="token",
            together=runs_again,
        ),
    ),
)
