"""Sensitivity of softmax: its Jacobian as oracle, the constant 1/2, and sampling that cannot exceed it."""

import math

import numpy as np
import pandas as pd
import pytest
import scipy.special
import timm
import torch
from scipy import stats

import workbench
from tests.runs.test_analyze import bert, gpt2, grouped_llama, images, same, texts, vit
from workbench.analyses.softmax_sensitivity import (
    CONSTANT,
    _of_queries,
    _over_queries,
    fit_root,
    local_lipschitz,
    output_bound,
    output_perturbation,
    perturbation,
    sampled_lipschitz,
    sampled_perturbation,
    sampled_sensitivity,
    sampling_findings,
    slope,
)
from workbench.attention import replace_attention
from workbench.core.errors import InputError
from workbench.runs.analyze import analyze

BATCH, QUERIES, KEYS = 2, 5, 7


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.manual_seed(seed))


def jacobian(logits):
    p = logits.double().softmax(-1)
    return torch.diag_embed(p) - p[..., :, None] * p[..., None, :]


@pytest.mark.parametrize("spread", [0.01, 1, 10, 100])
@pytest.mark.parametrize("keys", [2, 3, KEYS, 40])
def test_the_local_constant_is_the_norm_of_the_jacobian(spread, keys):
    logits = spread * randn(BATCH, QUERIES, keys)
    expected = torch.linalg.eigvalsh(jacobian(logits))[..., -1]
    torch.testing.assert_close(local_lipschitz(logits), expected, rtol=1e-10, atol=1e-15)


def test_it_is_what_small_steps_show():
    x = randn(KEYS)
    direction = torch.linalg.eigh(jacobian(x)).eigenvectors[:, -1]
    found = slope(x + 1e-4 * direction, x - 1e-4 * direction)
    assert found.item() == pytest.approx(local_lipschitz(x).item(), rel=1e-6)
    others = x + 1e-4 * randn(200, KEYS, seed=1)
    assert (slope(others, x.expand(200, -1)) <= local_lipschitz(x) * (1 + 1e-3)).all()


def test_one_half_is_reached_by_two_keys_that_share_everything_and_never_exceeded():
    assert local_lipschitz(torch.zeros(2)).item() == CONSTANT
    for keys in (2, 3, 50):
        two = torch.full((keys,), -800.0)
        two[[0, -1]] = 3.0
        assert local_lipschitz(two).item() == CONSTANT
    many = torch.cat([spread * randn(300, KEYS, seed=3) for spread in (0.1, 1, 5, 30)])
    assert local_lipschitz(many).max() <= CONSTANT
    assert slope(many, many.roll(1, 0)).max() <= CONSTANT


def test_equal_logits_have_one_over_n_and_a_peak_has_what_is_beside_it():
    for keys in (2, 5, 300):
        assert local_lipschitz(torch.zeros(keys)).item() == pytest.approx(1 / keys)
    # p = (1 − ε, ε): 2 p (1 − p), also where 1 − ε is 1 and where ε itself underflows
    for gap in (1.0, 40.0, 600.0):
        p = scipy.special.expit(-gap)
        found = local_lipschitz(torch.tensor([gap, 0.0], dtype=torch.float64)).item()
        assert found == pytest.approx(2 * p * scipy.special.expit(gap), rel=1e-9)
    assert local_lipschitz(torch.tensor([2000.0, 0.0, -1.0])).item() == 0


def test_ties_and_constants_added_change_nothing():
    logits = torch.tensor([2.0, 2.0, 2.0, -1.0, 0.5], dtype=torch.float64)
    assert local_lipschitz(logits).item() == pytest.approx(torch.linalg.eigvalsh(jacobian(logits))[-1].item())
    assert local_lipschitz(logits).item() == pytest.approx(logits.softmax(-1)[0].item())  # of two equal p, p
    torch.testing.assert_close(local_lipschitz(logits - 1000), local_lipschitz(logits))


