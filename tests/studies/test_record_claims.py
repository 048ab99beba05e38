"""Claims about trained mechanisms: intervals of differences and ratios, and verdicts from records."""

import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from workbench.core import paths
from workbench.core.errors import MissingResource, UnknownName
from workbench.core.intervals import (
    Finding,
    crossed_interval,
    paired_interval,
    random_effects_interval,
    welch_interval,
)
from workbench.papers import verdicts
from workbench.papers.published import RECORDED, claim_options, published, stated_claims
from workbench.studies import claims_from_records
from workbench.studies import record_claims as from_records
from workbench.studies.records import (
    CONFIRMED_COLUMNS,
    EVALUATIONS_FILE,
    METRICS_FILE,
    confirmed_seeds,
    conform_evaluation,
    embedded_record,
    evaluation_record,
    scaling_record,
    training_record,
    write_record,
)
from workbench.studies.scaling import scaling_exponents
from workbench.studies.seeds import CONFIRMATORY, CONTINUED, SEEN_DATA


@pytest.fixture(scope="module")
def everything():
    return claims_from_records()


def test_a_claim_of_training_is_answered_from_the_last_epoch_of_every_seed(everything):
    claim = stated_claims("wu2025").query("measure == 'accuracy[split=test]'").iloc[0]
    row = everything.query("paper == 'wu2025' and measure == 'accuracy[split=test]'").iloc[0]
    frame = training_record(["digits-tssa", "digits-vit"], confirmed=row["scope"] == "confirmatory seeds")
    frame = frame[(frame["split"] == "test") & (frame["metric"] == "accuracy")]
    ends = frame[frame["epoch"] == frame["epoch"].max()].groupby("model")["value"].mean()
    assert claim["options"] == "model=digits-tssa, baseline=digits-vit"
    assert row["measured"] == pytest.approx(ends["digits-tssa"] - ends["digits-vit"])
    assert row["low"] < row["measured"] < row["high"]
    assert row["n"] == frame["seed"].nunique()


def test_every_claim_from_records_has_a_row_and_says_what_it_compares(everything):
    frame = everything
    stated = stated_claims()
    assert len(frame) == stated["analysis"].isin(RECORDED).sum()
    assert set(frame["model"]) == {from_records.MODELS}
    for reading, options in zip(
        frame["interpretation"], stated[stated["analysis"].isin(RECORDED)]["options"], strict=True
    ):
        compared = [
            pair.split("=")[1]
            for pair in options.split(", ")
            if not pair.startswith(("recipe=", "data=", "seeds=", "effects="))
        ]
        assert all(name in reading for name in compared)
    assert frame["why"].notna().all()


def test_a_claim_of_an_operator_s_cost_is_answered_by_the_exponent_on_record(everything):
    claims = everything.query("paper == 'wu2025' and analysis == 'operators'").set_index("options")
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
    assert "points.csv" in claims.attrs["records"]


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
    found, how, *_ = from_records._compare(claim, [first, second], "kinds")
    assert how == "paired t"
    assert (found.value, found.n) == (pytest.approx(0.1), 3)
    with pytest.raises(MissingResource, match="make records"):
        from_records._compare(claim | {"measure": "aupr[protocol=p]"}, [first, second], "inputs")


def test_a_cost_is_counted_at_the_paper_s_own_size(everything):
    rows = everything.query("paper == 'teo2024' and measure == 'macs'")
    (own,) = rows.to_dict("records")
    assert own["measured"] == pytest.approx(1.21 / 1.17, abs=0.01)  # as the paper's Table 13 prints it
    assert (own["verdict"], own["kind"], own["scale"]) == ("holds", "count", "")


def test_no_claim_about_a_trained_mechanism_rests_on_seeds_that_had_been_seen(everything):
    trained = everything[
        everything["analysis"].isin(["training", "evaluation"]) & (everything["kind"] != "count")
    ]
    # weights of confirmatory seeds are not kept: later evaluations are of the bundled pair only
    later = trained["measure"].str.contains("protocol=transfer|protocol=pgd-random")
    assert later.sum() == 2
    assert set(trained.loc[later, "scope"]) == {"this pair of weights"}
    trained = trained[~later]
    assert len(trained) > 40
    assert set(trained["scope"]) == {"confirmatory seeds"}
    assert set(trained["units"]) == {"seeds"}


