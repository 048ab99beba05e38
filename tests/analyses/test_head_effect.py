"""Heads switched off: loops as oracle, interventions by hand, dead heads, and models that predict nothing."""

import math

import numpy as np
import pytest
import torch

import workbench
from tests.captures.families import FAMILIES
from tests.runs.test_analyze import bert, vit
from workbench.analyses import head_effect
from workbench.analyses.head_effect import prediction_change, switched_off
from workbench.captures import capture, intervene
from workbench.core.errors import InputError
from workbench.runs import reused_projections

BATCH, HEADS, TOKENS, DIM, OUTCOMES = 2, 3, 5, 4, 7
IMAGES = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def likely(logits):
    total = sum(math.exp(x) for x in logits)
    return [math.exp(x) / total for x in logits]


def test_the_change_of_a_prediction_is_that_of_a_loop():
    torch.manual_seed(0)
    before, after = torch.randn(2, BATCH, TOKENS, OUTCOMES, dtype=torch.float64)
    target = torch.randint(OUTCOMES, (BATCH, TOKENS))
    target[0, 1] = -1
    change = prediction_change(before, after, target)
    for place in np.ndindex(BATCH, TOKENS):
        p, q, right = likely(before[place].tolist()), likely(after[place].tolist()), target[place].item()
        divergence = sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
        assert change.divergence[place].item() == pytest.approx(divergence)
        if right < 0:
            assert change.loss[place].isnan()
            continue
        margins = [
            x[right] - max(value for number, value in enumerate(x) if number != right)
            for x in (before[place].tolist(), after[place].tolist())
        ]
        assert change.loss[place].item() == pytest.approx(math.log(p[right] / q[right]))
        assert change.margin[place].item() == pytest.approx(margins[0] - margins[1])
        assert change.accuracy[place].item() == (margins[0] > 0) - (margins[1] > 0)


def test_outputs_that_replace_a_head_s_are_those_of_real_tokens():
    torch.manual_seed(0)
    outputs, lengths = torch.randn(BATCH, HEADS, TOKENS, DIM), (TOKENS, 3)
    real = torch.arange(TOKENS) < torch.tensor(lengths)[:, None]
    orders = [torch.tensor([3, 1, 0, 4, 2]), torch.tensor([2, 0, 1])]
    assert switched_off(outputs, "zero", real).count_nonzero() == 0
    means, permuted = (switched_off(outputs, mode, real, orders) for mode in ("mean", "resample"))
    for b, h, t in np.ndindex(BATCH, HEADS, TOKENS):
        mean = sum(outputs[b, h, i] for i in range(lengths[b])) / lengths[b]
        torch.testing.assert_close(means[b, h, t], mean)
        source = orders[b][t] if t < lengths[b] else t
        assert torch.equal(permuted[b, h, t], outputs[b, h, source])
    with pytest.raises(InputError, match="'uniform' needs more than the outputs of heads"):
        switched_off(outputs, "uniform", real)


def by_hand(logits, model, changes, run):
    """The divergence of the prediction under an intervention."""
    with torch.no_grad(), intervene(model, changes[0], site=changes[1]):
        after = run().log_softmax(-1)
    before = logits.log_softmax(-1)
    return (before.exp() * (before - after)).sum(-1)


