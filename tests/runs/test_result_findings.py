"""What a result says in sentences: of each run its numbers, intervals, units and nulls."""

import pytest

import workbench
from workbench.analyses.softmax_sensitivity import fit_root, sampled_sensitivity, sampling_findings
from workbench.core.errors import InputError
from workbench.core.intervals import mean_interval, paired_interval
from workbench.frames.results import join_frames

RUN = {"model": "bundled:digits-vit", "inputs": "bundled:digits", "n": 4}


def similarity(**more):
    return workbench.analyze("token-similarity", **{**RUN, "rate": "fit"} | more)


def test_token_similarity_tells_both_ends_the_null_and_whether_the_rate_is_significant():
    frame = similarity()
    cosines = frame[frame["metric"] == "token_cosine"]
    start, end = (mean_interval(cosines.loc[cosines["layer"] == layer, "value"]) for layer in (0, 3))
    rate = mean_interval(frame.loc[frame["metric"] == "token_cosine_rate", "value"])
    above = (cosines.groupby("layer")["value"].mean() > cosines["null_high"].iloc[0]).sum()
    level, growth = workbench.findings(frame)
    assert level == (
        f"bundled:digits-vit: mean token cosine (resid_post) {start.words()} in layer 0 and {end.words()} in layer 3, "
        f"mean over 4 inputs, 95 % CI; above the 95 % range of the isotropic null of one input in "
        f"{above} of 4 layers."
    )
    verdict = "oversmoothing" if rate.low > 0 else "not significantly different from 0"
    assert growth.endswith(f"r = {rate.words('.3f')} per layer over 4 inputs: {verdict}.")


def test_a_rate_is_called_what_its_interval_says():
    frame = similarity()
    fitted = frame["metric"] == "token_cosine_rate"
    said = {}
    for name, values in {
        "up": [0.1, 0.2, 0.1, 0.2],
        "down": [-0.1, -0.2, -0.1, -0.2],
        "none": [-1, 1, -1, 1],
    }.items():
        frame.loc[fitted, "value"] = values
        said[name] = workbench.findings(frame)[-1].rsplit(": ", 1)[-1]
    assert said == {
        "up": "oversmoothing.",
        "down": "tokens become less alike.",
        "none": "not significantly different from 0.",
    }


def test_means_over_inputs_say_the_same_as_rows_per_input():
    many, means = workbench.findings(similarity()), workbench.findings(similarity(per_input=False))
    assert [sentence.split(";")[0] for sentence in many] == [sentence.split(";")[0] for sentence in means]
    assert "isotropic null 0.00" in means[0]  # whose band is that of one input, of which there are no rows


def test_runs_of_several_models_and_options_are_told_one_by_one():
    plain, standardized = (
        workbench.analyze("gram-spectrum", **RUN, standardize=how) for how in ("none", "per-token")
    )
    other = workbench.analyze("gram-spectrum", **RUN | {"model": "bundled:digits-bilateral"})
    said = workbench.findings(join_frames([plain, standardized, other]))
    alone = [workbench.findings(frame)[0] for frame in (plain, standardized, other)]
    assert [sentence.split(": ", 1)[1] for sentence in said] == [
        sentence.split("bundled:", 1)[1].split(": ", 1)[1] for sentence in alone
    ]
    assert "(standardize per-token)" in said[1]
    assert said[2].startswith("bundled:digits-bilateral")


def test_memberships_tell_the_place_and_the_masks():
    maps = workbench.analyze("membership", **RUN, per="token")
    (place,) = workbench.findings(maps)
    assert "over layers, heads, patches and 4 inputs" in place
    assert "25% if places did not matter" in place
    # the same map for every input: all variance is the place's
    first = maps[maps["input"] == maps["input"].iloc[0]].set_index(["layer", "head", "token"])["value"]
    same = maps.assign(
        value=first.loc[[*maps[["layer", "head", "token"]].itertuples(index=False)]].to_numpy()
    )
    assert workbench.findings(same)[0].startswith("bundled:digits-vit: the place of a patch explains 100%")
    frame = workbench.analyze("membership", **RUN, masks="ink", null_samples=4)
    even, agreed = workbench.findings(frame)
    assert "normalised entropy of membership" in even
    shares = frame[(frame["metric"] == "membership_share") & frame["input"].notna()]
    largest = mean_interval(shares.groupby("input")["value"].mean())
    assert f"share of the largest head {largest.words()} (ours)" in even
    assert "95 % CI" in even
    assert "masks (ink)" in agreed
    assert "; above the range of 4 permutation null samples in " in agreed


