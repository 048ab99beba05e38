"""Capture: run a model once and keep the exact operands of its attention.

``capture`` runs and records, ``Capture`` is what it gives and saves, ``compare`` says how two captures differ,
``read_qkv`` reads anyone's file of q, k, v. The way of one call of attention, file by file:

- ``routes`` see the call while the model runs, ``written_out`` where it is plain operations;
- ``registry`` has what is known of its family, which the files of ``families`` say with ``register_adapter`` and its
  like, yours to use too; ``layout`` asks it which modules are attention, and where the residual stream is;
- ``recorder`` makes it a layer (``records``), and keeps of its tensors what was asked for;
- ``weights`` recompute the attention and compare it with what the model computed;
- ``tokens`` what the tokens are and whether attention is self or cross, ``positions`` what the
  position embedding brings to them;
- ``capturing`` hands the layers over, or returns them as a ``Capture``; ``storage`` and ``qkv`` are its files;
- ``steps`` captures a model that a loop runs again and again, ``generation`` one that generates, a query a step.
"""

import workbench.captures.families  # noqa: F401  (they register themselves)
from workbench.attention.base import merge_heads, split_heads
from workbench.captures.capturing import Capture, capture, read_qkv
from workbench.captures.comparison import compare
from workbench.captures.generation import capture_generation
from workbench.captures.layout import (
    attention_geometry,
    attention_modules,
    block_path,
    first_norm,
    token_mixers,
)
from workbench.captures.projections import PROJECTIONS, Projection, head_projection
from workbench.captures.records import (
    DEFAULT_SITES,
    SITES,
    STREAM,
    Call,
    Generated,
    LayerRecord,
    WindowOrigin,
)
from workbench.captures.registry import (
    Adapter,
    Reading,
    Visit,
    register_adapter,
    register_block,
    register_heads,
    register_image_tokens,
    register_inner_site,
    register_joined,
    register_mixer,
    register_more_tokens,
    register_other_positions,
    register_positions,
    register_projection,
    register_skip_path,
    register_source,
    register_special_tokens,
)
from workbench.captures.steps import Steps, capture_steps
from workbench.captures.tokens import (
    TokenInfo,
    fit_tokens,
    image_tokens,
    patch_grid,
    special_kinds,
    token_info,
)
from workbench.captures.weights import attention_output, attention_weights

__all__ = [
    "capture",
    "capture_generation",
    "Capture",
    "Generated",
    "capture_steps",
    "Steps",
    "LayerRecord",
    "TokenInfo",
    "WindowOrigin",
    "SITES",
    "STREAM",
    "DEFAULT_SITES",
    "compare",
    "read_qkv",
    "attention_modules",
    "token_mixers",
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
    "special_kinds",
    "patch_grid",
    "Adapter",
    "Visit",
    "Call",
    "register_adapter",
    "Reading",
    "register_block",
    "register_heads",
    "register_inner_site",
    "register_mixer",
    "register_projection",
    "register_positions",
    "register_skip_path",
    "register_other_positions",
    "register_special_tokens",
    "register_more_tokens",
    "register_source",
    "register_joined",
    "register_image_tokens",
    "split_heads",
    "merge_heads",
]
