"""How far a change of its own logits moves a model's softmax: exact local Lipschitz constants, and noise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from workbench.analyses.softmax_sensitivity import local_lipschitz, perturbation
from workbench.core import null_distributions as chance
from workbench.core.errors import InputError
from workbench.frames.measurement import Measurement
from workbench.measurements.layers import Layer, NotApplicable
from workbench.measurements.operators import (
    Found,
    Group,
    Operator,
    beside_random,
    groups_of,
    softmax_operator,
    together,
)


def softmax_sensitivity(layer: Layer, options: Mapping[str, Any]) -> Iterator[Measurement]:
    """Local Lipschitz constant of softmax at the logits of every query, how far noise moves it, and their spread.

    Over the queries of a head that see at least two keys.
    """
    operator = softmax_operator(layer)
    if operator.own is not None:
        raise NotApplicable(
            "does not attend by softmax(scale q kᵀ + mask) alone, and its logits are not known"
        )
    groups = groups_of(layer, operator.q)
    try:
        parts = [_of_group(operator, options, group) for group in groups]
    except InputError as error:
        raise InputError(f"layer {layer.index}: {error}") from None
    for found in zip(*parts, strict=True):
        yield together(layer, groups, found, len(operator.q))


def _of_group(operator: Operator, options: Mapping[str, Any], group: Group) -> list[Found]:
    logits_of = operator.logits
    assert logits_of is not None  # of softmax
    q, k = group.cut(operator.q), group.cut(operator.k)
    tokens = (group.inputs, group.tokens)
    logits = logits_of(q, k, *tokens)
    noise = options["sigma"] * torch.stack(
        [
            torch.randn(logits.shape[2:], dtype=torch.float64, generator=chance.generator(seed, "noise"))
            for seed in group.seeds.flatten().tolist()
        ]
    ).unflatten(0, logits.shape[:2]).to(logits.device)
    return beside_random(
        _of_logits(logits, noise),
        lambda q, k: _of_logits(logits_of(q, k, *tokens), noise),
        (q, k),
        options["null_samples"],
        group,
    )


def _of_logits(logits: Tensor, noise: Tensor) -> list[Found]:
    seen = logits > -torch.inf
    counts = seen.sum(-1)
    chosen = counts > 1

    def over_queries(values: Tensor) -> Tensor:
        return torch.where(chosen, values, torch.nan).nanmean(-1)

    constant = local_lipschitz(logits)
    largest = constant.masked_fill(~chosen, -torch.inf).amax(-1)
    shown = torch.where(seen, logits, 0)
    deviations = torch.where(seen, shown - (shown.sum(-1) / counts)[..., None], 0)
    return [
        Found("softmax_lipschitz", over_queries(constant), columns={"statistic": "mean"}),
        Found(
            "softmax_lipschitz",
            largest.masked_fill(~chosen.any(-1), torch.nan),
            columns={"statistic": "max"},
        ),
        Found("softmax_perturbation", over_queries(perturbation(logits, noise))),
        Found("logit_spread", over_queries((deviations.square().sum(-1) / counts).sqrt())),
    ]
