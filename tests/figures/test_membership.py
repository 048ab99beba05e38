"""Membership maps beside images, and the curves of two models over their nulls."""

import numpy as np
import pandas as pd
import pytest

from tests.figures.drawn import bands, lines
from tests.figures.drawn import maps as heatmaps
from workbench.core.errors import InputError
from workbench.figures import Band, Line, Null, Plot, membership_figure
from workbench.figures.theme import NULL_BAND

ROWS, COLUMNS, HEADS = 2, 5, 3


def maps(model="bundled:digits-tssa", layers=(1, 4), inputs=("a", "b"), heads=HEADS):
    axes = {
        "input": inputs,
        "layer": layers,
        "head": range(heads),
        "row": range(ROWS),
        "column": range(COLUMNS),
    }
    frame = pd.MultiIndex.from_product(axes.values(), names=axes).to_frame(index=False)
    values = np.random.default_rng(0).uniform(0, 0.8, len(frame))
    return frame.assign(value=values, model=model, kind="patch").sample(frac=1, random_state=1)


def images(count=2):
    return [np.full((8, 20, 3), 40 * number, np.uint8) for number in range(count)]


def test_every_panel_holds_its_own_map_on_its_own_grid():
    frame = maps().sort_values("input")
    fig = membership_figure(frame, images())
    drawn = heatmaps(fig)
    assert len(drawn) == 2 * 2 * HEADS  # inputs, layers, heads
    assert len(fig.layout.images) == 2
    for trace in drawn:
        assert np.shape(trace.z) == (ROWS, COLUMNS)
        name, place = trace.name.split("<br>")
        layer, head = (int(part.split()[-1]) for part in place.split(", ")[1:])
        chosen = frame[(frame["input"] == name) & (frame["layer"] == layer) & (frame["head"] == head)]
        for row, column in ((0, 4), (1, 2)):
            at = chosen[(chosen["row"] == row) & (chosen["column"] == column)]
            assert trace.z[row][column] == at["value"].item()
    assert {trace.coloraxis for trace in drawn} == {"coloraxis"}
    assert (fig.layout.coloraxis.cmin, fig.layout.coloraxis.cmax) == (0, 1)


def test_rows_beside_images_have_the_names_that_are_given():
    assert not membership_figure(maps().sort_values("input"), images()).layout.yaxis.title.text
    fig = membership_figure(maps().sort_values("input"), images(), {"a": "A", "b": "B"})
    assert [fig.layout.yaxis.title.text, fig.layout.yaxis8.title.text] == ["A", "B"]


def test_colours_are_white_for_an_even_share_and_of_single_heads_run_from_0():
    rows = maps(layers=(4,), inputs=("b",))
    places = ["input", "layer", "row", "column"]
    even = rows.assign(value=rows["value"] / rows.groupby(places)["value"].transform("sum"))
    fig = membership_figure(even, images(1))
    bar = fig.layout.coloraxis12.colorbar
    assert bar.title.text.replace("<br>", " ") == (
        f"Membership Π (uniform: 1 / {HEADS}), square-root scale around uniform"
    )
    assert 0 in bar.tickvals  # the middle
    one = membership_figure(even[even["head"] == 0].assign(value=0.9), images(1))
    assert one.layout.coloraxis.colorbar.title.text == "Membership Π"


def test_heads_stand_above_their_columns_and_layers_above_their_heads():
    fig = membership_figure(maps(), images())
    titles = [note.text for note in fig.layout.annotations]
    heads = [f"head {head}" for head in range(HEADS)]
    layers = {f"digits-tssa, layer {layer}" for layer in (1, 4)}
    assert titles[: 1 + 2 * HEADS] == ["input", *heads, *heads]
    assert set(titles[1 + 2 * HEADS :]) == layers
    for number, note in enumerate(fig.layout.annotations[: 1 + 2 * HEADS]):
        assert (note.xref, note.x) == (f"x{number + 1 if number else ''} domain", 0.5)
        assert note.xanchor == "center"
    narrow = membership_figure(maps(heads=12))
    assert [note.text for note in narrow.layout.annotations][:3] == ["0", "1", "2"]


