"""Measure points, each in its own process, which isolates its memory and its crashes."""

from __future__ import annotations

import multiprocessing
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from workbench.core.children import safe_path
from workbench.core.errors import InputError
from workbench.papers.operators import Point
from workbench.studies.scaling.layers import attention_layers, one_pass
from workbench.studies.training.cost_measures import memory_growth, seconds_of

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkServerContext, SpawnContext

THREADS = 1
"""On a CPU: on shared cores threads wait for each other, which would dominate the measurement."""
ROUNDS, SECONDS = 3, 0.5  # at least so many passes, and so long in all
ENOUGH = 6.0  # seconds after which no further pass is begun: longer ones are run once
_COUNTS = 1.0  # the first pass, which finds caches and memory cold, counts from so many seconds on


def measure(
    point: Point, conditions: Sequence[str], device: str = "cpu", dtype: str = "float32"
) -> Iterator[dict[str, Any]]:
    """Yield a row for each condition: seconds of every pass that counts, and the rise of memory in the first, in bytes.

    A pass over 64 tokens loads the kernels first. Running out of memory also gives a row.
    """
    torch.manual_seed(0)
    torch.set_flush_denormal(True)
    if device == "cpu":
        torch.set_num_threads(THREADS)
    kind = getattr(torch, dtype)
    layers = attention_layers(point, device, kind)
    x = torch.randn(1, point.tokens, point.width, device=device, dtype=kind)
    for condition in conditions:
        try:
            one_pass(layers, x[:, :64], condition)()
            seconds, memory = _timed(one_pass(layers, x, condition), device)
            yield {"condition": condition, "seconds": seconds, "memory": memory}
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            if "memory" not in str(error).lower():
                raise
            yield {"condition": condition, "ended": "out of memory"}


def _timed(compute: Callable[[], object], device: str) -> tuple[list[float], float]:
    first: list[float] = []
    memory = memory_growth(lambda: first.append(seconds_of(compute, device)), device)
    seconds = [first[0]] if first[0] >= _COUNTS else []
    while (len(seconds) < ROUNDS and sum(seconds) < ENOUGH) or sum(seconds) < SECONDS:
        seconds.append(seconds_of(compute, device))
    return seconds, memory


PATIENCE = 600.0
"""Seconds after which a process that has not ended is killed."""


def measured(
    point: Point, conditions: Sequence[str], device: str = "cpu", dtype: str = "float32"
) -> dict[str, dict[str, Any]]:
    """Return the rows of `measure` by condition from a new process; one that dies or hangs gives rows with the reason.

    The process is multiprocessing's: a script calls this below ``if __name__ == "__main__":``. Raises InputError if the
    operator cannot run on the device.
    """
    ours, theirs = (context := _context(device)).Pipe(duplex=False)
    process = context.Process(target=_send, args=(theirs, point, conditions, device, dtype), daemon=True)
    with safe_path():
        process.start()
    theirs.close()  # so that the end of the process is the end of what it sends
    rows: dict[str, dict[str, Any]] = {}
    until = time.monotonic() + PATIENCE
    reason = f"took more than {PATIENCE:.0f} s in all"
    try:
        while ours.poll(max(0.0, until - time.monotonic())):
            row = ours.recv()
            if isinstance(row, str):
                raise InputError(
                    f"{point.operator} at {point.tokens} tokens of width {point.width} cannot be measured on "
                    f"{device} in {dtype}: {row}"
                )
            rows[row["condition"]] = row
    except EOFError:
        process.join()
        reason = f"the process was killed (exit status {process.exitcode}), probably for its memory"
    finally:
        process.kill()
        process.join()
        ours.close()
    return {name: rows.get(name, {"condition": name, "ended": reason}) for name in conditions}


def _context(device: str) -> SpawnContext | ForkServerContext:
    """Return the multiprocessing context: a fork server that has imported torch, or spawned processes.

    Importing torch takes longer than most points, but only Linux can fork after it, and only without a GPU.
    """
    if sys.platform != "linux" or device != "cpu":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


def _send(connection: Connection, *arguments: Any) -> None:
    """Send every row as soon as it is measured, or an error's message."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asked, which ends this one
    try:
        for row in measure(*arguments):
            connection.send(row)
    except Exception as error:  # the process that asked raises it, with the point's name
        connection.send(f"{type(error).__name__}: {error}".splitlines()[0])
