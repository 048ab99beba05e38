"""Shares of a logit: loops as oracle, sums that give the logit, and models that are not such a sum."""

import numpy as np
import pytest
import timm
import torch

import workbench
from tests.captures.families import FAMILIES, call
from tests.runs.test_analyze import bert, vit
from workbench.analyses.logit_attribution import head_contributions, link_contributions
from workbench.captures import find_readout
from workbench.captures.position_path import frozen
from workbench.core.errors import InputError

BATCH, HEADS, TOKENS, DIM, WIDTH = 2, 3, 5, 4, 11
IMAGES = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def classifier(classes=7, **options):
    torch.manual_seed(0)
    sizes = {"img_size": 16, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3}
    model = timm.create_model("vit_tiny_patch16_224", num_classes=classes, **sizes, **options).eval()
    for parameter in model.parameters():  # biases and gains that matter
        parameter.data += 0.2 * torch.randn_like(parameter)
    return model


def test_the_share_of_a_head_is_that_of_a_loop():
    torch.manual_seed(0)
    outputs = torch.randn(BATCH, HEADS, TOKENS, DIM, dtype=torch.float64)
    weight = torch.randn(HEADS, DIM, WIDTH, dtype=torch.float64)
    direction = torch.randn(BATCH, TOKENS, WIDTH, dtype=torch.float64)
    shares = head_contributions(outputs, weight, direction)
    for b, h, t in np.ndindex(BATCH, HEADS, TOKENS):
        written = [sum(outputs[b, h, t, d] * weight[h, d, w] for d in range(DIM)) for w in range(WIDTH)]
        expected = sum(written[w] * direction[b, t, w] for w in range(WIDTH))
        assert shares[b, h, t].item() == pytest.approx(expected.item(), rel=1e-10)


def test_the_share_of_a_link_is_that_of_a_loop_and_links_sum_to_their_head():
    torch.manual_seed(0)
    attn = torch.rand(BATCH, HEADS, 6, TOKENS, dtype=torch.float64)
    v = torch.randn(BATCH, HEADS, TOKENS, DIM, dtype=torch.float64)
    weight = torch.randn(HEADS, DIM, WIDTH, dtype=torch.float64)
    direction = torch.randn(BATCH, 6, WIDTH, dtype=torch.float64)
    shares = link_contributions(attn, v, weight, direction)
    for b, h, i, j in np.ndindex(BATCH, HEADS, 6, TOKENS):
        written = [sum(v[b, h, j, d] * weight[h, d, w] for d in range(DIM)) for w in range(WIDTH)]
        expected = attn[b, h, i, j] * sum(written[w] * direction[b, i, w] for w in range(WIDTH))
        assert shares[b, h, i, j].item() == pytest.approx(expected.item(), rel=1e-10)
    torch.testing.assert_close(shares.sum(-1), head_contributions(attn @ v, weight, direction))


@pytest.mark.parametrize("target", ["predicted", "right", "3/1"])
def test_links_of_a_classifier_sum_to_the_shares_of_its_heads(target):
    model = workbench.load("bundled:digits-vit")
    inputs = workbench.inputs("bundled:digits", model, n=2)
    heads = workbench.analyze("logit-attribution", model, inputs, target=target, null_samples=0)
    links = workbench.analyze("logit-attribution", model, inputs, target=target, per="pair")
    places = ["input", "layer", "head"]
    expected = heads[heads["candidate"] == "head"].set_index(places)["value"]
    np.testing.assert_allclose(links.groupby(places)["value"].sum()[expected.index], expected, atol=1e-5)
    assert (links.loc[links["query"] != 0, "value"] == 0).all()  # the class token alone predicts


def test_links_of_a_text_add_to_the_logit_at_their_query():
    model, batch = FAMILIES["gpt2"].build(), FAMILIES["gpt2"].batch()
    heads = workbench.analyze("logit-attribution", model, batch, null_samples=0)
    links = workbench.analyze("logit-attribution", model, batch, per="pair")
    places = ["input", "layer", "head"]
    queries = links.groupby("input")["query"].nunique()
    sums = links.groupby(places)["value"].sum() / queries  # shares of heads are means over queries
    expected = heads[heads["candidate"] == "head"].set_index(places)["value"]
    np.testing.assert_allclose(sums[expected.index], expected, atol=1e-5)
    assert (links.loc[links["key"] > links["query"], "value"] == 0).all()


