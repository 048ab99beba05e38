"""The record of theorems and remarks: cheap rows are made again, and what pages say of it follows from it."""

import numpy as np
import pandas as pd
import pytest
import torch

from docs.hooks.papers import theorems as table
from workbench.studies import theorems
from workbench.studies.records import read_theorems, theorems_record


@pytest.fixture(scope="module")
def record():
    return theorems_record()


def of(record, paper, **columns):
    """The only row with these values, columns by the start of their text."""
    rows = record[record["paper"] == paper]
    for name, value in columns.items():
        rows = (
            rows[rows[name] == value]
            if name in ("setting", "weights")
            else rows[rows[name].str.startswith(value)]
        )
    assert len(rows) == 1, rows
    return rows.iloc[0]


def test_the_record_has_the_columns_and_finite_numbers(record):
    assert tuple(record.columns) == theorems.Row._fields
    assert np.isfinite(record[["value", "low", "high"]]).all(axis=None)
    assert ((record["low"] <= record["value"]) & (record["value"] <= record["high"])).all()
    assert set(record["place"]) == {"Theorem IV.1", "Corollary III.2", "Appendix A.1", "Appendix D"}
    for (paper, place), rows in record.groupby(["paper", "place"]):
        assert table(paper, place).count("\n") == len(rows) + 1
    with pytest.raises(ValueError, match="no theorem of saritas2025"):
        table("saritas2025", "Appendix Z")


def test_rows_that_are_cheap_are_those_on_record(record):
    made = pd.DataFrame([*theorems.against_keys(1.0), *theorems.learned_rows()], columns=theorems.Row._fields)
    for row in made.to_dict("records"):
        stored = of(
            record, row["paper"], quantity=row["quantity"], setting=row["setting"], model=row["model"]
        )
        assert [stored["value"], stored["low"], stored["high"]] == pytest.approx(
            [row["value"], row["low"], row["high"]], rel=1e-6
        )


def test_assignments_of_a_trained_model_are_those_on_record(record, monkeypatch):
    monkeypatch.setattr(theorems, "INITIALISATIONS", 1)
    for row in theorems.assignment_rows():
        if row.weights == "trained":
            stored = of(record, row.paper, place=row.place, quantity=row.quantity, weights="trained")
            assert stored["value"] == pytest.approx(row.value, rel=1e-4)


def test_growth_is_measured_of_attention_without_the_mlp(monkeypatch):
    monkeypatch.setattr(theorems, "SHARES", (0.0, 1.0))
    sample = theorems._sample("bundled:digits-vit", "epoch-000", 1)
    before = theorems._growth(sample)
    for block in sample.module.blocks:
        block.mlp.fc2.weight.data.mul_(3)
    after = theorems._growth(sample)
    assert list(before) == list(after)
    for name, values in after.items():
        assert values == pytest.approx(before[name])
    for t in (0, 1):
        assert 0 < before[f"growth {t}"][0] <= before[f"bound {t}"][0]


def test_what_the_page_says_of_theorem_iv_1(record):
    def row(quantity, t, weights):
        return of(record, "abdullaev2025", quantity=quantity, setting=f"t = {t:g}", weights=weights)

    for weights in ("trained", "untrained"):
        for t in theorems.SHARES:
            assert row("growth K", t, weights)["value"] < row("bound of K", t, weights)["value"]
        for t in theorems.SHARES[1:]:
            assert row("K boosted", t, weights)["high"] < 1
    for t in theorems.SHARES[1:]:
        assert row("K boosted", t, "trained")["high"] < row("printed", t, "trained")["low"]
        assert row("growth K", t, "trained")["value"] * 10 < row("bound of K", t, "trained")["value"]
        assert (
            row("printed", t, "untrained")["high"]
            < row("the same of their bounds", t, "untrained")["low"] / 5
        )
        assert row("K boosted", t, "untrained")["value"] > 0.9
    largest = of(record, "abdullaev2025", quantity="largest local", weights="untrained")
    assert largest["high"] < min(theorems.SHARES[1:])
    learned = record[record["quantity"].str.startswith("learned t")]
    assert len(learned) == 2
    assert (learned["high"] < 0).all()


def test_what_the_page_says_of_corollary_iii_2(record):
    over = record[record["quantity"] == "perturbation over bound"]
    assert set(over["weights"]) == {"trained", "untrained"}
    assert (over["high"] < 0.02).all()
    assert (over["value"] < 0.01).all()
    for spread, falls in ((1, True), (10, False)):
        setting = f"random logits, SD {spread}; N = {theorems.SIZES[0]} to {theorems.SIZES[-1]}"
        moved, bound = (
            of(record, "abdullaev2025", quantity=f"exponent of N of the {what}", setting=setting)
            for what in ("perturbation", "bound")
        )
        assert moved["high"] < bound["low"]
        assert bound["value"] > 0.5
        assert (moved["high"] < 0) == falls
        assert moved["value"] < 0.2


def test_what_the_page_says_of_the_toy_example(record):
    for weights in ("trained", "untrained"):
        for what in ("cross-term", "loss J"):
            assert of(record, "saritas2025", quantity=f"{what}, largest", weights=weights)["low"] > 1


def test_what_the_page_says_of_the_penalty(record):
    nearer = record[(record["place"] == "Appendix D") & (record["setting"] == "the first less the second")]
    scores = nearer[nearer["model"] == "bundled:digits-primal"]
    assert set(scores["weights"]) == {"untrained", "trained, η = 0.05", "trained, η = 0"}
    assert (nearer["value"] < 0.02).all()
    assert (nearer[nearer["units"] == "seeds"]["n"] == 3).all()


def test_rotated_directions_are_the_null_of_an_alignment():
    """Singular vectors themselves stand out from it."""
    generator = torch.manual_seed(0)
    kernel = torch.randn(2, 3, 9, 9, dtype=torch.float64, generator=generator)
    right = torch.linalg.svd(kernel).Vh.mT[..., :4]
    found = theorems._alignment(right * torch.tensor([4.0, 3.0, 2.0, 1.0]), kernel)
    torch.testing.assert_close(found["as they are"], torch.ones(2, 3, dtype=torch.float64))
    assert (found["directions rotated at random"] < 0.9).all()


def test_a_part_that_was_measured_is_not_measured_again(tmp_path, monkeypatch):
    row = theorems.Row("saritas2025", "Appendix D", "a", "", "", "trained", 1.0, 0.5, 1.5, 3, "seeds")
    calls = []
    monkeypatch.setattr(theorems, "PARTS", {"one": lambda work: calls.append(work) or iter([row])})
    paths = [theorems.measured_part("one", tmp_path) for _ in range(2)]
    assert calls == [tmp_path]
    pd.testing.assert_frame_equal(read_theorems(paths[0]), pd.DataFrame([row]), check_dtype=False)
    made = theorems.make_theorems_record(tmp_path / "data", tmp_path)
    assert list(made["files"]) == ["theorems.csv"]
    assert not paths[0].exists()