@pytest.mark.parametrize(("mode", "site"), [("zero", "head_out"), ("mean", "head_out"), ("uniform", "attn")])
def test_the_effect_on_a_classifier_is_that_of_an_intervention(mode, site):
    model = vit()
    frame = workbench.analyze("head-effect", model, IMAGES, layers=[1], mode=mode, null_samples=0)
    assert set(frame["metric"]) == {"head_effect_divergence"}  # no classes are known
    with torch.no_grad():
        logits = model(IMAGES)
    for head, rows in frame.groupby("head"):
        expected = by_hand(logits, model, ({(1, int(head)): mode}, site), lambda: model(IMAGES))
        np.testing.assert_allclose(rows["value"], expected, rtol=1e-3, atol=1e-7)
    with torch.no_grad():
        assert torch.equal(model(IMAGES), logits)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_the_effect_on_the_next_token_counts_real_tokens(name):
    family = FAMILIES[name]
    model, batch = family.build(), family.batch()
    frame = workbench.analyze("head-effect", model, batch, layers=[0], mode="zero", null_samples=0)
    losses = frame[(frame["metric"] == "head_effect_loss") & (frame["head"] == 1)]["value"].tolist()
    with torch.no_grad():
        before = model(**batch).logits.log_softmax(-1)
        with intervene(model, {(0, 1): "zero"}):
            after = model(**batch).logits.log_softmax(-1)
    for number, loss in enumerate(losses):
        length = int(batch["attention_mask"][number].sum())
        ids = batch["input_ids"][number]
        rise = [(before - after)[number, t, ids[t + 1]].item() for t in range(length - 1)]
        assert loss == pytest.approx(sum(rise) / len(rise), abs=1e-6)


def test_batches_and_chosen_heads_do_not_matter():
    family = FAMILIES["gpt2"]
    model, batch = family.build(), family.batch()
    whole = workbench.analyze("head-effect", model, batch, mode="resample")
    single = workbench.analyze("head-effect", model, batch, mode="resample", batch_size=1)
    for column in ("value", "null_mean"):
        np.testing.assert_allclose(single[column], whole[column], rtol=1e-3, atol=1e-6)
    chosen = workbench.analyze("head-effect", model, batch, mode="resample", heads=[1])
    same = whole[whole["head"] == 1]
    np.testing.assert_allclose(chosen["value"], same["value"], rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(chosen["null_mean"], same["null_mean"], rtol=1e-4, atol=1e-7)


def test_the_number_of_positions_compared_at_a_time_does_not_matter(monkeypatch):
    family = FAMILIES["gpt2"]
    model, batch = family.build(), family.batch()
    whole = workbench.analyze("head-effect", model, batch, layers=[1], null_samples=0)
    monkeypatch.setattr(head_effect, "_ENTRIES", 3 * model.config.vocab_size)
    parts = workbench.analyze("head-effect", model, batch, layers=[1], null_samples=0)
    np.testing.assert_allclose(parts["value"], whole["value"], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("limit", [0, 2000, 1 << 28])
def test_reusing_linear_layers_ahead_of_the_change_changes_nothing(monkeypatch, limit):
    family = FAMILIES["gpt2"]
    model, batch = family.build(), family.batch()
    frames = []
    for most in (-1, limit):
        monkeypatch.setattr(reused_projections, "_MOST_BYTES", most)
        frames.append(workbench.analyze("head-effect", model, batch, layers=[1], mode="zero"))
    np.testing.assert_array_equal(frames[1]["value"], frames[0]["value"])
    np.testing.assert_array_equal(frames[1]["null_mean"], frames[0]["null_mean"])
    assert not any("forward" in vars(layer) for layer in model.modules())


@torch.no_grad()
def test_reused_outputs_are_those_until_the_end():
    def overwrite(layer, args, output):
        output.add_(1)

    model, runs = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 5)).eval(), []
    outputs = reused_projections.Projections(model)
    first = model[0].forward
    model[0].register_forward_hook(overwrite)
    expected = model(torch.ones(2, 3))
    for factor in (1, 1, 7):
        with outputs.reused():
            hidden = model[0](input=factor * torch.ones(2, 3))
            outputs.end()
            runs.append(model[1](input=hidden))
    assert torch.equal(runs[0], expected)
    assert torch.equal(runs[1], expected)
    assert torch.equal(runs[2], expected)  # of the first pass: the input is not read again
    assert model[0].forward == first


def test_a_head_without_values_has_no_effect_and_neither_have_directions_of_its_norm():
    model = vit()
    attn = model.blocks[0].attn
    width, size = attn.num_heads * attn.head_dim, attn.head_dim
    for parameter in (attn.qkv.weight, attn.qkv.bias):
        parameter.data[2 * width : 2 * width + size] = 0  # values of head 0
    frame = workbench.analyze("head-effect", model, IMAGES, layers=[0])
    dead = frame["head"] == 0
    assert frame[dead][["value", "null_mean"]].abs().max().max() < 1e-6
    assert frame[~dead]["value"].min() > 1e-6


