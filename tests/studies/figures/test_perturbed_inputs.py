"""Accuracies of trained variants under attack: every seed is drawn, and one seed has no interval."""

import numpy as np
import pandas as pd
import pytest

from tests.figures.drawn import key, rules
from tests.figures.study import named
from workbench.core.errors import InputError, UnknownName
from workbench.figures.variants import look_of
from workbench.studies.figures import (
    corruptions_figure,
    ood_figure,
    robustness_differences_figure,
    robustness_models_figure,
)
from workbench.studies.figures.perturbed_inputs import FAMILIES, attack_words

KINDS = {"softmax": "digits-vit", "rpc-sym": "digits-rpc-sym", "tssa": "digits-tssa"}


def seeds(attention, protocol, values, epsilon=np.nan, metric="accuracy_top1", exploratory=None, **more):
    """The mean over confirmatory seeds 7, 8, … (with ends 0.1 away, of several), these seeds, and seed 0."""
    about = {"model": f"bundled:{KINDS[attention]}", "attention": attention, "protocol": protocol, "kind": None,
             "epsilon": epsilon, "severity": pd.NA, "metric": metric, "n": 20} | more  # fmt: skip
    several = len(values) > 1
    kind = "confirmatory" if several else "exploratory"
    mean = {"value": np.mean(values), "low": np.nan, "high": np.nan, "seeds": len(values), "seed_kind": kind}
    mean |= {"low": mean["value"] - 0.1, "high": mean["value"] + 0.1} if several else {}
    rows = [about | mean | {"training_seed": pd.NA}]
    single = [(seed, value, kind) for seed, value in enumerate(values, start=7 if several else 0)]
    single += [] if exploratory is None else [(0, exploratory, "exploratory")]
    for seed, value, kind in single:
        rows.append(about | {"value": value, "seeds": 1, "seed_kind": kind, "training_seed": seed})
    return pd.DataFrame(rows)


FRAME = pd.concat(
    [
        seeds("softmax", "clean", [0.9, 0.92]),
        seeds("rpc-sym", "clean", [0.95, 0.93]),
        seeds("tssa", "clean", [0.8, 0.84]),
        seeds("softmax", "pgd", [0.6, 0.8], 0.02, exploratory=0.5),
        seeds("rpc-sym", "pgd", [0.5, 0.7], 0.02, exploratory=0.9),
        seeds("tssa", "pgd", [0.4], 0.02),
        seeds("rpc-sym", "corruptions", [0.5, 0.7]),
    ]
)


def marks(fig, symbol):
    return [
        trace
        for trace in fig.data
        if trace.marker.symbol == symbol and not trace.showlegend and trace.x[0] is not None
    ]


def test_every_model_has_a_row_with_its_mean_its_seeds_and_an_interval_of_several_alone():
    fig = robustness_models_figure(FRAME)
    assert list(fig.layout.yaxis.ticktext) == ["softmax", "symmetric RPC", "token statistics"]
    titles = [axis.title.text for axis in fig.select_xaxes()]
    assert titles == ["Clean (enlarged)", "PGD,<br>ε = 0.02", "Corruptions,<br>mean of kinds"]
    (rpc,) = [trace for trace in named(fig, "symmetric RPC") if trace.xaxis == "x2" and trace.error_x.array]
    assert list(rpc.x) == pytest.approx([0.6])
    assert list(rpc.error_x.array) == pytest.approx([0.1])
    (tssa,) = [trace for trace in named(fig, "token statistics") if trace.xaxis == "x2"]
    assert list(tssa.error_x.array) == [0]
    assert tssa.marker.opacity[0] < 1
    assert "1 seed, no interval" in key(fig)
    assert "mean over 2 seeds, 95 % CI" in key(fig)


def test_seeds_in_the_mean_are_ticks_and_the_exploratory_one_is_a_cross():
    fig = robustness_models_figure(FRAME)
    ticks = {(trace.xaxis, x) for trace in marks(fig, "line-ns-open") for x in trace.x}
    assert {("x2", 0.5), ("x2", 0.7), ("x2", 0.6), ("x2", 0.8)} <= ticks
    assert ("x2", 0.4) not in ticks  # a single seed is its own marker
    assert {x for trace in marks(fig, "x-thin-open") for x in trace.x} == {0.5, 0.9}
    assert {"single seed", "exploratory seed, not in the mean"} <= set(key(fig))
    only_seen = FRAME.assign(seed_kind="exploratory")  # then they are what the mean is of
    assert not marks(robustness_models_figure(only_seen), "x-thin-open")


def differences():
    pgd = seeds("rpc-sym", "pgd", [-0.2, 0.1], 0.02, exploratory=0.14)
    noise = seeds("tssa", "noise", [-0.3], 0.3)
    return pd.concat([noise, pgd]).assign(baseline="bundled:digits-vit", compared="difference")


def test_differences_have_the_interval_in_points_and_single_seeds_a_heading_of_their_own():
    means = pd.concat([FRAME, seeds("softmax", "noise", [0.7, 0.6], 0.3), seeds("tssa", "noise", [0.4], 0.3)])
    fig = robustness_differences_figure(means, differences())
    rows = ["<b>2 seeds a side</b>", "PGD, ε = 0.02", "<b>1 seed a side</b>", "Noise, ε = 0.3"]
    assert list(fig.layout.yaxis.ticktext) == rows
    assert fig.layout.xaxis2.title.text == "Difference from softmax<br>(pp, → better)"
    (rpc,) = [trace for trace in named(fig, "symmetric RPC") if trace.xaxis == "x2" and trace.error_x.array]
    assert list(rpc.x) == pytest.approx([-5])
    assert list(rpc.error_x.array) == pytest.approx([10])
    (tssa,) = [trace for trace in named(fig, "token statistics") if trace.xaxis == "x2"]
    assert list(tssa.x) == pytest.approx([-30])
    assert list(tssa.error_x.array) == [0]
    crosses = [x for trace in marks(fig, "x-thin-open") for x in trace.x if trace.xaxis == "x2"]
    assert crosses == pytest.approx([14])


