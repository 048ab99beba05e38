"""Models beside a reference: every seed is drawn, and what is filled is what is significant."""

import numpy as np
import pandas as pd
import pytest

from workbench.core.errors import InputError
from workbench.figures.theme import PUBLISHED
from workbench.studies.figures import ablation_figure

LABELS = {"a": "first (softmax)", "b": "second", "c": "third"}
ACCURACY = {
    "digits": {"a": [0.9, 0.8, 0.85], "b": [0.7, 0.6, 0.5], "c": [0.95, 0.8, 0.6]},
    "photos": {"a": [0.5], "b": [0.25]},
}


def frames():
    seeds, results = [], []
    for task, models in ACCURACY.items():
        for model, values in models.items():
            about = {"task": task, "label": LABELS[model], "quantity": "accuracy"}
            seeds += [about | {"seed": seed, "value": value} for seed, value in enumerate(values)]
            apart = {
                "difference": np.mean(values) - np.mean(models["a"]),
                "difference_low": -0.5,
                "difference_high": 0.25,
            }
            found = {"a": "", "b": "lower", "c": "not significant"}[model]
            results.append(about | {"value": np.median(values), "finding": found} | (apart if found else {}))
    printed = pd.DataFrame(
        {"label": ["second", "third"], "where": ["X, CIFAR", "Y, CIFAR"], "difference": [-0.04, 0.01]}
    )
    return pd.DataFrame(results), pd.DataFrame(seeds), printed


def drawn(fig, axis):
    own = [trace for trace in fig.data if trace.xaxis == axis and trace.x[0] is not None]
    return [trace for trace in own if trace.mode != "lines"]


def test_every_seed_stands_in_its_row_and_panel():
    results, seeds, printed = frames()
    fig = ablation_figure(results, seeds, printed)
    for axis, (task, models) in zip(("x", "x2"), ACCURACY.items(), strict=True):
        strokes, dots = drawn(fig, axis)
        values = [100 * value for values in models.values() for value in values]
        assert sorted(dots.x) == pytest.approx(sorted(values)), task
        means = {place: 100 * np.mean(own) for place, own in enumerate(models.values())}
        assert dict(zip(strokes.y, strokes.x, strict=True)) == pytest.approx(means)
        assert {dots.marker.color} != {"white"}
    assert list(fig.layout.yaxis.ticktext) == list(LABELS.values())  # from above
    assert fig.layout.yaxis.range[0] > fig.layout.yaxis.range[1]


def test_differences_are_filled_where_they_are_significant_and_published_ones_stand_beside():
    results, seeds, printed = frames()
    fig = ablation_figure(results, seeds, printed)
    digits, photos, *diamonds = drawn(fig, "x3")
    assert [colour == "white" for colour in digits.marker.color] == [False, True]
    assert digits.x[0] == pytest.approx(100 * (0.6 - 0.85))
    assert (digits.error_x.array[0], digits.error_x.arrayminus[0]) == pytest.approx((25 + 25, -25 + 50))
    assert list(photos.x) == pytest.approx([-25])
    assert [trace.x[0] for trace in diamonds] == pytest.approx([-4, 1])
    assert {trace.marker.symbol for trace in diamonds} == {PUBLISHED["symbol"]}
    assert diamonds[0].y[0] > photos.y[0] > digits.y[0]  # side by side within their row
    assert [note.text for note in fig.layout.annotations].count("reference") == 1
    assert fig.layout.xaxis3.title.text == "Difference (points)<br>from first"


def test_frames_without_accuracies_are_refused():
    results, seeds, printed = (frame.assign(quantity="loss") for frame in frames())
    with pytest.raises(InputError, match="no accuracy"):
        ablation_figure(results, seeds, printed)
