"""Axes and legends that several figures share."""

import pandas as pd
import plotly.graph_objects as go
import pytest

from workbench.core.errors import InputError
from workbench.figures.frames import legend_rows, log_ticks, model_label, series_of


def untrained(model="tost:tiny"):
    return pd.DataFrame({"model": [model, "timm:vit"], "checkpoint": ["random", None], "value": [1.0, 2.0]})


def test_a_legend_tells_random_weights_from_trained_ones():
    assert [label for label, _ in series_of(untrained())] == ["tiny (random weights)", "vit"]
    both = untrained("timm:vit")
    assert [label for label, _ in series_of(both)] == ["vit (random weights)", "vit"]


def test_a_label_of_one_model_tells_random_weights_by_column_or_provenance():
    frame = untrained()
    assert model_label(frame, "tost:tiny") == "tiny (random weights)"
    assert model_label(frame, "timm:vit") == "vit"
    bare = frame.drop(columns="checkpoint")
    assert model_label(bare, "tost:tiny") == "tiny"
    bare.attrs["provenance"] = [{"model": {"spec": "tost:tiny", "checkpoint": "random", "sha256": "0"}}]
    assert model_label(bare, "tost:tiny") == "tiny (random weights)"
    assert model_label(bare, "timm:vit") == "vit"


def test_many_decades_have_few_ticks():
    assert log_ticks(pd.Series([1e-18, 1e-3])) == {"dtick": 3}
    assert log_ticks(pd.Series([1e-3, 1.0]))["dtick"] == 1
    assert log_ticks(pd.Series([1e-12, 1.0]), most=4)["dtick"] == 3


def test_less_than_two_decades_have_ticks_between_the_powers():
    ticks = log_ticks(pd.Series([0.02, 0.3]))
    assert {0.02, 0.05, 0.1, 0.2} <= {round(value, 12) for value in ticks["tickvals"]}
    assert dict(zip(ticks["tickvals"], ticks["ticktext"], strict=True))[0.1] == "0.1"
    small = log_ticks(pd.Series([2e-7, 9e-7]), digits=(1, 3))
    assert {"10<sup>−6</sup>", "3·10<sup>−7</sup>"} <= set(small["ticktext"])


def test_a_log_axis_needs_a_positive_value():
    with pytest.raises(InputError, match="log scale"):
        log_ticks(pd.Series([0.0, -1.0]))


def test_a_legend_takes_more_rows_the_more_and_longer_its_entries():
    def rows(names):
        return legend_rows(go.Figure([go.Scatter(x=[1], y=[1], name=name) for name in names]))

    assert rows(["a", "b"]) == 1
    assert rows(["a" * 45, "b" * 45, "c" * 45]) == 2  # two of 312 px fit a page
    assert rows(["a" * 50, "b" * 50, "c" * 50]) == 3
    assert rows(["a" * 200]) == 1
