"""Controls of the verdicts: what is planted holds in every test of its claim, and noise in none."""

import pandas as pd
import pytest

import workbench
from workbench.papers.controls import (
    CONTROLS,
    INPUTS,
    MEMBERSHIP,
    NEGLIGIBLE,
    OUTPUTS,
    RANK,
    SMOOTHING,
    VALUES,
    controls,
    gaussian,
    low_rank_claims,
    write_membership_model,
)
from workbench.papers.verdicts import EQUIVALENT, FAILS, HOLDS, NOT_DIAGNOSTIC, RANDOM_TOO, controlled


@pytest.fixture(scope="module")
def found():
    return controls()


@pytest.fixture(scope="module")
def verdicts(found):
    """Of every claim, its verdict on what is planted and on noise."""
    return found.pivot_table("verdict", ["control", "label"], "case", aggfunc="first")


OF_VALUES = (
    "V equals the predicted V̇: share of heads equal entry by entry",
    "V equals V̇ up to rotation and scale: linear CKA",
    "V equals V̇ column by column, in any order: mean cosine",
    "V holds the keys' principal axes: share of V in the span of V̇",
    "V is nearer V̇ than noise is: linear CKA",
    "Eigenvectors follow from V: inconsistency of (I − 1_N)X = G⁻¹V",
    "Entries of γ are equal for â from V: mean |difference| over |γ|",
    "Entries of γ are equal for â from V: standard deviation over |γ|",
    "Entries of γ are equal for â from V: mean relative difference",
    "Vectors from V are eigenvectors of K̃: eigen-residual",
    "Vectors from V lie in the top eigenspace: share, beside noise",
)
PLANTED = {
    VALUES: OF_VALUES,
    OUTPUTS: (
        "Outputs remove the projection error: share of what can be removed",
        "Outputs reconstruct the queries: share of removable error removed",
        "Outputs reconstruct the queries: share of removable error removed, beside noise",
    ),
    RANK: (
        "Attention matrices are of low rank: share of ranks with 90 % of variance",
        "Attention matrices are of low rank: effective rank, beside noise",
    ),
    MEMBERSHIP: ("Foreground patches share a head: adjusted Rand index, memberships",),
    SMOOTHING: ("Tokens grow similar with depth: oversmoothing rate r",),
}


@pytest.mark.parametrize(
    ("control", "label"), [(control, label) for control, labels in PLANTED.items() for label in labels]
)
def test_what_is_planted_holds_and_noise_does_not(verdicts, control, label):
    row = verdicts.loc[control, label]
    assert row["planted"] == HOLDS
    assert row["noise"] in (FAILS, EQUIVALENT)


def test_noise_of_the_size_of_trained_queries_and_keys_never_passes_for_low_rank():
    """Half the size of unit noise, on 65 tokens of 16 features: rows are nearly uniform, one singular value is all."""
    q, k = 0.5 * gaussian(2, INPUTS, 1, 65, 16, seed=3)
    rows = pd.DataFrame([claim | row for claim, row in low_rank_claims(q, k)]).assign(untrained_verdict=None)
    share, rank = PLANTED[RANK]
    assert rows.set_index("label")["verdict"][share] == HOLDS  # by its threshold alone
    verdicts = controlled(rows).set_index("label")["verdict"]
    assert verdicts[share] == NOT_DIAGNOSTIC
    assert verdicts[rank] in (FAILS, EQUIVALENT)


def test_noise_stands_for_the_untrained_weights_of_what_is_planted(found):
    """Were noise to pass, what is planted would not hold either."""
    planted = found[found["case"] == "planted"]
    assert planted["untrained_verdict"].notna().all()
    labels = [label for labels in PLANTED.values() for label in labels]
    rows = planted[planted["label"].isin(labels) & planted["kind"].ne("identity")]
    assert len(rows) == len(labels)
    assert set(controlled(rows.assign(untrained_verdict=HOLDS))["verdict"]) == {RANDOM_TOO}
    passing = rows[~rows["comparison"].str.endswith("null")].assign(null_mean=1.0, null="gaussian")
    passing = passing.assign(null_low=passing["measured"], null_high=passing["measured"])
    assert set(controlled(passing)["verdict"]) == {NOT_DIAGNOSTIC}


def test_a_planted_model_holds_and_its_random_weights_and_noise_do_not(tmp_path):
    verdicts = {}
    for case, planted in {"planted": True, "noise": False}.items():
        path = tmp_path / case / "epoch-000.safetensors"
        write_membership_model(path, planted)
        frame = workbench.claims("wu2025", f"file:{path}", "bundled:digits", n=16, null_samples=5)
        rows = frame.set_index("label")
        verdicts[case] = rows.loc["Foreground patches share a head: adjusted Rand index, memberships"]
    assert verdicts["planted"]["verdict"] == HOLDS
    assert verdicts["planted"]["untrained_n"] == 6
    assert verdicts["planted"]["untrained_verdict"] not in (HOLDS, None)
    assert verdicts["noise"]["verdict"] != HOLDS


def test_every_control_is_asked_of_every_claim_of_its_own(verdicts):
    assert set(PLANTED) == set(CONTROLS)
    stated = verdicts.index.to_frame(index=False)
    mirrors = stated["label"].str.startswith((NEGLIGIBLE, "J_proj (eq. 13) is a mean"))
    assert stated.loc[~mirrors].groupby("control")["label"].agg(set).to_dict() == {
        control: set(labels) for control, labels in PLANTED.items()
    }


def test_values_of_kernel_pca_are_not_negligibly_alike_and_noise_is(verdicts):
    of_values = verdicts.loc[VALUES]
    negligible = of_values[of_values.index.str.startswith(NEGLIGIBLE)]
    assert len(negligible) == 8
    assert (negligible["planted"] == FAILS).all()
    assert not (negligible["noise"] == FAILS).any()
    assert negligible.loc[f"{NEGLIGIBLE}: share of V in the span of V̇", "noise"] == EQUIVALENT


def test_memberships_of_ink_agree_with_it_far_beyond_the_margin(found):
    row = found.query("control == @MEMBERSHIP and case == 'planted'").iloc[0]
    assert row["low"] > 0.5
