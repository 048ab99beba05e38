"""Nyströmformer (Xiong et al. 2021): softmax attention approximated through landmarks, linear in tokens.

One of the baselines of abdullaev2025 (Table I) and chen2023 (Table 3).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from workbench.attention.base import (
    AttentionModule,
    attention_mask,
    checked_mechanism,
    default_scale,
    masked_softmax,
    token_mask,
)

_WHAT = "Nyström attention"


class _Factors(NamedTuple):
    """A ≈ ``left`` ``inverse`` ``right``: query to landmark, landmark to landmark, landmark to key."""

    left: Tensor
    inverse: Tensor
    right: Tensor


@checked_mechanism
def nystrom_attention(
    q: Float[Tensor, "batch head token head_dim"],
    k: Float[Tensor, "batch head token head_dim"],
    v: Float[Tensor, "batch head token head_dim"],
    *,
    landmarks: int = 64,
    iterations: int = 6,
    scale: float | Tensor | None = None,
    mask: Bool[Tensor, ...] | None = None,
) -> Float[Tensor, "batch head token head_dim"]:
    """softmax(q k̃ᵀ) softmax(q̃ k̃ᵀ)⁺ softmax(q̃ kᵀ) v, with q̃, k̃ means of segments (Xiong et al. 2021, eq. 13).

    The real tokens, those whose ``mask``, (batch, token), is true, are cut into ``landmarks`` segments of equal
    length, or nearly so where that cannot be (the paper has no such case); with fewer tokens each is its own landmark,
    and the result is softmax attention as far as the pseudo-inverse, by ``iterations`` of a Newton-Schulz
    polynomial, has converged. O(token · landmarks) time; never token × token. The convolution of the values that the
    published code can add is not here. Raises InputError for operands that do not fit one another.
    """
    left, inverse, right = _factors(q, k, landmarks, iterations, scale, token_mask(mask, q, _WHAT))
    return left @ (inverse @ (right @ v))


@checked_mechanism
def nystrom_map(
    q: Float[Tensor, "batch head token head_dim"],
    k: Float[Tensor, "batch head token head_dim"],
    *,
    landmarks: int = 64,
    iterations: int = 6,
    scale: float | Tensor | None = None,
    mask: Bool[Tensor, ...] | None = None,
) -> Float[Tensor, "batch head query key"]:
    """The token × token matrix that `nystrom_attention` multiplies values with (Xiong et al. 2021), for looking at.

    Entries may be negative; rows sum to 1 where the pseudo-inverse has converged.
    """
    left, inverse, right = _factors(q, k, landmarks, iterations, scale, token_mask(mask, q, _WHAT))
    return left @ inverse @ right


def _factors(
    q: Tensor, k: Tensor, landmarks: int, iterations: int, scale: float | Tensor | None, tokens: Tensor | None
) -> _Factors:
    scale = default_scale(scale, q)
    if tokens is None:
        tokens = torch.ones(q.shape[0], q.shape[2], dtype=torch.bool, device=q.device)
    means, used = _segments(tokens, landmarks, q.dtype)
    means, used, tokens = means[:, None], used[:, None], tokens[:, None, None]
    # zeros in the place of padding, which may hold anything; its weight is zero, and zero times NaN is not
    q_means = means @ torch.where(tokens.mT, q, 0.0)
    k_means = means @ torch.where(tokens.mT, k, 0.0)
    left = masked_softmax(scale * q @ k_means.mT, used[..., None, :])
    middle = masked_softmax(scale * q_means @ k_means.mT, used[..., None] & used[..., None, :])
    right = masked_softmax(scale * q_means @ k.mT, used[..., None] & tokens)
    return _Factors(left, pseudo_inverse(middle, iterations), right)


def _segments(
    tokens: Bool[Tensor, "batch token"], landmarks: int, dtype: torch.dtype
) -> tuple[Float[Tensor, "batch landmark token"], Bool[Tensor, "batch landmark"]]:
    """Weights whose product with tokens is the mean of every segment, and which landmarks there are."""
    length = tokens.sum(-1, keepdim=True)
    count = length.clamp(max=landmarks)
    rank = tokens.cumsum(-1) - 1
    segment = rank * count // length.clamp(min=1)
    numbers = torch.arange(landmarks, device=tokens.device)
    member = ((segment[:, None] == numbers[:, None]) & tokens[:, None]).to(dtype)
    return member / member.sum(-1, keepdim=True).clamp(min=1), numbers < count


@checked_mechanism
def pseudo_inverse(
    matrix: Float[Tensor, "*batch row column"], iterations: int = 6
) -> Float[Tensor, "*batch column row"]:
    """Moore-Penrose inverse by ``iterations`` of Z ← ¼ Z (13 I − A Z (15 I − A Z (7 I − A Z))) (Xiong et al. 2021).

    It begins at Aᵀ / (‖A‖₁ ‖A‖∞), and converges to the inverse of a matrix that is not singular.
    """
    size = matrix.abs().sum(-2).amax(-1) * matrix.abs().sum(-1).amax(-1)
    inverse = matrix.mT / size.clamp(min=torch.finfo(matrix.dtype).tiny)[..., None, None]
    identity = torch.eye(matrix.shape[-2], dtype=matrix.dtype, device=matrix.device)
    for _ in range(iterations):
        product = matrix @ inverse
        inverse = (
            0.25 * inverse @ (13 * identity - product @ (15 * identity - product @ (7 * identity - product)))
        )
    return inverse


class NystromAttention(AttentionModule):
    """``nystrom_attention``. Its ``attn`` is `nystrom_map`."""

    causality = "never"

    def __init__(
        self, dim: int, num_heads: int, *, landmarks: int = 64, iterations: int = 6, **shared: Any
    ) -> None:
        super().__init__(dim, num_heads, **shared)
        self.landmarks, self.iterations = landmarks, iterations

    def attend(
        self, x: Tensor, mask: Tensor | None = None, *, observe: bool = False
    ) -> tuple[Tensor, dict[str, Any]]:
        q, k, v = self.project(x)
        options = {
            "landmarks": self.landmarks,
            "iterations": self.iterations,
            "scale": self.scale,
            "mask": mask,
        }
        output = nystrom_attention(q, k, v, **options)
        if not observe:
            return output, {}
        inside = {"q": q, "k": k, "v": v, "scale": self.scale, "mask": attention_mask(mask, q)}
        return output, {**inside, "attn": nystrom_map(q, k, **options), "rows_sum_to_one": False}
