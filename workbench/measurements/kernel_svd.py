"""Attention as kernel SVD: spectra of token × token matrices, what r-scores hold, and whether V is made of H_r."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from workbench.analyses import chance, kernel_pca
from workbench.analyses.kernel_svd import (
    KernelSVD,
    inside_share,
    kernel_svd,
    left_out,
    relative_values,
    singular_values,
    span_angles,
)
from workbench.analyses.null_values import null_values
from workbench.analyses.subspaces import head_bases
from workbench.attention.base import split_heads
from workbench.attention.primal import PrimalAttention, primal_kernel
from workbench.errors import InputError
from workbench.measurements.keys import chance_of
from workbench.measurements.layers import Layer, NotMeasured, need_token_attention
from workbench.measurements.rows import Measurement
from workbench.recording import attention_weights

# Of an entry of attention, which is at most 1: beyond the rounding of single precision.
_SAME = 1e-3
_ALL = slice(None)
_RANKED = ("singular_value", "singular_value_relative", "explained_variance")


class _Operator(NamedTuple):
    """How a layer makes its token × token matrix K of q and k of the chosen heads.

    ``matrix(q, k, inputs, tokens)`` is K of some inputs and of some tokens, whose q and k are given. ``own``: the
    captured attention in the place of K, where it is not made of q and k in that way.
    """

    q: Tensor
    k: Tensor
    matrix: Callable[[Tensor, Tensor, Any, Any], Tensor]
    own: Tensor | None = None


class _Found(NamedTuple):
    """One metric of some inputs: (input, head), or (input, head, rank); draws have a last axis for the draw."""

    metric: str
    values: Tensor
    draws: Mapping[str, Tensor]
    columns: Mapping[str, str]


def attention_spectrum(layer: Layer, options: Mapping[str, Any]) -> Iterator[Measurement]:
    """Singular values of every head's attention or Primal kernel, its r-scores, and V beside its right directions.

    The matrix is that of the real tokens among themselves; of windows, each window by itself.
    """
    module = layer.module if "e_scores" in layer.record.extra else None
    operator = _primal(layer, module) if isinstance(module, PrimalAttention) else _softmax(layer)
    real = layer.head_mask(operator.q, options["padding"])
    # inputs with the same real tokens are measured together
    groups: list[tuple[Any, Any]] = [(_ALL, _ALL)]
    if real is not None:
        patterns, which = real[:, 0].unique(dim=0, return_inverse=True)
        groups = [(which == number, pattern) for number, pattern in enumerate(patterns)]
    try:
        parts = [_of_inputs(layer, operator, options, inputs, tokens) for inputs, tokens in groups]
    except InputError as error:
        raise InputError(f"layer {layer.index}: {error}") from None
    windows = {} if layer.record.origin is None else {"statistic": "mean"}
    for found in zip(*parts, strict=True):
        metric, _, draws, columns = found[0]
        ranked = metric in _RANKED
        limit = None if options["max_rank"] == "all" else options["max_rank"]

        def whole(tensors: Sequence[Tensor], ranked: bool = ranked, limit: int | None = limit) -> Tensor:
            values = _together(tensors, [inputs for inputs, _ in groups], len(operator.q), ranked)
            return layer.per_input(values[:, :, :limit] if ranked else values)

        yield Measurement(
            metric,
            whole([part.values for part in found]),
            ("input", "head", "rank") if ranked else ("input", "head"),
            columns={**windows, **columns},
            draws={name: whole([part.draws[name] for part in found]) for name in draws},
        )


def _together(tensors: Sequence[Tensor], inputs: Sequence[Any], batch: int, ranked: bool) -> Tensor:
    """Results of groups of inputs in the order of the batch; ranks that an input does not have are NaN."""
    if ranked:
        ranks = max(tensor.shape[2] for tensor in tensors)
        tensors = [
            F.pad(tensor, (*[0] * (2 * tensor.ndim - 6), 0, ranks - tensor.shape[2]), value=torch.nan)
            for tensor in tensors
        ]
    whole = tensors[0].new_empty(batch, *tensors[0].shape[1:])
    for chosen, tensor in zip(inputs, tensors, strict=True):
        whole[chosen] = tensor
    return whole


def _primal(layer: Layer, module: PrimalAttention) -> _Operator:
    """The kernel that Primal-Attention induces and never forms: of its q and k, and of its samples of the input."""
    q, k = (layer.choose_heads(layer.site(name)).double() for name in "qk")
    x = None
    if not module.independent:
        x = split_heads(layer.site("input"), module.num_heads)[:, layer.heads].double()

    def matrix(q: Tensor, k: Tensor, inputs: Any, tokens: Any) -> Tensor:
        part = None if x is None else x[inputs][:, :, tokens]
        return primal_kernel(q, k, x=part, samples=module.we.shape[1], causal=module.causal)

    return _Operator(q, k, matrix)


def _softmax(layer: Layer) -> _Operator:
    """Attention from the captured q and k, in float64."""
    need_token_attention(layer)
    record, queries = layer.record, layer.site("q")
    heads = queries.shape[1]
    q = layer.choose_heads(queries).double()
    k = layer.of_queries(layer.site("k"), heads).double()
    tokens, keys = q.shape[-2], k.shape[-2]
    if tokens != keys:
        raise NotMeasured(f"attends from {tokens} queries to {keys} keys, not among the same tokens")
    scale = layer.scale(q.shape[-1], heads)
    factor = scale.reshape(-1, 1, 1) if isinstance(scale, Tensor) and scale.numel() > 1 else scale
    mask = None if record.mask is None else record.mask.expand(len(q), heads, tokens, keys)[:, layer.heads]

    def matrix(q: Tensor, k: Tensor, inputs: Any, tokens: Any) -> Tensor:
        part = None if mask is None else mask[inputs][:, :, tokens][..., tokens]
        return attention_weights(q, k, factor, part)

    if record.attn is None:
        return _Operator(q, k, matrix)
    own = record.attn[:, layer.heads]
    differs = (own - matrix(q, k, _ALL, _ALL)).abs().amax((-2, -1)) > _SAME
    layer.tally.add(
        "heads do not attend by softmax(scale q kᵀ + mask) alone: their spectra have no chance level",
        differs.any().expand(differs.shape),
    )
    return _Operator(q, k, matrix, own if differs.any() else None)


def _of_inputs(
    layer: Layer, operator: _Operator, options: Mapping[str, Any], inputs: Any, tokens: Any
) -> list[_Found]:
    """Everything about inputs that have the same real tokens, these alone."""

    def cut(tensor: Tensor) -> Tensor:
        return tensor[inputs][:, :, tokens]

    q, k, own = cut(operator.q), cut(operator.k), operator.own
    kernel = operator.matrix(q, k, inputs, tokens) if own is None else cut(own)[..., tokens]
    seeds = torch.tensor(layer.seeds(len(operator.q))).unflatten(0, (-1, len(layer.heads)))[inputs]
    asked = chance_of(options)
    draws = asked["draws"] if "gaussian" in asked["nulls"] else 0
    found = _spectra(kernel)
    if draws and own is None:
        others = zip(
            *(_noise(tensor, draws, seeds, name) for name, tensor in (("q", q), ("k", k))), strict=True
        )
        drawn = [_spectra(operator.matrix(*other, inputs, tokens)) for other in others]
        found = [
            one._replace(draws={"gaussian": torch.stack([part.values for part in parts], -1)})
            for one, parts in zip(found, zip(*drawn, strict=True), strict=True)
        ]
    record = layer.record
    v = None if record.v is None else cut(layer.of_queries(record.v, layer.total_heads)).double()
    output = None if record.output is None else cut(record.output[:, layer.heads]).double()
    if output is None:
        if v is None:
            return found
        output = kernel.double() @ v
    svd = kernel_svd(kernel, min(output.shape[-1], kernel.shape[-1]))
    random = _noise(output, draws, seeds, "output")
    layer.tally.add(
        f"heads have no more tokens than the {output.shape[-1]} features of their output: every score lies inside",
        torch.full(kernel.shape[:2], kernel.shape[-1] <= output.shape[-1]),
    )
    found += _left_out(svd, output, random)
    return found + ([] if v is None else _beside_values(svd, v, random, seeds, asked))


def _noise(like: Tensor, draws: int, seeds: Tensor, what: str) -> Tensor:
    """Gaussian draws of the mean square of every head: (draw, input, head, token, feature)."""
    each = [
        null_values(head, "gaussian", draws, chance.derived_seed(seed, what))
        for head, seed in zip(like.flatten(0, 1), seeds.flatten().tolist(), strict=True)
    ]
    return torch.stack(each, 1).unflatten(1, like.shape[:2])


def _spectra(kernel: Tensor) -> list[_Found]:
    values = singular_values(kernel)
    variance = values.square()
    rank = kernel_pca.rank_holding(variance, 0.9)
    each = {
        "singular_value": values,
        "singular_value_relative": relative_values(values),
        "explained_variance": kernel_pca.spectrum_share(variance).cumsum(-1),
        "effective_rank": kernel_pca.effective_rank(values),
        "rank_90": rank,
        "rank_90_share": rank / kernel.shape[-1],
    }
    return [_Found(metric, value, {}, {}) for metric, value in each.items()]


def _left_out(svd: KernelSVD, output: Tensor, random: Tensor) -> list[_Found]:
    """What the r-scores hold outside the span of the e-scores, and outside that of the head's own output."""
    scores = svd.r_scores
    # columns of Gaussian noise span a random subspace
    draws = {"gaussian": left_out(scores, torch.linalg.qr(random).Q).movedim(0, -1)} if len(random) else {}
    candidates = {"e_scores": svd.left, "output": head_bases(output)}
    return [
        _Found("r_score_share", left_out(scores, basis), draws, {"candidate": name})
        for name, basis in candidates.items()
    ]


