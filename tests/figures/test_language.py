"""Perplexities of trained variants: seeds, swapped words, ratios."""

import numpy as np
import pandas as pd
import pytest

from tests.figures.study import named
from workbench.core.errors import InputError
from workbench.figures import perplexity_figure

MODELS = {"prose-softmax": "softmax", "prose-tssa-causal": "tssa-causal"}


def swapped(metric="perplexity", **models):
    return pd.DataFrame(
        [
            {"model": f"bundled:{model}", "attention": MODELS[model], "n": 5, "protocol": "word-swap",
             "metric": metric, "epsilon": 0.1 * number, "value": value, "low": value - 1, "high": value + 2,
             "ratio": value / 4}
            for model, values in models.items()
            for number, value in enumerate(values)
        ]
    )  # fmt: skip


def training(**models):
    return pd.DataFrame(
        [
            {"model": model, "attention": MODELS[model], "seed": seed, "epoch": epoch, "split": "test",
             "metric": "perplexity", "value": value + 5 * (12 - epoch)}
            for model, values in models.items()
            for seed, value in enumerate(values)
            for epoch in (0, 12)
        ]
    )  # fmt: skip


FRAME = pd.concat(
    [
        swapped(**{"prose-tssa-causal": [8.0, 9.0, 12.0], "prose-softmax": [6.0, 7.0]}),
        swapped("perplexity_kept", **{"prose-tssa-causal": [8.5]}),
    ]
)
TRAINED = training(**{"prose-tssa-causal": [8.1, 8.3, 8.2], "prose-softmax": [6.1, 6.2, 6.0]})


def test_models_have_rows_in_the_order_of_all_figures_with_their_seeds_last_epoch():
    fig = perplexity_figure(FRAME, FRAME, TRAINED)
    assert list(fig.layout.yaxis.ticktext) == ["token statistics", "softmax"]  # from below
    (dots,) = [trace for trace in named(fig, "softmax") if trace.xaxis == "x"]
    assert sorted(dots.x) == [6.0, 6.1, 6.2]
    assert set(dots.y) == {1}


def test_perplexity_is_drawn_against_the_share_in_per_cent_with_its_band():
    fig = perplexity_figure(FRAME, FRAME[:0], TRAINED)
    (line,) = [trace for trace in named(fig, "token statistics") if trace.xaxis == "x2"]
    assert list(line.x) == pytest.approx([0, 10, 20])
    assert list(line.y) == [8, 9, 12]
    shade = fig.data[list(fig.data).index(line) - 1]
    assert list(shade.y) == [10, 11, 14, 11, 8, 7]
    assert fig.layout.yaxis2.type == "log"


def test_ratios_stand_below_the_perplexities_they_belong_to():
    fig = perplexity_figure(FRAME, FRAME, TRAINED)
    ours = [trace for trace in named(fig, "token statistics") if trace.mode == "lines+markers"]
    assert {trace.xaxis: list(trace.y) for trace in ours} == {
        "x2": [8, 9, 12], "x3": [8.5], "x4": [2, 2.25, 3], "x5": [2.125],
    }  # fmt: skip
    assert fig.layout.yaxis4.domain[1] < fig.layout.yaxis2.domain[0]


def test_panels_without_rows_say_so_and_keep_the_seeds():
    fig = perplexity_figure(FRAME[:0], FRAME[:0], TRAINED)
    assert sum(note.text == "no data" for note in fig.layout.annotations) == 4
    assert len([trace for trace in fig.data if trace.xaxis == "x"]) == 2


def test_texts_read_now_are_stars_over_the_lines():
    now = swapped(**{"prose-softmax": [6.5]})
    fig = perplexity_figure(FRAME, FRAME, TRAINED, now)
    (stars,) = named(fig, "prose-softmax, 5 texts now")
    assert (list(stars.x), list(stars.y), stars.xaxis) == ([0], [6.5], "x2")


def test_a_band_is_left_out_where_there_is_no_interval():
    bare = FRAME.assign(low=np.nan, high=np.nan)
    fig = perplexity_figure(bare, bare[:0], TRAINED)
    assert not [trace for trace in fig.data if trace.fill]


def test_without_a_test_perplexity_there_is_nothing_to_list():
    with pytest.raises(InputError, match="test perplexity"):
        perplexity_figure(FRAME, FRAME, TRAINED.assign(split="train"))
