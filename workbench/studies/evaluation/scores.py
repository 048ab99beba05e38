"""From logits to numbers: accuracies, how well out-of-distribution (OOD) inputs are recognised, perplexities."""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from workbench.core.errors import InputError
from workbench.core.intervals import half_width

TOP = (1, 5)


def hits(logits: Float[Tensor, "n classes"], targets: Int[Tensor, " n"], top: int) -> Bool[Tensor, " n"]:
    """Return whether the right class is among the `top` most likely ones; ties count as errors.

    A model with equal logits for all classes is therefore never right, nor is one with NaN.
    """
    right = logits.gather(1, targets[:, None])
    return ((logits >= right).sum(1) <= top) & ~logits.isnan().any(1)


def ood_aupr(inside: Float[Tensor, "n classes"], outside: Float[Tensor, "m classes"]) -> float:
    """Return the area under the precision-recall curve of out-of-distribution (OOD) inputs.

    Scores are negative maximum probabilities; OOD inputs are the positive class. Guessing gives m / (n + m). teo2024
    App. A.1 (ImageNet-O). Raises InputError if a logit is not finite.
    """
    from sklearn.metrics import average_precision_score

    logits = torch.cat([inside, outside]).double()
    if not logits.isfinite().all():
        raise InputError("the model gives logits that are not finite; AUPR needs finite ones")
    is_ood = np.repeat([0, 1], [len(inside), len(outside)])
    return float(average_precision_score(is_ood, -logits.softmax(1).amax(1).numpy()))


def perplexity(totals: Float[Tensor, " text"], counts: Int[Tensor, " text"]) -> tuple[float, float, float]:
    """Return the perplexity over all tokens of some texts, with a 95 % t-interval over texts (NaN for one text).

    `totals` are the texts' summed negative log-likelihoods in nats, `counts` their scored tokens. The interval is that
    of the ratio of the two sums, linearised, on the logarithmic scale.
    """
    totals, weights = totals.double(), counts.double()
    mean = totals.sum() / weights.sum()
    texts = len(totals)
    if texts < 2:
        return math.exp(mean), math.nan, math.nan
    spread = (totals - mean * weights).square().sum() * texts / (texts - 1)
    half = half_width(float(spread.sqrt() / weights.sum()), texts - 1)
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)
