"""A page that opens later finds what the widget shows now."""

import plotly.graph_objects as go

from workbench.apps.explorer.canvas import sync_state


def test_the_state_follows_the_figure_and_nothing_is_sent():
    shown = go.FigureWidget(go.Scatter(y=[1, 2]))
    with shown.batch_update():
        shown.data[0].y = [3, 4, 5]
        shown.layout.title.text = "later"
    shown.add_trace(go.Scatter(y=[6]))
    assert len(shown.get_state("_widget_data")["_widget_data"]) == 1  # this is what plotly leaves
    sent = []
    shown.send_state = sent.append
    sync_state(shown)
    state = shown.get_state(["_widget_data", "_widget_layout"])
    assert [list(trace["y"]) for trace in state["_widget_data"]] == [[3, 4, 5], [6]]
    assert state["_widget_layout"]["title"]["text"] == "later"
    assert sent == []
