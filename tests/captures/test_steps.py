"""Denoising: every step of a loop captured, exact, labelled, and the loop's result what it is without."""

from __future__ import annotations

import diffusers
import pytest
import torch
from torch import Tensor, nn

from tests.captures.families import seeded
from workbench import analyze, analyze_steps, capture, capture_steps, read_frame, write_frame
from workbench.captures import attention_weights
from workbench.core.errors import InputError

HEADS = {"num_attention_heads": 3, "attention_head_dim": 8}
IMAGES = {"in_channels": 4, "num_layers": 2, "sample_size": 8, "patch_size": 2}


def random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


LATENTS, WORDS = {"hidden_states": random(2, 4, 8, 6)}, {"encoder_hidden_states": random(2, 5, 10)}
TIME = {"timestep": torch.tensor([3.0, 3.0])}
PLACES = torch.tensor([[0.0, row, column] for row in range(4) for column in range(3)])
# The class, its configuration, its inputs, and (queries, keys) of every layer with whether it is cross attention.
MODELS = {
    "dit": ("DiTTransformer2DModel", HEADS | IMAGES | {"num_embeds_ada_norm": 5, "norm_num_groups": 1},
            {"hidden_states": random(2, 4, 8, 8), "timestep": torch.tensor([3, 3]),
             "class_labels": torch.tensor([1, 2])},
            [(16, 16, "self")] * 2),
    "sd3": ("SD3Transformer2DModel", HEADS | IMAGES | {"joint_attention_dim": 10, "caption_projection_dim": 24,
            "pooled_projection_dim": 6, "out_channels": 4, "pos_embed_max_size": 8},
            LATENTS | WORDS | TIME | {"pooled_projections": random(2, 6)}, [(17, 17, "self")] * 2),
    "pixart": ("PixArtTransformer2DModel", HEADS | IMAGES | {"cross_attention_dim": 24, "caption_channels": 10,
               "out_channels": 4, "use_additional_conditions": False},
               LATENTS | WORDS | TIME | {"encoder_attention_mask": torch.tensor([[1] * 5, [1, 1, 1, 0, 0]])},
               [(12, 12, "self"), (12, 5, "cross")] * 2),
    "flux": ("FluxTransformer2DModel", {"patch_size": 1, "in_channels": 4, "num_layers": 1, "num_single_layers": 1,
             "attention_head_dim": 16, "num_attention_heads": 2, "joint_attention_dim": 10,
             "pooled_projection_dim": 6, "axes_dims_rope": (4, 4, 8)},
             WORDS | {"hidden_states": random(2, 12, 4), "pooled_projections": random(2, 6),
                      "timestep": torch.tensor([0.3, 0.3]), "img_ids": PLACES, "txt_ids": torch.zeros(5, 3)},
             [(17, 17, "self")] * 2),
    "wan": ("WanTransformer3DModel", {"patch_size": (1, 2, 2), "num_attention_heads": 2, "attention_head_dim": 12,
            "in_channels": 4, "out_channels": 4, "text_dim": 10, "freq_dim": 8, "ffn_dim": 16, "num_layers": 1,
            "rope_max_seq_len": 16},
            WORDS | {"hidden_states": random(2, 4, 2, 8, 6), "timestep": torch.tensor([3, 3])},
            [(24, 24, "self"), (24, 5, "cross")]),
    "cogvideox": ("CogVideoXTransformer3DModel", {"num_attention_heads": 2, "attention_head_dim": 8, "in_channels": 4,
                  "out_channels": 4, "time_embed_dim": 4, "text_embed_dim": 10, "num_layers": 1, "sample_width": 6,
                  "sample_height": 8, "sample_frames": 5, "patch_size": 2, "max_text_seq_length": 5},
                  WORDS | {"hidden_states": random(2, 2, 4, 8, 6), "timestep": torch.tensor([3, 3])},
                  [(29, 29, "self")]),
    "unet": ("UNet2DConditionModel", {"block_out_channels": (8, 16), "layers_per_block": 1, "sample_size": 8,
             "in_channels": 4, "out_channels": 4, "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
             "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"), "cross_attention_dim": 10,
             "attention_head_dim": 4, "norm_num_groups": 4},
             WORDS | {"sample": random(2, 4, 8, 8), "timestep": torch.tensor(3)},
             [(64, 64, "self"), (64, 5, "cross"), (16, 16, "self"), (16, 5, "cross"),
              *[(64, 64, "self"), (64, 5, "cross")] * 2]),
}  # fmt: skip
every_model = pytest.mark.parametrize("name", MODELS)


def build(name: str) -> tuple[nn.Module, dict[str, Tensor]]:
    kind, config, batch, _ = MODELS[name]
    return seeded(lambda: getattr(diffusers, kind)(**config))(), batch | {"return_dict": False}