def test_models_whose_confirmatory_seeds_are_all_on_record_are_answered_by_those(everything):
    """RPC-Attention on digits: 14 points more under PGD with the first seed, fewer over seven new ones."""
    answered = everything.query("scope == 'confirmatory seeds' and analysis != 'embedded'")
    models = {part.partition("=")[2] for own in answered["options"] for part in own.split(", ")}
    assert {"digits-rpc-sym", "digits-softmax-sym"} <= models
    assert set(confirmed_seeds([*models])) == models
    assert set(answered["n"]) <= {3, 5, 7}
    attacks = answered[answered["options"] == "model=digits-rpc-sym, baseline=digits-softmax-sym"]
    attacks = attacks[attacks["measure"].str.contains("protocol=pgd")]
    (attack,) = attacks["measured"]
    assert attack < 0.14


@pytest.fixture
def confirmed(tmp_path, monkeypatch):
    """The committed records in a folder of their own, and how to put records of confirmatory seeds beside them."""
    for name in ("published", "records", "models"):
        (tmp_path / name).symlink_to(paths.data_dir() / name)
    monkeypatch.setattr(paths, "data_dir", lambda: tmp_path)
    rpc = stated_claims().query(
        "options == 'model=digits-rpc-sym, baseline=digits-softmax-sym' and kind == ''"
    )
    monkeypatch.setattr(from_records, "stated_claims", lambda paper: rpc)
    folder = tmp_path / "confirmed" / "records"

    def train(name, values):
        about = json.loads((tmp_path / "records" / name / "record.json").read_text())
        rows = [
            {"run": name, "task": "digits", "attention": "a", "seed": seed, "epoch": 30, "split": "test",
             "metric": "accuracy", "value": value, "unit": "of 1"}
            for seed, value in values.items()
        ]  # fmt: skip
        write_record(folder / name, METRICS_FILE, pd.DataFrame(rows), about | {"seeds": [*values]})

    def evaluate(**outcomes):
        """Which images were right under AutoAttack, by model and seed."""
        rows = [
            {"training_seed": seed, "model": f"bundled:digits-{name.replace('_', '-')}", "protocol": "autoattack",
             "epsilon": 0.02, "metric": "accuracy_top1", "value": text.count("1") / len(text), "outcomes": text}
            for name, own in outcomes.items()
            for seed, text in own.items()
        ]  # fmt: skip
        frame = conform_evaluation(pd.DataFrame(rows), CONFIRMED_COLUMNS)
        about = {"command": "c", "seed": 0, "models": {}, "protocols": {}, "notes": []}
        write_record(folder / "robustness", EVALUATIONS_FILE, frame, about)

    return SimpleNamespace(train=train, evaluate=evaluate)


SEEDS = CONFIRMATORY["digits-rpc-sym"]
FIVE = dict(zip(SEEDS, (0.90, 0.91, 0.93, 0.92, 0.94), strict=True))


def _of_rpc(measure):
    (row,) = claims_from_records().query("measure == @measure").to_dict("records")
    return row


def test_confirmatory_seeds_alone_decide_where_all_of_both_models_are_there(confirmed):
    measure = "accuracy[split=test]"
    before = _of_rpc(measure)
    assert (before["scope"], before["n"]) == ("exploratory seeds", 3)
    assert "0 of 5 of digits-rpc-sym, 0 of 5 of digits-softmax-sym" in before["why"]
    confirmed.train("digits-rpc-sym", FIVE | {7: 0.1})  # another seed than those that were fixed
    four = {seed: value + 0.03 for seed, value in FIVE.items() if seed != SEEDS[-1]}
    confirmed.train("digits-softmax-sym", four)
    partly = _of_rpc(measure)
    assert (partly["measured"], partly["scope"]) == (before["measured"], "exploratory seeds")
    assert "5 of 5 of digits-rpc-sym, 4 of 5 of digits-softmax-sym" in partly["why"]
    confirmed.train("digits-softmax-sym", {seed: value + 0.03 for seed, value in FIVE.items()})
    row = _of_rpc(measure)
    assert (row["scope"], row["n"], row["units"]) == ("confirmatory seeds", 5, "seeds")
    values = pd.Series(FIVE)
    assert row["measured"] == pytest.approx(-0.03)
    assert (row["low"], row["high"]) == pytest.approx(welch_interval(values, values + 0.03)[1:3])
    assert "; confirmatory seeds, 5 and 5" in row["why"]


