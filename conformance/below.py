"""The attention that ran, seen below every library: a softmax that arrives in a product with data.

This is the other side of the comparison, and shares nothing with the captures: it sits at the dispatcher, where
whatever a model calls has become a handful of operations, and marks what comes of a softmax until a product of matrices
takes it.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

SOFTMAX = {"_softmax", "_safe_softmax"}
PRODUCTS = {"mm", "bmm", "addmm", "baddbmm", "addbmm"}
# What hands weights on: their axes are moved, or parts of them taken or joined …
AXES = {
    "view", "_unsafe_view", "reshape", "_reshape_alias", "permute", "transpose", "t", "expand", "unsqueeze", "squeeze",
    "slice", "select", "split", "split_with_sizes", "unbind", "unfold", "as_strided", "alias", "detach", "clone",
    "cat", "stack", "constant_pad_nd", "repeat", "index_select", "index", "roll", "flip", "diagonal", "copy",
    "_to_copy",
}  # fmt: skip
# … or their values are changed, each by itself or with others in its place. Sums only with other weights: a stream that
# a softmax is added to carries none.
VALUES = {
    "native_dropout", "mul", "div", "neg", "masked_fill", "where", "nan_to_num", "clamp", "convolution",
    "native_layer_norm", "native_batch_norm", "maximum", "minimum",
}  # fmt: skip
SUMS = {"add", "sub", "rsub"}


@dataclass
class Weights:
    """What a product with data took, the number of the softmax it came of, and the module it ran in."""

    value: Tensor
    softmax: int
    path: str
    pieces: tuple[Weights, ...] = ()


class Below(TorchDispatchMode):
    """Collects ``weights``, in the order of their products, while it is on."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.weights: list[Weights] = []
        self.within = [""]
        self.softmaxes = itertools.count()
        self.marks: dict[int, tuple[weakref.ref[Tensor], int]] = {}
        self.owned = {
            tensor.untyped_storage().data_ptr()
            for tensor in itertools.chain(model.parameters(), model.buffers())
        } - {0}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if torch.is_inference_mode_enabled():  # where composite operations arrive whole
            with self:
                result = func.decompose(*args, **(kwargs or {}))
            if result is not NotImplemented:
                return result
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in SOFTMAX:
            if args[0].shape[args[1]] > 1:
                self.mark(result, next(self.softmaxes))
        elif self.marks and name in PRODUCTS:
            self.take(args[-2:], result)
        elif self.marks and (name := name.removesuffix("_")) in AXES | VALUES | SUMS:
            given = _tensors(args)
            marked = [(number, tensor) for tensor in given if (number := self.marked(tensor)) is not None]
            large = [tensor for tensor in given if tensor.numel() == max(t.numel() for t in given)]
            if marked and not (name in SUMS and any(self.marked(tensor) is None for tensor in large)):
                size = max(tensor.numel() for _, tensor in marked)
                for tensor in _tensors(result):
                    if name in AXES or tensor.numel() == size:
                        self.mark(tensor, min(number for number, _ in marked))
        return result

    def take(self, operands: tuple[Tensor, ...], result: Tensor) -> None:
        """Operands of a product: weights that meet data are taken, weights that meet parameters handed on."""
        left, right = operands
        for weights, data in ((left, right), (right, left)):
            number = self.marked(weights)
            if number is None:
                continue
            if data.untyped_storage().data_ptr() in self.owned:
                if result.shape == weights.shape:
                    self.mark(result, number)
                continue
            self.weights.append(Weights(weights.detach().clone(), number, self.within[-1]))

    def mark(self, tensor: Tensor, number: int) -> None:
        if tensor.is_floating_point():
            self.marks[id(tensor)] = (weakref.ref(tensor), number)

    def marked(self, tensor: Tensor) -> int | None:
        found = self.marks.get(id(tensor))
        return found[1] if found is not None and found[0]() is tensor else None


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [t for item in value for t in _tensors(item)] if isinstance(value, (tuple, list)) else []


@contextmanager
def watched_below(model: nn.Module) -> Generator[Below]:
    """Every softmax that meets data, while the model computes its attention in plain operations."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with ExitStack() as stack:
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
            below = stack.enter_context(Below(model))
            for path, module in model.named_modules():
                enter = module.register_forward_pre_hook(lambda _, args, path=path: below.within.append(path))
                leave = module.register_forward_hook(
                    lambda *_: (below.within.pop(), None)[1], always_call=True
                )
                stack.callback(enter.remove)
                stack.callback(leave.remove)
            yield below
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
