"""Segmenter: its masks by hand, its two kinds of tokens, and what a capture of it holds."""

import pytest
import torch
import torch.nn.functional as F

import workbench
from tests.models.architectures.variants import OPTIONS, moved
from workbench.attention import VARIANTS
from workbench.core.errors import InputError
from workbench.models.architectures import build
from workbench.models.checkpoints import restore, write_checkpoint

BATCH, CLASSES, DIM, HEADS, DEPTH, SIDE = 2, 5, 12, 3, 2, 16
SMALL = {
    "name": "segmenter", "img_size": SIDE, "patch_size": 4, "num_classes": CLASSES, "embed_dim": DIM, "depth": DEPTH,
    "num_heads": HEADS,
}  # fmt: skip
FITTING = [name for name, variant in VARIANTS.items() if variant.causality != "always"]


@pytest.fixture
def images():
    return torch.randn(BATCH, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))


def test_the_default_is_four_blocks_three_heads_and_eight_classes_of_colour_images():
    model = build({"name": "segmenter"})
    assert (len(model.encoder.blocks), model.encoder.blocks[0].attn.num_heads) == (4, 3)
    assert model(torch.zeros(1, 3, 32, 32)).shape == (1, 8, 32, 32)


def test_a_mask_is_the_product_of_a_class_and_a_patch(images):
    model = moved(build(SMALL)).double()
    images = images.double()
    patches = model.encoder.forward_features(images)[:, 1:]
    tokens = torch.cat([model.class_tokens.expand(BATCH, -1, -1), model.embed(patches)], dim=1)
    for block in model.decoder:
        tokens = block(tokens)
    tokens = model.norm(tokens)
    found = model.masks(images)
    for row in range(4):
        for column in range(4):
            patch = tokens[1, CLASSES + 4 * row + column] @ model.to_patch
            products = []
            for label in range(CLASSES):
                own = tokens[1, label] @ model.to_class
                products.append(patch @ own / (patch.norm() * own.norm()))
            logits = F.layer_norm(
                torch.stack(products), (CLASSES,), model.mask_norm.weight, model.mask_norm.bias
            )
            torch.testing.assert_close(found[1, :, row, column], logits)
    logits = model(images)
    assert logits.shape == (BATCH, CLASSES, SIDE, SIDE)
    # bilinear: the four pixels where four patches meet have their mean
    torch.testing.assert_close(logits[..., 3:5, 3:5].mean((-2, -1)), found[..., :2, :2].mean((-2, -1)))


@pytest.mark.parametrize("boost", [False, True])
@pytest.mark.parametrize("name", FITTING)
def test_every_variant_learns_and_comes_back_from_its_checkpoint(name, boost, images, tmp_path):
    description = {**SMALL, "attention": name, "attention_options": OPTIONS.get(name), "boost": boost}
    model = build(description).train()
    targets = torch.randint(CLASSES, (BATCH, SIDE, SIDE))
    F.cross_entropy(model(images), targets).backward()
    still = {key for key, value in model.named_parameters() if value.grad is None}
    assert still <= {f"encoder.blocks.{layer}.attn.log_lam" for layer in range(DEPTH)}
    write_checkpoint(tmp_path / "x.safetensors", moved(model), {"architecture": description})
    assert torch.equal(restore(tmp_path / "x.safetensors")[0](images), model(images))


@pytest.mark.parametrize("name", ["softmax", "rpc-sym", "tssa"])
def test_a_capture_has_both_halves_and_names_their_tokens(name, images):
    model = moved(build({**SMALL, "attention": name}))
    capture = workbench.capture(model, images, sites=("resid_mid", "resid_post", "head_out"))
    torch.testing.assert_close(capture.result, model(images))
    assert [record.path for record in capture] == [
        "encoder.blocks.0.attn", "encoder.blocks.1.attn", "decoder.0.attn",
    ]  # fmt: skip
    owners = [*model.encoder.blocks, *model.decoder]
    for record, block in zip(capture, owners, strict=True):
        rest = record.resid_mid + block.mlp(block.norm2(record.resid_mid))
        torch.testing.assert_close(record.resid_post, rest)
    assert capture.tokens.summary.startswith("17 tokens: 1 class, 16 patch (4 × 4)")
    decoder = capture.tokens.of(capture[-1])
    assert decoder.kinds[0] == ["class"] * CLASSES + ["patch"] * 16
    assert decoder.labels[0][CLASSES - 1 : CLASSES + 1] == ["class 4", "0,0"]


def test_a_causal_encoder_is_refused():
    with pytest.raises(InputError, match="is causal"):
        build({**SMALL, "attention": "tssa-causal"})
