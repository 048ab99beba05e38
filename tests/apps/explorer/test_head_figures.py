"""From a token and to it, over an image and over a text; and the whole matrix."""

import html
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from tests.figures.drawn import key, maps, said
from tests.figures.tokens import GRID, image_tokens, rows_that_sum_to_one, text_tokens
from workbench.apps.explorer.head_figures import (
    attention_matrix_figure,
    token_attention_figure,
    token_membership_figure,
)
from workbench.captures import TokenInfo
from workbench.core.errors import InputError
from workbench.figures.scales import MASKED
from workbench.figures.text_widths import text_width

IMAGE = np.zeros((4, 6, 3), np.uint8)


def titles(fig):
    return [note.text for note in fig.layout.annotations if note.yanchor == "bottom" and note.y == 1]


def test_the_two_panels_are_the_token_s_row_and_column():
    attn = rows_that_sum_to_one(8, 8)
    fig = token_attention_figure(torch.tensor(attn), image_tokens(), 4, IMAGE)
    row, row_prefix, column, column_prefix = maps(fig)
    np.testing.assert_allclose(np.asarray(row.z), attn[4, 2:].reshape(GRID))
    np.testing.assert_allclose(np.asarray(row_prefix.z), attn[4:5, :2])
    np.testing.assert_allclose(np.asarray(column.z), attn[2:, 4].reshape(GRID))
    np.testing.assert_allclose(np.asarray(column_prefix.z), attn[:2, 4][None])
    assert [title.replace("<br>", " ") for title in titles(fig)] == [
        "input",
        "from patch (0, 2): where it attends",
        "to patch (0, 2): what attends to it",
    ]


def test_the_cells_of_a_row_add_up_to_one_whatever_prefix_tokens_there_are():
    for prefix in ((), ("class",), ("class", "distillation", *["register"] * 4), ("register",) * 9):
        count = len(prefix) + 6
        fig = token_attention_figure(rows_that_sum_to_one(count, count), image_tokens(prefix), count - 1)
        row = [trace for trace in maps(fig) if trace.xaxis == "x"]
        assert sum(np.asarray(trace.z).sum() for trace in row) == pytest.approx(1)


def test_every_cell_carries_its_token():
    fig = token_attention_figure(rows_that_sum_to_one(8, 8), image_tokens(), 0)
    patches, prefix = maps(fig)[:2]
    assert np.asarray(patches.customdata).tolist() == [[2, 3, 4], [5, 6, 7]]
    assert np.asarray(prefix.customdata).tolist() == [[0, 1]]
    assert list(prefix.hovertext[0]) == ["[CLS]", "[REG]"]


def test_the_chosen_token_is_framed_in_both_panels():
    def frames(token):
        fig = token_attention_figure(rows_that_sum_to_one(8, 8), image_tokens(), token)
        return [(s.xref, s.x0, s.x1, s.y0, s.y1) for s in fig.layout.shapes if s.line.width == 2]

    assert frames(6) == [(axis, 0.5, 1.5, 0.5, 1.5) for axis in ("x", "x2")]  # row 1, column 1
    for _, left, right, top, bottom in frames(1):  # the register token, below the patches
        assert -0.5 < left < right < 2.5
        assert 1.5 < top < bottom


def test_the_largest_weight_of_each_map_has_a_ring_among_the_special_tokens_too():
    attn = rows_that_sum_to_one(8, 8)
    attn[4, 5], attn[0, 4] = 2, 3
    fig = token_attention_figure(attn, image_tokens(), 4)
    drawn = [trace for trace in fig.data if trace.type == "scatter" and trace.x[0] is not None]
    rings = [trace for trace in drawn if trace.marker.symbol == "circle-open"]
    assert [(ring.xaxis, *ring.x, *ring.y) for ring in rings[:2]] == [("x", 0, 1)] * 2  # halo and ring
    assert {ring.xaxis for ring in rings[2:]} == {"x2"}
    assert rings[2].y[0] > 1.5  # the class token, below the patches
    assert "largest weight of the map" in key(fig)


def test_the_image_stands_once_before_the_maps_and_a_click_on_it_finds_its_patch():
    fig = token_attention_figure(rows_that_sum_to_one(8, 8), image_tokens(), 3, IMAGE)
    (shown,) = fig.layout.images
    assert (shown.xref, shown.sizex, shown.sizey) == ("x", 3, 2)
    below = fig.data[0]
    assert (below.xaxis, np.asarray(below.customdata).tolist()) == ("x", [[2, 3, 4], [5, 6, 7]])
    assert not token_attention_figure(rows_that_sum_to_one(8, 8), image_tokens(), 3).layout.images


