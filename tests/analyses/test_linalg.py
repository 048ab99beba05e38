import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment

from workbench.analyses import linalg
from workbench.analyses.kernel_pca import principal_axes
from workbench.analyses.linalg import (
    MATCHED_MANY,
    best_matches,
    column_prices,
    iterated,
    iterates,
    leading_eigenpairs,
)

TOKENS, COUNT = 150, 7
RANKS = torch.arange(TOKENS, dtype=torch.float64)
SPECTRA = {
    "falling": 0.8**RANKS,
    "flat beyond the first": torch.where(RANKS < COUNT, 3 - 0.1 * RANKS, 1 - 0.001 * RANKS),
    "clusters": torch.where(RANKS < 3, 2.0, torch.where(RANKS < 12, 1 - 1e-9 * RANKS, 0.9**RANKS)),
    "a cluster cut in two": torch.where(RANKS < COUNT + 2, 1.0, 0.3**RANKS),
    "gap of the residual's size": torch.where(RANKS < COUNT, 1 - 0.05 * RANKS, 0.7 - 1e-13 - 0.004 * RANKS),
    "few above zero": torch.where(RANKS < 4, 1 - 0.2 * RANKS, 0.0),
}


@pytest.fixture(params=SPECTRA)
def known(request):
    """A matrix, its eigenvalues and its eigenvectors."""
    values = SPECTRA[request.param]
    random = torch.randn(TOKENS, TOKENS, dtype=torch.float64, generator=torch.manual_seed(0))
    vectors = torch.linalg.qr(random).Q
    matrix = vectors * values @ vectors.T
    return (matrix + matrix.T) / 2, values, vectors


@pytest.fixture
def always(monkeypatch):
    monkeypatch.setattr(linalg, "MANY", 2)
    monkeypatch.setattr(linalg, "SHARE", 1)


def test_eigenvalues_and_spans_are_the_known_ones(known, always):
    matrix, values, vectors = known
    found = leading_eigenpairs(matrix, COUNT)
    assert found.vectors.shape == (TOKENS, COUNT)
    torch.testing.assert_close(found.values[: COUNT + 1], values[: COUNT + 1], rtol=0, atol=1e-8 * values[0])
    torch.testing.assert_close(
        found.vectors.T @ found.vectors, torch.eye(COUNT, dtype=torch.float64), rtol=0, atol=1e-12
    )
    image = matrix @ found.vectors
    off = torch.linalg.vector_norm(image - found.vectors * found.values[:COUNT], dim=0)
    assert (off <= found.residual + 1e-14).all()
    # spans are determined wherever a gap follows
    for size in range(1, COUNT + 1):
        if values[size - 1] - values[size] > 1e-4 * values[0]:
            outside = found.vectors[:, :size] - vectors[:, :size] @ (
                vectors[:, :size].T @ found.vectors[:, :size]
            )
            assert torch.linalg.matrix_norm(outside, 2) < 1e-6


def test_iteration_does_it_without_decomposing_where_eigenvalues_differ(known):
    matrix, values, _ = known
    found = iterated(matrix, COUNT)
    if (values[:COUNT] - values[1 : COUNT + 1]).amin() > 1e-4:
        assert found is not None
    if found is not None:
        assert found.values.shape == (COUNT + 1,)
        assert found.residual <= 1e-10 * values[0]


def test_a_pair_that_the_start_does_not_see_is_not_missed(always):
    start = np.random.default_rng(0).standard_normal((2, TOKENS))[0]
    random = torch.randn(TOKENS, TOKENS, dtype=torch.float64, generator=torch.manual_seed(0))
    random[:, 0] = torch.from_numpy(start)
    vectors = torch.linalg.qr(random).Q  # the first is the start itself: no other one has a part in it
    values = 0.8 ** RANKS.flip(0)
    found = leading_eigenpairs(vectors * values @ vectors.T, COUNT)
    torch.testing.assert_close(found.values[:COUNT], values.flip(0)[:COUNT], rtol=0, atol=1e-8)


def test_a_copy_of_the_largest_that_iteration_misses_is_found_after_all(always):
    """Of three equal values it finds two, and takes the next one for the third."""
    values = torch.cat([torch.ones(3), 0.95 - 0.3 * torch.arange(37) / 40]).double()
    assert iterated(torch.diag(values), 5) is None
    found = leading_eigenpairs(torch.diag(values), 5)
    torch.testing.assert_close(found.values[:6], values[:6], rtol=0, atol=1e-12)


def test_an_equal_pair_beyond_the_last_is_no_missed_one():
    """Two values on each side of the end are equal: nothing that lies outside is larger, and none was missed."""
    values = torch.tensor([5.0, 4, 3, 3, 1, 0.5, 0, 0], dtype=torch.float64)
    turn = torch.linalg.qr(torch.randn(8, 8, dtype=torch.float64, generator=torch.manual_seed(0))).Q
    found = iterated(turn * values @ turn.T, 2)
    assert found is not None
    torch.testing.assert_close(found.values, values[:3], rtol=0, atol=1e-10)


