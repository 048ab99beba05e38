"""GPT-2: one projection to queries, keys and values, stored as (width, feature) (transformers)."""

from __future__ import annotations

from typing import Any

from workbench.captures.positions import register_positions, register_skip_path
from workbench.captures.projections import Rows, part_of, register_projection


def _joint(module: Any, name: str, path: str) -> Rows | None:
    joint = getattr(module, "c_attn", None)
    return None if joint is None else (part_of(joint.weight.mT, name), part_of(joint.bias, name))


register_projection("transformers.models.gpt2.", _joint)
register_positions("wpe")
register_skip_path("transformers.models.gpt2.modeling_gpt2.GPT2Block")
