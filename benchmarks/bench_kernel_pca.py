"""V beside the kernel PCA values of every head against the bare eigenvectors of the same Gram matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from benchmarks.bench_spectrum import interleaved
from workbench.analyses.gram_spectrum import centred_gram
from workbench.analyses.kernel_pca import kpca_values, principal_axes
from workbench.analyses.linalg import column_prices
from workbench.analyses.null_values import NULLS
from workbench.analyses.value_similarity import value_similarity
from workbench.core.operands import map_tokens
from workbench.studies.training.cost_measures import in_turns

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
    rows += _one_thread(evaluation, raw, _libraries(k, v, scale, gram))
    for null in NULLS:
        both, once = interleaved(lambda null=null: evaluation(NULL_SAMPLES, (null,)), evaluation, rounds=3)
        drawn = both - once  # the call evaluates V itself, too
        rows.append(_row(f"{NULL_SAMPLES} {null} null samples against one evaluation", 10.0, drawn, once))
    return rows


def _one_thread(
    evaluation: Callable[[], object], raw: Callable[[], object], libraries: Callable[[], object]
) -> list[dict[str, object]]:
    """All similarities in CPU seconds of one thread, and what the libraries take of them: the least there is."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    once, bare, least = (median(taken) for taken in in_turns([evaluation, raw, libraries], 9))
    torch.set_num_threads(threads)
    name = "all similarities of V, both axes, against torch.linalg.eigh, CPU of one thread"
    alone = "of these eigh, SciPy's matching, two QR and the singular values of the angles alone"
    return [_row(name, 2.0, once, bare, 1), _row(alone, 2.0, least, bare, 1)]


def _libraries(k: Tensor, v: Tensor, scale: float, gram: Tensor) -> Callable[[], None]:
    """The decompositions and matchings of every head, on what they are given, and nothing of ours."""
    heads = []
    for keys, values in zip(k, v, strict=True):
        wanted = kpca_values(principal_axes(keys, scale, HEAD_DIM)).values
        rows, columns = (torch.nn.functional.normalize(values.double(), dim=axis) for axis in (1, 0))
        cosines = rows @ torch.nn.functional.normalize(wanted, dim=1).T
        between = columns.T @ torch.nn.functional.normalize(wanted, dim=0)
        ranked = cosines + column_prices(cosines)
        heads.append((ranked.numpy(), between.numpy(), values.double(), wanted, between))

    def calls() -> None:
        torch.linalg.eigh(gram)
        for tokens, features, values, wanted, between in heads:
            linear_sum_assignment(tokens, maximize=True)
            linear_sum_assignment(features, maximize=True)
            torch.linalg.qr(values)
            torch.linalg.qr(wanted)
            torch.linalg.svdvals(between)

    return calls


def _row(
    name: str, aim: float, ours: float, reference: float, threads: int | None = None
) -> dict[str, object]:
    return {
        "benchmark": name,
        "ratio": round(ours / reference, 2),
        "aim": aim,
        "detail": f"N = {TOKENS}, d = {HEAD_DIM}, {threads or torch.get_num_threads()} threads: "
        f"{1e3 * ours / HEADS:.1f} ms against {1e3 * reference / HEADS:.1f} ms per head",
    }


if __name__ == "__main__":
    for row in run():
        print(f"{row['benchmark']}: {row['ratio']:.2f} (aim {row['aim']}); {row['detail']}")
