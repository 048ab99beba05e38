import json
import math

import pytest
import torch
import torch.nn.functional as F

from tests.models.architectures.variants import OPTIONS, count, more_than_softmax, moved
from workbench.attention import VARIANTS
from workbench.core.errors import InputError, UnknownName
from workbench.models.architectures import build
from workbench.models.checkpoints import read_checkpoint, restore, write_checkpoint

BATCH, CONTEXT, VOCABULARY, DIM, HEADS, DEPTH = 2, 11, 13, 14, 7, 3
SMALL = {
    "name": "lm",
    "vocabulary": VOCABULARY,
    "context": CONTEXT,
    "embed_dim": DIM,
    "depth": DEPTH,
    "num_heads": HEADS,
    "mlp_ratio": 2.0,
}
CAUSAL = [name for name, variant in VARIANTS.items() if variant.causality != "never"]


def with_attention(name, **changes):
    return {**SMALL, "attention": name, "attention_options": OPTIONS.get(name), **changes}


@pytest.fixture
def ids():
    return torch.randint(VOCABULARY, (BATCH, CONTEXT), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("boost", [False, True])
@pytest.mark.parametrize("name", CAUSAL)
def test_no_variant_looks_ahead(name, boost, ids):
    model = moved(build(with_attention(name, boost=boost))).double()
    before = model(ids)
    for t in (0, 4, CONTEXT - 1):
        changed = ids.clone()
        changed[:, t] = (ids[:, t] + 1) % VOCABULARY
        after = model(changed)
        torch.testing.assert_close(after[:, :t], before[:, :t], rtol=0, atol=1e-12)
        assert (after[:, t:] != before[:, t:]).any(-1).all()


@pytest.mark.parametrize("name", CAUSAL)
def test_padding_at_the_end_changes_nothing_before_it(name, ids):
    model = moved(build(with_attention(name))).double()
    mask = torch.ones(BATCH, CONTEXT, dtype=torch.long)
    mask[1, 6:] = 0
    padded = model(input_ids=ids, attention_mask=mask)
    torch.testing.assert_close(padded[:1], model(ids[:1]), rtol=0, atol=1e-12)
    torch.testing.assert_close(padded[1:, :6], model(ids[1:, :6]), rtol=0, atol=1e-12)


@pytest.mark.parametrize("boost", [False, True])
@pytest.mark.parametrize("name", CAUSAL)
def test_every_variant_learns_and_comes_back_from_its_checkpoint(name, boost, ids, tmp_path):
    description = with_attention(name, boost=boost)
    model = build(description).train()
    F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
    still = {key for key, value in model.named_parameters() if value.grad is None}
    assert still <= {f"blocks.{i}.attn.log_lam" for i in range(DEPTH)}  # Λ stands in the KSVD loss alone
    path = tmp_path / "model.safetensors"
    write_checkpoint(path, moved(model), {"architecture": json.loads(json.dumps(description))})
    restored, _ = restore(path)
    assert torch.equal(restored(ids), model(ids))


@pytest.mark.parametrize("name", CAUSAL)
def test_number_of_parameters(name):
    """Tied head: the embedding is the only matrix as tall as the vocabulary."""
    per_layer = 4 * (DIM**2 + DIM) + (2 * DIM * 2 * DIM + 3 * DIM) + 4 * DIM  # attention, MLP, two norms
    # Asked to be causal, these are what the table lists under another name.
    kind = {"primal": "primal-causal", "tssa": "tssa-causal"}.get(name, name)
    layers = 1 if name == "rpc-sym-asym" else DEPTH
    positions = 0 if name in ("nonlocal", "alibi") else CONTEXT * DIM
    expected = VOCABULARY * DIM + positions + DEPTH * per_layer + 2 * DIM
    expected += layers * more_than_softmax(kind, DIM, HEADS, CONTEXT)
    assert count(build(with_attention(name))) == expected
    assert count(build(with_attention(name, boost=True))) == expected + DEPTH


def test_the_default_fits_the_bundled_prose():
    model = build({"name": "lm"})
    assert count(model) == 466_944
    assert model(torch.zeros(3, 128, dtype=torch.long)).shape == (3, 128, 74)
    assert model.max_length == 128


def test_it_starts_near_chance(ids):
    logits = build(SMALL)(ids)
    loss = F.cross_entropy(logits.flatten(0, 1), ids.roll(1).flatten())
    assert loss.item() == pytest.approx(math.log(VOCABULARY), rel=0.05)


def test_layer_scale_and_norms_are_those_asked_for(ids):
    model = build({**SMALL, "attention": "tssa-causal", "layer_scale": 1e-3, "norm_eps": 1e-5})
    assert all(torch.equal(block.ls1.gamma, torch.full((DIM,), 1e-3)) for block in model.blocks)
    assert {part.eps for part in model.modules() if isinstance(part, torch.nn.LayerNorm)} == {1e-5}
    x = model.embed(ids) + model.pos_embed
    for block in model.blocks:
        after = x + 1e-3 * block.attn(block.norm1(x))
        torch.testing.assert_close(block(x), after + 1e-3 * block.mlp(block.norm2(after)))
        x = block(x)
    assert {part.eps for part in build(SMALL).modules() if isinstance(part, torch.nn.LayerNorm)} == {1e-6}


def test_the_head_is_the_embedding(ids):
    model = moved(build(SMALL))
    hidden = model.norm(model.blocks(model.embed(ids) + model.pos_embed))
    torch.testing.assert_close(model(ids), hidden @ model.embed.weight.T)


def test_positions_start_with_the_spread_that_suits_their_place():
    size = {"name": "lm", "depth": 1}
    assert build(size).pos_embed.std().item() == pytest.approx(0.02, rel=0.05)
    positions = build({**size, "attention": "bilateral"}).blocks[0].attn.positions
    assert positions.square().sum(-1).mean().item() == pytest.approx(96 / 2, rel=0.05)
    for name in ("softmax", "bilateral"):
        model = build({**size, "attention": name, "pos_embed_std": 0.3})
        positions = model.blocks[0].attn.positions if name == "bilateral" else model.pos_embed
        assert positions.std().item() == pytest.approx(0.3, rel=0.05)


def test_the_other_layers_are_causal_softmax(ids):
    model = build(with_attention("rpc-sym", attention_layers=[0]))
    assert [type(block.attn).__name__ for block in model.blocks] == [
        "RPCAttention", "SoftmaxAttention", "SoftmaxAttention"
    ]  # fmt: skip
    assert all(block.attn.causal for block in model.blocks)


def test_boosting_starts_as_the_ordinary_residual(ids):
    plain, boosted = moved(build(SMALL)), build({**SMALL, "boost": True}).eval()
    boosted.load_state_dict(plain.state_dict(), strict=False)
    assert torch.equal(boosted(ids), plain(ids))
    F.cross_entropy(boosted(ids).flatten(0, 1), ids.flatten()).backward()
    # In the first layer the stream is what entered it, so t changes nothing there.
    assert [block.boost.t.grad.item() != 0 for block in boosted.blocks] == [False, True, True]


def test_bilateral_layers_share_positions_and_a_checkpoint_holds_them_once(ids, tmp_path):
    description = with_attention("bilateral")
    model = moved(build(description))
    assert model.pos_embed is None
    write_checkpoint(tmp_path / "x.safetensors", model, {"architecture": description})
    state, _ = read_checkpoint(tmp_path / "x.safetensors")
    assert [name for name in state if "positions" in name] == ["blocks.0.attn.positions"]
    restored, _ = restore(tmp_path / "x.safetensors")
    assert len({id(block.attn.positions) for block in restored.blocks}) == 1


@pytest.mark.parametrize("name", [name for name in CAUSAL if name not in ("nonlocal", "alibi")])
def test_a_text_beyond_the_context_is_refused(name):
    model = build(with_attention(name))
    with pytest.raises(InputError, match=r"context=11 tokens, but got 12"):
        model(torch.zeros(1, CONTEXT + 1, dtype=torch.long))


@pytest.mark.parametrize("name", ["nonlocal", "alibi"])
def test_without_learned_positions_there_is_no_limit(name):
    model = build(with_attention(name))
    assert model.max_length is None
    assert model(torch.zeros(1, 3 * CONTEXT, dtype=torch.long)).shape == (1, 3 * CONTEXT, VOCABULARY)
    mixed = build(with_attention(name, attention_layers=[0]))
    assert mixed.max_length == CONTEXT


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"num_heads": 4}, InputError, "num_heads 4 does not divide embed_dim 14"),
        ({"attention": "xca"}, InputError, "no causal form; a language model takes softmax, "),
        ({"attention": "tssa_causal"}, UnknownName, "did you mean 'tssa-causal'"),
        ({"attention": "alibi", "attention_options": {"slope": 1}}, UnknownName, "option of attention"),
        ({"attention": "alibi", "attention_options": {"causal": False}}, InputError, "reads from left"),
        ({"vocab": 3}, UnknownName, "did you mean 'vocabulary'"),
    ],
)
def test_descriptions_that_cannot_be(change, error, message):
    with pytest.raises(error, match=message):
        build({**SMALL, **change})