def test_softmax_sensitivity_tells_constants_and_noise_beside_random_queries_and_keys():
    frame = workbench.analyze("softmax-sensitivity", **RUN, null_samples=4, sigma=2)
    by_input = frame[frame["input"].notna()]
    mean, largest = (
        mean_interval(by_input.query("metric == 'softmax_lipschitz' and statistic == @kind")["value"])
        for kind in ("mean", "max")
    )
    moved = mean_interval(by_input.loc[by_input["metric"] == "softmax_perturbation", "value"])
    constants, noise = workbench.findings(frame)
    assert f"{mean.words('.3f')} at the mean query and {largest.words('.3f')} at the most sens" in constants
    assert "mean over 4 inputs" in constants
    assert (
        "; in all 4 layers above the range of 4 gaussian null samples (of the mean over heads; mean"
        in constants
    )
    assert "noise of standard deviation 2 on" in noise
    assert f"moves softmax by {moved.words('.3f')} (L2), mean over 4 inputs; in" in noise


def test_layers_are_counted_on_the_side_of_the_null_on_which_they_lie():
    frame = workbench.analyze("softmax-sensitivity", **RUN, null_samples=4)
    said = {}
    for name, value in {"inside": frame["null_mean"], "below": frame["null_low"] - 1}.items():
        changed = frame.assign(value=value)
        changed.loc[(name == "below") & (frame["layer"] == 0), "value"] = 9.0
        said[name] = (
            workbench.findings(changed)[0].rsplit("; ", 2)[1].removesuffix(" (of the mean over heads")
        )
    assert said == {
        "inside": "in all 4 layers inside the range of 4 gaussian null samples",
        "below": "in 1 of 4 layers above and in 3 of 4 layers below the range of 4 gaussian null samples",
    }
    last = frame[frame["layer"].isna() | (frame["layer"] == 3)].assign(value=9.0)
    last.attrs = frame.attrs
    assert "; above the range of 4 gaussian null samples (of the mean" in workbench.findings(last)[0]
    alone = workbench.analyze("softmax-sensitivity", **RUN, null_samples=0, per_input=False)
    value = alone.query("statistic == 'mean' and layer.isna()")["value"].item()
    assert (
        f"{value:.3f} at the mean query" in workbench.findings(alone)[0]
    )  # no rows per input, so no interval
    assert "null" not in workbench.findings(alone)[0]


def test_random_logits_tell_the_fit_and_both_ends():
    sampled = sampled_sensitivity([2, 10, 100], [1, 3], null_samples=20)
    fit, plain, wide = sampling_findings(sampled)
    pairs = sampled.query("spread == 1 and candidate == 'pairs'")["value"]
    assert f"a = {fit_root([2, 10, 100], pairs).a:.2f} [" in fit
    ends = sampled.query("spread == 3 and candidate == 'local'").set_index("tokens")["value"]
    assert "standard deviation 1, 20 samples: from N = 2 to 100" in plain
    assert f"goes from {ends[2]:.3f} to {ends[100]:.3f}, the mean move" in wide


def test_position_logits_tell_shares_and_the_correlation_of_the_cross_terms_beside_the_null():
    frame = workbench.analyze("position-logits", **RUN, null_samples=4)
    by_input = frame[frame["input"].notna()]
    own, cross = (
        mean_interval(by_input.query("metric == 'logit_share' and candidate == @term")["value"])
        for term in ("token-token", "cross")
    )
    size = (frame["metric"] == "logit_correlation") & (frame["statistic"] == "abs")
    size &= frame["candidate"] == "cross"
    r = mean_interval(frame.loc[size & frame["input"].notna(), "value"])
    shares, correlation = workbench.findings(frame)
    assert f"token–token {own.words('.0%')}, token–position " in shares
    assert f"together have {cross.words('.0%')} of it" in correlation
    assert f"|r| = {r.words()}, mean over 4 inputs, 95 % CI; in " in correlation
    for side, value in {"above": frame["null_high"] + 1, "below": frame["null_low"] - 1}.items():
        changed = frame.assign(value=frame["value"].where(~size, value))
        assert f"; in all 4 layers {side} the range of 4 permutation null" in workbench.findings(changed)[1]


