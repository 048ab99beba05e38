"""Sigmoid, softpick, sink logits, gates, differences, forgetting: each against a loop, and where it is softmax."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F

import workbench
from tests.attention.modules import (
    BATCH,
    HEADS,
    TOKENS,
    WIDTH,
    assert_causal,
    assert_padding_is_ignored,
    heads,
    perturb,
    randn,
)
from workbench.attention import attention_module, replace_attention
from workbench.attention.differential import differential_map, initial_weight
from workbench.attention.forgetting import forgetting_attention, forgetting_logits
from workbench.attention.gated import gated_attention
from workbench.attention.sigmoid import sigmoid_attention, sigmoid_map
from workbench.attention.sink_logits import sink_attention, sink_map
from workbench.attention.softmax import clip_queries_keys, softmax_attention
from workbench.attention.softpick import softpick_attention, softpick_map
from workbench.core.errors import InputError

NAMES = [
    "sigmoid",
    "softpick",
    "softmax-off-by-one",
    "softmax-learned-sink",
    "softmax-qk-norm",
    "gated",
    "differential",
]
Q, K, V, GATE = heads(1), heads(2), heads(3, width=4), heads(4, width=4)
SINK = torch.tensor([-1.0, 0.5, 2.0], dtype=torch.float64)
MASK = torch.rand(BATCH, HEADS, TOKENS, TOKENS, generator=torch.manual_seed(5)) < 0.6
MASK[0, 0, 2] = False  # a query that may attend to nothing


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-11, atol=1e-12)


def sigmoid_row(logits, sink):
    return [1 / (1 + len(logits) * math.exp(-x)) for x in logits]


def softpick_row(logits, sink):
    total = sum(abs(math.exp(x) - 1) for x in logits)
    return [max(math.exp(x) - 1, 0) / total for x in logits]


def sink_row(logits, sink):
    total = math.exp(sink) + sum(math.exp(x) for x in logits)
    return [math.exp(x) / total for x in logits]


@pytest.mark.parametrize(
    ("attend", "row"),
    [
        (sigmoid_attention, sigmoid_row),
        (softpick_attention, softpick_row),
        (lambda *qkv, **options: sink_attention(*qkv, SINK, **options), sink_row),
    ],
    ids=["sigmoid", "softpick", "sink"],
)
@pytest.mark.parametrize("causal", [False, True])
def test_rows_are_those_of_the_loop(attend, row, causal):
    expected = torch.zeros(BATCH, HEADS, TOKENS, 4, dtype=torch.float64)
    for b, h, i in itertools.product(range(BATCH), range(HEADS), range(TOKENS)):
        keys = [j for j in range(TOKENS) if MASK[b, h, i, j] and (j <= i or not causal)]
        weights = row([0.7 * float(Q[b, h, i] @ K[b, h, j]) for j in keys], float(SINK[h]))
        for j, weight in zip(keys, weights, strict=True):
            expected[b, h, i] += weight * V[b, h, j]
    close(attend(Q, K, V, scale=0.7, mask=MASK, causal=causal), expected)
    assert (attend(Q, K, V, mask=MASK)[0, 0, 2] == 0).all()


def test_rows_of_zero_logits():
    zero = torch.zeros_like(Q)
    close(sigmoid_map(zero, K), torch.full((BATCH, HEADS, TOKENS, TOKENS), 1 / (TOKENS + 1)).double())
    close(sink_map(zero, K), torch.full((BATCH, HEADS, TOKENS, TOKENS), 1 / (TOKENS + 1)).double())
    assert (softpick_map(zero, K) == 0).all()


def test_a_sink_of_minus_infinity_and_a_second_map_of_weight_zero_are_softmax():
    nothing = torch.full((HEADS,), -math.inf, dtype=torch.float64)
    expected = softmax_attention(Q, K, V, mask=MASK)
    close(sink_attention(Q, K, V, nothing, mask=MASK), expected)
    close(differential_map(Q, K, K, Q, weight=0.0, mask=MASK) @ V, expected)
    close(gated_attention(Q, K, V, torch.full_like(V, 60.0), mask=MASK), expected)
    no_forgetting = torch.zeros(BATCH, HEADS, TOKENS, dtype=torch.float64)
    close(
        forgetting_attention(Q, K, V, no_forgetting, mask=MASK),
        softmax_attention(Q, K, V, mask=MASK, causal=True),
    )


@pytest.mark.parametrize("size", [1e-9, 800.0])
def test_softpick_is_exact_for_small_logits_and_finite_for_large_ones(size):
    q, k = size * torch.tensor([[[[1.0]]]]).double(), torch.tensor([[[[2.0], [-1.0], [1.0]]]]).double()
    attn = softpick_map(q.expand(1, 1, 3, 1), k, scale=1.0)[0, 0, 0]
    expected = [2 / 4, 0, 1 / 4] if size < 1 else [1, 0, math.exp(-size)]
    torch.testing.assert_close(attn, torch.tensor(expected).double(), rtol=1e-8, atol=1e-300)


@pytest.mark.parametrize("attend", [sigmoid_attention, softpick_attention, sink_attention])
def test_gradients_are_those_of_finite_differences(attend):
    q, k, v = (tensor[:1, :1, :4].clone().requires_grad_() for tensor in (Q, K, V))
    assert torch.autograd.gradcheck(lambda *qkv: attend(*qkv, mask=MASK[1:, 1:2, :4, :4]), (q, k, v))


def test_a_gate_multiplies_every_feature():
    expected = softmax_attention(Q, K, V) / (1 + (-GATE).exp())
    close(gated_attention(Q, K, V, GATE), expected)


def test_forgetting_sums_the_gates_between_key_and_query():
    log_forget = F.logsigmoid(randn(BATCH, HEADS, TOKENS, seed=6))
    logits = forgetting_logits(log_forget)
    for i, j in itertools.product(range(TOKENS), repeat=2):
        expected = (
            log_forget[..., j + 1 : i + 1].sum(-1)
            if j <= i
            else torch.full((BATCH, HEADS), -math.inf).double()
        )
        close(logits[..., i, j], expected)
    scores = (Q @ K.mT / math.sqrt(WIDTH) + logits).softmax(-1)
    close(forgetting_attention(Q, K, V, log_forget), scores @ V)


def test_the_weight_of_the_second_map():
    module = attention_module("differential", 15, HEADS, layer=2).double()
    assert module.start == initial_weight(2) == 0.8 - 0.6 * math.exp(-0.6)
    a, b, c, d = module.weights
    close(module.weight, (a @ b).exp() - (c @ d).exp() + module.start)
    x = randn(BATCH, TOKENS, 15)
    output, inside = module.attend(x, observe=True)
    rows = inside["attn"].sum(-1)
    close(rows, torch.ones_like(rows) - module.weight)
    mixed = inside["attn"] @ inside["v"]
    length = (mixed.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    close(output, (1 - module.start) * mixed / length)


def test_normalised_queries_and_keys_bound_the_logits():
    module = attention_module("softmax-qk-norm", 15, HEADS).double()
    _, inside = module.attend(100 * randn(BATCH, TOKENS, 15), observe=True)
    logits = inside["scale"] * inside["q"] @ inside["k"].mT
    assert logits.abs().max() <= math.sqrt(WIDTH)


@pytest.mark.parametrize("bias", [True, False])
def test_clipped_heads_have_the_threshold_as_largest_logit_and_others_stay(bias):
    module = perturb(attention_module("softmax", 15, HEADS, qkv_bias=bias))
    x, before = 3 * randn(BATCH, TOKENS, 15), module.qkv.weight.clone()

    def largest():
        _, inside = module.attend(x, observe=True)
        return (inside["scale"] * inside["q"] @ inside["k"].mT).amax((0, 2, 3))

    logits = largest()
    threshold = float(logits.detach().median())
    clip_queries_keys(module, logits, threshold)
    close(largest(), logits.clamp_max(threshold))
    assert torch.equal(module.qkv.weight[30:], before[30:])  # values
    with pytest.raises(InputError, match="3 heads"):
        clip_queries_keys(module, logits[:2])


@pytest.mark.parametrize("name", [*NAMES, "forgetting"])
def test_modules_are_causal_and_ignore_padding(name):
    causal = {} if name == "forgetting" else {"causal": True}
    # the first token has one key: its weight does not depend on the logit where rows sum to one
    assert_causal(perturb(attention_module(name, 15, HEADS, **causal)))
    assert_padding_is_ignored(perturb(attention_module(name, 15, HEADS)))


@pytest.mark.parametrize("name", NAMES)
def test_a_capture_has_their_maps_and_outputs(name):
    model = workbench.load("bundled:digits-vit")
    batch = workbench.inputs("bundled:digits", model, n=2)
    replace_attention(model, name, layers=[1], seed=7)
    layer = workbench.capture(model, batch)[1]
    sums = layer.attn.sum(-1)
    if name in ("gated", "softmax-qk-norm"):
        torch.testing.assert_close(sums, torch.ones_like(sums))
    elif name != "sigmoid":
        assert (sums < 1).all()
    if name == "gated":
        torch.testing.assert_close(layer.attn @ layer.v * layer.gate, layer.head_out, rtol=1e-4, atol=1e-5)
    elif name != "differential":
        torch.testing.assert_close(layer.attn @ layer.v, layer.head_out, rtol=1e-4, atol=1e-5)
    frame = workbench.analyze("attention-patterns", model, batch)
    assert set(frame["layer"]) >= {1}
