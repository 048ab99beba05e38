"""Which tokens a prediction rests on: maps of relevance from attention and its gradient, each with a score.

Four maps for each input: gradient rollout (Chefer et al. 2021), attention times gradient, attention rollout (Abnar &
Zuidema 2020), and integrated gradients of attention (Sundararajan et al. 2017). The score of a map comes from deletion
and insertion (Petsiuk et al. 2018): tokens are removed from the input, or put back, in the order of the map.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple

import pandas as pd
import torch
from annotated_types import Ge
from jaxtyping import Bool, Float, Int
from torch import Tensor

from workbench.analyses.class_attention import SPECIAL, attention_rollout
from workbench.analyses.head_effect import need_next_tokens
from workbench.analyses.layer import (
    Layer,
    NotApplicable,
    Passes,
    need_token_attention,
    rows_of_tokens,
    token_attention,
    visible_of,
)
from workbench.analyses.patching import logits_at
from workbench.analyses.registry import Analysis, OfInputs, OfMatrices, runs_again
from workbench.analyses.tiles import layer_attention
from workbench.core.errors import InputError
from workbench.core.null_distributions import generator
from workbench.core.operands import checked_tensors
from workbench.core.options import NullSamples, ranges
from workbench.frames.estimate import over_inputs
from workbench.frames.measurement import Measurement
from workbench.frames.metric import Metric

_GRADIENT_ROLLOUT, _GRADIENT, _ROLLOUT, _INTEGRATED = MAPS = (
    "gradient rollout",
    "attention times gradient",
    "rollout",
    "integrated gradients",
)
Target = Annotated[
    Literal["predicted", "right"],
    "outcome that the maps explain: predicted (the largest logit; of texts at the last token) or right (the class of "
    "the image; the last token of the text, predicted from the one before)",
]
PathSteps = Annotated[int, Ge(1), "points on the path from uniform attention, each of which is another pass"]


@dataclass(frozen=True)
class Options(OfInputs):
    """What the maps explain, and how finely their scores are measured."""

    target: Target = "predicted"
    path_steps: PathSteps = 8
    removal_steps: Annotated[
        int,
        Ge(1),
        "numbers of removed tokens between none and all, each of which is another pass for every map",
    ] = 5
    null_samples: Annotated[NullSamples, "random orders of the tokens, at least 2; 0 leaves the null out"] = 5


@dataclass(frozen=True)
class TokenOptions(OfMatrices):
    """What the maps explain, for rows per token."""

    target: Target = "predicted"
    path_steps: PathSteps = 8


_NULL = (
    "a removed token has the mean over tokens in place of its input to the first block; tokens: patches or words, not "
    "the one that the prediction is read from; column candidate: the map; null: random orders"
)
_RELEVANCE_DELETION = Metric(
    "relevance_deletion",
    "Probability under deletion",
    "probability of the target, mean over shares from none to all of the tokens (trapezoidal rule), while the most "
    f"relevant tokens are removed first; {_NULL}",
    "Petsiuk et al. 2018",
    low=0,
    high=1,
    better="lower",
)
_RELEVANCE_INSERTION = Metric(
    "relevance_insertion",
    "Probability under insertion",
    "probability of the target, mean over shares from none to all of the tokens (trapezoidal rule), while the most "
    f"relevant tokens are put back first; {_NULL}",
    "Petsiuk et al. 2018",
    low=0,
    high=1,
    better="higher",
)
METRICS = (_RELEVANCE_DELETION, _RELEVANCE_INSERTION)


@checked_tensors
def weighted_attention(
    attn: Float[Tensor, "*batch head query key"], gradient: Float[Tensor, "*batch head query key"]
) -> Float[Tensor, "*batch query key"]:
    """Return the mean over heads of the positive part of attention times its gradient (Chefer et al. 2021, eq. 5)."""
    return (attn.double() * gradient.double()).clamp_min(0).mean(-3)


@checked_tensors
def gradient_rollout(
    layers: list[Float[Tensor, "*batch query key"]], query: Float[Tensor, "*batch query"]
) -> Float[Tensor, "*batch query"]:
    """Return query · (I + Ā_L) ⋯ (I + Ā_1), Ā of each layer by `weighted_attention` (Chefer et al. 2021, eq. 6)."""
    row = query.double()
    for weights in reversed(layers):
        row = row + (row[..., None, :] @ weights)[..., 0, :]
    return row


@checked_tensors
def removal_orders(
    relevance: Float[Tensor, "*batch token"], content: Bool[Tensor, "*batch token"]
) -> Int[Tensor, "*batch token"]:
    """Return the rank of every content token by relevance, 0 for the most relevant; other tokens come last."""
    of_content = relevance.masked_fill(~content, -torch.inf)
    return of_content.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)


class _Explained(NamedTuple):
    """The outcome of every input of a batch, where it is read, and the tokens that can be removed."""

    position: Int[Tensor, " batch"] | None
    """Position of a text's last query; None for a classifier."""
    outcome: Int[Tensor, " batch"]
    query: Float[Tensor, "batch token"]
    """Weights of the queries that the prediction is read from."""
    content: Bool[Tensor, "batch token"]
    known: Bool[Tensor, " batch"]

    @torch.enable_grad()
    def gradients(
        self, passes: Passes, changes: Mapping[Any, Any], operands: Collection[Tensor]
    ) -> tuple[Tensor, ...]:
        """Return the gradients of the outcome's logit in operands, which ``changes`` of attention put to use."""
        logits = logits_at(passes.run(changes, "attn", grad=True), self.position)
        logit = logits.gather(-1, self.outcome.to(logits.device)[:, None])
        return torch.autograd.grad(logit.sum(), [*operands])

    def probability(self, logits: Float[Tensor, "batch ..."]) -> Float[Tensor, " batch"]:
        """Return the probability of the outcome, NaN where it is not known."""
        shares = logits_at(logits, self.position).double().softmax(-1).cpu()
        return shares.gather(-1, self.outcome[:, None])[:, 0].where(self.known, torch.nan)


