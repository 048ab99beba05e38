"""Models of images and texts of transformers: what tells their tokens and sources."""

from workbench.captures.registry import register_source, register_special_tokens

register_special_tokens(class_embedding="class")  # CLIP and its descendants
# Pooled queries of Funnel, and the maps of Perceiver's latents, are known by what their modules are.
register_source("transformers.models.funnel.modeling_funnel.FunnelRelMultiheadAttention", "self")
register_source("timm.layers.attention_pool.AttentionPoolLatent", "cross")
