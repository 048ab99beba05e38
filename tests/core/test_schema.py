"""What files of JSON hold is looked at by their annotations, and refused in one line."""

from dataclasses import dataclass

import pytest
from typing_extensions import TypedDict

from workbench.core.schema import conforming, parsed


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
