"""The profile of saritas2025's tables: statistics over ranks of the mean spectrum of each input."""

import math

import pytest
import torch

from workbench.analyses.gram_spectrum import Options, across
from workbench.analyses.layer import Layer
from workbench.captures import LayerRecord
from workbench.frames.measurement import Measurement

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
