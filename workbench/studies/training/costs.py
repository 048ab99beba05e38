"""Count the cost of a model: parameters, multiply–accumulates."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch

from workbench.attention.bilateral import BilateralAttention
from workbench.studies.training.cost_measures import operation_counter
from workbench.studies.training.feeding import feed

if TYPE_CHECKING:
    from torch import nn

    from workbench.studies.training.feeding import Batch


def model_costs(model: nn.Module, example: Batch) -> dict[str, float]:
    """Count ``parameters``, ``macs`` and ``macs_inference`` of a model for one example, (1, …).

    Multiply–accumulates are those of one forward pass in matrix products, convolutions and attention, as torch counts
    them (half its floating-point operations), without sums, norms and softmax. At inference, terms independent of the
    input are precomputed: the position term of bilateral attention. The model is unchanged.
    """
    fresh = copy.deepcopy(model).eval()
    # What the model holds from a forward pass in training is of no use to the copy.
    trained = inference = _macs(fresh, example)
    if bilateral := [layer for layer in fresh.modules() if isinstance(layer, BilateralAttention)]:
        for layer in bilateral:
            layer.precompute()
        inference = _macs(fresh, example)
    return {
        "parameters": float(sum(parameter.numel() for parameter in model.parameters())),
        "macs": trained,
        "macs_inference": inference,
    }


def _macs(model: nn.Module, example: Batch) -> float:
    with torch.no_grad(), operation_counter() as counter:
        feed(model, example)
    return counter.get_total_flops() / 2
