"""The sums of one layer's attention tile by tile, against fused attention on the same tensors; memory, and growth."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
from scipy.stats import linregress, t
from torch import Tensor
from torch.nn import functional as F

from workbench.analyses.reductions import OnPatterns, RowDistance, TopKeys
from workbench.analyses.tiled_spectra import GramTiles
from workbench.analyses.tiles import Mask, Reduction, reduce_tiles
from workbench.core.children import python
from workbench.studies.training.cost_measures import in_turns, memory_growth

HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128  # a layer of a language model of eight billion weights
TOKENS, ROUNDS, GROWTH_ROUNDS = 8192, 1, 2
GROWTH = (2048, 4096, 8192, 16_384)
LONGEST, WINDOW = 32_768, 1024
AXES_TOKENS = 16_384


def _one_thread(measure: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    """A measurement of CPU seconds with one thread."""

    def measured() -> dict[str, Any]:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with torch.no_grad():
                return measure()
        finally:
            torch.set_num_threads(threads)

    return measured


def _against_fused(name: str, way: Callable[[Tensor, Tensor], object], aim: str) -> dict[str, Any]:
    q, k, v = operands(TOKENS, HEADS, KV_HEADS)

    def fused() -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    seconds, taken = (median(taken) for taken in in_turns([fused, lambda: way(q, k)], ROUNDS))
    return {
        "benchmark": f"{name}, against F.scaled_dot_product_attention",
        "ratio": f"{taken / seconds:.2f}×",
        "aim": aim,
        "detail": f"{HEADS} heads, {KV_HEADS} of keys, width {HEAD_DIM}, {TOKENS} tokens, causal, float32: "
        f"{taken:.1f} s against {seconds:.1f} s",
    }


def _growth() -> dict[str, Any]:
    """Slope of log time over log tokens, with its 95 % interval."""
    given = [operands(tokens, 4, 1)[:2] for tokens in GROWTH]
    rounds = in_turns([lambda q=q, k=k: sums(q, k) for q, k in given], GROWTH_ROUNDS)
    seconds = [min(taken) for taken in rounds]
    fit = linregress(torch.tensor(GROWTH).double().log(), torch.tensor(seconds).double().log())
    half = t.ppf(0.975, len(GROWTH) - 2) * fit.stderr
    times = ", ".join(f"{taken:.2f}" for taken in seconds)
    return {
        "benchmark": "the same sums: exponent of time in tokens",
        "ratio": f"{fit.slope:.2f} ± {half:.2f}",
        "aim": "2.0 ± 0.1",
        "detail": f"4 heads, 1 of keys; {', '.join(map(str, GROWTH))} tokens: {times} s; 95 % interval of the slope",
    }


def _memory() -> dict[str, Any]:
    rises = {tokens: in_process(tokens, HEADS)[0] for tokens in (LONGEST // 4, LONGEST // 2, LONGEST)}
    return {
        "benchmark": f"memory of the same sums at {LONGEST} tokens, above q and k",
        "ratio": f"{rises[LONGEST] / 1e6:.0f} MB",
        "aim": "≤ 1500 MB",
        "detail": f"{HEADS} heads, {KV_HEADS} of keys, causal with a window of {WINDOW}; "
        + ", ".join(f"{rise / 1e6:.0f} MB at {tokens}" for tokens, rise in rises.items()),
    }


def _whole() -> dict[str, Any]:
    """All threads, in a process of its own."""
    start = time.perf_counter()
    rise, seconds = in_process(LONGEST, HEADS, None)
    return {
        "benchmark": f"the same sums of {HEADS} heads at {LONGEST} tokens without a window: memory above q and k",
        "ratio": f"{rise / 1e6:.0f} MB",
        "aim": "≤ 1500 MB",
        "detail": f"{KV_HEADS} heads of keys, width {HEAD_DIM}, float32: {seconds:.0f} s of CPU, "
        f"{time.perf_counter() - start:.0f} s on {torch.get_num_threads()} threads",
    }


def _axes() -> dict[str, Any]:
    """Leading eigenpairs of one head's Gram matrix, keys having directions of unequal weight, as those of models."""
    weights = (-3 * torch.linspace(0, 1, 64)).exp() * 2
    k = torch.randn(AXES_TOKENS, 64, generator=torch.manual_seed(0)) * weights
    started, cpu = time.perf_counter(), time.process_time()
    found = GramTiles(k, 64**-0.5).leading(64)
    seconds = time.perf_counter() - started
    return {
        "benchmark": "64 leading axes of a head's keys by products in tiles",
        "ratio": f"{seconds:.0f} s",
        "aim": "≤ 60 s on two cores",
        "detail": f"{AXES_TOKENS} tokens, width 64, float32, {torch.get_num_threads()} threads, "
        f"{time.process_time() - cpu:.0f} s of CPU: {found.words()}",
    }


