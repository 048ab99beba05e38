"""What records say in sentences, of small frames whose numbers are known."""

import pandas as pd
import pytest

from workbench.core.errors import MissingResource
from workbench.core.intervals import Finding
from workbench.papers.verdicts import HOLDS, UNDECIDED
from workbench.studies import evaluation, findings
from workbench.studies.claims import count_verdicts
from workbench.studies.records import recorded
from workbench.studies.scaling import scaling_findings


def test_medians_are_of_the_last_epoch_and_growth_is_from_clean_to_the_largest_share():
    trained = pd.DataFrame(
        [("x", 0, 1, 0.5), ("x", 0, 2, 0.7), ("x", 1, 2, 0.9), ("x", 2, 2, 0.8)],
        columns=["model", "seed", "epoch", "value"],
    ).assign(metric="accuracy", split="test")
    assert findings.median_findings(trained, "accuracy", ".0%") == [
        "Test accuracy, median (range) of 3 seeds: x 80% (70% to 90%)."
    ]
    assert findings.median_findings(trained, "loss", ".2f") == []
    swapped = pd.DataFrame(
        [("x", 0.0, 4.0), ("x", 0.2, 8.0), ("y", 0.0, 5.0), ("y", 0.2, 6.0)],
        columns=["model", "epsilon", "value"],
    ).assign(metric="perplexity")
    (sentence,) = findings.growth_findings(swapped)
    assert sentence.endswith("of all characters grows 1.20 times (y) to 2.00 times (x).")


def test_differences_and_learning_tell_what_their_intervals_decide():
    versus = pd.DataFrame(
        [
            ("m", "digits", "tssa", "accuracy", 0.02, 0.01, 0.03, 3, "higher"),
            ("m", "digits", "tssa", "mean_loss", 0.5, -0.1, 1.1, 3, "not significant"),
            ("m", "digits", "tssa", "epochs_to_threshold", None, None, None, 3, "not reached"),
        ],
        columns=[
            "model", "task", "attention", "quantity", "difference", "difference_low", "difference_high", "n", "finding",
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
    assert "beside the baseline's, is significantly different with none (3 seeds" in loss
    assert speed == "Epochs to 90 % accuracy are not reached with tssa."
    assert end == "Accuracies at the end are higher with tssa."


def attacked(model, attack, values, n=100):
    """Accuracies under an attack, by budget, with ends 0.1 apart."""
    return pd.DataFrame(
        [
            {"model": model, "protocol": attack, "epsilon": budget, "metric": "accuracy_top1", "value": value,
             "low": value - 0.1, "high": value + 0.1, "n": n}
            for budget, value in values.items()
        ]
    )  # fmt: skip


def test_the_least_and_the_most_robust_model_are_named_of_each_attack():
    evaluated = pd.concat(
        [attacked("weak", "fgsm", {0.02: 0.3}), attacked("strong", "fgsm", {0.02: 0.8, 0.04: 0.1})]
    )
    (sentence,) = findings.attack_findings(evaluated, {"fgsm": 0.02, "noise": 0.3})
    weak, strong = (Finding(value, value - 0.1, value + 0.1, 100).words(".1%") for value in (0.3, 0.8))
    assert sentence == f"Under FGSM at ε = 0.02 accuracies run from {weak} (weak) to {strong} (strong)."


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


def test_corruptions_and_verdicts_are_counted():
    ratios = pd.DataFrame(
        {"kind": ["a", "b", "c", None], "ratio": [0.5, 2.0, 1.0, 1.1], "low": [0.4, 1.5, 0.8, 1.0],
         "high": [0.6, 2.5, 1.2, 1.3]}
    )  # fmt: skip
    (sentence,) = findings.corruption_findings(ratios)
    assert sentence.startswith(
        "Of 3 errors by model and corruption, 1 have a 95 % CI below the baseline's, 1 above;"
    )
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
    assert beside == f"The cost of tssa over that of softmax is {1 / 4096:.3f} in time (n = 4096)."
