"""Figures refuse wrong arguments where they arrive: what arrived, what is accepted, what to do."""

import math

import numpy as np
import plotly.graph_objects as go
import pytest

from tests.figures.test_grammar import frame
from workbench.core.errors import InputError
from workbench.figures import (
    Band,
    Interval,
    Line,
    Plot,
    Rule,
    apply_theme,
    attention_heatmap_figure,
    head_grid_figure,
    model_pages,
    multipanel,
    plot,
    spectrum_figure,
    with_absent,
)
from workbench.figures.export import save_figure

METRIC = "attention_diversity"
FRAME = frame(inputs=2)
DRAWN = go.Figure(go.Scatter(x=[1, 2], y=[1, 2]))
NAN = math.nan


def curves(**columns):
    return Plot(**{"frame": FRAME, **columns}).metric(METRIC)


def rows(**columns):
    return Plot(**{"frame": FRAME, "y": "model", "x": [METRIC], **columns})


@pytest.mark.parametrize("argument", ["x", "color", "panel", "dash", "y", "group"])
def test_an_unknown_column_is_named_with_its_argument_and_the_columns_there_are(argument):
    with pytest.raises(InputError, match=f"unknown column for {argument} 'wwww'; .*head, input, layer"):
        curves(**{argument: "wwww"})
    with pytest.raises(InputError, match=f"unknown column for {argument} 'layers'; did you mean 'layer'"):
        curves(**{argument: "layers"})


@pytest.mark.parametrize("given", [None, 5, {"layer": [1]}, [FRAME]])
@pytest.mark.parametrize("draw", [Plot, plot, spectrum_figure, lambda given: head_grid_figure(given, METRIC)])
def test_what_is_no_frame_is_refused(draw, given):
    with pytest.raises(InputError, match=r"frame (is .*; give a result frame|must be a DataFrame; got)"):
        draw(given)


@pytest.mark.parametrize(
    ("draw", "says"),
    [
        (lambda: curves(x="model"), "column 'model' holds 'bundled:digits-vit', but takes numbers"),
        (lambda: curves(frame=FRAME.drop(columns="layer"), x="depth"), "no column layer"),
        (lambda: plot(FRAME.drop(columns="metric")), "no column metric"),
        (lambda: plot(FRAME.assign(value="much")), "column 'value' holds 'much', but takes numbers"),
        (lambda: plot(FRAME.assign(again=0).rename(columns={"again": "layer"})), "several columns 'layer'"),
        (lambda: plot(FRAME, 5), r"metrics is \(5,\); give each metric's name"),
        (lambda: rows(x=METRIC).figure(), "x is 'attention_diversity'; give with y a list"),
        (lambda: rows(x=[5]).figure(), r"x is \[5\]; give with y a list"),
        (lambda: curves(names=["a"]), r"names is \['a'\]; give a mapping"),
        (lambda: curves().add(5), "5 is no mark; give marks such as"),
        (lambda: curves().add(Line), "Line'> is no mark"),
        (lambda: curves().add(Line("most")), "estimator is 'most'; give 'mean' or 'median'"),
        (lambda: curves().add(Band(over="trial")), "unknown column for over 'trial'"),
        (lambda: rows().add(Interval(over="trial")), "unknown column for over 'trial'"),
        (lambda: curves().add(Rule(column="chance")), "unknown column for column 'chance'"),
        (lambda: curves(frame=FRAME.drop(columns="input")).add(Band()).figure(), "draw nothing of this frame"),
        (lambda: attention_heatmap_figure(None), "capture is None; give what `workbench.capture` returns"),
        (lambda: model_pages(FRAME, 0), "most is 0"),
        (lambda: head_grid_figure(FRAME, METRIC, layers=-5), "layers is -5"),
        (lambda: head_grid_figure(FRAME, METRIC, chosen=5), r"chosen is 5; give a pair \(layer, head\)"),
        (lambda: with_absent(DRAWN, 5), "absent is 5"),
        (lambda: apply_theme(5), "figure is 5; give a plotly Figure"),
        (lambda: apply_theme(DRAWN, width=["column"]), "unknown width"),
        (lambda: curves().figure(width=["column"]), "unknown width"),
    ],
)  # fmt: skip
def test_what_cannot_be_drawn_is_refused_in_words(draw, says):
    with pytest.raises(InputError, match=says):
        draw()


@pytest.mark.parametrize(
    ("argument", "values"),
    [
        ("height", [NAN, -3, 0, 25, math.inf, "tall", True]),
        ("columns", [NAN, 0, -1, 1.5, "two", True]),
        ("labels", ["x", 5, None]),
        ("empty", [5, None]),
    ],
)
@pytest.mark.parametrize("kind", [curves, rows])
def test_sizes_and_places_of_labels_are_those_that_a_figure_may_have(kind, argument, values):
    for value in values:
        if kind is curves or value != 25:  # rows have the height of their scale
            with pytest.raises(InputError, match=f"^{argument} is .*;"):
                kind().figure(**{argument: value})


@pytest.mark.parametrize(
    ("scale", "values"),
    [
        ("y_range", [5, (0, NAN), (1, 1), (0, 1, 2), "01", {METRIC: 5}]),
        ("x_range", [3, (0, math.inf)]),
        ("y_log", ["x", 2, {METRIC: "x"}]),
        ("x_log", ["x", 3]),
        ("y_zero", ["no"]),
        ("y_title", [5, {METRIC: 5}]),
        ("x_free", ["layer"]),
        ("row", [NAN, -1, "x", None]),
    ],
)
def test_a_scale_takes_what_it_says(scale, values):
    for value in values:
        with pytest.raises(InputError, match=f"^{scale} is .*; give"):
            curves().scale(**{scale: value})


@pytest.mark.parametrize(
    ("argument", "values"),
    [
        ("font", [5, "", " "]),
        ("height", [NAN, -5, "tall"]),
        ("out", [5]),
        ("formats", [5, [5]]),
        ("parameters", [5, ["n"]]),
        ("records", [5, "a file", [5]]),
    ],
)
def test_save_figure_checks_its_arguments_before_it_writes(tmp_path, argument, values):
    for value in values:
        with pytest.raises(InputError, match=f"^{argument} is .*; give"):
            save_figure(DRAWN, "f", **{"out": tmp_path / "figures", argument: value})
    assert not (tmp_path / "figures").exists()


@pytest.mark.parametrize(
    "settings", [{"columns": 1.5}, {"columns": NAN}, {"letters": 5}, {"letters": "ab"}, {"letters": "1"}]
)
def test_multipanel_checks_its_arguments(settings):
    (name,) = settings
    with pytest.raises(InputError, match=f"^{name} is .*; give"):
        multipanel([DRAWN], **settings)
    for figures in (5, None, [], [5], DRAWN):
        with pytest.raises(InputError, match=r"^figures is .*; give a list of one or more"):
            multipanel(figures)


def test_numbers_of_numpy_are_accepted():
    fig = curves().scale(y_range=np.array([0.0, 1.0]), y_zero=np.True_)
    assert fig.figure(height=np.float32(200), columns=np.int64(1)).layout.height == 200
