import math

import pandas as pd
import pytest
import torch

import workbench
from tests.analyses.test_patching import IMAGES, classifier
from workbench.analyses.attention_map import (
    attention_entropy,
    attention_report,
    head_maps,
    head_output_norm,
)
from workbench.analyses.layer import grid_positions, positions_of, visible_keys
from workbench.core.errors import InputError
from workbench.frames.results import join_frames, make_frame

BATCH, HEADS, TOKENS, DIM = 2, 3, 7, 5


def random(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.manual_seed(seed))


def random_attention(*shape, seed=0):
    return random(*shape, seed=seed).mul(2).softmax(-1)


def uniform(*shape):
    return torch.full(shape, 1 / shape[-1], dtype=torch.float64)


def test_entropy_of_uniform_attention_is_log_n_and_of_a_single_key_zero():
    flat = head_maps(uniform(BATCH, HEADS, 4, TOKENS))
    torch.testing.assert_close(
        flat.entropy, torch.full((BATCH, HEADS), math.log(TOKENS), dtype=torch.float64)
    )
    torch.testing.assert_close(flat.entropy_share, torch.ones(BATCH, HEADS, dtype=torch.float64))
    torch.testing.assert_close(flat.sink, flat.sink_uniform)
    onto_itself = head_maps(torch.eye(TOKENS).expand(HEADS, TOKENS, TOKENS))
    assert torch.equal(onto_itself.entropy, torch.zeros(HEADS, dtype=torch.float64))  # 0·log 0 = 0


def test_measures_equal_loops_over_queries_and_keys():
    attn = random_attention(BATCH, HEADS, TOKENS, TOKENS)
    positions = random(TOKENS, 2, seed=4)
    maps = head_maps(attn, query_positions=positions, key_positions=positions)
    for b in range(BATCH):
        for h in range(HEADS):
            a = attn[b, h].tolist()
            each = range(TOKENS)
            entropy = sum(-p * math.log(p) for row in a for p in row) / TOKENS
            distance = (
                sum(a[i][j] * math.dist(positions[i], positions[j]) for i in each for j in each) / TOKENS
            )
            received = [sum(a[i][j] for i in each) / TOKENS for j in each]
            assert maps.entropy[b, h].item() == pytest.approx(entropy, rel=1e-12)
            assert maps.entropy_share[b, h].item() == pytest.approx(entropy / math.log(TOKENS), rel=1e-12)
            assert maps.distance[b, h].item() == pytest.approx(distance, rel=1e-12)
            assert maps.sink[b, h].item() == pytest.approx(max(received), rel=1e-12)
            assert maps.sink_key[b, h] == received.index(max(received))


def test_padding_does_not_change_any_measure():
    attn = random_attention(BATCH, HEADS, TOKENS, TOKENS)
    padded = torch.full((BATCH, HEADS, TOKENS + 4, TOKENS + 4), math.nan, dtype=torch.float64)
    padded[..., :TOKENS, :TOKENS] = attn
    real = (torch.arange(TOKENS + 4) < TOKENS).expand(BATCH, -1)
    line = torch.arange(TOKENS + 4.0)[:, None]
    alone = head_maps(attn, query_positions=line[:TOKENS], key_positions=line[:TOKENS])
    masked = head_maps(padded, queries=real, keys=real, query_positions=line, key_positions=line)
    for name, value in alone._asdict().items():
        torch.testing.assert_close(getattr(masked, name), value, rtol=1e-12, atol=0, msg=name)


def test_causal_attention_is_judged_by_the_keys_a_query_may_see():
    causal = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
    even = causal / causal.sum(-1, keepdim=True)
    maps = head_maps(even.double().expand(1, TOKENS, TOKENS), visible=causal)
    assert maps.entropy_share.item() == pytest.approx(1.0)
    assert maps.entropy.item() == pytest.approx(sum(math.log(i) for i in range(1, TOKENS + 1)) / TOKENS)
    # the first key is seen by all: its uniform share is the mean of 1, 1/2, 1/3, …
    harmonic = sum(1 / i for i in range(1, TOKENS + 1)) / TOKENS
    assert maps.sink_uniform.item() == pytest.approx(harmonic)
    assert maps.sink_key.item() == 0