def test_the_second_stage_of_seeds_counts_where_all_of_it_is_there_of_both_models(confirmed):
    measure = "accuracy[split=test]"
    second = dict.fromkeys(CONTINUED["digits-rpc-sym"], 0.5)
    confirmed.train("digits-rpc-sym", FIVE | second)
    baseline = {seed: value + 0.03 for seed, value in FIVE.items()}
    confirmed.train("digits-softmax-sym", baseline | {CONTINUED["digits-rpc-sym"][0]: 0.5})
    row = _of_rpc(measure)
    assert row["n"] == 5
    assert row["measured"] == pytest.approx(-0.03)  # nothing is read of a stage that is not complete
    confirmed.train("digits-softmax-sym", baseline | second)
    row = _of_rpc(measure)
    assert row["n"] == 7
    assert row["measured"] == pytest.approx(-0.03 * 5 / 7)
    assert "; confirmatory seeds, 7 and 7" in row["why"]


def test_an_attack_on_confirmatory_seeds_is_judged_over_seeds_and_images(confirmed):
    measure = "accuracy_top1[protocol=autoattack,epsilon=0.02]"
    seen = _of_rpc(measure)
    assert (seen["scope"], seen["units"]) == ("this pair of weights", "inputs")
    assert (
        "(confirmatory ones evaluated: 0 of 5 of digits-rpc-sym, 0 of 5 of digits-softmax-sym)" in seen["why"]
    )
    right = ["1" * 9 + "0", "1" * 8 + "00", "1" * 9 + "0", "1" * 10, "0" * 8 + "11"]
    wrong = ["0" * 9 + "1", "1" * 4 + "0" * 6, "0" * 10, "01" * 5, "1" * 8 + "11"]
    sides = [dict(zip(SEEDS, side, strict=True)) for side in (right, wrong)]
    confirmed.evaluate(rpc_sym=sides[0], softmax_sym={seed: sides[1][seed] for seed in SEEDS[:2]})
    assert _of_rpc(measure)["measured"] == seen["measured"]
    assert "5 of 5 of digits-rpc-sym, 2 of 5 of digits-softmax-sym" in _of_rpc(measure)["why"]
    confirmed.evaluate(rpc_sym=sides[0], softmax_sym=sides[1])
    row = _of_rpc(measure)
    tables = [np.array([[letter == "1" for letter in text] for text in side]) for side in (right, wrong)]
    assert row["measured"] == pytest.approx(tables[0].mean() - tables[1].mean())
    assert (row["low"], row["high"]) == pytest.approx(crossed_interval(*tables)[1:3])
    assert (row["scope"], row["units"], row["n"]) == ("confirmatory seeds", "seeds", 5)
    # McNemar's exact p of 9 : 1 is 0.02, of 4 : 0 0.13, of 9 : 0 0.004, of 5 : 0 0.06, of 0 : 8 0.008
    assert (
        "over the same 10 inputs (McNemar), higher in 2 and lower in 1 of 5; confirmatory seeds" in row["why"]
    )


