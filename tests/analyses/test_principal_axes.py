import math

import pytest
import torch

from workbench.analyses.kernel_pca import centred_gram, gram_eigenvalues, kpca_values, principal_axes

TOKENS, DIM = 9, 4
SCALE = DIM**-0.5


@pytest.fixture
def k():
    return torch.randn(TOKENS, DIM, dtype=torch.float64, generator=torch.manual_seed(0))


def near(actual, expected, atol):
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol)


def test_axes_are_unit_eigenvectors_orthogonal_to_the_constant(k):
    axes = principal_axes(k, SCALE)
    assert axes.vectors.shape == (TOKENS, TOKENS - 1)
    near(axes.vectors.T @ axes.vectors, torch.eye(TOKENS - 1, dtype=torch.float64), 1e-14)
    near(axes.vectors.sum(0), torch.zeros(TOKENS - 1, dtype=torch.float64), 1e-14)
    near(axes.gram @ axes.vectors, axes.vectors * axes.eigenvalues, 1e-14)
    near(axes.gram * axes.log_factor.exp(), centred_gram(k, SCALE), 1e-16)
    near(axes.eigenvalues * axes.log_factor.exp(), gram_eigenvalues(k, SCALE)[:-1], 1e-15)
    near(axes.log_normaliser, (SCALE * k @ k.T).exp().sum(1).log(), 1e-13)
    assert axes.resolved == TOKENS - 1


def test_signs_and_order_are_fixed(k):
    axes = principal_axes(k, SCALE, 5)
    assert axes.vectors.shape == (TOKENS, 5)
    assert (axes.eigenvalues[:-1] >= axes.eigenvalues[1:]).all()
    assert torch.equal(axes.vectors.amax(0), axes.vectors.abs().amax(0))


def test_more_axes_than_tokens_allow_are_capped(k):
    assert principal_axes(k, SCALE, 50).vectors.shape == (TOKENS, TOKENS - 1)


def test_repeated_keys_leave_axes_unresolved_but_orthogonal_to_the_constant(k):
    k[3:] = k[3]  # four different keys span three directions
    axes = principal_axes(k, SCALE)
    assert axes.resolved == 3
    assert (axes.eigenvalues[3:] < 1e-14).all()
    near(axes.vectors.sum(0), torch.zeros(TOKENS - 1, dtype=torch.float64), 1e-14)


def test_equal_keys_resolve_nothing():
    axes = principal_axes(torch.full((TOKENS, DIM), 1.7), SCALE, 3)
    assert axes.resolved == 0
    assert (axes.eigenvalues == 0).all()
    assert axes.vectors.isfinite().all()


@pytest.mark.parametrize("factor", [1.0, 100.0])
def test_values_are_the_normalised_axes_at_any_key_scale(k, factor):
    axes = principal_axes(factor * k, SCALE, 5)
    values = kpca_values(axes)
    rebuilt = values.values.abs().log() + values.log_factor
    expected = axes.vectors.abs().log() - axes.log_normaliser[:, None]
    kept = values.values != 0
    assert kept.any()
    near(rebuilt[kept], expected[kept], 1e-9)
    # what reads 0 is 0, or smaller than float64 can hold beside the largest
    assert (expected[~kept] - values.log_factor <= math.log(5e-324) + 1).all()


def test_attention_over_the_values_gives_the_projections_of_the_queries(k):
    """softmax(s Q Kᵀ) V̇ = P, feature by feature (teo2024 theorem 1)."""
    q = torch.randn(6, DIM, dtype=torch.float64, generator=torch.manual_seed(1))
    axes = principal_axes(k, SCALE, 5)
    attention = (SCALE * q @ k.T).softmax(-1)
    g_q, g_k = (SCALE * q @ k.T).exp().sum(1), (SCALE * k @ k.T).exp().sum(1)
    projections = torch.zeros(6, 5, dtype=torch.float64)
    for i in range(6):
        kernel = [float((SCALE * q[i] @ k[j]).exp() / (g_q[i] * g_k[j])) for j in range(TOKENS)]
        for d in range(5):
            projections[i, d] = sum(
                (kernel[j] - sum(kernel) / TOKENS) * float(axes.vectors[j, d]) for j in range(TOKENS)
            )
    near(attention @ kpca_values(axes).product(), projections, 1e-15)
