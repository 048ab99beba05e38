import itertools
import math
from functools import partial

import pytest
import torch

from tests.attention.modules import (
    BATCH,
    HEADS,
    TOKENS,
    assert_causal,
    assert_observing_changes_nothing,
    assert_padding_is_ignored,
    heads,
    perturb,
    randn,
)
from workbench.attention import attention_module
from workbench.attention.base import causal_mask
from workbench.attention.scaled import exact_scaling, log_exact_scaling, scaled_attention, scaled_values
from workbench.attention.softmax import softmax_attention
from workbench.core.errors import InputError


def test_a_zero_s_is_softmax_attention():
    q, k, v = heads(1), heads(2), heads(3, width=4)
    zero = torch.zeros(TOKENS, TOKENS, dtype=torch.float64)
    assert torch.equal(scaled_attention(q, k, v, zero), softmax_attention(q, k, v))


@pytest.mark.parametrize("name", ["scaled-free", "scaled-alpha"])
def test_the_modules_start_as_softmax_attention(name):
    scaled = attention_module(name, 15, 3, num_tokens=TOKENS).double()
    plain = attention_module("softmax", 15, 3).double()
    plain.load_state_dict(
        {key: value for key, value in scaled.state_dict().items() if key in plain.state_dict()}
    )
    x = randn(BATCH, TOKENS, 15)
    assert torch.equal(scaled(x), plain(x))
    scaled(x).square().sum().backward()
    learned = scaled.scaling if name == "scaled-free" else scaled.alpha
    assert learned.grad.abs().min() > 0


def test_it_is_the_product_of_three_matrices():
    q, k, v, s = heads(1), heads(2), heads(3, width=4), randn(HEADS, TOKENS, TOKENS, seed=4)
    attn = torch.softmax(0.3 * q @ k.mT, -1)
    expected = attn @ (torch.eye(TOKENS, dtype=torch.float64) - s) @ v
    torch.testing.assert_close(scaled_attention(q, k, v, s, scale=0.3), expected, rtol=0, atol=1e-13)


def test_the_exact_s_is_the_ratio_of_normalisers_and_of_attention():
    k = heads(1)
    s = exact_scaling(k, scale=0.3)
    g = (0.3 * k @ k.mT).exp().sum(-1)
    for j in range(TOKENS):
        for other in range(TOKENS):
            ratio = g[:, :, other] / (TOKENS * g[:, :, j])
            torch.testing.assert_close(s[:, :, j, other], ratio, rtol=1e-13, atol=0)
    attn = torch.softmax(0.3 * k @ k.mT, -1)
    torch.testing.assert_close(s, attn / attn.mT / TOKENS, rtol=1e-12, atol=0)
    torch.testing.assert_close(s.diagonal(dim1=-2, dim2=-1), torch.full(g.shape, 1 / TOKENS, dtype=g.dtype))


def test_the_exact_s_stays_finite_for_large_keys():
    k = 100 * heads(1)
    log, s = log_exact_scaling(k), exact_scaling(k)
    assert torch.isfinite(log).all()
    assert torch.isfinite(s).all()
    assert log.max() > math.log(torch.finfo(torch.float64).max)  # or there would be nothing to see
    # The logarithm is exact: rows differ by a constant, and columns by the opposite one.
    scores = k @ k.mT / math.sqrt(k.shape[-1])
    largest = scores.amax(-1)
    log_g = largest + (scores - largest[..., None]).exp().sum(-1).log()
    expected = log_g[..., None, :] - log_g[..., None] - math.log(TOKENS)
    torch.testing.assert_close(log, expected, rtol=1e-12, atol=1e-12)
    inside = expected < math.log(torch.finfo(torch.float64).max)
    torch.testing.assert_close(s[inside], expected[inside].exp(), rtol=1e-9, atol=0)


def test_the_exact_s_of_the_real_tokens_ignores_padding_and_the_future():
    k = heads(1)
    mask = torch.ones(BATCH, TOKENS, dtype=torch.bool)
    mask[:, 5:] = False
    padded = exact_scaling(k, mask=mask)
    torch.testing.assert_close(padded[:, :, :5, :5], exact_scaling(k[:, :, :5]), rtol=1e-12, atol=0)
    assert not padded[:, :, :, 5:].any()
    earlier = exact_scaling(k, mask=causal_mask(TOKENS))
    scores = (k @ k.mT / math.sqrt(k.shape[-1])).tril()
    g = torch.stack([scores[:, :, j, : j + 1].exp().sum(-1) for j in range(TOKENS)], -1)
    torch.testing.assert_close(earlier[:, :, 4, 2], g[:, :, 2] / (5 * g[:, :, 4]), rtol=1e-12, atol=0)
    nobody = torch.zeros(BATCH, TOKENS, dtype=torch.bool)
    assert not exact_scaling(k, mask=nobody).any()


