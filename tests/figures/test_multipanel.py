"""Plates: every panel keeps what it had, in its own place."""

import itertools
import json

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
from plotly.subplots import make_subplots

from workbench.core.errors import InputError
from workbench.figures import Band, Line, Plot, Rule, multipanel
from workbench.figures.export.checks import page_flaws
from workbench.figures.export.saving import measure_figure
from workbench.figures.theme import PANEL_LETTER
from workbench.frames.results import make_frame


def line(*names):
    return go.Figure([go.Scatter(x=[0, 1], y=[index, 1], name=name) for index, name in enumerate(names)])


def curve(width, *metrics):
    axes = {"input": range(3), "layer": [0, 1]}
    metrics = metrics or ("attention_entropy",)
    frame = pd.concat([make_frame(np.ones((3, 2)) * [[1], [2], [3]], metric, axes) for metric in metrics])
    return Plot(frame.assign(model="m")).metric(*metrics).add(Line(), Band(), Rule(2, "two")).figure(width)


def heat():
    fig = go.Figure(go.Heatmap(z=[[1, 2, 3], [4, 5, 6]], coloraxis="coloraxis"))
    return fig.update_layout(coloraxis={"colorbar": {"title": "z"}})


def facets():
    fig = make_subplots(1, 2, shared_yaxes=True, subplot_titles=["left", "right"])
    fig.add_trace(go.Scatter(y=[1, 2], name="one"), 1, 1)
    fig.add_trace(go.Scatter(y=[2, 3], name="two"), 1, 2)
    return fig


def axes(fig):
    """(x domain, y domain) of every pair of axes that a trace uses."""
    found = set()
    for trace in fig.data:
        x = fig.layout["xaxis" + (trace.xaxis or "x")[1:]]
        y = fig.layout["yaxis" + (trace.yaxis or "y")[1:]]
        found.add((x.domain, y.domain))
    return sorted(found)


def overlap(first, second):
    (ax, ay), (bx, by) = first, second
    return min(ax[1], bx[1]) - max(ax[0], bx[0]) > 1e-9 and min(ay[1], by[1]) - max(ay[0], by[0]) > 1e-9


def letters(fig):
    return [note.text for note in fig.layout.annotations if note.name == PANEL_LETTER]


@pytest.mark.parametrize("columns", [1, 2, 3])
def test_panels_do_not_overlap_and_nothing_is_lost(columns):
    figures = [line("a", "b"), heat(), facets(), line("a")]
    fig = multipanel(figures, columns=columns)
    assert len(fig.data) == sum(len(figure.data) for figure in figures)
    places = axes(fig)
    assert len(places) == 5  # the facets have two
    assert not any(overlap(first, second) for first, second in itertools.combinations(places, 2))
    assert letters(fig) == ["<b>a</b>", "<b>b</b>", "<b>c</b>", "<b>d</b>"]


def test_panels_go_row_by_row():
    fig = multipanel([line("a"), line("a"), line("a")], columns=2, letters="A")
    layout = fig.layout
    (ax, bx, cx) = (layout.xaxis.domain, layout.xaxis2.domain, layout.xaxis3.domain)
    (ay, by, cy) = (layout.yaxis.domain, layout.yaxis2.domain, layout.yaxis3.domain)
    assert ax[1] < bx[0]
    assert ay == by
    assert cy[1] < ay[0]
    assert cx == ax
    assert letters(fig)[-1] == "<b>C</b>"


def test_links_between_axes_point_into_the_same_panel():
    fig = multipanel([facets(), facets()], columns=1)
    assert fig.layout.yaxis2.matches == "y"
    assert fig.layout.yaxis4.matches == "y3"
    assert fig.layout.xaxis3.anchor == "y3"
    assert fig.layout.yaxis4.anchor == "x4"


def test_overlaid_axes_lie_over_their_own_panel():
    double = make_subplots(specs=[[{"secondary_y": True}]])
    double.add_trace(go.Scatter(y=[1, 2]))
    double.add_trace(go.Scatter(y=[9, 8]), secondary_y=True)
    fig = multipanel([line("a"), double])
    assert fig.layout.yaxis3.overlaying == "y2"
    assert fig.data[2].yaxis == "y3"


def test_colour_axes_and_bars_stay_with_their_panel():
    own = go.Figure(go.Heatmap(z=[[1, 2], [3, 4]]))
    fig = multipanel([heat(), heat(), own], columns=3)
    assert [trace.coloraxis for trace in fig.data] == ["coloraxis", "coloraxis2", "coloraxis3"]
    bars = [fig.layout[trace.coloraxis].colorbar.x for trace in fig.data]
    for bar, panel, after in zip(bars, axes(fig), [*axes(fig)[1:], ((1.0, 1.0), None)], strict=True):
        assert panel[0][1] < bar < after[0][0]


