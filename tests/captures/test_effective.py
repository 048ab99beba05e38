"""The effective map of state-space and linear layers: the recurrences written as loops, and the layers' own outputs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.captures.families import FAMILIES, call, first_output, hf_model, words
from tests.captures.test_mixers import BASE, DELTA, EXPERTS, HYBRIDS, MAMBA, hybrid
from workbench.captures import Capture, capture, capture_generation, effective
from workbench.core.errors import IncompleteCapture, InputError

BATCH, HEADS, TOKENS, STATE, WIDTH = 2, 3, 7, 5, 4


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def rand(*shape: int) -> Tensor:
    return torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def same(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


def test_a_selective_scan_is_its_map_times_its_input():
    dt, a, x = rand(BATCH, HEADS, TOKENS), -rand(HEADS, STATE), randn(BATCH, HEADS, TOKENS)
    b, c = randn(BATCH, STATE, TOKENS), randn(BATCH, STATE, TOKENS) + 1
    y = torch.zeros_like(x)
    for i in range(BATCH):
        for channel in range(HEADS):
            state = torch.zeros(STATE, dtype=x.dtype)
            for t in range(TOKENS):
                decay = (a[channel] * dt[i, channel, t]).exp()
                state = decay * state + dt[i, channel, t] * b[i, :, t] * x[i, channel, t]
                y[i, channel, t] = c[i, :, t] @ state
    same((effective.selective_scan_map(dt, a, b, c) @ x[..., None])[..., 0], y)


def test_a_state_space_layer_is_its_map_times_its_input():
    dt, a, x = rand(BATCH, HEADS, TOKENS), -rand(HEADS), randn(BATCH, HEADS, TOKENS, WIDTH)
    b, c = randn(BATCH, HEADS, TOKENS, STATE), randn(BATCH, HEADS, TOKENS, STATE) + 1
    y = torch.zeros_like(x)
    for i in range(BATCH):
        for head in range(HEADS):
            state = torch.zeros(STATE, WIDTH, dtype=x.dtype)
            for t in range(TOKENS):
                step = dt[i, head, t]
                state = (a[head] * step).exp() * state + step * torch.outer(b[i, head, t], x[i, head, t])
                y[i, head, t] = c[i, head, t] @ state
    same(effective.state_space_map(dt, a, b, c) @ x, y)


@pytest.mark.parametrize("per_dimension", [False, True])
def test_the_gated_delta_rule_is_its_map_times_its_values(per_dimension: bool):
    q, k = randn(BATCH, HEADS, TOKENS, STATE), F.normalize(randn(BATCH, HEADS, TOKENS, STATE), dim=-1)
    v, beta = randn(BATCH, HEADS, TOKENS, WIDTH), rand(BATCH, HEADS, TOKENS)
    decay = rand(BATCH, HEADS, TOKENS, STATE if per_dimension else 1)
    y = torch.zeros_like(v)
    for i in range(BATCH):
        for head in range(HEADS):
            state = torch.zeros(STATE, WIDTH, dtype=v.dtype)
            for t in range(TOKENS):
                key = k[i, head, t]
                state = decay[i, head, t][:, None] * state
                state = state + beta[i, head, t] * torch.outer(key, v[i, head, t] - key @ state)
                y[i, head, t] = q[i, head, t] @ state
    maps = effective.delta_rule_map(q, k, decay, beta)
    same(maps @ v, y)
    if not per_dimension:  # the product of the definition, for one entry
        product = torch.eye(STATE, dtype=v.dtype)
        for t in (5, 4, 3):
            key = k[1, 2, t]
            own = torch.eye(STATE, dtype=v.dtype) - beta[1, 2, t] * torch.outer(key, key)
            product = product @ own * decay[1, 2, t]
        same(maps[1, 2, 5, 2], beta[1, 2, 2] * q[1, 2, 5] @ product @ k[1, 2, 2])


def test_rwkv_and_linear_attention_are_their_maps_times_their_values():
    k, v, rate, first = randn(BATCH, HEADS, TOKENS), randn(BATCH, HEADS, TOKENS), rand(HEADS), randn(HEADS)
    weights = torch.zeros(BATCH, HEADS, TOKENS, TOKENS, dtype=v.dtype)
    for t in range(TOKENS):
        for j in range(t + 1):
            weights[..., t, j] = (k[..., j] + (first if j == t else -(t - 1 - j) * rate)).exp()
    expected = (weights / weights.sum(-1, keepdim=True)) @ v[..., None]
    same(effective.decayed_softmax_map(k, rate, first) @ v[..., None], expected)

    q, key, value = (randn(BATCH, HEADS, TOKENS, width) for width in (STATE, STATE, WIDTH))
    y = torch.zeros_like(value)
    for head in range(HEADS):
        state = torch.zeros(BATCH, STATE, WIDTH, dtype=v.dtype)
        for t in range(TOKENS):
            state = (-rate[head]).exp() * state + key[:, head, t, :, None] * value[:, head, t, None]
            y[:, head, t] = (q[:, head, t, None] @ state)[:, 0]
    same(effective.decayed_linear_map(q, key + 0, rate) @ value, y)


MODELS: dict[str, tuple[dict[str, Any], int]] = {
    **{name: (HYBRIDS[name][0], heads) for name, heads in
       {"Mamba": 40, "Jamba": 64, "FalconH1": 4, "Qwen3Next": 4, "MiniMax": 4, "Rwkv": 32}.items()},
    "Mamba2": (
        BASE | {"num_heads": 8, "head_dim": 8, "expand": 2, "n_groups": 2, "state_size": 6, "chunk_size": 4}, 8,
    ),
    "Bamba": (BASE | MAMBA | {"mamba_expand": 2, "attn_layer_indices": [1]}, 8),
    "NemotronH": (
        BASE | {"mamba_num_heads": 8, "mamba_head_dim": 8, "n_groups": 2, "ssm_state_size": 6, "chunk_size": 4}, 8,
    ),
    "GraniteMoeHybrid": (BASE | EXPERTS | MAMBA | {"layer_types": ["mamba", "attention"] * 2}, 8),
    "OlmoHybrid": (BASE | DELTA | {"eos_token_id": 2}, 4),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_the_map_gives_the_layer_s_own_output_in_models_of_transformers(name: str):
    options, heads = MODELS[name]
    model, batch = hf_model(f"{name}Model", f"{name}Config", **options)(), words()
    plain = first_output(call(model, batch))
    captured = capture(
        model, batch, sites=["effective", "v", "head_out"]
    )  # compares each with the layer's own
    assert torch.equal(first_output(captured.result), plain)
    assert torch.equal(first_output(call(model, batch)), plain)
    mixers = [record for record in captured if record.mixer]
    assert mixers
    for record in mixers:
        assert record.effective.shape == (3, heads, 11, 11)
        assert record.effective.triu(1).abs().max() == 0
        assert (record.effective < 0).any() == (name != "Rwkv")
        assert record.attn is None
        skip = record.head_out - record.effective @ record.v
        module = model.get_submodule(record.path)
        if hasattr(module, "D"):
            assert torch.allclose(skip, module.D[:, None, None] * record.v, atol=1e-5)
        else:
            assert skip.abs().max() < 1e-5
    for record in captured:
        assert record.mixer or "effective" not in record.captured


def test_the_layer_s_output_follows_from_the_map_of_a_mamba():
    model, batch = hybrid("Mamba"), words()["input_ids"]
    record = capture(model, batch, sites=["effective", "v", "head_out", "input"], layers=[1])[1]
    mixer = model.layers[1].mixer
    with torch.no_grad():
        gate = mixer.in_proj(record.input).chunk(2, dim=-1)[1]
        heads = record.effective @ record.v + mixer.D[:, None, None] * record.v
        output = mixer.out_proj(heads[..., 0].mT * F.silu(gate))
        torch.testing.assert_close(output, mixer(record.input), rtol=1e-4, atol=1e-5)


MAPS = {
    "selective_scan_map": "Mamba", "state_space_map": "FalconH1", "delta_rule_map": "Qwen3Next",
    "decayed_softmax_map": "Rwkv", "decayed_linear_map": "MiniMax",
}  # fmt: skip


@pytest.mark.parametrize("name", MAPS)
def test_a_wrong_map_is_an_error(name: str, monkeypatch):
    right = getattr(effective, name)

    def wrong(*operands: Tensor) -> Tensor:
        maps = right(*operands)
        return maps + 0.03 * torch.diag_embed(maps.diagonal(dim1=-2, dim2=-1))

    monkeypatch.setattr(effective, name, wrong)
    with pytest.raises(IncompleteCapture, match="effective @ v differs from the layer's own output"):
        capture(hybrid(MAPS[name]), words(), sites=["effective"])


def test_what_has_no_map_is_refused_by_name():
    with pytest.raises(InputError, match=r"fourier: FNetFourierTransform .* no effective attention"):
        capture(hybrid("FNet"), words(), sites=["effective"])
    with pytest.raises(InputError, match="has no state-space or linear layer, so no 'effective'"):
        capture(FAMILIES["gpt2"].build(), FAMILIES["gpt2"].batch(), sites=["effective"])
    with pytest.raises(InputError, match="'effective' is followed through a whole text"):
        capture_generation(hybrid("Mamba"), words(), max_new_tokens=2, sites=["effective"])


def test_nothing_of_it_is_there_without_a_request_and_files_keep_it(tmp_path):
    model, batch = hybrid("Qwen3Next"), words()["input_ids"]
    assert all(record.captured == {} for record in capture(model, batch) if record.mixer)
    captured = capture(model, batch, sites=["effective", "attn"], layers="0,3")
    assert "effective" in captured[0].captured
    assert captured[3].attn is not None
    again = Capture.load(captured.save(tmp_path / "maps.safetensors"))
    assert torch.equal(again[0].effective, captured[0].effective)


class Two(nn.Module):
    """Two mixers in one block's place, which are recorded apart."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = hybrid("Mamba").layers[0].mixer, hybrid("Mamba").layers[1].mixer

    def forward(self, x: Tensor) -> Tensor:
        return self.second(x + self.first(x))


def test_a_mixer_outside_its_model():
    captured = capture(Two().eval(), torch.randn(2, 6, 32), sites=["effective", "v"])
    assert [record.path for record in captured] == ["first", "second"]
    assert captured[0].effective.shape == (2, 40, 6, 6)
