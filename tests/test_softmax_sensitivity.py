"""The analysis softmax-sensitivity through `analyze`, and the frame of random logits."""

import numpy as np
import pandas as pd
import pytest
import timm
import torch

import workbench
from tests.runs.test_analyze import bert, gpt2, grouped_llama, images, same, texts, vit
from workbench.analyses.softmax_sensitivity import local_lipschitz, sampled_lipschitz, sampled_perturbation
from workbench.attention import replace_attention
from workbench.core.errors import InputError
from workbench.runs.analyze import analyze


def rows(**arguments):
    return analyze("softmax-sensitivity", per_head=True, **({"null_samples": 0} | arguments))


def values(frame, metric, statistic=None):
    chosen = frame[(frame["metric"] == metric)]
    chosen = chosen if statistic is None else chosen[chosen["statistic"] == statistic]
    return chosen.set_index(["input", "layer", "head"])["value"]


def test_constants_are_those_of_the_model_s_attention():
    model = vit()
    frame = rows(model=model, inputs=images())
    captured = workbench.capture(model, images(), sites=["attn"])
    for number, layer, head in ((0, 0, 1), (4, 2, 0)):
        p = captured[layer].attn[number, head].double()
        jacobians = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
        expected = torch.linalg.eigvalsh(jacobians)[:, -1]
        place = (str(number), layer, head)
        assert values(frame, "softmax_lipschitz", "mean")[place] == pytest.approx(
            expected.mean().item(), rel=1e-5
        )
        assert values(frame, "softmax_lipschitz", "max")[place] == pytest.approx(
            expected.max().item(), rel=1e-5
        )
        spread = p.log().std(-1, correction=0).mean().item()
        assert values(frame, "logit_spread")[place] == pytest.approx(spread, rel=1e-4)
    assert (values(frame, "softmax_perturbation") > 0).all()


def test_without_noise_nothing_moves_and_more_moves_it_more():
    model = vit()
    still, small, large = (
        values(rows(model=model, inputs=images(), sigma=sigma), "softmax_perturbation")
        for sigma in (0, 0.1, 1)
    )
    assert (still == 0).all()
    assert (small < large).all()


def test_causal_queries_are_judged_by_the_keys_they_see():
    model, batch = gpt2(), {name: part[:1] for name, part in texts((9,)).items()}
    frame = rows(model=model, inputs=batch)
    attn = workbench.capture(model, batch, sites=["attn"])[1].attn[0, 2].double()
    expected = [local_lipschitz(attn[query, : query + 1].log()).item() for query in range(1, 9)]
    found = values(frame, "softmax_lipschitz", "mean")["0", 1, 2]
    assert found == pytest.approx(np.mean(expected), rel=1e-4)  # the first query has no choice


@pytest.mark.parametrize("make", [bert, gpt2])
def test_padding_changes_nothing(make):
    model, batch = make(), texts()
    whole = rows(model=model, inputs=batch)
    for number, length in enumerate((9, 4, 7)):
        part = {name: tensor[[number], :length] for name, tensor in batch.items()}
        alone = rows(model=model, inputs=part)
        for metric in ("softmax_lipschitz", "logit_spread"):
            found = whole[(whole["metric"] == metric) & (whole["input"] == str(number))]["value"]
            np.testing.assert_allclose(found, alone[alone["metric"] == metric]["value"], rtol=1e-4)


@pytest.mark.parametrize(("make", "batch"), [(vit, images), (bert, texts)])
def test_neither_noise_nor_chance_depend_on_the_batches(make, batch):
    options = {"model": make(), "inputs": batch(), "null_samples": 3}
    whole = rows(**options)
    same(rows(batch_size=2, **options), whole)
    assert whole["null"].unique().tolist() == ["gaussian"]


def test_attention_of_a_class_token_and_of_grouped_queries_is_measured():
    torch.manual_seed(0)
    xcit = timm.models.xcit.Xcit(
        img_size=32, patch_size=8, embed_dim=12, depth=2, num_heads=3, cls_attn_layers=1, num_classes=4
    ).eval()
    frame = rows(model=xcit, inputs=images(2, size=32))
    assert frame["layer"].unique().tolist() == [2]
    assert any("layers 0-1 left out" in note and "channel" in note for note in frame.attrs["notes"])
    grouped = rows(model=grouped_llama(), inputs={name: part[:, :7] for name, part in texts((9, 8)).items()})
    assert grouped["head"].max() == 5


def test_attention_that_is_no_softmax_of_its_logits_is_left_out():
    model = vit()
    replace_attention(model, "twicing", [2])
    frame = rows(model=model, inputs=images())
    assert frame["layer"].unique().tolist() == [0, 1]
    assert any("layer 2 left out" in note and "logits are not known" in note for note in frame.attrs["notes"])
    replace_attention(model, "tssa")
    with pytest.raises(InputError, match="without attention from token to token"):
        rows(model=model, inputs=images())


def test_a_sequence_of_one_token_has_nothing_to_move():
    one = {name: part[:1, :1] for name, part in texts((2,)).items()}
    with pytest.raises(InputError, match="layer 0: softmax of one key is 1"):
        rows(model=bert(), inputs=one)


def test_the_frame_of_random_logits_holds_what_is_sampled():
    frame = workbench.sensitivity_frame([2, 10, 40], (1, 5), null_samples=60, seed=3)
    assert len(frame) == 3 * 2 * 3
    row = frame[(frame["candidate"] == "local") & (frame["tokens"] == 10) & (frame["spread"] == 5)]
    assert row["value"].item() == sampled_lipschitz(10, 60, 3, 5.0).local
    moved = frame[
        (frame["metric"] == "softmax_perturbation") & (frame["tokens"] == 40) & (frame["spread"] == 1)
    ]
    null_samples = pd.Series(sampled_perturbation(40, 60, 3))
    assert moved["value"].item() == pytest.approx(null_samples.mean())
    assert moved["low"].item() < null_samples.mean() < moved["high"].item()
    assert frame.attrs["provenance"]["seed"] == 3
