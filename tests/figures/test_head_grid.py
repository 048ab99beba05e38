"""All layers and heads coloured by one metric."""

import numpy as np
import pandas as pd
import pytest

from tests.figures.drawn import key, maps
from workbench.core.errors import InputError
from workbench.figures import apply_theme, head_grid_figure
from workbench.frames.results import make_frame


def measured(metric="attention_entropy_share", inputs=2, layers=3, heads=5, **constant):
    values = np.random.default_rng(0).uniform(0.1, 0.9, (inputs, layers, heads))
    axes = {"input": [f"i{number}" for number in range(inputs)], "layer": range(layers), "head": range(heads)}
    return values, make_frame(values, metric, axes, model="m", **constant)


def cells(fig):
    (trace,) = maps(fig)
    return trace


def test_a_cell_is_the_mean_over_inputs_of_its_layer_and_head():
    values, frame = measured()
    trace = cells(head_grid_figure(frame, "attention_entropy_share"))
    np.testing.assert_allclose(np.asarray(trace.z), values.mean(axis=0), rtol=1e-12)
    assert trace.customdata[2][4] == [2, 4]
    assert trace.hovertext[2][4].startswith("layer 2, head 4<br>Normalised attention entropy: ")
    assert "mean over 2 inputs" in trace.hovertext[0][0]


def test_layers_go_down_from_0_and_the_chosen_cell_is_framed():
    _, frame = measured()
    fig = head_grid_figure(frame, "attention_entropy_share", chosen=(2, 4))
    assert list(fig.layout.yaxis.range) == [2.5, -0.5]
    frame_of_cell = fig.layout.shapes[-1]
    assert (frame_of_cell.x0, frame_of_cell.x1, frame_of_cell.y0, frame_of_cell.y1) == (3.5, 4.5, 1.5, 2.5)
    assert not head_grid_figure(frame, "attention_entropy_share").layout.shapes


def test_few_cells_have_their_numbers_in_them_and_the_key_says_what_is_framed():
    values, frame = measured()
    fig = head_grid_figure(frame, "attention_entropy_share", chosen=(2, 4))
    printed = {(note.y, note.x): note.text for note in fig.layout.annotations if note.y is not None}
    assert printed[2, 4] == f"{values.mean(axis=0)[2, 4]:.3f}"
    assert key(fig) == ["layer 2, head 4"]
    _, many = measured(layers=5)
    assert not head_grid_figure(many, "attention_entropy_share").layout.annotations


def test_colours_run_over_the_metric_s_own_range_or_the_data_s():
    values, frame = measured()
    axis = head_grid_figure(frame, "attention_entropy_share").layout.coloraxis
    assert (axis.cmin, axis.cmax) == (0, 1)
    axis = head_grid_figure(frame, "attention_entropy_share", by_data=True).layout.coloraxis
    mean = values.mean(axis=0)
    np.testing.assert_allclose([axis.cmin, axis.cmax], [mean.min(), mean.max()])
    _, unbounded = measured("attention_distance")
    axis = head_grid_figure(unbounded, "attention_distance").layout.coloraxis
    np.testing.assert_allclose([axis.cmin, axis.cmax], [mean.min(), mean.max()])


def test_small_values_of_a_metric_with_a_sign_have_colours_of_their_own_range():
    values, falls = measured("head_effect_accuracy")
    mean = values.mean(axis=0) / 10
    for shift, ends in {
        0.0: (0, mean.max()),
        -0.05: (mean.min() - 0.05, mean.max() - 0.05),
        0.5: (0, 1),
        -0.5: (-1, 1),
    }.items():
        fig = head_grid_figure(falls.assign(value=falls["value"] / 10 + shift), "head_effect_accuracy")
        np.testing.assert_allclose([fig.layout.coloraxis.cmin, fig.layout.coloraxis.cmax], ends)


def test_values_over_many_decades_are_coloured_by_their_logarithm():
    errors = make_frame(
        10.0 ** np.arange(6).reshape(2, 3), "projection_error", {"layer": range(2), "head": range(3)}
    )
    fig = head_grid_figure(errors, "projection_error")
    np.testing.assert_allclose(np.asarray(cells(fig).z), np.arange(6).reshape(2, 3))
    assert "10<sup>4</sup>" in fig.layout.coloraxis.colorbar.ticktext


def test_a_metric_of_whole_layers_has_one_column():
    frame = make_frame([0.25, 0.5], "token_cosine", {"layer": range(2)}, input="i0")
    fig = head_grid_figure(frame, "token_cosine", chosen=(1, 3))
    assert list(fig.layout.xaxis.ticktext) == ["all heads"]
    assert cells(fig).customdata[1][0] == [1, None]
    assert fig.layout.coloraxis.cmin == 0  # although a cosine may be −1
    assert len(fig.layout.shapes) == 2


