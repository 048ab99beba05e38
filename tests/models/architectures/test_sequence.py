import json

import pytest
import torch
import torch.nn.functional as F

from tests.models.architectures.variants import OPTIONS, count, more_than_softmax, moved
from workbench.attention import VARIANTS
from workbench.core.errors import InputError, UnknownName
from workbench.models.architectures import build
from workbench.models.checkpoints import read_checkpoint, restore, write_checkpoint

BATCH, CONTEXT, VOCABULARY, CHANNELS, CLASSES, DIM, HEADS, DEPTH = 2, 11, 13, 5, 4, 14, 7, 3
SMALL = {
    "name": "sequence",
    "vocabulary": VOCABULARY,
    "context": CONTEXT,
    "num_classes": CLASSES,
    "embed_dim": DIM,
    "depth": DEPTH,
    "num_heads": HEADS,
}
SERIES = {**SMALL, "vocabulary": None, "channels": CHANNELS}
FITTING = [name for name, variant in VARIANTS.items() if variant.causality != "always"]


def with_attention(name, kind=SMALL, **changes):
    return {**kind, "attention": name, "attention_options": OPTIONS.get(name), **changes}


@pytest.fixture
def ids():
    return torch.randint(VOCABULARY, (BATCH, CONTEXT), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def values():
    generator = torch.Generator().manual_seed(2)
    return torch.randn(BATCH, CONTEXT, CHANNELS, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize("boost", [False, True])
@pytest.mark.parametrize("name", FITTING)
def test_appending_padding_changes_no_logits(name, boost, values):
    model = moved(build(with_attention(name, SERIES, boost=boost))).double()
    lengths = (7, 4)
    mask = torch.arange(CONTEXT) < torch.tensor(lengths)[:, None]
    together = model(values, mask.long())
    for row, length in enumerate(lengths):
        alone = model(values[row : row + 1, :length])
        torch.testing.assert_close(together[row : row + 1], alone, rtol=0, atol=1e-12)
    loud = torch.where(mask[..., None], values, 50.0)  # whatever stands in the padding
    torch.testing.assert_close(model(loud, mask.long()), together, rtol=0, atol=1e-12)
    assert not torch.allclose(model(values), together)


@pytest.mark.parametrize("name", FITTING)
def test_padding_of_tokens_changes_no_logits_either(name, ids):
    model = moved(build(with_attention(name))).double()
    padded = F.pad(ids[:, :6], (0, 5))
    mask = (torch.arange(CONTEXT) < 6).long().expand(BATCH, -1)
    torch.testing.assert_close(model(padded, mask), model(ids[:, :6]), rtol=0, atol=1e-12)


@pytest.mark.parametrize("boost", [False, True])
@pytest.mark.parametrize("name", FITTING)
def test_every_variant_learns_and_comes_back_from_its_checkpoint(name, boost, ids, tmp_path):
    description = with_attention(name, boost=boost)
    model = build(description).train()
    F.cross_entropy(model(ids), torch.tensor([3, 1])).backward()
    still = {key for key, value in model.named_parameters() if value.grad is None}
    assert still <= {f"blocks.{i}.attn.log_lam" for i in range(DEPTH)}  # Λ stands in the KSVD loss alone
    path = tmp_path / "model.safetensors"
    write_checkpoint(path, moved(model), {"architecture": json.loads(json.dumps(description))})
    restored, _ = restore(path)
    assert torch.equal(restored(ids), model(ids))


@pytest.mark.parametrize(("kind", "embedding"), [(SMALL, VOCABULARY * DIM), (SERIES, (CHANNELS + 1) * DIM)])
@pytest.mark.parametrize("name", FITTING)
def test_number_of_parameters(name, kind, embedding):
    per_layer = 4 * (DIM**2 + DIM) + (2 * DIM * 2 * DIM + 3 * DIM) + 4 * DIM  # attention, MLP, two norms
    layers = 1 if name == "rpc-sym-asym" else DEPTH
    positions = 0 if name in ("nonlocal", "alibi") else CONTEXT * DIM
    expected = embedding + positions + DEPTH * per_layer + 2 * DIM + (DIM + 1) * CLASSES
    expected += layers * more_than_softmax(name, DIM, HEADS, CONTEXT)
    assert count(build(with_attention(name, kind))) == expected
    assert count(build(with_attention(name, kind, boost=True))) == expected + DEPTH


def test_logits_are_those_of_the_mean_over_real_tokens(values):
    model = moved(build(SERIES)).double()
    mask = torch.ones(BATCH, CONTEXT, dtype=torch.long)
    mask[1, 6:] = 0
    x = model.embed(values) + model.pos_embed
    for block in model.blocks:
        x = block(x, attn_mask=mask.bool())
    x = model.norm(x)
    expected = torch.stack([model.head(x[0].mean(0)), model.head(x[1, :6].mean(0))])
    torch.testing.assert_close(model(values, mask), expected)


def test_the_default_is_the_model_of_the_long_range_arena():
    model = build({"name": "sequence", "vocabulary": 258, "context": 4000})
    assert model(torch.zeros(3, 40, dtype=torch.long)).shape == (3, 2)
    assert [(block.attn.num_heads, block.attn.head_dim) for block in model.blocks] == [(2, 32)] * 2
    assert [block.mlp.fc1.out_features for block in model.blocks] == [128, 128]
    assert model.pos_embed.std().item() == pytest.approx(0.02, rel=0.05)


def test_without_positions_the_order_of_the_tokens_says_nothing(ids):
    turned = ids.flip(1)
    plain, without = (moved(build(with_attention(name))).double() for name in ("softmax", "nonlocal"))
    assert not torch.allclose(plain(turned), plain(ids))
    torch.testing.assert_close(without(turned), without(ids), rtol=0, atol=1e-12)


def test_bilateral_layers_share_positions_and_a_checkpoint_holds_them_once(tmp_path):
    description = with_attention("bilateral")
    model = moved(build(description))
    assert model.pos_embed is None
    write_checkpoint(tmp_path / "x.safetensors", model, {"architecture": description})
    state, _ = read_checkpoint(tmp_path / "x.safetensors")
    assert [name for name in state if "positions" in name] == ["blocks.0.attn.positions"]


@pytest.mark.parametrize("name", [name for name in FITTING if name not in ("nonlocal", "alibi")])
def test_a_sequence_beyond_the_context_is_refused(name):
    model = build(with_attention(name, SERIES))
    with pytest.raises(InputError, match=r"context=11 tokens, but got 12; shorten the sequence"):
        model(torch.zeros(1, CONTEXT + 1, CHANNELS))


@pytest.mark.parametrize("name", ["nonlocal", "alibi"])
def test_without_learned_positions_there_is_no_limit(name):
    model = build(with_attention(name))
    assert model.max_length is None
    assert model(torch.zeros(1, 3 * CONTEXT, dtype=torch.long)).shape == (1, CLASSES)


def test_a_sequence_of_padding_only_stays_finite(ids):
    nothing = torch.zeros(BATCH, CONTEXT, dtype=torch.long)
    assert build(SMALL)(ids, nothing).isfinite().all()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            {"channels": 3},
            InputError,
            r"either tokens .* or real-valued channels .*vocabulary=13, channels=3",
        ),
        ({"vocabulary": None}, InputError, "got vocabulary=None, channels=None"),
        ({"num_heads": 4}, InputError, "num_heads 4 does not divide embed_dim 14"),
        ({"attention": "tssa-causal"}, InputError, "is causal: a classifier reads its whole sequence"),
        ({"attention": "alibi", "attention_options": {"causal": True}}, InputError, "is causal"),
        ({"attention": "bilatral"}, UnknownName, "did you mean 'bilateral'"),
        ({"classes": 3}, UnknownName, "did you mean 'num_classes'"),
    ],
)
def test_descriptions_that_cannot_be(change, error, message):
    with pytest.raises(error, match=message):
        build({**SMALL, **change})
