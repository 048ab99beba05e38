"""Images that a vision model packs one behind another, each attending within itself (Qwen2-VL and its like).

Wang et al. 2024 (Qwen2-VL): images of any size as one sequence of patches, in squares that later become one token.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workbench.captures.family import Adapter, Family, Visit
from workbench.captures.labelled_tokens import TokenInfo
from workbench.captures.layer_records import Call


class _PackedImages(Adapter):
    """Join the calls for every image or window to one layer: its batch is the images, padded to the longest.

    The padding is in ``mask``; its queries, which the model does not have, attend to nothing.
    """

    joins: ClassVar[bool] = True

    def takes(self, cls: type[nn.Module]) -> bool:
        return "Attention" in cls.__name__ and "cu_seqlens" in inspect.signature(cls.forward).parameters

    def read(self, visit: Visit) -> list[Call]:
        calls = visit.calls
        if len(calls) < 2 or any(call.attn is not None or len(call.q) > 1 for call in calls):
            return calls
        counts = [call.q.shape[2] for call in calls]
        joined = {
            name: _padded([getattr(call, name) for call in calls]) for name in ("q", "k", "v", "head_out")
        }
        return [
            replace(calls[0], mask=_among_real(counts, [call.mask for call in calls], joined["q"]), **joined)
        ]


def _padded(parts: list[Tensor]) -> Tensor:
    """(1, head, token, feature) of each part as one batch, padded with zeros at the end."""
    most = max(part.shape[2] for part in parts)
    return torch.cat([F.pad(part, (0, 0, 0, most - part.shape[2])) for part in parts])


def _among_real(counts: list[int], masks: list[Tensor | None], like: Tensor) -> Tensor | None:
    """Which tokens of a part attend to which, padding to nothing; None where everything may be seen."""
    if any(mask is not None for mask in masks):
        padded = [_bool(mask, count) for mask, count in zip(masks, counts, strict=True)]
    elif len(set(counts)) == 1:
        return None
    else:
        padded = [torch.ones(1, 1, count, count, dtype=torch.bool) for count in counts]
    most = max(counts)
    return torch.cat(
        [F.pad(part, (0, most - part.shape[-1], 0, most - part.shape[-2])) for part in padded]
    ).to(like.device)


def _bool(mask: Tensor | None, count: int) -> Tensor:
    allowed = (
        torch.ones((), dtype=torch.bool) if mask is None else mask if mask.dtype == torch.bool else mask == 0
    )
    return allowed.expand(1, 1, count, count).cpu()


def _in_squares(vision: Any, batch: Mapping[str, Any]) -> TokenInfo | None:
    """Patches in the order of the squares that become one token, those of windows (Qwen2.5-VL) together."""
    sizes = batch.get(
        "image_grid_thw", batch.get("grid_thw")
    )  # the latter is what the vision model itself is given
    if not isinstance(sizes, Tensor):
        return None
    side = vision.spatial_merge_size
    order = None
    if hasattr(vision, "window_size"):
        from transformers.vision_utils import get_vision_window_index

        order, _ = get_vision_window_index(
            sizes, spatial_merge_size=side, window_size=vision.window_size, patch_size=vision.patch_size
        )
    spots, start = [], 0
    for frames, rows, columns in sizes.tolist():
        places = torch.cartesian_prod(torch.arange(rows), torch.arange(columns))
        places = (
            places.view(rows // side, side, columns // side, side, 2)
            .transpose(1, 2)
            .reshape(-1, side * side, 2)
        )
        places = places.repeat(frames, 1, 1)
        if order is not None:  # of an image its windows stand together
            places = places[order[start : start + len(places)].cpu() - start]
        start += len(places)
        spots += list(places.reshape(frames, -1, 2).tolist())
    most = max(map(len, spots))
    labels = [
        [f"{row},{column}" for row, column in squares] + [""] * (most - len(squares)) for squares in spots
    ]
    kinds = [["patch"] * len(squares) + ["padding"] * (most - len(squares)) for squares in spots]
    mask = torch.tensor([[kind == "patch" for kind in squares] for squares in kinds])
    grids = [[(rows, columns)] for frames, rows, columns in sizes.tolist() for _ in range(frames)]
    return TokenInfo(labels, kinds, None, mask, grids)


_MODELS = "transformers.models."
PACKED_IMAGES = Family(
    adapters={_MODELS: _PackedImages()},
    image_tokens={
        f"{_MODELS}qwen2_vl.modeling_qwen2_vl.Qwen2VisionTransformerPretrainedModel": _in_squares,
        f"{_MODELS}qwen2_5_vl.modeling_qwen2_5_vl.Qwen2_5_VisionTransformerPretrainedModel": _in_squares,
        f"{_MODELS}qwen3_vl.modeling_qwen3_vl.Qwen3VLVisionModel": _in_squares,
    },
)
