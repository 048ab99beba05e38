"""Logits split by content and position: exact sums, shares against a naive loop, shuffles that can be counted."""

import itertools
import math

import numpy as np
import pytest
import torch

import workbench
from tests.attention.modules import randn
from tests.captures.families import FAMILIES
from tests.runs.test_analyze import bert, gpt2, images, same, texts, vit
from workbench.analyses.layer import Layer
from workbench.analyses.position_logits import (
    TERMS,
    cross_correlation,
    logit_shares,
    logit_terms,
    shuffled_orders,
    split_projection,
    terms_of_layer,
    within_rows,
)
from workbench.captures import capture
from workbench.captures.position_path import NoAdditivePositions
from workbench.core.errors import InputError
from workbench.runs.analyze import ANALYSES, analyze

BATCH, HEADS, TOKENS, WIDTH, DIM = 2, 3, 7, 11, 5


@pytest.fixture
def parts():
    """x, p, and weight and bias of queries and keys."""
    x, p = randn(BATCH, TOKENS, WIDTH), randn(BATCH, TOKENS, WIDTH, seed=1)
    return x, p, randn(2, HEADS, WIDTH, DIM, seed=2), randn(2, HEADS, DIM, seed=3)


@pytest.fixture
def terms(parts):
    x, p, weight, bias = parts
    q, k = (split_projection(x, p, weight[i], bias[i]) for i in range(2))
    return logit_terms(q, k, 0.3)


def causal():
    return torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()


def test_the_four_terms_add_up_to_the_logits(parts, terms):
    x, _, weight, bias = parts
    q, k = (x[:, None] @ weight[i] + bias[i][:, None] for i in range(2))
    assert terms.shape == (BATCH, HEADS, 4, TOKENS, TOKENS)
    torch.testing.assert_close(terms.sum(2), 0.3 * q @ k.mT, rtol=0, atol=1e-12)


def test_each_term_is_the_product_it_is_called_by(parts, terms):
    x, p, weight, bias = parts
    i, j, head = 4, 2, 1
    of = {"token": x[0] - p[0], "position": p[0]}
    for number, name in enumerate(TERMS):
        query, key = name.split("-")
        q = of[query][i] @ weight[0, head] + bias[0, head] * (query == "token")
        k = of[key][j] @ weight[1, head] + bias[1, head] * (key == "token")
        assert terms[0, head, number, i, j].item() == pytest.approx(0.3 * float(q @ k), rel=1e-12)


@pytest.mark.parametrize("masked", [False, True])
def test_shares_are_those_of_a_loop_over_rows_and_add_up_to_one(terms, masked):
    allowed = causal() if masked else None
    found = logit_shares(terms, allowed)
    torch.testing.assert_close(found.terms.sum(-1) + found.covariances, torch.ones(BATCH, HEADS).double())
    one = terms[1, 2].numpy()
    rows = [
        [one[:, i, j] for j in range(TOKENS) if not masked or j <= i] for i in range(TOKENS)
    ]  # of each query (key, term)
    centred = np.concatenate([np.array(row) - np.mean(row, 0) for row in rows])
    products = centred.T @ centred  # term × term
    total = products.sum()
    np.testing.assert_allclose(found.terms[1, 2], np.diag(products) / total, rtol=1e-12)
    pairs = sum(2 * products[a, b] for a, b in itertools.combinations(range(4), 2))
    assert found.covariances[1, 2].item() == pytest.approx(pairs / total)
    cross = products[1, 1] + products[2, 2] + 2 * products[1, 2]
    assert found.cross[1, 2].item() == pytest.approx(cross / total)


def test_softmax_and_shares_do_not_see_what_is_constant_in_a_row(terms):
    moved = terms + randn(BATCH, HEADS, 4, TOKENS, 1, seed=5)
    torch.testing.assert_close(logit_shares(moved).terms, logit_shares(terms).terms)
    whole, shifted = terms.sum(2), within_rows(terms.sum(2))
    torch.testing.assert_close(whole.softmax(-1), shifted.softmax(-1))


def test_without_positions_everything_is_token_token(parts):
    x, p, weight, bias = parts
    q, k = (split_projection(x, torch.zeros_like(p), weight[i], bias[i]) for i in range(2))
    found = logit_shares(logit_terms(q, k, 1.0))
    assert found.terms[..., 0].eq(1).all()
    assert found.terms[..., 1:].eq(0).all()
    assert found.covariances.abs().max() == 0


def correlation(a, b, allowed=None):
    """Correlation within rows, row by row; the standard deviations are those of ``a`` and ``b``."""
    rows = range(len(a))
    keep = [[j for j in rows if allowed is None or allowed[i, j]] for i in rows]
    a, b = (np.concatenate([m[i, keep[i]] - m[i, keep[i]].mean() for i in rows]) for m in (a, b))
    return a @ b / math.sqrt((a @ a) * (b @ b))


@pytest.mark.parametrize("masked", [False, True])
def test_correlations_are_those_of_a_loop(terms, masked):
    allowed = causal() if masked else None
    identity = torch.arange(TOKENS).expand(BATCH, HEADS, 1, TOKENS)
    found = cross_correlation(terms, identity, allowed)
    one = terms[0, 1].numpy()
    rest = one[0] + one[3]
    expected = [correlation(part, rest, allowed) for part in (one[1], one[2], one[1] + one[2])]
    np.testing.assert_allclose(found.observed[0, 1], expected, rtol=1e-10)
    # positions that stay where they are give what is observed
    torch.testing.assert_close(found.shuffled[..., 0], found.observed)


