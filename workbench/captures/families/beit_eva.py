"""BEiT and EVA: biases of queries and values beside the weights, relative or rotary positions (timm)."""

from __future__ import annotations

from typing import Any

from torch import nn

from workbench.captures.family import Family, Rows, part_of


def _separate_bias(module: Any, name: str, path: str) -> Rows | None:
    bias = getattr(module, f"{name}_bias", None)
    if bias is None:
        return None
    fused = getattr(module, "qkv", None)
    if isinstance(fused, nn.Linear):
        return part_of(fused.weight, name), bias
    return getattr(module, f"{name}_proj").weight, bias


BEIT_EVA = Family(
    projections={"timm.models.beit.": _separate_bias, "timm.models.eva.": _separate_bias},
    other_positions={"rel_pos_bias": "a relative position bias", "rope": "rotary positions"},
)