def _explained(layer: Layer, tokens: int, target: str) -> _Explained:
    """Return what the maps of a batch explain. Raises `InputError` where the right outcome is not known."""
    passes = layer.need_passes()
    logits, targets = passes.logits, passes.targets
    mask = layer.real_tokens(tokens)
    real = torch.ones(len(layer.ids), tokens, dtype=torch.bool) if mask is None else mask.cpu()
    kinds = [layer.token_kinds(tokens, number) for number in range(len(layer.ids))]
    if len(kinds[0]) != tokens:
        raise NotApplicable(f"attends between {tokens} tokens that are not those of the input")
    special = torch.tensor([[kind in SPECIAL for kind in of_input] for of_input in kinds])
    place, position = torch.arange(tokens), None
    if target == "right" and targets is None:
        raise InputError("the right outcomes are not known; give target='predicted'")
    if logits.ndim == 3:
        need_next_tokens(layer, passes, real)
        last = (real * place).argmax(-1)
        position = last - 1 if target == "right" else last
        query = (place == position[:, None]).double()
        content = real & ~special & (place < position[:, None])
    else:
        of_class = torch.tensor([[kind == "class" for kind in of_input] for of_input in kinds])
        query = of_class.double() if of_class.any() else real / real.sum(-1, keepdim=True)
        content = real & ~special
    if targets is None or target == "predicted":
        outcome = logits_at(logits, position).argmax(-1).cpu()
    else:
        outcome = (targets if position is None else logits_at(targets, position + 1)).cpu()
    return _Explained(position, outcome.clamp_min(0), query, content, outcome >= 0)


def _chain(layer: Layer) -> list[Layer]:
    """Return the layers up to this one. Raises `InputError` unless all attend between the same tokens."""
    records = [*layer.before, layer.record]
    need_token_attention(layer)
    if [record.index for record in records] != list(range(layer.index + 1)):
        raise InputError("relevance multiplies maps of all layers; leave layers= out")
    size = token_attention(layer.record).shape[-2:]
    others = [
        record.index
        for record in records
        if record.kind != "token" or record.origin is not None or token_attention(record).shape[-2:] != size
    ]
    if others or size[0] != size[1]:
        raise NotApplicable(
            f"follows layers without attention between the same tokens ({ranges(others or [layer.index])})"
        )
    return [replace(layer, record=record) for record in records]


