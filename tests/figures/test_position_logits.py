"""Shares of the logit variance by layer."""

import pandas as pd
import pytest

from tests.figures.drawn import bands, key, lines
from tests.figures.study import titles
from workbench.core.errors import InputError
from workbench.figures import position_share_figure
from workbench.figures.theme import NULL_BAND
from workbench.frames.results import conform

TERMS = ("token-token", "token-position", "position-token", "position-position", "sum", "model")


def shares(model="bundled:a", layers=3):
    rows = [
        {"metric": "logit_share", "candidate": candidate, "layer": layer, "value": 0.1 * number + layer}
        for layer in range(layers)
        for number, candidate in enumerate((*TERMS[:4], "covariances", "cross"))
    ]
    rows += [
        {"metric": "logit_correlation", "candidate": candidate, "layer": layer, "statistic": statistic,
         "value": 0.3 + layer, "null_mean": 0.1, "null_low": 0.05, "null_high": 0.2}
        for layer in range(layers)
        for candidate in ("token-position", "cross")
        for statistic in (None, "abs")
    ]  # fmt: skip
    return conform(pd.DataFrame(rows).assign(model=model))


def test_shares_of_three_and_the_cross_terms_beside_their_null():
    fig = position_share_figure(pd.concat([shares(), shares("bundled:b")]))
    assert titles(fig) == ["a", "b"]
    assert key(fig) == [
        "token–token", "both cross terms", "position–position", "mean over inputs and heads",
        "null: positions permuted (95 % range of the mean)",
    ]  # fmt: skip
    cross = [trace for trace in lines(fig) if trace.name == "both cross terms"]
    drawn = {trace.yaxis: list(trace.y) for trace in cross}
    assert drawn == {
        **dict.fromkeys(("y", "y2"), pytest.approx([0.5, 1.5, 2.5])),
        **dict.fromkeys(("y3", "y4"), pytest.approx([0.3, 1.3, 2.3])),
    }
    assert {band.yaxis for band in bands(fig, NULL_BAND)} == {"y3", "y4"}


def test_a_model_without_cross_terms_says_so_in_a_panel_of_its_own():
    alone = shares("bundled:b")
    fig = position_share_figure(pd.concat([shares(), alone[alone["metric"] == "logit_share"]]))
    (note,) = [note for note in fig.layout.annotations if note.text == "no cross terms"]
    here = [trace for trace in fig.data if f"{trace.xaxis} domain" == note.xref]
    # without a trace plotly draws no axes, and moves the note
    assert [list(trace.y) for trace in here] == [[None]]


def test_single_heads_are_refused():
    frame = shares()
    frame["head"] = pd.array([0] * len(frame), dtype="Int64")
    with pytest.raises(InputError, match="without per_head"):
        position_share_figure(frame)
