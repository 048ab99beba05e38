"""Maps of the sparse part, what tells contamination, and the ideal case."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from tests.figures.drawn import bands, key
from tests.figures.drawn import maps as drawn_maps
from tests.figures.study import levels, named, study
from workbench.core.errors import InputError
from workbench.figures.theme import NULL_BAND
from workbench.studies.figures import contamination_figure, recovery_figure, sparse_map_figure

ROWS, COLUMNS = 4, 5


def maps(inputs=4):
    marked = np.zeros((inputs, ROWS, COLUMNS), dtype=bool)
    marked[:, 1:3, 2:5] = True
    images = np.random.default_rng(0).random((2, inputs, 2 * ROWS, 2 * COLUMNS, 1))
    values = np.random.default_rng(1).random((3, inputs, ROWS, COLUMNS))
    return SimpleNamespace(
        values=values, marked=marked, images=(list(images[0]), list(images[1])),
        ids=[f"digits/{number}" for number in range(inputs)],
    )  # fmt: skip


def shown(fig):
    return drawn_maps(fig)


def test_a_row_for_each_image_and_an_image_beside_each_map():
    held = maps()
    fig = sparse_map_figure(held, most=2)
    assert [trace.name for trace in shown(fig)] == [
        f"{kind}, digits/{number}" for kind in ("clean", "contaminated", "change") for number in (0, 1)
    ]
    np.testing.assert_array_equal(shown(fig)[3].z, held.values[1, 1])
    assert len(fig.layout.images) == 3 * 2
    assert [axis.title.text for axis in fig.select_yaxes() if axis.title.text] == [
        "clean",
        "contaminated",
        "change",
    ]


def test_maps_share_one_scale_from_zero():
    held = maps()
    fig = sparse_map_figure(held, most=3)
    assert fig.layout.coloraxis.cmin == 0
    assert fig.layout.coloraxis.cmax == pytest.approx(held.values[:, :3].max())
    assert {trace.coloraxis for trace in shown(fig)} == {"coloraxis"}


def test_the_block_is_outlined_on_image_and_map():
    fig = sparse_map_figure(maps(), most=1)
    assert len(fig.layout.shapes) == 3 * 2
    for shape in fig.layout.shapes:
        assert (shape.x0, shape.x1, shape.y0, shape.y1) == (1.5, 4.5, 0.5, 2.5)
    with pytest.raises(InputError, match="at least one"):
        sparse_map_figure(maps(), most=0)


def contaminated(kind, auc):
    rows = []
    null = {"null": "permutation", "null_mean": 0.5, "null_low": 0.45, "null_high": 0.55}
    for candidate, value in {"sparse": auc, "keys": auc + 0.1}.items():
        inputs = (value - 0.05, value, value + 0.05)
        for metric in ("contamination_share", "contamination_auc"):
            rows += levels(value, inputs=inputs, metric=metric, candidate=candidate, **null)
        rows += levels(0.9, inputs=(0.9, 0.9), metric="sparse_zeros", candidate="clean")
    return study(*rows).assign(contamination=kind)


def test_every_kind_has_a_panel_with_a_row_for_each_candidate():
    fig = contamination_figure(pd.concat([contaminated("noise", 0.6), contaminated("fgsm", 0.7)]))
    axes = list(fig.select_xaxes())
    assert [axis.title.text for axis in axes] == ["AUC, noise", "AUC, FGSM"]
    assert list(fig.layout.yaxis.ticktext) == ["S", "keys' distance from their mean"]
    dots = [trace for trace in fig.data if trace.error_x.array is not None]
    assert [round(x, 9) for dot in dots[:2] for x in dot.x] == [0.6, 0.7, 0.7, 0.8]
    assert len(bands(fig, NULL_BAND)) == 4
    first, second = (axis.range for axis in axes[:2])
    assert first == second


def test_frames_without_contamination_are_refused():
    with pytest.raises(InputError, match="contamination"):
        contamination_figure(study(*levels(0.9, metric="sparse_zeros")))


def recovery():
    rows = []
    for part in ("sparse", "low_rank"):
        for steps in (1, 2, 3, 4):
            rows += [("PCP", 0.1, steps, part, number, 10.0**-steps) for number in range(3)]
            rows += [("PAP", 4.0, steps, part, number, 1.0) for number in range(3)]
            rows += [("PAP", 1.0, steps, part, number, 0.25 * steps) for number in range(3)]
    return pd.DataFrame(rows, columns=["method", "weight", "steps", "part", "input", "value"])


def test_the_band_reaches_from_the_best_weight_to_the_worst_at_each_number_of_steps():
    fig = recovery_figure(recovery())
    band = next(trace for trace in fig.data if trace.fill == "toself" and trace.xaxis == "x")
    assert list(band.y) == pytest.approx([1, 1, 1, 1, 1.0, 0.75, 0.5, 0.25])
    assert "PAP: from least to largest median over λ = 1, 4" in key(fig)
    assert list(named(fig, "PAP, λ = 4")[-1].y) == [1, 1, 1, 1]
    line, arrow = named(fig, "PCP")[:2]
    assert list(line.y)[:3] == pytest.approx([0.1, 0.01, 0.01])
    assert line.y[3] is None  # it leaves the axis at 3 steps
    assert (arrow.x, arrow.text) == ((3,), ("to 1·10<sup>−4</sup> at 4",))
    assert list(fig.layout.xaxis.tickvals) == [1, 2, 4]
    assert {shape.x0 for shape in fig.layout.shapes} == {4}
    assert key(fig)[-1] == "zero predictor"
    with pytest.raises(InputError, match="λ = 4"):
        recovery_figure(recovery().query("weight != 4"))
