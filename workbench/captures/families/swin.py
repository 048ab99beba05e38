"""Swin and Swin V2: attention inside windows of patches, shifted in every second block (timm)."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from workbench.captures.family import Adapter, Block, Family, Reading, Visit, flat_tokens
from workbench.captures.layer_records import Call, WindowOrigin


class Windows(Adapter):
    """One call for all windows of all images; keeps which window each row of the batch is."""

    def read(self, visit: Visit) -> list[Call]:
        block = next((v for v in visit.parents if hasattr(v.module, "shift_size")), None)
        if block is None:  # the attention on its own: no image to cut
            return visit.calls
        _, height, width, _ = block.args[0].shape
        size, shift = block.module.window_size, block.module.shift_size
        grid = (math.ceil(height / size[0]), math.ceil(width / size[1]))
        per_image = grid[0] * grid[1]
        calls = []
        for call in visit.calls:
            window = torch.arange(call.q.shape[0], device=call.q.device)
            within = window % per_image
            origin = WindowOrigin(
                window // per_image, within // grid[1], within % grid[1], tuple(size), tuple(shift), grid
            )
            calls.append(replace(call, origin=origin))
        return calls


SWIN = Family(
    adapters={"timm.models.swin_transformer.WindowAttention": Windows()},
    blocks={
        "timm.models.swin_transformer.SwinTransformerBlock": Block(
            "norm2.input", resid_post=Reading((("", "output"),), flat_tokens)
        ),
        # Both norms sit behind their branch, so the stream enters the second one at the MLP.
        "timm.models.swin_transformer_v2.SwinTransformerV2Block": Block("mlp.input", norm_first=False),
    },
    other_positions={"relative_position_bias_table": "a relative position bias"},
)
