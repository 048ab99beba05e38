"""Confidence intervals: of means, differences and ratios, shares and slopes."""

import itertools
import math
import warnings

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.stats.proportion import confint_proportions_2indep

from workbench.core.intervals import (
    Finding,
    crossed_interval,
    crossed_mean_interval,
    half_width,
    interval_at,
    interval_words,
    mcnemar_p,
    mean_interval,
    median_interval,
    newcombe_interval,
    p_value,
    paired_interval,
    permutation_p,
    random_effects_interval,
    share_interval,
    sign_p,
    smallest_detectable,
    welch_interval,
)

ONE, TWO = pd.Series([3.0, 5.0, 4.5]), pd.Series([2.0, 2.5, 3.5, 1.0])


def test_the_interval_of_a_mean_is_that_of_student():
    found = mean_interval(pd.Series([1.0, 2.0, 4.0]))
    # 4.30265 is the 97.5 % point of t with 2 degrees of freedom
    half = 4.30265273 * math.sqrt(((4 / 3) ** 2 + (1 / 3) ** 2 + (5 / 3) ** 2) / 2) / math.sqrt(3)
    assert found == pytest.approx((7 / 3, 7 / 3 - half, 7 / 3 + half, 3, 2))


def test_a_ratio_has_a_geometric_mean_and_an_interval_of_logarithms():
    values = pd.Series([2.0, 8.0, 1.0])
    found, logs = mean_interval(values, ratio=True), mean_interval(np.log(values))
    assert found.value == pytest.approx(16 ** (1 / 3))
    assert found[:3] == pytest.approx([math.exp(end) for end in logs[:3]])


@pytest.mark.parametrize("value", [0.0, 3.0, 0.1])
def test_equal_values_have_an_interval_of_no_width(value):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert mean_interval(pd.Series([value] * 3))[:4] == pytest.approx((value, value, value, 3))
        same = welch_interval(pd.Series([7.0, 7.0]), pd.Series([value] * 3))
    assert same[:4] == pytest.approx((7 - value, 7 - value, 7 - value, 2))


def test_without_a_second_value_or_a_finite_one_there_is_no_interval():
    assert math.isnan(mean_interval(pd.Series([1.0])).low)
    assert math.isnan(mean_interval(pd.Series([1.0, 0.0]), ratio=True).high)
    assert mean_interval(pd.Series([], dtype=float)).n == 0
    assert math.isnan(welch_interval(pd.Series([1.0]), TWO).low)


def test_the_interval_of_two_means_is_welch_s():
    found = welch_interval(ONE, TWO)
    # by hand: d ± t √(s₁²/n₁ + s₂²/n₂) with Welch's degrees of freedom
    parts = [side.var(ddof=1) / len(side) for side in (ONE, TWO)]
    freedom = sum(parts) ** 2 / sum(
        part**2 / (len(side) - 1) for part, side in zip(parts, (ONE, TWO), strict=True)
    )
    half = stats.t.ppf(0.975, freedom) * math.sqrt(sum(parts))
    difference = ONE.mean() - TWO.mean()
    assert found == pytest.approx((difference, difference - half, difference + half, 3, freedom))


def test_what_is_detectable_is_what_a_test_of_this_power_would_find():
    from statsmodels.stats.power import TTestPower

    values = pd.Series([0.2, 0.5, -0.1, 0.4, 0.3, 0.1])
    least = smallest_detectable(mean_interval(values))
    # the formula takes t in the place of the noncentral t, and is a little off for six values
    power = TTestPower().power(least / values.std(), len(values), 0.05)
    assert power == pytest.approx(0.8, abs=0.02)
    as_factor = smallest_detectable(mean_interval(np.exp(values), ratio=True), ratio=True)
    assert math.log(as_factor) == pytest.approx(least)
    assert math.isnan(smallest_detectable(share_interval(0.5, 10)))


def test_the_interval_of_a_median_is_that_of_the_sign_test():
    values = pd.Series([5.0, -2.0, 1e9, 1.0, 3.0, 4.0])
    found = median_interval(values)
    assert (found.value, found.low, found.high, found.n) == (3.5, -2.0, 1e9, 6)  # with six, all of them
    assert math.isnan(median_interval(values[:5]).low)
    assert median_interval(values[:0]).n == 0


