"""Projection errors and norms, by layer and through training."""

import itertools

import numpy as np
import pandas as pd
import pytest

from tests.figures.drawn import bands, ends, key, lines, said
from tests.figures.study import levels, named, study, titles
from workbench.core.errors import InputError
from workbench.figures import projection_error_figure, projection_training_figure
from workbench.figures.theme import NULL_BAND

QUANTILES = {"q2.5": 0.1, "q25": 0.5, "median": 1.0, "q75": 2.0, "q97.5": 9.0}


def errors(model="bundled:digits-vit", scale=1.0, of_exact=0.05, **more):
    null_level = {"null": "gaussian", "null_mean": 0.07, "null_low": 0.06, "null_high": 0.08}
    layers, inputs = np.array([1.0, 2.0, 3.0]) * scale, np.array([1.5, 2.5]) * scale
    rows = []
    for convention, factor, null in (
        ("exact", of_exact, null_level),
        ("saritas2025", 4.0, {}),
        ("teo2024_as_published", -3.0, {}),
        ("teo2024_as_implemented", 1.5, {}),
    ):
        same = {"metric": "projection_error", "convention": convention, **null, **more}
        rows += levels(2 * scale * factor, inputs * factor, layers * factor, **same)
    for metric, factor in (("projection_floor", 0.01), ("projection_zero_predictor", 0.03)):
        rows += levels(
            2 * scale * factor, inputs * factor, layers * factor, metric=metric, convention="exact", **more
        )
    for metric, factor in (("projection_error_over_phi", 1e4), ("projection_error_over_h", 0.99)):
        rows += levels(factor, [factor] * 2, [factor] * 3, metric=metric, convention="saritas2025", **more)
    for metric, factor in (("phi_norm2", 0.03), ("h_norm2", 4.0)):
        for statistic, share in {**QUANTILES, "mean": 1.3}.items():
            at = factor * share
            rows += levels(
                at * 2 * scale, inputs * at, layers * at, metric=metric, statistic=statistic, **more
            )
    return study(*rows, model=model)


def test_the_exact_error_stands_between_its_floor_and_the_zero_predictor():
    fig = projection_error_figure(errors(of_exact=0.02))
    (floor,), (output,) = (named(fig, name) for name in ("floor", "output"))
    np.testing.assert_allclose(floor.y, [1 / 3] * 3)
    np.testing.assert_allclose(output.y, [2 / 3] * 3)
    assert any(name.startswith("null: noise for V") for name in key(fig))
    (band,) = bands(fig, NULL_BAND)
    null = np.array([[0.06, 0.03, 0.02], [0.08, 0.08 / 2, 0.08 / 3]]) / 0.03
    np.testing.assert_allclose(ends(band)[1:], null)
    low, high = fig.layout.yaxis.range
    assert fig.layout.yaxis.type != "log"
    assert low <= 0 < 1 < high


def test_with_single_inputs_each_has_a_ratio_and_none_of_large_norm_outweighs_the_others():
    """Two inputs, whose zero predictors differ by a factor of 1000: the mean of their ratios, with its interval."""
    ratios = {"a": (0.5, 1.0), "b": (0.9, 1000.0)}  # exact error over the zero predictor's, and that
    null = {"null": "gaussian", "null_mean": 0.7, "null_low": 0.6, "null_high": 0.8}
    rows = []
    for (name, (ratio, zero)), head, layer in itertools.product(ratios.items(), (0, 1), (0, 1, 2)):
        place = {"input": name, "head": head, "layer": layer, "convention": "exact"}
        of_zero = {end: value * zero for end, value in null.items() if end != "null"}
        error = zero * (ratio + (0.1, -0.1)[head])
        rows += [
            {**place, "metric": "projection_error", "value": error, **null, **of_zero},
            {**place, "metric": "projection_floor", "value": zero * 0.25},
            {**place, "metric": "projection_zero_predictor", "value": zero},
        ]
    fig = projection_error_figure(study(*rows))
    (floor,), (output,) = (
        [trace for trace in lines(fig) if trace.name == name and trace.mode == "lines+markers"]
        for name in ("floor", "output")
    )
    np.testing.assert_allclose(output.y, [0.7] * 3)
    np.testing.assert_allclose(floor.y, [0.25] * 3)
    (band,) = bands(fig, NULL_BAND)
    reach = 0.1 / np.sqrt(4)  # of the mean of two inputs and two heads
    np.testing.assert_allclose(ends(band)[1:], np.array([[0.7 - reach] * 3, [0.7 + reach] * 3]))
    assert "95 % CI over inputs" in key(fig)


