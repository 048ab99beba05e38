"""Attention as kernel SVD: planted spectra, NumPy as oracle, and what e-scores and r-scores are."""

import itertools
import math

import numpy as np
import pytest
import scipy.linalg
import torch

from workbench.analyses.attention_spectrum import kernel_svd, relative_values, singular_values
from workbench.analyses.kernel_pca import effective_rank, rank_holding
from workbench.analyses.linalg import head_bases, inside_share, left_out, span_angles
from workbench.captures import attention_output
from workbench.core.errors import InputError

BATCH, HEADS, TOKENS, DIM = 2, 3, 11, 4


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.manual_seed(seed))


def attention(seed=0, tokens=TOKENS):
    return (3 * randn(BATCH, HEADS, tokens, tokens, seed=seed)).softmax(-1)


def planted(values, seed=0):
    """Matrices of every head with these singular values, and their singular vectors."""
    left, right = (
        torch.linalg.qr(randn(BATCH, HEADS, TOKENS, len(values), seed=seed + side)).Q for side in (0, 1)
    )
    return left * torch.tensor(values, dtype=torch.float64) @ right.mT, left, right


def blocks(sizes):
    """Attention of rank len(sizes): every token attends evenly to the tokens of its own block."""
    return torch.block_diag(*[torch.full((size, size), 1 / size, dtype=torch.float64) for size in sizes])


def test_singular_values_are_numpy_s_matrix_by_matrix():
    kernel = attention()
    found = singular_values(kernel)
    assert found.shape == (BATCH, HEADS, TOKENS)
    for place in itertools.product(range(BATCH), range(HEADS)):
        expected = np.linalg.svd(kernel[place].numpy(), compute_uv=False)
        np.testing.assert_allclose(found[place], expected, rtol=1e-12, atol=1e-14)


def test_a_planted_spectrum_comes_back_with_its_ranks():
    values = [8.0, 4.0, 2.0, 1.0, 0.5]
    kernel, left, right = planted(values)
    found = singular_values(kernel)
    torch.testing.assert_close(found[..., :5], torch.tensor(values, dtype=torch.float64).expand(2, 3, 5))
    assert found[..., 5:].abs().max() < 1e-14
    torch.testing.assert_close(relative_values(found)[..., 1], torch.full((2, 3), 0.5, dtype=torch.float64))
    shares = np.array(values) / sum(values)
    expected = math.exp(-(shares * np.log(shares)).sum())
    assert effective_rank(found)[1, 2].item() == pytest.approx(expected)
    assert rank_holding(found.square(), 0.9).unique().item() == 2  # 80 of 85.25 is enough, 64 is not
    svd = kernel_svd(kernel, 7)
    torch.testing.assert_close(svd.left[..., :5] @ svd.left[..., :5].mT, left @ left.mT)
    torch.testing.assert_close(svd.right[..., :5] @ svd.right[..., :5].mT, right @ right.mT)
    assert not svd.left[..., 5:].any()  # directions that K has not got
    assert not svd.values[..., 5:].any()


def test_attention_within_blocks_has_as_many_singular_values_as_blocks():
    kernel = blocks((2, 3, 6))
    found = singular_values(kernel)
    assert found[:3].tolist() == pytest.approx([1, 1, 1])
    assert found[3:].max() < 1e-15
    assert effective_rank(found).item() == pytest.approx(3)
    assert singular_values(torch.full((7, 7), 1 / 7)).tolist() == pytest.approx([1, *[0] * 6], abs=1e-7)


@pytest.mark.parametrize("causal", [False, True])
def test_e_scores_are_the_output_of_attention_whose_values_are_the_right_singular_vectors(causal):
    kernel = attention()
    if causal:
        kernel = kernel.tril() / kernel.tril().sum(-1, keepdim=True)
    svd = kernel_svd(kernel, DIM)
    torch.testing.assert_close(svd.e_scores, attention_output(kernel, svd.right))
    torch.testing.assert_close(svd.r_scores, attention_output(kernel.mT, svd.left))
    # both hold the same variances
    torch.testing.assert_close(svd.e_scores.norm(dim=-2), svd.r_scores.norm(dim=-2))


