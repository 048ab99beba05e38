"""Where a model's numbers stop being finite: NaN would otherwise count as a wrong answer, or as an attack withstood."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from workbench.core.errors import InputError


def not_finite(what: str, module: nn.Module, given: Any) -> InputError:
    """The error that says why ``what`` a model gave is not finite: its input, a weight, or the first layer to blame."""
    return InputError(
        f"the {what} of the model are not finite ({_cause(module, given)}); nothing can be measured with them"
    )


def _cause(module: nn.Module, given: Any) -> str:
    if not all(value.isfinite().all() for value in _tensors(given)):
        return "nor is its input"
    for name, weight in module.state_dict().items():
        if not weight.isfinite().all():
            return f"nor are its weights, the first of them {name}"
    layer = first_not_finite(module, given)
    return (
        "but every layer's output is" if layer is None else f"the first layer whose output is not is {layer}"
    )


@torch.no_grad()
def first_not_finite(module: nn.Module, given: Any) -> str | None:
    """The name of the first layer, in the order in which a forward pass ends them, whose output is not finite."""
    found: list[str] = []

    def watch(name: str) -> Any:
        def look(layer: nn.Module, arguments: Any, output: Any) -> None:
            if not found and not all(value.isfinite().all() for value in _tensors(output)):
                found.append(name)

        return look

    with ExitStack() as stack:
        for name, layer in module.named_modules():
            if name:
                stack.callback(layer.register_forward_hook(watch(name)).remove)
        module(**given) if isinstance(given, dict) else module(given)
    return found[0] if found else None


def _tensors(value: Any) -> Iterator[Tensor]:
    """Every tensor in what a layer took or gave."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _tensors(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)
