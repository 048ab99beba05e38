"""A paper's table on one model: published numbers, every interpretation, and null distributions beside them."""

import math

import pytest

import workbench
from workbench.core.errors import InputError, UnknownName
from workbench.papers import measured_tables
from workbench.papers.verdicts import parse_measure

SETTINGS = {"n": 3, "null_samples": 2}
VIT, DIGITS = "bundled:digits-vit", "bundled:digits"


@pytest.fixture(scope="module")
def similarity():
    return workbench.analyze("value-similarity", VIT, DIGITS, null="all", **SETTINGS)


def _answer_with(monkeypatch, frame):
    """Put a frame in the place of every analysis; return the requests."""
    calls = []
    monkeypatch.setattr(measured_tables, "analyze", lambda name, **more: calls.append((name, more)) or frame)
    return calls


def test_measured_values_and_nulls_are_those_of_the_analysis(similarity):
    frame = workbench.table("saritas2025", 1, VIT, **SETTINGS)
    assert list(frame.columns) == list(measured_tables.COLUMNS)
    for row in frame.to_dict("records"):
        (term,) = parse_measure(row["measure"])
        rows = similarity[similarity["metric"] == term.metric]
        for column, word in term.where.items():
            rows = rows[rows[column] == word]
        inputs = rows[rows["layer"].isna() & rows["input"].notna()].drop_duplicates("input")
        assert row["measured"] == pytest.approx(sum(inputs["value"]) / 3)
        overall = rows[rows[["input", "layer", "head"]].isna().all(axis=1)].set_index("null")
        for end in ("null_mean", "null_low", "null_high"):
            assert row[end] == overall.loc[row["null"], end]
        assert row["within_null"] == (row["null_low"] <= row["measured"] <= row["null_high"])
    assert set(frame["null"]) == {"permutation", "rotation"}
    assert frame["published"].isna().all()
    assert frame["within_margin"].isna().all()
    assert frame.attrs["notes"][0].startswith(
        "Table 1 does not list bundled:digits-vit; its models are vit_tiny"
    )
    assert [run["analysis"] for run in frame.attrs["provenance"]] == ["value-similarity"]


def test_a_listed_model_has_its_printed_numbers_and_the_papers_setting(monkeypatch, similarity):
    calls = _answer_with(monkeypatch, similarity)
    frame = workbench.table("saritas2025", "4", "all-MiniLM-L6-v2", null_samples=2)
    printed = frame.drop_duplicates("measure").set_index("measure")["published"]
    assert printed.tolist() == [0.40, 0.40, 0.57, 0.57, 0.57, 0.13, 0.38]
    ((name, options),) = calls
    assert (name, options["inputs"]) == ("value-similarity", "bundled:prose")
    assert (options["padding"], options["null"], options["null_samples"]) == ("keep", "all", 2)
    assert "100 texts of WikiText-103" in frame.attrs["notes"][0]


@pytest.mark.parametrize(
    ("factor", "answer"), [(1, "yes"), (1.5, "no"), (1.11, "undecided"), (math.nan, None)]
)
def test_the_interval_is_within_a_tenth_of_the_printed_number_or_not(monkeypatch, similarity, factor, answer):
    _answer_with(monkeypatch, similarity)
    one = workbench.table("saritas2025", 1, VIT).query("measure == 'MOC[axis=tokens,statistic=max]'").iloc[0]
    assert one["high"] - one["low"] < 0.2 * one["measured"]  # narrow enough for every answer
    monkeypatch.setattr(measured_tables, "published_value", lambda claim, model: one["measured"] * factor)
    again = workbench.table("saritas2025", 1, VIT).query("measure == 'MOC[axis=tokens,statistic=max]'")
    assert set(again["within_margin"]) == {answer}


def test_the_null_of_a_spectrum_is_that_of_its_ranks():
    frame = workbench.table("saritas2025", 3, VIT, **SETTINGS)
    spectra = workbench.analyze("gram-spectrum", VIT, DIGITS, **SETTINGS)
    levels = spectra[spectra["metric"] == "eigenvalue"].groupby("rank")["null_mean"].mean().tolist()
    expected = [max(levels), min(levels), sum(levels) / len(levels)]
    assert frame["null_mean"].tolist()[:3] == pytest.approx(expected)
    assert set(frame["null"]) == {"gaussian"}
    assert (frame["null_low"] <= frame["null_mean"]).all()
    assert (frame["null_mean"] <= frame["null_high"]).all()


def test_a_table_without_a_measurement_is_refused_with_those_that_have_one():
    with pytest.raises(
        InputError, match=r"Table 2 of teo2024 is transcribed only.*saritas2025 1, .*saritas2025 4"
    ):
        workbench.table("teo2024", 2, VIT)
    with pytest.raises(UnknownName, match="table of the published numbers '9'"):
        workbench.table("saritas2025", 9, VIT)
    with pytest.raises(UnknownName, match="paper"):
        workbench.table("saritas2026", 1, VIT)
