"""CaiT: talking heads among the patches, then class attention (timm)."""

from __future__ import annotations

from torch import Tensor, nn

from workbench.attention.base import merge_heads, split_heads
from workbench.captures.family import Adapter, Block, Family, Visit
from workbench.captures.layer_records import Call


class TalkingHeads(Adapter):
    """Linear maps mix the heads before and after the softmax, so rows of attn do not sum to 1."""

    reads_calls = False

    def read(self, visit: Visit) -> list[Call]:
        module = visit.module
        x: Tensor = visit.args[0]
        heads, scale = module.num_heads, module.scale
        q, k, v = (split_heads(part, heads) for part in module.qkv(x).chunk(3, dim=-1))
        scores = self._mix(module.proj_l, (q * scale) @ k.mT)
        attn = self._mix(module.proj_w, scores.softmax(dim=-1))
        output = attn @ v
        return [
            Call(
                q, k, v, scale, None, output, attn=attn, rows_sum_to_one=False,
                dropout=max(module.attn_drop.p, module.proj_drop.p) if module.training else 0.0,
                reproduced=[(module.proj(merge_heads(output)), visit.output)],
            )
        ]  # fmt: skip

    @staticmethod
    def _mix(linear: nn.Module, maps: Tensor) -> Tensor:
        return linear(maps.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


CAIT = Family(
    adapters={"timm.models.cait.TalkingHeadAttn": TalkingHeads()},
    # Patches and class token come in two parts; attention changes only the second.
    blocks={"timm.models.cait.LayerScaleBlockClassAttn": Block("norm2.input", one_stream=False)},
)
