"""What mixes tokens without a softmax over them is a layer of kind "none": named, left out of analyses, not refused."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from tests.captures.families import call, first_output, hf_model, timm_model, words
from workbench.captures import (
    Capture,
    Family,
    LayerRecord,
    TokenInfo,
    attention_modules,
    attention_output,
    attention_weights,
    capture,
    register_family,
    token_mixers,
)
from workbench.captures.families.mixers import MIXERS
from workbench.captures.family import FAMILIES, class_path, replace_families
from workbench.core.errors import IncompleteCapture, InputError
from workbench.runs.analyze import analyze

BASE = {
    "vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 8, "intermediate_size": 40, "max_position_embeddings": 64, "pad_token_id": 1,
}  # fmt: skip
EXPERTS = {
    "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16, "n_routed_experts": 4, "n_shared_experts": 1, "n_group": 1, "topk_group": 1,
    "first_k_dense_replace": 1,
}  # fmt: skip
LATENT = {
    "q_lora_rank": 16, "kv_lora_rank": 12, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 6,
    "num_key_value_heads": 4, "head_dim": 4,
}  # fmt: skip
DELTA = {
    "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
}  # fmt: skip
MAMBA = {
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_n_groups": 1,
    "mamba_d_state": 8,
    "mamba_chunk_size": 8,
}
LINEAR = {"layer_types": ["full_attention", "linear_attention"], "num_hidden_layers": 2, "block_size": 8}
RECURRENT = {"lru_width": 32, "attention_window_size": 16, "block_types": ["recurrent", "attention"]}
HYBRIDS: dict[str, tuple[dict[str, Any], str, list[str]]] = {
    "Qwen3Next": (BASE | DELTA | EXPERTS, "gated delta rule", ["none"] * 3 + ["token"]),
    "Jamba": (
        BASE | EXPERTS | {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 8, "mamba_dt_rank": 4,
         "use_mamba_kernels": False},
        "state-space mixer",
        ["none", "token"] * 2,
    ),
    "FalconH1": (BASE | MAMBA | {"mamba_d_ssm": 32, "mamba_n_heads": 4}, "state-space", ["none", "token"] * 4),
    "RecurrentGemma": (BASE | RECURRENT, "recurrence", ["none", "token"] * 2),
    "MiniMax": (BASE | EXPERTS | LINEAR, "linear attention", ["token", "none"]),
    "Mamba": (BASE | {"state_size": 8, "use_mambapy": False}, "state-space mixer", ["none"] * 4),
    "Rwkv": (BASE | {"attention_hidden_size": 32, "context_length": 64}, "linear attention", ["none"] * 4),
    "Nystromformer": (BASE | {"num_landmarks": 1, "segment_means_seq_len": 11}, "Nyström", ["none"] * 4),
    "FNet": (BASE, "Fourier transform", ["none"] * 4),
}  # fmt: skip


def hybrid(name: str) -> nn.Module:
    return hf_model(f"{name}Model", f"{name}Config", **HYBRIDS[name][0])()


@pytest.mark.parametrize("name", HYBRIDS)
def test_mixers_are_named_beside_attention_that_is_exact(name: str):
    _, what, kinds = HYBRIDS[name]
    model, ids = hybrid(name), {"input_ids": words()["input_ids"]}
    before = first_output(call(model, ids))
    captured = capture(model, ids)
    assert torch.equal(first_output(captured.result), before)
    assert [record.kind for record in captured] == kinds
    assert [record.index for record in captured] == list(range(len(kinds)))
    for record in captured:
        if record.kind == "none":
            cls = type(model.get_submodule(record.path)).__name__
            assert record.mixer.startswith(f"{cls} (")
            assert what in record.mixer
            assert record.mixer in repr(record)
            assert record.captured == {}
        else:
            assert record.mixer == ""
    attention = [record for record in captured if record.kind == "token"]
    assert [path for path, _ in attention_modules(model)] == [record.path for record in attention]
    if attention:
        model.set_attn_implementation("eager")
        with torch.no_grad():
            own = model(**ids, output_attentions=True).attentions
        # MiniMax gives the state of its linear attention beside them
        maps = [weights for weights in own if weights is not None and weights.shape[-2:] == (11, 11)]
        for record, weights in zip(attention, maps, strict=True):
            torch.testing.assert_close(record.attn, weights, rtol=1e-4, atol=1e-5)


def test_what_passes_around_a_mixer_is_there():
    model = hybrid("Qwen3Next")
    stream = ("input", "resid_pre", "attn_out", "resid_mid", "resid_post")
    captured = capture(model, words(), sites=(*stream, "q"))
    for record in captured:
        block = model.layers[record.index]
        with torch.no_grad():
            torch.testing.assert_close(record.input, block.input_layernorm(record.resid_pre))
        torch.testing.assert_close(record.resid_mid, record.resid_pre + record.attn_out)
    for before, after in zip(captured, list(captured)[1:], strict=False):
        assert torch.equal(before.resid_post, after.resid_pre)


def test_layers_are_chosen_and_handed_over_as_any_others():
    model, ids = hybrid("Jamba"), words()["input_ids"]
    assert [record.kind for record in capture(model, ids, layers="1-2", sites=("q",))] == ["token", "none"]
    assert capture(model, ids, layers=-2, sites=("input",))[2].input.shape == (3, 11, 32)
    seen: list[tuple[int, str, int]] = []

    def note(layer: LayerRecord, tokens: TokenInfo) -> None:
        seen.append((layer.index, layer.kind, len(tokens.labels[0])))

    capture(model, ids, sites=("q",), each=note)
    assert seen == [(0, "none", 11), (1, "token", 11), (2, "none", 11), (3, "token", 11)]


def test_files_keep_the_names(tmp_path):
    captured = capture(hybrid("Jamba"), words()["input_ids"], sites=("q", "k", "v"))
    again = Capture.load(captured.save(tmp_path / "qkv.safetensors"))
    assert [record.mixer for record in again] == [record.mixer for record in captured]
    assert torch.equal(again[1].q, captured[1].q)
    frame = analyze("gram-spectrum", qkv=again)
    assert set(frame["layer"].dropna()) == {1, 3}


def test_analyses_leave_mixers_out_and_say_so():
    model, ids = hybrid("Jamba"), words()["input_ids"]
    frame = analyze("gram-spectrum", model=model, inputs=ids)
    assert set(frame["layer"].dropna()) == {1, 3}
    assert any(
        "layers 0, 2 left out: JambaMambaMixer (state-space mixer)" in note for note in frame.attrs["notes"]
    )
    stream = analyze("token-similarity", model=model, inputs=ids, sites="resid_post")
    assert set(stream["layer"].dropna()) == {0, 1, 2, 3}
    assert pd.notna(stream["value"]).all()


def test_a_model_of_mixers_alone_has_nothing_to_analyse():
    with pytest.raises(InputError, match=r"MambaMixer \(state-space mixer\)"):
        analyze("gram-spectrum", model=hybrid("Mamba"), inputs=words()["input_ids"])


def test_multi_head_latent_attention_has_its_latents():
    model = hf_model(
        "DeepseekV3Model", "DeepseekV3Config", **BASE | EXPERTS | LATENT | {"num_hidden_layers": 2}
    )()
    captured = capture(model, words(), sites=("input", "q", "k", "v"))
    for record in captured:
        attention = model.layers[record.index].self_attn
        assert record.q.shape == record.k.shape == (3, 4, 11, 12)
        with torch.no_grad():
            compressed = attention.kv_a_proj_with_mqa(record.input)[..., :12]
            torch.testing.assert_close(record.kv_latent, attention.kv_a_layernorm(compressed))
            torch.testing.assert_close(
                record.q_latent, attention.q_a_layernorm(attention.q_a_proj(record.input))
            )
            keys, values = attention.kv_b_proj(record.kv_latent).unflatten(-1, (4, 14)).split([8, 6], dim=-1)
        torch.testing.assert_close(record.k[..., :8], keys.transpose(1, 2))
        torch.testing.assert_close(record.v, values.transpose(1, 2))


class Detector(nn.Module):
    """Self-attention of queries, then deformable attention to what an image encoder gives."""

    def __init__(self, attention: nn.Module):
        super().__init__()
        self.first, self.second = nn.MultiheadAttention(32, 4, batch_first=True), attention

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        x = x + self.first(x, x, x, need_weights=False)[0]
        places = torch.full((2, 5, 1, 4), 0.5)
        return self.second(
            x, encoder_hidden_states=memory, reference_points=places, spatial_shapes=torch.tensor([[3, 3]]),
            spatial_shapes_list=[(3, 3)],
        )[0]  # fmt: skip


def test_deformable_attention_is_named_and_refuses_nothing():
    from transformers.models.d_fine.modeling_d_fine import DFineConfig, DFineMultiscaleDeformableAttention

    config = DFineConfig(d_model=32, decoder_attention_heads=4, num_feature_levels=1, decoder_n_points=[2])
    model = Detector(DFineMultiscaleDeformableAttention(config)).eval()
    captured = capture(model, (torch.randn(2, 5, 32), torch.randn(2, 9, 32)))
    assert [record.kind for record in captured] == ["token", "none"]
    assert captured[1].mixer.startswith("DFineMultiscaleDeformableAttention (deformable attention")


@pytest.mark.parametrize(("name", "what"), [("volo_d1_224", "outlook"), ("coat_lite_tiny", "factorised")])
def test_attention_of_timm_without_queries_and_keys_is_named(name: str, what: str):
    captured = capture(timm_model(name, img_size=64)(), torch.randn(1, 3, 64, 64))
    assert any(what in record.mixer for record in captured)


BART = {
    "vocab_size": 60, "d_model": 32, "encoder_layers": 2, "decoder_layers": 1, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40,
}  # fmt: skip
T5 = {
    "vocab_size": 60,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 40,
    "num_layers": 1,
    "num_heads": 4,
    "local_radius": 3,
}
FUNNEL = {
    "vocab_size": 60, "block_sizes": [1, 2], "d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 40,
    "num_decoder_layers": 1,
}  # fmt: skip
SPARSE: dict[str, tuple[dict[str, Any], int, int]] = {
    "LED": (
        BART | {"attention_window": 4, "max_encoder_position_embeddings": 64, "max_decoder_position_embeddings": 64},
        4,
        12,
    ),
    "PegasusX": (BART | {"block_size": 4, "num_global_tokens": 3, "stagger_local_blocks": True}, 4, 15),
    "LongT5": (T5, 3, 12),
    "LongT5 with global tokens": (T5 | {"encoder_attention_type": "transient-global", "global_block_size": 4}, 3, 15),
    "Funnel": (FUNNEL, 4, 12),
}  # fmt: skip


@pytest.mark.parametrize("name", SPARSE)
def test_sparse_and_pooled_attention_is_exact(name: str):
    options, layers, keys = SPARSE[name]
    family = name.partition(" ")[0]
    model = hf_model(f"{family}Model", f"{family}Config", **options)()
    ids = torch.randint(3, 59, (2, 12), generator=torch.Generator().manual_seed(0))
    batch = {"input_ids": ids, "attention_mask": (torch.arange(12) < torch.tensor([[12], [9]])).long()}
    if family != "Funnel":
        batch["decoder_input_ids"] = ids[:, :5]
    before = first_output(call(model, batch))
    captured = capture(model, batch)
    assert torch.equal(first_output(captured.result), before)
    assert [record.kind for record in captured] == ["token"] * layers
    assert captured[0].attn.shape[-1] == keys
    for record in captured:
        own = attention_weights(record.q, record.k, record.scale, record.mask)
        torch.testing.assert_close(own, record.attn, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(
            attention_output(record.attn, record.v), record.head_out, rtol=1e-4, atol=1e-5
        )


class Decay(nn.Module):
    """A mixer of one's own."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(32, 32) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.query(x) * (self.key(x) * self.value(x)).cumsum(dim=1)


