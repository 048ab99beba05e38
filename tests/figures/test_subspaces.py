"""Blocks of directions, and their coherence beside the null distribution."""

import itertools

import numpy as np
import pandas as pd
import pytest

from tests.figures.drawn import bands, key, lines
from workbench.core.errors import InputError
from workbench.figures import subspace_coherence_figure, subspace_figure
from workbench.figures.theme import NULL_BAND

HEADS, DIRECTIONS = 3, (2, 5)


def blocks(model="bundled:a", layers=(0, 2)):
    axes = {
        "layer": layers, "head": range(HEADS), "direction": DIRECTIONS, "other_head": range(HEADS),
        "other_direction": DIRECTIONS,
    }  # fmt: skip
    frame = pd.MultiIndex.from_product(axes.values(), names=axes).to_frame(index=False)
    return frame.assign(value=np.random.default_rng(0).uniform(size=len(frame)), model=model)


def test_a_panel_is_the_matrix_of_a_layer_with_lines_between_heads():
    frame = blocks()
    fig = subspace_figure(frame.sample(frac=1, random_state=0))
    assert [trace.name for trace in fig.data] == ["a, layer 0", "a, layer 2"]
    side = HEADS * len(DIRECTIONS)
    for trace, (_, part) in zip(fig.data, frame.groupby("layer"), strict=True):
        expected = part["value"].to_numpy(copy=True).reshape(side, side)
        np.fill_diagonal(expected, np.nan)  # a direction with itself
        np.testing.assert_array_equal(np.asarray(trace.z), expected)
    lines = {shape.x0 for shape in fig.layout.shapes if shape.x0 == shape.x1}
    assert lines == {0.5, 1.5}
    assert list(fig.data[0].x) == [-0.25, 0.25, 0.75, 1.25, 1.75, 2.25]  # two directions within each head
    assert (list(fig.layout.xaxis.tickvals), list(fig.layout.xaxis.ticktext)) == ([0, 1, 2], ["0", "1", "2"])
    assert (fig.layout.coloraxis.cmin, fig.layout.coloraxis.cmax) == (0, 1)


def test_models_stand_one_under_the_other_with_as_many_layers_as_the_shallowest_has():
    fig = subspace_figure(pd.concat([blocks(layers=range(7)), blocks("bundled:b", layers=range(3))]))
    assert [trace.name for trace in fig.data] == [
        *(f"a, layer {layer}" for layer in (0, 3, 6)), *(f"b, layer {layer}" for layer in range(3))
    ]  # fmt: skip
    tops = [fig.layout[f"yaxis{trace.yaxis[1:]}"].domain[1] for trace in fig.data]
    assert [tops.count(top) for top in dict.fromkeys(tops)] == [3, 3]
    alone = subspace_figure(blocks(layers=range(7)))
    assert len(alone.data) == 7  # in two rows
    with pytest.raises(InputError, match="no column direction"):
        subspace_figure(blocks().drop(columns="direction"))


def measured(model="bundled:a"):
    rows = [
        {"model": model, "checkpoint": None, "standardize": None, "metric": metric, "layer": layer,
         "rank": None, "value": 0.1 * (layer + 1), "null_mean": 0.1, "null_low": 0.05, "null_high": 0.2,
         "null": "isotropic"}
        for metric, layer in itertools.product(("coherence_inside", "coherence_between"), range(3))
    ]  # fmt: skip
    rows += [
        rows[0]
        | {"metric": "subspace_angle", "layer": layer, "rank": rank, "value": rank + layer, "axis": axis}
        for layer, rank, axis in itertools.product(range(3), (1, 2), ("head 1", "head 2"))
    ]
    return pd.DataFrame(rows)


def test_coherence_by_layer_and_angles_by_rank():
    fig = subspace_coherence_figure(pd.concat([measured(), measured("bundled:b")]))
    drawn = [trace for trace in lines(fig) if trace.name == "a" and trace.mode == "lines+markers"]
    beside = 1 / 12  # two models in a third of the way from place to place
    expected = [np.arange(3), np.arange(3), np.arange(1, 3) - beside]  # where both have bars
    for trace, places in zip(drawn, expected, strict=True):
        np.testing.assert_allclose(trace.x, places)
    np.testing.assert_allclose(drawn[2].y, np.degrees([1.9, 2.9]))  # mean over the layers, less random
    null_level = bands(fig, NULL_BAND)
    for band in null_level:  # one in each panel
        less, unit = (0.1, 180 / np.pi) if band.xaxis == "x3" else (0, 1)
        assert (min(band.y), max(band.y)) == pytest.approx(((0.05 - less) * unit, (0.2 - less) * unit))
    assert fig.layout.yaxis.range == fig.layout.yaxis2.range
    assert {trace.xaxis for trace in null_level} == {"x", "x2", "x3"}
    estimates = [
        "mean over pairs of directions (c: over layers and pairs of heads)",
        "c: each of 3 layers",
    ]
    null = "null: random directions (95 % range of one layer; c: of one pair of heads)"
    assert key(fig) == ["a", "b", *estimates, null]
    only = subspace_coherence_figure(measured(), ["subspace_angle"])
    assert "xaxis2" not in only.to_plotly_json()["layout"]
    with pytest.raises(InputError, match="no values of coherence_inside"):
        subspace_coherence_figure(measured().assign(metric="token_cosine"))
