"""Linformer and Nyström attention against their formulas, one number at a time."""

import math

import pytest
import torch

from tests.attention.allocations import largest_tensor
from tests.attention.modules import assert_padding_is_ignored, heads
from workbench.attention import attention_module
from workbench.attention.linformer import linformer_attention, linformer_map
from workbench.attention.nystrom import NystromAttention, nystrom_attention, nystrom_map, pseudo_inverse
from workbench.attention.softmax import softmax_attention
from workbench.core.errors import InputError

BATCH, HEADS, TOKENS, WIDTH = heads().shape


@pytest.fixture
def qkv():
    return heads(1), heads(2), heads(3)


def softmax(values):
    top = max(values)
    shares = [math.exp(value - top) for value in values]
    return [share / sum(shares) for share in shares]


def dot(one, other):
    return sum(float(a) * float(b) for a, b in zip(one, other, strict=True))


def mixed(weights, rows):
    return [dot(weights, [row[at] for row in rows]) for at in range(len(rows[0]))]


def test_linformer_equals_the_loop(qkv):
    mixture = torch.randn(
        HEADS, 3, TOKENS + 2, dtype=torch.float64, generator=torch.Generator().manual_seed(4)
    )
    output = linformer_attention(*qkv, mixture)
    for batch in range(BATCH):
        for head in range(HEADS):
            q, k, v = (x[batch, head].tolist() for x in qkv)
            rows = mixture[head, :, :TOKENS].tolist()
            keys, values = ([mixed(row, x) for row in rows] for x in (k, v))
            for token in range(TOKENS):
                share = softmax([dot(q[token], key) / math.sqrt(WIDTH) for key in keys])
                assert output[batch, head, token].tolist() == pytest.approx(mixed(share, values), abs=1e-12)


def test_linformer_of_tokens_that_stay_themselves_is_softmax_attention(qkv):
    identity = torch.eye(TOKENS, dtype=torch.float64).expand(HEADS, -1, -1)
    torch.testing.assert_close(linformer_attention(*qkv, identity), softmax_attention(*qkv))
    with pytest.raises(InputError, match=f"at most {TOKENS - 1} tokens, .* but got {TOKENS}"):
        linformer_attention(*qkv, identity[..., : TOKENS - 1])


def test_nystrom_equals_the_loop(qkv):
    count = 3
    output = nystrom_attention(*qkv, landmarks=count, iterations=40)
    segment = [token * count // TOKENS for token in range(TOKENS)]
    for batch in range(BATCH):
        for head in range(HEADS):
            q, k, v = (x[batch, head].tolist() for x in qkv)
            means = []
            for rows in (q, k):
                parts = [
                    [rows[at] for at in range(TOKENS) if segment[at] == number] for number in range(count)
                ]
                means.append([mixed([1 / len(part)] * len(part), part) for part in parts])
            weigh = lambda x, y: [softmax([dot(a, b) / math.sqrt(WIDTH) for b in y]) for a in x]  # noqa: E731  # a line of the formula
            left, middle, right = weigh(q, means[1]), weigh(*means), weigh(means[0], k)
            inverse = torch.linalg.pinv(torch.tensor(middle, dtype=torch.float64)).tolist()
            through = [mixed(row, [mixed(row, v) for row in right]) for row in inverse]
            for token in range(TOKENS):
                expected = mixed(left[token], through)
                assert output[batch, head, token].tolist() == pytest.approx(expected, abs=1e-6)


def test_nystrom_with_a_landmark_for_every_token_is_softmax_attention(qkv):
    for landmarks in (TOKENS, TOKENS + 4):
        found = nystrom_attention(*qkv, landmarks=landmarks, iterations=60)
        torch.testing.assert_close(found, softmax_attention(*qkv), atol=1e-5, rtol=1e-5)


def test_the_pseudo_inverse_is_that_of_linear_algebra():
    matrix = torch.softmax(
        torch.randn(2, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)), -1
    )
    torch.testing.assert_close(pseudo_inverse(matrix, 40), torch.linalg.pinv(matrix))
    begun = matrix.mT / (matrix.sum(-2).amax(-1) * matrix.sum(-1).amax(-1))[:, None, None]
    torch.testing.assert_close(pseudo_inverse(matrix, 0), begun)
    assert not pseudo_inverse(torch.zeros(2, 2), 6).any()


@pytest.mark.parametrize(
    ("name", "options"), [("linformer", {"projected": 3}), ("nystrom", {"landmarks": 3})]
)
def test_padding_is_ignored_and_the_map_gives_the_output_again(name, options):
    module = attention_module(name, 15, 3, num_tokens=20, **options).double()
    x = torch.randn(2, 9, 15, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    mask = torch.arange(9) < torch.tensor([[9], [5]])
    output, inside = module.attend(x, mask, observe=True)
    torch.testing.assert_close(inside["attn"] @ inside["v"], output)
    assert not inside["attn"][1, :, :, 5:].any()
    assert_padding_is_ignored(module)


def test_a_nystrom_module_takes_64_landmarks_and_six_iterations_unless_asked():
    """As the authors' code does (Xiong et al. 2021)."""
    plain, asked = (
        NystromAttention(15, 3, **options) for options in ({}, {"landmarks": 64, "iterations": 6})
    )
    asked.load_state_dict(plain.state_dict())
    x = 4 * torch.randn(2, 70, 15, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(plain(x), asked(x), rtol=0, atol=0)


def test_no_pair_of_tokens_is_ever_formed():
    tokens = 300
    q, k, v = (torch.randn(1, 2, tokens, 4, requires_grad=True) for _ in range(3))
    mixture = torch.randn(2, 5, tokens)
    for compute in (
        lambda: linformer_attention(q, k, v, mixture),
        lambda: nystrom_attention(q, k, v, landmarks=5),
    ):
        assert largest_tensor(compute) < tokens**2 / 10
    assert (
        linformer_map(q, k, mixture).shape == nystrom_map(q, k, landmarks=5).shape == (1, 2, tokens, tokens)
    )


def test_linformer_says_that_it_needs_the_number_of_tokens():
    with pytest.raises(InputError, match="Linformer needs num_tokens"):
        attention_module("linformer", 15, 3)


def test_a_longer_sequence_than_the_module_was_built_for_is_refused_with_the_size_to_build():
    module = attention_module("linformer", 6, 2, num_tokens=7)
    with pytest.raises(InputError, match=r"built for at most num_tokens=7 .* build it with num_tokens=9"):
        module(torch.randn(1, 9, 6))
