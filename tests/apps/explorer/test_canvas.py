"""The canvas: figures of one build change in place, a few widgets are kept, and no change is lost."""

from types import SimpleNamespace

import comm
import numpy as np
import plotly.graph_objects as go
import pytest

from workbench.apps.explorer.canvas import KEPT, Canvas


def heat(value, notes=0):
    fig = go.Figure(go.Heatmap(z=np.full((2, 3), float(value)), customdata=np.arange(6).reshape(2, 3)))
    for number in range(notes):
        fig.add_annotation(text=f"note {number}", x=0, y=0)
    return fig


@pytest.fixture
def canvas():
    return Canvas("column")


def shown(canvas):
    """What is not hidden."""
    return [slot.children[0] for slot in canvas.box.children if slot.layout.display != "none"]


def tell(widget):
    """What the page sends when it has drawn a figure or followed an edit."""
    widget._js2py_traceDeltas = {"trace_deltas": [], "trace_edit_id": widget._last_trace_edit_id}


def drawn(widget):
    """The page has drawn a figure, and follows what it is asked then."""
    tell(widget)
    tell(widget)


def test_a_figure_of_the_same_build_changes_in_place(canvas):
    canvas.show(heat(1))
    widget = canvas.widget
    drawn(widget)
    canvas.show(heat(2))
    assert canvas.widget is widget
    assert (np.asarray(widget.data[0].z) == 2).all()
    assert shown(canvas) == [widget]


def test_square_cells_keep_their_shape_on_a_slide_and_lines_fill_it():
    flat = heat(1).update_layout(height=160)
    canvas = Canvas("page", "talk")
    canvas.show(flat)
    assert (canvas.widget.layout.width, canvas.widget.layout.height) == (1200, 696)
    canvas.show(go.Figure(flat).update_yaxes(scaleanchor="x"))
    assert canvas.widget.layout.height / 1200 == pytest.approx(160 / 648, rel=0.01)
    canvas.show(go.Figure(flat).update_yaxes(scaleanchor="x").update_layout(height=600))
    assert canvas.widget.layout.height == 696


def test_another_build_has_a_widget_of_its_own_and_the_first_comes_back(canvas):
    canvas.show(heat(1))
    first = canvas.widget
    drawn(first)
    canvas.show(heat(1, notes=1))
    assert canvas.widget is not first
    canvas.show(heat(3))
    assert canvas.widget is first
    assert (np.asarray(first.data[0].z) == 3).all()


def test_a_change_before_the_page_has_drawn_is_shown_by_a_new_widget(canvas):
    canvas.show(heat(1))
    early = canvas.widget
    canvas.show(heat(2))
    assert canvas.widget is early
    drawn(early)
    assert canvas.widget is not early
    assert (np.asarray(canvas.widget.data[0].z) == 2).all()
    later = canvas.widget
    drawn(later)
    assert canvas.widget is later  # nothing was missed: it stays


def test_the_page_learns_of_a_figure_whole_in_one_message(canvas, monkeypatch):
    sent = []

    class Recorded(comm.DummyComm):
        def publish_msg(self, kind, data=None, **rest):
            sent.append((kind, data["state"].keys() if "state" in (data or {}) else (), data))

    monkeypatch.setattr(comm, "create_comm", Recorded)
    canvas.show(heat(1))
    messages = [
        data["state"] for kind, _, data in sent if kind == "comm_open" and "_widget_data" in data["state"]
    ]
    assert len(messages) == 1
    assert messages[0]["_widget_data"][0]["type"] == "heatmap"
    assert messages[0]["_config"]["displayModeBar"] is False
    assert not any("_widget_data" in keys for kind, keys, _ in sent if kind == "comm_msg")


def test_a_page_that_does_not_follow_a_figure_gets_a_new_one(canvas):
    canvas.show(heat(1))
    deaf = canvas.widget
    tell(deaf)
    canvas.show(heat(2))
    assert canvas.widget is not deaf
    assert (np.asarray(canvas.widget.data[0].z) == 2).all()
    followed = canvas.widget
    drawn(followed)
    canvas.show(heat(3))
    assert canvas.widget is followed
    tell(followed)
    tell(followed)  # the page was loaded again, and is slow now
    canvas.show(heat(4))
    assert canvas.widget is not followed
    assert shown(canvas) == [canvas.widget]


def test_widgets_are_bounded(canvas):
    for notes in range(KEPT + 3):
        canvas.show(heat(1, notes))
    assert len(canvas._kept) == KEPT
    canvas.close()
    assert shown(canvas) == []
    assert not any(slot.children for slot in canvas.box.children)


def test_a_click_tells_what_stands_in_the_cell(canvas):
    clicked = []
    canvas.on_click(clicked.append)
    canvas.show(heat(1))
    canvas._point(0, SimpleNamespace(point_inds=[(1, 2)]))
    assert clicked == [5]
