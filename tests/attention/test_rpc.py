import math

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
from workbench.attention.rpc import RPCAttention, principal_component_pursuit, rpc_attention
from workbench.attention.softmax import softmax_attention
from workbench.core.errors import InputError, UnknownName


def planted(rows, columns, rank, share, seed=0):
    """low rank + sparse, the sparse entries as large as the others."""
    low_rank = randn(rows, rank, seed=seed) @ randn(rank, columns, seed=seed + 1) / math.sqrt(rank)
    where = torch.rand(rows, columns, generator=torch.Generator().manual_seed(seed + 2)) < share
    return low_rank, where * randn(rows, columns, seed=seed + 3).sign()


def naive(k, v, q, scale, num_iter, lambd, convention):
    """Algorithm 1 as printed, one head at a time, with Y and μ themselves."""
    output, sparse, dual = (torch.zeros_like(k) for _ in range(3))
    for b in range(k.shape[0]):
        for h in range(k.shape[1]):
            keys = k[b, h]
            tokens, head_dim = keys.shape
            width = head_dim if convention == "as_published" else head_dim * k.shape[1]
            mu = tokens * width / (4 * keys.abs().sum())
            tau = lambd / mu if convention == "as_published" else lambd * mu
            y, low, s = (torch.zeros_like(keys) for _ in range(3))
            for _ in range(num_iter):
                inner = keys - low + y / mu
                s = inner.sign() * (inner.abs() - tau).clamp_min(0)
                cleaned = keys - s - y / mu
                queries = cleaned if q is None else q[b, h]
                low = torch.softmax(scale * queries @ cleaned.T, -1) @ v[b, h]
                y = y + mu * (keys - low - s)
            output[b, h], sparse[b, h], dual[b, h] = low, s, y
    return output, sparse, dual


def test_pursuit_recovers_a_planted_matrix():
    low_rank, sparse = planted(100, 100, 5, 0.05)
    found = principal_component_pursuit(low_rank + sparse, tol=1e-12)
    assert (found.low_rank - low_rank).norm() / low_rank.norm() < 1e-6
    assert (found.sparse - sparse).norm() / sparse.norm() < 1e-6
    assert torch.equal(found.sparse != 0, sparse != 0)
    assert float(found.residual) <= 1e-12


def test_pursuit_of_a_batch_is_that_of_each_matrix():
    matrices = torch.stack([sum(planted(30, 20, 1, 0.02, seed)) for seed in (0, 10)])
    together = principal_component_pursuit(matrices, tol=0, max_iter=40)
    for matrix, low_rank in zip(matrices, together.low_rank, strict=True):
        alone = principal_component_pursuit(matrix, tol=0, max_iter=40)
        torch.testing.assert_close(low_rank, alone.low_rank, rtol=0, atol=1e-12)
    assert together.iterations == 40
    assert together.residual.shape == (2,)


def test_pursuit_minimises_its_objective():
    matrix = randn(9, 6)
    found = principal_component_pursuit(matrix, lambd=0.4, tol=1e-13, max_iter=5000)

    def objective(sparse):
        return torch.linalg.matrix_norm(matrix - sparse, "nuc") + 0.4 * sparse.abs().sum()

    least = objective(found.sparse)
    for seed in range(50):
        assert objective(found.sparse + 0.01 * randn(9, 6, seed=seed)) > least - 1e-10


def test_pursuit_refuses_what_cannot_be_decomposed():
    with pytest.raises(InputError, match="NaN or infinite"):
        principal_component_pursuit(torch.tensor([[1.0, math.nan]]))
    with pytest.raises(InputError, match="positive"):
        principal_component_pursuit(torch.ones(2, 3), lambd=0.0)
    assert not principal_component_pursuit(torch.zeros(2, 3)).low_rank.any()


@pytest.mark.parametrize("convention", ["as_published", "as_implemented"])
@pytest.mark.parametrize("asymmetric", [False, True])
def test_attention_follows_the_printed_algorithm(convention, asymmetric):
    k, v, q = heads(1), heads(2), heads(3) if asymmetric else None
    # Small enough that some entries are sparse and some are not.
    lambd = 0.2 if convention == "as_published" else 0.02
    expected = naive(k, v, q, 0.4, 3, lambd, convention)
    found = rpc_attention(k, v, q=q, scale=0.4, num_iter=3, lambd=lambd, convention=convention, details=True)
    assert 0 < (found.sparse != 0).double().mean() < 1
    for ours, printed in zip((found.output, found.sparse, found.dual), expected, strict=True):
        torch.testing.assert_close(ours, printed, rtol=1e-11, atol=1e-11)
    assert len(found.low_rank) == 3
    assert torch.equal(found.low_rank[-1], found.output)
    torch.testing.assert_close(
        softmax_attention(found.keys if q is None else q, found.keys, v, scale=0.4), found.output
    )


@pytest.mark.parametrize("lambd", [1e30, math.inf])
def test_without_a_sparse_part_it_is_symmetric_attention_iterated(lambd):
    k, v, q = heads(1), heads(2), heads(3)
    once = softmax_attention(k, k, v)
    torch.testing.assert_close(rpc_attention(k, v, num_iter=1, lambd=lambd), once, rtol=0, atol=1e-13)
    twice = softmax_attention(once, once, v)
    torch.testing.assert_close(rpc_attention(k, v, num_iter=2, lambd=lambd), twice, rtol=0, atol=1e-13)
    third = once + twice - k
    torch.testing.assert_close(
        rpc_attention(k, v, num_iter=3, lambd=lambd), softmax_attention(third, third, v), rtol=0, atol=1e-13
    )
    fourth = once + twice + softmax_attention(third, third, v) - 2 * k
    four = rpc_attention(k, v, num_iter=4, lambd=lambd)
    torch.testing.assert_close(four, softmax_attention(fourth, fourth, v), rtol=0, atol=1e-12)
    assert (four - once).abs().max() > 0.01  # so four steps without a sparse part are no plain attention
    plain = softmax_attention(q, k, v)
    torch.testing.assert_close(rpc_attention(k, v, q=q, num_iter=1, lambd=lambd), plain, rtol=0, atol=1e-13)


