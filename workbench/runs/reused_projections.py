"""Linear layers in further passes of a model over one batch, computed once as long as these passes are the same."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn

from workbench.captures.thread_guard import in_this_thread

_MOST_BYTES = 1 << 28
"""Memory of the outputs; later layers are computed in every pass."""


class Projections:
    """Outputs of the linear layers that run ahead of a change, in call order.

    Attention itself runs in every pass, so that each pass numbers its layers from 0. A layer with a ``forward`` of its
    own, as parallel or quantised models have, is computed in every pass.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.outputs: list[tuple[nn.Module, Tensor]] = []
        self.bytes = self.calls = 0
        self.same = False

    def end(self) -> None:
        """Compute all layers that run from now on in this pass."""
        self.same = False

    @contextmanager
    def reused(self) -> Generator[None]:
        """Reuse the outputs of earlier passes in a pass of this thread, until `end` is called."""
        layers = [
            layer
            for layer in self.module.modules()
            if (type(layer) is nn.Linear or type(layer).__name__ == "Conv1D") and "forward" not in vars(layer)
        ]
        self.calls, self.same = 0, not self.module.training
        try:
            for layer in layers:
                layer.forward = in_this_thread(partial(self.output, layer, layer.forward), layer.forward)
            yield
        finally:
            for layer in layers:
                vars(layer).pop("forward", None)

    def output(self, layer: nn.Module, forward: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Return the output of a linear layer, from an earlier pass where it is the same."""
        if self.same and self.calls < len(self.outputs):
            earlier, output = self.outputs[self.calls]
            self.same = earlier is layer
            if self.same:
                self.calls += 1
                return output.clone()  # the model may write into it
        output = forward(*args, **kwargs)
        if self.same:
            self.bytes += output.nbytes
            self.same = self.bytes <= _MOST_BYTES
        if self.same:
            self.outputs.append((layer, output.clone()))
            self.calls += 1
        return output
