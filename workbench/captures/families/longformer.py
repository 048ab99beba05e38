"""Longformer and LED: a sliding window of keys, and tokens that all attend to (transformers)."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from workbench.attention.base import split_heads
from workbench.captures.family import Adapter, Block, Family, Visit
from workbench.captures.layer_records import Call
from workbench.captures.recomputation import attention_weights


class _SlidingWindow(Adapter):
    """A band of keys around each query, global tokens seen by all, and their own projections.

    Stored densely: the band and the padding are ``mask``. Rows of global tokens in ``attn`` come from the
    extra sites q_global, k_global, v_global (they have no other scale, so ``scale`` holds for them as
    well); ``global_tokens`` (batch, token) marks them.
    """

    reads_calls = False

    def read(self, visit: Visit) -> list[Call]:
        module = visit.module
        x: Tensor = visit.argument(0, "hidden_states")
        padded: Tensor = visit.argument(2, "is_index_masked")
        is_global: Tensor = visit.argument(3, "is_index_global_attn")
        heads = module.num_heads
        q, k, v = (split_heads(layer(x), heads) for layer in (module.query, module.key, module.value))
        index = torch.arange(x.shape[1], device=x.device)
        near = (index[:, None] - index).abs() <= module.one_sided_attn_window_size
        allowed = (near & ~padded[:, None, :]) | is_global[:, None, :]
        allowed &= ~padded[:, :, None]  # queries that are padding attend to nothing
        extra = {}
        if bool(is_global.any()):
            layers = (module.query_global, module.key_global, module.value_global)
            extra = dict(
                zip(
                    ("q_global", "k_global", "v_global"),
                    (split_heads(layer(x), heads) for layer in layers),
                    strict=True,
                )
            )
            extra["global_tokens"] = is_global
            allowed = torch.where(is_global[:, :, None], ~padded[:, None, :], allowed)
        output = split_heads(visit.output[0], heads)
        call = Call(
            q, k, v, 1 / math.sqrt(module.head_dim), allowed[:, None], output, extra=extra,
            dropout=module.dropout if module.training else 0.0,
        )  # fmt: skip
        if extra:
            call = replace(call, attn=self._attn(call), recompute=self._output)
        return [call]

    @staticmethod
    def _attn(call: Call) -> Tensor:
        local = attention_weights(call.q, call.k, call.scale, call.mask)
        far = attention_weights(call.extra["q_global"], call.extra["k_global"], call.scale, call.mask)
        return torch.where(call.extra["global_tokens"][:, None, :, None], far, local)

    @staticmethod
    def _output(call: Call, attn: Tensor) -> Tensor:
        rows = call.extra["global_tokens"][:, None, :, None]
        return torch.where(rows, attn @ call.extra["v_global"].to(attn.dtype), attn @ call.v.to(attn.dtype))


LONGFORMER = Family(
    adapters={
        "transformers.models.longformer.modeling_longformer.LongformerSelfAttention": _SlidingWindow(),
        "transformers.models.led.modeling_led.LEDEncoderSelfAttention": _SlidingWindow(),
    },
    blocks={
        "transformers.models.longformer.modeling_longformer.LongformerLayer": Block(
            skip_path=("attention.output.LayerNorm", "output.LayerNorm")
        )
    },
)
