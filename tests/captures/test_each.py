"""Layers handed over while the model runs: the same ones, complete, in order, and none held longer than needed."""

from __future__ import annotations

import math
import warnings
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.captures.families import FAMILIES, Family
from tests.captures.test_user_modules import HEADS, WIDTH, Functional, Stack, Unseen, x
from workbench.captures import DEFAULT_SITES, LayerRecord, TokenInfo, capture
from workbench.captures.routes import _Watch
from workbench.core.errors import IncompleteCapture, InputError

__all__ = ["x"]  # the fixture


def handed(model: nn.Module, batch: object, **options) -> list[LayerRecord]:
    records: list[LayerRecord] = []
    whole = capture(model, batch, each=lambda record, tokens: records.append(record), **options)
    assert len(whole) == 0
    return records


def same(record: LayerRecord, other: LayerRecord) -> bool:
    values = [({**vars(one), **one.extra} | {"extra": None, "origin": None}) for one in (record, other)]
    return values[0].keys() == values[1].keys() and all(
        torch.equal(value, values[1][name]) if isinstance(value, Tensor) else value == values[1][name]
        for name, value in values[0].items()
    )


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_layers_are_those_of_a_capture(family: Family):
    model, batch = family.build(), family.batch()
    sites = (*DEFAULT_SITES, "input", "resid_post")
    kept = capture(model, batch, sites=sites)
    given: list[tuple[LayerRecord, TokenInfo]] = []
    streamed = capture(model, batch, sites=sites, each=lambda *layer: given.append(layer))
    assert [record.index for record, _ in given] == list(range(family.layers))
    assert all(same(record, kept[record.index]) for record, _ in given)
    for tokens in (streamed.tokens, *(tokens for _, tokens in given)):
        assert tokens.kinds == kept.tokens.kinds
        assert torch.equal(tokens.mask, kept.tokens.mask)


@pytest.mark.parametrize("sites", [("k", "attn"), ("k", "attn", "resid_post")])
@pytest.mark.parametrize("name", ["vit", "swin", "xcit", "tost", "cait", "bert", "gemma2"])
def test_no_layer_is_held_once_the_next_one_comes(name: str, sites: tuple[str, ...]):
    family = FAMILIES[name]
    alive: list[weakref.ref[Tensor]] = []
    counts: list[int] = []

    def look(record: LayerRecord, tokens: TokenInfo) -> None:
        counts.append(sum(value() is not None for value in alive))
        # of the hidden states nothing is said: the model reads them in the next block
        alive.extend(weakref.ref(value) for value in (record.k, record.attn) if value is not None)

    capture(family.build(), family.batch(), sites=sites, each=look)
    assert len(counts) == family.layers
    assert counts == [0] * family.layers


def test_chosen_layers_alone_are_handed_over(x: Tensor):
    model = Stack(*(Functional() for _ in range(4))).eval()
    assert [record.index for record in handed(model, x, layers=[3, 1])] == [1, 3]
    assert [record.index for record in handed(model, x, layers=[-1, 0])] == [0, 3]
    with pytest.raises(InputError, match="layer 4"):
        handed(model, x, layers=[0, 4])


@pytest.mark.parametrize("sites", [("q",), ("q", "resid_post")])
def test_a_model_that_overwrites_its_operands_hands_each_layer_over_once(x: Tensor, sites: tuple[str, ...]):
    class InPlace(Functional):
        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (
                part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.to_qkv(x).chunk(3, -1)
            )
            out = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
            q.zero_()
            return x + out

    class Block(nn.Module):
        def __init__(self, attention: nn.Module):
            super().__init__()
            self.attention = attention

        def forward(self, x: Tensor) -> Tensor:
            return self.attention(x)

    model = Stack(*map(Block, (Functional(), InPlace(), InPlace()))).eval()
    kept = capture(model, x, sites=sites)
    queries: dict[int, Tensor] = {}

    def take(record: LayerRecord, tokens: TokenInfo) -> None:
        assert record.index not in queries
        queries[record.index] = record.q.clone()

    capture(model, x, sites=sites, each=take)
    assert [*queries] == [0, 1, 2]
    assert all(torch.equal(query, kept[number].q) for number, query in queries.items())
    assert all(query.abs().max() > 0 for query in queries.values())


