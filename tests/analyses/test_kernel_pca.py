import math

import pytest
import torch

from workbench.analyses.kernel_pca import (
    centred_gram,
    check_psd_eigenvalues,
    effective_rank,
    factored_gram,
    gram_eigenvalues,
    gram_spectrum,
    kpca_values,
    log_kernel,
    principal_axes,
    rank_holding,
    spectrum_share,
    standardize,
)
from workbench.core.errors import InputError, UnknownName

BATCH, HEADS, TOKENS, DIM = 2, 3, 7, 5
SCALE = DIM**-0.5


@pytest.fixture
def k():
    return torch.randn(BATCH, HEADS, TOKENS, DIM, dtype=torch.float64, generator=torch.manual_seed(0))


def naive_kernel(k, scale):
    """k_φ(i, j) = exp(s k_i·k_j) / (g(k_i) g(k_j)), one pair at a time."""
    n = len(k)
    kernel = [[math.exp(scale * float(k[i] @ k[j])) for j in range(n)] for i in range(n)]
    g = [sum(row) for row in kernel]
    return torch.tensor(
        [[kernel[i][j] / (g[i] * g[j]) for j in range(n)] for i in range(n)], dtype=torch.float64
    )


def test_kernel_is_the_definition_pair_by_pair(k):
    for b in range(BATCH):
        for h in range(HEADS):
            expected = naive_kernel(k[b, h], SCALE)
            torch.testing.assert_close(log_kernel(k, SCALE)[b, h].exp(), expected, rtol=1e-13, atol=0)


def test_centred_gram_is_C_K_C(k):
    centring = torch.eye(TOKENS, dtype=torch.float64) - 1 / TOKENS
    expected = centring @ naive_kernel(k[1, 2], SCALE) @ centring
    torch.testing.assert_close(centred_gram(k, SCALE)[1, 2], expected, rtol=0, atol=1e-16)


def test_centring_removes_the_constant_direction(k):
    ones = torch.ones(TOKENS, dtype=torch.float64)
    zeros = torch.zeros(BATCH, HEADS, TOKENS, dtype=torch.float64)
    for gram in (
        centred_gram(k, SCALE),
        factored_gram(k, SCALE).values,
        factored_gram(100 * k, SCALE).values,
    ):
        torch.testing.assert_close(gram @ ones, zeros, rtol=0, atol=1e-15)
        assert torch.equal(gram, gram.mT)
        assert gram.abs().amax() > 1e-6  # not zero by being empty


def test_the_smallest_eigenvalue_is_zero_and_all_sum_to_the_trace(k):
    eigenvalues = gram_eigenvalues(k, SCALE)
    assert (eigenvalues >= 0).all()
    assert (eigenvalues[..., :-1] >= eigenvalues[..., 1:]).all()
    assert (eigenvalues[..., -1] <= 1e-15).all()
    assert (eigenvalues[..., -2] > 1e-12).all()  # only one direction is lost
    trace = centred_gram(k, SCALE).diagonal(dim1=-2, dim2=-1).sum(-1)
    torch.testing.assert_close(eigenvalues.sum(-1), trace, rtol=1e-13, atol=0)


def test_two_tokens_have_the_eigenvalue_known_in_closed_form():
    # C K C of a 2×2 kernel has the eigenvector (1, −1)/√2 and the eigenvalue (K_11 + K_22 − 2 K_12) / 2
    k = torch.tensor([[1.0, 2.0, 0.5], [-0.5, 0.25, 1.0]], dtype=torch.float64)
    kernel = naive_kernel(k, 0.7)
    expected = (kernel[0, 0] + kernel[1, 1] - 2 * kernel[0, 1]) / 2
    torch.testing.assert_close(gram_eigenvalues(k, 0.7)[0], expected, rtol=1e-13, atol=0)


def test_order_of_tokens_does_not_matter(k):
    shuffled = k[..., torch.randperm(TOKENS, generator=torch.manual_seed(1)), :]
    torch.testing.assert_close(
        gram_eigenvalues(shuffled, SCALE), gram_eigenvalues(k, SCALE), rtol=1e-10, atol=1e-16
    )


def test_rotating_the_features_does_not_matter(k):
    rotation = torch.linalg.qr(torch.randn(DIM, DIM, dtype=torch.float64, generator=torch.manual_seed(2)))[0]
    torch.testing.assert_close(
        gram_eigenvalues(k @ rotation, SCALE), gram_eigenvalues(k, SCALE), rtol=1e-10, atol=1e-16
    )


