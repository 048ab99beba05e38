"""Claims measured: which runs are made, what is compared with what, and when nothing can be said."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest, quantile_test, ttest_1samp

import workbench
from workbench.analyses.softmax_sensitivity import sampled_sensitivity
from workbench.core.errors import MissingResource, UnknownName
from workbench.core.intervals import mean_interval, smallest_detectable
from workbench.frames.metric import METRICS
from workbench.papers import claims as papers_claims
from workbench.papers import verdicts
from workbench.papers.published import CLAIM_COLUMNS, RECORDED, stated_claims
from workbench.papers.verdicts import RANDOM_TOO

VIT, DIGITS = "bundled:digits-vit", "bundled:digits"


def _claim(measure, comparison, threshold="", **more):
    row = dict.fromkeys(CLAIM_COLUMNS, "") | {"paper": "saritas2025", "over": "inputs", "setting": "theirs"}
    return row | {"analysis": "gram-spectrum", "measure": measure, "comparison": comparison} | {
        "threshold": threshold, **more
    }  # fmt: skip


@pytest.fixture
def stated(monkeypatch):
    """Put claims of the test's own in the place of the papers'; counts the analyses that are run."""
    calls = []

    def use(*rows, **arguments):
        monkeypatch.setattr(papers_claims, "stated_claims", lambda paper: pd.DataFrame(rows))
        for name in ("analyze", "analyze_many"):
            real = getattr(workbench, name)
            monkeypatch.setattr(
                papers_claims,
                name,
                lambda *args, real=real, **kwargs: calls.append(args) or real(*args, **kwargs),
            )
        return workbench.claims(**({"n": 3, "untrained": 0} | arguments)), len(calls)

    return use


def test_one_run_serves_the_claims_that_share_it_and_the_numbers_are_its_own(stated):
    frame, runs = stated(
        _claim("rank_90", ">=", "1"),
        _claim("effective_rank", "between", "1..16"),
        _claim("effective_rank", "<", "1", options="standardize=none"),
    )
    assert runs == 1
    assert frame["verdict"].tolist() == ["holds", "holds", "fails"]
    spectra = workbench.analyze("gram-spectrum", model=VIT, inputs=DIGITS, n=3)
    per_image = spectra[spectra["metric"] == "rank_90"].groupby("input")["value"].mean()
    row = frame.iloc[0]
    assert row["measured"] == pytest.approx(per_image.mean())
    half = per_image.std() / math.sqrt(3) * 4.30265273
    assert (row["low"], row["high"], row["n"]) == (
        pytest.approx(row["measured"] - half),
        pytest.approx(row["measured"] + half),
        3,
    )
    assert f"{row['measured']:.3g} [" in row["why"]
    assert tuple(frame.columns) == papers_claims.COLUMNS
    assert [run["analysis"] for run in frame.attrs["provenance"]] == ["gram-spectrum"]


def test_alternatives_of_an_option_are_joined_for_one_ratio(stated):
    which = "eigenvalue[rank=1,standardize={}]"
    ratio = f"{which.format('per-token')} / {which.format('none')}"
    frame, runs = stated(_claim(ratio, ">", "0", options="standardize=none | standardize=per-token"))
    assert runs == 2
    plain, done = (
        workbench.analyze("gram-spectrum", model=VIT, inputs=DIGITS, n=3, standardize=how)
        .query("metric == 'eigenvalue' and rank == 1")
        .groupby("input")["value"]
        .mean()
        for how in ("none", "per-token")
    )
    assert frame["measured"].item() == pytest.approx(np.exp(np.log(done / plain).mean()))


def test_a_published_value_is_that_of_the_model_at_hand(stated):
    rows = [
        _claim("LCKA", "near", "10%", published="table 4"),
        _claim("eigenvalue_profile[statistic=min,standardize=none]", "near", "10%", published="table 3"),
    ]
    frame, runs = stated(*rows, model=VIT)
    assert runs == 0
    assert set(frame["verdict"]) == {verdicts.NOT_TESTED}
    assert frame["why"].tolist() == ["Table 4 does not list this model", "Table 3 does not list this model"]
    assert papers_claims.published_value(rows[0], "all-MiniLM-L6-v2") == 0.13
    assert papers_claims.published_value(rows[1], "vit_large_patch16_224") == pytest.approx(7e-6)
    with pytest.raises(papers_claims.NotTested, match="unreadable"):
        papers_claims.published_value(rows[1], "vit_tiny_patch16_224")


def test_a_statement_about_other_models_is_measured_and_not_judged(stated):
    frame, _ = stated(
        _claim("rank_90", ">=", "1", needs="image model of the paper"),
        _claim("rank_90", ">=", "1", needs="training on ImageNet"),
    )
    assert set(frame["verdict"]) == {verdicts.NOT_TESTED}
    assert (frame["measured"] > 1).all()
    assert frame["why"].str.contains("theirs").all()
    needs = _claim("rank_90", ">=", "1", needs="text model of the paper")
    texts = "wikitext-103"
    assert papers_claims._other_scale(needs, "all-MiniLM-L6-v2", texts) is None
    assert "these inputs are bundled:prose" in papers_claims._other_scale(
        needs, "all-MiniLM-L6-v2", "bundled:prose"
    )
    assert papers_claims._other_scale(needs, "vit_tiny_patch16_224", texts)
    assert papers_claims._other_scale(needs, "gpt2", texts)  # of another paper
    images = needs | {"needs": "images"}
    assert papers_claims._other_scale(images, "all-MiniLM-L6-v2", "bundled:prose")
    assert papers_claims._other_scale(images, VIT, DIGITS) is None


def test_training_is_followed_over_the_checkpoints_that_there_are(stated, tmp_path):
    frame, runs = stated(
        _claim("effective_rank", ">", "0", over="every checkpoint"),
        _claim("effective_rank", "<", "0", over="last - first"),
    )
    assert runs == 1
    first, last = (
        workbench.analyze("gram-spectrum", model=f"{VIT}@{epoch}", inputs="bundled:digits-train", n=3)
        .query("metric == 'effective_rank'")
        .groupby("input")["value"]
        .mean()
        for epoch in ("epoch-000", "epoch-030")
    )
    assert frame["measured"][1] == pytest.approx((last - first).mean())
    assert "least favourable epoch" in frame["why"][0]
    assert frame["n"].tolist() == [3, 3]
    alone, _ = stated(_claim("effective_rank", "<", "0", over="last - first"))
    assert alone["measured"].item() == frame["measured"][1]
    assert len(alone.attrs["provenance"]) == 2  # the checkpoints between are not needed
    other, _ = stated(_claim("effective_rank", ">", "0", over="every checkpoint"), model="all-MiniLM-L6-v2")
    assert other["verdict"].item() == verdicts.NOT_TESTED
    assert "no checkpoints" in other["why"].item()


def test_a_claim_about_weights_is_averaged_over_layers(stated):
    incoherent = _claim("coherence_between", "<= null", analysis="subspaces", over="layers")
    frame, runs = stated(incoherent, null_samples=5)
    assert runs == 1
    rows = workbench.analyze("subspaces", model=VIT, null_samples=5).query("metric == 'coherence_between'")
    row = frame.iloc[0]
    assert (row["measured"], row["n"]) == (pytest.approx(rows["value"].mean()), len(rows))
    assert row["null_high"] == pytest.approx(rows["null_high"].mean())
    assert row["low"] < row["measured"] < row["high"]


def test_a_claim_about_certain_inputs_is_not_measured_on_others(stated):
    ink = _claim("membership_ari[convention=ours]", "> null", analysis="membership", options="masks=ink")
    needy = ink | {"needs": "inputs bundled:digits"}
    frame, runs = stated(needy, inputs="bundled:digits-train")
    assert (runs, frame["verdict"].item()) == (0, verdicts.NOT_TESTED)
    assert frame["why"].item() == "it is about inputs bundled:digits"
    frame, runs = stated(needy, null_samples=3)
    assert runs == 1
    assert frame["null_high"].notna().all()


def test_a_claim_about_depth_is_paired_by_input(stated):
    deeper = _claim(
        "effective_rank", "<", "1", options="layers=-1 | layers=0", over="last layer / first layer"
    )
    frame, runs = stated(deeper)
    assert runs == 2
    rows = workbench.analyze("gram-spectrum", model=VIT, inputs=DIGITS, n=3).query(
        "metric == 'effective_rank'"
    )
    last, first = (rows[rows["layer"] == layer].groupby("input")["value"].mean() for layer in (3, 0))
    assert frame["measured"].item() == pytest.approx(np.exp(np.log(last / first).mean()))
    assert frame["low"].item() < frame["measured"].item() < frame["high"].item()


def test_a_claim_against_a_baseline_is_measured_on_both_and_about_the_first(stated):
    sharper = _claim(
        "effective_rank", "<", "1", analysis="attention-spectrum", over="model / baseline",
        options="model=digits-primal, baseline=digits-vit, layers=-1, null_samples=0",
    )  # fmt: skip
    frame, runs = stated(sharper, model="bundled:digits-primal")
    assert runs == 2
    ranks = [
        workbench.analyze("attention-spectrum", model=model, inputs=DIGITS, n=3, layers=3, null_samples=0)
        .query("metric == 'effective_rank' and input.notna()")
        .set_index("input")["value"]
        for model in ("bundled:digits-primal", VIT)
    ]
    assert frame["measured"].item() == pytest.approx(np.exp(np.log(ranks[0] / ranks[1]).mean()))
    other, runs = stated(sharper)
    assert (runs, other["why"].item()) == (2, "it is about digits-primal versus digits-vit")


def test_a_claim_about_random_logits_is_judged_by_the_fit_of_what_is_sampled(stated):
    falls = _claim(
        "softmax_lipschitz[candidate=pairs]",
        ">",
        "0",
        analysis="softmax-sampling",
        options="spread=1",
        over="tokens",
    )
    frame, runs = stated(falls, falls | {"measure": "softmax_lipschitz[candidate=local]"})
    assert runs == 0  # of a model
    sampled = sampled_sensitivity(papers_claims._TOKENS, [1.0], null_samples=papers_claims._SAMPLES)
    assert [run["analysis"] for run in frame.attrs["provenance"]] == ["softmax-sampling"]
    for candidate, row in zip(("pairs", "local"), frame.to_dict("records"), strict=True):
        rows = sampled[sampled["candidate"] == candidate]
        slope, _ = np.polyfit(rows["tokens"] ** -0.5, rows["value"], 1)
        assert row["measured"] == pytest.approx(slope)
        assert row["n"] == len(papers_claims._TOKENS)
        assert row["verdict"] == "holds"
        assert row["why"].startswith("a = 0.")


def test_what_cannot_be_decided_says_why(stated):
    frame, _ = stated(_claim("rank_90", "> null"), _claim("LCKA", ">", "0"))
    assert frame["verdict"].tolist() == ["undecided", verdicts.NOT_TESTED]
    assert frame["why"].tolist() == [
        "the run holds no null distribution to compare with (null_samples=0, or none that can differ)",
        "gram-spectrum puts out no LCKA for this model",
    ]


def test_a_model_without_additive_positions_is_not_judged_by_them(stated):
    claim = _claim("logit_share[candidate=cross]", "<=", "0.1", analysis="position-logits")
    frame, _ = stated(claim, model="bundled:digits-bilateral")
    assert set(frame["verdict"]) == {verdicts.NOT_TESTED}
    assert frame["why"].str.contains("has positions in the logits of BilateralAttention").all()


def test_a_paper_or_option_that_is_not_known_is_named(stated):
    with pytest.raises(UnknownName, match="saritas2025"):
        workbench.claims("saritas")
    with pytest.raises(UnknownName, match="standardize"):
        stated(_claim("rank_90", ">", "0", options="standardise=none"))


def test_every_claim_of_the_papers_is_measured_on_the_bundled_model(monkeypatch):
    three = ["epoch-000", "epoch-003", "epoch-030"]  # the ends, and the first after the warm-up
    monkeypatch.setattr(papers_claims, "_checkpoints", lambda model: three)
    frame = workbench.claims(n=2, null_samples=2, untrained=2)
    assert len(frame) == (~stated_claims()["analysis"].isin(RECORDED)).sum()
    assert set(frame["verdict"]) <= set(verdicts.VERDICTS)
    open_rows = frame[frame["verdict"] == verdicts.NOT_TESTED]
    known = "does not list|the paper says it of|about digits-primal|no membership_ari|no coding_rate|candidate=boosted"
    assert open_rows["why"].str.contains(known).all()
    rest = frame.drop(open_rows.index)
    unmet = rest[rest["verdict"] == verdicts.PREMISE]
    assert set(unmet["claim"].str.split().str[0]) == {"Adding", "The"}  # Prop. III.1, and eq. 4 of wu2025
    rest = rest.drop(unmet.index)
    assert len(rest) > 40
    assert rest["measured"].notna().all()
    medians = rest["low"].isna()  # of two images none has an interval
    assert rest[medians]["measure"].str.startswith(("projection_error", "LCKA")).all()
    rest = rest[~medians]
    assert rest[["low", "high"]].notna().all(axis=None)
    assert (rest["low"] <= rest["measured"]).all()
    profiles = rest[
        rest["measure"].str.startswith("eigenvalue_profile[") & ~rest["measure"].str.contains("/")
    ]
    assert (
        profiles["why"]
        .str.contains("times (N/197)² for the paper's number of tokens, N = 65", regex=False)
        .all()
    )
    assert set(rest.loc[rest["kind"] == "identity", "scope"]) <= {"mathematics"}
    assert rest.loc[rest["comparison"].str.contains("null"), "null_low"].notna().all()
    known = frame.set_index(["claim", "interpretation"])["verdict"].groupby("claim").first()
    # what mathematics says of any model
    assert known["The centred Gram matrix is typically invertible"] == "fails"
    assert (
        known[[name for name in known.index if "averaged over heads and layers is" in name]].eq("fails").all()
    )
    analyses = [run["analysis"] for run in frame.attrs["provenance"]]
    # as means and head by head, of trained and of two untrained weights, and through the checkpoints
    assert analyses.count("projection-error") == 2 * 3 + 3


def test_what_is_equivalent_to_a_threshold_is_as_sure_as_its_ends_are_apart_from_the_margin():
    claim = next(one for one in stated_claims("abdullaev2025").to_dict("records") if one["margin"] == "0.01")
    rates = [0.001, 0.003, 0.002, 0.004, 0.001, 0.002]
    frame = pd.DataFrame({"metric": "token_cosine_rate", "input": range(6), "value": rates})
    frame = frame.reindex(columns=[*dict.fromkeys([*verdicts._READ])])
    found = papers_claims.judged(claim, [frame])
    assert found["verdict"] == verdicts.EQUIVALENT
    # the nearer end of 0 ± 0.01, and not 0, is what the interval had to leave behind
    assert found["p"] == pytest.approx(ttest_1samp(rates, 0.01).pvalue)


def test_a_change_of_a_median_has_the_sign_test_s_p_and_its_interval_at_any_level():
    stated = stated_claims("teo2024").query("over == 'last - warm-up'")
    claim = stated[stated["label"].str.startswith("Training lowers J_proj (eq. 13)")].iloc[0].to_dict()
    assert METRICS[verdicts.parse_measure(claim["measure"])[0].metric].log
    changes = np.array([-3.0, -5.0, -1e4, -2.0, 4.0, -7.0, -1.0, -2.5, -8.0])  # one of nine grows
    (term,) = verdicts.parse_measure(claim["measure"])
    ends = {"epoch-003": np.full(9, 1.0), "epoch-030": 1.0 + changes}
    rows = [
        {"metric": term.metric, "input": place, "value": value, "checkpoint": name, **term.where}
        for name, values in ends.items()
        for place, value in enumerate(values)
    ]
    frame = pd.DataFrame(rows)
    frame = frame.reindex(columns=[*dict.fromkeys([*verdicts._READ, *frame])])
    frame.attrs["epochs"] = {"epoch-003": 3, "epoch-030": 30}
    row = papers_claims.judged(claim, [frame])
    assert row["interval"] == verdicts.MEDIAN
    assert row["measured"] == np.median(changes)
    assert row["p"] == pytest.approx(binomtest(1, 9).pvalue)
    wanted = quantile_test(changes, p=0.5).confidence_interval(0.99)
    assert row[verdicts.WIDENED](0.99) == pytest.approx((wanted.low, wanted.high))


def test_a_claim_about_every_input_has_no_p_for_holm():
    (claim,) = stated_claims("saritas2025").query("over == 'every input' and primary").to_dict("records")
    (term,) = verdicts.parse_measure(claim["measure"])
    frame = pd.DataFrame({"metric": term.metric, "input": range(3), "value": [0.0, 0.0, 0.0], **term.where})
    frame = frame.reindex(columns=[*dict.fromkeys([*verdicts._READ, *frame])])
    row = papers_claims.judged(claim, [frame])
    assert row["verdict"] == verdicts.HOLDS
    assert math.isnan(row["p"])


LARGEST = "eigenvalue[rank=1]"


def _by_input(metric="effective_rank", model=VIT, **run):
    frame = workbench.analyze("gram-spectrum", model=model, inputs=DIGITS, **run)
    rows = frame[frame["metric"] == metric]
    rows = rows[rows["rank"] == 1] if metric == "eigenvalue" else rows
    return rows.groupby("input")["value"].mean()


def _by_untrained(n, metric="effective_rank", seed=0):
    """Values of the inputs of each of three untrained weights of `VIT`."""
    names = ["epoch-000", "random-1", "random-2"]
    return [
        _by_input(metric, f"{VIT}@{name}", n=n, seed=number)
        for number, name in enumerate(names, start=seed + 1)
    ]


def test_the_interval_of_untrained_weights_is_over_initialisations(stated):
    """By hand: a value for each of three weights, each on a third of the inputs, and Student's t with 2 degrees."""
    frame, runs = stated(_claim("effective_rank", ">", "1"), n=12, seed=5, untrained=3)
    assert runs == 4
    values = [inputs.mean() for inputs in _by_untrained(4, seed=5)]
    row = frame.iloc[0]
    half = np.std(values, ddof=1) / math.sqrt(3) * 4.30265273
    assert row["untrained"] == pytest.approx(np.mean(values))
    assert row["untrained_low"] == pytest.approx(np.mean(values) - half)
    assert row["untrained_high"] == pytest.approx(np.mean(values) + half)
    assert (row["untrained_n"], row["n"]) == (3, 12)
    assert f"untrained {np.mean(values):.3g} [" in row["why"]
    checkpoints = [run["model"]["checkpoint"] for run in frame.attrs["provenance"]]
    assert checkpoints == ["epoch-030", "epoch-000", "random-1", "random-2"]