def test_coding_rates_tell_where_attention_compresses_and_in_which_share_of_an_inputs_layers():
    frame = workbench.analyze("coding-rate", **RUN)
    plain = frame["standardize"].isna() & (frame["metric"] == "coding_rate_variational")
    table = frame[plain].pivot_table(index=["layer", "input"], columns="candidate", values="value")
    change = (table["resid_mid"] - table["input"]).unstack("input")
    share = mean_interval((change < 0).mean())
    (said,) = workbench.findings(frame)
    assert f"R_c^var in {(change.mean(axis=1) < 0).sum()} of 4 layers ({share.value:.0%}" in said
    assert "mean over 4 inputs" in said
    frame.loc[plain & (frame["candidate"] == "resid_mid"), "value"] = -1.0
    assert (
        "with membership ours attention lowers R_c^var in 4 of 4 layers (100% ["
        in workbench.findings(frame)[0]
    )
    assert workbench.findings(frame[~plain]) == []


def test_attention_spectra_tell_ranks_r_scores_and_values_beside_their_nulls():
    frame = workbench.analyze("attention-spectrum", **RUN, null_samples=3)
    by_input = frame[frame["input"].notna()]
    rank = mean_interval(by_input.loc[by_input["metric"] == "effective_rank", "value"])
    own = by_input.query("metric == 'right_singular_share' and null == 'permutation'")["value"]
    ranks, scores, output, values = workbench.findings(frame)
    assert f"effective rank of attention {rank.words('.1f')}, 90 % of" in ranks
    assert "mean over 4 inputs, 95 % CI; in" in ranks
    assert " the range of 3 gaussian null samples (of the mean over heads" in ranks
    assert "outside the e-scores" in scores
    assert "outside the output" in output
    assert f"{mean_interval(own).words('.0%')} of V lies in the span" in values
    assert " the range of 3 permutation null samples (" in values
    changed = frame.assign(value=frame["null_low"] - 1)
    assert all("; in all 4 layers below the " in said for said in workbench.findings(changed))


def test_a_frame_without_the_record_of_its_runs_is_refused_and_one_without_findings_is_silent():
    frame = workbench.analyze("value-similarity", **RUN, null_samples=0)
    frame.attrs = {}
    with pytest.raises(InputError, match="no record of its runs"):
        workbench.findings(frame)


def test_the_example_of_pairs_is_the_first_model_that_is_here():
    pairs = [("bundled:digits-vit", "bundled:digits"), ("bundled:prose-softmax", "bundled:prose")]
    loaded, one = workbench.runs.example(pairs, seed=3)
    assert loaded.spec == "bundled:digits-vit"
    assert one.ids == workbench.inputs("bundled:digits", loaded, n=1, seed=3).ids


def test_an_eigenvector_test_tells_gamma_beside_its_size_and_the_residual_beside_the_null():
    frame = workbench.analyze("eigenvector-test", **RUN, null_samples=4)
    ratio, residual, inconsistency = workbench.findings(frame)
    level = frame[frame[["layer", "head"]].isna().all(axis=1) & frame["input"].notna()]
    size = level[level["metric"] == "gamma_size"].groupby("input")["value"].mean()
    means = level[(level["metric"] == "gamma_abs") & (level["statistic"] == "mean")]
    of_v = means[means["candidate"] == "values"].groupby("input")["value"].mean() / size
    assert (
        f"from V is {mean_interval(of_v, ratio=True).words('.3g')} times the eigenvectors' mean |γ|" in ratio
    )
    assert "mean over 4 inputs with its 95 % CI; below the range of 4 gaussian null samples on" in residual
    lost = level[level["metric"] == "inconsistency"].drop_duplicates("input")
    assert f"any eigenvectors {mean_interval(lost['value']).words()}; above the range of 4" in inconsistency
    # values that are eigenvectors
    frame.loc[frame["metric"].isin(["inconsistency", "eigen_residual"]), "value"] = 0.0
    _, residual, inconsistency = workbench.findings(frame)
    assert "eigen-residual of the vectors from V 0.00 [0.00, 0.00]" in residual
    assert "on 16 of 16 axes" in residual
    assert "0.00 [0.00, 0.00]; below the range of 4 gaussian null samples" in inconsistency


