import json

import pytest
import torch
import torch.nn.functional as F
from timm.layers import Attention
from timm.models.vision_transformer import VisionTransformer

from tests.models.architectures.variants import OPTIONS, count, more_than_softmax, moved
from workbench.attention import VARIANTS
from workbench.core.errors import InputError, UnknownName
from workbench.models.architectures import build
from workbench.models.checkpoints import restore, write_checkpoint

# image 12, patch 3, 2 channels, 5 classes, width 14, 7 heads of 2, depth 3: every size another
SMALL = {
    "name": "vit",
    "img_size": 12,
    "patch_size": 3,
    "in_chans": 2,
    "num_classes": 5,
    "embed_dim": 14,
    "depth": 3,
    "num_heads": 7,
    "mlp_ratio": 2.0,
}


def test_the_default_is_the_bundled_model():
    model = build({"name": "vit"})
    assert model(torch.zeros(2, 1, 16, 16)).shape == (2, 10)
    assert model.patch_embed.grid_size == (8, 8)
    assert model.get_parameter("pos_embed").shape == (1, 65, 48)
    assert [block.attn.num_heads for block in model.blocks] == [3, 3, 3, 3]


def test_a_dict_that_went_through_json_builds_the_same_model():
    model = build(json.loads(json.dumps(SMALL)))
    assert model(torch.zeros(4, 2, 12, 12)).shape == (4, 5)
    assert {name: p.shape for name, p in model.named_parameters()} == {
        name: p.shape for name, p in build(SMALL).named_parameters()
    }


@pytest.mark.parametrize("std", [0.02, 0.5])
def test_position_embedding_starts_with_the_spread_asked_for(std):
    torch.manual_seed(0)
    embedding = build({"name": "vit", "pos_embed_std": std}).get_parameter("pos_embed")
    # 65 × 48 null samples: the sample's standard deviation is within 1.3 % of the true one at one sigma.
    assert embedding.std().item() == pytest.approx(std, rel=0.06)


def test_building_leaves_the_description_as_it_was():
    description = dict(SMALL)
    build(description)
    assert description == SMALL


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"name": "vti"}, UnknownName, "did you mean 'vit'"),
        ({"embed_dimm": 4}, UnknownName, "did you mean 'embed_dim'"),
        ({"patch_size": 5}, InputError, "patch_size 5 does not divide img_size 12"),
        ({"num_heads": 4}, InputError, "num_heads 4 does not divide embed_dim 14"),
    ],
)
def test_descriptions_that_cannot_be(change, error, message):
    with pytest.raises(error, match=message):
        build({**SMALL, **change})


@pytest.mark.parametrize("description", [{}, {"img_size": 12}, {"name": 3}, "vit"])
def test_a_description_needs_a_name(description):
    with pytest.raises(InputError, match='a table with a "name"'):
        build(description)


# Attention variants and boosted residuals -------------------------------------------------------------------

PATCHES, DIM, HEADS, DEPTH = 16, 14, 7, 3
FITTING = [name for name, variant in VARIANTS.items() if variant.causality != "always"]


def with_attention(name, **changes):
    return {**SMALL, "attention": name, "attention_options": OPTIONS.get(name), **changes}


@pytest.fixture
def images():
    return torch.randn(4, 2, 12, 12, generator=torch.Generator().manual_seed(1))


def test_without_a_variant_it_is_timms_own_to_the_bit(images):
    model = build(SMALL)
    torch.manual_seed(0)
    sizes = {key: value for key, value in SMALL.items() if key != "name"}
    expected = VisionTransformer(**sizes)
    torch.nn.init.normal_(expected.pos_embed, std=0.5)
    assert type(model) is VisionTransformer
    assert {type(block.attn) for block in model.blocks} == {Attention}
    assert list(model.state_dict()) == list(expected.state_dict())
    assert torch.equal(model(images), expected(images))


@pytest.mark.parametrize("boost", [False, True])
@pytest.mark.parametrize("name", FITTING)
def test_every_variant_learns_and_comes_back_from_its_checkpoint(name, boost, images, tmp_path):
    description = with_attention(name, boost=boost)
    model = build(description).train()
    model(images).square().sum().backward()
    still = {key for key, value in model.named_parameters() if value.grad is None}
    assert still <= {f"blocks.{i}.attn.log_lam" for i in range(DEPTH)}  # Λ stands in the KSVD loss alone
    path = tmp_path / "model.safetensors"
    write_checkpoint(path, moved(model), {"architecture": json.loads(json.dumps(description))})
    restored, _ = restore(path)
    assert torch.equal(restored(images), model(images))


