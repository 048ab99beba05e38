"""Circuits from weights: whole matrices as oracle, planted circuits, and families whose queries are rotated."""

import math

import numpy as np
import pytest
import torch

import workbench
from tests.attention.modules import randn
from tests.captures.families import FAMILIES
from tests.runs.test_analyze import vit
from workbench.analyses.qk_ov_circuits import circuit_singular_values, composition_scores, copying_score
from workbench.captures import attention_geometry, capture, output_projection, output_weight
from workbench.core.errors import InputError

EARLIER, HEADS, WIDTH, DIM, VALUE_DIM = 2, 3, 11, 4, 5


def test_spectra_are_those_of_the_whole_matrix():
    q, k = randn(HEADS, WIDTH, DIM), randn(HEADS, WIDTH, DIM, seed=1)
    for head, values in enumerate(circuit_singular_values(q, k)):
        torch.testing.assert_close(values, torch.linalg.svdvals(q[head] @ k[head].mT)[:DIM])
    v, o = randn(HEADS, WIDTH, VALUE_DIM), randn(HEADS, VALUE_DIM, WIDTH, seed=1)
    for head, score in enumerate(copying_score(v, o)):
        eigenvalues = torch.linalg.eigvals(v[head] @ o[head])
        assert score.item() == pytest.approx((eigenvalues.sum() / eigenvalues.abs().sum()).real.item())


def test_a_head_that_copies_has_the_score_one_and_its_opposite_minus_one():
    v = randn(2, WIDTH, VALUE_DIM)
    o = v.mT.clone()
    o[1] *= -1
    torch.testing.assert_close(copying_score(v, o), torch.tensor([1.0, -1.0], dtype=torch.float64))


def test_composition_is_that_of_the_whole_matrices():
    v, o = randn(EARLIER, WIDTH, VALUE_DIM), randn(EARLIER, VALUE_DIM, WIDTH, seed=1)
    left, right = randn(HEADS, WIDTH, DIM, seed=2), randn(HEADS, WIDTH, DIM, seed=3)
    scores = composition_scores(v, o, left, right)
    assert scores.shape == (EARLIER, HEADS)
    for first, head in np.ndindex(EARLIER, HEADS):
        written, read = v[first] @ o[first], left[head] @ right[head].mT
        expected = (written @ read).norm() / (written.norm() * read.norm())
        assert scores[first, head].item() == pytest.approx(expected.item())


def test_a_head_that_reads_what_another_writes_composes_with_it_alone():
    directions = torch.linalg.qr(randn(WIDTH, 6)).Q
    v, o = randn(2, WIDTH, 3), torch.stack([directions[:, :3].mT, directions[:, 3:].mT])
    scores = composition_scores(v, o, directions[None, :, :3], randn(1, WIDTH, 3, seed=1))
    assert scores[1, 0].item() == pytest.approx(0, abs=1e-15)
    assert scores[0, 0].item() > 1 / math.sqrt(3)  # the least of two matrices of rank 3 that fit


@pytest.mark.parametrize("name", [*FAMILIES])
def test_the_output_projection_by_name_is_the_one_that_makes_the_output(name):
    family = FAMILIES[name]
    model = family.build()
    checked = 0
    for record in capture(model, family.batch(), sites=("head_out", "proj_out")):
        try:
            expected = output_projection(model, record).weight.flatten(0, 1)
        except InputError:
            continue
        assert torch.equal(output_weight(model, record.path, len(expected)), expected)
        checked += 1
    assert checked


def build(name):
    """A model whose norms have gains other than 1."""
    model = vit() if name == "vit" else FAMILIES[name].build()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.data += 0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2))
    return model


def weights_of(model, name):
    """Layer by layer W_Q, W_K, W_V and W_O, each (head, head_dim, width), and the gain of the norm before them."""
    if name == "vit":
        layers = [
            (*block.attn.qkv.weight.chunk(3), block.attn.proj.weight.mT, block.norm1.weight)
            for block in model.blocks
        ]
    elif name == "gpt2":
        layers = [
            (*block.attn.c_attn.weight.mT.chunk(3), block.attn.c_proj.weight, block.ln_1.weight)
            for block in model.transformer.h
        ]
    else:  # its norms follow attention
        parts = [(layer.attention.self, layer.attention.output.dense) for layer in model.encoder.layer]
        layers = [
            (
                own.query.weight,
                own.key.weight,
                own.value.weight,
                dense.weight.mT,
                torch.ones(len(dense.weight)),
            )
            for own, dense in parts
        ]
    heads = attention_geometry(model)[1]
    return [
        (
            *(part.detach().double().unflatten(0, (heads, -1)) for part in layer[:4]),
            layer[4].detach().double(),
        )
        for layer in layers
    ]


