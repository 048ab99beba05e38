"""Measuring what code costs: seconds of several functions in turns, and bytes of the tensors that one makes."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def in_turns(
    functions: Sequence[Callable[[], object]],
    rounds: int,
    *,
    budget: float = float("inf"),
    device: str = "cpu",
) -> list[list[float]]:
    """Seconds of every function in each of ``rounds`` rounds, after one that is left out.

    Every round runs each function once, every second round in the opposite order, so that whatever else the
    machine does falls on all of them alike: compare within a round. No round begins once ``budget`` seconds
    are spent; where the first, left out otherwise, spends them all, it is what there is.
    """
    times: list[list[float]] = [[] for _ in functions]
    spent = 0.0
    for number in range(rounds + 1):
        if spent >= budget:
            break
        order = range(len(functions))
        for index in order if number % 2 else reversed(order):
            taken = seconds_of(functions[index], device)
            times[index].append(taken)
            spent += taken
    return [taken[1:] or taken for taken in times]


def seconds_of(function: Callable[[], object], device: str = "cpu") -> float:
    """Wall time on a GPU; on a CPU the process's own, so that what else the machine does falls out."""
    if device == "cpu":
        started = time.process_time()
        function()
        return time.process_time() - started
    torch.cuda.synchronize()
    started = time.perf_counter()
    function()
    torch.cuda.synchronize()
    return time.perf_counter() - started


class Allocations(TorchDispatchMode):
    """Watches the tensors that operations return while it is entered, those of a backward pass included.

    A view counts with the tensor it looks at, once; what is there beforehand counts for nothing. What an
    operation needs inside itself, such as a fused kernel, is not seen: these are the tensors of the
    computation as written, the same on every machine.
    """

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0
        """Elements of the largest tensor."""
        self.made = 0
        """Bytes of all tensors together."""
        self.peak = 0
        """Most bytes alive at once."""
        self._alive: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {_storage(leaf)._cdata for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.largest = max(self.largest, leaf.numel())
                self._take(_storage(leaf), given)
        self.peak = max(self.peak, sum(self._alive.values()))
        return result

    def _take(self, storage: torch.UntypedStorage, given: set[int]) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in given or key in self._alive:
            return
        self.made += size
        self._alive[key] = size
        weakref.finalize(storage, self._alive.pop, key)


def _storage(tensor: Tensor) -> torch.UntypedStorage:
    return tensor.untyped_storage()
