"""The end of a model: the last norm and the linear layer that make its logits of the residual stream."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from workbench.captures.keeper import first_tensor
from workbench.captures.position_path import frozen
from workbench.captures.projections import linear_weight
from workbench.core.errors import InputError

_RECENT = 4  # modules of a kind that are looked at, from the end
_SAME = 1e-3  # relative to the largest logit


class Readout(NamedTuple):
    """The last norm of a model and the linear layer after it; `logits` applies both to a residual stream.

    ``bias`` is what both add: logits = (norm(stream) − norm.bias) weight + bias, to rounding. ``token`` is the token
    whose stream gives the class; None if every token gives logits.
    """

    norm: nn.Module
    weight: Float[Tensor, "width outcome"]
    bias: Float[Tensor, " outcome"]
    stream: Float[Tensor, "batch token width"]
    token: int | None

    def logits(self, stream: Float[Tensor, "batch token width"]) -> Float[Tensor, "batch token outcome"]:
        """Return the logits of any residual stream, in float64 (the logit lens, nostalgebraist 2020)."""
        return frozen(self.norm, stream, stream) @ self.weight.double() + self.bias.double()

    def direction(self, outcome: Float[Tensor, "batch token outcome"]) -> Float[Tensor, "batch token width"]:
        """Return g such that a part x of the stream adds x · g to the weighted sum of logits, the norm frozen.

        ``outcome`` are the weights of the logits at every token, of zeros where no logits are read. float64.
        """
        read = outcome.double() @ self.weight.double().mT
        with torch.enable_grad():
            part = torch.zeros_like(self.stream, dtype=torch.float64).requires_grad_()
            (frozen(self.norm, self.stream, part) * read).sum().backward()
        assert part.grad is not None
        return part.grad


def find_readout(model: nn.Module, run: Callable[[], Tensor]) -> Readout:
    """Return the last norm and the linear layer whose output are the logits that ``run`` returns.

    Both are found by what passes through them, and the logits rebuilt from them are compared with the model's own.
    Raises `InputError` where there is no such pair: pooled tokens, several heads of classifiers, a scale or a cap
    behind the linear layer.
    """
    linears: deque[tuple[nn.Module, Tensor, Tensor]] = deque(maxlen=_RECENT)
    norms: deque[tuple[nn.Module, Tensor, Tensor]] = deque(maxlen=_RECENT)

    def note(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        values = first_tensor((args, kwargs)), first_tensor(output)
        if all(isinstance(value, Tensor) for value in values):
            (linears if linear_weight(module) is not None else norms).append((module, *values))

    with ExitStack() as stack:
        for module in model.modules():
            if linear_weight(module) is not None or type(module).__name__.lower().endswith("norm"):
                stack.callback(module.register_forward_hook(note, with_kwargs=True).remove)
        logits = run()
    for weight, bias, row in _linear_ends(model, logits, linears):
        for norm, stream, normed in reversed(norms):
            token = 0 if row is None else _token_of(row, normed)
            if stream.ndim != 3 or token is None:
                continue
            shift = getattr(norm, "bias", None)
            shifted = bias if shift is None else bias + shift.detach() @ weight
            readout = Readout(norm, weight, shifted, stream, None if logits.ndim == 3 else token)
            rebuilt = readout.logits(stream)
            rebuilt = rebuilt if logits.ndim == 3 else rebuilt[:, token]
            if rebuilt.shape == logits.shape and (rebuilt - logits).abs().max() <= _SAME * logits.abs().max():
                return readout
    raise InputError(
        f"{type(model).__name__}: its logits are not a linear layer of the last norm at every token or at one token; "
        "models that pool their tokens, or that scale their logits, are not read"
    )


def _linear_ends(
    model: nn.Module, logits: Tensor, linears: Iterable[tuple[nn.Module, Tensor, Tensor]]
) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
    """Yield weight, bias and input of linear layers that return the logits, then the embedding that stands for one."""
    for linear, row, output in linears:
        weight, bias = linear_weight(linear), getattr(linear, "bias", None)
        if weight is not None and output.shape == logits.shape and torch.equal(output, logits):
            weight = weight.detach()
            yield weight, weight.new_zeros(weight.shape[1]) if bias is None else bias.detach(), row
    for module in model.modules():
        if isinstance(module, nn.Embedding) and module.weight.shape[0] == logits.shape[-1]:
            weight = module.weight.detach().mT
            yield weight, weight.new_zeros(weight.shape[1]), None


def _token_of(row: Tensor, normed: Tensor) -> int | None:
    """Return the token whose normed stream a linear layer reads, 0 where it reads all; None where it reads neither."""
    if row.shape == normed.shape:
        return 0 if torch.equal(row, normed) else None
    if row.ndim != 2 or normed.ndim != 3 or row.shape != normed[:, 0].shape:
        return None
    return next((token for token in (0, normed.shape[1] - 1) if torch.equal(row, normed[:, token])), None)