def test_both_maps_and_their_special_tokens_share_a_scale_from_0():
    attn = rows_that_sum_to_one(8, 8)
    fig = token_attention_figure(attn, image_tokens(), 3)
    assert {trace.coloraxis for trace in maps(fig)} == {"coloraxis"}
    assert fig.layout.coloraxis.cmin == 0
    assert fig.layout.coloraxis.cmax == pytest.approx(max(attn[3].max(), attn[:, 3].max()))


def test_where_one_weight_is_far_above_the_others_the_bar_has_another_course_and_says_so():
    attn = np.full((8, 8), 0.01)
    attn[3, 5] = 0.93
    fig = attention_matrix_figure(attn, image_tokens(), 3)
    cells, bar = fig.layout.coloraxis, fig.layout.coloraxis12.colorbar
    assert bar.title.text.replace("<br>", " ") == "Attention weight, log scale"
    assert (cells.cmin, cells.cmax) == (0.01, 0.93)
    assert cells.showscale is False
    np.testing.assert_allclose(np.asarray(maps(fig)[0].z)[3, 5], 0.93, rtol=1e-6)  # numbers stay as they are


def test_without_a_token_the_mean_over_real_queries_is_shown():
    attn = rows_that_sum_to_one(9, 9)
    fig = token_attention_figure(attn, text_tokens(), None)
    (boxes,) = fig.data
    np.testing.assert_allclose(boxes.marker.color, attn[:7].mean(axis=0)[:7])
    assert titles(fig) == ["from all 7 tokens: where they attend"]


def test_class_attention_has_no_second_panel_and_says_so():
    attn = rows_that_sum_to_one(1, 8)
    fig = token_attention_figure(attn, image_tokens(), 5)
    assert titles(fig) == ["from [CLS]: where it attends"]
    np.testing.assert_allclose(np.asarray(maps(fig)[0].z), attn[0, 2:].reshape(GRID))
    assert "one query" in said(fig)


def test_a_token_that_takes_no_part_in_the_layer_gives_the_mean_and_says_so():
    attn = rows_that_sum_to_one(6, 6)
    fig = token_attention_figure(attn, image_tokens(), 0)  # the class token joins later
    np.testing.assert_allclose(np.asarray(maps(fig)[0].z), attn.mean(axis=0).reshape(GRID))
    assert "[CLS] takes no part" in said(fig)
    assert titles(token_attention_figure(attn, image_tokens(), 2))[0].startswith("from patch (0, 0)")


def test_over_a_text_every_token_but_padding_is_a_box_in_reading_order():
    attn = rows_that_sum_to_one(9, 9)
    fig = token_attention_figure(attn, text_tokens(), 2)
    row, column = fig.data
    assert [html.unescape(word) for word in row.text] == text_tokens().labels[0][:7]
    assert list(row.customdata) == list(range(7))
    np.testing.assert_allclose(row.marker.color, attn[2, :7])
    np.testing.assert_allclose(column.marker.color, attn[:7, 2])
    assert row.marker.line.width[2] > row.marker.line.width[1]


def test_boxes_of_a_line_do_not_overlap_and_lines_follow_each_other():
    count = 60
    tokens = SimpleNamespace(
        labels=[[f"word{place}" for place in range(count)]], kinds=[["word"] * count], grid=None
    )
    boxes = token_attention_figure(rows_that_sum_to_one(count, count), tokens, 0).data[0]
    ends, left, line = np.asarray(boxes.base) + boxes.x, np.asarray(boxes.base), np.asarray(boxes.y)
    same = line[1:] == line[:-1]
    assert (left[1:][same] > ends[:-1][same]).all()
    assert (np.diff(line)[~same] == 1).all()
    assert line[-1] > 3


