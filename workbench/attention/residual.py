"""Boosted residual connections (abdullaev2025 §IV): the block's input, and a share of the first tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from workbench.attention.base import checked_mechanism
from workbench.core.errors import InputError


@checked_mechanism
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


class ResidualGrowth(NamedTuple):
    """Local Lipschitz constants of layers and of the residual network that they make; see `residual_growth`.

    lipschitz: L_ℓ of every layer at the tokens that reach it. growth: K_ℓ of the first 1 … n layers together. bound:
    the most that K_ℓ can be, given L_ℓ and t.
    """

    lipschitz: Float[Tensor, "*batch layer"]
    growth: Float[Tensor, "*batch layer"]
    bound: Float[Tensor, "*batch layer"]


def residual_growth(
    layers: Sequence[Callable[[Tensor], Tensor]],
    first: Float[Tensor, "*batch token dim"],
    t: float = 0.0,
    *,
    tolerance: float = 1e-4,
) -> ResidualGrowth:
    """Local Lipschitz constants of Y_{ℓ+1} = f_ℓ(Y_ℓ) + t Y_0 + (1 − t) Y_ℓ at Y_0 (abdullaev2025 Theorem IV.1).

    ``layers`` are the f_ℓ, functions of (1, token, dim) in float64, ``first`` is Y_0. A local constant in the Euclidean
    norm over all tokens is the largest singular value of a Jacobian, found by products with it (ARPACK); no Jacobian is
    formed. ``tolerance`` is relative; the error of a constant is about its square. A global constant is at least as
    large as any local constant.

    The bounds are those of the proof, with the constant of each layer: K_{ℓ+1} = (L_ℓ + |1 − t|) K_ℓ + |t|.
    Raises InputError without a layer.
    """
    if not layers:
        raise InputError("no layers: residual_growth needs at least one function of tokens")
    shape = first.shape[-2:]
    inputs = first.detach().double().reshape(-1, 1, *shape)
    with sdpa_kernel(SDPBackend.MATH):  # torch's fused attention has no forward derivative
        parts = [_growth_of(layers, tokens, t, tolerance) for tokens in inputs]
    columns = [torch.tensor(part, dtype=torch.float64) for part in zip(*parts, strict=True)]
    return ResidualGrowth(*(part.reshape(*first.shape[:-2], len(layers)) for part in columns))


def _growth_of(
    layers: Sequence[Callable[[Tensor], Tensor]], first: Tensor, t: float, tolerance: float
) -> tuple[list[float], list[float], list[float]]:
    """Constants, growth and bounds of one input."""
    pushes: list[Callable[[Tensor], Tensor]] = []
    pulls: list[Callable[[Tensor], Tensor]] = []

    def push(tangent: Tensor) -> Tensor:
        moved = tangent
        for step in pushes:
            moved = step(moved) + t * tangent + (1 - t) * moved
        return moved

    def pull(cotangent: Tensor) -> Tensor:
        moved, of_first = cotangent, torch.zeros_like(cotangent)
        for step in reversed(pulls):
            of_first = of_first + t * moved
            moved = step(moved) + (1 - t) * moved
        return moved + of_first

    constants, growth, bounds = [], [], [1.0]
    stream = first
    for layer in layers:
        update, backward, *_ = torch.func.vjp(layer, stream)
        pushes.append(lambda v, layer=layer, at=stream: torch.func.jvp(layer, (at,), (v,))[1])
        pulls.append(lambda v, backward=backward: backward(v)[0])
        constants.append(_norm(pushes[-1], pulls[-1], first, tolerance))
        growth.append(_norm(push, pull, first, tolerance))
        bounds.append((constants[-1] + abs(1 - t)) * bounds[-1] + abs(t))
        stream = boosted_residual(update, stream, first, t)
    return constants, growth, bounds[1:]


def _norm(
    push: Callable[[Tensor], Tensor], pull: Callable[[Tensor], Tensor], like: Tensor, tolerance: float
) -> float:
    """Largest singular value of a linear map of tensors and its transpose."""
    from scipy.sparse.linalg import LinearOperator, svds

    class Product(LinearOperator):
        def _matvec(self, x: np.ndarray) -> np.ndarray:
            return self._moved(push, x)

        def _rmatvec(self, x: np.ndarray) -> np.ndarray:
            return self._moved(pull, x)

        def _moved(self, step: Callable[[Tensor], Tensor], x: np.ndarray) -> np.ndarray:
            return step(torch.from_numpy(x).reshape(like.shape).to(like)).flatten().numpy(force=True)

    product = Product(np.dtype(float), (like.numel(), like.numel()))
    start = np.random.default_rng(0).normal(size=like.numel())  # a vector of ones is lost in a layer norm
    if not product.rmatvec(product.matvec(start)).any():  # the map of zeros, which ARPACK refuses
        return 0.0
    return float(svds(product, 1, tol=tolerance, v0=start, return_singular_vectors=False)[0])


class BoostedResidual(nn.Module):
    """``boosted_residual`` with a learned t, one number, which starts at 0: the ordinary residual.

    Around the first layer t has no effect, since there Y_ℓ is Y_0, and stays where it starts.
    """

    def __init__(self) -> None:
        super().__init__()
        self.t = nn.Parameter(torch.zeros(()))

    def forward(self, update: Tensor, stream: Tensor, first: Tensor) -> Tensor:
        return boosted_residual(update, stream, first, self.t)
