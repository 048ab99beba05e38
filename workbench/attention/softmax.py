"""Softmax attention (Vaswani et al. 2017): asymmetric, symmetric (teo2024, Appendix E.1), with normalised q and k."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from workbench.attention.base import AttentionModule, attention_mask, checked_mechanism
from workbench.core.errors import InputError


@checked_mechanism
def softmax_attention(
    q: Float[Tensor, "batch head query head_dim"],
    k: Float[Tensor, "batch head key head_dim"],
    v: Float[Tensor, "batch head key value_dim"],
    *,
    scale: float | None = None,
    mask: Bool[Tensor, ...] | None = None,
    causal: bool = False,
) -> Float[Tensor, "batch head query value_dim"]:
    """softmax(scale q kᵀ) v (Vaswani et al. 2017) over the keys that ``mask`` (true = attend) allows.

    q = k is symmetric attention; scale None is 1/√head_dim. ``causal`` allows no later key. A query
    that may attend to nothing gets 0. Raises InputError for operands that do not fit one another, and for a mask that
    does not fit them.
    """
    if mask is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)
    mask = attention_mask(mask, q, causal=causal)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)


class SoftmaxAttention(AttentionModule):
    """Multi-head softmax attention: with the same weights the output of ``timm.layers.Attention``."""

    def attend(
        self, x: Tensor, mask: Tensor | None = None, *, observe: bool = False
    ) -> tuple[Tensor, dict[str, Any]]:
        q, k, v = self.queries_keys_values(x)
        output = softmax_attention(q, k, v, scale=self.scale, mask=mask, causal=self.causal)
        if not observe:
            return output, {}
        mask = attention_mask(mask, q, causal=self.causal)
        return output, {"q": q, "k": k, "v": v, "scale": self.scale, "mask": mask}

    def queries_keys_values(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.project(x)
        return q, k, v


class SymmetricAttention(SoftmaxAttention):
    """Softmax attention whose queries are its keys: one projection fewer, a symmetric score matrix."""

    projections = ("k", "v")

    def queries_keys_values(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        k, v = self.project(x)
        return k, k, v


class NormalizedAttention(SoftmaxAttention):
    """Softmax attention of queries and keys that RMSNorm has scaled, with a gain per feature (Dehghani et al. 2023).

    With gains of 1 no logit exceeds √head_dim. The captured q and k are the normalised ones.
    """

    def __init__(self, dim: int, num_heads: int, **shared: Any) -> None:
        super().__init__(dim, num_heads, **shared)
        self.q_norm, self.k_norm = (nn.RMSNorm(self.head_dim, eps=1e-6) for _ in range(2))

    def queries_keys_values(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.project(x)
        return self.q_norm(q), self.k_norm(k), v


@torch.no_grad()
def clip_queries_keys(module: Any, max_logit: Float[Tensor, " head"], threshold: float = 100.0) -> None:
    """Scale W_Q and W_K of each head whose ``max_logit`` (nats) exceeds the threshold by √(threshold/max_logit).

    QK-Clip (Kimi Team 2025), called after a step of the optimiser: on the same tokens no logit exceeds the threshold.
    The module is timm's attention, or a variant. Raises InputError unless there is one logit for each head.
    """
    if max_logit.shape != (module.num_heads,):
        raise InputError(
            f"max_logit has shape {tuple(max_logit.shape)}; expected a number for each of {module.num_heads} heads"
        )
    projections = getattr(module, "projections", ("q", "k", "v"))
    factor = (threshold / max_logit.clamp_min(threshold)).sqrt().repeat_interleave(module.head_dim)
    for parameter in module.qkv.parameters():  # the weight and, where there is one, the bias: features first
        for name, part in zip(projections, parameter.data.chunk(len(projections)), strict=True):
            if name in ("q", "k"):
                part.mul_(factor.to(part).reshape(-1, *[1] * (part.ndim - 1)))
