"""Captions in the words of the figures."""

import ast
import json
import re
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go
import pytest

from workbench.figures.export import save_figure
from workbench.figures.words import (
    in_words,
    sentences,
    variant_words,
    with_definitions,
    with_marks,
    without_nulls,
)
from workbench.frames.provenance import read_provenance

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").rglob("*.ipynb"))


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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("digits-rpc-sym", "symmetric RPC"),
        ("bundled:digits-tssa beside prose-rpc-sym", "token statistics beside symmetric RPC"),
        ("digits-of-mine stays", "digits-of-mine stays"),
    ],
)
def test_models_of_the_records_are_named_by_their_mechanism(text, words):
    assert variant_words(text) == words


def test_a_caption_of_mechanisms_with_short_names_names_their_page_once():
    labels = '["RPC", "softmax", "small FAN"]'
    said = with_definitions("Accuracies.", labels)
    assert said == "Accuracies. Mechanisms: docs/attention.md."
    assert with_definitions(said, labels) == said
    for label in ("softmax", "Scaled (S free)", "symmetric softmax", "bilateral + boost", "token statistics"):
        assert with_definitions("Accuracies.", f'["{label}"]') == "Accuracies."
    # numbers in base64 are no label
    assert with_definitions("Accuracies.", '{"y":{"bdata":"aRPC="}}') == "Accuracies."


@pytest.mark.parametrize(
    ("label", "defined"),
    [
        ("asymmetric RPC", ["Mechanisms"]),
        (r"FGSM:\u003cbr\u003esymmetric RPC", ["Mechanisms"]),  # as plotly writes a figure
        ("small FAN", ["Mechanisms"]),
        ("FANCY", []),  # another word
    ],
)
def test_labels_are_recognised_by_what_they_name(label, defined):
    said = with_definitions("Accuracies.", f'["{label}"]')
    assert re.findall(r"(\w+):", said) == defined


def test_a_caption_says_nothing_of_a_null_that_the_data_do_not_hold(tmp_path):
    fig = go.Figure(go.Scatter(x=[0, 1], y=[2, 5]))
    caption = "J falls (Fig. 1a). Null, 0 samples: noise of SD 1.5, as in p. 3. Lines are means."
    for null, kept in ((None, "J falls (Fig. 1a). Lines are means."), (0.5, caption)):
        data = pd.DataFrame({"value": [2.0, 5.0], "null_mean": [null, None]}).astype(float)
        save_figure(
            fig,
            "f",
            data=data,
            caption=caption,
            alt="A line. Null bands are grey.",
            out=tmp_path,
            formats=["html"],
        )
        said = read_provenance(tmp_path / "f.json")["figure"]
        assert said["caption"] == kept
        assert said["alt"] == ("A line." if null is None else "A line. Null bands are grey.")
    assert without_nulls("Nulls: two. Nullified values stay.") == "Nullified values stay."


def captions(notebook):
    """The captions and descriptions of a notebook, with … for what is filled in."""
    said = {}
    for number, cell in enumerate(json.loads(notebook.read_text())["cells"]):
        source = "".join(cell["source"]) if cell["cell_type"] == "code" else ""
        for node in ast.walk(ast.parse(source)):
            value, name = getattr(node, "value", None), getattr(node, "arg", None)
            if isinstance(node, (ast.Assign, ast.AugAssign)):
                name = getattr(getattr(node, "target", None) or node.targets[0], "id", None)
            if name in ("caption", "alt") and value is not None:
                parts = [
                    part for part in ast.walk(value) if isinstance(part, (ast.Constant, ast.FormattedValue))
                ]
                parts = sorted(parts, key=lambda part: (part.lineno, part.col_offset))
                text = "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in parts)
                place = number, name
                more = isinstance(node, ast.AugAssign) or not text
                said[place] = said.get(place, "") + text if more else text
    return said


@pytest.mark.parametrize(
    "notebook",
    [
        one
        for one in NOTEBOOKS
        if "null_samples: int" in one.read_text() and "save_figure(" in one.read_text()
    ],
    ids=lambda one: one.stem,
)
def test_what_a_caption_says_of_a_null_is_a_sentence_that_can_be_left_out(notebook):
    said = captions(notebook)
    assert said
    for text in said.values():
        left = [
            one
            for one in sentences(text)
            if re.search(r"\bnulls?\b", one, re.IGNORECASE) and "no null" not in one
        ]
        assert [one for one in left if not re.match(r"Nulls?\b", one)] == []


def test_a_caption_gets_the_sentences_about_its_marks_once_and_before_those_about_its_null():
    marks = ["Lines: mean over 5 inputs.", "Bands: 95 % CI over inputs."]
    caption = "Entropy by layer. Lines: mean over 5 inputs. Null: permuted keys."
    said = "Entropy by layer. Lines: mean over 5 inputs. Bands: 95 % CI over inputs. Null: permuted keys."
    assert with_marks(caption, marks) == said
    assert with_marks("Entropy by layer.", marks[:1]) == "Entropy by layer. Lines: mean over 5 inputs."
    assert with_marks("Entropy.", []) == "Entropy."