def test_a_value_similarity_tells_on_which_side_of_the_null_the_measures_lie():
    frame = workbench.analyze("value-similarity", **RUN, null_samples=4)
    span, counted, equal = workbench.findings(frame)
    overall = frame[frame[["input", "layer", "head"]].isna().all(axis=1) & (frame["null"] == "permutation")]
    shares = frame[(frame["metric"] == "span_share") & frame["input"].notna()].drop_duplicates("input")
    low, high = overall.loc[overall["metric"] == "span_share", ["null_low", "null_high"]].iloc[0]
    assert span == (
        f"bundled:digits-vit: span(V̇) holds {mean_interval(shares['value']).words('.3f')} of ‖V‖², mean over 4 inputs "
        f"with its 95 % CI; above the range of 4 permutation null samples [{low:.3f}, {high:.3f}]."
    )
    alike = overall[~overall["metric"].isin(["principal_angle", "allclose"])]
    above, below = (alike["value"] > alike["null_high"]).sum(), (alike["value"] < alike["null_low"]).sum()
    placed = f"{above} of {len(alike)} lie above the range of 4 permutation null samples and {below} below it"
    assert counted.endswith(f"similarities, means over layers, heads and inputs: {placed}.")
    assert "in 0.0% of the heads" in equal
    inside = frame.assign(value=frame["null_mean"])
    assert "; inside the range of 4" in workbench.findings(inside)[0]
    nothing = f"0 of {len(alike)} lie above the range of 4 permutation null samples and 0 below it"
    assert nothing in workbench.findings(inside)[1]
    only = workbench.findings(frame[frame["null"] == "gaussian"])
    assert "4 gaussian null samples" in only[0]
    assert "4 gaussian null samples" in only[1]


def test_a_projection_error_tells_its_floor_its_formulas_and_the_two_norms():
    frame = workbench.analyze("projection-error", **RUN, null_samples=4)
    exact, formulas, norms = workbench.findings(frame)
    level = frame[frame[["layer", "head"]].isna().all(axis=1) & frame["input"].notna()]
    level = level.drop_duplicates(["metric", "convention", "statistic", "input"])
    own = level[level["convention"] == "exact"].set_index("metric")["value"].groupby(level=0).mean()
    interval = mean_interval(
        level.loc[(level["metric"] == "projection_error") & (level["convention"] == "exact"), "value"]
    )
    floor, zero = own["projection_floor"], own["projection_zero_predictor"]
    assert (
        f"exact projection error {interval.words('.3g')}, mean over 4 inputs with its 95 % CI: "
        f"{interval.value / zero:.1%} of the zero predictor's (true projections: {floor / zero:.1%}); "
    ) in exact
    assert "of eq. 13 is −" in formulas
    means = level[level["statistic"] == "mean"].pivot(index="input", columns="metric", values="value")
    ratio = mean_interval(means["h_norm2"] / means["phi_norm2"], ratio=True)
    assert f"mean ‖h‖² is {ratio.words('.3g')} times mean ‖φ(q)‖²" in norms
    assert "in 4 of 4 layers" in norms
    layered = frame[frame["layer"].notna() & frame["head"].isna() & frame["input"].isna()]
    by_layer = layered[layered["statistic"] == "mean"].pivot(index="layer", columns="metric", values="value")
    quotients = [row["h_norm2"] / row["phi_norm2"] for _, row in by_layer.iterrows()]
    assert f"and {min(quotients):.3g} to {max(quotients):.3g} times by layer" in norms
    same = frame.assign(value=frame["value"].where(~frame["metric"].isin(["phi_norm2", "h_norm2"]), 1.0))
    assert "is 1 [1, 1] times mean ‖φ(q)‖²" in workbench.findings(same)[-1]
    assert "apart in 0 of 4 layers" in workbench.findings(same)[-1]
    only = workbench.analyze("projection-error", **RUN, null_samples=0, convention="exact")
    assert [sentence.split(": ", 1)[1].split(" ", 1)[0] for sentence in workbench.findings(only)] == [
        "exact",
        "mean",
    ]


def test_robust_components_tell_how_sparse_and_how_large_the_split_is():
    frame = workbench.analyze("robust-components", **RUN | {"model": "bundled:digits-rpc-sym"})
    level = frame[frame[["layer", "head"]].isna().all(axis=1) & frame["input"].notna()]
    zeros, gap = (
        mean_interval(level.loc[level["metric"] == metric, "value"])
        for metric in ("sparse_zeros", "pursuit_gap")
    )
    (sentence,) = workbench.findings(frame)
    assert sentence.startswith(f"bundled:digits-rpc-sym: {zeros.words('.3f')} of the entries of S are zero;")
    assert sentence.endswith(f"‖K − L − S‖ / ‖K‖ = {gap.words('.3g')}, mean over 4 inputs with its 95 % CI.")
    none = frame.assign(value=frame["value"].where(frame["metric"] != "sparse_zeros", 1.0))
    assert "1.000 [1.000, 1.000] of the entries" in workbench.findings(none)[0]


