"""Figures of the efficiency study: lines, bands, ends, and exponents beside what is printed."""

import numpy as np
import pandas as pd
import pytest

from tests.figures.drawn import key
from tests.figures.study import titles
from workbench.core.errors import InputError
from workbench.figures import exponents_figure, scaling_figure
from workbench.figures.theme import RED
from workbench.papers.operators import CONDITIONS, SWEEPS
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
    assert len(drawn) == 7 * 8  # operators × (two sweeps, time and memory, two conditions)
    assert len({trace.name for trace in drawn}) == 7
    assert len({(trace.line.color, trace.line.dash) for trace in drawn}) == 7
    assert sum(name in {trace.name for trace in drawn} for name in key(fig)) == 7
    assert all(axis.type == "log" for axis in [*fig.select_xaxes(), *fig.select_yaxes()])
    memory = [trace for trace in drawn if trace.xaxis == "x5"]
    np.testing.assert_allclose(memory[1].y, (np.array(memory[1].x) / 64) ** 1.25)  # MiB
    assert list(fig.layout.xaxis5.tickvals) == [256, 512, 1024, 2048]
    assert len({axis.range for axis in [*fig.select_yaxes()][:4]}) == 1


def test_a_band_holds_the_interquartile_range_and_a_cross_stands_at_the_end():
    frame = _frame(["causal"])
    fig = scaling_figure(frame, ["causal"])
    bands = [trace for trace in fig.data if trace.fill == "toself" and trace.x[0] is not None]
    assert len(bands) == 3 * 2  # of times alone: memory is measured once
    crosses = [trace for trace in fig.data if trace.mode == "markers" and trace.x[0] is not None]
    assert len(crosses) == 4
    assert {trace.x[0] for trace in crosses} == {frame["tokens"].max()}
    assert crosses[0].text == ("about 45 s expected, 30 s allowed",)
    assert sum("30 s" in name for name in key(fig)) == 1


def test_titles_say_what_stays_as_it_is():
    fig = scaling_figure(_frame(), ["wide", "causal"])
    assert titles(fig)[0] == "d = 4096, 32 heads<br>forward"
    assert titles(fig)[3].startswith("causal, d = 768, 12 heads")
    assert {axis.title.text for axis in fig.select_yaxes() if axis.title.text} == {
        "Time (s)",
        "Peak memory<br>(MiB)",
    }


def drawn(fig, axis, colour=None):
    return [
        trace for trace in fig.data
        if trace.xaxis == axis and trace.x[0] is not None and colour in (None, trace.marker.color)
    ]  # fmt: skip


def test_exponents_stand_beside_what_is_counted_and_printed():
    frame = _frame()
    fig = exponents_figure(scaling_exponents(frame), printed_exponents())
    assert key(fig) == [
        "forward", "forward + backward", "fitted, 95 % CI of the fit", "counted: MACs, bytes",
        "published (wu2025 Table 1, one head)",
    ]  # fmt: skip
    (measured,) = [trace for trace in drawn(fig, "x") if trace.name == "forward"]
    assert sorted(measured.x) == pytest.approx([1 + place / 4 for place in range(7)])
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


def test_causal_operators_alone_share_the_rows_of_their_plain_forms():
    fig = exponents_figure(scaling_exponents(_frame(["causal"])), printed_exponents())
    assert list(fig.layout.yaxis.ticktext) == ["softmax", "softmax, eager", "token statistics"]
    assert not any("Table 1" in name for name in key(fig))


def test_nothing_to_draw_is_said():
    with pytest.raises(InputError, match="wide"):
        scaling_figure(_frame(["tokens"]), ["wide"])
    with pytest.raises(InputError, match="three sizes"):
        exponents_figure(scaling_exponents(_frame(steps=2)), printed_exponents())