def _beside_values(
    svd: KernelSVD, v: Tensor, random: Tensor, seeds: Tensor, asked: Mapping[str, Any]
) -> list[_Found]:
    """How far V is from the right singular vectors: share of its squared norm in their span, principal angles."""
    basis, drawn = head_bases(v), {}
    if len(random):
        drawn["gaussian"] = (random, torch.linalg.qr(random).Q)
    if asked["draws"] and "permutation" in asked["nulls"]:
        places = torch.arange(v.shape[-2], device=v.device)[:, None]
        orders = [
            null_values(places, "permutation", asked["draws"], seed) for seed in seeds.flatten().tolist()
        ]
        order = torch.stack(orders, 1).unflatten(1, v.shape[:2]).long()
        drawn["permutation"] = (
            torch.take_along_dim(v[None], order, -2),
            torch.take_along_dim(basis[None], order, -2),
        )

    def compare(values: Tensor, basis: Tensor) -> dict[str, Tensor]:
        angles = span_angles(basis, svd.right)
        return {
            "share": inside_share(values, svd.right),
            "min": angles[..., 0],
            "mean": angles.nanmean(-1),
        }

    observed = compare(v, basis)
    by_chance = {null: compare(*parts) for null, parts in drawn.items()}
    return [
        _Found(
            "right_singular_share" if name == "share" else "right_singular_angle",
            values,
            {null: found[name].movedim(0, -1) for null, found in by_chance.items()},
            {} if name == "share" else {"statistic": name},
        )
        for name, values in observed.items()
    ]