def test_what_is_missing_is_blank_and_says_why():
    _, frame = measured(layers=4, heads=3)
    kept = frame[(frame["layer"] != 1) & ~((frame["layer"] == 3) & (frame["head"] == 2))]
    trace = cells(head_grid_figure(kept, "attention_entropy_share"))
    blank = np.isnan(np.asarray(trace.z, dtype=float))
    assert blank.sum() == 4
    assert blank[1].all()
    assert blank[3, 2]
    assert "leaves this layer out" in trace.hovertext[1][0]
    assert "this layer has heads 0-1" in trace.hovertext[3][2]


def test_layers_after_the_last_value_are_drawn_where_the_model_has_them():
    _, frame = measured(layers=3, heads=2)
    fig = head_grid_figure(frame, "attention_entropy_share", layers=5)
    assert list(fig.layout.yaxis.range) == [4.5, -0.5]
    assert np.isnan(np.asarray(cells(fig).z)[3:]).all()
    assert "leaves this layer out" in cells(fig).hovertext[4][1]
    assert len(cells(head_grid_figure(frame, "attention_entropy_share", layers=1)).z) == 3


def test_chance_is_marked_on_the_bar_and_in_the_hover_text():
    _, frame = measured("MOC", inputs=1, statistic="mean", axis="features")
    both = pd.concat([frame.assign(null=name, null_mean=0.5, z=4.0) for name in ("gaussian", "permutation")])
    fig = head_grid_figure(both, "MOC")
    bar = fig.layout.coloraxis.colorbar
    ticks = dict(zip(bar.ticktext, bar.tickvals, strict=True))
    assert ticks["null 0.5:<br>Gaussian<br>permuted"] == pytest.approx(0.5)
    assert "0.5" not in ticks  # whose place it takes
    assert {"0", "1"} <= set(ticks)
    assert "null: Gaussian: 0.5 (z = 4)" in cells(fig).hovertext[0][0]
    assert "null: permuted: 0.5 (z = 4)" in cells(fig).hovertext[0][0]


def test_of_few_cells_a_null_that_differs_between_layers_is_a_column():
    values, frame = measured("MOC", statistic="mean", axis="features")
    nulls = frame.assign(null="gaussian", null_mean=0.1 * (frame["layer"].astype(float) + 1))
    fig = head_grid_figure(nulls, "MOC")
    np.testing.assert_allclose(np.asarray(cells(fig).z)[:, :5], values.mean(axis=0))
    np.testing.assert_allclose(np.asarray(cells(fig).z)[:, 5], [0.1, 0.2, 0.3])
    assert list(fig.layout.xaxis.ticktext) == ["0", "1", "2", "3", "4", "null"]
    (gap,) = fig.layout.shapes
    assert (gap.x0, gap.x1) == (4.5, 4.5)


def test_a_small_number_is_not_printed_as_zero():
    _, frame = measured("MOC", inputs=1, layers=2, heads=2)
    frame["value"] = [0.31, 0.0, 0.0004, 0.02]
    assert {note.text for note in head_grid_figure(frame, "MOC").layout.annotations} >= {
        "0.310",
        "0.000",
        "0.0004",
        "0.020",
    }


def test_a_null_of_one_level_is_named_at_its_number_on_the_bar():
    _, frame = measured("attention_entropy")
    nulls = frame.assign(null="uniform", null_mean=1.5)
    bar = head_grid_figure(nulls, "attention_entropy", by_data=True).layout.coloraxis12.colorbar
    assert bar.ticktext[0] == "1.5 uniform"


def test_a_mean_over_inputs_has_no_z():
    _, frame = measured("MOC", inputs=2, statistic="mean", axis="features", null_mean=0.2, z=4.0)
    text = cells(head_grid_figure(frame, "MOC")).hovertext[0][0]
    assert "null distribution: 0.2" in text
    assert "z =" not in text


def test_the_usual_way_of_measuring_is_taken_and_others_have_to_be_chosen():
    values, exact = measured("projection_error", convention="exact")
    other = exact.assign(convention="saritas2025", value=7.0)
    trace = cells(head_grid_figure(pd.concat([other, exact]), "projection_error"))
    np.testing.assert_allclose(np.asarray(trace.z), values.mean(axis=0), rtol=1e-12)
    with pytest.raises(InputError, match=r"several values of rank \(1, 2\)"):
        head_grid_figure(pd.concat([exact.assign(rank=1), exact.assign(rank=2)]), "projection_error")


def test_two_models_are_refused():
    _, frame = measured()
    with pytest.raises(InputError, match="several values of model"):
        head_grid_figure(pd.concat([frame, frame.assign(model="other")]), "attention_entropy_share")


@pytest.mark.parametrize("size", [(1, 1), (48, 64)])
def test_ticks_stay_few_at_any_size(size):
    _, frame = measured(inputs=1, layers=size[0], heads=size[1])
    fig = apply_theme(head_grid_figure(frame, "attention_entropy_share", chosen=(0, 0)))
    assert np.asarray(cells(fig).z).shape == size
    assert size[0] / fig.layout.yaxis.dtick <= 8
    assert size[1] / fig.layout.xaxis.dtick <= 8
    assert fig.layout.height <= 500