def test_keys_that_are_not_seen_are_not_there():
    logits = randn(BATCH, QUERIES, KEYS)
    hidden = logits.clone()
    hidden[..., [1, 4]] = -math.inf
    seen = logits[..., [0, 2, 3, 5, 6]]
    torch.testing.assert_close(local_lipschitz(hidden), local_lipschitz(seen))
    noise = randn(BATCH, QUERIES, KEYS, seed=2)
    torch.testing.assert_close(perturbation(hidden, noise), perturbation(seen, noise[..., [0, 2, 3, 5, 6]]))
    alone = torch.tensor([-math.inf, 0.3, -math.inf])
    assert local_lipschitz(alone).item() == 0  # softmax of one key does not move


def test_rows_do_not_depend_on_how_many_are_computed_at_once(monkeypatch):
    logits = 3 * randn(41, KEYS)
    whole = local_lipschitz(logits)
    monkeypatch.setattr("workbench.analyses.softmax_sensitivity._IN_CACHE", 3 * KEYS)
    assert torch.equal(local_lipschitz(logits), whole)


def test_a_perturbation_is_at_most_half_the_noise_and_its_mean_a_loop_s():
    c, noise = randn(30, KEYS), randn(30, KEYS, seed=1)
    found = perturbation(c, noise)
    assert (found <= CONSTANT * noise.norm(dim=-1)).all()
    for row in range(3):
        before, after = (scipy.special.softmax(x[row].numpy()) for x in (c, c + noise))
        assert found[row].item() == pytest.approx(np.linalg.norm(after - before))
    assert perturbation(c, torch.zeros(30, KEYS)).max() == 0


@pytest.mark.parametrize("spread", [0.5, 1, 10])
@pytest.mark.parametrize("tokens", [2, 9, 300])
def test_sampling_never_exceeds_the_constant_and_pairs_never_the_best_local_one(tokens, spread):
    found = sampled_lipschitz(tokens, 200, 0, spread)
    assert 0 < found.pairs < CONSTANT
    assert 0 < found.local <= CONSTANT
    assert found == sampled_lipschitz(tokens, 200, 0, spread)
    assert found != sampled_lipschitz(tokens, 200, 1, spread)
    assert len(sampled_perturbation(tokens, 200, 0, spread)) == 200


def test_with_two_tokens_sampling_comes_close_to_one_half_and_with_more_it_falls():
    constants = [sampled_lipschitz(tokens, 400, 0) for tokens in (2, 10, 100, 1000)]
    assert constants[0].local == pytest.approx(CONSTANT, abs=1e-4)
    for name in ("pairs", "local"):
        values = [getattr(found, name) for found in constants]
        assert values == sorted(values, reverse=True)
    # logits far apart: two at the top share nearly everything, however many there are
    assert sampled_lipschitz(1000, 400, 0, 10.0).local > 0.45


def test_an_expected_perturbation_falls_for_logits_close_together_and_not_for_those_far_apart():
    close, far = (
        [sampled_perturbation(tokens, 400, 0, spread).mean().item() for tokens in (10, 1000)]
        for spread in (1.0, 10.0)
    )
    assert close[1] < close[0] / 2
    assert far[1] > far[0]


def test_a_planted_curve_is_fitted_with_intervals_that_hold_it():
    tokens = (2, 5, 10, 50, 100, 1000)
    exact = fit_root(tokens, [0.7 / math.sqrt(n) - 0.02 for n in tokens])
    assert (exact.a, exact.b) == pytest.approx((0.7, -0.02))
    # nothing but the root of a rounding error, and which that is depends on the processor
    assert exact.a_high - exact.a_low < 1e-6
    rng = np.random.default_rng(0)
    held = []
    for _ in range(300):
        fit = fit_root(tokens, [0.7 / math.sqrt(n) + 0.1 + 0.01 * rng.standard_normal() for n in tokens])
        held.append(fit.a_low < 0.7 < fit.a_high and fit.b_low < 0.1 < fit.b_high)
    assert 0.88 < np.mean(held) < 0.99  # both at once
    assert fit.at(torch.tensor([4])).item() == pytest.approx(fit.a / 2 + fit.b)


