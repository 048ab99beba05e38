"""Many small matrices over all cores: one LAPACK call each, one thread in each call."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")


def map_heads(function: Callable[..., Result], *stacks: Tensor) -> list[Result]:
    """``function(a[i], b[i], …)`` for every i of stacks of one length, in order.

    Threads inside the decomposition of a few hundred tokens cost more than they bring, and a batched call
    works through its matrices one by one. So the heads are spread over as many threads as torch would use
    (``torch.get_num_threads()``), each computing alone on a matrix that stays in its cache. On an accelerator
    all run in one thread.
    """
    threads = torch.get_num_threads()
    workers = min(threads, len(stacks[0])) if stacks[0].device.type == "cpu" else 1
    if workers < 2:
        return [function(*parts) for parts in zip(*stacks, strict=True)]
    try:
        with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(function, *stacks))
    finally:
        torch.set_num_threads(
            threads
        )  # the workers' call also set a limit that MKL keeps for the whole process
