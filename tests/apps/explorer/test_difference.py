"""Two attention maps beside each other, and their difference."""

import re

import numpy as np
import pytest

from tests.figures.drawn import maps, said
from tests.figures.tokens import GRID, image_tokens, rows_that_sum_to_one, text_tokens
from workbench.apps.explorer.head_figures import difference_figure
from workbench.core.errors import InputError

NAMES = ("layer 1", "layer 2")
IMAGE = np.zeros((4, 6, 3), np.uint8)


def pair(*shape):
    return rows_that_sum_to_one(*shape), rows_that_sum_to_one(*shape, seed=1)


def patch_maps(fig):
    found = [np.asarray(trace.z) for trace in maps(fig)]
    return [z for z in found if z.shape == GRID]


def test_over_an_image_the_token_s_rows_and_their_difference_are_drawn():
    first, second = pair(8, 8)
    fig = difference_figure(first, second, NAMES, (image_tokens(),) * 2, IMAGE, token=4)
    rows = [first[4], second[4], second[4] - first[4]]
    for drawn, row in zip(patch_maps(fig), rows, strict=True):
        np.testing.assert_allclose(drawn, row[2:].reshape(GRID))
    assert [note.text for note in fig.layout.annotations][:3] == ["input", *NAMES]
    assert fig.layout.annotations[3].text == "layer 2 − layer 1"
    assert len(fig.layout.images) == 1


def test_without_an_image_the_matrices_are_drawn_without_padding():
    first, second = pair(9, 9)
    fig = difference_figure(first, second, NAMES, (text_tokens(),) * 2)
    for drawn, matrix in zip(maps(fig), (first, second, second - first), strict=True):
        np.testing.assert_allclose(np.asarray(drawn.z), matrix[:7, :7], atol=1e-7)
    assert [trace.coloraxis for trace in maps(fig)] == ["coloraxis", "coloraxis", "coloraxis2"]


@pytest.mark.parametrize("image", [None, IMAGE])
def test_the_maps_share_a_scale_from_0_and_the_difference_has_equal_ends(image):
    first, second = pair(8, 8)
    fig = difference_figure(first, second, NAMES, (image_tokens(),) * 2, image)
    shared, symmetric = fig.layout.coloraxis, fig.layout.coloraxis2
    shown = [first, second] if image is None else [first.mean(0), second.mean(0)]
    assert shared.cmin == 0
    assert shared.cmax == pytest.approx(max(one.max() for one in shown))
    assert symmetric.cmax == pytest.approx(np.abs(shown[1] - shown[0]).max())
    assert symmetric.cmin == -symmetric.cmax
    middle = [colour for place, colour in symmetric.colorscale if place == 0.5]
    assert middle
    assert set(middle) == {"#F5F5F2"}


def test_vectors_over_patches_are_maps_of_one_query():
    first, second = pair(8)
    fig = difference_figure(first, second, NAMES, (image_tokens(),) * 2)
    np.testing.assert_allclose(patch_maps(fig)[2], (second - first)[2:].reshape(GRID))


def test_two_images_stand_before_their_own_maps():
    first, second = pair(8, 8)
    other = np.full((4, 6, 3), 255, np.uint8)
    fig = difference_figure(first, second, NAMES, (image_tokens(),) * 2, (IMAGE, other))
    assert [shown.xref for shown in fig.layout.images] == ["x", "x3"]
    assert fig.layout.images[0].source != fig.layout.images[1].source


@pytest.mark.parametrize(
    ("shapes", "tokens", "says"),
    [
        ((8, 9), (image_tokens(), text_tokens()), "layer 1 is 8 × 8, layer 2 is 9 × 9"),
        ((8, 8), (image_tokens(), image_tokens(grid=(3, 2))), r"patch grids differ, \(2, 3\) and \(3, 2\)"),
        ((9, 9), (text_tokens(), text_tokens(words=("a", "b", "c", "d", "e"))), "tokens are not the same"),
        ((4, 5), (None, None), "4 × 4"),
    ],
)  # fmt: skip
def test_what_cannot_be_subtracted_stands_side_by_side_with_the_reason(shapes, tokens, says):
    first, second = (rows_that_sum_to_one(size, size) for size in shapes)
    fig = difference_figure(first, second, NAMES, tokens, token=1)
    assert len(fig.data) == 2
    assert re.search(says, said(fig))


def test_unknown_tokens_are_refused():
    first, second = pair(8, 8)
    with pytest.raises(InputError, match="no token 8"):
        difference_figure(first, second, NAMES, (image_tokens(),) * 2, token=8)


def test_weights_that_are_not_finite_have_no_distance():
    first, second = pair(9, 9)
    second[2] = np.inf
    fig = difference_figure(first, second, NAMES, (text_tokens(),) * 2)
    assert "9 of 162 weights are not finite" in said(fig)
    assert np.isfinite([fig.layout.coloraxis.cmax, fig.layout.coloraxis2.cmax]).all()
