"""Which simple pattern does a head's attention follow? Previous, first or own token, induction, local, class, even.

A score is the share of a head's attention that lies on the keys of the pattern, mean over queries; of even attention,
how much of it even attention would give as well. Attention is (*batch, head, query, key), both of the same tokens.
Sources: Clark et al. 2019 (next, previous and special tokens); Xiao et al. 2024 (first token); Olsson et al. 2022
(induction: the token after an earlier occurrence of the query's own); Wolpert & Wolf 1995 (random distributions).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import pandas as pd
import torch
from annotated_types import Gt, Le
from jaxtyping import Bool, Float
from torch import Tensor

from workbench.analyses import tensors
from workbench.analyses.layer import (
    Layer,
    NotApplicable,
    need_token_attention,
    token_attention,
    visible_keys,
    visible_of,
)
from workbench.analyses.registry import Analysis, OfInputs
from workbench.core.null_distributions import ROUNDING, Null
from workbench.core.operands import check_axes, checked
from workbench.frames.estimate import over_inputs, unit_of
from workbench.frames.measurement import Measurement
from workbench.frames.metrics import Metric

ROW_TOLERANCE = 1e-2  # of a row's sum from 1: the rounding of bfloat16 weights, summed over a row
_BAND = 1.959964  # standard deviations to either side of the mean that hold 95 % of a normal distribution
_PERMUTED = (
    "null: each query's weights permuted among the keys it may see (mean and deviation exact, band normal)"
)


@dataclass(frozen=True)
class Options(OfInputs):
    """How far local attention reaches."""

    radius: Annotated[
        float, Gt(0), Le(64), "reach of local attention, in tokens of a text and in patches of an image"
    ] = 2.0


def _pattern(name: str, label: str, what: str, source: str = "workbench") -> Metric:
    definition = (
        f"share of attention on {what}, mean over queries that have such a key and another; {_PERMUTED}"
    )
    return Metric(name, label, definition, source, low=0, high=1)


PATTERN_PREVIOUS = _pattern(
    "pattern_previous", "Attention on the previous token", "the token before the query", "Clark et al. 2019"
)
PATTERN_FIRST = _pattern(
    "pattern_first", "Attention on the first token", "the first token, from all others", "Xiao et al. 2024"
)
PATTERN_INDUCTION = _pattern(
    "pattern_induction",
    "Induction: attention after an earlier occurrence",
    "the tokens that followed the query's own word where it stood before",
    "Olsson et al. 2022",
)
PATTERN_LOCAL = _pattern(
    "pattern_local", "Local attention", "other tokens within the radius of the query", "Clark et al. 2019"
)
PATTERN_CLASS = _pattern("pattern_class", "Attention on the class token", "the class token, from all others")
PATTERN_UNIFORM = Metric(
    "pattern_uniform",
    "Overlap with even attention",
    "Σ_j min(A_ij, 1/m) over the m keys that a query may see, mean over queries that see two or more: one less the "
    "total variation distance to even attention; null: weights drawn evenly from all distributions over those keys "
    "(mean and deviation exact, band normal)",
    "Wolpert & Wolf 1995",
    low=0,
    high=1,
)
PATTERN_DIAGONAL = _pattern("pattern_diagonal", "Attention on the token itself", "the query's own token")


class Score(NamedTuple):
    """A score of every head, (*batch, head), and its null distribution; NaN where it is not defined."""

    value: Tensor
    null: Null


@checked
def pattern_share(
    attn: Float[Tensor, "*batch head query key"],
    pattern: Bool[Tensor, "*batch #head query key"],
    visible: Bool[Tensor, "*batch #head query key"] | None = None,
    queries: Bool[Tensor, "*batch query"] | None = None,
) -> Score:
    """Share of attention on the keys of a pattern, mean over queries that see such a key and another one.

    ``visible`` (true = may attend) and ``queries`` (real tokens) leave out the rest. The null distribution permutes the
    weights of every query among the keys it may see: with k of m keys in the pattern a row's share has mean k/m of its
    sum, and k (m − k) / (m − 1) times the variance of its weights. NaN for heads whose rows are no distributions.
    Patterns: Clark et al. 2019, Olsson et al. 2022, Xiao et al. 2024.
    """
    weights, seen, asking, faulty = _rows(attn, visible, queries)
    on = (pattern.to(attn.device) & seen).expand(weights.shape)
    keys, chosen = seen.sum(-1).double(), on.sum(-1).double()
    counted = asking & (chosen > 0) & (chosen < keys)
    total = weights.sum(-1)
    spread = (weights.square().sum(-1) / keys - (total / keys).square()).clamp_min(0)
    return _mean(
        counted,
        faulty,
        torch.where(on, weights, 0).sum(-1),
        total * chosen / keys,
        chosen * (keys - chosen) / (keys - 1) * spread,
    )


@checked
def uniform_overlap(
    attn: Float[Tensor, "*batch head query key"],
    visible: Bool[Tensor, "*batch #head query key"] | None = None,
    queries: Bool[Tensor, "*batch query"] | None = None,
) -> Score:
    """Σ_j min(A_ij, 1/m) over the m keys that a query may see, mean over queries that see two or more; 1 where even.

    The null distribution draws the weights evenly from all distributions over m keys (Dirichlet of ones; moments after
    Wolpert & Wolf 1995): its mean is 1 − (1 − 1/m)^m.
    """
    weights, seen, asking, faulty = _rows(attn, visible, queries)
    m = seen.sum(-1).double()
    counted = asking & (m > 1)
    m = m.clamp_min(2)
    even = 1 / m
    overlap = torch.where(seen, torch.minimum(weights, even[..., None]), 0).sum(-1)
    mean = 1 - (1 - even) ** m
    # E min(w, a)² and E min(w, a) min(w′, a) of a Dirichlet of ones, whose survival is (1 − s − t)^(m − 1)
    square = 2 * ((1 - (1 - even) ** (m + 1)) / (m * (m + 1)) - even * (1 - even) ** m / m)
    product = (1 - 2 * (1 - even) ** (m + 1) + (1 - 2 * even) ** (m + 1)) / (m * (m + 1))
    variance = (m * square + m * (m - 1) * product - mean.square()).clamp_min(0)
    return _mean(counted, faulty, overlap, mean, variance)


def _rows(
    attn: Tensor, visible: Tensor | None, queries: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Weights on visible keys, which keys those are, the real queries, and the heads that are no attention."""
    check_axes("attn", attn, tensors.ATTENTION)
    attn = attn.double()
    seen = visible_keys(visible, attn)
    asking = torch.ones(attn.shape[:-1], dtype=torch.bool, device=attn.device)
    if queries is not None:
        asking = queries.to(attn.device)[..., None, :].expand(asking.shape)
        seen = seen & queries.to(attn.device)[..., None, None, :]
    asking = asking & seen.any(-1)
    weights = torch.where(seen, attn, 0)
    wrong = ~torch.isfinite(weights).all(-1) | (weights < 0).any(-1)
    wrong |= (weights.sum(-1) - 1).abs() > ROW_TOLERANCE
    return weights, seen, asking, (wrong & asking).any(-1)


