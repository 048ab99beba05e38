"""The eigenvector test as a figure."""

import pandas as pd
import pytest

from tests.figures.drawn import bands, ends, key, lines, thin
from tests.figures.study import named, study, titles
from workbench.core.errors import InputError
from workbench.figures import eigenvector_figure
from workbench.figures.theme import NULL_BAND

SIZES = {"true": 1e-18, "perturbed": 1e-6, "values": 3e-6}
AXES = 5


def eigen_frame(model="bundled:digits-vit", layers=(None, 0, 1, 2)):
    rows = []
    for layer in layers:
        for axis in range(1, AXES + 1):
            at = {"rank": axis, "layer": layer}
            for candidate, size in SIZES.items():
                own = {**at, "candidate": candidate}
                rows += [
                    {"metric": "gamma_abs", "statistic": "mean", "value": size * axis, **own},
                    {"metric": "gamma_abs", "statistic": "std", "value": size, **own},
                ]
                for convention, share in (("as_published", 0.5), ("as_implemented", 0.4)):
                    more = {**own, "convention": convention}
                    rows += [
                        {"metric": "gamma_rel", "statistic": "mean", "value": share, **more},
                        {"metric": "gamma_rel", "statistic": "std", "value": share / 2, **more},
                    ]
                rows.append({"metric": "eigen_residual", "value": 0.6, **own})
            true = {**at, "candidate": "true", "statistic": "mean"}
            rows.append({"metric": "gamma_size", "value": 1e-7, **true})
    frame = study(*rows, model=model)
    residuals = (frame["metric"] == "eigen_residual") & (frame["candidate"] == "values")
    null_level = {"null": "gaussian", "null_mean": 0.8, "null_low": 0.7, "null_high": 0.9}
    return pd.concat([frame[~residuals], frame[residuals].assign(**null_level)])


def on(fig, axis):
    return {trace.name: trace for trace in lines(fig) if trace.xaxis == axis}


def test_a_line_per_candidate_and_axis_in_every_panel():
    fig = eigenvector_figure(eigen_frame())
    ours = named(fig, "recovered from V")
    assert [trace.xaxis for trace in ours] == ["x", "x2", "x3"]
    assert list(ours[0].x) == [1, 2, 3, 4, 5]
    assert list(ours[0].y) == pytest.approx([3e-6 * axis for axis in range(1, 6)])
    assert len({trace.line.dash for trace in on(fig, "x2").values()}) == 3


def test_differences_of_true_eigenvectors_are_rounding_and_stand_in_the_key_alone():
    fig = eigenvector_figure(eigen_frame())
    true = named(fig, "eigenvectors")
    assert [trace.xaxis for trace in true] == ["x2", "x3"]
    assert any("(first row: below 10<sup>−17</sup>)" in word for word in key(fig))  # of 5e-18
    (size,) = named(fig, "mean |γ|")
    assert size.xaxis == "x"
    assert set(size.y) == {1e-7}


def test_the_residual_of_v_stands_over_its_null():
    (null,) = bands(eigenvector_figure(eigen_frame()), NULL_BAND)
    assert null.xaxis == "x3"
    assert (set(ends(null)[1]), set(ends(null)[2])) == ({0.7}, {0.9})


def test_one_convention_of_the_relative_difference_is_drawn():
    for convention, value in (("as_published", 0.5), ("as_implemented", 0.4)):
        line = on(eigenvector_figure(eigen_frame(), convention=convention), "x2")["perturbed eigenvectors"]
        assert set(line.y) == {value}
    with pytest.raises(InputError, match="as_implemented"):
        eigenvector_figure(eigen_frame(), convention="exact")


def test_differences_are_on_log_axes_and_residuals_from_0_to_1():
    fig = eigenvector_figure(eigen_frame())
    assert [fig.layout[axis].type for axis in ("yaxis", "yaxis2", "yaxis3")] == ["log", None, None]
    assert fig.layout.yaxis3.range[0] < 0 < 1 < fig.layout.yaxis3.range[1]
    assert {axis.title.text for axis in fig.select_xaxes() if axis.title.text} == {"Rank of the eigenvector"}


def test_the_spread_is_that_of_the_inputs_beside_the_null_of_the_mean():
    means = eigen_frame(layers=(None,)).assign(input=None)
    inputs = [
        means[means["null"].isna() | (means["rank"] < 3)].assign(input=name, value=means["value"] * factor)
        for name, factor in (("a", 0.9), ("b", 1.1))
    ]
    fig = eigenvector_figure(pd.concat([means, *inputs]))
    assert "thin: each of 2 inputs" in key(fig)
    residual = [
        trace
        for trace in fig.data
        if trace.xaxis == "x3" and trace.fill == "toself" and trace.x[0] is not None
    ]
    (null,) = residual
    spread, *_ = [trace for trace in thin(fig) if trace.xaxis == "x3"]
    assert (min(null.y), max(null.y)) == (0.7, 0.9)
    assert max(value for value in spread.y if value is not None) == pytest.approx(0.6 * 1.1)


def test_every_model_gets_a_column():
    both = pd.concat([eigen_frame(), eigen_frame("hf:google-bert/bert-base-uncased")])
    fig = eigenvector_figure(both)
    assert titles(fig) == ["digits-vit", "bert-base-uncased"]
    assert len([trace for trace in lines(fig) if trace.name == "recovered from V"]) == 6
    assert key(fig).count("recovered from V") == 1


def test_frames_without_what_is_needed_are_refused():
    with pytest.raises(InputError, match="gamma_abs"):
        eigenvector_figure(study({"metric": "LCKA", "value": 0.1}))
