"""Measured, published and the null distribution side by side."""

import pandas as pd
import pytest

from tests.figures.drawn import key
from tests.figures.study import levels, study
from workbench.core.errors import InputError
from workbench.core.intervals import mean_interval
from workbench.figures import comparison, comparison_figure, with_range
from workbench.figures.theme import PUBLISHED

INPUTS = (0.31, 0.35, 0.42)


def similarities(model="bundled:digits-vit"):
    gaussian = {"null": "gaussian", "null_mean": 0.3, "null_low": 0.28, "null_high": 0.33}
    permutation = {"null": "permutation", "null_mean": 0.2, "null_low": 0.19, "null_high": 0.22}
    rows = []
    for statistic in ("max", "mean"):
        for null in (gaussian, permutation):
            rows += levels(0.36, inputs=INPUTS, metric="MOC", axis="features", statistic=statistic, **null)
    rows += levels(0.1, inputs=INPUTS, layers=(0.05, 0.15), metric="LCKA", **gaussian)
    return study(*rows, model=model)


def dots(fig):
    return [
        trace for trace in fig.data if trace.error_x.array is not None and trace.marker.symbol == "circle"
    ]


def diamonds(fig):
    return [
        trace for trace in fig.data if trace.marker.symbol == PUBLISHED["symbol"] and trace.x[0] is not None
    ]


def test_every_quantity_has_a_panel():
    fig = comparison_figure(similarities())
    assert [axis.title.text for axis in fig.select_xaxes()] == [
        "MOC, features, max",
        "MOC, features, mean",
        "LCKA",
    ]


def test_the_dot_is_the_overall_value_and_its_bar_the_interval_over_inputs():
    dot = dots(comparison_figure(similarities()))[0]
    _, low, high, *_ = mean_interval(pd.Series(INPUTS))
    assert list(dot.x) == [0.36]
    assert dot.error_x.array[0] == pytest.approx(high - 0.36)
    assert dot.error_x.arrayminus[0] == pytest.approx(0.36 - low)
    assert dot.mode == "markers"


def test_each_null_is_a_box_of_its_own_named_with_its_kind():
    fig = comparison_figure(similarities())
    boxes = [
        trace
        for trace in fig.data
        if trace.fill == "toself" and trace.xaxis == "x" and trace.x[0] is not None
    ]
    assert [(min(box.x), max(box.x)) for box in boxes] == [(0.28, 0.33), (0.19, 0.22)]
    assert boxes[0].line.width != boxes[1].line.width
    assert [name for name in key(fig) if name.startswith("null")] == [
        "null: Gaussian (95 % range of the mean)", "null: permuted (95 % range of the mean)",
    ]  # fmt: skip


def test_a_published_value_without_a_statistic_stands_beside_every_reading():
    published = pd.DataFrame({"model": ["digits-vit"], "metric": ["MOC"], "value": [0.32]})
    marks = diamonds(comparison_figure(similarities(), published))
    assert [list(mark.x) for mark in marks] == [[0.32], [0.32]]
    one = published.assign(statistic="mean", axis="features")
    (mark,) = diamonds(comparison_figure(similarities(), one))
    assert mark.xaxis == "x2"


def test_models_match_by_name_and_several_values_become_a_range():
    published = pd.DataFrame(
        {"model": ["all-MiniLM-L6-v2"] * 2 + ["bert"], "metric": "LCKA", "value": [0.05, 0.11, 0.9]}
    )
    frame = similarities("hf:sentence-transformers/all-MiniLM-L6-v2")
    fig = comparison_figure(frame, published)
    (mark,) = diamonds(fig)
    assert [*mark.x, *mark.error_x.array, *mark.error_x.arrayminus] == pytest.approx([0.08, 0.03, 0.03])
    assert "median and range over models" in key(fig)


def test_a_published_spread_is_drawn_as_a_bar():
    published = pd.DataFrame({"model": ["digits-vit"], "metric": ["LCKA"], "value": [0.1], "spread": [0.02]})
    (mark,) = diamonds(comparison_figure(similarities(), published))
    assert list(mark.error_x.array) == [0.02]


def test_models_are_rows_from_top_to_bottom():
    other = similarities("hf:google-bert/bert-base-uncased")
    other["value"] += 1
    fig = comparison_figure(pd.concat([similarities(), other]))
    assert list(fig.layout.yaxis.ticktext) == ["digits-vit", "bert-base-uncased"]
    drawn = {(y, round(x, 9)) for trace in dots(fig) for x, y in zip(trace.x, trace.y, strict=True)}
    assert drawn == {(0, 0.36), (1, 1.36), (0, 0.1), (1, 1.1)}