def test_of_a_long_text_the_part_with_the_token_is_shown_and_the_share_it_holds():
    count = 50
    tokens = SimpleNamespace(
        labels=[[f"w{place}" for place in range(count)]], kinds=[["word"] * count], grid=None
    )
    attn = rows_that_sum_to_one(count, count)
    fig = token_attention_figure(attn, tokens, 25, max_lines=2)
    shown = list(fig.data[0].customdata)
    first, last = shown[0], shown[-1]
    assert first <= 25 <= last < 49
    assert shown == list(range(first, last + 1))
    assert set(fig.data[0].y) == {0, 1}
    assert f"Tokens {first} to {last} of 50 are shown" in said(fig)
    assert f"{100 * attn[25, first : last + 1].sum():.0f} % of the attention from “w25” (token 25)." in said(
        fig
    )
    again = token_attention_figure(attn, tokens, first, max_lines=2)
    assert list(again.data[0].customdata) == shown  # the part does not move with the token


@pytest.mark.parametrize(
    ("attn", "token", "says"),
    [
        (rows_that_sum_to_one(2, 8, 8), 0, r"\(query, key\); got shape \(2, 8, 8\)"),
        (rows_that_sum_to_one(5, 8), 0, "5 queries to 8 keys"),
        (rows_that_sum_to_one(7, 7), 0, "holds 7 tokens, but the input has 8"),
        (rows_that_sum_to_one(8, 8), 8, r"no token 8; the input has 8 \(0 to 7\)"),
    ],
)
@pytest.mark.parametrize("figure", [token_attention_figure, attention_matrix_figure])
def test_what_does_not_fit_is_refused(figure, attn, token, says):
    with pytest.raises(InputError, match=says):
        figure(attn, image_tokens(), token=token)


# ------------------------------------------------------------------------------------------------- the matrix


def test_the_matrix_leaves_padding_out_and_names_every_token_once():
    attn = rows_that_sum_to_one(9, 9)
    fig = attention_matrix_figure(attn, text_tokens(), token=4)
    (cells,) = maps(fig)
    assert list(fig.layout.xaxis.ticktext) == ["[CLS]", "the", "clock", "on", "the", "&lt;s&gt;", "[SEP]"]
    assert key(fig) == []
    assert "“the” (token 4)" in [note.text for note in fig.layout.annotations]
    np.testing.assert_allclose(np.asarray(cells.z), attn[:7, :7], rtol=1e-6)
    assert list(cells.x) == ["[CLS]", "the", "clock", "on", "the (2)", "&lt;s&gt;", "[SEP]"]
    assert list(cells.y) == list(cells.x)
    assert np.asarray(cells.customdata)[4, 2].tolist() == [4, 2]


def test_padding_on_the_left_keeps_the_token_s_number():
    tokens = SimpleNamespace(labels=[["[PAD]", "a", "b", "c"]], kinds=[["padding", *["word"] * 3]], grid=None)
    attn = rows_that_sum_to_one(4, 4)
    fig = attention_matrix_figure(attn, tokens, token=2)
    assert np.asarray(fig.data[0].customdata)[0, 1].tolist() == [1, 2]
    row, column = fig.layout.annotations[:2]
    assert (row.y, column.x) == (1, 1)  # of the tokens shown


def test_the_matrix_of_an_image_names_patches_by_row_and_column():
    cells = attention_matrix_figure(rows_that_sum_to_one(8, 8), image_tokens()).data[0]
    assert list(cells.x) == ["[CLS]", "[REG]", "0,0", "0,1", "0,2", "1,0", "1,1", "1,2"]


def test_the_titles_beside_a_single_query_are_whole():
    fig = attention_matrix_figure(rows_that_sum_to_one(1, 8), image_tokens())
    assert fig.layout.yaxis.title.text == "query"
    height = fig.layout.height - fig.layout.margin.t - fig.layout.margin.b
    assert height >= text_width("Attention", fig.layout.template.layout.font.size)


def test_keys_that_a_causal_head_leaves_out_have_a_colour_of_their_own():
    attn = np.tril(rows_that_sum_to_one(9, 9))
    fig = attention_matrix_figure(attn, text_tokens())
    shown = np.asarray(maps(fig)[0].z)
    assert (np.isnan(shown) == np.triu(np.ones((7, 7), dtype=bool), 1)).all()
    assert "most attention: “[CLS]” (token 0)" in [note.text for note in fig.layout.annotations]
    assert key(fig) == ["masked: keys later than the query"]
    assert [shape.fillcolor for shape in fig.layout.shapes] == [MASKED]
    assert not attention_matrix_figure(rows_that_sum_to_one(9, 9), text_tokens()).layout.shapes


