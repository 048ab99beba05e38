"""Accuracies of trained variants under attack: what stands where, and what is left out."""

import numpy as np
import pandas as pd
import pytest

from tests.figures.drawn import key, lines
from tests.figures.study import named, titles
from workbench.core.errors import InputError, UnknownName
from workbench.core.intervals import mean_interval
from workbench.figures import corruptions_figure, ood_figure, robustness_figure, robustness_models_figure
from workbench.figures.robustness import FAMILIES, attack_words, images_of
from workbench.figures.variants import look_of

MODELS = {"digits-vit": "softmax", "digits-rpc-sym": "rpc-sym", "digits-primal": "primal"}


def row(model, protocol, value, low=np.nan, high=np.nan, metric="accuracy_top1", **more):
    held = {"kind": None, "epsilon": np.nan, "severity": np.nan, "n": 7}
    named_by = {
        "model": f"bundled:{model}",
        "attention": MODELS[model],
        "protocol": protocol,
        "metric": metric,
    }
    return held | named_by | {"value": value, "low": low, "high": high} | more


def attacked(model, protocol, values, kind="Linf"):
    return [
        row(model, protocol, value, value - 0.05, value + 0.03, kind=kind, epsilon=0.02 * number)
        for number, value in enumerate(values)
    ]


@pytest.fixture
def frame():
    return pd.DataFrame(
        [
            *attacked("digits-rpc-sym", "noise", [0.9, 0.8, 0.7]),
            *attacked("digits-vit", "fgsm", [0.95, 0.5]),
            *attacked("digits-rpc-sym", "fgsm", [0.85, 0.6]),
            *attacked("digits-vit", "cw", [0.95, 0.1], kind="L2"),
        ]
    )


def training(**seeds):
    return pd.DataFrame(
        [
            {"attention": MODELS[model], "model": model, "seed": seed, "epoch": epoch, "split": split,
             "metric": "accuracy", "value": value - 0.3 * (3 - epoch) - 0.001 * (split == "train")}
            for model, values in seeds.items()
            for seed, value in enumerate(values)
            for epoch in (1, 3)
            for split in ("train", "test")
        ]
    )  # fmt: skip


def curves(fig):
    """The lines, without the bars of their intervals."""
    return [trace for trace in lines(fig) if None not in trace.x]


def test_every_attack_on_record_has_a_panel_in_a_fixed_order_and_no_other_has(frame):
    fig = robustness_figure(frame)
    assert titles(fig) == ["FGSM", "Carlini–Wagner", "Noise"]
    assert [axis.title.text for axis in fig.select_xaxes()] == [
        "Budget ε (L∞)",
        "Budget ε (L2)",
        "Budget ε (L∞)",
    ]


def test_a_line_is_the_accuracy_by_budget_with_its_intervals(frame):
    fig = robustness_figure(frame)
    line = next(trace for trace in curves(fig) if trace.name == "symmetric RPC")
    assert list(line.x) == pytest.approx([0, 0.02], abs=5e-4)  # beside the marker of the other
    assert list(line.y) == [0.85, 0.6]
    bars = next(trace for trace in fig.data if trace.name == "symmetric RPC" and None in trace.y)
    assert [y for y in bars.y if y is not None] == pytest.approx([0.8, 0.88, 0.55, 0.63])
    assert bars.xaxis == line.xaxis == "x"
    assert [x for x in bars.x if x is not None] == pytest.approx([at for at in line.x for _ in range(2)])


def test_differences_from_a_baseline_are_in_points_with_newcombes_interval(frame):
    fig = robustness_figure(frame, baseline="softmax")
    (line,) = [trace for trace in curves(fig) if trace.name == "symmetric RPC"]
    held = frame[(frame["protocol"] == "fgsm") & (frame["metric"] == "accuracy_top1")].set_index("epsilon")
    ours, softmax = (held[held["attention"] == name].sort_index() for name in ("rpc-sym", "softmax"))
    assert list(line.y) == pytest.approx(list(100 * (ours["value"] - softmax["value"])))
    assert not [trace for trace in curves(fig) if trace.name == "softmax"]


def test_a_model_that_did_not_undergo_an_attack_has_no_line_there_and_one_entry_in_the_legend(frame):
    fig = robustness_figure(frame)
    assert [line.xaxis for line in curves(fig) if line.name == "softmax"] == ["x", "x2"]
    assert [line.xaxis for line in curves(fig) if line.name == "symmetric RPC"] == ["x", "x3"]
    assert [name for name in key(fig) if name in ("softmax", "symmetric RPC")] == ["softmax", "symmetric RPC"]


