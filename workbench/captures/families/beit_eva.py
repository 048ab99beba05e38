"""BEiT and EVA: biases of queries and values beside the weights, relative or rotary positions (timm)."""

from __future__ import annotations

from typing import Any

from torch import nn

from workbench.captures.projections import part_of
from workbench.captures.registry import Rows, register_other_positions, register_projection


def _bias_beside(module: Any, name: str, path: str) -> Rows | None:
    own = getattr(module, f"{name}_bias", None)
    if own is None:
        return None
    joint = getattr(module, "qkv", None)
    weight = (
        part_of(joint.weight, name)
        if isinstance(joint, nn.Linear)
        else getattr(module, f"{name}_proj").weight
    )
    return weight, own


for _family in ("beit", "eva"):
    register_projection(f"timm.models.{_family}.", _bias_beside)
register_other_positions("a relative position bias", "rel_pos_bias")
register_other_positions("rotary positions", "rope")