def _mean(counted: Tensor, faulty: Tensor, value: Tensor, mean: Tensor, variance: Tensor) -> Score:
    """Mean over the counted queries of a row's value and null moments; rows are independent of one another."""
    count = counted.sum(-1).double()

    def over(rows: Tensor) -> Tensor:
        return torch.where(counted, rows, 0).sum(-1) / count

    observed, expected = over(value), over(mean)
    deviation = (over(variance) / count).sqrt()
    known = deviation > ROUNDING * expected.abs()
    null = Null(
        expected,
        torch.where(known, (expected - _BAND * deviation).clamp_min(0), torch.nan),
        torch.where(known, (expected + _BAND * deviation).clamp_max(1), torch.nan),
        torch.where(known, (observed - expected) / deviation, torch.nan),
    )
    undefined = faulty | (count == 0)
    return Score(
        observed.masked_fill(undefined, math.nan),
        Null(*(part.masked_fill(undefined, math.nan) for part in null)),
    )


def induction_keys(words: Sequence[str | None]) -> Bool[Tensor, "query key"]:
    """For every token those that followed its earlier occurrences (Olsson et al. 2022); None is no word."""
    found = torch.zeros(len(words), len(words), dtype=torch.bool)
    places: dict[str, list[int]] = {}
    for query, word in enumerate(words):
        if word is None:
            continue
        earlier = places.setdefault(word, [])
        found[query, [place + 1 for place in earlier if place + 1 < query]] = True
        earlier.append(query)
    return found