@pytest.mark.parametrize("factor", [1e-8, 1.0, 100.0, 1e4])
def test_spectrum_is_finite_and_informative_at_any_key_scale(k, factor):
    spectrum = gram_spectrum(factor * k, SCALE)
    assert torch.isfinite(spectrum.values).all()
    assert torch.isfinite(spectrum.log_factor).all()
    assert (log_kernel(factor * k, SCALE) <= 0).all()
    if factor > 1e-8:  # keys this small are all alike to rounding
        assert (spectrum.values[..., 0] > 0.1).all()
        assert (effective_rank(spectrum.values) >= 1).all()


def test_keys_times_100_underflow_only_in_the_product(k):
    spectrum = gram_spectrum(100 * k, SCALE)
    assert (spectrum.log_factor < -800).all()
    assert (gram_eigenvalues(100 * k, SCALE) == 0).all()  # exp(−800) is not a float64
    # the smallest key wins: exp(−s‖k‖²) of the others is nothing beside it, and one key spans one direction
    torch.testing.assert_close(
        spectrum.values[..., 0],
        torch.full((BATCH, HEADS), 1 - 1 / TOKENS, dtype=torch.float64),
        rtol=1e-9,
        atol=0,
    )


def test_equal_keys_span_nothing():
    k = torch.full((2, 11, 3), 1.7)
    eigenvalues = gram_eigenvalues(k, 3**-0.5)
    assert torch.equal(eigenvalues, torch.zeros(2, 11, dtype=torch.float64))
    assert torch.equal(effective_rank(eigenvalues), torch.zeros(2, dtype=torch.float64))
    assert torch.equal(rank_holding(eigenvalues), torch.zeros(2, dtype=torch.float64))


def test_a_mask_gives_exactly_the_spectrum_of_the_submatrix(k):
    mask = torch.ones(BATCH, 1, TOKENS, dtype=torch.bool)
    mask[0, 0, 4:] = False
    padded = k.clone()
    padded[0, :, 4:] = math.nan  # padding may hold anything
    masked = gram_spectrum(padded, SCALE, mask)
    alone = gram_spectrum(k[0, :, :4], SCALE)
    assert torch.equal(masked.values[0, :, :4], alone.values)
    assert torch.equal(masked.log_factor[0], alone.log_factor)
    assert masked.values[0, :, 4:].isnan().all()
    assert torch.equal(masked.values[1], gram_spectrum(k[1], SCALE).values)
    gram = centred_gram(padded, SCALE, mask)
    torch.testing.assert_close(gram[0, :, :4, :4], centred_gram(k[0, :, :4], SCALE), rtol=0, atol=1e-16)
    assert (gram[0, :, 4:] == 0).all()
    assert (gram[0, :, :, 4:] == 0).all()
    assert torch.equal(effective_rank(masked.values)[0], effective_rank(alone.values))
    assert torch.equal(rank_holding(masked.values)[0], rank_holding(alone.values))


def test_each_head_may_have_its_own_scale(k):
    scales = torch.tensor([0.2, 0.5, 1.1])
    together = gram_eigenvalues(k, scales)
    assert torch.equal(together, gram_eigenvalues(k, scales[:, None, None]))
    for head, scale in enumerate(scales):
        torch.testing.assert_close(
            together[:, head], gram_eigenvalues(k[:, head], scale), rtol=1e-12, atol=1e-17
        )
    mask = torch.ones(BATCH, 1, TOKENS, dtype=torch.bool)
    mask[1, 0, 5:] = False
    masked = gram_eigenvalues(k, scales, mask)[1, 2, :5]
    torch.testing.assert_close(masked, gram_eigenvalues(k[1, 2, :5], 1.1), rtol=1e-6, atol=1e-17)


def test_effective_rank_and_rank_90_of_spectra_known_by_hand():
    flat = torch.full((4,), 0.3)
    assert effective_rank(flat) == pytest.approx(4)
    assert rank_holding(flat, 0.75) == 3
    assert rank_holding(flat) == 4
    one = torch.tensor([5.0, 0.0, 0.0])
    assert effective_rank(one) == 1
    assert rank_holding(one) == 1
    halves = torch.tensor([2.0, 1.0, 1.0])
    assert effective_rank(halves) == pytest.approx(math.exp(1.5 * math.log(2)))
    assert spectrum_share(halves).tolist() == [0.5, 0.25, 0.25]
    assert rank_holding(torch.tensor([9.0, 1.0])) == 1
    torch.testing.assert_close(effective_rank(1e-200 * halves.double()), effective_rank(halves))


