"""The class token's row, its rollout, and measures of where it lies, beside loops over single numbers."""

import math

import pytest
import torch
from scipy.spatial.distance import jensenshannon

from workbench.analyses.attention_map import map_diversity, permuted_heads
from workbench.analyses.class_attention import (
    attention_rollout,
    concentration,
    head_diversity,
    is_causal,
    mask_share,
    query_attention,
)
from workbench.analyses.layer import grid_positions
from workbench.core.errors import InputError

BATCH, HEADS, TOKENS, LAYERS = 2, 3, 7, 4
ROWS, COLUMNS = 2, 5


def maps(*shape, seed=0):
    scores = 2 * torch.randn(*shape, dtype=torch.float64, generator=torch.manual_seed(seed))
    return scores.softmax(-1)


def one_hot(*places, tokens=TOKENS):
    return torch.nn.functional.one_hot(torch.tensor(places), tokens).double()


def test_the_row_is_that_of_the_query_in_every_bit_and_several_are_averaged():
    attn = maps(BATCH, HEADS, TOKENS, TOKENS).float()
    row = query_attention(attn, one_hot(0, 4))
    assert row.dtype == torch.float64
    assert torch.equal(row, torch.stack([attn[0, :, 0], attn[1, :, 4]]).double())
    weights = torch.zeros(BATCH, TOKENS)
    weights[:, 2:5] = 1 / 3
    torch.testing.assert_close(query_attention(attn, weights), attn[:, :, 2:5].double().mean(-2))


def test_rows_that_are_not_read_may_hold_anything():
    attn = maps(BATCH, HEADS, TOKENS, TOKENS)
    broken = attn.clone()
    broken[0, :, 1:] = math.nan
    broken[1, :, 0] = math.nan
    row = query_attention(broken, one_hot(0, 3))
    assert torch.equal(row, torch.stack([attn[0, :, 0], attn[1, :, 3]]))


def test_a_query_that_does_not_fit_is_refused():
    with pytest.raises(
        InputError, match=r"query of shape \(2, 5\) does not fit attention of shape \(2, 3, 7, 7\)"
    ):
        query_attention(maps(BATCH, HEADS, TOKENS, TOKENS), torch.ones(BATCH, 5))


def test_causal_is_what_sees_no_later_key():
    attn, real = maps(BATCH, HEADS, TOKENS, TOKENS), torch.ones(BATCH, TOKENS, dtype=torch.bool)
    assert not is_causal(attn, real)
    assert is_causal(attn.tril(), real)
    late = attn.tril()
    late[1, 2, 0, 6] = 1e-30
    assert not is_causal(late, real)
    real[1, :2] = False  # padding in front attends to whatever the kernel gives it
    assert is_causal(late, real)
    assert not is_causal(maps(BATCH, HEADS, 1, 1), real[:, :1])


def test_rollout_equals_a_loop_over_paths_of_one_token_at_a_time():
    layers = [maps(BATCH, HEADS, TOKENS, TOKENS, seed=seed) for seed in range(LAYERS)]
    for batch in range(BATCH):
        rolled = [[float(i == j) for j in range(TOKENS)] for i in range(TOKENS)]
        for attn in layers:
            stepped = [[0.0] * TOKENS for _ in range(TOKENS)]
            for i in range(TOKENS):
                for j in range(TOKENS):
                    for k in range(TOKENS):
                        mean = sum(float(attn[batch, head, i, k]) for head in range(HEADS)) / HEADS
                        stepped[i][j] += (mean + (i == k)) / 2 * rolled[k][j]
            rolled = stepped
        for place in range(TOKENS):
            found = attention_rollout(layers, one_hot(*[place] * BATCH))
            torch.testing.assert_close(found[batch], torch.tensor(rolled[place], dtype=torch.float64))


def test_rollout_of_one_layer_is_half_itself_and_of_many_still_sums_to_one():
    layers = [maps(BATCH, HEADS, TOKENS, TOKENS, seed=seed) for seed in range(LAYERS)]
    cls = one_hot(0, 0)
    torch.testing.assert_close(attention_rollout(layers[:1], cls), (layers[0].mean(1)[:, 0] + cls) / 2)
    torch.testing.assert_close(attention_rollout(layers, cls).sum(-1), torch.ones(BATCH, dtype=torch.float64))
    torch.testing.assert_close(attention_rollout(torch.stack([*layers]), cls), attention_rollout(layers, cls))
    order = attention_rollout(layers[::-1], cls)
    assert not torch.allclose(order, attention_rollout(layers, cls))


def test_a_token_that_attends_to_nothing_stays_where_it_is():
    attn = maps(1, HEADS, TOKENS, TOKENS)
    attn[:, :, 5] = 0  # padding
    torch.testing.assert_close(attention_rollout([attn, attn], one_hot(5)), one_hot(5))


def test_rollout_through_other_tokens_is_refused():
    with pytest.raises(InputError, match=r"number 0 of shape \(2, 3, 5, 5\) does not fit 7 tokens"):
        attention_rollout([maps(2, 3, 5, 5), maps(2, 3, 7, 7)], one_hot(0, 0))
    with pytest.raises(InputError, match="at least one layer"):
        attention_rollout([], one_hot(0))


