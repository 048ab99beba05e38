"""Denoising models of diffusers: what the patches of their latents are, and how they are joined with words on one axis.

Peebles & Xie 2023 (DiT) attend among patches, Esser et al. 2024 (SD3, MM-DiT) among patches and words together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from workbench.captures.family import Family
from workbench.captures.labelled_tokens import TokenInfo, video_tokens


def _wan(model: Any, batch: Mapping[str, Any]) -> TokenInfo | None:
    """Latents (batch, channel, frame, row, column)."""
    latents = batch.get("hidden_states")
    if not isinstance(latents, Tensor) or latents.ndim != 5:
        return None
    frames, rows, columns = (
        size // step for size, step in zip(latents.shape[2:], model.config.patch_size, strict=True)
    )
    return video_tokens(len(latents), frames, (rows, columns))


def _cogvideo(model: Any, batch: Mapping[str, Any]) -> TokenInfo | None:
    """Latents (batch, frame, channel, row, column)."""
    latents, step = batch.get("hidden_states"), model.config.patch_size
    if not isinstance(latents, Tensor) or latents.ndim != 5:
        return None
    frames = latents.shape[1] // (getattr(model.config, "patch_size_t", None) or 1)
    return video_tokens(len(latents), frames, (latents.shape[3] // step, latents.shape[4] // step))


def _flux(model: Any, batch: Mapping[str, Any]) -> TokenInfo | None:
    """Patches packed to (batch, token, channel), with the place of each in ``img_ids``."""
    latents, places = batch.get("hidden_states"), batch.get("img_ids")
    if not isinstance(latents, Tensor) or not isinstance(places, Tensor) or places.shape[-1] != 3:
        return None
    places = (places if places.ndim == 2 else places[0])[:, 1:].long().tolist()
    rows, columns = (max(index[axis] for index in places) + 1 for axis in (0, 1))
    if places != [[row, column] for row in range(rows) for column in range(columns)]:
        return None
    return video_tokens(len(latents), 1, (rows, columns))


_MODELS = "diffusers.models.transformers"
_FLUX = f"{_MODELS}.transformer_flux.FluxTransformer2DModel"
_COGVIDEO = f"{_MODELS}.cogvideox_transformer_3d.CogVideoXTransformer3DModel"
DIFFUSERS = Family(
    image_tokens={
        f"{_MODELS}.transformer_wan.WanTransformer3DModel": _wan,
        _COGVIDEO: _cogvideo,
        _FLUX: _flux,
    },
    token_streams={
        f"{_MODELS}.transformer_sd3.SD3Transformer2DModel": ("", "text"),
        _FLUX: ("text", ""),
        _COGVIDEO: ("text", ""),
    },
)