@pytest.mark.parametrize("name", ["vit", "gpt2", "bert"])
def test_an_analysis_reads_the_weights_by_their_names(name):
    model = build(name)
    frame = workbench.analyze("qk-ov-circuits", model, null_samples=2)
    qk, ov = [], []
    for q, k, v, o, gain in weights_of(model, name):
        qk.append([torch.diag(gain) @ a.mT @ b @ torch.diag(gain) for a, b in zip(q, k, strict=True)])
        ov.append([torch.diag(gain) @ a.mT @ b for a, b in zip(v, o, strict=True)])
    rows = frame.set_index(["metric", "layer", "head", "candidate"]).sort_index()
    for kind, circuits in (("QK", qk), ("OV", ov)):
        for layer, head in np.ndindex(len(circuits), len(circuits[0])):
            values = torch.linalg.svdvals(circuits[layer][head])
            measured = rows.loc["circuit_singular_value", layer, head, kind]["value"].to_numpy()
            np.testing.assert_allclose(
                measured, (values / values.norm())[: len(measured)], rtol=1e-5, atol=1e-7
            )
    for kind, read in (("Q", lambda w: w), ("K", lambda w: w.mT)):
        score = rows.loc["circuit_composition", 1, 1, kind].set_index("axis").loc["layer 0 head 0", "value"]
        product = ov[0][0] @ read(qk[1][1])
        expected = product.norm() / (ov[0][0].norm() * qk[1][1].norm())
        assert score == pytest.approx(expected.item(), rel=1e-4)
    score = rows.loc["circuit_composition", 1, 1, "V"].set_index("axis").loc["layer 0 head 0", "value"]
    expected = (ov[0][0] @ ov[1][1]).norm() / (ov[0][0].norm() * ov[1][1].norm())
    assert score == pytest.approx(expected.item(), rel=1e-4)


def test_rotated_and_normed_queries_have_no_circuit_of_weights():
    for name, words in (("llama", "rotary positions"), ("vit-qk-norm", "norms")):
        frame = workbench.analyze("qk-ov-circuits", FAMILIES[name].build(), null_samples=0)
        assert set(frame["candidate"]) == {"OV", "V"}
        assert f"heads have {words} after their projections to q and k" in frame.attrs["notes"][0]
    with pytest.raises(InputError, match="has no projections to q, k and v of attention between tokens"):
        workbench.analyze("qk-ov-circuits", FAMILIES["tost"].build(), layers=[0])


def test_grouped_queries_share_their_values():
    model = FAMILIES["llama"].build()
    attn = model.model.layers[0].self_attn
    group = attn.num_key_value_groups
    assert group > 1
    gain = model.model.layers[0].input_layernorm.weight.detach().double()
    size = attn.head_dim
    frame = workbench.analyze("qk-ov-circuits", model, layers=[0], null_samples=0)
    scores = frame[frame["metric"] == "circuit_copying"].set_index("head")["value"]
    for head in scores.index:
        part = slice(head // group * size, (head // group + 1) * size)
        v = gain[:, None] * attn.v_proj.weight.detach().double()[part].mT
        o = attn.o_proj.weight.detach().double()[:, head * size : (head + 1) * size].mT
        eigenvalues = torch.linalg.eigvals(v @ o)
        assert scores[head] == pytest.approx(
            (eigenvalues.real.sum() / eigenvalues.abs().sum()).item(), rel=1e-4
        )


def test_findings_compare_with_gaussian_factors():
    frame = workbench.analyze("qk-ov-circuits", "bundled:digits-vit")
    sentences = workbench.findings(frame)
    assert "effective rank of W_QK" in sentences[0]
    assert "of Gaussian factors" in sentences[0]
    assert any("strongest K-composition: head" in sentence for sentence in sentences)
    chosen = workbench.analyze("qk-ov-circuits", "bundled:digits-vit", heads=[1])
    same = frame[frame["head"] == 1]
    np.testing.assert_allclose(chosen["value"], same["value"])
    np.testing.assert_allclose(chosen["null_mean"], same["null_mean"])
