"""Capture: run a model once and keep the exact operands of its attention.

``capture`` runs and records, ``Capture`` holds and saves, ``compare`` tells two captures apart, ``read_qkv``
reads anyone's file of q, k, v; ``register_adapter`` and ``register_block`` teach it a new family.
"""

from workbench.recording.adapters import Adapter, Visit, merge_heads, register_adapter, split_heads
from workbench.recording.capturing import capture
from workbench.recording.comparing import compare
from workbench.recording.layout import (
    Reading,
    attention_geometry,
    attention_modules,
    block_path,
    first_norm,
    register_block,
)
from workbench.recording.projections import PROJECTIONS, Projection, head_projection
from workbench.recording.records import (
    DEFAULT_SITES,
    SITES,
    STREAM,
    Call,
    Capture,
    LayerRecord,
    TokenInfo,
    WindowOrigin,
)
from workbench.recording.storage import read_qkv, save_capture
from workbench.recording.tokens import fit_tokens, image_tokens, patch_grid, prefix_kinds, token_info
from workbench.recording.weights import attention_output, attention_weights

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
    "save_capture",
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
