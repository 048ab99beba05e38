"""Captions in the words of the figures."""

import re

import pytest

from workbench.figures.words import DEFINED, in_words, with_definitions


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ("bundled:digits-vit: r = 0.1", "digits-vit: r = 0.1"),
        ("hf:sentence-transformers/all-MiniLM-L6-v2: 3", "all-MiniLM-L6-v2: 3"),
        ("in rpc-sym, tssa and bilateral+boost", "in symmetric RPC, token statistics and bilateral + boost"),
        ("prose-tssa-causal falls", "token statistics falls"),
        ("digits-rpc-sym and prose-tost, as softmax", "digits-rpc-sym and prose-tost, as softmax"),
        ("Fig. 1 of teo2024, as_implemented", "Fig. 1 of Teo et al. (2024), as in the authors' code"),
        ("as cited (teo2024, Fig. 1) by wu2025", "as cited (Teo et al., 2024, Fig. 1) by Wu et al. (2025)"),
        (
            "Thresholds of no paper are ours, as is Π (ours)",
            "Thresholds of no paper are ours, as is Π (from value projections)",
        ),
        ("3.61e+03 [−1.05e+03, 5.92e+03]", "3610 [−1050, 5920]"),
        ("63% of 95 % [57.2%, 66%]", "63 % of 95 % [57.2 %, 66 %]"),
        ("−3.05e−07 and 2e+10, 1.2345e+02", "−3.05·10⁻⁷ and 2·10¹⁰, 123.45"),
        (
            "prose/03-everyday-things:17 and digits/test/1647",
            "prose/03-everyday-things:17 and digits/test/1647",
        ),
    ],
)
def test_a_caption_speaks_the_words_of_its_figure(told, said):
    assert in_words(told) == said


def test_abbreviations_are_written_out_once_and_mechanisms_are_not_explained():
    labels = '["RPC", "softmax"]'
    said = with_definitions("Accuracies.", labels)
    assert said == "Accuracies. RPC: robust principal components."
    assert with_definitions(said, labels) == said
    for label in (
        "softmax",
        "Scaled (S free)",
        "symmetric softmax",
        "Primal",
        "bilateral + boost",
        "token statistics",
    ):
        assert with_definitions("Accuracies.", f'["{label}"]') == "Accuracies."
    # numbers in base64 are no label, and what the caption explains is not explained again
    assert with_definitions("Accuracies.", '{"y":{"bdata":"aRPC="}}') == "Accuracies."
    assert with_definitions("By robust principal components (RPC).", '["RPC"]').endswith("(RPC).")
    assert DEFINED["RPC"] in with_definitions(
        "From 1.2 [1.0, 1.4] (RPC).", '["RPC"]'
    )  # a name, not what it is


@pytest.mark.parametrize(
    ("label", "defined"),
    [
        ("asymmetric RPC", ["RPC"]),
        (r"FGSM:\u003cbr\u003esymmetric RPC", ["RPC"]),  # as plotly writes a figure
        ("small FAN", ["FAN"]),
        ("FANCY", []),  # another word
    ],
)
def test_labels_are_recognised_by_what_they_name(label, defined):
    said = with_definitions("Accuracies.", f'["{label}"]')
    assert re.findall(r"(\w+):", said) == defined
