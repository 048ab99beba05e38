"""Names that models of transformers have in common: which norms their blocks have, and what gives them positions."""

from __future__ import annotations

from torch import nn

from workbench.captures.family import Block, Family, Reading


def _resid_mid(block: nn.Module, attention: str) -> Reading | None:
    children = dict(block.named_children())
    # Attention and MLP read the same stream, or mixtures of several (hyper-connections).
    if getattr(block, "use_parallel_residual", False) or "attn_hc" in children:
        return None
    if "crossattention" in children and attention.startswith("crossattention"):
        return Reading((("crossattention", "output"),))
    # Before the second half of a block that normalises first …
    if "post_feedforward_layernorm" not in children and "post_attention_layernorm" in children:
        return Reading((("post_attention_layernorm", "input"),))
    for name in ("pre_feedforward_layernorm", "layernorm_after", "ln_2", "layer_norm2", "norm2"):
        if name in children:
            return Reading(((name, "input"),))
    # … and after the first normalisation of one that normalises last (BERT and its descendants, DistilBERT).
    if "sa_layer_norm" in children:
        return Reading((("sa_layer_norm", "output"),))
    if "full_layer_layer_norm" in children and "attention" in children:  # ALBERT
        return Reading((("attention", "output"),))
    if "attention" in children and hasattr(getattr(children["attention"], "output", None), "LayerNorm"):
        return Reading((("attention", "output"),))
    return None


HUGGING_FACE = Family(
    blocks={
        "transformers.": Block(_resid_mid),
        "transformers.models.vit.modeling_vit.ViTLayer": Block(skip_path=()),
        "transformers.models.deit.modeling_deit.DeiTLayer": Block(skip_path=()),
    },
    special_tokens={
        "cls_token": "class",
        "distillation_token": "distillation",
        "register_tokens": "register",
        "class_embedding": "class",  # CLIP and its descendants
    },
    other_positions={
        "rotary_emb": "rotary positions",
        "rotary_embeddings": "rotary positions",
        "relative_attention_bias": "a relative position bias",
        "rel_embeddings": "a relative position bias",
    },
    # Pooled queries of Funnel, and the maps of Perceiver's latents, follow from the classes of their modules.
    sources={"transformers.models.funnel.modeling_funnel.FunnelRelMultiheadAttention": "self"},
    # The latents of multi-head latent attention: keys and values are projected from one per token (DeepSeek-AI 2024).
    inner_sites={"kv_b_proj": "kv_latent", "q_b_proj": "q_latent"},
)
