"""Attention as kernel SVD: spectra of token × token matrices, what r-scores hold, and whether V is made of H_r."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from workbench.analyses import kernel_pca
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
from workbench.attention.primal import PrimalAttention
from workbench.core.errors import InputError
from workbench.frames.measurement import Measurement
from workbench.measurements.keys import chance_of
from workbench.measurements.layers import Layer, NotApplicable
from workbench.measurements.operators import (
    Found,
    Group,
    Operator,
    beside_random,
    groups_of,
    noise_like,
    primal_operator,
    softmax_operator,
    together,
)


def attention_spectrum(layer: Layer, options: Mapping[str, Any]) -> Iterator[Measurement]:
    """Singular values of every head's attention or Primal kernel, its r-scores, and V beside its right directions.

    The matrix is that of the real tokens among themselves; of windows, each window by itself.
    """
    operator = _operator_of(layer)
    groups = groups_of(layer, operator.q, options["padding"])
    try:
        parts = [_of_group(layer, operator, options, group) for group in groups]
    except InputError as error:
        raise InputError(f"layer {layer.index}: {error}") from None
    for found in zip(*parts, strict=True):
        yield together(layer, groups, found, len(operator.q))


def _operator_of(layer: Layer) -> Operator:
    module = layer.module if "e_scores" in layer.record.extra else None
    if isinstance(module, PrimalAttention):
        return primal_operator(layer, module)
    operator = softmax_operator(layer)
    queries, keys = operator.q.shape[-2], operator.k.shape[-2]
    if queries != keys:
        raise NotApplicable(f"attends from {queries} queries to {keys} keys, not among the same tokens")
    layer.counts.add(
        "heads do not attend by softmax(scale q kᵀ + mask) alone: their spectra have no chance level",
        torch.full(operator.q.shape[:2], operator.own is not None),
    )
    return operator


def _of_group(layer: Layer, operator: Operator, options: Mapping[str, Any], group: Group) -> list[Found]:
    """Everything about inputs that have the same real tokens, these alone."""
    cut, own = group.cut, operator.own
    q, k = cut(operator.q), cut(operator.k)
    tokens = (group.inputs, group.tokens)
    kernel = operator.matrix(q, k, *tokens) if own is None else cut(own)[..., group.tokens]
    asked = chance_of(options)
    null_samples = asked["null_samples"] if "gaussian" in asked["nulls"] else 0
    limit = None if options["max_rank"] == "all" else options["max_rank"]
    found = beside_random(
        _spectra(kernel, limit),
        lambda q, k: _spectra(operator.matrix(q, k, *tokens), limit),
        (q, k),
        null_samples if own is None else 0,
        group,
    )
    record = layer.record
    v = None if record.v is None else cut(layer.of_queries(record.v, layer.total_heads)).double()
    if record.head_out is not None:
        output = cut(record.head_out[:, layer.heads]).double()
    elif v is not None:
        output = kernel.double() @ v
    else:
        return found
    svd = kernel_svd(kernel, min(output.shape[-1], kernel.shape[-1]))
    random = noise_like(
        output, null_samples, group, "output"
    )  # a word of the seed, no site: draws hang on it
    layer.counts.add(
        f"heads have no more tokens than the {output.shape[-1]} features of their output: every score lies inside",
        torch.full(kernel.shape[:2], kernel.shape[-1] <= output.shape[-1]),
    )
    found += _left_out(svd, output, random)
    return found + ([] if v is None else _beside_values(svd, v, random, group, asked))


def _spectra(kernel: Tensor, limit: int | None) -> list[Found]:
    values = singular_values(kernel)
    variance = values.square()
    rank = kernel_pca.rank_holding(variance, 0.9)
    curves = {
        "singular_value": values,
        "singular_value_relative": relative_values(values),
        "explained_variance": kernel_pca.spectrum_share(variance).cumsum(-1),
    }
    numbers = {
        "effective_rank": kernel_pca.effective_rank(values),
        "rank_90": rank,
        "rank_90_share": rank / kernel.shape[-1],
    }
    return [
        *(Found(metric, curve[..., :limit], ranked=True) for metric, curve in curves.items()),
        *(Found(metric, number) for metric, number in numbers.items()),
    ]


def _left_out(svd: KernelSVD, output: Tensor, random: Tensor) -> list[Found]:
    """What the r-scores hold outside the span of the e-scores, and outside that of the head's own output."""
    scores = svd.r_scores
    # columns of Gaussian noise span a random subspace
    null_samples = (
        {"gaussian": left_out(scores, torch.linalg.qr(random).Q).movedim(0, -1)} if len(random) else {}
    )
    candidates = {"e_scores": svd.left, "head_out": head_bases(output)}
    return [
        Found("r_score_share", left_out(scores, basis), null_samples, {"candidate": name})
        for name, basis in candidates.items()
    ]


def _beside_values(
    svd: KernelSVD, v: Tensor, random: Tensor, group: Group, asked: Mapping[str, Any]
) -> list[Found]:
    """How far V is from the right singular vectors: share of its squared norm in their span, principal angles."""
    basis, drawn = head_bases(v), {}
    if len(random):
        drawn["gaussian"] = (random, torch.linalg.qr(random).Q)
    if asked["null_samples"] and "permutation" in asked["nulls"]:
        places = torch.arange(v.shape[-2], device=v.device)[:, None]
        orders = [
            null_values(places, "permutation", asked["null_samples"], seed)
            for seed in group.seeds.flatten().tolist()
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
        Found(
            "right_singular_share" if name == "share" else "right_singular_angle",
            values,
            {null: found[name].movedim(0, -1) for null, found in by_chance.items()},
            {} if name == "share" else {"statistic": name},
        )
        for name, values in observed.items()
    ]