def test_a_symmetric_kernel_leaves_nothing_out_and_a_turned_one_everything():
    root = randn(TOKENS, DIM + 2)
    svd = kernel_svd(root @ root.T, DIM)
    assert left_out(svd.r_scores, svd.left).item() < 1e-13
    # queries look at one half of the tokens from the other half: no r-score is where an e-score is
    kernel = torch.zeros(TOKENS, TOKENS, dtype=torch.float64)
    kernel[:5, 5:] = randn(5, TOKENS - 5)
    svd = kernel_svd(kernel, DIM)
    assert left_out(svd.r_scores, svd.left).item() == pytest.approx(1)


def test_what_is_left_out_is_the_residual_of_the_best_linear_map():
    svd = kernel_svd(attention(), DIM)
    found = left_out(svd.r_scores, svd.left)
    for place in itertools.product(range(BATCH), range(HEADS)):
        e, r = svd.e_scores[place].numpy(), svd.r_scores[place].numpy()
        rest = r - e @ np.linalg.lstsq(e, r, rcond=None)[0]
        assert found[place].item() == pytest.approx((rest**2).sum() / (r**2).sum())
    torch.testing.assert_close(inside_share(svd.r_scores, svd.left), 1 - found)


def test_random_directions_leave_out_what_their_number_says():
    svd = kernel_svd(attention(tokens=23), DIM)
    noise = torch.linalg.qr(randn(400, BATCH, HEADS, 23, DIM, seed=5)).Q
    assert left_out(svd.r_scores, noise).mean().item() == pytest.approx(1 - DIM / 23, abs=5e-3)


def test_angles_are_scipy_s_and_those_of_the_right_singular_vectors_themselves_are_zero():
    svd = kernel_svd(attention(), DIM)
    v = randn(BATCH, HEADS, TOKENS, DIM, seed=3)
    found = span_angles(head_bases(v), svd.right)
    for place in itertools.product(range(BATCH), range(HEADS)):
        expected = scipy.linalg.subspace_angles(v[place].numpy(), svd.right[place].numpy())[::-1]
        np.testing.assert_allclose(found[place], expected, rtol=1e-8)
    mixed = svd.right @ randn(DIM, DIM, seed=4)  # another basis of the same span
    assert span_angles(head_bases(mixed), svd.right).max() < 1e-6
    torch.testing.assert_close(inside_share(mixed, svd.right), torch.ones(BATCH, HEADS, dtype=torch.float64))


def test_a_span_of_fewer_dimensions_has_fewer_angles():
    svd = kernel_svd(attention(), DIM)
    v = randn(BATCH, HEADS, TOKENS, 2) @ randn(2, DIM, seed=1)  # rank 2
    found = span_angles(head_bases(v), svd.right)
    assert (~found.isnan()).sum(-1).unique().item() == 2


def test_what_is_no_matrix_of_tokens_is_refused():
    with pytest.raises(InputError, match=r"1 query has one singular value"):
        singular_values(torch.ones(3, 1, 7))
    with pytest.raises(InputError, match=r"1 key has one"):
        kernel_svd(torch.ones(7, 1), 2)
    with pytest.raises(InputError, match="directions must be at least 1; got 0"):
        kernel_svd(torch.ones(7, 7), 0)
    bad = torch.ones(7, 7)
    bad[0, 5] = bad[6, 1] = math.nan
    with pytest.raises(InputError, match=r"2 NaN or infinite .* query 0, key 5"):
        singular_values(bad)
    with pytest.raises(InputError, match="missing axis query"):
        singular_values(torch.ones(7))
    for empty in (singular_values, lambda kernel: kernel_svd(kernel, 2)):
        with pytest.raises(InputError, match=r"\(0, 3, 7, 7\); there is no matrix in it"):
            empty(torch.ones(0, 3, 7, 7))
