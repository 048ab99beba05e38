"""Evaluations, trainings, costs and effects as printed tables."""

import numpy as np
import pandas as pd

from workbench.frames.tables import summary_table
from workbench.studies import study_tables  # noqa: F401 (its layouts)


def test_costs_are_a_row_per_variant_in_multiples_of_the_baseline():
    rows = [
        ("measured", "softmax", "softmax", "macs", "training", 8.8e6, "", 1.0),
        ("measured", "softmax", "softmax", "seconds_per_sample", "test", 5e-4, "s", 1.0),
        ("measured", "tssa", "softmax", "macs", "training", 6.7e6, "", 0.7614),
        ("measured", "tssa", "softmax", "seconds_per_sample", "test", 4e-4, "s", 0.8),
        ("teo2024 Table 13", "rpc-sym", "softmax-sym", "macs", "training", 1.22e6, "", 1.0427),
    ]
    names = ["source", "attention", "baseline", "metric", "condition", "value", "unit", "ratio"]
    table = summary_table(pd.DataFrame(rows, columns=names))
    assert table.columns.tolist() == ["source", "baseline", "attention", "MACs (training)", "time (test)"]
    assert table["MACs (training)"].tolist() == ["1 = 8.8e+06", "0.761", "1.04"]
    assert table["time (test)"].tolist() == ["1 = 0.0005 s", "0.8", None]


def test_evaluations_have_a_column_per_condition_or_per_model_whichever_are_fewer():
    def row(model, epsilon, value, **more):
        bare = {
            "kind": "Linf",
            "severity": np.nan,
            "metric": "accuracy_top1",
            "low": value - 0.1,
            "high": value,
        }
        return bare | {"model": model, "protocol": "fgsm", "epsilon": epsilon, "value": value} | more

    seeds = [
        row("m", np.nan, value, protocol=None, kind=None, low=np.nan, high=np.nan, metric="accuracy")
        for value in (0.9, 0.7, 0.8)
    ]
    rows = [row("bundled:m", 0.02, 0.5), row("bundled:m", 0.04, 0.25), row("k", 0.02, 0.75)]
    hidden = row("k", np.nan, 0.1, kind="fog", severity=1)
    few = summary_table(pd.DataFrame([*rows, hidden]))
    assert few.columns.tolist() == ["model", "fgsm, ε = 0.02", "fgsm, ε = 0.04"]
    assert few["model"].tolist() == ["m", "k"]
    assert few["fgsm, ε = 0.02"].tolist() == ["0.5 [0.4, 0.5]", "0.75 [0.65, 0.75]"]
    assert few["fgsm, ε = 0.04"].tolist() == ["0.25 [0.15, 0.25]", None]
    many = summary_table(pd.DataFrame([*rows, *seeds]))
    assert many.columns.tolist() == ["condition", "m", "k"]
    assert many.set_index("condition")["m"]["accuracy"] == "0.8 (0.7 to 0.9)"


def test_a_comparison_with_baselines_prints_the_ratio_that_its_interval_belongs_to():
    row = {"model": "m", "protocol": "corruptions", "kind": "fog", "epsilon": np.nan, "severity": np.nan,
           "metric": "corruption_error", "value": 0.3, "low": 0.5, "high": 1.5, "ratio": 0.75}  # fmt: skip
    (cell,) = summary_table(pd.DataFrame([row])).iloc[:, 1]
    assert cell == "0.75 [0.5, 1.5]"


def test_effects_of_a_mechanism_are_a_row_per_comparison():
    names = ["group", "label", "source", "row", "value", "low", "high", "verdict"]
    nan = np.nan
    rows = [
        ("a less b", "PGD", "here", None, 1.5, -1.0, 4.0, "undecided"),
        ("a less b", "PGD", "published", "one", 0.2, nan, nan, None),
        ("a less b", "PGD", "published", "two", 0.1, nan, nan, None),
        ("a less b", "clean", "here", None, nan, nan, nan, "not tested at this scale"),
        ("c less d", "clean", "published", "one", 0.3, nan, nan, None),
    ]
    table = summary_table(pd.DataFrame(rows, columns=names))
    assert table["measured [95 %]"].tolist() == ["1.5 [-1, 4]", None, None]
    assert table["published"].tolist() == ["0.1 to 0.2", None, "0.3"]
    assert table["verdict"].tolist() == ["undecided", "not tested at this scale", None]


def test_variants_become_a_row_each_with_the_range_of_every_quantity():
    frame = pd.DataFrame(
        {
            "attention": ["softmax", "tssa", "softmax", "tssa"],
            "quantity": ["loss", "loss", "epochs", "epochs"],
            "value": [0.5, 0.25, 10, np.nan],
            "low": [0.4, 0.2, 9, np.nan],
            "high": [0.6, 0.3, 12, np.nan],
            "difference": [np.nan, -0.25, np.nan, np.nan],
            "finding": ["", "lower", "", "not reached"],
        }
    )
    table = summary_table(frame)
    assert list(table.columns) == ["attention", "loss", "epochs"]
    assert table.iloc[0].tolist() == ["softmax", "0.5 [0.4, 0.6]", "10 [9, 12]"]
    assert table.iloc[1].tolist() == ["tssa", "0.25 [0.2, 0.3] (lower)", None]


def test_a_training_record_shows_its_last_epoch_over_seeds():
    frame = pd.DataFrame(
        {
            "model": model,
            "attention": "softmax",
            "seed": seed,
            "epoch": epoch,
            "split": "test",
            "metric": "loss",
        }
        | {"value": value / (1 + epoch)}
        for model, values in {"b": (4.0, 8.0, 6.0), "a": (2.0, 1.0, 3.0)}.items()
        for seed, value in enumerate(values)
        for epoch in range(2)
    )
    table = summary_table(frame)
    assert list(table["model"]) == ["b", "a"]
    assert list(table["test loss"]) == ["3 [2, 4]", "1 [0.5, 1.5]"]
