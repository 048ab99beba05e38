"""Attention logits split by what meets what: content and position of the query, content and position of the key.

With the attention's input x = y + p, and q = W_q x + b_q, k = W_k x + b_k, the logits s q·k are a sum of four matrices
(abdullaev2025 Fig. 2; Ke et al. 2021). Biases belong to the content, so that the sum is exact.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from workbench.analyses import validation
from workbench.core.errors import InputError

TERMS = ("token-token", "token-position", "position-token", "position-position")
"""Query, then key: "token-position" is the content of the query with the position of the key."""
OWN, CROSS = (0, 3), (1, 2)
_AXES = ("query", "key")


class Shares(NamedTuple):
    """Variance of logits within rows, in units of that of the whole logits, each (*batch)."""

    terms: Float[Tensor, "*batch term"]
    """Of each term; with ``covariances`` they add up to 1."""
    covariances: Tensor
    """Twice the sum of the covariances of all pairs of terms; negative where terms cancel."""
    cross: Tensor
    """Of token-position + position-token."""


def split_projection(
    x: Float[Tensor, "batch token width"],
    p: Float[Tensor, "batch token width"],
    weight: Float[Tensor, "head width head_dim"],
    bias: Float[Tensor, "head head_dim"] | None = None,
) -> tuple[Float[Tensor, "batch head token head_dim"], Float[Tensor, "batch head token head_dim"]]:
    """What the content x − p and the position p become in every head, in float64; the bias goes with the content.

    Raises `InputError` where x and p differ in shape, for missing axes, NaN or infinite values.
    """
    for name, tensor in (("x", x), ("p", p)):
        validation.check_axes(name, tensor, validation.HIDDEN)
        validation.check_finite(name, tensor, validation.HIDDEN)
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
    """The four `TERMS` of s q·k, from queries and keys as (content, position); their sum is the logits."""
    factor = validation.check_scale(scale, q[0].shape[:-2], q[0])
    return torch.stack([factor * (of_query @ of_key.mT) for of_query in q for of_key in k], -3)


def within_rows(
    logits: Float[Tensor, "*batch query key"], allowed: Bool[Tensor, "*#batch query key"] | None = None
) -> Float[Tensor, "*batch query key"]:
    """Logits less the mean of their row, which softmax does not see; 0 at keys that the query may not attend to."""
    if allowed is None:
        return logits - logits.mean(-1, keepdim=True)
    count = allowed.sum(-1, keepdim=True).clamp(min=1)
    mean = torch.where(allowed, logits, 0.0).sum(-1, keepdim=True) / count
    return torch.where(allowed, logits - mean, 0.0)


def logit_shares(
    terms: Float[Tensor, "*batch term query key"], allowed: Bool[Tensor, "*#batch query key"] | None = None
) -> Shares:
    """How much of the variance of the logits each term has, within rows: over the keys that a query may attend to.

    var T_a / var ΣT for the four terms, and 2 Σ_{a<b} cov(T_a, T_b) / var ΣT for what is left: the five add up to 1.
    NaN where the logits do not vary. Raises `InputError` for fewer than two keys, NaN or infinite values.
    """
    parts = _centred(terms, allowed)
    whole = parts.sum(-3).square().sum((-2, -1))
    whole = torch.where(whole > 0, whole, torch.nan)
    own = parts.square().sum((-2, -1)) / whole[..., None]
    cross = parts[..., CROSS, :, :].sum(-3).square().sum((-2, -1)) / whole
    return Shares(own, 1 - own.sum(-1), cross)


class CrossCorrelation(NamedTuple):
    """Correlations of the cross terms with the others: of token-position, position-token, and their sum."""

    observed: Float[Tensor, "*batch 3"]
    shuffled: Float[Tensor, "*batch 3 draw"]
    """The same with the positions of the cross terms in another order."""


def cross_correlation(
    terms: Float[Tensor, "*batch term query key"],
    orders: Int[Tensor, "*batch draw token"],
    allowed: Bool[Tensor, "*#batch query key"] | None = None,
) -> CrossCorrelation:
    """Do the cross terms go with token-token + position-position, or are they noise beside it?

    Correlation within rows, between −1 and 1, of each cross term, and of both together, with the sum of the two
    others. abdullaev2025 §III-C takes the cross terms for noise, independent of that sum. A draw shuffles the positions
    over the tokens by one order, in both cross terms and nowhere else, and keeps the observed standard deviations,
    which no order changes where every query sees every key: the variance of a row knows no order of its keys, and so
    this is what a shuffle can test, and the share of variance is not. NaN where a term does not vary.
    """
    parts = _centred(terms, allowed)
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
    validation.check_axes("terms", terms, _AXES)
    validation.check_token_count("terms", terms.shape[-1])
    validation.check_finite("terms", terms, _AXES)
    return within_rows(terms.double(), None if allowed is None else allowed[..., None, :, :])


def _without_offset(term: Tensor) -> Tensor:
    """The term less each row's mean over all keys: nothing to the sums, and fewer digits are lost in them."""
    return term - term.mean(-1, keepdim=True)
