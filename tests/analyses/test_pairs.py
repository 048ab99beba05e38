import itertools
import math
import statistics

import pytest
import torch

from workbench.analyses.pairs import absolute_differences, relative_differences

NUMBERS = {
    "ordinary": [0.3, -1.2, 2.5, 0.7, -0.1, 1.9, -2.4],
    "positive": [0.3, 1.2, 2.5, 0.7, 0.1, 1.9, 2.4],
    "equal pairs": [0.5, 0.5, -0.5, 0.5, 2.0, 2.0, -2.0],
    "nearly alike": [1 + 1e-9 * step for step in (3, 1, 4, 1, 5, 9, 2)],
    "nearly alike and negative": [-1 - 1e-9 * step for step in (3, 1, 4, 1, 5, 9, 2)],
    "tiny": [1e-14, -3e-14, 2e-13, 5e-14, 1e-15, -7e-14, 4e-13],
    "many sizes": [1e-30, -2e-30, 1e-12, 1.5, -1e-12, 4e7, 3e-21],
    "one far away": [1e-12, 1.1e-12, 1.3e-12, 0.9e-12, -1e-12, 1.2e-12, 5.0],
    "huge": [1e200, -3e200, 2e201, 5e180, 1e-200, 4e201, 7e200],
    "with zeros": [0.0, 0.0, 1.0, -2.0, 0.0, 3.0, 0.5],
}


def pair_loop(numbers, difference):
    values = [difference(a, b) for a, b in itertools.combinations(numbers, 2)]
    # square roots by `statistics` are exact also where squares leave float64
    return statistics.fmean(values), statistics.stdev(values)


@pytest.mark.parametrize("numbers", NUMBERS.values(), ids=NUMBERS)
def test_absolute_differences_equal_the_pair_loop(numbers):
    mean, std = absolute_differences(torch.tensor(numbers, dtype=torch.float64))
    expected = pair_loop(numbers, lambda a, b: abs(a - b))
    assert float(mean) == pytest.approx(expected[0], rel=1e-6)
    assert float(std) == pytest.approx(expected[1], rel=1e-6)


@pytest.mark.parametrize("epsilon", [0.0, 1e-10])
@pytest.mark.parametrize("numbers", NUMBERS.values(), ids=NUMBERS)
def test_relative_differences_equal_the_pair_loop(numbers, epsilon):
    def difference(a, b):
        return abs(a - b) / (max(abs(a), abs(b)) + epsilon) if a != b else 0.0

    mean, std = relative_differences(torch.tensor(numbers, dtype=torch.float64), epsilon)
    expected = pair_loop(numbers, difference)
    assert float(mean) == pytest.approx(expected[0], rel=1e-6)
    assert float(std) == pytest.approx(expected[1], rel=1e-6)


@pytest.mark.parametrize("value", [0.0, 1.3, -2.7e-9])
def test_equal_numbers_do_not_differ(value):
    x = torch.full((2, 7), value, dtype=torch.float64)
    for mean, std in (absolute_differences(x), relative_differences(x), relative_differences(x, 1e-10)):
        assert torch.equal(mean, torch.zeros(2, dtype=torch.float64))
        assert torch.equal(std, torch.zeros(2, dtype=torch.float64))


def test_lists_are_independent_and_absent_entries_are_left_out():
    x = torch.randn(2, 3, 7, dtype=torch.float64, generator=torch.manual_seed(0))
    holes = x.clone()
    holes[0, 1, [2, 5]] = math.nan
    epsilon = torch.rand(2, 3, dtype=torch.float64, generator=torch.manual_seed(1))
    for whole, part, alone in (
        (
            absolute_differences(x),
            absolute_differences(holes),
            absolute_differences(x[0, 1, [0, 1, 3, 4, 6]]),
        ),
        (
            relative_differences(x, epsilon),
            relative_differences(holes, epsilon),
            relative_differences(x[0, 1, [0, 1, 3, 4, 6]], epsilon[0, 1]),
        ),
    ):
        for all_of, some, expected in zip(whole, part, alone, strict=True):
            torch.testing.assert_close(some[0, 1], expected, rtol=1e-13, atol=0)
            torch.testing.assert_close(some[1], all_of[1], rtol=0, atol=0)
            assert not torch.allclose(all_of[0, 1], expected, rtol=1e-3)


def test_too_few_pairs_have_no_statistics():
    two = torch.tensor([1.0, 4.0])
    for function, mean in ((absolute_differences, 3.0), (relative_differences, 0.75)):
        assert function(two).mean == mean
        assert function(two).std.isnan()
        assert function(two[:1]).mean.isnan()
        assert function(torch.full((3,), math.nan)).mean.isnan()
