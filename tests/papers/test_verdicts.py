"""From rows to a verdict, on made-up frames."""

import math
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests

from workbench.core.errors import InputError
from workbench.core.intervals import Finding, interval_at, mean_interval, sign_p
from workbench.frames.results import make_frame
from workbench.papers.published import stated_claims
from workbench.papers.verdicts import (
    EQUIVALENT,
    FAILS,
    HOLDS,
    LOG_T,
    MEDIAN,
    NOT_DIAGNOSTIC,
    OUTCOMES,
    RANDOM_TOO,
    UNDECIDED,
    VERDICTS,
    WIDENED,
    NullBand,
    T,
    adjusted,
    after_warm_up,
    against_nulls,
    controlled,
    counted,
    decide,
    evidence,
    families,
    holm,
    least_favourable,
    mean_over,
    nulls_of,
    outcome,
    parse_measure,
    per_input,
    per_layer,
    probability,
    region,
    rows_of,
    sameness,
    through_training,
    weakest,
)
from workbench.studies import claims_from_records
from workbench.studies.records import claims_record

IDS = ["a", "b", "c"]


def _frame(values, metric="LCKA", **constant):
    return make_frame(values, metric, {"input": IDS}, **constant)


def _overall(value):
    return make_frame([value], "LCKA", {"input": IDS[:1]}).assign(input=pd.NA)


def test_an_expression_is_read_term_by_term():
    first, second, third = parse_measure("h_norm2[statistic=mean,rank=last] / phi_norm2 * LCKA[axis=none]")
    assert first == ("h_norm2", {"statistic": "mean", "rank": "last"}, 1, None)
    assert (second.metric, second.power, third.where, third.power) == ("phi_norm2", -1, {"axis": "none"}, 1)


def test_a_difference_is_read_as_one_term_and_taken_layer_by_layer():
    first, second = parse_measure("(LCKA[axis=none] - KCKA) / (LCKA - MDC)")
    assert (first.metric, first.power, first.less.metric) == ("LCKA", 1, "KCKA")
    assert (second.power, second.less.metric) == (-1, "MDC")
    shape = {"input": IDS[:2], "layer": [0, 1]}
    tables = {
        "LCKA": [[9.0, 500.0], [5.0, 300.0]],
        "KCKA": [[5.0, 100.0], [1.0, 300.0]],
        "MDC": [[1.0, 0.0]] * 2,
    }
    frame = pd.concat([make_frame(values, name, shape) for name, values in tables.items()])
    shares = per_input(frame, parse_measure("(LCKA - KCKA) / (LCKA - MDC)"))
    assert shares.to_dict() == pytest.approx({"a": (4 / 8 + 400 / 500) / 2, "b": (4 / 4 + 0) / 2})


@pytest.mark.parametrize("text", ["", "a[b]", "a[b=]", "a / ", "a+b", "a[b=c", "a / b / "])
def test_an_expression_that_cannot_be_read_is_shown(text):
    with pytest.raises(InputError, match="write name"):
        parse_measure(text)


def test_a_term_selects_by_word_by_absence_and_by_highest_rank():
    shape = {"input": IDS, "head": [0, 1], "rank": [1, 2, 3]}
    ranked = make_frame(np.arange(18.0).reshape(3, 2, 3), "eigenvalue", shape, layer=0)
    ranked = ranked[~((ranked["input"] == "b") & (ranked["rank"] == 3))]  # a shorter text
    (last,) = parse_measure("eigenvalue[rank=last]")
    assert rows_of(ranked, last)["value"].tolist() == [2, 5, 7, 10, 14, 17]
    (second,) = parse_measure("eigenvalue[rank=2]")
    assert rows_of(ranked, second)["value"].tolist() == [1, 4, 7, 10, 13, 16]
    both = pd.concat([ranked, ranked.assign(standardize="per-token", value=0.0)])
    (plain,) = parse_measure("eigenvalue[standardize=none,rank=1]")
    (done,) = parse_measure("eigenvalue[standardize=per-token,rank=1]")
    assert rows_of(both, plain)["value"].tolist() == [0, 3, 6, 9, 12, 15]
    assert set(rows_of(both, done)["value"]) == {0.0}
    with pytest.raises(InputError, match="several standardize"):
        rows_of(both, parse_measure("eigenvalue[rank=1]")[0])


