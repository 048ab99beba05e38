"""Findings of layers in words."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

from workbench.core.intervals import Finding, mean_interval
from workbench.frames.estimate import (
    compare_with_null,
    counts_finding,
    first_to_last,
    mean_finding,
    null_finding,
    null_range,
    over_inputs,
    range_finding,
    with_means,
)
from workbench.frames.moments import Moments


def test_the_first_and_the_last_layer_are_named_and_a_single_one_once():
    found = {3: Finding(0.5, 0.4, 0.6, 7), 0: Finding(0.25, 0.2, 0.3, 7), 1: Finding(0.9, 0.8, 1.0, 7)}
    assert first_to_last(found) == "0.25 [0.20, 0.30] in layer 0 and 0.50 [0.40, 0.60] in layer 3"
    assert first_to_last(found, ".1f", ", ") == "0.2 [0.2, 0.3] in layer 0, 0.5 [0.4, 0.6] in layer 3"
    assert first_to_last({2: found[3]}) == "0.50 [0.40, 0.60] in layer 2"


def test_the_null_of_a_mean_is_that_of_the_mean_of_draws():
    """Each row's null is normal and drawn apart from the others': the ends of the mean's hold 95 % of its draws."""
    drawn = np.random.default_rng(5)
    spreads = {("a", 0): [1.0, 3.0, 0.5], ("a", 1): [2.0, 2.0], ("b", 0): [0.25]}
    rows = [
        {"metric": "m", "null": "permutation", "who": who, "layer": layer, "head": head, "value": head + spread,
         "null_mean": 10 * layer + head, "null_low": 10 * layer + head - 1.96 * spread,
         "null_high": 10 * layer + head + 1.96 * spread}
        for (who, layer), several in spreads.items() for head, spread in enumerate(several)
    ]  # fmt: skip
    rows[0]["null_low"] += 0.3  # an end that is cut at a bound says less than the other
    frame = pd.DataFrame(rows)
    whole = with_means(frame, ["who", "layer"])
    pd.testing.assert_frame_equal(whole[: len(frame)], frame, check_dtype=False)
    means = whole[len(frame) :].set_index(["who", "layer"])
    assert means["head"].isna().all()
    assert set(means["null"]) == {"permutation"}
    for (who, layer), several in spreads.items():
        draws = drawn.normal(10 * layer + np.arange(len(several)), several, (200_000, len(several))).mean(1)
        found = means.loc[who, layer]
        assert found["value"] == pytest.approx(np.mean(np.arange(len(several)) + several))
        assert found["null_mean"] == pytest.approx(10 * layer + (len(several) - 1) / 2)
        outside = np.mean((draws < found["null_low"]) | (draws > found["null_high"]))
        assert math.isclose(outside, 0.05, abs_tol=0.003)


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        ([("attention-map", {"null_samples": 39})], "range of 39 gaussian null samples"),
        ([("attention-map", {"null_samples": 40})], "95 % range of 40 gaussian null samples"),
        ([("one", {"null_samples": 20}), ("two", {"null_samples": 3}), ("three", {"null_samples": 0})],
         "range of 3 or range of 20 gaussian null samples"),
        ([("token-similarity", {"null_samples": 20, "null": "gaussian"})], "95 % range of the gaussian null"),
        ([("token-similarity", {"null_samples": 20, "null": "permutation"})], "range of 20 gaussian null samples"),
        ([("subspaces", {"null_samples": 20})], "range of 20 gaussian null samples"),
        ([], "95 % range of the gaussian null"),
    ],
)  # fmt: skip
def test_a_range_is_of_95_percent_from_40_null_samples_on_or_where_it_is_exact(runs, words):
    frame = pd.DataFrame()
    frame.attrs["provenance"] = [{"analysis": name, "options": options} for name, options in runs]
    assert null_range(frame, "gaussian") == words
    assert null_range(frame) == words.replace(" gaussian null samples", " null samples").removesuffix(
        " of the gaussian null"
    )


