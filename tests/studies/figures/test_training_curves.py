"""Curves of trained variants and what they come to: medians, bands, rows and marks."""

import math

import numpy as np
import pandas as pd
import pytest

from tests.figures.drawn import bands, key, lines, rules
from tests.figures.study import titles
from workbench.core.errors import InputError, UnknownName
from workbench.figures.theme import NULL_BAND
from workbench.figures.variants import look_of
from workbench.studies.baselines import COLUMNS
from workbench.studies.figures import variant_curves_figure, versus_baseline_figure

VARIANTS = {"m-tssa": "tssa", "m-plain": "softmax", "m-two": "bilateral"}
FACTORS = (1.0, 4.0, 2.0)  # of three seeds, not in order


def record(metrics=("accuracy", "loss"), epochs=5):
    """A record whose values are (place of model + 1) · factor of seed / (epoch + 1)."""
    return pd.DataFrame(
        {
            "model": model,
            "attention": attention,
            "seed": seed,
            "epoch": epoch,
            "split": split,
            "metric": metric,
            "value": (place + 1) * factor / (epoch + 1) * (1 if split == "test" else 100),
        }
        for place, (model, attention) in enumerate(VARIANTS.items())
        for seed, factor in enumerate(FACTORS)
        for epoch in range(epochs)
        for split in ("train", "test")
        for metric in metrics
    )


def test_records_that_cannot_be_drawn_are_refused():
    with pytest.raises(UnknownName, match="perplexity"):
        variant_curves_figure(record(), "speed")
    with pytest.raises(InputError, match="no test perplexity"):
        variant_curves_figure(record(), "perplexity")
    frame = record()
    twice = pd.concat([frame.assign(model=frame["model"].replace("m-plain", "m-other")), frame])
    with pytest.raises(InputError, match="m-other, m-plain"):
        variant_curves_figure(twice)


def test_behind_a_variant_a_line_is_the_median_over_seeds_and_the_band_runs_from_least_to_largest():
    fig = variant_curves_figure(record(), "accuracy")
    softmax = next(trace for trace in lines(fig) if trace.name == "softmax")
    epochs = np.arange(5)
    assert list(softmax.x) == list(epochs)
    np.testing.assert_allclose(softmax.y, 100 * 2 * 2 / (epochs + 1))  # per cent
    band = next(
        trace for trace in fig.data if trace.fill == "toself" and trace.name == "softmax" and trace.x[0] == 0
    )
    np.testing.assert_allclose(band.y[1:5], 100 * 2 * 4 / (epochs[1:] + 1))  # the first is cut
    np.testing.assert_allclose(band.y[5:], (100 * 2 * 1 / (epochs + 1))[::-1])


def test_every_variant_has_a_panel_with_the_baseline_behind_it():
    fig = variant_curves_figure(record())
    assert titles(fig) == ["bilateral", "token statistics"]
    drawn = [(trace.xaxis, trace.name, trace.line.color) for trace in lines(fig)]
    names = {name: look_of(name) for name in ("softmax", "bilateral", "tssa")}
    assert drawn == [
        (axis, names[name].label, names[name].colour)
        for axis, other in (("x", "bilateral"), ("x2", "tssa"))
        for name in ("softmax", other)
    ]
    np.testing.assert_allclose(lines(fig)[1].y, 3 * 2 / (np.arange(5) + 1))
    assert key(fig) == ["median over 3 seeds", "range over 3 seeds"]  # titles name the lines
    alone = variant_curves_figure(record()[lambda frame: frame["attention"] == "softmax"])
    assert [trace.name for trace in lines(alone)] == ["softmax"]


def test_behind_a_variant_is_the_baseline_of_its_claim_where_that_is_not_softmax():
    fig = variant_curves_figure(record(), baselines={"m-tssa": "m-two", "m-absent": "m-plain"})
    drawn = {(trace.xaxis, trace.name): trace.y for trace in lines(fig)}
    assert [*drawn] == [
        ("x", "softmax"), ("x", "bilateral"), ("x2", "bilateral"), ("x2", "token statistics")
    ]  # fmt: skip
    np.testing.assert_allclose(drawn["x2", "bilateral"], drawn["x", "bilateral"])


