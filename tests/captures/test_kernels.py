"""Kernels with masks of their own: FlashAttention, packed sequences, FlexAttention.

FlashAttention runs on a GPU alone; a loop over queries stands in for it under its name, with its arguments.
"""

from __future__ import annotations

import math
import sys
import types
from collections.abc import Callable, Generator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from tests.captures.families import call, first_output, hf_model, words
from tests.captures.test_mixers import BASE, EXPERTS, LATENT
from workbench.captures import Capture, LayerRecord, attention_modules, attention_weights, capture
from workbench.captures.implicit_masks import allowed, in_packed_rows
from workbench.captures.recomputation import attention_output
from workbench.captures.routes import _flash_mask
from workbench.core.errors import IncompleteCapture

BATCH, TOKENS, HEADS, KV_HEADS, HEAD_DIM = 2, 7, 4, 2, 5


def flash_attn_func(
    q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
    window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0, alibi_slopes: Tensor | None = None,
    deterministic: bool = False, return_attn_probs: bool = False, s_aux: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """(batch, token, head, head_dim), query by query as its documentation says: the last query sees the last key."""
    queries, keys = q.shape[1], k.shape[1]
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    output = torch.zeros(*q.shape[:-1], v.shape[-1])
    for b, i, h in torch.cartesian_prod(*(torch.arange(size) for size in q.shape[:3])).tolist():
        place, group = i + keys - queries, h // (q.shape[2] // k.shape[2])
        left, right = window_size[0], 0 if causal else window_size[1]
        seen = [
            j for j in range(keys)
            if (right < 0 or j <= place + right) and (left < 0 or j >= place - left)
        ]  # fmt: skip
        if not seen:
            continue
        scores = torch.stack([q[b, i, h] @ k[b, j, group] * scale for j in seen])
        scores = softcap * torch.tanh(scores / softcap) if softcap else scores
        if alibi_slopes is not None:
            scores = scores - alibi_slopes[h] * torch.tensor([abs(place - j) for j in seen])
        sink = torch.tensor(0.0) if s_aux is None else s_aux[h].exp()
        weights = scores.exp() / (scores.exp().sum() + sink)
        output[b, i, h] = weights @ v[b, seen, group]
    return output


def flash_attn_varlen_func(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
    window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0, alibi_slopes: Tensor | None = None,
    block_table: Tensor | None = None, s_aux: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """(token, head, head_dim) of sequences one after the other."""
    parts = []
    for number in range(len(cu_seqlens_q) - 1):
        rows = slice(int(cu_seqlens_q[number]), int(cu_seqlens_q[number + 1]))
        columns = slice(int(cu_seqlens_k[number]), int(cu_seqlens_k[number + 1]))
        parts.append(
            flash_attn_func(
                q[None, rows], k[None, columns], v[None, columns], softmax_scale=softmax_scale, causal=causal,
                window_size=window_size, softcap=softcap, alibi_slopes=alibi_slopes, s_aux=s_aux,
            )[0]
        )  # fmt: skip
    return torch.cat(parts)


# Through transformers -------------------------------------------------------------------------------------


@pytest.fixture
def flash_in_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers.modeling_flash_attention_utils as utils

    monkeypatch.setattr(utils, "_loaded_implementation", "flash_attention_2")
    monkeypatch.setattr(utils, "_flash_fn", flash_attn_func)
    monkeypatch.setattr(utils, "_flash_varlen_fn", flash_attn_varlen_func)
    monkeypatch.setattr(utils, "_pad_fn", utils._pad_input)
    monkeypatch.setattr(utils, "_unpad_fn", utils._unpad_input)
    process = utils._lazy_define_process_function(flash_attn_varlen_func)
    monkeypatch.setattr(utils, "_process_flash_kwargs_fn", process)
    monkeypatch.setattr(utils, "_process_with_kvcache_kwargs_fn", dict)


TWO = {"num_hidden_layers": 2}
SLIDING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4}
PACKED: dict[str, Any] = {
    "input_ids": torch.arange(3, 14)[None],
    "position_ids": torch.tensor([[0, 1, 2, 3, 0, 1, 2, 0, 1, 2, 3]]),
    "use_cache": False,  # with a cache transformers takes them for one sequence
}
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Tensor]]] = {
    "causal": ("Llama", BASE | TWO, {"input_ids": words()["input_ids"]}),
    "padded": ("Llama", BASE | TWO, words()),
    "packed": ("Llama", BASE | TWO, PACKED),
    "window": ("Mistral", BASE | TWO | {"sliding_window": 4}, words()),
    "soft cap": ("Gemma2", BASE | TWO | SLIDING | {"query_pre_attn_scalar": 8, "attn_logit_softcapping": 2.0}, words()),
    "sinks": ("GptOss", BASE | TWO | SLIDING | EXPERTS, {"input_ids": words()["input_ids"]}),
    "bidirectional": ("Bert", BASE | TWO, words()),
    "latent": ("DeepseekV3", BASE | TWO | EXPERTS | LATENT, words()),
}  # fmt: skip


