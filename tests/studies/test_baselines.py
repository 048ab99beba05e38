"""Trained variants beside their baseline: what curves come to, and what their seeds tell apart."""

import math

import numpy as np
import pandas as pd
import pytest

from workbench.core.errors import InputError, MissingResource, UnknownName
from workbench.core.intervals import (
    mean_interval,
    paired_interval,
    welch_interval,
)
from workbench.frames.results import conform
from workbench.papers.published import published
from workbench.studies import baselines, claims_from_records
from workbench.studies.baselines import (
    change_findings,
    change_in_training,
    compared,
    ends_and_speed,
    exact_shares,
    narrowed,
    printed_ends,
    ratio_at_the_end,
    recorded_curves,
    share_findings,
    stated_baselines,
    versus_baseline,
)
from workbench.studies.seeds import CONFIRMATORY

PAIRS = [("bundled:digits-vit", "bundled:digits")]
ACCURACY = {  # model → accuracy by epoch, of two seeds
    "baseline": ([0.1, 0.4, 0.7, 0.8], [0.1, 0.5, 0.6, 0.9]),
    "quick": ([0.2, 0.8, 0.9, 0.85], [0.1, 0.75, 0.9, 0.95]),
    "never": ([0.1, 0.2, 0.2, 0.3], [0.1, 0.1, 0.2, 0.2]),
}
ATTENTION = {"baseline": "softmax", "quick": "bilateral", "never": "tssa"}


def curves(values=ACCURACY, metric="accuracy", task="digits"):
    """A training record of these models: the metric as given, and a loss of 1 − accuracy."""
    rows = []
    for model, runs in values.items():
        for seed, run in enumerate(runs):
            for epoch, value in enumerate(run):
                about = {
                    "model": model,
                    "run": f"{model}-{seed}",
                    "task": task,
                    "attention": ATTENTION[model],
                }
                about |= {"seed": seed, "epoch": epoch, "split": "test", "unit": ""}
                rows.append(about | {"metric": metric, "value": value})
                rows.append(about | {"metric": "loss", "value": 1 - value})
    return pd.DataFrame(rows)


def ends(frame, model, quantity):
    return frame[(frame["model"] == model) & (frame["quantity"] == quantity)]


def test_the_mean_loss_is_the_area_under_the_curve_and_the_threshold_is_passed_once():
    found = ends_and_speed(curves(), 0.7)
    (area, other) = ends(found, "baseline", "mean_loss")["value"]
    assert area == pytest.approx((0.9 / 2 + 0.6 + 0.3 + 0.2 / 2) / 3)  # trapezoids of width 1, over 3 epochs
    assert other == pytest.approx((0.9 / 2 + 0.5 + 0.4 + 0.1 / 2) / 3)
    assert list(ends(found, "baseline", "epochs_to_threshold")["value"]) == pytest.approx([2, 2 + 1 / 3])
    quick = list(ends(found, "quick", "epochs_to_threshold")["value"])
    assert quick == pytest.approx([0.5 / 0.6, 0.6 / 0.65])  # of the way from epoch 0 to 1
    assert ends(found, "never", "epochs_to_threshold")["value"].isna().all()
    assert list(ends(found, "baseline", "accuracy")["value"]) == [0.8, 0.9]
    assert "perplexity" not in set(found["quantity"])


def test_the_threshold_may_be_another_for_each_task():
    two = pd.concat([curves(), curves(task="prose").assign(model="lm")])
    found = ends_and_speed(two, {"digits": 0.7, "prose": 0.5})
    assert list(ends(found, "lm", "epochs_to_threshold")["value"][:2]) == pytest.approx([1 + 1 / 3, 1])


def test_a_threshold_passed_at_the_start_or_twice_counts_once():
    found = ends_and_speed(curves({"baseline": ([0.5, 0.4, 0.9], [0.1, 0.6, 0.1], [0.1, 0.2, 0.2])}), 0.5)
    found = ends(found, "baseline", "epochs_to_threshold")["value"]
    assert list(found[:2]) == pytest.approx([0, 0.8])
    assert math.isnan(found.iloc[2])


def test_what_is_no_training_record_is_refused():
    with pytest.raises(InputError, match="test split"):
        ends_and_speed(curves().assign(split="train"))
    with pytest.raises(InputError, match="baseline has no test accuracy"):
        ends_and_speed(curves(metric="speed"))


def test_variants_have_their_range_and_their_difference_from_the_baseline():
    results = ends_and_speed(curves(), 0.7)
    found = versus_baseline(results, {"quick": "baseline", "never": "baseline"})
    assert list(found.columns) == [*baselines.COLUMNS, "baseline"]
    row = ends(found, "quick", "mean_loss").iloc[0]
    own, reference = (ends(results, name, "mean_loss")["value"] for name in ("quick", "baseline"))
    assert (row["value"], row["low"], row["high"]) == (own.median(), own.min(), own.max())
    expected = welch_interval(own, reference)
    assert (row["difference"], row["difference_low"], row["difference_high"]) == expected[:3]
    assert set(ends(found, "baseline", "mean_loss")["finding"]) == {""}
    assert ends(found, "baseline", "mean_loss")["difference"].isna().all()