def test_below_a_name_stands_its_difference_in_loss_with_the_interval():
    ends = pd.DataFrame(
        {"attention": ["bilateral", "tssa"], "quantity": ["mean_loss", "loss"], "difference": [-0.0123, 1],
         "difference_low": [-0.02, 0], "difference_high": [0.006, 2]}
    )  # fmt: skip
    assert titles(variant_curves_figure(record(), ends=ends)) == [
        "bilateral<br>−0.01 nats [−0.02, 0.01]", "token statistics"
    ]  # fmt: skip


def test_the_axis_says_what_is_drawn_of_which_split():
    frame = record(("loss", "accuracy", "projection_error"))
    found = {metric: variant_curves_figure(frame, metric).layout.yaxis for metric in frame["metric"].unique()}
    words = {metric: axis.title.text for metric, axis in found.items()}
    assert words == {
        "loss": "Test loss (nats)", "accuracy": "Test accuracy (%)", "projection_error": "J, mean over layers",
    }  # fmt: skip
    assert (found["loss"].type, found["accuracy"].type) == ("log", None)
    narrow = frame.assign(value=frame["value"] + 9)
    assert variant_curves_figure(narrow).layout.yaxis.type is None  # less than a decade
    train = variant_curves_figure(frame, "accuracy", split="train")
    assert max(lines(train)[0].y) == 100 * 100 * 2 * 2
    assert list(lines(variant_curves_figure(frame, first=2))[0].x) == [2, 3, 4]


def test_one_seed_far_away_is_told_by_an_arrow_and_does_not_press_the_medians_together():
    frame = record(("projection_error",), epochs=8)
    frame.loc[(frame["attention"] == "tssa") & (frame["epoch"] == 2) & (frame["seed"] == 1), "value"] = 1.2e6
    fig = variant_curves_figure(frame, "projection_error")
    told = [trace.text for trace in fig.data if trace.xaxis == "x2" and trace.text]
    assert told == [("band to 1.2·10<sup>6</sup>",)]
    near = variant_curves_figure(record(("projection_error",), epochs=8), "projection_error")
    assert fig.layout.yaxis.range[1] < near.layout.yaxis.range[1] + 1
    assert fig.layout.height == near.layout.height


def test_records_without_the_metric_are_refused():
    with pytest.raises(UnknownName, match="perplexity"):
        variant_curves_figure(record(), "speed")
    with pytest.raises(InputError, match="no test perplexity"):
        variant_curves_figure(record(), "perplexity")
    frame = record()
    twice = pd.concat([frame.assign(model=frame["model"].replace("m-plain", "m-other")), frame])
    with pytest.raises(InputError, match="m-other, m-plain"):
        variant_curves_figure(twice)


def results(**more):
    """Rows of two quantities: of accuracy at .9, .8, .7, and of a ratio with null distribution and floor."""
    findings = {"softmax": "", "bilateral": "lower", "tssa": "not significant"}
    rows = [
        {
            "model": f"m-{name}",
            "attention": name,
            "quantity": quantity,
            "value": value,
            "low": value - 0.1,
            "high": value + 0.05,
            "finding": finding,
            **(bounds if quantity == "exact_share" else {}),
        }
        for quantity, scale in (("accuracy", 1.0), ("exact_share", 2.0))
        for (name, finding), value in zip(
            findings.items(), (0.9 * scale, 0.8 * scale, 0.7 * scale), strict=True
        )
        for bounds in [{"null_low": 0.5, "null_high": 0.6, "floor": 0.3}]
    ]
    return pd.DataFrame(rows).reindex(columns=[*COLUMNS, "null_low", "null_high", "floor"]).assign(**more)


PANELS = {"accuracy": "Accuracy (%)", "exact_share": "Exact"}


def dots(fig, panel):
    return {
        trace.name: trace
        for trace in fig.data
        if trace.error_x.array is not None and trace.xaxis == ("x" if panel == 1 else f"x{panel}")
    }