def test_a_verdict_of_three_seeds_says_that_it_rests_on_normality_and_gives_the_permutation_p(everything):
    two_samples = everything[
        everything["interval"].isin(
            [
                "Welch",
                "Welch, on logarithms",
                "Welch, with inputs crossed",
                "Welch, with inputs crossed, on logarithms",
            ]
        )
    ]
    assert two_samples["p_permutation"].notna().all()
    assert everything.drop(two_samples.index)["p_permutation"].isna().all()
    three = two_samples[two_samples["n"] == 3]
    assert len(three) > 10
    assert (three["p_permutation"] > 0.0999).all()
    for row in everything[(everything["units"] == "seeds") & everything["low"].notna()].to_dict("records"):
        assert ("it rests on their being normal" in row["why"]) == (row["n"] == 3)
    five_steps = three.query(
        "label == 'RPC is more accurate on clean images: test accuracy, five iterations'"
    ).iloc[0]
    assert "of 3 seeds, it rests on their being normal (exact permutation p = 1)" in five_steps["why"]
    rpc = two_samples.query("label == 'RPC is more accurate on clean images: test accuracy'").iloc[0]
    frame = training_record(["digits-rpc-sym", "digits-softmax-sym"], confirmed=True)
    frame = frame.query("split == 'test' and metric == 'accuracy' and epoch == 30")
    one, two = (own["value"].to_numpy() for _, own in frame.groupby("model"))
    pooled, gaps = np.concatenate([one, two]), []
    assert len(one) == len(two) == rpc["n"]
    for chosen in itertools.combinations(range(len(pooled)), len(one)):
        rest = [index for index in range(len(pooled)) if index not in chosen]
        gaps.append(pooled[list(chosen)].mean() - pooled[rest].mean())
    wanted = np.mean(np.abs(gaps) >= abs(one.mean() - two.mean()) - 1e-12)
    assert rpc["p_permutation"] == pytest.approx(wanted)


def test_rpc_under_corruption_is_judged_among_the_claims_of_its_date(everything):
    """Holm's p by hand, over the claims of 2026-11-23 and none of a later day."""
    label = "RPC is more robust to corruptions: error, mean of types"
    counted = verdicts.counted(everything).query("paper == 'teo2024' and p == p")
    row = counted[counted["label"] == label].iloc[0]
    (date,) = stated_claims().query("label == @label")["stated"]
    assert date == row["stated"] == "2026-11-23"
    family = np.sort(counted.loc[counted["stated"] == date, "p"].to_numpy(float))
    place = int(np.flatnonzero(family == row["p"])[0])
    steps = [p * (len(family) - rank) for rank, p in enumerate(family)]
    assert row["p_adjusted"] == pytest.approx(max(steps[: place + 1]))
    assert (row["verdict"] == "undecided") == (row["p_adjusted"] >= 0.05)
    assert len(family) < len(counted)


def test_a_verdict_and_its_adjusted_interval_agree(everything):
    """The adjusted interval lies inside or outside the allowed range exactly where Holm's p is below 5 %."""
    judged = everything[everything["p_adjusted"].notna()]
    assert judged["low_adjusted"].notna().all()
    for row in judged.to_dict("records"):
        allowed = verdicts.region(row["comparison"], row["threshold"], row["published"], None, row["margin"])
        clear = verdicts.decide(
            Finding(row["measured"], row["low_adjusted"], row["high_adjusted"], 3), allowed
        )
        assert (clear != "undecided") == (row["p_adjusted"] < 0.05), row
        carried = verdicts.CARRIED in row["why"]  # a doubt that no p has
        assert (row["verdict"] == "undecided") == (carried or clear == "undecided"), row
    assert everything.drop(judged.index)["low_adjusted"].isna().all()


# Embedded data ----------------------------------------------------------------------------------------------

SCORES = {  # variant → data set → test accuracy by seed
    "new": {"easy": (0.9, 0.8, 0.7), "hard": (0.5, 0.6, 0.4), "level": (0.60, 0.61, 0.65)},
    "old": {"easy": (0.6, 0.65, 0.7), "hard": (0.3, 0.25, 0.35), "level": (0.93, 0.94, 0.91)},
    "cut": {"easy": (0.85,), "hard": (0.55,), "level": (0.6,)},
}


