"""What is said of a printed figure, each told of one that has it and not of one that has not."""

import json
import re
import warnings

import numpy as np
import plotly.graph_objects as go
import pytest

from tests.browser import needs_chrome
from workbench.core.errors import InputError
from workbench.figures.export import check_figure, save_figure
from workbench.figures.export.checks import (
    Words,
    font_flaw,
    overlapping,
    page_flaws,
    take_measures,
)
from workbench.figures.export.saving import measure_figure
from workbench.frames.provenance import read_provenance


def lines(**layout):
    """Two panels that have nothing wrong."""
    fig = go.Figure(
        [
            go.Scatter(x=[0, 1, 2], y=[1, 3, 2], name="one"),
            go.Scatter(x=[0, 1], y=[2, 1], name="two", xaxis="x2"),
        ]
    )
    usual = go.Layout(
        xaxis={"domain": [0, 0.45], "title": "Layer", "tickvals": [0, 1, 2]},
        xaxis2={"domain": [0.55, 1], "title": "Layer", "tickvals": [0, 1]},
        legend={"orientation": "h", "y": 1.2}, margin_t=40,
    )  # fmt: skip
    return fig.update_layout(usual).update_layout(layout)


def noted(text, **note):
    place = {"x": 0.5, "y": 0.5, "xref": "paper", "yref": "paper", "showarrow": False}
    return lines().add_annotation(text=text, **place, **note)


def left_below():
    """A line that leaves its panel."""
    fig = lines(yaxis_range=[1.5, 3.5], showlegend=False).update_traces(mode="lines")
    return fig.update_traces(y=[2, 3], selector={"name": "two"})


def empty_beside(text):
    """A panel without data that says something, beside one with a line."""
    fig = lines(showlegend=False).update_traces(x=[None], y=[None], selector={"name": "two"})
    return fig.add_annotation(text=text, x=0.5, y=0.5, xref="x2 domain", yref="y domain", showarrow=False)


def words_at_the_edge(side):
    return lines().add_scatter(
        x=[1], y=[2.5], mode="text", text=["a layer"], textposition=side, xaxis="x2", showlegend=False
    )


@needs_chrome
def test_a_figure_with_nothing_wrong_has_no_flaws_and_its_parts_are_where_they_were_put():
    page = measure_figure(lines())
    assert page_flaws(page) == []
    assert (page.width, len(page.panels), len(page.legends)) == (312, 2, 1)
    first, second = page.panels
    room = 312 - 44 - 8
    assert (first.box[0], first.box[2]) == pytest.approx((44, 44 + 0.45 * room), abs=0.6)
    assert second.box[0] == pytest.approx(44 + 0.55 * room, abs=0.6)
    assert (first.x, second.x) == (["0", "1", "2"], ["0", "1"])
    assert sorted({words.size for words in page.words}) == pytest.approx([8 / 0.75, 9 / 0.75], abs=0.02)
    titles = [words for words in page.words if words.text == "Layer"]
    for title, panel in zip(titles, page.panels, strict=True):
        left, _, right, lower = title.box
        assert (left + right) / 2 == pytest.approx((panel.box[0] + panel.box[2]) / 2, abs=1.5)
        assert panel.box[3] < title.box[1] < lower < page.height


@needs_chrome
@pytest.mark.parametrize(
    ("fig", "said"),
    [
        (
            lambda: lines(xaxis_tickfont_size=8),
            r"3 lines of text below 7 pt, the smallest 6\.0 pt \(“0”, “1”, “2”\)",
        ),
        (lambda: noted("here").add_annotation(noted("there").layout.annotations[0]), "“here” and “there”"),
        (lambda: noted("off the page", xshift=150), "the page cuts “off the page”"),
        (lambda: noted("\u0379 = −1"), "no font on this machine has “\u0379”, printed as boxes: install one"),
        (lambda: noted("→ − é"), None),
        (lambda: go.Figure(go.Scattergl(x=[0, 1, 2], y=[1, 3, 2], mode="markers")), None),
        (lambda: go.Figure(go.Scattergl(x=[], y=[])), "the panel shows no data"),
        (lambda: words_at_the_edge("middle left"), None),
        (lambda: words_at_the_edge("middle right"), "a panel or a scrolling key cuts “a layer”"),
        (
            lambda: (
                lines()
                .add_scatter(x=[None], y=[None], xaxis="x3")
                .update_layout(xaxis3={"domain": [0.48, 0.52], "tickvals": []})
            ),
            "panel 2 of 3 shows no data",
        ),
        (lambda: empty_beside(text="no cross terms"), None),
        (lambda: empty_beside(text="no data"), "panel 2 of 2 shows no data"),
        (lambda: lines(xaxis2_tickvals=[1]), r"panel 2 of 2 has a single tick on its x axis \(1\)"),
        (lambda: lines(xaxis_tickvals=[1], xaxis_ticktext=["softmax"]), None),
        (
            lambda: lines(xaxis_range=[0, 1.5], xaxis_tickvals=[0, 1]),
            r"panel 1 of 2 cuts .*1 of 3 points, 1 of 1 line\b",
        ),
        (
            lambda: lines(xaxis_range=[0, 1.5], xaxis_tickvals=[0, 1]).add_scatter(
                x=[1.5], y=[2.5], mode="markers", cliponaxis=False, marker_symbol="arrow-right"
            ),
            None,
        ),
        (
            lambda: lines(xaxis_range=[0, 0.5], xaxis_tickvals=[0, 0.5]).add_scatter(
                x=[0.5], y=[2], mode="markers", cliponaxis=False, marker_symbol="arrow-right"
            ),
            "panel 1 of 2 cuts .*1 of 4 points",
        ),
        (left_below, "panel 1 of 2 cuts .*1 of 1 line"),
        (lambda: lines(legend_orientation="v", margin_t=60), r"the key has 2 rows \(at most 1\)"),
        (
            lambda: lines().update_traces(name="median", selector={"name": "one"}),
            "holds a statistic .“median”",
        ),
        (
            lambda: lines().update_traces(name="rank: 7", selector={"name": "one"}),
            "holds a statistic .“rank: 7”",
        ),
        (lambda: lines().update_traces(name="rank 7", selector={"name": "one"}), None),
        (
            lambda: left_below().add_scatter(
                x=[0], y=[1.5], mode="markers", cliponaxis=False, marker_symbol="arrow-down"
            ),
            None,
        ),
    ],
)
def test_what_is_wrong_is_said_once_and_alone(fig, said):
    flaws = check_figure(fig())
    if said is None:
        assert flaws == []
    else:
        (flaw,) = flaws
        assert re.search(said, flaw), flaw