def test_corruptions_are_drawn_by_severity_averaged_over_types_from_clean_images_on():
    rows = [row("digits-vit", "clean", 0.96)] + [
        row("digits-vit", "corruptions", value, kind=kind, severity=severity)
        for kind, values in {"fog": (0.9, 0.6), "pixelate": (0.7, 0.5)}.items()
        for severity, value in enumerate(values, start=1)
    ]
    (line,) = curves(robustness_figure(pd.DataFrame(rows)))
    assert list(line.x) == [0, 1, 2]
    assert list(line.y) == pytest.approx([0.96, 0.8, 0.55])


def test_the_chance_level_is_drawn_in_every_panel(frame):
    fig = robustness_figure(frame, chance=0.1)
    rules = [trace for trace in fig.data if trace.mode == "lines" and list(trace.y) == [0.1, 0.1]]
    assert len(rules) == 3
    assert key(fig).count("chance") == 1


def test_a_frame_without_attacks_or_with_an_unknown_variant_is_refused(frame):
    with pytest.raises(InputError, match="no attack"):
        robustness_figure(pd.DataFrame([row("digits-vit", "clean", 0.9)]))
    with pytest.raises(UnknownName, match="look"):
        robustness_figure(frame.assign(attention="mystery"))


def test_the_words_for_a_caption_are_of_the_attacks_and_intervals_that_are_drawn(frame):
    words = attack_words(frame)
    assert "Carlini–Wagner seeks" in words
    assert "AutoAttack" not in words
    assert "Corruptions" not in words
    assert "Intervals: Wilson's over images" in words
    corrupted = [row("digits-vit", "corruptions", 0.9, kind=kind, severity=1) for kind in ("fog", "snow")]
    words = attack_words(pd.DataFrame([row("digits-vit", "autoattack", 0.9), *corrupted]), "softmax")
    assert "AutoAttack combines attacks" in words
    assert "mean over 2 types" in words
    assert "Carlini" not in words
    assert "Intervals" not in words


def test_every_trained_model_has_a_row_and_seeds_of_its_last_epoch(frame):
    trained = training(**{"digits-rpc-sym": (0.91, 0.93, 0.92), "digits-vit": (0.99,)})
    fig = robustness_models_figure(frame, trained, {"fgsm": 0.02, "noise": 0.04})
    assert list(fig.layout.yaxis.ticktext) == ["softmax", "symmetric RPC"]
    assert list(fig.layout.yaxis.tickvals) == [0, 1]
    (seeds,) = [trace for trace in named(fig, "symmetric RPC") if trace.xaxis == "x"]
    assert list(seeds.x) == pytest.approx([0.92])
    assert seeds.error_x.array[0] == pytest.approx(mean_interval(pd.Series([0.91, 0.92, 0.93])).high - 0.92)
    assert set(seeds.y) == {1}
    (dot,) = [trace for trace in named(fig, "softmax") if trace.xaxis == "x2"]
    assert (list(dot.x), list(dot.y)) == ([0.5], [0])
    assert (dot.error_x.array[0], dot.error_x.arrayminus[0]) == pytest.approx((0.03, 0.05))


def test_what_is_not_on_record_has_no_panel(frame):
    trained = training(**{"digits-vit": (0.99, 0.98)})

    def panels(frame, budgets):
        fig = robustness_models_figure(frame, trained, budgets)
        return [axis.title.text for axis in fig.select_xaxes()]

    assert panels(frame, {"fgsm": 0.02, "pgd": 0.02}) == [
        "Clean, mean of<br>2 seeds (enlarged)",
        "FGSM,<br>ε = 0.02",
    ]
    assert panels(frame[:0], {"fgsm": 0.02}) == ["Clean, mean of<br>2 seeds (enlarged)"]


def test_accuracy_under_corruptions_is_one_less_the_mean_error_with_its_interval_over_types(frame):
    wrong = {"fog": 0.3, "snow": 0.5, "pixelate": 0.4}
    errors = [
        row("digits-vit", "corruptions", value, metric="corruption_error", kind=kind)
        for kind, value in wrong.items()
    ]
    both = pd.concat([frame, pd.DataFrame(errors)])
    fig = robustness_models_figure(both, training(**{"digits-vit": (0.99,)}), {})
    (dot,) = [trace for trace in named(fig, "softmax") if trace.xaxis == "x2"]
    assert list(dot.x) == pytest.approx([0.6])
    assert dot.error_x.array[0] == pytest.approx(mean_interval(pd.Series([0.3, 0.5, 0.4])).high - 0.4)