@pytest.mark.parametrize(
    ("shift", "word"),
    [(-5.0, "lower"), (5.0, "higher"), (0.01, "not significant"), (math.nan, "not reached")],
)
def test_the_finding_is_what_the_interval_leaves(shift, word):
    base = [1.0, 1.1, 1.2]
    rows = [("a", "softmax", base), ("b", "tssa", [value + shift for value in base])]
    results = pd.DataFrame(
        {
            "model": model,
            "task": "t",
            "attention": name,
            "seed": seed,
            "quantity": "q",
            "value": value,
            "unit": "",
        }
        for model, name, values in rows
        for seed, value in enumerate(values)
    )
    found = versus_baseline(results, {"b": "a"})
    assert list(found["finding"]) == ["", word]


def test_one_seed_tells_nothing_apart():
    results = ends_and_speed(curves({name: runs[:1] for name, runs in ACCURACY.items()}), 0.7)
    found = versus_baseline(results, {"quick": "baseline", "never": "baseline"})
    assert set(found["finding"]) == {"", "not significant", "not reached"}


def test_each_model_is_compared_with_its_baseline_and_one_that_is_absent_is_refused():
    results = ends_and_speed(curves(), 0.7)
    found = versus_baseline(results, {"quick": "never", "never": "baseline"})
    row = ends(found, "quick", "accuracy").iloc[0]
    values = [ends(results, name, "accuracy")["value"] for name in ("quick", "never")]
    assert (row["baseline"], row["difference"]) == ("never", welch_interval(*values).value)
    speed = ends(found, "quick", "epochs_to_threshold").iloc[0]  # which no seed of its baseline has
    assert (speed["finding"], speed["difference"]) == (
        "not significant",
        pytest.approx(math.nan, nan_ok=True),
    )
    with pytest.raises(InputError, match="quick has no accuracy of its baseline other"):
        versus_baseline(results, {"quick": "other"})


def test_the_change_is_a_geometric_mean_over_seeds_and_its_difference_a_ratio():
    frame = curves()
    found = change_in_training(frame, "baseline", "accuracy").set_index("model")
    assert set(found["quantity"]) == {"accuracy, 3 / 0"}
    assert found.loc["baseline", "value"] == pytest.approx(math.sqrt(8 * 9))
    assert found.loc["quick", "value"] == pytest.approx(math.sqrt(0.85 / 0.2 * 0.95 / 0.1))
    last, first = pd.Series([0.85, 0.95]), pd.Series([0.2, 0.1])
    assert found.loc["quick", "low"] == pytest.approx(paired_interval(last, first, ratio=True).low)
    assert found.loc["quick", "difference"] == pytest.approx(found.loc["quick", "value"] / math.sqrt(72))
    later = change_in_training(frame, "baseline", "accuracy", first=2).set_index("model")
    assert later.loc["baseline", "value"] == pytest.approx(math.sqrt(0.8 / 0.7 * 0.9 / 0.6))


def test_a_ratio_at_the_end_is_of_two_metrics_seed_by_seed():
    frame = curves()
    found = ratio_at_the_end(frame, "baseline", "accuracy", "loss").set_index("model")
    assert set(found["quantity"]) == {"accuracy / loss"}
    ends = frame[(frame["epoch"] == 3) & (frame["split"] == "test") & (frame["model"] == "quick")]
    ends = ends.pivot(index="seed", columns="metric", values="value")
    expected = paired_interval(ends["accuracy"], ends["loss"], ratio=True)
    assert found.loc["quick", ["value", "low"]].tolist() == pytest.approx([expected.value, expected.low])
    with pytest.raises(InputError, match="no test accuracy or phi_norm2 of baseline"):
        ratio_at_the_end(frame, "baseline", "accuracy", "phi_norm2")


def test_a_change_of_what_is_not_there_is_refused():
    with pytest.raises(InputError, match="no accuracy at epoch 7"):
        change_in_training(curves(), "baseline", "accuracy", first=7)
    with pytest.raises(InputError, match="no test phi_norm2 of baseline"):
        change_in_training(curves(), "baseline", "phi_norm2")


