"""Segmenter (Strudel et al. 2021): a class for every pixel, from the vision transformer here and a mask decoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from workbench.core.options import Numbers
from workbench.models.architectures.sizes import Count, Positive, Size
from workbench.models.architectures.vit import build_vit, make_blocks


def build_segmenter(
    *,
    img_size: Size = 32,
    patch_size: Size = 4,
    in_chans: Size = 3,
    num_classes: Size = 8,
    embed_dim: Size = 48,
    depth: Count = 4,
    decoder_depth: Count = 1,
    num_heads: Size = 3,
    mlp_ratio: Positive = 4.0,
    pos_embed_std: Positive = 0.5,
    attention: str = "softmax",
    attention_layers: Numbers = None,
    attention_options: Mapping[str, Any] | None = None,
    boost: bool = False,
) -> Segmenter:
    """(batch, in_chans, img_size, img_size) → (batch, num_classes, img_size, img_size) logits of every pixel.

    ``build_vit`` without a head encodes the patches; ``decoder_depth`` blocks with softmax attention then have one
    learned token for each class among them (teo2024 Table 6 and abdullaev2025 Table IV change only the encoder), and
    the logit of a class at a patch is the product of both. ``attention``, ``attention_layers``, ``attention_options``
    and ``boost`` as in ``build_vit``, for the encoder.

    Raises what ``build_vit`` raises.
    """
    encoder = build_vit(
        img_size=img_size,
        patch_size=patch_size,
        in_chans=in_chans,
        num_classes=0,
        embed_dim=embed_dim,
        depth=depth,
        num_heads=num_heads,
        mlp_ratio=mlp_ratio,
        pos_embed_std=pos_embed_std,
        attention=attention,
        attention_layers=attention_layers,
        attention_options=attention_options,
        boost=boost,
    )
    decoder = make_blocks(decoder_depth, embed_dim, num_heads, mlp_ratio, boost=False)
    return Segmenter(encoder, decoder, embed_dim, num_classes)


class Segmenter(nn.Module):
    """Encoder, and a mask decoder: ``decoder`` mixes a token of each class, which stand first, with the patches.

    Both are then projected and made one long; their products, normalised over the classes of a patch, are its logits,
    between patches bilinear.
    """

    def __init__(
        self, encoder: VisionTransformer, decoder: nn.Sequential, width: int, num_classes: int
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.embed = nn.Linear(width, width)
        self.class_tokens = nn.Parameter(nn.init.trunc_normal_(torch.empty(1, num_classes, width), std=0.02))
        self.decoder = decoder
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.to_patch = nn.Parameter(nn.init.trunc_normal_(torch.empty(width, width), std=width**-0.5))
        self.to_class = nn.Parameter(nn.init.trunc_normal_(torch.empty(width, width), std=width**-0.5))
        self.mask_norm = nn.LayerNorm(num_classes)

    @property
    def num_classes(self) -> int:
        return self.class_tokens.shape[1]

    def masks(
        self, x: Float[Tensor, "batch channel height width"]
    ) -> Float[Tensor, "batch num_classes row column"]:
        """The logits (nats) of every patch."""
        patches = self.encoder.forward_features(x)[:, self.encoder.num_prefix_tokens :]
        tokens = torch.cat([self.class_tokens.expand(len(x), -1, -1), self.embed(patches)], dim=1)
        tokens = self.norm(self.decoder(tokens))
        classes, patches = tokens.split([self.num_classes, patches.shape[1]], dim=1)
        classes, patches = (
            F.normalize(part @ weight, dim=-1)
            for part, weight in ((classes, self.to_class), (patches, self.to_patch))
        )
        return self.mask_norm(patches @ classes.mT).mT.unflatten(2, self.encoder.patch_embed.grid_size)

    def forward(
        self, x: Float[Tensor, "batch channel height width"]
    ) -> Float[Tensor, "batch num_classes height width"]:
        return F.interpolate(self.masks(x), x.shape[-2:], mode="bilinear")
