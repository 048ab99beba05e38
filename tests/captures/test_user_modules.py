"""Capture of modules nobody has heard of: functional attention, torch's own modules, wrappers, odd shapes."""

from __future__ import annotations

import copy
import itertools
import math
import warnings
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import workbench
from workbench.captures import (
    Adapter,
    attention_modules,
    attention_weights,
    capture,
)
from workbench.captures.family import Block as BlockReading
from workbench.captures.family import Family, Visit, class_path, register_family
from workbench.captures.layer_records import Call
from workbench.captures.layout import is_attention, looks_like_attention
from workbench.captures.recomputation import check_call
from workbench.core.errors import IncompleteCapture, InputError, UnknownName
from workbench.core.options import parse_numbers

BATCH, TOKENS, HEADS, HEAD_DIM = 2, 7, 3, 5
WIDTH = HEADS * HEAD_DIM


class Functional(nn.Module):
    """Attention through F.scaled_dot_product_attention, with whatever options."""

    def __init__(self, **options):
        super().__init__()
        self.to_qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.options = options

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2) for part in self.to_qkv(x).chunk(3, -1)
        )
        return x + F.scaled_dot_product_attention(q, k, v, **self.options).transpose(1, 2).flatten(2)


class Stack(nn.Module):
    def __init__(self, *layers: nn.Module):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Unseen(nn.Module):
    """Attention that no route sees, since it has no softmax."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        scores = (self.query(x) @ self.key(x).mT).square()
        return scores / scores.sum(dim=-1, keepdim=True) @ self.value(x)


@pytest.fixture
def x() -> Tensor:
    torch.manual_seed(0)
    return torch.randn(BATCH, TOKENS, WIDTH)


def test_functional_attention(x: Tensor):
    model = Stack(Functional(), Functional(is_causal=True), Functional(scale=0.3)).eval()
    captured = capture(model, x)
    assert [record.path for record in captured] == ["layers.0", "layers.1", "layers.2"]
    assert [record.scale for record in captured] == [HEAD_DIM**-0.5, HEAD_DIM**-0.5, 0.3]
    assert captured[0].mask is None
    assert captured[1].mask.dtype == torch.bool
    assert captured[1].attn.triu(1).abs().max() == 0
    assert torch.equal(captured.result, model(x))


def test_is_causal_counts_from_the_first_key(x: Tensor):
    class Cross(nn.Module):
        def forward(self, q: Tensor, k: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(q, k, k, is_causal=True)

    q, k = torch.randn(2, 3, 4, 5), torch.randn(2, 3, 6, 5)
    record = capture(Cross(), (q, k))[0]
    assert record.attn.shape == (2, 3, 4, 6)
    assert record.mask.sum() == 1 + 2 + 3 + 4


@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (4, 2, 3)], ids=str)
def test_any_number_of_leading_axes(lead: tuple[int, ...]):
    class Bare(nn.Module):
        def forward(self, q: Tensor) -> Tensor:
            mask = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).tril()
            return F.scaled_dot_product_attention(
                q, q, q, attn_mask=mask.expand(*lead, -1, -1) if lead else mask
            )

    q = torch.randn(*lead, 6, 5)
    record = capture(Bare(), q)[0]
    assert record.q.ndim == 4
    assert record.head_out.reshape(q.shape).equal(Bare()(q))


def test_keys_that_all_inputs_share_are_those_of_each():
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.keys = nn.Parameter(torch.randn(1, 7, 5))

        def forward(self, q: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(q, self.keys, self.keys)

    model, q = Shared(), torch.randn(3, 4, 5)
    record = capture(model, q)[0]
    assert record.k.shape == record.v.shape == (3, 1, 7, 5)
    for number in range(3):
        torch.testing.assert_close(record.attn[number, 0] @ record.v[number, 0], model(q)[number])


FOLDS: dict[str, Callable[[Tensor], Tensor]] = {
    "reshape": lambda x: x.reshape(-1, TOKENS, HEAD_DIM),
    "flatten": lambda x: x.flatten(0, 1),
    "heads first": lambda x: x.transpose(0, 1).reshape(-1, TOKENS, HEAD_DIM),
    "concatenated": lambda x: torch.cat(x.unbind(1)),
    "before one head": lambda x: x.reshape(-1, 1, TOKENS, HEAD_DIM),
}


class Folded(Functional):
    """Attention whose batch axis holds inputs and heads, in one order or the other."""

    def __init__(self, fold: Callable[[Tensor], Tensor], **options: Tensor | bool) -> None:
        super().__init__(**options)
        self.fold = fold

    def forward(self, x: Tensor) -> Tensor:
        heads = (
            part.unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2) for part in self.to_qkv(x).chunk(3, -1)
        )
        return F.scaled_dot_product_attention(*map(self.fold, heads), **self.options)


@pytest.mark.parametrize("declares", [True, False])
@pytest.mark.parametrize("mask", [None, "tensor", "causal"])
@pytest.mark.parametrize("fold", FOLDS.values(), ids=FOLDS)
def test_heads_folded_into_the_batch_are_heads(x: Tensor, fold, mask, declares):
    options: dict[str, Tensor | bool] = {"is_causal": True} if mask == "causal" else {}
    if mask == "tensor":
        options["attn_mask"] = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
    plain, folded = Functional(**options), Folded(fold, **options)
    folded.load_state_dict(plain.state_dict())
    if declares:
        folded.num_heads = HEADS
    record, expected = capture(folded, x)[0], capture(plain, x)[0]
    for site in ("q", "k", "v", "attn", "head_out"):
        torch.testing.assert_close(getattr(record, site), getattr(expected, site))
    assert len(workbench.analyze("attention-map", folded, x)["head"].dropna().unique()) == HEADS


def test_one_head_of_many_inputs_stays_one_head(x: Tensor):
    module = Folded(lambda part: part.transpose(1, 2).flatten(2))
    module.num_heads = HEADS
    assert capture(module, x)[0].q.shape == (BATCH, 1, TOKENS, WIDTH)


def test_grouped_queries_are_views():
    class Grouped(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    q, k, v = torch.randn(2, 6, 7, 5), torch.randn(2, 3, 7, 5), torch.randn(2, 3, 7, 4)
    record = capture(Grouped(), (q, k, v))[0]
    assert record.k.shape == (2, 3, 7, 5)
    gq, gk, gv = record.grouped()
    assert gq.shape == (2, 3, 2, 7, 5)
    assert gk.data_ptr() == record.k.data_ptr()
    assert gk.stride(2) == 0
    attn = torch.softmax(gq @ gk.mT * record.scale, dim=-1)
    torch.testing.assert_close(attn.flatten(1, 2), record.attn)
    torch.testing.assert_close((attn @ gv).flatten(1, 2), record.head_out)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
def test_multihead_attention(x: Tensor, need_weights: bool, batch_first: bool):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.mha = nn.MultiheadAttention(WIDTH, HEADS, batch_first=batch_first, add_bias_kv=True)

        def forward(self, x: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor | None]:
            future = torch.ones(x.shape[-2], x.shape[-2]).triu(1).bool() if batch_first else None
            return self.mha(x, x, x, key_padding_mask=hidden, attn_mask=future, need_weights=need_weights,
                            average_attn_weights=False)  # fmt: skip

    model = Model().eval()
    hidden = torch.zeros(BATCH, TOKENS, dtype=torch.bool)
    hidden[1, 5:] = True
    inputs = x if batch_first else x.transpose(0, 1)
    captured = capture(
        model, (inputs, hidden), sites=("input", "q", "k", "v", "scale", "mask", "attn", "head_out")
    )
    record = captured[0]
    assert record.path == "mha"
    assert record.q.shape == (BATCH, HEADS, TOKENS, HEAD_DIM)
    assert record.k.shape == (BATCH, HEADS, TOKENS + 1, HEAD_DIM)
    assert record.attn[1, :, :, 5:TOKENS].abs().max() == 0
    assert torch.equal(record.input, inputs)
    with torch.no_grad():
        expected, weights = model(inputs, hidden)
        projected = F.linear(x, model.mha.in_proj_weight, model.mha.in_proj_bias).chunk(3, -1)[0]
    torch.testing.assert_close(record.q, projected.unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2))
    torch.testing.assert_close(captured.result[0], expected, rtol=1e-6, atol=1e-6)
    if need_weights:
        assert torch.equal(captured.result[1], weights)
        torch.testing.assert_close(record.attn, weights, rtol=1e-5, atol=1e-6)
    else:
        assert captured.result[1] is None


def test_unbatched_multihead_attention(x: Tensor):
    mha = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).eval()
    record = capture(mha, (x[0], x[0], x[0]))[0]
    assert record.q.shape == (1, HEADS, TOKENS, HEAD_DIM)
    assert record.path == ""


@pytest.mark.parametrize("norm_first", [True, False])
def test_transformer_encoder_with_padding(x: Tensor, norm_first: bool):
    x = torch.cat(
        [x, x[..., :5]], dim=-1
    )  # 20 channels: the fast path, which leaves Python, wants even heads
    layer = nn.TransformerEncoderLayer(20, 4, 11, batch_first=True, norm_first=norm_first)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first).eval()
    hidden = torch.zeros(BATCH, TOKENS, dtype=torch.bool)
    hidden[1, 4:] = True
    batch = {"src": x, "src_key_padding_mask": hidden}
    with torch.no_grad():
        fast = model(**batch)
    captured = capture(
        model, batch, sites=("q", "k", "v", "mask", "attn", "head_out", "resid_mid", "resid_post")
    )
    assert [record.path for record in captured] == ["layers.0.self_attn", "layers.1.self_attn"]
    assert captured[1].attn[1, :, :, 4:].abs().max() == 0
    # with norms behind, the fast path packs the tokens and leaves zeros where the padding was
    assert (fast[hidden].abs().max() == 0) != norm_first
    rows = ~hidden if norm_first else slice(None)
    torch.testing.assert_close(captured.result[rows], fast[rows], rtol=1e-5, atol=1e-5)
    for record, block in zip(captured, model.layers, strict=True):
        with torch.no_grad():
            after = record.resid_mid
            if norm_first:
                rebuilt = after + block._ff_block(block.norm2(after))
            else:
                rebuilt = block.norm2(after + block._ff_block(after))
        torch.testing.assert_close(rebuilt, record.resid_post)


def test_attention_inside_vmap_is_refused(x: Tensor):
    class Mapped(nn.Module):
        def __init__(self, inner: Callable[[Tensor], Tensor]):
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            return torch.vmap(self.inner)(x)

    for inner in (
        lambda y: F.scaled_dot_product_attention(y, y, y),
        lambda y: (y @ y.mT).softmax(-1) @ y,
    ):
        with pytest.raises(InputError, match=r"inside torch\.vmap"):
            capture(Mapped(inner), x)


def test_modules_of_torchscript(x: Tensor):
    class Attend(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.softmax(x @ x.mT, dim=-1) @ x

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        plain, attends = torch.jit.script(nn.Linear(WIDTH, WIDTH)), torch.jit.script(Attend())
    assert [record.path for record in capture(Stack(Functional(), plain), x)] == ["layers.0"]
    with pytest.raises(InputError, match=r"layers\.1 is a ScriptModule"):
        capture(Stack(Functional(), attends), x)


def test_weights_that_are_offloaded(x: Tensor):
    accelerate = pytest.importorskip("accelerate", reason="offloads weights, and is an extra")
    model = Stack(Functional(), Functional()).eval()
    expected = capture(model, x)
    accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
    captured = capture(model, x)
    assert torch.equal(captured.result, expected.result)
    assert torch.equal(captured[1].q, expected[1].q)


def test_a_module_that_hands_on_its_input_has_attended_to_nothing(x: Tensor):
    class Idle(Unseen):
        def forward(self, x: Tensor) -> Tensor:
            return x

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(capture(Stack(Functional(), Idle()).eval(), x)) == 1


@pytest.mark.parametrize(("softmax_last", "attends"), [(False, True), (True, False)])
def test_attention_written_out_has_its_softmax_between_two_products(softmax_last: bool, attends: bool):
    class Between(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x @ x.mT).softmax(-1) @ x

    class After(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return ((x @ x.mT) @ x).softmax(-1)

    assert is_attention(After() if softmax_last else Between()) == attends


def test_deformable_attention_looks_like_attention():
    from transformers.models.d_fine.configuration_d_fine import DFineConfig
    from transformers.models.d_fine.modeling_d_fine import DFineMultiscaleDeformableAttention

    assert looks_like_attention(DFineMultiscaleDeformableAttention(DFineConfig()))


def test_transformer_decoder_reads_the_stream_after_each_attention(x: Tensor):
    model = nn.TransformerDecoder(nn.TransformerDecoderLayer(WIDTH, HEADS, 11, batch_first=True), 1).eval()
    memory = torch.randn(BATCH, 4, WIDTH)
    captured = capture(model, (x, memory), sites=("k", "resid_mid", "resid_post"))
    assert [record.path for record in captured] == ["layers.0.self_attn", "layers.0.multihead_attn"]
    assert captured[1].k.shape[2] == 4
    assert not torch.equal(captured[0].resid_mid, captured[1].resid_mid)
    assert torch.equal(captured[0].resid_post, captured[1].resid_post)


def test_a_module_called_twice_is_two_layers(x: Tensor):
    shared = Functional()
    captured = capture(Stack(shared, shared).eval(), x)
    assert [(record.index, record.path, record.call) for record in captured] == [
        (0, "layers.0", 0),
        (1, "layers.0", 1),
    ]
    assert not torch.equal(captured[0].q, captured[1].q)


def test_a_wrapped_library_model_is_captured():
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=50, hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=17
    )

    class Wrapper(nn.Module):  # as in sentence-transformers: the batch is one argument
        def __init__(self):
            super().__init__()
            self.auto_model = BertModel(config)

        def forward(self, ids: Tensor) -> Tensor:
            return self.auto_model(input_ids=ids).last_hidden_state.mean(1)

    captured = capture(Wrapper().eval(), torch.randint(0, 50, (2, 7)))
    assert [record.path for record in captured] == [
        f"auto_model.encoder.layer.{i}.attention.self" for i in range(2)
    ]


def test_an_unseen_module_of_a_users_model_is_named_in_a_warning(x: Tensor):
    model = Stack(Functional(), Unseen()).eval()
    with pytest.warns(UserWarning, match=r"layers\.1 \(Unseen\)"):
        captured = capture(model, x)
    assert len(captured) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(capture(model, x, check=False)) == 1


def test_no_attention_at_all(x: Tensor):
    with pytest.raises(
        IncompleteCapture, match=r"no attention was seen.*MultiheadAttention.*TalkingHeadAttn"
    ):
        capture(nn.Linear(WIDTH, 3), x)


@pytest.mark.usefixtures("families")
def test_a_module_that_does_something_else_with_its_operands_is_found_out(x: Tensor):
    class Wrong(Adapter):
        def read(self, visit: Visit):
            call = visit.calls[0]
            call.scale = 2 * call.scale
            return [call]

    register_family(Family(adapters={class_path(Functional): Wrong()}))
    for sites in (("q", "k", "v"), ("attn",)):
        with pytest.raises(IncompleteCapture, match=r"layer 0 .*differs from the captured output"):
            capture(Stack(Functional()).eval(), 3 * x, sites=sites)
    assert len(capture(Stack(Functional()).eval(), x, check=False)) == 1


@pytest.mark.usefixtures("families")
def test_a_single_wrong_row_is_found_out():
    class Model(nn.Module):
        def forward(self, q: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(q, q, q)

    class OneRow(Adapter):
        def read(self, visit: Visit):
            visit.calls[0].head_out[1, 2, 4, 3] += 0.01
            return visit.calls

    register_family(Family(adapters={class_path(Model): OneRow()}))
    with pytest.raises(IncompleteCapture, match="differs"):
        capture(Model(), torch.randn(2, 3, 7, 5), sites=("attn",))


def test_scores_so_large_that_rounding_shows_are_no_other_attention():
    """In float32 scores of 20 000 are known to a thousandth, and so is what a kernel makes of them."""
    q, k, v = (torch.randn(2, 1, 49, 64, generator=torch.Generator().manual_seed(n)) for n in range(3))
    q, k = 500 * q, k[..., :1, :] + 5e-4 * k  # large, and nearly the same for all keys
    exactly = attention_weights(q.double(), k.double(), 1.0) @ v.double()
    call = Call(q, k, v, 1.0, None, exactly.float())
    rounded = (attention_weights(q, k, 1.0) @ v - call.head_out).abs().amax() / call.head_out.abs().amax()
    assert rounded > 1e-4
    check_call(call, attention_weights(q, k, 1.0), "large")
    with pytest.raises(IncompleteCapture, match="computes something else"):
        check_call(replace(call, scale=0.8), attention_weights(q, k, 0.8), "another scale")


def test_a_fully_masked_row_is_zero():
    q = torch.randn(2, 3, 4, 5)
    mask = torch.ones(4, 4, dtype=torch.bool)
    mask[2] = False
    for kind in (mask, torch.zeros(4, 4).masked_fill(~mask, -math.inf)):
        attn = attention_weights(q, q, 1.0, kind)
        assert attn[:, :, 2].abs().max() == 0
        assert torch.isfinite(attn).all()

        class Masked(nn.Module):
            def __init__(self, kind: Tensor):
                super().__init__()
                self.kind = kind

            def forward(self, q: Tensor) -> Tensor:
                return F.scaled_dot_product_attention(q, q, q, attn_mask=self.kind)

        assert capture(Masked(kind), q)[0].head_out[:, :, 2].abs().max() == 0


def test_non_finite_values_name_layer_and_place(x: Tensor):
    model = Stack(Functional(), Functional()).eval()
    with torch.no_grad():
        model.layers[1].to_qkv.bias[2 * WIDTH + HEAD_DIM] = math.inf  # v of head 1
    with pytest.raises(
        InputError, match=r"layer 1 \(layers\.1\): v has 14 values .* input 0, head 1, token 0"
    ):
        capture(model, x, sites=("q",))
    assert not torch.isfinite(capture(model, x, check=False)[1].v).all()


def test_a_model_that_overwrites_its_operands_is_captured_before_it_does(x: Tensor):
    class InPlace(Functional):
        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (
                part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.to_qkv(x).chunk(3, -1)
            )
            out = F.scaled_dot_product_attention(q, k, v)
            q.zero_()
            return out.transpose(1, 2).flatten(2)

    record = capture(Stack(InPlace()).eval(), x)[0]
    assert record.q.abs().max() > 0
    torch.testing.assert_close(attention_weights(record.q, record.k, record.scale), record.attn)


def test_parameters_changed_afterwards_do_not_change_the_capture(x: Tensor):
    class Learned(nn.Module):
        def __init__(self):
            super().__init__()
            self.queries = nn.Parameter(torch.randn(1, 1, 4, WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(
                self.queries.expand(len(x), -1, -1, -1), x[:, None], x[:, None]
            )

    model = Learned()
    record = capture(model, x, sites=("q", "k"))[0]
    q, k = record.q.clone(), record.k.clone()
    with torch.no_grad():
        model.queries.zero_()
        x.zero_()
    assert torch.equal(record.q, q)
    assert torch.equal(record.k, k)


def test_gradients_on_request(x: Tensor):
    model = Stack(Functional()).eval()
    assert not capture(model, x)[0].attn.requires_grad
    attn = capture(model, x, grad=True)[0].attn
    attn.square().sum().backward()
    assert model.layers[0].to_qkv.weight.grad.abs().max() > 0


def test_capture_inside_inference_mode_gives_ordinary_tensors(x: Tensor):
    model = Stack(Functional()).eval()
    with torch.inference_mode():
        record = capture(model, x)[0]
    assert not record.q.is_inference()
    record.q.add_(1)


class Written(Functional):
    """The same attention in plain operations."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2) for part in self.to_qkv(x).chunk(3, -1)
        )
        return x + ((q @ k.mT / 3).softmax(dim=-1) @ v).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("attention", [Functional, Written])
