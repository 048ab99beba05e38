"""A limit of one thread, for sums in the same order everywhere and for processes that share the cores."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def one_thread() -> Generator[None]:
    """Limit torch and every BLAS to one thread, so that sums have one order and workers share the cores."""
    import torch
    from threadpoolctl import threadpool_limits

    before = torch.get_num_threads()
    with threadpool_limits(1):
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(before)
