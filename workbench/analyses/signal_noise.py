"""Signal and noise around a block (abdullaev2025 Prop. III.1): does the residual connection raise their ratio?

From a clean and a noisy input: the signal is what the clean input gives, the noise what the noisy one gives less that.
Tokens are (*batch, token, width); all tokens of an input together are the vector that the paper speaks of.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from workbench.analyses import validation
from workbench.core.errors import InputError


class ResidualNoise(NamedTuple):
    """What Prop. III.1 is about, each (*batch), float64; NaN where the input has no signal or no noise.

    With y = u + η before a block and ŷ = û + η̂ what it puts out:
    alpha: ‖û‖ / ‖u‖. beta: cos(u, û). gamma: ‖η̂‖ / ‖η‖. noise_cosine: cos(η, η̂), which the paper bounds by 1.
    bound: √(1 + 2αβ + α²) / (1 + γ). gain: σ(y + ŷ) / σ(y), never below the bound.
    """

    alpha: Tensor
    beta: Tensor
    gamma: Tensor
    noise_cosine: Tensor
    bound: Tensor
    gain: Tensor

    @property
    def assumed(self) -> Tensor:
        """Whether the assumption holds as printed: α, β, γ from 0 to 1 and min(α, β) > γ."""
        parts = (self.alpha, self.beta, self.gamma)
        inside = torch.stack([(part >= 0) & (part <= 1) for part in parts]).all(0)
        return inside & (torch.minimum(self.alpha, self.beta) > self.gamma)

    @property
    def sufficient(self) -> Tensor:
        """Whether 2αβ + α² > 2γ + γ², which is what the bound needs to exceed 1."""
        return 2 * self.alpha * self.beta + self.alpha**2 > 2 * self.gamma + self.gamma**2


def signal_to_noise(
    clean: Float[Tensor, "*batch token width"],
    noisy: Float[Tensor, "*batch token width"],
    mask: Bool[Tensor, "*batch token"] | None = None,
    centre: bool = False,
) -> Float[Tensor, "*batch"]:
    """σ = ‖u‖ / ‖η‖ with u the clean tokens and η = noisy − clean (Def. III.1); ∞ without noise.

    Padding (``mask`` false) is left out. With ``centre`` u is the clean tokens less their mean: the paper lets tokens
    collapse to zero, and subtracts what they collapse to where that is something else. Raises InputError for tensors
    that do not fit, and NaN or infinite values.
    """
    signal, noise = _parts(clean, noisy, mask, centre)
    return _norm(signal) / _norm(noise)


def residual_noise(
    clean: Float[Tensor, "*batch token width"],
    noisy: Float[Tensor, "*batch token width"],
    clean_update: Float[Tensor, "*batch token width"],
    noisy_update: Float[Tensor, "*batch token width"],
    mask: Bool[Tensor, "*batch token"] | None = None,
    centre: bool = False,
) -> ResidualNoise:
    """α, β, γ and the bound of Prop. III.1, and the gain that it bounds, from tokens and what a block adds to them.

    That the bound exceeds 1 does not follow from min(α, β) > γ, as the paper has it: α = β = 0.5 and γ = 0.4 give
    0.945. ``mask`` and ``centre`` (of û too) as in `signal_to_noise`, which says what is raised.
    """
    u, eta = _parts(clean, noisy, mask, centre)
    put_out, noise = _parts(clean_update, noisy_update, mask, centre)
    if put_out.shape != u.shape:
        raise InputError(
            f"the update of shape {tuple(put_out.shape)} cannot be added to tokens of shape {tuple(u.shape)}"
        )
    alpha, gamma = _norm(put_out) / _norm(u), _norm(noise) / _norm(eta)
    beta, noise_cosine = _cosine(u, put_out), _cosine(eta, noise)
    before, after = _norm(u) / _norm(eta), _norm(u + put_out) / _norm(eta + noise)
    # The root of a rounding-size negative number: α = 1 and β = −1 leave no signal at all.
    bound = (1 + 2 * alpha * beta + alpha**2).clamp_min(0).sqrt() / (1 + gamma)
    return ResidualNoise(alpha, beta, gamma, noise_cosine, bound, after / before)


def _parts(clean: Tensor, noisy: Tensor, mask: Tensor | None, centre: bool) -> tuple[Tensor, Tensor]:
    """Signal and noise in float64, zero at padding."""
    for name, tensor in (("clean", clean), ("noisy", noisy)):
        validation.check_axes(name, tensor, validation.HIDDEN)
        validation.check_finite(name, tensor, validation.HIDDEN)
    if clean.shape != noisy.shape:
        raise InputError(
            f"clean tokens of shape {tuple(clean.shape)} and noisy ones of shape {tuple(noisy.shape)} are not of the "
            "same inputs"
        )
    signal, noise = clean.double(), noisy.double() - clean.double()
    real = torch.ones(clean.shape[:-1], dtype=torch.bool, device=clean.device)
    if mask is not None:
        real = validation.check_mask(mask, clean.shape[:-1]).to(clean.device)
    signal, noise = (torch.where(real[..., None], part, 0.0) for part in (signal, noise))
    if centre:
        mean = signal.sum(-2, keepdim=True) / real.sum(-1)[..., None, None]
        signal = torch.where(real[..., None], signal - mean, 0.0)
    return signal, noise


def _norm(part: Tensor) -> Tensor:
    return part.square().sum((-2, -1)).sqrt()


def _cosine(a: Tensor, b: Tensor) -> Tensor:
    return ((a * b).sum((-2, -1)) / (_norm(a) * _norm(b))).clamp(-1, 1)
