"""Multi-head subspace self-attention of CRATE (Yu et al. 2024), one of wu2025's comparisons: one projection."""

from __future__ import annotations

from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor

from workbench.attention.base import AttentionModule, attention_mask, checked_mechanism
from workbench.attention.softmax import softmax_attention


@checked_mechanism
def subspace_attention(
    w: Float[Tensor, "batch head token head_dim"],
    *,
    scale: float | None = None,
    mask: Bool[Tensor, ...] | None = None,
    causal: bool = False,
) -> Float[Tensor, "batch head token head_dim"]:
    """softmax(scale w wᵀ) w: softmax attention whose q, k and v are all w_k = x U_k (wu2025 Table 1).

    ``scale`` None is 1/√head_dim; ``mask`` and ``causal`` as in `softmax_attention`. With three projections in
    the place of one it is softmax attention. O(token² · head_dim) time.
    """
    return softmax_attention(w, w, w, scale=scale, mask=mask, causal=causal)


class SubspaceAttention(AttentionModule):
    """MSSA, a replacement of attention: ``qkv`` holds the one projection w."""

    sites = ("q", "k", "v", "attn")
    projections = ("w",)

    def attend(
        self, x: Tensor, mask: Tensor | None = None, *, observe: bool = False
    ) -> tuple[Tensor, dict[str, Any]]:
        (w,) = self.project(x)
        output = subspace_attention(w, scale=self.scale, mask=mask, causal=self.causal)
        if not observe:
            return output, {}
        mask = attention_mask(mask, w, causal=self.causal)
        return output, {"q": w, "k": w, "v": w, "scale": self.scale, "mask": mask}
