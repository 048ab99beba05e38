"""What the general ways of shrinking and of making inputs do not know of single models.

``CLASSES`` names the class of a type's models. ``FIELDS`` sets fields of its configuration after shrinking, by path
("" holds what the configuration is made with). ``INPUTS`` makes its batch of the configuration, or says why there is
none. ``DENSE`` says why a capture has another shape than what ran. ``ELSEWHERE`` says of softmaxes that meet data
in a model and are no attention over tokens their last axes, and what they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from conformance.inputs import BATCH, LENGTH, noise

_SLIDING_AND_FULL: dict[str, Any] = {
    "layer_types": ["sliding_attention", "full_attention"],
    "num_hidden_layers": 2,
}
_DENSE_AND_SPARSE: dict[str, Any] = {"mlp_layer_types": ["dense", "sparse"], "num_hidden_layers": 2}
_BY_LAYER = {
    kind: {"rope_type": "default", "rope_theta": 10000.0} for kind in _SLIDING_AND_FULL["layer_types"]
}


def _words(*shape: int) -> Tensor:
    return torch.randint(5, 50, shape, generator=torch.Generator().manual_seed(2))


CLASSES: dict[str, str] = {}
FIELDS: dict[str, dict[str, Any]] = {
    "cohere_compass_text": {
        "": {
            **_SLIDING_AND_FULL,
            "rope_parameters": _BY_LAYER,
        }
    },
    "donut-swin": {"image_size": 224},
    "swin": {"image_size": 224},
    "dots1": {"": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2}},
    "esm": {"": {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32}},
    "blt": {"encoder_hash_byte_group_vocab": 64, "encoder_config.encoder_hash_byte_group_vocab": 64},
    "chameleon": {"": {"vocabulary_map": {"<image>": 99}}},
    "emu3": {"": {"vocabulary_map": {"<image>": 99}}},
    "cohere_compass": {"": {"text_config": {"rope_parameters": _BY_LAYER, **_SLIDING_AND_FULL}}},
    "diffusion_gemma_text": {"": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32}},
    "falcon_h1": {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "gemma3n": {"text_config.num_kv_shared_layers": 0},
    "blip-2": {"image_token_index": 158},
    "deepseek_ocr2_text": {"": {**_DENSE_AND_SPARSE, "num_experts_per_tok": 2}},
    "deepseek_ocr2": {"": {"text_config": {**_DENSE_AND_SPARSE, "num_experts_per_tok": 2}}},
    "gemma4_assistant": {
        "": {"text_config": {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}}
    },
    "depth_pro": {"patch_size": 56},
    "fastspeech2_conformer_with_hifigan": {"vocoder_config.model_in_dim": 80},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "granitemoehybrid": {"": {"layer_types": ["linear_attention", "full_attention"], "num_hidden_layers": 2}},
    "instructblip": {"image_token_index": 158},
    "instructblipvideo": {"video_token_index": 158},
    "moonshine_streaming": {"num_key_value_heads": 4},
    "musicgen": {"dropout": 0.0, "layerdrop": 0.0},
    "lfm2_moe": {
        "": {"layer_types": ["conv", "full_attention"], "num_hidden_layers": 2, "num_dense_layers": 1}
    },
    "nemotron": {"num_key_value_heads": 2},
    "cvt": {"depth": [1, 2, 3]},
    "dbrx": {"attn_config.rope_theta": 10000.0, "attn_config.clip_qkv": 8.0},
    "deepseek_v2": {"": {"num_experts_per_tok": 2}},
    "bamba": {"attn_layer_indices": [1]},
    "autoformer": {"": {"prediction_length": 16, "context_length": 32, "num_time_features": 1}},
    "informer": {"": {"prediction_length": 16, "context_length": 32, "num_time_features": 1}},
    "time_series_transformer": {"": {"prediction_length": 16, "context_length": 32, "num_time_features": 1}},
    "encoder-decoder": {
        "": {
            "encoder": {"model_type": "bert"},
            "decoder": {"model_type": "bert", "is_decoder": True, "add_cross_attention": True},
        }
    },
    "vision-encoder-decoder": {
        "": {"encoder": {"model_type": "vit"}, "decoder": {"model_type": "gpt2", "add_cross_attention": True}}
    },
    "speech-encoder-decoder": {
        "": {
            "encoder": {"model_type": "wav2vec2"},
            "decoder": {"model_type": "bert", "is_decoder": True, "add_cross_attention": True},
        }
    },
    "vision-text-dual-encoder": {
        "": {"vision_config": {"model_type": "clip_vision_model"}, "text_config": {"model_type": "bert"}}
    },
    "timm_wrapper": {"": {"architecture": "vit_tiny_patch16_224"}},
    "timm_backbone": {"": {"backbone": "vit_tiny_patch16_224"}},
}
INPUTS: dict[str, str | Callable[[Any], dict[str, Any]]] = {
    "fun_asr_nano_encoder": lambda config: {
        "input_features": noise(BATCH, 20, 560),
        "input_features_mask": torch.ones(BATCH, 20).long(),
    },
    "granite_speech_encoder": lambda config: {"hidden_states": noise(BATCH, LENGTH, config.input_dim)},
    "granite_speech_plus_encoder": lambda config: {"hidden_states": noise(BATCH, LENGTH, config.input_dim)},
    "idefics": lambda config: {
        "input_ids": _words(BATCH, LENGTH),
        "attention_mask": torch.ones(BATCH, LENGTH).long(),
        "pixel_values": noise(BATCH, 1, 3, *2 * [config.vision_config.image_size]),
        "image_attention_mask": torch.ones(BATCH, LENGTH, 1).long(),
    },
    "kyutai_speech_to_text": lambda config: {"input_ids": _words(BATCH, LENGTH, config.num_codebooks + 1)},
    "dia": lambda config: {
        "input_ids": _words(BATCH, LENGTH),
        "decoder_input_ids": _words(BATCH, 7, config.decoder_config.num_channels),
    },
    "dia_decoder": lambda config: {
        "input_ids": _words(BATCH, 7, config.num_channels),
        "encoder_hidden_states": noise(BATCH, LENGTH, config.cross_hidden_size),
    },
}
_BANDS = "its softmax runs in bands and chunks, the capture is dense; tests/captures compares them"
DENSE: dict[str, str] = {"longformer": _BANDS, "led": _BANDS, "pegasus_x": _BANDS}
_STREAMS = ((4, 4), "beside them a softmax mixes the four residual streams of hyper-connections")
ELSEWHERE: dict[str, tuple[tuple[int, ...], str]] = {
    "convbert": (
        (9, 1),
        "beside them the kernels of a dynamic convolution, of a linear layer, are a softmax over 9 places",
    ),
    "deepseek_v4": _STREAMS,
    "glm5_next": _STREAMS,
    "glm5_next_text": _STREAMS,
}