def test_turned_words_overlap_only_where_their_ink_does():
    def words(text, x, y, angle=0.0):
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        corners = np.array([[0, 0], [60, 0], [60, 8], [0, 8]]) @ turn.T + (x, y)
        return Words(text, 10, [*corners.ravel()], None)

    steep = [
        words(str(number), 14 * number, 0, -np.pi / 4) for number in range(3)
    ]  # 10 px apart, boxes 48 px wide
    assert overlapping(steep) == []
    assert overlapping([words("one", 0, 0), words("two", 59.5, 0), words("three", 30, 5)]) == [
        ("one", "three"), ("two", "three"),
    ]  # fmt: skip
    assert overlapping([words("one", 0, 0), words("across", 30, 30, -np.pi / 2)]) == [("one", "across")]


@needs_chrome
def test_a_saved_figure_warns_and_every_file_says_what_was_found(tmp_path):
    with pytest.warns(UserWarning, match=r"^f: 3 lines of text below 7 pt") as told:
        save_figure(lines(xaxis_tickfont_size=8), "f", out=tmp_path)
    assert len(told) == 1
    held = read_provenance(tmp_path / "f.json")
    (flaw,) = held["figure"]["flaws"]
    assert str(told[0].message) == f"f: {flaw}"
    for suffix in ("pdf", "svg", "png", "html"):
        assert read_provenance(tmp_path / f"f.{suffix}") == held
    assert "measured" not in (tmp_path / "f.svg").read_text()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save_figure(lines(), "f", out=tmp_path, formats=["svg"])
        assert read_provenance(tmp_path / "f.svg")["figure"]["flaws"] == []
        save_figure(lines(), "f", out=tmp_path, formats=["html"])
        assert read_provenance(tmp_path / "f.json")["figure"]["flaws"] is None  # nothing was printed
    with pytest.warns(UserWarning, match=r"^f: 3 lines of text below 7 pt"):
        save_figure(lines(xaxis_tickfont_size=8), "f", out=tmp_path, formats=["png"])
    assert not (tmp_path / "f.svg").exists()


def test_measures_are_read_from_behind_an_svg_and_taken_away():
    found = {"words": [], "legends": [[0, 0, 9, 9]], "panels": []}
    svg = b"<svg><!--measured nothing--></svg>\n"
    kept, page = take_measures(svg + f"<!--measured {json.dumps(found)}-->".encode(), 10, 10)
    assert kept == svg
    (flaw,) = page_flaws(page)
    assert "81%" in flaw
    assert take_measures(svg, 10, 10) == (svg, None)


@needs_chrome
def test_the_font_of_a_venue_is_in_the_pdf_and_one_that_is_absent_is_said(tmp_path):
    with pytest.raises(InputError, match="width for a venue"):
        save_figure(lines(), "f", out=tmp_path, font="venue")
    with pytest.warns(UserWarning, match="none of the fonts Garamond Absent"):
        save_figure(lines(), "f", out=tmp_path, font="Garamond Absent", formats=["pdf"])
    assert font_flaw("Times New Roman, Liberation Serif, serif", ["/AAAAAA+LiberationSerif-Bold"]) is None
    assert font_flaw("Times New Roman, serif", ["/AAAAAA+TimesNewRomanPSMT"]) is None
    assert "DejaVuSans" in font_flaw("Arial, sans-serif", ["/AAAAAA+DejaVuSans"])
