"""Plates: every panel keeps what it had, in its own place."""

import itertools

import numpy as np
import plotly.express as px
import plotly.graph_objects as go
import pytest
from plotly.subplots import make_subplots

from workbench.core.errors import InputError
from workbench.figures import Band, Line, Plot, multipanel
from workbench.figures.theme import PANEL_LETTER
from workbench.frames.measurement import make_frame


def line(*names):
    return go.Figure([go.Scatter(x=[0, 1], y=[index, 1], name=name) for index, name in enumerate(names)])


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
    assert [trace.coloraxis for trace in fig.data] == ["coloraxis", "coloraxis2", None]
    bars = [fig.layout.coloraxis.colorbar.x, fig.layout.coloraxis2.colorbar.x, fig.data[2].colorbar.x]
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


def test_images_and_pies_are_panels_too():
    fig = multipanel(
        [px.imshow(np.zeros((4, 6, 3), np.uint8)), go.Figure(go.Pie(values=[1, 2], labels=["p", "q"]))]
    )
    assert [trace.type for trace in fig.data] == ["image", "pie"]
    assert fig.data[1].domain.x[0] > fig.layout.xaxis.domain[1]


def test_polar_and_three_dimensional_panels_keep_their_own_region():
    fig = multipanel(
        [go.Figure(go.Scatterpolar(r=[1, 2], theta=[0, 90])), go.Figure(go.Surface(z=[[1, 2], [3, 4]]))]
    )
    assert fig.layout.polar.domain.x[1] < fig.layout.scene.domain.x[0]


def test_one_legend_names_each_look_once():
    fig = multipanel([line("first", "second"), line("first", "second"), line("alone")])
    assert [trace.name for trace in fig.data if trace.showlegend] == ["first", "second"]
    assert fig.data[0].legendgroup == fig.data[2].legendgroup
    assert fig.data[0].legendgroup != fig.data[1].legendgroup


def test_a_series_keeps_its_look_whatever_its_panel():
    fig = multipanel([line("a", "b"), line("a", "b")])
    assert fig.data[0].line.color == fig.data[2].line.color != fig.data[1].line.color
    assert fig.data[1].line.dash == fig.data[3].line.dash != fig.data[0].line.dash


def test_the_figures_given_are_not_changed():
    figures = [facets(), heat()]
    before = [figure.to_json() for figure in figures]
    multipanel(figures)
    assert [figure.to_json() for figure in figures] == before


@pytest.mark.parametrize(
    ("figures", "arguments"),
    [
        ([], {}),
        (["no figure"], {}),
        ([line("a")], {"columns": 0}),
        ([line("a"), line("b")], {"widths": [1, 2, 3]}),
        ([line("a")], {"letters": "ab"}),
        ([line("a")] * 30, {"columns": 30}),
        ([go.Figure(go.Bar(y=[1]), {"barmode": mode}) for mode in ("stack", "group")], {}),
    ],
)
def test_what_cannot_be_a_plate_is_refused(figures, arguments):
    with pytest.raises(InputError):
        multipanel(figures, **arguments)


def test_a_figure_of_the_grammar_keeps_its_key_above_its_own_panel():
    frame = make_frame(
        np.ones((3, 2)) * [[1], [2], [3]], "attention_entropy", {"input": range(3), "layer": [0, 1]}
    )
    plot = Plot(frame.assign(model="m")).metric("attention_entropy").add(Line(), Band())
    fig = multipanel([plot.figure(), plot.figure()], columns=2)
    shown = [(trace.legend, trace.name) for trace in fig.data if trace.showlegend]
    assert [name for _, name in shown] == ["mean over 3 inputs", "95 % CI over inputs"] * 2
    left, right = (fig.layout[shown[place][0]].x for place in (0, 2))
    assert left < 0.1
    assert right == pytest.approx(left + 0.5)
    assert len({name for name, _ in shown}) == 2