def test_each_input_has_one_value_from_the_analysis_own_averages_where_there_are_any():
    heads = make_frame(
        [[[1.0, 3.0]], [[5.0, 7.0]], [[0.0, 1.0]]], "LCKA", {"input": IDS, "layer": [2], "head": [0, 1]}
    )
    terms = parse_measure("LCKA")
    assert per_input(heads, terms).to_dict() == {"a": 2.0, "b": 6.0, "c": 0.5}
    overall = _overall(9.0)
    averaged = pd.concat([heads, _frame([20.0, 30.0, 40.0]), overall], ignore_index=True)
    assert per_input(averaged, terms).to_dict() == {"a": 20.0, "b": 30.0, "c": 40.0}


def test_a_ratio_is_taken_input_by_input_and_averaged_on_logarithms():
    frame = pd.concat([_frame([2.0, 8.0, 4.0]), _frame([1.0, 1.0, 4.0], "KCKA")])
    ratios = per_input(frame, parse_measure("LCKA / KCKA"))
    assert ratios.to_dict() == {"a": 2.0, "b": 8.0, "c": 1.0}
    found = mean_interval(ratios, ratio=True)
    assert found.value == pytest.approx(16 ** (1 / 3))
    assert found.low * found.high == pytest.approx(found.value**2)
    chained = per_input(frame, parse_measure("LCKA / KCKA / LCKA * KCKA"))
    np.testing.assert_allclose(chained, 1)


@pytest.mark.parametrize(
    ("comparison", "threshold", "published", "inside", "outside"),
    [
        ("<=", "0.3", math.nan, (0.1, 0.3), (0.31, 0.4)),
        ("<", "0", math.nan, (-2, -1), (0, 1)),
        (">=", "100", math.nan, (100, 120), (10, 99)),
        (">", "0", math.nan, (0.1, 0.2), (0, 0)),
        ("between", "1e-4..1e-2", math.nan, (1e-4, 5e-3), (0.011, 0.02)),
        ("near", "10%", 50.0, (45.5, 54.5), (56, 70)),
        ("near", "10%", -50.0, (-54.5, -45.5), (-44, 0)),
        ("> null", "", math.nan, (0.21, 0.3), (0.1, 0.2)),
        ("<= null", "", math.nan, (-1, 0.2), (0.25, 0.3)),
    ],
)
def test_a_claim_holds_inside_fails_outside_and_is_undecided_across(
    comparison, threshold, published, inside, outside
):
    allowed = region(comparison, threshold, published, NullBand("gaussian", 0.1, 0.0, 0.2))
    across = (min(inside[0], outside[0]), max(inside[1], outside[1]))
    for (low, high), verdict in [(inside, HOLDS), (outside, FAILS), (across, UNDECIDED)]:
        assert decide(Finding((low + high) / 2, low, high, 5), allowed) == verdict


def test_nothing_is_decided_without_an_interval_or_without_the_null_level_asked_for():
    assert decide(Finding(1, math.nan, math.nan, 1), (0, 2)) == UNDECIDED
    allowed = region("> null", "", math.nan, None)
    assert allowed is None
    assert decide(Finding(1, 0.9, 1.1, 4), allowed) == UNDECIDED
    with pytest.raises(InputError, match="near"):
        region("roughly", "1", 1.0, None)


def test_null_is_that_of_the_mean_over_everything():
    level = {"null_mean": 0.1, "null_low": 0.0, "null_high": 0.2}
    overall = _overall(0.5)
    rows = [
        _frame([0.4, 0.5, 0.6], null="gaussian").assign(null_mean=9.0),
        overall.assign(null="permutation", **dict.fromkeys(level, 0.7)),
        overall.assign(null="gaussian", **level),
    ]
    terms = parse_measure("LCKA")
    assert nulls_of(pd.concat(rows), terms) == [("gaussian", 0.1, 0.0, 0.2), ("permutation", 0.7, 0.7, 0.7)]
    assert nulls_of(pd.concat(rows[:1]), terms) == []
    assert nulls_of(pd.concat(rows), parse_measure("LCKA / LCKA")) == []


