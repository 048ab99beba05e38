"""Claims about trained mechanisms: intervals of differences and ratios, and verdicts from records."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from workbench.core.errors import MissingResource
from workbench.core.intervals import Finding, newcombe_interval
from workbench.papers.published import RECORDED, published, stated_claims
from workbench.studies import baselines as twins
from workbench.studies import claims_from_records
from workbench.studies.records import scaling_record, training_record
from workbench.studies.scaling import scaling_exponents


def test_a_claim_of_training_is_answered_from_the_last_epoch_of_every_seed():
    claim = stated_claims("wu2025").query("measure == 'accuracy[split=test]'").iloc[0]
    row = claims_from_records("wu2025").query("measure == 'accuracy[split=test]'").iloc[0]
    frame = training_record(["digits-tssa", "digits-vit"])
    frame = frame[(frame["split"] == "test") & (frame["metric"] == "accuracy")]
    ends = frame[frame["epoch"] == frame["epoch"].max()].groupby("model")["value"].mean()
    assert claim["options"] == "model=digits-tssa, twin=digits-vit"
    assert row["measured"] == pytest.approx(ends["digits-tssa"] - ends["digits-vit"])
    assert row["low"] < row["measured"] < row["high"]
    assert row["n"] == 3


def test_every_claim_from_records_has_a_row_and_says_what_it_compares():
    frame = claims_from_records()
    stated = stated_claims()
    assert len(frame) == stated["analysis"].isin(RECORDED).sum()
    assert set(frame["model"]) == {twins.MODELS}
    for reading, options in zip(
        frame["reading"], stated[stated["analysis"].isin(RECORDED)]["options"], strict=True
    ):
        assert all(pair.split("=")[1] in reading for pair in options.split(", "))
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
    frame = _grown(tssa=2.1, softmax=2.05)
    frame.attrs = {"records": ["points.csv"], "provenance": ["the study"]}
    monkeypatch.setattr(twins, "scaling_record", lambda: frame)
    claims = claims_from_records("wu2025").query("analysis == 'operators'")
    times = claims[
        claims["measure"].str.contains("time_exponent_tokens.*condition=forward]")
        & claims["measure"].str.contains("sweep=tokens")
    ].set_index("options")
    assert times.loc["operator=tssa", "verdict"] == "fails"
    assert times.loc["operator=tssa", "measured"] == pytest.approx(2.1, abs=0.02)
    assert times.loc["operator=softmax", "verdict"] == "holds"
    saving = times.loc["operator=tssa, twin=softmax"]
    assert saving["measured"] == pytest.approx(0.05, abs=0.02)
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
        "analysis": "evaluation", "over": "model - twin", "measure": "corruption_error[protocol=p,kind=each]"
    }  # fmt: skip
    found = twins._compare(claim, [first, second])
    assert (found.value, found.n) == (pytest.approx(0.1), 3)
    with pytest.raises(MissingResource, match="make records"):
        twins._compare(claim | {"measure": "aupr[protocol=p]"}, [first, second])


def test_every_trained_mechanism_has_the_twin_that_its_claims_name():
    found = twins.stated_twins()
    assert found["digits-rpc-sym"] == "digits-softmax-sym"
    assert found["prose-tssa-causal"] == "prose-softmax"
    assert "digits-vit" not in found


def _errors(model, **kinds):
    rows = [
        {"model": f"bundled:{model}", "protocol": "corruptions", "n": 400, "metric": "corruption_error",
         "kind": kind, "value": value}
        for kind, value in kinds.items()
    ]  # fmt: skip
    whole = {**rows[0], "kind": None, "value": sum(kinds.values()) / len(kinds)}
    return pd.DataFrame([*rows, whole]).reindex(columns=[*rows[0], "low", "high", "epsilon", "severity"])


def test_errors_are_divided_by_the_twins_type_by_type_and_their_mean_is_geometric():
    frame = pd.concat(
        [
            _errors("digits-softmax-sym", fog=0.2, blur=0.1, jpeg=0.0),
            _errors("digits-rpc-sym", fog=0.1, blur=0.4, jpeg=0.3),
        ],
        ignore_index=True,
    )
    frame.attrs["provenance"] = ["here"]
    found = twins.against_twins(frame, "corruption_error").set_index("kind")
    assert found.attrs["provenance"] == ["here"]
    assert set(found["model"]) == {"bundled:digits-rpc-sym"}  # symmetric softmax is nobody's variant
    ratio = found["ratio"].to_dict()
    assert (ratio["fog"], ratio["blur"]) == pytest.approx((0.5, 4))
    assert math.isnan(ratio["jpeg"])
    whole = found.loc[found.index.isna()].iloc[0]
    logs = np.log([0.5, 4])
    expected = stats.ttest_1samp(logs, 0).confidence_interval(0.95)
    assert whole["ratio"] == pytest.approx(math.sqrt(2))
    assert (whole["low"], whole["high"]) == pytest.approx((math.exp(expected.low), math.exp(expected.high)))
    sides = [stats.binomtest(count, 400).proportion_ci(method="wilson") for count in (40, 80)]
    ends = newcombe_interval(
        *(Finding(share, side.low, side.high, 400) for share, side in zip((0.1, 0.2), sides, strict=True)),
        ratio=True,
    )
    assert (found.loc["fog", "low"], found.loc["fog", "high"]) == pytest.approx((ends.low, ends.high))


def test_perplexities_are_divided_at_the_same_share_with_their_own_intervals():
    def rows(model, values):
        return [
            {"model": f"bundled:{model}", "protocol": "word-swap", "kind": "words", "n": 20, "metric": "perplexity",
             "epsilon": share, "severity": np.nan, "value": value, "low": value / 2, "high": value * 2}
            for share, value in values.items()
        ]  # fmt: skip

    frame = pd.DataFrame(
        rows("prose-rpc-sym", {0.0: 6.0, 0.1: 9.0}) + rows("prose-softmax", {0.1: 3.0, 0.0: 8.0})
    )
    found = twins.against_twins(frame, "perplexity").set_index("epsilon")
    assert found["ratio"].to_dict() == pytest.approx({0.0: 0.75, 0.1: 3.0})
    assert list(found["twin_value"]) == [8.0, 3.0]
    reach = 2 ** math.sqrt(2)
    assert (found.loc[0.1, "low"], found.loc[0.1, "high"]) == pytest.approx((3 / reach, 3 * reach))
