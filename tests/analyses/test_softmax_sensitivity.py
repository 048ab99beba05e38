"""Sensitivity of softmax: its Jacobian as oracle, the constant 1/2, and sampling that cannot exceed it."""

import math

import numpy as np
import pytest
import scipy.special
import torch

from workbench.analyses.softmax_sensitivity import (
    CONSTANT,
    fit_root,
    local_lipschitz,
    perturbation,
    sampled_lipschitz,
    sampled_perturbation,
    slope,
)
from workbench.core.errors import InputError

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