def test_a_null_that_always_gives_the_observed_value_is_left_out():
    same = _overall(0.5).assign(null="permutation", null_mean=0.5, null_low=0.5 - 1e-14, null_high=0.5)
    other = _overall(0.5).assign(null="gaussian", null_mean=0.5, null_low=0.4, null_high=0.6)
    (kept,) = nulls_of(pd.concat([same, other]), parse_measure("LCKA"))
    assert kept.null == "gaussian"


def test_gaussian_values_do_not_decide_beside_rotated_ones():
    nothing = dict.fromkeys(
        ("checkpoint", "rank", "axis", "statistic", "convention", "standardize", "candidate")
    )
    columns = {"input": None, "layer": None, "head": None, "metric": "LCKA", "value": 0.2, **nothing}
    rows = [
        {**columns, "null": null, "null_mean": mean, "null_low": mean, "null_high": mean}
        for null, mean in (("gaussian", 0.19), ("permutation", 0.08), ("rotation", 0.07))
    ]
    terms = parse_measure("LCKA")
    assert [band.null for band in nulls_of(pd.DataFrame(rows), terms)] == ["permutation", "rotation"]
    assert [band.null for band in nulls_of(pd.DataFrame(rows[:2]), terms)] == ["gaussian", "permutation"]


def test_the_null_of_a_share_of_an_error_is_the_share_that_its_values_take():
    shape = {"input": IDS[:2], "layer": [0]}
    frame = pd.concat([
        make_frame([[8.0], [4.0]], "LCKA", shape),
        make_frame([[2.0], [3.0]], "KCKA", shape, null="gaussian").assign(
            null_mean=[6.0, 2.0], null_low=[4.0, 1.0], null_high=[8.0, 3.0]
        ),
    ])  # fmt: skip
    terms = parse_measure("(LCKA - KCKA) / (LCKA - KCKA)")
    assert nulls_of(frame, terms) == [("gaussian", 1.0, 1.0, 1.0)]
    (band,) = nulls_of(pd.concat([frame, make_frame([[0.0], [0.0]], "MDC", shape)]), parse_measure(
        "(LCKA - KCKA) / (LCKA - MDC)"))  # fmt: skip
    assert band[1:] == pytest.approx(((2 / 8 + 2 / 4) / 2, (0 + 1 / 4) / 2, (4 / 8 + 3 / 4) / 2))


def test_layers_may_have_conventions_of_their_own_but_not_two_each():
    first, second = (
        _frame([1, 2, 3], layer=0, convention="as_published"),
        _frame([4, 5, 6], layer=1, convention="ours"),
    )
    (term,) = parse_measure("LCKA")
    assert len(rows_of(pd.concat([first, second]), term)) == 6
    with pytest.raises(InputError, match="several convention"):
        rows_of(pd.concat([first, second, second.assign(convention="as_implemented")]), term)


def test_over_layers_every_layer_has_one_value_and_null_is_their_mean():
    values = {"LCKA": ([1.0, 4.0, 2.0], 0.5), "KCKA": ([2.0, 2.0, 8.0], 0.25)}
    frame = pd.concat(
        make_frame(own, name, {"layer": [0, 3, 5]}, null="isotropic").assign(
            null_mean=[level, level + 1, level + 5], null_low=level, null_high=[9, 10, 14]
        )
        for name, (own, level) in values.items()
    )
    alone, ratio = parse_measure("LCKA"), parse_measure("LCKA / KCKA")
    assert per_layer(frame, alone).to_dict() == {0: 1.0, 3: 4.0, 5: 2.0}
    assert per_layer(frame, ratio).to_dict() == {0: 0.5, 3: 2.0, 5: 0.25}
    assert nulls_of(frame, alone, "layers") == [("isotropic", 2.5, 0.5, 11.0)]
    assert nulls_of(frame, ratio, "layers") == []


