"""Embedded tasks: every seed is drawn, means have intervals, and the trivial predictor a line."""

import pandas as pd
import pytest

from workbench.core.errors import InputError
from workbench.core.intervals import mean_interval
from workbench.figures import (
    embedded_curves_figure,
    embedded_grid,
    embedded_grid_figure,
    embedded_scores_figure,
)
from workbench.studies.findings import embedded_findings

FINAL = {
    "softmax": [0.6, 0.7, 0.8],
    "softmax-shuffled": [0.5],
    "primal": [0.2, 0.25, 0.3],
    "primal-all s=20 η=0.1": [0.4],
    "primal-all s=30 η=0.5": [0.45],
}


def record(metric="accuracy"):
    rows = [
        {"variant": "majority", "attention": "", "seed": None, "epoch": 0, "value": 0.3},
        *(
            {"variant": variant, "attention": "x", "seed": seed, "epoch": epoch, "value": value * epoch / 2}
            for variant, values in FINAL.items()
            for seed, value in enumerate(values)
            for epoch in (0, 2)
        ),
    ]
    frame = pd.DataFrame(rows).assign(data="made", split="test", metric=metric, unit="")
    return frame.astype({"seed": "Int64"})


def drawn(figure, many):
    """What stands in panels, as sorted x of each trace with that many points."""
    return [
        sorted(map(float, trace.x)) for trace in figure.data if trace.x is not None and len(trace.x) == many
    ]


def test_every_seed_is_drawn_and_means_have_the_interval_over_seeds():
    figure = embedded_scores_figure(record())
    seven = [100 * value for name in ("softmax", "softmax-shuffled", "primal") for value in FINAL[name]]
    assert pytest.approx(sorted(seven)) in drawn(figure, 7)
    (means,) = [trace for trace in figure.data if trace.error_x.array is not None and len(trace.x) == 2]
    found = mean_interval(pd.Series([60.0, 70.0, 80.0]))
    place = [round(x, 9) for x in means.x].index(70)
    assert means.x[place] - means.error_x.arrayminus[place] == pytest.approx(found.low)
    assert 30 in [round(shape.x0, 9) for shape in figure.layout.shapes if shape.x0 == shape.x1]


def test_curves_leave_single_seeds_out_but_for_the_shuffled_tokens():
    names = {trace.name for trace in embedded_curves_figure(record()).data if trace.name}
    assert {"softmax", "softmax, tokens shuffled", "Primal, last layer"} <= names
    assert not any("η" in name for name in names)


def test_the_grid_holds_the_runs_over_eta_and_s():
    grid = embedded_grid(record())
    assert grid[["s", "eta", "value"]].values.tolist() == [[20, 0.1, 0.4], [30, 0.5, 0.45]]
    names = {trace.name for trace in embedded_grid_figure(record()).data if trace.name}
    assert {"s = 20", "s = 30"} <= names


def test_other_frames_are_refused():
    for draw in (embedded_scores_figure, embedded_curves_figure, embedded_grid_figure):
        with pytest.raises(InputError, match="mean_iou"):
            draw(record(), "mean_iou")
    with pytest.raises(InputError, match="no axis"):
        embedded_scores_figure(record(), "f1")
    without = record()[~record()["variant"].str.contains("η")]
    with pytest.raises(InputError, match="no runs over η and s"):
        embedded_grid_figure(without)


def test_findings_name_what_has_not_learned_and_what_is_significant():
    (sentence,) = embedded_findings(record(), "accuracy")
    assert "softmax has a test accuracy of 70.0 [45.2, 94.8] %" in sentence
    assert "primal −45.0" in sentence
    assert "(significant)" in sentence
    assert "Not learned: primal." in sentence
    assert "Not significantly better than shuffled: softmax, primal." in sentence
    (sentence,) = embedded_findings(record("loss"), "loss")  # smaller is better
    assert "trivial predictor 0.300 nats" in sentence
    assert "Not significantly better than shuffled: softmax." in sentence
