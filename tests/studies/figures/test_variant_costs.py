"""Costs of variants: a dot and crosses per variant in every panel."""

import pandas as pd
import pytest

from tests.figures.drawn import key, rules
from tests.figures.study import named
from workbench.core.errors import InputError
from workbench.figures.theme import PUBLISHED
from workbench.studies.figures import cost_figure, cost_finding


def row(
    attention, ratio, metric="macs", condition="training", source="measured", baseline="softmax", spread=0.0
):
    return {
        "source": source, "attention": attention, "baseline": baseline, "metric": metric, "condition": condition,
        "value": 10.0 * ratio, "ratio": ratio, "low": ratio - spread, "high": ratio + 2 * spread,
    }  # fmt: skip


FRAME = pd.DataFrame(
    [
        row("softmax", 1.0),
        row("tssa", 0.75),
        row("tssa", 0.5, "seconds_per_sample", "test", spread=0.1),
        row("rpc-sym num_iter=[5]", 1.2, baseline="softmax-sym"),
        row("rpc-sym num_iter=[5]", 1.05, source="teo2024 Table 13", baseline="softmax-sym"),
        row("rpc-sym num_iter=[5]", 1.06, source="counted as in teo2024", baseline="softmax-sym"),
        row("primal", 1.4, source="teo2024 Table 13"),
        row("tssa", 0.8, condition="training, in a batch"),
    ]
)


def traces(fig, axis="x", name=None):
    return [trace for trace in fig.data if trace.xaxis == axis and name in (None, trace.name)]


def test_a_panel_for_every_quantity_that_was_measured():
    fig = cost_figure(FRAME)
    assert [axis.title.text for axis in fig.select_xaxes()] == ["MACs<br>(×, log)", "Time<br>(×, log)"]
    assert fig.layout.width == 648


def test_rows_are_grouped_by_baseline_with_a_heading():
    axis = cost_figure(FRAME).layout.yaxis
    labels = dict(zip(axis.tickvals, axis.ticktext, strict=True))
    ordered = [labels[place] for place in sorted(labels)]
    headings = ["<b>relative to softmax</b>", "<b>relative to symmetric softmax</b>"]
    assert ordered == [headings[0], "token statistics", headings[1], "RPC, 5 iterations in layer 1"]


def test_what_papers_print_stands_below_the_dots_with_a_cross_for_training_and_one_for_inference():
    also = pd.DataFrame([row("rpc-sym num_iter=[5]", 1.1, condition="test", baseline="softmax-sym")])
    fig = cost_figure(pd.concat([FRAME, also]))
    training, inference = (named(fig, name)[0] for name in ("training", "inference"))
    (published,) = [
        trace for trace in fig.data if trace.marker.symbol == PUBLISHED["symbol"] and trace.x[0] is not None
    ]
    assert list(published.x) == [1.05]  # primal was not measured: it has no row
    assert training.y[-1] < inference.y[-1] < published.y[0]
    of_rounds = "median and range over rounds"
    assert key(fig)[2:4] == [of_rounds, "published, training"]
    assert 1.06 not in {x for trace in fig.data for x in trace.x}  # counted: in the caption


def test_a_mark_alone_stands_on_the_line_of_its_row():
    fig = cost_figure(FRAME)
    place = next(at for at, name in zip(fig.layout.yaxis.tickvals, fig.layout.yaxis.ticktext, strict=True)
                 if name == "token statistics")  # fmt: skip
    (training,) = (trace for trace in traces(fig, name="training") if trace.x[0] is not None)
    assert training.y[0] == place


def test_the_bar_is_the_range_of_the_frame():
    timed = next(trace for trace in traces(cost_figure(FRAME), "x2") if trace.error_x.array is not None)
    assert timed.error_x.array == pytest.approx((0.2,))
    assert timed.error_x.arrayminus == pytest.approx((0.1,))


def test_every_panel_has_the_one_scale():
    fig = cost_figure(FRAME)
    assert fig.layout.xaxis.type == fig.layout.xaxis2.type == "log"
    assert fig.layout.xaxis.range == fig.layout.xaxis2.range
    assert 10 ** fig.layout.xaxis.range[0] < 0.4
    assert rules(fig) == [1, 1]  # in each panel


def test_frames_without_measured_costs_are_refused():
    with pytest.raises(InputError, match="no measured costs"):
        cost_figure(FRAME[FRAME["source"] != "measured"])
    with pytest.raises(InputError, match="no column source"):
        cost_figure(pd.DataFrame({"metric": ["macs"], "value": [1.0]}))


def test_the_finding_counts_the_variants_that_are_slower_in_every_round():
    name = "seconds_per_sample"
    costs = [row("softmax", 1.0, name), row("tssa", 0.5, name), row("bilateral", 1.1, name, spread=0.2)]
    costs += [
        row("rpc-sym num_iter=2", 2.4, name, baseline="softmax-sym", spread=0.1),
        row("tssa", 3.0, name, "test"),
    ]
    costs[0]["baseline"] = "softmax"
    assert cost_finding(pd.DataFrame(costs)) == (
        "Training takes 0.50 (token statistics) to 2.40 times (RPC, 2 iterations in each layer) as long as with the "
        "baseline; 1 of 3 variants are slower in every round."
    )
