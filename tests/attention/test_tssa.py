import math

import pytest
import torch
from torch import nn

from tests.attention.allocations import largest_tensor
from workbench.attention.base import merge_heads
from workbench.attention.tssa import (
    TokenStatisticsAttention,
    token_membership,
    token_statistics_attention,
)
from workbench.core.errors import InputError, UnknownName

BATCH, HEADS, TOKENS, WIDTH = 2, 3, 7, 5


@pytest.fixture
def w():
    return torch.randn(BATCH, HEADS, TOKENS, WIDTH, dtype=torch.float64, generator=torch.manual_seed(0))


@pytest.fixture
def temperature():
    return torch.tensor([[0.5], [1.5], [2.5]], dtype=torch.float64)


@pytest.fixture
def bias():
    return torch.randn(HEADS, TOKENS + 2, 1, dtype=torch.float64, generator=torch.manual_seed(1))


def softmax(values):
    weights = [math.exp(value - max(values)) for value in values]
    return [weight / sum(weights) for weight in weights]


def loops(w, temperature, causal, bias, convention):
    """Output and membership from the formulas, one number at a time."""
    batch, heads, tokens, width = w.shape
    output, members = torch.empty_like(w), torch.empty(batch, heads, tokens, dtype=w.dtype)
    # w[b, k, t, i] as plain numbers: batch b, head k, token t, feature i
    value = w.tolist()
    for b in range(batch):
        for j in range(tokens):
            logits = []
            for k in range(heads):
                length = 0.0
                for i in range(width):
                    square = value[b][k][j][i] ** 2
                    seen = range(j + 1) if causal else range(tokens)
                    total = sum(value[b][k][t][i] ** 2 for t in seen)
                    if causal:
                        square = square / total + (bias[k, j, 0].item() if bias is not None else 0.0)
                    elif convention == "as_implemented":
                        square = square / total
                    length += square
                logits.append(temperature[k, 0].item() * length)
            members[b, :, j] = torch.tensor(softmax(logits), dtype=w.dtype)
        pi = members[b].tolist()
        for k in range(heads):
            for j in range(tokens):
                seen = range(j + 1) if causal else range(tokens)
                total = sum(pi[k][t] for t in seen) + (1e-8 if convention == "as_implemented" else 0.0)
                for i in range(width):
                    moment = sum(pi[k][t] * value[b][k][t][i] ** 2 for t in seen) / total
                    output[b, k, j, i] = -pi[k][j] * value[b][k][j][i] / (1 + moment)
    return output, members


@pytest.mark.parametrize("convention", ["as_published", "as_implemented"])
@pytest.mark.parametrize("causal", [False, True])
def test_equals_the_formulas_one_number_at_a_time(w, temperature, bias, causal, convention):
    bias = bias if causal else None
    found = token_statistics_attention(w, temperature, causal=causal, bias=bias, convention=convention)
    wanted = loops(w, temperature, causal, bias, convention)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-14)


def test_is_a_gradient_step_on_the_variational_coding_rate(temperature):
    """−∂R_c^var/∂Z with W = U/n, d/ε² = 1 and Π fixed (wu2025 eqs. 4, 6)."""
    generator = torch.manual_seed(2)
    z = torch.randn(TOKENS, HEADS * WIDTH, dtype=torch.float64, generator=generator, requires_grad=True)
    u = torch.randn(HEADS, HEADS * WIDTH, WIDTH, dtype=torch.float64, generator=generator)
    output, membership = token_statistics_attention((z @ u)[None], temperature)
    membership = membership.detach()[0]
    rate = torch.zeros((), dtype=torch.float64)
    for k in range(HEADS):
        size = membership[k].sum()
        moments = (membership[k][:, None] * (z @ u[k]) ** 2).sum(0) / size
        rate = rate + 0.5 * size / TOKENS * torch.log1p(moments).sum()
    (gradient,) = torch.autograd.grad(rate, z)
    together = torch.cat([u[k] for k in range(HEADS)], dim=1) / TOKENS  # W = [U_1 … U_K] / n
    torch.testing.assert_close(merge_heads(output)[0] @ together.T, -gradient, rtol=0, atol=1e-13)


