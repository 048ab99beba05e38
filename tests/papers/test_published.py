"""What was transcribed: complete, consistent with itself, and in the words that results use."""

import math
from datetime import date

import pandas as pd
import pytest
import torch

from workbench.analyses.gram_spectrum import gram_spectrum
from workbench.core import paths
from workbench.core.errors import InputError, UnknownName
from workbench.data.corruptions import CORRUPTIONS
from workbench.frames.metric import METRICS
from workbench.models import catalog
from workbench.papers import verdicts
from workbench.papers.published import (
    PAPERS,
    PRINTED_ONLY,
    published,
    published_pairs,
    stated_claims,
)
from workbench.studies.evaluation.protocols import PROTOCOLS
from workbench.studies.training.bundled_models import MODELS

SIZES = {"tiny": (12, 3), "small": (12, 6), "base": (12, 12), "large": (24, 16)}  # layers, heads


def _table(number: str) -> pd.DataFrame:
    return published("saritas2025", number)


@pytest.mark.parametrize(
    ("table", "models", "rows"), [("1", 10, 40), ("2", 10, 40), ("3", 6, 72), ("4", 9, 36)]
)
def test_every_cell_of_a_table_has_a_row(table, models, rows):
    frame = _table(table)
    assert frame["model"].nunique() == models
    assert len(frame) == rows
    cell = ["row", "metric", "statistic", "standardize"]
    assert not frame.duplicated(cell).any()
    empty = frame[frame["value"].isna()]
    assert (empty["note"] == "unreadable in our copy").all()
    assert len(empty) == (12 if table == "3" else 0)  # six cells, each a value and its arrow


def test_the_tables_list_the_models_of_the_catalog():
    listed = {
        kind: {
            entry.alias
            for entry in catalog.CATALOG
            if "saritas2025" in entry.papers and entry.modality == kind
        }
        for kind in ("image", "text")
    }
    for table in "12":
        assert set(_table(table)["model"]) == listed["image"]
    assert set(_table("4")["model"]) == listed["text"]


def test_statistics_over_ranks_are_in_order():
    for table in "23":
        values = _table(table).query("metric == 'eigenvalue_profile'")
        wide = values.pivot_table(index=["row", "standardize"], columns="statistic", values="value")
        wide = wide.dropna()
        assert len(wide) == {"2": 10, "3": 8}[table]
        for low, high in [("min", "median"), ("median", "mean"), ("mean", "max")]:
            assert (wide[low] <= wide[high]).all()


def test_table_3_repeats_table_2_and_its_arrows_follow_from_its_values():
    second = _table("2").set_index(["row", "statistic"])[["value", "spread"]]
    third = _table("3").set_index(["metric", "standardize", "row", "statistic"]).sort_index()
    same = third.loc[("eigenvalue_profile", "per-token")][["value", "spread"]]
    pd.testing.assert_frame_equal(same, second.loc[same.index])
    starred = third.loc[("eigenvalue_profile", "none")]["value"]
    arrow = third.loc[("eigenvalue_profile_change", "none")]["value"]
    change = starred / same["value"] - 1
    assert (change.isna() == arrow.isna()).all()
    off = (change - arrow).abs().dropna()
    assert len(off) == 18
    assert (off <= 0.005 + 1e-9).all()


def test_the_abstract_quotes_the_largest_of_table_1():
    for metric in ("MOC", "LCKA", "KCKA"):
        bound = published("saritas2025", "abstract", metric)["value"].item()
        assert bound == _table("1").query("metric == @metric")["value"].max()


def test_the_number_of_tests_is_that_of_the_heads():
    heads = 0
    for name in set(_table("1")["model"]):
        layers, per_layer = SIZES[name.split("_")[1]]
        heads += layers * per_layer
    assert published(metric="allclose_tests")["value"].item() == 100 * heads


def test_values_come_in_the_units_of_results():
    row = published("saritas2025", "2", model="timm:vit_tiny_patch16_224").query("statistic == 'max'").iloc[0]
    assert (row["value"], row["spread"]) == (pytest.approx(147e-6), pytest.approx(11e-6))
    assert published("teo2024", metric="eigenvalue_profile")["value"].tolist() == [648.46, 4.65, 40.07, 17.73]
    toy = published(metric="cross_term")["value"].tolist()
    h = [1, 2]
    for axes, printed in zip([([1, 1], [-1, 0]), ([-1, 0], [1, 1])], toy, strict=True):
        total = sum(
            h[m] * h[n] * sum(a * b for a, b in zip(axes[m], axes[n], strict=True))
            for m in range(2)
            for n in range(2)
        )
        assert total == printed
    assert math.log(
        published(metric="phi_norm2").query("convention == 'teo2024_as_implemented'")["value"].item()
    ) == (pytest.approx(35, abs=1e-3))