def test_class_attention_with_one_query_has_measures_but_no_distance():
    attn = random_attention(BATCH, HEADS, 1, TOKENS)
    maps = head_maps(attn)
    torch.testing.assert_close(maps.entropy, attention_entropy(attn))
    torch.testing.assert_close(maps.sink, attn.amax((-1, -2)))
    assert maps.distance.isnan().all()


def test_distance_on_a_grid_leaves_prefix_tokens_out():
    kinds = ["class", "register", *["patch"] * 6]
    positions = positions_of(kinds, (2, 3))
    assert positions[:2].isnan().all()
    assert positions[2:].tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
    assert torch.equal(positions[2:], grid_positions((2, 3)))
    attn = torch.zeros(1, 8, 8)
    attn[0, :, 7] = 0.5  # the last patch, at (1, 2)
    attn[0, :, 0] = 0.5  # the class token, which is nowhere
    distances = [math.dist((1, 2), place) for place in positions[2:].tolist()]
    maps = head_maps(attn, query_positions=positions, key_positions=positions)
    assert maps.distance.item() == pytest.approx(sum(distances) / 6)


def test_positions_of_text_and_of_patches_without_a_grid():
    assert positions_of(["class", "word", "padding"], None).flatten().tolist() == [0, 1, 2]
    assert positions_of(["class", "patch", "patch"], None) is None
    assert positions_of(["class", "patch", "patch"], (2, 2)) is None


def test_a_broken_head_is_counted_and_leaves_the_others_alone():
    attn = random_attention(1, HEADS, TOKENS, TOKENS)
    expected = head_maps(attn)
    attn[0, 1, 3, 4] = math.nan
    attn[0, 1, 5] = math.inf
    maps = head_maps(attn)
    assert maps.nonfinite.tolist() == [[0, 1 + TOKENS, 0]]
    assert maps.entropy[0, 1].isnan()
    assert maps.sink_key[0, 1] == -1
    assert torch.equal(maps.entropy[0, [0, 2]], expected.entropy[0, [0, 2]])


@pytest.mark.parametrize("change", [lambda a: 2 * a, lambda a: a - 0.5])
def test_rows_that_are_no_distribution_have_no_entropy(change):
    maps = head_maps(change(random_attention(1, HEADS, TOKENS, TOKENS)))
    for name in ("entropy", "entropy_share", "sink", "sink_uniform"):
        assert getattr(maps, name).isnan().all()


def test_visible_keys_of_boolean_and_additive_masks():
    like = torch.zeros(BATCH, HEADS, 2, 3)
    assert visible_keys(None, like).all()
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        never = torch.finfo(dtype).min
        additive = torch.tensor([[0.0, never, -3.0], [-math.inf, 2.0, -100.0]], dtype=dtype)
        assert visible_keys(additive, like)[1, 2].tolist() == [[True, False, True], [False, True, True]]
        assert visible_keys(additive, like, hidden_at=-50)[0, 0].tolist() == [
            [True, False, True],
            [False, True, False],
        ]
    with pytest.raises(InputError, match=r"mask of shape \(5, 3\) does not fit"):
        visible_keys(torch.ones(5, 3, dtype=torch.bool), like)


def test_output_norm_is_relative_to_the_layer():
    output = random(BATCH, HEADS, TOKENS, DIM)
    norms = head_output_norm(output)
    torch.testing.assert_close(norms.square().mean(-1), torch.ones(BATCH, dtype=torch.float64))
    expected = (output[1, 2].square().mean() / output[1].square().mean()).sqrt()
    torch.testing.assert_close(norms[1, 2], expected)
    torch.testing.assert_close(head_output_norm(17 * output), norms)
    output[:, 1] = 0
    assert (head_output_norm(output)[:, 1] == 0).all()
    output[0, 2, 3, 4] = math.inf
    assert head_output_norm(output)[0].isnan().all()
    assert head_output_norm(output)[1].isfinite().all()


def test_output_norm_leaves_padding_out():
    output = random(BATCH, HEADS, TOKENS, DIM)
    real = (torch.arange(TOKENS) < 4).expand(BATCH, -1)
    expected = head_output_norm(output[:, :, :4])
    output[:, :, 4:] = math.nan
    torch.testing.assert_close(head_output_norm(output, real), expected)


