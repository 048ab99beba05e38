"""The analysis filter-kernels through `analyze`: which tokens are fitted, and which layers cannot be."""

import math

import pytest
import timm
import torch

import workbench
from tests.runs.test_analyze import bert, images, same, texts, vit
from workbench.analyses.filter_kernels import fit_filter, squared_distances
from workbench.analyses.layer import grid_positions
from workbench.captures import capture
from workbench.core.errors import InputError
from workbench.runs.analyze import analyze

ROWS, COLUMNS = 4, 4
METRICS = {"filter_share", "filter_position", "filter_content"}


def value(frame, metric, candidate, convention=None, **where):
    rows = frame[(frame["metric"] == metric) & (frame["candidate"] == candidate)]
    rows = rows[rows["convention"].isna() if convention is None else rows["convention"] == convention]
    for column, wanted in where.items():
        rows = rows[rows[column].isna() if wanted is None else rows[column] == wanted]
    assert len(rows) == 1
    return rows["value"].item()


def test_fits_are_to_the_patches_alone():
    model, batch = vit(), images(2)
    frame = analyze("filter-kernels", model=model, inputs=batch, null_samples=0, per_head=True, layers="1")
    (record,) = capture(model, batch, layers="1", sites=("attn", "input", "q", "k"))
    near = squared_distances(grid_positions((ROWS, COLUMNS)))
    for place in range(2):
        attn = record.attn[place, :, 1:, 1:].double()  # token 0 is the class token
        attn = attn / attn.sum(-1, keepdim=True)
        tokens = squared_distances(record.input[place, 1:])
        pairs = squared_distances(record.q[place, :, 1:], record.k[place, :, 1:])
        for content, distances in (("tokens", tokens), ("heads", pairs)):
            found = fit_filter(attn, "bilateral", position=near, content=distances)
            for head in range(len(attn)):
                here = {"input": str(place), "head": head}
                told = value(frame, "filter_share", "bilateral", content, **here)
                assert told == pytest.approx(found.share[head].item(), rel=1e-5)
        gaussian = fit_filter(attn, "gaussian", position=near).share[1].item()
        told = value(frame, "filter_share", "gaussian", input=str(place), head=1)
        assert told == pytest.approx(gaussian, rel=1e-5)
    assert set(frame["metric"]) == METRICS
    assert set(frame.loc[frame["metric"] == "filter_position", "unit"]) == {"patches"}


def test_a_layer_that_is_a_filter_is_explained_by_it():
    """Keys of one length: the second projection is made orthogonal, tokens are normalised."""
    model = vit().double()
    for block in model.blocks:
        # q and k are one rotation of tokens that layer norm has given one length
        width = block.attn.qkv.in_features
        rotation = torch.linalg.qr(torch.randn(width, width, dtype=torch.float64))[0]
        with torch.no_grad():
            block.norm1.weight.fill_(1)
            block.norm1.bias.fill_(0)
            block.attn.qkv.weight[:width] = block.attn.qkv.weight[width : 2 * width] = rotation
            block.attn.qkv.bias[: 2 * width] = 0
        block.attn.num_heads, block.attn.head_dim, block.attn.scale = 1, width, width**-0.5
    frame = analyze("filter-kernels", model=model, inputs=images(1).double(), null_samples=0)
    for content in ("tokens", "heads"):
        assert value(frame, "filter_share", "nlm", content, layer=None, input=None) == pytest.approx(
            1, abs=1e-4
        )


def test_text_lies_in_a_line_and_padding_is_left_out():
    model, batch = bert(), texts()
    whole = analyze("filter-kernels", model=model, inputs=batch, null_samples=0, per_head=True)
    alone = {name: tensor[1:2, :4] for name, tensor in batch.items()}
    short = analyze("filter-kernels", model=model, inputs=alone, null_samples=0, per_head=True)
    for layer in range(2):
        for kernel, content in (("gaussian", None), ("nlm", "tokens"), ("bilateral", "heads")):
            told = [
                value(frame, "filter_share", kernel, content, layer=layer, head=2, input=name)
                for frame, name in ((whole, "1"), (short, "0"))
            ]
            assert told[0] == pytest.approx(told[1], abs=1e-4)
    assert set(whole.loc[whole["metric"] == "filter_position", "unit"]) == {"tokens"}


def test_chance_permutes_the_tokens_and_batches_do_not_matter():
    model = vit()
    frames = [
        analyze(
            "filter-kernels",
            model=model,
            inputs=images(3),
            layers="0",
            content="heads",
            null_samples=3,
            batch_size=size,
        )
        for size in (3, 1)
    ]
    same(*frames, rtol=1e-3)
    shares = frames[0][frames[0]["metric"] == "filter_share"]
    assert set(shares["null"]) == {"permutation"}
    assert (shares["null_mean"] >= 0).all()
    overall = shares[shares["input"].isna() & shares["layer"].isna() & (shares["candidate"] == "nlm")]
    assert overall["value"].item() > overall["null_high"].item()


def test_layers_without_weights_from_token_to_token_are_refused_with_the_reason():
    for name, reason in (
        ("xca", "attends from channel to channel"),
        ("tssa", "without attention from token to token"),
    ):
        model = vit()
        workbench.replace_attention(model, name)
        with pytest.raises(InputError, match=f"nothing to measure; layers 0-2 left out: .*{reason}"):
            analyze("filter-kernels", model=model, inputs=images(1))


def test_a_sequence_of_one_token_is_refused():
    torch.manual_seed(0)
    model = timm.models.vision_transformer.VisionTransformer(
        img_size=4, patch_size=4, embed_dim=8, depth=1, num_heads=2, num_classes=3
    ).eval()
    with pytest.raises(InputError, match="a single token with a place"):
        analyze("filter-kernels", model=model, inputs=torch.randn(2, 3, 4, 4))


def test_windows_are_fitted_one_by_one():
    model = timm.create_model(
        "swin_tiny_patch4_window7_224", img_size=56, window_size=7, depths=(1, 1, 1, 1), num_classes=2
    ).eval()
    batch = torch.randn(1, 3, 56, 56, generator=torch.manual_seed(0))
    frame = analyze("filter-kernels", model=model, inputs=batch, layers="0", content="tokens", null_samples=0)
    share = value(frame, "filter_share", "bilateral", "tokens", layer=None, input=None)
    assert 0 <= share <= 1
    assert math.isfinite(share)
