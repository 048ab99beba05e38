"""A small vision transformer on timm's ``VisionTransformer``: the model the bundled checkpoints hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from workbench.errors import InputError

if TYPE_CHECKING:
    from timm.models.vision_transformer import VisionTransformer


def build_vit(
    *,
    img_size: int = 16,
    patch_size: int = 2,
    in_chans: int = 1,
    num_classes: int = 10,
    embed_dim: int = 48,
    depth: int = 4,
    num_heads: int = 3,
    mlp_ratio: float = 4.0,
    pos_embed_std: float = 0.5,
) -> VisionTransformer:
    """Pre-norm ViT with a class token; (batch, in_chans, img_size, img_size) → (batch, num_classes) logits.

    The defaults give an 8×8 grid of patches and a class token, 4 layers of 3 heads with head_dim 16, about
    117 000 parameters. The position embedding starts at ``pos_embed_std``: timm's 0.02 is drowned by the
    patch embedding, and on small data the model then stays at chance for twenty epochs.

    Raises InputError if the patch size does not divide the image or the head count does not divide the width.
    """
    from timm.models.vision_transformer import VisionTransformer

    if img_size % patch_size:
        raise InputError(f"patch_size {patch_size} does not divide img_size {img_size}")
    if embed_dim % num_heads:
        raise InputError(f"num_heads {num_heads} does not divide embed_dim {embed_dim}")
    model = VisionTransformer(
        img_size=img_size,
        patch_size=patch_size,
        in_chans=in_chans,
        num_classes=num_classes,
        embed_dim=embed_dim,
        depth=depth,
        num_heads=num_heads,
        mlp_ratio=mlp_ratio,
    )
    nn.init.normal_(model.get_parameter("pos_embed"), std=pos_embed_std)
    return model