def test_statistics_of_an_input_need_no_overall_row():
    rows = [
        {"metric": "eigenvalue_profile", "statistic": "max", "input": f"i{i}", "value": value}
        for i, value in enumerate((1e-6, 3e-6))
    ]
    fig = comparison_figure(study(*rows))
    assert list(dots(fig)[0].x) == [2e-6]


def test_standardised_keys_are_a_row_of_their_own():
    both = pd.concat([similarities(), similarities().assign(standardize="per-token")])
    assert set(comparison_figure(both).layout.yaxis.ticktext) == {"digits-vit", "digits-vit (per-token)"}


def test_published_values_for_keys_as_they_are_stand_beside_no_others():
    both = pd.concat([similarities(), similarities().assign(standardize="per-token")])
    published = pd.DataFrame(
        {"model": "digits-vit", "metric": "LCKA", "value": [0.2, 0.3], "standardize": ["none", "per-token"]}
    )
    marks = diamonds(comparison_figure(both, published))
    assert [(list(mark.x), round(mark.y[0])) for mark in marks] == [([0.2], 0), ([0.3], 1)]


def test_models_of_a_paper_that_are_not_ours_stand_in_a_row_of_their_own():
    published = pd.DataFrame(
        {"table": ["1", "1", "4"], "model": ["a", "b", "c"], "metric": "LCKA", "value": [0.05, 0.11, 0.3]}
    )
    apart = with_range(published, "bundled:digits-vit", "1", "vision", "photos")
    fig = comparison_figure(similarities(), apart)
    rows = [*fig.layout.yaxis.ticktext]
    assert rows == ["<b>measured here</b>", "digits-vit", "<b>published, other data</b>", "vision, photos"]
    (mark,) = diamonds(fig)
    assert (list(mark.x), set(mark.y)) == ([0.08], {rows.index("vision, photos")})
    assert {y for dot in dots(fig) for y in dot.y} == {1}
    assert [*with_range(published, ["hf:x/c"], "4", "text", "prose")["model"]] == ["a", "b", "c, prose"]
    assert [*with_range(published, None, "1", "vision", "photos")["model"]] == ["c"]


def test_chosen_quantities_have_a_panel_each_with_one_null_on_one_scale():
    chosen = {"best": {"metric": "MOC", "statistic": "max"}, "kernel": {"metric": "LCKA"}}
    fig = comparison_figure(similarities(), quantities=chosen, null="gaussian", ends=(0, 1))
    assert [axis.title.text for axis in fig.select_xaxes()] == ["best", "kernel"]
    assert {axis.range for axis in fig.select_xaxes()} == {(0, 1)}
    assert [name for name in key(fig) if name.startswith("null")] == [
        "null: Gaussian (95 % range of the mean)"
    ]


def test_one_value_for_all_is_shown_within_the_range_of_its_metric():
    fig = comparison_figure(study({"metric": "allclose", "value": 0.0, "convention": "as_published"}))
    low, high = fig.layout.xaxis.range
    assert low < 0 < 1 < high


def test_a_frame_of_ranks_alone_is_refused():
    with pytest.raises(InputError, match="rank"):
        comparison_figure(study({"metric": "gamma_abs", "rank": 1, "value": 0.1}))
    with pytest.raises(InputError, match="per_head"):
        comparison_figure(study({"metric": "LCKA", "input": "i0", "layer": 0, "head": 1, "value": 0.2}))


def test_values_of_a_sweep_have_the_ends_of_their_own_statistic():
    frame = study(
        *(
            {"metric": "LCKA", "statistic": name, "value": value}
            for name, value in (("mean", 0.5), ("std", 0.1), ("low", 0.4), ("high", 0.6))
        ),
        *(
            {"metric": "MOC", "statistic": name, "value": value}
            for name, value in (("max", 0.9), ("std of max", 0.2), ("low of max", 0.7), ("high of max", 1.0))
        ),
    )
    rows = comparison._with_ends(frame, 5)
    numbers = rows[["metric", "value", "low", "high", "n"]].values.tolist()
    assert numbers == [["LCKA", 0.5, 0.4, 0.6, 5], ["MOC", 0.9, 0.7, 1.0, 5]]
    assert rows["statistic"].fillna("").tolist() == ["", "max"]
