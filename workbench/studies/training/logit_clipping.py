"""QK-Clip during training: the largest logit of each head in a pass, and smaller weights after the step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from workbench.attention.base import attention_mask, split_heads
from workbench.attention.softmax import SoftmaxAttention, clip_queries_keys
from workbench.core.errors import InputError


class LogitClipping:
    """QK-Clip (Kimi Team 2025) of every softmax layer of a model, with a threshold in nats.

    A forward pass in training notes the largest logit of each head; `clip`, after the optimiser's step, scales W_Q and
    W_K of the heads above the threshold. Raises InputError for a model without softmax attention of its own queries
    and keys.
    """

    def __init__(self, model: nn.Module, threshold: float) -> None:
        self.threshold = threshold
        self.largest: dict[nn.Module, Tensor] = {}
        layers = [module for module in model.modules() if _has_plain_logits(module)]
        if not layers:
            raise InputError(
                f"qk_clip={threshold:g} limits the logits of softmax attention, and {type(model).__name__} has no such "
                "layer; leave out qk_clip, or train attention 'softmax'"
            )
        for layer in layers:
            layer.register_forward_pre_hook(self._note, with_kwargs=True)

    def clip(self) -> Tensor:
        """Scale the weights, and return the largest logit of the pass, before clipping."""
        largest = torch.stack([logits.max() for logits in self.largest.values()]).max()
        for layer, logits in self.largest.items():
            clip_queries_keys(layer, logits, self.threshold)
        self.largest.clear()
        return largest

    @torch.no_grad()
    def _note(self, layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not layer.training:
            return
        x, mask = args[0], kwargs.get("attn_mask", args[1] if len(args) > 1 else None)
        q, k, _ = (split_heads(part, layer.num_heads) for part in layer.qkv(x).chunk(3, -1))
        logits = layer.scale * q @ k.mT
        allowed = attention_mask(mask, q, causal=getattr(layer, "causal", False))
        if allowed is not None:
            logits = logits.masked_fill(allowed.logical_not(), -torch.inf)
        self.largest[layer] = logits.amax((0, 2, 3))


def _has_plain_logits(module: nn.Module) -> bool:
    """Whether the logits are q kᵀ of a joint projection: timm's attention without norms, or our own softmax."""
    from workbench.core.light_timm import timm

    if isinstance(module, timm.layers.Attention):
        return isinstance(module.q_norm, nn.Identity)
    return type(module) is SoftmaxAttention