def test_a_grid_of_noises_is_told_once_per_model():
    grid = {"noise": ["gaussian-noise", "defocus-blur"], "severity": [1, 5]}
    pairs = [("bundled:digits-softmax-boost", "bundled:digits")]
    frame = workbench.analyze_grid("snr", pairs, grid, n=4, layers="0-1")
    gains, applies, raised, boosted = workbench.findings(frame)
    whole = frame[frame["layer"].isna() & frame["input"].notna()]
    by_input = whole.groupby(["metric", whole["candidate"].fillna(""), "input"])["value"].mean()
    gamma, cosine, gain = (
        mean_interval(by_input[key])
        for key in (("snr_gamma", ""), ("snr_noise_cosine", ""), ("snr_gain", "attention"))
    )
    assert gains.endswith(
        f"γ = {gamma.words()}, cos(η, η̂) = {cosine.words()}, mean over 4 inputs with its 95 % CI, over 2 noises "
        "and 2 severities."
    )
    assert "min(α, β) > γ in 0% [0%, 0%] of the blocks" in applies
    verdict = (
        "raised" if gain.low > 1
        else "lowered" if gain.high < 1
        else "not significantly different from 1"
    )  # fmt: skip
    assert raised == (
        f"bundled:digits-softmax-boost: SNR after the residual connection over before {gain.words('.3f')}: {verdict}."
    )
    more = paired_interval(
        by_input["snr_gain", "boosted"], by_input["snr_gain", "attention"], ratio=True
    ).words(".3f")
    assert f"{more} times the ratio of the plain one" in boosted
    one = frame[(frame["noise"] == "defocus-blur") & (frame["severity"] == 5)]
    assert " over 2 " not in workbench.findings(one)[0]
    higher = frame.assign(value=frame["value"].where(frame["metric"] != "snr_gain", 2.0))
    assert "2.000 [2.000, 2.000]: raised." in workbench.findings(higher)[2]


def test_attention_maps_tell_entropy_at_both_ends_and_diversity_beside_permuted_keys():
    frame = workbench.analyze("attention-map", **RUN)
    even, apart, heads = workbench.findings(frame)
    shares = frame[frame["metric"] == "attention_entropy_share"].groupby(["layer", "input"])["value"].mean()
    ends = [mean_interval(shares[layer]).words() for layer in (0, 3)]
    assert f"normalised attention entropy {ends[0]} in layer 0 and {ends[1]} in layer 3" in even
    diversity = frame[frame["metric"] == "attention_diversity"]
    above = diversity.groupby("layer")[["value", "null_high"]].mean().diff(axis=1)["null_high"].lt(0).sum()
    assert "null samples (of one input; mean " in apart
    where = "in all 4 layers above" if above == 4 else f"in {above} of 4 layers above"
    assert (where in apart) == (above > 0)
    assert heads.endswith("of 12 heads 0 dead, 0 with an attention sink, 0 with non-finite attention.")
    same = frame.assign(value=frame["value"].where(frame["metric"] != "attention_diversity", 0.0))
    assert "head diversity 0.000 [0.000, 0.000]" in workbench.findings(same)[1]
    assert "in all 4 layers below" in workbench.findings(same)[1]
    sink = frame.assign(value=frame["value"].where(frame["metric"] != "attention_sink", 0.9))
    assert "0 dead, 12 with an attention sink" in workbench.findings(sink)[2]


