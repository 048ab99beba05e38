"""A figure's width in inches, colours and letters, changed for a paper."""

import json

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

import workbench
from workbench.core.errors import InputError, UnknownName
from workbench.figures import Band, Line, Plot, multipanel
from workbench.figures.theme import PANEL_LETTER, theme_of, width_of
from workbench.frames.results import make_frame


def curves(*metrics, width="column"):
    """Two models, three inputs, two layers."""
    axes = {"input": range(3), "layer": [0, 1]}
    values = np.array([[1.0, 2.0], [2.0, 4.0], [3.0, 5.0]])
    frames = [
        make_frame(values + number, metric, axes).assign(model=model)
        for number, model in enumerate(("one", "other"))
        for metric in metrics or ("attention_entropy",)
    ]
    plot = Plot(pd.concat(frames), color="model").metric(*metrics or ("attention_entropy",))
    return plot.add(Line(), Band()).figure(width, labels="key")


def letters(fig):
    return [note.text for note in fig.layout.annotations if note.name == PANEL_LETTER]


def save(fig, tmp_path, **style):
    return workbench.save_figure(fig, "figure", out=tmp_path, formats=["html"], caption="A caption.", **style)


@pytest.mark.parametrize("inches", [5.5, 4, 2.75])
def test_a_width_in_inches_is_the_page_s_width(tmp_path, inches):
    fig = curves(width=inches)
    assert fig.layout.width == round(96 * inches)
    assert width_of(fig) in (inches, "neurips")  # whose text is 5.5 in wide
    saved = save(fig, tmp_path)
    assert saved.layout.width == round(96 * inches)
    assert save(curves(), tmp_path, width=inches).layout.width == round(96 * inches)
    provenance = json.loads((tmp_path / "figure.json").read_text())
    assert provenance["figure"]["width_px"] == round(96 * inches)


def test_a_width_of_0_is_refused(tmp_path):
    with pytest.raises(InputError, match="width=0; give inches from 1 to 20"):
        save(curves(), tmp_path, width=0)


def test_heat_maps_take_a_width():
    from workbench.figures import attention_heatmap_figure

    model = workbench.load("bundled:digits-vit")
    digits = workbench.inputs("bundled:digits", model, n=1)
    capture = workbench.capture(model, digits, layers=[0, 2])
    fig = attention_heatmap_figure(capture, image=digits.images[0], width=4.5)
    assert fig.layout.width == 432


@pytest.mark.parametrize("width", [0.2, 30, float("nan"), True, "5.5"])
def test_a_width_that_no_page_has_is_refused(width):
    with pytest.raises((InputError, UnknownName), match="width"):
        theme_of(width)


@pytest.mark.parametrize(
    ("first", "written"), [("(a)", ["<b>(a)</b>", "<b>(b)</b>"]), ("A", ["<b>A</b>", "<b>B</b>"]), ("", [])]
)
def test_letters_are_written_as_the_first_one(tmp_path, first, written):
    fig = curves("attention_entropy", "attention_sink", width="page")
    assert letters(fig) == ["<b>a</b>", "<b>b</b>"]
    saved = save(fig, tmp_path, letters=first)
    assert letters(saved) == written
    assert len(saved.layout.annotations) == len(fig.layout.annotations) - 2 + len(written)
    joined = multipanel([curves(), curves()], letters=first or None, width=6.75)
    assert letters(joined) == written


def test_letters_of_a_figure_without_any_are_a_warning_that_names_the_way(tmp_path):
    with pytest.warns(
        UserWarning, match=r"no panel letters; multipanel\(\[figure\], columns=1, letters='\(a\)'\)"
    ):
        save(curves(), tmp_path, letters="(a)")


@pytest.mark.parametrize("first", ["ab", "<a>", 5, "((a))!"])
def test_other_letters_are_refused(tmp_path, first):
    with pytest.raises(InputError, match=r"letters is .*'\(a\)'"):
        save(curves(), tmp_path, letters=first)


def test_a_new_colour_is_that_of_the_line_and_of_its_band(tmp_path):
    fig = curves()
    old = {trace.name: trace.line.color for trace in fig.data if trace.name in ("one", "other")}
    saved = save(fig, tmp_path, colors={"one": "#102030"})
    new = {trace.name: trace.line.color for trace in saved.data if trace.name in old}
    assert new == {"one": "#102030", "other": old["other"]}
    text = saved.to_json()
    assert old["one"] not in text
    assert "rgba(16,32,48," in text  # the band
    assert old["other"] in text


def test_colours_that_cannot_be_are_refused(tmp_path):
    with pytest.raises(UnknownName, match="series"):
        save(curves(), tmp_path, colors={"onee": "#102030"})
    with pytest.raises(InputError, match="#rrggbb"):
        save(curves(), tmp_path, colors={"one": "navy"})
    same = go.Figure([go.Scatter(y=[1, 2], name=name, line={"color": "#004488"}) for name in ("a", "b")])
    with pytest.raises(InputError, match="b would change too"):
        save(same, tmp_path, colors={"a": "#102030"})
    both = save(same, tmp_path, colors={"a": "#102030", "b": "#102030"})
    assert {trace.line.color for trace in both.data} == {"#102030"}


def test_formulas_of_labels_are_drawn_as_letters_and_what_cannot_be_is_refused(tmp_path):
    fig = go.Figure(
        go.Scatter(y=[1, 2], name=r"$\theta_1$"), {"xaxis": {"title": {"text": r"$\|q\|^2$ and $5"}}}
    )
    saved = save(fig, tmp_path)
    assert (saved.data[0].name, saved.layout.xaxis.title.text) == ("θ<sub>1</sub>", "‖q‖<sup>2</sup> and $5")
    assert fig.data[0].name == r"$\theta_1$"
    with pytest.raises(InputError, match=r"has \\frac, which is not drawn"):
        save(fig.update_layout(title=r"$\frac{1}{2}$"), tmp_path)
