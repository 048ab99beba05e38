"""Signal and noise around a block: α, β, γ, the bound of abdullaev2025's Prop. III.1 and the gain that it bounds."""

import math

import pytest
import torch

from workbench.analyses.snr import residual_noise, signal_to_noise
from workbench.core.errors import InputError

BATCH, TOKENS, WIDTH = 3, 7, 5


def parts(count=4, *shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = shape or (BATCH, TOKENS, WIDTH)
    return [torch.randn(*shape, dtype=torch.float64, generator=generator) for _ in range(count)]


def length(values):
    return math.sqrt(sum(value**2 for value in values))


def test_all_parts_are_those_of_one_long_vector():
    clean, noisy, clean_update, noisy_update = parts()
    found = residual_noise(clean, noisy, clean_update, noisy_update)
    for place in range(BATCH):
        u, noise, put_out, put_noise = (
            part[place].flatten().tolist()
            for part in (clean, noisy - clean, clean_update, noisy_update - clean_update)
        )
        alpha, gamma = length(put_out) / length(u), length(put_noise) / length(noise)
        beta = sum(a * b for a, b in zip(u, put_out, strict=True)) / length(u) / length(put_out)
        before = length(u) / length(noise)
        after = length(a + b for a, b in zip(u, put_out, strict=True)) / length(
            a + b for a, b in zip(noise, put_noise, strict=True)
        )
        expected = [
            alpha,
            beta,
            gamma,
            math.sqrt(1 + 2 * alpha * beta + alpha**2) / (1 + gamma),
            after / before,
        ]
        named = [found.alpha, found.beta, found.gamma, found.bound, found.gain]
        assert [part[place].item() for part in named] == pytest.approx(expected, rel=1e-12)
        assert signal_to_noise(clean, noisy)[place].item() == pytest.approx(before, rel=1e-12)


def test_a_block_that_puts_out_its_input_leaves_the_ratio_as_it_is():
    clean, noisy = parts(2)
    found = residual_noise(clean, noisy, clean, noisy)
    ones = torch.ones(BATCH, dtype=torch.float64)
    for part in (found.alpha, found.beta, found.gamma, found.noise_cosine, found.bound, found.gain):
        torch.testing.assert_close(part, ones)
    torch.testing.assert_close(signal_to_noise(2 * clean, 2 * noisy), signal_to_noise(clean, noisy))


def test_a_block_that_removes_the_noise_doubles_the_ratio():
    clean, noisy = parts(2)
    found = residual_noise(clean, noisy, clean, clean)
    torch.testing.assert_close(found.gain, torch.full((BATCH,), 2.0, dtype=torch.float64))
    torch.testing.assert_close(found.bound, found.gain)
    assert found.assumed.all()
    assert found.sufficient.all()


def test_the_bound_is_never_above_the_gain_and_met_by_parallel_noise():
    clean, noisy, put_out, other = parts(4, 200, TOKENS, WIDTH)
    found = residual_noise(clean, noisy, put_out, other)
    assert (found.bound <= found.gain * (1 + 1e-12)).all()
    assert (found.bound < found.gain).any()
    parallel = residual_noise(clean, noisy, put_out, put_out + 0.3 * (noisy - clean))
    torch.testing.assert_close(parallel.bound, parallel.gain)
    torch.testing.assert_close(parallel.gamma, torch.full((200,), 0.3, dtype=torch.float64))


def test_the_printed_assumption_does_not_give_a_bound_above_one():
    """α = β = 0.5 and γ = 0.4: min(α, β) > γ, and the ratio falls."""
    u = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    noise = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    put_out = 0.5 * torch.tensor([[0.5, math.sqrt(0.75)]], dtype=torch.float64)
    found = residual_noise(u, u + noise, put_out, put_out + 0.4 * noise)
    assert (found.alpha.item(), found.beta.item(), found.gamma.item()) == pytest.approx((0.5, 0.5, 0.4))
    assert found.assumed
    assert not found.sufficient
    assert found.gain.item() == pytest.approx(found.bound.item())
    assert found.gain.item() == pytest.approx(math.sqrt(1.75) / 1.4)
    assert round(found.gain.item(), 3) == 0.945


def test_the_condition_is_that_the_bound_exceeds_one():
    clean, noisy, put_out, other = parts(4, 500, 2, 3)
    found = residual_noise(clean, clean + 0.2 * noisy, put_out + clean, put_out + clean + 0.1 * other)
    assert torch.equal(found.sufficient, found.bound > 1)
    assert 0 < found.sufficient.double().mean() < 1
    # an α above 1, as an expanding block has, is outside of what the paper assumes
    assert not found.assumed[found.alpha > 1].any()
    assert found.assumed.any()


def test_padding_is_left_out():
    clean, noisy, put_out, other = parts()
    mask = torch.arange(TOKENS) < torch.tensor([7, 4, 2])[:, None]
    found = residual_noise(clean, noisy, put_out, other, mask)
    for place, count in enumerate((7, 4, 2)):
        alone = residual_noise(*(part[place, :count] for part in (clean, noisy, put_out, other)))
        torch.testing.assert_close(found.gain[place], alone.gain)
        torch.testing.assert_close(found.beta[place], alone.beta)
    centred = signal_to_noise(clean, noisy, mask, centre=True)
    mean = clean[1, :4].mean(0)
    torch.testing.assert_close(centred[1], signal_to_noise(clean[1, :4] - mean, noisy[1, :4] - mean))


def test_centred_signals_know_nothing_of_what_all_tokens_share():
    clean, noisy, put_out, other = parts()
    shared = torch.randn(WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    plain = residual_noise(clean, noisy, put_out, other, centre=True)
    moved = residual_noise(clean + shared, noisy + shared, put_out - shared, other - shared, centre=True)
    for one, two in zip(plain, moved, strict=True):
        torch.testing.assert_close(one, two)
    assert not torch.allclose(plain.beta, residual_noise(clean, noisy, put_out, other).beta)


def test_one_token_and_no_noise():
    clean, noisy, put_out, other = parts(4, 1, WIDTH)
    assert residual_noise(clean, noisy, put_out, other).gain.isfinite()
    assert signal_to_noise(clean, clean).item() == math.inf
    assert residual_noise(clean, clean, put_out, put_out).gamma.isnan()


def test_what_does_not_fit_is_refused():
    clean, noisy, put_out, other = parts()
    with pytest.raises(InputError, match="not of the same inputs"):
        signal_to_noise(clean, noisy[:2])
    with pytest.raises(InputError, match="cannot be added"):
        residual_noise(clean, noisy, put_out[:, :3], other[:, :3])
    noisy[1, 2, 3] = math.nan
    with pytest.raises(InputError, match=r"noisy .* batch 1, token 2, width 3"):
        signal_to_noise(clean, noisy)
    with pytest.raises(InputError, match="boolean"):
        signal_to_noise(clean, put_out, torch.ones(BATCH, TOKENS))
