"""ISTA and CRATE: the step against its formula, what the blocks are, and what holds of their outputs."""

import json

import pytest
import torch

from tests.models.architectures.authors import ista
from tests.models.architectures.variants import moved
from workbench.core.errors import InputError, UnknownName
from workbench.models.architectures import build
from workbench.models.architectures.ista import Ista, IstaBlock, ista_step
from workbench.models.checkpoints import restore, write_checkpoint

# image 12 in 4×4 patches of 3, 2 channels, 5 classes, width 14, 7 heads of 2, depth 3
SMALL = {
    "name": "crate", "img_size": 12, "patch_size": 3, "in_chans": 2, "num_classes": 5, "embed_dim": 14, "depth": 3,
    "num_heads": 7,
}  # fmt: skip


@pytest.fixture
def images():
    return torch.randn(4, 2, 12, 12, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def x():
    return torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


@pytest.fixture
def dictionary():
    return torch.randn(5, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


@pytest.mark.parametrize(("step", "threshold"), [(0.1, 0.1), (0.7, 0.3), (0.0, 0.2)])
def test_ista_is_its_formula(x, dictionary, step, threshold):
    found = ista_step(x, dictionary, step=step, threshold=threshold)
    torch.testing.assert_close(found, ista(x, dictionary, step, threshold), rtol=0, atol=1e-12)
    assert 0 < (found > 0).double().mean() < 1


def test_ista_is_a_proximal_gradient_step(x, dictionary):
    """From a = x: a − η ∇ ½‖x − D a‖², then the non-negative soft threshold at η λ."""
    code = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad((x - code @ dictionary.T).square().sum() / 2, code)
    expected = (x - 0.3 * gradient - 0.3 * 0.2).clamp(min=0)
    torch.testing.assert_close(
        ista_step(x, dictionary, step=0.3, threshold=0.2), expected, rtol=0, atol=1e-12
    )


def test_with_an_orthogonal_dictionary_of_ones_it_is_the_threshold_alone(x):
    torch.testing.assert_close(ista_step(x, torch.eye(5, dtype=x.dtype)), (x - 0.01).clamp(min=0))


def test_the_module_holds_the_published_settings():
    module = Ista(6)
    assert (module.step, module.threshold, module.dictionary.shape) == (0.1, 0.1, (6, 6))
    assert [name for name, _ in module.named_parameters()] == ["dictionary"]


def test_crate_is_subspace_attention_and_ista(images):
    model = moved(build(SMALL))
    tokens = model.patch_embed(images)
    x = torch.cat([model.cls_token.expand(4, -1, -1), tokens], dim=1) + model.pos_embed
    for block in model.blocks:
        assert type(block.attn).__name__ == "SubspaceAttention"
        assert block.attn.qkv.bias is None
        after = x + block.attn(block.norm1(x))
        x = block(x)
        torch.testing.assert_close(x, block.mlp(block.norm2(after)))
        assert x.min() == 0
    torch.testing.assert_close(model(images), model.head(model.norm(x)[:, 0]))


def test_a_patch_is_its_pixels_by_row_column_channel(images):
    embedding = build(SMALL).patch_embed
    embedding.norm1 = embedding.proj = embedding.norm2 = torch.nn.Identity()
    pixels = embedding(images)
    assert pixels.shape == (4, 16, 18)
    for number, (row, column, channel) in enumerate(
        (r, c, k) for r in range(3) for c in range(3) for k in (0, 1)
    ):
        # patch 6 is in row 1, column 2
        assert torch.equal(pixels[:, 6, number], images[:, channel, 3 + row, 6 + column])


def test_positions_and_class_token_start_with_spread_one():
    model = build({"name": "crate"})
    assert model(torch.zeros(2, 1, 16, 16)).shape == (2, 10)  # the default is for digits
    assert model.pos_embed.std().item() == pytest.approx(1, rel=0.1)
    assert model.cls_token.std().item() == pytest.approx(1, rel=0.4)


def test_it_comes_back_from_its_checkpoint(images, tmp_path):
    model = moved(build(SMALL))
    write_checkpoint(tmp_path / "x.safetensors", model, {"architecture": json.loads(json.dumps(SMALL))})
    assert torch.equal(restore(tmp_path / "x.safetensors")[0](images), model(images))


def test_another_attention_can_stand_in_its_place(images):
    model = build({**SMALL, "attention": "tssa", "attention_layers": [1]})
    assert [type(block.attn).__name__ for block in model.blocks] == [
        "SubspaceAttention", "TokenStatisticsAttention", "SubspaceAttention"
    ]  # fmt: skip
    bilateral = build({**SMALL, "attention": "bilateral"})
    assert bilateral.pos_embed is None
    assert bilateral(images).shape == (4, 5)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"patch_size": 5}, InputError, "patch_size 5 does not divide img_size 12"),
        ({"num_heads": 4}, InputError, "num_heads 4 does not divide embed_dim 14"),
        ({"attention": "tssa-causal"}, InputError, "class token, which stands first"),
        ({"mlp_ratio": 4.0}, UnknownName, "option of architecture 'crate' 'mlp_ratio'"),
    ],
)
def test_descriptions_that_cannot_be(change, error, message):
    with pytest.raises(error, match=message):
        build({**SMALL, **change})


def test_a_vision_transformer_with_ista():
    model = build({"name": "vit", "mlp": "ista", "attention": "tssa"})
    assert all(isinstance(block, IstaBlock) for block in model.blocks)
    assert model(torch.zeros(2, 1, 16, 16)).shape == (2, 10)
    with pytest.raises(InputError, match="boost and mlp 'ista' change the same block"):
        build({"name": "vit", "mlp": "ista", "boost": True})
    with pytest.raises(UnknownName, match="unknown mlp 'relu'"):
        build({"name": "vit", "mlp": "relu"})
