"""Publication-ready tables."""

import io

import numpy as np
import pandas as pd

from workbench.frames.metric import METRICS
from workbench.frames.results import conform, make_frame
from workbench.frames.tables import csv_bytes, latex_table, summary_table, without_apostrophes
from workbench.frames.tex import tex_text


def spectra(layers=3, model="bundled:digits-vit"):
    values = np.arange(2 * layers * 7, dtype=float).reshape(2, layers, 7)
    return make_frame(
        values, "eigenvalue", {"input": ["a", "b"], "layer": range(layers), "rank": range(1, 8)}, model=model
    )


def test_a_spectrum_shows_first_middle_and_last_rank_per_layer():
    table = summary_table(spectra())
    assert list(table["layer"]) == [0, 1, 2]
    assert [column.split("rank ")[1] for column in table.columns if "rank" in column] == ["1", "4", "7"]
    # layer 1, rank 1: inputs hold 7 and 28
    assert table.iloc[1, 2] == "18 [0, 151]"  # 17.5 ± 12.7 · 10.5, and an eigenvalue is never negative
    assert "Brackets: 95 \\% confidence interval over inputs.}" in latex_table(spectra(), "c", "n")


def test_many_layers_are_pooled_into_one_row_per_model():
    table = summary_table(pd.concat([spectra(30), spectra(30, "timm:vit")]))
    assert list(table["model"]) == ["bundled:digits-vit", "timm:vit"]


def test_other_frames_are_printed_as_they_are_or_described():
    small = pd.DataFrame({"a": [1, 2], "b": ["x", "y"]})
    assert summary_table(small).equals(small)
    described = summary_table(pd.DataFrame({"a": np.arange(99.0)}))
    assert described.set_index("statistic").loc["mean", "a"] == 49


def test_latex_is_escaped_and_has_rules_caption_and_label():
    frame = pd.DataFrame({"50 % of": ["a_b & c"], "v": [1.5]})
    text = latex_table(frame, "Costs 5 $ & more_", "my_table")
    for part in (
        r"50 \% of",
        r"a\_b \& c",
        r"\toprule",
        r"\bottomrule",
        r"Costs 5 \$ \& more\_",
        r"\label{tab:my_table}",
    ):
        assert part in text


def test_letters_that_latex_has_not_become_commands():
    assert tex_text("σ̂² ± 10⁻¹⁹ of x₁₂, V̇ ≤ ‖h‖ “a_b”") == (
        r"\ensuremath{\hat \sigma}\ensuremath{^{2}} \ensuremath{\pm} 10\ensuremath{^{-19}} of x\ensuremath{_{12}}, "
        r"\ensuremath{\dot V} \ensuremath{\le} \ensuremath{\|}h\ensuremath{\|} ``a\_b''"
    )
    assert tex_text("the R_c^var of a_b") == r"the \ensuremath{R_{c}^{\mathrm{var}}} of a\_b"
    assert tex_text("Ångström, façade") == "Ångström, façade"  # LaTeX has letters with accents


def test_powers_of_ten_are_set_as_such():
    text = latex_table(spectra().assign(value=2.5e-12, input=None), "c", "n")
    assert r"$2.5\times 10^{-12}$" in text


def test_the_number_of_a_token_is_not_averaged():
    layers = {"input": ["a", "b"], "layer": [0]}
    frame = pd.concat(
        [make_frame([[3], [9]], name, layers, model="m") for name in ("attention_sink_key", "attention_sink")]
    )
    assert [column for column in summary_table(frame).columns if "Key" in column] == []
    assert summary_table(frame).iloc[0, -1] == "6 [−32, 44]"  # 6 ± 12.7 · 3


def test_means_become_a_row_per_quantity_with_every_null_distribution():
    inputs = [
        {"metric": "MOC", "axis": axis, "input": name, "value": value + (axis == "tokens"), "null": null}
        for axis in ("features", "tokens")
        for name, value in (("a", 0.1), ("b", 0.3))
        for null in ("gaussian", "permutation")
    ]
    overall = [
        {"metric": "MOC", "axis": axis, "value": 0.2 + (axis == "tokens"), "null": null, "z": z}
        | {"null_mean": 0.5, "null_low": 0.25, "null_high": 0.75}
        for axis in ("features", "tokens")
        for null, z in (("gaussian", 2.5), ("permutation", np.nan))
    ]
    layers = [{"metric": "MOC", "axis": "features", "layer": 0, "value": 9.0}]
    ranks = [{"metric": "eigen_residual", "rank": rank, "value": rank / 8} for rank in range(1, 8)]
    frame = conform(pd.DataFrame([*layers, *inputs, *overall, *ranks]).assign(model="m"))
    table = summary_table(frame)
    assert table["axis"].tolist()[:2] == ["features", "tokens"]
    assert table["mean [95 % CI]"].tolist() == [
        "0.2 [−1.0, 1.0]", "1.2 [−0.1, 2.5]", "0.125", "0.5", "0.875"
    ]  # fmt: skip
    assert table["rank"].tolist()[2:] == [1, 4, 7]
    assert table["permutation null distribution"].tolist()[:2] == ["0.5 [0.25, 0.75]"] * 2
    assert table["z (gaussian)"].tolist() == ["2.5", "2.5", None, None, None]
    assert "layer" not in table
    assert "z (permutation)" not in table  # no quantity has one