def test_a_random_direction_has_the_norm_of_the_change(monkeypatch):
    model = vit()
    from workbench.runs import loop

    seen = []
    monkeypatch.setattr(
        loop, "intervene", lambda loaded, changes: seen.append(changes) or intervene(loaded, changes)
    )
    workbench.analyze("head-effect", model, IMAGES, layers=[0], heads=[1], mode="zero", null_samples=2)
    (record,) = capture(model, IMAGES, layers=[0], sites=("head_out",))
    alone, *drawn = seen  # one pass per head and sample
    assert [*alone] == [(0, 1)]
    assert len(drawn) == 2
    norm = record.head_out[:, 1].norm(dim=-1)
    for changes in drawn:
        assert [*changes] == [(0, head) for head in range(record.head_out.shape[1])]
        outputs = [replace(record.head_out[:, head]) for (_, head), replace in changes.items()]
        moved = torch.stack(outputs, 1) - record.head_out
        torch.testing.assert_close(moved.transpose(1, 2).flatten(2).norm(dim=-1), norm)


def test_models_that_predict_nothing_are_refused():
    words = {name: value[:, :7] for name, value in FAMILIES["bert"].batch().items()}
    with pytest.raises(
        InputError, match="returns no logits; give a model that predicts classes or next tokens"
    ):
        workbench.analyze("head-effect", bert(), words)
    features = vit()
    features.reset_classifier(0)
    with pytest.raises(InputError, match="returns no logits"):
        workbench.analyze("head-effect", features, IMAGES)
    captured = capture(vit(), IMAGES)
    with pytest.raises(InputError, match="this analysis runs the model again; give model and inputs"):
        workbench.analyze("head-effect", qkv=captured)


def test_classes_of_named_images_have_a_loss_and_findings_compare_with_random_directions():
    frame = workbench.analyze("head-effect", "bundled:digits-vit", "bundled:digits", n=4, layers=[0])
    assert {"head_effect_loss", "head_effect_accuracy", "head_effect_margin"} <= set(frame["metric"])
    sentences = workbench.findings(frame)
    assert "rise of the loss without the head (mean): largest for head" in sentences[0]
    assert "for random directions of the same norm" in sentences[0]


def test_heads_together_are_one_intervention_beside_other_sets_of_as_many():
    model = FAMILIES["gpt2"].build()
    ids = torch.randint(0, 50, (2, 6), generator=torch.Generator().manual_seed(5))
    batch = {"input_ids": ids}
    with torch.no_grad():
        logits = model(**batch).logits[:, :-1]

    def divergence(heads):
        changes = {(1, head): "zero" for head in heads}
        found = by_hand(logits, model, (changes, "head_out"), lambda: model(**batch).logits[:, :-1])
        return found.mean(-1).numpy()

    options = {"layers": [1], "heads": [0, 2], "mode": "zero", "together": True}
    frame = workbench.analyze("head-effect", model, batch, null_samples=30, **options)
    rows = frame[frame["metric"] == "head_effect_divergence"]
    assert rows["head"].isna().all()
    np.testing.assert_allclose(rows["value"], divergence([0, 2]), rtol=1e-4)
    total = model.config.n_head
    pairs = [[a, b] for a in range(total) for b in range(a + 1, total) if [a, b] != [0, 2]]
    effects = np.stack([divergence(pair) for pair in pairs])
    np.testing.assert_allclose(rows["null_low"], effects.min(0), rtol=1e-4)
    np.testing.assert_allclose(rows["null_high"], effects.max(0), rtol=1e-4)
    assert "for random sets of as many heads" in workbench.findings(frame)[0]
    whole = workbench.analyze("head-effect", model, batch, layers=[1], together=True)
    assert whole["null_mean"].isna().all()
    assert whole.attrs["notes"] == ["1 of 1 layers have no other set of as many heads: no null"]
