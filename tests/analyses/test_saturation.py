"""The largest logit and closed gates: loops over pairs, masks and padding, and the maximum of Gaussian samples."""

import itertools

import numpy as np
import pytest
import torch

import workbench
from tests.captures.families import FAMILIES
from tests.runs.test_analyze import bert, images, texts, vit
from workbench.analyses.reductions import Scores
from workbench.analyses.tiles import Maps, Mask, reduce_tiles
from workbench.captures import capture
from workbench.core.errors import InputError


def test_scores_of_rows_are_those_of_a_loop_in_tiles():
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 4, 7, 3, generator=generator), torch.randn(2, 2, 7, 3, generator=generator)
    bias = torch.randn(2, 1, 7, 7, generator=generator)
    bias[0, 0, 2] = -torch.inf  # a query that sees nothing
    for memory in (1 << 20, 1):
        reduced = reduce_tiles(
            q, k, Scores(), scale=0.5, mask=Mask(bias, causal=True), nonfinite="keep", memory=memory
        )
        largest, total, squares = reduced["scores"]
        for input, head, query in itertools.product(range(2), range(4), range(7)):
            scores = [
                0.5 * float(q[input, head, query] @ k[input, head // 2, key])
                + float(bias[input, 0, query, key])
                for key in range(query + 1)
            ]
            scores = [score for score in scores if score > -np.inf]
            assert largest[input, head, query].item() == pytest.approx(max(scores, default=-np.inf), rel=1e-5)
            assert total[input, head, query].item() == pytest.approx(sum(scores), rel=1e-4, abs=1e-5)
            assert squares[input, head, query].item() == pytest.approx(
                sum(score**2 for score in scores), rel=1e-4, abs=1e-5
            )
    with pytest.raises(InputError, match="attention maps hold no scores"):
        Maps(torch.full((1, 1, 2, 2), 0.5)).reduced(Scores())


def test_the_largest_logit_is_that_of_all_visible_pairs():
    model, batch = bert(), texts((9, 4, 7))
    frame = workbench.analyze("saturation", model, batch)
    layers = capture(model, batch, sites=("q", "k", "scale"))
    lengths = batch["attention_mask"].sum(-1).tolist()
    for row in frame[frame["metric"] == "max_logit"].itertuples():
        layer, number = layers[int(row.layer)], int(row.input)
        q, k = (part[number, int(row.head), : lengths[number]] for part in (layer.q, layer.k))
        logits = (layer.scale * q @ k.T).flatten()
        assert row.value == pytest.approx(logits.max().item(), rel=1e-5)
        normal = np.random.default_rng(0).normal(
            logits.mean(), logits.std(unbiased=False), (2000, len(logits))
        )
        drawn = normal.max(1)
        assert row.null_mean == pytest.approx(drawn.mean(), abs=4 * drawn.std() / 20**0.5)
    single = workbench.analyze("saturation", model, batch, batch_size=1)
    for column in ("value", "null_mean"):
        np.testing.assert_allclose(single[column], frame[column], rtol=1e-4)


def test_a_causal_model_has_no_logit_ahead():
    ids = torch.randint(0, 50, (1, 6), generator=torch.Generator().manual_seed(0))
    model = FAMILIES["gpt2"].build()
    frame = workbench.analyze("saturation", model, {"input_ids": ids}, layers=[1], null_samples=0)
    (layer,) = capture(model, {"input_ids": ids}, layers=[1], sites=("q", "k", "scale"))
    logits = (layer.scale * layer.q[0] @ layer.k[0].mT).masked_fill(
        ~torch.ones(6, 6).tril().bool(), -torch.inf
    )
    np.testing.assert_allclose(frame["value"], logits.amax((-2, -1)), rtol=1e-5)


def test_closed_gates_are_counted():
    model = vit()
    with workbench.replace_attention(model, "gated"):
        frame = workbench.analyze("saturation", model, images(), closed=0.45, layers=[2])
        gate = capture(model, images(), layers=[2], sites=("q",))[2].extra["gate"]
    rows = frame[frame["metric"] == "gate_sparsity"]
    expected = [[float((head < 0.45).double().mean()) for head in of_input] for of_input in gate]
    np.testing.assert_allclose(rows["value"].to_numpy().reshape(5, 2), expected)
    assert (rows["null_mean"] == 0.45).all()
    assert 0 < rows["value"].mean() < 1
    assert "of the gates are below 0.45" in workbench.findings(frame)[1]
