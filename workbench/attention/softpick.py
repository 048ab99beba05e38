"""Softpick (Zuhri et al. 2025): a rectified softmax whose rows may be all zero, so that no sink is needed."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from workbench.attention.base import MapAttention, attention_mask, checked_mechanism, default_scale


@checked_mechanism
def softpick_map(
    q: Float[Tensor, "batch head token head_dim"],
    k: Float[Tensor, "batch head token head_dim"],
    *,
    scale: float | None = None,
    mask: Bool[Tensor, ...] | None = None,
    causal: bool = False,
) -> Float[Tensor, "batch head query key"]:
    """Return max(eˣ − 1, 0) / Σ |eˣ − 1| over allowed keys, x = scale q kᵀ (Zuhri et al. 2025, eq. 3).

    A row sums to at most 1; keys of negative logit get exactly 0, and so does a row of zeros. The paper adds 10⁻⁶ to
    the sum, nothing is added here. Raises InputError for operands that do not fit one another.
    """
    scores = default_scale(scale, q) * (q @ k.mT)
    mask = attention_mask(mask, q, causal=causal)
    if mask is not None:
        scores = scores.masked_fill(mask.logical_not(), 0.0)  # e⁰ − 1: neither picked nor in the sum
    largest = scores.detach().amax(-1, keepdim=True).clamp_min(0.0)
    # eˣ − 1, over e to the largest: expm1 keeps small logits exact, the quotient keeps large ones finite
    shifted = torch.where(
        scores > 1,
        (scores - largest).exp() - (-largest).exp(),
        scores.clamp_max(1).expm1() * (-largest).exp(),
    )
    total = shifted.abs().sum(-1, keepdim=True)
    return shifted.relu() / total.masked_fill(total == 0, 1.0)


@checked_mechanism
def softpick_attention(
    q: Float[Tensor, "batch head token head_dim"],
    k: Float[Tensor, "batch head token head_dim"],
    v: Float[Tensor, "batch head token value_dim"],
    *,
    scale: float | None = None,
    mask: Bool[Tensor, ...] | None = None,
    causal: bool = False,
) -> Float[Tensor, "batch head token value_dim"]:
    """Return softpick(scale q kᵀ) v (Zuhri et al. 2025); see `softpick_map`.

    A query that may attend to nothing gets 0. Raises InputError for operands that do not fit one another.
    """
    return softpick_map(q, k, scale=scale, mask=mask, causal=causal) @ v


class SoftpickAttention(MapAttention):
    """``softpick_attention``; its ``attn`` is `softpick_map`."""

    def weights(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        return softpick_map(q, k, scale=self.scale, mask=mask)
