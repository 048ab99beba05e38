"""How alike the tokens of one input are: the mean cosine over pairs, in time linear in their number."""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from workbench.analyses import validation
from workbench.analyses.chance import Null, null_of_draws


def token_cosine_similarity(
    hidden: Float[Tensor, "*batch token width"], mask: Bool[Tensor, "*batch token"] | None = None
) -> Float[Tensor, "*batch"]:
    """Mean cosine similarity over all pairs i ≠ j of an input's tokens (abdullaev2025 Fig. 5).

    (‖Σ_i x̂_i‖² − Σ_i ‖x̂_i‖²) / (N(N−1)) with x̂ the tokens at unit length: O(N d), never an N×N matrix.
    Dimensionless, between −1/(N−1) and 1. A zero token has no direction: its cosine with every token counts
    as 0. Padding (``mask`` false) is left out. Raises `InputError` for missing axes, NaN or infinite values,
    and fewer than two tokens.
    """
    unit, count = _unit_tokens(hidden, mask)
    return _mean_pair_cosine(unit, count)


def _unit_tokens(hidden: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Tokens at unit length (zero where padding or zero) and how many are real."""
    validation.check_axes("hidden", hidden, validation.HIDDEN)
    if mask is None:
        validation.check_token_count("hidden", hidden.shape[-2])
        count = torch.full(hidden.shape[:-2], hidden.shape[-2], device=hidden.device)
    else:
        mask = validation.check_mask(mask, hidden.shape[:-1])
        hidden = torch.where(mask[..., None], hidden, 0)
        count = mask.sum(-1)
    validation.check_finite("hidden", hidden, validation.HIDDEN)
    # scaled by the largest entry first, so that squares neither overflow nor vanish
    hidden = hidden.double()
    largest = hidden.abs().amax(-1, keepdim=True)
    scaled = hidden / torch.where(largest > 0, largest, 1.0)
    length = scaled.norm(dim=-1, keepdim=True)
    return scaled / torch.where(length > 0, length, 1.0), count.double()


def _mean_pair_cosine(unit: Tensor, count: Tensor) -> Tensor:
    together = unit.sum(-2).square().sum(-1)
    return (together - unit.square().sum((-2, -1))) / (count * (count - 1))


def isotropic_null(
    observed: Float[Tensor, "*batch"], tokens: Float[Tensor, "*batch"] | int, width: int
) -> Null:
    """What Gaussian hidden states of the same shape give (any mean square: a cosine does not see it),
    exactly.

    Directions of isotropic Gaussian tokens are independent and uniform on the sphere, so a pair's cosine has
    mean 0 and variance 1/width, and two different pairs are uncorrelated, also where they share a token. The
    mean over the N(N−1)/2 pairs has mean 0 and standard deviation √(2 / (N(N−1) width)): exact, no draws
    needed. The band is that of its limit for many tokens, (χ²_width/width − 1)/(N−1), scaled to the exact
    deviation; the distribution is skewed, and no normal one.
    """
    from scipy.stats import chi2

    count = torch.as_tensor(tokens, dtype=torch.float64, device=observed.device).expand(observed.shape)
    deviation = (2 / (count * (count - 1) * width)).sqrt()
    low, high = ((chi2.ppf(level, width) - width) / math.sqrt(2 * width) for level in (0.025, 0.975))
    return Null(torch.zeros_like(deviation), low * deviation, high * deviation, observed / deviation)


def permuted_null(
    hidden: Float[Tensor, "token width"],
    mask: Bool[Tensor, " token"] | None,
    draws: int,
    generator: torch.Generator,
) -> Null:
    """What one input gives when each feature's values are shuffled over the tokens, feature by feature.

    Keeps every feature's values, so also its mean over tokens and its outliers, and breaks what belongs
    together in a token. (Shuffling whole tokens, the permutation null of other measures, cannot change a mean
    over all pairs.) An observed value inside this band is explained by the features' means alone. ``draws`` ≥
    2.
    """
    observed = token_cosine_similarity(hidden, mask)
    real = hidden.double() if mask is None else hidden[mask].double()
    values = []
    for _ in range(draws):
        order = torch.rand(real.shape, generator=generator).argsort(0).to(real.device)
        values.append(token_cosine_similarity(real.gather(0, order)))
    return null_of_draws(observed, torch.stack(values))
