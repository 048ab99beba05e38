"""Planted powers come back, with intervals that hold them."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from workbench.studies.records import conform_scaling, scaling_record
from workbench.studies.scaling import (
    cost_ratios,
    power_findings,
    printed_exponents,
    ratio_findings,
    scaling_exponents,
    times_beside,
)
from workbench.studies.scaling.fits import fitted_power


def _frame(values, metric="seconds_per_sample", operator="tssa", sweep="tokens", axis="tokens"):
    sizes = [2**power for power in range(8, 8 + len(values))]
    rows = [
        {"sweep": sweep, "operator": operator, "condition": "forward", "metric": metric, axis: size, "value": value}
        for size, value in zip(sizes, values, strict=True)
    ]  # fmt: skip
    return conform_scaling(pd.DataFrame(rows))


@pytest.mark.parametrize("power", [0.0, 1.0, 1.7, 2.0])
def test_an_exact_power_law_gives_its_exponent_and_no_interval(power):
    sizes = np.array([3.0, 7.0, 20.0, 50.0])
    slope, half = fitted_power(sizes, 5 * sizes**power)
    assert slope == pytest.approx(power, abs=1e-12)
    assert half == pytest.approx(0, abs=1e-6)


def test_intervals_hold_the_planted_power_nineteen_times_of_twenty():
    rng = np.random.default_rng(3)
    sizes = np.array([1.0, 2.0, 4.0, 8.0])
    held = 0
    for _ in range(2000):
        slope, half = fitted_power(sizes, sizes**1.5 * np.exp(0.1 * rng.normal(size=4)))
        held += abs(slope - 1.5) < half
    assert 0.93 < held / 2000 < 0.97


def test_a_slope_is_of_all_sizes_but_those_at_which_lower_powers_weigh_as_counted():
    sizes = 2.0 ** np.arange(8, 15)
    counted = _frame(sizes * 2**11 + sizes**2, metric="macs")  # half of the operations linear at 2¹¹
    time = _frame(np.where(sizes < 2**10, 1e9, sizes**2))
    fits = scaling_exponents(pd.concat([time, counted])).set_index("source")
    # slopes of the counted curve: 1.17, 1.26, 1.42, 1.58, 1.74, 1.85; within a half of the last from 2¹⁰ on
    slopes = np.diff(np.log2(sizes * 2**11 + sizes**2))
    least = min(size for size, slope in zip(sizes, slopes, strict=False) if slopes[-1] - slope <= 0.5)
    fit = fits.loc["measured"]
    assert (fit["smallest"], fit["largest"], fit["points"]) == (least, 2**14, 5)
    assert fit["value"] == pytest.approx(2)
    assert (fit["metric"], fits.loc["counted", "smallest"]) == ("time_exponent_tokens", least)


def test_a_slope_is_of_all_sizes_where_what_is_counted_grows_evenly_or_is_not_known():
    values = [1.0, 2.1, 3.9, 8.2, 15.8, 32.5, 64.0, 127.0]
    alone = scaling_exponents(_frame(values)).iloc[0]
    even = scaling_exponents(
        pd.concat([_frame(values), _frame([5.0 * 2**k for k in range(8)], metric="macs")])
    )
    assert alone["points"] == even.iloc[0]["points"] == 8
    fit = stats.linregress(np.log(2.0 ** np.arange(8)), np.log(values))
    half = stats.t.ppf(0.975, 6) * fit.stderr
    assert (alone["low"], alone["high"]) == pytest.approx((fit.slope - half, fit.slope + half))


def test_sizes_are_chosen_by_what_is_counted_and_never_by_what_is_measured():
    record = scaling_record()
    noise = np.exp(0.5 * np.random.default_rng(1).normal(size=len(record)))
    measured = record["metric"].isin(["seconds_per_sample", "device_memory"])
    other = record.assign(value=record["value"].where(~measured, record["value"] * noise))
    columns = ["sweep", "operator", "condition", "metric", "source", "points", "smallest", "largest"]
    pd.testing.assert_frame_equal(scaling_exponents(record)[columns], scaling_exponents(other)[columns])
    forward = scaling_exponents(record).query(
        "sweep == 'tokens' and condition == 'forward' and source == 'measured'"
    )
    times = forward[forward["metric"].str.startswith("time")].set_index("operator")
    assert times.loc["tssa", "points"] == times.loc["primal", "points"] == 8


def test_exponents_have_the_origin_of_what_they_are_fitted_to():
    frame = _frame([1.0, 2.0, 4.0])
    frame.attrs = {"records": ["points.csv"], "provenance": [{"device": "a CPU"}], "notes": []}
    assert scaling_exponents(frame).attrs == frame.attrs


def test_the_power_of_a_quantity_is_one_sentence_and_a_ratio_is_of_the_largest_common_size():
    softmax = _frame([1.0, 4.0, 16.0, 64.0], operator="softmax")
    frame = pd.concat([_frame([1.0, 2.0, 4.0]), softmax])
    (sentence,) = power_findings(frame, "time")
    assert sentence.startswith("time of a forward pass grows with the tokens to the power of 1.00 [")
    assert sentence.endswith("2.00 [2.00, 2.00] (softmax): slopes over the largest 3 to 4 sizes, 95 % CI.")
    assert power_findings(frame, "memory") == power_findings(frame.iloc[:2], "time") == []
    assert ratio_findings(frame) == ["Attention by tssa takes 25.0 % of the time of softmax (n = 1024)."]
    assert ratio_findings(softmax) == ratio_findings(frame.iloc[:0]) == []


def test_what_is_counted_has_no_interval_and_the_width_is_the_head_dimension():
    counted = scaling_exponents(
        _frame([1, 4, 16], "peak_memory", "xca", "width", "width").assign(tokens=4096)
    ).iloc[0]
    assert (counted["metric"], counted["source"]) == ("memory_exponent_head_dim", "counted")
    assert counted["value"] == pytest.approx(2)
    assert np.isnan(counted["low"])


def test_two_points_are_no_curve():
    assert scaling_exponents(_frame([1.0, 2.0])).empty


def test_printed_exponents_are_those_of_table_1():
    table = printed_exponents().set_index(["sweep", "operator", "metric"])["value"]
    assert table["tokens", "tssa", "time_exponent_tokens"] == 1
    assert table["tokens", "softmax", "memory_exponent_tokens"] == 2
    assert table["width", "xca", "time_exponent_head_dim"] == 2
    assert "causal" not in table.index.get_level_values("sweep")


def test_times_are_compared_where_both_runs_have_a_point():
    record = pd.concat([_frame([1.0, 2.0, 4.0]), _frame([3.0, 9.0], operator="softmax")])
    memory = _frame([7.0, 7.0], metric="peak_memory")
    now = pd.concat([_frame([2.0, 3.0, 12.0, 99.0]), memory, _frame([5.0], operator="xca")])
    assert times_beside(now, record) == "Times in this run over those on record: tssa 1.5 to 3.0."
    assert times_beside(_frame([5.0], operator="xca"), record) == ""


def test_costs_of_token_statistics_are_one_sentence_over_the_sweeps_at_the_largest_common_size():
    rows = [
        {
            "operator": operator,
            "sweep": sweep,
            "condition": "forward",
            "metric": metric,
            "tokens": 1024,
            "value": value,
        }
        for operator, sweep, values in (
            ("tssa", "tokens", (1.0, 3.0)),
            ("softmax", "tokens", (4.0, 4.0)),
            ("tssa-causal", "causal", (1.0, 6.0)),
            ("softmax-causal", "causal", (2.0, 4.0)),
        )
        for metric, value in zip(("seconds_per_sample", "device_memory"), values, strict=True)
    ]
    frame = pd.DataFrame(rows)
    assert cost_ratios(frame) == (
        "Token statistics take 25 % of softmax's time and 75 % of its memory at 1024 tokens; "
        "causal ones 50 % and 150 %."
    )
    assert cost_ratios(frame[frame["operator"] == "tssa"]) == ""
