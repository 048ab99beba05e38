"""Tokens through depth, and the layer one looks at."""

import numpy as np
import pandas as pd

from tests.figures.drawn import key, lines
from workbench.apps.explorer.head_figures import trajectory_figure
from workbench.frames.results import make_frame

AXES = {"input": ["i0", "i1"], "layer": range(4)}


def frames():
    random = np.random.default_rng(0)
    cosine = make_frame(
        random.random((2, 4)), "token_cosine", AXES, model="m", candidate="resid_post", null_mean=0.0
    )
    rate = make_frame(10 + random.random((2, 4)), "coding_rate", AXES, model="m", candidate="resid_post")
    return cosine, rate


def test_each_panel_is_the_figure_of_its_metric():
    cosine, rate = frames()
    fig = trajectory_figure(pd.concat([cosine, rate.assign(candidate="input", value=0.0), rate]), 2)
    for drawn, frame in zip(lines(fig), (cosine, rate), strict=True):
        np.testing.assert_allclose(drawn.y, frame.groupby("layer")["value"].mean())
    assert [trace.yaxis for trace in lines(fig)] == ["y", "y2"]
    assert len(key(fig)) == len(set(key(fig)))


def test_the_line_stands_at_the_layer_and_is_named_in_the_key():
    fig = trajectory_figure(pd.concat(frames()), 3)
    assert [(line.x0, line.x1) for line in fig.layout.shapes] == [(3, 3), (3, 3)]
    assert "layer 3" in key(fig)


def test_a_metric_that_is_missing_has_no_panel():
    cosine, rate = frames()
    assert len(lines(trajectory_figure(rate, 1))) == 1
    assert "yaxis2" not in trajectory_figure(cosine, 1).layout
