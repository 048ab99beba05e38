"""Softmax attention (Vaswani et al. 2017), asymmetric and symmetric (teo2024, Appendix E.1)."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from workbench.attention.base import AttentionModule, attention_mask, checked_mechanism


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