def eager_maps(model: nn.Module, batch: dict[str, Tensor]) -> list[Tensor]:
    model.set_attn_implementation("eager")
    with torch.no_grad():
        return list(model(**batch, output_attentions=True).attentions)


def real_rows(batch: dict[str, Tensor]) -> Tensor:
    """(batch, 1, query, 1): queries that are no padding."""
    mask = batch.get("attention_mask", torch.ones_like(batch["input_ids"]))
    return mask.bool()[:, None, :, None]


@pytest.mark.parametrize("name", MODELS)
def test_flash_attention_of_transformers(name: str, flash_in_transformers: None):
    family, options, batch = MODELS[name]
    model = hf_model(f"{family}Model", f"{family}Config", **options)()
    for block in model.modules():
        if hasattr(block, "sinks"):
            block.sinks.data = torch.linspace(-1, 2, len(block.sinks))
    expected = eager_maps(model, batch)
    model.config._attn_implementation = "flash_attention_2"
    before = first_output(call(model, batch))
    captured = capture(model, batch)
    assert torch.equal(first_output(captured.result), before)
    assert len(captured) == 2
    rows = real_rows(batch)
    for record, own in zip(captured, expected, strict=True):
        reproduces(record)
        torch.testing.assert_close(record.attn * rows, own * rows, rtol=1e-4, atol=1e-5)
        assert record.attn.masked_select(~rows).abs().sum() == 0


def reproduces(record: LayerRecord) -> None:
    rebuilt = attention_output(record.attn, record.v, record.kind)
    torch.testing.assert_close(rebuilt, record.head_out, rtol=1e-4, atol=1e-5)


def test_the_model_may_be_handed_the_starts_of_its_sequences(flash_in_transformers: None):
    model = hf_model("LlamaModel", "LlamaConfig", **BASE | TWO)()
    expected = eager_maps(model, PACKED)
    model.config._attn_implementation = "flash_attention_2"
    starts = torch.tensor([0, 4, 7, 11], dtype=torch.int32)
    lengths = {"cu_seq_lens_q": starts, "cu_seq_lens_k": starts, "max_length_q": 4, "max_length_k": 4}
    captured = capture(model, PACKED | lengths)
    for record, own in zip(captured, expected, strict=True):
        torch.testing.assert_close(record.attn, own, rtol=1e-4, atol=1e-5)
        assert record.mask.shape == (1, 1, 11, 11)


def test_a_single_sequence_without_a_window_has_a_causal_mask_alone(flash_in_transformers: None):
    model = hf_model("LlamaModel", "LlamaConfig", **BASE | TWO)()
    model.config._attn_implementation = "flash_attention_2"
    mask = capture(model, {"input_ids": torch.arange(3, 9)[None]}, sites=("mask",))[0].mask
    assert torch.equal(mask, torch.ones(1, 1, 6, 6, dtype=torch.bool).tril())


def test_packed_sequences_are_what_the_model_takes_them_for():
    """transformers tells packed sequences apart only without a cache, and capture leaves that as it is."""
    model = hf_model("LlamaModel", "LlamaConfig", **BASE | TWO)()
    for batch in (PACKED, {**PACKED, "use_cache": True}, {**PACKED, "use_cache": None}):
        captured = capture(model, batch)
        assert torch.equal(first_output(captured.result), first_output(call(model, batch)))
        apart = captured[0].attn[..., 4:, :4].abs().sum() == 0
        assert apart == (batch["use_cache"] is False)