def errors(model, exact, floor, baseline, interval):
    """projection-error of one model: the values per image, their means over all, and the null of the error."""
    rows = []
    for metric, values in (
        ("projection_error", exact),
        ("projection_floor", floor),
        ("projection_zero_predictor", baseline),
    ):
        null = (
            dict(zip(("null_low", "null_high"), interval, strict=True))
            if metric == "projection_error"
            else {}
        )
        rows += [{"metric": metric, "value": value, "input": f"i/{at}"} for at, value in enumerate(values)]
        rows += [{"metric": metric, "value": value, "layer": at} for at, value in enumerate(values)]
        rows.append({"metric": metric, "value": np.mean(values), **null})
    return conform(pd.DataFrame([{"model": f"bundled:{model}", **row} for row in rows]))


def test_the_exact_share_is_a_ratio_of_means_as_its_bounds_are():
    both = pd.concat(
        [
            errors("baseline", [0.2, 0.3, 0.1], [0.1, 0.1, 0.1], [0.4, 0.4, 0.4], (0.16, 0.24)),
            errors("quick", [0.5, 0.8, 0.3], [0.1, 0.3, 0.2], [0.5, 1.0, 0.6], (0.4, 0.7)),
        ]
    )
    found = exact_shares(both, curves(), "baseline").set_index("model")
    assert list(found["attention"]) == ["softmax", "bilateral"]
    assert found.loc["baseline", "value"] == pytest.approx(0.2 / 0.4)
    assert found.loc["quick", "value"] == pytest.approx(1.6 / 2.1)
    assert found.loc["quick", "difference"] == pytest.approx(1.6 / 2.1 - 0.5)
    assert found.loc["quick", "floor"] == pytest.approx(0.2 / 0.7)
    assert found.loc["baseline", ["null_low", "null_high"]].tolist() == pytest.approx([0.4, 0.6])
    with pytest.raises(InputError, match="no exact error of other"):
        exact_shares(both, curves(), "other")


def test_a_constant_baseline_leaves_the_interval_of_the_error_and_a_constant_share_none():
    constant = errors("baseline", [0.2, 0.3, 0.1], [0.1] * 3, [0.4] * 3, (0, 1))
    row = exact_shares(constant, curves(), "baseline").iloc[0]
    expected = mean_interval(pd.Series([0.5, 0.75, 0.25]))
    assert (row["low"], row["high"]) == pytest.approx((expected.low, expected.high))
    in_step = errors("baseline", [0.2, 0.4, 0.1], [0.1] * 3, [0.4, 0.8, 0.2], (0, 1))
    row = exact_shares(in_step, curves(), "baseline").iloc[0]
    assert (row["low"], row["high"]) == pytest.approx((0.5, 0.5))


def test_records_hold_the_baseline_first_and_the_variants_of_its_task():
    frame = recorded_curves(PAIRS, ["tssa", "bilateral"], n=2, epochs=3)
    assert frame["model"].iloc[0] == "digits-vit"
    assert set(frame["attention"]) == {"softmax", "tssa", "bilateral"}
    assert set(frame["seed"]) == set(CONFIRMATORY["digits-vit"][:2])  # and no exploratory one
    assert frame["epoch"].max() == 3
    assert frame.attrs["baselines"] == {"digits-tssa": "digits-vit", "digits-bilateral": "digits-vit"}
    assert len(frame.attrs["records"]) == len(frame.attrs["provenance"]) == 3


def test_records_hold_the_baselines_of_the_claims():
    frame = recorded_curves([*PAIRS, ("bundled:prose-softmax", "bundled:prose")], ["rpc-sym"])
    assert frame.attrs["baselines"] == {
        "digits-rpc-sym": "digits-softmax-sym", "digits-softmax-sym": "digits-vit",
        "prose-rpc-sym": "prose-softmax-sym", "prose-softmax-sym": "prose-softmax",
    }  # fmt: skip
    assert {*frame.attrs["baselines"], "digits-vit", "prose-softmax"} == set(frame["model"])


def test_a_task_alone_has_the_origin_of_its_models_alone():
    frame = recorded_curves([*PAIRS, ("bundled:prose-softmax", "bundled:prose")], ["tssa"], n=1)
    assert set(frame["model"]) == {"digits-vit", "digits-tssa", "prose-softmax"}
    own = narrowed(frame, "digits")
    assert set(own["model"]) == {"digits-vit", "digits-tssa"}
    assert [run["model"]["spec"] for run in own.attrs["provenance"]] == [
        "bundled:digits-vit",
        "bundled:digits-tssa",
    ]
    assert len(own.attrs["records"]) == 2
    assert len(frame.attrs["records"]) == 3


def test_every_model_has_its_confirmatory_seeds_or_the_exploratory_ones_where_it_has_none():
    seeds = recorded_curves(PAIRS, ["tssa", "rpc-asym"]).groupby("model")["seed"].agg(set)
    assert seeds["digits-vit"] == seeds["digits-tssa"] >= set(CONFIRMATORY["digits-vit"])
    assert not seeds["digits-vit"] & {0, 1, 2}
    assert seeds["digits-rpc-asym"] == {0, 1, 2}
    with pytest.raises(InputError, match="n 0 seeds"):
        recorded_curves(PAIRS, n=0)
    with pytest.raises(InputError, match="0 epochs"):
        recorded_curves(PAIRS, epochs=0)


