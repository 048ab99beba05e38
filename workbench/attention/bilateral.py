"""Attention as image filtering (abdullaev2025): bilateral, non-local and twicing attention, and ALiBi.

A filter estimates û_i = Σ_j K_ij v_j / Σ_j K_ij (eq. 12). Softmax attention mixes content y and position p in
one kernel, exp((y_i + p_i)·(y_j + p_j)/√d); a bilateral filter gives each a kernel with a bandwidth.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from workbench.attention.base import (
    AttentionModule,
    attention_mask,
    checked_mechanism,
    default_scale,
    masked_softmax,
    required_tokens,
    split_heads,
)
from workbench.core.errors import InputError

Bandwidth = float | Tensor | None
"""Width of a kernel: a number, a tensor that broadcasts against (head, 1, 1), or None for head_dim^¼."""

SINUSOIDAL_STD = math.sqrt(1 / 2)
"""Root mean square of sinusoidal positions, ‖p‖² = dim/2: where learned ones in the logits start.

From 0.02, which suits positions that are added to tokens, they hardly get off the ground.
"""


@checked_mechanism
def bilateral_attention(
    q: Float[Tensor, "batch head query head_dim"],
    k: Float[Tensor, "batch head key head_dim"],
    v: Float[Tensor, "batch head key value_dim"],
    position_q: Float[Tensor, "*lead query head_dim"],
    position_k: Float[Tensor, "*lead key head_dim"],
    *,
    h_p: Bandwidth = None,
    h_y: Bandwidth = None,
    mask: Bool[Tensor, ...] | None = None,
) -> Float[Tensor, "batch head query value_dim"]:
    """Bilateral self-attention (abdullaev2025 eq. 21): softmax(q kᵀ/h_y² + p_q p_kᵀ/h_p²) v.

    q and k are projections of the content without positions, p_q and p_k projections of only the positions,
    (head, token, head_dim) or with a batch axis. The bandwidths have the unit of a vector's length; None is
    head_dim^¼, so that 1/h² is the usual 1/√head_dim. ``mask`` is bool, true = attend.

    Positions of zero, or h_p = ∞, give softmax attention without positions (``nonlocal_attention``).
    """
    added = position_logits(position_q, position_k, h_p=h_p)
    return _attend(q, k, v, added, _inverse_square(h_y, q), mask)


@checked_mechanism
def position_logits(
    position_q: Float[Tensor, "*lead query head_dim"],
    position_k: Float[Tensor, "*lead key head_dim"],
    *,
    h_p: Bandwidth = None,
) -> Float[Tensor, "*lead query key"]:
    """The positions' part of the bilateral logits (abdullaev2025), p_q p_kᵀ / h_p², the same for all inputs."""
    return (position_q * _inverse_square(h_p, position_q)) @ position_k.mT


@checked_mechanism
def nonlocal_attention(
    q: Float[Tensor, "batch head query head_dim"],
    k: Float[Tensor, "batch head key head_dim"],
    v: Float[Tensor, "batch head key value_dim"],
    *,
    h_y: Bandwidth = None,
    mask: Bool[Tensor, ...] | None = None,
) -> Float[Tensor, "batch head query value_dim"]:
    """Non-local self-attention (abdullaev2025 III-B): bilateral attention for h_p → ∞, without positions.

    h_y = None, which is head_dim^¼, is softmax attention.
    """
    return _attend(q, k, v, None, _inverse_square(h_y, q), mask)


@checked_mechanism
def alibi_attention(
    q: Float[Tensor, "batch head token head_dim"],
    k: Float[Tensor, "batch head token head_dim"],
    v: Float[Tensor, "batch head token value_dim"],
    slopes: Float[Tensor, " head"] | None = None,
    *,
    scale: float | Tensor | None = None,
    mask: Bool[Tensor, ...] | None = None,
) -> Float[Tensor, "batch head token value_dim"]:
    """ALiBi (Press et al. 2022; abdullaev2025 Remark III.4): softmax(scale q kᵀ − m |i − j|) v.

    ``slopes`` m per head, in nats per token; None takes ``alibi_slopes``. Slopes of zero give softmax
    attention.
    """
    slopes = alibi_slopes(q.shape[1]).to(q) if slopes is None else slopes
    return _attend(q, k, v, alibi_logits(slopes, q.shape[2]), default_scale(scale, q), mask)


@checked_mechanism
def alibi_logits(slopes: Float[Tensor, " head"], tokens: int) -> Float[Tensor, "head query key"]:
    """−m |i − j| (nats): what ALiBi adds to the logits (Press et al. 2022)."""
    index = torch.arange(tokens, device=slopes.device)
    return -slopes[:, None, None] * (index[:, None] - index).abs()


def alibi_slopes(num_heads: int) -> Float[Tensor, " head"]:
    """ALiBi's slopes: 2^(−8 h/H) for head h = 1 … H (Press et al. 2022).

    Where H is no power of two, the slopes of the next lower power, followed by every second slope of the next
    higher, as in the authors' code.
    """
    lower = 2 ** int(math.log2(num_heads))
    slopes = [2 ** (-8 * head / lower) for head in range(1, lower + 1)]
    between = [2 ** (-8 * head / (2 * lower)) for head in range(1, 2 * lower + 1, 2)]
    return torch.tensor((slopes + between)[:num_heads])


