"""Gain and bound by layer, shares of blocks, and the ratio through depth."""

import itertools

import pandas as pd
import pytest

from tests.figures.drawn import key, lines
from tests.figures.study import named
from workbench.core.errors import InputError
from workbench.core.intervals import mean_interval
from workbench.figures import snr_depth_figure, snr_gain_figure, snr_share_figure
from workbench.figures.variants import LOOKS

NOISES, SEVERITIES, LAYERS = ("gaussian-noise", "defocus-blur"), (1, 3, 5), 3


def frame(models=("bundled:one",), boosted=()):
    rows = []
    for model, noise, severity in itertools.product(models, NOISES, SEVERITIES):
        kinds = ("attention", "block", *(("boosted",) if model in boosted else ()))
        for layer in (None, *range(LAYERS)):
            at = {"model": model, "noise": noise, "severity": severity, "layer": layer, "input": None}
            level = (layer or 0) + severity / 10
            rows += [at | {"metric": "snr_gain", "candidate": kind, "value": level} for kind in kinds]
            rows += [
                at | {"metric": "snr_raised", "candidate": kind, "value": severity / 10} for kind in kinds
            ]
            rows += [
                at | {"metric": name, "candidate": None, "value": 0.2}
                for name in ("snr_assumed", "snr_sufficient")
            ]
            rows.append(at | {"metric": "snr_bound", "candidate": None, "value": level - 0.05})
            rows += [
                at | {"metric": "snr", "candidate": site, "value": 8 / (1 + 2 * (layer or 0) + place)}
                for place, site in enumerate(("resid_pre", "resid_mid", "resid_post"))
            ]
    held = pd.DataFrame(rows)
    return held.assign(layer=held["layer"].astype("Int64"))


def test_a_line_is_the_middle_severity_and_its_band_the_interval_over_inputs():
    held = frame()
    single = pd.concat([held.assign(input=place, value=held["value"] + place) for place in (-1, 0, 1)])
    fig = snr_gain_figure(pd.concat([held, single]))
    drawn = [trace for trace in lines(fig) if trace.name == "stream + attention"]
    assert len(drawn) == len(NOISES)
    assert list(drawn[1].y) == pytest.approx([0.3, 1.3, 2.3])
    bands = [trace for trace in fig.data if trace.fill == "toself" and trace.xaxis == "x"]
    half = mean_interval(pd.Series([-1.0, 0.0, 1.0])).high
    middle = [0.3, 1.3, 2.3]
    assert list(bands[0].y) == pytest.approx(
        [level + half for level in middle] + [level - half for level in middle[::-1]]
    )
    assert "mean over inputs, severity 3" in key(fig)
    assert [note.text for note in fig.layout.annotations] == ["Gaussian noise", "defocus blur"]
    assert not named(fig, "boosted residual")


def test_the_same_share_at_two_severities_counts_twice():
    held = frame()
    held = held[held["layer"].isna() & (held["metric"] == "snr_raised")]
    single = [
        held.assign(input=place, value=0.1 * place + 0.3 * (held["severity"] == 5)) for place in range(4)
    ]
    fig = snr_share_figure(pd.concat([held.assign(value=0.25), *single]))
    (first, *_) = named(fig, "SNR rises: whole block")
    found = mean_interval(pd.Series([0.1, 0.2, 0.3, 0.4]))
    assert first.x[0] == pytest.approx(found.value)
    ends = first.error_x.array[0], first.error_x.arrayminus[0]
    assert ends == pytest.approx([found.high - found.value] * 2)


def test_shares_are_means_over_severities_with_a_row_for_each_model():
    fig = snr_share_figure(frame(("bundled:one", "bundled:two"), boosted=("bundled:two",)))
    marks = named(fig, "SNR rises: stream + attention")
    assert len(marks) == len(NOISES)
    assert list(marks[0].x) == pytest.approx([0.3, 0.3])
    assert list(fig.layout.yaxis.ticktext) == ["one", "two"]
    (first, _) = named(fig, "SNR rises: boosted residual")
    assert len(first.x) == 1
    assert abs(first.y[0] - 1) < 0.5  # beside the lower of the two rows
    assert key(fig).count("SNR rises: stream + attention") == 1
    assert len({axis.range for axis in fig.select_xaxes()}) == 1


def test_shares_have_their_interval_over_inputs_within_0_and_1():
    one = frame().query("layer.isna() and metric == 'snr_raised'")
    shares = {"a": 0.0, "b": 0.0, "c": 0.3}
    inputs = [one.assign(input=name, value=value) for name, value in shares.items()]
    fig = snr_share_figure(pd.concat([one.assign(value=0.1), *inputs]))
    dot = named(fig, "SNR rises: stream + attention")[0]
    assert list(dot.x) == pytest.approx([0.1])
    assert dot.error_x.arrayminus[0] == pytest.approx(0.1)  # to 0, and not below
    assert dot.error_x.array[0] == pytest.approx(mean_interval(pd.Series(shares)).high - 0.1)
    assert "mean over 3 inputs, 95 % CI" in key(fig)


def test_depth_starts_at_one_and_takes_a_block_in_two_steps():
    fig = snr_depth_figure(frame())
    (line, _) = named(fig, "one")
    assert list(line.x) == [0, 0.5, 1, 1.5, 2, 2.5, 3]
    assert list(line.y) == pytest.approx([1 / (1 + step) for step in range(7)])


def test_models_of_the_records_look_as_their_attention_does_in_every_figure():
    known = {"bundled:digits-vit": "softmax", "bundled:digits-bilateral-boost": "bilateral+boost"}
    drawn = {
        trace.name: trace.line.color for trace in lines(snr_depth_figure(frame(tuple(known)))) if trace.name
    }
    assert drawn == {
        "softmax ViT": LOOKS["softmax"].colour,
        "bilateral + boost": LOOKS["bilateral+boost"].colour,
    }


def test_depth_has_its_interval_over_inputs_each_relative_to_its_own_beginning():
    many = pd.concat([frame().assign(input=name, value=lambda own, by=by: own["value"] * by) for name, by in
                      {"a": 1.0, "b": 5.0}.items()])  # fmt: skip
    one = (many["input"] == "b") & (many["metric"] == "snr") & (many["layer"] > 0)
    many.loc[one, "value"] *= 1.5
    fig = snr_depth_figure(many)
    line, _ = lines(fig)
    assert list(line.y) == pytest.approx([1, 1 / 2, *(1.25 / (1 + step) for step in range(2, 7))])
    assert {"95 % CI over inputs", "mean over 2 inputs, severity 3"} < {*key(fig)}


def test_frames_of_something_else_are_refused():
    for figure in (snr_gain_figure, snr_share_figure, snr_depth_figure):
        with pytest.raises(InputError, match="no column noise"):
            figure(frame().drop(columns="noise"))
        with pytest.raises(InputError, match="holds no values"):
            figure(frame().assign(metric="eigenvalue"))
