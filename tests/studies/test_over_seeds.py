"""Mechanisms are compared by every committed seed, as verdicts compare them."""

import math

import numpy as np
import pandas as pd
import pytest

from workbench.core.errors import InputError
from workbench.core.intervals import crossed_interval, crossed_mean_interval, mean_interval, welch_interval
from workbench.papers.published import claim_options
from workbench.papers.verdicts import CONFIRMED, parse_measure
from workbench.studies import claims_from_records, over_seeds
from workbench.studies.baselines import (
    at_stated_budgets,
    beside_baselines,
    embedded_baselines,
    recorded_curves,
    stated_baselines,
    stated_budgets,
)
from workbench.studies.figures import embedded_differences_figure
from workbench.studies.figures.embedded_tasks import NAMES
from workbench.studies.over_seeds import answering, answering_each, conditions, seed_differences, seed_means
from workbench.studies.records import embedded_record, recorded

NEW, OLD = {7: "1100", 8: "1110", 9: "1000"}, {0: "0001"}


def rows(model, kind, outcomes, metric="accuracy_top1"):
    """A row per seed: its outcomes "0110", or a number where they are not on record."""
    held = []
    for seed, text in outcomes.items():
        known = isinstance(text, str)
        value = text.count("1") / len(text) if known else text
        held.append(
            {"model": f"bundled:{model}", "attention": model, "protocol": "pgd", "kind": "Linf", "epsilon": 0.02,
             "severity": pd.NA, "metric": metric, "value": value, "n": 4, "seed_kind": kind,
             "training_seed": seed, "outcomes": text if known else None}
        )  # fmt: skip
    return pd.DataFrame(held)


def table(outcomes):
    return np.array([[letter == "1" for letter in text] for text in outcomes.values()])


def test_confirmatory_seeds_answer_where_both_models_have_them():
    parts = rows("a", "confirmatory", NEW), rows("a", "exploratory", OLD), rows("b", "exploratory", OLD)
    both = pd.concat(parts, ignore_index=True)
    assert set(answering(both, ["bundled:a"])["training_seed"]) == {7, 8, 9}
    assert list(answering(both)["training_seed"]) == [0, 0]
    assert list(answering_each(both)["training_seed"]) == [7, 8, 9, 0]


def test_a_second_stage_of_seeds_joins_where_both_models_have_it(monkeypatch):
    monkeypatch.setattr(over_seeds, "CONTINUED", {"a": (9,), "b": (9,)})
    ahead = rows("a", "confirmatory", NEW)
    behind = rows("b", "confirmatory", {7: "1100", 8: "1110"})
    assert set(answering(pd.concat([ahead, behind]))["training_seed"]) == {7, 8}
    assert set(answering(ahead)["training_seed"]) == {7, 8, 9}
    both = answering(pd.concat([ahead, rows("b", "confirmatory", NEW)]))
    assert set(both["training_seed"]) == {7, 8, 9}


def test_a_mean_is_over_seeds_and_inputs_and_one_seed_has_no_interval():
    parts = rows("a", "confirmatory", NEW), rows("a", "exploratory", OLD), rows("b", "exploratory", OLD)
    means = seed_means(pd.concat(parts))
    mean, single = means[means["training_seed"].isna()].itertuples()
    assert (mean.value, mean.low, mean.high) == pytest.approx(
        crossed_mean_interval(table(NEW)).within(0, 1)[:3]
    )
    assert (mean.seeds, mean.seed_kind) == (3, "confirmatory")
    assert (single.seeds, single.value) == (1, 0.25)
    assert math.isnan(single.low)
    seeds = means[means["training_seed"].notna() & (means["model"] == "bundled:a")]
    assert dict(zip(seeds["training_seed"], seeds["value"], strict=True)) == {
        7: 0.5,
        8: 0.75,
        9: 0.25,
        0: 0.25,
    }
    numbers = {7: 0.5, 8: 0.7, 9: 0.9}
    alone = seed_means(rows("a", "confirmatory", numbers)).iloc[0]
    expected = mean_interval(pd.Series(numbers.values())).within(0, 1)
    assert (alone["value"], alone["low"], alone["high"]) == pytest.approx(expected[:3])


def test_a_difference_is_that_of_the_verdicts_and_a_seed_is_compared_with_the_same_seed():
    second = {7: "0100", 8: "1100", 9: "0000"}
    first = rows("a", "confirmatory", NEW)
    pair = {"a": "b", "b": "nothing on record"}
    mean, *seeds = seed_differences(pd.concat([first, rows("b", "confirmatory", second)]), pair).itertuples()
    expected = crossed_interval(table(NEW), table(second))
    assert (mean.value, mean.low, mean.high) == pytest.approx(expected[:3])
    assert [(one.training_seed, one.value) for one in seeds] == [(7, 0.25), (8, 0.25), (9, 0.25)]
    sides = {7: 2.0, 8: 4.0}, {7: 8.0, 8: 4.0}
    both = [rows(name, "confirmatory", side, "perplexity") for name, side in zip("ab", sides, strict=True)]
    ratio = seed_differences(pd.concat(both), pair, ratio=True).iloc[0]
    expected = welch_interval(*[pd.Series(side.values()) for side in sides], ratio=True)
    assert (ratio["value"], ratio["low"], ratio["high"]) == pytest.approx(expected[:3])
    assert (ratio["compared"], ratio["baseline"], ratio["seeds"]) == ("ratio", "bundled:b", 2)
    longer = {seed: text + "1" for seed, text in second.items()}
    with pytest.raises(InputError, match="other inputs"):
        seed_differences(pd.concat([first, rows("b", "confirmatory", longer)]), pair)


