"""Denoising models of diffusers: how those that attend over latents and words on one axis join them.

Peebles & Xie 2023 (DiT) attend among patches, Esser et al. 2024 (SD3, MM-DiT) among patches and words together.
"""

from workbench.captures.registry import register_joined

_MODELS = "diffusers.models.transformers"
register_joined(f"{_MODELS}.transformer_sd3.SD3Transformer2DModel", "", "text")
for _name in (
    "transformer_flux.FluxTransformer2DModel",
    "cogvideox_transformer_3d.CogVideoXTransformer3DModel",
):
    register_joined(f"{_MODELS}.{_name}", "text", "")
