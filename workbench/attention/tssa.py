"""Token Statistics Self-Attention of ToST (Wu et al. 2025): a gradient step on a coding rate, linear in tokens.

Tokens never meet in pairs. Each is softly assigned to heads (membership Π), each head takes the second moment
of its members feature by feature, and features along which the members already vary a lot are damped.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from workbench.attention.base import (
    AttentionModule,
    check_convention,
    checked_mechanism,
    required_tokens,
    token_mask,
)
from workbench.core.errors import InputError


@checked_mechanism
def token_statistics_attention(
    w: Float[Tensor, "batch head token head_dim"],
    temperature: float | Tensor = 1.0,
    *,
    causal: bool = False,
    bias: Float[Tensor, "head position 1"] | None = None,
    mask: Bool[Tensor, ...] | None = None,
    convention: str = "as_published",
) -> tuple[Float[Tensor, "batch head token head_dim"], Float[Tensor, "batch head token"]]:
    """Output −Π_jk w_jk ⊙ D_k and membership Π (wu2025 eqs. 6, 11, 31; causal: eq. 28 and Algorithm 2).

    D_k = 1 / (1 + Σ_j Π_jk w_jk² / Σ_j Π_jk), one number per feature; ``causal`` replaces every sum over
    tokens by a running sum, token t included. ``w`` is x projected to the heads, w_k = x U_k. No setting gives
    softmax attention back. O(token · head_dim) time and memory: no pair of tokens is ever formed.

    ``convention`` "as_implemented" guards the sums as the authors do (+ 1e-8 on Σ Π); "as_published" divides exactly.
    It also selects the membership: see `token_membership`, which has the other arguments. Tokens whose ``mask`` is
    false enter no sum. Half precision is computed in float32 and returned as it came.
    """
    membership, squares, mask = _membership(w, temperature, causal, bias, mask, convention)
    weights = membership if mask is None else membership * mask[:, None]
    if causal:
        total = weights.cumsum(-1)[..., None]
        moment = (weights[..., None] * squares).cumsum(-2)
    else:
        total = weights.sum(-1)[..., None, None]
        moment = weights[..., None, :] @ squares
    total = total + 1e-8 if convention == "as_implemented" else _positive(total)
    damping = 1 / (1 + moment / total)
    output = -membership[..., None] * damping * w
    return output.to(w.dtype), membership.to(w.dtype)


@checked_mechanism
def token_membership(
    w: Float[Tensor, "batch head token head_dim"],
    temperature: float | Tensor = 1.0,
    *,
    causal: bool = False,
    bias: Float[Tensor, "head position 1"] | None = None,
    mask: Bool[Tensor, ...] | None = None,
    convention: str = "as_published",
) -> Float[Tensor, "batch head token"]:
    """How much each token belongs to each head: Π, summing to 1 over heads.

    text: softmax_k(temp_k ‖w_jk‖²) (wu2025 eq. 10, with temp = 1/2η). code: as trained (C.1, eq. 32), every
    feature first scaled to unit norm over tokens, clamped at 1e-12; this is what ToST's weights expect.
    Causal (eq. 34), both conventions: softmax_k(temp_k Σ_i (w²_jki / Σ_{t≤j} w²_tki + b_kj)); as_implemented clamps
    the running sum at 1e-12, the text counts 0/0 as 0.

    ``temperature``: one number, or one per head as (head,) or (head, 1). ``bias``: learned, only with
    ``causal``, one value per head and position, added to each of the head_dim squares. ``mask``: (batch,
    token), true for real tokens. Raises InputError for a bias without ``causal`` or shorter than ``w``.
    """
    return _membership(w, temperature, causal, bias, mask, convention)[0].to(w.dtype)


def _membership(
    w: Tensor,
    temperature: float | Tensor,
    causal: bool,
    bias: Tensor | None,
    mask: Tensor | None,
    convention: str,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Π, w² with padding at zero, both at least float32, and the mask as (batch, token)."""
    check_convention(convention)
    mask = token_mask(mask, w, "token statistics attention")
    temperature, bias = _per_head(temperature, w), _bias(bias, w, causal)
    w = w.to(torch.promote_types(w.dtype, torch.float32))  # running sums of squares outgrow half precision
    if mask is not None:
        w = torch.where(mask[:, None, :, None], w, 0.0)
    squares = w.square()
    if causal:
        total = squares.cumsum(-2)
        total = total.clamp(min=1e-12) if convention == "as_implemented" else _positive(total)
        lengths = squares / total if bias is None else squares / total + bias
    else:
        lengths = squares if convention == "as_published" else F.normalize(w, dim=-2, eps=1e-12).square()
    return (lengths.sum(-1) * temperature).softmax(dim=1), squares, mask


