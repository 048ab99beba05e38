"""Capture: run a model once and keep the exact operands of its attention.

``capture`` runs and records, ``Capture`` holds and saves, ``compare`` tells two captures apart, ``read_qkv``
reads anyone's file of q, k, v; ``register_adapter`` and ``register_block`` teach it a new family.
"""

from workbench.captures.adapters import Adapter, Visit, merge_heads, register_adapter, split_heads
from workbench.captures.capturing import capture
from workbench.captures.comparison import compare
from workbench.captures.layout import (
    Reading,
    attention_geometry,
    attention_modules,
    block_path,
    first_norm,
    register_block,
)
from workbench.captures.projections import PROJECTIONS, Projection, head_projection
from workbench.captures.records import (
    DEFAULT_SITES,
    SITES,
    STREAM,
    Call,
    LayerRecord,
    TokenInfo,
    WindowOrigin,
)
from workbench.captures.result import Capture, read_qkv
from workbench.captures.tokens import fit_tokens, image_tokens, patch_grid, prefix_kinds, token_info
from workbench.captures.weights import attention_output, attention_weights

__all__ = [
    "capture",
    "Capture",
    "LayerRecord",
    "TokenInfo",
    "WindowOrigin",
    "SITES",
    "STREAM",
    "DEFAULT_SITES",
    "compare",
    "read_qkv",
    "attention_modules",
    "attention_geometry",
    "block_path",
    "first_norm",
    "PROJECTIONS",
    "Projection",
    "head_projection",
    "attention_weights",
    "attention_output",
    "token_info",
    "fit_tokens",
    "image_tokens",
    "prefix_kinds",
    "patch_grid",
    "Adapter",
    "Visit",
    "Call",
    "register_adapter",
    "Reading",
    "register_block",
    "split_heads",
    "merge_heads",
]
