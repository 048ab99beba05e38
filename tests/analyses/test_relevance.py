"""Relevance maps: attention and gradients by hooks by hand, completeness, and tokens removed by hand."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

import workbench
from tests.analyses.test_patching import IMAGES, classifier, gpt2, run
from tests.runs.test_analyze import bert, vit
from workbench.analyses import relevance
from workbench.analyses.relevance import MAPS, gradient_rollout, removal_orders, weighted_attention
from workbench.core.errors import InputError

PATCHES = slice(1, None)  # behind the class token


def test_rollout_of_weighted_attention_is_a_loop_over_layers():
    generator = torch.Generator().manual_seed(0)
    attn, gradient = torch.randn(2, 4, 2, 3, 5, 5, generator=generator)  # layer, batch, head, query, key
    query = torch.rand(2, 5, generator=generator)
    relevance = [torch.eye(5, dtype=torch.float64) for _ in range(2)]
    for layer in range(4):
        for number in range(2):
            mean = torch.zeros(5, 5, dtype=torch.float64)
            for head in range(3):
                mean += torch.relu((attn * gradient)[layer, number, head].double()) / 3
            relevance[number] = relevance[number] + mean @ relevance[number]
    expected = torch.stack([query[number].double() @ relevance[number] for number in range(2)])
    weights = [weighted_attention(*pair) for pair in zip(attn, gradient, strict=True)]
    torch.testing.assert_close(gradient_rollout(weights, query), expected, rtol=1e-6, atol=1e-6)


def test_the_most_relevant_content_comes_first():
    relevance = torch.tensor([[0.5, 9.0, 0.1, 0.7]])
    content = torch.tensor([[True, False, True, True]])
    assert removal_orders(relevance, content).tolist() == [[1, 3, 2, 0]]


def attention_and_gradients(model, batch, logit, change=lambda layer, attn: attn):
    """Attention and the gradient of a logit in it, of every layer of a timm model, from hooks by hand."""
    attn, handles = [], []

    def hook(layer):
        def keep(module, args, output):
            output = change(layer, output)
            output.retain_grad()
            attn.append(output)
            return output

        return keep

    for layer, block in enumerate(model.blocks):
        block.attn.fused_attn = False
        handles.append(block.attn.attn_drop.register_forward_hook(hook(layer)))
    logit(model(batch)).sum().backward()
    for handle, block in zip(handles, model.blocks, strict=True):
        handle.remove()
        block.attn.fused_attn = True
    return [part.detach() for part in attn], [part.grad for part in attn]


def maps(rows, layer):
    """Relevance (input, token) by map, of one layer."""
    rows = rows[rows["layer"] == layer]
    return {
        name: np.stack([part["value"].to_numpy() for _, part in of_map.groupby("input")])
        for name, of_map in rows.groupby("candidate", sort=False)
    }


def test_maps_are_those_of_hooks_by_hand():
    model = classifier()
    outcome = model(IMAGES).argmax(-1)
    attn, gradients = attention_and_gradients(
        model, IMAGES, lambda logits: logits.gather(-1, outcome[:, None])
    )
    with torch.no_grad():  # as in a watch
        rows = workbench.analyze("relevance", model, IMAGES, per="token")
    assert tuple(rows["candidate"].unique()) == MAPS
    chained = torch.eye(17).expand(4, 17, 17)
    rolled = chained
    for layer in range(3):
        weights = (attn[layer] * gradients[layer]).relu().mean(1)
        chained = chained + weights @ chained
        rolled = (attn[layer].mean(1) + torch.eye(17)) / 2 @ rolled
        found = maps(rows, layer)
        expected = {MAPS[0]: chained, MAPS[1]: weights, MAPS[2]: rolled}
        for name, of_queries in expected.items():
            np.testing.assert_allclose(found[name], of_queries[:, 0], rtol=1e-3, atol=1e-6, err_msg=name)


def test_integrated_gradients_sum_to_the_change_from_uniform_attention():
    model = classifier()
    logits = model(IMAGES)
    outcome = logits.argmax(-1)
    with torch.no_grad(), workbench.intervene(model, {(2, "*"): "uniform"}, site="attn"):
        uniform = model(IMAGES)
    changes = (logits - uniform).gather(-1, outcome[:, None])[:, 0]
    rows = workbench.analyze("relevance", model, IMAGES, per="token", path_steps=40)
    # only the class token's row of the last layer reaches the logits; maps are means over 2 heads
    sums = 2 * maps(rows, 2)[MAPS[3]].sum(-1)
    np.testing.assert_allclose(sums, changes.detach(), rtol=1e-3, atol=1e-5)


def test_uniform_attention_has_the_sum_of_the_row_that_it_replaces(monkeypatch):
    """Of logits that are linear in the weights, integrated gradients are (A − U) times their slopes."""
    torch.manual_seed(0)
    attn = torch.rand(2, 3, 4, 5).double().softmax(-1) * torch.tensor([0.5, 1.0, 0.25])[:, None, None]
    slopes = torch.randn_like(attn)
    visible = (torch.arange(5) <= torch.arange(4)[:, None] + 1).expand(2, 1, 4, 5)
    layer = SimpleNamespace(index=1, heads=[0, 2, 5], need_passes=lambda: None)
    explained = SimpleNamespace(gradients=lambda passes, changes, points: [*slopes.unbind(1)])
    monkeypatch.setattr(relevance, "visible_of", lambda *_: visible)
    expected = torch.zeros(2, 4, 5).double()
    for image in range(2):
        for head in range(3):
            for query in range(4):
                keys = range(query + 2 if query < 3 else 5)
                row = attn[image, head, query]
                for key in range(5):
                    uniform = float(row.sum()) / len(keys) if key in keys else 0.0
                    expected[image, query, key] += (row[key] - uniform) * slopes[image, head, query, key] / 3
    torch.testing.assert_close(relevance._integrated(layer, attn, explained, 4), expected)


def removed(model, tokens):
    """Logits of a timm model with the mean over tokens in place of some (input, token) before the first block."""

    def hook(module, args):
        (stream,) = args
        mean = stream.mean(1, keepdim=True)
        return (torch.where(tokens[..., None], mean, stream),)

    handle = model.blocks[0].register_forward_pre_hook(hook)
    try:
        with torch.no_grad():
            return model(IMAGES)
    finally:
        handle.remove()


def test_scores_are_areas_of_curves_by_hand():
    model = classifier()
    outcome = model(IMAGES).argmax(-1)
    rows = workbench.analyze("relevance", model, IMAGES, per="token")
    frame = workbench.analyze("relevance", model, IMAGES, removal_steps=3, null_samples=0)
    for name in MAPS:
        relevance = maps(rows, 1)[name][:, PATCHES]
        curves = {"relevance_deletion": [], "relevance_insertion": []}
        for count in (0, 4, 8, 12, 16):
            for metric, curve in curves.items():
                tokens = torch.zeros(4, 17, dtype=torch.bool)
                for number in range(4):
                    chosen = 1 + np.argsort(-relevance[number], kind="stable")[:count]
                    tokens[number, torch.from_numpy(chosen)] = True
                    if metric == "relevance_insertion":
                        tokens[number, PATCHES] = ~tokens[number, PATCHES]
                shares = removed(model, tokens).softmax(-1)
                curve.append(shares.gather(-1, outcome[:, None])[:, 0].numpy())
        for metric, curve in curves.items():
            found = frame.query(f"metric == '{metric}' and candidate == '{name}' and layer == 1")["value"]
            area = np.trapezoid(np.stack(curve), dx=1 / 4, axis=0)
            np.testing.assert_allclose(found, area, rtol=1e-4, atol=1e-6)


def test_the_map_of_a_text_is_of_its_last_token_and_batches_do_not_matter():
    model, batch, last = gpt2()
    rows = workbench.analyze("relevance", model, batch, per="token")
    assert rows[rows["layer"] == 0].groupby(["candidate", "input"]).size().unstack().iloc[0].tolist() == [
        6,
        6,
        5,
        5,
    ]
    whole = workbench.analyze("relevance", model, batch, removal_steps=2, null_samples=2)
    single = workbench.analyze("relevance", model, batch, removal_steps=2, null_samples=2, batch_size=1)
    for column in ("value", "null_mean"):
        np.testing.assert_allclose(single[column], whole[column], rtol=1e-3, atol=1e-5)
    with torch.no_grad():
        plain = run(model, batch)[range(4), last].softmax(-1).amax(-1).numpy()
    assert whole["value"].between(0, 1).all()
    assert not np.allclose(whole[whole["layer"] == 0]["value"].to_numpy()[:4], plain)


def test_the_right_outcome_is_the_last_token_of_a_text():
    model, batch, _ = gpt2()
    rows = workbench.analyze("relevance", model, batch, per="token", target="right")
    # the last token is read by no query of the prediction
    last = rows[rows["candidate"] == "attention times gradient"].groupby(["layer", "input"])["value"].last()
    assert (last == 0).all()
    with pytest.raises(InputError, match="give target='predicted'"):
        workbench.analyze("relevance", vit(), IMAGES, target="right")


def test_layers_in_front_are_needed_and_models_that_predict():
    with pytest.raises(InputError, match="maps of all layers; leave layers= out"):
        workbench.analyze("relevance", vit(), IMAGES, layers=[1])
    with pytest.raises(InputError, match="returns no logits"):
        workbench.analyze("relevance", bert(), {"input_ids": torch.randint(0, 40, (2, 5))})


def test_findings_compare_the_last_layer_with_random_orders():
    frame = workbench.analyze(
        "relevance", "bundled:digits-vit", "bundled:digits", n=4, removal_steps=2, null_samples=2
    )
    insertion, deletion = workbench.findings(frame)
    assert "tokens put back (maps of layer 3)" in insertion
    assert "in random orders" in deletion
    last = frame[(frame["layer"] == 3) & (frame["metric"] == "relevance_insertion")]
    for name, mean in last.groupby("candidate")["value"].mean().items():  # all four, and not the best one
        assert f"{name} {mean:.2f}" in insertion


def text_classifier():
    """A tiny BERT that chooses one of three classes, and texts of 6 and 5 tokens with padding."""
    torch.manual_seed(6)
    config = BertConfig(
        vocab_size=40, hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=20, num_labels=3,
        initializer_range=0.5,
    )  # fmt: skip
    ids = torch.randint(5, 40, (4, 6), generator=torch.Generator().manual_seed(7))
    ids[:, 0] = 2
    real = torch.ones_like(ids)
    real[2:, 5] = 0
    return BertForSequenceClassification(config).eval(), {"input_ids": ids, "attention_mask": real}


def test_the_maps_of_a_text_classifier_are_those_of_its_attention_and_gradients():
    model, batch = text_classifier()
    rows = workbench.analyze("relevance", model, batch, per="token")
    model.set_attn_implementation("eager")
    result = model(**batch, output_attentions=True)
    for attn in result.attentions:
        attn.retain_grad()
    result.logits.amax(-1).sum().backward()
    weights = [(attn * attn.grad).clamp(min=0).mean(1).detach() for attn in result.attentions]
    real = batch["attention_mask"].double()
    row = real / real.sum(-1, keepdim=True)  # without a tokenizer no token is known to be the class token
    for weight in reversed(weights):
        row = row + (row[:, None] @ weight.double())[:, 0]
    found = rows[(rows["candidate"] == MAPS[0]) & (rows["layer"] == 1)]
    for number, group in found.groupby("input"):
        expected = row[int(number)][batch["attention_mask"][int(number)] == 1]
        np.testing.assert_allclose(group["value"], expected, rtol=1e-4, atol=1e-6)


def test_scores_of_a_text_classifier_are_areas_of_curves_by_hand():
    model, batch = text_classifier()
    rows = workbench.analyze("relevance", model, batch, per="token")
    frame = workbench.analyze("relevance", model, batch, removal_steps=2, null_samples=2)
    real = batch["attention_mask"].bool()
    with torch.no_grad():
        outcome = model(**batch).logits.argmax(-1)

    def probability(removed):
        def hook(_, args):
            mean = (args[0] * real[..., None]).sum(1, keepdim=True) / real.sum(-1)[:, None, None]
            return (torch.where(removed[..., None], mean, args[0]), *args[1:])

        handle = model.bert.encoder.layer[0].register_forward_pre_hook(hook)
        with torch.no_grad():
            shares = model(**batch).logits.softmax(-1)
        handle.remove()
        return shares.gather(-1, outcome[:, None])[:, 0].numpy()

    for name in MAPS:
        curve = []
        for step in range(4):
            removed = torch.zeros_like(real)
            for number in range(4):
                chosen = rows[
                    (rows["candidate"] == name) & (rows["layer"] == 1) & (rows["input"] == str(number))
                ]
                order = np.argsort(-chosen["value"].to_numpy(), kind="stable")
                removed[number, torch.from_numpy(order[: round(len(order) * step / 3)].copy())] = True
            curve.append(probability(removed))
        area = np.trapezoid(np.stack(curve), dx=1 / 3, axis=0)
        found = frame.query(f"metric == 'relevance_deletion' and candidate == '{name}' and layer == 1")
        np.testing.assert_allclose(found["value"], area, rtol=1e-4, atol=1e-6)
