"""Small ToST and XCiT: which block is what, what reaches whom, and what cannot be built."""

import json

import pytest
import torch
from timm.models.xcit import ConvPatchEmbed

from tests.models.architectures.variants import OPTIONS, count, more_than_softmax, moved
from workbench.attention import VARIANTS
from workbench.core.errors import InputError, UnknownName
from workbench.models.architectures import attention_of, build
from workbench.models.architectures.ista import IstaBlock
from workbench.models.architectures.tost import HalvingPatchEmbed
from workbench.models.checkpoints import restore, write_checkpoint
from workbench.studies.training.augmentation import drop_paths

# image 12 in 3×3 patches of 4, 2 channels, 5 classes, width 14, 7 heads of 2, depth 3
SMALL = {
    "name": "tost", "img_size": 12, "patch_size": 4, "in_chans": 2, "num_classes": 5, "embed_dim": 14, "depth": 3,
    "num_heads": 7, "mlp_ratio": 2.0,
}  # fmt: skip
DIM, HEADS, DEPTH, PATCHES = 14, 7, 3, 9
FITTING = [name for name, variant in VARIANTS.items() if variant.causality != "always"]


@pytest.fixture
def images():
    return torch.randn(4, 2, 12, 12, generator=torch.Generator().manual_seed(1))


def with_attention(name, **changes):
    return {**SMALL, "attention": name, "attention_options": OPTIONS.get(name), **changes}


@pytest.mark.parametrize(
    ("name", "layer"), [("tost", "TokenStatisticsAttention"), ("xcit", "CrossCovarianceAttention")]
)
def test_each_has_its_own_attention_and_two_layers_of_class_attention(name, layer, images):
    model = build({**SMALL, "name": name})
    assert {type(block.attn).__name__ for block in model.blocks} == {layer}
    assert [type(block.attn).__name__ for block in model.cls_attn_blocks] == ["ClassAttn", "ClassAttn"]
    assert all(block.tokens_norm for block in model.cls_attn_blocks)
    assert not [path for path, _ in model.named_modules() if "local_mp" in path]
    assert model(images).shape == (4, 5)


def test_what_an_architecture_has_by_itself():
    own = {name: attention_of({"name": name}) for name in ("vit", "lm", "tost", "xcit", "crate")}
    assert own == {"vit": "softmax", "lm": "softmax", "tost": "tssa", "xcit": "xca", "crate": "mssa"}
    assert attention_of({"name": "tost", "attention": "xca"}) == "xca"


def test_xcit_is_tost_with_another_attention(images):
    torch.manual_seed(0)
    one = build({**SMALL, "name": "xcit"}).eval()
    torch.manual_seed(0)
    other = build({**SMALL, "attention": "xca"}).eval()
    assert torch.equal(one(images), other(images))


@pytest.mark.parametrize("patch", [8, 16])
def test_its_patch_embedding_is_xcits_where_that_exists(patch):
    torch.manual_seed(0)
    theirs = ConvPatchEmbed(img_size=3 * patch, patch_size=patch, in_chans=2, embed_dim=16).eval()
    ours = HalvingPatchEmbed(3 * patch, patch, 2, 16).eval()
    ours.load_state_dict(theirs.state_dict())
    images = torch.randn(2, 2, 3 * patch, 3 * patch)
    assert ours.num_patches == theirs.num_patches == 9
    assert torch.equal(ours(images)[0], theirs(images)[0])
    assert ours(images)[1] == theirs(images)[1] == (3, 3)


@pytest.mark.parametrize(("patch", "grid"), [(2, 8), (4, 4), (8, 2), (16, 1)])
def test_every_halving_is_one_convolution(patch, grid):
    model = build({"name": "tost", "img_size": 16, "patch_size": patch}).eval()
    convolutions = [part for part in model.patch_embed.modules() if isinstance(part, torch.nn.Conv2d)]
    assert 2 ** len(convolutions) == patch
    assert model.patch_embed(torch.zeros(1, 1, 16, 16))[1] == (grid, grid)