@pytest.mark.parametrize("name", FITTING)
def test_number_of_parameters(name):
    plain, tokens = count(build(SMALL)), PATCHES + 1
    layers = 1 if name == "rpc-sym-asym" else DEPTH
    without_positions = tokens * DIM if name in ("nonlocal", "alibi") else 0
    expected = plain + layers * more_than_softmax(name, DIM, HEADS, tokens) - without_positions
    assert count(build(with_attention(name))) == expected
    assert count(build(with_attention(name, boost=True))) == expected + DEPTH


def test_chosen_layers_get_the_variant_and_the_others_keep_theirs(images):
    model = build(with_attention("rpc-sym", attention_layers="0,2", attention_options={"num_iter": 2}))
    kinds = [type(block.attn).__name__ for block in model.blocks]
    assert kinds == ["RPCAttention", "Attention", "RPCAttention"]
    assert [model.blocks[i].attn.layer for i in (0, 2)] == [0, 2]
    assert model(images).shape == (4, 5)


def test_variants_are_drawn_as_timm_draws_its_own():
    big = build({"name": "vit", "attention": "softmax-sym", "depth": 1})
    weights = big.blocks[0].attn.qkv.weight
    assert weights.std().item() == pytest.approx(0.02, rel=0.1)
    assert not big.blocks[0].attn.qkv.bias.any()


def test_boosting_starts_as_the_ordinary_residual(images):
    plain, boosted = moved(build(SMALL)), build({**SMALL, "boost": True}).eval()
    boosted.load_state_dict(plain.state_dict(), strict=False)
    assert [block.boost.t.item() for block in boosted.blocks] == [0, 0, 0]
    assert torch.equal(boosted(images), plain(images))


def test_boosted_blocks_follow_equation_26(images):
    model = moved(build({**SMALL, "boost": True}))
    x = first = model._pos_embed(model.patch_embed(images))
    for block in model.blocks:
        x = block.attn(block.norm1(x)) + block.boost.t * first + (1 - block.boost.t) * x
        x = x + block.mlp(block.norm2(x))
    torch.testing.assert_close(model.blocks(first), x)
    with pytest.raises(InputError, match="run the blocks together"):
        model.blocks[1](first)


def shuffled(images):
    """The images with their 3×3 patches in another order."""
    patches = F.unfold(images, 3, stride=3)[..., torch.randperm(PATCHES)]
    return F.fold(patches, images.shape[-2:], 3, stride=3)


def test_position_enters_bilateral_attention_in_the_logits_only(images):
    model = moved(build(with_attention("bilateral")))
    assert model.pos_embed is None
    assert len({id(block.attn.positions) for block in model.blocks}) == 1
    assert model.blocks[0].attn.positions.shape == (1, PATCHES + 1, DIM)
    assert not torch.allclose(model(shuffled(images)), model(images))
    torch.nn.init.zeros_(model.blocks[0].attn.positions)
    torch.testing.assert_close(model(shuffled(images)), model(images))


def test_non_local_attention_sees_a_bag_of_patches(images):
    model = moved(build(with_attention("nonlocal")))
    torch.testing.assert_close(model(shuffled(images)), model(images))
    assert not torch.allclose(moved(build(SMALL))(shuffled(images)), moved(build(SMALL))(images))


def test_positions_stay_on_the_tokens_while_a_layer_needs_them_there(images, tmp_path):
    description = with_attention("bilateral", attention_layers=[1, 2])
    model = moved(build(description))
    assert model.pos_embed is not None
    assert model.blocks[1].attn.positions is model.blocks[2].attn.positions
    assert model.blocks[1].attn.positions is not model.pos_embed
    write_checkpoint(tmp_path / "x.safetensors", model, {"architecture": description})
    assert torch.equal(restore(tmp_path / "x.safetensors")[0](images), model(images))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"attention": "bilatral"}, UnknownName, "did you mean 'bilateral'"),
        ({"attention": "rpc-sym", "attention_options": {"lambds": 3}}, UnknownName, "did you mean 'lambd'"),
        ({"attention": "softmax", "attention_options": {"lambd": 3}}, UnknownName, "'softmax' 'lambd'"),
        ({"attention": "rpc-sym", "attention_options": [3]}, InputError, "must be a table, or none"),
        ({"attention": "rpc-sym", "attention_layers": [3]}, InputError, "there is no layer 3"),
        ({"attention": "softmax", "attention_layers": [3]}, InputError, "there is no layer 3"),
        ({"attention": "tssa-causal"}, InputError, "class token, which stands first"),
        ({"attention": "tssa", "attention_options": {"causal": True}}, InputError, "class token"),
    ],
)
def test_attention_that_cannot_be(change, error, message):
    with pytest.raises(error, match=message):
        build({**SMALL, **change})