@pytest.fixture
def embedded(monkeypatch):
    """Records of three data sets, pilot runs, and claims about them as asked for."""
    pilots = {(name, side): True for name in ("easy", "hard", "level", "chirp") for side in ("old", "cut")}

    def record(name):
        if (name, "old") not in pilots:
            raise UnknownName("embedded data on record", name, [name for name, _ in pilots])
        rows = [("majority", None, 0, "test", 0.5)]
        for variant, table in SCORES.items():
            for seed, value in zip((3, 5, 8), table.get(name, table["easy"]), strict=False):
                rows += [(variant, seed, 0, "test", 0.1), (variant, seed, 7, "test", value)]
                rows += [(variant, seed, 7, "train", 0.8 if (variant, name) == ("old", "easy") else 0.95)]
        frame = pd.DataFrame(rows, columns=["variant", "seed", "epoch", "split", "value"])
        frame = frame.assign(data=name, metric="accuracy").astype({"seed": "Int64"})
        frame.attrs = {"records": [], "provenance": []}
        return frame

    def piloted():
        rows = [(*pair, 1, 0.4, 0.5) for pair in pilots]
        rows += [(*pair, 2, 0.6 if learned else 0.5, 0.5) for pair, learned in pilots.items()]
        frame = pd.DataFrame(rows, columns=["data", "variant", "epoch", "low", "trivial"])
        frame.attrs = {"records": [], "provenance": []}
        return frame

    def answered(options, threshold="0"):
        claim = stated_claims("wu2025").query("measure == 'accuracy[split=test]'").iloc[[0]]
        claim = claim.assign(
            analysis="embedded", options=options, threshold=threshold, comparison=">", margin=""
        )
        monkeypatch.setattr(from_records, "stated_claims", lambda paper: claim)
        (row,) = claims_from_records().to_dict("records")
        return row

    monkeypatch.setattr(from_records, "embedded_record", record)
    monkeypatch.setattr(from_records, "learned_record", piloted)
    answered.pilots = pilots
    return answered


def test_mechanisms_on_embedded_data_are_compared_over_seeds_by_their_mean_over_data(embedded):
    row = embedded("data=easy+hard, model=new, baseline=old")
    one, other = (np.mean([SCORES[name]["easy"], SCORES[name]["hard"]], axis=0) for name in ("new", "old"))
    assert row["measured"] == pytest.approx(one.mean() - other.mean())
    found = welch_interval(pd.Series(one), pd.Series(other))
    assert (row["low"], row["high"], row["n"]) == (pytest.approx(found.low), pytest.approx(found.high), 3)
    assert (row["units"], row["scope"], row["interval"]) == ("seeds", "confirmatory seeds", "Welch")
    assert "2 of 2 data sets learned in pilot runs" in row["why"]
    assert row["options"] == "data=easy+hard, model=new, baseline=old"
    turned = embedded("data=hard+easy, model=new, baseline=old")
    assert [turned[name] for name in ("measured", "low", "p")] == pytest.approx(
        [row[name] for name in ("measured", "low", "p")]
    )
    single = embedded("data=hard, model=new, baseline=old")
    assert single["measured"] == pytest.approx(0.2)
    assert "1 of 1 data sets learned in pilot runs" in single["why"]


def test_a_data_set_at_chance_for_both_is_out_of_the_mean(embedded):
    """One pilot that learned suffices; a data set without it counts for nothing."""
    both = "data=easy+hard, model=new, baseline=old"
    embedded.pilots["hard", "old"] = False
    assert (
        "1 of 2 data sets learned in pilot runs; left out, without all pilot runs: hard"
        in (embedded(both)["why"])
    )
    row = embedded("data=hard, model=new, baseline=old")
    assert row["verdict"] == "not tested at this scale"
    assert row["why"] == (
        "no pilot run of new on hard is on record; make it with: workbench study records learned --name hard"
    )
    embedded.pilots["hard", "new"] = True
    assert "2 of 2 data sets learned in pilot runs" in embedded(both)["why"]
    embedded.pilots["hard", "new"] = False
    row = embedded(both)
    assert "1 of 2 data sets learned in pilot runs; left out, at chance for both: hard" in row["why"]
    one, other = (pd.Series(SCORES[name]["easy"]) for name in ("new", "old"))
    assert row["measured"] == pytest.approx(one.mean() - other.mean())
    assert (row["low"], row["high"]) == pytest.approx(welch_interval(one, other)[1:3])
    assert row["options"] == "data=easy, model=new, baseline=old"
    single = embedded("data=easy+hard+level, model=new, baseline=old, seeds=1")
    assert single["options"] == "data=easy+level, model=new, baseline=old, seeds=1"
    assert single["n"] == 2