def test_a_model_that_enters_inference_mode_itself_gives_ordinary_tensors(
    x: Tensor, attention: type[nn.Module]
):
    model = Stack(attention()).eval()
    expected = capture(model, x)
    model.forward = torch.inference_mode()(model.forward)  # as models that follow objects through a video do
    captured = capture(model, x)
    for one, other in zip(captured, expected, strict=True):
        assert all(torch.equal(getattr(one, site), getattr(other, site)) for site in ("q", "k", "v", "attn"))
        assert not any(getattr(one, site).is_inference() for site in ("q", "k", "v", "attn", "head_out"))


def test_training_mode_is_the_callers(x: Tensor):
    model = Stack(nn.TransformerEncoderLayer(WIDTH, HEADS, 11, 0.5, batch_first=True)).train()
    state = copy.deepcopy(torch.get_rng_state())
    expected = model(x)
    torch.set_rng_state(state)
    captured = capture(model, x)  # dropout falls as it would have
    assert model.training
    torch.testing.assert_close(captured.result, expected)


def test_compiled_wrappers_are_seen_through(x: Tensor):
    model = Stack(Functional()).eval()
    assert len(capture(torch.compile(model), x)) == 1
    model.layers[0].compile()
    assert capture(model, x)[0].path == "layers.0"


