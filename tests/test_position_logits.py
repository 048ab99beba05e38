"""The analysis `position-logits` through `analyze`: exact on every family that adds positions, and what refuses."""

import numpy as np
import pytest
import torch

import workbench
from tests.captures.families import FAMILIES
from tests.runs.test_analyze import bert, gpt2, same, texts, vit
from tests.runs.test_analyze import images as pictures
from workbench.analyses.layer import Layer
from workbench.analyses.position_logits import logit_shares, terms_of_layer, within_rows
from workbench.captures import capture
from workbench.captures.positions import NoAdditivePositions
from workbench.core.errors import InputError
from workbench.runs.analyze import ANALYSES, analyze

SITES = ANALYSES["position-logits"].sites
ADDITIVE = ["vit", "deit", "deit-distilled", "hf-vit", "bert", "minilm", "roberta", "electra", "luke", "distilbert",
            "albert", "gpt2"]  # fmt: skip


def layers_of(model, batch):
    captured = capture(model, batch, sites=SITES)
    return [Layer(record, ["a", "b", "c"], captured.tokens, 0, model=model) for record in captured]


@pytest.mark.parametrize("name", ADDITIVE)
def test_in_float64_the_four_terms_are_the_models_own_logits(name):
    family = FAMILIES[name]
    batch = family.batch()
    for layer in layers_of(family.build().double(), batch.double() if torch.is_tensor(batch) else batch):
        terms, _ = terms_of_layer(layer)
        record = layer.record
        own = record.scale * record.q @ record.k.mT
        assert terms.dtype == torch.float64
        assert (terms.sum(2) - own).abs().max() < 1e-9
        assert terms.abs().amax((0, 1, 3, 4)).min() > 1e-6  # none of them is empty


def test_hidden_keys_and_padding_have_no_part():
    frame = analyze("position-logits", model=bert(), inputs=texts((9, 4, 7)), per_head=True, null_samples=0)
    short = {key: value[1:2, :4] for key, value in texts((9, 4, 7)).items()}
    alone = analyze("position-logits", model=bert(), inputs=short, per_head=True, null_samples=0)
    found = frame[frame["input"] == "1"]
    np.testing.assert_allclose(found["value"], alone["value"], rtol=1e-4, atol=1e-5)


def test_a_causal_model_is_compared_where_it_looks():
    model, inputs = gpt2(), texts((9,))
    frame = analyze(
        "position-logits", model=model, inputs=inputs, per_head=True, null_samples=0, layers=1, heads=2
    )
    layer = layers_of(model, inputs)[1]
    layer.chosen_heads = [2]
    terms, allowed = terms_of_layer(layer)
    assert torch.equal(allowed[0, 0], torch.ones(9, 9, dtype=torch.bool).tril())
    shares = frame[frame["metric"] == "logit_share"].set_index("candidate")["value"]
    expected = logit_shares(terms, allowed)
    assert shares["token-position"] == pytest.approx(expected.terms[0, 0, 1].item())
    assert shares["cross"] == pytest.approx(expected.cross.item())
    five = ["token-token", "token-position", "position-token", "position-position", "covariances"]
    assert shares[five].sum() == pytest.approx(1)


def test_means_and_their_chance_do_not_depend_on_batches():
    model = vit()
    whole = analyze("position-logits", model=model, inputs=pictures(), null_samples=4)
    same(analyze("position-logits", model=model, inputs=pictures(), null_samples=4, batch_size=2), whole)
    rows = whole[(whole["metric"] == "logit_correlation") & whole["layer"].isna() & whole["input"].isna()]
    assert rows["null"].eq("permutation").all()
    assert (rows["null_low"] <= rows["null_high"]).all()
    assert whole.loc[whole["metric"] == "logit_share", "null"].isna().all()
    heads = analyze("position-logits", model=model, inputs=pictures(), null_samples=4, per_head=True)
    kept = heads[(heads["statistic"] == "abs") & (heads["candidate"] == "cross")]
    overall = rows[(rows["statistic"] == "abs") & (rows["candidate"] == "cross")]
    assert overall["value"].item() == pytest.approx(kept["value"].mean())


def test_a_model_without_additive_positions_is_refused_with_what_it_has():
    with pytest.raises(
        NoAdditivePositions, match=r"LlamaForCausalLM has rotary positions \(model\), and adds no"
    ):
        analyze("position-logits", model=FAMILIES["llama"].build(), inputs=FAMILIES["llama"].batch())
    with pytest.raises(
        NoAdditivePositions, match="bundled:digits-bilateral has positions in the logits of Bilat"
    ):
        analyze("position-logits", model="bundled:digits-bilateral", inputs="bundled:digits", n=1)
    family = FAMILIES["vit-qk-norm"]
    with pytest.raises(InputError, match="left out: has queries that are not a projection"):
        analyze("position-logits", model=family.build(), inputs=family.batch())
    with pytest.raises(InputError, match="holds no 'position'"):
        analyze("position-logits", qkv=capture(vit(), pictures(), sites=("input", "q", "k")))


def test_a_capture_that_holds_positions_is_refused_without_the_weights(tmp_path):
    held = capture(vit(), pictures(), sites=SITES)
    held.save(tmp_path / "a.safetensors")
    with pytest.raises(InputError, match="reads the model's weights"):
        analyze("position-logits", qkv=tmp_path / "a.safetensors")


def test_an_input_of_one_token_is_refused():
    with pytest.raises(InputError, match="at least 2 are needed"):
        analyze("position-logits", model=bert(), inputs={"input_ids": torch.tensor([[5]])})


@pytest.mark.parametrize("model", ["digits-vit", "digits-softmax-boost", "digits-scaled-free"])
def test_the_matrices_of_a_bundled_head_add_up_to_the_models_logits(model):
    loaded = workbench.load(f"bundled:{model}")
    digits = workbench.inputs("bundled:digits", loaded, n=2)
    frame = workbench.position_logit_frame(loaded, digits, layer=2, head=1)
    assert frame.attrs["off"] < 1e-5
    tables = {
        term: part.pivot(index="query", columns="key", values="value") for term, part in frame.groupby("term")
    }
    parts = sum(
        tables[term] for term in ("token-token", "token-position", "position-token", "position-position")
    )
    np.testing.assert_allclose(parts, tables["sum"], atol=1e-12)
    own = capture(loaded, digits[:1], layers=[2], sites=("q", "k", "scale"))[2]
    logits = own.scale * own.q[0, 1].double() @ own.k[0, 1].double().mT
    np.testing.assert_allclose(tables["model"], within_rows(logits), atol=1e-12)
    assert set(frame["head"]) == {1}
    assert len(workbench.position_logit_frame(loaded, digits, max_tokens=5)) == 6 * 25
    with pytest.raises(InputError, match="there is no layer 9"):
        workbench.position_logit_frame(loaded, digits, layer=9)