def head_frame(metric, values, **columns):
    """Rows of one metric: values (input, head) in layer 4."""
    inputs = [f"input/{i}" for i in range(len(values))]
    index = {"input": inputs, "layer": [4], "head": range(len(values[0]))}
    frame = make_frame(torch.tensor(values)[:, None], metric, index, model="m")
    return frame.assign(**columns)


def report_frame(norm=1.0, share=0.5, sink=0.2, nonfinite=0.0, uniform=0.1, key=2.0):
    """Two inputs, two heads: head 0 is ordinary, head 1 has the given values."""
    return join_frames(
        [
            head_frame("head_output_norm", [[1.0, norm], [1.0, norm]]),
            head_frame("attention_entropy_share", [[0.5, share], [0.5, share]]),
            head_frame("attention_sink", [[0.2, sink], [0.2, sink]], null_mean=uniform),
            head_frame("attention_sink_key", [[1.0, key], [0.0, key]]),
            head_frame("nonfinite", [[0.0, nonfinite], [0.0, nonfinite]]),
        ]
    )


def test_report_names_each_finding_with_its_rule():
    assert attention_report(report_frame()).empty
    found = attention_report(report_frame(norm=0.005, share=0.9995, sink=0.7, nonfinite=3.0))
    assert found["finding"].tolist() == ["dead", "dead", "sink", "non-finite"]
    assert set(found["head"]) == {1}
    assert set(found["layer"]) == {4}
    assert found["value"].tolist() == pytest.approx([0.005, 0.9995, 0.7, 6.0])
    assert found["key"].tolist()[2] == 2
    assert "0.01" in found["reason"][0]
    assert "0.999" in found["reason"][1]


def test_a_sink_must_exceed_what_even_attention_gives():
    assert attention_report(report_frame(sink=0.4, uniform=0.33)).empty
    assert len(attention_report(report_frame(sink=0.4, uniform=0.1))) == 1
    assert attention_report(report_frame(sink=0.29, uniform=0.1)).empty


def test_report_of_another_analysis_is_refused():
    with pytest.raises(InputError, match="attention-map"):
        attention_report(head_frame("token_cosine", [[0.5]]))


def test_a_broken_head_is_reported_without_its_undefined_measures():
    frame = report_frame(norm=math.nan, share=math.nan, sink=math.nan, nonfinite=2.0)
    found = attention_report(frame)
    assert found["finding"].tolist() == ["non-finite"]
    assert isinstance(found, pd.DataFrame)


def test_attention_that_does_not_fit_is_refused():
    with pytest.raises(InputError, match="missing axis head"):
        head_maps(random(4, 4))
    with pytest.raises(InputError, match=r"keys must be boolean"):
        head_maps(random_attention(1, 2, 3, 4), keys=torch.ones(1, 3, dtype=torch.bool))
    with pytest.raises(InputError, match="do not fit the 4 tokens of axis key"):
        head_maps(random_attention(2, 3, 4), query_positions=random(3, 2), key_positions=random(3, 2))


def test_the_diversity_of_two_heads_has_a_null_of_permuted_keys():
    """Permuted keys take two heads that attend alike apart."""
    model = classifier()
    for block in model.blocks:
        assert block.attn.num_heads == 2
        weight = block.attn.qkv.weight.data.view(3, 2, -1, block.attn.qkv.in_features)
        weight[:2, 1] = weight[:2, 0]
        bias = block.attn.qkv.bias.data.view(3, 2, -1)
        bias[:2, 1] = bias[:2, 0]
    rows = workbench.analyze("attention-map", model, IMAGES, null_samples=3)
    diversity = rows[(rows["metric"] == "attention_diversity") & rows["layer"].notna()]
    assert len(diversity) > 2
    assert diversity["value"].abs().max() < 1e-6
    assert diversity["null_mean"].min() > 1e-3


def test_attention_whose_rows_do_not_sum_to_one_has_a_note_and_no_shares():
    model = workbench.load("bundled:digits-vit")
    with workbench.replace_attention(model, "softmax-off-by-one"):
        frame = workbench.analyze("attention-map", model, "bundled:digits", n=2, layers="1-2")
    assert frame.attrs["notes"] == [
        "12 of 12 attention maps have rows that do not sum to 1: measures of shares are undefined"
    ]
    assert not any(word in sentence for sentence in workbench.findings(frame) for word in ("nan", "sink"))
