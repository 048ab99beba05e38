"""Blocks of directions."""

import numpy as np
import pandas as pd
import pytest

from workbench.core.errors import InputError
from workbench.figures import subspace_figure

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
