"""What one query attends to: the class token's row of attention, as it is and rolled out through the layers.

The maps of wu2025 Figs 5, 10 and abdullaev2025 Figs 4, 6, in numbers.

A row is (*batch, key) and sums to 1 over keys. Tokens that are no part of the input (class, distillation, register,
special) share it with those that are, the patches or words, its content; measures of where attention lies look at the
content alone, with its share scaled to 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from workbench.analyses import validation
from workbench.core.errors import InputError

PREFIX = ("class", "distillation", "register", "special")
"""Kinds of tokens that are no part of the image or the text."""


def query_attention(
    attn: Float[Tensor, "*batch head query key"], query: Float[Tensor, "*batch query"]
) -> Float[Tensor, "*batch head key"]:
    """The row of attention of one query, or the mean of several: ``query`` holds the weight of each, summing to 1.

    float64; rows of weight 0 do not matter, whatever they hold. Raises `InputError` where the weights do not fit.
    """
    validation.check_axes("attn", attn, validation.ATTENTION)
    if query.shape != (*attn.shape[:-3], attn.shape[-2]):
        raise InputError(
            f"query of shape {tuple(query.shape)} does not fit attention of shape {tuple(attn.shape)}; expected one "
            "weight per query of each input"
        )
    read = (query > 0).flatten(0, -2).any(0)
    weights = query[..., read].to(attn.device, torch.float64)[..., None, :, None]
    return torch.where(weights > 0, weights * attn[..., read.to(attn.device), :].double(), 0.0).sum(-2)


def is_causal(
    attn: Float[Tensor, "*batch head token other_token"], real: Bool[Tensor, "*batch token"]
) -> bool:
    """Whether no ``real`` token attends to a later one, in any head; never for a single token."""
    ahead = torch.triu(attn, 1).any(-1) & real.to(attn.device)[..., None, :]
    return attn.shape[-1] > 1 and not bool(ahead.any())


def attention_rollout(
    maps: Sequence[Float[Tensor, "*batch head token token"]], query: Float[Tensor, "*batch token"]
) -> Float[Tensor, "*batch token"]:
    """What a query draws from each input token through several layers: query · Ã_L ⋯ Ã_1 (Abnar & Zuidema 2020).

    Ã is the mean of A over heads plus the identity, for the residual connection, its rows scaled to 1. ``maps`` come in
    the order of the layers, the first one first; ``query`` as in `query_attention`. float64. Raises `InputError`
    without a layer, and for maps of another number of tokens.
    """
    if not len(maps):  # a stack of maps has no truth value
        raise InputError("rollout needs the attention of at least one layer")
    row = query.double()
    for number, attn in reversed(list(enumerate(maps))):
        validation.check_axes("maps", attn, validation.ATTENTION)
        if attn.shape[-2:] != (row.shape[-1],) * 2:
            raise InputError(
                f"rollout multiplies maps of the same tokens; number {number} of shape {tuple(attn.shape)} does not "
                f"fit {row.shape[-1]} tokens"
            )
        attn = attn.double().mean(-3)
        row = row / (attn.sum(-1) + 1)
        row = row + (row[..., None, :] @ attn).squeeze(-2)
    return row


class Concentration(NamedTuple):
    """Of a row over its content, each (*batch,), NaN where there are fewer than two tokens.

    entropy_share: entropy over the log of the number of tokens. spread: root mean square distance from the centre, over
    that of even attention (0: one place; 1: as far apart as all tokens).
    """

    entropy_share: Tensor
    spread: Tensor


def concentration(
    row: Float[Tensor, "*batch key"],
    content: Bool[Tensor, "*batch key"],
    positions: Float[Tensor, "key space"] | None = None,
) -> Concentration:
    """How evenly a row attends to patches or words (``content``), and how far apart they are.

    ``positions`` are coordinates of the tokens, finite where there is content; without them spread is NaN.
    """
    kept = _inside(row, content)
    count = content.sum(-1).to(row.device)
    entropy = torch.special.entr(kept).sum(-1) / count.double().log()
    spread = torch.full_like(entropy, math.nan)
    if positions is not None:
        even = content.to(kept) / count[..., None]
        spread = (_scatter(kept, positions) / _scatter(even, positions)).sqrt()
    return Concentration(*(torch.where(count > 1, x, torch.nan) for x in (entropy, spread)))


def _inside(row: Tensor, content: Tensor) -> Tensor:
    """The row on its content alone, scaled to 1; NaN where it gives that nothing."""
    if content.dtype != torch.bool or content.shape[-1] != row.shape[-1]:
        raise InputError(
            f"content must be boolean over {row.shape[-1]} keys; got {content.dtype} of shape {tuple(content.shape)}"
        )
    kept = torch.where(content.to(row.device), row.double(), 0.0)
    return kept / kept.sum(-1, keepdim=True)


def _scatter(weights: Tensor, positions: Tensor) -> Tensor:
    """Σ_j w_j |p_j − p̄|² with p̄ = Σ_j w_j p_j; tokens without weight may lie nowhere (NaN)."""
    placed = torch.nan_to_num(positions.to(weights))
    centre = weights @ placed
    return (weights * (placed - centre[..., None, :]).square().sum(-1)).sum(-1)


def head_diversity(
    rows: Float[Tensor, "*batch head key"], content: Bool[Tensor, "*batch key"]
) -> Float[Tensor, "*batch"]:
    """How far the heads look at different content: their Jensen–Shannon divergence over log(heads).

    H(mean over heads) − mean over heads of H, of what each gives to the content, scaled to 1. 0 where all heads attend
    alike, 1 where no two attend to the same token; NaN for a single head.
    """
    kept = _inside(rows, content[..., None, :])
    entropy = torch.special.entr(kept).sum(-1)
    joint = torch.special.entr(kept.mean(-2)).sum(-1)
    heads = rows.shape[-2]
    if heads == 1:
        return torch.full_like(joint, math.nan)
    return (joint - entropy.mean(-1)).clamp_min(0.0) / math.log(heads)


def map_diversity(
    attn: Float[Tensor, "*batch head query key"],
    queries: Bool[Tensor, "*batch query"] | None = None,
    keys: Bool[Tensor, "*batch key"] | None = None,
) -> Float[Tensor, "*batch"]:
    """`head_diversity` of every query, mean over the real ones; ``queries`` and ``keys`` mark real tokens.

    NaN for a single head, and where no query attends to anything.
    """
    *batch, _, n_queries, n_keys = attn.shape
    seen = torch.ones(*batch, n_keys, dtype=torch.bool) if keys is None else keys
    rows = attn.transpose(-3, -2)
    found = head_diversity(rows, seen.to(attn.device)[..., None, :].expand(*batch, n_queries, n_keys))
    return (
        found.nanmean(-1)
        if queries is None
        else found.masked_fill(~queries.to(found.device), math.nan).nanmean(-1)
    )


def permuted_heads(
    attn: Float[Tensor, "head query key"],
    visible: Bool[Tensor, "head query key"],
    source: torch.Generator,
) -> Float[Tensor, "head query key"]:
    """The same weights with the visible keys of every head and query in an order of their own: heads look anywhere.

    Keys that may be seen come first, whichever they are; what heads have in common does not depend on their names.
    """
    order = torch.rand(attn.shape, generator=source).masked_fill(~visible.cpu(), 2.0).argsort(-1)
    return attn.gather(-1, order.to(attn.device))


def mask_share(
    row: Float[Tensor, "*batch patch"], foreground: Bool[Tensor, "*batch patch"]
) -> Float[Tensor, "*batch"]:
    """Attention on the foreground as a share of that on all patches; even attention gives the foreground's area.

    NaN where the foreground holds no patch, or every one: the share is 0 or 1 whatever the attention.
    """
    kept = _inside(row, torch.ones_like(row, dtype=torch.bool))
    share = torch.where(foreground.to(row.device), kept, 0.0).sum(-1)
    defined = (foreground.any(-1) & ~foreground.all(-1)).to(row.device)
    return torch.where(defined, share, torch.nan)