def test_the_same_rule_decides_for_trained_and_untrained_weights(stated):
    untrained = np.exp(np.log(_by_untrained(4, "eigenvalue")).mean())
    trained = np.exp(np.log(_by_input("eigenvalue", n=12)).mean())
    assert trained > 3 * untrained
    frame, _ = stated(
        _claim(LARGEST, ">", str((trained * untrained) ** 0.5)),  # of trained weights alone
        _claim(LARGEST, ">", "0"),  # of any
        _claim(LARGEST, "<", "0"),
        _claim("effective_rank", ">", "1", over="every input"),
        _claim("effective_rank", ">", "1", kind="identity"),
        n=12,
        untrained=3,
    )
    assert frame["verdict"].tolist() == ["holds", RANDOM_TOO, "fails", RANDOM_TOO, "holds"]
    assert frame["untrained_verdict"].tolist()[:4] == ["fails", "holds", "fails", "holds"]
    assert pd.isna(frame["untrained_verdict"][4])  # mathematics: any weights obey
    least = min(inputs.min() for inputs in _by_untrained(4))
    assert frame["untrained"][3] == pytest.approx(least)


def test_what_holds_of_random_weights_holds_of_others_too(stated):
    """Trained equals untrained: no claim about random weights may end as "holds"."""
    frame, _ = stated(
        *(_claim("effective_rank", ">", str(level)) for level in (1, 1.5)),
        _claim("rank_90", "between", "1..65"),
        _claim("coherence_between", "<= null", analysis="subspaces", over="layers", margin="10%"),
        n=12, untrained=6, model=f"{VIT}@random-9",
    )  # fmt: skip
    assert set(frame["verdict"]) == {RANDOM_TOO}


