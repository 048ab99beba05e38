"""Sigmoid attention (Ramapuram et al. 2025): every weight by itself, rows that need not sum to 1."""

from __future__ import annotations

import math

from jaxtyping import Bool, Float
from torch import Tensor

from workbench.attention.base import MapAttention, attention_mask, checked_mechanism, default_scale


@checked_mechanism
def sigmoid_map(
    q: Float[Tensor, "batch head token head_dim"],
    k: Float[Tensor, "batch head token head_dim"],
    *,
    scale: float | None = None,
    mask: Bool[Tensor, ...] | None = None,
    causal: bool = False,
) -> Float[Tensor, "batch head query key"]:
    """Return σ(scale q kᵀ − log n), n the keys that a query may attend to (Ramapuram et al. 2025, eq. 3).

    Equal logits of zero give 1/(n + 1) each. The paper has one n, the length of the sequence; counted per query, no
    token depends on later ones. Raises InputError for operands that do not fit one another.
    """
    scores = default_scale(scale, q) * (q @ k.mT)
    mask = attention_mask(mask, q, causal=causal)
    if mask is None:
        return (scores - math.log(k.shape[-2])).sigmoid()
    count = mask.expand(*mask.shape[:-1], k.shape[-2]).sum(-1, keepdim=True).clamp_min(1)
    return (scores - count.to(scores).log()).sigmoid().masked_fill(mask.logical_not(), 0.0)


@checked_mechanism
def sigmoid_attention(
    q: Float[Tensor, "batch head token head_dim"],
    k: Float[Tensor, "batch head token head_dim"],
    v: Float[Tensor, "batch head token value_dim"],
    *,
    scale: float | None = None,
    mask: Bool[Tensor, ...] | None = None,
    causal: bool = False,
) -> Float[Tensor, "batch head token value_dim"]:
    """Return σ(scale q kᵀ − log n) v (Ramapuram et al. 2025, eq. 3); see `sigmoid_map`.

    A query that may attend to nothing gets 0. Raises InputError for operands that do not fit one another.
    """
    return sigmoid_map(q, k, scale=scale, mask=mask, causal=causal) @ v


class SigmoidAttention(MapAttention):
    """``sigmoid_attention``; its ``attn`` is `sigmoid_map`."""

    def weights(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        return sigmoid_map(q, k, scale=self.scale, mask=mask)
