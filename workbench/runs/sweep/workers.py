"""Pools that run tasks: this process, joblib's own processes, or the workers of a Dask or Ray cluster."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from importlib import import_module
from itertools import islice
from typing import Any

from workbench.core.children import safe_path
from workbench.core.errors import InputError, MissingResource
from workbench.core.extras import require

_BACKENDS = ("loky", "dask", "ray")
CONNECT_SECONDS = 30
LOOK_SECONDS = 1.0
"""Seconds between two checks of a worker that its parent is alive."""


class Pool:
    """Run calls on the workers of one backend."""

    def __init__(self, backend: str, workers: int, config: dict[str, Any] | None = None) -> None:
        self.backend, self.workers = backend, workers
        self._config = config or {}

    def run(self, function: Callable[..., Any], arguments: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
        """Iterate over results as they come; raises the pool's own error when a worker is lost."""
        from joblib import Parallel, delayed, parallel_config

        if self.backend == "loky" and self.workers == 1:
            yield from (function(*each) for each in arguments)
            return
        call = delayed(partial(_for_parent, os.getpid(), function) if self.backend == "loky" else function)
        with parallel_config(backend=self.backend, n_jobs=self.workers, **self._config):
            if (
                self.backend == "ray"
            ):  # its results come all at once: a few tasks at a time, so that none wait long
                for some in batched(arguments, 2 * self.workers):
                    yield from Parallel(batch_size=1)(call(*each) for each in some)
                return
            # one task at a time to each worker, and no more than a second one waiting for it
            parallel = Parallel(return_as="generator_unordered", batch_size=1, pre_dispatch="2 * n_jobs")
            yield from parallel(call(*each) for each in arguments)

    def renew(self) -> None:
        """End the processes that are left; some may still be at work."""
        if self.backend == "loky" and self.workers > 1:
            from joblib.externals.loky import get_reusable_executor

            get_reusable_executor().shutdown(wait=True, kill_workers=True)


def _for_parent(parent: int, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a worker that ends with its parent, also where that is killed: loky's stay for minutes."""
    _end_with(parent)
    return function(*arguments)


@cache
def _end_with(parent: int) -> None:
    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK_SECONDS)
        os._exit(1)

    if os.getppid() == parent:
        threading.Thread(target=watch, daemon=True).start()


def batched(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Items in order, ``size`` at a time."""
    left = iter(items)
    while some := list(islice(left, size)):
        yield some


@contextmanager
def open_pool(backend: str, workers: int, scheduler: str | None = None) -> Generator[Pool]:
    """Open a pool of ``workers`` processes, or of the cluster at the address ``scheduler``.

    Without an address Dask and Ray start ``workers`` processes here. Raises `InputError` for an unknown backend or an
    address that loky has no use for, `MissingResource` where the backend is not installed or nobody answers.
    """
    if backend not in _BACKENDS:
        raise InputError(f"backend is {', '.join(_BACKENDS)}; got {backend!r}")
    if backend == "loky":
        if scheduler is not None:
            raise InputError("a scheduler's address needs backend='dask' or 'ray'; loky runs on this machine")
        pool = Pool("loky", workers, {"inner_max_num_threads": 1})
        try:
            with safe_path():
                yield pool
        except BaseException:  # an interrupt, or an error: workers would go on with what nobody waits for
            pool.renew()
            raise
        return
    with safe_path(), ExitStack() as stack:
        yield stack.enter_context(
            _dask(workers, scheduler) if backend == "dask" else _ray(workers, scheduler)
        )


@contextmanager
def _dask(workers: int, scheduler: str | None) -> Generator[Pool]:
    require("backend 'dask'", "distributed")
    from distributed import Client, LocalCluster

    with ExitStack() as stack:
        if scheduler is None:
            cluster = LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None)
            scheduler = stack.enter_context(cluster).scheduler_address
        try:
            client = stack.enter_context(Client(scheduler, timeout=CONNECT_SECONDS, set_as_default=True))
        except (OSError, TimeoutError) as error:
            raise MissingResource(f"no Dask scheduler answers at {scheduler}: {error}") from error
        threads = sum(client.nthreads().values())
        if not threads:
            raise MissingResource(
                f"the Dask scheduler at {scheduler} has no workers; start some, then run it again"
            )
        yield Pool("dask", threads)


@contextmanager
def _ray(workers: int, scheduler: str | None) -> Generator[Pool]:
    require("backend 'ray'", "ray")
    ray = import_module("ray")
    import_module("ray.util.joblib").register_ray()
    ray.init(address=scheduler, num_cpus=None if scheduler else workers)
    try:
        cpus = int(ray.cluster_resources().get("CPU", workers))
        yield Pool("ray", cpus)
    finally:
        ray.shutdown()
