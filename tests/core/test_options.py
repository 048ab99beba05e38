"""Options as annotated dataclasses: what they take, what they say, and where they come from."""

import math
import subprocess
import sys
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import pytest
from annotated_types import Ge, Gt, Le
from typing_extensions import TypedDict

from workbench.core.errors import InputError, UnknownName
from workbench.core.options import (
    NullSamples,
    accepted,
    check_options,
    conforming,
    literal,
    options_of,
    parse_numbers,
    parsed,
    ranges,
    read_options,
    read_typed,
)


@dataclass(frozen=True)
class Base:
    kept: Annotated[bool, "whether it is kept"] = True


@dataclass(frozen=True)
class Options(Base):
    rank: Annotated[Literal["all"] | Annotated[int, Ge(1)], "how many"] = "all"
    share: Annotated[float, Ge(0), Le(1), "of the whole"] = 0.5
    eps: Annotated[Annotated[float, Gt(0)] | None, "in the unit of the tokens; none: 1"] = None
    scale: Annotated[Literal["none", "trace"], "by what"] = "none"
    null_samples: Annotated[NullSamples, "of the null distribution"] = 20


def test_their_own_come_before_those_of_the_base():
    assert list(options_of(Options)) == ["rank", "share", "eps", "scale", "null_samples", "kept"]
    assert options_of(Options)["eps"].help == "in the unit of the tokens; none: 1"


def test_given_values_take_the_place_of_defaults():
    found = check_options(Options, {"rank": 3, "share": 1, "kept": False}, "mine")
    assert found == Options(rank=3, share=1.0, kept=False)
    assert isinstance(found.share, float)  # a whole number will do for one that need not be whole


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("rank", 0, "rank must be 'all' or a whole number from 1 up; got 0"),
        ("rank", "1", "got '1'"),
        ("rank", True, "got True"),
        ("rank", 2.0, "got 2.0"),
        ("share", 1.5, "share must be a number from 0 to 1; got 1.5"),
        ("share", float("nan"), "got nan"),
        ("share", "0.5", "got '0.5'"),
        ("eps", 0, "eps must be a number above 0, or none; got 0"),
        ("eps", float("inf"), "got inf"),
        ("scale", None, "scale must be 'none' or 'trace'; got None"),
        ("null_samples", 1, "null_samples must be 0, or a whole number from 2 up; got 1"),
        ("null_samples", False, "got False"),
        ("kept", 1, "kept must be true or false; got 1"),
    ],
)
def test_other_values_are_refused_in_words(option, value, message):
    with pytest.raises(InputError) as caught:
        check_options(Options, {option: value}, "mine")
    assert message in str(caught.value)


def test_an_option_that_is_not_there_is_named_with_its_nearest():
    with pytest.raises(UnknownName, match="unknown option of mine 'shares'; did you mean 'share'"):
        check_options(Options, {"shares": 1}, "mine")


def test_typed_words_mean_what_the_option_takes():
    typed = {"rank": "all", "share": "1", "eps": "none", "scale": "none", "kept": "false", "odd": "7"}
    found = read_options(typed, options_of(Options))
    assert found == {"rank": "all", "share": 1, "eps": None, "scale": "none", "kept": False, "odd": 7}


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Literal["a", "b", "c"], "'a', 'b' or 'c'"),
        (Annotated[float, Gt(0), Le(2)], "a number above 0 to 2"),
        (Annotated[float, Ge(0), Le(float("inf"))], "a number from 0 up"),
        (str, "text"),
        (Literal["ink"] | Annotated[str, "of a folder"] | None, "'ink', text, or none"),
    ],
)
def test_types_in_words(kind, words):
    assert accepted(kind) == words


def test_an_option_without_words_is_refused_where_it_is_written():
    @dataclass(frozen=True)
    class Silent:
        rank: int = 1

    with pytest.raises(TypeError, match=r"Silent\.rank needs a default, and words"):
        options_of(Silent)


def test_naming_analyses_and_metrics_of_studies_loads_neither_torch_nor_pydantic():
    code = (
        "import sys\n"
        "from workbench.analyses.registry import ANALYSES\n"
        "from workbench.frames.metric import METRICS\n"
        "assert 'gram-spectrum' in ANALYSES and len(ANALYSES) >= 16\n"
        "assert METRICS['accuracy_top1'].low == 0\n"
        "print(sorted({'torch', 'pydantic'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


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


@dataclass
class Part:
    n: int


class Whole(TypedDict):
    parts: list[Part]


def test_what_fits_comes_back_as_its_types():
    assert conforming(Whole, {"parts": [{"n": 3}], "more": 1}) == {"parts": [Part(3)]}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"parts": [{"n": "3"}]}, r"parts\.0\.n: .*integer"),
        ({"parts": [{"n": 1.5}]}, r"parts\.0\.n: .*integer"),
        ({"parts": [{"n": True}]}, r"parts\.0\.n: .*integer"),
        ({"parts": [{}]}, r"parts\.0\.n: Field required"),
        ({"parts": {}}, r"parts: .*array"),
        ([], "object"),
    ],
)
def test_what_does_not_fit_is_named_with_its_place(value, said):
    with pytest.raises(ValueError, match=said) as refused:
        conforming(Whole, value)
    assert "\n" not in str(refused.value)


def test_any_depth_is_an_answer():
    with pytest.raises(ValueError, match="nested too deeply"):
        parsed("[" * 100_000)
    deep = []
    for _ in range(10_000):
        deep = [deep]
    with pytest.raises(ValueError, match=r"deep|recursion"):
        conforming(list, deep)


@pytest.mark.parametrize("asked", ["1" * 5000, "0-" + "9" * 5000, "3,-" + "1" * 30])
def test_numbers_of_thousands_of_digits_are_no_numbers(asked):
    for total in (None, 4):
        with pytest.raises(InputError, match="neither a number nor a range"):
            parse_numbers("head", asked, total)


@pytest.mark.parametrize(
    ("numbers", "words"),
    [([], "none"), ([4], "4"), ([2, 0, 1, 5], "0-2, 5"), ([0, 2, 3, 4, 5, 7, 8, 10], "0, 2-5, 7-8, 10")],
)
def test_numbers_are_written_as_ranges(numbers, words):
    assert ranges(numbers) == words


def test_numbers_are_whole_numbers_of_any_kind_in_order_and_once():
    assert parse_numbers("layer", [2, np.int64(0), 2, -1], 4) == (0, 2, 3)
    for wrong in ([True], [1.5], [1.0], ["1"]):
        with pytest.raises(InputError, match="layers must be whole numbers"):
            parse_numbers("layer", wrong, 4)
