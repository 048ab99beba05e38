"""Memberships: loops as oracles, planted subspaces found again, null distributions where there is none."""

import itertools
import math

import pytest
import torch
from sklearn.metrics import adjusted_rand_score

from workbench.analyses.layer import patch_places
from workbench.analyses.linalg import head_bases
from workbench.analyses.membership import agreement, evenness, membership_map, subspace_membership
from workbench.core.errors import InputError

BATCH, HEADS, TOKENS, WIDTH, DIM = 2, 3, 7, 11, 4
ROWS, COLUMNS = 4, 6


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.manual_seed(seed))


@pytest.fixture
def bases():
    return head_bases(randn(HEADS, WIDTH, DIM))


def planted(noise=0.0, seed=1):
    """Tokens (1, row · column, width) on two random subspaces, by a mask that is no rectangle; the bases; the mask."""
    mask = torch.zeros(ROWS, COLUMNS, dtype=torch.long)
    mask[1:3, 2:5] = 1
    mask[3, 4] = 1
    bases = head_bases(randn(2, WIDTH, DIM, seed=seed))
    inside = torch.einsum("nwd,nd->nw", bases[mask.flatten()], randn(ROWS * COLUMNS, DIM, seed=seed + 1))
    return (inside + noise * randn(ROWS * COLUMNS, WIDTH, seed=seed + 2))[None], bases, mask


def test_membership_equals_the_formula_one_number_at_a_time(bases):
    z = randn(BATCH, TOKENS, WIDTH, seed=3)
    found = subspace_membership(z, bases)
    for b in range(BATCH):
        inside = [
            [sum(float(z[b, j] @ bases[k, :, i]) ** 2 for i in range(DIM)) for k in range(HEADS)]
            for j in range(TOKENS)
        ]
        away = [float(z[b, j] @ z[b, j]) - max(inside[j]) for j in range(TOKENS)]
        eta = sum(away) / TOKENS / (WIDTH - DIM)
        for j in range(TOKENS):
            weights = [math.exp(energy / (2 * eta)) for energy in inside[j]]
            expected = [weight / sum(weights) for weight in weights]
            assert found[b, :, j].tolist() == pytest.approx(expected, rel=1e-12)


def test_membership_sums_to_one_and_does_not_see_the_size_of_the_tokens(bases):
    z = randn(BATCH, TOKENS, WIDTH, seed=3)
    for size in (1e-150, 1.0, 1e150):
        found = subspace_membership(size * z, bases)
        torch.testing.assert_close(found.sum(1), torch.ones(BATCH, TOKENS, dtype=torch.float64))
        torch.testing.assert_close(found, subspace_membership(z, bases))
    nothing = subspace_membership(0 * z, bases)
    torch.testing.assert_close(nothing, torch.full_like(nothing, 1 / HEADS))


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_a_planted_mask_is_found_again(noise):
    z, bases, mask = planted(noise)
    kinds = ["class", "register", *["patch"] * (ROWS * COLUMNS)]
    membership = subspace_membership(torch.cat([randn(1, 2, WIDTH, seed=9), z], 1), bases)
    found = membership_map(membership, kinds, (ROWS, COLUMNS))[0].argmax(0)
    assert torch.equal(found, mask)
    fit = agreement(found.flatten(), mask.flatten(), 2)
    assert (fit.ari.item(), fit.iou.item()) == (1, 1)


def test_tokens_inside_a_subspace_belong_to_it_alone():
    z, bases, mask = planted()
    membership = subspace_membership(z, bases)[0]
    assert torch.equal(membership[1], mask.flatten().double())
    twice = subspace_membership(z, torch.cat([bases, bases]))[0]
    torch.testing.assert_close(twice.amax(0), torch.full((ROWS * COLUMNS,), 0.5, dtype=torch.float64))


def test_padding_changes_nothing(bases):
    z = randn(BATCH, TOKENS, WIDTH, seed=3)
    mask = torch.ones(BATCH, TOKENS, dtype=torch.bool)
    mask[1, 4:] = False
    padded = z.clone()
    padded[1, 4:] = math.nan
    found, alone = subspace_membership(padded, bases, mask), subspace_membership(z[1:, :4], bases)
    torch.testing.assert_close(found[1, :, :4], alone[0])
    even, unpadded = evenness(found, mask), evenness(alone)
    torch.testing.assert_close(even.entropy_share[1], unpadded.entropy_share[0])
    torch.testing.assert_close(even.share[1], unpadded.share[0])


