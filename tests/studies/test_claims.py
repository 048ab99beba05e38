"""Claims about trained mechanisms: intervals of differences and ratios, and verdicts from records."""

import numpy as np
import pandas as pd
import pytest

from workbench.core.errors import MissingResource
from workbench.papers.published import RECORDED, published, stated_claims
from workbench.studies import claims as from_records
from workbench.studies import claims_from_records
from workbench.studies.records import scaling_record, training_record
from workbench.studies.scaling import scaling_exponents


def test_a_claim_of_training_is_answered_from_the_last_epoch_of_every_seed():
    claim = stated_claims("wu2025").query("measure == 'accuracy[split=test]'").iloc[0]
    row = claims_from_records("wu2025").query("measure == 'accuracy[split=test]'").iloc[0]
    frame = training_record(["digits-tssa", "digits-vit"])
    frame = frame[(frame["split"] == "test") & (frame["metric"] == "accuracy")]
    ends = frame[frame["epoch"] == frame["epoch"].max()].groupby("model")["value"].mean()
    assert claim["options"] == "model=digits-tssa, baseline=digits-vit"
    assert row["measured"] == pytest.approx(ends["digits-tssa"] - ends["digits-vit"])
    assert row["low"] < row["measured"] < row["high"]
    assert row["n"] == 3


def test_every_claim_from_records_has_a_row_and_says_what_it_compares():
    frame = claims_from_records()
    stated = stated_claims()
    assert len(frame) == stated["analysis"].isin(RECORDED).sum()
    assert set(frame["model"]) == {from_records.MODELS}
    for reading, options in zip(
        frame["interpretation"], stated[stated["analysis"].isin(RECORDED)]["options"], strict=True
    ):
        compared = [pair.split("=")[1] for pair in options.split(", ") if not pair.startswith("recipe=")]
        assert all(name in reading for name in compared)
    assert frame["why"].notna().all()


def test_a_claim_of_an_operator_s_cost_is_answered_by_the_exponent_on_record():
    claims = claims_from_records("wu2025").query("analysis == 'operators'").set_index("options")
    (row,) = claims.loc[["operator=tssa"]].query("measure.str.startswith('memory')").to_dict("records")
    fits = scaling_exponents(scaling_record())
    fit = fits.query(
        "sweep == 'tokens' and operator == 'tssa' and condition == 'forward' and source == 'measured' "
        "and metric == 'memory_exponent_tokens'"
    ).iloc[0]
    assert (row["measured"], row["low"], row["high"]) == (fit["value"], fit["low"], fit["high"])
    assert row["n"] == fit["points"]


def _grown(**powers):
    """A record of operators whose time and memory grow with these powers of the tokens, and a little unevenly."""
    frame = scaling_record()
    frame = frame[frame["operator"].isin(powers) & (frame["sweep"] == "tokens")].copy()
    uneven = 1 + 0.02 * (np.log2(frame["tokens"].astype(float)) % 2)
    frame["value"] = frame["tokens"].astype(float) ** frame["operator"].map(powers) * uneven
    return frame


def test_growth_is_judged_by_its_exponent_and_a_saving_by_the_difference(monkeypatch):
    frame = _grown(tssa=2.3, softmax=2.05)
    frame.attrs = {"records": ["points.csv"], "provenance": ["the study"]}
    monkeypatch.setattr(from_records, "scaling_record", lambda: frame)
    claims = claims_from_records("wu2025").query("analysis == 'operators'")
    times = claims[
        claims["measure"].str.contains("time_exponent_tokens.*condition=forward]")
        & claims["measure"].str.contains("sweep=tokens")
    ].set_index("options")
    assert times.loc["operator=tssa", "verdict"] == "fails"
    assert times.loc["operator=tssa", "p_adjusted"] >= times.loc["operator=tssa", "p"]
    assert times.loc["operator=tssa", "measured"] == pytest.approx(2.3, abs=0.02)
    assert times.loc["operator=softmax", "verdict"] == "holds"
    saving = times.loc["operator=tssa, baseline=softmax"]
    assert saving["measured"] == pytest.approx(0.25, abs=0.02)
    assert saving["verdict"] == "fails"
    absent = times.loc["operator=softmax-eager"]
    assert absent["verdict"] == "not tested at this scale"
    assert "make scaling" in absent["why"]
    assert claims.attrs["records"][-1] == "points.csv"


def test_claims_of_costs_publish_what_the_paper_s_table_of_complexities_prints():
    printed = published("wu2025", "1").set_index(["row", "metric"])["value"]
    rows = {"operator=tssa": "ToST (ours)", "operator=softmax": "ViT", "operator=softmax-eager": "ViT"}
    claims = stated_claims().query("analysis == 'operators' and published != '' and over == 'sizes'")
    assert len(claims) == 6
    for claim in claims.to_dict("records"):
        metric = claim["measure"].split("[")[0]
        assert float(claim["published"]) == printed[rows[claim["options"]], metric]


def _evaluated(model, **rows):
    return pd.DataFrame(
        [{"model": f"bundled:{model}", "protocol": "p", "n": 9, **row} for row in rows["rows"]]
    )


def test_kinds_are_paired_and_single_values_use_their_own_intervals():
    kinds = [("fog", 0.5, 0.4), ("blur", 0.7, 0.5), ("jpeg", 0.2, 0.2)]
    first, second = (
        _evaluated(
            name,
            rows=[
                {"metric": "corruption_error", "kind": kind, "value": values[side]} for kind, *values in kinds
            ]
            + [{"metric": "corruption_error", "kind": None, "value": 0.4}],
        )
        for side, name in enumerate("ab")
    )
    claim = {
        "analysis": "evaluation", "kind": "", "over": "model - baseline",
        "measure": "corruption_error[protocol=p,kind=each]",
    }  # fmt: skip
    found = from_records._compare(claim, [first, second])
    assert (found.value, found.n) == (pytest.approx(0.1), 3)
    with pytest.raises(MissingResource, match="make records"):
        from_records._compare(claim | {"measure": "aupr[protocol=p]"}, [first, second])


def test_a_cost_is_counted_at_the_paper_s_own_size():
    rows = claims_from_records("teo2024").query("measure == 'macs'")
    (own,) = rows.to_dict("records")
    assert own["measured"] == pytest.approx(1.21 / 1.17, abs=0.01)  # as the paper's Table 13 prints it
    assert (own["verdict"], own["kind"], own["scale"]) == ("holds", "count", "")


def test_seeds_speak_of_a_mechanism_and_inputs_of_one_pair_of_weights():
    scope = claims_from_records("teo2024").groupby("units")["scope"].unique()
    assert set(scope["inputs"]) == set(scope["kinds"]) == {"this pair of weights"}
    assert set(scope["seeds"]) == {"training seeds", "exact count"}
