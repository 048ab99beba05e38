"""Attention written out in plain operations: what models multiply is what is captured, and nothing else is."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tests.captures.families import call, first_output, hf_model, timm_model, words
from workbench.captures import (
    Capture,
    Family,
    LayerRecord,
    attention_geometry,
    attention_modules,
    attention_output,
    attention_weights,
    capture,
    register_family,
)
from workbench.captures.family import Block as BlockReading
from workbench.captures.family import class_path
from workbench.core.errors import IncompleteCapture, InputError

BATCH, TOKENS, HEADS, HEAD_DIM = 2, 7, 3, 5
WIDTH = HEADS * HEAD_DIM


class _Softmaxes(TorchFunctionMode):
    """Keeps the result of every softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.maps: list[Tensor] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func.__name__ == "softmax":
            self.maps.append(result.clone())
        return result


def softmaxes(model: nn.Module, batch: Any) -> list[Tensor]:
    fused = [m for m in model.modules() if getattr(m, "fused_attn", False)]
    for module in fused:
        module.fused_attn = False
    with _Softmaxes() as seen:
        call(model, batch)
    for module in fused:
        module.fused_attn = True
    return seen.maps


def check(model: nn.Module, batch: Any, layers: int) -> Capture:
    """A capture whose maps are the model's softmaxes, in order, and which leaves the model's output as it is."""
    before, maps = call(model, batch), softmaxes(model, batch)
    captured = capture(model, batch)
    assert torch.equal(first_output(captured.result), first_output(before))
    assert len(captured) == layers
    for record in captured:
        reproduces(record)
        alike = [m for m in maps if m.numel() == record.attn.numel()]
        assert any(torch.allclose(m.flatten(), record.attn.flatten(), atol=2e-5) for m in alike), record.path
    return captured


def reproduces(record: LayerRecord) -> None:
    rebuilt = attention_output(record.attn, record.v, record.kind)
    torch.testing.assert_close(rebuilt, record.head_out, rtol=1e-4, atol=1e-4)


def exact(record: LayerRecord) -> None:
    """The weights are softmax(scale · q kᵀ + mask) of what was captured."""
    own = attention_weights(record.q, record.k, record.scale, record.mask, record.kind)
    torch.testing.assert_close(own, record.attn, rtol=1e-5, atol=1e-6)


# Modules of one's own -------------------------------------------------------------------------------------


class Own(nn.Module):
    """Three projections of no telling name, and any function of q, k, v, (batch, head, token, head_dim)."""

    def __init__(self, attend: Callable[[Tensor, Tensor, Tensor], Tensor]):
        super().__init__()
        torch.manual_seed(1)
        self.one, self.two, self.three = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.attend = attend

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            2 * layer(x).unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)
            for layer in (self.one, self.two, self.three)
        )
        return x + self.attend(q, k, v).transpose(1, 2).flatten(2)


class Several(nn.Module):
    def __init__(self, *parts: nn.Module):
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x


SCALE = HEAD_DIM**-0.5
CAUSAL = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
BIAS = torch.randn(HEADS, TOKENS, TOKENS, generator=torch.Generator().manual_seed(3))


