import math

import pytest
import torch

from workbench.analyses.gram_spectrum import centred_gram, check_psd_eigenvalues, gram_eigenvalues
from workbench.analyses.kernel_pca import kpca_values, principal_axes
from workbench.core.errors import InputError

AXES_TOKENS, AXES_DIM = 9, 4
AXES_SCALE = AXES_DIM**-0.5


@pytest.fixture
def some_keys():
    return torch.randn(AXES_TOKENS, AXES_DIM, dtype=torch.float64, generator=torch.manual_seed(0))


def near(actual, expected, atol):
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol)


def test_axes_are_unit_eigenvectors_orthogonal_to_the_constant(some_keys):
    axes = principal_axes(some_keys, AXES_SCALE)
    assert axes.vectors.shape == (AXES_TOKENS, AXES_TOKENS - 1)
    near(axes.vectors.T @ axes.vectors, torch.eye(AXES_TOKENS - 1, dtype=torch.float64), 1e-14)
    near(axes.vectors.sum(0), torch.zeros(AXES_TOKENS - 1, dtype=torch.float64), 1e-14)
    near(axes.gram @ axes.vectors, axes.vectors * axes.eigenvalues, 1e-14)
    near(axes.gram * axes.log_factor.exp(), centred_gram(some_keys, AXES_SCALE), 1e-16)
    near(axes.eigenvalues * axes.log_factor.exp(), gram_eigenvalues(some_keys, AXES_SCALE)[:-1], 1e-15)
    near(axes.log_normaliser, (AXES_SCALE * some_keys @ some_keys.T).exp().sum(1).log(), 1e-13)
    assert axes.resolved == AXES_TOKENS - 1


def test_signs_and_order_are_fixed(some_keys):
    axes = principal_axes(some_keys, AXES_SCALE, 5)
    assert axes.vectors.shape == (AXES_TOKENS, 5)
    assert (axes.eigenvalues[:-1] >= axes.eigenvalues[1:]).all()
    assert torch.equal(axes.vectors.amax(0), axes.vectors.abs().amax(0))


def test_more_axes_than_tokens_allow_are_capped(some_keys):
    assert principal_axes(some_keys, AXES_SCALE, 50).vectors.shape == (AXES_TOKENS, AXES_TOKENS - 1)


def test_repeated_keys_leave_axes_unresolved_but_orthogonal_to_the_constant(some_keys):
    some_keys[3:] = some_keys[3]  # four different keys span three directions
    axes = principal_axes(some_keys, AXES_SCALE)
    assert axes.resolved == 3
    assert (axes.eigenvalues[3:] < 1e-14).all()
    near(axes.vectors.sum(0), torch.zeros(AXES_TOKENS - 1, dtype=torch.float64), 1e-14)


def test_equal_keys_resolve_nothing():
    axes = principal_axes(torch.full((AXES_TOKENS, AXES_DIM), 1.7), AXES_SCALE, 3)
    assert axes.resolved == 0
    assert (axes.eigenvalues == 0).all()
    assert axes.vectors.isfinite().all()


@pytest.mark.parametrize("factor", [1.0, 100.0])
def test_values_are_the_normalised_axes_at_any_key_scale(some_keys, factor):
    axes = principal_axes(factor * some_keys, AXES_SCALE, 5)
    values = kpca_values(axes)
    rebuilt = values.values.abs().log() + values.log_factor
    expected = axes.vectors.abs().log() - axes.log_normaliser[:, None]
    kept = values.values != 0
    assert kept.any()
    near(rebuilt[kept], expected[kept], 1e-9)
    # what reads 0 is 0, or smaller than float64 can hold beside the largest
    assert (expected[~kept] - values.log_factor <= math.log(5e-324) + 1).all()


def test_attention_over_the_values_gives_the_projections_of_the_queries(some_keys):
    """softmax(s Q Kᵀ) V̇ = P, feature by feature (teo2024 theorem 1)."""
    q = torch.randn(6, AXES_DIM, dtype=torch.float64, generator=torch.manual_seed(1))
    axes = principal_axes(some_keys, AXES_SCALE, 5)
    attention = (AXES_SCALE * q @ some_keys.T).softmax(-1)
    g_q, g_k = (
        (AXES_SCALE * q @ some_keys.T).exp().sum(1),
        (AXES_SCALE * some_keys @ some_keys.T).exp().sum(1),
    )
    projections = torch.zeros(6, 5, dtype=torch.float64)
    for i in range(6):
        kernel = [
            float((AXES_SCALE * q[i] @ some_keys[j]).exp() / (g_q[i] * g_k[j])) for j in range(AXES_TOKENS)
        ]
        for d in range(5):
            projections[i, d] = sum(
                (kernel[j] - sum(kernel) / AXES_TOKENS) * float(axes.vectors[j, d])
                for j in range(AXES_TOKENS)
            )
    near(attention @ kpca_values(axes).product(), projections, 1e-15)


def test_a_pair_of_equal_eigenvalues_is_two_axes_that_are_close():
    """A square has two equal eigenvalues, a regular tetrahedron three: whichever comes first, each has a neighbour."""
    square = torch.tensor([[1.0, 0], [0, 1], [-1, 0], [0, -1]], dtype=torch.float64)
    assert principal_axes(square, 0.5).close == 2
    assert principal_axes(square, 0.5, 1).close == 1
    assert principal_axes(torch.eye(4, dtype=torch.float64), 0.5).close == 3
    assert principal_axes(square * torch.tensor([1.0, 1.5]), 0.5).close == 0


@pytest.mark.parametrize(("least", "refused"), [(-2e-5, True), (-0.5e-5, False)])
def test_negative_eigenvalues_are_rounding_below_a_share_of_the_largest(least, refused):
    spectrum = torch.tensor([3.0, 1.0, 3 * least], dtype=torch.float64)
    if refused:
        with pytest.raises(InputError, match="times its largest"):
            check_psd_eigenvalues(spectrum)
    else:
        assert check_psd_eigenvalues(spectrum).tolist() == [3.0, 1.0, 0.0]
