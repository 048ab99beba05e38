"""Forgetting attention (Lin et al. 2025): softmax attention whose logits fall with every forget gate in between."""

from __future__ import annotations

import math
from typing import Any

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from workbench.attention.base import AttentionModule, attention_mask, causal_mask, checked_mechanism


@checked_mechanism
def forgetting_logits(
    log_forget: Float[Tensor, "batch head token"],
) -> Float[Tensor, "batch head query key"]:
    """Return Σ log f over the tokens after the key, up to the query (nats; Lin et al. 2025, eq. 6).

    ``log_forget`` is log f of each token, at most 0. Later keys have −∞.
    """
    total = log_forget.cumsum(-1)
    between = total[..., :, None] - total[..., None, :]
    return between.masked_fill(causal_mask(total.shape[-1], total.device).logical_not(), -math.inf)


@checked_mechanism
def forgetting_attention(
    q: Float[Tensor, "batch head token head_dim"],
    k: Float[Tensor, "batch head token head_dim"],
    v: Float[Tensor, "batch head token value_dim"],
    log_forget: Float[Tensor, "batch head token"],
    *,
    scale: float | None = None,
    mask: Bool[Tensor, ...] | None = None,
) -> Float[Tensor, "batch head token value_dim"]:
    """Return softmax(scale q kᵀ + D) v, D = `forgetting_logits` (Lin et al. 2025, eq. 5): always causal.

    log f = 0 is causal softmax attention. A query that may attend to nothing gets 0. Raises InputError for operands
    that do not fit one another.
    """
    bias = _bias(log_forget, mask, q)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale)


def _bias(log_forget: Tensor, mask: Tensor | None, q: Tensor) -> Tensor:
    bias, mask = forgetting_logits(log_forget).to(q.dtype), attention_mask(mask, q)
    return bias if mask is None else bias.masked_fill(mask.logical_not(), -math.inf)


class ForgettingAttention(AttentionModule):
    """``forgetting_attention`` with a gate per head and token, f = σ(w x + b); ``log_forget`` is captured.

    Gates start at ½ on average; a bias of several nats starts with a longer memory.
    """

    sites = ("q", "k", "v", "attn", "log_forget")
    causality = "always"

    def __init__(self, dim: int, num_heads: int, **shared: Any) -> None:
        super().__init__(dim, num_heads, **shared)
        self.forget = nn.Linear(dim, num_heads)

    def attend(
        self, x: Tensor, mask: Tensor | None = None, *, observe: bool = False
    ) -> tuple[Tensor, dict[str, Any]]:
        q, k, v = self.project(x)
        log_forget = F.logsigmoid(self.forget(x)).mT
        output = forgetting_attention(q, k, v, log_forget, scale=self.scale, mask=mask)
        if not observe:
            return output, {}
        inside = {"q": q, "k": k, "v": v, "scale": self.scale, "mask": _bias(log_forget, mask, q)}
        return output, {**inside, "log_forget": log_forget}
