"""What the general ways of shrinking and of making inputs do not know of single models.

``CLASSES`` names the class of a type's models, and ``PARTS`` the part of its configuration that this class is made of,
where the whole has no forward pass. ``SMALL`` is a small configuration in full, where parts of a model fit together in
a way of their own, and ``TIMM`` the same of timm. ``FIELDS`` sets fields of its configuration after shrinking, by path
("" holds what the configuration is made with). ``INPUTS`` makes its batch of the configuration, or says why there is
none. ``AROUND`` makes a module that runs the model as it is meant to be run. ``OWN_WEIGHTS`` keeps a model's weights as
they are made. ``DENSE`` says why a capture has another shape than what ran. ``ELSEWHERE`` says of softmaxes that meet
data in a model and are no attention over tokens their last axes, and what they are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

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


def _pointed_at(size: int) -> Callable[[Any], dict[str, Any]]:
    """Images with two points in each."""
    return lambda config: {
        "pixel_values": noise(BATCH, 3, size, size),
        "input_points": size * noise(BATCH, 1, 2, 2).sigmoid(),
    }


CLASSES: dict[str, str] = {
    "musicgen": "MusicgenForConditionalGeneration",
    "musicgen_melody": "MusicgenMelodyForConditionalGeneration",
    "bark": "BarkSemanticModel",
    "pi0": "PI0Model",
}
PARTS: dict[str, str] = {"bark": "semantic_config"}
FIELDS: dict[str, dict[str, Any]] = {
    "cohere_compass_text": {
        "": {
            **_SLIDING_AND_FULL,
            "rope_parameters": _BY_LAYER,
        }
    },
    "donut-swin": {"image_size": 224},
    "dots1": {"": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2}},
    "esm": {"": {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32}},
    "chameleon": {"": {"vocabulary_map": {"<image>": 99}}},
    "emu3": {"": {"vocabulary_map": {"<image>": 99}}},
    "cohere_compass": {"": {"text_config": {"rope_parameters": _BY_LAYER, **_SLIDING_AND_FULL}}},
    "diffusion_gemma_text": {"": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32}},
    "zoedepth": {"bottleneck_features": 64},
    "xcodec": {"codebook_dim": 128},
    "t5gemma2_text": {"": {"dropout_rate": 0.0}},
    "t5gemma2_encoder": {"": {"text_config": {"dropout_rate": 0.0}}},
    "t5gemma2_decoder": {"": {"dropout_rate": 0.0}},
    "step3p5": {"sliding_window": 8},
    "qwen3_omni_moe_talker_text": {"": {"shared_expert_intermediate_size": 48}},
    "step3p7": {"text_config.sliding_window": 8},
    "diffusion_gemma": {
        "": {"text_config": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32}}
    },
    "vitmatte": {"convstream_hidden_sizes": [12, 24, 48], "fusion_hidden_sizes": [64, 32, 16, 8]},
    "falcon_h1": {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "gemma3n": {"text_config.num_kv_shared_layers": 0},
    "blip-2": {"image_token_index": 158},
    "deepseek_ocr2_text": {"": {**_DENSE_AND_SPARSE, "num_experts_per_tok": 2}},
    "deepseek_ocr2": {"": {"text_config": {**_DENSE_AND_SPARSE, "num_experts_per_tok": 2}}},
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
    "qwen2_5_omni_thinker": {"vision_start_token_id": 97},
    "qwen3_omni_moe_thinker": {"vision_start_token_id": 97},
    "efficientnet": {"": {"width_coefficient": 1.0, "depth_coefficient": 1.0}, "hidden_dim": 1280},
}
_TEXT = {
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": 1,
}
_VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}
_SWIN = {
    "model_type": "swin",
    "image_size": 64,
    "embed_dim": 16,
    "depths": [1, 1, 2, 1],
    "num_heads": [2, 2, 4, 4],
    "window_size": 2,
}
_RESNET = {
    "model_type": "rt_detr_resnet",
    "embedding_size": 16,
    "hidden_sizes": [16, 32, 48, 64],
    "depths": [1, 1, 1, 1],
    "layer_type": "basic",
    "out_indices": [2, 3, 4],
}
_REAL_TIME_DETR = {
    "backbone_config": _RESNET,
    "encoder_hidden_dim": 32,
    "encoder_in_channels": [32, 48, 64],
    "encoder_ffn_dim": 48,
    "encoder_attention_heads": 4,
    "d_model": 32,
    "num_queries": 10,
    "decoder_in_channels": [32, 32, 32],
    "decoder_ffn_dim": 48,
    "decoder_layers": 2,
    "decoder_attention_heads": 4,
}
_DINO = {
    "model_type": "dinov2",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 16,
    "patch_size": 8,
}
_SAM_VISION = {
    **_VISION,
    "output_channels": 16,
    "window_size": 2,
    "global_attn_indexes": [1],
    "num_pos_feats": 8,
}
_SAM_PROMPT = {"hidden_size": 16, "image_size": 32, "patch_size": 8, "mask_input_channels": 4}
_SAM_MASKS = {"hidden_size": 16, "mlp_dim": 24, "num_attention_heads": 2, "iou_head_hidden_dim": 16}
_BLT_LOCAL = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 48,
    "hidden_size_global": 64,
}
_GRANITE_SPEECH = {
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_mel_bins": 16,
    "context_size": 16,
    "max_position_embeddings": 32,
}
_PIX2STRUCT_VISION = {
    "hidden_size": 32,
    "patch_embed_hidden_size": 48,
    "d_ff": 48,
    "d_kv": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "seq_len": 16,
}
_PIX2STRUCT_TEXT = {
    "vocab_size": 99,
    "hidden_size": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "initializer_range": 0.02,
}
_MUSE_VISION = {
    "patch_size": 4,
    "pos_emb_height": 8,
    "pos_emb_width": 8,
    "max_position_embeddings": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "intermediate_size": 48,
}
_MINICPM_VISION = {**_VISION, "insert_layer_id": 0}
_SAM2_VISION: dict[str, Any] = {
    "backbone_config": {
        "model_type": "sam2_hiera_det_model",
        "hidden_size": 16,
        "image_size": [128, 128],
        "blocks_per_stage": [1, 2, 1, 1],
        "embed_dim_per_stage": [16, 32, 64, 128],
        "num_attention_heads_per_stage": [1, 2, 4, 8],
        "window_size_per_stage": [8, 4, 4, 4],
        "global_attention_blocks": [2],
        "window_positional_embedding_background_size": [2, 2],
    },
    "backbone_channel_list": [128, 64, 32, 16],
    "backbone_feature_sizes": [[32, 32], [16, 16], [8, 8]],
    "fpn_hidden_size": 32,
}
_SAM2_PROMPT = {"hidden_size": 32, "image_size": 128, "patch_size": 16, "mask_input_channels": 8}
_SAM2_MASKS = {"hidden_size": 32, "mlp_dim": 48, "num_attention_heads": 4, "iou_head_hidden_dim": 32}
_SAM3_DETR = {"hidden_size": 32, "num_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
_OMNI_AUDIO = {
    "num_mel_bins": 16,
    "encoder_layers": 2,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "d_model": 32,
    "n_window": 8,
    "output_dim": 32,
}
_GROUPED = {**_TEXT, "num_key_value_heads": 2, "head_dim": 8}
_TIMM = {
    "model_type": "timm_wrapper",
    "architecture": "vit_pe_core_tiny_patch16_384",
    "model_args": {"embed_dim": 32, "depth": 2, "num_heads": 4, "img_size": [64, 64]},
}
_PE_VIDEO = {
    "vision_config": {**_TIMM, "do_pooling": True, "num_labels": 32, "global_pool": "map"},
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "head_dim": 8,
}
_SAM3_VISION = {
    "model_type": "sam3_vision_model",
    "backbone_config": {
        **{key: value for key, value in _VISION.items() if key != "image_size"},
        "model_type": "sam3_vit_model",
        "image_size": 64,
        "pretrain_image_size": 32,
        "window_size": 4,
        "global_attn_indexes": [1],
    },
    "fpn_hidden_size": 32,
    "backbone_feature_sizes": [[32, 32], [16, 16], [8, 8]],
}
_EDGETAM_VISION = {
    "backbone_config": {
        "model_type": "timm_wrapper",
        "architecture": "repvit_m1",
        "num_classes": 2,
        "model_args": {"in_chans": 3, "features_only": True, "out_indices": [0, 1, 2, 3]},
    },
    "backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]],
    "fpn_hidden_size": 32,
}
_SPEECH_CODEC = {"hidden_size": 16, "num_filters": 4, "downsampling_ratios": [2, 2], "depths": [1, 1, 1]}
_KERNELS = {
    "reduce_channel": [1, 1, 0],
    "return_channel": [1, 1, 0],
    **{
        f"{direction}{part}ratio": [
            [size if tall else 1, size if wide else 1],
            [1, 1],
            [tall * half, wide * half],
        ]
        for direction, tall, wide in (
            ("vertical_long_to_small_conv_", 1, 0),
            ("horizontal_small_to_long_conv_", 0, 1),
            ("symmetric_conv_long_", 1, 1),
        )
        for part, size, half in (("long", 7, 3), ("mid", 5, 2), ("short", 3, 1))
    },
}
_MEMORY = {
    "mask_decoder_config": {**_SAM2_MASKS, "hidden_size": 128},
    "memory_attention_hidden_size": 128,
    "memory_attention_num_layers": 2,
    "memory_attention_feed_forward_hidden_size": 48,
    "memory_attention_rope_feat_sizes": [8, 8],
    "memory_encoder_hidden_size": 128,
    "mask_downsampler_embed_dim": 128,
    "memory_fuser_embed_dim": 128,
    "memory_fuser_intermediate_dim": 48,
}
_LCNET = {
    "model_type": "pp_lcnet_v4",
    "out_features": ["stage1", "stage2", "stage3", "stage4"],
    "block_configs": [
        [[3, before, after, stride, False]]
        for before, after, stride in ((96, 96, 1), (96, 96, 2), (96, 192, 2), (192, 384, 2))
    ],
}
_DETECTOR = {
    "kernel_list": [3, 2, 2],
    "scale_factor_list": [1, 2, 4, 8],
    "intraclass_block_config": _KERNELS,
}
_NEMOTRON_H = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "ssm_state_size": 16,
    "mamba_num_heads": 8,
    "mamba_head_dim": 8,
    "n_groups": 2,
    "chunk_size": 8,
    "n_routed_experts": 4,
    "moe_intermediate_size": 16,
    "moe_shared_expert_intermediate_size": 16,
}
_ERNIE: dict[str, Any] = {
    **_GROUPED,
    "moe_intermediate_size": [16, 8],
    "moe_k": 2,
    "moe_num_experts": 4,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]},
}
_HUNYUAN: dict[str, Any] = {
    **_GROUPED,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 1, 1]},
}
_QWEN4: dict[str, Any] = {
    **_GROUPED,
    "layer_types": ["linear_attention", "indexed_attention"],
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "num_experts_per_tok": 2,
    "num_experts": 4,
    "hc_lowrank": 8,
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 8,
    "indexer_budget": 8,
    "indexer_compress_ratio": 2,
}
SMALL: dict[str, dict[str, Any]] = {
    "muse_glimmer_assistant": {
        **_GROUPED,
        "sliding_window": 16,
        "layer_types": ["sliding_attention", "full_attention"],
        "target_layer_ids": [0, 1],
        "mask_token_id": 98,
    },
    "pi0": {
        "vlm_config": {
            "text_config": {"model_type": "gemma", **_GROUPED},
            "vision_config": {"model_type": "siglip_vision_model", **_VISION, "vision_use_head": False},
            "projection_dim": 32,
            "image_token_id": 98,
        },
        "dit_config": {"model_type": "gemma", **_GROUPED},
        "chunk_size": 6,
    },
    "perception_lm": {
        "vision_config": {**_TIMM, "do_pooling": False, "num_labels": 0, "global_pool": "map"},
        "text_config": {"model_type": "llama", **_TEXT},
        "image_token_id": 98,
        "video_token_id": 97,
    },
    "shieldgemma2": {
        "text_config": {"model_type": "gemma3_text", **_GROUPED, "sliding_window": 8},
        "vision_config": {"model_type": "siglip_vision_model", **_VISION},
        "mm_tokens_per_image": 4,
        "image_token_index": 98,
        "boi_token_index": 97,
        "eoi_token_index": 96,
        "yes_token_index": 5,
        "no_token_index": 7,
    },
    "nemotron3_5_asr": {
        "vocab_size": 99,
        "blank_token_id": 98,
        "decoder_hidden_size": 32,
        "num_decoder_layers": 1,
        "num_prompts": 4,
        "default_prompt_id": 1,
        "prompt_intermediate_size": 48,
        "encoder_config": {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 48,
            "subsampling_conv_channels": 16,
            "num_mel_bins": 16,
            "max_position_embeddings": 64,
        },
    },
    "ernie4_5_vl_moe_text": _ERNIE,
    "ernie4_5_vl_moe": {
        "text_config": _ERNIE,
        "vision_config": {"depth": 2, "hidden_size": 32, "num_heads": 4},
    },
    "hunyuan_vl": {"text_config": _HUNYUAN, "vision_config": _VISION},
    "qwen4_exp": {
        "text_config": _QWEN4,
        "vision_config": {
            "depth": 2,
            "hidden_size": 32,
            "num_heads": 4,
            "intermediate_size": 48,
            "out_hidden_size": 32,
        },
    },
    "hunyuan_vl_text": _HUNYUAN,
    "qwen4_exp_text": _QWEN4,
    "pp_doclayout_v2": {
        "num_queries": 20,
        "decoder_layers": 2,
        "reading_order_config": {"num_hidden_layers": 2},
        "class_thresholds": [0.0, 0.0],
        "class_order": [0, 1],
    },
    "uvdoc": {
        "backbone_config": {
            "model_type": "uvdoc_backbone",
            "out_features": [f"stage{stage}" for stage in range(1, 7)],
        }
    },
    "pp_ocrv5_server_det": _DETECTOR,
    "pp_ocrv6_medium_det": {
        **_DETECTOR,
        "backbone_config": _LCNET,
    },
    "pp_ocrv6_small_det": {"backbone_config": _LCNET, "layer_list_out_channels": [96, 96, 192, 384]},
    "sam2_video": {
        "vision_config": {**_SAM2_VISION, "fpn_hidden_size": 128},
        "prompt_encoder_config": {**_SAM2_PROMPT, "hidden_size": 128},
        "image_size": 128,
        **_MEMORY,
    },
    "edgetam_video": {
        "vision_config": {**_EDGETAM_VISION, "model_type": "edgetam_vision_model", "fpn_hidden_size": 128},
        "prompt_encoder_config": {**_SAM2_PROMPT, "hidden_size": 128, "image_size": 64},
        "image_size": 64,
        "memory_attention_rope_k_sizes": [2, 2],
        "perceiver_resampler_num_latents": 4,
        "perceiver_resampler_num_latents_2d": 4,
        "perceiver_resampler_mlp_intermediate_size": 32,
        **_MEMORY,
        "memory_attention_rope_feat_sizes": [4, 4],
    },
    "sam3_tracker_video": {
        "vision_config": {**_SAM3_VISION, "fpn_hidden_size": 128},
        "prompt_encoder_config": {**_SAM2_PROMPT, "hidden_size": 128, "image_size": 64, "patch_size": 8},
        "image_size": 64,
        **_MEMORY,
    },
    "sam3_tracker": {
        "vision_config": _SAM3_VISION,
        "prompt_encoder_config": {**_SAM_PROMPT, "hidden_size": 32, "image_size": 64},
        "mask_decoder_config": _SAM2_MASKS,
    },
    "edgetam": {
        "vision_config": _EDGETAM_VISION,
        "prompt_encoder_config": {**_SAM2_PROMPT, "image_size": 64},
        "mask_decoder_config": _SAM2_MASKS,
    },
    "edgetam_vision_model": _EDGETAM_VISION,
    "pe_video_encoder": _PE_VIDEO,
    "pe_video": {
        "video_config": _PE_VIDEO,
        "text_config": {"model_type": "modernbert", **_TEXT, "local_attention": 8},
    },
    "pe_audio_video_encoder": {
        "audio_config": {
            **{key: value for key, value in _PE_VIDEO.items() if key != "vision_config"},
            "dac_config": {"encoder_hidden_size": 8, "downsampling_ratios": [2, 4], "codebook_dim": 16},
        },
        "video_config": _PE_VIDEO,
        **{key: value for key, value in _PE_VIDEO.items() if key != "vision_config"},
    },
    "vibevoice": {
        "audio_config": _SPEECH_CODEC,
        "semantic_model_config": {"model_type": "vibevoice_acoustic_tokenizer_encoder", **_SPEECH_CODEC},
        "text_config": {"model_type": "qwen2", **_TEXT, "num_key_value_heads": 2},
        "diffusion_head_config": {"num_hidden_layers": 2, "intermediate_size": 48},
    },
    "xcodec2": {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 8,
        "encoder_hidden_size": 4,
        "downsampling_ratios": [2, 2],
        "quantization_dim": 64,
        "semantic_model_config": {
            "model_type": "wav2vec2-bert",
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 48,
            "feature_projection_input_dim": 16,
        },
    },
    "blt": {
        "vocab_size": 99,
        "patcher_config": {**_BLT_LOCAL, "vocab_size": 99, "num_key_value_heads": 4},
        "encoder_config": {**_BLT_LOCAL, "vocab_size": 99},
        "decoder_config": {**_BLT_LOCAL, "vocab_size": 99},
        "global_config": {
            "hidden_size": 64,
            "num_attention_heads": 4,
            "num_hidden_layers": 2,
            "intermediate_size": 96,
        },
        "encoder_hash_byte_group_vocab": 64,
        "max_position_embeddings": 128,
    },
    "pix2struct": {"vision_config": _PIX2STRUCT_VISION, "text_config": _PIX2STRUCT_TEXT},
    "pix2struct_text_model": _PIX2STRUCT_TEXT,
    "pix2struct_vision_model": _PIX2STRUCT_VISION,
    "tvp": {
        **_TEXT,
        "backbone_config": {
            "model_type": "resnet",
            "embedding_size": 16,
            "hidden_sizes": [16, 16, 32, 32],
            "depths": [1, 1, 1, 1],
            "out_features": ["stage4"],
        },
        "visual_prompt_size": 8,
        "max_img_size": 64,
        "num_frames": 2,
    },
    "efficientloftr": {
        "stage_num_blocks": [1, 1, 1, 1],
        "out_features": [16, 16, 32, 64],
        "hidden_size": 64,
        "num_attention_layers": 2,
        "num_attention_heads": 8,
    },
    "xclip_vision_model": {**_VISION, "mit_hidden_size": 32, "num_frames": 2},
    "siglip2_vision_model": {**_VISION, "num_patches": 16},
    "granite_speech5_encoder": _GRANITE_SPEECH,
    "granite_speech5_ctc": {"vocab_size": 99, "encoder_config": _GRANITE_SPEECH},
    "voxtral_realtime_text": {**_TEXT, "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 8},
    "sam2_vision_model": _SAM2_VISION,
    "minicpm_ocr_vision": _MINICPM_VISION,
    "minicpmv4_6_vision": _MINICPM_VISION,
    "minicpmv4_7_vision": _MINICPM_VISION,
    "video_llama_3_vision": _VISION,
    "paddleocr_vl_vision": _VISION,
    "kosmos_2_5_vision_model": {
        "hidden_size": 32,
        "patch_embed_hidden_size": 48,
        "intermediate_size": 48,
        "head_dim": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_num_patches": 16,
    },
    "molmo2_vision": {
        **_VISION,
        "image_size": [32, 32],
        "num_key_value_heads": 4,
        "head_dim": 8,
        "num_position_embeddings": 16,
    },
    "muse_glimmer_vision": _MUSE_VISION,
    "muse_spark_vision": _MUSE_VISION,
    "phi4_multimodal_audio": {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_blocks": 2,
        "num_attention_heads": 4,
        "ext_pw_out_channel": 32,
        "depthwise_separable_out_channel": 32,
        "nemo_conv_channels": 32,
    },
    "sam3_detr_encoder": _SAM3_DETR,
    "sam3_lite_text_detr_encoder": _SAM3_DETR,
    "sam3_detr_decoder": {**_SAM3_DETR, "num_queries": 10},
    "sam3_lite_text_detr_decoder": {**_SAM3_DETR, "num_queries": 10},
    "qwen2_5_omni_audio_encoder": _OMNI_AUDIO,
    "qwen3_omni_moe_audio_encoder": {**_OMNI_AUDIO, "n_window_infer": 32, "max_source_positions": 64},
    "moshi_depth": {
        "vocab_size": 99,
        "audio_vocab_size": 98,
        "hidden_size": 32,
        "input_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "ffn_dim": 48,
    },
    "rt_detr": _REAL_TIME_DETR,
    "rt_detr_v2": _REAL_TIME_DETR,
    "lw_detr": {
        "backbone_config": {
            "model_type": "lw_detr_vit",
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "image_size": 256,
            "pretrain_image_size": 224,
            "window_block_indices": [0],
            "out_indices": [1, 2],
        },
        "projector_scale_factors": [0.5, 2.0],
        "d_model": 32,
        "decoder_ffn_dim": 48,
        "decoder_layers": 2,
        "decoder_self_attention_heads": 4,
        "decoder_cross_attention_heads": 4,
        "num_queries": 10,
        "group_detr": 2,
    },
    "oneformer": {
        "backbone_config": {**_SWIN, "out_features": ["stage1", "stage2", "stage3", "stage4"]},
        "num_queries": 10,
        "text_encoder_width": 32,
        "text_encoder_num_layers": 2,
        "text_encoder_vocab_size": 99,
        "conv_dim": 32,
        "mask_dim": 32,
        "hidden_dim": 32,
        "encoder_feedforward_dim": 48,
        "dim_feedforward": 48,
        "encoder_layers": 2,
        "decoder_layers": 3,
        "num_attention_heads": 4,
        "dropout": 0.0,
    },
    "omdet-turbo": {
        "text_config": {"model_type": "clip_text_model", **_TEXT, "hidden_size": 48},
        "backbone_config": {**_SWIN, "out_indices": [2, 3, 4]},
        "image_size": 64,
        "text_projection_in_dim": 48,
        "text_projection_out_dim": 48,
        "class_embed_dim": 48,
        "task_encoder_hidden_dim": 48,
        "num_queries": 10,
        "encoder_hidden_dim": 32,
        "vision_features_channels": [32, 32, 32],
        "encoder_in_channels": [32, 64, 128],
        "encoder_attention_heads": 4,
        "encoder_dim_feedforward": 48,
        "decoder_hidden_dim": 32,
        "decoder_num_heads": 4,
        "decoder_num_layers": 2,
        "decoder_dim_feedforward": 48,
        "disable_custom_kernels": True,
        "apply_layernorm_after_vision_backbone": False,
    },
    "depth_pro": {
        "patch_size": 16,
        "fusion_hidden_size": 16,
        "intermediate_hook_ids": [1, 0],
        "intermediate_feature_dims": [16, 16],
        "scaled_images_ratios": [0.5, 1.0],
        "scaled_images_overlap_ratios": [0.0, 0.2],
        "scaled_images_feature_dims": [16, 16],
        "image_model_config": _DINO,
        "patch_model_config": _DINO,
        "fov_model_config": _DINO,
    },
    "mimi": {
        "hidden_size": 32,
        "num_filters": 8,
        "upsampling_ratios": [4, 2],
        "codebook_size": 16,
        "codebook_dim": 16,
        "vector_quantization_hidden_dimension": 16,
        "num_quantizers": 4,
        "upsample_groups": 32,
        "num_hidden_layers": 2,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "sliding_window": 8,
        "frame_rate": 1500,
    },
    "bamba": {
        **_TEXT,
        "num_key_value_heads": 2,
        "attn_layer_indices": [1],
        "mamba_n_heads": 8,
        "mamba_d_head": 8,
        "mamba_n_groups": 2,
        "mamba_d_state": 8,
        "mamba_chunk_size": 8,
    },
    "zamba": {
        "vocab_size": 99,
        "hidden_size": 64,
        "mamba_dt_rank": 32,
        "num_hidden_layers": 5,
        "attn_layer_offset": 1,
        "attn_layer_period": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "intermediate_size": 48,
    },
    "zamba2": {
        "vocab_size": 99,
        "hidden_size": 32,
        "mamba_d_state": 8,
        "chunk_size": 8,
        "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"],
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "n_mamba_heads": 8,
        "mamba_ngroups": 2,
        "intermediate_size": 48,
        "use_mem_rope": True,
    },
    "nemotron_h": _NEMOTRON_H,
    "nemotron_h_omni": {
        "text_config": _NEMOTRON_H,
        "vision_config": {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "patch_size": 8,
            "image_size": 32,
            "max_img_size": 64,
            "num_cls_tokens": 2,
            "num_registers": 2,
            "video_temporal_patch_size": 2,
            "dtype": "float32",
        },
        "projector_hidden_size": 48,
        "vision_hidden_size": 32,
        "image_token_id": 98,
        "video_token_id": 97,
    },
    "siglip": {"text_config": _TEXT, "vision_config": _VISION},
    "siglip2": {"text_config": _TEXT, "vision_config": {**_VISION, "num_patches": 16}},
    "xmod": {**_TEXT, "default_language": "en_XX"},
    "swin": {key: value for key, value in _SWIN.items() if key != "model_type"},
    "sam": {
        "vision_config": _SAM_VISION,
        "prompt_encoder_config": _SAM_PROMPT,
        "mask_decoder_config": _SAM_MASKS,
    },
    "sam_hq": {
        "vision_config": _SAM_VISION,
        "prompt_encoder_config": _SAM_PROMPT,
        "mask_decoder_config": {**_SAM_MASKS, "vit_dim": 32},
    },
    "sam2": {
        "vision_config": _SAM2_VISION,
        "prompt_encoder_config": _SAM2_PROMPT,
        "mask_decoder_config": _SAM2_MASKS,
    },
    "mllama_vision_model": {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_global_layers": 1,
        "attention_heads": 4,
        "intermediate_size": 48,
        "image_size": 32,
        "patch_size": 8,
        "max_num_tiles": 1,
        "intermediate_layers_indices": [0],
        "vision_output_dim": 64,
        "supported_aspect_ratios": [[1, 1]],
    },
    "llama4_vision_model": {
        **_VISION,
        "intermediate_size": 128,
        "vision_output_dim": 32,
        "projector_input_dim": 32,
        "projector_output_dim": 32,
    },
    "seggpt": {
        "hidden_size": 32,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "image_size": [32, 16],
        "patch_size": 4,
        "pretrain_image_size": 16,
        "decoder_hidden_size": 8,
        "merge_index": 1,
        "intermediate_hidden_state_indices": [2, 3, 4, 5],
    },
}
_ALL_SHARED = "transformers 5.23 makes none: it asks that all of its layers share keys, and that not all do"
_NEEDS = "it needs {}, which is not installed here"


def _flattened(config: Any) -> Tensor:
    """Patches, each after its row and its column."""
    places = torch.cartesian_prod(torch.arange(1.0, 4), torch.arange(1.0, 5)).expand(BATCH, -1, -1)
    return torch.cat([places, noise(BATCH, 12, config.patch_embed_hidden_size)], dim=-1)


def _gridded(width: int) -> dict[str, Any]:
    """Patches of two images, one behind another, and their grids."""
    return {"pixel_values": noise(BATCH * 16, width), "grid_thw": torch.tensor([[1, 4, 4]] * BATCH)}


def _tiled(config: Any) -> dict[str, Any]:
    """Two images of 4 × 4 patches, which lie in one row."""
    return {"pixel_values": noise(1, 3, 8, BATCH * 16 * 8), "target_sizes": torch.tensor([[4, 4]] * BATCH)}


def _detected(config: Any) -> dict[str, Any]:
    return {
        "vision_features": [noise(BATCH, config.hidden_size, 4, 4)],
        "text_features": noise(BATCH, 6, config.hidden_size),
        "vision_pos_embeds": [noise(BATCH, config.hidden_size, 4, 4, seed=2)],
    }


def _decoded(config: Any) -> dict[str, Any]:
    return {
        "vision_features": noise(BATCH, 16, config.hidden_size),
        "text_features": noise(BATCH, 6, config.hidden_size),
        "vision_pos_encoding": noise(BATCH, 16, config.hidden_size, seed=2),
        "spatial_shapes": torch.tensor([[4, 4]]),
    }


def _heard(config: Any) -> dict[str, Any]:
    """Spectra of two sounds, one behind another."""
    return {
        "input_features": noise(config.num_mel_bins, BATCH * 32),
        "feature_lens": torch.tensor([32] * BATCH),
    }


def _seen_after(
    text: int, image: int, token: int, pixels: tuple[int, ...]
) -> Callable[[Any], dict[str, Any]]:
    """Texts after so many tokens that stand for an image."""
    ids = torch.cat([torch.full((BATCH, image), token), _words(BATCH, text)], dim=1)
    return lambda config: {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "pixel_values": noise(BATCH, *pixels),
    }


class Followed(nn.Module):
    """A model that follows an object through two frames: from a point in the first, by memory in the second."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, frames: Tensor) -> list[Tensor]:
        of_type = sys.modules[type(self.model).__module__]
        sessions = (each for name, each in vars(of_type).items() if name.endswith("VideoInferenceSession"))
        height, width = frames.shape[-2:]
        session = next(sessions)(video=frames, video_height=height, video_width=width, dtype=frames.dtype)
        number = session.obj_id_to_idx(1)
        places = frames.shape[-1] * torch.tensor([[[[0.3, 0.6]]]])
        point = {"point_coords": places, "point_labels": torch.ones(1, 1, 1).int()}
        session.add_point_inputs(number, 0, point)
        session.obj_with_new_inputs = [1]
        return [self.model(session, frame_idx=number).pred_masks for number in range(2)]

    def set_attn_implementation(self, name: str) -> None:
        self.model.set_attn_implementation(name)


