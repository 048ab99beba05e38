"""A small vision transformer on timm's ``VisionTransformer``, which the bundled checkpoints hold, and its blocks.

The other architectures share the blocks: the attention of each layer, the positions, the residual.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from timm.models.vision_transformer import Block, VisionTransformer, init_weights_vit_timm
from torch import Tensor, nn

from workbench.attention import VARIANTS, attention_module, find_variant
from workbench.attention.residual import BoostedResidual
from workbench.core.errors import InputError, UnknownName
from workbench.core.options import Numbers, parse_numbers
from workbench.models.architectures.ista import IstaBlock
from workbench.models.architectures.sizes import Classes, Count, Positive, Size

_MLPS = ("mlp", "ista")
"""Second half of a block: timm's MLP with its residual, or CRATE's ISTA instead of both."""
CLASS_TOKEN_FIRST = "the class token, which stands first, would see no patch"
"""Why vision transformers with a class token take no causal attention."""


def build_vit(
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
    pos_embed_std: Positive = 0.5,
    attention: str = "softmax",
    attention_layers: Numbers = None,
    attention_options: Mapping[str, Any] | None = None,
    boost: bool = False,
) -> VisionTransformer:
    """Pre-norm ViT with a class token; (batch, in_chans, img_size, img_size) → (batch, num_classes) logits.

    The defaults give an 8×8 grid of patches and a class token, 4 layers of 3 heads with head_dim 16, about
    117 000 parameters. The position embedding starts at ``pos_embed_std``: timm's 0.02 is drowned by the
    patch embedding, and on small data the model then stays at chance for twenty epochs.

    ``attention`` is a variant of ``workbench.attention.VARIANTS``, in ``attention_layers`` (default: all)
    with ``attention_options``; the other layers have softmax attention. If every layer has its own positions
    (bilateral, nonlocal, alibi), none are added to the tokens, and bilateral layers share one
    parameter. ``boost`` gives every layer a boosted residual around its attention. ``mlp`` "ista" replaces the
    MLP and its residual by CRATE's ISTA (wu2025 Table 8).

    Raises UnknownName for an attention, an option of it or an mlp that does not exist, InputError if the patch
    size does not divide the image, the head count does not divide the width, or the attention is causal: the
    class token stands first and would see nothing.
    """
    check_sizes(img_size, patch_size, embed_dim, num_heads)
    changed = attention != "softmax" or attention_layers is not None or attention_options not in (None, {})
    if changed:
        refuse_causal(attention, table_of_options(attention, attention_options), CLASS_TOKEN_FIRST)
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
    if changed:
        tokens = positions.shape[1]
        install_attention(model.blocks, attention, attention_layers, attention_options, num_tokens=tokens)
        if brings_positions(model.blocks):
            model.pos_embed = None
        share_positions(model.blocks, pos_embed_std)
    return model


class BoostedBlock(Block):
    """timm's block with a boosted residual around its attention (abdullaev2025 eq. 26).

    The residual around the MLP stays ordinary: the paper's f_ℓ is the attention. Its ``forward``
    also takes ``first``, the tokens that entered the first block; ``BoostedBlocks`` hands it on.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.boost = BoostedResidual()

    def forward(
        self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False, first: Tensor | None = None
    ) -> Tensor:
        if first is None:
            raise InputError(
                "a boosted block adds a share of the tokens that entered the first block, and was called "
                "without them; run the blocks together, as model.blocks(x)"
            )
        update = self.attn(self.norm1(x), attn_mask=attn_mask, is_causal=is_causal)
        x = self.boost(self.drop_path1(self.ls1(update)), x, first)
        return x + self.drop_path2(self.ls2(self.mlp(self.norm2(x))))