def test_rounding_negatives_become_zero_and_significant_ones_raise():
    assert check_psd_eigenvalues(torch.tensor([5.0, -4e-12])).tolist() == [5.0, 0.0]
    with pytest.raises(InputError, match=r"negative eigenvalue of 0\.2 times"):
        check_psd_eigenvalues(torch.tensor([5.0, -1.0]))


def test_bad_keys_are_named(k):
    with pytest.raises(InputError, match=r"missing axis token"):
        gram_eigenvalues(torch.randn(DIM), SCALE)
    with pytest.raises(InputError, match=r"axis head_dim is empty"):
        gram_eigenvalues(torch.randn(TOKENS, 0), SCALE)
    with pytest.raises(InputError, match=r"1 token; at least 2"):
        gram_eigenvalues(torch.randn(1, DIM), SCALE)
    with pytest.raises(InputError, match=r"torch\.int64"):
        gram_eigenvalues(torch.ones(TOKENS, DIM, dtype=torch.int64), SCALE)
    k[1, 2, 3, 4], k[1, 2, 5, 0] = math.nan, math.inf
    with pytest.raises(
        InputError, match=r"2 NaN or infinite.*first is nan at axis 0 1, axis 1 2, token 3, head_dim 4"
    ):
        gram_eigenvalues(k, SCALE)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf, torch.tensor([1.0, 0.0, 1.0])])
def test_a_scale_that_is_not_finite_and_positive_is_refused(k, scale):
    with pytest.raises(InputError, match="scale must be finite and positive"):
        gram_eigenvalues(k, scale)


def test_a_scale_or_mask_that_does_not_fit_is_refused(k):
    with pytest.raises(InputError, match=r"scale of shape \(2,\) does not fit"):
        gram_eigenvalues(k, torch.ones(2))
    with pytest.raises(InputError, match=r"mask of shape \(2, 6\) does not fit"):
        gram_eigenvalues(k, SCALE, torch.ones(2, 6, dtype=torch.bool))
    with pytest.raises(InputError, match="boolean"):
        gram_eigenvalues(k, SCALE, torch.ones(2, 1, TOKENS))
    lonely = torch.zeros(2, 1, TOKENS, dtype=torch.bool)
    lonely[:, :, 0] = True
    with pytest.raises(InputError, match=r"leaves 1 token\(s\)"):
        gram_eigenvalues(k, SCALE, lonely)
    for share in (0.0, 1.5):
        with pytest.raises(InputError, match="share must lie in"):
            rank_holding(torch.ones(3), share)


@pytest.mark.parametrize(("how", "axis"), [("per-token", -1), ("per-feature", -2)])
def test_standardized_keys_have_mean_zero_and_unbiased_deviation_one(k, how, axis):
    x = standardize(k, how, eps=0.0)
    torch.testing.assert_close(x.mean(axis), torch.zeros_like(x.mean(axis)), rtol=0, atol=1e-15)
    torch.testing.assert_close(x.std(axis), torch.ones_like(x.std(axis)), rtol=1e-14, atol=0)
    wide = standardize(k, how, eps=0.5)
    torch.testing.assert_close(wide, x * (k.std(axis) / (k.std(axis) + 0.5)).unsqueeze(axis))
    assert standardize(k, "none") is k


@pytest.mark.parametrize("how", ["per-token", "per-feature"])
def test_standardizing_does_not_look_at_padding(k, how):
    padded = torch.cat([k, torch.full((BATCH, HEADS, 3, DIM), math.nan, dtype=torch.float64)], 2)
    mask = (torch.arange(TOKENS + 3) < TOKENS).expand(BATCH, 1, -1)
    x = standardize(padded, how, mask)
    torch.testing.assert_close(x[..., :TOKENS, :], standardize(k, how), rtol=1e-13, atol=1e-14)
    assert (x[..., TOKENS:, :] == 0).all()


def test_what_does_not_vary_is_standardized_to_zero():
    for how in ("per-token", "per-feature"):
        for eps in (0.0, 1e-8):
            assert torch.equal(
                standardize(torch.full((4, 3), 0.25), how, eps=eps), torch.zeros(4, 3).double()
            )


def test_standardization_that_cannot_be_is_refused(k):
    with pytest.raises(UnknownName, match="did you mean 'per-token'"):
        standardize(k, "per-tokn")
    with pytest.raises(InputError, match="2 features or more"):
        standardize(k[..., :1], "per-token")
    with pytest.raises(InputError, match="NaN or infinite"):
        standardize(k * math.nan, "per-token")


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
