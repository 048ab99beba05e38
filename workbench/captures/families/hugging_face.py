"""What models of transformers have in common: which norms their blocks have, and what gives them positions."""

from __future__ import annotations

from torch import nn

from workbench.captures.registry import (
    Reading,
    register_block,
    register_other_positions,
    register_skip_path,
    register_special_tokens,
)


def _resid_mid(block: nn.Module, attention: str) -> Reading | None:
    children = dict(block.named_children())
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


register_block("transformers.", _resid_mid)
register_skip_path("transformers.models.vit.modeling_vit.ViTLayer")
register_skip_path("transformers.models.deit.modeling_deit.DeiTLayer")
register_special_tokens(cls_token="class", distillation_token="distillation", register_tokens="register")
register_other_positions("rotary positions", "rotary_emb", "rotary_embeddings")
register_other_positions("a relative position bias", "relative_attention_bias", "rel_embeddings")
