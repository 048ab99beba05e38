"""The tensor arguments of a function: checked, standardised, cut into heads, and processed on all cores."""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from workbench.core.errors import InputError, UnknownName

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
TOKENS = ("token", "head_dim")
ATTENTION = ("head", "query", "key")
HIDDEN = ("token", "width")
_STANDARDIZATIONS = ("none", "per-token", "per-feature")


def checked_tensors(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Make a function check its tensors against its annotations before it runs.

    Every parameter that is annotated ``Float[Tensor, "*batch token head_dim"]`` must be a tensor of real floating point
    numbers that ends in these axes (`check_axes`). Integers would lose their fractions in a division, and complex
    numbers a part. The function itself checks a parameter that may also be a number.
    """
    operands = [
        (position, name, [] if any(axis.isdigit() for axis in axes) else axes)
        for position, name, (_, axes) in annotated_axes(function)
    ]

    @functools.wraps(function)
    def refusing(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        for position, name, axes in operands:
            operand = args[position] if position < len(args) else kwargs.get(name)
            if operand is not None:
                check_axes(name, operand, axes)
        return function(*args, **kwargs)

    return refusing


def annotated_axes(function: Callable[..., Any]) -> list[tuple[int, str, tuple[str, list[str]]]]:
    """Return position, name and axes of the parameters annotated ``Float[Tensor, "*batch token head_dim"]``.

    Axes are the name of those that may be any number ("" for none) and the names of the others.
    """
    operands = []
    for position, (name, parameter) in enumerate(inspect.signature(function).parameters.items()):
        if match := re.fullmatch(
            r"""Float\[Tensor, ['"]([^'"]*)['"]\](?: \| None)?""", str(parameter.annotation)
        ):
            axes = match[1].split()
            starred = next((axis.strip("*#.") or "…" for axis in axes if axis[0] in "*."), "")
            operands.append((position, name, (starred, [a.lstrip("#") for a in axes if a[0] not in "*."])))
    return operands


def check_axes(name: str, tensor: object, axes: Sequence[str]) -> None:
    """Raise `InputError` unless a tensor is real floating point and ends in the named axes, none of them empty.

    The error names the axis that is missing or empty. A tensor on the device "meta" is refused too.
    """
    wanted = f"(…, {', '.join(axes)})"
    if not isinstance(tensor, Tensor):
        raise InputError(f"{name} must be a torch tensor of shape {wanted}; got {type(tensor).__name__}")
    shape = tuple(tensor.shape)
    if tensor.ndim < len(axes):
        missing = ", ".join(axes[: len(axes) - tensor.ndim])
        raise InputError(f"{name} has shape {shape}; expected {wanted}: missing axis {missing}")
    for axis, size in zip(axes, shape[tensor.ndim - len(axes) :], strict=True):
        if size == 0:
            raise InputError(f"{name} has shape {shape}; expected {wanted}: axis {axis} is empty")
    if not tensor.is_floating_point():
        raise InputError(f"{name} holds {tensor.dtype}; expected real floating point numbers")
    if tensor.is_meta:
        raise InputError(f"{name} is on the device 'meta', where tensors have no values; make it on the CPU")


def nonfinite_count(tensor: Tensor) -> int:
    """Count the entries that are NaN or infinite."""
    if tensor.is_floating_point() and math.isfinite(tensor.sum()):
        return 0  # one pass and no second tensor; a sum that overflows says nothing
    return int((~torch.isfinite(tensor)).sum())


def check_finite(name: str, tensor: Tensor, axes: Sequence[str]) -> None:
    """Raise `InputError` where an entry is NaN or infinite, with their number and the position of the first."""
    if not nonfinite_count(tensor):
        return
    bad = (~torch.isfinite(tensor)).nonzero()
    first = tuple(bad[0].tolist())
    leading = tensor.ndim - len(axes)
    names = [f"axis {i}" for i in range(leading)] if leading > 1 else ["batch"] * leading
    index_text = ", ".join(f"{axis} {index}" for axis, index in zip([*names, *axes], first, strict=True))
    raise InputError(
        f"{name} of shape {tuple(tensor.shape)} holds {len(bad)} NaN or infinite of {tensor.numel()} values; "
        f"the first is {tensor[first].item()} at {index_text}; run the model in float32 or bfloat16, "
        "or leave that layer or input out"
    )


def check_token_count(name: str, count: int) -> None:
    """Raise `InputError` for fewer than two tokens: a single token has no pairs and no spectrum."""
    if count < 2:
        raise InputError(
            f"{name} has {count} token{'' if count == 1 else 's'}; at least 2 are needed (axis token)"
        )


def check_scale(scale: float | Tensor, batch_shape: Sequence[int], like: Tensor) -> Tensor:
    """Return the scale as a float64 tensor that multiplies scores of shape (*batch_shape, query, key).

    ``scale`` is a number, or a tensor that broadcasts to ``batch_shape`` (one value per head if each
    head learns a scale), with or without two trailing axes of size 1. Raises `InputError` unless it is finite
    and positive and fits.
    """
    value = torch.as_tensor(scale, dtype=torch.float64, device=like.device)
    if not torch.isfinite(value).all() or (value <= 0).any():
        scale_values = value.item() if value.numel() == 1 else value.flatten().tolist()[:8]
        raise InputError(f"scale must be finite and positive; got {scale_values}")
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
    """Return 1/√head_dim, the default scale of attention."""
    return 1 / math.sqrt(head_dim)


def check_mask(mask: Tensor, shape: Sequence[int]) -> Tensor:
    """Return a padding mask, true at real tokens, broadcast to ``shape`` = (*batch, token).

    Raises `InputError` where it is not boolean or does not fit, and where it leaves fewer than two tokens.
    """
    if mask.dtype != torch.bool:
        raise InputError(f"mask must be boolean, true at real tokens; got {mask.dtype}")
    if not _broadcasts(mask.shape, shape):
        raise InputError(
            f"mask of shape {tuple(mask.shape)} does not fit the axes (batch, token) = {tuple(shape)}"
        )
    mask = mask.expand(tuple(shape))
    fewest = int(mask.sum(-1).min()) if mask.numel() else 0
    if fewest < 2:
        raise InputError(f"the mask leaves {fewest} token(s) in an input; at least 2 are needed (axis token)")
    return mask


def standardize(
    x: Float[Tensor, "*batch token head_dim"],
    how: str,
    mask: Bool[Tensor, "*batch token"] | None = None,
    eps: float = 1e-8,
) -> Float[Tensor, "*batch token head_dim"]:
    """Return (x − mean) / (standard deviation + eps), with the unbiased deviation (ddof = 1), in float64.

    ``how``: "per-token", over the features of each token (the published code of saritas2025 and, with eps = 0,
    of teo2024); "per-feature", over the (real) tokens, as in the text of saritas2025; "none", x as it is. Constant
    features become 0, and so does padding (``mask`` false). Raises `UnknownName` for another ``how``, and
    `InputError` for fewer than two features or tokens and for values that are not finite.
    """
    if how not in _STANDARDIZATIONS:
        raise UnknownName("standardization", how, _STANDARDIZATIONS)
    if how == "none":
        return x
    check_axes("x", x, TOKENS)
    if how == "per-token" and x.shape[-1] < 2:
        raise InputError("standardizing per token needs 2 features or more; got 1 (axis head_dim)")
    check_token_count("x", x.shape[-2])
    real = None if mask is None else check_mask(mask, x.shape[:-1]).to(x.device)[..., None]
    x = (x if real is None else torch.where(real, x, 0)).double()
    check_finite("x", x, TOKENS)
    if how == "per-token":
        centred, count = x - x.mean(-1, keepdim=True), x.shape[-1]
        axis = -1
    else:
        count = x.shape[-2] if real is None else real.sum(-2, keepdim=True)
        centred = x - x.sum(-2, keepdim=True) / count
        centred = centred if real is None else centred * real
        axis = -2
    deviation = (centred.square().sum(axis, keepdim=True) / (count - 1)).sqrt() + eps
    return centred / torch.where(deviation > 0, deviation, 1.0)


def map_heads(function: Callable[..., Result], *stacks: Tensor | Sequence[Any] | None) -> list[Result]:
    """Return ``function(a[i], b[i], …)`` for every i of stacks of one length, in order.

    A stack is a tensor or any sequence; None hands None to every head. Threads inside the decomposition of a
    few hundred tokens cost more than they save, and a batched call processes its matrices one by one. So the
    heads are spread over ``torch.get_num_threads()`` threads, each with a matrix that stays in its cache. On
    an accelerator all run in one thread.
    """
    heads = next(len(stack) for stack in stacks if stack is not None)
    columns: list[Iterable[Any]] = [[None] * heads if stack is None else stack for stack in stacks]
    on_cpu = all(stack.device.type == "cpu" for stack in stacks if isinstance(stack, Tensor))
    threads = torch.get_num_threads()
    workers = min(threads, heads) if on_cpu else 1
    if workers < 2:
        return [function(*parts) for parts in zip(*columns, strict=True)]
    try:
        with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(function, *columns))
    finally:
        torch.set_num_threads(
            threads
        )  # the workers' call also set a limit that MKL keeps for the whole process


def map_tokens(
    function: Callable[..., Result],
    tensors: Mapping[str, Tensor | None],
    scale: float | Tensor,
    mask: Tensor | None = None,
    seeds: Sequence[int] | None = None,
) -> list[Result]:
    """Return ``function(*tensors of one head, scale, seed)`` for each head of a flattened batch, on its real tokens.

    ``tensors`` are named for the errors: all (*batch, token, …) with one batch and one number of tokens; None
    reaches the function.
    ``mask`` (true at real tokens) broadcasts to (*batch, token); what padding holds is never looked at.
    ``scale`` is one number or one per head, ``seeds`` one per flattened head or none (None reaches the
    function). The function gets float64. Raises `InputError` for missing or unequal axes, NaN or infinite
    values, a scale that is not finite and positive, fewer than two (real) tokens, or a wrong number of seeds.
    """
    present = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    first_name, first = next(iter(present.items()))
    for name, tensor in present.items():
        check_axes(name, tensor, TOKENS)
    shape = tuple(first.shape[:-1])
    for name, tensor in present.items():
        if tuple(tensor.shape[:-1]) != shape:
            raise InputError(
                f"{name} of shape {tuple(tensor.shape)} does not fit {first_name} of shape "
                f"{tuple(first.shape)}: all axes but the last must agree; give grouped-query k and v one "
                "copy per query head"
            )
        seen = tensor if mask is None else torch.where(_full(mask, tensor)[..., None], tensor, 0)
        check_finite(name, seen, TOKENS)
        check_token_count(name, shape[-1])
    batch, heads = shape[:-1], first[..., 0, 0].numel()
    scales = check_scale(scale, batch, first).expand(*batch, 1, 1).reshape(-1)
    if seeds is not None and len(seeds) != heads:
        raise InputError(f"got {len(seeds)} seeds for {heads} heads; give one seed per head")
    masks = None if mask is None else _full(mask, first).reshape(-1, shape[-1])
    flat = [
        None if tensor is None else tensor.detach().reshape(-1, *tensor.shape[-2:])
        for tensor in tensors.values()
    ]

    def on_real_tokens(kept: Tensor | None, scale: Tensor, seed: int | None, *parts: Tensor | None) -> Result:
        unpadded = kept is None or bool(kept.all())
        seen = [None if part is None else (part if unpadded else part[kept]).double() for part in parts]
        return function(*seen, scale, seed)

    return map_heads(on_real_tokens, masks, scales, seeds, *flat)


def _full(mask: Tensor, like: Tensor) -> Tensor:
    return check_mask(mask, like.shape[:-1]).to(like.device)


def stack_heads(parts: Sequence[Any], batch: Sequence[int]) -> Any:
    """Stack the results of the flattened heads into one result of their form, with tensors of shape (*batch, …).

    The form is a tensor, a named tuple or a mapping of such.
    """
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.stack([*parts]).reshape((*batch, *first.shape))
    if isinstance(first, Mapping):
        return {name: stack_heads([part[name] for part in parts], batch) for name in first}
    return type(first)(*(stack_heads(column, batch) for column in zip(*parts, strict=True)))
