"""Recover a planted low-rank and a planted sparse part of matrices by pursuit (teo2024 App. D).

Principal component pursuit recovers both (Candès et al. 2011). Principal attention pursuit replaces its singular value
thresholding by attention, and stops after a few steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from workbench.attention.rpc import principal_component_pursuit, rpc_attention
from workbench.core.errors import InputError
from workbench.frames.results import shared

PCP, PAP = "PCP", "PAP"
STEPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
WEIGHTS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0)
"""λ of principal attention pursuit; 4 is the paper's."""


def planted(
    rows: int, columns: int, rank: int, share: float, seed: int = 0
) -> tuple[Float[Tensor, "row column"], Float[Tensor, "row column"]]:
    """Draw a matrix of this rank with entries of variance 1, and a sparse one with this share of ±1 entries."""
    if not 1 <= rank <= min(rows, columns) or not 0 <= share <= 1:
        raise InputError(f"rank {rank} and share {share} do not fit a matrix of {rows} × {columns}")
    source = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=source)

    low_rank = draw(rows, rank) @ draw(rank, columns) / math.sqrt(rank)
    where = torch.rand(rows, columns, generator=source) < share
    return low_rank, where * draw(rows, columns).sign()


def pursuit_recovery(
    rows: int = 100,
    columns: int = 100,
    rank: int = 5,
    share: float = 0.05,
    *,
    n: int = 5,
    seed: int = 0,
    steps: Sequence[int] = STEPS,
    weights: Sequence[float] = WEIGHTS,
) -> pd.DataFrame:
    """Measure the relative errors of both pursuits on `n` planted matrices, by number of steps.

    PCP by ADMM with λ = 1/√max(rows, columns); PAP (Algorithm 1, text) with each of ``weights``. The matrix is both
    keys and values of PAP, which favours it: attention then smooths the matrix it splits. One row per method (PCP or
    PAP), weight, steps, part ("sparse" or "low_rank") and input: ``value`` is the relative error ‖estimate − planted‖ /
    ‖planted‖; an estimate of 0 has error 1.
    """
    pairs = [planted(rows, columns, rank, share, seed + number) for number in range(n)]
    low_rank, sparse = (torch.stack(parts) for parts in zip(*pairs, strict=True))
    matrices = low_rank + sparse
    truth = {"sparse": sparse, "low_rank": low_rank}
    splits: list[tuple[str, float, int, dict[str, Tensor]]] = []
    for count in steps:
        parts = principal_component_pursuit(matrices, tol=0, max_iter=count)
        default_weight = 1 / math.sqrt(max(rows, columns))
        splits.append((PCP, default_weight, count, {"sparse": parts.sparse, "low_rank": parts.low_rank}))
        for weight in weights:
            keys = matrices[:, None]
            split = rpc_attention(keys, keys, num_iter=count, lambd=weight, details=True)
            here = {"sparse": split.sparse[:, 0], "low_rank": split.output[:, 0]}
            splits.append((PAP, weight, count, here))
    records = []
    for method, weight, count, parts in splits:
        for name, part in parts.items():
            error = torch.linalg.matrix_norm(part - truth[name]) / torch.linalg.matrix_norm(truth[name])
            records += [
                {
                    "method": method,
                    "weight": weight,
                    "steps": count,
                    "part": name,
                    "input": number,
                    "value": value,
                }
                for number, value in enumerate(error.tolist())
            ]
    frame = pd.DataFrame(records)
    frame.attrs["provenance"] = shared(
        {
            "analysis": "pursuit-recovery",
            "options": {"rows": rows, "columns": columns, "rank": rank, "share": share, "n": n},
            "model": None,
            "inputs": None,
            "seed": seed,
        }
    )
    return frame