def test_what_has_no_sensitivity_is_refused():
    with pytest.raises(InputError, match="softmax of one key is 1"):
        local_lipschitz(torch.zeros(3, 1))
    with pytest.raises(InputError, match=r"1 of 6 logits are NaN or \+∞"):
        local_lipschitz(torch.tensor([[0.0, math.inf, 1.0], [0.0, 1.0, 2.0]]))
    with pytest.raises(InputError, match="needs 3 different N; got \\[2, 5\\]"):
        fit_root([2, 5, 5], [1.0, 2.0, 3.0])


def test_the_output_moves_as_a_loop_over_queries_says_and_stays_below_the_bound_of_corollary_iii_2():
    width, sigma = 3, 0.7
    logits, noise = randn(BATCH, 4, QUERIES, KEYS), sigma * randn(BATCH, 4, QUERIES, KEYS, seed=1)
    logits[..., 1, 4:] = -math.inf  # a query that sees four keys
    v = randn(BATCH, 4, KEYS, width, seed=2)
    found = output_perturbation(logits, noise, v)
    seen = torch.isfinite(logits).sum(-1)
    bound = output_bound(v, seen, sigma)
    for batch, head, query in np.ndindex(BATCH, 4, QUERIES):
        place = batch, head, query
        c, eta, values = logits[place].numpy(), noise[place].numpy(), v[batch, head].numpy()
        moved = (scipy.special.softmax(c + eta) - scipy.special.softmax(c)) @ values
        assert found[place].item() == pytest.approx(np.sqrt((moved**2).sum()), rel=1e-12)
        norm = np.linalg.norm(values, 2)
        assert bound[place].item() == pytest.approx(sigma / 2 * math.sqrt(4 if query == 1 else KEYS) * norm)
    assert (found <= noise.where(torch.isfinite(logits), 0).norm(dim=-1) * bound / sigma / seen.sqrt()).all()


def test_the_bound_of_corollary_iii_2_exceeds_what_any_two_distributions_can_differ_by():
    """√2 ‖V‖ holds whatever the noise, and is smaller from nine keys on where σ = 1."""
    v, opposite = randn(9, 3), torch.zeros(1, 9, dtype=torch.float64)
    opposite[0, 0] = 1e3
    extreme = output_perturbation(opposite, -2 * opposite + opposite.flip(-1), v)
    norm = torch.linalg.matrix_norm(v, ord=2)
    assert (extreme <= math.sqrt(2) * norm).all()
    for keys, smaller in ((8, False), (9, True)):
        assert (
            math.sqrt(2) * norm < output_bound(v, torch.tensor([keys]), 1.0) * (1 - 1e-12)
        ).item() is smaller


def rows(**arguments):
    return analyze("softmax-sensitivity", per_head=True, **({"null_samples": 0} | arguments))


def values(frame, metric, statistic=None):
    chosen = frame[(frame["metric"] == metric)]
    chosen = chosen if statistic is None else chosen[chosen["statistic"] == statistic]
    return chosen.set_index(["input", "layer", "head"])["value"]


def test_constants_are_those_of_the_model_s_attention():
    model = vit()
    frame = rows(model=model, inputs=images())
    captured = workbench.capture(model, images(), sites=["attn"])
    for number, layer, head in ((0, 0, 1), (4, 2, 0)):
        p = captured[layer].attn[number, head].double()
        jacobians = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
        expected = torch.linalg.eigvalsh(jacobians)[:, -1]
        place = (str(number), layer, head)
        assert values(frame, "softmax_lipschitz", "mean")[place] == pytest.approx(
            expected.mean().item(), rel=1e-5
        )
        assert values(frame, "softmax_lipschitz", "max")[place] == pytest.approx(
            expected.max().item(), rel=1e-5
        )
        spread = p.log().std(-1, correction=0).mean().item()
        assert values(frame, "logit_spread")[place] == pytest.approx(spread, rel=1e-4)
    assert (values(frame, "softmax_perturbation") > 0).all()


