"""Build the attention layers of a point, run a pass, and forecast its cost from shapes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from workbench.attention import attention_module
from workbench.attention.base import AttentionModule, attention_mask, masked_softmax
from workbench.attention.softmax import SoftmaxAttention
from workbench.papers.operators import BOTH, OPERATORS, Point
from workbench.studies.training.cost_measures import Allocations, operation_counter


class _EagerSoftmaxAttention(SoftmaxAttention):
    """Softmax attention that forms its token × token matrix, without a fused kernel."""

    def attend(
        self, x: Tensor, mask: Tensor | None = None, *, observe: bool = False
    ) -> tuple[Tensor, dict[str, Any]]:
        if observe:
            return super().attend(x, mask, observe=True)
        q, k, v = self.queries_keys_values(x)
        mask = attention_mask(mask, q, causal=self.causal)
        return masked_softmax((self.scale * q) @ k.mT, mask) @ v, {}


def attention_layers(point: Point, device: str = "cpu", dtype: torch.dtype = torch.float32) -> nn.Sequential:
    """Return the point's layers in sequence; their weights are drawn once and copied."""
    first = _layer(point).eval().to(device, dtype)
    return nn.Sequential(first, *(copy.deepcopy(first) for _ in range(point.layers - 1)))


def _layer(point: Point) -> AttentionModule:
    operator = OPERATORS[point.operator]
    options: dict[str, Any] = {**operator.options, "num_tokens": point.tokens}
    if operator.eager:
        return _EagerSoftmaxAttention(point.width, point.heads, **options)
    return attention_module(operator.variant, point.width, point.heads, **options)


def _shapes_only(point: Point, dtype: torch.dtype) -> nn.Sequential:
    """Return the layers with fake tensors, which can be neither copied nor cast by their module."""
    layers = nn.Sequential(*(_layer(point).eval() for _ in range(point.layers)))
    for module in layers.modules():
        for name, weight in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(weight.detach().to(dtype)))
    return layers


def one_pass(layers: nn.Sequential, x: Tensor, condition: str) -> Callable[[], object]:
    """Return the measured computation: the output, or with "forward + backward" the gradients of all weights."""
    backward = condition == BOTH
    weights = list(layers.parameters())

    def compute() -> object:
        with torch.set_grad_enabled(backward):
            output = layers(x)
        if not backward:
            return output
        # Λ of Primal-Attention belongs to its penalty, which is left out
        return torch.autograd.grad(output, weights, torch.ones_like(output), allow_unused=True)

    return compute


class Forecast(NamedTuple):
    """The predicted cost of a pass at a point."""

    macs: float
    """Multiply–accumulates, in matrix products and attention."""
    tensors: int
    """Peak bytes of its tensors, including gradients, without weights."""
    needed: int
    """Bytes with the weights and the input."""


def forecast(point: Point, condition: str, dtype: torch.dtype = torch.float32) -> Forecast:
    """Count a pass from its shapes, without computing or allocating anything."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        layers = _shapes_only(point, dtype)
        x = torch.zeros(1, point.tokens, point.width, dtype=dtype)
        compute = one_pass(layers, x, condition)
        with operation_counter() as counter, Allocations() as seen:
            compute()
    held_bytes = sum(tensor.nbytes for tensor in (x, *layers.parameters()))
    return Forecast(counter.get_total_flops() / 2, seen.peak, held_bytes + seen.peak)