def test_class_attention_tells_both_ends_the_masks_and_what_belongs_to_the_place():
    frame = workbench.analyze("class-attention", **RUN, masks="ink", null_samples=4, single=True)
    rows, masked = workbench.findings(frame)
    single = frame[frame["input"].notna() & frame["layer"].notna() & (frame["candidate"] == "head")]
    share = single[single["metric"] == "class_attention_mask"].groupby("input")["value"].mean()
    entropy = single[(single["metric"] == "class_attention_entropy_share") & (single["layer"] == 3)]
    last = mean_interval(entropy.groupby("input")["value"].mean())
    assert f"{last.words()} in layer 3; relative spread" in rows
    special = single[(single["metric"] == "class_attention_special") & (single["layer"] == 0)]
    first = mean_interval(special.groupby("input")["value"].mean())
    assert f"share on special tokens {first.words()} in layer 0" in rows
    assert f"{mean_interval(share).words('.0%')} of the attention to patches lies on the mask (ink)" in masked
    assert " the range of 4 permutation null samples (" in masked
    alone = workbench.analyze("class-attention", **RUN, masks="ink", null_samples=4)
    means = frame[frame["input"].isna() | frame["layer"].isna()].reset_index(drop=True)
    columns = ["layer", "input", "metric", "candidate", "value", "null_low"]
    assert means[columns].equals(alone[columns])
    tokens = workbench.analyze("class-attention", **RUN, layers=[-1], per="token")
    (place,) = workbench.findings(tokens)
    assert "of the attention of the class token in layer 3 (mean over heads)" in place
    assert "25% if places did not matter" in place
    first = tokens[tokens["input"] == tokens["input"].iloc[0]].set_index(["candidate", "head", "key"])[
        "value"
    ]
    same = tokens.assign(
        value=first.loc[[*tokens[["candidate", "head", "key"]].itertuples(index=False)]].to_numpy()
    )
    assert "explains 100% of the variance" in workbench.findings(same)[0]


def test_subspaces_tell_how_parallel_heads_are_beside_random_directions():
    frame = workbench.analyze("subspaces", model="bundled:digits-vit", null_samples=4)
    between, inside, angle = workbench.findings(frame)
    values = frame.loc[frame["metric"] == "coherence_between", "value"]
    assert (
        f"different heads {values.mean():.3f}, {values.min():.3f} to {values.max():.3f} by layer" in between
    )
    assert "; above the range of 4 isotropic null samples (mean 0." in between
    assert between.endswith(") in 4 and below in 0 of 4 layers.")
    assert "of one head" in inside
    assert angle.endswith("of 12 pairs of heads.")
    inside_null = frame.assign(value=frame["null_mean"])
    assert ") in 0 and below in 0 of 4" in workbench.findings(inside_null)[0]


def test_filter_kernels_tell_shares_beside_permuted_tokens():
    frame = workbench.analyze("filter-kernels", **RUN | {"n": 2}, layers=[0], null_samples=2)
    sentence, widths = workbench.findings(frame)
    rows = frame.query("metric == 'filter_share' and candidate == 'nlm' and convention == 'heads'")
    share = mean_interval(rows[rows["input"].notna()].groupby("input")["value"].mean()).within(0, 1)
    assert f"of queries and keys {share.words('.1%')}; bilateral filter" in sentence
    assert "above the range of 2 permutation null samples: " in sentence
    assert "samples: 0 of 5" in workbench.findings(frame.assign(value=frame["null_mean"]))[0]
    bilateral = frame.query("candidate == 'bilateral' and convention == 'heads' and input.notna()")
    h_p, h_y = (
        mean_interval(bilateral[bilateral["metric"] == metric].groupby("input")["value"].mean())
        for metric in ("filter_position", "filter_content")
    )
    assert f"of queries and keys h_p = {h_p.words('.1f')} patches, h_y = {h_y.words()} (" in widths
    none = frame.assign(value=frame["value"].where(frame["metric"] != "filter_position"))
    assert len(workbench.findings(none)) == 1


def test_projection_errors_of_checkpoints_are_told_together_from_first_to_last():
    frame = workbench.analyze_many(
        "projection-error", [("bundled:digits-vit", "bundled:digits")], n=3, layers=[0], checkpoints=[0, 30],
        null_samples=0,
    )  # fmt: skip
    (sentence,) = workbench.findings(frame)
    whole = frame[frame["layer"].isna() & frame["input"].notna() & (frame["metric"] == "h_norm2")]
    norms = whole[whole["statistic"] == "mean"].pivot(index="input", columns="checkpoint", values="value")
    ratio = mean_interval(norms["epoch-030"] / norms["epoch-000"], ratio=True)
    verdict = "grows" if ratio.low > 1 else "falls" if ratio.high < 1 else "does not change significantly"
    assert sentence.startswith(
        "bundled:digits-vit: from epoch-000 to epoch-030, geometric mean over 3 inputs"
    )
    assert f"mean ‖h‖² {verdict}, from " in sentence
    assert f"{ratio.words('.3g')} times" in sentence
    assert "does not change significantly" in workbench.findings(frame.assign(value=1.0))[0]