def operands(tokens: int, heads: int, kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Random queries, keys and values."""
    source = torch.manual_seed(0)
    q, k, v = (
        torch.randn(1, count, tokens, HEAD_DIM, generator=source) for count in (heads, kv_heads, kv_heads)
    )
    return q, k, v


def sums(q: Tensor, k: Tensor, window: int | None = None) -> object:
    """What `attention-map` and `attention-patterns` take of a text's layer, in one pass."""
    line = torch.arange(q.shape[2], dtype=torch.float64)[:, None]
    wanted: Sequence[str | Reduction] = (
        "entropy", "squares", "overlap", "received", RowDistance(line, line),
        OnPatterns({"previous": _back(1), "first": _first, "own": _back(0)}),
    )  # fmt: skip
    return reduce_tiles(q, k, *wanted, mask=Mask(causal=True, window=window))


def largest(q: Tensor, k: Tensor) -> object:
    """The keys that every query attends to most."""
    return reduce_tiles(q, k, TopKeys(4), mask=Mask(causal=True))


def _back(steps: int) -> Callable[[int, range], tuple[Tensor, Tensor]]:
    def pairs(_: int, rows: range) -> tuple[Tensor, Tensor]:
        queries = torch.arange(max(rows.start, steps), rows.stop)
        return queries, queries - steps

    return pairs


def _first(_: int, rows: range) -> tuple[Tensor, Tensor]:
    queries = torch.arange(max(rows.start, 1), rows.stop)
    return queries, torch.zeros_like(queries)


def in_process(tokens: int, heads: int, window: int | None = WINDOW) -> tuple[float, float]:
    """Bytes by which resident memory rises above the tensors, and CPU seconds, in a process of its own."""
    command = python("-m", "benchmarks.bench_tiles", str(tokens), str(heads), str(window or 0))
    # what is freed goes back to the system at once, so that gaps between tensors do not count
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(2**17)}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment)
    return tuple(json.loads(done.stdout))


def measure(tokens: int, heads: int, window: int | None) -> tuple[float, float]:
    """The same in this process, after a short pass that loads what is needed."""
    sums(*operands(64, heads, heads // 4)[:2])
    q, k, _ = operands(tokens, heads, heads // 4)
    start = time.process_time()
    rise = memory_growth(lambda: sums(q, k, window))
    return rise, time.process_time() - start


ROWS: dict[str, Callable[[], dict[str, Any]]] = {
    "sums": _one_thread(
        lambda: _against_fused(
            "sums of a layer (entropy, distance, received, patterns, overlap)", sums, "≤ 3×"
        )
    ),
    "largest": _one_thread(lambda: _against_fused("the four largest keys of every query", largest, "≤ 6×")),
    "diversity": _one_thread(
        lambda: _against_fused(
            "head diversity", lambda q, k: reduce_tiles(q, k, "diversity", mask=Mask(causal=True)), ""
        )
    ),
    "growth": _one_thread(_growth),
    "memory": _memory,
    "axes": _axes,
    "whole": _whole,
}
"""What is measured, row by row; about eight minutes of one thread, of which the last row takes three."""


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) or None)))
