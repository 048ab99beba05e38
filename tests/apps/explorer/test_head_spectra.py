"""Spectra of one head: of its keys in every layer, and of its attention."""

import numpy as np
import pytest
import torch

from tests.figures.drawn import bands, key
from workbench.analyses.gram_spectrum import effective_rank, rank_holding
from workbench.apps.explorer.head_figures import head_spectrum_figure, singular_values_figure
from workbench.core.errors import InputError
from workbench.figures.theme import NULL_BAND
from workbench.frames.results import make_frame


def spectra(layers=(0, 1, 3), inputs=3, ranks=5, **constant):
    values = np.sort(np.random.default_rng(0).random((inputs, len(layers), ranks)), axis=-1)[..., ::-1]
    axes = {"input": [f"i{number}" for number in range(inputs)], "layer": layers, "rank": range(1, ranks + 1)}
    return values, make_frame(values, "eigenvalue", axes, head=2, model="m", **constant)


def lines(fig):
    return {
        trace.hovertemplate.partition("<br>")[0]: trace
        for trace in fig.data
        if trace.hovertemplate and trace.hovertemplate.startswith("layer")
    }


def test_every_layer_has_a_line_the_chosen_one_thick_and_in_front():
    values, frame = spectra()
    fig = head_spectrum_figure(frame, 1)
    drawn = lines(fig)
    assert list(drawn) == ["layer 0", "layer 3", "layer 1"]
    for place, layer in enumerate((0, 1, 3)):
        np.testing.assert_allclose(drawn[f"layer {layer}"].y, np.median(values[:, place], axis=0))
    assert drawn["layer 1"].line.width > drawn["layer 0"].line.width
    assert {trace.line.dash for trace in drawn.values()} == {"solid"}  # not what a theme gives the n-th line
    assert fig.layout.yaxis.type == "log"


def test_the_null_of_the_chosen_layer_is_drawn_and_of_no_other():
    _, frame = spectra()
    level = frame["layer"].astype(float) + 0.5
    frame = frame.assign(null="gaussian", null_mean=level, null_low=level - 0.25, null_high=level + 0.25)
    fig = head_spectrum_figure(frame, 3)
    (band,) = bands(fig, NULL_BAND)
    assert set(band.y) == {3.25, 3.75}
    assert "null: Gaussian keys, layer 3 (95 % range of one head)" in key(fig)
    assert not bands(head_spectrum_figure(spectra()[1], 3), NULL_BAND)


def test_what_is_lost_in_rounding_is_drawn_at_the_floor():
    values, frame = spectra(inputs=1)
    frame.loc[frame["rank"] == 5, "value"] = 0.0
    drawn = lines(head_spectrum_figure(frame, 0))["layer 0"]
    assert drawn.y[-1] == pytest.approx(values.max() * np.finfo(float).eps * 5)


# --------------------------------------------------------------------------------------------- singular values


def test_both_ranks_are_those_of_the_analysis():
    values = torch.linalg.svdvals(torch.softmax(3 * torch.randn(11, 11, dtype=torch.float64), -1))
    fig = singular_values_figure(values)
    np.testing.assert_allclose(fig.data[0].y, values)
    marks = effective_rank(values).item(), rank_holding(values.square(), 0.9).item()
    np.testing.assert_allclose([mark.x0 for mark in fig.layout.shapes], marks)
    assert key(fig)[1:] == ["rank of 90 %", "effective rank"]


def test_an_identity_has_full_rank_and_a_constant_matrix_rank_one():
    full = singular_values_figure(np.ones(7))
    assert [mark.x0 for mark in full.layout.shapes] == [pytest.approx(7), 7]
    one = singular_values_figure([2.0, 0, 0, 0])
    assert [mark.x0 for mark in one.layout.shapes] == [pytest.approx(1), 1]
    assert "round-off" in key(one)
    assert "round-off" not in key(full)


def test_values_below_the_floor_are_drawn_there():
    curves = {tuple(trace.y) for trace in singular_values_figure([1.0, 0.1, 1e-7]).data}
    assert {(1, 0.1, 1e-5), (1e-5, 1e-5)} <= curves


@pytest.mark.parametrize(
    ("values", "says"),
    [(np.ones((2, 3)), r"shape \(2, 3\)"), ([0.0, 0.0], "not all zero"), ([1.0, np.nan], "finite")],
)
def test_what_is_no_spectrum_is_refused(values, says):
    with pytest.raises(InputError, match=says):
        singular_values_figure(values)
