"""Tiny random models with several kinds of tokens, and what each says about its own attention without capture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tests.captures.families import hf_model, images, words

TEXT = {
    "vocab_size": 60, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 34,
    "max_position_embeddings": 64, "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1,
}  # fmt: skip
VISION = {
    "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 34, "image_size": 32,
    "patch_size": 8,
}  # fmt: skip
LLAMA = {**TEXT, "num_key_value_heads": 1, "model_type": "llama"}
QWEN_VISION = {
    "depth": 2, "embed_dim": 24, "hidden_size": 24, "num_heads": 3, "patch_size": 4, "spatial_merge_size": 2,
    "temporal_patch_size": 2, "in_channels": 3, "mlp_ratio": 2,
}  # fmt: skip
QWEN_TEXT = {**TEXT, "num_key_value_heads": 1, "rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2],
                                                                    "rope_theta": 1e4}}  # fmt: skip
IMAGE = 50
"""The token that stands for a patch of an image among words."""


@dataclass
class Model:
    """``own`` are the names of the outputs that hold the model's own maps, in the order of its calls."""

    name: str
    build: Callable[[], nn.Module]
    batch: Callable[[], dict[str, Tensor]]
    own: tuple[str, ...]


def written() -> Tensor:
    return torch.randint(5, 50, (3, 7), generator=torch.Generator().manual_seed(3))


def text_to_text() -> dict[str, Tensor]:
    return words() | {"decoder_input_ids": written()}


def sound() -> dict[str, Tensor]:
    features = torch.randn(2, 6, 18, generator=torch.Generator().manual_seed(4))
    return {"input_features": features, "decoder_input_ids": written()[:2]}


def picture_and_words() -> dict[str, Tensor]:
    batch = {name: value[:2] for name, value in words().items()}
    return batch | {"pixel_values": images()}


def among_words(patches: int, pixels: dict[str, Tensor], rows: int = 2) -> dict[str, Tensor]:
    """Words with as many image tokens as each input has patches, the second text padded."""
    ids = torch.randint(5, 45, (rows, patches + 5), generator=torch.Generator().manual_seed(5))
    ids[:, 2 : 2 + patches] = IMAGE
    mask = torch.ones_like(ids)
    mask[1:, -2:] = 0
    return {"input_ids": torch.where(mask.bool(), ids, 1), "attention_mask": mask} | pixels


def qwen_pixels(*grids: tuple[int, int, int]) -> dict[str, Tensor]:
    patches = sum(t * h * w for t, h, w in grids)
    values = torch.randn(patches, 3 * 2 * 4 * 4, generator=torch.Generator().manual_seed(6))
    return {"pixel_values": values, "image_grid_thw": torch.tensor(grids)}


def qwen_batch() -> dict[str, Tensor]:
    batch = among_words(6, qwen_pixels((1, 4, 6), (1, 4, 6)))
    return batch | {"mm_token_type_ids": (batch["input_ids"] == IMAGE).int()}


def config(name: str, **options: Any) -> Any:
    import transformers

    return getattr(transformers, name)(**options)


def llava() -> nn.Module:
    return hf_model(
        "LlavaForConditionalGeneration", "LlavaConfig", vision_config=config("CLIPVisionConfig", **VISION),
        text_config=config("LlamaConfig", **LLAMA), image_token_index=IMAGE, vision_feature_layer=-1,
    )()  # fmt: skip


def smolvlm() -> nn.Module:
    return hf_model(
        "SmolVLMForConditionalGeneration", "SmolVLMConfig", vision_config=VISION, text_config=LLAMA,
        image_token_id=IMAGE, scale_factor=2, pad_token_id=1,
    )()  # fmt: skip


def qwen(name: str) -> Callable[[], nn.Module]:
    more = {} if name == "Qwen2VL" else {
        "out_hidden_size": 24, "intermediate_size": 34, "window_size": 16, "fullatt_block_indexes": [1],
    }  # fmt: skip
    return hf_model(
        f"{'Qwen2_5_VL' if more else name}ForConditionalGeneration", f"{'Qwen2_5_VL' if more else name}Config",
        vision_config=QWEN_VISION | more, text_config=QWEN_TEXT, image_token_id=IMAGE, video_token_id=51,
        vision_start_token_id=52, vision_end_token_id=53,
    )  # fmt: skip