@pytest.mark.parametrize("convention", ["as_published", "as_implemented"])
@pytest.mark.parametrize("lambd", [0.0, 1e-12, 4.0, 1e30, math.inf])
@pytest.mark.parametrize("size", [0.0, 1e-20, 1.0, 1e6])
def test_finite_with_finite_gradients_for_any_threshold_and_number_of_steps(lambd, convention, size):
    k = (size * heads(1)).float().requires_grad_()
    v = heads(2).float().requires_grad_()
    output = rpc_attention(k, v, num_iter=40, lambd=lambd, convention=convention)
    output.square().sum().backward()
    assert torch.isfinite(output).all()
    assert torch.isfinite(k.grad).all()
    assert torch.isfinite(v.grad).all()


def test_the_conventions_differ_by_threshold_and_width():
    k, v = heads(1)[:, :1], heads(2)[:, :1]
    mu = k.shape[2] * k.shape[3] / (4 * k.abs().sum((2, 3)))[0, 0]
    # One head: the widths agree, and λ/μ is the λμ of a λ smaller by μ².
    text = rpc_attention(k[:1], v[:1], lambd=0.3, convention="as_published")
    code = rpc_attention(k[:1], v[:1], lambd=0.3 / float(mu) ** 2, convention="as_implemented")
    torch.testing.assert_close(text, code, rtol=0, atol=1e-12)


def test_wrong_arguments_are_named():
    k = heads(1)
    with pytest.raises(UnknownName, match="convention"):
        rpc_attention(k, k, convention="test")
    with pytest.raises(InputError, match="k and v must agree in axis head_dim"):
        rpc_attention(k, heads(2, width=4))
    with pytest.raises(InputError, match="num_iter"):
        rpc_attention(k, k, num_iter=0)
    with pytest.raises(InputError, match="num_iter"):
        attention_module("rpc-sym", 15, 3, num_iter=[4, -1])


@pytest.mark.parametrize("convention", ["as_published", "as_implemented"])
@pytest.mark.parametrize("name", ["rpc-sym", "rpc-asym", "rpc-sym-asym"])
def test_tokens_see_what_they_may(name, convention):
    # With the text's λ = 4 nothing would be sparse here.
    options = {"num_iter": [3], "lambd": 0.1, "convention": convention}
    assert_causal(perturb(attention_module(name, 15, 3, causal=True, **options)))
    assert_padding_is_ignored(perturb(attention_module(name, 15, 3, **options)))
    assert_observing_changes_nothing(perturb(attention_module(name, 15, 3, **options)))


def test_layers_choose_their_steps_and_their_projections():
    def size(module):
        return module.qkv.out_features // module.dim

    first, second = (attention_module("rpc-sym-asym", 15, 3, layer=layer) for layer in (0, 1))
    assert (first.num_iter, size(first)) == (4, 2)
    assert (second.num_iter, size(second)) == (0, 3)
    layers = [attention_module("rpc-sym", 15, 3, num_iter=[4, 0, 2], layer=layer) for layer in range(4)]
    assert [layer.num_iter for layer in layers] == [4, 0, 2, 0]
    assert {size(layer) for layer in layers} == {2}
    x = randn(BATCH, TOKENS, 15, dtype=torch.float32)
    ordinary = attention_module("softmax-sym", 15, 3)
    ordinary.load_state_dict(layers[1].state_dict())
    assert torch.equal(layers[1](x), ordinary(x))


def test_observed_parts_add_up():
    module = perturb(attention_module("rpc-sym", HEADS * 5, HEADS, num_iter=3, lambd=0.1))
    output, inside = module.attend(randn(BATCH, TOKENS, 15), observe=True)
    assert torch.equal(inside["low_rank"], output)
    found = rpc_attention(inside["projected_k"], inside["v"], num_iter=3, lambd=0.1, details=True)
    assert torch.equal(found.sparse, inside["sparse"])
    rebuilt = softmax_attention(inside["q"], inside["k"], inside["v"], scale=inside["scale"])
    torch.testing.assert_close(rebuilt, output, rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    "options", [{"num_iter": -1}, {"num_iter": [1, 2.5]}, {"lambd": math.nan}, {"lambd": -1.0}]
)
def test_each_setting_of_the_pursuit_is_refused_by_itself(options):
    with pytest.raises(InputError):
        RPCAttention(6, 2, symmetry="sym", **options)


def test_the_usual_weight_is_one_over_the_root_of_the_longer_side_and_steps_are_counted():
    m = torch.randn(5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    usual, given = (
        principal_component_pursuit(m, tol=0, max_iter=3, lambd=lambd) for lambd in (None, 8**-0.5)
    )
    torch.testing.assert_close(tuple(usual[:3]), tuple(given[:3]))
    assert usual.iterations == 3
    again = principal_component_pursuit(m, tol=0, max_iter=1)
    assert again.iterations == 1
    assert not torch.equal(again.low_rank, usual.low_rank)
