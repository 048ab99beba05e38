"""Patterns of attention: loops and a permuted null as oracle, what a perfect head scores, and what is left out."""

import numpy as np
import pytest
import torch
from PIL import Image

import workbench
from tests.analyses.test_class_attention import images, narrow_vit
from workbench.analyses.attention_patterns import (
    copied_keys,
    induction_keys,
    pattern_scores,
    retrieval_scores,
)
from workbench.analyses.tiles import Maps
from workbench.core.errors import InputError

BATCH, HEADS, TOKENS = 2, 3, 7
PREVIOUS = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril(-1).triu(-1)


def previous_share(attn, visible=None, queries=None):
    places = {"previous": lambda number, rows: PREVIOUS.nonzero(as_tuple=True)}
    return pattern_scores(Maps(attn, visible, queries), places)["previous"]


def attention(seed=0, causal=False):
    scores = torch.randn(BATCH, HEADS, TOKENS, TOKENS, dtype=torch.float64, generator=torch.manual_seed(seed))
    if causal:
        scores = scores.masked_fill(torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1), -torch.inf)
    return (2 * scores).softmax(-1)


def test_a_share_is_what_a_loop_computes_and_its_null_what_permutations_give():
    attn, visible = attention(causal=True), torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
    found = previous_share(attn, visible)
    source = torch.manual_seed(1)
    for b in range(BATCH):
        for h in range(HEADS):
            rows = [attn[b, h, i, : i + 1] for i in range(1, TOKENS)]
            assert found.value[b, h].item() == pytest.approx(sum(row[-2].item() for row in rows) / len(rows))
            drawn = torch.stack(
                [
                    torch.stack([row[torch.randperm(len(row), generator=source)][-2] for row in rows]).mean()
                    for _ in range(1500)
                ]
            )
            assert found.null.mean[b, h].item() == pytest.approx(drawn.mean().item(), abs=0.02)
            deviation = (found.null.high[b, h] - found.null.mean[b, h]).item() / 1.96
            assert deviation == pytest.approx(drawn.std().item(), rel=0.15)


def test_even_attention_overlaps_wholly_and_the_null_is_that_of_random_weights():
    even = torch.full((1, 1, TOKENS, TOKENS), 1 / TOKENS, dtype=torch.float64)
    found = pattern_scores(Maps(even), {})["pattern_uniform"]
    assert found.value.item() == pytest.approx(1)
    weights = torch.distributions.Dirichlet(torch.ones(TOKENS, dtype=torch.float64))
    torch.manual_seed(2)
    drawn = weights.sample((4000, TOKENS)).clamp_max(1 / TOKENS).sum(-1).mean(-1)
    assert found.null.mean.item() == pytest.approx(drawn.mean().item(), abs=5e-3)
    deviation = (found.null.mean - found.null.low).item() / 1.96
    assert deviation == pytest.approx(drawn.std().item(), rel=0.1)


def test_a_head_that_follows_a_pattern_scores_one_and_padding_does_not_count():
    attn = torch.zeros(1, 1, TOKENS, TOKENS, dtype=torch.float64)
    attn[..., range(1, TOKENS), range(TOKENS - 1)] = 1
    attn[..., 0, 0] = 1
    real = torch.arange(TOKENS)[None] < TOKENS - 2
    attn[..., TOKENS - 2 :, :] = torch.nan
    attn[..., TOKENS - 2 :] = 0
    found = previous_share(attn, queries=real)
    assert found.value.item() == 1
    assert found.null.mean.item() == pytest.approx(1 / (TOKENS - 2))


def test_what_is_no_attention_has_no_score():
    attn = attention()
    attn[0, 1, 2, 3] = torch.nan
    found = previous_share(attn)
    assert found.value.isnan().nonzero().tolist() == [[0, 1]]
    assert found.null.z.isnan().nonzero().tolist() == [[0, 1]]


def test_induction_looks_at_what_followed_the_same_word():
    found = induction_keys([None, "a", "b", "a", "c", "a", "a"])
    assert found.nonzero().tolist() == [[3, 2], [5, 2], [5, 4], [6, 2], [6, 4]]


def test_the_analysis_measures_what_an_image_has():
    frame = workbench.analyze("attention-patterns", model=narrow_vit(), inputs=images(BATCH))
    assert set(frame["metric"]) == {"pattern_local", "pattern_class", "pattern_uniform", "pattern_diagonal"}
    assert frame["null_mean"].between(0, 1).all()
    sentences = workbench.findings(frame)
    assert any("attention on the class token: most in layer" in sentence for sentence in sentences)


