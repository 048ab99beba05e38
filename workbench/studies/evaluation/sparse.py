"""Sparse L1 descent (Tramèr & Boneh 2019): a white-box attack that changes few pixels at every step.

The Adversarial Robustness Toolbox has no such attack. foolbox 3.3.4 has one, but would add five packages for it.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

BATCH = 128


def sparse_l1_descent(
    model: nn.Module,
    pixels: Float[Tensor, "n channel height width"],
    targets: Int[Tensor, " n"],
    epsilon: float,
    *,
    steps: int = 20,
    step_size: float = 0.1,
    changed: float = 0.01,
    seed: int = 0,
) -> Float[Tensor, "n channel height width"]:
    """Raise the cross-entropy of images in [0, 1] by changes whose absolute values sum to at most `epsilon` (L1).

    Each of `steps` distributes `step_size` · `epsilon` equally among the values with the largest gradient, a share
    `changed` of all; values at a limit of [0, 1] that the gradient pushes further are skipped. The defaults are
    CleverHans's, as in teo2024 Table 2: budget 10, 20 steps of 1, 1 % of the values. `seed` is unused; every attack has
    it.
    """
    del seed
    device = next(model.parameters()).device
    adversarial = [
        _attacked(model, part.to(device), labels.to(device), epsilon, steps, step_size * epsilon, changed)
        for part, labels in zip(pixels.split(BATCH), targets.split(BATCH), strict=True)
    ]
    return torch.cat(adversarial).cpu()


def _attacked(
    model: nn.Module,
    start: Tensor,
    targets: Tensor,
    epsilon: float,
    steps: int,
    length: float,
    changed: float,
) -> Tensor:
    x = start.clone()
    count = max(1, round(changed * start[0].numel()))
    for _ in range(steps):
        x.requires_grad_(True)
        (slope,) = torch.autograd.grad(cross_entropy(model(x), targets, reduction="sum"), x)
        x = x.detach()
        stuck = ((x <= 0) & (slope < 0)) | ((x >= 1) & (slope > 0))
        slope = slope.masked_fill(stuck, 0).flatten(1)
        indices = slope.abs().topk(count, dim=1).indices
        move = torch.zeros_like(slope).scatter(1, indices, slope.gather(1, indices).sign() * length / count)
        delta = to_l1_ball((x - start).flatten(1) + move, epsilon).view_as(x)
        x = (start + delta).clamp(0, 1)
    return x


def to_l1_ball(values: Float[Tensor, "n value"], radius: float) -> Float[Tensor, "n value"]:
    """Return the nearest rows (L2) whose absolute values sum to at most `radius` (Duchi et al. 2008)."""
    size = values.abs()
    ordered = size.sort(dim=1, descending=True).values
    excess = ordered.cumsum(1) - radius
    number = torch.arange(1, values.shape[1] + 1, device=values.device)
    last = (ordered * number > excess).sum(1, keepdim=True).clamp(min=1)
    threshold = excess.gather(1, last - 1) / last
    inside = size.sum(1, keepdim=True) <= radius
    return torch.where(inside, values, values.sign() * (size - threshold).clamp(min=0))
