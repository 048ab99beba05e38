"""The keys' centred Gram matrix, its spectrum, and the profile of saritas2025's tables."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

from tests.runs.test_analyze import bert, grouped_llama, images, same, swin, texts, vit
from workbench.analyses.gram_spectrum import (
    Options,
    across,
    centred_gram,
    check_psd_eigenvalues,
    effective_rank,
    factored_gram,
    gram_eigenvalues,
    gram_spectrum,
    log_kernel,
    notes,
    rank_holding,
    spectrum_share,
)
from workbench.analyses.layer import Layer
from workbench.analyses.null_values import null_values
from workbench.captures import Capture, LayerRecord, TokenInfo, capture
from workbench.core.errors import InputError
from workbench.core.null_distributions import derived_seed
from workbench.frames.measurement import Measurement
from workbench.runs.analyze import analyze

BATCH, HEADS, TOKENS, DIM = 2, 3, 7, 5
SCALE = DIM**-0.5
RANKS = 6


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


def test_a_spectrum_that_is_not_there_has_no_rank():
    nothing = torch.full((3,), torch.nan)
    assert effective_rank(nothing).isnan()
    assert rank_holding(nothing).isnan()
    spectra = torch.stack([nothing, torch.tensor([1.0, 1.0, torch.nan])])
    torch.testing.assert_close(
        effective_rank(spectra), torch.tensor([torch.nan, 2.0]).double(), equal_nan=True
    )
    torch.testing.assert_close(rank_holding(spectra), torch.tensor([torch.nan, 2.0]).double(), equal_nan=True)
    with pytest.raises(InputError, match="complex64"):
        effective_rank(spectra + 0j)


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


def test_a_profile_is_taken_over_the_ranks_of_the_mean_spectrum():
    generator = torch.manual_seed(0)
    values = [
        torch.rand(2, HEADS, RANKS, dtype=torch.float64, generator=generator),
        torch.rand(2, HEADS + 1, 4, dtype=torch.float64, generator=generator),
    ]
    values[1][0, :, 3] = math.nan  # a shorter input
    held = [
        (
            Layer(LayerRecord(index, "path"), ["a", "b"], None, 0),
            Measurement("eigenvalue_profile", spectra, ("input", "head", "rank"), form="intermediate"),
        )
        for index, spectra in enumerate(values)
    ]
    plain = Measurement("eigenvalue", values[0], ("input", "head", "rank"))
    found = {part.columns["statistic"]: part for part in across([*held, (held[0][0], plain)], Options())}
    assert {(part.name, part.axes, part.form) for part in found.values()} == {
        ("eigenvalue_profile", ("input",), "across")
    }
    for number in range(2):
        longest = torch.full((2 * HEADS + 1, RANKS), math.nan, dtype=torch.float64)
        longest[:HEADS] = values[0][number]
        longest[HEADS:, :4] = values[1][number]
        mean = longest.nanmean(0)
        for statistic in ("max", "min", "mean", "median"):
            expected = float(getattr(mean, statistic)())
            assert found[statistic].values[number].item() == pytest.approx(expected, rel=1e-14)


def test_ranks_that_no_head_of_an_input_has_are_no_part_of_its_profile():
    spectra = torch.tensor([[[4.0, 2.0, 1.0, math.nan]], [[8.0, math.nan, math.nan, math.nan]]])
    layer = Layer(LayerRecord(0, "path"), ["a", "b"], None, 0)
    held = Measurement("eigenvalue_profile", spectra, ("input", "head", "rank"), form="intermediate")
    found = {part.columns["statistic"]: part.values.tolist() for part in across([(layer, held)], Options())}
    assert found == {"max": [4, 8], "min": [1, 8], "mean": [7 / 3, 8], "median": [2, 8]}


NULL_SAMPLES, SEED = 3, 5


@pytest.mark.parametrize(("make", "batch"), [(vit, images), (bert, texts)])
def test_chance_is_the_spectrum_of_gaussian_keys_of_the_real_tokens(make, batch):
    model, inputs = make(), batch()
    frame = analyze(
        "gram-spectrum", model=model, inputs=inputs, seed=SEED, null_samples=NULL_SAMPLES, max_rank="all"
    )
    assert set(frame["null"].dropna()) == {"gaussian"}
    captured = capture(model, inputs, sites=("k", "scale"))
    real = captured.tokens.mask
    for layer, head, number in ((0, 0, 0), (1, 1, 2)):
        keys = captured[layer].k[number, head][real[number]]
        seed = derived_seed(derived_seed(SEED, str(number), layer, head), "k")
        drawn = gram_eigenvalues(null_values(keys, "gaussian", NULL_SAMPLES, seed), captured[layer].scale)
        own = frame[
            (frame["layer"] == layer) & (frame["head"] == head) & (frame["input"] == str(number))
        ].set_index("metric")
        found = own.loc["eigenvalue"]
        assert len(found) == len(keys)
        np.testing.assert_allclose(found["null_mean"], drawn.mean(0), rtol=1e-6, atol=1e-12)
        np.testing.assert_allclose(found["null_low"], drawn.amin(0), rtol=1e-6, atol=1e-12)
        ranks = effective_rank(drawn)
        assert own.loc["effective_rank", "null_mean"] == pytest.approx(ranks.mean().item(), rel=1e-6)
        z = (own.loc["effective_rank", "value"] - ranks.mean()) / ranks.std()
        assert own.loc["effective_rank", "z"] == pytest.approx(z.item(), rel=1e-3)


def test_draws_change_no_value_and_none_leaves_chance_out():
    options = {"model": vit(), "inputs": images()}
    plain, drawn = (analyze("gram-spectrum", null_samples=null_samples, **options) for null_samples in (0, 2))
    assert plain["null_mean"].isna().all()
    assert plain["value"].tolist() == drawn["value"].tolist()
    measured = drawn["metric"] != "eigenvalue_profile"  # whose ranks are of means
    assert drawn.loc[measured, "null_mean"].notna().all()


@pytest.mark.parametrize(("make", "batch"), [(bert, texts), (swin, lambda: images(3, size=32))])
def test_chance_does_not_depend_on_the_batches(make, batch):
    options = {"model": make(), "inputs": batch(), "null_samples": NULL_SAMPLES}
    whole = analyze("gram-spectrum", **options)
    same(analyze("gram-spectrum", batch_size=1, **options), whole, rtol=1e-3)
    assert whole["null_mean"].notna().any()


def test_shares_of_random_keys_sum_to_one_over_all_ranks():
    frame = analyze(
        "gram-spectrum", model=vit(), inputs=images(2), null_samples=2, normalize="trace", max_rank="all"
    )
    shares = frame[frame["metric"] == "eigenvalue_share"]
    np.testing.assert_allclose(shares.groupby(["input", "layer", "head"])["null_mean"].sum(), 1.0)


def test_grouped_keys_and_standardised_ones_have_chance_as_well():
    batch = texts(lengths=(9, 9))
    for options in ({}, {"standardize": "per-token"}):
        frame = analyze("gram-spectrum", model=grouped_llama(), inputs=batch, null_samples=2, **options)
        rows = frame[frame["metric"] == "eigenvalue"]
        assert set(rows["head"]) == {0, 1}
        assert rows["null_mean"].gt(0).any()


def test_permuted_tokens_leave_a_spectrum_as_it_is():
    keys = torch.randn(7, 5, dtype=torch.float64)
    order = torch.randperm(7)
    torch.testing.assert_close(gram_eigenvalues(keys[order], 0.4), gram_eigenvalues(keys, 0.4))


def test_spectra_of_equal_keys_are_counted_apart_from_those_too_small_for_a_number():
    traces = [-math.inf, 1.0, -800.0, -math.inf, 2.0]
    frame = pd.DataFrame({"metric": "gram_log_trace", "input": "0", "value": traces})
    sentences = notes(frame, Options())
    assert sentences[0] == "2 of 5 spectra are zero: all keys of the head are equal"


def test_shares_of_small_keys_sum_to_one_and_one_layer_has_a_profile():
    q, k, v = 1e-3 * torch.randn(3, 2, 3, 7, 4, generator=torch.Generator().manual_seed(0)).double()
    record = LayerRecord(0, "", q=q, k=k, v=v, scale=0.5)
    tokens = TokenInfo([["t"] * 7] * 2, [["token"] * 7] * 2, None, torch.ones(2, 7, dtype=torch.bool))
    kept = Capture([record], ("q", "k", "v"), tokens=tokens)
    frame = analyze("gram-spectrum", qkv=kept, normalize="trace", max_rank="all", null_samples=0)
    shares = frame[frame["metric"] == "eigenvalue_share"]
    np.testing.assert_allclose(shares.groupby(["input", "head"], dropna=False)["value"].sum(), 1.0)
    assert "eigenvalue_profile" in set(frame["metric"])