def nanogpt(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
    scores = scores.masked_fill(~CAUSAL, float("-inf"))
    return F.dropout(F.softmax(scores, dim=-1), 0.2, False) @ v


def einsums(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.einsum("bhid,bhjd->bhij", q, k) * SCALE + BIAS
    return torch.einsum("bhij,bhjd->bhid", scores.softmax(dim=-1, dtype=torch.float32), v)


def ellipses(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = SCALE * torch.einsum("...id,...jd->...ij", q, k)
    return torch.einsum("...ij,...jd->...id", torch.softmax(scores, -1), v)


def heads_behind(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    attn = nn.Softmax(dim=-1)(torch.einsum("bqhd,bkhd->bhqk", q, k) / HEAD_DIM**0.5)
    return torch.einsum("bhqk,bkhd->bqhd", attn, v).transpose(1, 2)


def merged_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.reshape(BATCH * HEADS, TOKENS, HEAD_DIM) for x in (q, k, v))
    bias = BIAS.repeat(BATCH, 1, 1)
    scores = torch.baddbmm(bias, q, k.transpose(1, 2), beta=0.5, alpha=SCALE)
    return torch.bmm(F.softmax(scores, -1), v).view(BATCH, HEADS, TOKENS, HEAD_DIM)


def heads_first(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (torch.cat(x.unbind(1), dim=0) for x in (q, k, v))
    attn = torch.softmax(q.bmm(k.mT), 2)
    return torch.stack(attn.bmm(v).split(BATCH), 1)


def values_first(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    attn = torch.softmax(torch.matmul(q, k.mT), dim=-1)
    return torch.matmul(v.mT, attn.permute(0, 1, 3, 2)).mT


def keys_first(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    attn = torch.softmax(k @ q.mT, dim=-2)
    return attn.mT @ v


def in_place(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT
    scores *= SCALE
    scores += BIAS
    scores -= scores.amax(-1, keepdim=True)
    scores.masked_fill_(~CAUSAL, torch.finfo(scores.dtype).min)
    return scores.softmax(-1) @ v


def grid_of_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A bias added in other axes, as vision transformers with relative positions do."""
    scores = (q @ k.mT).view(BATCH, HEADS, 1, TOKENS, TOKENS, 1)
    scores = scores + torch.einsum("bhnd,md->bhnm", q, BIAS[0, :, :HEAD_DIM])[:, :, None, :, :, None]
    return scores.view(BATCH, HEADS, TOKENS, TOKENS).softmax(-1) @ v


def one_key_head(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    attn = torch.einsum("bhid,bjd->bhij", q, k[:, 0]).softmax(-1)
    return torch.einsum("bhij,bjd->bhid", attn, v[:, 0])


def temperature(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    factor = torch.tensor([1.0, 5.0, 10.0]).view(HEADS, 1, 1).clamp(max=9.0)
    return ((q @ k.transpose(-2, -1)) * factor + BIAS).softmax(-1) @ v


def chosen(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.where(CAUSAL, q @ k.mT, torch.tensor(-1e9))
    return torch.clamp(scores, min=-1e10).softmax(-1).type_as(v) @ v


def best_keys(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Only the best keys are kept, and what a look at the weights says changes nothing."""
    scores = q @ k.mT
    scores = scores.masked_fill(scores < scores.topk(3, dim=-1).values[..., -1:], -math.inf)
    attn = scores.softmax(-1)
    return attn.masked_fill(attn.isnan() | (attn < 0), 0.0) @ v


@pytest.mark.parametrize(
    "attend",
    [best_keys, nanogpt, einsums, ellipses, heads_behind, merged_heads, heads_first, values_first, keys_first, in_place,
     grid_of_queries, one_key_head, temperature, chosen],
    ids=lambda attend: attend.__name__,
)  # fmt: skip
def test_ways_to_write_it(attend: Callable[..., Tensor]):
    model, x = Several(Own(attend), Own(attend)).eval(), torch.randn(BATCH, TOKENS, WIDTH)
    maps = softmaxes(model, x)
    captured = capture(model, x)
    assert torch.equal(captured.result, call(model, x))
    assert [record.path for record in captured] == ["parts.0", "parts.1"]
    for record, seen in zip(captured, maps, strict=True):
        with torch.no_grad():
            given = x if record.index == 0 else model.parts[0](x)
            q, k, v = (
                2 * layer(given).unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)
                for layer in (model.parts[record.index].one, model.parts[record.index].two,
                              model.parts[record.index].three)
            )  # fmt: skip
        assert record.attn.shape == (BATCH, HEADS, TOKENS, TOKENS)
        torch.testing.assert_close(record.q, F.normalize(q, dim=-1) if attend is temperature else q)
        if attend is not one_key_head:
            torch.testing.assert_close(record.v, v)
            torch.testing.assert_close(record.k, F.normalize(k, dim=-1) if attend is temperature else k)
        else:
            assert record.k.shape == record.v.shape == (BATCH, 1, TOKENS, HEAD_DIM)
        if attend is keys_first:
            seen = seen.mT
        if attend is heads_first:
            seen = seen.unflatten(0, (HEADS, BATCH)).transpose(0, 1)
        torch.testing.assert_close(record.attn, seen.reshape(record.attn.shape))
        exact(record)
        reproduces(record)


def test_scale_and_mask_are_told_apart():
    x = torch.randn(BATCH, TOKENS, WIDTH)

    def only(attend: Callable[..., Tensor]) -> LayerRecord:
        return capture(Own(attend).eval(), x)[0]

    assert only(nanogpt).scale == pytest.approx(SCALE)
    assert torch.equal(only(nanogpt).mask, CAUSAL[None, None])
    assert only(ellipses).mask is None
    assert torch.equal(only(einsums).mask, BIAS[None])
    torch.testing.assert_close(only(merged_heads).mask, 0.5 * BIAS[None].expand(BATCH, -1, -1, -1))
    assert only(temperature).scale.shape == (HEADS, 1, 1)
    assert only(temperature).scale.flatten().tolist() == [1.0, 5.0, 9.0]


def test_a_bool_that_is_added_to_the_scores_adds_one():
    def added(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT * SCALE + CAUSAL).softmax(-1) @ v

    record = check(Own(added).eval(), torch.randn(BATCH, TOKENS, WIDTH), 1)[0]
    torch.testing.assert_close(record.mask, CAUSAL[None, None].float())
    scores = SCALE * record.q @ record.k.mT
    torch.testing.assert_close(record.attn, (scores + CAUSAL.float()).softmax(-1))


def test_a_row_filled_with_large_numbers_is_that_of_the_model():
    def left_padded(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        hidden = ~CAUSAL | (torch.arange(TOKENS) < 2)
        return (q @ k.mT).masked_fill(hidden, torch.finfo(q.dtype).min).softmax(-1) @ v

    model, x = Own(left_padded).eval(), torch.randn(BATCH, TOKENS, WIDTH)
    record = check(model, x, 1)[0]
    torch.testing.assert_close(record.attn[:, :, 0], torch.full((BATCH, HEADS, TOKENS), 1 / TOKENS))


def soft_cap(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.tanh((q @ k.mT) * SCALE / 2.0) * 2.0
    return scores.masked_fill(~CAUSAL, -math.inf).softmax(-1) @ v


def attention_sink(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    sink = torch.tensor([0.1, 0.5, 2.0]).view(1, HEADS, 1, 1).expand(BATCH, -1, TOKENS, -1)
    return torch.cat([q @ k.mT, sink], dim=-1).softmax(-1)[..., :-1] @ v


def talking_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mix = BIAS[:, :HEADS, 0]
    scores = torch.einsum("bhij,hg->bgij", q @ k.mT, mix)
    return torch.einsum("bhij,hg->bgij", scores.softmax(-1), mix) @ v


class TalkingHeads(Own):
    def __init__(self) -> None:
        super().__init__(lambda q, k, v: self.mix(self.mix(q @ k.mT).softmax(-1)) @ v)
        self.linear = nn.Linear(HEADS, HEADS)

    def mix(self, maps: Tensor) -> Tensor:
        return self.linear(maps.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def test_weights_that_are_no_softmax_of_q_k_are_those_the_model_multiplied():
    x = torch.randn(BATCH, TOKENS, WIDTH)
    for model, sums in ((Own(soft_cap), True), (Own(attention_sink), False), (TalkingHeads(), False)):
        captured = capture(model.eval(), x)
        assert torch.equal(captured.result, call(model, x))
        assert captured[0].rows_sum_to_one == sums
        assert captured[0].attn.shape == (BATCH, HEADS, TOKENS, TOKENS)
        reproduces(captured[0])
    maps = softmaxes(Own(soft_cap), x)
    torch.testing.assert_close(capture(Own(soft_cap), x)[0].attn, maps[0])
    maps = softmaxes(Own(attention_sink), x)
    torch.testing.assert_close(capture(Own(attention_sink), x)[0].attn, maps[0][..., :-1])


def test_dropout_in_training_leaves_the_weights_before_it():
    def dropped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.dropout((q @ k.mT * SCALE).softmax(-1), 0.5, True) @ v

    model, x = Own(dropped).train(), torch.randn(BATCH, TOKENS, WIDTH)
    torch.manual_seed(5)
    with torch.no_grad():
        expected = model(x)
    torch.manual_seed(5)
    captured = capture(model, x)
    assert torch.equal(captured.result, expected)
    exact(captured[0])
    assert captured[0].attn.min() > 0


def test_gradients_flow_through_what_was_captured():
    model, x = Own(nanogpt).eval(), torch.randn(BATCH, TOKENS, WIDTH)
    record = capture(model, x, grad=True)[0]
    record.attn.square().sum().backward()
    assert model.one.weight.grad.abs().max() > 0


def test_channels_that_attend_to_channels():
    class Covariance(nn.Module):
        """Cross-covariance attention, written out."""

        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.temperature = nn.Linear(WIDTH, 3 * WIDTH), nn.Parameter(torch.rand(HEADS, 1, 1))

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, HEAD_DIM)).permute(2, 0, 3, 4, 1)
            q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
            return (((q @ k.mT) * self.temperature).softmax(-1) @ v).permute(0, 3, 1, 2).flatten(2)

    record = check(Covariance().eval(), torch.randn(BATCH, TOKENS, WIDTH), 1)[0]
    assert record.kind == "channel"
    assert record.q.shape == (BATCH, HEADS, TOKENS, HEAD_DIM)
    assert record.attn.shape == (BATCH, HEADS, HEAD_DIM, HEAD_DIM)
    assert record.scale.shape == (HEADS, 1, 1)
    exact(record)


# What closes the gaps -------------------------------------------------------------------------------------


class EitherWay(Own):
    """One module that runs its kernel or writes its attention out."""

    def __init__(self) -> None:
        super().__init__(lambda q, k, v: v)
        self.kernel = True

    def forward(self, x: Tensor) -> Tensor:
        self.attend = F.scaled_dot_product_attention if self.kernel else nanogpt
        self.kernel = not self.kernel
        return super().forward(x)


def test_one_module_called_once_each_way():
    shared = EitherWay().eval()
    captured = capture(Several(shared, shared), torch.randn(BATCH, TOKENS, WIDTH))
    assert [(record.path, record.call) for record in captured] == [("parts.0", 0), ("parts.0", 1)]
    assert captured[0].mask is None
    assert torch.equal(captured[1].mask, CAUSAL[None, None])


def test_kernel_and_written_out_in_one_module_and_attention_in_the_root():
    def both(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return nanogpt(q, k, F.scaled_dot_product_attention(q, k, v))

    captured = capture(Own(both).eval(), torch.randn(BATCH, TOKENS, WIDTH))
    assert [(record.path, record.call) for record in captured] == [("", 0), ("", 1)]
    torch.testing.assert_close(captured[1].v, captured[0].head_out)


def test_layers_are_counted_alike_whichever_are_asked_for():
    model, x = (
        Several(Own(nanogpt), Own(F.scaled_dot_product_attention), Own(soft_cap)).eval(),
        torch.randn(2, 7, 15),
    )
    everything = capture(model, x)
    for number in range(3):
        record = capture(model, x, layers=number)[number]
        assert record.path == f"parts.{number}"
        assert torch.equal(record.attn, everything[number].attn)


def factorised(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return q @ (k.mT.softmax(-1) @ v)


def of_two_products(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.cat([q @ k.mT, q @ v.mT], -1).softmax(-1)[..., :TOKENS] @ v


def of_two_softmaxes(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ((q @ k.mT).softmax(-1) - 0.5 * (k @ q.mT).softmax(-1)) @ v


def weights_of_weights(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ((q @ k.mT).softmax(-1) @ (k @ q.mT).softmax(-1)) @ v


def overwritten(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT
    k.zero_()
    return scores.softmax(-1) @ v


@pytest.mark.parametrize(
    ("attend", "why"),
    [
        (factorised, "no product of queries and keys"),
        (of_two_products, "joined of several products"),
        (of_two_softmaxes, "two softmaxes are combined"),
        (weights_of_weights, "multiplied with weights"),
        (overwritten, "overwritten"),
    ],
)
def test_a_softmax_in_no_record_is_a_gap_that_names_its_module(attend: Callable[..., Tensor], why: str):
    x = torch.randn(BATCH, TOKENS, WIDTH)
    with pytest.raises(IncompleteCapture, match=rf"no attention was seen.*the model \(Own: .*{why}"):
        capture(Own(attend).eval(), x)
    model = Several(Own(nanogpt), Own(attend)).eval()
    with pytest.warns(UserWarning, match=rf"1 attention calls.*parts\.1 \(Own: .*{why}"):
        assert len(capture(model, x)) == 1


def test_a_gap_in_a_module_of_a_library_is_an_error():
    from timm.layers import Attention

    class Differential(Attention):
        __module__ = Attention.__module__

        def forward(self, x: Tensor, **_: Any) -> Tensor:
            return of_two_softmaxes(x, x.roll(1, 1), x)

    model = Several(Own(nanogpt), Differential(WIDTH, HEADS)).eval()
    with pytest.raises(
        IncompleteCapture, match=r"1 attention calls.*parts\.1 \(Diff.*two softmaxes are combined"
    ):
        capture(model, torch.randn(BATCH, TOKENS, WIDTH))


def test_a_module_under_two_names_is_found_once():
    model = Several(Own(nanogpt)).eval()
    model.again = model.parts[0]
    captured = capture(model, torch.randn(BATCH, TOKENS, WIDTH))
    assert [(record.index, record.path) for record in captured] == [(0, "parts.0")]
    assert captured.not_run == []


def test_products_that_are_no_attention_are_no_layers():
    class Contrast(nn.Module):
        """A text and an image tower whose tokens are compared, classified and retrieved."""

        def __init__(self) -> None:
            super().__init__()
            self.tower, self.classes = Own(nanogpt), nn.Parameter(torch.randn(WIDTH, 4))

        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            pooled = self.tower(x).mean(1)
            logits = pooled @ pooled.mT / 0.07  # as CLIP's
            nearest = (pooled @ x.flatten(0, 1).mT).softmax(-1).topk(2).indices
            classes = (x @ self.classes).softmax(-1) @ self.classes.mT
            gram = (x.mT @ x) @ x.mT
            slots = (x @ x.mT).softmax(dim=-2) @ x  # over the queries, not the keys
            return logits.softmax(-1), nearest, classes, gram, slots

    captured = capture(Contrast().eval(), torch.randn(BATCH, TOKENS, WIDTH))
    assert [record.path for record in captured] == ["tower"]


def test_no_tensor_of_a_layer_outlives_it():
    alive: list[tuple[str, weakref.ref[Tensor]]] = []

    def noting(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        assert not [name for name, tensor in alive if tensor() is not None]
        scores = q @ k.mT * SCALE + BIAS
        attn = scores.softmax(-1)
        alive.extend((name, weakref.ref(x)) for name, x in zip("qksa", (q, k, scores, attn), strict=True))
        return attn @ v

    model = Several(*(Own(noting) for _ in range(4))).eval()
    numbers: list[int] = []
    capture(model, torch.randn(BATCH, TOKENS, WIDTH), each=lambda layer, tokens: numbers.append(layer.index))
    assert numbers == [0, 1, 2, 3]
    assert len(alive) == 16


# Models of others -----------------------------------------------------------------------------------------

SMALL = {"img_size": 64}
TIMM: dict[str, tuple[dict[str, Any], int]] = {
    "levit_128s": (SMALL, 11),
    "swinv2_tiny_window8_256": (SMALL, 12),
    "tnt_s_legacy_patch16_224": (SMALL, 24),
    "mvitv2_tiny": (SMALL, 10),
    "efficientvit_m0": (SMALL, 24),
    "crossvit_tiny_240": ({}, 21),
}


@pytest.mark.parametrize("name", TIMM)
def test_timm(name: str):
    options, layers = TIMM[name]
    model = timm_model(name, **options)()
    size = options.get("img_size", model.default_cfg["input_size"][-1])
    check(model, torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(1)), layers)


def test_channel_attention_of_timm():
    record = check(timm_model("edgenext_xx_small")(), torch.randn(1, 3, 64, 64), 3)[0]
    assert record.kind == "channel"


GPT = {"use_cache": False, "vocab_size": 60, "n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 40}
BERT = {
    "vocab_size": 60, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 34,
    "max_position_embeddings": 40, "pad_token_id": 1,
}  # fmt: skip
DISENTANGLED = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "type_vocab_size": 2}
BART = {
    "vocab_size": 60, "d_model": 24, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 3,
    "decoder_attention_heads": 3, "encoder_ffn_dim": 34, "decoder_ffn_dim": 34, "max_position_embeddings": 40,
}  # fmt: skip
SPECIAL = {"use_cache": False, "bos_token_id": 0, "eos_token_id": 2}
TRANSFORMERS: dict[str, tuple[str, dict[str, Any], int]] = {
    "Bloom": ("BloomModel", {"vocab_size": 60, "hidden_size": 24, "n_layer": 2, "n_head": 3}, 2),
    "GPTJ": ("GPTJModel", GPT | SPECIAL | {"rotary_dim": 4}, 2),
    "CodeGen": ("CodeGenModel", GPT | SPECIAL | {"rotary_dim": 4, "n_head": 4, "n_embd": 32}, 2),
    "GPTNeo": (
        "GPTNeoModel",
        SPECIAL | {"vocab_size": 60, "hidden_size": 24, "num_layers": 2, "num_heads": 3, "window_size": 4,
         "max_position_embeddings": 40, "attention_types": [[["global", "local"], 1]]},
        2,
    ),
    "OpenAIGPT": ("OpenAIGPTModel", GPT, 2),
    "Mpt": ("MptModel", {"vocab_size": 60, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 40}, 2),
    "MPNet": ("MPNetModel", BERT, 2),
    "RoFormer": ("RoFormerModel", BERT, 2),
    "Tapas": ("TapasModel", BERT | {"type_vocab_sizes": [3, 9, 9, 2, 9, 9, 9]}, 2),
    "Deberta": ("DebertaModel", BERT | DISENTANGLED, 2),
    "DebertaV2": ("DebertaV2Model", BERT | DISENTANGLED, 2),
    "XLNet": ("XLNetModel", {"vocab_size": 60, "d_model": 24, "n_layer": 2, "n_head": 3, "d_inner": 34}, 2),
    "XLM": ("XLMModel", {"vocab_size": 60, "emb_dim": 24, "n_layers": 2, "n_heads": 3}, 2),
    "XGLM": (
        "XGLMModel",
        {"vocab_size": 60, "d_model": 24, "num_layers": 2, "attention_heads": 3, "ffn_dim": 34,
         "max_position_embeddings": 40},
        2,
    ),
    "Mvp": ("MvpModel", BART, 3),
}  # fmt: skip


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformers_words(name: str):
    model, options, layers = TRANSFORMERS[name]
    built = hf_model(model, f"{name}Config", **options)()
    captured = check(built, words(), layers)
    own = built.base_model(**words(), output_attentions=True, return_dict=True)
    maps = [m for key in ("encoder_attentions", "decoder_attentions", "cross_attentions", "attentions")
            for m in own.get(key) or ()]  # fmt: skip
    assert len(maps) == layers
    for record, seen in zip(captured, maps, strict=True):
        assert record.attn.shape == seen.shape
        torch.testing.assert_close(record.attn, seen, rtol=1e-4, atol=2e-5)
        exact(record)


SWIN = {
    "image_size": 32,
    "patch_size": 4,
    "embed_dim": 12,
    "depths": [2, 1],
    "num_heads": [2, 3],
    "window_size": 4,
}
IMAGES: dict[str, tuple[str, dict[str, Any], int]] = {
    "Swinv2": ("Swinv2Model", SWIN, 3),
    "VitDet": (
        "VitDetModel",
        {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "image_size": 32, "patch_size": 8,
         "pretrain_image_size": 32, "window_size": 2, "window_block_indices": [0],
         "use_relative_position_embeddings": True},
        2,
    ),
    "ImageGPT": ("ImageGPTModel", GPT, 2),
}  # fmt: skip


@pytest.mark.parametrize("name", IMAGES)
def test_transformers_images(name: str):
    model, options, layers = IMAGES[name]
    batch = words()["input_ids"] if name == "ImageGPT" else torch.randn(2, 3, 32, 32)
    for record in check(hf_model(model, f"{name}Config", **options)(), batch, layers):
        exact(record)


def test_the_batch_itself_as_queries_keys_and_values():
    class Bare(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.softmax(x @ x.mT, dim=-1) @ x

    x = torch.randn(BATCH, TOKENS, WIDTH)
    record = capture(Bare(), x)[0]
    assert record.q[:, 0].equal(x)
    assert record.k[:, 0].equal(x)
    assert record.v[:, 0].equal(x)
    exact(record)


def test_what_is_known_of_attention_written_out_without_running_it():
    model = hf_model("GPTJModel", "GPTJConfig", **GPT | SPECIAL | {"rotary_dim": 4})()
    assert [path for path, _ in attention_modules(model)] == ["h.0.attn", "h.1.attn"]
    assert attention_geometry(model) == (2, 3, 8)
    assert capture(model, words(), sites=("resid_pre",))[0].resid_pre.shape == (3, 11, 24)
    assert attention_modules(timm_model("resnet18")()) == []


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.norm2, self.mlp = Inline(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        return x + self.mlp(self.norm2(x))


class Inline(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return (q @ k.mT).softmax(-1) @ v


@pytest.mark.usefixtures("families")
def test_the_residual_stream_around_attention_written_out():
    model, x = Several(Block(), Block()).eval(), torch.randn(BATCH, TOKENS, WIDTH)
    with pytest.raises(InputError, match=r"captures\.Block"):
        capture(model, x, sites=("resid_mid",))
    register_family(Family(blocks={class_path(Block): BlockReading("norm2.input")}))
    record = capture(model, x, sites=("resid_pre", "attn_out", "resid_mid"))[1]
    with torch.no_grad():
        torch.testing.assert_close(record.attn_out, model.parts[1].attention(record.resid_pre))
    torch.testing.assert_close(record.resid_mid, record.resid_pre + record.attn_out)


def test_a_package_rule_is_not_taken_for_blocks_with_attention_written_out():
    """The first GPT normalises after each half, and no site may be read as if it did so before."""
    model = hf_model("OpenAIGPTModel", "OpenAIGPTConfig", **GPT)()
    with pytest.raises(InputError, match=r"captures\.Block"):
        capture(model, words(), sites=("resid_mid",))


def test_sinks_that_transformers_put_into_the_output_alone():
    options = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "num_key_value_heads": 3}
    model = hf_model(
        "GraniteSWAModel", "GraniteSWAConfig", vocab_size=60, intermediate_size=34, pad_token_id=1, **options
    )()
    for block in model.layers:
        block.self_attn.sinks.data = torch.tensor([0.5, 1.0, 2.0])
    plain = softmaxes(model, words())
    for record, without in zip(capture(model, words()), plain, strict=True):
        assert not record.rows_sum_to_one
        reproduces(record)
        share = record.attn.sum(-1, keepdim=True)
        assert share.max() < 1
        torch.testing.assert_close(record.attn / share, without, rtol=1e-4, atol=1e-5)
