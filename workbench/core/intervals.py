"""95 % confidence intervals of means, differences, ratios, shares and slopes.

scipy and statsmodels compute them. This module chooses the unit of sampling, handles samples that are too small, and
takes ratios on logarithms.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

LEVEL = 0.95
FEW_NULL_SAMPLES = 40
"""Smallest number of null samples with a 95 % range: 2.5 % of them is one sample."""
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


class Finding(NamedTuple):
    """A measured quantity with its 95 % confidence interval over ``n`` units of sampling; NaN where there is none.

    ``freedom`` are the degrees of freedom of a t-interval, infinite for a normal distribution's, NaN for another.
    """

    value: float
    low: float
    high: float
    n: int
    freedom: float = math.nan

    def words(self, format: str = ".2f") -> str:
        """Format the value with its interval, if any, in brackets: "0.31 [0.28, 0.33]"."""
        format = f"+z{format[1:]}" if format.startswith("+") else f"z{format}"  # no negative zero
        ends = "" if math.isnan(self.low) else f" [{self.low:{format}}, {self.high:{format}}]"
        return f"{self.value:{format}}{ends}".replace("-", "−")

    def within(self, low: float, high: float) -> Finding:
        """Clip the interval to the quantity's bounds, such as 0 and 1 for a share."""
        return self._replace(low=max(self.low, low), high=min(self.high, high))

    def over(self, unit: str) -> str:
        """Describe the sample in words: "mean over 25 inputs, 95 % CI"."""
        return f"mean over {self.n} {unit if self.n != 1 else unit.removesuffix('s')}" + (
            "" if math.isnan(self.low) else ", 95 % CI"
        )


def interval_words(value: float, low: float, high: float, against: Sequence[float] = ()) -> str:
    """Format a value and its interval with enough digits to separate the ends from each other and from ``against``.

    An asymmetric interval over decades has three digits per end. One that is close to a whole number is written as a
    distance from it: "1 + [−3.7, 1.3]·10⁻⁷". Equal ends belong to an exact number and are not printed.
    """
    if not math.isfinite(value):
        return f"{value:g}"
    ends = [value] if not math.isfinite(high - low) or low == high else [value, low, high]
    even = math.isclose(low + high, 2 * value, rel_tol=1e-3)
    if min(ends) > 0 and max(ends) > 30 * min(ends) and not even:
        return _bracketed([_three_digits(end) for end in ends])
    levels = [level for level in against if math.isfinite(level)]
    near = 1e-3 * abs(value) if len(ends) > 1 else 0.0
    anchors = (target for target in (*levels, round(value)) if 0 < abs(target) < 100)
    anchor = next((target for target in anchors if all(abs(end - target) < near for end in ends)), 0.0)
    size = max(abs(end - anchor) for end in ends)
    if not size:
        return "0"
    power = math.floor(math.log10(size)) if anchor or not 1e-2 <= size < 1e5 else 0
    numbers = [(end - anchor) / 10.0**power for end in ends]
    spread = max(numbers) - min(numbers) or abs(numbers[0]) / 20
    digits = max(
        0, -math.floor(math.log10(spread / 10))
    )  # two of half the spread if it begins with 1 to 4, else one
    shifted = [(level - anchor) / 10.0**power for level in levels]
    while digits < 9 and any(
        f"{level:.{digits}f}" == f"{number:.{digits}f}" and level != number
        for level in shifted
        for number in numbers
    ):
        digits += 1
    words = [f"{number:.{digits}f}" for number in numbers]
    text = _bracketed([word if float(word) else word.removeprefix("-") for word in words])
    text = f"{anchor:g} + {text[text.index('[') :]}" if anchor else text
    return (text + (f"·10{str(power).translate(_RAISED)}" if power else "")).replace("-", "−")


def _bracketed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{words[0]} [{words[1]}, {words[2]}]"


def _three_digits(number: float) -> str:
    if 1e-3 <= number < 1e5:
        return f"{float(f'{number:.3g}'):.15g}"
    digits, power = f"{number:.1e}".split("e")
    return f"{digits}·10{str(int(power)).translate(_RAISED)}"


