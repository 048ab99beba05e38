"""Find where a model's numbers stop being finite; NaN would count as a wrong answer or a withstood attack."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import nn

from workbench.captures.keeper import tensors_in
from workbench.core.errors import InputError


def not_finite(what: str, module: nn.Module, inputs: Any) -> InputError:
    """Return an error with the cause of non-finite outputs: the input, a weight, or the first such layer."""
    return InputError(
        f"the {what} of the model are not finite ({_cause(module, inputs)}); nothing can be measured with them"
    )


def _cause(module: nn.Module, inputs: Any) -> str:
    if not all(value.isfinite().all() for value in tensors_in(inputs)):
        return "nor is its input"
    for name, weight in module.state_dict().items():
        if not weight.isfinite().all():
            return f"nor are its weights, the first of them {name}"
    layer, _ = first_layer_not_finite(
        module, lambda: module(**inputs) if isinstance(inputs, dict) else module(inputs)
    )
    return (
        "but every layer's output is" if layer is None else f"the first layer whose output is not is {layer}"
    )


def first_layer_not_finite(module: nn.Module, run: Callable[[], Any]) -> tuple[str | None, Any]:
    """Return the first module whose output in ``run``, a forward pass, is not finite; and the result of ``run``.

    Inner modules finish before the ones that hold them, so the first is the innermost.
    """
    names: list[str] = []

    def look(name: str, layer: nn.Module, arguments: Any, output: Any) -> None:
        if not names and not all(value.isfinite().all() for value in tensors_in(output)):
            names.append(name)

    with ExitStack() as hooks, torch.no_grad():
        for name, layer in module.named_modules():
            hooks.enter_context(layer.register_forward_hook(partial(look, name or "the model")))
        result = run()
    return names[0] if names else None, result