@pytest.mark.parametrize("name", FITTING)
def test_every_variant_learns_and_comes_back_from_its_checkpoint(name, images, tmp_path):
    description = with_attention(name)
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
    layers = 1 if name == "rpc-sym-asym" else DEPTH
    positions = (64 + 1) * DIM if name in ("bilateral", "nonlocal", "alibi") else 0
    shared = PATCHES * DIM if name == "bilateral" else 0
    expected = count(build(with_attention("softmax"))) - positions + shared
    assert count(build(with_attention(name))) == expected + layers * more_than_softmax(
        name, DIM, HEADS, PATCHES
    )


def test_blocks_are_those_of_the_paper(images):
    model = moved(build(SMALL))
    x, _ = model.patch_embed(images)
    for block in model.blocks:
        after = x + block.ls1.gamma * block.attn(block.norm1(x))
        expected = after + block.ls2.gamma * block.mlp(block.norm2(after))
        torch.testing.assert_close(block(x), expected)
        x = expected
    assert [block.norm1.eps for block in model.blocks] == [1e-6] * DEPTH


def test_tokens_meet_only_in_sums_over_all_of_them(images):
    """Without positions the patches are a set: their order changes nothing that the class token learns."""
    model = moved(build(SMALL)).double()
    model.pos_embed = None
    x, _ = model.patch_embed(images.double())
    order = torch.randperm(PATCHES)

    def through(tokens):
        for block in model.blocks:
            tokens = block(tokens)
        return tokens

    torch.testing.assert_close(through(x[:, order]), through(x)[:, order], rtol=0, atol=1e-12)
    shuffled, plain = (model.forward_cls(through(tokens))[:, 0] for tokens in (x[:, order], x))
    torch.testing.assert_close(shuffled, plain, rtol=0, atol=1e-12)


def test_chosen_layers_get_the_variant_and_the_others_softmax():
    model = build({**SMALL, "attention_layers": [0, 2]})
    assert [type(block.attn).__name__ for block in model.blocks] == [
        "TokenStatisticsAttention", "SoftmaxAttention", "TokenStatisticsAttention"
    ]  # fmt: skip


def test_ista_stands_in_the_place_of_the_mlp_and_its_residual(images):
    model = moved(build({**SMALL, "mlp": "ista"}))
    x, _ = model.patch_embed(images)
    for block in model.blocks:
        assert isinstance(block, IstaBlock)
        after = x + block.ls1.gamma * block.attn(block.norm1(x))
        x = block(x)
        torch.testing.assert_close(x, block.mlp(block.norm2(after)))
        assert x.min() == 0
    assert all(type(block.mlp).__name__ == "Mlp" for block in model.cls_attn_blocks)
    # of an MLP twice as wide and its LayerScale, one square dictionary is left
    fewer = DEPTH * (4 * DIM**2 + 3 * DIM + DIM - DIM**2)
    assert count(model) == count(build(SMALL)) - fewer


def test_its_blocks_can_be_left_out_at_random():
    model = build(SMALL)
    drop_paths(model, 0.4)
    assert [block.drop_path1.drop_prob for block in model.blocks] == [
        0,
        0.2,
        0.4,
    ]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"patch_size": 3}, InputError, "patch_size 3 is no power of two"),
        ({"patch_size": 1}, InputError, "patch_size 1 is no power of two"),
        ({"patch_size": 8}, InputError, "patch_size 8 does not divide img_size 12"),
        ({"num_heads": 4}, InputError, "num_heads 4 does not divide embed_dim 14"),
        ({"patch_size": 8, "img_size": 16}, InputError, "embed_dim 14 cannot be halved 2 times"),
        ({"attention": "tssa-causal"}, InputError, "patches of an image have no order in time"),
        ({"attention_options": {"causal": True}}, InputError, "patches of an image have no order in time"),
        ({"mlp": "istaa"}, UnknownName, "unknown mlp 'istaa'; did you mean 'ista'"),
        ({"boost": True}, UnknownName, "option of architecture 'tost' 'boost'"),
    ],
)
def test_descriptions_that_cannot_be(change, error, message):
    with pytest.raises(error, match=message):
        build({**SMALL, **change})


def test_tokens_are_patches_and_their_places(images):
    model = moved(build(SMALL))
    met = []
    model.blocks[0].register_forward_pre_hook(lambda block, given: met.append(given[0]))
    model(images)
    patches, grid = model.patch_embed(images)
    places = model.pos_embed(1, *grid).flatten(2).mT
    torch.testing.assert_close(met[0], patches + places)
    assert places.abs().max() > 0.1
