"""Attention logits split by what meets what: content and position of the query, content and position of the key.

With the attention's input x = y + p, and q = W_q x + b_q, k = W_k x + b_k, the logits s q·k are a sum of four matrices
(abdullaev2025 Fig. 2; Ke et al. 2021). Biases belong to the content, so that the sum is exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import pandas as pd
import torch
from annotated_types import Ge
from jaxtyping import Bool, Float, Int
from torch import Tensor

from workbench.analyses.layer import (
    Layer,
    NotApplicable,
    need_room_for_maps,
    need_token_attention,
    visible_of,
)
from workbench.analyses.registry import Analysis, OfHeads, OfMatrices, Single
from workbench.core import operands
from workbench.core.errors import InputError
from workbench.core.operands import check_axes, check_finite, checked_tensors
from workbench.core.options import Accepted, NullSamples
from workbench.frames.estimate import compare_with_null, over_inputs
from workbench.frames.measurement import Measurement
from workbench.frames.metric import Metric

TERMS = ("token-token", "token-position", "position-token", "position-position")
"""Query, then key: "token-position" is the content of the query with the position of the key."""
OWN, CROSS = (0, 3), (1, 2)
_AXES = ("query", "key")
_WHOLE = (
    "it forms the four terms of the logits, of models that add positions to their tokens, whose contexts are of a few "
    "thousand tokens at most"
)
_CORRELATED = ("token-position", "position-token", "cross")


@dataclass(frozen=True)
class Options(OfHeads):
    """Precision of the null distribution of the cross terms."""

    method: Annotated[
        Literal["auto", "dense"],
        "matrices of tokens × tokens are formed whole",
        Accepted(f"'auto' or 'dense': {_WHOLE}"),
    ] = "auto"
    null_samples: Annotated[
        NullSamples,
        "samples of the null distribution of the cross terms, positions shuffled over tokens, at least 2; 0 leaves it "
        "out",
    ] = 20
    single: Single = False


@dataclass(frozen=True)
class PairOptions(OfMatrices):
    """How much of long inputs to show pair by pair."""

    max_tokens: Annotated[Annotated[int, Ge(1)], "how many tokens of each input, from its first"] = 80


_LOGIT_SHARE = Metric(
    "logit_share",
    "Share of logit variance",
    "variance within rows (over the keys a query may attend to) of a term of the logits, over that of the "
    "logits: token-token, token-position, position-token, position-position (query first), and "
    "covariances, which add up to 1; cross: of token-position + position-token",
    "abdullaev2025 Fig. 2",
)
_LOGIT_CORRELATION = Metric(
    "logit_correlation",
    "Correlation with the other logits",
    "correlation within rows of token-position, position-token or both (cross) with token-token + "
    "position-position; statistic abs: its absolute value; null distribution: positions shuffled over tokens",
    "abdullaev2025 §III-C",
    low=-1,
    high=1,
)


class Shares(NamedTuple):
    """Variance of logits within rows, in units of that of the whole logits, each (*batch)."""

    terms: Float[Tensor, "*batch term"]
    """Of each term; with ``covariances`` they add up to 1."""
    covariances: Tensor
    """Twice the sum of the covariances of all pairs of terms; negative where terms cancel."""
    cross: Tensor
    """Of token-position + position-token."""


@checked_tensors
def split_projection(
    x: Float[Tensor, "batch token width"],
    p: Float[Tensor, "batch token width"],
    weight: Float[Tensor, "head width head_dim"],
    bias: Float[Tensor, "head head_dim"] | None = None,
) -> tuple[Float[Tensor, "batch head token head_dim"], Float[Tensor, "batch head token head_dim"]]:
    """Project the content x − p and the position p in every head, in float64; the bias goes with the content.

    The split is that of abdullaev2025 Fig. 2.

    Raises `InputError` where x and p differ in shape, for missing axes, NaN or infinite values.
    """
    for name, tensor in (("x", x), ("p", p)):
        check_axes(name, tensor, operands.HIDDEN)
        check_finite(name, tensor, operands.HIDDEN)
    if x.shape != p.shape:
        raise InputError(f"x has shape {tuple(x.shape)}, but p {tuple(p.shape)}; give one position per token")
    x, p, weight = x.double()[:, None], p.double()[:, None], weight.double()
    content = (x - p) @ weight
    return content if bias is None else content + bias.double()[:, None], p @ weight


def logit_terms(
    q: tuple[Float[Tensor, "*batch query head_dim"], Float[Tensor, "*batch query head_dim"]],
    k: tuple[Float[Tensor, "*batch key head_dim"], Float[Tensor, "*batch key head_dim"]],
    scale: float | Tensor,
) -> Float[Tensor, "*batch term query key"]:
    """The four `TERMS` of s q·k (abdullaev2025 Fig. 2), from (content, position) of q and k; they add up."""
    factor = operands.check_scale(scale, q[0].shape[:-2], q[0])
    return torch.stack([factor * (of_query @ of_key.mT) for of_query in q for of_key in k], -3)


@checked_tensors
def within_rows(
    logits: Float[Tensor, "*batch query key"], allowed: Bool[Tensor, "*#batch query key"] | None = None
) -> Float[Tensor, "*batch query key"]:
    """Logits less the mean of their row, which softmax does not see; 0 at keys that the query may not attend to."""
    if allowed is None:
        return logits - logits.mean(-1, keepdim=True)
    count = allowed.sum(-1, keepdim=True).clamp(min=1)
    if allowed.all():
        return logits - logits.sum(-1, keepdim=True) / count
    mean = torch.where(allowed, logits, 0.0).sum(-1, keepdim=True) / count
    return torch.where(allowed, logits - mean, 0.0)


@checked_tensors
def logit_shares(
    terms: Float[Tensor, "*batch term query key"], allowed: Bool[Tensor, "*#batch query key"] | None = None
) -> Shares:
    """How much of the variance of the logits each term has, within rows: over the keys that a query may attend to.

    The terms are those of abdullaev2025 Fig. 2; the shares are ours.

    var T_a / var ΣT for the four terms, and 2 Σ_{a<b} cov(T_a, T_b) / var ΣT for the rest: the five add up to 1.
    NaN where the logits do not vary. Raises `InputError` for fewer than two keys, NaN or infinite values.
    """
    return _shares(_centred(terms, allowed))


def _shares(parts: Tensor) -> Shares:
    """`logit_shares` of terms within rows."""
    variance = parts.sum(-3).square().sum((-2, -1))
    variance = torch.where(variance > 0, variance, torch.nan)
    shares = parts.square().sum((-2, -1)) / variance[..., None]
    cross = parts[..., CROSS, :, :].sum(-3).square().sum((-2, -1)) / variance
    return Shares(shares, 1 - shares.sum(-1), cross)


class CrossCorrelation(NamedTuple):
    """Correlations of the cross terms with the others: of token-position, position-token, and their sum."""

    observed: Float[Tensor, "*batch 3"]
    shuffled: Float[Tensor, "*batch 3 draw"]
    """The same with the positions of the cross terms in another order."""


@checked_tensors
def cross_correlation(
    terms: Float[Tensor, "*batch term query key"],
    orders: Int[Tensor, "*batch draw token"],
    allowed: Bool[Tensor, "*#batch query key"] | None = None,
) -> CrossCorrelation:
    """Do the cross terms go with token-token + position-position, or are they noise beside it?

    Correlation within rows, between −1 and 1, of each cross term, and of both together, with the sum of the two
    others. abdullaev2025 §III-C takes the cross terms for noise, independent of that sum. A null sample shuffles the
    positions over the tokens by one order, in both cross terms and nowhere else, and keeps the observed standard
    deviations, which no order changes where every query sees every key: the variance of a row knows no order of its
    keys, and so this is what a shuffle can test, and the share of variance is not. NaN where a term does not vary.
    """
    return _correlation(terms, _centred(terms, allowed), orders)


def _correlation(terms: Tensor, parts: Tensor, orders: Tensor) -> CrossCorrelation:
    """`cross_correlation` of terms, and the same terms within rows."""
    rest = parts[..., OWN, :, :].sum(-3)
    by_key, by_query = (parts[..., term, :, :] for term in CROSS)
    size = rest.square().sum((-2, -1)).sqrt()
    both = by_key + by_query
    sizes = torch.stack([part.square().sum((-2, -1)).sqrt() * size for part in (by_key, by_query, both)], -1)
    sizes = torch.where(sizes > 0, sizes, torch.nan)
    # Σ_ij T_iπ(j) R_ij and Σ_ij T_π(i)j R_ij need one product of matrices for all orders. Raw terms: a shuffled key
    # may be one that the query does not see, and rows of R add up to 0.
    raw_key, raw_query = (_without_offset(terms[..., term, :, :].double()) for term in CROSS)
    products = (rest.mT @ raw_key, rest @ raw_query.mT)  # (token, token that takes its place)
    shuffled = [product.gather(-1, orders.mT).sum(-2) for product in products]
    observed = [(part * rest).sum((-2, -1)) for part in (by_key, by_query)]
    return CrossCorrelation(
        torch.stack([*observed, observed[0] + observed[1]], -1) / sizes,
        torch.stack([*shuffled, shuffled[0] + shuffled[1]], -2) / sizes[..., None],
    )


def shuffled_orders(
    tokens: int, null_samples: int, generator: torch.Generator, real: Bool[Tensor, " token"] | None = None
) -> Int[Tensor, "draw token"]:
    """Random orders of the real tokens; padding stays where it is."""
    places = torch.arange(tokens)
    chosen = places if real is None else places[real.cpu()]
    orders = places.repeat(null_samples, 1)
    for order in orders:
        order[chosen] = chosen[torch.randperm(len(chosen), generator=generator)]
    return orders


def _centred(terms: Tensor, allowed: Tensor | None) -> Tensor:
    """Terms within rows, in float64."""
    if terms.ndim < 3 or terms.shape[-3] != len(TERMS):
        raise InputError(f"terms have shape {tuple(terms.shape)}; expected (…, {len(TERMS)}, query, key)")
    check_axes("terms", terms, _AXES)
    operands.check_token_count("terms", terms.shape[-1])
    check_finite("terms", terms, _AXES)
    return within_rows(terms.double(), None if allowed is None else allowed[..., None, :, :])


def _without_offset(term: Tensor) -> Tensor:
    """The term less each row's mean over all keys: nothing to the sums, and fewer digits are lost in them."""
    return term - term.mean(-1, keepdim=True)