@pytest.fixture(scope="module")
def evaluated():
    kinds = ("vit", "softmax-sym", "rpc-sym", "softmax-boost", "bilateral", "bilateral-boost", "tssa")
    texts = ("softmax", "softmax-sym", "rpc-sym", "bilateral-boost")
    return recorded(
        [*(f"digits-{kind}" for kind in kinds), *(f"prose-{kind}" for kind in texts)], "evaluation"
    )


def test_what_a_figure_compares_is_what_the_verdict_of_the_same_quantity_says(evaluated):
    stated = pd.concat([claims_from_records("teo2024"), claims_from_records("abdullaev2025")])
    verdicts = stated[(stated["analysis"] == "evaluation") & (stated["scope"] == CONFIRMED)]
    names = evaluated["model"].str.removeprefix("bundled:").unique()
    accuracies = conditions(evaluated, recorded(names, "training"), stated_budgets())
    pairs = stated_baselines()
    drawn = [
        seed_differences(accuracies, pairs, over=["kind"]),
        seed_differences(evaluated[evaluated["protocol"] == "word-swap"], pairs, ratio=True, over=["kind"]),
        seed_differences(evaluated[evaluated["metric"] == "aupr"], pairs, over=["kind"]),
    ]
    drawn = pd.concat(drawn).query("training_seed.isna()")
    assert len(verdicts) > 15
    for claim in verdicts.to_dict("records"):
        (term,) = parse_measure(claim["measure"])
        options = claim_options(claim["options"])
        if pairs[options["model"]] != options["baseline"]:
            assert not claim["primary"]  # figures show a model beside one baseline
            continue
        same = drawn[
            (drawn["model"] == f"bundled:{options['model']}")
            & (drawn["protocol"] == term.where["protocol"])
            & (drawn["metric"] == term.metric.replace("corruption_error", "accuracy_top1"))
            & (drawn["epsilon"].fillna(-1) == float(term.where.get("epsilon", -1)))
        ]
        (row,) = same.to_dict("records")
        ends = [row["value"], row["low"], row["high"]]
        if term.metric == "corruption_error":  # of which figures show the accuracy
            ends = [-ends[0], -ends[2], -ends[1]]
        assert ends == pytest.approx([claim["measured"], claim["low"], claim["high"]]), claim["measure"]
        assert row["seeds"] == claim["n"]


def test_robust_principal_components_win_nothing_under_pgd_and_noise_though_seed_0_does(evaluated):
    attacked = evaluated[
        (evaluated["metric"] == "accuracy_top1") & evaluated["protocol"].isin(["pgd", "noise"])
    ]
    found = seed_differences(attacked, {"digits-rpc-sym": "digits-softmax-sym"})
    for protocol, budget in (("pgd", 0.02), ("noise", 0.3)):
        own = found[(found["protocol"] == protocol) & (found["epsilon"] == budget)]
        mean, seed = own[own["training_seed"].isna()].iloc[0], own[own["training_seed"] == 0].iloc[0]
        assert mean["low"] < 0
        assert mean["seeds"] >= 5
        assert seed["value"] > 0.1 > mean["value"]  # what figures once drew, with an interval over its images


ATTACKS = {"fgsm": "FGSM", "pgd": "PGD"}


def test_figures_of_fan_compare_what_the_claims_compare_by_every_seed():
    record = embedded_record("cuts")
    rows = at_stated_budgets(record[record["metric"] == "accuracy"], ATTACKS)
    stated = claims_from_records("teo2024")
    stated = stated[stated["options"].str.startswith("data=cuts")]
    assert len(stated) == 6
    for claim in stated.to_dict("records"):
        options = claim_options(claim["options"])
        (term,) = parse_measure(claim["measure"])
        protocol, _, budget = term.where["split"].partition(" ")
        own = rows[(rows["mechanism"] == options["model"]) & (rows["baseline"] == options["baseline"])]
        own = own[own["data"] == f"cuts, {ATTACKS.get(protocol, 'clean')}"]
        assert not budget or f"{ATTACKS[protocol]} {budget}" in own["budgets"].iloc[0]
        sides = [own.loc[own["variant"] == options[name], "value"] for name in ("model", "baseline")]
        (name, reference) = options["model"], options["baseline"]
        drawn = embedded_differences_figure(own, baselines={name: reference}).data
        (marker,) = [trace for trace in drawn if trace.error_x.array is not None]
        assert list(marker.text) == [NAMES[name]]
        assert marker.x[0] / 100 == pytest.approx(claim["measured"], abs=1e-12)
        assert {len(side) for side in sides} == {claim["n"]}


def test_mechanisms_on_embedded_data_have_the_baseline_of_their_primary_claim():
    assert embedded_baselines(["cuts"]) == {"rpc-sym": "softmax-sym", "rpc-asym": "softmax"}
    arena = embedded_baselines(
        ["listops"]
    )  # primal-e and primal-independent are baselines of secondary claims
    assert arena["primal"] == "softmax"
    curves = beside_baselines(embedded_record("cuts"))
    assert set(curves.loc[curves["mechanism"] == "rpc-sym", "variant"]) == {
        "majority",
        "rpc-sym",
        "softmax-sym",
    }
    with pytest.raises(InputError, match="no claim compares mechanisms on made"):
        beside_baselines(embedded_record("cuts").assign(data="made"))


def test_models_of_another_task_take_no_seeds_away():
    pairs = [("bundled:digits-vit", "bundled:digits"), ("bundled:prose-softmax", "bundled:prose")]
    both, alone = recorded_curves(pairs), recorded_curves(pairs[:1])
    seeds = [frame.groupby("model")["seed"].nunique() for frame in (both, alone)]
    assert seeds[1]["digits-vit"] >= 5
    assert seeds[0][seeds[1].index].equals(seeds[1])