def test_annotations_shapes_and_images_move_with_their_panel():
    fig = line("a")
    fig.add_annotation(text="top right", x=1, y=1, xref="paper", yref="paper", showarrow=False)
    fig.add_annotation(text="point", x=0.5, y=0.5)
    fig.add_hline(y=0.3)
    fig.add_layout_image(source="data:,", x=0.25, y=0.75, sizex=0.5, sizey=0.5, xref="paper", yref="paper")
    made = multipanel([line("a"), fig])
    corner, point = [note for note in made.layout.annotations if note.name != PANEL_LETTER]
    assert (corner.x, corner.y) == pytest.approx((made.layout.xaxis2.domain[1], made.layout.yaxis2.domain[1]))
    assert (point.xref, point.yref) == ("x2", "y2")
    assert made.layout.shapes[0].xref == "x2 domain"
    assert made.layout.shapes[0].yref == "y2"
    left, right = made.layout.xaxis2.domain
    assert made.layout.images[0].x == pytest.approx(left + 0.25 * (right - left))
    assert made.layout.images[0].sizex == pytest.approx(0.5 * (right - left))


def test_a_legend_stands_above_its_own_panel_in_rows():
    fig = multipanel([line("first", "second"), line("alone")])
    shown = [trace for trace in fig.data if trace.showlegend]
    assert [trace.name for trace in shown] == ["first", "second"]
    legend = fig.layout[shown[0].legend]
    assert legend.x == pytest.approx(fig.layout.xaxis.domain[0])
    assert legend.y == pytest.approx(fig.layout.yaxis.domain[1])
    assert (legend.orientation, legend.yanchor) == ("h", "bottom")
    assert fig.layout.yaxis.domain[1] < fig.layout.yaxis2.domain[1]  # which needs no room for one


def test_the_figures_given_are_not_changed():
    figures = [facets(), heat()]
    before = [json.loads(figure.to_json()) for figure in figures]
    multipanel(figures)
    assert [json.loads(figure.to_json()) for figure in figures] == before


@pytest.mark.parametrize(
    ("figures", "arguments", "says"),
    [
        ([], {}, "one or more"),
        (["no figure"], {}, "one or more"),
        ([line("a")], {"columns": 0}, "columns is 0"),
        ([line("a")], {"letters": "ab"}, "letters is 'ab'"),
        ([go.Figure(go.Pie(values=[1, 2]))], {}, "x and y axes; got a trace of type 'pie'"),
        ([curve("page"), curve("page")], {}, "648 px does not fit one of 2 columns, 324 px wide"),
    ],
)
def test_what_cannot_be_a_panel_is_refused(figures, arguments, says):
    with pytest.raises(InputError, match=says):
        multipanel(figures, **arguments)


def test_a_figure_of_the_grammar_keeps_its_size_and_its_key_above_its_own_panel():
    alone = curve("column")
    fig = multipanel([alone, alone], columns=2)
    shown = [(trace.legend, trace.name) for trace in fig.data if trace.showlegend]
    assert [name for _, name in shown] == ["two"] * 2
    assert fig.layout.meta["marks"] == ["Lines: mean over 3 inputs.", "Bands: 95 % CI over inputs."]  # once
    left, right = (fig.layout[legend].x for legend, _ in shown)
    assert left < 0.1
    assert right == pytest.approx(left + 0.5)
    assert len({name for name, _ in shown}) == 2
    for axis, whole in (("xaxis", "width"), ("yaxis", "height")):
        before, after = (np.diff(one.layout[axis].domain) * one.layout[whole] for one in (alone, fig))
        assert before == pytest.approx(after, abs=1e-6)


def test_letters_of_several_panels_go_on_from_figure_to_figure():
    two = curve("page", "attention_entropy", "attention_distance")
    fig = multipanel([two, curve("page"), two], columns=1)
    assert letters(fig) == [f"<b>{letter}</b>" for letter in "abcde"]
    page = measure_figure(fig)
    titles = sorted(round(one.box[1]) for one in page.words if one.text == "Layer")
    bottoms = sorted(round((1 - axis.domain[0]) * fig.layout.height) for axis in fig.select_yaxes())
    assert all(0 < title - bottom < 30 for title, bottom in zip(titles, bottoms, strict=True))


def test_no_words_overlap_or_leave_the_page():
    raw = go.Figure([go.Scatter(x=[0, 1], y=[2, 3], name=name) for name in ("one", "another")])
    raw.update_layout(xaxis_title="time (s)", yaxis_title="loss")
    fig = multipanel([curve("column"), raw, heat()], columns=2)
    page = measure_figure(fig)
    assert {"a", "b", "c", "another", "loss"} <= {one.text for one in page.words}
    assert page_flaws(page) == []
