"""The profile of saritas2025's tables: statistics over ranks of the mean spectrum of each input."""

import math

import numpy as np
import pytest
import torch

from tests.runs.test_analyze import bert, grouped_llama, images, same, swin, texts, vit
from workbench.analyses.gram_spectrum import Options, across
from workbench.analyses.kernel_pca import effective_rank, gram_eigenvalues
from workbench.analyses.layer import Layer
from workbench.analyses.null_values import null_values
from workbench.captures import LayerRecord, capture
from workbench.core.null_distributions import derived_seed
from workbench.frames.measurement import Measurement
from workbench.runs.analyze import analyze

HEADS, RANKS = 3, 6


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
            Measurement("eigenvalue_profile", spectra, ("input", "head", "rank"), form="held"),
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
    held = Measurement("eigenvalue_profile", spectra, ("input", "head", "rank"), form="held")
    found = {part.columns["statistic"]: part.values.tolist() for part in across([(layer, held)], Options())}
    assert found == {"max": [4, 8], "min": [1, 8], "mean": [7 / 3, 8], "median": [2, 8]}


DRAWS, SEED = 3, 5


@pytest.mark.parametrize(("make", "batch"), [(vit, images), (bert, texts)])
def test_chance_is_the_spectrum_of_gaussian_keys_of_the_real_tokens(make, batch):
    model, inputs = make(), batch()
    frame = analyze(
        "gram-spectrum", model=model, inputs=inputs, seed=SEED, null_samples=DRAWS, max_rank="all"
    )
    assert set(frame["null"].dropna()) == {"gaussian"}
    captured = capture(model, inputs, sites=("k", "scale"))
    real = captured.tokens.mask
    for layer, head, number in ((0, 0, 0), (1, 1, 2)):
        keys = captured[layer].k[number, head][real[number]]
        seed = derived_seed(derived_seed(SEED, str(number), layer, head), "k")
        drawn = gram_eigenvalues(null_values(keys, "gaussian", DRAWS, seed), captured[layer].scale)
        own = frame[
            (frame["layer"] == layer) & (frame["head"] == head) & (frame["input"] == str(number))
        ].set_index("metric")
        found = own.loc["eigenvalue"]
        assert len(found) == len(keys)
        np.testing.assert_allclose(found["null_mean"], drawn.mean(0), rtol=1e-6, atol=1e-12)
        np.testing.assert_allclose(found["null_low"], drawn.quantile(0.025, dim=0), rtol=1e-6, atol=1e-12)
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
    options = {"model": make(), "inputs": batch(), "null_samples": DRAWS}
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
