"""FAN: its channel attention by hand, what RPC-Attention takes the place of, and what a capture of it holds."""

import pytest
import torch
import torch.nn.functional as F

import workbench
from tests.models.architectures.variants import OPTIONS, moved
from workbench.attention import VARIANTS
from workbench.attention.rpc import RPCAttention
from workbench.core.errors import InputError
from workbench.models.architectures import build
from workbench.models.architectures.fan import ChannelAttention
from workbench.models.checkpoints import restore, write_checkpoint
from workbench.studies.training import load_recipe

# image 12 in 3×3 patches of 4, 2 channels, 5 classes, width 14, 7 heads of 2, depth 2
SMALL = {
    "name": "fan", "img_size": 12, "patch_size": 4, "in_chans": 2, "num_classes": 5, "embed_dim": 14, "depth": 2,
    "num_heads": 7, "mlp_ratio": 2.0,
}  # fmt: skip
FITTING = [name for name, variant in VARIANTS.items() if variant.causality != "always"]


@pytest.fixture
def images():
    return torch.randn(4, 2, 12, 12, generator=torch.Generator().manual_seed(1))


def test_channel_attention_is_the_formula():
    batch, tokens, heads, width = 2, 6, 2, 3
    module = moved(ChannelAttention(heads * width, heads, hidden=5, side=2)).double()
    x = torch.randn(batch, tokens, heads * width, dtype=torch.float64)
    output = module(x)
    q, v = module.qkv(x), module.values(x)
    for image in range(batch):
        for head in range(heads):
            own = slice(head * width, (head + 1) * width)
            profiles = [torch.exp(column) / torch.exp(column).sum() for column in x[image, :, own].T]
            mean = sum(profiles) / width
            for channel in range(own.start, own.stop):
                soft = torch.exp(q[image, :, channel]) / torch.exp(q[image, :, channel]).sum()
                weight = module.temperature[head, 0] / (1 + torch.exp(-(soft * mean).sum()))
                torch.testing.assert_close(output[image, :, channel], weight * v[image, :, channel])


def test_only_neighbours_are_mixed_on_the_way_to_the_values():
    module = moved(ChannelAttention(4, 2, hidden=5, side=4)).double()
    x = torch.randn(1, 12, 4, dtype=torch.float64)  # 4 rows of 3
    changed = x.clone()
    changed[0, 0] += 1
    differs = (module.values(changed) - module.values(x)).abs().amax(-1)[0].reshape(4, 3) > 1e-9
    # two convolutions of 3×3 reach two places away
    assert differs.tolist() == [[True] * 3, [True] * 3, [True] * 3, [False] * 3]


@pytest.mark.parametrize("name", FITTING)
def test_every_variant_learns_and_comes_back_from_its_checkpoint(name, images, tmp_path):
    description = {**SMALL, "attention": name, "attention_options": OPTIONS.get(name)}
    model = build(description).train()
    F.cross_entropy(model(images), torch.tensor([3, 1, 0, 4])).backward()
    still = {key for key, value in model.named_parameters() if value.grad is None}
    assert still <= {f"blocks.{layer}.attn.log_lam" for layer in (0, 2)}
    write_checkpoint(tmp_path / "x.safetensors", moved(model), {"architecture": description})
    assert torch.equal(restore(tmp_path / "x.safetensors")[0](images), model(images))


@pytest.mark.parametrize("name", ["softmax", "rpc-asym", "tssa", "bilateral"])
def test_a_capture_sees_both_attentions_exactly(name, images):
    model = moved(build({**SMALL, "attention": name}))
    sites = ("q", "k", "v", "attn", "head_out", "resid_pre", "resid_mid", "resid_post")
    capture = workbench.capture(model, images, sites=sites)
    torch.testing.assert_close(capture.result, model(images))
    halves = capture.layers[:4]
    kind = VARIANTS[name].attends
    assert [record.kind for record in halves] == [kind, "channel", kind, "channel"]
    for record, half in zip(halves, model.blocks, strict=True):
        torch.testing.assert_close(record.resid_mid, half(record.resid_pre))
        torch.testing.assert_close(record.resid_post, record.resid_mid)
    for record in halves[1::2]:
        assert record.attn.shape == (4, 7, 2, 2)
        torch.testing.assert_close((record.attn @ record.v.mT).mT, record.head_out)


def test_the_recipes_have_rpc_in_the_first_layer_of_token_attention():
    for recipe in ("imagenet-fan-tiny", "digits-fan", "fan-embedded"):
        chosen = load_recipe(recipe, "rpc-asym")
        model = build(chosen.completed({"num_classes": 3}).architecture)
        robust = [
            number
            for number, half in enumerate(model.blocks)
            if isinstance(half.attn, RPCAttention) and half.attn.num_iter > 0
        ]
        assert robust == [0]
        assert all(isinstance(half.attn, ChannelAttention) for half in model.blocks[1::2])


@pytest.mark.parametrize("layers", [None, "0"])
def test_attention_over_tokens_has_room_for_the_patches_and_no_more(layers):
    model = build({**SMALL, "attention": "bilateral", "attention_layers": layers})
    assert {half.attn.num_tokens for half in model.blocks[::2] if hasattr(half.attn, "num_tokens")} == {9}


def test_fan_tiny_has_its_published_size():
    recipe = load_recipe("imagenet-fan-tiny", "softmax")
    model = build(recipe.completed({"num_classes": 1000}).architecture)
    assert sum(parameter.numel() for parameter in model.parameters()) == pytest.approx(7.3e6, rel=0.01)


def test_descriptions_that_cannot_be():
    with pytest.raises(InputError, match="is causal: the patches of an image"):
        build({**SMALL, "attention": "tssa-causal"})
    with pytest.raises(InputError, match="num_heads 4 does not divide embed_dim 14"):
        build({**SMALL, "num_heads": 4})