# Choosing layers and sites -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "got"),
    [
        (None, [0, 1, 2, 3]),
        (-1, [3]),
        ([0, -2], [0, 2]),
        ("1-2", [1, 2]),
        ("0,2-3", [0, 2, 3]),
        ("-2--1", [2, 3]),
    ],
)
def test_layers(x: Tensor, asked, got: list[int]):
    captured = capture(Stack(*(Functional() for _ in range(4))).eval(), x, layers=asked, sites=("q",))
    assert [record.index for record in captured] == got
    assert captured[got[-1]] is captured.layers[-1]


@pytest.mark.parametrize("asked", [4, -5, "1-7"])
def test_layers_outside_the_range(x: Tensor, asked):
    with pytest.raises(InputError, match="layers are 0 to 3"):
        capture(Stack(*(Functional() for _ in range(4))).eval(), x, layers=asked)


@pytest.mark.parametrize("asked", ["", "a", "3-1", [], [1.5], [True], "1-", "-1-2"])
def test_unreadable_layers(asked):
    with pytest.raises(InputError):
        parse_numbers("layer", asked)


def test_a_layer_that_was_not_captured(x: Tensor):
    captured = capture(Stack(*(Functional() for _ in range(4))).eval(), x, layers="0-2")
    with pytest.raises(IndexError, match="holds layers 0-2"):
        captured[3]


