"""Differential attention (Ye et al. 2025): the difference of two softmax maps, so that common noise cancels."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from workbench.attention.base import (
    AttentionModule,
    attention_mask,
    checked_mechanism,
    default_scale,
    masked_softmax,
)


@checked_mechanism
def differential_map(
    q: Float[Tensor, "batch head token head_dim"],
    k: Float[Tensor, "batch head token head_dim"],
    other_q: Float[Tensor, "batch head token head_dim"],
    other_k: Float[Tensor, "batch head token head_dim"],
    *,
    weight: float | Tensor = 0.8,
    scale: float | None = None,
    mask: Bool[Tensor, ...] | None = None,
    causal: bool = False,
) -> Float[Tensor, "batch head query key"]:
    """Return softmax(scale q kᵀ) − λ softmax(scale q′ k′ᵀ), λ the ``weight`` (Ye et al. 2025, eq. 1).

    Rows sum to 1 − λ, and entries may be negative; λ = 0 is softmax attention. Raises InputError for operands that do
    not fit one another.
    """
    factor, allowed = default_scale(scale, q), attention_mask(mask, q, causal=causal)
    first = masked_softmax(factor * q @ k.mT, allowed)
    return first - weight * masked_softmax(factor * other_q @ other_k.mT, allowed)


def initial_weight(layer: int) -> float:
    """Return where λ starts in a layer, counted from 0: 0.8 − 0.6 exp(−0.3 layer) (Ye et al. 2025, eq. 3)."""
    return 0.8 - 0.6 * math.exp(-0.3 * layer)


class DifferentialAttention(AttentionModule):
    """Differential attention with λ learned per layer, and each head's output normalised (Ye et al. 2025, eq. 2, 3).

    λ = exp(λ_q · λ_k) − exp(λ_q′ · λ_k′) + its start. Every head has a second pair of queries and keys as wide as the
    first; the paper halves the number of heads instead. ``attn`` is `differential_map`; a head returns
    RMSNorm(attn v), times 1 − the start of λ.
    """

    sites = ("q", "k", "v", "attn", "other_q", "other_k")
    projections = ("q", "k", "v", "other_q", "other_k")

    def __init__(self, dim: int, num_heads: int, **shared: Any) -> None:
        super().__init__(dim, num_heads, **shared)
        self.start = initial_weight(self.layer)
        # λ_q, λ_k, λ_q′, λ_k′
        self.weights = nn.Parameter(nn.init.normal_(torch.empty(4, self.head_dim), std=0.1))
        self.gain = nn.Parameter(torch.ones(self.head_dim))

    @property
    def weight(self) -> Tensor:
        """The layer's λ, without a unit."""
        query, key, other_query, other_key = self.weights
        return (query @ key).exp() - (other_query @ other_key).exp() + self.start

    def attend(
        self, x: Tensor, mask: Tensor | None = None, *, observe: bool = False
    ) -> tuple[Tensor, dict[str, Any]]:
        q, k, v, other_q, other_k = self.project(x)
        mask = attention_mask(mask, q, causal=self.causal)
        attn = differential_map(q, k, other_q, other_k, weight=self.weight, scale=self.scale, mask=mask)
        output = self._normalised(attn @ v)
        if not observe:
            return output, {}
        inside = {"q": q, "k": k, "v": v, "scale": self.scale, "mask": mask, "attn": attn}
        others = {"other_q": other_q, "other_k": other_k, "rows_sum_to_one": False}
        return output, {
            **inside,
            **others,
            "recompute": lambda call, attn: self._normalised(attn @ call.v),
        }

    def _normalised(self, output: Tensor) -> Tensor:
        return (1 - self.start) * F.rms_norm(output, (self.head_dim,), self.gain, eps=1e-5)
