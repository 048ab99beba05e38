"""Perplexities of trained variants under swapped words, and their ratios: means over seeds, and lines of one seed."""

import numpy as np
import pandas as pd
import pytest

from tests.figures.drawn import key, lines
from tests.figures.study import titles
from workbench.core.errors import InputError
from workbench.studies.figures import perplexity_figure

MODELS = {"prose-softmax": "softmax", "prose-tssa-causal": "tssa-causal"}


def swapped(model, values, metric="perplexity", seeds=1):
    """Values by share of swapped words: of the exploratory seed, or means over several with their ends."""
    several = seeds > 1
    return pd.DataFrame(
        [
            {"model": f"bundled:{model}", "attention": MODELS[model], "n": 5, "protocol": "word-swap",
             "metric": metric, "epsilon": 0.1 * number, "value": value, "seeds": seeds,
             "low": value - 1 if several else np.nan, "high": value + 2 if several else np.nan,
             "seed_kind": "confirmatory" if several else "exploratory", "training_seed": pd.NA if several else 0}
            for number, value in enumerate(values)
        ]
    )  # fmt: skip


FRAME = pd.concat(
    [
        swapped("prose-tssa-causal", [8.0, 9.0, 12.0]),
        swapped("prose-tssa-causal", [7.0], seeds=3),
        swapped("prose-softmax", [6.0, 7.0]),
        swapped("prose-tssa-causal", [8.5], "perplexity_kept"),
    ]
)
RATIOS = FRAME.assign(**{name: FRAME[name] / 4 for name in ("value", "low", "high")})


def test_a_seed_is_a_pale_line_and_a_mean_a_marker_with_its_interval_and_the_ratios_are_below():
    fig = perplexity_figure(FRAME, RATIOS)
    assert titles(fig) == ["All characters", "Characters that no swap touches"]
    ours = {trace.xaxis: trace for trace in lines(fig) if trace.name == "token statistics" and trace.opacity}
    assert list(ours["x"].x) == pytest.approx([0, 10, 20])
    assert {axis: list(trace.y) for axis, trace in ours.items()} == {
        "x": [8, 9, 12], "x2": [8.5], "x3": [2, 2.25, 3], "x4": [2.125],
    }  # fmt: skip
    assert all(trace.opacity < 1 for trace in ours.values())
    (mean,) = [
        trace for trace in fig.data
        if trace.mode == "markers" and trace.xaxis == "x" and not trace.showlegend and trace.x[0] is not None
    ]  # fmt: skip
    assert (list(mean.x), list(mean.y)) == ([0], [7])
    bars = [trace for trace in fig.data if trace.xaxis == "x" and None in trace.y and not trace.showlegend]
    assert [y for trace in bars for y in trace.y if y is not None] == [6, 9]
    assert fig.layout.yaxis.type == "log"
    assert key(fig)[:2] == ["softmax", "token statistics"]
    assert {"mean over 3 seeds", "1 seed, no interval", "95 % CI over seeds"} <= set(key(fig))
    rules = [trace for trace in fig.data if trace.x[0] is not None and list(trace.y) == [1, 1]]
    assert {trace.xaxis for trace in rules} == {"x3", "x4"}


def test_what_is_not_on_record_is_left_out():
    single = FRAME[FRAME["seeds"] == 1]
    fig = perplexity_figure(single, single[:0])
    assert not [name for name in key(fig) if "CI" in name]
    assert len([*fig.select_yaxes()]) == 2
    with pytest.raises(InputError, match="no perplexity"):
        perplexity_figure(FRAME[:0], FRAME[:0])
