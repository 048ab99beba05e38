"""XCiT: attention among channels, then two layers of class attention (timm)."""

from __future__ import annotations

from dataclasses import replace

import torch

from workbench.captures.family import Adapter, Block, Family, Reading, Visit
from workbench.captures.layer_records import Call


class _CrossCovariance(Adapter):
    """Channels attend to channels. Seen as (batch, head, channel, token), temperature inside q."""

    def read(self, visit: Visit) -> list[Call]:
        temperature = visit.module.get_parameter("temperature")
        return [
            replace(
                call,
                q=(call.q / temperature).mT,
                k=call.k.mT,
                v=call.v.mT,
                head_out=call.head_out.mT,
                scale=temperature.clone(),
                kind="channel",
            )
            for call in visit.calls
        ]


XCIT = Family(
    adapters={"timm.models.xcit.XCA": _CrossCovariance()},
    blocks={
        "timm.models.xcit.XCABlock": Block("norm3.input"),
        # Only the class token goes on to norm2, so the stream is added up as the block does.
        "timm.models.xcit.ClassAttentionBlock": Block(
            Reading((("", "input"), ("drop_path1", "output")), torch.add)
        ),
    },
)
