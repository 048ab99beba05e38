"""Free functions of attention and of analyses over drawn sizes, types and masks: invariances, and naive loops."""

import itertools
import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.analyses.coding_rate import coding_rate
from workbench.analyses.gram_spectrum import effective_rank, gram_eigenvalues, rank_holding
from workbench.analyses.linalg import inside_share, span_angles
from workbench.analyses.pairs import absolute_differences
from workbench.analyses.softmax_sensitivity import local_lipschitz
from workbench.analyses.token_similarity import token_cosine_similarity
from workbench.attention.base import masked_softmax, merge_heads, split_heads
from workbench.attention.softmax import softmax_attention
from workbench.attention.tssa import token_statistics_attention
from workbench.attention.xca import cross_covariance_attention

few = settings(max_examples=10, deadline=None, derandomize=True, database=None)
SIZES = st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(2, 6), st.integers(1, 5))
"""Inputs, heads, tokens and features of a head."""
TYPES = st.sampled_from([torch.float32, torch.float64])
SEEDS = st.integers(0, 10**6)


def normal(seed, *shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def close(found, expected, dtype=torch.float64):
    tolerance = 1e-5 if dtype == torch.float32 else 1e-10
    torch.testing.assert_close(
        found.double(), expected.double(), rtol=tolerance, atol=tolerance, equal_nan=True
    )


def operands(seed, sizes, dtype=torch.float64):
    return normal(seed, 3, *sizes, dtype=dtype)


def real_tokens(seed, inputs, tokens):
    """Of every input at least one."""
    mask = normal(seed + 1, inputs, tokens) > -0.5
    mask[:, 0] = True
    return mask


@few
@given(SEEDS, SIZES, TYPES, st.booleans(), st.booleans())
def test_attention_is_its_loop_whatever_the_sizes_the_type_and_the_mask(seed, sizes, dtype, masked, causal):
    q, k, v = operands(seed, sizes, dtype)
    inputs, heads, tokens, _ = sizes
    mask = real_tokens(seed, inputs, tokens) if masked else torch.ones(inputs, tokens, dtype=torch.bool)
    found = softmax_attention(q, k, v, scale=0.7, mask=mask if masked else None, causal=causal)
    assert found.dtype == dtype
    expected = torch.zeros(sizes, dtype=torch.float64)
    for b, h, i in itertools.product(range(inputs), range(heads), range(tokens)):
        seen = [j for j in range(tokens) if mask[b, j] and (j <= i or not causal)]
        scores = [0.7 * float(q[b, h, i].double() @ k[b, h, j].double()) for j in seen]
        weights = [math.exp(score - max(scores)) for score in scores]
        for weight, j in zip(weights, seen, strict=True):
            expected[b, h, i] += weight / sum(weights) * v[b, h, j].double()
    close(found, expected, dtype)


@few
@given(SEEDS, SIZES)
def test_a_larger_logit_of_every_key_changes_no_weight_and_an_order_of_keys_only_their_order(seed, sizes):
    scores = normal(seed, *sizes)
    mask = normal(seed + 1, *sizes) > 0
    weights = masked_softmax(scores, mask)
    close(weights.sum(-1), mask.any(-1).double())
    close(masked_softmax(scores + 3.5, mask), weights)
    order = torch.randperm(sizes[-1], generator=torch.Generator().manual_seed(seed))
    close(masked_softmax(scores[..., order], mask[..., order]), weights[..., order])


@few
@given(SEEDS, SIZES)
def test_heads_come_apart_and_together_again(seed, sizes):
    inputs, heads, tokens, width = sizes
    x = normal(seed, inputs, tokens, heads * width)
    apart = split_heads(x, heads)
    assert torch.equal(merge_heads(apart), x)
    for h in range(heads):
        assert torch.equal(apart[:, h], x[..., h * width : (h + 1) * width])


@few
@given(SEEDS, SIZES)
def test_attention_without_positions_follows_an_order_of_its_tokens(seed, sizes):
    q, k, v = operands(seed, sizes)
    order = torch.randperm(sizes[2], generator=torch.Generator().manual_seed(seed))
    for attend in (
        lambda q, k, v: softmax_attention(q, k, v),
        lambda q, k, v: cross_covariance_attention(q, k, v, 1.3),
        lambda q, k, v: token_statistics_attention(v, 0.8)[0],
    ):
        close(attend(*(part[:, :, order] for part in (q, k, v))), attend(q, k, v)[:, :, order])


@few
@given(SEEDS, SIZES, TYPES)
def test_spectra_do_not_depend_on_the_order_of_keys_nor_on_a_turn(seed, sizes, dtype):
    k = normal(seed, *sizes, dtype=dtype)
    spectrum = gram_eigenvalues(k, 0.4)
    assert spectrum.shape == sizes[:3]
    assert (spectrum >= 0).all()
    assert (spectrum[..., :-1] >= spectrum[..., 1:]).all()
    order = torch.randperm(sizes[2], generator=torch.Generator().manual_seed(seed))
    turn = torch.linalg.qr(normal(seed + 1, sizes[3], sizes[3])).Q
    close(gram_eigenvalues(k[..., order, :], 0.4), spectrum)
    close(gram_eigenvalues(k.double() @ turn, 0.4), spectrum)
    ranks = effective_rank(spectrum)
    close(effective_rank(spectrum * 37.0), ranks)
    assert ((ranks <= sizes[2]) | ranks.isnan()).all()
    assert ((rank_holding(spectrum, 0.5) <= rank_holding(spectrum, 0.9)) | ranks.isnan()).all()


@few
@given(SEEDS, SIZES)
def test_cosines_of_tokens_are_their_loop_and_free_of_size(seed, sizes):
    inputs, _, tokens, width = sizes
    hidden = normal(seed, inputs, tokens, width)
    mask = real_tokens(seed, inputs, tokens)
    mask[:, 1] = True
    found = token_cosine_similarity(hidden, mask)
    for b in range(inputs):
        real = [hidden[b, i] / hidden[b, i].norm() for i in range(tokens) if mask[b, i]]
        pairs = [float(x @ y) for x, y in itertools.combinations(real, 2)]
        close(found[b], torch.tensor(sum(pairs) / len(pairs), dtype=torch.float64))
    close(token_cosine_similarity(hidden * (0.1 + normal(seed, inputs, tokens, 1).abs()), mask), found)


@few
@given(SEEDS, SIZES)
def test_differences_of_pairs_are_their_loop(seed, sizes):
    x = normal(seed, *sizes[:3])
    found = absolute_differences(x)
    for place in itertools.product(*map(range, sizes[:2])):
        pairs = torch.tensor(
            [abs(a - b) for a, b in itertools.combinations(x[place].tolist(), 2)], dtype=torch.float64
        )
        close(found.mean[place], pairs.mean())
        close(found.std[place], pairs.std() if len(pairs) > 1 else torch.tensor(math.nan))
    close(absolute_differences(x + 5).mean, found.mean)
    close(absolute_differences(-2 * x).std, 2 * found.std)


@few
@given(SEEDS, st.integers(3, 7), st.integers(1, 3), st.integers(1, 3))
def test_angles_between_spans_are_symmetric_and_free_of_their_bases(seed, tokens, one, other):
    first, second = (torch.linalg.qr(normal(seed + n, tokens, size)).Q for n, size in enumerate((one, other)))
    angles = span_angles(first, second)
    assert angles.shape == (min(one, other),)
    assert (angles[:-1] <= angles[1:]).all()
    close(
        span_angles(second, first).cos(), angles.cos()
    )  # an angle of 0 is exact to the root of the rounding
    turn = torch.linalg.qr(normal(seed + 2, one, one)).Q
    close(span_angles(first @ turn, second).cos(), angles.cos())
    share = inside_share(normal(seed + 3, tokens, 2), first)
    assert 0 <= share <= 1
    close(inside_share(first @ normal(seed + 4, one, 2), first), torch.tensor(1.0))


@few
@given(SEEDS, SIZES)
def test_coding_rates_follow_no_order_and_grow_with_the_tokens_size(seed, sizes):
    z = normal(seed, *sizes)
    rate = coding_rate(z)
    order = torch.randperm(sizes[2], generator=torch.Generator().manual_seed(seed))
    turn = torch.linalg.qr(normal(seed + 1, sizes[3], sizes[3])).Q
    close(coding_rate(z[..., order, :]), rate)
    close(coding_rate(z @ turn), rate)
    assert (coding_rate(2 * z) > rate).all()
    close(coding_rate(0 * z), torch.zeros_like(rate))


@few
@given(SEEDS, st.integers(2, 7))
def test_the_local_constant_of_softmax_is_the_norm_of_its_jacobian(seed, tokens):
    logits = 3 * normal(seed, tokens)
    p = logits.softmax(-1)
    jacobian = torch.diag(p) - torch.outer(p, p)
    found = local_lipschitz(logits)
    close(found, torch.linalg.matrix_norm(jacobian, 2))
    close(local_lipschitz(logits + 2), found)
    assert 0 <= found <= 0.5 + 1e-12
