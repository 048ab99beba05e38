"""Find where a model's numbers stop being finite; NaN would count as a wrong answer or a withstood attack."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from workbench.core.errors import InputError


def not_finite(what: str, module: nn.Module, inputs: Any) -> InputError:
    """Return an error with the cause of non-finite outputs: the input, a weight, or the first such layer."""
    return InputError(
        f"the {what} of the model are not finite ({_cause(module, inputs)}); nothing can be measured with them"
    )


def _cause(module: nn.Module, inputs: Any) -> str:
    if not all(value.isfinite().all() for value in _tensors(inputs)):
        return "nor is its input"
    for name, weight in module.state_dict().items():
        if not weight.isfinite().all():
            return f"nor are its weights, the first of them {name}"
    layer = _first_not_finite(module, inputs)
    return (
        "but every layer's output is" if layer is None else f"the first layer whose output is not is {layer}"
    )


@torch.no_grad()
def _first_not_finite(module: nn.Module, inputs: Any) -> str | None:
    """Return the first layer, in the order of a forward pass, whose output is not finite."""
    layer_names: list[str] = []

    def watch(name: str) -> Any:
        def look(layer: nn.Module, arguments: Any, output: Any) -> None:
            if not layer_names and not all(value.isfinite().all() for value in _tensors(output)):
                layer_names.append(name)

        return look

    with ExitStack() as stack:
        for name, layer in module.named_modules():
            if name:
                stack.callback(layer.register_forward_hook(watch(name)).remove)
        module(**inputs) if isinstance(inputs, dict) else module(inputs)
    return layer_names[0] if layer_names else None


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yield every tensor in a layer's input or output."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _tensors(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)