def test_maps_that_do_not_fit_together_are_refused():
    with pytest.raises(InputError, match="3 images for 2 inputs"):
        membership_figure(maps(), images(3))
    other = maps("b")
    with pytest.raises(InputError, match=r"patch grids of .* have unlike shapes"):
        membership_figure(pd.concat([maps(), other[other["column"] < 3]]))
    with pytest.raises(InputError, match="no column head"):
        membership_figure(maps().drop(columns="head"))


def agreement():
    places = [(model, layer) for model in "ab" for layer in (0, 1, 2)]
    rows = [
        {"model": model, "checkpoint": "x", "layer": layer, "input": None, "head": None, "metric": metric,
         "convention": "as_published", "standardize": None, "value": 0.1 * layer + 0.2 * (model == "b"),
         "null_low": -0.05, "null_high": 0.03}
        for model, layer in places
        for metric in ("membership_ari", "membership_iou")
    ]  # fmt: skip
    return pd.DataFrame(rows)


def drawn_curves(frame):
    plot = Plot(frame.drop(columns="convention")).metric("membership_ari", "membership_iou")
    return plot.add(Null(), Band(over="input", bars=True), Line()).figure("page")


def test_agreement_has_a_line_per_model_over_the_band_of_its_null():
    fig = drawn_curves(agreement())
    marks = lines(fig)
    assert [list(mark.y) for mark in marks] == [[0, 0.1, 0.2], pytest.approx([0.2, 0.3, 0.4])] * 2
    drawn = bands(fig, NULL_BAND)
    assert [(min(band.y), max(band.y)) for band in drawn] == [(-0.05, 0.03), (0, 0.03)]  # an IoU ends at 0
    without = drawn_curves(agreement().assign(null_low=np.nan, null_high=np.nan))
    assert not bands(without, NULL_BAND)


def test_one_null_of_curves_that_stand_aside_reaches_behind_all_their_markers():
    means = agreement().assign(null_high=0.03).query("metric == 'membership_ari'")
    single = [
        means.assign(input=name, value=means["value"] + more, null_low=np.nan, null_high=np.nan)
        for name, more in (("i", -0.1), ("j", 0.1))
    ]
    fig = Plot(pd.concat([means, *single]).drop(columns="convention")).metric("membership_ari")
    fig = fig.add(Null(), Band(over="input", bars=True), Line()).figure()
    (band,) = bands(fig, NULL_BAND)
    places = [x for line in lines(fig) if line.mode == "lines+markers" for x in line.x]
    assert min(band.x) < min(places) < 0.0
    assert max(places) < max(band.x)


def test_curves_that_stand_aside_have_each_its_own_null_behind_its_places():
    means = agreement().assign(null_high=lambda rows: 0.03 + 0.1 * (rows["model"] == "b"))
    single = [
        means.assign(input=name, value=means["value"] + more) for name, more in (("i", -0.1), ("j", 0.1))
    ]
    fig = drawn_curves(pd.concat([means, *single]))
    assert not bands(fig, NULL_BAND)[:-1]
    drawn = [trace for trace in fig.data if trace.x[0] is not None and trace.line.color == NULL_BAND]
    boxes = [trace for trace in drawn if trace.mode == "lines"]
    curves = [line for line in lines(fig) if line.mode == "lines+markers" and line.xaxis == "x"]
    for box, line, high in zip(boxes, curves, (0.03, 0.13), strict=False):
        assert [x for x in box.x if x is not None] == [place for at in line.x for place in (at, at)]
        assert [y for y in box.y if y is not None] == pytest.approx([-0.05, high] * 3)
    assert len(boxes) == 4  # two curves in two panels
