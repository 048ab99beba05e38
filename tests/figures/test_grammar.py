"""The grammar of figures: what is drawn is what the frame says, and its words say what was drawn."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

import workbench as wb
from tests.figures.drawn import bands, ends, key, lines
from workbench.core.errors import InputError, UnknownName
from workbench.core.intervals import mean_interval
from workbench.figures import Band, Dots, Interval, Line, Maps, Null, Plot, Published, Rule
from workbench.figures.composition import Axis, Panel, _log_ticks, compose, ticks, with_room
from workbench.figures.export.checks import page_flaws
from workbench.figures.export.saving import measure_figure
from workbench.figures.text_widths import legend_row
from workbench.figures.theme import GREY, NULL_BAND, NULL_EDGE, PUBLISHED, WIDTHS, apply_theme, translucent
from workbench.figures.variants import LOOKS
from workbench.frames.results import conform

MODELS = ("bundled:digits-vit", "timm/vit_small_patch16_224.augreg_in21k_ft_in1k", "hf:facebook/dino-vits16")


def frame(
    models=MODELS[:1],
    layers=4,
    inputs=5,
    heads=3,
    null="permutation",
    metric="attention_diversity",
    scale=1.0,
):
    """A value for every model, input, layer and head, with a null of each."""
    rng = np.random.default_rng(0)
    rows = [
        {
            "model": model,
            "input": f"input/{i}",
            "layer": layer,
            "head": head,
            "metric": metric,
            "value": value,
        }
        for model in models
        for i in range(inputs)
        for layer in range(layers)
        for head, value in enumerate(scale * rng.uniform(0.3, 0.6, heads))
    ]
    held = pd.DataFrame(rows)
    if null:
        mean = rng.uniform(0.1, 0.2, len(held)) * scale
        held = held.assign(null=null, null_mean=mean, null_low=mean * 0.9, null_high=mean * 1.2)
    return conform(held)


def means(layers=4, inputs=5, kinds=("gaussian", "permutation")):
    """Rows of means, as an analysis gives them without per_head: per layer, per input, over everything."""
    rng = np.random.default_rng(1)
    places = [{"layer": n} for n in range(layers)] + [{"input": f"input/{n}"} for n in range(inputs)] + [{}]
    rows = [{"value": rng.uniform(0.2, 0.4), **place} for place in places[:-1]]
    rows.append({"value": np.mean([row["value"] for row in rows if "input" in row]) + 0.001, **places[-1]})
    rows = [
        {**row, "model": MODELS[0], "metric": "KCKA", "null": kind, "null_mean": low + 0.01, "null_low": low,
         "null_high": low + 0.03}
        for row in rows for kind, low in zip(kinds, rng.uniform(0, 0.2, 2), strict=False)
    ]  # fmt: skip
    return conform(pd.DataFrame(rows))


def test_the_line_is_the_mean_of_all_values_at_each_layer():
    held = frame()
    (line,) = lines(Plot(held).metric("attention_diversity").add(Line()).figure())
    expected = held.groupby("layer")["value"].mean()
    assert list(line.x) == list(expected.index)
    np.testing.assert_allclose(line.y, expected)


def test_the_band_is_the_confidence_interval_over_the_means_of_inputs():
    held = frame()
    fig = Plot(held).metric("attention_diversity").add(Band(ci=95, over="input")).figure()
    (band,) = bands(fig, translucent("#004488", 0.2))
    places, low, high = ends(band)
    for place, least, most in zip(places, low, high, strict=True):
        found = mean_interval(held[held["layer"] == place].groupby("input")["value"].mean())
        assert (least, most) == pytest.approx((found.low, found.high))
        assert found.n == 5


def test_the_interquartile_band_is_of_all_values_or_of_a_units_means():
    held = frame(inputs=12)
    colour = translucent("#004488", 0.2)
    for over in (None, "input"):
        fig = Plot(held).metric("attention_diversity").add(Band(quantiles=(25, 75), over=over)).figure()
        _, low, high = ends(bands(fig, colour)[0])
        first = held[held["layer"] == 0]
        values = first["value"] if over is None else first.groupby(over)["value"].mean()
        assert (low[0], high[0]) == pytest.approx(tuple(values.quantile([0.25, 0.75])))
        assert key(fig) == ["IQR over 12 inputs × 3 heads" if over is None else "IQR over inputs"]


def test_the_null_band_is_that_of_the_frame_and_named_with_its_kind():
    held = frame()
    fig = Plot(held).metric("attention_diversity").add(Line(), Null()).figure()
    _, low, high = ends(bands(fig, NULL_BAND)[0])
    expected = held.groupby("layer")[["null_low", "null_high"]].mean()
    np.testing.assert_allclose(low, expected["null_low"])
    np.testing.assert_allclose(high, expected["null_high"])
    assert key(fig) == ["mean over 5 inputs × 3 heads", "null: permuted (95 % range of one head)"]


def test_the_null_of_a_single_layer_is_a_bar_that_can_be_seen():
    held = frame(layers=1)
    fig = Plot(held).metric("attention_diversity").add(Line(), Null()).figure()
    (bar,) = [
        trace
        for trace in fig.data
        if trace.line.color == NULL_EDGE and trace.mode == "lines" and trace.x[0] is not None
    ]
    assert bar.line.width > 5
    assert bar.x[:2] == (0, 0)
    assert bar.y[0] < bar.y[1]


def test_a_line_that_leaves_its_axis_has_no_marker_there():
    held = pd.DataFrame(
        {"step": [1, 2, 3, 4], "metric": "error", "value": [1.0, 0.1, 1e-6, 1e-9], "name": "a"}
    )
    plot = Plot(held, x="step", color="name").metric("error").add(Line())
    fig = plot.scale(y_log=True, y_cut=True, y_range=(0.01, 2)).figure()
    (line,) = [trace for trace in fig.data if trace.mode == "lines+markers" and trace.x[0] is not None]
    assert line.y[:3] == (1.0, 0.1, 0.01)
    assert line.marker.opacity[:3] == (1, 1, 0)


def test_a_frame_of_means_is_drawn_by_layer_with_the_null_of_the_mean():
    held = means()
    fig = Plot(held).metric("KCKA").add(Line(), Null()).figure()
    by_layer = held[held["layer"].notna() & (held["null"] == "gaussian")]
    line = lines(fig)[-1]
    np.testing.assert_allclose(line.y, by_layer["value"])
    _, low, high = ends(bands(fig, NULL_BAND)[0])
    np.testing.assert_allclose(np.c_[low, high], by_layer[["null_low", "null_high"]])
    assert key(fig) == [
        "mean over inputs",
        "null: Gaussian (95 % range of the mean)",
        "null: permuted (95 % range of the mean)",
    ]
    assert key(Plot(held).metric("KCKA").add(Null("permutation")).figure()) == [
        "null: permuted (95 % range of the mean)"
    ]


def test_the_null_of_several_series_reaches_from_the_least_to_the_largest():
    held = frame(MODELS[:2])
    fig = Plot(held).metric("attention_diversity").add(Line(), Null()).figure()
    (band,) = bands(fig, NULL_BAND)
    per_model = held.groupby(["model", "layer"])[["null_low", "null_high"]].mean()
    _, low, high = ends(band)
    np.testing.assert_allclose(low, per_model["null_low"].groupby("layer").min())
    np.testing.assert_allclose(high, per_model["null_high"].groupby("layer").max())


def test_the_key_says_how_many_series_share_one_band_of_their_differing_nulls():
    held = frame(MODELS[:2])
    said = "null: permuted (95 % range of one head; envelope of 2 curves)"
    assert key(Plot(held).metric("attention_diversity").add(Null()).figure())[-1] == said
    alone = (
        Plot(held, panel="model").metric("attention_diversity").add(Null()).figure()
    )  # a series in each panel
    assert key(alone) == ["null: permuted (95 % range of one head)"]
    same = pd.concat([frame(), frame().assign(model=MODELS[1])])
    assert key(Plot(same).metric("attention_diversity").add(Null()).figure())[-1] == key(alone)[-1]
    bare = (
        Plot(held.drop(columns=["null_low", "null_high"])).metric("attention_diversity").add(Null()).figure()
    )
    assert key(bare)[-1] == "null: permuted (mean of 2 curves)"


@pytest.mark.parametrize("unit", ["input", "head", None])
def test_the_key_of_a_forest_says_what_its_nulls_are_of(unit):
    held = frame()
    if unit is None:
        held = means(kinds=("permutation",)).assign(metric="attention_diversity")
    if unit == "input":
        held = held[(held["layer"] == 0) & (held["head"] == 0)].assign(layer=pd.NA, head=pd.NA)
    fig = Plot(held, y="model", x=["attention_diversity"]).add(Interval(), Null()).figure()
    assert key(fig)[-1] == f"null: permuted (95 % range of {f'one {unit}' if unit else 'the mean'})"
    low, high = min(bands(fig, NULL_BAND)[0].x), max(bands(fig, NULL_BAND)[0].x)
    drawn = held[held["layer"].isna() & held["input"].isna()] if unit is None else held
    assert (low, high) == pytest.approx((drawn["null_low"].mean(), drawn["null_high"].mean()))


def test_a_null_of_a_forest_without_ends_is_a_dotted_stroke_at_its_mean():
    held = frame().drop(columns=["null_low", "null_high"])
    fig = Plot(held, y="model", x=["attention_diversity"]).add(Interval(), Null()).figure()
    assert key(fig)[-1] == "null: permuted"
    (stroke,) = [trace for trace in fig.data if trace.line.dash == "dot" and trace.x[0] is not None]
    assert list(stroke.x) == pytest.approx([held["null_mean"].mean()] * 2)


def test_one_line_draws_the_mean_its_interval_the_heads_and_the_null():
    fig = wb.plot(frame(), "attention_diversity")
    assert key(fig) == [
        "mean over 5 inputs × 3 heads", "one head", "95 % CI over inputs", "null: permuted (95 % range of one head)",
    ]  # fmt: skip
    dots = next(trace for trace in fig.data if trace.mode == "markers" and trace.x[0] is not None)
    assert len(dots.x) == 4 * 3


def test_a_run_without_inputs_counts_none():
    held = frame()
    held.attrs["provenance"] = [{"analysis": "drawn matrices", "inputs": None}]
    assert key(Plot(held).metric("attention_diversity").add(Line()).figure()) == [
        "mean over 5 inputs × 3 heads"
    ]


def test_the_axis_has_label_unit_and_better_direction_of_the_metric():
    def title(metric, scale=1.0):
        held = frame(metric=metric, scale=scale, null=None)
        return Plot(held).metric(metric).figure().layout.yaxis.title.text

    assert title("attention_entropy") == "Attention entropy (nats)"
    assert title("accuracy_top1") == "Top-1 accuracy (↑ better)"
    held = frame(metric="attention_distance", null=None).assign(unit="tokens")
    shown = Plot(held).metric("attention_distance").figure().layout.yaxis.title.text
    assert shown.replace("<br>", " ") == "Mean attention distance (tokens)"


def test_values_over_more_than_a_decade_are_on_a_log_axis_where_the_metric_says_so():
    held = frame(metric="perplexity", null=None)
    held["value"] *= 10.0 ** held["layer"].astype(float)
    assert Plot(held).metric("perplexity").figure().layout.yaxis.type == "log"
    assert Plot(held).metric("perplexity").scale(y_log=False).figure().layout.yaxis.type != "log"
    assert (
        Plot(held.assign(metric="attention_entropy")).metric("attention_entropy").figure().layout.yaxis.type
        is None
    )


def test_every_addition_gives_another_plot():
    first = Plot(frame()).metric("attention_diversity")
    second = first.add(Line())
    assert first.marks == ()
    assert second.marks == (Line(),)
    assert second.where(layer=[0, 1]).kept != second.kept


def test_names_that_others_have_moved_are_led_to_the_ends_of_their_lines():
    ends = [("first", 0.5, "#000000"), ("second", 0.52, "#000000")]
    panel = Panel([go.Scatter(x=[0, 1], y=[0, 1])], Axis("x", 0, 1), Axis("y", 0, 1), ends=ends)
    fig = compose([panel], 1)
    names = [note for note in fig.layout.annotations if note.text and note.xanchor == "left"]
    assert [(line.y0, line.y1) for line in fig.layout.shapes] == [
        (value, pytest.approx(note.y)) for (_, value, _), note in zip(ends, names, strict=True)
    ]
    assert names[1].y - names[0].y > 0.02


def test_two_ticks_up_an_axis_give_way_to_finer_ones_that_have_room():
    axis = Axis("", 0, 0.018)
    assert ticks(axis, 75, 10.7, upright=True)[1] == ["0", "0.005", "0.01", "0.015"]
    assert ticks(axis, 40, 10.7, upright=True)[1] == ["0", "0.01"]


def test_every_colour_is_named_once_in_the_key_or_at_the_end_of_its_line():
    held = frame(MODELS)
    plot = Plot(held, color="model").metric("attention_diversity").add(Line())
    names = ["digits-vit", "vit_small_patch16_224.augreg_in21k_ft_in1k", "dino-vits16"]
    assert key(plot.figure("page", labels="key"))[:3] == names
    at_ends = plot.figure("nature", labels="ends")
    assert key(at_ends) == ["mean over 5 inputs × 3 heads"]
    assert all(any(name in note.text for note in at_ends.layout.annotations) for name in names)


def test_names_at_the_ends_of_lines_are_as_high_as_the_ends():
    ends = [("low", 0.3, "#000000"), ("middle", 0.5, "#000000"), ("high", 0.7, "#000000")]
    panel = Panel([go.Scatter(x=[0, 1], y=[0, 1])], Axis("x", 0, 1), Axis("y", 0, 1), ends=ends)
    page = measure_figure(compose([panel], 1))
    upper, lower = page.panels[0].box[1::2]
    shown = {words.text: (words.box[1] + words.box[3]) / 2 for words in page.words}
    for name, value, _ in ends:
        assert shown[name] == pytest.approx(lower - value * (lower - upper), abs=2.5)


def test_colours_of_attention_variants_are_theirs_in_every_figure():
    held = pd.concat([frame().assign(attention=name) for name in ("mssa", "softmax")])
    fig = Plot(held, color="attention").metric("attention_diversity").add(Line()).figure(labels="key")
    assert key(fig)[:2] == [LOOKS["softmax"].label, LOOKS["mssa"].label]
    assert [line.line.color for line in lines(fig)] == [LOOKS["softmax"].colour, LOOKS["mssa"].colour]


def test_many_layers_as_colours_have_a_bar_and_few_have_names():
    def drawn(layers):
        held = frame(layers=layers, null=None).assign(rank=1)
        held = pd.concat([held, held.assign(rank=2, value=held["value"] / 2)]).astype({"rank": "Int64"})
        return Plot(held, x="rank", color="layer").metric("attention_diversity").add(Line("median")).figure()

    assert drawn(12).layout.coloraxis.colorbar.title.text == "Layer"
    assert [note.text.split(">")[1].split("<")[0] for note in drawn(4).layout.annotations] == [
        f"layer {n}" for n in range(4)
    ]


def test_several_ways_of_measuring_are_distinguished_or_refused():
    held = pd.concat([frame().assign(convention=name) for name in ("exact", "saritas2025")])
    (line,) = lines(
        Plot(held).metric("attention_diversity").add(Line()).figure()
    )  # the exact one is the usual
    np.testing.assert_allclose(line.y, frame().groupby("layer")["value"].mean())
    held["convention"] = held["convention"].replace("exact", "another")
    with pytest.raises(InputError, match=r"convention.*\.where\(convention"):
        Plot(held).metric("attention_diversity").add(Line()).figure()
    fig = Plot(held, color="convention").metric("attention_diversity").add(Line()).figure(labels="key")
    assert key(fig)[:2] == ["another", "saritas2025"]
    with pytest.raises(InputError, match="there is another, saritas2025"):
        Plot(held).where(convention="third").metric("attention_diversity").figure()


def test_published_numbers_have_one_look_and_name_paper_and_table():
    rows = pd.DataFrame(
        [
            {"paper": "wu2025", "table": "4", "row": "ToST", "model": "digits-vit", "metric": "attention_diversity",
             "value": 0.5},
            {"paper": "teo2024", "table": "1", "row": "other", "model": "another", "metric": "attention_diversity",
             "value": 0.9},
        ]
    )  # fmt: skip
    fig = Plot(frame()).metric("attention_diversity").add(Line(), Published(rows)).figure()
    (across,) = [trace for trace in lines(fig) if trace.line.color == PUBLISHED["color"]]
    assert (across.mode, list(across.x), list(across.y)) == ("lines", [0, 3], [0.5, 0.5])  # it has no layer
    assert set(across.text) == {"wu2025, 4, ToST"}
    placed = Plot(frame()).metric("attention_diversity").add(Line(), Published(rows.assign(layer=2))).figure()
    (found,) = [
        trace for trace in placed.data if trace.mode == "markers" and trace.marker.symbol == PUBLISHED["symbol"]
        and trace.x[0] is not None
    ]  # fmt: skip
    assert (list(found.x), list(found.y)) == ([2], [0.5])
    assert found.marker.color == PUBLISHED["color"]
    for figure, mode in ((fig, "lines"), (placed, "markers")):
        (entry,) = [trace for trace in figure.data if trace.name == "published (Wu et al., 2025)"]
        assert entry.mode == mode


def test_a_panel_for_each_value_has_the_same_axis_and_only_data():
    held = pd.concat([frame(MODELS[:2]).assign(candidate=name) for name in ("resid_mid", "resid_post")])
    held = held[(held["model"] == MODELS[0]) | (held["candidate"] == "resid_post")]
    fig = (
        Plot(held, color="model", panel="candidate")
        .metric("attention_diversity")
        .add(Line(), Rule(0.5, "chance"))
        .figure("page")
    )
    assert fig.layout.yaxis.range == fig.layout.yaxis2.range
    assert fig.layout.yaxis2.showticklabels is False
    assert len(lines(fig)) == 3
    assert key(fig).count("chance") == 1


def test_a_panel_without_values_has_its_words_and_axes():
    other = frame(MODELS[:1], metric="attention_entropy_share")
    plot = Plot(pd.concat([frame(MODELS[:2]), other]), panel="model")
    fig = plot.metric("attention_diversity", "attention_entropy_share").figure("page", empty="no entropy")
    (note,) = [note for note in fig.layout.annotations if note.text == "no entropy"]
    here = [trace for trace in fig.data if f"{trace.xaxis} domain" == note.xref]
    # without a trace plotly draws no axes, and moves the note
    assert [list(trace.y) for trace in here] == [[None]]


def test_two_published_numbers_of_a_row_are_their_median_and_their_range():
    numbers = pd.DataFrame([{"paper": "teo2024", "model": MODELS[0], "metric": "KCKA", "value": 0.3}] * 2)
    numbers["value"] = [0.2, 0.6]
    marks = Interval(), Published(numbers, ranges=True)
    fig = Plot(means(), y="model", x=["KCKA"]).add(*marks).figure()
    (cross,) = [trace for trace in fig.data if "median of 2" in str(trace.text)]
    assert cross.x[0] == pytest.approx(0.4)
    assert [cross.error_x.arrayminus[0], cross.error_x.array[0]] == pytest.approx([0.2, 0.2])


def test_a_forest_has_a_row_each_with_its_interval_its_null_and_what_is_published():
    held = means()
    held = pd.concat([held, held.assign(model=MODELS[2], value=held["value"] + 0.1)])
    rows = pd.DataFrame([{"paper": "teo2024", "model": "dino-vits16", "metric": "KCKA", "value": 0.3}])
    fig = Plot(held, y="model", x=["KCKA"]).add(Interval(), Null("gaussian"), Published(rows)).figure()
    dots = next(trace for trace in fig.data if trace.error_x.array is not None)
    own = held[held["input"].notna() & (held["null"] == "gaussian") & (held["model"] == MODELS[0])]
    found = mean_interval(own["value"])
    overall = held[held["layer"].isna() & held["input"].isna() & (held["null"] == "gaussian")]
    assert dots.x[0] == pytest.approx(
        overall["value"].iloc[0]
    )  # the mean over everything, as the frame has it
    assert dots.x[0] + dots.error_x.array[0] == pytest.approx(found.high)
    assert min(bands(fig, NULL_BAND)[0].x) == overall["null_low"].iloc[0]
    assert fig.layout.yaxis.ticktext == ("digits-vit", "dino-vits16")
    assert key(fig) == [
        "mean over 5 inputs, 95 % CI",
        "null: Gaussian (95 % range of the mean)",
        "published (Teo et al., 2024)",
    ]
    (diamond,) = [
        trace for trace in fig.data if trace.marker.symbol == PUBLISHED["symbol"] and trace.x[0] is not None
    ]
    assert "%{x" in diamond.hovertemplate
    assert (diamond.x, diamond.y) == ((0.3,), (1,))


def test_a_forest_of_a_table_has_its_groups_and_its_ends():
    table = pd.DataFrame(
        {"pair": ["a over b"] * 2 + ["c over b"], "label": ["clean", "PGD", "clean"], "kind": "ratio",
         "value": [1.2, 0.9, 1], "low": [1.1, 0.8, 0.9], "high": [1.3, 1.0, 1.2],
         "verdict": ["holds", "fails", "undecided"]}
    )  # fmt: skip
    forest = Plot(table, y="label", group="pair", panel="kind", x={"ratio": "Ratio to baseline"})
    forest = forest.add(Interval(columns=("value", "low", "high"), words="95 % CI over seeds"), Rule(1))
    fig = forest.figure()
    assert fig.layout.yaxis.ticktext == ("<b>a over b</b>", "clean", "PGD", "<b>c over b</b>", "clean")
    dots = next(trace for trace in fig.data if trace.error_x.array is not None)
    assert list(dots.y) == [1, 2, 4]
    np.testing.assert_allclose(dots.error_x.arrayminus, table["value"] - table["low"])


def test_what_is_at_or_below_zero_reaches_the_lower_end_of_a_log_axis_and_the_key_says_so():
    table = pd.DataFrame(
        {"label": ["above", "across", "below"], "kind": "ratio", "value": [1.0, 2.0, -1.0], "low": [0.5, -0.5, -2.0],
         "high": [3.0, 4.0, 1.5]}
    )  # fmt: skip
    forest = Plot(table, y="label", panel="kind", x=["ratio"]).add(Interval(columns=("value", "low", "high")))
    fig = forest.scale(x_log=True).figure()
    edge = 10 ** fig.layout.xaxis.range[0]
    assert edge > 0.4
    dots, arrow = (trace for trace in fig.data if trace.error_x.array is not None)
    np.testing.assert_allclose(dots.x, [1, 2, np.nan])
    np.testing.assert_allclose(np.subtract(dots.x, dots.error_x.arrayminus)[:2], [0.5, edge])
    np.testing.assert_allclose(arrow.x, edge)
    assert (list(arrow.y), arrow.marker.symbol) == ([1, 2], "arrow-left")
    np.testing.assert_allclose(
        arrow.x + arrow.error_x.array, [edge, 1.5]
    )  # the interval of "below" ends at 1.5
    assert key(fig)[-1] == "to 0 or less (log axis)"
    assert "to 0 or less (log axis)" not in key(forest.figure())


def test_a_band_below_zero_goes_on_beneath_a_log_axis_and_an_arrow_says_so_as_of_a_value():
    held = frame(metric="perplexity")
    held.loc[held["layer"] == 1, "null_low"] = -1.0
    held.loc[held["layer"] == 2, "value"] = -0.5
    fig = Plot(held).metric("perplexity").scale(y_log=True).add(Line(), Null()).figure()
    assert fig.layout.yaxis.type == "log"
    edge = 10 ** fig.layout.yaxis.range[0]
    places, low, high = ends(bands(fig, NULL_BAND)[0])
    assert low[places.index(1)] < edge
    assert (high > edge).all()
    assert np.isnan(next(line.y[2] for line in lines(fig)))
    arrows = [trace for trace in fig.data if trace.marker.symbol == "arrow-down" and trace.x[0] is not None]
    of_null, arrow = sorted(arrows, key=lambda trace: trace.x[0])
    assert (list(of_null.x), of_null.marker.color) == ([1], GREY)
    assert (list(arrow.x), list(arrow.y)) == ([2], [pytest.approx(edge)])
    assert arrow.text == ("-0.5",)


def test_what_is_below_a_chosen_range_has_an_arrow_where_the_line_leaves_the_axis():
    held = frame(metric="perplexity", null=None)
    held["value"] = held["layer"].map({0: 10.0, 1: 1.0, 2: 0.1, 3: 0.01}).astype(float)
    fig = (
        Plot(held).metric("perplexity").scale(y_log=True, y_range=(0.5, 20)).add(Line(markers=False)).figure()
    )
    (line,) = lines(fig)
    np.testing.assert_allclose(line.y, [10, 1, np.nan, np.nan])
    (arrow,) = [trace for trace in fig.data if trace.marker.symbol == "arrow-down" and trace.x[0] is not None]
    assert (list(arrow.x), list(arrow.y)) == ([2], [0.5])
    assert key(fig)[-1] == "below the axis"


def test_the_key_names_bands_and_bars_of_which_none_can_be_seen():
    def told(*spreads):
        own = [frame([model], null=None) for model in MODELS[: len(spreads)]]
        for each, spread in zip(own, spreads, strict=True):
            each["value"] = each["layer"].astype(float) / 5 + spread * each["input"].str[-1].astype(float)
        held = conform(pd.concat(own))
        forest = (
            Plot(held, y="model", x=["attention_diversity"]).scale(x_range=(0, 1)).add(Interval()).figure()
        )
        fig = Plot(held, panel="model").metric("attention_diversity").add(Band(), Line()).figure("page")
        return key(fig)[-1], key(forest)[0]

    assert told(0.05) == ("95 % CI over inputs", "mean over 5 inputs, 95 % CI")
    assert told(1e-4) == (
        "95 % CI over inputs, narrower than the line",
        "mean over 5 inputs, 95 % CI within the marker",
    )
    assert told(0.05, 1e-4) == told(0.05)


def test_counts_that_differ_between_series_stand_together_in_the_key():
    held = conform(pd.concat([frame(heads=3), frame(MODELS[1:2], heads=12)]))
    fig = Plot(held, panel="model").metric("attention_diversity").add(Line()).figure("page")
    assert key(fig) == ["mean over 5 inputs × 3 or 12 heads"]


def maps(rows=("one", "two"), layers=(0, 3), heads=2, side=4):
    rng = np.random.default_rng(2)
    return pd.DataFrame(
        [
            {"input": name, "layer": layer, "head": head, "row": y, "column": x, "value": rng.random()}
            for name in rows for layer in layers for head in range(heads) for y in range(side) for x in range(side)
        ]
    )  # fmt: skip


def test_maps_have_a_panel_for_each_input_layer_and_head_and_one_scale():
    held = maps()
    images = [np.zeros((8, 8)), np.ones((8, 8))]
    fig = Maps(held, images=images, title="Attention").figure()
    drawn = [trace for trace in fig.data if isinstance(trace, go.Heatmap)]
    assert [trace.coloraxis for trace in drawn] == [None, *["coloraxis"] * 4] * 2
    own = held[(held["input"] == "two") & (held["layer"] == 3) & (held["head"] == 1)]
    np.testing.assert_allclose(np.ravel(drawn[-1].z), own["value"])
    assert len(fig.layout.images) == 2
    assert {"layer 0", "layer 3", "head 0", "head 1"} <= {note.text for note in fig.layout.annotations}
    with pytest.raises(InputError, match="15 values for a map of 4 × 4"):
        Maps(held.drop(index=3)).figure()
    with pytest.raises(InputError, match="1 images for 2 inputs"):
        Maps(held, images=images[:1]).figure()


def test_cells_of_a_mask_are_outlined_in_all_maps_of_its_row():
    mask = np.array([[True, True, False], [False, True, False], [False, False, False]])
    fig = Maps(maps(layers=(0,), side=3), outlined={"two": mask}).figure()
    shapes = [shape for shape in fig.layout.shapes if shape.type == "path"]
    assert [shape.xref for shape in shapes] == ["x3", "x4"]
    edges = {
        tuple(tuple(map(float, end.split(","))) for end in part.split("L"))
        for part in shapes[0].path.split("M")[1:]
    }
    assert edges == {
        ((-0.5, -0.5), (0.5, -0.5)),
        ((0.5, -0.5), (1.5, -0.5)),
        ((-0.5, 0.5), (0.5, 0.5)),
        ((0.5, 1.5), (1.5, 1.5)),
        ((-0.5, -0.5), (-0.5, 0.5)),
        ((1.5, -0.5), (1.5, 0.5)),
        ((0.5, 0.5), (0.5, 1.5)),
        ((1.5, 0.5), (1.5, 1.5)),
    }


def test_what_cannot_be_drawn_is_refused_in_words():
    with pytest.raises(InputError, match="no metric"):
        Plot(frame()).figure()
    with pytest.raises(UnknownName, match="width"):
        Plot(frame()).metric("attention_diversity").figure("wide")
    with pytest.raises(InputError, match="95 %"):
        Band(ci=90)
    with pytest.raises(InputError, match="scale"):
        Plot(frame()).scale(z_log=True)
    with pytest.raises(InputError, match=r"x is .layer.; give with y a list"):
        Plot(frame(), y="model").figure()


@functools.cache
def _crowded():
    """A plot of each kind, as crowded as they come: what its figure of a width is."""
    held = frame(MODELS, layers=12, inputs=25)
    marks = (Line(), Band(over="input"), Dots(), Null(), Rule(0.5, "chance"))
    plot = Plot(held).metric("attention_diversity").add(*marks)
    two = pd.concat([frame(layers=12), frame(layers=12, metric="attention_distance", scale=9)])
    forest = pd.concat([means(), means().assign(model=MODELS[1])])
    return [
        plot.figure,
        lambda width: plot.figure(width, labels="ends"),
        lambda width: wb.plot(two, width=width),
        Plot(held, panel="model").metric("attention_diversity").add(Line(), Null()).figure,
        Plot(forest, y="model", x=["KCKA"]).add(Interval(), Null()).figure,
        Maps(maps(), title="Attention of the class token").figure,
    ]


def _other_flaws(page):
    """Return the flaws but that of a crowded key, whose series have no room in a row."""
    return [flaw for flaw in page_flaws(page) if "rows (at most 1)" not in flaw]


def test_a_composed_figure_on_a_slide_has_its_own_rooms_alone_and_letters_that_fit_them():
    for width in ("column", "page"):
        fig = _crowded()[0](width)
        slide = apply_theme(fig, "talk")
        margin = slide.layout.margin
        assert (margin.l, margin.r, margin.t, margin.b, margin.autoexpand) == (0, 0, 0, 0, False)
        assert slide.layout.xaxis.domain == fig.layout.xaxis.domain
        assert _other_flaws(measure_figure(slide)) == []
        letters = slide.layout.template.layout.font.size
        assert letters == pytest.approx(
            8 / 0.75 * min(720 / fig.layout.height, 1280 / fig.layout.width, 2.25)
        )
        assert slide.layout.legend.font.size == pytest.approx(letters)
        again = apply_theme(slide, "talk")
        assert again.layout.template.layout.font.size == pytest.approx(letters)


@pytest.mark.integration  # a minute for all widths, and `make check` is to be fast
@pytest.mark.parametrize("width", [*WIDTHS, "slides"])
def test_a_composed_figure_has_no_flaws_in_print_at_any_width(width):
    """Each kind at the least and the greatest width, on a slide and in both of the usual ones; two kinds between."""
    every = width in ("column", "page", "slides", min(WIDTHS, key=WIDTHS.get), max(WIDTHS, key=WIDTHS.get))
    turn = [*WIDTHS, "slides"].index(width)
    for number, figure in enumerate(_crowded()):
        if not every and (number + turn) % 3:
            continue
        fig = figure(width)
        page = measure_figure(fig, width)
        assert len(page.words) > 5
        assert _other_flaws(page) == [], number
        assert (page.width, page.height) == (fig.layout.width, fig.layout.height)
        rows = {trace.legend or "legend" for trace in fig.data if trace.showlegend}
        assert len(rows) * legend_row(fig.layout.template.layout.font.size) < fig.layout.height / 3, number


def test_rows_have_the_heights_they_are_given_above_bars_and_notes():
    panel = Panel([go.Scatter(x=[0, 1], y=[0, 1])], Axis("x", 0, 1), Axis("y", 0, 1))
    tall, low = [50.0, 150.0], 40.0
    note = "A sentence that is longer than one line of a column, so that it takes two of them or three."
    fig = compose([panel, panel], 1, inner=tall, shared="x", below=low, notes=[note])
    heights = [np.diff(fig.layout[axis].domain)[0] * fig.layout.height for axis in ("yaxis", "yaxis2")]
    assert heights == pytest.approx(tall, abs=0.5)
    plain = compose([panel, panel], 1, inner=tall, shared="x")
    assert fig.layout.height - plain.layout.height > low + 2 * 1.3 * 8 / 0.75
    assert " ".join(fig.layout.annotations[-1].text.split("<br>")) == note


def test_an_axis_that_runs_downwards_has_the_ticks_of_one_that_runs_upwards():
    up, down = (
        ticks(Axis("Layer", *ends, whole=True), 200, 10, True) for ends in ((-0.5, 11.5), (11.5, -0.5))
    )
    assert down == up
    assert up[1][0] == "0"


def test_an_axis_ends_at_a_round_number_that_is_near():
    assert with_room(Axis("", 0.0, 95.0)).high == 100
    assert with_room(Axis("", 0.0, 70.0)).high == pytest.approx(72.8)
    assert with_room(Axis("", -0.4, 0.9)).low == pytest.approx(-0.5)
    assert with_room(Axis("", 0, 47, whole=True)).high == pytest.approx(47 * 1.04)
    assert with_room(Axis("", 1.5e-4, 0.5, log=True)).low == pytest.approx(1e-4)


@pytest.mark.parametrize(
    ("metric", "values", "ends"),
    [
        ("token_cosine", [0.99, 0.7, 1.0], (0.4, 1.0)),
        ("token_cosine", [-0.99, -0.7, -1.0], (-1.0, -0.4)),
        ("attention_diversity", [0.0, 0.4, 0.01], (0.0, 0.5)),
    ],
)
def test_intervals_and_null_bands_end_where_the_quantity_does(metric, values, ends):
    low, high = ends
    rows = pd.DataFrame(
        {"model": MODELS[0], "metric": metric, "input": list("abc"), "head": 0, "value": values}
    )
    rows = rows.assign(null="permutation", null_mean=values[1], null_low=-9.0, null_high=9.0)
    held = conform(pd.concat([rows.assign(layer=layer) for layer in (0, 1)]))
    assert not low <= mean_interval(pd.Series(values)).low <= mean_interval(pd.Series(values)).high <= high
    curve = Plot(held).metric(metric).add(Band(over="input"), Null(), Line()).figure()
    forest = Plot(held, y="model", x=[metric]).add(Interval(over="input")).figure()
    for fig in (curve, forest):
        for trace in (trace for trace in fig.data if trace.fill == "toself" and trace.y[0] is not None):
            reach = [value for value in trace.y if value is not None]
            if fig is curve:
                assert wb.METRICS[metric].low <= min(reach)
                assert max(reach) <= wb.METRICS[metric].high
    assert any(trace.fill == "toself" and trace.y[0] is not None for trace in curve.data)


def test_a_difference_is_not_cut_at_the_bounds_of_its_metric():
    held = frame(null=None).assign(value=lambda rows: rows["value"] - 0.45)
    fig = Plot(held).metric("attention_diversity").add(Band(over="input"), Line()).figure()
    assert min(value for band in bands(fig, translucent("#004488", 0.2)) for value in band.y) < 0


@pytest.mark.parametrize("bars", [False, True])
def test_fewer_than_ten_inputs_have_a_line_each_and_no_quartiles(bars):
    held = frame(inputs=4, heads=1, null=None)
    mark = Band(quantiles=(25, 75), over="input", bars=bars)
    fig = Plot(held).metric("attention_diversity").add(mark, Line()).figure()
    assert not bands(fig, translucent("#004488", 0.2))
    assert "each of 4 inputs" in key(fig)
    singles = next(trace for trace in fig.data if None in trace.y and len(trace.y) > 1)
    drawn = sorted(value for value in singles.y if value is not None)
    assert drawn == sorted(held["value"])
    many = Plot(frame(inputs=10, heads=1)).metric("attention_diversity").add(mark, Line()).figure()
    assert any("IQR over inputs" in words for words in key(many))


def test_statistics_of_few_inputs_are_drawn_as_their_range():
    kinds = {"mean": 0.3, "min": 0.1, "q25": 0.2, "median": 0.3, "q75": 0.4, "max": 0.5}
    rows = [
        {"model": MODELS[0], "metric": "attention_diversity", "layer": layer, "statistic": name, "value": value}
        for layer in (0, 1) for name, value in kinds.items()
    ]  # fmt: skip
    held = conform(pd.DataFrame(rows))
    held.attrs["provenance"] = [{"inputs": {"n": 4}}]
    fig = (
        Plot(held).metric("attention_diversity").add(Band(quantiles=(25, 75), over="input"), Line()).figure()
    )
    assert set(bands(fig, translucent("#004488", 0.2))[0].y) == {0.1, 0.5}
    assert "range over inputs" in key(fig)


@pytest.mark.parametrize("count", [3, 20, 39, 40, 100])
def test_fewer_than_forty_null_samples_have_no_95_percent_range(count):
    held = frame()
    held.attrs["provenance"] = [{"analysis": "attention-map", "options": {"null_samples": count}}]
    curve = Plot(held).metric("attention_diversity").add(Null(), Line()).figure()
    forest = Plot(held, y="model", x=["attention_diversity"]).add(Null(), Interval()).figure()
    for fig in (curve, forest):
        (words,) = (words for words in key(fig) if words.startswith("null"))
        assert ("95 % range" in words) == (count >= 40)
        assert f"range of {count} null samples of" in words


def test_a_null_that_is_computed_exactly_names_no_samples():
    held = frame(null="isotropic")
    held.attrs["provenance"] = [{"analysis": "token-similarity", "options": {"null_samples": 20}}]
    curve = Plot(held).metric("attention_diversity").add(Null(), Line()).figure()
    forest = Plot(held, y="model", x=["attention_diversity"]).add(Null(), Interval()).figure()
    for fig in (curve, forest):
        (words,) = (words for words in key(fig) if words.startswith("null"))
        assert words == "null: random directions (95 % range of one head)"


def test_a_legend_has_one_row_and_the_caption_what_has_no_room_in_it():
    plot = Plot(frame()).metric("attention_diversity").add(Line(), Band(over="input"), Null())
    words = "a level whose name is far longer than a column of a paper is wide"
    for marks, in_legend in (((Rule(0.5, "chance"),), ["chance"]), ((Rule(0.5, words),), [])):
        fig = plot.add(*marks).figure("column")
        legend = [trace for trace in fig.data if trace.showlegend]
        assert {trace.legend or "legend" for trace in legend} == {"legend"}
        assert [trace.name for trace in legend if trace.name == marks[0].name] == in_legend
        assert any(said == f"Thin line: {marks[0].name}." for said in fig.layout.meta["marks"]) != bool(
            in_legend
        )
        assert any(said.startswith("Bands: 95 % CI") for said in fig.layout.meta["marks"])


def test_the_steps_of_a_training_are_one_line():
    steps = [
        frame(inputs=2, scale=1 + step).assign(step=step, checkpoint=f"step-{step:03d}")
        for step in (0, 5, 20)
    ]
    watched = pd.concat(steps, ignore_index=True)
    (line,) = lines(wb.plot(watched, "attention_diversity", x="step"))
    assert [*line.x] == [0, 5, 20]
    assert [*line.y] == pytest.approx([rows["value"].mean() for rows in steps])
    by_layer = lines(wb.plot(watched, "attention_diversity", x="step", color="layer"))
    assert [[*line.x] for line in by_layer] == [[0, 5, 20]] * 4
    joined = pd.concat([watched, watched.assign(model="other")], ignore_index=True)
    assert len(lines(wb.plot(joined, "attention_diversity", x="step"))) == 2
    assert len(lines(wb.plot(watched, "attention_diversity", x="layer"))) == 3


@pytest.mark.parametrize("low", [-7, -2, 0])
@pytest.mark.parametrize("decades", [1, 2, 3, 6])
def test_ticks_of_a_log_axis_lie_on_it_and_hold_both_ends_where_they_are_powers(low, decades):
    high = low + decades
    for lower, upper in ((10.0**low, 10.0**high), (0.7 * 10.0**low, 1.3 * 10.0**high)):
        sets = [
            settings["tickvals"]
            for settings, _ in _log_ticks(SimpleNamespace(low=lower, high=upper, log=True))
        ]
        assert all(lower * (1 - 1e-8) <= tick <= upper * (1 + 1e-8) for ticks in sets for tick in ticks)
        powers = [10.0**power for power in range(low, high + 1)]
        assert any(list(ticks) == pytest.approx(powers) for ticks in sets)
        assert all(len(ticks) == len(set(ticks)) for ticks in sets)