def _read(config: Any) -> dict[str, Any]:
    """Texts alone, for models whose towers of images and sounds are rows of their own."""
    return {"input_ids": _words(BATCH, LENGTH), "attention_mask": torch.ones(BATCH, LENGTH).long()}


OWN_WIDTHS = ("align", "clvp")
"""Types whose towers' widths hang together in ways of their own, so that they run at those, large as they are."""
AROUND: dict[str, Callable[[nn.Module], nn.Module]] = dict.fromkeys(
    ("sam2_video", "edgetam_video", "sam3_tracker_video"), Followed
)
INPUTS: dict[str, str | Callable[[Any], dict[str, Any]]] = {
    "sam2_video": lambda config: {"frames": noise(2, 3, 128, 128)},
    "edgetam_video": lambda config: {"frames": noise(2, 3, 64, 64)},
    "sam3_tracker_video": lambda config: {"frames": noise(2, 3, 64, 64)},
    "ernie4_5_vl_moe": _read,
    "hunyuan_vl": _read,
    "qwen4_exp": _read,
    "qwen2_5_omni_thinker": _read,
    "qwen3_omni_moe_thinker": _read,
    "muse_glimmer_assistant": lambda config: {
        "noise_embeds": noise(BATCH, 4, 32),
        "context_hidden_states": noise(BATCH, 9, 64),
    },
    "pi0": lambda config: {
        "input_ids": torch.cat([torch.full((BATCH, 16), 98), _words(BATCH, 5)], dim=1),
        "attention_mask": torch.ones(BATCH, 21).long(),
        "pixel_values": noise(BATCH, 1, 3, 32, 32),
        "pixel_attention_mask": torch.ones(BATCH, 1).bool(),
        "action_embeds": noise(BATCH, 7, 32, seed=2),
    },
    "jev": lambda config: {
        "input_ids": _words(1, LENGTH),
        "marks": torch.tensor([[5, 11]]),
        "num_options": torch.tensor([[2, 3]]),
        "question_type_ids": torch.tensor([[0, 1]]),
    },
    "perception_lm": _seen_after(5, 16, 98, (1, 3, 64, 64)),
    "shieldgemma2": _seen_after(5, 4, 98, (3, 32, 32)),
    "nemotron_h_omni": lambda config: {
        **_seen_after(5, 4, 98, ())(config),
        "pixel_values": noise(BATCH * 16, 192),
        "image_grid_hw": torch.tensor([[4, 4]] * BATCH),
    },
    "nemotron3_5_asr": lambda config: {
        "input_features": noise(BATCH, 64, 16),
        "attention_mask": torch.ones(BATCH, 64).long(),
        "decoder_input_ids": _words(BATCH, 1),
    },
    "sam3_tracker": _pointed_at(64),
    "edgetam": _pointed_at(64),
    "edgetam_vision_model": lambda config: {"pixel_values": noise(BATCH, 3, 64, 64)},
    "pe_video_encoder": lambda config: {"pixel_values_videos": noise(BATCH, 3, 3, 64, 64)},
    "pe_audio_video_encoder": lambda config: {
        "input_values": noise(BATCH, 1, 96),
        "pixel_values_videos": noise(BATCH, 12, 3, 64, 64),
    },
    "pe_video": lambda config: {
        "input_ids": _words(BATCH, LENGTH),
        "attention_mask": torch.ones(BATCH, LENGTH).long(),
        "pixel_values_videos": noise(BATCH, 3, 3, 64, 64),
    },
    "vibevoice": lambda config: {"input_ids": _words(BATCH, LENGTH)},
    "xcodec2": lambda config: {
        "input_values": noise(BATCH, 1, 48),
        "input_features": noise(BATCH, 12, 16, seed=2),
    },
    "gemma4_assistant": _ALL_SHARED,
    "gemma4_unified_assistant": _ALL_SHARED,
    "pix2struct_vision_model": lambda config: {"flattened_patches": _flattened(config)},
    "tvp": lambda config: {  # one input: its own positions fit no more
        "input_ids": _words(1, LENGTH),
        "attention_mask": torch.ones(1, LENGTH).long(),
        "pixel_values": noise(1, config.num_frames, 3, 64, 64),
    },
    "efficientloftr": lambda config: {"pixel_values": noise(BATCH, 2, 1, 64, 64).expand(-1, -1, 3, -1, -1)},
    "xclip_vision_model": lambda config: {"pixel_values": noise(2 * BATCH, 3, 32, 32)},
    "siglip2_vision_model": lambda config: {
        "pixel_values": noise(BATCH, 16, 192),
        "pixel_attention_mask": torch.ones(BATCH, 16).long(),
        "spatial_shapes": torch.tensor([[4, 4]] * BATCH),
    },
    "granite_speech5_encoder": lambda config: {"input_features": noise(BATCH, 64, 64)},
    "granite_speech5_ctc": lambda config: {"input_features": noise(BATCH, 64, 64)},
    "voxtral_realtime_text": lambda config: {
        "input_ids": _words(BATCH, LENGTH),
        "t_cond": noise(1, 1, config.hidden_size),
    },
    "video_llama_3_vision": lambda config: {**_gridded(192), "merge_sizes": torch.tensor([2] * BATCH)},
    "paddleocr_vl_vision": lambda config: {
        "pixel_values": noise(1, BATCH * 16, 3, 8, 8),
        "grid_thw": torch.tensor([[1, 4, 4]] * BATCH),
    },
    "kosmos_2_5_vision_model": lambda config: {"flattened_patches": _flattened(config)},
    "molmo2_vision": lambda config: {"pixel_values": noise(BATCH, 16, 192)},
    "muse_glimmer_vision": lambda config: _gridded(96),
    "muse_spark_vision": lambda config: _gridded(96),
    "phi4_multimodal_audio": lambda config: {"hidden_states": noise(BATCH, 64, 80), "mask": None},
    "sam3_detr_encoder": _detected,
    "sam3_lite_text_detr_encoder": _detected,
    "sam3_detr_decoder": _decoded,
    "sam3_lite_text_detr_decoder": _decoded,
    "qwen2_5_omni_audio_encoder": _heard,
    "qwen3_omni_moe_audio_encoder": _heard,
    "moshi_depth": lambda config: {
        "input_ids": _words(BATCH, config.num_codebooks),
        "last_hidden_state": noise(BATCH, 1, config.input_size),
    },
    "minicpm_ocr_vision": _tiled,
    "minicpmv4_6_vision": _tiled,
    "minicpmv4_7_vision": _tiled,
    "deepseek_ocr2_encoder": lambda config: {
        "inputs_embeds": noise(BATCH, 32, config.hidden_size),
        "num_patches": 16,
    },
    "unlimited_ocr_vision_encoder": lambda config: {"patch_embeds": noise(BATCH, config.hidden_size, 4, 4)},
    "mimi_decoder": lambda config: {"latents": noise(BATCH, config.hidden_size, 8)},
    "pocket_tts_audio_tokenizer_decoder": lambda config: {"latents": noise(BATCH, config.hidden_size, 8)},
    "muse_spark_audio": lambda config: {"input_values": noise(BATCH, 3840)},
    "nougat": "a name for an encoder and a decoder, which are rows of their own",
    "layoutxlm": "a name for layoutlmv2 with other weights",
    "pp_chart2table_vision": "a name for the vision tower of pp_chart2table, which is a row of its own",
    "sam2_vision_model": lambda config: {"pixel_values": noise(BATCH, 3, 128, 128)},
    "rag": "a retriever around other models, which are rows of their own",
    "dinat": _NEEDS.format("natten"),
    "layoutlmv2": _NEEDS.format("detectron2"),
    "higgs_audio_v2_tokenizer": _NEEDS.format("torchaudio"),
    "xcodec": lambda config: {"input_values": noise(BATCH, 1, 4000)},
    "oneformer": lambda config: {
        "pixel_values": noise(BATCH, 3, 64, 64),
        "task_inputs": noise(BATCH, config.task_seq_len),
    },
    "omdet-turbo": lambda config: {
        "pixel_values": noise(BATCH, 3, 64, 64),
        "classes_input_ids": _words(2 * BATCH, 5),
        "classes_attention_mask": torch.ones(2 * BATCH, 5).long(),
        "tasks_input_ids": _words(BATCH, 7),
        "tasks_attention_mask": torch.ones(BATCH, 7).long(),
        "classes_structure": torch.full((BATCH,), 2),
    },
    "depth_pro": lambda config: {"pixel_values": noise(BATCH, 3, 32, 32)},
    "mimi": lambda config: {"input_values": noise(BATCH, 1, 400)},
    "siglip2": lambda config: {
        "input_ids": _words(BATCH, LENGTH),
        "pixel_values": noise(BATCH, 16, 192),
        "pixel_attention_mask": torch.ones(BATCH, 16).long(),
        "spatial_shapes": torch.tensor([[4, 4]] * BATCH),
    },
    "musicgen_decoder": lambda config: {"input_ids": _words(BATCH * config.num_codebooks, LENGTH)},
    "musicgen_melody_decoder": lambda config: {"input_ids": _words(BATCH * config.num_codebooks, LENGTH)},
    "musicgen": lambda config: {
        "input_ids": _words(BATCH, LENGTH),
        "decoder_input_ids": _words(BATCH * config.decoder.num_codebooks, 7),
    },
    "musicgen_melody": lambda config: {
        "input_ids": _words(BATCH, LENGTH),
        "decoder_input_ids": _words(BATCH * config.decoder.num_codebooks, 7),
    },
    "mllama_vision_model": lambda config: {
        "pixel_values": noise(BATCH, 1, 1, 3, 32, 32),
        "aspect_ratio_ids": torch.ones(BATCH, 1).long(),
        "aspect_ratio_mask": torch.ones(BATCH, 1, 1).long(),
    },
    "speecht5": lambda config: {
        "input_values": noise(BATCH, LENGTH, config.hidden_size),
        "decoder_input_values": noise(BATCH, 7, config.hidden_size),
    },
    "pix2struct": lambda config: {
        "flattened_patches": _flattened(config.vision_config),
        "decoder_input_ids": _words(BATCH, 7),
    },
    "kosmos-2": lambda config: {
        "pixel_values": noise(BATCH, 3, *2 * [config.vision_config.image_size]),
        "input_ids": _words(BATCH, config.latent_query_num + 8),
        "image_embeds_position_mask": (torch.arange(config.latent_query_num + 8) < config.latent_query_num)
        .expand(BATCH, -1)
        .long(),
    },
    "sam": _pointed_at(32),
    "sam_hq": _pointed_at(32),
    "sam2": _pointed_at(128),
    "speech-encoder-decoder": lambda config: {
        "input_values": noise(BATCH, 4000),
        "decoder_input_ids": _words(BATCH, 7),
    },
    "seggpt": lambda config: {
        "pixel_values": noise(BATCH, 3, 16, 16),
        "prompt_pixel_values": noise(BATCH, 3, 16, 16, seed=2),
        "prompt_masks": noise(BATCH, 3, 16, 16, seed=3),
    },
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
# Of timm, what is made smaller: how the model is made, and the side of its images.
TIMM: dict[str, tuple[dict[str, Any], int]] = {
    "davit_base_fl": (
        {"depths": (1, 1, 1, 1), "embed_dims": (32, 64, 128, 256), "num_heads": (2, 4, 8, 16)},
        96,
    ),
    "gemma4_vit_167m": ({"img_size": 96, "depth": 2}, 96),
    "gemma4_vit_167m_enc": ({"img_size": 96, "depth": 2}, 96),
    "mobilenetv5_300m_enc": ({}, 256),
    "resnet50x16_clip": ({}, 384),
    "repvgg_d2se": ({}, 224),
    "aimv2_1b_patch14_224": ({"depth": 2, "embed_dim": 128, "num_heads": 4}, 224),
    "vit_5b_patch16_sapiens2": (
        {"depth": 2, "embed_dim": 128, "num_heads": 4, "num_kv_heads": 2, "img_size": 224},
        224,
    ),
    "sam2_hiera_tiny": ({}, 224),
    "sam2_hiera_base_plus": ({}, 224),
}
# Others make scores of 10 000 and more without norms that adapt, which float32 rounds by a thousandth.
OWN_WEIGHTS = {"iformer_l2_distilled", "nextvit_small"}
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
