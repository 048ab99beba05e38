"""Leading pairs by products in tiles against whole matrices, and a spectrum that is too flat for the products given."""

import math

import pytest
import torch

from workbench.analyses.gram_spectrum import factored_gram
from workbench.analyses.tiled_spectra import GramTiles, Leading, attention_leading
from workbench.analyses.tiles import Mask
from workbench.core.errors import InputError

TOKENS, DIM, SCALE = 150, 5, 0.4


def keys(dtype=torch.float64, tokens=TOKENS, size=1.0):
    return size * torch.randn(tokens, DIM, dtype=torch.float64, generator=torch.manual_seed(0)).to(dtype)


@pytest.mark.parametrize(("dtype", "right"), [(torch.float64, 1e-9), (torch.float32, 2e-6)])
def test_pairs_of_the_gram_matrix_are_those_of_the_matrix(dtype, right):
    k = keys(dtype)
    found = GramTiles(k, SCALE, 40_000).leading(7, 1e-10 if dtype == torch.float64 else 1e-6)
    gram = factored_gram(k, SCALE)
    values, vectors = torch.linalg.eigh(gram.product())
    factor = found.log_factor.exp()
    torch.testing.assert_close(
        found.values * factor, values.flip(0)[:7], rtol=0, atol=right * values[-1].item()
    )
    torch.testing.assert_close(found.trace * factor, values.sum(), rtol=10 * right, atol=0)
    aligned = (found.vectors * vectors.flip(1)[:, :7]).sum(0).abs()
    torch.testing.assert_close(aligned, torch.ones(7, dtype=torch.float64), rtol=0, atol=1e-6)
    assert found.converged.all()
    assert "7 pairs converged" in found.words()
    assert (found.residual <= 1e-6 * found.values[0]).all()


def test_keys_a_hundred_times_larger_have_a_spectrum_too():
    k = keys(size=100.0, tokens=31)
    found = GramTiles(k, SCALE).leading(3, tolerance=1e-10)
    gram = factored_gram(k, SCALE)
    values = torch.linalg.eigvalsh(gram.values).flip(0)[:3]
    torch.testing.assert_close(found.log_factor, gram.log_factor, rtol=1e-12, atol=0)
    torch.testing.assert_close(found.values, values, rtol=1e-10, atol=1e-14)  # one key, and rounding


@pytest.mark.parametrize("causal", [False, True])
def test_squared_singular_values_of_attention(causal):
    q, k = keys().flip(0), keys()
    found = attention_leading(q, k, SCALE, 6, mask=Mask(causal=causal), tolerance=1e-11, memory=40_000)
    scores = q @ k.mT * SCALE
    if causal:
        scores = scores.masked_fill(~torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril(), -math.inf)
    whole = torch.linalg.svdvals(scores.softmax(-1))
    torch.testing.assert_close(found.values.sqrt(), whole[:6], rtol=1e-9, atol=0)
    torch.testing.assert_close(found.trace, whole.square().sum(), rtol=1e-12, atol=0)
    assert found.converged.all()


def test_a_flat_spectrum_says_that_it_did_not_converge():
    wide = torch.randn(TOKENS, 40, dtype=torch.float64, generator=torch.manual_seed(1))
    found = GramTiles(wide, 0.01).leading(20, tolerance=1e-12, products=3)
    assert not found.converged.all()
    assert "did not" in found.words()
    values = torch.linalg.eigvalsh(factored_gram(wide, 0.01).product()) * math.exp(-found.log_factor)
    # some eigenvalue lies as near as the residual says, converged or not
    for value, residual in zip(found.values, found.residual, strict=True):
        assert (values - value).abs().min() <= residual * (1 + 1e-6) + 1e-15


def test_equal_keys_have_no_axes_and_more_pairs_than_tokens_are_refused():
    found = GramTiles(keys()[:1].expand(9, -1), SCALE).leading(2)
    assert found.values.abs().max() < 1e-15
    assert found.trace.abs() < 1e-12
    with pytest.raises(InputError, match="count is 1 to 9"):
        GramTiles(keys()[:9], SCALE).leading(10)


def test_pairs_have_converged_at_a_hundred_thousandth_of_the_largest_eigenvalue():
    k = torch.randn(300, 8, generator=torch.manual_seed(4))
    found = GramTiles(k, 0.3).leading(30, products=6)
    assert torch.equal(found.converged, found.residual <= 1e-5 * found.values[0])
    assert set(found.converged.tolist()) == {True, False}


def test_the_residual_of_a_matrix_of_zeros_is_zero():
    zeros = torch.zeros(3)
    found = Leading(zeros, torch.zeros(5, 3), zeros, torch.ones(3).bool(), torch.tensor(0.0), 2, 0.0)
    assert found.words().startswith("3 pairs converged: largest residual 0.0e+00 ")
