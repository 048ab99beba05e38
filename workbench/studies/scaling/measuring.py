"""Points measured in processes of their own: run as a module it takes orders on stdin and prints rows."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import torch

from workbench.papers.operators import Point
from workbench.studies.scaling.layers import attention_layers, one_pass
from workbench.studies.training.measuring import memory_growth, seconds_of

THREADS = 1
"""On a CPU: where cores are shared, threads wait for each other at every operation, and nothing else shows."""
ROUNDS, SECONDS = 3, 0.5  # at least so many passes, and so long in all
ENOUGH = 6.0  # seconds after which no further pass is begun: longer ones are run once
COUNTS = 1.0  # the first pass, which finds caches and memory cold, counts from so many seconds on


def measure(
    point: Point, conditions: Sequence[str], device: str = "cpu", dtype: str = "float32"
) -> Iterator[dict[str, Any]]:
    """A row for each condition: seconds of every pass that counts, and bytes by which memory rose in the first.

    A pass over 64 tokens goes before, so that the kernels are loaded. Memory that cannot be had makes a row too.
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
    seconds = [first[0]] if first[0] >= COUNTS else []
    while (len(seconds) < ROUNDS and sum(seconds) < ENOUGH) or sum(seconds) < SECONDS:
        seconds.append(seconds_of(compute, device))
    return seconds, memory


FORKS = sys.platform == "linux"
"""Whether a process that has imported torch, and computed nothing yet, is forked for every point on a CPU: importing
takes longer than most points."""


def order(point: Point, conditions: Sequence[str], device: str, dtype: str) -> str:
    """The line that asks for a point."""
    return json.dumps([asdict(point), list(conditions), device, dtype])


def serve() -> None:
    """Measure what every line of standard input asks for; print its rows, each as soon as it is known, and a status.

    On a CPU every point gets a process forked from this one, whose end, however bad, is the status. Elsewhere this
    process measures by itself, and is good for one order.
    """
    for line in sys.stdin:
        point, conditions, device, dtype = json.loads(line)
        if FORKS and device == "cpu":
            status = _forked(Point(**point), conditions, device, dtype)
        else:
            status = _printed(Point(**point), conditions, device, dtype)
        print(json.dumps({"status": status}), flush=True)


def _forked(*asked: Any) -> int:
    child = os.fork()
    if not child:
        os._exit(_printed(*asked))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _printed(*asked: Any) -> int:
    try:
        for row in measure(*asked):
            print(json.dumps(row), flush=True)
    except Exception:  # the user sees its last line, with the point's name: see Measurer in study.py
        traceback.print_exc()
        sys.stderr.flush()
        return 1
    return 0


if __name__ == "__main__":
    serve()
