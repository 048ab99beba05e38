"""Many small matrices over all cores: one LAPACK call each, one thread in each call."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")


def map_matrices(function: Callable[[Tensor], Result], matrices: Tensor) -> list[Result]:
    """``function`` of each matrix of a stack (count, n, n), in order.

    Threads inside one decomposition of a few hundred tokens cost more than they bring, and a batched call
    works through its matrices one by one; so the matrices are spread over threads that each compute alone. As
    many threads as torch would use (``torch.get_num_threads()``). On an accelerator the stack stays in one
    thread.
    """
    workers = min(torch.get_num_threads(), len(matrices))
    if workers < 2 or matrices.device.type != "cpu":
        return [function(matrix) for matrix in matrices]
    threads = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(function, matrices))
    finally:
        torch.set_num_threads(
            threads
        )  # the worker's call also set a limit that MKL keeps for the whole process


def symmetric_eigenvalues(matrices: Tensor) -> Tensor:
    """Eigenvalues of symmetric matrices (*batch, n, n), smallest first, like `torch.linalg.eigvalsh`."""
    flat = matrices.reshape(-1, *matrices.shape[-2:])
    if matrices.device.type != "cpu" or len(flat) == 0:
        return torch.linalg.eigvalsh(matrices)
    return torch.stack(map_matrices(torch.linalg.eigvalsh, flat)).reshape(matrices.shape[:-1])
