"""GPT-2: one projection to queries, keys and values, stored as (width, feature) (transformers)."""

from __future__ import annotations

from typing import Any

from workbench.captures.projections import part_of
from workbench.captures.registry import Rows, register_positions, register_projection, register_skip_path


def _joint(module: Any, name: str, path: str) -> Rows | None:
    joint = getattr(module, "c_attn", None)
    return None if joint is None else (part_of(joint.weight.mT, name), part_of(joint.bias, name))


register_projection("transformers.models.gpt2.", _joint)
register_positions("wpe")
register_skip_path("transformers.models.gpt2.modeling_gpt2.GPT2Block")
