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


def test_what_labels_are_short_for_is_said_once():
    labels = '["Scaled (S free)", "softmax"]'
    said = with_definitions("Accuracies.", labels)
    assert said == "Accuracies. " + DEFINED[r"Scaled \(S"] + "."
    assert with_definitions(said, labels) == said
    assert with_definitions("Accuracies.", '["softmax"]') == "Accuracies."
    broken = with_definitions("Accuracies.", '["symmetric RPC,<br>then softmax"]')
    assert "RPC, then softmax: RPC-Attention in the first layer" in broken
    # numbers in base64 are no label, and what the caption explains is not explained again
    assert with_definitions("Accuracies.", '{"y":{"bdata":"aRPC="}}') == "Accuracies."
    assert with_definitions("By robust principal components (RPC).", '["RPC"]').endswith("(RPC).")
    assert DEFINED["RPC"] in with_definitions(
        "From 1.2 [1.0, 1.4] (RPC).", '["RPC"]'
    )  # a name, not what it is
    # a citation alone says nothing of the mechanism
    for caption in ("Accuracies.", "As Chen et al. (2023), Table 7."):
        assert DEFINED["Primal"] in with_definitions(caption, '["Primal"]')


@pytest.mark.parametrize(
    ("label", "defined"),
    [
        ("bilateral + boost", ["Bilateral", "Boost"]),
        ("digits-softmax-boost", ["Boost"]),
        ("bilateral filter", []),  # the filter of images, no attention
        ("symmetric<br>softmax", ["Symmetric"]),
        ("asymmetric RPC", ["Asymmetric", "RPC"]),
        (r"FGSM:\u003cbr\u003esymmetric softmax", ["Symmetric"]),  # as plotly writes a figure
        ('error_x": {"symmetric": false}, "softmax', []),  # what plotly calls an interval
    ],
)
def test_labels_are_recognised_by_what_they_name(label, defined):
    said = with_definitions("Accuracies.", f'["{label}"]')
    assert re.findall(r"(\w+):", said) == defined