def patterns(
    layer: Layer, count: int, radius: float
) -> Iterator[tuple[Metric, Bool[Tensor, "#batch 1 query key"]]]:
    """The patterns that the tokens of a layer can have, as masks of their keys.

    Those of an order (previous, first: Clark et al. 2019; induction: Olsson et al. 2022) are of texts; a class token is
    of models that have one.
    """
    own = torch.eye(count, dtype=torch.bool)
    positions = layer.positions(count)
    if positions is not None and positions.shape[-1] == 1:
        yield PATTERN_PREVIOUS, torch.ones(count, count, dtype=torch.bool).tril(-1).triu(-1)[None, None]
        real = layer.real_tokens(count)
        real = torch.ones(1, count, dtype=torch.bool) if real is None else real.cpu()
        first = real & (real.cumsum(-1) == 1)
        yield PATTERN_FIRST, (first[:, None, None] & ~own)
        words = [
            [
                label if kind in ("word", "token") else None
                for label, kind in zip(
                    layer.token_labels(count, number), layer.token_kinds(count, number), strict=True
                )
            ]
            for number in range(len(layer.ids))
        ]
        yield PATTERN_INDUCTION, torch.stack([induction_keys(each) for each in words])[:, None]
    if positions is not None:
        apart = torch.cdist(positions, positions, compute_mode="donot_use_mm_for_euclid_dist")
        yield PATTERN_LOCAL, ((apart <= radius) & ~own)[None, None]
    kinds = layer.token_kinds(count)
    if "class" in kinds:
        of_class = torch.tensor([kind == "class" for kind in kinds])
        yield PATTERN_CLASS, (of_class & ~own & ~of_class[:, None])[None, None]
    yield PATTERN_DIAGONAL, own[None, None]


def measure(layer: Layer, options: Options) -> Iterator[Measurement]:
    """Every pattern that the layer's tokens can have, of every head."""
    need_token_attention(layer)
    if layer.record.origin is not None:
        raise NotApplicable("cuts the image into windows, each of which attends within itself")
    attn = layer.choose_heads(token_attention(layer.record))
    queries, keys = attn.shape[-2:]
    if queries != keys:
        raise NotApplicable(f"attends from {queries} tokens to {keys}, and patterns are of one kind of token")
    if len(layer.token_kinds(keys)) != keys:
        raise NotApplicable(f"attends between {keys} tokens that are not those of the input")
    real, visible = layer.real_on(attn, -1), visible_of(layer, attn)
    columns = {"null": "permutation"}
    for metric, pattern in patterns(layer, keys, options.radius):
        score = pattern_share(attn, pattern, visible, real)
        yield Measurement(metric, score.value, null=score.null, columns=columns)
    even = uniform_overlap(attn, visible, real)
    yield Measurement(PATTERN_UNIFORM, even.value, null=even.null, columns={"null": "dirichlet"})


def findings(frame: pd.DataFrame, options: Options) -> list[str]:
    """The head that follows each pattern most, beside the null level of its score."""
    heads = frame[frame["head"].notna() & frame["value"].notna()]
    sentences = []
    for metric in ANALYSIS.metrics:
        rows = heads[heads["metric"] == metric.name]
        if rows.empty:
            continue
        means = rows.groupby(["layer", "head"])["value"].mean()
        layer, head = means.idxmax()
        best = rows[(rows["layer"] == layer) & (rows["head"] == head)]
        score = over_inputs(best).within(0, 1)
        sentences.append(
            f"{metric.label.lower()}: most in layer {layer}, head {head}, {score.words('.2f')} "
            f"(null {best['null_mean'].mean():.2f}), {unit_of(score)}"
        )
    return sentences


ANALYSIS = Analysis(
    "attention-patterns",
    "Which simple pattern each head follows: previous, first or own token, induction, local, class token, even",
    ("mask", "attn"),
    measure,
    (
        PATTERN_PREVIOUS,
        PATTERN_FIRST,
        PATTERN_INDUCTION,
        PATTERN_LOCAL,
        PATTERN_CLASS,
        PATTERN_UNIFORM,
        PATTERN_DIAGONAL,
    ),
    Options,
    findings=findings,
)
