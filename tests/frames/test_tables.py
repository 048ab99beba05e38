"""Publication-ready tables."""

import io

import numpy as np
import pandas as pd

from workbench.frames.metrics import METRICS
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
    assert table.iloc[1, 2] == "17.5 ± 15"


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
    text = latex_table(spectra().assign(value=2.5e-12), "c", "n")
    assert r"$2.5\times 10^{-12}$" in text


def test_the_number_of_a_token_is_not_averaged():
    layers = {"input": ["a", "b"], "layer": [0]}
    frame = pd.concat(
        [make_frame([[3], [9]], name, layers, model="m") for name in ("attention_sink_key", "attention_sink")]
    )
    assert [column for column in summary_table(frame).columns if "Key" in column] == []
    assert summary_table(frame).iloc[0, -1].startswith("6 ±")


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
    assert table["mean ± sd"].tolist() == ["0.2 ± 0.14", "1.2 ± 0.14", "0.125", "0.5", "0.875"]
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
    assert list(table[f"{label}, max"]) == ["8 ± 0"] * 2
    assert list(table[f"{label}, min"]) == ["2 ± 0"] * 2


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


def test_a_column_that_a_notebook_adds_tells_rows_of_means_apart():
    rows = [
        {"metric": "token_cosine", "value": value, "input": name}
        for value, name in ((0.2, "a"), (0.4, "b"), (0.3, None))
    ]
    frame = conform(pd.DataFrame(rows).assign(model="bundled:digits-vit"))
    both = pd.concat([frame.assign(batch="train"), frame.assign(batch="test", value=2 * frame["value"])])
    table = summary_table(both)
    assert table["batch"].tolist() == ["train", "test"]
    assert table["mean ± sd"].tolist() == ["0.3 ± 0.14", "0.6 ± 0.28"]


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