def test_without_a_test_accuracy_there_is_nothing_to_list(frame):
    with pytest.raises(InputError, match="test accuracy"):
        robustness_models_figure(frame, training(**{"digits-vit": (0.9,)}).query("split == 'train'"), {})


def ratios():
    values = {"fog": (0.5, 0.25, 1.25), "pixelate": (2.0, 1.5, 3.0), None: (1.0, 0.5, 2.0)}
    return pd.DataFrame(
        [
            row(
                "digits-rpc-sym",
                "corruptions",
                0.1,
                low,
                high,
                metric="corruption_error",
                kind=kind,
                ratio=ratio,
            )
            for kind, (ratio, low, high) in values.items()
        ]
    )


def test_errors_relative_to_the_baseline_have_a_line_per_type_and_the_mean_last():
    printed = pd.DataFrame(
        {"model": "digits-rpc-sym", "condition": ["fog", "snow", None], "ratio": [0.9, 0.8, 0.95]}
    )
    fig = corruptions_figure(ratios(), {"Ours": ["rpc-sym"], "Nobody's": ["tssa"]}, printed)
    rows = ["<b>Type of corruption</b>", "fog", "pixelate", "<b>All 2 types</b>", "geometric mean"]
    assert list(fig.layout.yaxis.ticktext) == rows
    assert [axis.title.text for axis in fig.select_xaxes()] == ["Ours<br>(← better)"]
    (dots,) = [trace for trace in fig.data if trace.error_x.array is not None]
    assert dots.marker.color == look_of("rpc-sym").colour
    assert list(dots.x) == [0.5, 2.0, 1.0]
    assert [round(y) for y in dots.y] == [1, 2, 4]
    assert list(dots.error_x.array) == pytest.approx([0.75, 1.0, 1.0])
    diamonds = [
        trace for trace in fig.data if trace.marker.symbol == "diamond-open" and trace.x[0] is not None
    ]
    assert {round(trace.y[0]): trace.x[0] for trace in diamonds} == {1: 0.9, 4: 0.95}


def test_the_panels_of_corruptions_are_families_with_one_baseline_each_unless_others_are_asked_for():
    fig = corruptions_figure(ratios())
    assert [axis.title.text for axis in fig.select_xaxes()] == ["RPC over symmetric softmax<br>(← better)"]
    listed = [name for names in FAMILIES.values() for name in names]
    assert len(set(listed)) == len(listed)


def test_without_ratios_of_the_variants_there_is_no_figure_of_corruptions():
    with pytest.raises(InputError, match="ratios_to_baseline"):
        corruptions_figure(ratios(), {"Nobody's": ["tssa"]})


def test_ood_images_have_a_mark_per_kind_and_the_chance_level():
    kinds = {"inverted": 0.8, "photographs": 0.9, "noise": 0.4}
    rows = [
        row(model, "ood", value + 0.01 * number, metric="aupr", kind=kind)
        for number, model in enumerate(("digits-rpc-sym", "digits-vit"))
        for kind, value in kinds.items()
    ]
    fig = ood_figure(pd.DataFrame(rows))
    assert list(fig.layout.yaxis.ticktext) == ["softmax", "symmetric RPC"]
    (noise,) = named(fig, "uniform noise")
    assert {round(y): x for x, y in zip(noise.x, noise.y, strict=True)} == pytest.approx({0: 0.41, 1: 0.4})
    (line,) = fig.layout.shapes
    assert (line.x0, line.x1) == (0.5, 0.5)
    # logit(0.4) ± 1.96 / √(7 · 0.4 · 0.6)
    last = list(noise.x).index(0.4)
    assert noise.x[last] - noise.error_x.arrayminus[last] == pytest.approx(0.12809, abs=1e-4)
    assert noise.x[last] + noise.error_x.array[last] == pytest.approx(0.75156, abs=1e-4)
    assert fig.layout.xaxis.range[0] < 0.13


def test_the_key_says_over_how_many_images_and_which_attacks_had_fewer(frame):
    assert images_of(frame.assign(n=50)) == "50 images"
    fewer = frame.assign(n=frame["protocol"].map({"fgsm": 50, "noise": 7, "cw": 9}))
    assert images_of(fewer) == "50 images (Carlini–Wagner: 9; Noise: 7)"
    assert "95 % CI over 7 images" in key(robustness_figure(frame))
    assert images_of(frame.drop(columns="n")) == "images"