def terms_of_layer(
    layer: Layer,
) -> tuple[Float[Tensor, "batch head 4 query key"], Bool[Tensor, "batch head query key"]]:
    """The four terms of the chosen heads' logits, and which keys each query may attend to.

    Raises `NotApplicable` where queries and keys are not projections of the attention's input.
    """
    need_token_attention(layer)
    need_room_for_maps(layer, 2 * len(TERMS), _WHOLE)
    x, p = layer.site("input"), layer.site("position")
    if x.shape != p.shape:
        raise NotApplicable(f"receives {x.shape[1]} tokens, and the positions of only {p.shape[1]} are known")
    q, k = (
        split_projection(x, p, projection.weight, projection.bias)
        for projection in (layer.projection("q"), layer.projection("k"))
    )
    heads = q[0].shape[1]
    content, position = (layer.choose_heads(part) for part in q)
    kept = [layer.choose_heads(part.repeat_interleave(heads // part.shape[1], 1)) for part in k]
    terms = logit_terms((content, position), (kept[0], kept[1]), layer.scale(content.shape[-1], heads))
    return terms, _allowed(layer, terms[:, :, 0])


def measure(layer: Layer, options: Options) -> Iterator[Measurement]:
    """Share of logit variance of each term, and the correlation of the cross terms with the others ."""
    terms, allowed = terms_of_layer(layer)
    parts = _centred(terms, allowed)
    shares = _shares(parts)
    for number, candidate in enumerate(TERMS):
        yield Measurement(_LOGIT_SHARE, shares.terms[..., number], columns={"candidate": candidate})
    yield Measurement(_LOGIT_SHARE, shares.covariances, columns={"candidate": "covariances"})
    yield Measurement(_LOGIT_SHARE, shares.cross, columns={"candidate": "cross"})
    correlation = _correlation(terms, parts, _orders(layer, terms, options.null_samples))
    for number, candidate in enumerate(_CORRELATED):
        observed, shuffled = correlation.observed[..., number], correlation.shuffled[..., number, :]
        for statistic, value, null_samples in (
            (None, observed, shuffled),
            ("abs", observed.abs(), shuffled.abs()),
        ):
            columns = {"candidate": candidate} | ({} if statistic is None else {"statistic": statistic})
            drawn = {"permutation": null_samples} if options.null_samples else {}
            yield Measurement(_LOGIT_CORRELATION, value, columns=columns, null_samples=drawn)


def pair_rows(layer: Layer, options: PairOptions) -> Iterator[pd.DataFrame]:
    """The logits of each head and their parts, as rows: head, term, query, key, value (abdullaev2025 Fig. 2).

    Terms are the four `TERMS`, their ``sum``, and ``model``, the logits of the captured queries and keys, each less the
    mean of its row, which softmax does not see; NaN where the query may not attend. Padding is left out.
    """
    terms, allowed = terms_of_layer(layer)
    queries = layer.site("q")
    q = layer.choose_heads(queries).double()
    k = layer.of_queries(layer.site("k"), queries.shape[1]).double()
    factor = operands.check_scale(layer.scale(q.shape[-1], queries.shape[1]), q.shape[:-2], q)
    head_logits = factor * (q @ k.mT)
    all_logits = torch.cat([terms, terms.sum(2, keepdim=True), head_logits[:, :, None]], 2)
    logits = within_rows(all_logits, allowed[:, :, None]).masked_fill(~allowed[:, :, None], torch.nan).cpu()
    real = layer.real_tokens(head_logits.shape[-1])
    for number, name in enumerate(layer.ids):
        places = [token for token in range(head_logits.shape[-1]) if real is None or real[number, token]]
        places = places[: options.max_tokens]
        axes = {"head": layer.heads, "term": [*TERMS, "sum", "model"], "query": places, "key": places}
        rows = pd.MultiIndex.from_product([*axes.values()], names=[*axes]).to_frame(index=False)
        rows.insert(0, "layer", layer.index)
        rows.insert(0, "input", name)
        yield rows.assign(value=logits[number][:, :, places][..., places].numpy().ravel())


def _allowed(
    layer: Layer, logits: Float[Tensor, "batch head query key"]
) -> Bool[Tensor, "batch head query key"]:
    """True where a real query may attend to a real key."""
    seen = visible_of(layer, logits)
    seen = torch.ones_like(logits, dtype=torch.bool) if seen is None else seen
    real = layer.real_on(logits, -1)
    if real is None:
        return seen
    return seen & real[:, None, None, :] & real[:, None, :, None]


def _orders(layer: Layer, terms: Tensor, null_samples: int) -> Tensor:
    batch, heads, _, _, tokens = terms.shape
    real = layer.real_tokens(tokens)
    places = layer.seeds(batch)
    orders = [
        shuffled_orders(
            tokens,
            null_samples,
            torch.Generator().manual_seed(seed),
            None if real is None else real[row // heads],
        )
        for row, seed in enumerate(places)
    ]
    return torch.stack(orders).unflatten(0, (batch, heads)).to(terms.device)


def findings(frame: pd.DataFrame, options: Options) -> list[str]:
    """The shares of the logits' variance, and how the cross terms go with the others, beside shuffled positions."""
    shares = {
        str(candidate): over_inputs(rows)
        for candidate, rows in frame[frame["metric"] == _LOGIT_SHARE.name].groupby("candidate")
    }
    if not {*TERMS, "covariances", "cross"} <= {*shares}:
        return []
    parts = [f"{name.replace('-', '–')} {shares[name].words('.0%')}" for name in (*TERMS, "covariances")]
    sentences = [
        f"of the logits' variance within rows {', '.join(parts)}, {shares['cross'].over('inputs')}, of layers and heads"
        " together"
    ]
    correlated = frame[(frame["metric"] == _LOGIT_CORRELATION.name) & (frame["candidate"] == "cross")]
    if len(size := correlated[correlated["statistic"] == "abs"]):
        size_over_inputs = over_inputs(size)
        sentences.append(
            f"the cross terms together have {shares['cross'].words('.0%')} of it, and their correlation with the "
            f"others is |r| = {size_over_inputs.words()}, {size_over_inputs.over('inputs')}{compare_with_null(size)}"
        )
    return sentences


_SITES = ("input", "q", "k", "scale", "mask", "position")
ANALYSIS = Analysis(
    "position-logits",
    "Attention logits split by content and position",
    _SITES,
    measure,
    (_LOGIT_SHARE, _LOGIT_CORRELATION),
    Options,
    findings=findings,
    finer=(
        Analysis(
            "position-logits",
            "Attention logits and their parts, for every query and key",
            _SITES,
            pair_rows,
            (),
            PairOptions,
            per="pair",
        ),
    ),
)
