"""CRATE (Yu et al. 2023), one of wu2025's comparisons: subspace attention and ISTA, on timm's ``VisionTransformer``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from jaxtyping import Float
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from workbench.attention.bilateral import SINUSOIDAL_STD
from workbench.core.options import Numbers
from workbench.models.architectures.ista import IstaBlock
from workbench.models.architectures.sizes import Classes, Count, Size
from workbench.models.architectures.vit import (
    CLASS_TOKEN_FIRST,
    brings_positions,
    check_sizes,
    install_attention,
    refuse_causal,
    share_positions,
    table_of_options,
)


def build_crate(
    *,
    img_size: Size = 16,
    patch_size: Size = 2,
    in_chans: Size = 1,
    num_classes: Classes = 10,
    embed_dim: Size = 48,
    depth: Count = 4,
    num_heads: Size = 3,
    attention: str = "mssa",
    attention_layers: Numbers = None,
    attention_options: Mapping[str, Any] | None = None,
) -> VisionTransformer:
    """(batch, in_chans, img_size, img_size) → (batch, num_classes) logits, from a class token.

    Every block is x ← x + MSSA(norm x), then x ← ISTA(norm x), which has its residual inside: what leaves a block
    is never negative. Positions and class token start with spread 1, as published. ``attention``,
    ``attention_layers`` and ``attention_options`` as in ``build_vit`` replace MSSA.

    Raises what ``build_vit`` raises.
    """
    check_sizes(img_size, patch_size, embed_dim, num_heads)
    options = table_of_options(attention, attention_options)
    refuse_causal(attention, options, CLASS_TOKEN_FIRST)
    model = VisionTransformer(
        img_size=img_size,
        patch_size=patch_size,
        in_chans=in_chans,
        num_classes=num_classes,
        embed_dim=embed_dim,
        depth=depth,
        num_heads=num_heads,
        qkv_bias=False,
        embed_layer=_PixelPatchEmbed,
        norm_layer=partial(nn.LayerNorm, eps=1e-5),
        block_fn=IstaBlock,
    )
    positions = model.get_parameter("pos_embed")
    shared = {"qkv_bias": False, "num_tokens": positions.shape[1]}
    install_attention(model.blocks, attention, attention_layers, options, others="mssa", **shared)
    for start in (positions, model.get_parameter("cls_token")):
        nn.init.normal_(start)
    if brings_positions(model.blocks):
        model.pos_embed = None
    share_positions(model.blocks, SINUSOIDAL_STD)
    return model


class _PixelPatchEmbed(nn.Module):
    """Patches as their pixels, normalised, projected and normalised again; pixels by row, column, channel."""

    def __init__(self, img_size: int, patch_size: int, in_chans: int, embed_dim: int, **_: Any) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.num_patches = (img_size // patch_size) ** 2
        pixels = in_chans * patch_size**2
        self.norm1 = nn.LayerNorm(pixels)
        self.proj = nn.Linear(pixels, embed_dim)
        self.norm2 = nn.LayerNorm(embed_dim)

    def forward(
        self, x: Float[Tensor, "batch channel height width"]
    ) -> Float[Tensor, "batch patch embed_dim"]:
        side = self.patch_size
        cut = x.unflatten(3, (-1, side)).unflatten(2, (-1, side))  # batch, channel, row, down, column, right
        patches = cut.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)
        return self.norm2(self.proj(self.norm1(patches)))
