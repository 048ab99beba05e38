"""Scaled Attention (teo2024 Remark 3, Appendix E.1): softmax(scale q kᵀ) (I − S) v."""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from workbench.attention.base import (
    AttentionModule,
    attention_mask,
    checked_mechanism,
    default_scale,
    required_tokens,
)
from workbench.attention.softmax import softmax_attention


@checked_mechanism
def scaled_attention(
    q: Float[Tensor, "batch head token head_dim"],
    k: Float[Tensor, "batch head token head_dim"],
    v: Float[Tensor, "batch head token value_dim"],
    s: Float[Tensor, "*batch token token"],
    *,
    scale: float | None = None,
    mask: Bool[Tensor, ...] | None = None,
    causal: bool = False,
) -> Float[Tensor, "batch head token value_dim"]:
    """softmax(scale q kᵀ) (I − S) v (teo2024 Remark 3). S = 0 is softmax attention.

    S broadcasts against (batch, head, token, token). A token takes from S only what it may attend to.
    Raises InputError when S is not as large as the sequence.
    """
    mask = attention_mask(mask, q, causal=causal)
    return softmax_attention(q, k, scaled_values(v, s, mask=mask), scale=scale, mask=mask)


@checked_mechanism
def scaled_values(
    v: Float[Tensor, "batch head token value_dim"],
    s: Float[Tensor, "*batch token token"],
    *,
    mask: Bool[Tensor, ...] | None = None,
) -> Float[Tensor, "batch head token value_dim"]:
    """(I − S) v (teo2024 Remark 3), with S zero where ``mask`` allows no attention.

    Raises InputError for S of another size.
    """
    return v - (s if mask is None else s.masked_fill(mask.logical_not(), 0)) @ v


@checked_mechanism
def exact_scaling(
    k: Float[Tensor, "batch head token head_dim"],
    *,
    scale: float | None = None,
    mask: Bool[Tensor, ...] | None = None,
) -> Float[Tensor, "batch head token token"]:
    """S_jj' = g(k_j') / (N g(k_j)), g(x) = Σ_i exp(scale x·k_i) (teo2024 Remark 3: A ⊙ 1/Aᵀ / N).

    Each row is proportional to g. Ratios beyond the largest number of the dtype are that number:
    ``log_exact_scaling`` has them all.
    """
    log = log_exact_scaling(k, scale=scale, mask=mask)
    return log.exp().clamp_max(torch.finfo(k.dtype).max)


@checked_mechanism
def log_exact_scaling(
    k: Float[Tensor, "batch head token head_dim"],
    *,
    scale: float | None = None,
    mask: Bool[Tensor, ...] | None = None,
) -> Float[Tensor, "batch head token token"]:
    """log S of ``exact_scaling`` (teo2024 Remark 3) in nats, finite for any keys; −∞ where the mask forbids."""
    scores = default_scale(scale, k) * (k @ k.mT)
    mask = attention_mask(mask, k)
    if mask is None:
        log_g = scores.logsumexp(-1)
        return log_g.unsqueeze(-2) - log_g.unsqueeze(-1) - math.log(k.shape[-2])
    # Rows that may attend to nothing have no normaliser; they get zeros, and are masked in the end.
    empty = mask.any(-1, keepdim=True).logical_not()
    log_g = scores.masked_fill(mask.logical_not() & empty.logical_not(), -math.inf).logsumexp(-1)
    count = mask.expand(*mask.shape[:-1], k.shape[-2]).sum(-1, keepdim=True).clamp_min(1).to(k.dtype)
    log = log_g.unsqueeze(-2) - log_g.unsqueeze(-1) - count.log()
    return log.masked_fill(mask.logical_not(), -math.inf)


class ScaledFree(AttentionModule):
    """Scaled Attention with a free S for each head, (head, num_tokens, num_tokens), starting at 0.

    A shorter sequence uses the upper left corner of S. The captured v is (I − S) v.
    """

    sites = ("q", "k", "v", "attn", "projected_v")

    def __init__(self, dim: int, num_heads: int, *, num_tokens: int | None = None, **shared: Any) -> None:
        super().__init__(dim, num_heads, num_tokens=num_tokens, **shared)
        size = required_tokens(num_tokens, "Scaled Attention with a free S")
        self.scaling = nn.Parameter(torch.zeros(num_heads, size, size))

    def attend(
        self, x: Tensor, mask: Tensor | None = None, *, observe: bool = False
    ) -> tuple[Tensor, dict[str, Any]]:
        q, k, v = self.project(x)
        tokens = x.shape[1]
        self.check_length(tokens)
        allowed = attention_mask(mask, q, causal=self.causal)
        values = scaled_values(v, self.scaling[:, :tokens, :tokens], mask=allowed)
        return _attend(self, q, k, v, values, mask, observe)


class ScaledExact(AttentionModule):
    """Scaled Attention with the exact S of the keys (teo2024 Remark 3), without a parameter.

    It does not start as softmax attention. S projects the values on 1/g along g (S² = S, rank one), so (I − S) v has
    the g-weighted mean 0. The captured v is (I − S) v.
    """

    sites = ("q", "k", "v", "attn", "projected_v")

    def attend(
        self, x: Tensor, mask: Tensor | None = None, *, observe: bool = False
    ) -> tuple[Tensor, dict[str, Any]]:
        q, k, v = self.project(x)
        allowed = attention_mask(mask, q, causal=self.causal)
        values = scaled_values(v, exact_scaling(k, scale=self.scale, mask=allowed), mask=allowed)
        return _attend(self, q, k, v, values, mask, observe)


class ScaledAlpha(AttentionModule):
    """Scaled Attention with S = α softmax(scale k kᵀ), one number α for all heads, starting at 0.

    S is never built: S v is symmetric attention. The captured v is (I − S) v.
    """

    sites = ("q", "k", "v", "attn", "projected_v")

    def __init__(self, dim: int, num_heads: int, **shared: Any) -> None:
        super().__init__(dim, num_heads, **shared)
        self.alpha = nn.Parameter(torch.zeros(()))

    def attend(
        self, x: Tensor, mask: Tensor | None = None, *, observe: bool = False
    ) -> tuple[Tensor, dict[str, Any]]:
        q, k, v = self.project(x)
        symmetric = softmax_attention(k, k, v, scale=self.scale, mask=mask, causal=self.causal)
        return _attend(self, q, k, v, v - self.alpha * symmetric, mask, observe)


def _attend(
    module: AttentionModule,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    values: Tensor,
    mask: Tensor | None,
    observe: bool,
) -> tuple[Tensor, dict[str, Any]]:
    output = softmax_attention(q, k, values, scale=module.scale, mask=mask, causal=module.causal)
    if not observe:
        return output, {}
    mask = attention_mask(mask, q, causal=module.causal)
    inside = {"q": q, "k": k, "v": values, "scale": module.scale, "mask": mask, "projected_v": v}
    return output, inside