@pytest.mark.parametrize("score", [0.01, 0.99])
def test_no_test_score_decides_what_is_learned(embedded, monkeypatch, score):
    """Test scores far from the trivial predictor's neither bring a data set into the mean nor take it out."""
    embedded.pilots.update({("hard", "old"): False, ("hard", "new"): False})
    for variant in ("old", "new"):
        for data in ("hard", "level"):
            monkeypatch.setitem(SCORES[variant], data, (score,) * 3)
    row = embedded("data=easy+hard+level, model=new, baseline=old")
    assert row["options"] == "data=easy+level, model=new, baseline=old"


def test_a_data_set_that_carries_the_mean_is_named(embedded):
    row = embedded("data=easy+hard+level, model=new, baseline=old")
    one, other = ({key: np.array(value) for key, value in SCORES[name].items()} for name in ("new", "old"))
    whole = welch_interval(*(pd.Series(sum(side.values()) / 3) for side in (one, other)))
    assert whole.value == pytest.approx(row["measured"])
    words = []
    for name in SCORES["new"]:
        rest = welch_interval(*(pd.Series((sum(side.values()) - side[name]) / 2) for side in (one, other)))
        verdict = "holds" if rest.low > 0 else "fails" if rest.high < 0 else "undecided"
        if verdict != "undecided" or (rest.value > 0) != (whole.value > 0):
            words.append(f"without {name} it is {rest.words('.3g')} ({verdict})")
    assert whole.low < 0 < whole.high
    assert len(words) == 2  # the sign turns, and one of them decides
    assert f"one data set carries the mean: {', '.join(words)}; " in row["why"]
    effects = embedded("data=easy+hard+level, model=new, baseline=old, effects=random")
    ends = f"[{effects['low']:.3g}, {effects['high']:.3g}]".replace("-", "−")
    assert f"with data sets as random effects {effects['measured']:.3g} {ends} (undecided)" in row["why"]
    assert "carries" not in embedded("data=easy+hard, model=new, baseline=old")["why"]  # two have no other


def test_who_underfits_is_named_with_the_score_in_training(embedded):
    why = embedded("data=easy+hard, model=new, baseline=old")["why"]
    assert "; old underfits easy (train accuracy 0.800, new 0.950)" in why
    assert "underfits hard" not in why


def test_data_sets_as_random_effects_are_a_row_over_data_sets(embedded):
    row = embedded("data=easy+hard+level, model=new, baseline=old, effects=random")
    one, other = (pd.DataFrame(SCORES[name]) for name in ("new", "old"))
    wanted = random_effects_interval(one.mean() - other.mean(), (one.var() + other.var()) / 3)
    assert (row["measured"], row["low"], row["high"]) == pytest.approx(wanted[:3])
    assert (row["units"], row["n"], row["interval"]) == ("data sets", 3, "Hartung–Knapp")
    assert row["scope"] == "confirmatory seeds"
    assert "one training seed" not in row["why"]


def test_data_whose_scores_had_been_seen_are_exploratory(embedded):
    assert "chirp" in SEEN_DATA
    asked = stated_claims().query("analysis == 'embedded'")["options"]
    assert not {name for text in asked for name in claim_options(text)["data"].split("+")} & {*SEEN_DATA}
    row = embedded("data=easy+chirp, model=new, baseline=old")
    assert row["scope"] == "exploratory seeds"


def test_the_record_says_what_carries_the_means_over_sequences(everything):
    rows = everything[everything["units"] == "seeds"].set_index("label")
    primal = rows.loc["Primal-Attention is more accurate on sequences: test accuracy"]
    assert "without digits it is " in primal["why"]
    bilateral = rows.loc["Bilateral attention is more accurate on sequences"]
    assert "bilateral underfits digits (train accuracy 0.794, softmax 0.996)" in bilateral["why"]
    series = rows.loc["Primal-Attention classifies series better: test accuracy"]
    assert "without frequency it is " in series["why"]
    means = everything.query("interval == 'Hartung–Knapp'")
    assert len(means) == 4  # returns are not on record
    assert set(means["verdict"]) == {"undecided"}


