"""The eigenvector test and the projection error: time per head, what sorting saves, and what null samples cost."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch

from benchmarks.bench_spectrum import interleaved
from workbench.analyses.eigenvector_test import eigenvector_test, gamma_ratios
from workbench.analyses.kernel_pca import principal_axes
from workbench.analyses.pairs import absolute_differences, relative_differences
from workbench.analyses.projection_error import projection_errors

TOKENS, HEAD_DIM, HEADS, NULL_SAMPLES = 197, 64, 4, 20
CANDIDATES = 3


def run() -> list[dict[str, object]]:
    """γ statistics against all pairs at once; the two analyses with null samples against without."""
    q, k, v = torch.randn(3, HEADS, TOKENS, HEAD_DIM, generator=torch.manual_seed(0))
    scale = HEAD_DIM**-0.5
    axes = principal_axes(k[0], scale, HEAD_DIM)
    gamma = gamma_ratios(axes.gram, v[0].double()).repeat(CANDIDATES, 1, 1)
    # the aim is in seconds, so other work on the machine must not count: heads run on one thread each
    ours, pairs = (1e3 * _cpu_seconds(function, gamma) for function in (_by_sorting, _by_pairs))
    rows: list[dict[str, object]] = [
        {
            "benchmark": f"γ statistics of {CANDIDATES} candidates, CPU time per head",
            "ratio": f"{ours:.1f} ms",
            "aim": "10 ms",
            "detail": f"N = {TOKENS}, d = {HEAD_DIM}, one thread; all pairs at once: {pairs:.0f} ms",
        }
    ]
    for name, function in (
        ("eigenvector test", lambda null_samples: eigenvector_test(k, v, scale, null_samples=null_samples)),
        (
            "projection error",
            lambda null_samples: projection_errors(q, k, v, scale, null_samples=null_samples),
        ),
    ):
        with_null, plain = interleaved(lambda f=function: f(NULL_SAMPLES), lambda f=function: f(0), rounds=5)
        rows.append(
            {
                "benchmark": f"{name} with {NULL_SAMPLES} null samples of both nulls against without",
                "ratio": round(with_null / plain, 2),
                "aim": 10,
                "detail": f"N = {TOKENS}, d = {HEAD_DIM}, {torch.get_num_threads()} threads: "
                f"{1e3 * with_null / HEADS:.0f} ms against {1e3 * plain / HEADS:.0f} ms per head",
            }
        )
    return rows


def _cpu_seconds(function: Callable[[torch.Tensor], None], gamma: torch.Tensor) -> float:
    """Median CPU seconds of one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    times = []
    for _ in range(6):
        started = time.thread_time()
        function(gamma)
        times.append(time.thread_time() - started)
    torch.set_num_threads(threads)
    return median(times[1:])


def _by_sorting(gamma: torch.Tensor) -> None:
    absolute_differences(gamma)
    relative_differences(gamma, torch.tensor([0.0, 1e-10])[:, None, None])


def _by_pairs(gamma: torch.Tensor) -> None:
    """What the sums over sorted numbers replace."""
    first, second = torch.triu_indices(TOKENS, TOKENS, 1)
    gaps = (gamma[..., first] - gamma[..., second]).abs()
    largest = torch.maximum(gamma[..., first].abs(), gamma[..., second].abs())
    for values in (gaps, gaps / largest, gaps / (largest + 1e-10)):
        torch.std_mean(values, -1)


if __name__ == "__main__":
    for row in run():
        print(f"{row['benchmark']}: {row['ratio']} (aim {row['aim']}); {row['detail']}")