def test_alpha_scales_symmetric_attention():
    module = perturb(attention_module("scaled-alpha", 15, 3))
    x = randn(BATCH, TOKENS, 15)
    output, inside = module.attend(x, observe=True)
    q, k, v = (inside[site] for site in ("q", "k", "projected_v"))
    s = module.alpha * torch.softmax(module.scale * k @ k.mT, -1)
    torch.testing.assert_close(output, scaled_attention(q, k, v, s), rtol=0, atol=1e-13)
    torch.testing.assert_close(inside["v"], v - s @ v, rtol=0, atol=1e-13)


def test_the_exact_variant_follows_the_remark_entry_by_entry():
    module = attention_module("scaled-exact", 15, 3).double()
    assert not {*dict(module.named_parameters())} - {
        *dict(attention_module("softmax", 15, 3).named_parameters())
    }
    with torch.no_grad():
        output, inside = module.attend(randn(BATCH, TOKENS, 15), observe=True)
    q, k, v = (inside[site] for site in ("q", "k", "projected_v"))
    expected = torch.zeros_like(v)
    for b, h in itertools.product(range(BATCH), range(HEADS)):
        g = [sum(math.exp(module.scale * float(x @ y)) for y in k[b, h]) for x in k[b, h]]
        changed = []
        for j in range(TOKENS):
            s = [g[other] / (TOKENS * g[j]) for other in range(TOKENS)]
            changed.append(v[b, h, j] - sum(s[other] * v[b, h, other] for other in range(TOKENS)))
        for i in range(TOKENS):
            weights = [math.exp(module.scale * float(q[b, h, i] @ key)) for key in k[b, h]]
            expected[b, h, i] = sum(w * value for w, value in zip(weights, changed, strict=True)) / sum(
                weights
            )
    torch.testing.assert_close(output, expected, rtol=1e-12, atol=1e-13)


def test_the_exact_s_is_a_projection_that_removes_one_weighted_mean_of_the_values():
    k, v = heads(1), heads(2)
    s = exact_scaling(k)
    torch.testing.assert_close(s @ s, s, rtol=1e-12, atol=1e-13)
    assert torch.equal(torch.linalg.matrix_rank(s), torch.ones(BATCH, HEADS, dtype=torch.int64))
    g = (k @ k.mT / math.sqrt(k.shape[-1])).exp().sum(-1, keepdim=True)
    changed = scaled_values(v, s)
    mean = (g / g.sum(-2, keepdim=True) * changed).sum(-2)
    torch.testing.assert_close(mean, torch.zeros_like(mean), rtol=0, atol=1e-13)
    # Values that kernel PCA predicts are eigenvectors with mean 0, over g: S leaves nothing of them.
    predicted = (v - v.mean(-2, keepdim=True)) / g
    torch.testing.assert_close(scaled_values(predicted, s), predicted, rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", ["scaled-free", "scaled-alpha", "scaled-exact"])
def test_tokens_see_what_they_may(name):
    exact = name == "scaled-exact"  # has no parameter to move, and large keys would make entries of S large
    make = partial(attention_module, name, 15, 3, num_tokens=TOKENS)
    module, causal = (own.double() if exact else perturb(own) for own in (make(), make(causal=True)))
    assert_causal(causal, first=int(exact))  # S of a single token is 1: nothing is left of the first value
    assert_padding_is_ignored(module)
    assert_observing_changes_nothing(module)


def test_a_free_s_knows_how_long_it_is():
    with pytest.raises(InputError, match="num_tokens"):
        attention_module("scaled-free", 15, 3)
    module = attention_module("scaled-free", 15, 3, num_tokens=6)
    assert module.scaling.shape == (3, 6, 6)
    with pytest.raises(InputError, match=r"at most num_tokens=6 tokens, but got 7"):
        module(torch.zeros(1, 7, 15))
    with pytest.raises(InputError, match=r"q and s must agree in axis token, got 7 and 6"):
        scaled_attention(heads(1), heads(2), heads(3), torch.zeros(3, 6, 6, dtype=torch.float64))
