"""SPSA (Uesato et al. 2018): an attack that sees logits only and estimates the gradient by random differences."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor


def estimate_gradient(
    score: Callable[[Tensor], Tensor],
    x: Float[Tensor, "n ..."],
    *,
    samples: int,
    delta: float,
    generator: torch.Generator,
) -> Float[Tensor, "n ..."]:
    """Simultaneous-perturbation estimate of the gradient of `score` ((n, …) → (n,)) at `x`.

    The mean over `samples` directions v of ±1 of (score(x + δv) − score(x − δv)) / 2δ · v. For a linear score
    its expectation is the gradient; the variance of one entry is the squared norm of the others over `samples`.
    """
    total = torch.zeros_like(x)
    for _ in range(samples):
        signs = torch.randint(0, 2, x.shape, generator=generator) * 2 - 1
        v = signs.to(x)
        slope = (score(x + delta * v) - score(x - delta * v)) / (2 * delta)
        total += slope.view(-1, *[1] * (x.ndim - 1)) * v
    return total / samples


def margin(logits: Float[Tensor, "n classes"], targets: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Logit of the most likely wrong class minus that of the right one: positive where the model is wrong."""
    others = logits.scatter(1, targets[:, None], -torch.inf)
    return others.amax(1) - logits.gather(1, targets[:, None])[:, 0]


@torch.no_grad()
def spsa(
    model: Callable[[Tensor], Tensor],
    pixels: Float[Tensor, "n channel height width"],
    targets: Int[Tensor, " n"],
    epsilon: float,
    *,
    steps: int = 40,
    samples: int = 16,
    delta: float = 0.01,
    learning_rate: float = 0.01,
    seed: int = 0,
) -> Float[Tensor, "n channel height width"]:
    """Images within `epsilon` (largest change of a pixel) of `pixels` and in [0, 1] that raise the margin.

    `steps` of Adam on estimated gradients; each asks the model for 2·`samples` answers per image. An image
    keeps the last point reached once it is misclassified.
    """
    generator = torch.Generator().manual_seed(seed)
    low, high = (pixels - epsilon).clamp(0, 1), (pixels + epsilon).clamp(0, 1)
    x = pixels.clone()
    first, second = torch.zeros_like(x), torch.zeros_like(x)
    for step in range(1, steps + 1):
        active = margin(model(x), targets) <= 0
        if not active.any():
            break
        asked = targets[active]
        gradient = estimate_gradient(
            lambda at, asked=asked: margin(model(at), asked),
            x[active], samples=samples, delta=delta, generator=generator,
        )  # fmt: skip
        first[active] = 0.9 * first[active] + 0.1 * gradient
        second[active] = 0.999 * second[active] + 0.001 * gradient.square()
        moved = first[active] / (1 - 0.9**step) / ((second[active] / (1 - 0.999**step)).sqrt() + 1e-8)
        x[active] = (x[active] + learning_rate * moved).clamp(low[active], high[active])
    return x
