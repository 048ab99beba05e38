"""The theme: sizes on paper, and colours that survive colour blindness and grey."""

import itertools

import numpy as np
import plotly.graph_objects as go
import pytest
from plotly.colors import unlabel_rgb
from skimage.color import rgb2lab

from workbench.core.errors import InputError, UnknownName
from workbench.figures import theme

# Machado, Oliveira & Fernandes 2009, severity 1: what a colour looks like without one kind of cone.
DEFICIENT = {
    "protan": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deutan": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritan": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}


def _rgb(colour):
    if colour.startswith("#"):
        return np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    return np.array(unlabel_rgb(colour)) / 255


def _lightness(colour):
    return rgb2lab(_rgb(colour).reshape(1, 1, 3))[0, 0, 0]


def _seen(colour, matrix):
    linear = _rgb(colour) ** 2.2
    return rgb2lab(np.clip(np.array(matrix) @ linear, 0, 1).reshape(1, 1, 3) ** (1 / 2.2))[0, 0]


def test_a_column_is_three_and_a_quarter_inches_and_its_letters_eight_and_nine_points():
    fig = theme.apply_theme(go.Figure(go.Scatter(y=[1, 2])))
    assert fig.layout.width / 96 == 3.25
    assert theme.apply_theme(fig, width="page").layout.width / 96 == 6.75
    layout = fig.layout.template.layout
    assert layout.font.size * 0.75 == pytest.approx(8)
    assert layout.xaxis.title.font.size * 0.75 == pytest.approx(9)
    assert layout.legend.font.size * 0.75 == pytest.approx(8)


@pytest.mark.parametrize("name", sorted(theme.THEMES))
def test_a_title_has_room_for_its_lines(name):
    def top(title, **margin):
        fig = go.Figure(go.Scatter(y=[1, 2])).update_layout(title=title, margin=margin)
        return theme.apply_theme(fig, name).layout

    layout = top("Two<br>lines")
    letters = layout.template.layout.title.font.size
    assert layout.margin.t >= 2 * letters + layout.template.layout.font.size
    assert top("One").margin.t < layout.margin.t
    assert top("One", t=300).margin.t >= 300
    assert top(None).margin.t is None or top(None).margin.t == layout.template.layout.margin.t


def test_a_talk_is_sixteen_by_nine_whatever_height_the_figure_has():
    fig = theme.apply_theme(
        go.Figure(go.Scatter(y=[1, 2])).update_layout(height=99), theme="talk", height=300
    )
    assert fig.layout.width * 9 == fig.layout.height * 16
    assert fig.layout.template.layout.font.size > 20


def test_a_slide_has_room_at_the_top_for_what_a_paper_figure_has_there_in_its_larger_letters():
    def top(margin):
        fig = go.Figure(go.Scatter(y=[1, 2])).update_layout(margin={"t": margin, "l": 9})
        return theme.apply_theme(fig, theme="talk").layout.margin

    letters = theme.THEMES["talk"].font / theme.THEMES["paper"].font
    template = go.Figure(layout={"template": "workbench-talk"}).layout.template.layout.margin
    assert top(50).t == pytest.approx(50 * letters)
    assert top(4).t == template.t
    assert top(50).l is None  # the template's
    once = theme.apply_theme(go.Figure().update_layout(margin={"t": 50}), theme="talk")
    assert theme.apply_theme(once, theme="talk").layout.margin.t == once.layout.margin.t


def test_the_theme_can_come_from_the_environment_and_the_argument_goes_first(monkeypatch):
    monkeypatch.setenv("WORKBENCH_THEME", "talk")
    assert theme.find_theme().name == "talk"
    assert theme.find_theme("paper").name == "paper"
    monkeypatch.setenv("WORKBENCH_THEME", "papper")
    with pytest.raises(UnknownName, match="paper"):
        theme.find_theme()


def test_the_figure_given_is_not_changed():
    fig = go.Figure(go.Scatter(y=[1, 2]))
    before = fig.to_json()
    theme.apply_theme(fig, width="page")
    assert fig.to_json() == before


@pytest.mark.parametrize(("width", "height"), [("wide", None), ("column", 3), ("column", 1e6)])
def test_sizes_that_no_page_has_are_refused(width, height):
    with pytest.raises(InputError):
        theme.apply_theme(go.Figure(), width=width, height=height)


def test_the_first_series_differ_in_lightness():
    first = [_lightness(colour) for colour in theme.COLOURS[:4]]
    assert min(abs(a - b) for a, b in itertools.combinations(first, 2)) > 15


@pytest.mark.parametrize("kind", DEFICIENT)
def test_colours_stay_apart_without_one_kind_of_cone(kind):
    seen = [_seen(colour, DEFICIENT[kind]) for colour in theme.COLOURS]
    # About 2.3 is just noticeable for large areas; lines are thin, so five times that.
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 11.5


def test_twelve_series_have_twelve_looks():
    looks = {
        (theme.series_style(i)["line"]["color"], theme.series_style(i)["line"]["dash"]) for i in range(12)
    }
    assert len(looks) == 12


def test_depth_goes_evenly_from_dark_to_light():
    lightness = np.array([_lightness(colour) for colour in theme.depth_colours(9)])
    steps = np.diff(lightness)
    assert (steps > 0).all()
    assert steps.max() < 2 * steps.min()
    assert lightness[-1] < 85  # a paler line is lost on white
    ends = [theme.depth_colours(count)[-1] for count in (2, 3, 9)]
    assert len({*ends}) == 1  # deepest is one colour, however many there are
    assert len({theme.depth_colours(count)[0] for count in (1, 2, 9)}) == 1


def test_the_diverging_scale_is_darkest_at_both_ends():
    lightness = [_lightness(colour) for _, colour in theme.DIVERGING]
    assert max(lightness) == lightness[2]
    assert abs(lightness[0] - lightness[-1]) < 12


def test_even_choice_keeps_both_ends():
    assert list(theme.even_choice(5, 9)) == [0, 1, 2, 3, 4]
    assert list(theme.even_choice(12, 4)) == [0, 4, 7, 11]
    assert list(theme.even_choice(7, 1)) == [0]


@pytest.mark.parametrize("colour", [*theme.COLOURS, "#ffffff", "#ffee00", "rgb(120, 200, 255)", "#000000"])
def test_coloured_letters_have_the_contrast_of_text_and_are_no_darker_than_that(colour):
    def contrast(colour):
        return 1.05 / (theme.luminance(colour) + 0.05)

    letters = theme.readable(colour)
    assert contrast(letters) > 4.5
    if contrast(colour) > 4.6:
        assert theme.luminance(letters) == theme.luminance(colour)
    else:
        assert contrast(letters) < 5.8
