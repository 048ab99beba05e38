"""Embedded tasks under perturbation: one data set for each perturbation, and its sentences."""

import numpy as np
import pandas as pd
import pytest

from workbench.core.errors import InputError
from workbench.studies.figures import embedded_differences_figure
from workbench.studies.findings import embedded_findings
from workbench.studies.records import beside_perturbed

FINAL = {"softmax": [0.6, 0.7, 0.8], "rpc-sym": [0.65, 0.75, 0.7], "softmax-boost": [0.5]}
BUDGETS = {
    "test": 1.0,
    "train": 1.1,
    "corruptions": 0.8,
    "fgsm 0": 1.0,
    "fgsm 0.02": 0.5,
    "word-swap 0.1": 0.9,
}


def record(metric="accuracy"):
    rows = [
        {"variant": "majority", "attention": "", "seed": None, "epoch": 0, "split": "test", "value": 0.25}
    ]
    rows += [
        {
            "variant": variant,
            "attention": "",
            "seed": seed,
            "epoch": 3,
            "split": split,
            "value": value * factor,
        }
        for variant, values in FINAL.items()
        for seed, value in enumerate(values)
        for split, factor in BUDGETS.items()
    ]
    frame = pd.DataFrame(rows).assign(data="made", metric=metric, unit="")
    return frame.astype({"seed": "Int64"})


def test_what_the_test_set_underwent_is_a_data_set_of_its_own_with_the_trivial_predictor():
    found = beside_perturbed(record(), {"clean": "test", "FGSM": "fgsm 0.02", "PGD": "pgd 0.02"})
    assert [*found["data"].unique()] == ["made, clean", "made, FGSM"]
    assert set(found["split"]) == {"test"}
    softmax = found[(found["variant"] == "softmax") & (found["data"] == "made, FGSM")]
    assert softmax["value"].tolist() == pytest.approx([0.3, 0.35, 0.4])
    assert found.loc[found["variant"] == "majority", "value"].tolist() == [0.25, 0.25]
    with pytest.raises(InputError, match=r"holds .*fgsm 0.02.*; nothing of pgd 0.02"):
        beside_perturbed(record(), {"PGD": "pgd 0.02"})


def test_figure_and_sentences_of_scores_take_it_as_they_take_the_record():
    found = beside_perturbed(record(), {"clean": "test", "FGSM": "fgsm 0.02"})
    figure = embedded_differences_figure(found)
    markers = [trace for trace in figure.data if trace.error_x.array is not None]
    assert [[*np.round(trace.x, 9)] for trace in markers] == [[0], [0]]  # RPC; the boost has one seed
    clean, attacked = embedded_findings(found, "accuracy")
    assert "On made, clean the test accuracy is, mean over 3 seeds with 95 % CI: softmax 70.0" in clean
    assert "On made, FGSM the test accuracy is, mean over 3 seeds with 95 % CI: softmax 35.0" in attacked


def test_sentences_compare_a_mechanism_with_its_baseline():
    frame = record()
    more = frame[frame["variant"] == "softmax"].assign(variant="softmax-sym")
    more["value"] -= 0.1
    frame = pd.concat([frame, more], ignore_index=True)
    (sentence,) = embedded_findings(frame, "accuracy", {"rpc-sym": "softmax-sym"})
    assert "Less softmax-sym's, in points, Welch's 95 % CI over seeds: rpc-sym +10.0" in sentence
    assert "softmax's" not in sentence  # no other mechanism of several seeds
    assert (
        "Less softmax's, in points, Welch's 95 % CI over seeds: rpc-sym +0.0"
        in embedded_findings(frame, "accuracy")[0]
    )
