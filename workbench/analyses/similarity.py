"""How alike the tokens of one input are (abdullaev2025 Fig. 5): the mean cosine over pairs, in linear time."""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from workbench.analyses import validation
from workbench.analyses.kernel_pca import effective_rank
from workbench.core.errors import InputError
from workbench.core.null_distributions import Null, null_of_draws


def token_cosine_similarity(
    hidden: Float[Tensor, "*batch token width"], mask: Bool[Tensor, "*batch token"] | None = None
) -> Float[Tensor, "*batch"]:
    """Mean cosine similarity over all pairs i ≠ j of an input's tokens (abdullaev2025 Fig. 5).

    (‖Σ_i x̂_i‖² − Σ_i ‖x̂_i‖²) / (N(N−1)) with x̂ the tokens at unit length: O(N d), never an N×N matrix.
    Dimensionless, between −1/(N−1) and 1. A zero token has no direction: its cosine with every token counts
    as 0. Padding (``mask`` false) is left out. Raises `InputError` for missing axes, NaN or infinite values,
    and fewer than two tokens.
    """
    tokens, length, count = _tokens_and_lengths(hidden, mask)
    weight = torch.where(length > 0, 1 / length, 0.0)
    together = (weight[..., None, :] @ tokens).square().sum((-2, -1))
    return (together - (length > 0).sum(-1)) / (count * (count - 1))


_SAFE = (1e-150, 1e150)  # lengths whose squares neither overflow nor vanish


def _tokens_and_lengths(hidden: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens in float64 (zero where padding), in a unit in which their lengths are exact; and how many are real."""
    validation.check_axes("resid_post", hidden, validation.HIDDEN)
    if mask is None:
        validation.check_token_count("resid_post", hidden.shape[-2])
        count = torch.full(hidden.shape[:-2], hidden.shape[-2], device=hidden.device)
    else:
        mask = validation.check_mask(mask, hidden.shape[:-1])
        hidden = torch.where(mask[..., None], hidden, 0)
        count = mask.sum(-1)
    tokens = hidden.double()
    length = tokens.norm(dim=-1)
    safe = (length > _SAFE[0]) & (length < _SAFE[1])
    if not bool((safe if mask is None else safe | ~mask).all()):
        validation.check_finite("resid_post", hidden, validation.HIDDEN)
        largest = tokens.abs().amax(-1, keepdim=True)  # a unit of each token's own
        tokens = tokens / torch.where(largest > 0, largest, 1.0)
        length = tokens.norm(dim=-1)
    return tokens, length, count.double()


def without_mean_token(
    hidden: Float[Tensor, "*batch token width"], mask: Bool[Tensor, "*batch token"] | None = None
) -> Float[Tensor, "*batch token width"]:
    """Tokens less their mean over the real ones, in float64; padding is 0.

    Of tokens of one length the mean cosine is then −1/(N−1) whatever they are, since they add up to 0: what it still
    tells is how unequal their lengths are. How many directions they take is told by `effective_token_rank`.
    """
    hidden = hidden.double()
    if mask is None:
        return hidden - hidden.mean(-2, keepdim=True)
    real = torch.where(mask[..., None], hidden, 0.0)
    mean = real.sum(-2, keepdim=True) / mask.sum(-1)[..., None, None]
    return torch.where(mask[..., None], real - mean, 0.0)


def effective_token_rank(
    hidden: Float[Tensor, "*batch token width"], mask: Bool[Tensor, "*batch token"] | None = None
) -> Float[Tensor, "*batch"]:
    """exp of the entropy of the singular values' shares: how many directions the tokens of an input take.

    Between 1 and min(token, width); 0 for tokens of zeros (Roy & Vetterli 2007). Padding (``mask`` false) is left out:
    rows of zeros change no singular value. Raises `InputError` as `token_cosine_similarity`.
    """
    _tokens_and_lengths(hidden, mask)  # the same checks
    tokens = hidden.double() if mask is None else torch.where(mask[..., None], hidden.double(), 0.0)
    return effective_rank(torch.linalg.svdvals(tokens))


def growth_rate(
    cosines: Float[Tensor, "*batch layer"], layers: Float[Tensor, " layer"]
) -> Float[Tensor, "*batch"]:
    """Rate r per layer at which tokens grow alike, by the model 1 − cos_ℓ = δ exp(−r ℓ): positive where they do.

    The slope of log(1 − cos) against the layer by least squares, with the sign changed. NaN where a cosine is 1, which
    no finite rate reaches. Raises `InputError` for fewer than two layers.
    """
    if cosines.shape[-1] < 2 or layers.shape != cosines.shape[-1:]:
        raise InputError(
            f"a rate needs a cosine in each of at least two layers; got {tuple(cosines.shape)} cosines for "
            f"{tuple(layers.shape)} layers (axis layer)"
        )
    depth = layers.double() - layers.double().mean()
    distance = 1 - cosines.double()
    logs = torch.where(distance > 0, distance, torch.nan).log()
    return -(logs * depth).sum(-1) / depth.square().sum()


def isotropic_null(
    observed: Float[Tensor, "*batch"], tokens: Float[Tensor, "*batch"] | int, width: int
) -> Null:
    """What Gaussian hidden states of the same shape give (any mean square: a cosine does not see it),
    exactly.

    Directions of isotropic Gaussian tokens are independent and uniform on the sphere, so a pair's cosine has
    mean 0 and variance 1/width, and two different pairs are uncorrelated, also where they share a token. The
    mean over the N(N−1)/2 pairs has mean 0 and standard deviation √(2 / (N(N−1) width)): exact, no null samples
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
    null_samples: int,
    generator: torch.Generator,
) -> Null:
    """What one input gives when each feature's values are shuffled over the tokens, feature by feature.

    Keeps every feature's values, so also its mean over tokens and its outliers, and breaks what belongs
    together in a token. (Shuffling whole tokens, the permutation null of other measures, cannot change a mean
    over all pairs.) An observed value inside this band is explained by the features' means alone. ``null_samples`` ≥
    2.
    """
    observed = token_cosine_similarity(hidden, mask)
    real = hidden.double() if mask is None else hidden[mask].double()
    values = []
    for _ in range(null_samples):
        order = torch.rand(real.shape, generator=generator).argsort(0).to(real.device)
        values.append(token_cosine_similarity(real.gather(0, order)))
    return null_of_draws(observed, torch.stack(values))