def test_change_through_training_is_paired_by_input_from_first_to_last_epoch():
    late = _frame([2.0, 3.0, 5.0], checkpoint="late")
    early = _frame([1.0, 1.0, 1.0], checkpoint="early").iloc[::-1]
    middle = _frame([100.0, 100.0, 100.0], checkpoint="middle")
    frame, terms = pd.concat([late, early, middle]), parse_measure("LCKA")
    epochs = {"late": 30, "early": 0, "middle": 3}
    (change,) = through_training(frame, terms, "last - first", epochs)
    assert change.value == pytest.approx(7 / 3)
    (ratio,) = through_training(frame, terms, "last / first", epochs)
    assert ratio.value == pytest.approx(30 ** (1 / 3))
    every = through_training(frame, terms, "every checkpoint", epochs)
    assert [found.value for found in every] == pytest.approx([1, 100, 10 / 3])


def test_one_epoch_that_fails_fails_the_claim():
    tight, near, across, beyond = (Finding(m, m - 1, m + 1, 3) for m in (20, 12, 10, 5))
    allowed = (10, math.inf)
    assert weakest([tight, near], allowed) == (near, HOLDS)
    assert weakest([tight, across, near], allowed) == (across, UNDECIDED)
    assert weakest([tight, beyond, across], allowed) == (beyond, FAILS)


def test_the_metric_and_not_the_values_says_what_is_averaged():
    decades, close = pd.Series([1e-3, 1e-2, 1.0, 300.0, 7.0, 8.0]), pd.Series([2.0, 2.5, 3.0])
    norm, share, signed = (parse_measure(text) for text in ("phi_norm2", "span_share", "projection_error"))
    for values in (decades, close):
        assert mean_over(values, norm) == (mean_interval(values, ratio=True), LOG_T)
    assert mean_over(close, norm, "near") == (
        mean_interval(close),
        T,
    )  # what is printed is an arithmetic mean
    finding, how = mean_over(pd.Series([-1.0, 2.0, 3.0, 5.0, 8.0, 1e6]), signed)
    assert (how, finding.value, finding.low, finding.high) == (MEDIAN, 4.0, -1.0, 1e6)
    assert math.isnan(mean_over(close, signed)[0].low)  # three values have no interval of a median
    assert mean_over(decades, parse_measure("phi_norm2 / h_norm2"))[1] == LOG_T
    bounded, how = mean_over(pd.Series([0.9, 1.0, 1.0]), share)
    assert (bounded.high, how) == (1, T)
    assert bounded.low == mean_interval(pd.Series([0.9, 1.0, 1.0])).low
    assert math.isnan(mean_over(pd.Series([0.5]), share)[0].low)


def test_a_p_is_below_five_percent_exactly_where_the_interval_decides():
    values = pd.Series([0.9, 1.4, 0.7, 1.2, 1.1, 0.8])
    finding = mean_interval(values)
    for end in (finding.low, finding.high):
        assert probability(finding, (end, math.inf)) == pytest.approx(0.05)
    assert probability(finding, (0.8, math.inf)) == pytest.approx(stats.ttest_1samp(values, 0.8).pvalue)
    inside, wide = (0.8, 1.5), (-math.inf, 5.0)
    assert probability(finding, inside) == pytest.approx(
        stats.ttest_1samp(values, 0.8).pvalue
    )  # the nearer end
    assert probability(finding, wide) == pytest.approx(stats.ttest_1samp(values, 5.0).pvalue)
    logs = mean_interval(values, ratio=True)
    wanted = stats.ttest_1samp(np.log(values), math.log(0.8)).pvalue
    assert probability(logs, (0.8, math.inf), ratio=True) == pytest.approx(wanted)
    signs = mean_over(values, parse_measure("projection_error"))[0]
    assert probability(signs, (0.0, math.inf), partial(sign_p, values)) == pytest.approx(2 * 0.5**6)