def test_the_model_s_own_output_moves_as_its_attention_and_values_say():
    model = vit()
    frame = rows(model=model, inputs=images(), sigma=0.5)
    captured = workbench.capture(model, images(), sites=["v"])
    moved, bound = (values(frame, name) for name in ("output_perturbation", "output_perturbation_bound"))
    ratio = values(frame, "value_norm_ratio")
    assert (moved < bound).all()
    assert (moved > 0).all()
    for number, layer, head in ((0, 0, 1), (4, 2, 0)):
        v = captured[layer].v[number, head].double()
        spectrum = torch.linalg.svdvals(v)
        place = (str(number), layer, head)
        assert bound[place] == pytest.approx(0.25 * math.sqrt(len(v)) * spectrum[0].item(), rel=1e-5)
        assert ratio[place] == pytest.approx((spectrum[0] / spectrum.norm()).item(), rel=1e-5)
    still = rows(model=model, inputs=images(), sigma=0)
    assert (values(still, "output_perturbation") == 0).all()


def test_without_noise_nothing_moves_and_more_moves_it_more():
    model = vit()
    still, small, large = (
        values(rows(model=model, inputs=images(), sigma=sigma), "softmax_perturbation")
        for sigma in (0, 0.1, 1)
    )
    assert (still == 0).all()
    assert (small < large).all()


def test_causal_queries_are_judged_by_the_keys_they_see():
    model, batch = gpt2(), {name: part[:1] for name, part in texts((9,)).items()}
    frame = rows(model=model, inputs=batch)
    attn = workbench.capture(model, batch, sites=["attn"])[1].attn[0, 2].double()
    expected = [local_lipschitz(attn[query, : query + 1].log()).item() for query in range(1, 9)]
    found = values(frame, "softmax_lipschitz", "mean")["0", 1, 2]
    assert found == pytest.approx(np.mean(expected), rel=1e-4)  # the first query has no choice


@pytest.mark.parametrize("make", [bert, gpt2])
def test_padding_changes_nothing(make):
    model, batch = make(), texts()
    whole = rows(model=model, inputs=batch)
    for number, length in enumerate((9, 4, 7)):
        part = {name: tensor[[number], :length] for name, tensor in batch.items()}
        alone = rows(model=model, inputs=part)
        for metric in ("softmax_lipschitz", "logit_spread"):
            found = whole[(whole["metric"] == metric) & (whole["input"] == str(number))]["value"]
            np.testing.assert_allclose(found, alone[alone["metric"] == metric]["value"], rtol=1e-4)


@pytest.mark.parametrize(("make", "batch"), [(vit, images), (bert, texts)])
def test_neither_noise_nor_chance_depend_on_the_batches(make, batch):
    options = {"model": make(), "inputs": batch(), "null_samples": 3}
    whole = rows(**options)
    same(rows(batch_size=2, **options), whole)
    measured = whole[whole["metric"] != "value_norm_ratio"]  # of V alone, whatever q and k are
    assert measured["null"].unique().tolist() == ["gaussian"]


def test_attention_of_a_class_token_and_of_grouped_queries_is_measured():
    torch.manual_seed(0)
    xcit = timm.models.xcit.Xcit(
        img_size=32, patch_size=8, embed_dim=12, depth=2, num_heads=3, cls_attn_layers=1, num_classes=4
    ).eval()
    frame = rows(model=xcit, inputs=images(2, size=32))
    assert frame["layer"].unique().tolist() == [2]
    assert any("layers 0-1 left out" in note and "channel" in note for note in frame.attrs["notes"])
    grouped = rows(model=grouped_llama(), inputs={name: part[:, :7] for name, part in texts((9, 8)).items()})
    assert grouped["head"].max() == 5


def test_attention_that_is_no_softmax_of_its_logits_is_left_out():
    model = vit()
    replace_attention(model, "twicing", [2])
    frame = rows(model=model, inputs=images())
    assert frame["layer"].unique().tolist() == [0, 1]
    assert any("layer 2 left out" in note and "logits are not known" in note for note in frame.attrs["notes"])
    replace_attention(model, "tssa")
    with pytest.raises(InputError, match="without attention from token to token"):
        rows(model=model, inputs=images())