def _positive(total: Tensor) -> Tensor:
    """``total``, with 1 where it is zero: what it divides is zero there too."""
    return torch.where(total > 0, total, 1.0)


def _per_head(temperature: float | Tensor, w: Tensor) -> float | Tensor:
    if not isinstance(temperature, Tensor):
        return temperature
    if temperature.numel() not in (1, w.shape[1]):
        raise InputError(
            f"temperature has shape {tuple(temperature.shape)}; accepted are one number or one for each of "
            f"the {w.shape[1]} heads, (head,) or (head, 1)"
        )
    return temperature.reshape(-1, 1)


def _bias(bias: Tensor | None, w: Tensor, causal: bool) -> Tensor | None:
    if bias is None:
        return None
    tokens = w.shape[2]
    if not causal:
        raise InputError("bias belongs to the causal form; pass causal=True or leave it out")
    if bias.shape[1] < tokens:
        raise InputError(
            f"bias holds {bias.shape[1]} positions, but there are {tokens} tokens; shorten the input or learn "
            "a longer bias"
        )
    return bias[:, :tokens]


class TokenStatisticsAttention(AttentionModule):
    """TSSA, a replacement of attention (wu2025 Algorithms 1 and 2).

    One projection w where softmax attention has three. ``convention="as_implemented"`` is what ToST's own weights were
    trained with. Loads the authors' names for the projections too: ``to_out.0`` (vision), ``c_attn`` and
    ``c_proj`` (language); ``temp`` and ``denom_bias`` are theirs.
    """

    sites = ("membership",)
    attends = "none"
    projections = ("w",)

    def __init__(self, dim: int, num_heads: int, *, convention: str = "as_published", **shared: Any) -> None:
        super().__init__(dim, num_heads, **shared)
        check_convention(convention)
        self.convention = convention
        self.temp = nn.Parameter(torch.ones(num_heads, 1))
        if self.causal:
            positions = required_tokens(self.num_tokens, "causal token statistics attention")
            self.denom_bias = nn.Parameter(torch.zeros(num_heads, positions, 1))
        else:
            self.denom_bias = None
        self.register_load_state_dict_pre_hook(_take_authors_names)

    def attend(
        self, x: Tensor, mask: Tensor | None = None, *, observe: bool = False
    ) -> tuple[Tensor, dict[str, Any]]:
        if self.causal:
            self.check_length(x.shape[1])
        (w,) = self.project(x)
        output, membership = token_statistics_attention(
            w, self.temp, causal=self.causal, bias=self.denom_bias, mask=mask, convention=self.convention
        )
        return output, {"membership": membership} if observe else {}


_AUTHORS_NAMES = {"to_out.0": "proj", "c_proj": "proj", "c_attn": "qkv"}


def _take_authors_names(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """ToST's checkpoints name the projections differently in vision and in language."""
    for theirs, ours in _AUTHORS_NAMES.items():
        for kind in ("weight", "bias"):
            value = state_dict.pop(f"{prefix}{theirs}.{kind}", None)
            if value is not None:
                state_dict[f"{prefix}{ours}.{kind}"] = value
