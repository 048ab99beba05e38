"""What a word typed at a command line means depends on what it is for."""

import math

import pytest

from workbench.core.typed import literal, read_typed


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("none", None),
        ("null", None),
        ("True", True),
        ("8", 8),
        ("0.5", 0.5),
        ("[4, 2]", [4, 2]),
        ("0,3", "0,3"),
    ],
)
def test_a_text_reads_as_a_literal_where_it_is_one(text, value):
    assert literal(text) == value


@pytest.mark.parametrize(
    ("text", "takes", "meant"),
    [
        ("none", lambda value: value in ("none", "fit"), "none"),
        ("none", lambda value: value is None or isinstance(value, str), None),
        ("2024", lambda value: isinstance(value, str), "2024"),
        ("2024", lambda value: isinstance(value, int | str), 2024),
        ("none", lambda value: isinstance(value, int), "none"),  # as it was typed, for the error
        ("2.5", lambda value: isinstance(value, int), 2.5),
    ],
)
def test_the_option_says_which_of_both_is_meant(text, takes, meant):
    assert read_typed(text, takes) == meant


def test_nan_is_a_number_for_whoever_refuses_it():
    assert math.isnan(read_typed("NaN", lambda value: value == 1))