def mean_interval(values: pd.Series, *, ratio: bool = False) -> Finding:
    """Return the mean with its t-interval; for ratios the geometric mean, with the interval taken on logarithms.

    One value, or a value that is not finite, has no interval (NaN).
    """
    from scipy import stats

    numbers = _numbers(values, ratio)
    if not len(numbers):
        return Finding(math.nan, math.nan, math.nan, 0)
    mean, low, high = numbers.mean(), math.nan, math.nan
    rounding = 4 * np.finfo(float).eps * np.abs(numbers).max()
    if np.isfinite(numbers).all() and np.ptp(numbers) <= rounding and len(numbers) > 1:
        low = high = mean  # scipy finds no interval of zeros, and warns of rounding for other equal values
    elif np.isfinite(numbers).all() and len(numbers) > 1:
        low, high = stats.ttest_1samp(numbers, 0).confidence_interval(LEVEL)
    return _finding(mean, low, high, len(numbers), ratio, len(numbers) - 1)


def median_interval(values: pd.Series, level: float = LEVEL) -> Finding:
    """Return the median with the distribution-free interval of the sign test, for six values or more.

    The mean of a signed quantity that spans decades is dominated by its largest values, and no t-interval of it has
    95 % coverage. A higher ``level`` needs more values; with too few the ends are NaN.
    """
    from scipy import stats

    numbers = values.to_numpy(dtype=float)
    if not len(numbers):
        return Finding(math.nan, math.nan, math.nan, 0)
    low = high = math.nan
    if np.isfinite(numbers).all() and 2 * 0.5 ** len(numbers) <= 1 - level:
        low, high = stats.quantile_test(numbers, p=0.5).confidence_interval(level)
    return Finding(float(np.median(numbers)), float(low), float(high), len(numbers))


def sign_p(values: pd.Series, level: float) -> float:
    """Return the two-sided p of the sign test for the hypothesis that the median is ``level``."""
    from scipy import stats

    return float(stats.quantile_test(values.to_numpy(dtype=float), q=level, p=0.5).pvalue)


def permutation_p(first: pd.Series, second: pd.Series, level: float = 0.0, *, ratio: bool = False) -> float:
    """Return the two-sided p of the exact permutation test for the hypothesis that the means differ by ``level``.

    Every division of the values into two samples of these sizes is compared; no distribution is assumed. A ratio is
    compared on logarithms. Three values a side give 0.1 or more; fewer than two a side give NaN.
    """
    if ratio and level <= 0:
        return math.nan
    first_values, second_values = (_numbers(side, ratio) for side in (first, second))
    if min(len(first_values), len(second_values)) < 2:
        return math.nan
    # scipy's permutation_test gives the same and takes twenty times as long.
    pooled = np.concatenate([first_values - (math.log(level) if ratio else level), second_values])
    divisions = [*itertools.combinations(range(len(pooled)), len(first_values))]
    sums = pooled[np.array(divisions)].sum(axis=1)  # the difference of means grows with it
    rounding = 1e-14 * np.abs(pooled).sum()
    tails = (sums >= sums[0] - rounding).mean(), (sums <= sums[0] + rounding).mean()
    return float(min(1.0, 2 * min(tails)))


def p_value(finding: Finding, level: float, *, ratio: bool = False) -> float:
    """Return the two-sided p of the hypothesis that the quantity is ``level``; below 0.05 if the interval excludes it.

    The interval is inverted (Altman & Bland 2011): its half width on the side of ``level`` is a standard error times
    the quantile of t with ``freedom`` degrees. NaN without an interval or its degrees of freedom.
    """
    from scipy import stats

    if ratio and level <= 0:
        return math.nan if math.isnan(finding.low) else 0.0
    ends = (finding.value, finding.low, finding.high, level)
    value, low, high, level = (math.log(end) if ratio and end > 0 else end for end in ends)
    if math.isnan(low) or math.isnan(high):
        return math.nan
    if low == high:  # an exact number
        return 1.0 if level == value else 0.0
    if math.isnan(finding.freedom):
        return math.nan
    # an interval that ends at the bound of its quantity is whole on the other side
    symmetric = max(high - value, value - low)
    half = symmetric if math.isfinite(finding.freedom) else (high - value if level > value else value - low)
    quantile = stats.t.ppf((1 + LEVEL) / 2, finding.freedom)
    return float(2 * stats.t.sf(quantile * abs(level - value) / half, finding.freedom)) if half else 0.0


