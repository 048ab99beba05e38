"""torch's own: ``nn.MultiheadAttention``, and the layers of ``nn.TransformerEncoder`` and ``nn.TransformerDecoder``."""

from __future__ import annotations

from typing import Any

from torch import nn

from workbench.captures.family import Block, Family, Reading, Rows, part_of


def _resid_mid(block: nn.Module, attention: str) -> Reading:
    first, second = ("norm1", "norm2") if attention == "self_attn" else ("norm2", "norm3")
    return Reading(((second, "input") if _norm_first(block) else (first, "output"),))


def _norm_first(block: Any) -> bool:
    return block.norm_first


def _in_proj(module: nn.MultiheadAttention, name: str, path: str) -> Rows:
    joint = module.in_proj_weight
    weight = getattr(module, f"{name}_proj_weight") if joint is None else part_of(joint, name)
    return weight, None if module.in_proj_bias is None else part_of(module.in_proj_bias, name)


_BLOCK = Block(_resid_mid, norm_first=_norm_first)
TORCH = Family(
    projections={"torch.nn.modules.activation.MultiheadAttention": _in_proj},
    blocks={
        "torch.nn.modules.transformer.TransformerEncoderLayer": _BLOCK,
        "torch.nn.modules.transformer.TransformerDecoderLayer": _BLOCK,
    },
)