def test_unknown_site(x: Tensor):
    with pytest.raises(UnknownName, match=r"did you mean 'resid_post' or"):
        capture(Stack(Functional()), x, sites=("resid_pst",))


def test_sites_not_asked_for_are_none(x: Tensor):
    record = capture(Stack(Functional()).eval(), x, sites=("v", "attn"))[0]
    assert record.v is not None
    assert record.attn is not None
    for site in ("input", "q", "k", "scale", "mask", "head_out", "resid_mid", "resid_post"):
        assert getattr(record, site) is None


@pytest.mark.usefixtures("families")
def test_an_unknown_block_is_an_error_until_it_is_declared(x: Tensor):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.mix, self.second = Functional(), nn.LayerNorm(WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            x = self.mix(x)
            return x + self.second(x)

    model = Stack(Block(), Block()).eval()
    with pytest.raises(InputError, match=r"Block holds the residual stream .*captures.Block"):
        capture(model, x, sites=("resid_mid",))
    assert len(capture(model, x, sites=("resid_post",))) == 2
    register_family(Family(blocks={class_path(Block): BlockReading("second.input")}))
    for record, block in zip(capture(model, x, sites=("resid_mid", "resid_post")), model.layers, strict=True):
        with torch.no_grad():
            torch.testing.assert_close(record.resid_mid + block.second(record.resid_mid), record.resid_post)


def test_attention_modules_are_found_without_running():
    model = Stack(Functional(), Unseen(), nn.MultiheadAttention(WIDTH, HEADS))
    assert [path for path, _ in attention_modules(model)] == ["layers.0", "layers.2"]


def test_an_empty_batch_is_refused_and_one_the_model_refuses_is_told_with_the_model_s_own_error():
    model = Stack(Functional(), Functional())
    with pytest.raises(InputError, match=rf"the batch is empty: \(0, 5, {WIDTH}\)"):
        capture(model, torch.randn(0, 5, WIDTH))
    with pytest.raises(RuntimeError) as caught:
        capture(model, torch.randn(2, 5, WIDTH + 1))
    assert caught.value.__notes__ == [f"Stack was given: torch.float32 (2, 5, {WIDTH + 1})"]


# Memory --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sites", [("q",), ("q", "k"), ("q", "k", "v"), ("v", "mask"), ("resid_post", "head_out")]
)
def test_no_more_memory_is_held_than_was_asked_for(sites):
    import timm

    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=24, num_heads=4, depth=3
    ).eval()
    captured = capture(model, torch.randn(5, 3, 32, 32), layers=[0, 2], sites=sites)
    tensors = [value for record in captured for site in sites if (value := getattr(record, site)) is not None]
    held = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    assert sum(held.values()) == sum(t.numel() * t.element_size() for t in tensors)