def test_class_attention_is_a_matrix_of_one_row():
    fig = attention_matrix_figure(rows_that_sum_to_one(1, 8), image_tokens(), token=3)
    assert list(fig.data[0].y) == ["[CLS]"]
    assert np.asarray(fig.data[0].customdata)[0, 3].tolist() == [0, 3]
    assert len(fig.layout.annotations) == 2  # an arrow head and its name


def test_a_broken_model_s_weights_are_drawn_as_far_as_they_go_and_spoken_of():
    attn = rows_that_sum_to_one(8, 8)
    attn[4, 3:6] = np.nan
    for fig in (
        token_attention_figure(attn, image_tokens(), 4),
        attention_matrix_figure(attn, image_tokens()),
    ):
        assert "3 of 64 weights are not finite" in said(fig)
        assert np.isfinite([fig.layout.coloraxis.cmin, fig.layout.coloraxis.cmax]).all()
    nothing = token_attention_figure(np.full((8, 8), np.nan), image_tokens(), 4)
    assert nothing.layout.coloraxis.cmax == 1


def test_the_matrix_of_cross_attention_names_both_kinds_of_tokens():
    """Three queries of a decoder, the last padding, to two of the encoder's four keys."""
    keys = TokenInfo(
        [["a", "b", "a", ""]], [["word"] * 3 + ["padding"]], None, torch.tensor([[True] * 3 + [False]])
    )
    queries = TokenInfo(
        [["<s>", "x", ""]],
        [["special", "word", "padding"]],
        None,
        torch.tensor([[True, True, False]]),
        keys=keys,
    )
    weights = np.arange(12).reshape(3, 4) / 12
    cells = attention_matrix_figure(weights, queries, token=1).data[0]
    assert (list(cells.y), list(cells.x)) == (["&lt;s&gt;", "x"], ["a", "b", "a (2)"])
    assert np.allclose(cells.z, weights[:2, :3])
    assert cells.customdata[1][2].tolist() == [1, 2]


# ---------------------------------------------------------------------------------------------- memberships


def word_memberships(heads=5, words=("the", "<s>", "clock"), first=2):
    """A text after ``first`` tokens of padding, which the frame leaves out."""
    values = np.random.default_rng(1).dirichlet(np.ones(heads), len(words)).T
    rows = [
        {"model": "bundled:prose-tost", "layer": 3, "input": "a", "head": head, "token": first + number,
         "label": word, "kind": "word", "value": values[head, number]}
        for head in range(heads)
        for number, word in enumerate(words)
    ]  # fmt: skip
    return pd.DataFrame(rows).sample(frac=1, random_state=1), values


def test_over_a_text_each_head_has_a_block_of_boxes_with_its_memberships():
    frame, values = word_memberships(heads=3)
    fig = token_membership_figure(frame, head=1, token=4)
    drawn = [trace for trace in fig.data if trace.type == "bar"]
    for boxes, expected in zip(drawn, values, strict=True):
        np.testing.assert_allclose(boxes.marker.color, expected)
        assert list(boxes.text) == ["the", "&lt;s&gt;", "clock"]
        assert list(boxes.customdata) == [2, 3, 4]
        assert np.argmax(boxes.marker.line.width) == 2
    said = [note.text for note in fig.layout.annotations]
    assert said == ["head 0", "<b>head 1</b>", "head 2"]
    assert (fig.layout.coloraxis.cmin, fig.layout.coloraxis.cmax) == (0, 1)
    said = "Membership Π (uniform: 1 / 3), square-root scale around uniform"
    assert fig.layout.coloraxis12.colorbar.title.text.replace("<br>", " ") == said


def test_of_many_heads_and_words_the_parts_with_the_chosen_ones_are_shown():
    frame, values = word_memberships(heads=5, words=[f"word{number}" for number in range(90)], first=0)
    fig = token_membership_figure(frame, head=4, token=70, max_heads=3, max_lines=2)
    assert [note.text for note in fig.layout.annotations][:2] == ["head 3", "<b>head 4</b>"]
    shown = list(fig.data[0].customdata)
    assert shown == list(range(shown[0], shown[-1] + 1))
    assert 70 in shown
    assert max(fig.data[0].y) == 1
    np.testing.assert_allclose(fig.data[1].marker.color, values[4, shown])
    assert f"Heads 3 to 4 of 5 are shown. Tokens {shown[0]} to {shown[-1]} of 90 are shown." in said(fig)
    again = token_membership_figure(frame, head=3, token=shown[0], max_heads=3, max_lines=2)
    assert list(again.data[0].customdata) == shown
