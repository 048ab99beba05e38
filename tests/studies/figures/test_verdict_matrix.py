"""The verdict matrix: a mark per claim and kind of evidence, in the look of its verdict."""

import pandas as pd
import pytest

from workbench.core.errors import InputError
from workbench.papers.verdicts import (
    EQUIVALENT,
    NOT_DIAGNOSTIC,
    NOT_TESTED,
    OUTCOMES,
    PREMISE,
    RANDOM_TOO,
    counted,
    outcome,
)
from workbench.studies import recorded_claims
from workbench.studies.figures import verdict_matrix_caption, verdict_matrix_figure
from workbench.studies.figures.claims_chart import VERDICTS
from workbench.studies.figures.verdict_matrix import matrix_cells
from workbench.studies.records import claims_record

ROW = {
    "paper": "teo2024", "claim": "c", "interpretation": "i", "label": "V equals V̇: a share", "primary": True,
    "kind": "", "over": "inputs", "comparison": ">", "model": "bundled:digits-vit", "verdict": "holds", "why": "w",
}  # fmt: skip


def table(*changes):
    return pd.DataFrame([{**ROW, **change} for change in changes])


def marks(figure):
    """Marks below the key: (x, y) → the name of the outcome."""
    return {(x, y): trace.name for trace in figure.data for x, y in [*zip(trace.x, trace.y, strict=True)][1:]}


def test_a_mark_has_the_row_of_its_claim_the_column_of_its_model_and_the_look_of_its_outcome():
    claims = table(
        {},
        {"label": "Rank falls: a rank", "claim": "d", "verdict": "fails"},
        {"model": "all-MiniLM-L6-v2", "verdict": RANDOM_TOO},
        {"model": "all-MiniLM-L6-v2", "paper": "wu2025", "verdict": NOT_DIAGNOSTIC},
        {"model": "trained models", "claim": "d", "label": "Rank falls: a rank", "verdict": "undecided"},
        {"paper": "wu2025", "verdict": EQUIVALENT},  # refutes a claim that says "more than"
    )
    figure = verdict_matrix_figure(claims)
    drawn = marks(figure)
    assert sorted(drawn.values()) == sorted(
        ["holds", "fails", RANDOM_TOO, NOT_DIAGNOSTIC, "undecided", "fails"]
    )
    place = {}
    for at, name in drawn.items():
        place.setdefault(name, []).append(at)
    (vit, row), (sentence, same) = place["holds"][0], place[RANDOM_TOO][0]
    assert row == same
    assert vit < sentence
    (records, below) = place["undecided"][0]
    assert below > row
    assert records > sentence
    assert (vit, below) in place["fails"]
    for trace in figure.data:
        assert (trace.marker.color, trace.marker.symbol) == VERDICTS[trace.name]


def test_what_is_secondary_or_mathematics_or_not_tested_has_no_mark_and_random_logits_have_one():
    claims = table(
        {},
        {"primary": False, "interpretation": "j"},
        {"kind": "identity", "interpretation": "k"},
        {"verdict": NOT_TESTED, "interpretation": "l"},
        {"over": "tokens", "claim": "e"},
        {"over": "tokens", "claim": "e", "model": "all-MiniLM-L6-v2"},
    )
    assert len(matrix_cells(claims)) == len(marks(verdict_matrix_figure(claims))) == 2
    assert (
        "Of 2 verdicts on the papers' primary claims 2 hold, 0 hold for noise or untrained weights too, 0 are undecided"
        in verdict_matrix_caption(claims)
    )
    assert "Not drawn: 1 not tested" in verdict_matrix_caption(claims)
    unmet = verdict_matrix_caption(table({}, {"claim": "d", "label": "another", "verdict": PREMISE}))
    assert "0 are undecided, 0 fail and 1 lacks its premise.**" in unmet
    assert "No premise: its assumption fails." in unmet
    with pytest.raises(InputError, match="no primary claim was tested"):
        verdict_matrix_figure(claims[claims["verdict"] == NOT_TESTED])


def test_labels_lose_their_measure_unless_two_claims_would_agree():
    same = {"claim": "d", "label": "V equals V̇: a cosine"}
    assert set(matrix_cells(table({}))["label"]) == {"V equals V̇"}
    assert set(matrix_cells(table({}, same))["label"]) == {ROW["label"], same["label"]}


def test_all_that_is_on_record_fits_a_page_and_each_verdict_is_that_of_the_tables():
    claims = recorded_claims()
    assert len(claims) == len(claims_record()) + claims["model"].eq("trained models").sum()
    one_paper = claims[claims["paper"] == "saritas2025"].reset_index(drop=True)
    pd.testing.assert_frame_equal(recorded_claims("saritas2025"), one_paper, check_dtype=False)
    figure = verdict_matrix_figure(claims)
    assert figure.layout.height <= 7.5 * 96
    tested = counted(claims)
    tested = tested[tested["verdict"] != NOT_TESTED]
    once = tested[~(tested["over"].eq("tokens") & tested.duplicated(["paper", "claim", "interpretation"]))]
    wanted = pd.Series([outcome(row) for row in once.to_dict("records")]).value_counts().to_dict()
    assert pd.Series(marks(figure)).value_counts().to_dict() == wanted
    assert {*wanted} <= {*OUTCOMES}
    # no two marks lie on one another
    assert len(marks(figure)) == sum(wanted.values())
    ends = [x for x, _ in marks(figure)]
    assert min(ends) > 0
    assert max(ends) < figure.layout.width
