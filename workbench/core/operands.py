"""The tensors that a function takes, checked by its annotations: real floating point numbers with the named axes.

A check names the tensor, the axis and the place.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from workbench.core.errors import InputError

Given = ParamSpec("Given")
Result = TypeVar("Result")


def checked(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """The function, refusing what its annotations do not take, before torch takes it for something else.

    Every parameter that is annotated ``Float[Tensor, "*batch token head_dim"]`` must be a tensor of real floating point
    numbers that ends in these axes (`check_axes`): whole numbers would be divided without their fractions, complex ones
    lose a part. A parameter that may also be a number is the function's own matter.
    """
    operands = []
    for place, (name, parameter) in enumerate(inspect.signature(function).parameters.items()):
        if found := re.fullmatch(
            r"""Float\[Tensor, ['"]([^'"]*)['"]\](?: \| None)?""", str(parameter.annotation)
        ):
            axes = [axis.lstrip("#") for axis in found[1].split() if axis[0] not in "*."]
            operands.append((place, name, [] if any(axis.isdigit() for axis in axes) else axes))

    @functools.wraps(function)
    def refusing(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        for place, name, axes in operands:
            operand = args[place] if place < len(args) else kwargs.get(name)
            if operand is not None:
                check_axes(name, operand, axes)
        return function(*args, **kwargs)

    return refusing


def check_axes(name: str, tensor: object, axes: Sequence[str]) -> None:
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
    for axis, size in zip(axes, shape[tensor.ndim - len(axes) :], strict=True):
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