def test_models_of_one_task_are_compared_by_the_seeds_of_their_verdicts():
    _, by_seed, versus = compared(["digits"], {"vit": "ViT", "tssa": "TSSA"}, "vit")
    assert set(by_seed["seed"]) >= set(CONFIRMATORY["digits-tssa"])
    row = versus[(versus["model"] == "digits-tssa") & (versus["quantity"] == "accuracy")].iloc[0]
    claims = claims_from_records("wu2025")
    same = claims["options"].eq("model=digits-tssa, baseline=digits-vit") & claims["measure"].eq(
        "accuracy[split=test]"
    )
    (claim,) = claims[same].to_dict("records")
    ends = row[["difference", "difference_low", "difference_high"]]
    assert list(ends) == pytest.approx([claim["measured"], claim["low"], claim["high"]])


def test_records_that_there_are_not():
    with pytest.raises(UnknownName, match="tsa"):
        recorded_curves(PAIRS, ["tsa"])
    with pytest.raises(InputError, match="bundled:digits"):
        recorded_curves([("bundled:digits-vit", "bundled:photos")])
    with pytest.raises(MissingResource, match="digits-vitt"):
        recorded_curves([("bundled:digits-vitt", "bundled:digits")])
    found = recorded_curves([*PAIRS, ("bundled:nowhere", "bundled:prose")], ["tssa"])
    assert set(found.attrs["absent"]) == {"nowhere"}
    assert found.attrs["baselines"] == {"digits-tssa": "digits-vit"}


def test_printed_ends_are_those_of_the_papers_tables():
    found = printed_ends(recorded_curves(PAIRS)).set_index("attention")
    assert "softmax" not in found.index
    assert found.loc["scaled-alpha", ["value", "baseline_value"]].tolist() == pytest.approx([0.7302, 0.7218])
    table = published("abdullaev2025", "III", "accuracy_top1")
    clean = table[table["condition"].isna()].set_index("row")["value"]
    assert found.loc["bilateral", "value"] == clean["DeiT + Bilateral"]
    assert found.loc["bilateral", "baseline_value"] == clean["DeiT"]


def test_every_trained_mechanism_has_the_baseline_that_its_claims_name():
    found = stated_baselines()
    assert found["digits-rpc-sym"] == "digits-softmax-sym"
    assert found["prose-tssa-causal"] == "prose-softmax"
    assert "digits-vit" not in found


def test_the_sentences_tell_which_variants_fall_and_where_the_exact_errors_lie():
    change = pd.DataFrame(
        {
            "model": ["base", "other"],
            "attention": ["softmax", "bilateral"],
            "quantity": "J, 30 / 0",
            "value": [2.0, 0.5],
            "low": [1.5, 0.3],
            "high": [2.5, 1.2],
            "n": 3,
            "finding": ["", "lower"],
        }
    )
    assert change_findings(change, "base") == (
        "J, 30 / 0: falls in 1 of 2 (by the interval over seeds: none), grows in 1 of 2 (by the interval over seeds: "
        "softmax); in softmax 2 [1.5, 2.5], geometric mean over 3 seeds with its 95 % CI; significantly different from "
        "that: bilateral."
    )
    assert "falls in 1 of 2 (by the interval over seeds: bilateral)" in change_findings(
        change.assign(high=[2.5, 0.9]), "base"
    )
    shares = change.assign(null="gaussian", null_low=[2.1, 0.1], null_high=[2.2, 0.4])
    sentence = share_findings(shares, "base")
    assert "is 200.0% [150.0%, 250.0%] of the zero predictor's in softmax, mean over 3 inputs" in sentence
    assert "50.0% (bilateral) to 200.0% (softmax) in all" in sentence
    assert sentence.endswith("below the 95 % range of the gaussian null in 1, above in 1 of 2.")


def test_a_baseline_that_one_seed_did_not_reach_is_compared_with_nothing():
    values = {"a": [1.0, math.nan, 1.2], "b": [5.0, 5.1, 5.2]}
    results = pd.DataFrame(
        {
            "model": model,
            "task": "t",
            "attention": model,
            "seed": seed,
            "quantity": "q",
            "value": value,
            "unit": "",
        }
        for model, seeds in values.items()
        for seed, value in enumerate(seeds)
    )
    found = versus_baseline(results, {"b": "a"}).set_index("model").loc["b"]
    assert found[["difference", "difference_low", "difference_high"]].isna().all()
    assert found["finding"] == "not significant"