def test_attention_that_is_there_under_two_names_is_found_once():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.MultiheadAttention(12, 3, batch_first=True)
            self.again = self.first

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.again(x, x, x, need_weights=False)[0]

    captured = capture(Twice().eval(), torch.randn(2, 5, 12))
    assert [(record.path, record.call) for record in captured] == [("first", 0)]


def test_what_runs_otherwise_than_by_itself_is_said():
    layer = nn.TransformerEncoderLayer(12, 2, 24, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    x = torch.randn(2, 5, 12)
    (note,) = capture(encoder.eval(), x).notes
    assert "fast path" in note
    assert "was off during the capture" in note
    assert capture(encoder.train(), x).notes == []  # which has none
    assert capture(encoder.eval(), x, grad=True).notes == []  # nor has one whose weights are to get gradients
    odd = nn.TransformerEncoderLayer(12, 3, 24, batch_first=True).eval()
    assert capture(odd, x).notes == []  # nor an odd number of heads
    crossed = nn.MultiheadAttention(12, 2, batch_first=True).eval()
    assert capture(crossed, (x, x + 1, x + 1)).notes == []  # nor attention to others
    assert "fast path" in capture(crossed, (x, x, x)).notes[0]
    attention = nn.MultiheadAttention(12, 3, batch_first=True).train()
    attention.compile(backend="eager")
    (note,) = capture(attention, (x, x, x)).notes
    assert note == "compiled code is not entered: the model ran as plain Python, which may round otherwise"


@pytest.mark.parametrize("kv_heads", [6, 2])
def test_weights_computed_an_input_at_a_time_are_the_same_bit_for_bit(kv_heads: int, monkeypatch):
    q, k = torch.randn(3, 6, 9, 4), torch.randn(3, kv_heads, 9, 4)
    causal = torch.ones(1, 1, 9, 9, dtype=torch.bool).tril()
    shown = torch.rand(3, 1, 1, 9) > 0.3
    shown[0] = False
    masks = [None, causal, shown, shown & causal, torch.randn(1, 6, 9, 9), torch.zeros(3, 1, 1, 9)]
    masks.append(masks[-1].masked_fill(~shown, -math.inf))
    for mask, scale in itertools.product(masks, (0.5, torch.rand(6, 1, 1))):
        at_once = attention_weights(q, k, scale, mask)
        with monkeypatch.context() as patch:
            patch.setattr("workbench.captures.recomputation._CACHED_SCORES", 1)
            assert torch.equal(attention_weights(q, k, scale, mask), at_once)