def _gradients(layers: list[Layer], explained: _Explained) -> list[Float[Tensor, "batch head query key"]]:
    """Return the gradient of the outcome's logit in the attention of the chosen heads of every layer."""
    passes, zeros = layers[-1].need_passes(), {}

    def adding(index: int, head: int) -> Callable[[Tensor], Tensor]:
        def add(attn: Tensor) -> Tensor:
            zeros[index, head] = torch.zeros_like(attn, requires_grad=True)
            return attn + zeros[index, head]

        return add

    changes = {(layer.index, head): adding(layer.index, head) for layer in layers for head in layer.heads}
    gradients = dict(zip(zeros, explained.gradients(passes, changes, zeros.values()), strict=True))
    return [torch.stack([gradients[layer.index, head] for head in layer.heads], 1) for layer in layers]


def _integrated(
    layer: Layer, attn: Tensor, explained: _Explained, steps: int
) -> Float[Tensor, "batch query key"]:
    """Return integrated gradients of a layer's attention, from uniform attention, mean over heads.

    (A − U) times the mean gradient on the straight path from U to A, by the midpoint rule: their sum over queries, keys
    and heads is the change of the logit from uniform attention.
    """
    seen = visible_of(layer, attn)
    visible = torch.ones_like(attn, dtype=torch.bool) if seen is None else seen.to(attn.device)
    uniform = visible * attn.sum(-1, keepdim=True) / visible.sum(-1, keepdim=True).clamp_min(1)
    total = torch.zeros_like(attn)
    for step in range(steps):
        point = uniform + (step + 0.5) / steps * (attn - uniform)
        points = {
            (layer.index, head): point[:, row].clone().requires_grad_()
            for row, head in enumerate(layer.heads)
        }
        changes = {key: (lambda _, value=value: value) for key, value in points.items()}
        total += torch.stack(explained.gradients(layer.need_passes(), changes, points.values()), 1)
    return ((attn - uniform).double() * total.double() / steps).mean(1)


def relevance_maps(
    layer: Layer, options: Options | TokenOptions
) -> tuple[_Explained, dict[str, Float[Tensor, "batch token"]]]:
    """Return the explained outcome, and the maps by name: of the layers up to this one, or of this one."""
    layers = _chain(layer)
    attention = [one.choose_heads(token_attention(one.record)) for one in layers]
    layer.choose_heads(token_attention(layer.record))
    explained = _explained(layer, attention[-1].shape[-1], options.target)
    query = explained.query.to(attention[-1].device, torch.float64)
    gradients = _gradients(layers, explained)
    weights = [weighted_attention(*pair) for pair in zip(attention, gradients, strict=True)]
    integrated = _integrated(layer, attention[-1], explained, options.path_steps)
    return explained, {
        _GRADIENT_ROLLOUT: gradient_rollout(weights, query),
        _GRADIENT: (query[:, None] @ weights[-1])[:, 0],
        _ROLLOUT: attention_rollout([layer_attention(one, options.method) for one in layers], query),
        _INTEGRATED: (query[:, None] @ integrated)[:, 0],
    }


class _Removal(NamedTuple):
    """Probabilities of the outcomes while tokens are removed."""

    layer: Layer
    explained: _Explained
    first: int
    """Index of the first layer, in front of whose block tokens are removed."""
    steps: int

    def probability(self, removed: Bool[Tensor, "batch token"]) -> Float[Tensor, " batch"]:
        """Return the probability with some tokens removed."""
        mask = self.layer.real_tokens(removed.shape[1])
        real = torch.ones_like(removed) if mask is None else mask.cpu()

        def remove(stream: Tensor) -> Tensor:
            weight = (real / real.sum(-1, keepdim=True)).to(stream)
            mean = torch.einsum("bt,btd->bd", weight, stream)[:, None]
            return torch.where(removed.to(stream.device)[..., None], mean, stream)

        passes = self.layer.need_passes()
        return self.explained.probability(passes.run({(self.first, "*"): remove}, "resid_pre"))

    def ends(self) -> tuple[Tensor, Tensor]:
        """Return the probabilities with no token and with all of them removed."""
        content = self.explained.content
        return self.explained.probability(self.layer.need_passes().logits), self.probability(content)

    def area(
        self, order: Int[Tensor, "batch token"], ends: tuple[Tensor, Tensor], insert: bool = False
    ) -> Float[Tensor, " batch"]:
        """Return the mean probability while the tokens of rank 0, 1, … are removed, or put back."""
        content = self.explained.content
        between = torch.zeros(len(order), dtype=torch.float64)
        for step in range(1, self.steps + 1):
            number = (content.sum(-1, keepdim=True) * step / (self.steps + 1)).round()
            chosen = content & (order.cpu() < number)
            between += self.probability(content & ~chosen if insert else chosen)
        return (between + (ends[0] + ends[1]) / 2) / (self.steps + 1)


