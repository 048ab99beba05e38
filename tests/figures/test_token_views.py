"""Labels of tokens as figures write them."""

import pytest

from workbench.figures.tokens import text_view


@pytest.mark.parametrize("word", ["שלום", "مرحبا", " שלום"])
def test_a_label_from_right_to_left_is_isolated(word):
    view = text_view([3, 4], [word, "the"], ["word", "word"])
    assert view.names == [f"“\u2068{word}\u2069” (token 3)", "“the” (token 4)"]


def test_plotly_takes_a_label_neither_for_markup_nor_for_latex():
    view = text_view([3, 4], ["$5–$7", "<s>"], ["word", "word"])
    assert view.names == ["“&#36;5–&#36;7” (token 3)", "“&lt;s&gt;” (token 4)"]
