"""What a pursuit splits off: loops and scikit-learn as oracles, planted marks found, none found in noise."""

import itertools
import math
from types import SimpleNamespace

import pytest
import torch
from sklearn.metrics import roc_auc_score

from workbench.analyses.robust_components import (
    detection_auc,
    marked_share,
    split_of,
    split_of_layer,
    token_size,
)
from workbench.core.errors import InputError
from workbench.frames.measurement import Counts

BATCH, HEADS, TOKENS, DIM = 2, 3, 7, 5


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.manual_seed(seed))


def parts():
    """Keys, L, and S with zeros of its own in every head."""
    shape = (BATCH, HEADS, TOKENS, DIM)
    keys, low_rank, sparse = (randn(*shape, seed=seed) for seed in range(3))
    return keys, low_rank, sparse * (randn(*shape, seed=3) > 0.5)


def test_a_split_is_measured_as_a_loop_measures_it():
    keys, low_rank, sparse = parts()
    found = split_of(keys, low_rank, sparse)
    for place in itertools.product(range(BATCH), range(HEADS)):
        k, low, s = keys[place], low_rank[place], sparse[place]
        energy = [sum(float(x) ** 2 for x in row) for row in s]
        zeros = sum(float(x) == 0 for row in s for x in row)
        assert found.zeros[place].item() == pytest.approx(zeros / (TOKENS * DIM))
        assert found.share[place].item() == pytest.approx(sum(energy) / k.square().sum().item())
        gap = math.sqrt((k - low - s).square().sum() / k.square().sum())
        assert found.gap[place].item() == pytest.approx(gap)


def test_a_split_that_adds_up_has_no_gap_and_one_without_s_is_all_zeros():
    keys, low_rank, _ = parts()
    assert split_of(keys, low_rank, keys - low_rank).gap.abs().max() < 1e-15
    nothing = split_of(keys, low_rank, torch.zeros_like(keys))
    assert (nothing.zeros == 1).all()
    assert (nothing.share == 0).all()
    expected = (keys - low_rank).norm(dim=(-2, -1)) / keys.norm(dim=(-2, -1))
    torch.testing.assert_close(nothing.gap, expected)


def test_padding_counts_for_nothing():
    keys, low_rank, sparse = parts()
    mask = torch.arange(TOKENS) < 4
    padded = split_of(keys, low_rank, sparse, mask)
    alone = split_of(*(part[..., :4, :] for part in (keys, low_rank, sparse)))
    for ours, theirs in zip(padded, alone, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_parts_that_do_not_belong_together_are_refused():
    keys, low_rank, sparse = parts()
    with pytest.raises(InputError, match="as large as the whole"):
        split_of(keys, low_rank[..., :2], sparse)
    with pytest.raises(InputError, match=r"sparse .* NaN or infinite"):
        split_of(keys, low_rank, sparse.clone().fill_(math.nan))


def test_the_size_of_a_token_is_that_of_its_heads_side_by_side():
    _, _, sparse = parts()
    sizes = token_size(sparse)
    for batch, token in itertools.product(range(BATCH), range(TOKENS)):
        row = torch.cat([sparse[batch, head, token] for head in range(HEADS)])
        assert sizes[batch, token].item() == pytest.approx(row.norm().item())


def test_planted_marks_are_always_classified_correctly_and_turned_round_never():
    marked = torch.tensor([False, True, True, False, False])
    scores = torch.tensor([0.1, 3.0, 2.0, 0.4, 1.9])
    assert detection_auc(scores, marked) == 1
    assert detection_auc(-scores, marked) == 0
    assert marked_share(torch.where(marked, scores, 0.0), marked) == 1


def test_the_auc_is_that_of_scikit_learn():
    scores = randn(BATCH, 11).mul(2).round()  # with ties
    marked = randn(BATCH, 11, seed=1) > 0.3
    for ours, own, marks in zip(detection_auc(scores, marked), scores, marked, strict=True):
        assert ours.item() == pytest.approx(roc_auc_score(marks, own))


def test_equal_scores_tell_nothing():
    marked = torch.tensor([True, False, False, True, False])
    assert detection_auc(torch.zeros(5), marked) == 0.5
    assert marked_share(torch.full((5,), 2.0), marked).item() == pytest.approx(2 / 5)
    assert marked_share(torch.zeros(5), marked).isnan()


def test_over_all_permutations_the_auc_is_one_half_and_the_share_that_of_the_area():
    scores = randn(5).abs()
    marks = torch.tensor(
        [[place in chosen for place in range(5)] for chosen in itertools.combinations(range(5), 2)]
    )
    assert detection_auc(scores, marks).mean().item() == pytest.approx(0.5)
    assert marked_share(scores, marks).mean().item() == pytest.approx(2 / 5)


@pytest.mark.parametrize("marked", [torch.ones(4, dtype=torch.bool), torch.zeros(4, dtype=torch.bool)])
def test_with_nothing_to_tell_apart_there_is_no_auc(marked):
    assert detection_auc(randn(4), marked).isnan()


def test_heads_without_s_are_counted():
    keys, low_rank, sparse = parts()
    sparse[0, 1] = 0
    record = SimpleNamespace(projected_k=keys, low_rank=low_rank, sparse=sparse, extra={"sparse": sparse})
    layer = SimpleNamespace(
        record=record, choose_heads=lambda part: part, head_mask=lambda part: None, counts=Counts()
    )
    list(split_of_layer(layer, {}))
    total = BATCH * HEADS
    assert layer.counts.notes() == [f"1 of {total} heads have S = 0"]
