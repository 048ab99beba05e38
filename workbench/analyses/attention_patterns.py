"""Simple patterns of a head: previous, first or own token, induction, local, segment, uniform.

A score is the share of a head's attention on the keys of the pattern, mean over queries. The score of uniform attention
is its overlap with uniform attention. Attention is (*batch, head, query, key), both of the same tokens.
Sources: Clark et al. 2019 (next, previous and special tokens); Xiao et al. 2024 (first token); Olsson et al. 2022
(induction: the token after an earlier occurrence of the query's); Wolpert & Wolf 1995 (random distributions).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
import pandas as pd
import torch
from annotated_types import Ge, Gt, Le
from jaxtyping import Bool, Int
from torch import Tensor

from workbench.analyses.layer import (
    Layer,
    NotApplicable,
    need_token_attention,
    patch_places,
)
from workbench.analyses.patch_segments import Masks, patch_segments
from workbench.analyses.reductions import (
    EvenOverlap,
    OnPatterns,
    PatternPlaces,
    PatternSums,
    RowSquares,
    TopKeys,
)
from workbench.analyses.registry import Analysis, OfInputs, RowNull, null_kinds
from workbench.analyses.tiles import Attention, Operands, Reduced, layer_attention, report_broken
from workbench.core.null_distributions import ROUNDING, Null
from workbench.frames.estimate import over_inputs, unit_of
from workbench.frames.measurement import Measurement
from workbench.frames.metric import Metric

_BAND = 1.959964  # standard deviations to either side of the mean that hold 95 % of a normal distribution
_PERMUTED = (
    "null: each query's weights permuted among the keys it may see (mean and deviation exact, band normal)"
)


@dataclass(frozen=True)
class Options(OfInputs):
    """How far local attention reaches, and which segments the patches of an image belong to."""

    null: RowNull = "permutation"
    radius: Annotated[
        float, Gt(0), Le(64), "reach of local attention, in tokens of a text and in patches of an image"
    ] = 2.0
    masks: Annotated[
        Masks,
        "segments of images: a folder with one mask image per input, of its name, a colour or grey level each; ink "
        "(bright patches, for the bundled digits); or none",
    ] = None
    needle: Annotated[
        Annotated[int, Ge(2)] | None,
        "score retrieval in texts that end with a copy of an earlier passage, the needle, of at least as many tokens",
    ] = None


def _pattern(name: str, label: str, what: str, source: str = "workbench") -> Metric:
    definition = (
        f"share of attention on {what}, mean over queries that have such a key and another; {_PERMUTED}"
    )
    return Metric(name, label, definition, source, low=0, high=1)


_PATTERN_PREVIOUS = _pattern(
    "pattern_previous", "Attention on the previous token", "the token before the query", "Clark et al. 2019"
)
_PATTERN_FIRST = _pattern(
    "pattern_first", "Attention on the first token", "the first token, from all others", "Xiao et al. 2024"
)
_PATTERN_INDUCTION = _pattern(
    "pattern_induction",
    "Induction: attention after an earlier occurrence",
    "the tokens that followed the query's own word where it stood before",
    "Olsson et al. 2022",
)
_PATTERN_LOCAL = _pattern(
    "pattern_local", "Local attention", "other tokens within the radius of the query", "Clark et al. 2019"
)
_PATTERN_CLASS = _pattern("pattern_class", "Attention on the class token", "the class token, from all others")
_PATTERN_SEGMENT = _pattern(
    "pattern_segment",
    "Attention on the query's segment",
    "other patches of the query's own segment, from patches",
)
_PATTERN_UNIFORM = Metric(
    "pattern_uniform",
    "Overlap with uniform attention",
    "Σ_j min(A_ij, 1/m) over the m keys that a query may see, mean over queries that see two or more: one less the "
    "total variation distance to uniform attention; null: weights drawn evenly from all distributions over those keys "
    "(mean and deviation exact, band normal)",
    "Wolpert & Wolf 1995",
    low=0,
    high=1,
)
_RETRIEVAL_SCORE = Metric(
    "retrieval_score",
    "Retrieval score",
    "share of the tokens of a copied needle whose query, the token before, attends most to the copied token; the "
    f"copy is a part of the text, not generated; {_PERMUTED}, so that the most attended key is at a random place",
    "Wu et al. 2024",
    low=0,
    high=1,
)
_PATTERN_DIAGONAL = _pattern("pattern_diagonal", "Attention on the token itself", "the query's own token")


class Score(NamedTuple):
    """A score of every head, (*batch, head), and its null distribution; NaN where it is not defined."""

    value: Tensor
    null: Null


def pattern_scores(
    attention: Attention, places: Mapping[str, PatternPlaces], layer: Layer | None = None
) -> dict[str, Score]:
    """Return the share of attention on the keys of each pattern; that of "pattern_uniform" is an overlap.

    A share is the mean over queries that see a key of the pattern and another one (Clark et al. 2019, Olsson et al.
    2022, Xiao et al. 2024). Its null distribution permutes the weights of every query among the keys it may see: with k
    of m keys in the pattern a row's share has mean k/m of its sum, and k (m − k) / (m − 1) times the variance of its
    weights. The overlap is Σ_j min(A_ij, 1/m) over the m keys that a query may see, mean over queries that see two or
    more, 1 where even; its null distribution draws the weights evenly from all distributions over m keys (Dirichlet of
    ones; moments after Wolpert & Wolf 1995), with mean 1 − (1 − 1/m)^m. NaN for heads whose rows are no distributions.
    Rows with scores that are NaN or infinite are counted in the notes of ``layer``.
    """
    reduced = attention.reduced(OnPatterns(places), RowSquares(), EvenOverlap())
    report_broken(layer, reduced)
    asking = reduced.count > 0
    if attention.keys is not None:
        asking = asking & attention.keys.to(asking.device)[:, None]
    faulty = (reduced.faulty & asking).any(-1)
    scores = {name: _share(asking, faulty, reduced, on) for name, on in reduced["patterns"].items()}
    return scores | {_PATTERN_UNIFORM.name: _overlap(asking, faulty, reduced["overlap"], reduced.count)}


def _share(asking: Tensor, faulty: Tensor, reduced: Reduced, on: PatternSums) -> Score:
    """Return the score and its null, from each row's weight on the visible keys of the pattern."""
    chosen, keys = on.keys, reduced.count
    counted = asking & (chosen > 0) & (chosen < keys)
    spread = (reduced["squares"] / keys - (reduced.total / keys).square()).clamp_min(0)
    variance = chosen * (keys - chosen) / (keys - 1) * spread
    return _mean(counted, faulty, on.weight, reduced.total * chosen / keys, variance)


