"""Models beside a reference: every seed is drawn, and what is filled is what is significant."""

import numpy as np
import pandas as pd
import pytest

from workbench.core.errors import InputError
from workbench.figures import ablation_figure

LABELS = {"a": "first<br>softmax", "b": "second", "c": "third"}
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


def test_every_seed_stands_in_its_row_and_panel():
    results, seeds, printed = frames()
    fig = ablation_figure(results, seeds, printed)
    for number, (task, models) in enumerate(ACCURACY.items()):
        axis = "x" if not number else f"x{number + 1}"
        (drawn,) = [trace for trace in fig.data if trace.xaxis == axis and trace.customdata is not None]
        assert list(drawn.x) == pytest.approx([100 * value for values in models.values() for value in values])
        (strokes,) = [trace for trace in fig.data if trace.xaxis == axis and trace.customdata is None]
        assert list(strokes.x) == pytest.approx([100 * np.median(values) for values in models.values()]), task
    rows = dict(zip(fig.layout.yaxis.ticktext, fig.layout.yaxis.tickvals, strict=True))
    assert list(rows) == list(LABELS.values())
    assert sorted(rows.values(), reverse=True) == list(rows.values())  # the first above


def test_differences_are_filled_where_they_are_significant_and_published_ones_stand_beside():
    results, seeds, printed = frames()
    fig = ablation_figure(results, seeds, printed)
    last = [trace for trace in fig.data if trace.xaxis == "x3" and trace.x[0] is not None]
    filled, open_, photos, diamonds = last
    assert filled.marker.color == filled.marker.line.color != "white"
    assert open_.marker.color == "white"
    assert filled.x[0] == pytest.approx(100 * (0.6 - 0.85))
    assert (filled.error_x.array[0], filled.error_x.arrayminus[0]) == pytest.approx((25 + 25, -25 + 50))
    assert photos.x[0] == pytest.approx(-25)
    assert list(diamonds.x) == pytest.approx([-4, 1])
    assert fig.layout.annotations[2].text == "Δ vs. first"


def test_losses_are_drawn_in_nats_and_other_quantities_refused():
    results, seeds, printed = (frame.assign(quantity="loss") for frame in frames())
    fig = ablation_figure(results, seeds, printed[:0], "loss")
    assert "nats" in fig.layout.xaxis.title.text
    assert fig.data[0].x[0] == 0.9
    with pytest.raises(InputError, match="perplexity"):
        ablation_figure(results, seeds, printed, "perplexity")
    with pytest.raises(InputError, match="accuracy"):
        ablation_figure(results, seeds, printed)