def test_what_does_not_converge_is_decomposed(known, always, monkeypatch):
    matrix, values, _ = known
    monkeypatch.setattr(linalg, "RESTARTS", 1)
    monkeypatch.setattr(linalg, "TOLERANCE", 1e-300)
    assert iterated(matrix, COUNT) is None
    torch.testing.assert_close(
        leading_eigenpairs(matrix, COUNT).values, values.sort().values.flip(0), rtol=0, atol=1e-13
    )


def test_iteration_is_for_few_pairs_of_many_rows():
    assert iterates(torch.zeros(1).expand(4096, 4096), 64)
    assert iterates(torch.zeros(1).expand(1024, 1024), 32)
    assert not iterates(torch.zeros(1).expand(1024, 1024), 33)
    assert not iterates(torch.zeros(1).expand(197, 197), 1)
    assert not iterates(torch.zeros(1, device="meta").expand(4096, 4096), 64)


def test_principal_axes_are_the_same_either_way(always, monkeypatch):
    k = torch.randn(TOKENS, 3, generator=torch.manual_seed(4))
    iterated_axes = principal_axes(k, 0.5, COUNT)
    monkeypatch.undo()
    axes = principal_axes(k, 0.5, COUNT)
    assert not torch.equal(iterated_axes.vectors, axes.vectors)
    torch.testing.assert_close(iterated_axes.vectors, axes.vectors, rtol=0, atol=1e-9)
    torch.testing.assert_close(iterated_axes.eigenvalues, axes.eigenvalues, rtol=0, atol=1e-12)
    assert iterated_axes.resolved == axes.resolved == COUNT
    assert iterated_axes.close == axes.close == 0


@pytest.mark.parametrize("way", ["decomposed", "iterated"])
def test_axes_of_equal_eigenvalues_are_counted_as_close(way, monkeypatch):
    if way == "iterated":
        monkeypatch.setattr(linalg, "MANY", 2)
        monkeypatch.setattr(linalg, "SHARE", 1)
    angle = 2 * torch.pi * torch.arange(24, dtype=torch.float64) / 24
    circle = torch.stack([angle.cos(), angle.sin()], -1)
    # rotations by a token leave the kernel as it is: eigenvalues come in pairs, cosine and sine
    assert principal_axes(circle, 1.0, 4).close == 4
    assert principal_axes(circle, 1.0, 3).close == 3  # the third has its partner beyond the last
    ellipse = circle * torch.tensor([1.0, 0.7], dtype=torch.float64)
    assert principal_axes(ellipse, 1.0, 4).close == 0


def unit_rows(rows, width, seed=0):
    x = torch.randn(rows, width, dtype=torch.float64, generator=torch.manual_seed(seed))
    return x / x.norm(dim=1, keepdim=True)


def crowded():
    """Many rows want the same few columns."""
    center = unit_rows(1, 6, seed=3)
    x = center + 0.05 * unit_rows(MATCHED_MANY + 5, 6, seed=4)
    return x / x.norm(dim=1, keepdim=True)


CASES = {
    "random": lambda: unit_rows(MATCHED_MANY + 5, 6) @ unit_rows(MATCHED_MANY + 5, 6, seed=1).T,
    "crowded": lambda: unit_rows(MATCHED_MANY + 5, 6) @ crowded().T,
    "equal": lambda: torch.ones(MATCHED_MANY, MATCHED_MANY, dtype=torch.float64),
    "itself": lambda: crowded() @ crowded().T,
    "opposed": lambda: torch.eye(MATCHED_MANY, dtype=torch.float64) * 2 - 1,
    "unwanted columns": lambda: (
        torch.linspace(-1, 1, MATCHED_MANY).double().expand(MATCHED_MANY, MATCHED_MANY)
    ),
    "small": lambda: unit_rows(7, 3) @ unit_rows(7, 3, seed=1).T,
    "wide": lambda: unit_rows(MATCHED_MANY + 1, 6) @ unit_rows(MATCHED_MANY + 9, 6, seed=1).T,
    "tall": lambda: unit_rows(MATCHED_MANY + 9, 6) @ unit_rows(MATCHED_MANY + 1, 6, seed=1).T,
}


@pytest.mark.parametrize("case", CASES)
def test_the_sum_is_that_of_the_plain_assignment(case):
    cosines = CASES[case]()
    expected = cosines.numpy()[linear_sum_assignment(cosines.numpy(), maximize=True)].sum()
    found = best_matches(cosines)
    assert found.shape == (min(cosines.shape),)
    assert found.sum().item() == pytest.approx(expected, rel=1e-12)


def test_prices_are_finite_and_lower_for_columns_that_many_rows_want():
    cosines = CASES["crowded"]()
    cosines[:, 3] = 1.0
    prices = column_prices(cosines)
    assert prices.isfinite().all()
    assert prices.argmin() == 3