def test_nulls_of_untrained_weights_are_their_own(stated):
    frame, _ = stated(
        _claim("coherence_between", "<= null", analysis="subspaces", over="layers"), untrained=2
    )
    rows = [
        workbench.analyze("subspaces", model=f"{VIT}@{checkpoint}", seed=seed)
        for seed, checkpoint in ((1, "epoch-000"), (2, "random-1"))
    ]
    rows = [part[part["metric"] == "coherence_between"] for part in rows]
    estimates = [
        papers_claims._estimate(_claim("coherence_between", "<= null", over="layers"), [part])
        for part in rows
    ]
    (pooled,) = papers_claims.pooled(_claim("coherence_between", "<= null", over="layers"), estimates).nulls
    for end in ("mean", "low", "high"):
        by_hand = np.mean([part[f"null_{end}"].mean() for part in rows])
        assert getattr(pooled, end) == pytest.approx(by_hand)
    assert frame["untrained"].item() == pytest.approx(np.mean([part["value"].mean() for part in rows]))


def test_a_claim_about_training_is_trained_less_untrained(stated):
    rises = _claim("effective_rank", ">", "0", over="trained - untrained")
    ratio = rises | {"over": "trained / untrained", "threshold": "1"}
    levels = [rises | {"threshold": level} for level in ("-9", "9")]
    frame, _ = stated(rises, ratio, *levels, n=12, untrained=3)
    trained = _by_input(n=12)
    untrained = pd.Series([inputs.mean() for inputs in _by_untrained(4)])
    one, other = mean_interval(trained), mean_interval(untrained)
    assert frame["measured"][0] == pytest.approx(trained.mean() - untrained.mean())
    assert frame["low"][0] == pytest.approx(
        one.value - other.value - math.hypot(one.value - one.low, other.high - other.value)
    )
    assert frame["measured"][1] == pytest.approx(trained.mean() / untrained.mean())
    assert frame["verdict"].tolist() == ["undecided", "undecided", "holds", "fails"]
    assert frame["untrained"].tolist() == pytest.approx([untrained.mean()] * 4)
    assert frame["untrained_verdict"].isna().all()
    alone, _ = stated(rises)
    assert alone["verdict"].item() == verdicts.NOT_TESTED
    assert "no untrained weights" in alone["why"].item()