def test_the_letters_of_the_labels_are_set_in_latex():
    for metric, expected in (("MDC", r"\ensuremath{\dot V}"), ("phi_norm2", r"\ensuremath{\varphi}(q)")):
        frame = make_frame([[1.0], [2.0]], metric, {"input": ["a", "b"], "layer": [0]}, model="m")
        text = latex_table(frame, "c", "n")
        assert expected in text
        assert text.isascii()


def test_statistics_and_standardised_keys_are_distinguished():
    rows = [
        {
            "metric": "eigenvalue_profile",
            "statistic": statistic,
            "input": name,
            "value": value,
            "standardize": how,
        }
        for statistic, value in (("max", 8.0), ("min", 2.0))
        for how in (None, "per-token")
        for name in ("a", "b")
    ]
    table = summary_table(conform(pd.DataFrame(rows).assign(model="m")))
    assert len(table) == 2
    label = METRICS["eigenvalue_profile"].label
    assert list(table[f"{label}, max"]) == ["8.00"] * 2
    assert list(table[f"{label}, min"]) == ["2.00"] * 2


def test_claims_are_printed_with_their_verdicts():
    row = {
        "place": "Table 1",
        "claim": "it falls",
        "interpretation": "",
        "model": "m",
        "published": 0.5,
        "why": "…",
    }
    numbers = {"measured": 0.25, "low": 0.125, "high": np.nan, "verdict": "undecided"}
    table = summary_table(pd.DataFrame([row | numbers, row | {**numbers, "measured": np.nan}] * 30))
    assert len(table) == 60
    assert list(table["measured [95 % CI]"])[:2] == ["0.250", None]  # half an interval is none
    assert "why" not in table
    assert set(table["verdict"]) == {"undecided"}


def test_a_column_that_a_notebook_adds_tells_rows_of_means_apart():
    rows = [
        {"metric": "token_cosine", "value": value, "input": name}
        for value, name in ((0.2, "a"), (0.4, "b"), (0.3, None))
    ]
    frame = conform(pd.DataFrame(rows).assign(model="bundled:digits-vit"))
    both = pd.concat([frame.assign(batch="train"), frame.assign(batch="test", value=2 * frame["value"])])
    table = summary_table(both)
    assert table["batch"].tolist() == ["train", "test"]
    assert table["mean [95 % CI]"].tolist() == [
        "0.3 [−1.0, 1.0]",
        "0.6 [−1.0, 1.0]",
    ]  # ends at the cosine's bounds


def test_no_text_of_a_csv_is_run_by_a_spreadsheet_and_every_one_comes_back():
    texts = [
        "=1+1",
        "+cmd|'/C calc'!A0",
        "-2",
        "@SUM(A1)",
        "\t=1",
        "'=1",
        "''@",
        "'quoted'",
        "plain = text",
        "\r=1",
        "two\rlines",
        None,
    ]
    frame = pd.DataFrame(
        {"input": texts, "value": np.arange(-5.0, 7.0), "head": pd.array([-1] * 12, "Int64")}
    )
    written = csv_bytes(frame)
    cells = pd.read_csv(io.BytesIO(written), dtype="string")
    assert not cells["input"].str.match(r"[=+\-@\t\r]").any()
    assert list(cells["value"]) == [str(value) for value in frame["value"]]
    again = without_apostrophes(cells)
    assert [None if pd.isna(text) else text for text in again["input"]] == texts
    assert list(frame["input"][:-1]) == texts[:-1]  # it is a copy that is written


def test_coordinates_of_tokens_are_not_averaged():
    tokens = pd.DataFrame(
        {
            "model": ["a"] * 60 + ["b"] * 60,
            "input": "0",
            "layer": 3,
            "head": pd.array([0, 1] * 60, dtype="Int64"),
            "token": [*range(60)] * 2,
            "row": [np.nan, *range(59)] * 2,
            "column": pd.array([1] * 120, dtype="Int64"),
            "value": [2.0] * 60 + [4.0] * 60,
        }
    )
    table = summary_table(tokens)
    assert list(table.columns) == ["model", "statistic", "value"]
    means = table[table["statistic"] == "mean"].set_index("model")["value"]
    assert means.to_dict() == {"a": 2, "b": 4}
    text = latex_table(tokens, "Tokens.", "tokens")
    assert not any(name in text for name in ("layer", "head", "row", "column"))


def test_a_frame_of_coordinates_alone_is_counted():
    table = summary_table(pd.DataFrame({"layer": [0, 1] * 30, "head": 2}))
    assert table.set_index("statistic").loc["count", "head"] == 60
    assert "mean" not in set(table["statistic"])
