"""Checks that every analysis makes on what it is given; each names the tensor, the axis and the place."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from workbench.core.errors import InputError

TOKENS = ("token", "head_dim")
ATTENTION = ("head", "query", "key")
HIDDEN = ("token", "width")


def check_axes(name: str, tensor: Tensor, axes: Sequence[str]) -> None:
    """The tensor is real floating point and ends in the named axes, none of them empty.

    Raises `InputError` naming the axis that is missing or empty.
    """
    wanted = f"(…, {', '.join(axes)})"
    if not isinstance(tensor, Tensor):
        raise InputError(f"{name} must be a torch tensor of shape {wanted}; got {type(tensor).__name__}")
    shape = tuple(tensor.shape)
    if tensor.ndim < len(axes):
        missing = ", ".join(axes[: len(axes) - tensor.ndim])
        raise InputError(f"{name} has shape {shape}; expected {wanted}: missing axis {missing}")
    for axis, size in zip(axes, shape[-len(axes) :], strict=True):
        if size == 0:
            raise InputError(f"{name} has shape {shape}; expected {wanted}: axis {axis} is empty")
    if not tensor.is_floating_point():
        raise InputError(f"{name} holds {tensor.dtype}; expected real floating point numbers")


def nonfinite_count(tensor: Tensor) -> int:
    """How many entries are NaN or infinite."""
    return int((~torch.isfinite(tensor)).sum())


def check_finite(name: str, tensor: Tensor, axes: Sequence[str]) -> None:
    """No entry is NaN or infinite.

    Raises `InputError` with how many there are, and where the first one is.
    """
    if not nonfinite_count(tensor):
        return
    bad = (~torch.isfinite(tensor)).nonzero()
    first = tuple(bad[0].tolist())
    leading = tensor.ndim - len(axes)
    names = [f"axis {i}" for i in range(leading)] if leading > 1 else ["batch"] * leading
    place = ", ".join(f"{axis} {index}" for axis, index in zip([*names, *axes], first, strict=True))
    raise InputError(
        f"{name} of shape {tuple(tensor.shape)} holds {len(bad)} NaN or infinite of {tensor.numel()} values; "
        f"the first is {tensor[first].item()} at {place}; run the model in float32 or bfloat16, "
        "or leave that layer or input out"
    )


def check_token_count(name: str, count: int) -> None:
    """At least two tokens: one token has no pairs, no spectrum and no attention to speak of."""
    if count < 2:
        raise InputError(
            f"{name} has {count} token{'' if count == 1 else 's'}; at least 2 are needed (axis token)"
        )


def check_scale(scale: float | Tensor, batch_shape: Sequence[int], like: Tensor) -> Tensor:
    """The scale as float64 that multiplies scores of shape (*batch_shape, query, key).

    ``scale`` is one number, or a tensor that broadcasts to ``batch_shape`` (one value per head where each
    head learns its own), with or without two trailing axes of size 1. Raises `InputError` unless it is finite
    and positive and fits.
    """
    value = torch.as_tensor(scale, dtype=torch.float64, device=like.device)
    if not torch.isfinite(value).all() or (value <= 0).any():
        given = value.item() if value.numel() == 1 else value.flatten().tolist()[:8]
        raise InputError(f"scale must be finite and positive; got {given}")
    if value.numel() == 1:
        return value.reshape(())
    trailing = value.shape[-2:] == (1, 1) and not _broadcasts(value.shape, batch_shape)
    plain = value[..., 0, 0] if trailing else value
    if not _broadcasts(plain.shape, batch_shape):
        raise InputError(
            f"scale of shape {tuple(value.shape)} does not fit the axes (batch, head) = "
            f"{tuple(batch_shape)}; give one number, or one per head"
        )
    return plain[..., None, None]


def _broadcasts(shape: Sequence[int], target: Sequence[int]) -> bool:
    if len(shape) > len(target):
        return False
    return all(a in (1, b) for a, b in zip(reversed(shape), reversed(target), strict=False))


def default_scale(head_dim: int) -> float:
    """1/√head_dim, the scale of attention where nothing else is said."""
    return 1 / math.sqrt(head_dim)


def check_mask(mask: Tensor, shape: Sequence[int], tokens: str = "token") -> Tensor:
    """A padding mask, true at real tokens, broadcast to ``shape`` = (*batch, token).

    Raises `InputError` where it is not boolean or does not fit, and where it leaves fewer than two tokens.
    """
    if mask.dtype != torch.bool:
        raise InputError(f"mask must be boolean, true at real tokens; got {mask.dtype}")
    if not _broadcasts(mask.shape, shape):
        raise InputError(
            f"mask of shape {tuple(mask.shape)} does not fit the axes (batch, {tokens}) = {tuple(shape)}"
        )
    mask = mask.expand(tuple(shape))
    fewest = int(mask.sum(-1).min()) if mask.numel() else 0
    if fewest < 2:
        raise InputError(
            f"the mask leaves {fewest} token(s) in an input; at least 2 are needed (axis {tokens})"
        )
    return mask