def test_evenness_by_hand():
    alike = torch.full((HEADS, TOKENS), 1 / HEADS, dtype=torch.float64)
    assert evenness(alike).entropy_share.item() == pytest.approx(1)
    torch.testing.assert_close(evenness(alike).share, torch.full((HEADS,), 1 / 3, dtype=torch.float64))
    alone = torch.eye(HEADS, dtype=torch.float64)[:, [0, 2, 2, 0, 2]]
    assert evenness(alone).entropy_share.item() == 0
    assert evenness(alone).share.tolist() == pytest.approx([0.4, 0, 0.6])
    membership = randn(BATCH, HEADS, TOKENS).softmax(1)
    found = evenness(membership)
    for b in range(BATCH):
        entropies = [-sum(p * math.log(p) for p in membership[b, :, j].tolist()) for j in range(TOKENS)]
        assert found.entropy_share[b].item() == pytest.approx(sum(entropies) / TOKENS / math.log(HEADS))
    assert evenness(torch.ones(1, TOKENS)).entropy_share.isnan()


def test_a_map_holds_the_patches_row_by_row_and_nothing_else():
    membership = randn(BATCH, HEADS, 3 + 2 * 5)
    kinds = ["class", "distillation", *["patch"] * 10, "register"]
    found = membership_map(membership, kinds, (2, 5))
    assert found.shape == (BATCH, HEADS, 2, 5)
    for row, column in itertools.product(range(2), range(5)):
        assert torch.equal(found[:, :, row, column], membership[:, :, 2 + 5 * row + column])


def test_there_is_no_map_of_a_text_or_of_another_grid():
    membership = randn(BATCH, HEADS, TOKENS)
    with pytest.raises(InputError, match=r"no patch grid: the tokens are word.* need an image model"):
        membership_map(membership, ["word"] * TOKENS, None)
    with pytest.raises(InputError, match="6 patches do not fill a grid of 2 × 4"):
        patch_places(["class", *["patch"] * 6], (2, 4))
    with pytest.raises(InputError, match="7 tokens does not fit 9 kinds"):
        membership_map(membership, ["class", *["patch"] * 8], (2, 4))


def test_agreement_equals_sklearn_and_a_loop():
    generator = torch.manual_seed(4)
    clusters = torch.randint(HEADS, (BATCH, 20), generator=generator)
    segments = torch.randint(4, (BATCH, 20), generator=generator)
    segments[1, segments[1] == 2] = 0  # a number that no token has
    found = agreement(clusters, segments, HEADS)
    for b in range(BATCH):
        assert found.ari[b].item() == pytest.approx(adjusted_rand_score(segments[b], clusters[b]))
        best = []
        for segment in segments[b].unique():
            wanted = set((segments[b] == segment).nonzero().flatten().tolist())
            heads = [set((clusters[b] == head).nonzero().flatten().tolist()) for head in range(HEADS)]
            best.append(max(len(wanted & head) / len(wanted | head) for head in heads))
        assert found.iou[b].item() == pytest.approx(sum(best) / len(best))


def test_agreement_does_not_depend_on_numbers_and_is_undefined_without_segments():
    clusters, segments = torch.tensor([0, 0, 1, 1, 2]), torch.tensor([1, 1, 0, 0, 0])
    plain = agreement(clusters, segments, 3)
    other = agreement(2 - clusters, 5 * (1 - segments), 3)
    torch.testing.assert_close(plain, other)
    assert torch.stack(agreement(clusters, torch.zeros(5, dtype=torch.long), 3)).isnan().all()
    one_head = agreement(torch.zeros(5, dtype=torch.long), segments, 3)
    assert one_head.ari.item() == 0
    with pytest.raises(InputError, match="clusters of 5 tokens do not fit segments of 4"):
        agreement(clusters, segments[:4], 3)


def test_permuted_masks_are_at_chance():
    clusters, mask = torch.tensor([0, 0, 1, 1, 1, 2]), torch.tensor([0, 0, 0, 1, 1, 1])
    orders = torch.tensor(list(itertools.permutations(range(6))))
    every = agreement(clusters, mask[orders], 3)
    assert every.ari.mean().item() == pytest.approx(0, abs=1e-15)  # what "adjusted" means
    assert 0.4 < every.iou.mean().item() < 0.6  # while the best of three heads fits something
    z, bases, planted_mask = planted(0.1)
    found = subspace_membership(z, bases)[0].argmax(0)
    null_samples = torch.rand(200, ROWS * COLUMNS, generator=torch.manual_seed(5)).argsort(-1)
    drawn = agreement(found, planted_mask.flatten()[null_samples], 2)
    assert drawn.ari.mean().item() == pytest.approx(0, abs=4 * drawn.ari.std().item() / math.sqrt(200))
    assert drawn.ari.max() < 1
    assert drawn.iou.max() < 1
