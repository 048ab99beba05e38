"""SPSA (Uesato et al. 2018): an attack on logits that estimates the gradient by random differences."""

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
    """Estimate the gradient of `score` ((n, …) → (n,)) at `x` by simultaneous perturbation.

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
    """Return the logit of the most likely wrong class minus that of the right one; positive for an error."""
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
    """Raise the margin of images in [0, 1] within `epsilon` (largest change of a pixel) of `pixels`.

    Takes `steps` of Adam on estimated gradients, each with 2·`samples` model outputs per image. An image keeps its last
    point once it is misclassified.
    """
    generator = torch.Generator().manual_seed(seed)
    low, high = (pixels - epsilon).clamp(0, 1), (pixels + epsilon).clamp(0, 1)
    x = pixels.clone()
    first, second = torch.zeros_like(x), torch.zeros_like(x)
    for step in range(1, steps + 1):
        active = margin(model(x), targets) <= 0
        if not active.any():
            break
        labels = targets[active]
        gradient = estimate_gradient(
            lambda at, labels=labels: margin(model(at), labels),
            x[active],
            samples=samples,
            delta=delta,
            generator=generator,
        )
        first[active] = 0.9 * first[active] + 0.1 * gradient
        second[active] = 0.999 * second[active] + 0.001 * gradient.square()
        moved = first[active] / (1 - 0.9**step) / ((second[active] / (1 - 0.999**step)).sqrt() + 1e-8)
        x[active] = (x[active] + learning_rate * moved).clamp(low[active], high[active])
    return x
