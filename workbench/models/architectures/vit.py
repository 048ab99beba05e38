"""A small vision transformer on timm's ``VisionTransformer``: the model the bundled checkpoints hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from timm.models.vision_transformer import VisionTransformer
from torch import nn

from workbench.core.selection import Numbers
from workbench.models.architectures.parts import (
    CLASS_TOKEN_FIRST,
    BoostedBlocks,
    block_class,
    brings_positions,
    check_sizes,
    install_attention,
    refuse_causal,
    share_positions,
    table_of_options,
)


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
    mlp: str = "mlp",
    pos_embed_std: float = 0.5,
    attention: str = "softmax",
    attention_layers: Numbers = None,
    attention_options: Mapping[str, Any] | None = None,
    boost: bool = False,
) -> VisionTransformer:
    """Pre-norm ViT with a class token; (batch, in_chans, img_size, img_size) → (batch, num_classes) logits.

    The defaults give an 8×8 grid of patches and a class token, 4 layers of 3 heads with head_dim 16, about
    117 000 parameters. The position embedding starts at ``pos_embed_std``: timm's 0.02 is drowned by the
    patch embedding, and on small data the model then stays at chance for twenty epochs.

    ``attention`` is a variant of ``workbench.attention.VARIANTS``, in ``attention_layers`` (all unless given)
    with ``attention_options``; the other layers have softmax attention. Where every layer brings positions of
    its own (bilateral, nonlocal, alibi), none are added to the tokens, and bilateral layers share one
    parameter. ``boost`` gives every layer a boosted residual around its attention. ``mlp`` "ista" puts CRATE's
    ISTA in the place of the MLP and its residual (wu2025 Table 8).

    Raises UnknownName for an attention, an option of it or an mlp that does not exist, InputError if the patch
    size does not divide the image, the head count does not divide the width, or the attention is causal: the
    class token stands first and would see nothing.
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
        mlp_ratio=mlp_ratio,
        block_fn=block_class(mlp, boost),
    )
    positions = model.get_parameter("pos_embed")
    nn.init.normal_(positions, std=pos_embed_std)
    if boost:
        model.blocks = BoostedBlocks(*model.blocks)
    if attention != "softmax" or attention_layers is not None or options:
        install_attention(model.blocks, attention, attention_layers, options, num_tokens=positions.shape[1])
        if brings_positions(model.blocks):
            model.pos_embed = None
        share_positions(model.blocks, pos_embed_std)
    return model
