"""Vision transformers of timm: ViT, DeiT and what timm's other families share with them."""

from __future__ import annotations

from typing import Any

from torch import nn

from workbench.captures.projections import part_of
from workbench.captures.registry import (
    Reading,
    Rows,
    register_block,
    register_other_positions,
    register_positions,
    register_projection,
    register_skip_path,
    register_special_tokens,
)


def _norm_first(block: nn.Module) -> bool:
    return "Post" not in type(block).__name__


def _resid_mid(block: nn.Module, attention: str) -> Reading | None:
    name = type(block).__name__
    if "Parallel" in name or "DiffBlock" in name or getattr(block, "norm2", None) is None:
        return None
    # Where norms sit behind their branch, the stream enters the second one at the MLP.
    return Reading((("norm2" if _norm_first(block) else "mlp", "input"),))


def _joint(module: Any, name: str, path: str) -> Rows | None:
    joint = getattr(module, "qkv", None)
    if not isinstance(joint, nn.Linear):
        return None
    return part_of(joint.weight, name), None if joint.bias is None else part_of(joint.bias, name)


register_block("timm.", _resid_mid, norm_first=_norm_first)
register_projection("timm.", _joint)
register_special_tokens(cls_token="class", dist_token="distillation", reg_token="register")
register_positions("pos_embed", "norm_pre")
register_skip_path("timm.models.vision_transformer.Block")
register_other_positions("a relative position bias", "rel_pos")
