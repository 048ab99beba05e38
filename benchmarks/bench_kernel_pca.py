"""V beside the kernel PCA values of every head against the bare eigenvectors of the same Gram matrices."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from benchmarks.bench_spectrum import interleaved
from workbench.analyses.gram_spectrum import centred_gram
from workbench.analyses.kernel_pca import kpca_values, principal_axes
from workbench.analyses.null_values import NULLS
from workbench.analyses.value_similarity import value_similarity
from workbench.core.operands import map_tokens

TOKENS, HEAD_DIM, HEADS = 197, 64, 24  # two layers of a ViT-Base at 224 pixels
NULL_SAMPLES = 20


def run() -> list[dict[str, object]]:
    """Our time over the reference's, medians of interleaved rounds: other work weighs on both alike."""
    generator = torch.manual_seed(0)
    k = torch.randn(HEADS, TOKENS, HEAD_DIM, generator=generator)
    v = torch.randn(HEADS, TOKENS, HEAD_DIM, generator=generator)
    scale = HEAD_DIM**-0.5
    gram = centred_gram(k, scale)

    def axes_and_values() -> None:
        map_tokens(lambda k, scale, _: kpca_values(principal_axes(k, scale, HEAD_DIM)), {"k": k}, scale)

    def evaluation(null_samples: int = 0, nulls: Sequence[str] = ()) -> None:
        value_similarity(k, v, scale, null_samples=null_samples, nulls=nulls)

    def raw() -> None:
        torch.linalg.eigh(gram)

    alone, bare = interleaved(axes_and_values, raw)
    rows = [_row("spectrum and kernel PCA values against torch.linalg.eigh", 1.2, alone, bare)]
    once, bare = interleaved(evaluation, raw)
    rows.append(_row("all similarities of V, both axes, against torch.linalg.eigh", 3.0, once, bare))
    for null in NULLS:
        both, once = interleaved(lambda null=null: evaluation(NULL_SAMPLES, (null,)), evaluation, rounds=3)
        drawn = both - once  # the call evaluates V itself, too
        rows.append(_row(f"{NULL_SAMPLES} {null} null samples against one evaluation", 10.0, drawn, once))
    return rows


def _row(name: str, aim: float, ours: float, reference: float) -> dict[str, object]:
    return {
        "benchmark": name,
        "ratio": round(ours / reference, 2),
        "aim": aim,
        "detail": f"N = {TOKENS}, d = {HEAD_DIM}, {torch.get_num_threads()} threads: "
        f"{1e3 * ours / HEADS:.1f} ms against {1e3 * reference / HEADS:.1f} ms per head",
    }


if __name__ == "__main__":
    for row in run():
        print(f"{row['benchmark']}: {row['ratio']:.2f} (aim {row['aim']}); {row['detail']}")
