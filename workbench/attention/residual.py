"""Boosted residual connections (abdullaev2025 §IV): the block's input, and a share of the first tokens."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from workbench.core.errors import InputError
from workbench.core.operands import checked


@checked
def boosted_residual(
    update: Float[Tensor, "*batch token dim"],
    stream: Float[Tensor, "*batch token dim"],
    first: Float[Tensor, "*batch token dim"],
    t: float | Tensor,
) -> Float[Tensor, "*batch token dim"]:
    """Generalized residual connection (abdullaev2025 eq. 26): Y_{ℓ+1} = f_ℓ(Y_ℓ) + t Y_0 + (1 − t) Y_ℓ.

    ``update`` is f_ℓ(Y_ℓ), ``stream`` Y_ℓ and ``first`` Y_0, what entered the first block. t = 0 is the
    ordinary residual connection.
    """
    return stream + update + t * (first - stream)


def residual_lipschitz(lipschitz: float, layers: int, t: float = 0.0) -> Float[Tensor, " layer_and_input"]:
    """Lipschitz bounds K_0 … K_n of the first ℓ layers, f_ℓ having the constant L (abdullaev2025 eqs. 48, 49).

    K_0 = 1 and K_{ℓ+1} = (L + 1 − t) K_ℓ + t; t = 0 is the ordinary residual. In closed form
    K_n = (L (L + 1 − t)ⁿ − t)/(L − t), which has a hole at t = L: the recurrence has none. In float64; ∞ where
    it overflows. Raises InputError for a negative L or layer count, or t outside [0, 1].
    """
    if lipschitz < 0 or layers < 0 or not 0 <= t <= 1:
        raise InputError(
            f"need lipschitz ≥ 0, layers ≥ 0 and t from 0 to 1, got lipschitz={lipschitz}, layers={layers}, t={t}"
        )
    bounds = [1.0]
    for _ in range(layers):
        bounds.append((lipschitz + 1 - t) * bounds[-1] + t)
    return torch.tensor(bounds, dtype=torch.float64)


class BoostedResidual(nn.Module):
    """``boosted_residual`` with a learned t, one number, which starts at 0: the ordinary residual.

    Around the first layer t has no effect, since there Y_ℓ is Y_0, and stays where it starts.
    """

    def __init__(self) -> None:
        super().__init__()
        self.t = nn.Parameter(torch.zeros(()))

    def forward(self, update: Tensor, stream: Tensor, first: Tensor) -> Tensor:
        return boosted_residual(update, stream, first, self.t)