@pytest.mark.parametrize(
    ("comparison", "ends", "verdict"),
    [
        ("> null", (0.35, 0.5), HOLDS),
        ("> null", (0.13, 0.27), EQUIVALENT),  # above noise, and by less than a tenth of the way to 1
        ("> null", (0.12, 0.5), UNDECIDED),
        ("> null", (-0.5, 0.05), FAILS),
        ("<= null", (0.35, 0.5), FAILS),
        ("<= null", (0.13, 0.27), EQUIVALENT),
        ("<= null", (-0.5, 0.05), HOLDS),
        ("<= null", (0.2, 0.35), UNDECIDED),
        ("< null", (-0.5, 0.05), HOLDS),
        ("< null", (0.13, 0.27), EQUIVALENT),
        ("< null", (0.05, 0.27), UNDECIDED),
        ("< null", (0.2, 0.35), FAILS),
    ],
)
def test_negligible_is_within_a_stated_margin_of_noise(comparison, ends, verdict):
    null = NullBand("gaussian", 0.2, 0.18, 0.22)  # a tenth of the way from 0.2 to 1 is 0.08
    finding = Finding(sum(ends) / 2, *ends, 5, 4)
    assert against_nulls(finding, comparison, [null], "10%", 1.0).verdict == verdict


def test_a_claim_about_noise_holds_against_every_null_or_not_at_all():
    near, far = NullBand("gaussian", 0.2, 0.18, 0.22), NullBand("permutation", 0.6, 0.58, 0.62)
    finding = Finding(0.45, 0.4, 0.5, 5, 4)
    nearer = against_nulls(finding, "> null", [near, far], "10%", 1.0)
    assert (nearer.verdict, nearer.null) == (FAILS, far)
    assert "gaussian 0.18 to 0.22: holds; permutation 0.58 to 0.62: fails" in nearer.words
    negligible = against_nulls(finding, "<= null", [near, far], "10%", 1.0)
    assert (negligible.verdict, negligible.null) == (FAILS, near)
    assert against_nulls(finding, "> null", [], "10%", 1.0).verdict == UNDECIDED


def test_equal_is_equivalent_within_the_margin_and_not_merely_undecided():
    allowed = region("equals", "1", math.nan, None, "10%")
    assert allowed == pytest.approx((0.9, 1.1))
    same = sameness("equals", allowed, None)
    assert decide(Finding(1.0, 0.95, 1.05, 9), allowed, same) == EQUIVALENT
    assert decide(Finding(1.0, 0.85, 1.05, 9), allowed, same) == UNDECIDED
    assert decide(Finding(1.3, 1.25, 1.35, 9), allowed, same) == FAILS


def _table(ps, **more):
    rows = {
        "paper": "p",
        "model": "m",
        "primary": True,
        "kind": "",
        "stated": "2026-11-23",
        "verdict": HOLDS,
        "why": "w",
        "detectable": 1.0,
    }
    return pd.DataFrame([{**rows, "p": p, "p_adjusted": math.nan, **more} for p in ps])


def test_a_claim_is_decided_beside_the_others_of_its_paper_by_holm():
    table = adjusted(_table([0.001, 0.02, 0.03, 0.9]))
    assert table["p_adjusted"].tolist() == pytest.approx([0.004, 0.06, 0.06, 0.9])
    assert table["verdict"].tolist() == [HOLDS, UNDECIDED, UNDECIDED, UNDECIDED]
    assert "holds by itself (p = 0.02), not among 4 claims (Holm: p = 0.06)" in table["why"][1]
    assert table["detectable"].isna().tolist() == [True, False, False, False]
    others = pd.concat([_table([0.03]), _table([0.001] * 3, primary=False), _table([0.001] * 3, kind="identity"),
                        _table([0.03], model="another"), _table([0.03], paper="q")], ignore_index=True)  # fmt: skip
    assert adjusted(others)["verdict"].eq(HOLDS).all()  # each of them a family of one, or none that counts
    assert len(counted(others)) == 3


@pytest.mark.parametrize("ps", [[0.03], [0.2, 0.01, 0.2, 0.004, 0.9], [0.6, 0.5, 0.02]])
def test_holm_is_that_of_statsmodels(ps):
    assert holm(pd.Series(ps)) == pytest.approx(multipletests(ps, method="holm")[1])