def _random_orders(
    layer: Layer, content: Bool[Tensor, "batch token"], sample: int
) -> Int[Tensor, "batch token"]:
    """Return random ranks of the content tokens, the same for every layer."""
    draws = torch.zeros(content.shape, dtype=torch.float64)
    for row, name, mask in zip(draws, layer.ids, content, strict=True):
        source = generator(layer.seed, name, sample)
        row[mask] = torch.rand(int(mask.sum()), dtype=torch.float64, generator=source)
    return removal_orders(draws, content)


def measure(layer: Layer, options: Options) -> Iterator[Measurement]:
    """Measure the probability of the target under deletion and insertion in the order of every map."""
    explained, maps = relevance_maps(layer, options)
    first = layer.before[0].index if layer.before else layer.index
    removal = _Removal(layer, explained, first, options.removal_steps)
    if not (shared := layer.need_passes().shared):
        shared["ends"] = ends = removal.ends()
        # random orders from back to front are random orders: one area is a sample for deletion and for insertion
        orders = [_random_orders(layer, explained.content, sample) for sample in range(options.null_samples)]
        shared["drawn"] = [removal.area(order, ends) for order in orders]
    ends, drawn = shared["ends"], shared["drawn"]
    null: Mapping[str, Tensor] = {"permutation": torch.stack(drawn, -1)} if drawn else {}
    for name, relevance in maps.items():
        order = removal_orders(relevance.cpu(), explained.content)
        for metric in METRICS:
            yield Measurement(
                metric,
                removal.area(order, ends, insert=metric is _RELEVANCE_INSERTION),
                ("input",),
                columns={"candidate": name},
                null_samples=null,
            )


def token_rows(layer: Layer, options: TokenOptions) -> Iterator[pd.DataFrame]:
    """Yield the relevance of every token, map by map."""
    _, maps = relevance_maps(layer, options)
    for name, relevance in maps.items():
        yield rows_of_tokens(layer, relevance[:, None], [pd.NA], candidate=name).drop(columns="head")


def findings(frame: pd.DataFrame, options: Options) -> list[str]:
    """Report the probability in the order of every map in the last layer, beside random orders."""
    last = frame[frame["layer"] == frame["layer"].max()]
    sentences = []
    for metric, words in ((_RELEVANCE_INSERTION, "put back"), (_RELEVANCE_DELETION, "removed")):
        rows = last[(last["metric"] == metric.name) & last["value"].notna()]
        if rows.empty:
            continue
        orders = [
            f"{name} {over_inputs(of_map).words('.2f')}"
            for name, of_map in rows.groupby("candidate", sort=False)
        ]
        sentence = (
            f"tokens {words} (maps of layer {rows['layer'].iloc[0]}): probability of the {options.target} outcome in "
            f"the order of {', '.join(orders)}"
        )
        if rows["null_mean"].notna().any():
            sentence += f"; in random orders {rows['null_mean'].mean():.2f}"
        sentences.append(sentence)
    return sentences


ANALYSIS = Analysis(
    "relevance",
    "Which tokens a prediction rests on: maps from attention and its gradient, with deletion and insertion",
    ("mask", "attn"),
    measure,
    METRICS,
    Options,
    together=runs_again,
    findings=findings,
    finer=(
        Analysis(
            "relevance",
            "Relevance of every token, by map",
            ("mask", "attn"),
            token_rows,
            (),
            TokenOptions,
            per="token",
            together=runs_again,
        ),
    ),
)