def test_layers_that_are_not_finite_are_kept_where_asked_and_handed_over_once(x: Tensor):
    model = Stack(*(Functional() for _ in range(3))).eval()
    with torch.no_grad():
        model.layers[1].to_qkv.bias[-1] = math.inf  # of v
    runs: list[int] = []
    model.register_forward_hook(lambda *_: runs.append(1))
    with pytest.raises(InputError, match=r"layer 1 \(layers\.1\): v has .* keep_nonfinite=True"):
        handed(model, x)
    assert runs == []
    records: list[LayerRecord] = []
    whole = capture(model, x, keep_nonfinite=True, each=lambda record, tokens: records.append(record))
    assert [record.index for record in records] == [0, 1, 2]
    assert not torch.isfinite(records[1].v).all()
    assert runs == [1]
    (note,) = whole.notes
    assert note.startswith("captured without checks: Stack, layer 1")


class Catching(nn.Module):
    """A model that goes on where a part of it fails."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        try:
            return self.inner(x)
        except Exception:
            return x


def test_what_the_function_raises_comes_out_and_nothing_more_is_handed_over(x: Tensor):
    class Stop(Exception):
        pass

    seen: list[int] = []

    def stop(record: LayerRecord, tokens: TokenInfo) -> None:
        seen.append(record.index)
        if record.index == 1:
            raise Stop

    model = Stack(Functional(), Catching(Functional()), Functional()).eval()
    with pytest.raises(Stop):
        capture(model, x, each=stop)
    assert seen == [0, 1]
    assert not any(child._forward_hooks or child._forward_pre_hooks for child in model.modules())
    assert len(capture(model, x)) == 3


def test_attention_of_the_function_itself_is_no_layer(x: Tensor):
    other = Functional().eval()
    model = Stack(Functional(), Functional()).eval()
    numbers: list[int] = []

    def attend(record: LayerRecord, tokens: TokenInfo) -> None:
        other(x)
        model.layers[0](x)
        F.scaled_dot_product_attention(x, x, x)
        numbers.append(record.index)

    capture(model, x, each=attend)
    assert numbers == [0, 1]


def test_what_the_function_computes_passes_the_watch_by(x: Tensor, monkeypatch):
    watched: list[object] = []
    original = _Watch.__torch_function__

    def counting(self, func, types, args=(), kwargs=None):
        watched.append(func)
        return original(self, func, types, args, kwargs)

    def compute(record: LayerRecord, tokens: TokenInfo) -> None:
        before = len(watched)
        (record.q @ record.k.mT).double().softmax(-1)
        assert len(watched) == before

    monkeypatch.setattr(_Watch, "__torch_function__", counting)
    capture(Stack(Functional(), Functional()).eval(), x, each=compute)
    assert watched


def test_checks_and_adapters_pass_the_watch_by(monkeypatch):
    """Every operation that is watched is the model's, of modules with an adapter as well."""
    busy: list[bool] = []
    original = _Watch.__torch_function__

    def noting(self, func, types, args=(), kwargs=None):
        busy.append(self.observer.busy)
        return original(self, func, types, args, kwargs)

    monkeypatch.setattr(_Watch, "__torch_function__", noting)
    for name in ("gpt2", "cait"):
        family = FAMILIES[name]
        capture(family.build(), family.batch())
    assert len(busy) > 50
    assert not any(busy)


def test_attention_that_was_not_seen_is_still_told(x: Tensor):
    with pytest.warns(UserWarning, match=r"layers\.1 \(Unseen\)"):
        assert len(handed(Stack(Functional(), Unseen()).eval(), x)) == 1
    with pytest.raises(IncompleteCapture, match="no attention was seen"):
        handed(Stack(nn.Linear(WIDTH, WIDTH)).eval(), x)


def test_an_incomplete_layer_is_not_handed_over_on_the_way_out(x: Tensor):
    """What is wrong is said once: the function is not called with a layer that lacks what was asked for."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(InputError, match="no block is known"):
            capture(Stack(Functional()).eval(), x, sites=["resid_mid"], each=lambda layer, _: 1 / 0)