def test_a_sequence_of_one_token_has_nothing_to_move():
    one = {name: part[:1, :1] for name, part in texts((2,)).items()}
    with pytest.raises(InputError, match="layer 0: softmax of one key is 1"):
        rows(model=bert(), inputs=one)


def test_the_frame_of_random_logits_holds_what_is_sampled():
    frame = sampled_sensitivity([2, 10, 40], (1, 5), null_samples=60, seed=3)
    assert len(frame) == 3 * 2 * 3
    row = frame[(frame["candidate"] == "local") & (frame["tokens"] == 10) & (frame["spread"] == 5)]
    assert row["value"].item() == sampled_lipschitz(10, 60, 3, 5.0).local
    moved = frame[
        (frame["metric"] == "softmax_perturbation") & (frame["tokens"] == 40) & (frame["spread"] == 5)
    ]
    null_samples = pd.Series(sampled_perturbation(40, 60, 3, 5.0))
    assert moved["value"].item() == pytest.approx(null_samples.mean())
    assert moved["low"].item() < null_samples.mean() < moved["high"].item()
    assert frame.attrs["provenance"]["seed"] == 3


def test_the_intervals_of_a_fit_are_those_of_least_squares():
    """a/√N + b with Student's t at n − 2 degrees of freedom, from the normal equations."""
    tokens, values = [2, 4, 9, 16, 30], [0.9, 0.6, 0.5, 0.31, 0.33]
    design = np.stack([np.array(tokens) ** -0.5, np.ones(5)], 1)
    best, rest, *_ = np.linalg.lstsq(design, np.array(values), rcond=None)
    errors = np.sqrt(np.diag(np.linalg.inv(design.T @ design)) * rest[0] / 3)
    half = stats.t.ppf(0.975, 3) * errors
    found = fit_root(tokens, values)
    np.testing.assert_allclose([found.a, found.b], best)
    np.testing.assert_allclose([found.a_high - found.a, found.b_high - found.b], half)
    np.testing.assert_allclose([found.a - found.a_low, found.b - found.b_low], half)


def test_the_spread_of_logits_is_that_of_the_keys_that_are_seen():
    """Over queries that see two keys or more; of each the deviation (ddof = 0) of its logits."""
    logits = torch.randn(1, 1, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    logits[..., 0, 1:] = logits[..., 1, 3:] = -torch.inf
    measured = _over_queries(*_of_queries(logits, torch.zeros_like(logits)))
    found = {one.metric.name: one.values for one in measured if not one.columns}
    spreads = [logits[0, 0, 1, :3].std(correction=0), logits[0, 0, 2].std(correction=0)]
    torch.testing.assert_close(found["logit_spread"], torch.stack(spreads).mean().view(1, 1))
    assert found["softmax_perturbation"] == 0


def test_findings_of_sampling_keep_the_order_of_the_spreads_and_name_both_ends():
    rows = [
        {
            "spread": spread,
            "tokens": tokens,
            "candidate": candidate,
            "value": value / spread,
            "null_samples": 9,
        }
        for spread in (4.0, 1.0)
        for candidate, start in (("pairs", 0.8), ("local", 0.4), (None, 0.2))
        for tokens, value in ((16, start / 2), (4, start), (64, start / 4))
    ]
    fit, *ends = sampling_findings(pd.DataFrame(rows))
    assert "standard deviation 4:" in fit
    assert "a = 0.40" in fit  # 0.8/4 at N = 4 is 0.4/√4
    assert "b = 0.000" in fit
    assert ends == [
        f"Random logits of standard deviation {spread}, 9 samples: from N = 4 to 64 the largest local constant goes "
        f"from {local} to {last}, the mean move under noise from {moved} to {least}."
        for spread, local, last, moved, least in (
            (4, "0.100", "0.025", "0.050", "0.013"),
            (1, "0.400", "0.100", "0.200", "0.050"),
        )
    ]