class BoostedBlocks(nn.Sequential):
    """Blocks that each also receive the input of the first."""

    def forward(self, input: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        x = input
        for block in self:
            x = block(x, attn_mask=attn_mask, first=input)
        return x


def block_class(mlp: str, boost: bool) -> type[Block]:
    """timm's block, or the one with ISTA or with boosted residuals.

    Raises UnknownName for an mlp that does not exist, InputError for both at once.
    """
    if mlp not in _MLPS:
        raise UnknownName("mlp", str(mlp), _MLPS)
    if mlp == "ista" and boost:
        raise InputError(
            "boost and mlp 'ista' change the same block, and no paper has both; take one of them"
        )
    if mlp == "ista":
        return IstaBlock
    return BoostedBlock if boost else Block


def check_sizes(img_size: int, patch_size: int, embed_dim: int, num_heads: int) -> None:
    """Raise InputError unless patches fill the image and heads the width."""
    if img_size % patch_size:
        raise InputError(f"patch_size {patch_size} does not divide img_size {img_size}")
    if embed_dim % num_heads:
        raise InputError(f"num_heads {num_heads} does not divide embed_dim {embed_dim}")


def refuse_causal(attention: str, options: Mapping[str, Any], why: str) -> None:
    """Raise InputError for attention that is causal, by its nature or by its ``options``."""
    if find_variant(attention).causality == "always" or options.get("causal"):
        raise InputError(
            f"attention {attention!r} is causal: {why}; take it in a language model, or a variant that is not causal"
        )


def make_blocks(
    depth: int, width: int, heads: int, mlp_ratio: float, boost: bool, *, mlp: str = "mlp", **options: Any
) -> nn.Sequential:
    """Fresh pre-norm blocks, drawn as timm draws them; their attention is timm's until it is installed.

    ``options`` are further ones of timm's ``Block``; ``mlp`` as in ``block_class``.
    """
    make, together = block_class(mlp, boost), BoostedBlocks if boost else nn.Sequential
    blocks = together(*(make(width, heads, mlp_ratio, qkv_bias=True, **options) for _ in range(depth)))
    for part in blocks.modules():
        init_weights_vit_timm(part, needs_reset=False)
    return blocks


def run_blocks(blocks: nn.Sequential, x: Tensor, mask: Tensor | None) -> Tensor:
    """Return the output of the last block; ``mask`` (batch, token) goes to every attention."""
    if isinstance(blocks, BoostedBlocks):
        return blocks(x, attn_mask=mask)
    for block in blocks:
        x = block(x, attn_mask=mask)
    return x


def install_attention(
    blocks: Iterable[nn.Module],
    name: str,
    layers: Numbers,
    options: Mapping[str, Any] | None,
    *,
    others: str | None = None,
    **shared: Any,
) -> None:
    """Give the chosen blocks the attention variant ``name``, with weights drawn as timm draws them.

    The other blocks get ``others``, or keep what they have for None. ``shared`` goes to every module
    (num_tokens, causal). Raises UnknownName for a name or an option that does not exist, InputError for
    layers and values that cannot be.
    """
    owners: list[Any] = list(blocks)
    attention_options = table_of_options(name, options)
    chosen = parse_numbers("layer", layers, len(owners))
    for layer, block in enumerate(owners):
        kind, wanted = (name, attention_options) if layer in chosen else (others, {})
        if kind is None:
            continue
        width, heads = block.attn.qkv.in_features, block.attn.num_heads
        free = {key: value for key, value in shared.items() if key not in find_variant(kind).fixed}
        block.attn = attention_module(kind, width, heads, **(free | {"layer": layer} | wanted))
        for part in block.attn.modules():
            init_weights_vit_timm(part, needs_reset=False)


def table_of_options(name: str, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the options of the variant ``name`` as a dict; raises UnknownName and InputError."""
    find_variant(name)
    if options is not None and not isinstance(options, Mapping):
        raise InputError(f"attention_options is a table of options of {name!r}, got {options!r}")
    return dict(options or {})


def attentions(blocks: Iterable[nn.Module]) -> list[Any]:
    """The attention module of every block."""
    owners: list[Any] = list(blocks)
    return [block.attn for block in owners]


def brings_positions(blocks: Iterable[nn.Module]) -> bool:
    """Return whether every layer has positions in its logits (or, non-local, none on purpose)."""
    return all(getattr(attention, "brings_positions", False) for attention in attentions(blocks))


def share_positions(blocks: Iterable[nn.Module], std: float) -> bool:
    """Let all layers with learned positions in their logits use one parameter, drawn with ``std``.

    They describe the places of the input, which are the same in every layer. False where no layer has any.
    """
    owners = [
        attention for attention in attentions(blocks) if getattr(attention, "positions", None) is not None
    ]
    for attention in owners:
        attention.positions = owners[0].positions
    if owners:
        nn.init.normal_(owners[0].positions, std=std)
    return bool(owners)


def causal_variants() -> list[str]:
    """Return the names of the variants that are causal or have a causal form."""
    return [name for name, variant in VARIANTS.items() if variant.causality != "never"]
