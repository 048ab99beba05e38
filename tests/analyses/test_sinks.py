"""Attention sinks: a planted one, loops as oracle with padding, and Gaussian activations by sampling."""

import math
import statistics

import pytest
import torch

import workbench
from tests.captures.families import FAMILIES
from workbench.analyses.sinks import gaussian_ratios, massive_activation
from workbench.captures import Capture, LayerRecord, capture

BATCH, HEADS, TOKENS, DIM, WIDTH = 2, 3, 5, 4, 11


def test_a_massive_activation_is_the_largest_over_the_median_of_real_tokens():
    torch.manual_seed(0)
    stream, lengths = torch.randn(BATCH, TOKENS, WIDTH), (TOKENS, 3)
    stream[1, 1, 7] = -300
    stream[1, 4] = 1e6  # padding
    real = torch.arange(TOKENS) < torch.tensor(lengths)[:, None]
    ratios = massive_activation(stream, real).tolist()
    for row, length, ratio in zip(stream, lengths, ratios, strict=True):
        sizes = sorted(abs(x) for token in row[:length].tolist() for x in token)
        assert ratio == pytest.approx(sizes[-1] / statistics.median_low(sizes), rel=1e-6)
    assert ratios[1] > 300
    stream[0, 0, 0] = math.inf
    assert massive_activation(stream, real).isnan().tolist() == [True, False]
    assert massive_activation(0 * stream[1:], real[1:]).isnan().all()


def test_gaussian_ratios_are_those_of_drawn_activations():
    source = torch.Generator().manual_seed(0)
    ratios = gaussian_ratios(600, 4000, source)
    drawn = torch.randn(4000, 20, 30, generator=source)
    expected = massive_activation(drawn, torch.ones(4000, 20, dtype=torch.bool))
    assert ratios.mean().item() == pytest.approx(expected.mean().item(), rel=0.01)
    assert ratios.std().item() == pytest.approx(expected.std().item(), rel=0.15)


def planted(epsilon):
    """Head 1 gives 0.6 to key 2, whose value is a tenth of the others; the other heads attend uniformly."""
    attn = torch.full((BATCH, HEADS, TOKENS, TOKENS), 1 / TOKENS, dtype=torch.float64)
    attn[:, 1] = 0.1
    attn[:, 1, :, 2] = 0.6
    v = torch.nn.functional.normalize(
        torch.randn(BATCH, HEADS, TOKENS, DIM, generator=torch.manual_seed(0)), dim=-1
    )
    v[:, 1, 2] /= 10
    record = LayerRecord(0, "", attn=attn, v=v)
    return workbench.analyze("sinks", qkv=Capture([record], ("attn", "v")), epsilon=epsilon)


def test_a_planted_sink_is_the_one_that_is_there():
    frame = planted(0.3)
    rates = frame[frame["metric"] == "sink_rate"]
    assert rates.groupby("head")["value"].mean().tolist() == [0, 1, 0]
    assert (rates["null_mean"] == 0).all()
    norm = frame[(frame["metric"] == "sink_value_norm") & (frame["head"] == 1)].iloc[0]
    assert norm["value"] == pytest.approx(0.1 / (4.1 / 5))
    assert norm["null_mean"] == 1
    assert norm["z"] == pytest.approx((norm["value"] - 1) / statistics.stdev([1 / 0.82] * 4 + [0.1 / 0.82]))
    assert "33% [33%, 33%] of the heads give one key more than 0.3" in workbench.findings(frame)[0]
    assert "the values there have 0.12 of the mean norm" in workbench.findings(frame)[0]
    above = planted(0.7)
    assert (above[above["metric"] == "sink_rate"]["value"] == 0).all()
    low = planted(0.15)  # uniform attention has 0.2
    assert (low[low["metric"] == "sink_rate"][["value", "null_mean"]] == 1).all(axis=None)


@pytest.mark.parametrize("method", ["dense", "tiled"])
@pytest.mark.parametrize("name", ["bert", "llama"])
def test_a_model_s_sinks_are_those_of_a_loop_over_real_tokens(name, method):
    family = FAMILIES[name]
    model, batch = family.build(), family.batch()
    frame = workbench.analyze("sinks", model, batch, layers=[1], method=method, epsilon=0.25)
    (record,) = capture(model, batch, layers=[1], sites=("v", "attn", "resid_post"))
    heads = record.attn.shape[1]
    v = record.v.repeat_interleave(heads // record.v.shape[1], 1)
    names = frame["input"].unique()
    for number, length in enumerate(batch["attention_mask"].sum(1).tolist()):
        of_input = frame[frame["input"] == names[number]].set_index("metric")
        massive = massive_activation(record.resid_post[number, :length], torch.ones(length, dtype=torch.bool))
        assert of_input.loc["massive_activation", "value"] == pytest.approx(massive.item())
        # the null draws as many activations as the real tokens have
        drawn = gaussian_ratios(length * record.resid_post.shape[-1], 4000, torch.Generator().manual_seed(1))
        error = drawn.std().item() / 20**0.5
        assert abs(of_input.loc["massive_activation", "null_mean"] - drawn.mean().item()) < 4 * error
        for head in range(heads):
            rows = of_input[of_input["head"] == head]
            received = [record.attn[number, head, :length, j].mean().item() for j in range(length)]
            key = max(range(length), key=received.__getitem__)
            norms = [v[number, head, j].norm().item() for j in range(length)]
            assert rows.loc["sink_rate", "value"] == float(received[key] > 0.25)
            expected = norms[key] / (sum(norms) / length)
            assert rows.loc["sink_value_norm", "value"] == pytest.approx(expected, rel=1e-4)


def test_heads_of_minilm_have_sinks_without_values():
    """Gu et al. 2024, Sun et al. 2024: of a trained model, and not of uniform attention or Gaussian activations."""
    frame = workbench.analyze("sinks", "all-MiniLM-L6-v2", "bundled:prose", n=3, layers=[1, 2])
    rates = frame[frame["metric"] == "sink_rate"]
    assert rates[rates["layer"] == 1]["value"].mean() > 0.3
    assert rates["null_mean"].max() == 0
    sentences = workbench.findings(frame)
    assert "under uniform attention); the values there have 0.0" in sentences[0]
    assert "times the median after layer 2 (Gaussian activations: 6." in sentences[1]