def _overlap(asking: Tensor, faulty: Tensor, overlap: Tensor, m: Tensor) -> Score:
    """The score and its null, of each row's overlap with uniform attention to the m keys that it sees."""
    counted = asking & (m > 1)
    m = m.clamp_min(2)
    even = 1 / m
    mean = 1 - (1 - even) ** m
    # E min(w, a)² and E min(w, a) min(w′, a) of a Dirichlet of ones, whose survival is (1 − s − t)^(m − 1)
    square = 2 * ((1 - (1 - even) ** (m + 1)) / (m * (m + 1)) - even * (1 - even) ** m / m)
    product = (1 - 2 * (1 - even) ** (m + 1) + (1 - 2 * even) ** (m + 1)) / (m * (m + 1))
    variance = (m * square + m * (m - 1) * product - mean.square()).clamp_min(0)
    return _mean(counted, faulty, overlap, mean, variance)


def _mean(counted: Tensor, faulty: Tensor, value: Tensor, mean: Tensor, variance: Tensor) -> Score:
    """Mean over the counted queries of a row's value and null moments; rows are independent of one another."""
    count = counted.sum(-1).double()

    def over(rows: Tensor) -> Tensor:
        return torch.where(counted, rows, 0).sum(-1) / count

    observed, expected = over(value), over(mean)
    deviation = (over(variance) / count).sqrt()
    spreads = deviation > ROUNDING * expected.abs()
    null = Null(
        expected,
        torch.where(spreads, (expected - _BAND * deviation).clamp_min(0), torch.nan),
        torch.where(spreads, (expected + _BAND * deviation).clamp_max(1), torch.nan),
        torch.where(spreads, (observed - expected) / deviation, torch.nan),
    )
    undefined = faulty | (count == 0)
    return Score(
        observed.masked_fill(undefined, math.nan),
        Null(*(part.masked_fill(undefined, math.nan) for part in null)),
    )


