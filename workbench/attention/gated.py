"""Gated attention (Qiu et al. 2025): a sigmoid gate, from the query's token, on what every head returns."""

from __future__ import annotations

from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor

from workbench.attention.base import AttentionModule, attention_mask, checked_mechanism
from workbench.attention.softmax import softmax_attention


@checked_mechanism
def gated_attention(
    q: Float[Tensor, "batch head token head_dim"],
    k: Float[Tensor, "batch head token head_dim"],
    v: Float[Tensor, "batch head token value_dim"],
    gate: Float[Tensor, "batch head token value_dim"],
    *,
    scale: float | None = None,
    mask: Bool[Tensor, ...] | None = None,
    causal: bool = False,
) -> Float[Tensor, "batch head token value_dim"]:
    """Return softmax(scale q kᵀ) v ⊙ σ(gate) (Qiu et al. 2025, eq. 5), ``gate`` a number per feature before σ.

    A query that may attend to nothing gets 0. Raises InputError for operands that do not fit one another.
    """
    return softmax_attention(q, k, v, scale=scale, mask=mask, causal=causal) * gate.sigmoid()


class GatedAttention(AttentionModule):
    """``gated_attention`` with a fourth projection for the gate; ``gate`` is captured after σ.

    ``attn`` is that of softmax attention; the gate multiplies attn v.
    """

    sites = ("q", "k", "v", "attn", "gate")
    projections = ("q", "k", "v", "gate")

    def attend(
        self, x: Tensor, mask: Tensor | None = None, *, observe: bool = False
    ) -> tuple[Tensor, dict[str, Any]]:
        q, k, v, gate = self.project(x)
        output = gated_attention(q, k, v, gate, scale=self.scale, mask=mask, causal=self.causal)
        if not observe:
            return output, {}
        mask, gate = attention_mask(mask, q, causal=self.causal), gate.sigmoid()
        inside = {"q": q, "k": k, "v": v, "scale": self.scale, "mask": mask, "gate": gate}
        return output, {**inside, "recompute": lambda call, attn: attn @ call.v * call.extra["gate"]}
