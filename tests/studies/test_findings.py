"""What records say in sentences, of small frames whose numbers are known."""

import pandas as pd
import pytest

from workbench.core.errors import MissingResource
from workbench.core.intervals import Finding, mean_interval
from workbench.papers.verdicts import HOLDS, UNDECIDED
from workbench.studies import evaluation, findings
from workbench.studies.record_claims import count_verdicts
from workbench.studies.records import recorded
from workbench.studies.scaling import scaling_findings


def test_means_at_the_end_of_training_are_of_the_confirmatory_seeds_where_a_model_has_them():
    trained = pd.DataFrame(
        [
            *[
                ("x", seed, epoch, value + epoch, "confirmatory")
                for epoch in (1, 2)
                for seed, value in ((7, 0.5), (8, 0.7))
            ],
            ("x", 0, 2, 99.0, "exploratory"),
            ("y", 0, 2, 3.0, "exploratory"),
        ],
        columns=["model", "seed", "epoch", "value", "seed_kind"],
    ).assign(metric="perplexity", split="test")
    words = mean_interval(pd.Series([2.5, 2.7])).words(".2f")
    assert findings.mean_findings(trained, "perplexity", ".2f") == [
        f"Test perplexity, mean over seeds, 95 % CI: x {words} (2 seeds), y 3.00 (1 seeds)."
    ]
    assert findings.mean_findings(trained, "loss", ".2f") == []


def seeds(model, baseline, protocol, epsilon, value, low, high, count):
    return {"model": f"bundled:{model}", "baseline": f"bundled:{baseline}", "protocol": protocol, "kind": None,
            "epsilon": epsilon, "value": value, "low": low, "high": high, "seeds": count,
            "training_seed": None}  # fmt: skip


def test_sentences_about_seeds_name_their_number_and_agree_with_the_verdicts():
    differences = pd.DataFrame(
        [
            seeds("digits-a", "digits-b", "pgd", 0.02, -0.04, -0.24, 0.16, 5),
            seeds("digits-a", "digits-b", "noise", 0.3, -0.09, -0.16, -0.01, 5),
            seeds("digits-c", "digits-b", "pgd", 0.02, 0.2, None, None, 1),
        ]
    )
    single = {**seeds("digits-a", "digits-b", "pgd", 0.02, 0.14, None, None, 1), "training_seed": 0}
    with_seeds = pd.concat([differences, pd.DataFrame([single])])
    several, one = findings.seed_findings(with_seeds)
    pgd, noise = (Finding(*ends, 5).words("+.1f") for ends in ((-4, -24, 16), (-9, -16, -1)))
    assert several == (
        f"digits-a against digits-b, mean over 5 seeds a side, 95 % CI: pgd 0.02 {pgd}; noise 0.3 {noise}."
    )
    assert one == "digits-c against digits-b, 1 seed a side, not tested: pgd 0.02 +20.0."
    attacks = ["pgd,epsilon=0.02", "noise,epsilon=0.3", "cw,epsilon=1"]
    baselines = ["digits-b"] * 4 + ["digits-other"]
    claims = pd.DataFrame(
        {"analysis": "evaluation", "options": [f"model=digits-a, baseline={name}" for name in baselines],
         "measure": [f"accuracy_top1[protocol={attack}]" for attack in [*attacks, *attacks[:2]]],
         "units": ["seeds"] * 3 + ["inputs", "seeds"], "verdict": [UNDECIDED, "fails", HOLDS, HOLDS, HOLDS]}
    )  # fmt: skip
    assert findings.verdict_findings(claims, with_seeds, "stronger than") == [
        "In 0 of 2 tests digits-a is shown to be stronger than digits-b (5 seeds a side: 1 undecided, 1 fails).",
        "One seed a side decides nothing: digits-c against digits-b.",
    ]
    noise = seeds("digits-c", "digits-b", "noise", 0.3, 0.2, 0.1, 0.3, 5)
    several_seeds = findings.verdict_findings(
        claims, pd.concat([with_seeds, pd.DataFrame([noise])]), "stronger than"
    )
    assert not any("One seed" in sentence for sentence in several_seeds)

    clean = pd.DataFrame([seeds("digits-a", "digits-b", "ood", None, 0.1, 0.05, 0.15, 5)])
    without_budget = claims[:1].assign(measure="ood_auroc[protocol=ood]", verdict=HOLDS)
    assert findings.verdict_findings(without_budget, clean, "stronger than") == [
        "In 1 of 1 test digits-a is shown to be stronger than digits-b (5 seeds a side: 1 holds)."
    ]


def test_differences_and_learning_tell_what_their_intervals_decide():
    versus = pd.DataFrame(
        [
            ("b", "digits", "softmax", "accuracy", None, None, None, 3, "", None),
            ("m", "digits", "tssa", "accuracy", 0.02, 0.01, 0.03, 3, "higher", "b"),
            ("m", "digits", "tssa", "mean_loss", 0.5, -0.1, 1.1, 3, "not significant", "b"),
            ("m", "digits", "tssa", "epochs_to_threshold", None, None, None, 3, "not reached", "b"),
            ("r", "digits", "rpc-sym", "epochs_to_threshold", -2.0, -3.0, -1.0, 3, "lower", "m"),
        ],
        columns=[
            "model", "task", "attention", "quantity", "difference", "difference_low", "difference_high", "n", "finding",
            "baseline",
        ],
    )  # fmt: skip
    (sentence,) = findings.difference_findings(versus, "accuracy", "Accuracy in points", 100)
    change = Finding(2.0, 1.0, 3.0, 3).words("+.2f")
    assert (
        sentence
        == f"Accuracy in points less the baseline's, mean over seeds with 95 % CI: m {change} (higher)."
    )
    assert findings.difference_findings(versus, "loss", "Loss") == []
    assert findings.difference_findings(pd.DataFrame(), "loss", "Loss") == []
    loss, speed, end = findings.learning_findings(versus, {"digits": 0.9})
    assert "beside the baseline's (of rpc-sym: tssa), is significantly different with none (3 seeds" in loss
    assert speed == "Epochs to 90 % accuracy are fewer with rpc-sym; not reached with tssa."
    assert end == "Accuracies at the end are higher with tssa."


