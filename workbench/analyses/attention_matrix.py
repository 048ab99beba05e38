"""Attention of a layer as a function of its queries and keys, by groups of inputs without their padding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from workbench.analyses.layer import NEVER, WINDOW_MASK, Layer, need_token_attention, visible_keys
from workbench.analyses.null_values import null_values
from workbench.attention.base import split_heads
from workbench.attention.primal import PrimalAttention, primal_kernel
from workbench.captures import attention_weights
from workbench.core import null_distributions
from workbench.frames.measurement import Measurement
from workbench.frames.metric import Metric

# Of an entry of attention, which is at most 1: beyond the rounding of single precision.
_SAME = 1e-3
_ALL = slice(None)


class AttentionMatrix(NamedTuple):
    """How a layer makes its matrix K of queries × keys from q and k of the chosen heads, in float64.

    ``matrix(q, k, inputs, tokens)`` is K of some inputs and tokens with these q and k. ``logits`` is the argument of
    softmax for these inputs and tokens, and for a slice of the tokens as queries with these q: −∞ where a query does
    not see a key; None without softmax. ``captured``: the captured attention, if it differs from K; else None.
    """

    q: Tensor
    k: Tensor
    matrix: Callable[[Tensor, Tensor, Any, Any], Tensor]
    logits: Callable[[Tensor, Tensor, Any, Any, slice], Tensor] | None = None
    captured: Tensor | None = None


class MetricValues(NamedTuple):
    """One metric of some inputs: (input, head), or (input, head, rank); null samples have one axis more, the last."""

    metric: Metric
    values: Tensor
    null_samples: Mapping[str, Tensor] = {}
    columns: Mapping[str, str] = {}
    ranked: bool = False


def softmax_matrix(layer: Layer) -> AttentionMatrix:
    """Attention from the captured q and k. Raises `NotApplicable` for attention that is not over tokens."""
    need_token_attention(layer)
    record, queries = layer.record, layer.site("q")
    heads = queries.shape[1]
    q = layer.choose_heads(queries).double()
    k = layer.of_queries(layer.site("k"), heads).double()
    scale = layer.scale(q.shape[-1], heads)
    factor = scale.reshape(-1, 1, 1) if isinstance(scale, Tensor) and scale.numel() > 1 else scale
    hidden_at = NEVER if record.origin is None else WINDOW_MASK

    def whole_mask() -> Tensor | None:
        mask = layer.head_attention_mask
        return None if mask is None else mask.expand(len(q), len(layer.heads), q.shape[-2], k.shape[-2])

    def seen(inputs: Any, tokens: Any) -> Tensor | None:
        mask = whole_mask()
        return None if mask is None else mask[inputs][:, :, tokens][..., tokens]

    def matrix(q: Tensor, k: Tensor, inputs: Any, tokens: Any) -> Tensor:
        return attention_weights(q, k, factor, seen(inputs, tokens))

    def logits(q: Tensor, k: Tensor, inputs: Any, tokens: Any, rows: slice) -> Tensor:
        scores = (q @ k.mT) * factor
        if record.causal:  # of long inputs, and never written out: leaving out padding keeps the order
            queries = torch.arange(rows.start, rows.stop, device=k.device)[:, None]
            later = torch.arange(k.shape[-2], device=k.device) > queries
            return scores.masked_fill(later, -torch.inf)
        mask = whole_mask()
        if mask is None:
            return scores
        queries = rows if isinstance(tokens, slice) else tokens.nonzero()[rows, 0]
        part = mask[:, :, queries][inputs][..., tokens]
        visible = visible_keys(part, scores, hidden_at)
        return (scores if part.dtype == torch.bool else scores + part).masked_fill(~visible, -torch.inf)

    captured = None
    if record.attn is not None:
        captured = record.attn[:, layer.heads]
        if (captured - matrix(q, k, _ALL, _ALL)).abs().amax() <= _SAME:
            captured = None
    return AttentionMatrix(q, k, matrix, logits, captured)


def primal_matrix(layer: Layer, module: PrimalAttention) -> AttentionMatrix:
    """The kernel that Primal-Attention induces and never forms: of its q and k, and of its samples of the input."""
    q, k = (layer.choose_heads(layer.site(name)).double() for name in "qk")
    x = None
    if not module.independent:
        x = split_heads(layer.site("input"), module.num_heads)[:, layer.heads].double()

    def matrix(q: Tensor, k: Tensor, inputs: Any, tokens: Any) -> Tensor:
        part = None if x is None else x[inputs][:, :, tokens]
        return primal_kernel(q, k, x=part, samples=module.we.shape[1], causal=module.causal)

    return AttentionMatrix(q, k, matrix)


class Group(NamedTuple):
    """Inputs of a batch that have the same real tokens: which inputs, which tokens, and their seeds by head."""

    inputs: Any
    tokens: Any
    seeds: Tensor

    def cut(self, tensor: Tensor) -> Tensor:
        """Of a tensor (batch, head, token, …) these inputs and tokens."""
        return tensor[self.inputs][:, :, self.tokens]


def groups_of(layer: Layer, like: Tensor, padding: str = "mask") -> list[Group]:
    """The inputs of a layer whose tensors (batch, head, token, …) have the axes of ``like``, by their real tokens."""
    seeds = torch.tensor(layer.seeds(len(like))).unflatten(0, (-1, len(layer.heads)))
    real = layer.head_mask(like, padding)
    if real is None:
        return [Group(_ALL, _ALL, seeds)]
    patterns, which = real[:, 0].unique(dim=0, return_inverse=True)
    chosen = [which == number for number in range(len(patterns))]
    return [
        Group(inputs, tokens, seeds[inputs.cpu()]) for inputs, tokens in zip(chosen, patterns, strict=True)
    ]


def noise_like(tensor: Tensor, null_samples: int, group: Group, what: str) -> Tensor:
    """Gaussian null samples of the mean square of every head of ``tensor`` (input, head, token, feature).

    Returns (draw, input, head, token, feature).
    """
    each = [
        null_values(head, "gaussian", null_samples, null_distributions.derived_seed(seed, what))
        for head, seed in zip(tensor.flatten(0, 1), group.seeds.flatten().tolist(), strict=True)
    ]
    return torch.stack(each, 1).unflatten(1, tensor.shape[:2])


def with_null(
    observed: list[MetricValues],
    measure: Callable[[Tensor, Tensor], list[MetricValues]],
    operands: tuple[Tensor, Tensor],
    null_samples: int,
    group: Group,
) -> list[MetricValues]:
    """Return observed values with their null distribution: ``measure`` of random queries and keys of that size."""
    if not null_samples:
        return observed
    q, k = (
        noise_like(tensor, null_samples, group, name) for name, tensor in zip("qk", operands, strict=True)
    )
    drawn = [measure(*other) for other in zip(q, k, strict=True)]
    return [
        metric._replace(null_samples={"gaussian": torch.stack([part.values for part in parts], -1)})
        for metric, parts in zip(observed, zip(*drawn, strict=True), strict=True)
    ]


def together(layer: Layer, groups: Sequence[Group], parts: Sequence[MetricValues], batch: int) -> Measurement:
    """One metric of all groups, in the order of the batch; of windows, the mean over those of an input.

    Ranks that an input does not have are NaN.
    """
    first = parts[0]

    def whole(tensors: Sequence[Tensor]) -> Tensor:
        if first.ranked:
            ranks = max(tensor.shape[2] for tensor in tensors)
            tensors = [
                F.pad(tensor, (*[0] * (2 * tensor.ndim - 6), 0, ranks - tensor.shape[2]), value=torch.nan)
                for tensor in tensors
            ]
        values = tensors[0].new_empty(batch, *tensors[0].shape[1:])
        for group, tensor in zip(groups, tensors, strict=True):
            values[group.inputs] = tensor
        return layer.per_input(values)

    return Measurement(
        first.metric,
        whole([part.values for part in parts]),
        ("input", "head", "rank") if first.ranked else ("input", "head"),
        columns={**layer.window_column, **first.columns},
        null_samples={
            name: whole([part.null_samples[name] for part in parts]) for name in first.null_samples
        },
    )