def interval_at(
    finding: Finding,
    level: float,
    *,
    ratio: bool = False,
    bounds: tuple[float, float] = (-math.inf, math.inf),
) -> tuple[float, float]:
    """Return the ends of the interval at another ``level`` than 95 %, the inverse of `p_value`.

    It leaves out a number exactly where that number's p is below 1 − ``level``. It ends at the ``bounds`` of the
    quantity. NaN without an interval or its degrees of freedom.
    """
    from scipy import stats

    value, low, high = (math.log(end) if ratio and end > 0 else end for end in finding[:3])
    if low == high:
        return finding.low, finding.high
    if math.isnan(low) or math.isnan(high) or math.isnan(finding.freedom):
        return math.nan, math.nan
    wider = stats.t.ppf((1 + level) / 2, finding.freedom) / stats.t.ppf((1 + LEVEL) / 2, finding.freedom)
    below, above = value - low, high - value
    if math.isfinite(
        finding.freedom
    ):  # one that ends at the bound of its quantity is whole on the other side
        below = above = max(below, above)
    ends = (value - wider * below, value + wider * above)
    low, high = (math.exp(end) if ratio else end for end in ends)
    return max(low, bounds[0]), min(high, bounds[1])


def smallest_detectable(finding: Finding, *, ratio: bool = False, power: float = 0.8) -> float:
    """Return the smallest distance from a threshold that a sample of this size and spread detects with this power.

    It is (t₀.₉₇₅ + t₀.₈) standard errors; for a ratio, a factor. NaN without an interval or its degrees of freedom.
    """
    from scipy import stats

    if math.isnan(finding.freedom) or math.isnan(finding.low):
        return math.nan
    value, low, high = (math.log(end) if ratio else end for end in finding[:3])
    quantile = stats.t.ppf((1 + LEVEL) / 2, finding.freedom)
    distance = (quantile + stats.t.ppf(power, finding.freedom)) * max(high - value, value - low) / quantile
    return float(math.exp(distance) if ratio else distance)


def paired_interval(first: pd.Series, second: pd.Series, *, ratio: bool = False) -> Finding:
    """Return the mean difference (or geometric mean ratio) of values paired by label, with its t-interval."""
    first, second = first.align(second, join="inner")
    return mean_interval(first / second if ratio else first - second, ratio=ratio)


def welch_interval(first: pd.Series, second: pd.Series, *, ratio: bool = False) -> Finding:
    """Return the difference of the means of two samples with Welch's interval; for a ratio, on logarithms.

    Two samples without any spread have an interval of width zero. Fewer than two values on a side: no interval.
    """
    from scipy import stats

    first_values, second_values = (_numbers(side, ratio) for side in (first, second))
    difference = first_values.mean() - second_values.mean()
    low = high = freedom = math.nan
    if min(len(first_values), len(second_values)) > 1:
        if np.ptp(first_values) == np.ptp(second_values) == 0:
            low = high = difference  # scipy warns of rounding where all values are equal
        else:
            test = stats.ttest_ind(first_values, second_values, equal_var=False)
            (low, high), freedom = test.confidence_interval(LEVEL), float(test.df)
    return _finding(difference, low, high, len(first_values), ratio, freedom)


def random_effects_interval(effects: pd.Series, variances: pd.Series) -> Finding:
    """Return the mean effect over several data sets, treated as a random sample of data sets.

    Random effects with the variance between data sets by DerSimonian and Laird, and the t-interval of Hartung, Knapp,
    Sidik and Jonkman with one degree of freedom less than data sets. No interval of fewer than two data sets, or where
    an estimate has no variance.
    """
    from statsmodels.stats.meta_analysis import combine_effects

    has_variance = variances.notna() & (variances > 0)
    if len(effects) < 2 or not has_variance.all():
        return Finding(float(effects.mean()), math.nan, math.nan, len(effects))
    with np.errstate(invalid="ignore"):
        combined = combine_effects(effects.to_numpy(float), variances.to_numpy(float), method_re="dl")
    # statsmodels lets the variance between data sets be negative; then it is 0, and the effect is one
    kind = "re" if combined.tau2 > 0 else "fe"
    mean = float(getattr(combined, f"mean_effect_{kind}"))
    freedom = len(effects) - 1
    half = float(half_width(math.sqrt(getattr(combined, f"var_hksj_{kind}")), freedom))
    return Finding(mean, mean - half, mean + half, len(effects), freedom)


def crossed_interval(first: np.ndarray, second: np.ndarray) -> Finding:
    """Return the difference of the means of two tables (a row per seed, a column per input) with common inputs.

    Welch's interval over seeds, widened by the variance from the choice of inputs. With s² the variance of a table's
    means by seed, r the residual variance after seeds and inputs, and v the variance of the differences of the inputs'
    means, SE² = Σ s²/S + max(0, v − Σ r/S)/I: seeds are nested in models, inputs cross both, both are random (the
    model of Obuchowski & Rockette 1995, of readers and cases). Satterthwaite's degrees of freedom; n counts seeds.
    statsmodels fits the same model by iteration (`MixedLM`), and not where a component is zero.
    """
    return _crossed([first, second])


