"""What could not be drawn is said in its place."""

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

from workbench.figures import absent_notes, plot, with_absent
from workbench.figures.notes import left_out_notes, random_notes
from workbench.figures.text_widths import text_width
from workbench.frames.results import make_frame


def test_nothing_absent_leaves_the_figure_as_it_is():
    fig = go.Figure(go.Scatter(x=[1], y=[2]))
    assert with_absent(fig, {}) is fig


def test_a_missing_model_has_a_line_under_the_plot_that_says_why():
    fig = go.Figure(go.Scatter(x=[1, 2], y=[2, 3])).update_layout(height=200, margin={"l": 50, "b": 30})
    noted = with_absent(fig, {"some-model": "it is not here\n  tried: a folder of this machine"})
    (note,) = noted.layout.annotations
    assert note.text == "some-model is not shown: it is not here"
    assert (note.yref, note.yshift, note.xshift) == ("paper", -30, 8 - 50)
    assert noted.layout.height - 200 == pytest.approx(noted.layout.margin.b - 30, abs=0.5)
    assert noted.layout.height > 214
    assert not fig.layout.annotations


def test_a_note_keeps_the_key_where_it_was():
    frame = pd.concat(
        make_frame(
            np.linspace(0, 0.5, 6).reshape(3, 2),
            "token_cosine",
            {"input": range(3), "layer": [0, 1]},
            model=name,
        )
        for name in ("a", "b")
    )
    fig = plot(frame, "token_cosine")
    noted = with_absent(fig, {"some-model": "it is not here"})
    above = [(1 - one.layout.legend.y) * one.layout.height for one in (fig, noted)]
    assert above[0] == pytest.approx(above[1], abs=0.1)
    note = noted.layout.annotations[-1]
    assert max(text_width(line, 8 / 0.75) for line in note.text.split("<br>")) < fig.layout.width


def test_models_absent_for_the_same_reason_share_a_sentence():
    absent = {"one": "no record\nmore", "two": "not here", "three": "no record"}
    assert absent_notes(absent) == ["one, three are not shown: no record", "two is not shown: not here"]


def test_a_caption_has_what_the_runs_of_its_models_left_out():
    notes = {
        "a": ["3 of 5 texts were longer than 8 tokens and were cut", "no z"],  # in the notebook, once
        "b": ["layers 0-2, 7-8 left out: of 2-3 heads"],
        "c": ["layer 3 left out: no heads"],
    }
    frame = pd.DataFrame({"model": ["bundled:a", "bundled:b"], "value": [1.0, 2.0]})
    frame.attrs["provenance"] = [
        {"model": {"spec": f"bundled:{name}"}, "notes": notes.get(name)} for name in ("a", "a", "b", "c")
    ]
    assert left_out_notes(frame) == ["b: layers 0–2, 7–8 left out."]
    frame.attrs["provenance"][0]["notes"] = notes["b"]
    assert left_out_notes(frame) == ["a, b: layers 0–2, 7–8 left out."]


def test_of_undefined_values_those_that_a_frame_holds_are_named():
    frame = pd.DataFrame({"model": "bundled:a", "metric": ["share"], "value": [1.0]})
    note = "3 of 4 values of width gaussian, share gaussian are undefined and left out"
    frame.attrs["provenance"] = [{"model": {"spec": "bundled:a"}, "notes": [note]}]
    assert left_out_notes(frame) == ["a: 3 of 4 values of share gaussian are undefined and left out."]
    assert left_out_notes(frame.assign(metric="rank")) == []


def test_random_weights_beside_a_trained_model_are_a_control_and_not_named():
    def run(spec, checkpoint):
        return {"model": {"spec": spec, "checkpoint": checkpoint}}

    runs = [run("bundled:a", "random"), run("bundled:b", "random"), run("bundled:b", "epoch-030")]
    assert random_notes(runs, "") == ["Random weights: a."]
    assert random_notes(runs[1:], "") == []
