"""Attention recomputed from captured operands, and the comparison that says whether a capture is exact."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from workbench.errors import IncompleteCapture, InputError
from workbench.recording.records import Call

# Largest |recomputed - captured| / largest |captured| that counts as the same numbers. Half precision kernels
# round the attention weights themselves to 8 or 11 bits before multiplying them with v.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
TF32_TOLERANCE = 1e-2
ROWS_CHECKED = 4


def attention_weights(
    q: Float[Tensor, "batch head query head_dim"],
    k: Float[Tensor, "batch kv_head key head_dim"],
    scale: float | Tensor,
    mask: Tensor | None = None,
    kind: str = "token",
) -> Float[Tensor, "batch head query key"]:
    """softmax(scale q kᵀ + mask), at least in float32; with kind "channel" softmax(scale qᵀ k) over channels.

    k may have fewer heads than q (grouped queries). Rows whose mask allows no key are zero, which is what
    ``F.scaled_dot_product_attention`` computes for them.
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    q, k = q.to(dtype), k.to(dtype)
    if kind == "channel":
        return torch.softmax((q.mT @ k) * scale, dim=-1)
    heads, kv_heads = q.shape[1], k.shape[1]
    scaled = q * (scale.to(dtype) if isinstance(scale, Tensor) else scale)
    if heads == kv_heads:
        scores = scaled @ k.mT
    else:
        scores = (scaled.unflatten(1, (kv_heads, -1)) @ k.unsqueeze(2).mT).flatten(1, 2)
    if mask is None:
        return torch.softmax(scores, dim=-1)
    allowed = mask if mask.dtype == torch.bool else mask != -math.inf
    scores = torch.where(allowed, scores, -math.inf) if mask is allowed else scores + mask.to(dtype)
    empty = allowed.any(dim=-1, keepdim=True).logical_not()
    attn = torch.softmax(scores, dim=-1)
    return attn.masked_fill(empty, 0.0) if bool(empty.any()) else attn


def attention_output(
    attn: Float[Tensor, "batch head query key"],
    v: Float[Tensor, "batch kv_head key value_dim"],
    kind: str = "token",
) -> Float[Tensor, "batch head query value_dim"]:
    """attn v, each group of heads reading its own v; with kind "channel" (attn vᵀ)ᵀ."""
    v = v.to(attn.dtype)
    if kind == "channel":
        return (attn @ v.mT).mT
    heads, kv_heads = attn.shape[1], v.shape[1]
    if heads == kv_heads:
        return attn @ v
    return (attn.unflatten(1, (kv_heads, -1)) @ v.unsqueeze(2)).flatten(1, 2)


def call_weights(call: Call) -> Tensor:
    """The attention of a call: the family's own where it has its own, else recomputed."""
    return (
        attention_weights(call.q, call.k, call.scale, call.mask, call.kind)
        if call.attn is None
        else call.attn
    )


def check_call(call: Call, attn: Tensor | None, name: str) -> None:
    """Raise IncompleteCapture unless the captured operands reproduce the captured output.

    With ``attn`` everything is compared; without it a few query rows of every input, which finds a wrong
    operand, scale or mask at a fraction of the cost.
    """
    _check_finite(call, name)
    for rebuilt, own in call.reproduced:
        _compare(rebuilt, own, name, "the module's own output", call.dropout)
    if attn is None:
        call = _few_rows(call)
        attn = call_weights(call)
    if call.softmax_rows and call.kind == "token":
        _check_rows(call, attn, name)
    rebuilt = call.recompute(call, attn) if call.recompute else attention_output(attn, call.v, call.kind)
    _compare(rebuilt, call.output, name, "the captured output", call.dropout)


def _few_rows(call: Call) -> Call:
    queries = call.q.shape[2]
    if call.kind != "token" or call.recompute is not None or call.attn is not None or queries <= ROWS_CHECKED:
        return call
    rows = torch.linspace(0, queries - 1, ROWS_CHECKED).round().long().to(call.q.device)
    mask = call.mask
    if mask is not None and mask.shape[-2] == queries:
        mask = mask[..., rows, :]
    return Call(
        q=call.q[:, :, rows],
        k=call.k,
        v=call.v,
        scale=call.scale,
        mask=mask,
        output=call.output[:, :, rows],
        softmax_rows=call.softmax_rows,
        dropout=call.dropout,
    )


def _check_finite(call: Call, name: str) -> None:
    # A non-finite operand makes the output non-finite, so the operands are searched only when that is.
    low, high = torch.aminmax(call.output)
    if bool(torch.isfinite(low) & torch.isfinite(high)):
        return
    for site in ("q", "k", "v", "output"):
        value: Tensor = getattr(call, site)
        bad = torch.isfinite(value).logical_not()
        if bool(bad.any()):
            batch, head, token, _ = bad.nonzero()[0].tolist()
            raise InputError(
                f"{name}: {site} has {int(bad.sum())} values that are NaN or infinite, the first at input "
                f"{batch}, "
                f"head {head}, token {token}; look at the weights and the batch, or pass check=False to "
                "keep them"
            )


def _check_rows(call: Call, attn: Tensor, name: str) -> None:
    sums = attn.sum(dim=-1)
    tolerance = max(1e-4, TOLERANCE.get(call.output.dtype, 1e-4))
    # Rows without any allowed key are zero by definition.
    off = ((sums - 1).abs() > tolerance) & (sums != 0)
    if bool(off.any()):
        batch, head, query = off.nonzero()[0].tolist()
        raise IncompleteCapture(
            f"{name}: rows of attn should sum to 1, but input {batch}, head {head}, query {query} "
            f"sums to {float(sums[batch, head, query]):.6g}"
        )


def _compare(rebuilt: Tensor, own: Tensor, name: str, what: str, dropout: float) -> None:
    if dropout > 0:
        return  # the weights were dropped at random after the softmax: nothing to compare with
    if rebuilt.shape != own.shape:
        raise IncompleteCapture(
            f"{name}: recomputed attention has shape {tuple(rebuilt.shape)}, {what} {tuple(own.shape)}"
        )
    tolerance = TOLERANCE.get(own.dtype, 1e-4)
    if own.is_cuda and own.dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32:
        tolerance = TF32_TOLERANCE
    wide = torch.promote_types(own.dtype, torch.float32)
    size = float(own.abs().amax()) if own.numel() else 0.0
    difference = float((rebuilt.to(wide) - own).abs().amax()) if own.numel() else 0.0
    if not difference <= tolerance * max(size, torch.finfo(wide).tiny):
        raise IncompleteCapture(
            f"{name}: softmax(scale q kᵀ + mask) v differs from {what} by {difference:.3g} "
            f"(largest value {size:.3g}, tolerance {tolerance:g}): this attention computes something else "
            "and "
            "needs an adapter (docs/capture.md); check=False returns the operands as they were seen"
        )
