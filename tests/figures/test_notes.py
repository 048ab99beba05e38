"""What could not be drawn is said in its place."""

import plotly.graph_objects as go

from workbench.figures import absent_notes, note_figure, with_absent


def test_nothing_absent_leaves_the_figure_as_it_is():
    fig = go.Figure(go.Scatter(x=[1], y=[2]))
    assert with_absent(fig, {}) is fig


def test_a_missing_model_has_a_panel_of_its_own_that_says_why():
    fig = go.Figure(go.Scatter(x=[1, 2], y=[2, 3]))
    both = with_absent(fig, {"some-model": "it is not here\n  tried: a folder of this machine"})
    (note,) = [note for note in both.layout.annotations if "some-model" in note.text]
    assert "it is not here" in note.text.replace("<br>", " ")
    assert "folder" not in note.text
    assert (note.xref, note.yref) == ("x2 domain", "y2 domain")
    assert both.layout.xaxis2.domain[0] > both.layout.xaxis.domain[1]
    assert both.layout.xaxis2.visible is False


def test_a_long_sentence_is_wrapped_to_the_width_of_a_column():
    (note,) = note_figure("word " * 40).layout.annotations
    assert max(len(line) for line in note.text.split("<br>")) <= 44


def test_a_note_below_a_page_is_a_line_under_the_plot():
    fig = go.Figure(go.Scatter(x=[1, 2], y=[2, 3])).update_layout(height=200, margin={"l": 50, "b": 30})
    noted = with_absent(fig, {"some-model": "it is not here"}, below=True)
    (note,) = noted.layout.annotations
    assert note.text == "some-model is not shown: it is not here"
    assert (note.yref, note.yshift, note.xshift) == ("paper", -30, 8 - 50)
    assert noted.layout.height - 200 == noted.layout.margin.b - 30 > 14
    assert not fig.layout.annotations


def test_models_absent_for_the_same_reason_share_a_sentence():
    absent = {"one": "no record\nmore", "two": "not here", "three": "no record"}
    assert absent_notes(absent) == ["one, three are not shown: no record", "two is not shown: not here"]
