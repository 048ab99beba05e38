"""Capture: run a model once and keep the exact operands of its attention.

``capture`` runs a model and returns a ``Capture``, ``compare`` measures how two captures differ, and ``read_qkv`` reads
a file of q, k, v. One call of attention passes these files:

- ``routes`` see the call while the model runs, ``written_out`` where it is plain operations;
- ``family`` holds the `Family` of every model, declared by the files of ``families`` or by you; ``layout`` finds in
  it which modules are attention, and where the residual stream is;
- ``recorder`` makes it a layer (``records``), with ``visits`` to the modules around it and the residual stream of its
  block, and the tensors that ``keeper`` saves from being overwritten;
- ``recomputation`` recomputes the attention and compares it with the model's;
- ``labelled_tokens`` holds the tokens, ``token_labels`` reads them from inputs and tells self from cross attention;
- ``position_path`` follows the position embedding;
- ``capturing`` hands the layers over, or returns them as a ``Capture``; ``storage`` and ``qkv`` are its files;
- ``loop_steps`` captures a model that a loop runs again and again, ``generation`` one that generates, a query a step;
- ``interventions`` change what heads compute, through the same routes.
"""

import workbench.captures.families  # noqa: F401  (registers them)
from workbench.attention.base import merge_heads, split_heads
from workbench.captures.capture_differences import compare
from workbench.captures.capturing import Capture, capture, read_qkv
from workbench.captures.family import (
    Adapter,
    Block,
    Family,
    Fused,
    Reading,
    Visit,
    register_family,
)
from workbench.captures.generation import capture_generation
from workbench.captures.interventions import INTERVENTION_SITES, intervene
from workbench.captures.labelled_tokens import TokenInfo, image_tokens
from workbench.captures.layer_records import (
    DEFAULT_SITES,
    SITES,
    STREAM,
    Call,
    Generated,
    LayerRecord,
    WindowOrigin,
)
from workbench.captures.layout import (
    attention_geometry,
    attention_modules,
    block_path,
    first_norm,
    token_mixers,
)
from workbench.captures.loop_steps import Steps, capture_steps
from workbench.captures.projections import (
    PROJ_OUT,
    PROJECTIONS,
    OutputProjection,
    Projection,
    head_projection,
    output_projection,
    output_weight,
)
from workbench.captures.readout import Readout, find_readout
from workbench.captures.recomputation import attention_output, attention_weights
from workbench.captures.token_labels import fit_tokens, patch_grid, special_kinds, token_info

__all__ = [
    "capture",
    "capture_generation",
    "intervene",
    "INTERVENTION_SITES",
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
    "PROJ_OUT",
    "Projection",
    "head_projection",
    "OutputProjection",
    "output_projection",
    "output_weight",
    "Readout",
    "find_readout",
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
    "Family",
    "register_family",
    "Block",
    "Fused",
    "Reading",
    "split_heads",
    "merge_heads",
]