def test_the_adjusted_interval_leaves_out_the_end_of_the_range_where_holm_decides():
    """Differences from 0 of samples: p against 0, and the interval at the level at which Holm judged it."""
    generator = np.random.default_rng(4)
    samples = [pd.Series(generator.normal(shift, 1, 9)) for shift in (1.6, 1.1, 0.9, 0.8, 0.3)]
    findings = [mean_interval(sample) for sample in samples]
    table = _table([stats.ttest_1samp(sample, 0).pvalue for sample in samples])
    table[WIDENED] = [partial(interval_at, finding) for finding in findings]
    table = adjusted(table.assign(low_adjusted=math.nan, high_adjusted=math.nan))
    assert WIDENED not in table
    clears = (table["low_adjusted"] > 0) | (table["high_adjusted"] < 0)
    assert clears.tolist() == (table["p_adjusted"] < 0.05).tolist()
    assert 0 < clears.sum() < len(table)
    for finding, row in zip(findings, table.to_dict("records"), strict=True):
        assert row["low_adjusted"] <= finding.low
        assert finding.high <= row["high_adjusted"]
    level = 1 - 0.05 * table["p"][0] / table["p_adjusted"][0]
    wanted = stats.ttest_1samp(samples[0], 0).confidence_interval(level)
    assert (table["low_adjusted"][0], table["high_adjusted"][0]) == pytest.approx((wanted.low, wanted.high))
    aside = adjusted(_table([0.01], primary=False, low_adjusted=math.nan).assign(interval_at=lambda level: 1))
    assert aside["low_adjusted"].isna().all()


def test_claims_stated_later_change_no_earlier_verdict():
    """Seven claims of which one is decided; with six more in one family Holm would undecide it."""
    first = _table([0.0039, 0.06, 0.2, 0.3, 0.5, 0.7, 0.9])
    later = _table([0.2] * 6, stated="2026-11-24")
    alone, both = adjusted(first), adjusted(pd.concat([first, later], ignore_index=True))
    assert alone["verdict"][0] == HOLDS
    pd.testing.assert_frame_equal(both.head(7), alone)
    together = adjusted(pd.concat([first, later.assign(stated="2026-11-23")], ignore_index=True))
    assert together["verdict"][0] == UNDECIDED
    turned = adjusted(pd.concat([later, first], ignore_index=True))
    assert turned["p_adjusted"].tolist()[6:] == alone["p_adjusted"].tolist()


def _supported(**more):
    row = {
        "comparison": ">=", "threshold": "0.1", "margin": "", "published": math.nan, "kind": "", "verdict": HOLDS,
        "null": "gaussian", "null_mean": 0.05, "null_low": 0.04, "null_high": 0.06, "untrained_verdict": None,
        "why": "w",
    }  # fmt: skip
    return pd.DataFrame([row | more])


@pytest.mark.parametrize(
    ("more", "verdict"),
    [
        ({}, HOLDS),
        ({"null_low": 0.12, "null_mean": 0.2, "null_high": 0.3}, NOT_DIAGNOSTIC),
        ({"null_low": 0.09, "null_mean": 0.2, "null_high": 0.3}, HOLDS),  # not the whole band
        ({"null_mean": math.nan, "null_low": math.nan, "null_high": math.nan}, HOLDS),
        ({"comparison": "<=", "threshold": "0.5"}, NOT_DIAGNOSTIC),
        ({"comparison": "> null", "threshold": "", "margin": "10%"}, HOLDS),  # decided against it already
        ({"comparison": "equals", "threshold": "1", "margin": "10%", "verdict": EQUIVALENT}, EQUIVALENT),
        (
            {"comparison": "equals", "threshold": "0.05", "margin": "50%", "verdict": EQUIVALENT},
            NOT_DIAGNOSTIC,
        ),
        ({"comparison": "<=", "threshold": "0.5", "verdict": FAILS}, FAILS),
        ({"comparison": "<=", "threshold": "0.5", "verdict": UNDECIDED}, UNDECIDED),
        ({"comparison": "<=", "threshold": "0.5", "kind": "identity"}, HOLDS),
        ({"untrained_verdict": HOLDS}, RANDOM_TOO),
        ({"untrained_verdict": UNDECIDED}, HOLDS),
        ({"untrained_verdict": FAILS}, HOLDS),
        ({"untrained_verdict": HOLDS, "verdict": FAILS}, FAILS),
        ({"untrained_verdict": HOLDS, "kind": "identity"}, HOLDS),
        ({"untrained_verdict": HOLDS, "comparison": "<=", "threshold": "0.5"}, NOT_DIAGNOSTIC),  # noise first
        # to be no more than noise supports "<= null" and refutes "> null"
        ({"untrained_verdict": EQUIVALENT, "comparison": "<= null", "verdict": EQUIVALENT}, RANDOM_TOO),
        ({"untrained_verdict": EQUIVALENT, "comparison": "> null"}, HOLDS),
    ],
)
def test_what_noise_or_random_weights_pass_does_not_hold(more, verdict):
    assert controlled(_supported(**more))["verdict"].item() == verdict


