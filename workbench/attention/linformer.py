"""Linformer (Wang et al. 2020): softmax attention to a few learned mixtures of tokens, linear in tokens.

One of the baselines of abdullaev2025 (Table I) and chen2023 (Table 3).
"""

from __future__ import annotations

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
    token_mask,
)
from workbench.core.errors import InputError

_WHAT = "Linformer"


@checked_mechanism
def linformer_attention(
    q: Float[Tensor, "batch head token head_dim"],
    k: Float[Tensor, "batch head token head_dim"],
    v: Float[Tensor, "batch head token head_dim"],
    mixture: Float[Tensor, "head projected position"],
    *,
    scale: float | Tensor | None = None,
    mask: Bool[Tensor, ...] | None = None,
) -> Float[Tensor, "batch head token head_dim"]:
    """softmax(scale q (E k)ᵀ) E v, with E the ``mixture`` of the first tokens (Wang et al. 2020, eq. 7).

    Keys and values share E, as in the Long Range Arena's small models (Xiong et al. 2021). Tokens whose ``mask``,
    (batch, token), is false are mixed into nothing. With E the identity it is softmax attention. O(token · projected)
    time; never token × token. Raises InputError for operands that do not fit, and for more tokens than E has positions.
    """
    tokens = token_mask(mask, q, _WHAT)
    weights = _to_mixtures(q, k, mixture, default_scale(scale, q), tokens)
    return weights @ (_positions(mixture, v) @ _real(v, tokens))


@checked_mechanism
def linformer_map(
    q: Float[Tensor, "batch head token head_dim"],
    k: Float[Tensor, "batch head token head_dim"],
    mixture: Float[Tensor, "head projected position"],
    *,
    scale: float | Tensor | None = None,
    mask: Bool[Tensor, ...] | None = None,
) -> Float[Tensor, "batch head query key"]:
    """The matrix A = softmax(scale q (E k)ᵀ) E that `linformer_attention` multiplies values with (Wang et al. 2020).

    For looking at: entries may be negative, and rows sum to anything.
    """
    tokens = token_mask(mask, q, _WHAT)
    attn = _to_mixtures(q, k, mixture, default_scale(scale, q), tokens) @ _positions(mixture, k)
    return attn if tokens is None else torch.where(tokens[:, None, None], attn, 0.0)


def _to_mixtures(
    q: Tensor, k: Tensor, mixture: Tensor, scale: float | Tensor, tokens: Tensor | None
) -> Tensor:
    mixed = _positions(mixture, k) @ _real(k, tokens)
    return (scale * q @ mixed.mT).softmax(-1)


def _positions(mixture: Tensor, x: Tensor) -> Tensor:
    tokens = x.shape[-2]
    if tokens > mixture.shape[-1]:
        raise InputError(
            f"{_WHAT} mixes at most {mixture.shape[-1]} tokens, the number of its positions, but got {tokens}"
        )
    return mixture[..., :tokens]


def _real(x: Tensor, tokens: Tensor | None) -> Tensor:
    return x if tokens is None else torch.where(tokens[:, None, :, None], x, 0.0)


class LinformerAttention(AttentionModule):
    """``linformer_attention``; ``mixture`` is E, learned for every head. Its ``attn`` is `linformer_map`."""

    causality = "never"

    def __init__(self, dim: int, num_heads: int, *, projected: int = 64, **shared: Any) -> None:
        super().__init__(dim, num_heads, **shared)
        tokens = required_tokens(self.num_tokens, _WHAT)
        # so mixtures of independent tokens have the size of tokens
        self.mixture = nn.Parameter(torch.randn(num_heads, projected, tokens) / tokens**0.5)

    def attend(
        self, x: Tensor, mask: Tensor | None = None, *, observe: bool = False
    ) -> tuple[Tensor, dict[str, Any]]:
        self.check_length(x.shape[1])
        q, k, v = self.project(x)
        output = linformer_attention(q, k, v, self.mixture, scale=self.scale, mask=mask)
        if not observe:
            return output, {}
        attn = linformer_map(q, k, self.mixture, scale=self.scale, mask=mask)
        inside = {"q": q, "k": k, "v": v, "scale": self.scale, "mask": attention_mask(mask, q)}
        return output, {**inside, "attn": attn, "rows_sum_to_one": False}