def test_the_range_of_some_analyses_is_of_their_null_samples():
    frame = pd.DataFrame()
    frame.attrs["provenance"] = [
        {"analysis": name, "options": {"null_samples": count}} for name, count in (("one", 20), ("two", 50))
    ]
    assert null_range(frame, analyses={"two"}) == "95 % range of 50 null samples"


def test_layers_below_their_null_range_are_counted():
    rows = pd.DataFrame({
        "layer": [0, 1, 2, 3], "head": pd.NA, "input": pd.NA, "value": [0.0, 0.1, 0.5, 0.9],
        "null_mean": 0.5, "null_low": 0.4, "null_high": 0.6, "null": "permuted keys",
    })  # fmt: skip
    rows.attrs["provenance"] = []
    assert compare_with_null(rows).startswith("; in 1 of 4 layers above and in 2 of 4 layers below the ")
    assert compare_with_null(rows[rows["layer"] == 2]).startswith("; inside the ")


def test_one_sentence_compares_the_layers_of_every_model_with_their_nulls():
    nulls = {"null_low": 0.0, "null_high": 1.0, "null_mean": 0.5}
    values = {("a", 0): 2.0, ("a", 1): 0.5, ("a", 2): 3.0, ("b", 0): -1.0, ("b", 1): 4.0}
    rows = pd.DataFrame([
        {"model": model, "layer": layer, "head": math.nan, "input": None, "value": value, **nulls}
        for (model, layer), value in values.items()
    ]).assign(metric="rank", statistic="mean")  # fmt: skip
    rows.attrs["provenance"] = []
    single = rows.assign(head=0, value=0.5)  # rows of heads do not count beside means
    both = pd.concat([rows, single], ignore_index=True)
    assert (
        null_finding(both, "Rank") == "Rank is above its null range in 2 of 3 layers of a (2.5, null 0.5) "
        "and 1 of 2 layers of b (4.0, null 0.5)."
    )
    assert null_finding(both, "Rank", both=True).endswith("b (4.0, null 0.5), and below it in 1.")
    more = pd.concat([both, rows.assign(model="c"), rows.assign(model="d", value=0.5)])
    assert (
        null_finding(more, "Rank")
        == "Rank is above its null range in 5 of 11 layers of 4 models (2.9, null 0.5)."
    )
    all_above = both[both["value"] > both["null_high"]]
    assert (
        null_finding(all_above, "Rank") == "Rank is above its null range in every layer of a (2.5, null 0.5) "
        "and every layer of b (4.0, null 0.5)."
    )
    lower = both.assign(value=-both["value"], null_low=-1.0, null_high=0.0, null_mean=-0.5)
    assert (
        null_finding(lower, "Rank") == "Rank is below its null range in 2 of 3 layers of a (-2.5, null -0.5) "
        "and 1 of 2 layers of b (-4.0, null -0.5)."
    )
    inside = both.assign(value=both["value"].where(both["model"] == "a", 0.5))
    assert (
        null_finding(inside, "Rank")
        == "Rank is above its null range in 2 of 3 layers of a (2.5, null 0.5) and no layer of b."
    )
    without = rows.assign(null_low=math.nan)
    assert (
        null_finding(without, "Rank") == mean_finding(without, "Rank") == "Rank is 1.83 in a and 1.50 in b."
    )
    thirds = rows.assign(name=list("xyzxy"))
    assert mean_finding(thirds, "Rank", ".1f", by="name") == "Rank is 0.5 in x, 2.2 in y and 3.0 in z."


