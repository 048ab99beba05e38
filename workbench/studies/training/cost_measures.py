"""Measure the cost of code: seconds of several functions in turns, bytes of their tensors, memory."""

from __future__ import annotations

import ctypes
import platform
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop, sdpa_flop

from workbench.core import memory


def operation_counter() -> FlopCounterMode:
    """Return a counter of floating-point operations that includes fused CPU attention, which torch 2.11 skips."""
    counter = FlopCounterMode(display=False)
    aten = torch.ops.aten
    counter.flop_registry.setdefault(aten._scaled_dot_product_flash_attention_for_cpu, sdpa_flop)
    backward = aten._scaled_dot_product_flash_attention_for_cpu_backward
    counter.flop_registry.setdefault(backward, sdpa_backward_flop)
    return counter


def in_turns(
    functions: Sequence[Callable[[], object]],
    rounds: int,
    *,
    budget: float = float("inf"),
    device: str = "cpu",
    first: Sequence[float] | None = None,
) -> list[list[float]]:
    """Time every function in each of ``rounds`` rounds, after a warm-up round.

    Every round runs each function once, every second round in reverse order, so that other load on the machine affects
    all of them: compare within a round. No round starts after ``budget`` seconds; if the warm-up spends them all, its
    time is returned. ``first`` are the seconds of a warm-up that was run before.
    """
    times: list[list[float]] = [[seconds] for seconds in first or ()] or [[] for _ in functions]
    spent = sum(first or ())
    for number in range(0 if first is None else 1, rounds + 1):
        if spent >= budget:
            break
        order = range(len(functions))
        for index in order if number % 2 else reversed(order):
            taken = seconds_of(functions[index], device)
            times[index].append(taken)
            spent += taken
    return [taken[1:] or taken for taken in times]


def seconds_of(function: Callable[[], object], device: str = "cpu") -> float:
    """Return the wall time on a GPU, or the process time on a CPU, which excludes other processes."""
    if device == "cpu":
        started = time.process_time()
        function()
        return time.process_time() - started
    torch.cuda.synchronize()
    started = time.perf_counter()
    function()
    torch.cuda.synchronize()
    return time.perf_counter() - started


def device_name(device: str | torch.device) -> str:
    """Return the name of the GPU, or of the processor if the system reports it."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    kind = torch.device(device).type.upper()
    return f"{(names or [platform.processor()])[0]} {kind} ({platform.machine()})".strip()


class Allocations(TorchDispatchMode):
    """Track the tensors that operations return within this context, including those of a backward pass.

    A view counts once, with the tensor it refers to; existing tensors do not count. Memory inside an operation, such as
    a fused kernel, is not tracked: the count is that of the computation as written, the same on every machine.
    """

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0
        """Elements of the largest tensor."""
        self.total = 0
        """Bytes of all tensors together."""
        self.peak = 0
        """Most bytes alive at once."""
        self._alive: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = {_storage(leaf)._cdata for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.largest = max(self.largest, leaf.numel())
                self._take(_storage(leaf), inputs)
        self.peak = max(self.peak, sum(self._alive.values()))
        return result

    def _take(self, storage: torch.UntypedStorage, inputs: set[int]) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in inputs or key in self._alive:
            return
        self.total += size
        self._alive[key] = size
        weakref.finalize(storage, self._alive.pop, key)


def _storage(tensor: Tensor) -> torch.UntypedStorage:
    return tensor.untyped_storage()


def memory_growth(function: Callable[[], object], device: str = "cpu") -> float:
    """Return the largest rise of memory in use while ``function`` runs, in bytes (see `memory_measure`).

    NaN if the system does not report it (Windows).
    """
    if device != "cpu":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        function()
        torch.cuda.synchronize()
        return float(torch.cuda.max_memory_allocated() - before)
    _give_back_memory()
    if _reset_high_water():
        before = _resident("VmRSS")
        function()
        return float(max(0, _resident("VmHWM") - before))
    before = peak_memory(torch.device(device))
    function()
    return peak_memory(torch.device(device)) - before


def peak_memory(device: torch.device) -> float:
    """Return the peak memory so far (bytes): on CUDA of tensors, elsewhere of the whole process.

    NaN if the system does not report it (Windows).
    """
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    try:
        import resource
    except ImportError:
        return float("nan")
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(most if sys.platform == "darwin" else most * 1024)


def memory_measure(device: str = "cpu") -> str:
    """Describe how `memory_growth` measures on this machine."""
    if device != "cpu":
        return "allocated tensors (torch.cuda.max_memory_allocated)"
    if _reset_high_water():
        return "resident memory (VmHWM less VmRSS before)"
    return "resident memory (rise of ru_maxrss)"


def free_memory(device: str = "cpu") -> int:
    """Return the bytes available without reclaiming memory from other processes."""
    if device != "cpu":
        return torch.cuda.mem_get_info()[0]
    return memory.free_memory()


def _give_back_memory() -> None:
    """Return freed memory to the system, so that its next use is counted."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def _reset_high_water() -> bool:
    """Reset the process's peak of resident memory, if the system can."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _resident(name: str) -> int:
    return 1024 * _of_proc("/proc/self/status", name)


def _of_proc(path: str, name: str) -> int:
    """Return the number of kB of an entry in a file of /proc."""
    lines = Path(path).read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
