"""FAN (Zhou et al. 2022), the fully attentional network of teo2024 Tables 9 and 10: tokens attend, then channels do.

Patch embedding, Fourier positions and class attention at the end are XCiT's, as there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from timm.layers import Attention, LayerScale
from timm.models.vision_transformer import init_weights_vit_timm
from torch import Tensor, nn

from workbench.attention.base import AttentionModule, merge_heads, split_heads
from workbench.attention.bilateral import SINUSOIDAL_STD
from workbench.core.options import Numbers
from workbench.models.architectures.sizes import Classes, Count, Positive, Size
from workbench.models.architectures.tost import ClassAttentionTransformer, without_blocks
from workbench.models.architectures.vit import (
    brings_positions,
    install_attention,
    refuse_causal,
    share_positions,
    table_of_options,
)


def build_fan(
    *,
    img_size: Size = 32,
    patch_size: Size = 4,
    in_chans: Size = 3,
    num_classes: Classes = 10,
    embed_dim: Size = 48,
    depth: Count = 4,
    num_heads: Size = 3,
    mlp_ratio: Positive = 4.0,
    cls_attn_layers: Count = 2,
    layer_scale: Positive = 1.0,
    attention: str = "softmax",
    attention_layers: Numbers = None,
    attention_options: Mapping[str, Any] | None = None,
) -> ClassAttentionTransformer:
    """(batch, in_chans, img_size, img_size) → (batch, num_classes) logits; FAN-ViT of any size.

    ``depth`` pairs of halves, x + γ1 · attention(norm x) over tokens and x + γ2 · `ChannelAttention` (norm x), then
    ``cls_attn_layers`` of class attention. ``attention``, ``attention_layers`` and ``attention_options`` as in
    ``build_vit``, for the attention over tokens; ``layer_scale`` is where γ starts.

    Raises what ``build_tost`` raises.
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
    side, hidden = img_size // patch_size, round(mlp_ratio * embed_dim)
    halves: list[nn.Module] = []
    for _ in range(depth):
        halves += [
            Half(embed_dim, Attention(embed_dim, num_heads, qkv_bias=True), layer_scale),
            Half(embed_dim, ChannelAttention(embed_dim, num_heads, hidden=hidden, side=side), layer_scale),
        ]
    model.blocks = nn.ModuleList(halves)
    for part in model.blocks.modules():
        init_weights_vit_timm(part, needs_reset=False)
    over_tokens = halves[::2]
    install_attention(over_tokens, attention, attention_layers, options, others="softmax", num_tokens=side**2)
    if brings_positions(over_tokens):
        model.pos_embed = None
    share_positions(over_tokens, SINUSOIDAL_STD)
    return model


class Half(nn.Module):
    """Half of a block: x + γ · attention(norm x)."""

    def __init__(self, width: int, attention: nn.Module, layer_scale: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.attn = attention
        self.scale = LayerScale(width, layer_scale)

    def forward(self, x: Float[Tensor, "batch token width"]) -> Float[Tensor, "batch token width"]:
        return x + self.scale(self.attn(self.norm(x)))


class ChannelAttention(AttentionModule):
    """Channels weighed by their own token profile (Zhou et al. 2022, as their code has it); replaces the MLP.

    The weight of channel c of a head is τ σ(Σ_n softmax_n(q_nc) k̄_n), k̄ the mean over channels of softmax_n(x_nc) and τ
    a learned number of the head; it multiplies a channel of norm(MLP(x)), whose MLP mixes neighbours in between (3×3,
    each channel by itself). As attention among channels it is diagonal.
    """

    attends = "channel"
    causality = "never"
    projections = ("q",)

    def __init__(self, dim: int, num_heads: int, *, hidden: int, side: int) -> None:
        super().__init__(dim, num_heads)
        self.proj = nn.Identity()
        self.temperature = nn.Parameter(torch.ones(num_heads, 1))
        self.side = side
        self.fc1, self.fc2 = nn.Linear(dim, hidden), nn.Linear(hidden, dim)
        self.local = nn.Sequential(
            nn.Conv2d(hidden, hidden, 3, padding=1, groups=hidden),
            nn.GELU(),
            nn.BatchNorm2d(hidden),
            nn.Conv2d(hidden, hidden, 3, padding=1, groups=hidden),
        )
        self.gamma = nn.Parameter(torch.ones(hidden))
        self.norm = nn.LayerNorm(dim)

    def values(self, x: Float[Tensor, "batch token dim"]) -> Float[Tensor, "batch token dim"]:
        """norm(MLP(x)): neighbours are added in the hidden layer, and nothing else there is non-linear."""
        hidden = self.fc1(x)
        grid = hidden.mT.unflatten(2, (self.side, -1))
        return self.norm(self.fc2(hidden + self.gamma * self.local(grid).flatten(2).mT))

    def attend(
        self, x: Tensor, mask: Tensor | None = None, *, observe: bool = False
    ) -> tuple[Tensor, dict[str, Any]]:
        (q,) = self.project(x)
        k = split_heads(x, self.num_heads)
        profile = k.softmax(dim=-2).mean(-1, keepdim=True)
        weight = torch.sigmoid((q.softmax(dim=-2) * profile).sum(-2)) * self.temperature
        v = split_heads(self.values(x), self.num_heads)
        output = weight[:, :, None] * v
        if not observe:
            return output, {}
        return output, {
            "q": q, "k": k, "v": v, "scale": self.temperature, "attn": weight.diag_embed(),
            "rows_sum_to_one": False,
        }  # fmt: skip

    def finish(self, output: Tensor) -> Tensor:
        """The heads beside one another; there is no projection behind."""
        return merge_heads(output)