@pytest.mark.parametrize("size", [0.0, 0.3, 2.0, 30.0])
def test_no_keys_have_the_eigenvalues_that_teo2024_prints(size):
    k = size * torch.randn(4, 23, 5, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    total = gram_spectrum(k, 0.4).product().nansum(-1)
    assert (total <= torch.exp(-0.4 * k.square().sum(-1)).sum(-1) + 1e-12).all()  # of which each is at most 1
    printed = published("teo2024", metric="eigenvalue_profile").set_index("statistic")["value"]
    assert 64 * printed["min"] > 197  # each of 64 is at least the smallest, all together at most N


def test_a_model_is_found_by_any_of_its_names_and_a_misspelt_one_is_offered_the_nearest():
    by_alias, by_spec, by_short = (
        published(table="4", model=name)
        for name in ("bert-base-uncased", "hf:google-bert/bert-base-uncased", "bert-base")
    )
    assert by_alias.equals(by_spec)
    assert by_alias.equals(by_short)
    assert by_alias["spec"].unique().tolist() == ["hf:google-bert/bert-base-uncased"]
    assert published(model="bundled:digits-vit").empty
    with pytest.raises(UnknownName, match="bert-base"):
        published(model="bert-bas")
    with pytest.raises(UnknownName, match="saritas2025"):
        published("saritas2024")
    with pytest.raises(UnknownName, match="table"):
        published(table="77")


def test_claims_are_stated_in_words_that_the_library_knows():
    stated = stated_claims()
    assert set(stated["paper"]) == set(PAPERS)
    one_claim = ["paper", "claim", "scale"]
    assert not stated.duplicated([*one_claim, "place", "interpretation"]).any()
    assert (stated.groupby(one_claim)["primary"].sum() == 1).all()
    assert set(stated["kind"]) == set(verdicts.KINDS)
    assert set(stated["scale"]) == {"", "embedded"}
    assert (
        stated.loc[stated["comparison"].isin(["equals", "> null", "<= null", "< null"]), "margin"] != ""
    ).all()
    for claim in stated.to_dict("records"):
        terms = verdicts.parse_measure(claim["measure"])
        recorded = claim["analysis"] in ("training", "embedded")  # whose metrics are those of metrics.csv
        assert recorded or {term.metric for term in terms} <= set(METRICS), claim
        assert claim["over"] in verdicts.OVER
        assert claim["comparison"] in verdicts.COMPARISONS
        assert claim["needs"] in {
            "",
            "image model of the paper",
            "text model of the paper",
            "training on ImageNet",
            "images",
            "inputs bundled:digits bundled:digits-train",
        }
        assert claim["setting"], claim
        assert "2026-11-23" <= date.fromisoformat(claim["stated"]).isoformat() == claim["stated"], claim
        null = verdicts.NullBand("gaussian", 0.0, -1.0, 1.0)
        low, high = verdicts.region(claim["comparison"], claim["threshold"], 1.0, null, claim["margin"])
        assert low < high
    assert len(stated_claims("teo2024")) == (stated["paper"] == "teo2024").sum()
    with pytest.raises(UnknownName, match="teo2024"):
        stated_claims("teo2023")


@pytest.mark.parametrize("typo", ["4·65", "4,65"])
def test_a_changed_table_says_what_is_wrong_with_it(monkeypatch, tmp_path, typo):
    (tmp_path / "published").mkdir()
    source = paths.data_dir() / "published"
    for name in (f"{paper}.csv" for paper in PAPERS):
        text = (source / name).read_text(encoding="utf-8")
        (tmp_path / "published" / name).write_text(text.replace("4.65", typo), encoding="utf-8")
    monkeypatch.setattr(paths, "data_dir", lambda: tmp_path)
    from workbench.papers import published as publications

    with pytest.raises(InputError, match="published"):
        publications._numbers.__wrapped__()


def test_quantities_that_only_papers_print_do_not_hide_a_metric():
    assert not set(PRINTED_ONLY) & set(METRICS)
    assert set(PRINTED_ONLY) <= set(published()["metric"]) <= {*PRINTED_ONLY, *METRICS}


# Numbers of tasks: accuracies, perplexities, costs -----------------------------------------------------------

CELLS = {
    "teo2024": {
        "1": 5 * 7, "2": 14 * 5, "3": 2 * 4, "4": 30 * 5, "5": 2 * 2, "6": 5 * 4, "7": 2 * 6, "8": 2 * 4,
        "9": 2 * 4, "10": 2 * 4, "11": 2 * 2 + 2 * 4, "12": 2 * 2, "13": 5 * 6, "14": 3 * 5,
    },
    "wu2025": {"1": 4 * 4, "2": 7 * 7, "3": 7 * 6, "4": 4 * 6 + 2 * 4, "8": 4},
    "chen2023": {
        "1": 11 * 11, "2": 4 * 12 * 2, "3": 6 * 9, "4": 7 * 10 * 2, "5": 10 * 7, "6": 3 * 6, "7": 12, "8": 4 * 6,
        "9": 30 * 4, "10": 3 * 9, "11": 2 * 11, "12": 2 * 6,
    },
    "abdullaev2025": {"I": 5 * 9, "II": 4 * 2, "III": 6 * 6, "IV": 4 * 3, "V": 3 * 2},
}  # fmt: skip


@pytest.mark.parametrize("paper", CELLS)
def test_every_cell_of_a_task_table_has_a_row(paper):
    frame = published(paper)
    tables = frame[~frame["table"].str.match("text|Figure|abstract")]
    assert tables.groupby("table").size().to_dict() == CELLS[paper]
    assert not frame.duplicated(["table", "row", "data", "condition", "metric", "statistic"]).any()
    empty = frame[frame["value"].isna()]
    assert empty["note"].str.contains("not in our copy").all()
    assert len(empty) == {"chen2023": 11}.get(paper, 0)  # its Table 7 but for what the text says of it


def test_values_lie_in_the_range_of_their_metric():
    for metric, values in published().groupby("metric")["value"]:
        if metric in METRICS:
            assert values.dropna().between(METRICS[metric].low, METRICS[metric].high).all(), metric
        elif metric not in {"perplexity_change", "cross_term", "eigenvalue_profile_change"}:
            assert (values.dropna() >= 0).all(), metric


@pytest.mark.parametrize("paper", ["teo2024", "abdullaev2025"])
def test_the_right_class_is_among_five_more_often_than_first(paper):
    frame = published(paper)
    frame["condition"] = frame["condition"].fillna("clean")
    frame = frame[frame["metric"].str.startswith("accuracy") & (frame["data"] == "ImageNet-1K").fillna(False)]
    wide = frame.pivot(index=["table", "row", "condition"], columns="metric", values="value").dropna()
    assert len(wide) == {"teo2024": 5 + 35 + 2 + 2 + 4 + 2 + 4 + 3, "abdullaev2025": 18}[paper]
    assert (wide["accuracy_top1"] < wide["accuracy_top5"]).all()


def test_the_corruptions_of_teo2024_average_to_its_table_1():
    table = {number: published("teo2024", number).query("data == 'ImageNet-C'") for number in ("1", "4")}
    for metric in ("accuracy_top1", "mCE"):
        kinds = table["4"].query("metric == @metric")
        assert set(kinds["condition"]) == {*CORRUPTIONS, "frost", "snow"}
        mean = kinds.groupby("row")["value"].mean()
        listed = table["1"].query("metric == @metric").set_index("row")["value"]
        listed.index = listed.index.str.removesuffix(" (baseline)")
        assert (mean - listed).abs().max() < 2e-4, metric  # two of the five mCE are off by 0.015 %


def test_attacks_are_named_as_the_protocols_are():
    for paper in ("teo2024", "abdullaev2025"):
        frame = published(paper)
        attacked = set(frame[frame["data"].isin(["ImageNet-1K", "WikiText-103 test"])]["condition"].dropna())
        assert attacked <= {*PROTOCOLS, "sld"}  # the library has no sparse L1 descent
        assert attacked


@pytest.mark.parametrize(
    ("paper", "tables", "metric", "data", "slack"),
    [
        ("chen2023", ["1", "3", "8", "11", "12"], "accuracy_top1", ["UEA", "LRA"], 0.0005),
        ("chen2023", ["2"], "seconds_per_epoch", ["UEA"], 0.05),
        ("chen2023", ["5"], "reward", ["D4RL"], 0.05),
        ("wu2025", ["3"], "accuracy_top1", ["LRA"], 0.00005),
        ("wu2025", ["4"], "cross_entropy", ["OpenWebText, LAMBADA, WikiText, PTB"], 0.005),
    ],
)
def test_a_printed_mean_is_the_mean_of_what_is_printed(paper, tables, metric, data, slack):
    frame = published(paper, metric=metric).fillna({"condition": "", "statistic": ""})
    frame = frame[frame["table"].isin(tables)]
    means = frame[frame["data"].isin(data) & (frame["statistic"] == "mean")]
    assert len(means) > 3
    off = {}
    for mean in means.to_dict("records"):
        same = frame["statistic"] == ""
        for column in ("table", "row", "condition"):
            same &= frame[column] == mean[column]
        parts = frame[same]["value"]
        assert len(parts) in (4, 5, 9, 10)
        if abs(parts.mean() - mean["value"]) > 2 * slack + 1e-9:  # rounded before and after
            off[mean["table"], mean["row"]] = (mean["value"], float(parts.mean()))
    noted = means[means["note"].str.startswith("not the mean").fillna(False)]
    assert set(off) == set(zip(noted["table"], noted["row"], strict=True)), off


@pytest.mark.parametrize(("table", "time"), [("2", "seconds_per_epoch"), ("4", "seconds_per_1000_steps")])
def test_the_ratios_of_chen2023_follow_from_its_times_and_memories(table, time):
    for ratio, cost, half in [("speedup", time, 0.05), ("memory_saving", "peak_memory", 0.05e9)]:
        printed, spent = (
            published("chen2023", table, metric).set_index(["row", "data"])["value"]
            for metric in (ratio, cost)
        )
        assert len(printed) == len(spent) > 3
        for (row, data), value in printed.items():
            own, baseline = spent[row, data], spent["Trans.", data]
            low, high = (baseline - half) / (own + half), (baseline + half) / (own - half)
            assert low - 0.05 <= value <= high + 0.05, (row, data)


def test_repeated_numbers_of_chen2023_agree():
    def of(table: str, row: str, condition: str | None = None) -> pd.Series:
        frame = published("chen2023", table).fillna({"statistic": ""})
        frame = frame[
            (frame["row"] == row) & frame["condition"].isna()
            if condition is None
            else (frame["row"] == row) & (frame["condition"] == condition)
        ]
        return frame.set_index(["data", "statistic"])["value"].sort_index()

    for table, other in [("1", "11"), ("3", "12")]:
        assert of(table, "Primal.Trans.").equals(of(other, "Primal.Trans.", "data-dependent weights"))
    for row in ("Primal.", "Primal.Trans."):
        assert of("3", row).equals(of("8", row, "with r-scores"))


def test_every_pair_is_of_printed_rows_and_of_models_that_are_trained_here():
    pairs = published_pairs()
    assert set(pairs["paper"]) == {"teo2024", "wu2025", "abdullaev2025"}
    stated = pd.read_csv(paths.data_dir() / "published" / "pairs.csv")
    assert not stated.duplicated(["paper", "table", "row"]).any()
    met = pairs[["paper", "table", "row"]].drop_duplicates()
    assert len(met) == len(stated)
    named = {*pairs["model"].dropna(), *pairs["baseline_model"].dropna()}
    assert named <= set(MODELS)


def test_a_pair_is_compared_where_both_were_measured():
    pgd = published_pairs("teo2024").query(
        "table == '2' and condition == 'pgd' and metric == 'accuracy_top1'"
    )
    assert dict(zip(pgd["row"].str.extract(r"\((.*)\)")[0], pgd["difference"].round(4), strict=True)) == {
        "4iter/layer1": 0.0017, "5iter/layer1": 0.0013, "6iter/layer1": 0.0022, "2iter/all-layer": 0.0114,
    }  # fmt: skip
    both = published_pairs("abdullaev2025").query("table == 'II' and condition == 'word-swap'")
    assert both.set_index("row")["ratio"]["+ Bilateral + Boost"] == pytest.approx(53.97 / 55.21)
    with pytest.raises(UnknownName, match="baseline"):
        published_pairs("saritas2025")


def test_claims_of_trained_mechanisms_print_what_the_pairs_print():
    stated = stated_claims()
    pairs = published_pairs()
    checked = 0
    for claim in stated[
        stated["analysis"].isin(["training", "evaluation"]) & (stated["published"] != "")
    ].to_dict("records"):
        model = claim["options"].split(",")[0].removeprefix("model=")
        column = "difference" if claim["over"] == "model - baseline" else "ratio"
        values = pairs.loc[pairs["model"] == model, column]
        if claim["measure"].startswith("macs") or values.empty:
            continue
        assert (values.abs() - abs(float(claim["published"]))).abs().min() < 1e-9, claim["interpretation"]
        checked += 1
    assert checked > 20