TOWERS = {"vision_config": VISION, "projection_dim": 10}
BART = {
    "vocab_size": 60, "d_model": 24, "encoder_layers": 2, "decoder_layers": 1, "encoder_attention_heads": 3,
    "decoder_attention_heads": 3, "encoder_ffn_dim": 34, "decoder_ffn_dim": 34, "max_position_embeddings": 40,
    "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2, "forced_eos_token_id": 2,
}  # fmt: skip
WHISPER = BART | {
    "num_mel_bins": 6, "max_source_positions": 9, "max_target_positions": 20, "forced_eos_token_id": None,
    "begin_suppress_tokens": None, "suppress_tokens": None,
}  # fmt: skip
T5 = {
    "vocab_size": 60, "d_model": 24, "d_kv": 8, "d_ff": 34, "num_layers": 2, "num_heads": 3, "pad_token_id": 1,
    "decoder_start_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
DECODING = ("encoder_attentions", "decoder_attentions", "cross_attentions")
MODELS = [
    Model("t5", hf_model("T5ForConditionalGeneration", "T5Config", **T5), text_to_text, DECODING),
    Model("bart", hf_model("BartForConditionalGeneration", "BartConfig", **BART), text_to_text, DECODING),
    Model("whisper", hf_model("WhisperForConditionalGeneration", "WhisperConfig", **WHISPER), sound, DECODING),
    Model("clip", hf_model("CLIPModel", "CLIPConfig", text_config=TEXT, **TOWERS), picture_and_words,
          ("vision_model_output", "text_model_output")),
    Model("siglip", hf_model("SiglipModel", "SiglipConfig", text_config=TEXT, vision_config=VISION), picture_and_words,
          ("vision_model_output", "text_model_output")),
    Model("llava", llava, lambda: among_words(16, {"pixel_values": images()}), ("attentions",)),
    Model("smolvlm", smolvlm, lambda: among_words(4, {"pixel_values": images()[:, None]}), ("attentions",)),
    Model("qwen2-vl", qwen("Qwen2VL"), qwen_batch, ("attentions",)),
    Model("qwen2.5-vl", qwen("Qwen2_5_VL"), qwen_batch, ("attentions",)),
]  # fmt: skip


GEMMA = TEXT | {"num_key_value_heads": 1, "head_dim": 8}
SIGLIP = VISION | {"model_type": "siglip_vision_model"}
QWEN_3 = {
    "vision_config": QWEN_VISION | {
        "intermediate_size": 34, "out_hidden_size": 24, "deepstack_visual_indexes": [0], "num_position_embeddings": 64,
    },
    "text_config": QWEN_TEXT | {"head_dim": 8},
    "video_token_id": 51, "vision_start_token_id": 52, "vision_end_token_id": 53,
}  # fmt: skip
OTHERS: dict[str, dict[str, Any]] = {
    "Idefics3": {"vision_config": VISION, "text_config": LLAMA, "scale_factor": 2, "pad_token_id": 1},
    "Gemma3": {"vision_config": VISION, "text_config": GEMMA, "mm_tokens_per_image": 4},
    "PaliGemma": {
        "vision_config": SIGLIP | {"projection_dim": 24, "num_image_tokens": 16},
        "text_config": GEMMA | {"model_type": "gemma"}, "projection_dim": 24, "hidden_size": 24,
    },
    "InternVL": {
        "vision_config": VISION | {"image_size": [32, 32], "patch_size": [8, 8]}, "text_config": LLAMA,
        "image_seq_length": 4, "downsample_ratio": 0.5,
    },
    "AyaVision": {
        "vision_config": SIGLIP, "text_config": LLAMA | {"model_type": "cohere2", "head_dim": 8},
        "downsample_factor": 2,
    },
    "Qwen3VL": QWEN_3,
}  # fmt: skip
"""Further models with an image among words, by the name of their classes."""


def _other(name: str) -> Callable[[], nn.Module]:
    mark = "image_token_index" if name in ("PaliGemma", "AyaVision") else "image_token_id"
    return hf_model(f"{name}ForConditionalGeneration", f"{name}Config", **OTHERS[name], **{mark: IMAGE})


def _gemma_batch() -> dict[str, Tensor]:
    batch = among_words(4, {"pixel_values": images()})
    return batch | {"token_type_ids": (batch["input_ids"] == IMAGE).long()}


LOOKING = [
    *(model for model in MODELS if model.name in ("llava", "smolvlm", "qwen2-vl", "qwen2.5-vl")),
    Model("idefics3", _other("Idefics3"), lambda: among_words(4, {"pixel_values": images()[:, None]}), ()),
    Model("gemma3", _other("Gemma3"), _gemma_batch, ()),
    Model("paligemma", _other("PaliGemma"), lambda: among_words(16, {"pixel_values": images()}), ()),
    Model("internvl", _other("InternVL"), lambda: among_words(4, {"pixel_values": images()}), ()),
    Model("aya", _other("AyaVision"), lambda: among_words(4, {"pixel_values": images()}), ()),
    Model("qwen3-vl", _other("Qwen3VL"), qwen_batch, ()),
]
"""Models whose words look at an image: as its patches are, merged, pooled, shuffled into channels, and packed."""
