"""Links between two tokens: against a loop over heads and pairs, on maps whose sizes all differ."""

import math

import pytest
import torch

import workbench
from workbench.analyses.links import find_link
from workbench.captures import Capture, LayerRecord, TokenInfo
from workbench.core.errors import InputError

HEADS, TOKENS, WIDTH = 3, 7, 5


def made(planted=True, causal=True):
    """Two layers of random attention; head 1 of layer 4 links token 5 to token 2, if planted."""
    generator = torch.Generator().manual_seed(0)
    mask = torch.ones(TOKENS, TOKENS).tril().bool() if causal else torch.ones(TOKENS, TOKENS).bool()
    layers = []
    for index in (2, 4):
        scores = torch.randn(2, HEADS, TOKENS, TOKENS, generator=generator)
        if planted and index == 4:
            scores[1, 1, 5, 2] = 9
        attn = scores.masked_fill(~mask, -math.inf).softmax(-1)
        v = torch.randn(2, HEADS, TOKENS, WIDTH, generator=generator)
        layers.append(LayerRecord(index, f"layers.{index}", attn=attn, v=v))
    labels = [["a", "b", "animal", "c", "a", "it", "d"]] * 2
    kinds = [["word"] * TOKENS] * 2
    tokens = TokenInfo(labels, kinds, None, torch.ones(2, TOKENS, dtype=torch.bool))
    return Capture(layers, ("attn", "v"), tokens)


@pytest.mark.parametrize("causal", [True, False])
def test_it_is_a_loop_over_the_pairs(causal):
    capture = made(causal=causal)
    frame = find_link(capture, 5, 2, input=1)
    assert len(frame) == 2 * HEADS
    assert frame["attention"].is_monotonic_decreasing
    for row in frame.to_dict("records"):
        attn, v = (
            capture[row["layer"]].attn[1, row["head"]].double(),
            capture[row["layer"]].v[1, row["head"]].double(),
        )
        others = [
            (q, k, attn[q, k].item(), attn[q, k].item() * (q + 1 if causal else TOKENS))
            for q in range(TOKENS)
            for k in range(TOKENS)
            if (q, k) != (5, 2) and (k <= q or not causal)
        ]
        weight = attn[5, 2].item()
        ratio = weight * (6 if causal else 7)
        assert row["attention"] == pytest.approx(weight)
        assert row["ratio"] == pytest.approx(ratio)
        assert row["null_mean"] == pytest.approx(sum(r for *_, r in others) / len(others))
        assert row["p"] == pytest.approx((1 + sum(r >= ratio for *_, r in others)) / (1 + len(others)))
        alike = [w for q, k, w, _ in others if k - q == -3]
        assert row["same_distance"] == pytest.approx(sum(alike) / len(alike))
        assert row["null_low"] <= row["null_mean"] <= row["null_high"]
        parts = [attn[5, k].item() * v[k].norm().item() for k in range(TOKENS)]
        assert row["written"] == pytest.approx(parts[2] / sum(parts))


def test_a_planted_link_is_found_by_its_words_and_nothing_is_found_without():
    frame = find_link(made(), "it", "animal", input=1)
    assert frame.loc[0, ["layer", "head"]].tolist() == [4, 1]
    assert frame.loc[0, "ratio"] > frame.loc[0, "null_high"]
    assert frame.loc[0, "p"] == pytest.approx(1 / 28)
    without = find_link(made(planted=False), "it", "animal", input=1)
    assert without["p"].min() > 1 / 28


def test_a_previous_token_head_is_no_link_between_words():
    attn = (
        torch.eye(TOKENS).roll(-1, -1).tril()
    )  # each token attends to the one before it, the first to itself
    attn[0, 0] = 1
    capture = made()
    capture.layers[0].attn = (0.9 * attn + 0.1 * capture[2].attn[0, 0]).expand(2, HEADS, -1, -1)
    row = find_link(capture, 5, 4).query("layer == 2").iloc[0]
    assert row["attention"] == pytest.approx(row["same_distance"], abs=0.1)
    assert row["p"] > 1 / 28


def test_tokens_that_are_not_one_are_refused():
    capture = made()
    with pytest.raises(InputError, match="'a' stands at 0, 4; give its number"):
        find_link(capture, "it", "a")
    with pytest.raises(
        InputError,
        match=r"'cat' is no token of the input; give a label or number \(of a word of several tokens its last "
        r"one's\); the tokens are a b animal",
    ):
        find_link(capture, "cat", "it")
    with pytest.raises(InputError, match="token 7 is not there; tokens are 0 to 6"):
        find_link(capture, 7, 0)
    with pytest.raises(InputError, match="inputs 0 to 1"):
        find_link(capture, 5, 2, input=2)
    for layer in capture:
        layer.attn = None
    with pytest.raises(InputError, match="no attention between tokens"):
        find_link(capture, 5, 2)


def test_a_key_that_the_mask_hides_from_every_head_is_refused():
    with pytest.raises(InputError, match=r"no head can attend from 2 to 5: .* exchange query and key"):
        find_link(made(causal=True), 2, 5, input=1)
    assert len(find_link(made(causal=False), 2, 5, input=1)) == 2 * HEADS


def test_on_a_bundled_model_its_previous_token_head_comes_first():
    model = workbench.load("bundled:prose-softmax")
    capture = workbench.capture(model, workbench.inputs("bundled:prose", model, n=1))
    frame = workbench.find_link(capture, 40, 39)
    first = frame.iloc[0]
    diagonal = capture[int(first["layer"])].attn[0, int(first["head"])].diagonal(-1).mean().item()
    assert diagonal > 0.25  # uniform attention would have 0.03
    assert first["same_distance"] == pytest.approx(diagonal, abs=0.02)
