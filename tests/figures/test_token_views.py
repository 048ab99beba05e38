"""Labels of tokens as figures write them."""

import pytest

from workbench.figures.tokens import TokenView, pooled_view, text_view


@pytest.mark.parametrize("word", ["שלום", "مرحبا", " שלום"])
def test_a_label_from_right_to_left_is_isolated(word):
    view = text_view([3, 4], [word, "the"], ["word", "word"])
    assert view.names == [f"“\u2068{word}\u2069” (token 3)", "“the” (token 4)"]


def test_plotly_takes_a_label_neither_for_markup_nor_for_latex():
    view = text_view([3, 4], ["$5–$7", "<s>"], ["word", "word"])
    assert view.names == ["“&#36;5–&#36;7” (token 3)", "“&lt;s&gt;” (token 4)"]


def test_a_single_query_is_that_of_the_class_token_or_of_the_first():
    kinds = ["register", "class", "patch", "patch", "padding"]
    view = TokenView([4, 5, 6, 7, 8], list("abcde"), list("abcde"), kinds, (1, 2))
    assert view.asking == 1
    assert (view.real, view.special) == ([0, 1, 2, 3], [0, 1])
    assert (view.places(1), view.places(5), view.place(6), view.place(3)) == ([1], [0, 1, 2, 3, 4], 2, None)
    assert text_view([3, 4], ["a", "b"], ["word", "word"]).asking == 0


def test_pooled_patches_lie_on_a_coarser_grid_of_the_same_shape():
    grids = {}
    for count in range(1, 25):
        view = pooled_view(count, (4, 6))
        grids[count] = view and view.grid
    assert {count: grid for count, grid in grids.items() if grid} == {6: (2, 3), 24: (4, 6)}
    assert pooled_view(3, None) is None