@pytest.mark.parametrize("name", ["gpt2", "llama", "vit"])
def test_a_readout_makes_the_logits_and_its_direction_is_linear_in_the_stream(name):
    family = FAMILIES[name]
    model = classifier() if name == "vit" else family.build()
    if name == "gpt2":
        model.transformer.ln_f.bias.data += (
            0.3 * torch.arange(1, 1 + model.config.n_embd) / model.config.n_embd
        )
    batch = IMAGES if name == "vit" else family.batch()

    def run():
        result = call(model, batch)
        return result if name == "vit" else result.logits

    with torch.no_grad():
        readout = find_readout(model, run)
        logits = run().double()
    normed = readout.norm(readout.stream).double() - getattr(readout.norm, "bias", 0.0)
    for rebuilt in (readout.logits(readout.stream), normed @ readout.weight.double() + readout.bias.double()):
        rebuilt = rebuilt if readout.token is None else rebuilt[:, readout.token]
        torch.testing.assert_close(rebuilt, logits, rtol=1e-4, atol=1e-5)
    outcome = torch.zeros(*readout.stream.shape[:2], logits.shape[-1])
    outcome[1, 0, 4] = 1
    part = torch.randn(readout.stream.shape, dtype=torch.float64)
    share = (readout.direction(outcome) * part).sum()
    expected = (frozen(readout.norm, readout.stream, part) @ readout.weight.double())[1, 0, 4]
    assert share.item() == pytest.approx(expected.item(), rel=1e-8)


def sums(frame):
    parts = frame[frame["candidate"] != "total"].groupby("input")["value"].sum()
    return parts, frame[frame["candidate"] == "total"].set_index("input")["value"]


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@pytest.mark.parametrize("target", ["predicted", "right"])
def test_shares_of_next_tokens_sum_to_the_logit_of_real_tokens(name, target):
    family = FAMILIES[name]
    model, batch = family.build(), family.batch()
    frame = workbench.analyze("logit-attribution", model, batch, target=target, null_samples=0)
    parts, total = sums(frame)
    with torch.no_grad():
        logits = model(**batch).logits.double()
    for number, length in enumerate(batch["attention_mask"].sum(1).tolist()):
        tokens = range(length if target == "predicted" else length - 1)
        ids = logits[number].argmax(-1) if target == "predicted" else batch["input_ids"][number, 1:]
        expected = sum((logits[number, t, ids[t]] - logits[number, t].mean()).item() for t in tokens)
        assert total.iloc[number] == pytest.approx(expected / len(tokens), abs=1e-4)
    np.testing.assert_allclose(parts, total, atol=1e-4)


def test_shares_of_classes_sum_to_the_logit_and_batches_do_not_matter():
    model = classifier()
    frame = workbench.analyze("logit-attribution", model, IMAGES)
    single = workbench.analyze("logit-attribution", model, IMAGES, batch_size=1)
    parts, total = sums(frame)
    with torch.no_grad():
        logits = model(IMAGES).double()
    np.testing.assert_allclose(total, logits.amax(-1) - logits.mean(-1), atol=1e-5)
    np.testing.assert_allclose(parts, total, atol=1e-4)
    np.testing.assert_allclose(single["value"], frame["value"], atol=1e-5)
    np.testing.assert_allclose(single["null_mean"], frame["null_mean"], atol=1e-5)


@pytest.mark.parametrize("kind", ["gpt2", "vit"])
def test_shares_of_a_difference_of_two_named_outcomes_sum_to_it(kind):
    model, batch = (
        (classifier(), IMAGES) if kind == "vit" else (FAMILIES["gpt2"].build(), FAMILIES["gpt2"].batch())
    )
    frame = workbench.analyze("logit-attribution", model, batch, target="3/1", null_samples=0)
    parts, total = sums(frame)
    with torch.no_grad():
        logits = call(model, batch)
    if kind == "gpt2":  # of texts at the last token
        last = batch["attention_mask"].sum(1) - 1
        logits = logits.logits[range(len(last)), last]
    np.testing.assert_allclose(total, logits[:, 3] - logits[:, 1], atol=1e-5)
    np.testing.assert_allclose(parts, total, atol=1e-4)
    assert "logit of 3 less that of 1 " in workbench.findings(frame)[0]


def test_of_two_classes_the_other_one_gets_the_opposite_share():
    frame = workbench.analyze("logit-attribution", classifier(2), IMAGES, null_samples=3)
    np.testing.assert_allclose(frame["null_mean"], -frame["value"], rtol=1e-6, atol=1e-9)


def test_what_is_no_such_sum_is_refused_or_left_out():
    with pytest.raises(InputError, match="scales or normalises what its heads write"):
        workbench.analyze("logit-attribution", classifier(init_values=0.5), IMAGES)
    with pytest.raises(
        InputError, match="models that pool their tokens, or that scale their logits, are not read"
    ):
        workbench.analyze("logit-attribution", classifier(global_pool="avg", class_token=False), IMAGES)
    words = FAMILIES["bert"].batch()
    with pytest.raises(InputError, match="returns no logits"):
        workbench.analyze("logit-attribution", bert(), words)
    with pytest.raises(InputError, match="the right outcomes are not known; give target='predicted'"):
        workbench.analyze("logit-attribution", vit(), IMAGES, target="right")


def test_findings_name_the_head_that_adds_most():
    frame = workbench.analyze("logit-attribution", "bundled:digits-vit", "bundled:digits", n=8)
    (sentence,) = workbench.findings(frame)
    assert "head 2 of layer 1 adds most" in sentence
    assert "to random outcomes" in sentence
    assert " -" not in sentence  # but −, as in the intervals