def test_a_model_whose_untrained_weights_cannot_be_built_says_why(stated, monkeypatch):
    measure = papers_claims._measure

    def no_config(run, model, inputs, settings):
        if str(settings.get("checkpoint", "")).startswith("random"):
            raise MissingResource("its config.json is not here\nget it")
        return measure(run, model, inputs, settings)

    monkeypatch.setattr(papers_claims, "_measure", no_config)
    monkeypatch.setattr(papers_claims, "_checkpoints", lambda model: [])
    frame, _ = stated(_claim("effective_rank", ">", "1"), untrained=2)
    assert frame["verdict"].item() == "holds"
    assert pd.isna(frame["untrained"].item())
    assert frame["why"].item().endswith("; not measured on untrained weights: its config.json is not here")


def test_untrained_weights_are_epoch_0_where_it_is_bundled_and_fresh_draws():
    assert papers_claims.untrained_checkpoints(VIT, 6) == ["epoch-000", *(f"random-{n}" for n in range(1, 6))]
    assert papers_claims.untrained_checkpoints("bundled:digits-tost", 2) == ["random-1", "random-2"]
    assert papers_claims.untrained_checkpoints("hf:anything", 6) == [f"random-{n}" for n in range(1, 7)]
    assert papers_claims.untrained_checkpoints(VIT, 0) == []


def test_what_could_have_been_found_is_a_factor_where_logarithms_are_compared():
    values = pd.Series([1.0, 1.2, 1.5, 1.1])
    mean, ratio = mean_interval(values), mean_interval(values, ratio=True)
    row = papers_claims._row(mean, None, "holds", "")
    assert row["detectable"] == smallest_detectable(mean)
    factor = papers_claims._row(ratio, None, "holds", "", verdicts.LOG_T)["detectable"]
    logs = smallest_detectable(mean_interval(np.log(values)))
    assert factor == pytest.approx(math.exp(logs))
