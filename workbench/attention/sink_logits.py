"""Softmax with a logit that no key has: fixed at 0 (Miller 2023), or learned per head (OpenAI 2025, gpt-oss)."""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from workbench.attention.base import MapAttention, attention_mask, checked_mechanism, default_scale


@checked_mechanism
def sink_map(
    q: Float[Tensor, "batch head token head_dim"],
    k: Float[Tensor, "batch head token head_dim"],
    sink: Float[Tensor, " head"] | None = None,
    *,
    scale: float | None = None,
    mask: Bool[Tensor, ...] | None = None,
    causal: bool = False,
) -> Float[Tensor, "batch head query key"]:
    """Return exp(x) / (exp(sink) + Σ exp(x)) over allowed keys, x = scale q kᵀ (Miller 2023).

    ``sink`` is a logit (nats) for each head, None is 0: "softmax off by one". A row sums to less than 1; −∞ is softmax
    attention. Raises InputError for operands that do not fit one another.
    """
    scores = default_scale(scale, q) * (q @ k.mT)
    mask = attention_mask(mask, q, causal=causal)
    if mask is not None:
        scores = scores.masked_fill(mask.logical_not(), -math.inf)
    # finite, so that a query without keys attends to the sink
    sink = q.new_zeros(q.shape[1]) if sink is None else sink.to(scores).clamp_min(torch.finfo(q.dtype).min)
    extra = sink[None, :, None, None].expand(*scores.shape[:-1], 1)
    return torch.cat([scores, extra], -1).softmax(-1)[..., :-1]


@checked_mechanism
def sink_attention(
    q: Float[Tensor, "batch head token head_dim"],
    k: Float[Tensor, "batch head token head_dim"],
    v: Float[Tensor, "batch head token value_dim"],
    sink: Float[Tensor, " head"] | None = None,
    *,
    scale: float | None = None,
    mask: Bool[Tensor, ...] | None = None,
    causal: bool = False,
) -> Float[Tensor, "batch head token value_dim"]:
    """Return softmax attention whose rows share their weight with a key of value 0 (Miller 2023); see `sink_map`.

    A query that may attend to nothing gets 0. Raises InputError for operands that do not fit one another.
    """
    return sink_map(q, k, sink, scale=scale, mask=mask, causal=causal) @ v


class SinkAttention(MapAttention):
    """``sink_attention`` with a sink of 0, or with one learned per head that starts there."""

    def __init__(self, dim: int, num_heads: int, *, learn_sink: bool = False, **shared: Any) -> None:
        super().__init__(dim, num_heads, **shared)
        self.sink = nn.Parameter(torch.zeros(num_heads)) if learn_sink else None

    def weights(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        return sink_map(q, k, self.sink, scale=self.scale, mask=mask)