def test_attention_on_the_own_segment_is_what_a_loop_over_patches_computes(tmp_path):
    """Masks of one pixel per patch: 4 × 2 of them, behind a class token and two registers."""
    model, given = narrow_vit(), images(BATCH)
    segments = [[0, 0, 1, 0, 2, 1, 0, 2], [0, 0, 0, 1, 1, 1, 1, 3]]
    ids = [*workbench.analyze("attention-patterns", model=model, inputs=given, layers=[0])["input"].unique()]
    for name, own in zip(ids, segments, strict=True):
        levels = np.array(own, dtype=np.uint8).reshape(4, 2)
        Image.fromarray(np.repeat(levels[..., None], 3, axis=-1)).save(tmp_path / f"{name}.png")
    options = {"model": model, "inputs": given, "layers": [0], "masks": str(tmp_path)}
    frame = workbench.analyze("attention-patterns", **options)
    rows = frame[frame["metric"] == "pattern_segment"].set_index(["input", "head"])
    attn = workbench.capture(model, given, layers=[0], sites=["attn"])[0].attn
    for number, (name, own) in enumerate(zip(ids, segments, strict=True)):
        for head in range(attn.shape[1]):
            shares = []
            for i in range(8):
                others = [3 + j for j in range(8) if j != i and own[j] == own[i]]
                if others:
                    shares.append(sum(attn[number, head, 3 + i, j].item() for j in others))
            assert rows.loc[(name, head), "value"] == pytest.approx(sum(shares) / len(shares), rel=1e-5)
    # of the first input four patches have 3 others of their segment, two 1 and two 1, among 11 tokens
    assert rows.loc[(ids[0], 0), "null_mean"] == pytest.approx((4 * 3 + 2 + 2) / 8 / 11)
    tiled = workbench.analyze("attention-patterns", method="tiled", **options)
    again = tiled[tiled["metric"] == "pattern_segment"]
    assert again["value"].tolist() == pytest.approx(rows["value"].tolist(), rel=1e-4)


def test_segments_need_a_mask_for_every_input(tmp_path):
    with pytest.raises(InputError, match="no mask for input"):
        workbench.analyze("attention-patterns", model=narrow_vit(), inputs=images(1), masks=str(tmp_path))


def test_the_copy_is_the_longest_end_that_stands_earlier():
    words = ["a", "b", "c", "x", "b", "c", "y", "b", "c", None]
    assert copied_keys(words, 2).tolist() == [-1, -1, -1, -1, -1, -1, 4, 5, -1, -1]
    assert copied_keys(words, 3).tolist() == [-1] * 10
    assert copied_keys(["a", "a", "a", "a"], 2).tolist() == [-1, 0, 1, -1]
    assert copied_keys(["a", None, "a", None], 2).tolist() == [-1] * 4
    assert copied_keys([None, None], 2).tolist() == [-1, -1]


def test_retrieval_is_what_a_loop_computes_and_its_null_what_permutations_give():
    generator = torch.Generator().manual_seed(0)
    seen = torch.ones(9, 9).tril().bool()
    attn = torch.randn(2, 3, 9, 9, generator=generator).masked_fill(~seen, -torch.inf).softmax(-1)
    needle = torch.full((2, 9), -1)
    needle[0, 5:8], needle[1, 7] = torch.tensor([0, 2, 3]), 4
    attn[0, 0, 5:8] = torch.eye(9)[[0, 2, 3]]
    score, rng = retrieval_scores(Maps(attn, seen), needle), np.random.default_rng(0)
    for input, head in np.ndindex(2, 3):
        queries = [query for query in range(9) if needle[input, query] >= 0]
        hits = [int(attn[input, head, query].argmax()) == int(needle[input, query]) for query in queries]
        assert score.value[input, head].item() == pytest.approx(np.mean(hits))
        # the largest of permuted weights is at each visible key with the same probability
        drawn = [rng.integers(0, query + 1, 20_000) == needle[input, query].item() for query in queries]
        chance = np.mean(drawn, 0)
        assert score.null.mean[input, head].item() == pytest.approx(np.mean(chance), abs=0.02)
        spread = ((score.value - score.null.mean) / score.null.z)[input, head].item()
        assert spread == pytest.approx(np.std(chance), abs=0.02)
    assert score.value[0, 0] == 1
    assert retrieval_scores(Maps(attn, seen), torch.full((2, 9), -1)).value.isnan().all()


def test_texts_with_a_planted_needle_have_a_retrieval_score():
    model = workbench.load("bundled:prose-softmax")
    texts = ["The code is 4711. We went home. The code is 4711.", "No word is here twice."]
    frame = workbench.analyze("attention-patterns", model, texts, needle=10)
    scores = frame[frame["metric"] == "retrieval_score"]
    assert scores[scores["input"] == scores["input"].iloc[0]]["value"].between(0, 1).all()
    assert scores["value"].isna().mean() == 0.5
    assert frame.attrs["notes"] == [
        "4 of 8 inputs and layers end with no copy of 10 or more tokens: no retrieval score"
    ]
    assert "retrieval_score" not in set(workbench.analyze("attention-patterns", model, texts)["metric"])