@every_model
def test_operands_are_those_of_the_kernel_and_the_output_is_unchanged(name: str, monkeypatch):
    model, batch = build(name)
    seen = []
    kernel = torch.nn.functional.scaled_dot_product_attention

    def noting(query, key, value, attn_mask=None, *args, **kwargs):
        mask = attn_mask if attn_mask is None or attn_mask.ndim == 4 else attn_mask[:, None]
        seen.append(attention_weights(query, key, query.shape[-1] ** -0.5, mask))
        return kernel(query, key, value, attn_mask, *args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", noting)
    with torch.no_grad():
        before = model(**batch)[0]
    monkeypatch.undo()
    captured = capture(model, batch)
    assert torch.equal(captured.result[0], before)
    assert [(*record.counts, record.source) for record in captured] == MODELS[name][3]
    for record, own in zip(captured, seen, strict=True):
        torch.testing.assert_close(record.attn, own, rtol=1e-5, atol=2e-6)


@every_model
def test_patches_and_words_are_labelled(name: str):
    model, batch = build(name)
    captured = capture(model, batch, sites=("k",))
    for record in captured:
        tokens = captured.tokens_of(record.index)
        kinds = {*tokens.kinds[0]}
        joint = name in ("sd3", "flux", "cogvideox")
        assert kinds == ({"patch", "word"} if joint else {"patch"})
        assert (tokens.keys is not None) == (record.source == "cross")
        if tokens.keys is not None:
            assert "word" in tokens.keys.kinds[0]
        patches = [
            label for label, kind in zip(tokens.labels[0], tokens.kinds[0], strict=True) if kind == "patch"
        ]
        assert patches[:2] == (["0:0,0", "0:0,1"] if name in ("wan", "cogvideox") else ["0,0", "0,1"])
        assert len({*patches}) == len(patches)
        assert (tokens.kinds[0][0] == "word") == (name in ("flux", "cogvideox"))
    if name == "pixart":
        assert captured.tokens_of(1).keys.mask.tolist() == [[True] * 5, [True] * 3 + [False] * 2]


def loop(
    model: nn.Module, batch: dict[str, Tensor], times: tuple[float, ...] = (900.0, 500.0, 1.0)
) -> Tensor:
    x = batch["hidden_states"].clone()
    for time in times:
        with torch.no_grad():
            x -= 0.1 * model(**batch | {"hidden_states": x, "timestep": torch.full((2,), time)})[0]
    return x


def test_every_step_is_captured_and_the_loop_gives_what_it_gives():
    model, batch = build("sd3")
    plain = loop(model, batch)
    steps = capture_steps(model, lambda: loop(model, batch))
    assert torch.equal(steps.result, plain)
    assert (steps.times, steps.numbers, steps.count) == ([900.0, 500.0, 1.0], [0, 1, 2], 3)
    assert "forward" not in vars(model)
    first = capture(model, batch | {"timestep": torch.full((2,), 900.0)})
    assert torch.equal(steps[0][1].attn, first[1].attn)
    assert not torch.equal(steps[2][1].attn, first[1].attn)
    with pytest.raises(InputError, match="step 3 was not kept; kept are 0, 1, 2"):
        steps[3]


def test_a_time_is_a_number_or_a_tensor_or_nothing():
    """One time for all inputs, as a number, in a tensor, one for each input in another argument, or none."""

    class Denoiser(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, hidden_states, timestep=None, t=None):
            return self.attn(hidden_states, hidden_states, hidden_states)[0]

    model, x = Denoiser().eval(), random(2, 3, 8)
    calls = [(x, 7), (x, torch.tensor(5)), (x,), (x, torch.zeros(0)), (x, None)]
    steps = capture_steps(
        model, lambda: [model(*args) for args in calls] + [model(x, t=torch.tensor([2, 3]))]
    )
    assert steps.times == [7.0, 5.0, None, None, None, 2.0]


def test_only_the_steps_asked_for_are_kept():
    model, batch = build("sd3")
    steps = capture_steps(model, lambda: loop(model, batch), steps="1-2", layers=[1], sites=("q",))
    assert (steps.numbers, steps.count, len(steps)) == ([1, 2], 3, 2)
    assert [record.index for record in steps[2]] == [1]
    handed = []
    kept = capture_steps(
        model, lambda: loop(model, batch), sites="q", each=lambda step, own: handed.append((step, own[0]))
    )
    assert ([step for step, _ in handed], len(kept)) == ([0, 1, 2], 0)
    with pytest.raises(InputError, match="steps are counted from 0"):
        capture_steps(model, lambda: loop(model, batch), steps=-1)


def test_a_loop_with_a_scheduler_and_hooks_of_the_users_own():
    """A loop like a pipeline's: its scheduler, inference mode; hooks of the user's own run once a step."""
    model, batch = build("sd3")
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler()
    called = []
    model.register_forward_hook(lambda *_: called.append(1))

    def denoise() -> Tensor:
        scheduler.set_timesteps(2)
        x = batch["hidden_states"].clone()
        for time in scheduler.timesteps:
            with torch.inference_mode():
                noise = model(
                    x, batch["encoder_hidden_states"], batch["pooled_projections"], time.expand(2)
                ).sample
            x = scheduler.step(noise, time, x, return_dict=False)[0]
        return x

    plain = denoise()
    assert torch.equal(capture_steps(model, denoise).result, plain)
    assert len(called) == 4


def test_a_whole_pipeline_gives_the_images_that_it_gives_alone():
    """Stable Diffusion with random weights: text encoder, guidance, scheduler, decoder of latents."""
    from transformers import CLIPTextConfig, CLIPTextModel

    torch.manual_seed(0)
    unet = diffusers.UNet2DConditionModel(**MODELS["unet"][1]).eval()
    vae = diffusers.AutoencoderKL(
        block_out_channels=(8, 8), norm_num_groups=4, latent_channels=4,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
    ).eval()  # fmt: skip
    text = CLIPTextModel(
        CLIPTextConfig(
            hidden_size=10, intermediate_size=12, num_hidden_layers=1, num_attention_heads=2, vocab_size=99,
            max_position_embeddings=5, bos_token_id=0, eos_token_id=1,
        )
    ).eval()  # fmt: skip
    pipeline = diffusers.StableDiffusionPipeline(
        vae, text, None, unet, diffusers.DDIMScheduler(clip_sample=False, steps_offset=1), None, None,
        requires_safety_checker=False,
    )  # fmt: skip
    pipeline.set_progress_bar_config(disable=True)
    with torch.no_grad():
        prompts = [text(torch.full((1, 5), word)).last_hidden_state for word in (3, 7)]

    def paint() -> Tensor:
        return pipeline(
            prompt_embeds=prompts[0], negative_prompt_embeds=prompts[1], num_inference_steps=3,
            generator=torch.Generator().manual_seed(0), output_type="pt",
        ).images  # fmt: skip

    plain = paint()
    steps = capture_steps(pipeline.unet, paint)
    assert torch.equal(steps.result, plain)
    assert plain.isfinite().all()
    assert steps.times == [667.0, 334.0, 1.0]
    # The prompt that is not wanted and the one that is are inputs 0 and 1.
    assert [(tuple(record.counts), record.source) for record in steps[2]] == [
        (counts[:2], counts[2]) for counts in MODELS["unet"][3]
    ]
    assert not torch.equal(steps[2][1].attn[0], steps[2][1].attn[1])


def test_an_exception_leaves_the_model_as_it_was():
    model, batch = build("sd3")

    def stop() -> None:
        loop(model, batch, (900.0,))
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        capture_steps(model, stop)
    assert "forward" not in vars(model)
    assert not model._forward_hooks
    with pytest.raises(InputError, match=r"run\(\) never ran the SD3Transformer2DModel"):
        capture_steps(model, lambda: None)
    with pytest.raises(InputError, match=r"pipeline\.transformer"):
        capture_steps(object(), lambda: None)


def test_frames_have_a_row_for_step_layer_and_head(tmp_path):
    model, batch = build("pixart")
    frame = analyze_steps("attention-map", model, lambda: loop(model, batch), null_samples=0)
    entropy = frame[(frame["metric"] == "attention_entropy") & (frame["input"] == "1")]
    assert len(entropy) == 3 * 4 * 3
    assert not entropy.duplicated(["step", "layer", "head"]).any()
    assert frame.attrs["times"] == {0: 900.0, 1: 500.0, 2: 1.0}
    captured = capture_steps(model, lambda: loop(model, batch), steps=[1])[1]
    alone = analyze("attention-map", qkv=captured, null_samples=0)
    own = frame[frame["step"] == 1].reset_index(drop=True)
    assert own["value"].tolist() == pytest.approx(alone["value"].tolist(), nan_ok=True)
    assert set(own[own["source"] == "cross"]["layer"]) == {1, 3}
    again = read_frame(write_frame(frame, tmp_path / "steps.parquet"))
    assert again["step"].tolist() == frame["step"].tolist()


def test_what_is_nothing_of_a_step_is_refused():
    model, batch = build("dit")
    with pytest.raises(InputError, match="perturbs inputs"):
        analyze_steps("snr", model, lambda: loop(model, batch))
