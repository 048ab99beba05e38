"""Planted matrices: what they are, and that each pursuit gives back what its own function does."""

import pytest
import torch

from workbench.attention.rpc import rpc_attention
from workbench.core.errors import InputError
from workbench.studies.evaluation.planted import planted, pursuit_recovery


def test_what_is_planted_has_its_rank_and_its_share():
    low_rank, sparse = planted(60, 50, 3, 0.1, seed=2)
    assert torch.linalg.matrix_rank(low_rank) == 3
    assert low_rank.var().item() == pytest.approx(1, abs=0.3)
    assert set(sparse.unique().tolist()) == {-1.0, 0.0, 1.0}
    assert (sparse != 0).double().mean().item() == pytest.approx(0.1, abs=0.03)
    assert torch.equal(planted(60, 50, 3, 0.1, seed=2)[0], low_rank)
    with pytest.raises(InputError, match="rank 51"):
        planted(60, 50, 51, 0.1)


@pytest.fixture(scope="module")
def recovery():
    return pursuit_recovery(50, 40, 1, 0.03, n=2, seed=4, steps=(1, 4, 96), weights=(0.5, 4.0))


def errors(frame, method, part, weight=None):
    rows = frame[(frame["method"] == method) & (frame["part"] == part)]
    rows = rows if weight is None else rows[rows["weight"] == weight]
    return rows.groupby("steps")["value"].max()


def test_pcp_recovers_both_parts(recovery):
    for part in ("sparse", "low_rank"):
        error = errors(recovery, "PCP", part)
        assert error[1] > 0.1
        assert error[96] < 1e-8


def test_attention_pursuit_finds_nothing_sparse_with_the_papers_weight(recovery):
    error = errors(recovery, "PAP", "sparse", 4.0)
    assert error[1] == 1  # S = 0
    assert (error > 0.9).all()


def test_its_error_is_that_of_algorithm_1(recovery):
    low_rank, sparse = planted(50, 40, 1, 0.03, seed=5)
    keys = (low_rank + sparse)[None, None]
    found = rpc_attention(keys, keys, num_iter=4, lambd=0.5, details=True)
    rows = recovery[(recovery["method"] == "PAP") & (recovery["weight"] == 0.5) & (recovery["steps"] == 4)]
    rows = rows[rows["input"] == 1].set_index("part")["value"]
    assert rows["sparse"] == pytest.approx(((found.sparse[0, 0] - sparse).norm() / sparse.norm()).item())
    assert rows["low_rank"] == pytest.approx(
        ((found.output[0, 0] - low_rank).norm() / low_rank.norm()).item()
    )
