"""``capture(…, explicit=True)``: one map is recorded and multiplied with the values."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.captures.families import FAMILIES, call, first_output
from workbench.captures import capture, routes
from workbench.core.errors import IncompleteCapture

every_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)


class Attention(nn.Module):
    """Attention of 3 query heads; with one head of keys, ``causal``, a mask, or nothing."""

    def __init__(self, form):
        super().__init__()
        self.form = form
        groups = 1 if form == "grouped" else 3
        self.sizes = [3 * 4, groups * 4, groups * 6]
        self.project = nn.Linear(5, sum(self.sizes))

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (-1, size)) for part, size in zip(
            self.project(x).split(self.sizes, -1), (4, 4, 6), strict=True
        ))  # fmt: skip
        mask = torch.arange(7) < torch.tensor([7, 4])[:, None] if self.form == "mask" else None
        return F.scaled_dot_product_attention(
            *(part.transpose(1, 2) for part in (q, k, v)),
            attn_mask=None if mask is None else mask[:, None, None],
            is_causal=self.form == "causal",
            enable_gqa=self.form == "grouped",
            scale=0.3,
        )


@pytest.mark.parametrize("form", ["plain", "grouped", "mask", "causal"])
def test_the_output_is_that_of_the_recorded_map(form):
    torch.manual_seed(0)
    model, x = Attention(form).double(), torch.randn(2, 7, 5, dtype=torch.float64)
    captured = capture(model, x, explicit=True)
    layer = captured[0]
    expected = torch.zeros(2, 3, 7, 6, dtype=torch.float64)
    for i in range(2):
        for head in range(3):
            for query in range(7):
                seen = [
                    key
                    for key in range(7)
                    if layer.mask is None or layer.mask.expand(2, 3, 7, 7)[i, head, query, key]
                ]
                group = 0 if form == "grouped" else head
                scores = torch.stack([0.3 * layer.q[i, head, query] @ layer.k[i, group, key] for key in seen])
                for weight, key in zip(scores.softmax(0), seen, strict=True):
                    expected[i, head, query] += weight * layer.v[i, group, key]
                    torch.testing.assert_close(layer.attn[i, head, query, key], weight, rtol=0, atol=1e-14)
    torch.testing.assert_close(captured.result, expected, rtol=0, atol=1e-14)
    torch.testing.assert_close(call(model, x), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize(("arguments", "inputs"), [({"explicit": True}, 1), ({}, 2)])
def test_the_kernel_runs_for_the_first_input_only(monkeypatch, arguments, inputs):
    sizes = []

    def kernel(query, *rest, **options):
        sizes.append(len(query))
        return F.scaled_dot_product_attention(query, *rest, **options)

    monkeypatch.setattr(routes, "_SDPA", kernel)
    monkeypatch.setattr(routes._Watch, "__torch_function__", _watched(F.scaled_dot_product_attention))
    capture(Attention("plain"), torch.randn(2, 7, 5), **arguments)
    assert sizes == [inputs]


def _watched(kernel):
    def watched(self, func, types, args=(), kwargs=None):
        return self.attend(*args, **(kwargs or {})) if func is kernel else func(*args, **(kwargs or {}))

    return watched


def test_a_kernel_that_computes_something_else_is_noticed(monkeypatch):
    kernel = F.scaled_dot_product_attention
    monkeypatch.setattr(routes, "_SDPA", lambda *args, **options: 1.01 * kernel(*args, **options))
    monkeypatch.setattr(routes._Watch, "__torch_function__", _watched(kernel))
    with pytest.raises(IncompleteCapture, match="differs from"):
        capture(Attention("plain"), torch.randn(2, 7, 5), explicit=True)


@every_family
def test_both_ways_record_the_same(family):
    model, batch = family.build(), family.batch()
    kernel, product = (capture(model, batch, explicit=explicit) for explicit in (False, True))
    torch.testing.assert_close(
        first_output(product.result), first_output(kernel.result), rtol=1e-3, atol=1e-4
    )
    for one, other in zip(kernel, product, strict=True):
        assert (one.attn is None) == (other.attn is None)
        if one.attn is not None:
            torch.testing.assert_close(other.attn, one.attn, rtol=1e-3, atol=1e-4)


@every_family
def test_the_default_leaves_the_output_bit_for_bit(family):
    model, batch = family.build(), family.batch()
    if routes.without_kernel(model.modules()):  # Swin and XCiT run with the kernel while they are captured
        pytest.skip("its kernel is off by default")
    if isinstance(batch, dict):
        batch = batch | ({"use_cache": False} if getattr(model.config, "use_cache", False) else {})
    assert torch.equal(first_output(capture(model, batch).result), first_output(call(model, batch)))


def test_an_eager_model_shares_its_own_map():
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=60, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=34,
        attn_implementation="eager",
    )  # fmt: skip
    model, ids = BertModel(config).eval(), torch.randint(5, 60, (2, 11))
    own = call(model, {"input_ids": ids, "output_attentions": True}).attentions
    for explicit in (None, True):
        captured = capture(model, ids, explicit=explicit)
        assert all(torch.equal(layer.attn, attn) for layer, attn in zip(captured, own, strict=True))


@pytest.mark.parametrize("arguments", [{"sites": ("q", "head_out")}, {"map_limit": 3 * 7 * 7 - 1}])
def test_a_layer_without_a_map_keeps_its_kernel(arguments):
    model, x = Attention("plain"), torch.randn(2, 7, 5)
    captured = capture(model, x, explicit=True, **arguments)
    assert captured[0].attn is None
    assert torch.equal(captured.result, call(model, x))


def test_the_product_has_the_gradients_of_the_kernel():
    model, x = Attention("causal").double(), torch.randn(2, 7, 5, dtype=torch.float64)
    gradients = []
    for explicit in (False, True):
        model.zero_grad()
        capture(model, x, grad=True, explicit=explicit).result.square().sum().backward()
        gradients.append(model.project.weight.grad.clone())
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-12)