def test_equivalence_refutes_a_claim_of_more_and_every_verdict_has_one_outcome():
    assert outcome({"verdict": EQUIVALENT, "comparison": "> null"}) == FAILS
    assert outcome({"verdict": EQUIVALENT, "comparison": "<= null"}) == HOLDS
    assert {outcome({"verdict": one, "comparison": "<="}) for one in VERDICTS} == {*OUTCOMES}


def test_the_page_of_rules_has_the_numbers_of_the_records():
    """The size of the largest family, and what three seeds can detect of an accuracy."""
    page = (Path(__file__).parents[2] / "docs" / "papers" / "verdicts.md").read_text(encoding="utf-8")
    trained, measured = claims_from_records(), claims_record()
    dates = stated_claims().drop_duplicates(["paper", "label"]).set_index(["paper", "label"])["stated"]
    measured["stated"] = measured.set_index(["paper", "label"]).index.map(dates).fillna("")
    largest = max(len(family) for table in (trained, measured) for family in families(table))
    assert f"a family has at most {largest} members" in " ".join(page.split())
    few = counted(trained).query("units == 'seeds' and n == 3 and over == 'model - baseline'")
    points = 100 * few.loc[few["measure"].str.startswith("accuracy"), "detectable"].dropna()
    said = f"three seeds detect differences of {points.min():.0f} to {points.max():.0f} percentage points of accuracy"
    assert said in " ".join(page.split())


def test_one_exception_refutes_what_is_said_of_every_input():
    values = pd.Series([0.3, -1e-9, 2.0])
    assert least_favourable(values, ">=")[:4] == (-1e-9, -1e-9, -1e-9, 3)
    assert decide(least_favourable(values, ">="), (0.0, math.inf)) == FAILS
    assert decide(least_favourable(values, "<="), (-math.inf, 2.0)) == HOLDS


def test_training_begins_where_the_learning_rate_falls():
    assert after_warm_up([0, 1, 2, 3, 5, 30]) == 3
    late, warm = _frame([2.0, 3.0, 5.0], checkpoint="late"), _frame([4.0, 3.0, 10.0], checkpoint="warm")
    frame = pd.concat([_frame([1.0] * 3, checkpoint="early"), warm, late])
    (ratio,) = through_training(
        frame, parse_measure("LCKA"), "last / warm-up", {"early": 0, "warm": 3, "late": 30}
    )
    assert ratio.value == pytest.approx(0.25 ** (1 / 3))


def test_models_with_different_numbers_of_seeds_are_compared_over_those_that_all_have():
    fixed = {"many": (7, 8, 9, 10), "few": (9, 7)}
    seeds, words = evidence(["many", "few"], fixed, {"many": [7, 8, 9, 10], "few": [7, 9]})
    assert {name: set(own) for name, own in seeds.items()} == {"many": {7, 9}, "few": {7, 9}}
    assert words.endswith(", 2 and 2")
    assert evidence(["many"], fixed, {"many": [7, 8, 9, 10]})[0] == {"many": (7, 8, 9, 10)}
    nothing, words = evidence(["many", "few"], fixed, {"many": [7, 8, 9, 10], "few": [7]})
    assert nothing == {}
    assert "2 of 2 of many, 1 of 2 of few" in words
