"""A null distribution from samples: its mean, its ends and the z-score of what was observed."""

import math

import pytest
import torch

from workbench.core.intervals import FEW_NULL_SAMPLES
from workbench.core.null_distributions import null_of_draws


def draws(count):
    return torch.randn(3, 2, count, generator=torch.manual_seed(count), dtype=torch.float64)


def test_mean_ends_and_z_by_hand():
    null = null_of_draws(torch.tensor([5.0]), torch.tensor([[1.0, 2.0, 3.0]]))
    assert [part.item() for part in null] == [2, 1, 3, 3]
    assert null_of_draws(torch.tensor([5.0]), torch.ones(1, 3)).z.isnan().all()


@pytest.mark.parametrize("count", [2, 20, 39])
def test_the_ends_of_few_samples_are_the_least_and_the_largest(count):
    samples = draws(count)
    null = null_of_draws(torch.zeros(3, 2), samples)
    assert torch.equal(null.low, samples.amin(-1))
    assert torch.equal(null.high, samples.amax(-1))


@pytest.mark.parametrize(("count", "outside"), [(40, 1), (100, 3), (400, 10)])
def test_from_forty_on_2_5_percent_of_the_samples_lie_beyond_each_end(count, outside):
    samples = draws(count)
    null = null_of_draws(torch.zeros(3, 2), samples)
    assert ((samples < null.low[..., None]).sum(-1) == outside).all()
    assert ((samples > null.high[..., None]).sum(-1) == outside).all()
    torch.testing.assert_close(null.low, samples.quantile(0.025, -1), rtol=0, atol=0)
    torch.testing.assert_close(null.high, samples.quantile(0.975, -1), rtol=0, atol=0)


def test_forty_is_the_least_number_of_which_2_5_percent_are_a_sample():
    assert 0.025 * FEW_NULL_SAMPLES == 1


@pytest.mark.parametrize("count", [3, 50])
def test_an_undefined_sample_leaves_the_ends_undefined(count):
    samples = draws(count)
    samples[0, 0, 1] = math.nan
    null = null_of_draws(torch.zeros(3, 2), samples)
    for end in (null.low, null.high):
        assert end.isnan().flatten().tolist() == [True] + [False] * 5