@pytest.fixture(scope="module", autouse=True)
def uncompiled() -> Generator[None]:
    """FlexAttention in Python, of which the compiled kernel is a fusion; both are the same call."""
    with torch.compiler.set_stance("force_eager"):
        yield


FLEX = {name: MODELS[name] for name in ("padded", "packed", "window", "soft cap", "latent")}


@pytest.mark.parametrize("name", FLEX)
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_of_transformers(name: str):
    family, options, batch = MODELS[name]
    model = hf_model(f"{family}Model", f"{family}Config", **options)()
    expected = eager_maps(model, batch)
    model.config._attn_implementation = "flex_attention"
    before = first_output(call(model, batch))
    captured = capture(model, batch)
    assert torch.equal(first_output(captured.result), before)
    rows = real_rows(batch)
    for record, own in zip(captured, expected, strict=True):
        reproduces(record)
        torch.testing.assert_close(record.attn * rows, own * rows, rtol=1e-4, atol=1e-5)


# Called by their names ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tensors() -> tuple[Tensor, Tensor, Tensor]:
    """(batch, head, token, head_dim), with grouped queries."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((HEADS, HEAD_DIM), (KV_HEADS, HEAD_DIM), (KV_HEADS, 3))
    q, k, v = (torch.randn(BATCH, heads, TOKENS, width, generator=generator) for heads, width in shapes)
    return q, k, v


class Model(nn.Module):
    """Any function of q, k, v, which are all it is given."""

    def __init__(self, attend: Callable[..., Tensor]):
        super().__init__()
        self.attend = attend

    def forward(self, *tensors: Tensor) -> Tensor:
        return self.attend(*tensors)


def exact(captured: Capture, model: nn.Module, tensors: tuple[Tensor, ...]) -> LayerRecord:
    assert torch.equal(captured.result, model(*tensors))
    assert len(captured) == 1
    reproduces(captured[0])
    return captured[0]


BIAS = torch.randn(HEADS, TOKENS, TOKENS, generator=torch.Generator().manual_seed(3))
DOCUMENT = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [0, 0, 1, 1, 1, 2, 2]])


def document(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return (DOCUMENT[b, i] == DOCUMENT[b, j]) & (i >= j)


def relative(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return score + BIAS[h][i][j]


def causal(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return torch.where(i >= j, score, -math.inf)


def soft_cap(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return 1.5 * torch.tanh(score / 1.5) - 0.1 * (i - j)


class Flex(nn.Module):
    """Calls the function under the name that this module imported it by."""

    def __init__(self, masked: bool, score_mod: Callable[..., Tensor] | None = None):
        super().__init__()
        self.blocks, self.score_mod = None, score_mod
        if masked:
            self.blocks = create_block_mask(document, BATCH, None, TOKENS, TOKENS, device="cpu")

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flex_attention(
            q, k, v, score_mod=self.score_mod, block_mask=self.blocks, enable_gqa=True, scale=0.7
        )


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("score_mod", [None, relative, causal, soft_cap])
def test_flex_attention(
    masked: bool, score_mod: Callable[..., Tensor] | None, tensors: tuple[Tensor, Tensor, Tensor]
):
    model = Flex(masked, score_mod)
    assert [path for path, _ in attention_modules(model)] == [""]
    record = exact(capture(model, tensors), model, tensors)
    q, k, _ = tensors
    scores = 0.7 * q @ k.repeat_interleave(2, dim=1).mT
    places = torch.arange(TOKENS)
    for b, h, i, j in torch.cartesian_prod(torch.arange(BATCH), torch.arange(HEADS), places, places):
        if score_mod is not None:
            scores[b, h, i, j] = score_mod(scores[b, h, i, j].clone(), b, h, i, j)
        if masked and not document(b, h, i, j):
            scores[b, h, i, j] = -math.inf
    torch.testing.assert_close(record.attn, scores.softmax(-1), rtol=1e-5, atol=1e-6)
    if score_mod is not soft_cap:
        own = attention_weights(record.q, record.k, record.scale, record.mask)
        torch.testing.assert_close(own, record.attn)
        assert (record.mask is None) == (not masked and score_mod is None)
    else:
        assert record.mask is None


FLEX_UNDER_ANOTHER_NAME = flex_attention


class Renamed(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return FLEX_UNDER_ANOTHER_NAME(q, k, v, enable_gqa=True)


class Attribute(nn.Module):
    def __init__(self):
        super().__init__()
        self.kernel = flex_attention

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.kernel(q, k, v, enable_gqa=True)


def inside_a_function() -> nn.Module:
    from torch.nn.attention.flex_attention import flex_attention as flex

    class Inside(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return flex(q, k, v, enable_gqa=True)

    return Inside()


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("build", [Renamed, Attribute, inside_a_function])
def test_a_kernel_is_seen_under_whatever_name(
    build: Callable[[], nn.Module], tensors: tuple[Tensor, Tensor, Tensor]
):
    model = build()
    before = [cell.cell_contents for cell in type(model).forward.__closure__ or ()]
    record = exact(capture(model, tensors), model, tensors)
    assert record.mask is None
    assert [cell.cell_contents for cell in type(model).forward.__closure__ or ()] == before
    assert vars(model).get("kernel", flex_attention) is FLEX_UNDER_ANOTHER_NAME is flex_attention


@pytest.fixture
def flash_attn(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A package of that name, which holds what stands in."""
    module = types.ModuleType("flash_attn")
    for function in (flash_attn_func, flash_attn_varlen_func, qkvpacked):
        name = "flash_attn_qkvpacked_func" if function is qkvpacked else function.__name__
        copied = types.FunctionType(function.__code__, globals(), name, function.__defaults__)
        copied.__module__ = "flash_attn.flash_attn_interface"
        setattr(module, name, copied)
    monkeypatch.setitem(sys.modules, "flash_attn", module)
    return module


