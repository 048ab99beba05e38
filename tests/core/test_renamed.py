"""The table of renamed names: what it gives, and that the changelog and the recorded numbers tell the same."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from workbench.core.renamed import (
    PARAMETERS,
    RENAMED,
    new_expression,
    new_keys,
    new_name,
    new_settings,
    new_values,
)

ROOT = Path(__file__).parents[2]


def test_the_changelog_has_every_renamed_name():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    rows = set(re.findall(r"^\| (`[^|]*`) \| ([^|]*) \|", text, re.MULTILINE))
    pairs = {(f"`{old}`", f"`{new}`") for names in RENAMED.values() for old, new in names.items()}
    pairs |= {(f"`{old}`", " or ".join(f"`{name}`" for name in new)) for old, new in PARAMETERS.items()}
    assert not pairs - rows


def test_recorded_numbers_are_compared_by_the_same_names():
    with (ROOT / "tests" / "numbers" / "names.csv").open(encoding="utf-8", newline="") as file:
        listed = {(row["where"], row["old"], row["new"]) for row in csv.DictReader(file)}
    kinds = ("site", "axis", "candidate", "convention", "metric", "option")
    pairs = {(kind, old, new) for kind in kinds for old, new in RENAMED[kind].items()}
    assert pairs == {row for row in listed if row[0] in kinds}


def test_no_new_name_is_an_old_one():
    # or a file would be renamed a second time where it is read without a format
    for names in RENAMED.values():
        assert not {*names} & {*names.values()}


def test_the_table_cannot_be_written():
    with pytest.raises(TypeError):
        RENAMED["metric"]["a"] = "b"
    with pytest.raises(TypeError):
        RENAMED["more"] = {}


def test_settings_are_renamed_in_any_depth_and_only_where_their_name_says_what_they_are():
    held = {
        "draws": 2,
        "sites": "hidden,input",
        "text": "text",
        "recipe": [{"architecture": {"attention_options": {"convention": "code", "heads": 2}}}],
        "conventions": ["teo2024-text", "exact"],
        "convention": None,
    }
    assert new_settings(held) == {
        "null_samples": 2,
        "sites": "resid_post,input",
        "text": "text",
        "recipe": [{"architecture": {"attention_options": {"convention": "as_implemented", "heads": 2}}}],
        "conventions": ["teo2024_as_published", "exact"],
        "convention": None,
    }
    assert new_settings(new_settings(held)) == new_settings(held)
    assert new_values({"draws": 2, "convention": "text"}) == {"draws": 2, "convention": "as_published"}


def test_names_that_have_not_changed_are_kept():
    assert new_name("metric", "eigenvalue") == "eigenvalue"
    assert new_keys("capture entry", {"softmax_rows": True, "call": 0}) == {
        "rows_sum_to_one": True,
        "call": 0,
    }


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            "projection_error[convention=exact] / projection_baseline",
            "projection_error[convention=exact] / projection_zero_predictor",
        ),
        (
            "gamma_rel[candidate=hidden,statistic=mean,convention=text]",
            "gamma_rel[candidate=resid_post,statistic=mean,convention=as_published]",
        ),
        (
            "model=digits-primal, twin=digits-vit, draws=0",
            "model=digits-primal, baseline=digits-vit, null_samples=0",
        ),
        ("noise=gaussian-noise | noise=defocus-blur", "noise=gaussian-noise | noise=defocus-blur"),
        ("model / twin", "model / baseline"),
        ("last - first", "last - first"),
    ],
)
def test_what_a_table_of_claims_measures_is_said_in_todays_names(old, new):
    assert new_expression(old) == new_expression(new) == new


def test_what_is_no_name_stays_as_it_is():
    assert new_settings({"convention": [[["code"]], 3, "code"]}) == {
        "convention": [[["code"]], 3, "as_implemented"]
    }