def test_attacks_that_ask_whether_gradients_are_masked_are_rows_under_their_names():
    means = pd.concat([seeds(each, "pgd-random", [0.5, 0.6], 0.02) for each in ("softmax", "rpc-sym")])
    more = pd.concat([seeds(each, "transfer", [0.7, 0.8], 0.02) for each in ("softmax", "rpc-sym")])
    less = [seeds("rpc-sym", name, [0.1, 0.2], 0.02) for name in ("transfer", "pgd-random")]
    less = pd.concat(less).assign(baseline="bundled:digits-vit", compared="difference")
    fig = robustness_differences_figure(pd.concat([means, more]), less)
    rows = ["<b>2 seeds a side</b>", "PGD, random starts, ε = 0.02", "PGD on another model, ε = 0.02"]
    assert list(fig.layout.yaxis.ticktext) == rows


def test_a_frame_without_accuracies_or_with_an_unknown_variant_is_refused():
    with pytest.raises(UnknownName, match="look"):
        robustness_models_figure(FRAME.assign(attention="mystery"))
    with pytest.raises(InputError, match="accuracy_top1"):
        robustness_models_figure(FRAME.assign(metric="aupr"))


def test_the_words_for_a_caption_are_of_the_attacks_that_are_drawn():
    assert "Carlini–Wagner seeks" in attack_words(FRAME.assign(protocol="cw"))
    words = attack_words(FRAME)
    assert words.startswith("FGSM and PGD change each pixel")
    assert "AutoAttack" not in words
    assert attack_words(FRAME.assign(protocol="corruptions")) == ""


def ratios():
    kinds = {"fog": [0.5, 0.7], "pixelate": [2.0, 1.8], None: [1.0, 1.2]}
    parts = [
        seeds("rpc-sym", "corruptions", values, metric="corruption_error", kind=kind)
        for kind, values in kinds.items()
    ]
    return pd.concat([*parts, seeds("tssa", "corruptions", [0.9], metric="corruption_error", kind="fog")])


def test_errors_relative_to_the_baseline_have_a_line_per_kind_and_the_mean_last():
    printed = pd.DataFrame(
        {"model": "digits-rpc-sym", "condition": ["fog", "snow", None], "ratio": [0.9, 0.8, 0.95]}
    )
    fig = corruptions_figure(ratios(), {"Ours": ["rpc-sym"], "Nobody's": ["primal"]}, printed)
    rows = ["<b>Kind of corruption</b>", "fog", "pixelate", "<b>All 2 kinds</b>", "mean over kinds"]
    assert list(fig.layout.yaxis.ticktext) == rows
    assert [axis.title.text for axis in fig.select_xaxes()] == ["Ours<br>(2 seeds a side, ← better)"]
    (dots,) = [trace for trace in fig.data if trace.error_x.array is not None and not trace.showlegend
               and trace.marker.color == look_of("rpc-sym").colour]  # fmt: skip
    assert list(dots.x) == pytest.approx([0.6, 1.9, 1.1])
    assert list(dots.error_x.array) == pytest.approx([0.1, 0.1, 0.1])
    diamonds = [
        trace for trace in fig.data if trace.marker.symbol == "diamond-open" and trace.x[0] is not None
    ]
    assert {round(trace.y[0]): trace.x[0] for trace in diamonds} == {1: 0.9, 4: 0.95}


def test_the_panels_of_corruptions_are_families_with_one_baseline_each_and_say_how_many_seeds():
    fig = corruptions_figure(ratios())
    titles = [axis.title.text for axis in fig.select_xaxes()]
    assert titles == [
        "RPC over symmetric softmax<br>(2 seeds a side, ← better)",
        "Others over softmax<br>(1 seed a side, ← better)",
    ]
    listed = [name for names in FAMILIES.values() for name in names]
    assert len(set(listed)) == len(listed)


def test_without_ratios_of_the_variants_there_is_no_figure_of_corruptions():
    with pytest.raises(InputError, match="seed_differences"):
        corruptions_figure(ratios(), {"Nobody's": ["primal"]})


def test_ood_images_have_a_panel_per_kind_and_the_chance_level():
    rows = [
        seeds(attention, "ood", values, metric="aupr", kind=kind)
        for attention, values in {"softmax": [0.8], "rpc-sym": [0.6, 0.7]}.items()
        for kind in ("inverted", "noise")
    ]
    fig = ood_figure(pd.concat(rows))
    assert list(fig.layout.yaxis.ticktext) == ["softmax", "symmetric RPC"]
    titles = [axis.title.text for axis in fig.select_xaxes()]
    assert titles == ["AUPR of inverted digits<br>(→ better)", "AUPR of uniform noise<br>(→ better)"]
    assert {*rules(fig)} == {0.5}
    (rpc,) = [trace for trace in named(fig, "symmetric RPC") if trace.xaxis == "x2" and trace.error_x.array]
    assert list(rpc.error_x.array) == pytest.approx([0.1])
