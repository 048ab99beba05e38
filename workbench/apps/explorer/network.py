"""A small vision transformer that a saved page runs itself: its card and its weights in a bundle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from annotated_types import Ge, Gt, Le
from pydantic import BaseModel, ConfigDict
from torch import nn

if TYPE_CHECKING:
    from workbench.data.batches import Inputs
    from workbench.models.loading import LoadedModel

MOST_BYTES = 500_000
"""Weights, in single precision, that a saved page takes along."""
_PARTS = {
    "Attention",
    "Block",
    "Conv2d",
    "Dropout",
    "GELU",
    "Identity",
    "LayerNorm",
    "Linear",
    "Mlp",
    "PatchEmbed",
}
_GROUPS = {"ModuleList", "Sequential", "VisionTransformer"}


class NetworkCard(BaseModel):
    """The settings of a network that the page runs itself; its weights are arrays of the bundle."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)

    depth: Annotated[int, Ge(1), Le(64)]
    heads: Annotated[int, Ge(1)]
    width: Annotated[int, Ge(1)]
    hidden: Annotated[int, Ge(1)]
    """Width of the layers between."""
    side: Annotated[int, Ge(1)]
    """Pixels of a patch's side."""
    shape: tuple[int, int, int]
    """(channels, rows, columns) of its images."""
    epsilon: Annotated[float, Gt(0)]
    """That of its layer norms."""
    mean: list[float]
    """By channel, of the pixels from 0 to 1."""
    std: list[float]
    classes: list[str]

    @property
    def weights(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of its weights, by the names that timm gives them."""
        width, hidden, (channels, rows, columns) = self.width, self.hidden, self.shape
        tokens = 1 + (rows // self.side) * (columns // self.side)
        shapes: dict[str, tuple[int, ...]] = {
            "patch_embed.proj": (width, channels, self.side, self.side),
            "norm": (width,),
            "head": (len(self.classes), width),
        }
        for layer in range(self.depth):
            start = f"blocks.{layer}"
            shapes |= {f"{start}.norm1": (width,), f"{start}.attn.qkv": (3 * width, width)}
            shapes |= {f"{start}.attn.proj": (width, width), f"{start}.norm2": (width,)}
            shapes |= {f"{start}.mlp.fc1": (hidden, width), f"{start}.mlp.fc2": (width, hidden)}
        biases = {f"{name}.bias": shape[:1] for name, shape in shapes.items()}
        weights = {f"{name}.weight": shape for name, shape in shapes.items()}
        return {"cls_token": (1, 1, width), "pos_embed": (1, tokens, width)} | weights | biases


def network_of(model: LoadedModel, sample: Inputs) -> tuple[NetworkCard, dict[str, np.ndarray]] | None:
    """Return card and weights of a plain vision transformer; None for any other model, and for a large one."""
    from timm.models.vision_transformer import VisionTransformer

    module: Any = model.module
    batch: Any = sample.batch
    names = (model.meta or {}).get("classes") or ()
    if type(module) is not VisionTransformer or sample.normalization is None or not sample.images:
        return None
    state = {name: value.detach().cpu() for name, value in module.state_dict().items()}
    size = 4 * sum(value.numel() for value in state.values())
    shape = tuple(batch.shape[1:])
    if size > MOST_BYTES or not _plain(module) or sample.images[0].shape[:2] != shape[1:]:
        return None
    mean, std = sample.normalization
    classes = len(state["head.bias"])
    card = NetworkCard(
        depth=len(module.blocks),
        heads=module.blocks[0].attn.num_heads,
        width=module.embed_dim,
        hidden=module.blocks[0].mlp.fc1.out_features,
        side=module.patch_embed.patch_size[0],
        shape=shape,
        epsilon=module.norm.eps,
        mean=[float(value) for value in mean][: shape[0]],
        std=[float(value) for value in std][: shape[0]],
        classes=[str(name) for name in names] or [f"class {number}" for number in range(classes)],
    )
    if {name: tuple(value.shape) for name, value in state.items()} != card.weights:
        return None
    return card, {f"network.{name}": value.float().numpy() for name, value in state.items()}


def _plain(module: Any) -> bool:
    """Return whether a transformer of timm has only the parts that the page knows."""
    norms = [part for part in module.modules() if isinstance(part, nn.LayerNorm)]
    gelus = [part for part in module.modules() if isinstance(part, nn.GELU)]
    embedding = module.patch_embed.proj
    return (
        {type(part).__name__ for part in module.modules()} <= _PARTS | _GROUPS
        and module.global_pool == "token"
        and len({norm.eps for norm in norms}) == 1
        and all(gelu.approximate == "none" for gelu in gelus)
        and embedding.stride == embedding.kernel_size
    )