@checked_mechanism
def twicing_attention(
    q: Float[Tensor, "batch head token head_dim"],
    k: Float[Tensor, "batch head token head_dim"],
    v: Float[Tensor, "batch head token value_dim"],
    *,
    scale: float | Tensor | None = None,
    mask: Bool[Tensor, ...] | None = None,
) -> Float[Tensor, "batch head token value_dim"]:
    """Twicing (Tukey 1977; abdullaev2025 eq. 27): (2A − A²) v, with A the softmax attention.

    The estimate A v plus the estimate of its residual, A (v − A v). Nothing is left over, and
    softmax attention returns, where v is constant over the tokens.
    """
    scale = default_scale(scale, q)
    estimate = _attend(q, k, v, None, scale, mask)
    return estimate + _attend(q, k, v - estimate, None, scale, mask)


# Kernels and positions of the theory ------------------------------------------------------------------------


@checked_mechanism
def log_bilateral_filter(
    position_i: Float[Tensor, "*batch query dim"],
    position_j: Float[Tensor, "*batch key dim"],
    content_i: Float[Tensor, "*batch query dim"],
    content_j: Float[Tensor, "*batch key dim"],
    *,
    h_p: Bandwidth = None,
    h_y: Bandwidth = None,
) -> Float[Tensor, "*batch query key"]:
    """log K_BF (nats; abdullaev2025 eq. 13): −‖p_i − p_j‖²/h_p² − ‖y_i − y_j‖²/h_y².

    With vectors of one length each, its normalised weights are those of ``bilateral_attention`` with both
    bandwidths divided by √2.
    """
    near = torch.cdist(position_i, position_j).square() * _inverse_square(h_p, position_i)
    alike = torch.cdist(content_i, content_j).square() * _inverse_square(h_y, content_i)
    return -near - alike


def log_filter_constant(content_norm: float, dim: int) -> float:
    """log α_c (nats; abdullaev2025 Prop. III.2): K_SA = α_c K_BF(p_i, p_j, y_i, y_j) K_BF(p_i, y_j, p_j, y_i).

    For contents of length ``content_norm``, sinusoidal positions of ``dim`` features and h_p² = h_y² = 2√dim:
    α_c = exp((2c² + d)/√d). The paper prints exp(2c² + d/2), which drops the scale 1/√d and half of d.
    """
    return (2 * content_norm**2 + dim) / math.sqrt(dim)


def sinusoidal_positions(tokens: int, dim: int, *, base: float = 10_000.0) -> Float[Tensor, "token dim"]:
    """Sine and cosine of i / base^(2t/dim), in turns (abdullaev2025 eq. 5), in float64; every row has ‖p_i‖² = dim/2.

    Raises InputError for an odd ``dim``.
    """
    if dim % 2:
        raise InputError(
            f"sinusoidal positions come in pairs of sine and cosine; dim must be even, got {dim}"
        )
    frequency = base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angle = torch.arange(tokens, dtype=torch.float64)[:, None] * frequency
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)


def _inverse_square(bandwidth: Bandwidth, x: Tensor) -> float | Tensor:
    """1/h²; 0 for h = ∞."""
    if bandwidth is None:
        return 1 / math.sqrt(x.shape[-1])
    if isinstance(bandwidth, Tensor):
        return bandwidth**-2
    if not bandwidth > 0:
        raise InputError(f"a bandwidth must be positive (∞ switches its kernel off), got {bandwidth}")
    return bandwidth**-2


def _attend(
    q: Tensor, k: Tensor, v: Tensor, added: Tensor | None, scale: float | Tensor, mask: Tensor | None
) -> Tensor:
    """softmax(scale q kᵀ + added) v where the mask allows, by torch's fused kernel.

    The scale goes into q, because the kernel's own is a number without a gradient.
    """
    bias = _joined(added, attention_mask(mask, q), q)
    return F.scaled_dot_product_attention(q * scale, k, v, attn_mask=bias, scale=1.0)


def _joined(added: Tensor | None, mask: Tensor | None, q: Tensor) -> Tensor | None:
    """Return the bias of the logits and the bool mask as one mask of four axes."""
    if added is None:
        return mask
    added = added.to(q.dtype).reshape((1,) * (4 - added.ndim) + tuple(added.shape))
    return added if mask is None else added.masked_fill(~mask, -math.inf)


# Modules ----------------------------------------------------------------------------------------------------


