"""Directions of heads: loops and SciPy as oracles, and what random directions give."""

import itertools
import math

import numpy as np
import pytest
import scipy.linalg
import torch

from workbench.analyses.linalg import head_bases
from workbench.analyses.subspaces import coherence, mean_coherence, subspace_angles
from workbench.core.errors import InputError

BATCH, HEADS, WIDTH, DIM = 2, 3, 11, 4


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.manual_seed(seed))


def test_bases_are_orthonormal_and_span_what_the_projection_reads():
    weight = randn(HEADS, WIDTH, DIM)
    bases = head_bases(weight)
    torch.testing.assert_close(bases.mT @ bases, torch.eye(DIM, dtype=torch.float64).expand(HEADS, -1, -1))
    torch.testing.assert_close(bases @ (bases.mT @ weight), weight)


def test_directions_that_a_projection_does_not_have_are_zero():
    weight = randn(WIDTH, 2) @ randn(2, DIM, seed=1)  # rank 2 in 4 columns
    lengths = head_bases(weight).norm(dim=0)
    torch.testing.assert_close(lengths, torch.tensor([1, 1, 0, 0], dtype=torch.float64))
    wide = head_bases(randn(DIM, WIDTH))  # more columns than the tokens are wide
    assert wide.shape == (DIM, WIDTH)
    assert not wide[:, DIM:].any()


def test_coherence_equals_the_cosines_one_by_one():
    u = randn(BATCH, HEADS, WIDTH, DIM)
    found = coherence(u)
    assert found.shape == (BATCH, HEADS, DIM, HEADS, DIM)
    inside, between = [], []
    for (h, i), (g, j) in itertools.product(itertools.product(range(HEADS), range(DIM)), repeat=2):
        a, b = u[1, h, :, i], u[1, g, :, j]
        cosine = abs(float(a @ b / (a.norm() * b.norm())))
        assert found[1, h, i, g, j].item() == pytest.approx(cosine)
        if h != g:
            between.append(cosine)
        elif i != j:
            inside.append(cosine)
    means = mean_coherence(u)
    assert means.inside[1].item() == pytest.approx(sum(inside) / len(inside))
    assert means.between[1].item() == pytest.approx(sum(between) / len(between))


def test_the_size_of_a_direction_does_not_matter_and_zero_has_none():
    u = randn(HEADS, WIDTH, DIM)
    sizes = 10.0 ** torch.linspace(-100, 100, HEADS * DIM, dtype=torch.float64).reshape(HEADS, 1, DIM)
    torch.testing.assert_close(coherence(u * sizes), coherence(u))
    u[1, :, 2] = 0
    assert coherence(u)[1, 2].sum() == 0
    assert mean_coherence(torch.zeros(HEADS, WIDTH, DIM)).inside.item() == 0


def test_orthogonal_heads_are_incoherent_and_equal_ones_are_not():
    square = torch.linalg.qr(randn(12, 12)).Q.unflatten(1, (HEADS, DIM)).movedim(1, 0)
    means = mean_coherence(square)
    assert means.inside.item() == pytest.approx(0, abs=1e-15)
    assert means.between.item() == pytest.approx(0, abs=1e-15)
    torch.testing.assert_close(
        subspace_angles(square), torch.full((3, DIM), math.pi / 2, dtype=torch.float64)
    )
    one = randn(1, WIDTH, 1).expand(HEADS, -1, -1)
    assert mean_coherence(one).between.item() == pytest.approx(1)
    assert mean_coherence(one).inside.isnan()
    assert mean_coherence(randn(1, WIDTH, DIM)).between.isnan()


def test_chance_is_what_the_mean_cosine_of_random_directions_is():
    heads, dim, null_samples = 6, 20, 5
    exact = math.exp(math.lgamma(WIDTH / 2) - math.lgamma((WIDTH + 1) / 2)) / math.sqrt(math.pi)
    means = mean_coherence(randn(null_samples, heads, WIDTH, dim))
    assert means.inside.mean().item() == pytest.approx(exact, rel=0.01)
    assert means.between.mean().item() == pytest.approx(exact, rel=0.01)


def test_angles_are_those_of_scipy():
    u = randn(BATCH, HEADS, WIDTH, DIM)
    u[0, 1] = u[0, 0] @ randn(DIM, DIM, seed=1)  # the same subspace
    found = subspace_angles(u)
    for b in range(BATCH):
        for pair, (h, g) in enumerate(itertools.combinations(range(HEADS), 2)):
            expected = np.sort(scipy.linalg.subspace_angles(u[b, h].numpy(), u[b, g].numpy()))
            np.testing.assert_allclose(found[b, pair], expected, atol=1e-7)
    # two subspaces of 6 dimensions meet in 11 at least in a line
    crowded = subspace_angles(randn(2, WIDTH, 6))
    assert crowded[0, 0].item() == pytest.approx(0, abs=1e-7)
    assert crowded[0, 1].item() > 0.1


def test_a_smaller_subspace_has_fewer_angles():
    u = randn(2, WIDTH, DIM)
    u[1, :, 2:] = u[1, :, :1]  # two dimensions in four directions
    found = subspace_angles(u)[0]
    expected = np.sort(scipy.linalg.subspace_angles(u[0].numpy(), u[1, :, :2].numpy()))
    np.testing.assert_allclose(found[:2], expected, atol=1e-7)
    assert found[2:].isnan().all()


def test_what_does_not_fit_is_named():
    with pytest.raises(InputError, match=r"two heads; u has 1 \(axis head\)"):
        subspace_angles(randn(1, WIDTH, DIM))
    with pytest.raises(InputError, match="missing axis head"):
        coherence(randn(WIDTH, DIM))
    with pytest.raises(InputError, match="NaN or infinite"):
        mean_coherence(randn(HEADS, WIDTH, DIM) / 0)