class OwnLinearAttention(nn.Module):
    """Attention, whatever its name says."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(32, 96)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        return torch.softmax(q @ k.mT / 32**0.5, dim=-1) @ v


@pytest.mark.usefixtures("families")
def test_a_mixer_of_ones_own():
    model, x = nn.Sequential(OwnLinearAttention(), Decay()).eval(), torch.randn(2, 5, 32)
    with pytest.warns(UserWarning, match=r"1 \(Decay\)"):
        capture(model, x)
    register_family(Family(mixers={class_path(Decay): "decaying sum"}))
    captured = capture(model, x)
    assert token_mixers(model)["1"] == "Decay (decaying sum)"
    assert [(record.path, record.mixer) for record in captured] == [("0", ""), ("1", "Decay (decaying sum)")]
    own = attention_weights(captured[0].q, captured[0].k, captured[0].scale)
    torch.testing.assert_close(own, captured[0].attn)


@pytest.mark.usefixtures("families")
def test_a_library_module_that_nobody_named_is_an_error():
    replace_families({family: owner for family, owner in FAMILIES.items() if family is not MIXERS})
    with pytest.raises(IncompleteCapture, match=r"no attention was seen.*blocks\.0\.attention"):
        capture(hybrid("Rwkv"), words()["input_ids"])
