"""A photograph through filters and through attention: means where they are said to be, and what is refused."""

import math

import numpy as np
import pytest
import torch

import workbench
from workbench.core.errors import InputError, UnknownName
from workbench.studies.evaluation import filtering
from workbench.studies.evaluation.filtering import attention_filter, filter_photograph, identity_attention

SIDE = 32


@pytest.fixture(scope="module")
def model():
    return workbench.load("bundled:digits-vit")


@pytest.fixture(scope="module")
def filtered(model):
    return filter_photograph(model, "camera", side=SIDE, seed=3)


def image(height=6, width=8, channels=2):
    return np.random.default_rng(0).random((height, width, channels))


def test_attention_takes_means_of_patches():
    held = image()
    attn = torch.softmax(torch.randn(6, 6, generator=torch.Generator().manual_seed(0)), -1)
    done = attention_filter(held, 0.4 * attn, (3, 2))  # rows are scaled to sum to 1
    patches = [
        held[2 * row : 2 * row + 2, 4 * column : 4 * column + 4] for row in range(3) for column in range(2)
    ]
    for place in range(6):
        mean = sum(weight * patch for weight, patch in zip(attn[place].tolist(), patches, strict=True))
        row, column = divmod(place, 2)
        np.testing.assert_allclose(done[2 * row : 2 * row + 2, 4 * column : 4 * column + 4], mean, rtol=1e-6)
    np.testing.assert_allclose(attention_filter(held, torch.eye(6), (3, 2)), held)
    with pytest.raises(InputError, match="does not fit an image of 6 × 8"):
        attention_filter(held, attn, (2, 3))  # three columns do not divide eight pixels


def test_identity_attention_is_the_mean_that_the_formula_says():
    held, h_y, h_p = image(4, 5, 2), 0.3, 1.5
    padded = np.pad(held, ((1, 1), (1, 1), (0, 0)), mode="reflect")
    around = {(r, c): padded[r : r + 3, c : c + 3] for r in range(4) for c in range(5)}
    done = identity_attention(held, h_y, h_p)
    for (r, c), own in around.items():
        weights = {
            place: math.exp(
                -np.square(own - other).mean() / h_y**2 - ((r - place[0]) ** 2 + (c - place[1]) ** 2) / h_p**2
            )
            for place, other in around.items()
        }
        mean = sum(weight * held[place] for place, weight in weights.items()) / sum(weights.values())
        np.testing.assert_allclose(done[r, c], mean, rtol=1e-10)


def test_identity_attention_from_none_to_the_mean_of_all():
    held = image()
    np.testing.assert_allclose(identity_attention(held, 1e-3), held)
    even = np.broadcast_to(held.mean((0, 1)), held.shape)
    np.testing.assert_allclose(identity_attention(held, 1e4), even, rtol=1e-6)


def test_filters_made_for_noise_remove_it_and_all_are_reported(filtered):
    frame = filtered.frame()
    psnr = frame.set_index("filter")["psnr"]
    assert psnr["non-local means"] > psnr["noisy"] + 1
    assert psnr["identity attention"] > psnr["noisy"] + 1
    assert list(frame["layer"].dropna()) == [0, 1, 2, 3]
    assert list(psnr.index) == list(filtered.images)
    error = np.square(filtered.images["layer 2"] - filtered.clean).mean()
    assert psnr["layer 2"] == pytest.approx(-10 * math.log10(error))
    assert frame.attrs["provenance"][0]["options"]["photo"] == "camera"


def test_a_layer_filters_each_tile_with_its_own_attention(model, filtered):
    noisy = filtered.images["noisy"]
    tile = noisy[16:, :16]
    batch = (torch.from_numpy(tile).permute(2, 0, 1)[None].float() - model.image.mean[0]) / model.image.std[0]
    (record,) = workbench.capture(model, batch, layers="1", sites=("attn",))
    weights = record.attn[0].mean(0)[1:, 1:]
    np.testing.assert_allclose(
        filtered.images["layer 1"][16:, :16], attention_filter(tile, weights, (8, 8)), rtol=1e-4, atol=1e-6
    )
    even = attention_filter(tile, torch.ones(64, 64), (8, 8))
    np.testing.assert_allclose(filtered.images["uniform attention"][16:, :16], even)


def test_the_same_seed_gives_the_same_noise(model, filtered):
    again = filter_photograph(model, "camera", side=SIDE, seed=3, layers="0")
    np.testing.assert_array_equal(again.images["noisy"], filtered.images["noisy"])
    assert list(again.frame()["layer"].dropna()) == [0]
    other = filter_photograph(model, "camera", side=SIDE, seed=4, layers="0")
    assert not np.array_equal(other.images["noisy"], filtered.images["noisy"])


def test_tiles_are_put_together_as_they_were_cut():
    held = image(7, 10, 3)
    tiles = filtering._tiles(held, (4, 4))
    assert [tile.shape[:2] for tile in tiles] == [(4, 4), (4, 4), (4, 2), (3, 4), (3, 4), (3, 2)]
    np.testing.assert_array_equal(filtering._joined(tiles, held.shape), held)


def test_what_cannot_be_filtered_is_refused(model):
    with pytest.raises(UnknownName, match="camera"):
        filter_photograph(model, "camrea")
    with pytest.raises(InputError, match="at least 16 pixels, or there is too little to filter"):
        filter_photograph(model, "camera", side=8)
    with pytest.raises(InputError, match="no multiple of the model's images of 16 × 16"):
        filter_photograph(model, "camera", side=40)
    with pytest.raises(InputError, match="4096 × 4096 do not fit"):
        filter_photograph(model, "camera", side=4096)
    with pytest.raises(InputError, match="standard deviation of noise"):
        filter_photograph(model, "camera", side=SIDE, sigma=0)
    with pytest.raises(InputError, match="takes no images"):
        filter_photograph(workbench.load("bundled:prose-softmax"), "camera", side=SIDE)
    channels = workbench.load("bundled:digits-tssa")
    with pytest.raises(InputError, match="a filter needs token × token weights"):
        filter_photograph(channels, "camera", side=SIDE)