def qkvpacked(
    qkv: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False
) -> Tensor:
    return flash_attn_func(*qkv.unbind(2), softmax_scale=softmax_scale, causal=causal)


SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])
SINKS = torch.tensor([0.5, -1.0, 0.0, 2.0])
OPTIONS: list[dict[str, Any]] = [
    {}, {"causal": True}, {"window_size": (2, 1)}, {"causal": True, "window_size": (3, 3)}, {"softcap": 1.5},
    {"alibi_slopes": SLOPES, "causal": True}, {"s_aux": SINKS, "softmax_scale": 0.3},
]  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options) or "plain")
@pytest.mark.parametrize("queries", [TOKENS, 3])
def test_flash_attention(options: dict[str, Any], queries: int, flash_attn: Any, tensors: tuple[Tensor, ...]):
    q, k, v = (x.transpose(1, 2) for x in tensors)
    given = (q[:, :queries], k, v)
    model = Model(lambda q, k, v: flash_attn.flash_attn_func(q, k, v, **options))
    record = exact(capture(model, given), model, given)
    assert record.q.shape == (BATCH, HEADS, queries, HEAD_DIM)
    assert record.rows_sum_to_one == ("s_aux" not in options)
    if not {"softcap", "s_aux"} & set(options):
        own = attention_weights(record.q, record.k, record.scale, record.mask)
        torch.testing.assert_close(own, record.attn)


@pytest.mark.parametrize("options", OPTIONS[:4], ids=lambda options: "-".join(options) or "plain")
def test_flash_attention_of_packed_sequences(
    options: dict[str, Any], flash_attn: Any, tensors: tuple[Tensor, ...]
):
    starts, starts_k = torch.tensor([0, 2, 5, 10]), torch.tensor([0, 4, 8, 14])
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in tensors)
    given = (q[:10], k, v)
    model = Model(
        lambda q, k, v: flash_attn.flash_attn_varlen_func(q, k, v, starts, starts_k, 5, 6, **options)
    )
    record = exact(capture(model, given), model, given)
    assert record.attn.shape == (1, HEADS, 10, 14)
    assert record.attn[0, :, 0:2, 4:].abs().sum() == 0
    torch.testing.assert_close(record.attn.sum(-1), torch.ones(1, HEADS, 10))


def test_flash_attention_of_one_tensor(flash_attn: Any, tensors: tuple[Tensor, ...]):
    qkv = torch.randn(BATCH, TOKENS, 3, HEADS, HEAD_DIM)
    model = Model(lambda qkv: flash_attn.flash_attn_qkvpacked_func(qkv, causal=True))
    record = exact(capture(model, (qkv,)), model, (qkv,))
    assert torch.equal(record.k, qkv[:, :, 1].transpose(1, 2))


