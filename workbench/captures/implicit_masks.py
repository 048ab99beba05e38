"""Masks that a kernel applies without being given one as a tensor, written out: causal, windowed, packed, flex.

FlashAttention (Dao 2024) aligns queries with the last keys, so that query i of Q may see keys up to i + K − Q of K.
FlexAttention (Dong et al. 2024) takes functions of (batch, head, query, key) that are evaluated at every entry.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor


def causal_mask(queries: int, keys: int, device: torch.device) -> Tensor:
    """(1, 1, query, key), true where the key is not later than the query, counted from the start."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril()[None, None]


@dataclass(frozen=True)
class Places:
    """In which sequence tokens are, and where in it: (batch or 1, token) each; sequence −1 for padding."""

    sequence: Int[Tensor, "batch token"]
    position: Int[Tensor, "batch token"]


def in_a_row(queries: int, keys: int, device: torch.device) -> tuple[Places, Places]:
    """Return places of queries and keys of one sequence, the last query beside the last key."""
    nowhere = torch.zeros(1, max(queries, keys), dtype=torch.long, device=device)
    steps = torch.arange(keys, device=device)[None]
    rows = torch.arange(queries, device=device)[None] + keys - queries
    return Places(nowhere[:, :queries], rows), Places(nowhere[:, :keys], steps)


def in_padded_rows(padding: Tensor, queries: int, keys: int) -> tuple[Places, Places]:
    """Return places of queries and keys without padding, where ``padding`` (batch, key) is 0."""
    real = torch.nn.functional.pad(padding.bool(), (0, max(0, keys - padding.shape[1])))[:, :keys]
    asking = real if queries == keys else padding.bool()[:, -queries:]
    if queries == 1 != keys:
        asking = torch.ones_like(asking)
    more = real.sum(dim=-1, keepdim=True) - asking.sum(dim=-1, keepdim=True)
    return (
        Places(asking.long() - 1, asking.cumsum(dim=-1) - 1 + more),
        Places(real.long() - 1, real.cumsum(dim=-1) - 1),
    )


def in_packed_rows(
    starts_q: Tensor, starts_k: Tensor, queries: int, keys: int, used: Tensor | None = None
) -> tuple[Places, Places]:
    """Return places of tokens in packed sequences, which begin at ``starts`` (the last is their end).

    With ``used`` only the first keys of each sequence count.
    """

    def places(starts: Tensor, count: int) -> tuple[Tensor, Tensor]:
        steps = torch.arange(count, device=starts.device)
        sequence = torch.searchsorted(starts.contiguous(), steps.to(starts.dtype), right=True) - 1
        sequence = sequence.masked_fill(steps >= starts[-1], -1)
        return sequence, steps - starts[sequence.clamp(min=0)]

    (sequence_q, row), (sequence_k, column) = places(starts_q, queries), places(starts_k, keys)
    lengths = starts_k.diff() if used is None else used
    of_query, of_key = sequence_q.clamp(min=0), sequence_k.clamp(min=0)
    sequence_k = sequence_k.masked_fill(column >= lengths[of_key], -1)
    row = row + (lengths - starts_q.diff())[of_query]
    return Places(sequence_q[None], row[None]), Places(sequence_k[None], column[None])


def starts_of(position_ids: Tensor) -> Tensor:
    """Return the starts of packed sequences whose positions start again, and their end."""
    flat = position_ids.reshape(-1)
    starts = (flat == flat.min()).nonzero().view(-1)
    return torch.cat([starts, starts.new_tensor([flat.numel()])])


def allowed(
    queries: Places, keys: Places, causal: bool, window: Sequence[int | None] = (-1, -1)
) -> Bool[Tensor, "batch 1 query key"] | None:
    """Return the keys that a query may see: of its sequence, none later if ``causal``, none outside ``window``.

    The window counts keys to the left and right of the query, without bound where it is negative or None. None where
    everything may be seen.
    """
    distance = (queries.position[:, :, None] - keys.position[:, None, :])[:, None]
    left, right = (-1 if side is None else side for side in window)
    right = 0 if causal else right
    same = queries.sequence[:, :, None] == keys.sequence[:, None, :]
    seen = (same & (queries.sequence >= 0)[:, :, None])[:, None]
    if right >= 0:
        seen = seen & (distance >= -right)
    if left >= 0:
        seen = seen & (distance <= left)
    return None if bool(seen.all()) else seen


def linear_bias(queries: Places, keys: Places, slopes: Tensor) -> Tensor:
    """Minus slope times distance, (batch, head, query, key): attention with linear biases (Press et al. 2022)."""
    distance = (queries.position[:, :, None] - keys.position[:, None, :])[:, None].abs()
    slopes = slopes if slopes.ndim == 2 else slopes[None]
    return -slopes[:, :, None, None] * distance


def block_mask(mask: Any, queries: int, keys: int, device: torch.device) -> Tensor | None:
    """A BlockMask of FlexAttention as (batch, head, query, key), true where a query may attend; None if all may."""
    from torch.nn.attention.flex_attention import create_mask

    batch, heads = mask.shape[:2]
    seen = create_mask(mask.mask_mod, batch, heads, queries, keys, device=device)
    return None if bool(seen.all()) else seen


def modified_scores(score_mod: Callable[..., Tensor], scores: Tensor) -> Tensor:
    """Return the output of a score_mod of FlexAttention on scores (batch, head, query, key)."""
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

    mapped = score_mod
    for axis in (3, 2, 1, 0):
        along = [0 if axis == other else None for other in range(4)]
        mapped = torch.vmap(mapped, in_dims=(0, *along))
    places = [torch.arange(size, device=scores.device) for size in scores.shape]
    with TransformGetItemToIndex():  # a score_mod may look its places up in a tensor
        return mapped(scores, *places)
