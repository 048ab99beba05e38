"""Cross-covariance attention of XCiT (Ali et al. 2021): channels attend to channels.

wu2025 (Table 1, Fig. 6) compares it to token statistics: it is linear in tokens, but quadratic in head_dim.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from workbench.attention.base import AttentionModule, checked_mechanism, token_mask


@checked_mechanism
def cross_covariance_attention(
    q: Float[Tensor, "batch head token head_dim"],
    k: Float[Tensor, "batch head token head_dim"],
    v: Float[Tensor, "batch head token head_dim"],
    temperature: float | Tensor = 1.0,
    *,
    mask: Bool[Tensor, ...] | None = None,
) -> Float[Tensor, "batch head token head_dim"]:
    """A v over channels, A = softmax(temp · q̂ᵀ k̂), q̂ and k̂ with features of unit norm over tokens (wu2025 Table 1).

    A is (batch, head, head_dim, head_dim), a row for each channel of q, summing to 1; a token's output mixes
    its own features only. ``temperature``: one number, or one per head as (head, 1, 1). Tokens whose ``mask``,
    (batch, token), is false take no part in A. No setting gives softmax attention over tokens back. O(token ·
    head_dim²) time; never token × token. Raises InputError for operands of different shapes.
    """
    q, k = unit_features(q, k, mask)
    # the fused kernel sees channels in the place of tokens, so that A need not be stored
    return F.scaled_dot_product_attention(q.mT * temperature, k.mT, v.mT, scale=1.0).mT


@checked_mechanism
def unit_features(
    q: Float[Tensor, "batch head token head_dim"],
    k: Float[Tensor, "batch head token head_dim"],
    mask: Bool[Tensor, ...] | None = None,
) -> tuple[Float[Tensor, "batch head token head_dim"], Float[Tensor, "batch head token head_dim"]]:
    """q and k with every feature at unit norm over the real tokens (Ali et al. 2021), and zero at padding."""
    tokens = token_mask(mask, q, "cross-covariance attention")
    if tokens is not None:
        q, k = (torch.where(tokens[:, None, :, None], x, 0.0) for x in (q, k))
    return F.normalize(q, dim=-2), F.normalize(k, dim=-2)


class CrossCovarianceAttention(AttentionModule):
    """XCA, a replacement of attention; weights named and shaped as in ``timm.models.xcit.XCA``."""

    sites = ("q", "k", "v", "attn")
    attends = "channel"
    causality = "never"

    def __init__(self, dim: int, num_heads: int, **shared: Any) -> None:
        super().__init__(dim, num_heads, **shared)
        self.temperature = nn.Parameter(torch.ones(num_heads, 1, 1))

    def attend(
        self, x: Tensor, mask: Tensor | None = None, *, observe: bool = False
    ) -> tuple[Tensor, dict[str, Any]]:
        q, k, v = self.project(x)
        output = cross_covariance_attention(q, k, v, self.temperature, mask=mask)
        if not observe:
            return output, {}
        q, k = unit_features(q, k, mask)
        return output, {"q": q, "k": k, "v": v, "scale": self.temperature}
