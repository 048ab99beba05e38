"""Nulls of attention rows: permuted keys by draws, uniform attention in closed form, planted patterns outside both."""

import math

import pytest
import torch

from workbench import analyze
from workbench.captures import Capture, LayerRecord

INPUTS, HEADS, TOKENS = 2, 3, 12
CAUSAL = torch.ones(1, 1, TOKENS, TOKENS, dtype=torch.bool).tril()
ALL = torch.ones_like(CAUSAL)
ROWS = {"attention_entropy", "attention_entropy_share", "attention_distance", "attention_sink"}


def random_attention(visible=ALL, seed=0):
    scores = torch.randn(INPUTS, HEADS, TOKENS, TOKENS, generator=torch.manual_seed(seed))
    return (2 * scores.double()).masked_fill(~visible, -torch.inf).softmax(-1)


def uniform_attention(visible=ALL):
    return (visible / visible.sum(-1, keepdim=True)).double().expand(INPUTS, HEADS, -1, -1)


def measured(attn, visible=ALL, name="attention-map", **options):
    record = LayerRecord(options.pop("layer", 0), "", attn=attn, mask=visible)
    return analyze(name, qkv=Capture([record], ("attn", "mask")), **options)


def of_heads(frame, metric, column="value", null=None):
    """A metric by head, mean over inputs."""
    rows = frame[(frame["metric"] == metric) & frame["head"].notna()]
    return (rows if null is None else rows[rows["null"] == null]).groupby("head")[column].mean()


@pytest.mark.parametrize("visible", [ALL, CAUSAL], ids=["all keys", "causal"])
def test_a_planted_pattern_lies_outside_the_null_of_permuted_keys(visible):
    """Head 0 attends at random, head 1 to the query before, head 2 to the first token."""
    attn, query = random_attention(visible), torch.arange(TOKENS)
    attn[:, 1:] *= 0.3
    attn[:, 1, query, (query - 1).clamp_min(0)] += 0.7
    attn[:, 2, query, 0] += 0.7
    frame = measured(attn, visible, null="permutation", null_samples=20)
    low, high = (of_heads(frame, "attention_distance", end) for end in ("null_low", "null_high"))
    distance = of_heads(frame, "attention_distance")
    assert distance[1] < low[1]
    assert low[0] < distance[0] < high[0]
    sink, high = (of_heads(frame, "attention_sink", end) for end in ("value", "null_high"))
    assert sink[2] > high[2]
    assert of_heads(frame, "attention_sink", "null_low")[0] < sink[0] < high[0]
    scores = measured(attn, visible, "attention-patterns")
    previous, high = (of_heads(scores, "pattern_previous", end) for end in ("value", "null_high"))
    assert previous[1] > high[1]
    assert of_heads(scores, "pattern_previous", "null_low")[0] < previous[0] < high[0]


@pytest.mark.parametrize(
    ("visible", "entropy", "distance", "sink"),
    [
        (ALL, math.log(TOKENS), (TOKENS**2 - 1) / (3 * TOKENS), 1 / TOKENS),
        (
            CAUSAL,
            sum(math.log(seen) for seen in range(1, TOKENS + 1)) / TOKENS,
            sum(query / 2 for query in range(TOKENS)) / TOKENS,
            sum(1 / seen for seen in range(1, TOKENS + 1)) / TOKENS,
        ),
    ],
    ids=["all keys", "causal"],
)
def test_uniform_attention_is_its_closed_form_over_the_visible_keys(visible, entropy, distance, sink):
    expected = {
        "attention_entropy": entropy,
        "attention_entropy_share": 1,
        "attention_distance": distance,
        "attention_sink": sink,
    }
    frame, uniform = (measured(attn(visible), visible) for attn in (random_attention, uniform_attention))
    for metric, value in expected.items():
        assert of_heads(frame, metric, "null_mean", "uniform").tolist() == pytest.approx([value] * HEADS)
        assert of_heads(uniform, metric).tolist() == pytest.approx([value] * HEADS)
    assert frame.loc[frame["null"] == "uniform", ["null_low", "null_high", "z"]].isna().all(axis=None)


@pytest.mark.parametrize(
    "metric", ["pattern_previous", "pattern_local", "pattern_diagonal", "pattern_uniform"]
)
def test_uniform_attention_is_a_null_of_patterns(metric):
    uniform = of_heads(measured(uniform_attention(CAUSAL), CAUSAL, "attention-patterns"), metric)
    frame = measured(random_attention(CAUSAL), CAUSAL, "attention-patterns", null="both")
    assert of_heads(frame, metric, "null_mean", "uniform").tolist() == pytest.approx(uniform.tolist())
    drawn = "dirichlet" if metric == "pattern_uniform" else "permutation"
    assert of_heads(frame, metric, "null_high", drawn).notna().all()


def test_each_null_is_a_row_and_permuted_keys_leave_the_entropy():
    attn = random_attention()
    kinds = {
        null: {
            metric: sorted(rows["null"].unique())
            for metric, rows in measured(attn, null=null).groupby("metric")
            if metric in ROWS
        }
        for null in ("uniform", "permutation", "both")
    }
    for null, expected in (
        ("uniform", ["uniform"]), ("permutation", ["permutation"]), ("both", ["permutation", "uniform"])
    ):  # fmt: skip
        for metric in ROWS:
            assert kinds[null][metric] == (["uniform"] if "entropy" in metric else expected)
    none = measured(attn, null="both", null_samples=0)
    assert set(none.loc[none["metric"].isin(ROWS), "null"]) == {"uniform"}


def test_permuted_keys_of_a_head_depend_on_layer_and_head_and_not_on_the_other_heads():
    attn = random_attention()[:, :1].expand(-1, HEADS, -1, -1)
    options = {"null": "permutation", "null_samples": 2}

    def means(**more):
        return of_heads(measured(attn, **options, **more), "attention_sink", "null_mean")

    first = means()
    assert first.nunique() == HEADS
    assert first[2] == means(heads=[2])[2]
    for other in (means(layer=1), means(seed=1)):
        assert not {*first} & {*other}


def test_a_sink_is_reported_against_uniform_attention_under_every_null():
    attn = 0.5 * random_attention()
    attn[..., 0] += 0.5
    notes = [measured(attn, null=null).attrs["notes"] for null in ("uniform", "both")]
    assert notes[0] == notes[1]
    assert any("sink" in note for note in notes[0])
