"""One thread, where a sum is to come in the same order everywhere or where processes share the cores."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def one_thread() -> Generator[None]:
    """One thread in torch and in every BLAS: sums come in one order on every machine, and workers share its cores."""
    import torch
    from threadpoolctl import threadpool_limits

    before = torch.get_num_threads()
    with threadpool_limits(1):
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(before)