def test_the_p_of_a_median_is_that_of_counting_signs():
    values = pd.Series([5.0, -2.0, 1e9, 1.0, 3.0, 4.0, 7.0])
    assert sign_p(values, 0.0) == pytest.approx(2 * (math.comb(7, 6) + math.comb(7, 7)) / 2**7)
    assert sign_p(values, 0.0) == pytest.approx(stats.binomtest(6, 7).pvalue)
    wide = median_interval(values, 0.98)  # seven values: all of them, and no more than 1 − 2/128
    assert (wide.low, wide.high) == (-2.0, 1e9)
    assert math.isnan(median_interval(values, 0.99).low)


@pytest.mark.parametrize(("sizes", "level"), [((3, 3), 0.0), ((5, 5), 0.3), ((3, 4), -0.2)])
def test_the_permutation_p_counts_the_divisions_of_all_values(sizes, level):
    draws = np.random.default_rng(8).normal(0.6, 1, sum(sizes))
    first, second = draws[: sizes[0]], draws[sizes[0] :]
    pooled = np.concatenate([first - level, second])
    gaps = []
    for chosen in itertools.combinations(range(len(pooled)), sizes[0]):
        rest = [index for index in range(len(pooled)) if index not in chosen]
        gaps.append(pooled[list(chosen)].mean() - pooled[rest].mean())
    gaps = np.array(gaps)
    measured = first.mean() - level - second.mean()
    tails = (gaps >= measured - 1e-12).mean(), (gaps <= measured + 1e-12).mean()
    p = permutation_p(pd.Series(first), pd.Series(second), level)
    assert p == pytest.approx(min(1.0, 2 * min(tails)))
    ratio = permutation_p(pd.Series(np.exp(first)), pd.Series(np.exp(second)), math.exp(level), ratio=True)
    assert ratio == pytest.approx(p)


def test_divisions_that_tie_with_the_measured_one_count_on_both_sides():
    first, second = pd.Series([0.3, 0.1, 0.7]), pd.Series([0.1, 0.3, 0.2, 0.7])
    library = stats.permutation_test(
        (first, second), lambda left, right: np.mean(left) - np.mean(right), n_resamples=np.inf
    )
    assert permutation_p(first, second) == pytest.approx(library.pvalue)


def test_three_values_a_side_never_give_a_permutation_p_below_a_tenth():
    assert permutation_p(pd.Series([1.0, 1.1, 1.2]), pd.Series([9.0, 9.1, 9.2])) == pytest.approx(0.1)
    assert math.isnan(permutation_p(pd.Series([1.0]), pd.Series([9.0, 9.1])))


@pytest.mark.parametrize("ratio", [False, True])
def test_an_interval_at_the_level_of_a_p_ends_at_the_number_that_it_is_of(ratio):
    finding = mean_interval(ONE.abs() + 1, ratio=ratio)
    assert interval_at(finding, 0.95, ratio=ratio) == pytest.approx((finding.low, finding.high))
    for number in (0.7 * finding.low, 1.3 * finding.high):
        p = p_value(finding, number, ratio=ratio)
        assert min(abs(end - number) for end in interval_at(finding, 1 - p, ratio=ratio)) < 1e-9
    wanted = stats.ttest_1samp(ONE, 0).confidence_interval(0.99)
    assert interval_at(mean_interval(ONE), 0.99) == pytest.approx((wanted.low, wanted.high))


def test_a_wider_interval_ends_where_its_quantity_does():
    share = mean_interval(pd.Series([0.8, 1.0, 0.99])).within(0, 1)
    whole = stats.ttest_1samp([0.8, 1.0, 0.99], 0.5).confidence_interval(0.99)
    assert interval_at(share, 0.99, bounds=(0, 1)) == pytest.approx((whole.low, 1.0))
    assert interval_at(Finding(2.0, 2.0, 2.0, 3), 0.99) == (2.0, 2.0)
    assert math.isnan(interval_at(Finding(2.0, math.nan, math.nan, 1), 0.99)[0])


def test_a_p_is_that_of_the_test_whose_interval_it_is():
    assert p_value(mean_interval(ONE), 0.5) == pytest.approx(stats.ttest_1samp(ONE, 0.5).pvalue)
    difference = welch_interval(ONE, TWO)
    assert p_value(difference, 0) == pytest.approx(stats.ttest_ind(ONE, TWO, equal_var=False).pvalue)
    bounded = mean_interval(pd.Series([0.8, 1.0, 0.99])).within(0, 1)
    assert p_value(bounded, 0.5) == pytest.approx(stats.ttest_1samp([0.8, 1.0, 0.99], 0.5).pvalue)
    exact = mean_interval(pd.Series([2.0, 2.0]))
    assert (p_value(exact, 2.0), p_value(exact, 1.0)) == (1.0, 0.0)
    assert math.isnan(p_value(mean_interval(pd.Series([2.0])), 1.0))
    assert p_value(mean_interval(ONE.abs() + 1, ratio=True), 0.0, ratio=True) == 0.0


