"""Generation: the steps of one pass of ``generate`` are the rows of one capture of the whole text."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import workbench
from tests.captures.families import seeded
from workbench.captures import Capture, attention_weights, capture, capture_generation
from workbench.core.errors import IncompleteCapture, InputError

PROMPT, NEW, VOCABULARY = 7, 6, 61
SMALL = {"vocab_size": VOCABULARY, "hidden_size": 24, "num_hidden_layers": 2, "intermediate_size": 32,
         "num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0,
         "bos_token_id": 1, "eos_token_id": None}  # fmt: skip
GPT = {"vocab_size": VOCABULARY, "n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 40, "bos_token_id": 1,
       "eos_token_id": None, "pad_token_id": 0}  # fmt: skip


def causal(
    kind: str, config: dict[str, Any], attention: str = "sdpa", dtype: torch.dtype = torch.float64
) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    def build() -> nn.Module:
        made = AutoConfig.for_model(kind, **config)
        return AutoModelForCausalLM.from_config(made, attn_implementation=attention)

    return seeded(build)().to(dtype)


MODELS = {
    "gpt2": ("gpt2", GPT, "sdpa"),
    "llama": ("llama", SMALL, "sdpa"),
    "llama, eager": ("llama", SMALL, "eager"),
    "mistral, window": ("mistral", SMALL | {"sliding_window": 32}, "sdpa"),
    "mistral, past its window": ("mistral", SMALL | {"sliding_window": 5}, "sdpa"),
    "gemma2": ("gemma2", SMALL | {"sliding_window": 32, "head_dim": 6}, "eager"),
    "gemma2, past its window": ("gemma2", SMALL | {"sliding_window": 9, "head_dim": 6}, "eager"),
    "qwen3": ("qwen3", SMALL | {"head_dim": 6}, "sdpa"),
    "gptj, written out": ("gptj", GPT | {"rotary_dim": 4}, "eager"),
    "bloom, written out": ("bloom", {"vocab_size": VOCABULARY, "hidden_size": 24, "n_layer": 2, "n_head": 4,
                                     "pad_token_id": 0, "eos_token_id": None}, "eager"),
}  # fmt: skip


def prompts(padded: bool = False) -> dict[str, Tensor]:
    ids = torch.randint(3, VOCABULARY, (2, PROMPT), generator=torch.Generator().manual_seed(5))
    mask = torch.ones_like(ids)
    if padded:
        mask[1, :3] = 0
        ids[1, :3] = 0
    return {"input_ids": ids, "attention_mask": mask}


def check_rows(captured: Capture, whole: Capture, tolerance: float) -> None:
    """Every step is the row of the whole text from which its token was chosen."""
    generated = captured.generated
    rows = slice(generated.prompt_tokens - 1, None)
    mask = generated.batch.get("attention_mask")
    for record in captured:
        other = whole[record.index]
        assert record.path == other.path
        expected = {site: getattr(other, site)[..., rows, :] for site in ("q", "attn", "head_out")}
        for site in ("k", "v"):
            expected[site] = getattr(other, site)
            if mask is not None and expected[site].shape[2] == mask.shape[1]:
                # padding that may attend to nothing is computed in a way of its own
                expected[site] = torch.where(
                    mask.bool()[:, None, :, None], expected[site], getattr(record, site)
                )
        for site, value in expected.items():
            torch.testing.assert_close(getattr(record, site), value, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(generated.logits, whole.result.logits[:, rows], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_steps_are_the_rows_of_one_capture_of_the_whole_text(name: str, padded: bool, cache: str):
    kind, config, attention = MODELS[name]
    # eager softmaxes, and those written out, are computed in float32
    dtype, tolerance = (torch.float64, 1e-10) if attention == "sdpa" else (torch.float32, 1e-4)
    model, batch = causal(kind, config, attention, dtype), prompts(padded)
    options = {"cache_implementation": cache, "max_new_tokens": NEW}
    captured = capture_generation(model, batch, **options)
    assert torch.equal(captured.result, model.generate(**batch, **options))
    assert torch.equal(captured.generated.sequences, captured.result)
    assert captured[0].q.shape[2] == NEW
    assert captured[0].k.shape[2] == PROMPT + NEW - 1
    whole = capture(model, captured.generated.batch)
    assert [record.path for record in captured] == [record.path for record in whole]
    check_rows(captured, whole, tolerance)
    for record in captured:
        if "gemma" not in name:  # whose scores have a soft cap
            own = attention_weights(record.q, record.k, record.scale, record.mask)
            torch.testing.assert_close(own, record.attn, rtol=tolerance, atol=tolerance)


def test_an_encoder_is_counted_and_cross_attention_keeps_its_keys():
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(vocab_size=VOCABULARY, d_model=24, d_kv=6, d_ff=32, num_layers=2, num_heads=4,
                      decoder_start_token_id=0, eos_token_id=None, pad_token_id=0)  # fmt: skip
    model = seeded(lambda: T5ForConditionalGeneration(config))()
    captured = capture_generation(model, prompts(), NEW)
    assert [record.index for record in captured] == [2, 3, 4, 5]
    assert [record.k.shape[2] for record in captured] == [NEW, PROMPT, NEW, PROMPT]
    check_rows(captured, capture(model, captured.generated.batch), 1e-4)


def test_images_are_read_once_and_text_keeps_its_numbers():
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

    vision = CLIPVisionConfig(hidden_size=24, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
                              image_size=16, patch_size=8, projection_dim=16)  # fmt: skip
    config = LlavaConfig(vision_config=vision, text_config=LlamaConfig(**SMALL), image_token_id=60,
                         vision_feature_select_strategy="default", vision_feature_layer=-1)  # fmt: skip
    model = seeded(lambda: LlavaForConditionalGeneration(config))()
    ids = torch.randint(3, 59, (1, 9), generator=torch.Generator().manual_seed(2))
    ids[0, 2:6] = 60
    pixels = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(3))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": pixels}
    captured = capture_generation(model, batch, NEW)
    assert [record.index for record in captured] == [2, 3]
    check_rows(captured, capture(model, captured.generated.batch), 1e-4)


def test_sampling_draws_what_it_draws_alone_and_inputs_end_apart():
    model = causal("llama", SMALL | {"eos_token_id": list(range(7, 22, 2))})
    batch, options = prompts(padded=True), {"max_new_tokens": 8, "do_sample": True, "num_return_sequences": 3}
    torch.manual_seed(3)
    alone = model.generate(**batch, **options)
    torch.manual_seed(3)
    captured = capture_generation(model, batch, **options)
    assert torch.equal(captured.result, alone)
    real = captured.generated.real
    for tokens, row in zip(alone[:, PROMPT:].tolist(), real.tolist(), strict=True):
        ends = [i for i, token in enumerate(tokens) if token in range(7, 22, 2)]
        count = min([len(tokens), *(end + 1 for end in ends)])
        assert row == [True] * count + [False] * (len(tokens) - count)
    assert not real.all()
    assert captured.tokens.mask[:, PROMPT:].equal(real)
    check_rows(captured, capture(model, captured.generated.batch), 1e-10)


def test_padding_at_the_end_moves_before_the_prompt():
    model = causal("llama", SMALL)
    left, right = prompts(padded=True), prompts(padded=True)
    for key, value in right.items():
        value[1] = left[key][1].roll(-3)
    first, second = (capture_generation(model, batch, NEW) for batch in (left, right))
    assert torch.equal(first.result, second.result)
    assert torch.equal(first[1].attn, second[1].attn)


def test_only_what_is_asked_for_is_kept():
    model = causal("llama", SMALL)
    sites = ("input", "attn", "resid_pre", "resid_mid", "resid_post")
    captured = capture_generation(model, prompts(), NEW, layers=-1, sites=sites, logits=False)
    assert [record.index for record in captured] == [1]
    assert captured.generated.logits is None
    record, whole = captured[1], capture(model, captured.generated.batch, layers=1, sites=sites)[1]
    assert record.k is None
    for site in sites:
        value = getattr(whole, site)[..., PROMPT - 1 :, :]
        torch.testing.assert_close(getattr(record, site), value, rtol=1e-10, atol=1e-10)


def test_the_keys_are_the_cache_s():
    from transformers import StaticCache

    model = causal("llama", SMALL)
    cache = StaticCache(config=model.config, max_cache_len=20)
    captured = capture_generation(model, prompts(), NEW, past_key_values=cache)
    for record, layer in zip(captured, cache.layers, strict=True):
        assert torch.equal(record.k, layer.keys[:, :, : PROMPT + NEW - 1])
        assert torch.equal(record.v, layer.values[:, :, : PROMPT + NEW - 1])


def changing_cache(config: Any, change: Any) -> Any:
    """A cache of which every update also changes what it held."""
    from transformers import DynamicCache

    cache = DynamicCache(config=config)
    for layer in cache.layers:
        plain = layer.update

        def update(
            k: Tensor, v: Tensor, *args: Any, layer: Any = layer, plain: Any = plain, **kwargs: Any
        ) -> Any:
            change(layer)
            return plain(k, v, *args, **kwargs)

        layer.update = update
    return cache


@pytest.mark.parametrize("how", ["rounded", "cropped", "reordered"])
def test_a_cache_that_changes_what_it_holds_is_refused(how: str):
    model = causal("llama", SMALL)

    def change(layer: Any) -> None:
        if layer.get_seq_length():
            if how == "rounded":
                layer.keys = layer.keys.half().to(layer.keys.dtype)
            if how == "cropped":  # the prompt's first tokens
                layer.keys, layer.values = layer.keys[:, :, :3], layer.values[:, :, :3]
            if how == "reordered":
                layer.keys = layer.keys.flip(0)

    with pytest.raises(IncompleteCapture, match=r"layer 0 .*keep a token's key the same at every step"):
        capture_generation(model, prompts(), NEW, past_key_values=changing_cache(model.config, change))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_beams": 2}, "beam search"),
        ({"prompt_lookup_num_tokens": 3}, "assisted generation"),
        ({"penalty_alpha": 0.5, "top_k": 4}, "contrastive search"),
        ({"use_cache": False}, "use_cache"),
        ({"prefill_chunk_size": 3}, "prefill_chunk_size"),
        ({"guidance_scale": 2.0}, "guidance_scale"),
        ({"max_new_tokens": 0}, "from 1 up; got 0"),
        ({"layers": 7}, "there is no layer 7"),
        ({"sites": "position"}, "capture the whole text in one pass"),
    ],
)
def test_what_is_no_step_of_one_query_is_refused(options: dict[str, Any], said: str):
    with pytest.raises(InputError, match=said):
        capture_generation(causal("llama", SMALL), prompts(), **{"max_new_tokens": NEW, **options})


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_what_was_captured_before_an_exception_is_kept_and_said(error: type[BaseException]):
    model, passes = causal("llama", SMALL), []

    def stop(*_: Any) -> None:
        passes.append(1)
        if len(passes) == 4:
            raise error("enough")

    handle = model.model.layers[1].register_forward_hook(stop)  # in the midst of a pass
    with pytest.raises(error) as raised:
        capture_generation(model, prompts(), 20)
    handle.remove()
    captured = raised.value.captured
    said = f"stopped by {error.__name__} after 3 of 20 tokens"
    assert captured.notes == [said]
    assert any(said in note for note in raised.value.__notes__)
    assert captured.generated.steps == 3
    check_rows(captured, capture(model, captured.generated.batch), 1e-10)
    assert not any(module._forward_hooks for module in model.modules())


def test_a_file_brings_everything_back(tmp_path):
    captured = capture_generation(causal("llama", SMALL), prompts(padded=True), NEW)
    again = Capture.load(captured.save(tmp_path / "steps.safetensors"))
    for record, other in zip(captured, again, strict=True):
        assert all(
            torch.equal(getattr(record, s), getattr(other, s)) for s in ("q", "k", "v", "attn", "mask")
        )
    for name in ("sequences", "real", "logits"):
        assert torch.equal(getattr(again.generated, name), getattr(captured.generated, name))
    assert again.generated.steps == NEW


# Without a cache, and analyses over steps -------------------------------------------------------------------


@pytest.fixture(scope="module")
def prose() -> Capture:
    model = workbench.load("bundled:prose-softmax")
    batch = workbench.inputs("bundled:prose", model, n=2, max_length=16)
    return workbench.capture_generation(model, batch, NEW, logits=True)


def test_a_model_without_generate_is_continued_by_its_likeliest_tokens(prose):
    generated = prose.generated
    assert torch.equal(generated.logits.argmax(-1), generated.sequences[:, 16:])
    assert prose[0].attn.shape == (2, 4, NEW, 16 + NEW - 1)
    own = attention_weights(prose[2].q, prose[2].k, prose[2].scale, prose[2].mask)
    torch.testing.assert_close(own, prose[2].attn)
    assert len(prose.tokens.labels[0]) == 16 + NEW
    assert all(len(label) == 1 for label in prose.tokens.labels[0])  # characters


def test_what_a_model_without_generate_cannot_do():
    model = workbench.load("bundled:prose-softmax")
    ids = torch.ones(2, 5, dtype=torch.long)
    with pytest.raises(InputError, match="leave out do_sample"):
        capture_generation(model, ids, 2, do_sample=True)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    with pytest.raises(InputError, match="several of one length"):
        capture_generation(model, {"input_ids": ids, "attention_mask": mask}, 2)
    with pytest.raises(InputError, match="returns no logits"):
        capture_generation(nn.Sequential(nn.Embedding(9, 4), nn.Flatten()), ids, 2)


def test_attention_over_steps(prose, tmp_path):
    frame = workbench.analyze("attention-map", qkv=prose, layers="1", null_samples=0)
    assert list(frame.columns[3:5]) == ["layer", "step"]
    assert sorted(frame["step"].unique()) == list(range(NEW))
    attn, keys = prose[1].attn.double(), torch.arange(16 + NEW - 1)
    expected = {
        "attention_entropy": -(attn * attn.clamp_min(1e-300).log()).sum(-1),
        "attention_sink": attn.amax(-1),
        "attention_distance": (attn * (torch.arange(15, 15 + NEW)[:, None] - keys).abs()).sum(-1),
    }
    for metric, values in expected.items():
        rows = frame[frame["metric"] == metric].sort_values(["input", "head", "step"])
        torch.testing.assert_close(
            torch.tensor(rows["value"].to_numpy()), values.flatten(), rtol=1e-6, atol=1e-9
        )
    file = prose.save(tmp_path / "steps.safetensors")
    again = workbench.analyze("attention-map", qkv=file, layers="1", null_samples=0)
    assert again["value"].equals(frame["value"])
    for suffix in (".parquet", ".csv", ".json"):
        read = workbench.read_frame(workbench.write_frame(frame, tmp_path / f"frame{suffix}"))
        assert read["step"].equals(frame["step"])


def test_pairs_over_steps(prose):
    rows = workbench.analyze("attention-map", qkv=prose, per="pair", layers="0")
    last = rows[(rows["step"] == NEW - 1) & (rows["input"] == "1") & (rows["head"] == 2)]
    assert set(last["query"]) == {16 + NEW - 2}
    assert last["key"].tolist() == list(range(16 + NEW - 1))
    torch.testing.assert_close(torch.tensor(last["value"].to_numpy()).float(), prose[0].attn[1, 2, -1])
    assert set(last["query_label"]) == {prose.tokens.labels[1][16 + NEW - 2]}


def test_steps_after_an_input_s_end_are_left_out():
    model = causal("llama", SMALL | {"eos_token_id": list(range(7, 22, 2))})
    torch.manual_seed(3)
    captured = capture_generation(model, prompts(padded=True), 8, do_sample=True, num_return_sequences=3)
    frame = workbench.analyze("attention-map", qkv=captured, null_samples=0, layers="0", heads="0")
    counted = frame[frame["metric"] == "attention_entropy"].groupby("input").size().tolist()
    assert counted == captured.generated.real.sum(1).tolist()
    assert frame[frame["metric"] == "attention_entropy"]["value"].notna().all()


def test_analyses_of_whole_texts_say_what_to_take(prose):
    with pytest.raises(
        InputError, match=r"one of whole texts; capture the text in one pass.*or take attention-map"
    ):
        workbench.analyze("gram-spectrum", qkv=prose)


def test_from_the_command_line(tmp_path):
    from click.testing import CliRunner

    from workbench.apps.cli.command_tree import cli

    out = str(tmp_path / "steps.safetensors")
    line = [
        "capture",
        "-m",
        "bundled:prose-softmax",
        "-i",
        "bundled:prose",
        "-n",
        "1",
        "--generate",
        "5",
        "-o",
        out,
    ]
    assert CliRunner().invoke(cli, line, catch_exceptions=False).exit_code == 0
    captured = Capture.load(out)
    assert captured.generated.steps == captured[0].q.shape[2] == 5
    assert captured.generated.sequences.shape[1] <= 128  # the model's longest text
    with pytest.raises(InputError, match="generate at most 126"):
        CliRunner().invoke(cli, [*line[:8], "127", "-o", out], catch_exceptions=False)