def test_a_layer_counts_beyond_its_null_range_only_if_its_interval_over_inputs_clears_it():
    columns = ["layer", "input", "value"]
    inputs = [(0, "x", 2.0), (0, "y", 2.2), (0, "z", 2.1), (1, "x", 0.2), (1, "y", 4.0), (1, "z", 2.1)]
    means = [(0, None, 2.1), (1, None, 2.1)]
    rows = pd.DataFrame([*inputs, *means], columns=columns).assign(
        model="a", head=math.nan, metric="rank", null_low=0.0, null_high=1.0, null_mean=0.5
    )
    assert (
        null_finding(rows, "Rank")
        == "Rank is above the null range with its whole CI in 1 of 2 layers of a (2.1, null 0.5)."
    )
    wide = rows[rows["layer"] == 1]
    assert null_finding(wide, "Rank") == "Rank does not clear its null range in any layer of a."
    low = rows.assign(value=-rows["value"], null_low=-1.0, null_high=0.0)
    assert (
        counts_finding({"rank": rows, "the depth": low})
        == "Rank is above its null range in 1 of 2 layers, the depth below in 1 of 2."
    )
    mixed = pd.concat([rows[rows["layer"] == 0].assign(layer=2, null_low=8.0, null_high=9.0), rows])
    assert counts_finding({"rank": mixed}) == "Rank is above its null range in 1 and below in 1 of 3 layers."
    assert counts_finding({"rank": rows, "depth": low, "width": wide}).endswith(
        " layers, depth below in 1 of 2 and width above in 0 of 1."
    )


def test_heads_or_the_values_of_another_column_are_counted_each_beside_its_own_null():
    """Of three heads one is below its own null, though above that of the others; a null near 0 has no more digits."""
    values = {0: (5.0, 8.0, 12.0), 1: (0.5, 0.2, 0.8), 2: (6.0, 0.2, 7.0)}  # value, and the ends of the null
    places = [(head, name) for head in values for name in ("x", "y", "z")]
    heads = pd.DataFrame(
        [
            {
                "layer": 0,
                "head": head,
                "input": name,
                "value": values[head][0] + number / 100,
                "null_low": values[head][1],
                "null_mean": 0.0004,
                "null_high": values[head][2],
            }
            for number, (head, name) in enumerate(places)
        ]
    ).assign(model="a", metric="rank", null="gaussian")
    assert (
        null_finding(heads, "Rank", "head")
        == "Rank is below its null range in 1 of 3 heads of a (5.0, null 0.0)."
    )
    overall = heads.assign(layer=math.nan, head=math.nan, measure=heads["head"].map({0: "u", 1: "v", 2: "w"}))
    means = overall.assign(input=None).drop_duplicates("measure")
    assert (
        null_finding(pd.concat([overall, means]), "It", "measure")
        == "It is below its null range in 1 of 3 measures of a."
    )


def test_the_heads_with_the_smallest_and_the_largest_mean_are_named():
    values = {(0, 0): [3, 5], (0, 1): [9, 1], (2, 0): [0, 1], (2, 1): [2, 2]}
    rows = pd.DataFrame([
        {"layer": layer, "head": head, "value": value}
        for (layer, head), several in values.items() for value in several
    ])  # fmt: skip
    assert (
        range_finding(rows, "Entropy", ".1f")
        == "Entropy runs from 0.5 (layer 2, head 0) to 5.0 (layer 0, head 1)."
    )


@pytest.mark.parametrize(
    ("metric", "values", "ends"),
    [
        ("token_cosine", [0.99, 0.7, 1.0], (None, 1.0)),
        ("attention_entropy", [2.3, 2.0, 2.39], (None, math.log(11))),  # uniform attention over 11 keys
        ("attention_entropy", [0.9, 0.01, 0.05], (0.0, None)),
        ("attention_entropy", [-0.9, 0.01, 0.05], (None, None)),  # a difference
        ("of a plug-in", [0.99, 0.7, 1.0], (None, None)),
    ],
)
def test_an_interval_over_inputs_ends_at_the_bounds_of_its_metric(metric, values, ends):
    rows = pd.DataFrame({"metric": metric, "input": list("abc"), "value": values, "null": "uniform"})
    whole = mean_interval(rows["value"])
    expected = [end if bound is None else bound for end, bound in zip(whole[1:3], ends, strict=True)]
    assert over_inputs(rows.assign(null_mean=math.log(11)))[:3] == (whole.value, *expected)


def test_an_interval_of_kept_statistics_ends_at_the_bounds_too():
    values = torch.tensor([0.99, 0.7, 1.0])
    for metric, high in (("attention_sink", 1.0), ("of a plug-in", mean_interval(pd.Series(values)).high)):
        moments = Moments({"metric": metric}, ())
        moments.add(values)
        assert moments.statistics()["high"].item() == pytest.approx(high)