class BilateralAttention(AttentionModule):
    """``bilateral_attention`` with W_Q and W_K shared by content and positions, and h_p, h_y learned.

    ``positions`` (1, num_tokens, dim) enter the logits only: the model must not add any to its tokens, and
    may let all its layers share one parameter. h_p = ∞ is ``nonlocal``: no positions at all. The positions'
    logits do not depend on the input: ``precompute`` keeps them for inference.
    """

    brings_positions: ClassVar[bool] = True

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        h_p: float | None = None,
        h_y: float | None = None,
        learn_bandwidths: bool = True,
        **shared: Any,
    ) -> None:
        """``h_p`` and ``h_y`` are where the bandwidths start; None is head_dim^¼."""
        super().__init__(dim, num_heads, **shared)
        start = self.head_dim**0.25
        widths = {"h_p": start if h_p is None else h_p, "h_y": start if h_y is None else h_y}
        for name, width in widths.items():
            if not width > 0 or (name == "h_y" and math.isinf(width)):
                accepted = "positive and finite" if name == "h_y" else "positive"
                raise InputError(f"{name} must be {accepted}, got {width}")
        self.h_y = nn.Parameter(torch.tensor(float(widths["h_y"])), requires_grad=learn_bandwidths)
        self.h_p = self.positions = None
        if math.isfinite(widths["h_p"]):
            tokens = required_tokens(self.num_tokens, "the position term of bilateral attention")
            self.h_p = nn.Parameter(torch.tensor(float(widths["h_p"])), requires_grad=learn_bandwidths)
            self.positions = nn.Parameter(nn.init.normal_(torch.empty(1, tokens, dim), std=SINUSOIDAL_STD))
        self.position_term: Tensor | None
        self.register_buffer("position_term", None, persistent=False)

    def attend(
        self, x: Tensor, mask: Tensor | None = None, *, observe: bool = False
    ) -> tuple[Tensor, dict[str, Any]]:
        q, k, v = self.project(x)
        mask = attention_mask(mask, q, causal=self.causal)
        added = self.position_logits(x.shape[1])
        scale = self.h_y**-2
        output = _attend(q, k, v, added, scale, mask)
        if not observe:
            return output, {}
        sites = {"q": q, "k": k, "v": v, "scale": scale, "mask": _joined(added, mask, q)}
        return output, sites

    def position_logits(self, tokens: int) -> Float[Tensor, "head query key"] | None:
        """The positions' part of the logits for the first ``tokens`` positions; None for ``nonlocal``.

        Raises InputError for more tokens than there are positions.
        """
        if self.positions is None:
            return None
        self.check_length(tokens)
        if self.position_term is not None and not self.training and not self._position_gradient():
            return self.position_term[:, :tokens, :tokens]
        # Without the bias of the projections: the kernel is pᵀ W_Qᵀ W_K p.
        both = F.linear(self.positions[:, :tokens], self.qkv.weight[: 2 * self.dim])
        q, k = (split_heads(part, self.num_heads)[0] for part in both.chunk(2, dim=-1))
        return position_logits(q, k, h_p=self.h_p)

    @torch.no_grad()
    def precompute(self) -> None:
        """Keep the positions' logits, (head, num_tokens, num_tokens) numbers, until the weights may change.

        They are left aside in training mode and where gradients reach the weights, and forgotten by
        ``train()`` and ``load_state_dict``. Call it again after changing weights in any other way.
        """
        self.position_term = None
        if self.positions is not None:
            self.position_term = self.position_logits(self.positions.shape[1])

    def train(self, mode: bool = True) -> BilateralAttention:
        if mode:
            self.position_term = None
        return super().train(mode)

    def _position_gradient(self) -> bool:
        weights = (self.positions, self.h_p, self.qkv.weight)
        return torch.is_grad_enabled() and any(w is not None and w.requires_grad for w in weights)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self.position_term = None
        super()._load_from_state_dict(*args, **kwargs)


class AlibiAttention(AttentionModule):
    """``alibi_attention``: a penalty on distance instead of positions, without parameters.

    Distance is counted in tokens, along the rows of an image one after the other.
    """

    brings_positions: ClassVar[bool] = True

    def __init__(self, dim: int, num_heads: int, **shared: Any) -> None:
        super().__init__(dim, num_heads, **shared)
        self.slopes: Tensor
        self.register_buffer("slopes", alibi_slopes(num_heads), persistent=False)

    def attend(
        self, x: Tensor, mask: Tensor | None = None, *, observe: bool = False
    ) -> tuple[Tensor, dict[str, Any]]:
        q, k, v = self.project(x)
        mask = attention_mask(mask, q, causal=self.causal)
        output = alibi_attention(q, k, v, self.slopes, mask=mask)
        if not observe:
            return output, {}
        added = alibi_logits(self.slopes, x.shape[1])
        return output, {"q": q, "k": k, "v": v, "scale": self.scale, "mask": _joined(added, mask, q)}


class TwicingAttention(AttentionModule):
    """``twicing_attention``. Its ``attn`` is 2A − A²: rows sum to 1, and entries may be negative."""

    def attend(
        self, x: Tensor, mask: Tensor | None = None, *, observe: bool = False
    ) -> tuple[Tensor, dict[str, Any]]:
        q, k, v = self.project(x)
        mask = attention_mask(mask, q, causal=self.causal)
        output = twicing_attention(q, k, v, mask=mask)
        if not observe:
            return output, {}
        once = masked_softmax(self.scale * q @ k.mT, mask)
        sites = {"q": q, "k": k, "v": v, "scale": self.scale, "mask": mask}
        return output, {**sites, "attn": 2 * once - once @ once}