def copied_keys(words: Sequence[str | None], fewest: int) -> Int[Tensor, " query"]:
    """Return for each query the key of the token that it has to copy from the needle, else −1 (Wu et al. 2024).

    The copy is the longest run of at least ``fewest`` words at the end of the text that stands earlier as well; of
    several places the last. None is no word: behind the last word it is left out, and it is never a part of a copy.
    """
    keys = torch.full((len(words),), -1)
    end = max((place + 1 for place, word in enumerate(words) if word is not None), default=0)
    for length in range(end // 2, fewest - 1, -1):
        copy = list(words[end - length : end])
        starts = [start for start in range(end - 2 * length + 1) if words[start : start + length] == copy]
        if starts and None not in copy:
            first = max(1, end - length)
            keys[first - 1 : end - 1] = torch.arange(starts[-1], starts[-1] + length)
            break
    return keys


def retrieval_scores(attention: Attention, needle: Int[Tensor, "batch query"]) -> Score:
    """Return the share of queries with a needle's token whose most attended key it is (Wu et al. 2024).

    ``needle`` is the key of that token, −1 for other queries. The null permutes the weights of a query among the keys
    it may see: each is the largest with the same probability. NaN without a needle.
    """
    reduced = attention.reduced(TopKeys(1))
    needle = needle.to(reduced.total.device)[:, None]
    chance = (1 / reduced.count.clamp_min(1)).expand_as(reduced.total)
    found = (reduced["top"].keys[..., 0] == needle).double()
    counted = (needle >= 0).expand_as(chance) & (reduced.count > 0)
    return _mean(counted, (reduced.faulty & counted).any(-1), found, chance, chance * (1 - chance))


def induction_keys(words: Sequence[str | None]) -> Bool[Tensor, "query key"]:
    """For every token those that followed its earlier occurrences (Olsson et al. 2022); None is no word."""
    keys_of_queries = torch.zeros(len(words), len(words), dtype=torch.bool)
    keys_of_queries[_after_earlier(words)(range(len(words)))] = True
    return keys_of_queries


def _after_earlier(words: Sequence[str | None]) -> Callable[[range], tuple[Tensor, Tensor]]:
    """The pairs of `induction_keys`, for the queries that are asked for."""
    occurrences: dict[str, list[int]] = {}
    for position, word in enumerate(words):
        if word is not None:
            occurrences.setdefault(word, []).append(position)
    after = {word: np.array(places) + 1 for word, places in occurrences.items()}

    def pairs(rows: range) -> tuple[Tensor, Tensor]:
        none = np.empty(0, dtype=np.int64)
        keys = [
            none if word is None else after[word][: np.searchsorted(after[word], row)]
            for row, word in zip(rows, words[rows.start : rows.stop], strict=True)
        ]
        queries = np.repeat(np.arange(rows.start, rows.stop), [len(part) for part in keys])
        return torch.from_numpy(queries), torch.from_numpy(np.concatenate([none, *keys]))

    return pairs


def patterns(layer: Layer, count: int, options: Options) -> Iterator[tuple[Metric, PatternPlaces]]:
    """The patterns that the tokens of a layer can have: of an input and some of its queries, the pairs with their keys.

    Those of an order (previous, first: Clark et al. 2019; induction: Olsson et al. 2022) are of texts; a class token is
    of models that have one; segments are of images with ``masks``.
    """
    every = torch.arange(count)
    positions = layer.positions(count)
    if positions is not None and positions.shape[-1] == 1:
        yield _PATTERN_PREVIOUS, lambda _, rows: _pairs(rows, every - 1, every > 0)
        real = layer.real_tokens(count)
        real = torch.ones(len(layer.ids), count, dtype=torch.bool) if real is None else real.cpu()
        first = real.int().argmax(-1)  # of the first of equals
        yield (
            _PATTERN_FIRST,
            lambda number, rows: _pairs(
                rows,
                first[number].expand(count),
                (every != first[number]) & real[number].any(),
            ),
        )
        after = [_after_earlier(_words(layer, count, number)) for number in range(len(layer.ids))]
        yield _PATTERN_INDUCTION, lambda number, rows: after[number](rows)
    if positions is not None:
        yield _PATTERN_LOCAL, lambda _, rows: _near(positions, rows, options.radius)
    kinds = layer.token_kinds(count)
    if "class" in kinds:
        of_class = torch.tensor([kind == "class" for kind in kinds])
        classes = of_class.nonzero()[:, 0]
        yield _PATTERN_CLASS, lambda _, rows: _to_each(rows, classes, ~of_class)
    if options.masks is not None:
        segments = [_segments(layer, number, kinds, options.masks) for number in range(len(layer.ids))]
        yield _PATTERN_SEGMENT, lambda number, rows: _alike(segments[number], rows)
    yield _PATTERN_DIAGONAL, lambda _, rows: _pairs(rows, every, every >= 0)


def _words(layer: Layer, count: int, number: int) -> list[str | None]:
    """Return the words of one input, None for tokens that are no part of the text."""
    tokens = zip(layer.token_labels(count, number), layer.token_kinds(count, number), strict=True)
    return [label if kind in ("word", "token") else None for label, kind in tokens]


def _pairs(rows: range, key: Tensor, has: Tensor) -> tuple[Tensor, Tensor]:
    """The queries of ``rows`` that have a key, and that key."""
    chosen = torch.arange(rows.start, rows.stop)
    chosen = chosen[has[chosen]]
    return chosen, key[chosen]


def _to_each(rows: range, keys: Tensor, has: Tensor) -> tuple[Tensor, Tensor]:
    """The queries of ``rows`` that are to be counted, each with all of these keys."""
    chosen = torch.arange(rows.start, rows.stop)
    chosen = chosen[has[chosen]]
    return chosen.repeat_interleave(len(keys)), keys.repeat(len(chosen))


def _near(positions: Tensor, rows: range, radius: float) -> tuple[Tensor, Tensor]:
    """The queries of ``rows``, each with the other tokens within the radius; tokens that are nowhere are near none."""
    here = positions[rows.start : rows.stop]
    distances = torch.cdist(here, positions, compute_mode="donot_use_mm_for_euclid_dist")
    queries, keys = (distances <= radius).nonzero(as_tuple=True)
    queries = queries + rows.start
    others = queries != keys
    return queries[others], keys[others]


def _segments(layer: Layer, number: int, kinds: Sequence[str], masks: str) -> Tensor:
    """Return the segment of every token of an input, -1 for tokens that are no patches."""
    places = patch_places(kinds, layer.grid)
    assert layer.grid is not None  # there are patches
    segments = torch.full((len(kinds),), -1)
    segments[places] = patch_segments(masks, layer.ids[number], layer.grid, layer.image(number))
    return segments


def _alike(segments: Tensor, rows: range) -> tuple[Tensor, Tensor]:
    """The queries of ``rows``, each with the other tokens of its segment."""
    here = segments[rows.start : rows.stop, None]
    queries, keys = ((here == segments) & (here >= 0)).nonzero(as_tuple=True)
    queries = queries + rows.start
    others = queries != keys
    return queries[others], keys[others]


def measure(layer: Layer, options: Options) -> Iterator[Measurement]:
    """Every pattern that the layer's tokens can have, of every head."""
    need_token_attention(layer)
    if layer.record.origin is not None:
        raise NotApplicable("cuts the image into windows, and each attends within itself")
    attention = layer_attention(layer, options.method)
    *_, queries, keys = attention.shape
    if queries != keys:
        raise NotApplicable(f"attends from {queries} tokens to {keys}, and patterns are of one kind of token")
    if len(layer.token_kinds(keys)) != keys:
        raise NotApplicable(f"attends between {keys} tokens that are not those of the input")
    layer.count_tiled(isinstance(attention, Operands))
    layer.count_unnormalised(math.prod(attention.shape[:2]))
    metrics = {metric.name: metric for metric in ANALYSIS.metrics}
    places = {metric.name: part for metric, part in patterns(layer, keys, options)}
    scores = pattern_scores(attention, places, layer)
    if options.needle is not None:
        needle = torch.stack(
            [copied_keys(_words(layer, keys, number), options.needle) for number in range(len(layer.ids))]
        )
        layer.counts.add(
            f"inputs and layers end with no copy of {options.needle} or more tokens: no retrieval score",
            (needle < 0).all(-1),
        )
        scores[_RETRIEVAL_SCORE.name] = retrieval_scores(attention, needle)
    for name, score in scores.items():
        overlap = name == _PATTERN_UNIFORM.name
        # a share of permuted keys has the mean of uniform attention; the overlap does not depend on their order
        uniform = score.value * 0 + 1 if overlap else score.null.mean
        for kind in null_kinds(options.null):
            null = Null.at(uniform) if kind == "uniform" else score.null
            drawn = "dirichlet" if overlap and kind == "permutation" else kind
            yield Measurement(metrics[name], score.value, null=null, columns={"null": drawn})


def findings(frame: pd.DataFrame, options: Options) -> list[str]:
    """The head that follows each pattern most, beside the null level of its score."""
    heads = frame[frame["head"].notna() & frame["value"].notna()]
    sentences = []
    for metric in ANALYSIS.metrics:
        rows = heads[heads["metric"] == metric.name]
        if rows.empty:
            continue
        rows = rows[rows["null"] == rows["null"].iloc[-1]]  # of both nulls the one that is drawn
        means = rows.groupby(["layer", "head"])["value"].mean()
        layer, head = means.idxmax()
        best = rows[(rows["layer"] == layer) & (rows["head"] == head)]
        score = over_inputs(best)
        sentences.append(
            f"{metric.label.lower()}: most in layer {layer}, head {head}, {score.words('.2f')} "
            f"(null {best['null_mean'].mean():.2f}), {unit_of(score)}"
        )
    return sentences


ANALYSIS = Analysis(
    "attention-patterns",
    "Which simple pattern each head follows: previous, first or own token, induction, local, class, segment, even",
    ("mask", "attn"),
    measure,
    (
        _PATTERN_PREVIOUS,
        _PATTERN_FIRST,
        _PATTERN_INDUCTION,
        _PATTERN_LOCAL,
        _PATTERN_CLASS,
        _PATTERN_SEGMENT,
        _PATTERN_UNIFORM,
        _PATTERN_DIAGONAL,
        _RETRIEVAL_SCORE,
    ),
    Options,
    findings=findings,
)
