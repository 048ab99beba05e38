"""An image that a model reads in tiles: every patch lies where it is in the one picture."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import workbench
from tests.apps.explorer.browser import chromium
from tests.apps.explorer.test_page import DRAWN, bundle_of
from tests.browser import needs_chrome
from tests.folders import several_kinds_folder
from workbench.apps.explorer import Explorer
from workbench.apps.explorer.bundle import Bundle, make_bundle
from workbench.apps.explorer.tiling import strip_of, tiling_of
from workbench.core.errors import InputError
from workbench.data.pools import Sample

SIDE = 6  # pixels of a tile, which has 2 × 3 patches


def picture_of(rows, columns):
    down, across = np.mgrid[: rows * SIDE, : columns * SIDE]
    picture = (
        np.random.default_rng(0).integers(0, 99, (rows * SIDE, columns * SIDE, 3))
        + (down + 2 * across)[..., None]
    )
    return picture.astype(np.uint8)


def tokens_of(tiles):
    labels = [f"{tile}:{row},{column}" for tile in range(tiles) for row in range(2) for column in range(3)]
    return SimpleNamespace(
        labels=[["w", *labels, "w"]],
        kinds=[["word", *["patch"] * len(labels), "word"]],
        image_grids=[[(2, 3)] * tiles],
    )


def sample_of(picture, tiles):
    pixels = (torch.from_numpy(np.stack(tiles)).double().permute(0, 3, 1, 2) - 60) / 30
    filler = torch.zeros(2, *pixels.shape[1:], dtype=torch.float64)  # as of another input with more tiles
    return SimpleNamespace(batch={"pixel_values": torch.cat([pixels, filler])[None]}, images=[picture])


@pytest.mark.parametrize(("rows", "columns"), [(1, 2), (3, 2), (2, 4)])
@pytest.mark.parametrize("overview", ["", "first", "last"])
def test_patches_lie_where_their_tile_was_cut_from(rows, columns, overview):
    picture = picture_of(rows, columns)
    places = [(down, across) for down in range(rows) for across in range(columns)]
    tiles = [picture[SIDE * y : SIDE * (y + 1), SIDE * x : SIDE * (x + 1)] for y, x in places]
    whole = picture[::rows, ::columns]
    at = {"": [], "first": [0], "last": [len(tiles)]}[overview]
    for place in at:
        tiles.insert(place, whole)
    found = tiling_of(sample_of(picture, tiles), tokens_of(len(tiles)))
    assert found.grid == (2 * rows, 3 * columns + 3 * len(at))
    cells = iter(found.cells[1:-1])
    parts = iter(places)
    for tile in range(len(tiles)):
        y, x = (0, columns) if tile in at else next(parts)
        for row in range(2):
            for column in range(3):
                assert next(cells) == (2 * y + row) * found.grid[1] + 3 * x + column
    assert np.isnan(found.cells[[0, -1]]).all()
    width = picture.shape[1]
    np.testing.assert_array_equal(found.image[:, :width], picture)
    assert found.image.shape[1] == width + (SIDE if at else 0)


def test_tiles_that_are_not_the_picture_have_no_arrangement():
    picture = picture_of(2, 2)
    other = np.random.default_rng(1).integers(0, 255, (4, SIDE, SIDE, 3)).astype(np.uint8)
    assert tiling_of(sample_of(picture, other), tokens_of(4)) is None
    flat = np.full_like(picture, 80)
    assert tiling_of(sample_of(flat, [flat[:SIDE, :SIDE]] * 4), tokens_of(4)) is None


@pytest.fixture(scope="module")
def tiled(tmp_path_factory):
    """The page of a model that reads 48 × 64 pixels as 3 × 4 tiles and the whole."""
    folder = tmp_path_factory.mktemp("tiles")
    down, across = np.mgrid[:48, :64]
    image = np.stack([across * 4, down * 5, (across + down) * 2], -1).astype(np.uint8)
    explorer = Explorer(
        f"hf:{several_kinds_folder(folder / 'smolvlm', 'smolvlm', tiles=True)}", [(image, "w1 w2 w3")]
    )
    return explorer.save_html(folder / "page.html", ablations=False)


def test_a_bundle_of_tiles_needs_the_cells_of_its_patches(tiled):
    bundle = bundle_of(tiled.read_text())
    card = bundle.header.inputs[0]
    assert (card.grid, card.kinds.count("patch"), card.image) == ((6, 10), 13 * 4, (48, 80))
    arrays = {name: array for name, array in bundle.arrays.items() if name != "inputs.0.cells"}
    with pytest.raises(InputError, match=r"lacks the array 'inputs.0.cells' of shape"):
        Bundle(bundle.header, arrays)


@pytest.mark.e2e
@needs_chrome
def test_attention_to_tiles_lies_over_the_one_picture(tiled):
    """The bluest cell of each hovered word is that of the patch with most of its attention."""
    bundle = bundle_of(tiled.read_text())
    card, layer = bundle.header.inputs[0], bundle.header.layers[-1]
    attention = bundle.attention(layer.index)[1].astype(float)
    patches = [token for token, kind in enumerate(card.kinds) if kind == "patch"]
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        wrong = []
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(f"{tiled.as_uri()}#layer={layer.index}&head=1&scale=linear")
        page.wait_for_selector(".aw-prompt .aw-token")
        words = [token for token in range(len(card.labels)) if token not in patches]
        for token in (words[-1], words[-4], words[len(words) // 2]):
            page.locator(f"[data-token='{token}']").hover()
            page.wait_for_function(
                "token => document.querySelector(`[data-token='${token}']`).matches('.aw-asked')", arg=token
            )
            drawn = np.array(page.evaluate(DRAWN, [*card.grid])).astype(float)
            blue = (drawn[:, 2] - drawn[:, 0]) * (drawn[:, 3] > 0)
            most = patches[int(attention[token, patches].argmax())]
            assert int(blue.argmax()) == bundle.arrays["inputs.0.cells"][most]
            tile, place = card.labels[most].split(":")
            row, column = map(int, place.split(","))
            down, right = divmod(int(tile), 4) if tile != "12" else (0, 4)
            assert int(blue.argmax()) == (2 * down + row) * 10 + 2 * right + column
        empty = np.array(page.evaluate(DRAWN, [6, 10]))[[28, 29, 58, 59], 3]
        assert not empty.any()
        assert wrong == []


@pytest.mark.parametrize("grids", [[(2, 3), (2, 3)], [(2, 3), (4, 1), (1, 2)]])
def test_several_images_lie_side_by_side_an_empty_column_apart(grids):
    images = [
        np.full((8 * rows, 8 * columns, 3), 40 * (i + 1), np.uint8) for i, (rows, columns) in enumerate(grids)
    ]
    spots = [
        (i, row, column)
        for i, (rows, columns) in enumerate(grids)
        for row in range(rows)
        for column in range(columns)
    ]
    labels = ["w", *(f"{i}:{row},{column}" for i, row, column in spots), "w"]
    tokens = SimpleNamespace(
        labels=[labels], kinds=[["word", *["patch"] * len(spots), "word"]], image_grids=[grids]
    )
    found = strip_of(SimpleNamespace(images=images[:1], others=[images[1:]]), tokens)
    assert found.grid == (
        max(rows for rows, _ in grids),
        sum(columns for _, columns in grids) + len(grids) - 1,
    )
    assert len({*found.cells[1:-1]}) == len(spots)
    assert np.isnan(found.cells[[0, -1]]).all()
    for (number, row, column), cell in zip(spots, found.cells[1:-1].astype(int), strict=True):
        down, across = divmod(cell, found.grid[1])
        assert (down, across) == (row, column + sum(wide + 1 for _, wide in grids[:number]))
        assert (found.image[8 * down : 8 * down + 8, 8 * across : 8 * across + 8] == 40 * (number + 1)).all()
    empty = {*range(found.grid[0] * found.grid[1])} - {*found.cells[1:-1]}
    assert not any(
        found.image[8 * (cell // found.grid[1]), 8 * (cell % found.grid[1])].any() for cell in map(int, empty)
    )
    assert strip_of(SimpleNamespace(images=images[:1], others=[]), tokens) is None


def two_inputs(folder, name):
    """A model of images with texts, two inputs of two images each, and the second by itself."""
    rng = np.random.default_rng(0)
    a, b, c, d = (rng.integers(0, 256, (48, 64, 3), np.uint8) for _ in range(4))
    model = workbench.load(f"hf:{several_kinds_folder(folder / name, name)}")
    second = [([c, d], "w1 w2")]
    return model, workbench.inputs([([a, b], "w1 w2"), *second], model), workbench.inputs(second, model)


@pytest.mark.parametrize("name", ["llava", "smolvlm", "qwen2.5-vl"])
def test_a_slice_of_inputs_of_two_images_has_its_own_images(tmp_path, name):
    _, both, single = two_inputs(tmp_path, name)
    assert [len(others) for others in both.others] == [1, 1]
    for part, tensor in single.batch.items():
        torch.testing.assert_close(both[1:2].batch[part], tensor)
    np.testing.assert_array_equal(both[1:2].others[0][0], single.others[0][0])
    with pytest.raises(InputError, match="one image per input"):
        workbench.inputs([[np.zeros((9, 9, 3), np.uint8)] * 2], workbench.load("bundled:photos-vit"))


def test_the_hash_of_a_sample_is_of_all_its_images():
    a, b, c = (np.full((2, 3), grey, np.uint8) for grey in range(3))
    samples = [
        Sample("x", a),
        Sample("x", a, others=(b,)),
        Sample("x", a, others=(c,)),
        Sample("x", a, others=(b, c)),
    ]
    assert len({sample.digest() for sample in samples}) == 4


@pytest.mark.parametrize("name", ["llava", "smolvlm"])
def test_the_bundle_of_two_images_has_a_strip_with_a_cell_for_every_patch(tmp_path, name):
    model, _, single = two_inputs(tmp_path, name)
    bundle = make_bundle(model, single, ablations=False, measured=False)
    card, cells = bundle.header.inputs[0], bundle.arrays["inputs.0.cells"]
    rows, columns = single.tokens.image_grids[0][0]
    assert (card.images, card.grid) == (2, (rows, 2 * columns + 1))
    patches = np.array(card.kinds) == "patch"
    assert len(np.unique(cells[patches])) == patches.sum() == 2 * rows * columns
    assert np.isnan(cells[~patches]).all()