def test_a_ratio_of_means_is_a_difference_of_logarithms():
    found, logs = welch_interval(ONE, TWO, ratio=True), welch_interval(np.log(ONE), np.log(TWO))
    assert found[:3] == pytest.approx([math.exp(end) for end in logs[:3]])
    turned = welch_interval(TWO, ONE, ratio=True)
    assert (turned.low, turned.high) == pytest.approx((1 / found.high, 1 / found.low))


def test_pairs_are_matched_by_label_not_by_place():
    first = pd.Series([1.0, 2.0, 4.0], index=["a", "b", "c"])
    second = pd.Series([4.5, 1.0, 2.5], index=["c", "a", "b"])
    found = paired_interval(first, second)
    expected = stats.ttest_rel(first, second[first.index]).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


def test_random_effects_are_those_of_the_formulas():
    """DerSimonian & Laird's variance between data sets, and the interval of Hartung & Knapp, term by term."""
    effects, variances = [0.21, -0.02, 0.05, 0.11], [0.001, 0.004, 0.0005, 0.002]
    weights = [1 / variance for variance in variances]
    common = sum(w * e for w, e in zip(weights, effects, strict=True)) / sum(weights)
    spread = sum(w * (e - common) ** 2 for w, e in zip(weights, effects, strict=True))
    between = (spread - 3) / (sum(weights) - sum(w**2 for w in weights) / sum(weights))
    assert between > 0
    weights = [1 / (variance + between) for variance in variances]
    mean = sum(w * e for w, e in zip(weights, effects, strict=True)) / sum(weights)
    scale = sum(w * (e - mean) ** 2 for w, e in zip(weights, effects, strict=True)) / 3
    half = stats.t.ppf(0.975, 3) * math.sqrt(scale / sum(weights))
    found = random_effects_interval(pd.Series(effects), pd.Series(variances))
    assert found == pytest.approx((mean, mean - half, mean + half, 4, 3))


def test_effects_that_agree_have_no_variance_between_data_sets():
    effects, variances = pd.Series([0.10, 0.11, 0.09]), pd.Series([0.01, 0.02, 0.01])
    weights = 1 / variances
    found = random_effects_interval(effects, variances)
    assert found.value == pytest.approx((weights * effects).sum() / weights.sum())
    assert math.isnan(random_effects_interval(effects, variances * 0).low)
    assert math.isnan(random_effects_interval(effects[:1], variances[:1]).low)


def test_random_effects_cover_the_mean_of_data_sets_where_one_mean_over_seeds_does_not():
    generator = np.random.default_rng(5)
    held = {"random": 0, "one": 0}
    for _ in range(600):
        shift = generator.normal(0.3, 1.0, 5)  # what differs between data sets
        seeds = shift + generator.normal(0, 0.2, (3, 5)), generator.normal(0, 0.2, (3, 5))
        one, other = (pd.DataFrame(side) for side in seeds)
        random = random_effects_interval(one.mean() - other.mean(), one.var() / 3 + other.var() / 3)
        welch = welch_interval(one.mean(axis=1), other.mean(axis=1))
        held["random"] += random.low < 0.3 < random.high
        held["one"] += welch.low < 0.3 < welch.high
    assert 0.9 < held["random"] / 600 < 0.98
    assert held["one"] / 600 < 0.6


def test_crossed_inputs_widen_welch_s_interval_by_what_they_add():
    rng = np.random.default_rng(0)
    seeds = [rng.normal(size=(count, 1)) for count in (5, 4)]
    shared = rng.normal(size=(1, 30))  # an input that is hard for both models tells them not apart
    tables = [side + 10 * shared for side in seeds]
    welch = welch_interval(pd.Series(seeds[0][:, 0]), pd.Series(seeds[1][:, 0]))
    found = crossed_interval(*tables)
    assert (found.value, found.low, found.high) == pytest.approx(welch[:3])
    assert (found.freedom, found.n) == (pytest.approx(welch.freedom), 5)
    own = rng.normal(size=(1, 30))  # one that is hard for the first model alone does
    wider = crossed_interval(tables[0] + own, tables[1])
    error = {
        name: (one.high - one.value) / stats.t.ppf(0.975, one.freedom) for name, one in
        {"with": wider, "without": found}.items()
    }  # fmt: skip
    assert error["with"] ** 2 == pytest.approx(error["without"] ** 2 + own.var(ddof=1) / 30)
    assert math.isnan(crossed_interval(tables[0][:1], tables[1]).low)
    assert crossed_interval(*[np.ones((3, 6))] * 2)[:4] == (0, 0, 0, 3)