def varlen_attn(
    query: Tensor, key: Tensor, value: Tensor, cu_seq_q: Tensor, cu_seq_k: Tensor | None, max_q: int, max_k: int, *,
    scale: float | None = None, window_size: tuple[int, int] = (-1, -1), enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    return flash_attn_varlen_func(
        query, key, value, cu_seq_q, cu_seq_q if cu_seq_k is None else cu_seq_k, max_q, max_k, softmax_scale=scale,
        window_size=window_size,
    )  # fmt: skip


@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (2, 0)])
def test_packed_sequences_of_torch(
    window: tuple[int, int], monkeypatch: pytest.MonkeyPatch, tensors: tuple[Tensor, ...]
):
    from torch.nn.attention import varlen

    monkeypatch.setattr(varlen_attn, "__module__", "torch.nn.attention.varlen")
    monkeypatch.setattr(varlen, "varlen_attn", varlen_attn)
    starts = torch.tensor([0, 6, 14])
    given = tuple(x.transpose(1, 2).flatten(0, 1) for x in tensors)
    model = Model(
        lambda q, k, v: varlen.varlen_attn(q, k, v, starts, None, 8, 8, window_size=window, enable_gqa=True)
    )
    record = exact(capture(model, given), model, given)
    assert record.attn[0, :, 6:, :6].abs().sum() == record.attn[0, :, :6, 6:].abs().sum() == 0
    assert (record.attn[0, :, :6, :6].triu(1).abs().sum() == 0) == (window[1] == 0)


@pytest.mark.parametrize("causal", [False, True])
def test_packed_sequences_may_have_more_keys_than_queries_and_use_the_first_of_them(causal: bool):
    starts_q, starts_k, used = torch.tensor([0, 2, 5]), torch.tensor([0, 4, 9]), torch.tensor([3, 5])
    expected = torch.zeros(5, 9, dtype=torch.bool)
    for first, first_key, queries, keys in ((0, 0, 2, 3), (2, 4, 3, 5)):
        for query in range(queries):  # the last query is as far as the last key that is used
            seen = query + keys - queries + 1 if causal else keys
            expected[first + query, first_key : first_key + seen] = True
    assert torch.equal(allowed(*in_packed_rows(starts_q, starts_k, 5, 9, used), causal)[0, 0], expected)


def test_transformers_names_the_starts_of_packed_sequences():
    query, key = torch.zeros(1, HEADS, 5, HEAD_DIM), torch.zeros(1, HEADS, 9, HEAD_DIM)
    starts = {"cu_seq_lens_q": torch.tensor([0, 2, 5]), "cu_seq_lens_k": torch.tensor([0, 4, 9])}
    module = types.SimpleNamespace(is_causal=False)
    expected = torch.block_diag(torch.ones(2, 4), torch.ones(3, 5)).bool()
    assert torch.equal(_flash_mask(module, query, key, None, starts)[0, 0], expected)


def test_what_cannot_be_read_is_said(flash_attn: Any, tensors: tuple[Tensor, ...]):
    starts, tables = torch.tensor([0, 7, 14]), torch.zeros(2, 1, dtype=torch.int32)
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in tensors)
    model = Model(
        lambda q, k, v: flash_attn.flash_attn_varlen_func(q, k, v, starts, starts, 7, 7, block_table=tables)
    )
    with pytest.raises(IncompleteCapture, match="block_table"):
        capture(model, (q, k, v))
    assert flash_attn.flash_attn_varlen_func.__module__ == "flash_attn.flash_attn_interface"  # put back


def test_another_implementation_under_sdpa(monkeypatch: pytest.MonkeyPatch, tensors: tuple[Tensor, ...]):
    """What torch runs inside ``scaled_dot_product_attention`` makes no difference to what is captured."""
    from torch.nn import attention

    activated: list[str] = []
    attention.register_flash_attention_impl("stand-in", register_fn=lambda: activated.append("stand-in"))
    attention.activate_flash_attention_impl("stand-in")
    try:
        model = Model(
            lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        )
        exact(capture(model, tensors), model, tensors)
    finally:
        attention.restore_flash_attention_impl()
    assert activated == ["stand-in"]
