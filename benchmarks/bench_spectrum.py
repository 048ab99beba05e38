"""Spectrum of the Gram matrix per head against the bare eigenvalue routine on the same matrices."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from statistics import median

import torch

from workbench.analyses.gram_spectrum import centred_gram, gram_spectrum
from workbench.analyses.linalg import iterates, leading_eigenpairs
from workbench.analyses.token_similarity import token_cosine_similarity
from workbench.studies.training.cost_measures import in_turns

TOKENS, HEAD_DIM, HEADS = 197, 64, 24  # two layers of a ViT-Base at 224 pixels
LONG = ((1024, 32, 5), (1024, 64, 1), (2048, 64, 1), (4096, 64, 0))  # tokens, axes, rounds after the first


def run() -> list[dict[str, object]]:
    """Our time over the reference's, medians of interleaved rounds: other work weighs on both alike."""
    k = torch.randn(HEADS, TOKENS, HEAD_DIM, generator=torch.manual_seed(0))
    scale = HEAD_DIM**-0.5
    gram = centred_gram(k, scale)
    ours, raw = interleaved(lambda: gram_spectrum(k, scale), lambda: torch.linalg.eigvalsh(gram))
    hidden = torch.randn(1, 4096, 192, generator=torch.manual_seed(1))
    linear, pairs = interleaved(lambda: token_cosine_similarity(hidden), lambda: _all_pairs(hidden))
    return [
        *_long_sequences(),
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


def _long_sequences() -> Iterator[dict[str, object]]:
    """Leading axes by the way that is chosen, against the full decomposition; CPU seconds of one thread.

    Keys with directions of unequal weight, as those of models, and random ones, whose spectrum is flat: the hardest.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for tokens, count, rounds in LONG:
        for name, decay in (("unequal", 3.0), ("random", 0.0)):
            weights = (-decay * torch.linspace(0, 1, HEAD_DIM)).exp() * (1 + decay) ** 0.5
            k = torch.randn(tokens, HEAD_DIM, generator=torch.manual_seed(0)) * weights
            gram = centred_gram(k, HEAD_DIM**-0.5)
            chosen, full = in_turns(
                [lambda g=gram, c=count: leading_eigenpairs(g, c), lambda g=gram: torch.linalg.eigh(g)],
                rounds,
            )
            found, values = leading_eigenpairs(gram, count), torch.linalg.eigvalsh(gram).flip(0)
            off = float((found.values[:count] - values[:count]).abs().amax() / values[0])
            way = "Lanczos" if iterates(gram, count) else "decomposition"
            yield {
                "benchmark": f"{count} leading axes of {tokens} {name} keys against torch.linalg.eigh",
                "ratio": round(median(a / b for a, b in zip(chosen, full, strict=True)), 2),
                "aim": 1.0,
                "detail": f"{way} chosen; {median(chosen):.2f} s against {median(full):.2f} s of CPU; eigenvalues "
                f"within {off:.0e} of the largest",
            }
    torch.set_num_threads(threads)


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
