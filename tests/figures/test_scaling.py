"""Figures of the efficiency study: lines, bands, ends, and exponents beside what is printed."""

import numpy as np
import pandas as pd
import pytest

from workbench.core.errors import InputError
from workbench.figures import exponents_figure, scaling_figure
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
    lines = [trace for trace in fig.data if trace.mode == "lines+markers"]
    assert len(lines) == 7 * 8  # operators × (two sweeps, time and memory, two conditions)
    assert len({trace.name for trace in lines}) == 7
    assert len({(trace.line.color, trace.line.dash) for trace in lines}) == 7
    assert sum(trace.showlegend for trace in lines) == 7
    assert all(axis.type == "log" for axis in [*fig.select_xaxes(), *fig.select_yaxes()])
    memory = [trace for trace in lines if trace.xaxis == "x2"]
    np.testing.assert_allclose(memory[1].y, (np.array(memory[1].x) / 64) ** 1.25)  # MiB


def test_a_band_holds_the_middle_half_and_a_cross_stands_at_the_end():
    frame = _frame(["causal"])
    fig = scaling_figure(frame, ["causal"])
    bands = [trace for trace in fig.data if trace.fill == "toself"]
    assert len(bands) == 3 * 2  # of times alone: memory is measured once
    ends = [trace for trace in fig.data if trace.mode == "markers"]
    assert len(ends) == 4
    assert sum(trace.showlegend for trace in ends) == 1
    assert {trace.x[0] for trace in ends} == {frame["tokens"].max()}
    assert ends[0].text == ("about 45 s expected, 30 s allowed",)
    assert "30 s" in ends[0].name


def test_titles_say_what_stays_as_it_is():
    text = " ".join(note.text for note in scaling_figure(_frame(), ["wide", "causal"]).layout.annotations)
    assert "Time (s)<br>d = 4096, 32 heads" in text
    assert "Peak memory (MiB)<br>causal, d = 768, 12 heads" in text


def test_exponents_stand_beside_what_is_counted_and_printed():
    frame = _frame()
    fig = exponents_figure(scaling_exponents(frame), printed_exponents())
    names = {trace.name for trace in fig.data}
    assert names == {"counted", "wu2025 Table 1 (one head)", "fitted, forward", "fitted, forward + backward"}
    assert sum(bool(trace.showlegend) for trace in fig.data) == 4
    (measured,) = [trace for trace in fig.data if trace.name == "fitted, forward" and trace.xaxis == "x"]
    assert sorted(measured.x) == pytest.approx([1 + place / 4 for place in range(7)])
    (counted,) = [trace for trace in fig.data if trace.name == "counted" and trace.xaxis == "x"]
    assert set(np.round(counted.x, 9)) == {2}
    (diamonds,) = [
        trace for trace in fig.data if trace.marker.symbol == "diamond-open" and trace.xaxis == "x"
    ]
    assert sorted(diamonds.x) == [1, 1, 2, 2, 2]  # TSSA and XCA; softmax in both forms, MSSA
    labels = fig.layout.yaxis.ticktext
    assert labels[0] == "softmax"
    assert "token statistics" in labels


def test_causal_operators_alone_share_the_rows_of_their_plain_forms():
    fig = exponents_figure(scaling_exponents(_frame(["causal"])), printed_exponents())
    assert list(fig.layout.yaxis.ticktext) == ["softmax", "softmax, eager", "token statistics"]
    assert not any("Table 1" in (trace.name or "") for trace in fig.data)


def test_nothing_to_draw_is_said():
    with pytest.raises(InputError, match="wide"):
        scaling_figure(_frame(["tokens"]), ["wide"])
    with pytest.raises(InputError, match="three sizes"):
        exponents_figure(scaling_exponents(_frame(steps=2)), printed_exponents())