def test_a_verdict_that_one_data_set_carries_is_undecided(everything):
    over = everything[everything["why"].str.contains("one data set carries the mean")]
    assert set(over["verdict"]) == {"undecided"}
    decided = over[over["p_adjusted"] < 0.05]
    assert len(decided)  # by all data sets together, and by that rule alone no more
    assert (decided["low_adjusted"] * decided["high_adjusted"] > 0).all()


def test_one_training_seed_is_paired_over_data_sets_with_the_same_seed(embedded):
    row = embedded("data=easy+hard, model=new, baseline=cut, seeds=1")
    found = paired_interval(pd.Series([0.9, 0.5]), pd.Series([0.85, 0.55]))
    assert row["measured"] == pytest.approx(found.value)
    assert (row["low"], row["high"], row["n"]) == (pytest.approx(found.low), pytest.approx(found.high), 2)
    assert (row["units"], row["scope"], row["interval"]) == ("data sets", "one training seed", "paired t")


def test_what_nobody_learns_decides_nothing(embedded):
    embedded.pilots.update({(data, side): False for data in ("easy", "hard") for side in ("old", "new")})
    row = embedded("data=easy+hard, model=new, baseline=old")
    assert row["verdict"] == "premise not met"
    assert "no data set learned in pilot runs" in row["why"]


def test_embedded_data_without_a_record_are_not_tested(embedded):
    row = embedded("data=easy+harder, model=new, baseline=old")
    assert row["verdict"] == "not tested at this scale"
    assert row["why"].endswith("workbench study records embedded --name harder")


def test_every_claim_about_embedded_data_names_what_is_trained():
    from workbench.studies.training.embedded_runs import PLAN

    stated = stated_claims().query("analysis == 'embedded'")
    assert set(stated["paper"]) == {"teo2024", "chen2023", "wu2025", "abdullaev2025"}
    for options, scale in stated[["options", "scale"]].to_numpy():
        pairs = claim_options(options)
        assert scale == "embedded"
        for name in pairs["data"].split("+"):
            seeds = {planned.variant: len(planned.seeds) for planned in PLAN[name]}
            sides = seeds[pairs["model"]], seeds[pairs["baseline"]]
            assert (min(sides) == 1) == (pairs.get("seeds") == "1")


def test_the_budgets_at_which_fan_is_attacked_follow_from_its_baseline_alone():
    record = embedded_record("cuts").query("variant == 'softmax-sym' and metric == 'accuracy'")
    mean = record[record["epoch"] == 20].groupby("split")["value"].mean()
    stated = stated_claims("teo2024").query("options == 'data=cuts, model=rpc-sym, baseline=softmax-sym'")
    for attack in ("fgsm", "pgd"):
        attacked = mean[mean.index.str.startswith(f"{attack} ")].drop(f"{attack} 0")
        assert set(attacked.index) == {f"{attack} {budget}" for budget in (0.0025, 0.005, 0.0075, 0.01, 0.02)}
        split = (attacked - mean[f"{attack} 0"] / 2).abs().idxmin()
        assert f"accuracy[split={split}]" in set(stated["measure"])


def test_the_page_of_teo2024_has_the_numbers_of_the_record(everything):
    page = (Path(__file__).parents[2] / "docs" / "papers" / "teo2024.md").read_text(encoding="utf-8")
    text = " ".join(page.split())
    clean = everything[everything["measure"] == "perplexity[split=test]"].set_index("options")
    row = clean.loc["model=prose-rpc-sym, baseline=prose-softmax"]
    assert f"ratio of perplexities is {row['measured']:.3f} [{row['low']:.3f}, {row['high']:.3f}]" in text
    rows = evaluation_record().query(
        "model == 'bundled:digits-rpc-sym' and metric == 'accuracy_top1' and epsilon == 0.02"
    )
    values = rows.set_index("protocol")["value"]
    assert f"under PGD at {values['pgd-random']:.0%}".replace("%", " %") in text
    assert f"leave {values['transfer']:.0%}: the white-box".replace("%", " %") in text
    assert values["transfer"] > values["pgd"]