def attacked(model, attack, values, n=100):
    """Accuracies under an attack, by budget, with ends 0.1 apart."""
    return pd.DataFrame(
        [
            {"model": model, "protocol": attack, "epsilon": budget, "metric": "accuracy_top1", "value": value,
             "low": value - 0.1, "high": value + 0.1, "n": n, "seed_kind": "exploratory"}
            for budget, value in values.items()
        ]
    )  # fmt: skip


def test_a_model_attacked_now_is_compared_with_its_record_budget_by_budget(monkeypatch):
    asked = []

    def evaluate(model, protocol, inputs, **settings):
        asked.append((model, protocol, inputs, settings))
        return attacked(model, protocol, {0.0: 0.9, 0.02: 0.5}, n=7)

    monkeypatch.setattr(evaluation, "evaluate", evaluate)
    record = pd.concat([attacked("x", "fgsm", {0.0: 0.8, 0.02: 0.2}), attacked("x", "pgd", {0.0: 0.9})])
    assert findings.agreement_findings(record, "x", ["fgsm", "pgd"], "images", seed=3) == [
        "Measured in this run (n = 7) and on record: intervals apart at 1 of 3 budgets."
    ]
    assert asked == [("x", attack, "images", {"seed": 3}) for attack in ("fgsm", "pgd")]
    assert findings.agreement_findings(record, "another", ["fgsm"]) == []


def test_a_bundled_model_recalls_the_accuracy_of_its_record():
    (sentence,) = findings.recall_findings("bundled:digits-vit", "bundled:digits", n=20, seed=0)
    rows = recorded(["digits-vit"], "training").query(
        "metric == 'accuracy' and split == 'test' and seed == 0"
    )
    end = rows.loc[rows["epoch"].idxmax(), "value"]
    assert sentence.startswith("bundled:digits-vit classifies ")
    assert sentence.endswith(f"of 20 images now; on record, of all test images: {end:.2%}.")


@pytest.mark.parametrize(
    "said",
    [
        lambda: findings.agreement_findings(pd.DataFrame(), "x", ["fgsm"]),
        lambda: findings.recall_findings("x"),
    ],
)
def test_a_model_that_is_not_here_is_named_with_what_is_missing(said, monkeypatch):
    def evaluate(*_, **__):
        raise MissingResource("no weights of x\nget them with: make weights")

    monkeypatch.setattr(evaluation, "evaluate", evaluate)
    assert said() == ["x is not evaluated now: no weights of x"]


def test_verdicts_are_counted():
    claims = pd.DataFrame(
        {"model": ["x", "x", "x", "x", "y"], "verdict": [HOLDS, HOLDS, HOLDS, HOLDS, UNDECIDED], "primary": True,
         "comparison": ">=",
         "kind": ["", "", "identity", "", ""], "scale": ["", "", "", "embedded", ""], "scope": "seeds"}
    )  # fmt: skip
    assert count_verdicts(claims) == [
        "x (seeds): of 2 claims 2 hold.",
        "x (seeds, embedded tasks): of 1 claim 1 holds.",
        "y (seeds): of 1 claim 1 is undecided.",
    ]
    assert count_verdicts(claims.assign(primary=False)) == []


def test_growth_of_cost_is_told_by_operator():
    sizes = [512, 1024, 2048, 4096]
    rows = [
        ("tokens", operator, "forward", "seconds_per_sample", size, size**power / 1e6)
        for operator, power in (("tssa", 1), ("softmax", 2))
        for size in sizes
    ]
    frame = pd.DataFrame(rows, columns=["sweep", "operator", "condition", "metric", "tokens", "value"])
    frame.attrs["provenance"] = {"device": "a CPU", "dtype": "float32", "threads": 1}
    grows, beside = scaling_findings(frame)
    assert grows.startswith(
        "a CPU, float32, 1 thread: time of a forward pass grows with the tokens to the power of 1.00 ["
    )
    assert "2.00 [2.00, 2.00] (softmax): slopes over the largest 4 sizes, 95 % CI." in grows
    assert beside == "Attention by tssa takes 0.0 % of the time of softmax (n = 4096)."


def test_the_loss_names_the_variants_that_differ():
    ends = pd.DataFrame(
        [
            ("digits-vit", "softmax", None, "", 0.0),
            ("digits-softmax-sym", "softmax-sym", "digits-vit", "higher", 0.161),
            ("digits-rpc-sym", "rpc-sym", "digits-softmax-sym", "lower", -0.204),
            ("digits-tssa", "tssa", "digits-vit", "not significant", 0.5),
        ],
        columns=["model", "attention", "baseline", "finding", "difference"],
    ).assign(quantity="mean_loss")
    assert findings.loss_finding(ends) == (
        "Mean test loss over training is lower with symmetric RPC, higher with symmetric softmax than with the "
        "baseline; 1 other difference is not significant."
    )
