"""Nulls of one's own: what they receive, what they may return, and where their names are accepted."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from workbench import analyze
from workbench.analyses import null_values as module
from workbench.analyses.eigenvector_test import eigenvector_test
from workbench.analyses.null_values import SOURCES, null_values
from workbench.analyses.projection_error import projection_errors
from workbench.analyses.value_similarity import value_similarity
from workbench.captures import Capture, LayerRecord, TokenInfo
from workbench.core.errors import InputError, UnknownName

HEADS, TOKENS, DIM = 3, 7, 4


@pytest.fixture
def seen(monkeypatch):
    """What the null "other" received, which is one of a plug-in."""
    received = []

    def other(values, generator):
        received.append(values)
        return values.v + torch.randn(values.v.shape, generator=generator, dtype=torch.float64)

    monkeypatch.setitem(SOURCES, "other", module._of_plugin("other", other))
    return received


def operands(seed=0, inputs=2):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(3, inputs, HEADS, TOKENS, DIM, generator=generator).double()


def layer(padded=0):
    q, k, v = operands()
    labels = [["t"] * TOKENS] * 2
    mask = torch.ones(2, TOKENS, dtype=torch.bool)
    mask[1, TOKENS - padded :] = False
    kinds = [["token" if real else "padding" for real in row] for row in mask.tolist()]
    record = LayerRecord(0, "", q=q, k=k, v=v, attn=(q @ k.mT / 2).softmax(-1), scale=0.5)
    return Capture([record], ("q", "k", "v", "attn"), tokens=TokenInfo(labels, kinds, None, mask)), v


def test_a_null_of_ones_own_is_drawn_by_its_generator(seen):
    v = operands()[2][0, 0]
    drawn = null_values(v, "other", 3, 5)
    generator = torch.Generator().manual_seed(5)
    naive = [v + torch.randn(v.shape, generator=generator, dtype=torch.float64) for _ in range(3)]
    assert torch.equal(drawn, torch.stack(naive))
    assert not torch.equal(drawn, null_values(v, "other", 3, 6))
    assert seen[0].shared is None


@pytest.mark.parametrize(
    "name", ["value-similarity", "eigenvector-test", "projection-error", "attention-spectrum"]
)
def test_it_receives_the_values_of_all_heads_without_padding(seen, name):
    capture, v = layer(padded=2)
    frame = analyze(name, qkv=capture, null="other", null_samples=2, heads=[1])
    assert frame["null"].dropna().unique().tolist() == ["other"] or name == "attention-spectrum"
    assert "other" in set(frame["null"])
    assert len(seen) == 4
    for number, real in ((0, TOKENS), (1, TOKENS - 2)):
        wanted = torch.cat([*v[number, :, :real]], -1)  # side by side
        (first, _) = (values for values in seen if len(values.v) == real)
        assert torch.equal(first.v, v[number, 1, :real])
        assert torch.equal(first.shared, wanted)


def test_nulls_of_one_head_are_handed_no_others(monkeypatch):
    monkeypatch.setattr("workbench.core.operands.check_finite", lambda name, *_: names.append(name))
    names = []
    analyze("value-similarity", qkv=layer()[0], null="all", null_samples=2)
    assert "shared" not in names


def test_its_name_is_an_option_and_another_is_refused(seen):
    with pytest.raises(
        InputError,
        match=r"null must be 'gaussian', .*'all', 'projection' or the name of a plug-in's null; got 'mine'",
    ):
        analyze("value-similarity", qkv=layer()[0], null="mine")
    with pytest.raises(UnknownName, match="other"):
        null_values(operands()[2][0, 0], "othr", 1, 0)


@pytest.mark.parametrize(
    ("sample", "problem"),
    [
        (torch.zeros(2, 2), r"null 'odd' returned \(2, 2\); return a tensor of v's shape \(7, 4\)"),
        (3, "null 'odd' returned int"),
        (torch.full((TOKENS, DIM), torch.nan), "a sample of null 'odd' .* NaN"),
    ],
)
def test_what_is_no_sample_is_refused(monkeypatch, sample, problem):
    monkeypatch.setitem(SOURCES, "odd", module._of_plugin("odd", lambda values, generator: sample))
    with pytest.raises(InputError, match=problem):
        null_values(operands()[2][0, 0], "odd", 1, 0)


def test_projected_values_are_other_projections_of_one_input():
    v = operands()[2][0]
    shared = torch.cat([*v], -1)[:, :5]  # of fewer columns than tokens, so that their span is a claim
    drawn = null_values(v[1], "projection", 3, 8, shared)
    assert torch.equal(drawn, null_values(v[1], "projection", 3, 8, shared))
    assert not torch.allclose(drawn, null_values(v[1], "projection", 3, 9, shared))
    assert torch.linalg.matrix_rank(drawn).tolist() == [DIM] * 3
    weights = np.random.default_rng(8).standard_normal((3, 5, DIM))
    for sample, own in zip(drawn, weights, strict=True):
        assert int(torch.linalg.matrix_rank(torch.cat([shared, sample], -1))) == 5
        assert float(sample.square().mean()) == pytest.approx(float(v[1].square().mean()), rel=1e-12)
        naive = torch.zeros(TOKENS, DIM, dtype=torch.float64)
        for token in range(TOKENS):
            for column in range(DIM):
                naive[token, column] = sum(float(shared[token, at]) * own[at, column] for at in range(5))
        torch.testing.assert_close(sample, naive * float(v[1].norm() / naive.norm()), rtol=1e-12, atol=1e-12)
    assert not null_values(v[1], "projection", 2, 8, 0 * shared).any()


def test_weights_of_projected_values_have_the_covariance_of_those_of_all_heads():
    generator = torch.Generator().manual_seed(2)
    x, weights = (torch.randn(*shape, generator=generator).double() for shape in ((30, 6), (6, 12)))
    drawn = null_values(x[:, :3], "projection", 1000, 1, x @ weights)
    found = torch.linalg.lstsq(x, drawn.movedim(0, 1).flatten(1)).solution
    covariance, wanted = found @ found.T, weights @ weights.T
    torch.testing.assert_close(covariance / covariance.trace(), wanted / wanted.trace(), rtol=0, atol=0.02)


def test_projection_needs_the_values_of_all_heads():
    with pytest.raises(InputError, match="give shared="):
        null_values(operands()[2][0, 0], "projection", 2, 0)


@pytest.mark.parametrize(
    "name", ["value-similarity", "eigenvector-test", "projection-error", "attention-spectrum"]
)
def test_projection_is_a_null_of_every_analysis_of_values(name):
    capture, _ = layer(padded=2)
    frame = analyze(name, qkv=capture, null="projection", null_samples=3)
    rows = frame[frame["null"] == "projection"]
    assert rows["null_mean"].notna().any()
    capture[0].v[1, :, TOKENS - 2 :] = 1e3  # of padding, which no null sees
    again = analyze(name, qkv=capture, null="projection", null_samples=3)
    assert again.equals(frame)
    alone = replace(
        capture[0], **{site: getattr(capture[0], site)[:, :1] for site in ("q", "k", "v", "attn")}
    )
    notes = {
        heads: analyze(
            name,
            qkv=Capture([record], capture.sites, tokens=capture.tokens),
            null="projection",
            null_samples=2,
        ).attrs["notes"]
        for heads, record in {HEADS: capture[0], 1: alone}.items()
    }
    said = {
        heads: [note for note in words if "alone in their layer" in note] for heads, words in notes.items()
    }
    assert not said[HEADS]
    assert [note.partition(" are")[0] for note in said[1]] == ["2 of 2 heads"]


def test_what_is_no_callable_is_refused():
    with pytest.raises(InputError, match="it is a int; give a callable"):
        module._of_plugin("odd", 3)


@pytest.mark.parametrize("function", [value_similarity, eigenvector_test, projection_errors])
def test_shared_that_does_not_fit_is_refused(function):
    q, k, v = operands()
    tensors = (q, k, v) if function is projection_errors else (k, v)
    with pytest.raises(InputError, match="shared of shape"):
        function(*tensors, 0.5, shared=torch.zeros(2, 1, TOKENS - 1, HEADS * DIM).double())


def test_results_of_a_null_of_ones_own_are_not_kept(seen):
    frame = analyze("value-similarity", qkv=layer()[0], null="other", null_samples=2, cache=True)
    assert any("the analysis or its null is of another package" in note for note in frame.attrs["notes"])
