import math

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.metrics import average_precision_score

from workbench.core.errors import InputError
from workbench.studies.evaluation.protocols import mean_corruption_error
from workbench.studies.evaluation.scores import hits, ood_aupr, perplexity


def test_hits_count_the_right_class_among_the_most_likely():
    logits = torch.tensor([[3.0, 2, 1, 0], [0, 1, 2, 3], [1, 1, 1, 1], [0, math.nan, 1, 2]])
    targets = torch.tensor([1, 1, 0, 3])
    assert hits(logits, targets, 1).tolist() == [False] * 4
    assert hits(logits, targets, 2).tolist() == [True, False, False, False]
    assert hits(logits, targets, 3).tolist() == [True, True, False, False]


def test_aupr_is_scikit_learns_on_the_negative_largest_probability():
    generator = torch.Generator().manual_seed(0)
    inside = 3 * torch.randn(13, 4, generator=generator)
    outside = torch.randn(9, 4, generator=generator)
    probabilities = torch.cat([inside, outside]).double().softmax(1).amax(1).numpy()
    expected = average_precision_score(np.repeat([0, 1], [13, 9]), -probabilities)
    assert ood_aupr(inside, outside) == pytest.approx(expected, abs=1e-15)


def test_aupr_is_1_where_every_ood_image_is_less_sure_and_their_share_where_all_are_alike():
    sure, unsure = torch.tensor([[9.0, 0], [0, 8]]), torch.tensor([[0.1, 0], [0, 0.2], [0.3, 0]])
    assert ood_aupr(sure, unsure) == 1
    assert ood_aupr(unsure[:1].expand(4, 2), unsure[:1].expand(12, 2)) == pytest.approx(12 / 16)
    with pytest.raises(InputError, match="finite"):
        ood_aupr(sure * math.inf, unsure)


def test_perplexity_is_of_all_tokens_together():
    value, low, high = perplexity(torch.tensor([2.0, 9.0]), torch.tensor([4, 6]))
    assert value == pytest.approx(math.exp(11 / 10))
    assert low < value < high
    value, low, high = perplexity(torch.tensor([3.0, 6.0, 1.5]), torch.tensor([2, 4, 1]))
    assert low == pytest.approx(value)
    assert high == pytest.approx(math.exp(1.5))
    assert math.isnan(perplexity(torch.tensor([2.0]), torch.tensor([4]))[1])


def test_mean_corruption_error_is_the_mean_of_ratios():
    errors, reference = {"fog": 0.3, "noise": 0.1, "blur": 0.2}, {"fog": 0.2, "noise": 0.2, "blur": 0.0}
    value, left_out = mean_corruption_error(errors, reference)
    assert value == pytest.approx((1.5 + 0.5) / 2)
    assert left_out == ["blur"]
    assert mean_corruption_error(reference, reference)[0] == 1
    assert math.isnan(mean_corruption_error(errors, dict.fromkeys(errors, 0.0))[0])


def test_the_interval_of_a_perplexity_is_student_s_over_texts():
    """Of the ratio of two sums, linearised: deviations of a text's total from its share, n − 1 of them free."""
    totals, counts = torch.tensor([2.0, 9.0, 4.0]), torch.tensor([4, 6, 5])
    mean = 15 / 15
    deviations = [total - mean * count for total, count in zip(totals.tolist(), counts.tolist(), strict=True)]
    error = math.sqrt(sum(part**2 for part in deviations) * 3 / 2) / 15
    half = stats.t.ppf(0.975, 2) * error
    value, low, high = perplexity(totals, counts)
    assert (value, low, high) == pytest.approx((math.e, math.exp(1 - half), math.exp(1 + half)))