def test_crossed_tables_that_agree_have_an_interval_of_no_width_and_the_first_table_s_seeds():
    found = crossed_interval(np.full((3, 5), 2.0), np.full((4, 5), 0.5))
    assert found == (1.5, 1.5, 1.5, 3, math.inf)


def test_crossed_intervals_cover_where_welch_s_over_seeds_alone_does_not():
    rng = np.random.default_rng(1)
    covered = {"crossed": 0, "welch": 0}
    for _ in range(200):
        tables = [
            0.05 * rng.normal(size=(5, 1)) + rng.normal(size=(1, 40)) + 0.3 * rng.normal(size=(5, 40))
            for _ in range(2)
        ]
        for name, found in (
            ("crossed", crossed_interval(*tables)),
            ("welch", welch_interval(*[pd.Series(side.mean(1)) for side in tables])),
        ):
            covered[name] += found.low <= 0 <= found.high
    assert covered["crossed"] > 0.92 * 200
    assert covered["welch"] < 0.5 * 200  # of these inputs, and of no others


def test_the_mean_of_one_table_has_the_variance_of_seeds_and_inputs_that_a_loop_finds():
    rng = np.random.default_rng(2)
    table = rng.normal(size=(4, 1)) + 3 * rng.normal(size=(1, 7)) + 0.5 * rng.normal(size=(4, 7))
    seeds, inputs = table.shape
    mean = sum(table[s, i] for s in range(seeds) for i in range(inputs)) / (seeds * inputs)
    by_seed = [sum(table[s, i] for i in range(inputs)) / inputs for s in range(seeds)]
    by_input = [sum(table[s, i] for s in range(seeds)) / seeds for i in range(inputs)]
    of_seeds = sum((one - mean) ** 2 for one in by_seed) / (seeds - 1)
    of_inputs = sum((one - mean) ** 2 for one in by_input) / (inputs - 1)
    rest = sum(
        (table[s, i] - by_seed[s] - by_input[i] + mean) ** 2 for s in range(seeds) for i in range(inputs)
    )
    rest /= (seeds - 1) * (inputs - 1)
    parts = of_seeds / seeds, max(0, of_inputs - rest / seeds) / inputs
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / (seeds - 1) + parts[1] ** 2 / (inputs - 1))
    half = stats.t.ppf(0.975, freedom) * math.sqrt(sum(parts))
    found = crossed_mean_interval(table)
    assert found == pytest.approx((mean, mean - half, mean + half, seeds, freedom))
    assert math.isnan(crossed_mean_interval(table[:1]).low)  # one seed
    same = np.tile(rng.normal(size=(3, 1)), (1, 6))  # every input alike: the t-interval over seeds
    assert crossed_mean_interval(same)[:4] == pytest.approx(mean_interval(pd.Series(same[:, 0]))[:4])


def test_mcnemar_s_test_is_the_sign_test_of_where_two_models_differ():
    first, second = ([letter == "1" for letter in text] for text in ("1111111110", "0000011001"))
    assert mcnemar_p(first, second) == pytest.approx(stats.binomtest(7, 8).pvalue)
    assert mcnemar_p(first, first) == 1.0


def test_newcombe_s_interval_of_a_published_example():
    # Newcombe (1998), Table II: 56/70 against 48/80, method 10: 0.0524 to 0.3339
    sides = [share_interval(56 / 70, 70), share_interval(48 / 80, 80)]
    found = newcombe_interval(*sides)
    assert (found.value, found.low, found.high) == pytest.approx((0.2, 0.0524, 0.3339), abs=5e-5)
    assert found[1:3] == pytest.approx(confint_proportions_2indep(56, 70, 48, 80, method="newcomb"))


