"""Public figure functions refuse arguments of another type before they draw."""

import inspect
from types import SimpleNamespace

import pytest

import workbench.figures
import workbench.studies.figures
from workbench.core.errors import InputError
from workbench.figures.figure_arguments import _ARGUMENTS

FIGURES = [
    getattr(room, name)
    for room in (workbench.figures, workbench.studies.figures)
    for name in room.__all__
    if name.endswith("_figure")
]


@pytest.mark.parametrize("value", [None, 5, "x", [3], {"a": 5}, SimpleNamespace()], ids=repr)
@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.__name__)
def test_a_figure_of_something_else_is_refused(figure, value):
    required = [
        parameter
        for parameter in inspect.signature(figure).parameters.values()
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
    ]
    with pytest.raises(InputError):
        figure(*[value] * len(required))


def test_a_table_of_frames_holds_frames():
    with pytest.raises(InputError, match=r"frames must be a table; got \{.training.: 5\}"):
        workbench.figures.projection_training_figure({"training": 5})
    with pytest.raises(InputError, match=r"frame must be a DataFrame; got None"):
        workbench.figures.spectrum_figure(None)
    assert len(FIGURES) > 25


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("columns", [None, 1, 5], [0, -1, 1.5, True, "2"]),
        ("estimator", ["mean", "median"], [None, "mode", 1]),
        ("font", [None, "venue", "Arial"], ["", " ", 5, ["Arial"]]),
        ("formats", [None, "pdf", ["pdf", "svg"]], [5, [5]]),
        ("height", [None, 20, 400.5, 10_000], [19, 10_001, float("nan"), "400", True]),
        ("chosen", [None, (1, 2), [3, 4]], [5, (1,), (1, 2, 3)]),
        ("empty", ["no data"], [None, 5]),
    ],
)
def test_every_argument_takes_what_its_words_say_and_nothing_else(name, good, bad):
    accepts, _ = _ARGUMENTS[name]
    assert [value for value in good if not accepts(value)] == []
    assert [value for value in bad if accepts(value)] == []
