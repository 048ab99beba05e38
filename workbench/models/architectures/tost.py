"""ToST (wu2025) and XCiT without local patch interaction, of any size, on timm's ``Xcit``.

Convolutional patch embedding, Fourier positions, blocks of patches without a class token, and two
class-attention layers at the end, where the class token joins them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float
from timm.models.xcit import ConvPatchEmbed, Xcit, conv3x3
from torch import Tensor, nn

from workbench.attention.bilateral import SINUSOIDAL_STD
from workbench.core.errors import InputError
from workbench.core.options import Numbers
from workbench.models.architectures.sizes import Classes, Count, Positive, Size
from workbench.models.architectures.vit import (
    brings_positions,
    check_sizes,
    install_attention,
    make_blocks,
    refuse_causal,
    share_positions,
    table_of_options,
)


def build_tost(
    *,
    img_size: Size = 16,
    patch_size: Size = 2,
    in_chans: Size = 1,
    num_classes: Classes = 10,
    embed_dim: Size = 48,
    depth: Count = 4,
    num_heads: Size = 3,
    mlp_ratio: Positive = 4.0,
    mlp: str = "mlp",
    cls_attn_layers: Count = 2,
    layer_scale: Positive = 1.0,
    attention: str = "tssa",
    attention_layers: Numbers = None,
    attention_options: Mapping[str, Any] | None = None,
) -> ClassAttentionTransformer:
    """Token statistics transformer: (batch, in_chans, img_size, img_size) → (batch, num_classes) logits.

    ``depth`` blocks of patches among themselves, x + γ1 · attention(norm x) and x + γ2 · MLP(norm x), then
    ``cls_attn_layers`` of class attention.

    ``attention`` is a variant of ``workbench.attention.VARIANTS``, in ``attention_layers`` (default: all)
    with ``attention_options``; the other layers have softmax attention. ToST's own weights expect ``tssa`` with
    ``{"convention": "as_implemented"}``; ``xca`` gives XCiT as wu2025 trains it. ``mlp`` "ista" puts CRATE's ISTA in
    the place of the MLP and its residual (wu2025 Table 8); class attention keeps its MLP. ``layer_scale`` is
    where γ starts, 1e-5 in deep models. The patch size is a power of two: every halving is a 3×3 convolution.

    Raises UnknownName for an attention, an option of it or an mlp that does not exist, InputError if sizes do
    not divide one another, or the attention is causal: patches have no order in time.
    """
    options = table_of_options(attention, attention_options)
    refuse_causal(attention, options, "the patches of an image have no order in time")
    model = without_blocks(
        img_size,
        patch_size,
        in_chans,
        num_classes,
        embed_dim,
        num_heads,
        mlp_ratio,
        cls_attn_layers,
        layer_scale,
    )
    blocks = make_blocks(
        depth, embed_dim, num_heads, mlp_ratio, boost=False, mlp=mlp, init_values=layer_scale
    )
    model.blocks = nn.ModuleList(blocks)
    patches = model.patch_embed.num_patches
    shared = {"others": "softmax", "num_tokens": patches}
    install_attention(model.blocks, attention, attention_layers, options, **shared)
    if brings_positions(model.blocks):
        model.pos_embed = None
    share_positions(model.blocks, SINUSOIDAL_STD)
    return model


build_xcit = partial(build_tost, attention="xca")
"""XCiT as wu2025 trains it, without local patch interaction: ``build_tost`` with cross-covariance attention."""


def without_blocks(
    img_size: int,
    patch_size: int,
    in_chans: int,
    num_classes: int,
    embed_dim: int,
    num_heads: int,
    mlp_ratio: float,
    cls_attn_layers: int,
    layer_scale: float,
) -> ClassAttentionTransformer:
    """All of such a model but its blocks; InputError if sizes do not divide one another."""
    check_sizes(img_size, patch_size, embed_dim, num_heads)
    _check_halvings(patch_size, embed_dim)
    # With the smallest patch embedding that timm can make, in whose place ours is put.
    model = ClassAttentionTransformer(
        img_size=8,
        patch_size=8,
        in_chans=in_chans,
        num_classes=num_classes,
        embed_dim=embed_dim,
        depth=0,
        num_heads=num_heads,
        mlp_ratio=mlp_ratio,
        cls_attn_layers=cls_attn_layers,
        eta=layer_scale,
        tokens_norm=True,
    )
    model.patch_embed = HalvingPatchEmbed(img_size, patch_size, in_chans, embed_dim)
    return model


def _check_halvings(patch_size: int, embed_dim: int) -> None:
    if patch_size < 2 or patch_size & (patch_size - 1):
        raise InputError(
            f"patch_size {patch_size} is no power of two: the patch embedding halves the image again and again; "
            "take 2, 4, 8 or 16"
        )
    if embed_dim % (patch_size // 2):
        raise InputError(
            f"embed_dim {embed_dim} cannot be halved {patch_size.bit_length() - 2} times, as the patch embedding for "
            f"patch_size {patch_size} does; take a multiple of {patch_size // 2}"
        )


class HalvingPatchEmbed(ConvPatchEmbed):
    """XCiT's patch embedding for any power of two: a 3×3 convolution of stride 2 for every halving."""

    def __init__(self, img_size: int, patch_size: int, in_chans: int, embed_dim: int) -> None:
        nn.Module.__init__(self)  # XCiT's own constructor knows patches of 8 and of 16 only
        self.img_size = (img_size, img_size)
        self.patch_size = patch_size
        self.num_patches = (img_size // patch_size) ** 2
        halvings = patch_size.bit_length() - 1
        widths = [in_chans, *(embed_dim >> left for left in reversed(range(halvings)))]
        layers = [part for sizes in pairwise(widths) for part in (conv3x3(*sizes, 2), nn.GELU())]
        self.proj = nn.Sequential(*layers[:-1])


class ClassAttentionTransformer(Xcit):
    """timm's ``Xcit`` with plain blocks, which do not get the patch grid: none of them looks at neighbours."""

    cls_token: nn.Parameter
    cls_attn_blocks: nn.ModuleList

    def forward_features(
        self, x: Float[Tensor, "batch channel height width"]
    ) -> Float[Tensor, "batch token embed_dim"]:
        x, grid = self.patch_embed(x)
        if self.pos_embed is not None:
            x = x + self.pos_embed(1, *grid).flatten(2).mT
        for block in self.blocks:
            x = block(x)
        # timm has a method of its own for what follows, but only in newer versions
        x = torch.cat((self.cls_token.expand(len(x), -1, -1), x), dim=1)
        for block in self.cls_attn_blocks:
            x = block(x)
        return self.norm(x)
