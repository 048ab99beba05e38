"""The attention variants of ``workbench.attention``, and the blocks of the workbench's own architectures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from workbench.attention.base import AttentionModule
from workbench.captures.family import Adapter, Block, Family, Reading, Rows, Visit
from workbench.captures.labelled_tokens import TokenInfo, image_tokens
from workbench.captures.layer_records import Call
from workbench.captures.token_labels import special_kinds
from workbench.core.errors import IncompleteCapture, InputError


class Variants(Adapter):
    """Calls from what ``watch_variants`` noted during the visit."""

    reads_calls = False

    def read(self, visit: Visit) -> list[Call]:
        module: AttentionModule = visit.module
        if visit.attended is None:
            raise IncompleteCapture(
                f"{visit.path}: the forward of {type(module).__name__} never called its attend"
            )
        output, inside = visit.attended
        operands: dict[str, Any] = {
            site: inside.get(site) for site in ("q", "k", "v", "scale", "mask", "attn")
        }
        facts = (*operands, "rows_sum_to_one", "recompute")
        others = {site: value for site, value in inside.items() if site not in facts}
        return [
            Call(
                **operands,
                head_out=output,
                kind=module.attends,
                rows_sum_to_one=inside.get("rows_sum_to_one", module.attends != "none"),
                extra=others,
                recompute=inside.get("recompute"),
                reproduced=[(module.finish(output), visit.output)],
            )
        ]


def _single_projection(module: AttentionModule, name: str, path: str) -> Rows:
    names = module.projections
    if len(names) > 1 and name not in names:
        if name != "q" or "k" not in names:
            raise InputError(
                f"{path}: {type(module).__name__} has no projection to {name}; it has {', '.join(names)}"
            )
        name = "k"
    index = names.index(name) if name in names else 0
    joint = module.qkv
    bias = None if joint.bias is None else joint.bias.chunk(len(names))[index]
    return joint.weight.chunk(len(names))[index], bias


def _segmenter_tokens(model: Any, batch: Mapping[str, Any]) -> TokenInfo | None:
    """The encoder's tokens, and as the stream "decoder" a token for each class and the patches."""
    pixels = batch.get("pixel_values")
    if not isinstance(pixels, Tensor):
        return None
    grid = model.encoder.patch_embed.grid_size
    decoder = image_tokens(len(pixels), ("class",) * model.num_classes, grid)
    names = [f"class {number}" for number in range(model.num_classes)]
    decoder.labels = [[*names, *row[len(names) :]] for row in decoder.labels]
    return replace(
        image_tokens(len(pixels), special_kinds(model.encoder), grid), streams={"decoder": decoder}
    )


_ATTENTION, _MODELS = "workbench.attention.base.AttentionModule", "workbench.models.architectures"
WORKBENCH = Family(
    adapters={_ATTENTION: Variants()},
    projections={_ATTENTION: _single_projection},
    blocks={
        f"{_MODELS}.ista.IstaBlock": Block("norm2.input"),
        # Its residual is not the sum of stream and attention output; on the skip path (1 − t) p + t p = p.
        f"{_MODELS}.vit.BoostedBlock": Block(
            "norm2.input", attn_out=Reading((("boost", "input"),)), skip_path=()
        ),
        # Half a block is attention and its residual: the stream after attention is its output.
        f"{_MODELS}.fan.Half": Block(Reading((("", "output"),))),
    },
    image_tokens={f"{_MODELS}.segmenter.Segmenter": _segmenter_tokens},
)