def crossed_mean_interval(table: np.ndarray) -> Finding:
    """Return the mean of one table (a row per seed, a column per input) with its interval over seeds and inputs.

    The model of `crossed_interval` with one side: SE² = s²/S + max(0, v − r/S)/I, with v the variance of the inputs'
    means. One seed or one input: no interval.
    """
    return _crossed([table])


def _crossed(sides: Sequence[np.ndarray]) -> Finding:
    """Return the mean of the first table, minus that of the second, if any."""
    tables = [np.asarray(side, dtype=float) for side in sides]
    contrast = [1.0, -1.0][: len(tables)]
    counts, inputs = [len(side) for side in tables], tables[0].shape[1]
    value = float(sum(sign * side.mean() for sign, side in zip(contrast, tables, strict=True)))
    if min(*counts, inputs) < 2:
        return Finding(value, math.nan, math.nan, counts[0])
    parts = [side.mean(1).var(ddof=1) / len(side) for side in tables]
    unexplained = 0.0
    for side in tables:
        rest = side - side.mean(1, keepdims=True) - side.mean(0) + side.mean()
        unexplained += (rest**2).sum() / ((len(side) - 1) * (inputs - 1)) / len(side)
    by_input = sum(sign * side.mean(0) for sign, side in zip(contrast, tables, strict=True))
    parts.append(max(0.0, np.var(by_input, ddof=1) - unexplained) / inputs)
    squared = sum(parts)
    if squared <= np.finfo(float).eps ** 2:  # all that was measured agrees
        return Finding(value, value, value, counts[0], math.inf)
    freedoms = [*(count - 1 for count in counts), inputs - 1]
    freedom = squared**2 / sum(part**2 / free for part, free in zip(parts, freedoms, strict=True))
    half = float(half_width(math.sqrt(squared), freedom))
    return Finding(value, value - half, value + half, counts[0], float(freedom))


def mcnemar_p(first: Sequence[bool], second: Sequence[bool]) -> float:
    """Return McNemar's exact two-sided p over the inputs that only one of two models has right."""
    from statsmodels.stats.contingency_tables import mcnemar

    first_right, second_right = (np.asarray(side, dtype=bool) for side in (first, second))
    table = [
        [(first_right & second_right).sum(), (first_right & ~second_right).sum()],
        [(~first_right & second_right).sum(), (~first_right & ~second_right).sum()],
    ]
    return float(mcnemar(table, exact=True).pvalue)


def newcombe_interval(first: Finding, second: Finding, *, ratio: bool = False) -> Finding:
    """Return the difference (or ratio) of two values from their two intervals (Newcombe 1998, method 10; "MOVER").

    With d the difference, l and u the ends: d − √((v₁ − l₁)² + (u₂ − v₂)²) to d + √((u₁ − v₁)² + (v₂ − l₂)²).
    statsmodels has it for two counts only (`confint_proportions_2indep`), not for perplexities or for exponents.
    """
    (v1, l1, u1), (v2, l2, u2) = (
        (math.log(x) for x in side[:3]) if ratio else side[:3] for side in (first, second)
    )
    difference = v1 - v2
    low = difference - math.hypot(v1 - l1, u2 - v2)
    high = difference + math.hypot(u1 - v1, v2 - l2)
    return _finding(difference, low, high, first.n, ratio, math.inf)


def share_interval(share: float, n: int, level: float = LEVEL) -> Finding:
    """Return a share of ``n`` inputs with Wilson's interval; ``share * n`` need not be a whole number."""
    from statsmodels.stats.proportion import proportion_confint

    low, high = proportion_confint(share * n, n, alpha=1 - level, method="wilson")
    return Finding(share, min(float(low), share), max(float(high), share), n)  # 10 of 10: 1, less a rounding


def half_width(standard_error: Any, freedom: Any) -> Any:
    """Return half the width of the t-interval of an estimate with this standard error (numbers or arrays)."""
    from scipy import stats

    return stats.t.ppf((1 + LEVEL) / 2, freedom) * standard_error


def _numbers(values: pd.Series, ratio: bool) -> np.ndarray:
    numbers = values.to_numpy(dtype=float)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(numbers) if ratio else numbers


def _finding(value: float, low: float, high: float, n: int, ratio: bool, freedom: float) -> Finding:
    return Finding(*(float(np.exp(end) if ratio else end) for end in (value, low, high)), n, freedom)