def test_models_share_the_axis_of_their_shares():
    fig = projection_error_figure(pd.concat([errors(), errors("bundled:b", scale=1e4)]))
    assert fig.layout.yaxis.range == fig.layout.yaxis2.range


def test_models_get_panels():
    names = ["bundled:digits-vit", "hf:google-bert/bert-base-uncased", "timm:vit_tiny_patch16_224"]
    fig = projection_error_figure(pd.concat([errors(name) for name in names]))
    assert titles(fig) == ["digits-vit", "bert-base-uncased", "vit_tiny_patch16_224"]
    assert len(key(fig)) == len(set(key(fig)))


EPOCHS_OF = ("train", "test")
EPOCHS = {"epoch-000": 0, "epoch-008": 8, "epoch-030": 30}


def through(scale=1.0):
    return pd.concat([errors(scale=scale / (1 + epoch), checkpoint=name) for name, epoch in EPOCHS.items()])


def test_training_is_drawn_against_the_epoch_for_both_batches():
    fig = projection_training_figure({"train": through(), "test": through(2.0)}, EPOCHS)
    train, test = (
        next(trace for trace in lines(fig) if trace.name == f"‖h‖², {batch} batch") for batch in EPOCHS_OF
    )
    assert list(train.x) == [0, 8, 30]
    np.testing.assert_allclose(train.y, 4 * 1.3 * 2 / np.array([1, 9, 31]))  # the median of 1.5 and 2.5 is 2
    np.testing.assert_allclose(test.y, np.array(train.y) * 2)
    assert (train.line.dash, test.line.dash) == ("solid", "dash")
    assert (train.marker.symbol, test.marker.symbol) == ("circle", "x")
    for share in (trace for trace in lines(fig) if trace.xaxis == "x" and trace.name.startswith("J")):
        np.testing.assert_allclose(share.y, [0.05 / 0.03] * 3)
    assert key(fig) == [
        "train batch", "test batch",
        "median over 2 inputs",
        "each of 2 inputs, train batch",
        "zero predictor",
        "null: Gaussian noise for V, train batch (95 % range of one input)",
    ]  # fmt: skip


def test_training_has_a_panel_for_each_way_to_look_with_names_at_the_ends():
    fig = projection_training_figure({"train": through()}, EPOCHS)
    found = {}
    for trace in lines(fig):
        found.setdefault(trace.xaxis, []).append(trace.name.removesuffix(", train batch"))
    assert found == {"x": ["J", "floor"], "x2": ["‖φ‖²", "‖h‖²"]}
    assert {band.xaxis for band in bands(fig, NULL_BAND)} == {"x"}
    assert [axis.type for axis in fig.select_yaxes()] == [None, "log"]
    assert {axis.title.text for axis in fig.select_xaxes() if axis.title.text} == {"Epoch"}
    assert [said(fig).count(name) for name in ("‖h‖²", "floor")] == [1, 1]


def test_one_input_of_large_norm_does_not_rule_the_axis():
    frame = through()
    one = frame["input"].notna() & (frame["metric"] == "phi_norm2") & (frame["checkpoint"] == "epoch-008")
    frame.loc[one & (frame["input"] == "digits/1"), "value"] *= 1e9
    fig = projection_training_figure({"train": frame}, EPOCHS)
    assert (
        fig.layout.yaxis2.range[1]
        < projection_training_figure({"train": through()}, EPOCHS).layout.yaxis2.range[1] + 9
    )


def test_epochs_come_with_the_frame_or_are_asked_for():
    frame = through()
    with pytest.raises(InputError, match="epoch-000"):
        projection_training_figure({"train": frame})
    frame.attrs["epochs"] = EPOCHS
    assert projection_training_figure({"train": frame}).data
    with pytest.raises(InputError, match="no batch"):
        projection_training_figure({})
