"""Vision transformers of timm: ViT, DeiT and what timm's other families share with them."""

from __future__ import annotations

from torch import nn

from workbench.captures.family import Block, Family, Fused, Reading


def _norm_first(block: nn.Module) -> bool:
    return "Post" not in type(block).__name__


def _resid_mid(block: nn.Module, attention: str) -> Reading | None:
    name = type(block).__name__
    if "Parallel" in name or "DiffBlock" in name or getattr(block, "norm2", None) is None:
        return None
    # Where norms sit behind their branch, the stream enters the second one at the MLP.
    return Reading((("norm2" if _norm_first(block) else "mlp", "input"),))


TIMM = Family(
    projections={"timm.": Fused("qkv")},
    blocks={
        "timm.": Block(_resid_mid, norm_first=_norm_first),
        "timm.models.vision_transformer.Block": Block(skip_path=()),
        "timm.models.gemma4_vit.Gemma4Block": Block("norm3.input"),
    },
    position_embeddings={"pos_embed": ("norm_pre",)},
    other_positions={"rel_pos": "a relative position bias"},
    special_tokens={"cls_token": "class", "dist_token": "distillation", "reg_token": "register"},
    sources={"timm.layers.attention_pool.AttentionPoolLatent": "cross"},
)