@pytest.mark.parametrize("convention", ["as_published", "as_implemented"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", [0.0, 1e-30, 1.0, 1e15])
def test_membership_sums_to_one_over_heads_at_any_size(w, causal, convention, size):
    w = (size * w).float().requires_grad_()
    output, membership = token_statistics_attention(w, 1.0, causal=causal, convention=convention)
    torch.testing.assert_close(membership.sum(1), torch.ones(BATCH, TOKENS))
    assert output.isfinite().all()
    output.sum().backward()
    assert w.grad.isfinite().all()


def test_equal_heads_share_every_token(w):
    same = w[:, :1].expand(-1, HEADS, -1, -1)
    for convention in ("as_published", "as_implemented"):
        membership = token_membership(same, convention=convention)
        torch.testing.assert_close(membership, torch.full_like(membership, 1 / HEADS))


def test_the_trained_membership_does_not_see_the_size_of_a_feature(w):
    sizes = torch.rand(HEADS, 1, WIDTH, dtype=torch.float64, generator=torch.manual_seed(3)) + 0.1
    found, scaled = (token_membership(x, convention="as_implemented") for x in (w, sizes * w))
    torch.testing.assert_close(scaled, found)
    assert not torch.allclose(token_membership(sizes * w), token_membership(w))


@pytest.mark.parametrize("convention", ["as_published", "as_implemented"])
def test_changing_a_token_never_changes_earlier_outputs(w, bias, convention):
    before = token_statistics_attention(w, 1.0, causal=True, bias=bias, convention=convention)
    for token in range(TOKENS):
        changed = w.clone()
        changed[:, :, token] += 1.0
        after = token_statistics_attention(changed, 1.0, causal=True, bias=bias, convention=convention)
        for old, new in zip(before, after, strict=True):
            torch.testing.assert_close(new[:, :, :token], old[:, :, :token], rtol=0, atol=0)
        assert (after[0][:, :, token:] != before[0][:, :, token:]).any(-1).all()


@pytest.mark.parametrize("convention", ["as_published", "as_implemented"])
def test_the_last_token_of_the_causal_form_has_all_statistics(w, convention):
    """Π fixed at 1/heads (temperature 0), both forms damp the last token alike."""
    causal, _ = token_statistics_attention(w, 0.0, causal=True, convention=convention)
    full, _ = token_statistics_attention(w, 0.0, convention=convention)
    torch.testing.assert_close(causal[:, :, -1], full[:, :, -1])


@pytest.mark.parametrize("convention", ["as_published", "as_implemented"])
@pytest.mark.parametrize("causal", [False, True])
def test_padding_changes_no_real_token(w, bias, causal, convention):
    options = {"causal": causal, "bias": bias if causal else None, "convention": convention}
    alone = token_statistics_attention(w, 1.0, **options)
    padding = torch.full((BATCH, HEADS, 2, WIDTH), math.inf, dtype=torch.float64)
    padded = torch.cat([w, padding], dim=2)
    mask = (torch.arange(TOKENS + 2) < TOKENS).expand(BATCH, -1)
    found = token_statistics_attention(padded, 1.0, mask=mask, **options)
    for one, other in zip(found, alone, strict=True):
        torch.testing.assert_close(one[:, :, :TOKENS], other)


@pytest.mark.parametrize("causal", [False, True])
def test_no_pair_of_tokens_is_ever_formed(causal):
    tokens, heads, width = 97, 2, 3
    for convention in ("as_published", "as_implemented"):
        w = torch.randn(1, heads, tokens, width, requires_grad=True)
        found = largest_tensor(
            lambda w=w, c=convention: token_statistics_attention(w, 1.0, causal=causal, convention=c)[0]
        )
        assert found <= heads * tokens * width


def test_half_precision_comes_back_as_it_went_in(w):
    big = (300 * w).half()  # squares beyond the largest half
    output, membership = token_statistics_attention(big, 1.0, causal=True)
    assert output.dtype == membership.dtype == torch.float16
    assert output.isfinite().all()
    wanted, _ = token_statistics_attention(big.double(), 1.0, causal=True)
    torch.testing.assert_close(output.double(), wanted, rtol=2e-3, atol=1e-7)


def test_wrong_arguments_say_what_would_do(w, bias):
    with pytest.raises(InputError, match=r"9 positions.*10 tokens"):
        token_statistics_attention(torch.randn(1, HEADS, 10, WIDTH), causal=True, bias=bias)
    with pytest.raises(InputError, match="causal=True"):
        token_statistics_attention(w, bias=bias)
    with pytest.raises(InputError, match=r"axis head, got 3 and 2 in .* bias \(2, 9, 1\)"):
        token_statistics_attention(w, causal=True, bias=bias[:2])
    with pytest.raises(InputError, match=r"temperature has shape \(2,\).*3 heads"):
        token_statistics_attention(w, torch.ones(2))
    with pytest.raises(UnknownName, match="convention 'exact'"):
        token_statistics_attention(w, convention="exact")
    with pytest.raises(InputError, match="no pairs of tokens"):
        token_statistics_attention(w, mask=torch.ones(1, 1, TOKENS, TOKENS, dtype=torch.bool))


def tost_attention(x, weights, heads):
    """Algorithm 1 of wu2025, from its own names of the weights."""
    w = nn.functional.linear(x, weights["qkv.weight"], weights["qkv.bias"])
    w = torch.stack(w.chunk(heads, -1), 1)
    normed = w / w.norm(dim=-2, keepdim=True)
    membership = ((normed**2).sum(-1) * weights["temp"]).softmax(dim=1)
    dots = torch.einsum("bhn,bhnd->bhd", membership / membership.sum(-1, keepdim=True), w**2)
    heads_out = -w * membership[..., None] / (1 + dots[:, :, None])
    joined = torch.cat(heads_out.unbind(1), -1)
    return nn.functional.linear(joined, weights["to_out.0.weight"], weights["to_out.0.bias"])


def test_loads_and_computes_what_the_authors_weights_mean():
    dim = HEADS * WIDTH
    generator = torch.manual_seed(4)
    shapes = {
        "temp": (HEADS, 1),
        "qkv.weight": (dim, dim),
        "qkv.bias": (dim,),
        "to_out.0.weight": (dim, dim),
        "to_out.0.bias": (dim,),
    }
    weights = {n: torch.randn(s, generator=generator, dtype=torch.float64) for n, s in shapes.items()}
    layer = TokenStatisticsAttention(dim, HEADS, convention="as_implemented").double()
    layer.load_state_dict(weights)
    x = torch.randn(BATCH, TOKENS, dim, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(layer(x), tost_attention(x, weights, HEADS), rtol=1e-7, atol=1e-7)


def test_loads_the_authors_language_weights():
    dim = HEADS * WIDTH
    ours = TokenStatisticsAttention(dim, HEADS, causal=True, num_tokens=TOKENS)
    names = {"qkv": "c_attn", "proj": "c_proj"}
    theirs = {}
    for name, value in ours.state_dict().items():
        head, _, tail = name.partition(".")
        theirs[f"{names.get(head, head)}{'.' if tail else ''}{tail}"] = torch.randn_like(value)
    assert set(theirs) == {
        *("temp", "denom_bias", "c_attn.weight", "c_attn.bias", "c_proj.weight", "c_proj.bias")
    }
    wrapped = nn.ModuleDict({"attn": ours})
    wrapped.load_state_dict({f"attn.{name}": value for name, value in theirs.items()})
    torch.testing.assert_close(ours.qkv.weight.data, theirs["c_attn.weight"])
    torch.testing.assert_close(ours.denom_bias.data, theirs["denom_bias"])


def test_module_is_the_function_between_two_projections():
    dim = HEADS * WIDTH
    x = torch.randn(BATCH, TOKENS, dim, generator=torch.manual_seed(5))
    layer = TokenStatisticsAttention(dim, HEADS)
    output, sites = layer.attend(x, observe=True)
    assert set(sites) == set(layer.sites)
    wanted, membership = token_statistics_attention(*layer.project(x), layer.temp)
    torch.testing.assert_close(output, wanted)
    torch.testing.assert_close(sites["membership"], membership)
    torch.testing.assert_close(layer(x), layer.proj(merge_heads(wanted)))
    assert layer.attend(x)[1] == {}
    count = sum(p.numel() for p in layer.parameters())
    assert count == 2 * (dim * dim + dim) + HEADS


def test_causal_module_is_causal_and_knows_its_length():
    dim = HEADS * WIDTH
    layer = TokenStatisticsAttention(dim, HEADS, causal=True, num_tokens=TOKENS)
    nn.init.normal_(layer.denom_bias)
    x = torch.randn(BATCH, TOKENS, dim, generator=torch.manual_seed(6))
    torch.testing.assert_close(layer(x[:, :4], is_causal=True), layer(x)[:, :4])
    with pytest.raises(InputError, match=r"num_tokens=7.*got 8"):
        layer(torch.randn(1, TOKENS + 1, dim))
    with pytest.raises(InputError, match="needs num_tokens"):
        TokenStatisticsAttention(dim, HEADS, causal=True)


def test_features_of_almost_no_size_count_as_the_trained_form_clamps_them():
    """Causal: a running sum of squares below 1e-12 is 1e-12 as implemented, and itself as published."""
    w = torch.tensor([1e-7, 2.0], dtype=torch.float64).view(1, 2, 1, 1).expand(1, 2, 1, WIDTH)
    for convention, length in (("as_implemented", WIDTH * 1e-14 / 1e-12), ("as_published", WIDTH)):
        found = token_membership(w, 0.5, causal=True, convention=convention)
        expected = softmax([0.5 * length, 0.5 * WIDTH])
        torch.testing.assert_close(found[0, :, 0], torch.tensor(expected, dtype=torch.float64))