def test_concentration_equals_its_formulas_one_token_at_a_time():
    row = maps(BATCH, 2 + ROWS * COLUMNS)
    content = torch.ones(2 + ROWS * COLUMNS, dtype=torch.bool)
    content[:2] = False
    positions = torch.cat([torch.full((2, 2), math.nan), grid_positions((ROWS, COLUMNS))])
    found = concentration(row, content, positions)
    places = [(i // COLUMNS, i % COLUMNS) for i in range(ROWS * COLUMNS)]

    def spread(weights):
        centre = [sum(w * p[axis] for w, p in zip(weights, places, strict=True)) for axis in (0, 1)]
        return sum(
            w * ((p[0] - centre[0]) ** 2 + (p[1] - centre[1]) ** 2)
            for w, p in zip(weights, places, strict=True)
        )

    for batch in range(BATCH):
        kept = [float(value) for value in row[batch, 2:]]
        weights = [value / sum(kept) for value in kept]
        entropy = -sum(w * math.log(w) for w in weights) / math.log(len(weights))
        assert found.entropy_share[batch] == pytest.approx(entropy)
        even = [1 / len(weights)] * len(weights)
        assert found.spread[batch] == pytest.approx(math.sqrt(spread(weights) / spread(even)))


def test_even_attention_is_one_and_a_single_place_zero():
    count = ROWS * COLUMNS
    rows = torch.stack([torch.full((count,), 0.04), one_hot(3, tokens=count)[0]])
    found = concentration(rows, torch.ones(count, dtype=torch.bool), grid_positions((ROWS, COLUMNS)))
    torch.testing.assert_close(found.entropy_share, torch.tensor([1.0, 0.0], dtype=torch.float64))
    torch.testing.assert_close(found.spread, torch.tensor([1.0, 0.0], dtype=torch.float64))


def test_a_single_token_and_no_attention_have_no_concentration():
    row = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])
    content = torch.tensor([[False, True, False], [False, True, True]])
    found = concentration(row, content, torch.arange(3.0)[:, None])
    assert found.entropy_share.isnan().all()
    assert found.spread.isnan().all()
    assert concentration(row, torch.ones(3, dtype=torch.bool)).spread.isnan().all()
    with pytest.raises(InputError, match="content must be boolean over 3 keys"):
        concentration(row, torch.ones(4, dtype=torch.bool))


def test_diversity_is_the_divergence_of_two_heads_and_runs_from_alike_to_apart():
    rows = maps(BATCH, 2, TOKENS)
    content = torch.ones(BATCH, TOKENS, dtype=torch.bool)
    content[:, 0] = False
    for batch, found in enumerate(head_diversity(rows, content)):
        kept = rows[batch, :, 1:] / rows[batch, :, 1:].sum(-1, keepdim=True)
        assert found == pytest.approx(jensenshannon(*kept.numpy(), base=2) ** 2)
    alike = rows[:, :1].expand(-1, HEADS, -1)
    torch.testing.assert_close(head_diversity(alike, content), torch.zeros(BATCH, dtype=torch.float64))
    apart = one_hot(1, 4, 6)[None]
    torch.testing.assert_close(head_diversity(apart, content[:1]), torch.ones(1, dtype=torch.float64))
    assert head_diversity(rows[:, :1], content).isnan().all()


def test_the_share_on_a_mask_is_its_part_of_the_attention_on_patches():
    rows = torch.tensor([[0.1, 0.2, 0.1, 0.0], [0.2, 0.2, 0.2, 0.2]])
    masks = torch.tensor([[False, True, True, False], [True, True, False, True]])
    torch.testing.assert_close(mask_share(rows, masks), torch.tensor([0.75, 0.75], dtype=torch.float64))
    whole = torch.tensor([[True] * 4, [False] * 4])
    assert mask_share(rows, whole).isnan().all()


def test_diversity_of_maps_is_the_mean_over_queries():
    attn = maps(BATCH, HEADS, TOKENS, TOKENS)
    real = torch.tensor([[True] * TOKENS, [True] * 4 + [False] * 3])
    found = map_diversity(attn, real, real)
    for place, count in enumerate((TOKENS, 4)):
        rows = attn[place, :, :count, :count]
        by_query = [
            head_diversity(rows[:, query], torch.ones(count, dtype=torch.bool)) for query in range(count)
        ]
        assert found[place].item() == pytest.approx(torch.stack(by_query).mean().item())
    same_heads = attn[:, :1].expand(-1, HEADS, -1, -1)
    torch.testing.assert_close(map_diversity(same_heads), torch.zeros(BATCH, dtype=torch.float64))
    apart = torch.stack([one_hot(*[head] * TOKENS) for head in range(HEADS)])
    assert map_diversity(apart).item() == pytest.approx(1)


def test_permuted_heads_keep_their_weights_and_what_they_may_not_see():
    causal = torch.ones(HEADS, TOKENS, TOKENS, dtype=torch.bool).tril()
    attn = torch.where(causal, maps(HEADS, TOKENS, TOKENS), 0.0)
    moved = permuted_heads(attn, causal, torch.Generator().manual_seed(1))
    torch.testing.assert_close(moved.sort(-1).values, attn.sort(-1).values)
    assert (moved[~causal] == 0).all()  # the visible keys come first, and of query i there are i + 1
    assert not torch.equal(moved, attn)
    equal = torch.ones(HEADS, TOKENS, TOKENS, dtype=torch.float64) / TOKENS
    assert torch.equal(permuted_heads(equal, causal, torch.Generator().manual_seed(1)), equal)