def test_intervals_of_a_ratio_are_those_of_logarithms():
    one, two = Finding(8.0, 4.0, 16.0, 5), Finding(2.0, 1.0, 4.0, 5)
    found = newcombe_interval(one, two, ratio=True)
    reach = math.log(2) * math.sqrt(2)
    assert found[:3] == pytest.approx((4.0, 4 * math.exp(-reach), 4 * math.exp(reach)))


def test_a_share_has_wilson_s_interval_also_where_it_is_of_no_whole_number():
    found = share_interval(3 / 100, 100)
    expected = stats.binomtest(3, 100).proportion_ci(method="wilson")
    assert found[:4] == pytest.approx((0.03, expected.low, expected.high, 100))
    between = share_interval(0.035, 100)
    assert found.low < between.low < share_interval(0.04, 100).low


def test_half_the_interval_of_a_mean_follows_from_its_standard_error():
    found = mean_interval(TWO)
    assert found.high - found.value == pytest.approx(half_width(stats.sem(TWO), len(TWO) - 1))
    assert half_width(np.array([0.0, 1.0]), np.array([3, 3])) == pytest.approx([0, stats.t.ppf(0.975, 3)])


def test_the_interval_of_a_share_lies_around_it_and_within_0_and_1():
    for successes in (0, 3, 10):
        value, low, high, n, _ = share_interval(successes / 10, 10)
        assert (value, n) == (successes / 10, 10)
        assert 0 <= low <= value <= high <= 1
    many, few = share_interval(0.5, 100), share_interval(0.5, 10)
    assert many.high - many.low < few.high - few.low


@pytest.mark.parametrize(
    ("finding", "against", "words"),
    [
        ((0.2076, 0.174, 0.2411), [0.9], "0.208 [0.174, 0.241]"),
        (
            (0.9739, 0.9454, 1.003),
            [1],
            "0.974 [0.945, 1.003]",
        ),  # not "0.974 [0.945, 1]", whose end is the threshold
        ((1.011, 1.0004, 1.02), [1], "1.0110 [1.0004, 1.0200]"),
        ((0.9999999, 0.9999996, 1.0000001), [1], "1 + [−4.0, 1.0]·10⁻⁷"),
        ((0.7613, 0.7613, 0.7613), [1], "0.761"),
        ((4.3e-18, 1.9e-18, 6.8e-18), [1e-12], "4.3 [1.9, 6.8]·10⁻¹⁸"),
        ((0.00112, 6e-5, 0.0211), [100], "0.00112 [6.0·10⁻⁵, 0.0211]"),
        ((0.398, 0.0252, 0.7708), [0], "0.40 [0.03, 0.77]"),
        ((0.005665, 3.37e-6, 0.011327), [0.1], "0.006 [0.000, 0.011]"),
        ((0.0, 0.0, 0.0), [0], "0"),
        ((-3.5, -5.4, -1.64), [-2], "−3.5 [−5.4, −1.6]"),
        ((0.3, math.nan, math.nan), [], "0.300"),
        ((math.inf, math.nan, math.nan), [1], "inf"),
        ((1.0, 0.0, 50.0), [], "1 [0, 50]"),  # an end at 0 is no number of decades away
    ],
)
def test_an_interval_has_the_digits_that_tell_its_ends_from_what_it_is_held_against(finding, against, words):
    assert interval_words(*finding, against=against) == words


def test_a_paired_interval_has_the_standard_error_of_the_differences():
    first, second = pd.Series([1.0, 5.0, 9.0, 13.0]), pd.Series([0.0, 4.5, 8.0, 12.5])
    found = paired_interval(first, second)
    error = np.std([1.0, 0.5, 1.0, 0.5], ddof=1) / 2
    half = stats.t.ppf(0.975, 3) * error
    assert (found.value, found.n) == (0.75, 4)
    assert (found.low, found.high) == pytest.approx((0.75 - half, 0.75 + half))
    ratio = paired_interval(first, second + 1, ratio=True)
    logs = np.log(first / (second + 1))
    half = stats.t.ppf(0.975, 3) * np.std(logs, ddof=1) / 2
    assert np.log([ratio.low, ratio.high]) == pytest.approx([logs.mean() - half, logs.mean() + half])


def test_a_rounded_zero_has_no_sign():
    assert Finding(-0.0004, -0.0012, 0.0001, 3).words(".2f") == "0.00 [0.00, 0.00]"
    assert Finding(-0.004, -0.012, 0.001, 3).words("+.2f") == "+0.00 [−0.01, +0.00]"
    assert Finding(-0.4, math.nan, math.nan, 1).words(".0%") == "−40%"