def test_a_shuffle_is_the_cross_terms_of_shuffled_positions(parts, terms):
    x, p, weight, bias = parts
    orders = torch.stack(
        [shuffled_orders(TOKENS, 4, torch.Generator().manual_seed(i)) for i in range(BATCH * HEADS)]
    ).view(BATCH, HEADS, 4, TOKENS)
    found = cross_correlation(terms, orders)
    order = orders[1, 2, 3]
    content = x - p
    q, k = (split_projection(content + p[:, order], p[:, order], weight[i], bias[i]) for i in range(2))
    moved = logit_terms(q, k, 0.3)[1, 2].numpy()
    rest = (terms[1, 2, 0] + terms[1, 2, 3]).numpy()
    expected = [correlation(moved[1], rest), correlation(moved[2], rest)]
    np.testing.assert_allclose(found.shuffled[1, 2, :2, 3], expected, rtol=1e-10)
    # and their variance is what it was, which is why it is not tested
    before, after = (logit_shares(part[None]).terms for part in (terms[1, 2], torch.as_tensor(moved)))
    ratio = after[0, 1:3] / after[0, 1:2] / (before[0, 1:3] / before[0, 1:2])
    np.testing.assert_allclose(ratio, 1, rtol=1e-10)


def test_padding_keeps_its_place_and_every_real_token_moves_among_the_real():
    real = torch.tensor([True, True, False, True, True, False, True])
    orders = shuffled_orders(TOKENS, 50, torch.Generator().manual_seed(0), real)
    assert (orders[:, ~real] == torch.tensor([2, 5])).all()
    assert (orders.sort(-1).values == torch.arange(TOKENS)).all()
    assert len(orders.unique(dim=0)) > 30


def test_terms_that_line_up_correlate_and_noise_does_not():
    tokens = 40
    rest = randn(tokens, tokens)
    aligned = torch.stack([rest, 0.5 * rest, torch.zeros_like(rest), torch.zeros_like(rest)])
    noise = torch.stack([rest, *randn(2, tokens, tokens, seed=1), torch.zeros_like(rest)])
    orders = shuffled_orders(tokens, 40, torch.Generator().manual_seed(0))
    found = cross_correlation(aligned, orders)
    assert found.observed[0].item() == pytest.approx(1)
    assert found.observed[1].isnan()  # a term of zeros has no correlation
    assert found.shuffled[0].abs().max() < 0.2
    assert cross_correlation(noise, orders).observed.abs().max() < 0.1


def test_what_cannot_be_split_is_named(parts, terms):
    x, p, weight, _ = parts
    with pytest.raises(InputError, match="one position per token"):
        split_projection(x, p[:, :3], weight[0])
    x[1, 2, 3] = math.nan
    with pytest.raises(InputError, match="first is nan at batch 1, token 2, width 3"):
        split_projection(x, p, weight[0])
    with pytest.raises(InputError, match=r"expected \(…, 4, query, key\)"):
        logit_shares(terms[:, :, :3])
    with pytest.raises(InputError, match="at least 2 are needed"):
        logit_shares(terms[..., :1])
    assert logit_shares(torch.ones(4, 3, 3)).covariances.isnan()  # logits that do not vary


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
    whole = analyze("position-logits", model=model, inputs=images(), null_samples=4)
    same(analyze("position-logits", model=model, inputs=images(), null_samples=4, batch_size=2), whole)
    rows = whole[(whole["metric"] == "logit_correlation") & whole["layer"].isna() & whole["input"].isna()]
    assert rows["null"].eq("permutation").all()
    assert (rows["null_low"] <= rows["null_high"]).all()
    assert whole.loc[whole["metric"] == "logit_share", "null"].isna().all()
    heads = analyze("position-logits", model=model, inputs=images(), null_samples=4, per_head=True)
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
        analyze("position-logits", qkv=capture(vit(), images(), sites=("input", "q", "k")))


def test_a_capture_that_holds_positions_is_refused_without_the_weights(tmp_path):
    held = capture(vit(), images(), sites=SITES)
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
    run = {"model": loaded, "inputs": digits, "per": "pair"}
    both = analyze("position-logits", layers=[2], heads=[1], **run)
    assert both["input"].unique().tolist() == digits.ids
    frame = both[both["input"] == digits.ids[0]]
    tables = {
        term: part.pivot(index="query", columns="key", values="value") for term, part in frame.groupby("term")
    }
    parts = sum(
        tables[term] for term in ("token-token", "token-position", "position-token", "position-position")
    )
    np.testing.assert_allclose(parts, tables["sum"], atol=1e-12)
    own = capture(loaded, digits, layers=[2], sites=("q", "k", "scale"))[2]
    logits = own.scale * own.q[0, 1].double() @ own.k[0, 1].double().mT
    np.testing.assert_allclose(tables["model"], within_rows(logits), atol=1e-12)
    assert set(frame["head"]) == {1}
    np.testing.assert_allclose(tables["sum"], tables["model"], atol=1e-5 * tables["model"].abs().max().max())
    heads = len(
        analyze("position-logits", layers=[2], per_head=True, model=loaded, inputs=digits)["head"].unique()
    )
    assert len(analyze("position-logits", layers=[2], max_tokens=5, **run)) == 2 * heads * 6 * 25
    with pytest.raises(InputError, match="there is no layer 9"):
        analyze("position-logits", layers=[9], **run)
