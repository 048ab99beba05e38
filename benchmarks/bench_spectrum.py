"""Spectrum of the Gram matrix per head against the bare eigenvalue routine on the same matrices."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from workbench.analyses.kernel_pca import centred_gram, gram_spectrum
from workbench.analyses.similarity import token_cosine_similarity

TOKENS, HEAD_DIM, HEADS = 197, 64, 24  # two layers of a ViT-Base at 224 pixels


def run() -> list[dict[str, object]]:
    """Our time over the reference's, medians of interleaved rounds: other work weighs on both alike."""
    k = torch.randn(HEADS, TOKENS, HEAD_DIM, generator=torch.manual_seed(0))
    scale = HEAD_DIM**-0.5
    gram = centred_gram(k, scale)
    ours, raw = interleaved(lambda: gram_spectrum(k, scale), lambda: torch.linalg.eigvalsh(gram))
    hidden = torch.randn(1, 4096, 192, generator=torch.manual_seed(1))
    linear, pairs = interleaved(lambda: token_cosine_similarity(hidden), lambda: _all_pairs(hidden))
    return [
        {
            "benchmark": "spectrum per head against torch.linalg.eigvalsh",
            "ratio": round(ours / raw, 2),
            "aim": 1.2,
            "detail": f"N = {TOKENS}, d = {HEAD_DIM}, {torch.get_num_threads()} threads: "
            f"{1e3 * ours / HEADS:.2f} ms against {1e3 * raw / HEADS:.2f} ms per head",
        },
        {
            "benchmark": "token cosine against the N × N matrix",
            "ratio": round(linear / pairs, 2),
            "aim": 1.0,
            "detail": f"N = 4096, d = 192: {1e3 * linear:.1f} ms against {1e3 * pairs:.1f} ms",
        },
    ]


def _all_pairs(hidden: torch.Tensor) -> torch.Tensor:
    unit = torch.nn.functional.normalize(hidden.double(), dim=-1)
    cosines = unit @ unit.mT
    count = hidden.shape[-2]
    return (cosines.sum((-2, -1)) - count) / (count * (count - 1))


def interleaved(
    first: Callable[[], object], second: Callable[[], object], rounds: int = 9
) -> tuple[float, float]:
    """Median seconds of two functions, run in turns after one warm-up each."""
    times: list[list[float]] = [[], []]
    for number in range(rounds + 1):
        for function, taken in zip((first, second), times, strict=True):
            started = time.perf_counter()
            function()
            if number:
                taken.append(time.perf_counter() - started)
    medians = [sorted(taken)[rounds // 2] for taken in times]
    return medians[0], medians[1]


if __name__ == "__main__":
    for row in run():
        print(f"{row['benchmark']}: {row['ratio']:.2f} (aim {row['aim']}); {row['detail']}")
