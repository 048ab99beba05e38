"""Lengths of queries, keys and values, over an image and over a text."""

import numpy as np
import pytest
import torch

from tests.figures.tokens import GRID, image_tokens, text_tokens
from workbench.apps.explorer.head_figures import token_norms_figure
from workbench.core.errors import InputError

LENGTHS = {name: torch.arange(8.0) + 10 * number for number, name in enumerate("qkv")}


def maps(fig, axis):
    return [trace for trace in fig.data if trace.type == "heatmap" and trace.xaxis == axis]


def test_every_operand_has_a_map_and_all_share_one_scale():
    fig = token_norms_figure(LENGTHS, image_tokens(), np.zeros((4, 6, 3), np.uint8))
    for name, axis in zip("qkv", ("x2", "x3", "x4"), strict=True):
        patches, prefix = maps(fig, axis)
        np.testing.assert_allclose(np.asarray(patches.z), LENGTHS[name][2:].reshape(GRID))
        np.testing.assert_allclose(np.asarray(prefix.z), LENGTHS[name][None, :2])
        scale = fig.layout[patches.coloraxis]
        assert (scale.cmin, scale.cmax) == (0, 27)  # of all tokens
        assert prefix.coloraxis == patches.coloraxis
    assert len(fig.layout.images) == 1
    assert [note.text for note in fig.layout.annotations] == ["input", "queries", "keys", "values"]


def test_the_single_query_of_class_attention_is_the_class_token_s():
    fig = token_norms_figure({"q": [5.0], "k": torch.arange(8.0)}, image_tokens())
    patches, prefix = maps(fig, "x")
    assert np.isnan(np.asarray(patches.z)).all()
    np.testing.assert_allclose(np.asarray(prefix.z), [[5.0, np.nan]])


def test_norms_of_patches_alone_lie_on_the_patches():
    fig = token_norms_figure({"v": torch.arange(6.0)}, image_tokens())
    (patches,) = maps(fig, "x")
    np.testing.assert_allclose(np.asarray(patches.z), np.arange(6).reshape(GRID))
    assert np.asarray(patches.customdata)[0, 0] == 2  # as the model counts its tokens


def test_over_a_text_every_word_has_a_bar_in_every_row_and_padding_none():
    lengths = {name: np.arange(9.0) + 10 * number for number, name in enumerate("qkv")}
    fig = token_norms_figure(lengths, text_tokens())
    for name, bars in zip("qkv", fig.data, strict=True):
        assert bars.type == "bar"
        np.testing.assert_allclose(bars.y, lengths[name][:7])
        assert list(bars.customdata) == list(range(7))
        assert list(bars.x)[3:5] == ["on", "the (2)"]
    assert [fig.layout[axis].title.text for axis in ("yaxis", "yaxis2", "yaxis3")] == ["‖q‖", "‖k‖", "‖v‖"]


@pytest.mark.parametrize(
    ("lengths", "says"),
    [
        ({"q": np.ones(7)}, "holds 7 tokens, but the input has 8"),
        ({"q": np.ones(8), "k": np.ones(5)}, "5 rows do not fit 8 tokens"),
    ],
)
def test_what_does_not_fit_is_refused(lengths, says):
    with pytest.raises(InputError, match=says):
        token_norms_figure(lengths, image_tokens())
