"""Figures of the efficiency study: lines, bands, ends, and exponents beside what is printed."""

import numpy as np
import pandas as pd
import pytest

from tests.figures.drawn import key
from tests.figures.study import titles
from workbench.core.errors import InputError
from workbench.figures.theme import RED
from workbench.papers.operators import CONDITIONS, SWEEPS
from workbench.studies.figures import exponents_figure, scaling_figure
from workbench.studies.records import conform_scaling
from workbench.studies.scaling import printed_exponents, scaling_exponents


def _frame(sweeps=tuple(SWEEPS), steps=4):
    """Every operator of the sweeps, time and memory with a power of its own place; the first ends."""
    rows = []
    for name in sweeps:
        sweep = SWEEPS[name]
        for place, operator in enumerate(sweep.operators):
            for condition in CONDITIONS:
                for size in sweep.sizes[:steps]:
                    point = sweep.point(name, operator, size)
                    common = {
                        "sweep": name, "operator": operator, "condition": condition, "heads": point.heads,
                        "width": point.width, "tokens": point.tokens,
                    }  # fmt: skip
                    seconds = (size / 64) ** (1 + place / 4)
                    rows += [
                        {**common, "metric": "seconds_per_sample", "value": seconds, "low": 0.9 * seconds,
                         "high": 1.2 * seconds},
                        {**common, "metric": "device_memory", "value": 2**20 * seconds},
                        {**common, "metric": "macs", "value": size**2},
                    ]  # fmt: skip
                if place == 0:
                    rows.append({**common, "ended": "about 45 s expected, 30 s allowed"})
    return conform_scaling(pd.DataFrame(rows))


def test_a_line_per_operator_in_every_panel_on_logarithmic_axes():
    fig = scaling_figure(_frame(), ["tokens", "width"])
    drawn = [trace for trace in fig.data if trace.mode == "lines+markers" and trace.x[0] is not None]
    assert len(drawn) == 7 * 4  # operators × (two sweeps, time and memory)
    assert len({trace.name for trace in drawn}) == 7
    assert len({(trace.line.color, trace.line.dash) for trace in drawn}) == 7
    assert sum(name in {trace.name for trace in drawn} for name in key(fig)) == 7
    assert all(axis.type == "log" for axis in [*fig.select_xaxes(), *fig.select_yaxes()])
    memory = [trace for trace in drawn if trace.xaxis == "x3"]
    np.testing.assert_allclose(memory[1].y, (np.array(memory[1].x) / 64) ** 1.25)  # MiB
    assert list(fig.layout.xaxis3.tickvals) == [256, 512, 1024, 2048]
    assert len({axis.range for axis in [*fig.select_yaxes()][:2]}) == 1


def test_the_key_names_the_estimator_and_a_cross_stands_behind_the_end():
    frame = _frame(["causal"])
    fig = scaling_figure(frame, ["causal"])
    assert not [trace for trace in fig.data if trace.fill]
    assert "median over passes" in key(fig)
    crosses = [trace for trace in fig.data if trace.mode == "markers" and trace.x[0] is not None]
    assert len(crosses) == 2
    assert all(frame["tokens"].max() < trace.x[0] < 2 * frame["tokens"].max() for trace in crosses)
    assert crosses[0].text == ("about 45 s expected, 30 s allowed",)
    assert sum("30 s" in name for name in key(fig)) == 1
    assert not [
        trace.mode
        for trace in scaling_figure(frame[frame["ended"].isna()], ["causal"]).data
        if trace.mode == "markers"
    ]


def test_titles_say_what_stays_as_it_is():
    fig = scaling_figure(_frame(), ["wide", "causal"], condition="forward + backward")
    assert titles(fig)[0].replace("<br>", " ") == "d = 4096, 32 heads, forward + backward"
    assert titles(fig)[1].startswith("causal, d = 768, 12 heads")
    words = {axis.title.text for axis in fig.select_yaxes() if axis.title.text}
    assert {text.replace("<br>", " ") for text in words} == {"Time (s)", "Resident memory (MiB)"}


def drawn(fig, axis, colour=None):
    return [
        trace for trace in fig.data
        if trace.xaxis == axis and trace.x[0] is not None and colour in (None, trace.marker.color)
    ]  # fmt: skip


def test_exponents_stand_beside_what_is_counted_and_printed():
    frame = _frame()
    fig = exponents_figure(scaling_exponents(frame), printed_exponents())
    assert key(fig) == [
        "fitted, forward, 95 % CI of the slope", "counted: MACs, bytes of tensors",
        "published (Wu et al. 2025, Table 1, one head)",
    ]  # fmt: skip
    assert [axis.title.text.split(",")[0] for axis in fig.select_xaxes()] == [
        "Time",
        "Time",
        "Memory",
        "Memory",
    ]
    measured = [trace for trace in drawn(fig, "x") if trace.error_x.array is not None]
    assert sorted(trace.x[0] for trace in measured) == pytest.approx([1 + place / 4 for place in range(7)])
    (counted,) = [trace for trace in drawn(fig, "x") if trace.marker.symbol == "line-ns-open"]
    assert set(np.round(counted.x, 9)) == {2}
    assert sorted(trace.x[0] for trace in drawn(fig, "x", RED)) == [
        1,
        1,
        2,
        2,
        2,
    ]  # TSSA, XCA; softmax twice, MSSA
    labels = fig.layout.yaxis.ticktext
    assert labels[0] == "softmax"
    assert "token statistics" in labels


def test_an_interval_beyond_the_axis_ends_in_an_arrow():
    exponents = scaling_exponents(_frame())
    wide = (exponents["operator"] == "tssa") & (exponents["source"] == "measured")
    exponents.loc[wide & (exponents["sweep"] == "tokens"), ["low", "high"]] = -3.0, 2.5
    fig = exponents_figure(exponents, printed_exponents())
    arrows = [trace for trace in fig.data if trace.marker.symbol == ("arrow-left",)]
    low = fig.layout.xaxis.range[0]
    assert {(trace.xaxis, *trace.x) for trace in arrows} == {("x", low), ("x3", low)}
    assert all(
        trace.x[0] - trace.error_x.arrayminus[0] >= low - 1e-9
        for trace in fig.data
        if trace.error_x.arrayminus is not None and len(trace.x)
    )


def test_causal_operators_alone_share_the_rows_of_their_plain_forms():
    fig = exponents_figure(scaling_exponents(_frame(["causal"])), printed_exponents(), ["causal"])
    assert list(fig.layout.yaxis.ticktext) == ["softmax", "softmax, eager", "token statistics"]
    assert not any("Table 1" in name for name in key(fig))


def test_nothing_to_draw_is_said():
    with pytest.raises(InputError, match="wide"):
        scaling_figure(_frame(["tokens"]), ["wide"])
    with pytest.raises(InputError, match="three sizes"):
        exponents_figure(scaling_exponents(_frame(steps=2)), printed_exponents())
