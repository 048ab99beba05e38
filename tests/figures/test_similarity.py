"""Token similarity against depth."""

import numpy as np
import pandas as pd
import pytest

from tests.figures.drawn import bands, key, lines
from workbench.core.errors import InputError
from workbench.figures import Band, Line, Null, Plot
from workbench.figures.theme import NULL_BAND
from workbench.frames.results import make_frame


def cosines(layers=5, inputs=7, model="bundled:digits-vit", **more):
    values = np.random.default_rng(layers).uniform(-0.2, 0.9, size=(inputs, layers))
    return make_frame(
        values, "token_cosine", {"input": range(inputs), "layer": range(layers)}, model=model, **more
    )


def depth_figure(frame, x="layer"):
    plot = Plot(frame, x=x).metric("token_cosine").where(axis=None, standardize=None)
    return plot.add(Null(), Band(quantiles=(25, 75)), Line()).figure()


def test_the_line_is_the_mean_over_inputs_and_the_band_its_quartiles():
    frame = cosines(inputs=12)
    fig = depth_figure(frame)
    (line,) = lines(fig)
    band = next(trace for trace in fig.data if trace.fill == "toself")
    at = frame[frame["layer"] == 3]["value"]
    assert line.y[3] == pytest.approx(at.mean(), rel=1e-12)
    assert band.y[3] == pytest.approx(at.quantile(0.75), rel=1e-12)
    assert band.y[-4] == pytest.approx(at.quantile(0.25), rel=1e-12)


def test_models_are_distinguished_by_more_than_colour():
    both = pd.concat([cosines(), cosines(layers=9, model="hf:bert-base-uncased")])
    fig = depth_figure(both)
    drawn = lines(fig)
    assert [trace.name for trace in drawn] == ["digits-vit", "bert-base-uncased"] == key(fig)[:2]
    assert drawn[0].line.dash != drawn[1].line.dash
    assert drawn[0].line.color != drawn[1].line.color


def test_relative_depth_ends_at_one_for_every_model():
    both = pd.concat([cosines(), cosines(layers=9, model="hf:bert-base-uncased")])
    fig = depth_figure(both, x="depth")
    assert {trace.x[-1] for trace in lines(fig)} == {1.0}


def test_checkpoints_of_one_model_are_named():
    both = pd.concat([cosines(checkpoint="epoch-000"), cosines(checkpoint="epoch-030")])
    assert [trace.name for trace in lines(depth_figure(both))] == [
        "digits-vit epoch-000",
        "digits-vit epoch-030",
    ]


def test_the_null_distribution_is_drawn_where_the_frame_carries_it():
    frame = cosines().assign(null="isotropic", null_mean=0.1, null_low=0.05, null_high=0.15)
    fig = depth_figure(frame)
    (band,) = bands(fig, NULL_BAND)
    assert (min(band.y), max(band.y)) == pytest.approx((0.05, 0.15))
    assert "null: random directions (95 % range of one input)" in key(fig)
    assert not bands(depth_figure(cosines()), NULL_BAND)


def test_a_frame_without_layers_is_refused():
    with pytest.raises(InputError, match="layer"):
        depth_figure(cosines().assign(layer=pd.NA))


def test_of_several_sites_the_blocks_are_drawn_with_all_their_tokens():
    """Also where there are rows with special tokens left out, less the mean, or of another metric."""
    parts = [
        cosines(4, candidate=site).assign(metric=metric, axis=axis, standardize=standardize)
        for site in ("input", "resid_mid", "resid_post")
        for metric, axis, standardize in (
            ("token_cosine", pd.NA, pd.NA),
            ("token_cosine", "without special tokens", pd.NA),
            ("token_cosine", pd.NA, "without mean"),
            ("effective_rank", pd.NA, pd.NA),
        )
    ]
    (line,) = lines(
        depth_figure(pd.concat(part.assign(value=part["value"] + n) for n, part in enumerate(parts)))
    )
    assert list(line.y) == pytest.approx(list(cosines(4).groupby("layer")["value"].mean() + 8))


def test_of_moments_the_band_is_their_interquartile_range_around_the_mean():
    index = {"layer": range(3), "statistic": ["mean", "std", "q25", "q75"]}
    value = np.array([[0.3, 0.1, 0.29, 0.31]] * 3)
    frame = make_frame(
        value, "token_cosine", index, model="bundled:a", candidate="resid_post", null_mean=None
    )
    frame.loc[frame["statistic"] == "mean", ["null_mean", "null"]] = 0.0, "isotropic"
    fig = depth_figure(frame)
    line = next(trace for trace in lines(fig) if trace.name)
    assert list(line.y) == pytest.approx([0.3] * 3)
    band = next(trace for trace in fig.data if trace.fill == "toself")
    assert list(band.y) == pytest.approx([0.31] * 3 + [0.29] * 3)
    assert "null: random directions" in key(fig)