def test_a_dot_is_the_value_with_its_range_in_per_cent_for_accuracies():
    fig = versus_baseline_figure(results(), PANELS)
    dot = dots(fig, 1)["bilateral"]
    assert dot.x[0] == pytest.approx(80)
    assert (dot.error_x.arrayminus[0], dot.error_x.array[0]) == (pytest.approx(10), pytest.approx(5))
    assert dots(fig, 2)["bilateral"].x[0] == pytest.approx(1.6)
    assert [axis.title.text for axis in fig.select_xaxes()] == [*PANELS.values()]


def test_rows_run_from_the_top_in_the_order_of_figures():
    fig = versus_baseline_figure(results().iloc[::-1], PANELS)
    assert list(fig.layout.yaxis.ticktext) == ["softmax", "bilateral", "token statistics"]
    assert {name: trace.y[0] for name, trace in dots(fig, 1).items()} == {
        "softmax": 0,
        "bilateral": 1,
        "token statistics": 2,
    }


def test_only_what_is_significant_is_filled():
    fig = versus_baseline_figure(results(), PANELS)
    colours = {name: trace.marker.color[0] for name, trace in dots(fig, 1).items()}
    assert "not significant beside softmax" in key(fig)
    assert colours["token statistics"] == "white"
    assert colours["bilateral"] == look_of("bilateral").colour
    assert colours["softmax"] == look_of("softmax").colour


def test_the_dotted_line_is_the_baseline_s_or_where_it_is_asked_for():
    assert rules(versus_baseline_figure(results(), PANELS)) == pytest.approx([90, 1.8])
    fig = versus_baseline_figure(results(), PANELS, lines={"exact_share": 1})
    assert rules(fig) == pytest.approx([90, 1])


def test_another_baseline_is_a_stroke_in_the_row_of_its_mechanism():
    rows = results()
    rows["baseline"] = rows["attention"].map({"bilateral": "m-softmax", "tssa": "m-bilateral"})
    fig = versus_baseline_figure(rows, PANELS)
    name = "bilateral, baseline of token statistics"
    assert "not significant beside its baseline" in key(fig)
    assert name in key(fig)
    strokes = [trace for trace in fig.data if (trace.hovertemplate or "").startswith(name)]
    assert [(trace.x[0], trace.y[0]) for trace in strokes] == [
        (pytest.approx(80), 2),
        (pytest.approx(1.6), 2),
    ]


def test_chance_is_a_bar_and_the_floor_a_stroke_where_there_are_any():
    fig = versus_baseline_figure(results(), PANELS)
    bars = bands(fig, NULL_BAND)
    assert len(bars) == 3
    assert {trace.xaxis for trace in bars} == {"x2"}
    assert set(bars[0].x) == {0.5, 0.6}
    (strokes,) = (
        trace for trace in fig.data if trace.marker.symbol == "line-ns-open" and trace.x[0] is not None
    )
    assert list(strokes.x) == [0.3] * 3
    assert not [
        trace
        for trace in versus_baseline_figure(
            results().drop(columns=["floor", "null_low", "null_high"]), PANELS
        ).data
        if trace.fill
    ]


def test_a_value_that_was_not_reached_is_said_in_its_place():
    frame = results()
    frame.loc[frame["attention"] == "tssa", ["value", "low", "high", "finding"]] = [math.nan] * 3 + [
        "not reached"
    ]
    fig = versus_baseline_figure(frame, {"accuracy": "Accuracy (%)"})
    assert "token statistics" not in dots(fig, 1)
    (note,) = [note for note in fig.layout.annotations if note.text == "not reached"]
    assert note.y == 2


def test_one_seed_has_no_range():
    fig = versus_baseline_figure(results(low=math.nan, high=math.nan), PANELS)
    assert {trace.error_x.array[0] for trace in dots(fig, 1).values()} == {0}


def test_log_axes_are_the_ones_named():
    fig = versus_baseline_figure(results(), PANELS, log=["exact_share"])
    assert (fig.layout.xaxis.type, fig.layout.xaxis2.type) == (None, "log")


def test_results_that_cannot_be_drawn_are_refused():
    with pytest.raises(InputError, match="no speed; its quantities: accuracy, exact_share"):
        versus_baseline_figure(results(), {"speed": "Speed"})
    with pytest.raises(InputError, match="no rows"):
        versus_baseline_figure(results().iloc[:0], PANELS)
