"""Leading eigenvalues of the keys' Gram matrix and singular values of attention, by products in tiles.

Neither matrix is ever formed: a product with a block of vectors forms its entries a tile at a time, which costs more
than the vectors do. So a block of them is multiplied at once and the whole Krylov space is kept (Golub & Underwood
1977; Musco & Musco 2015), where Lanczos iteration of a library would form every entry anew for each single vector.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from workbench.analyses.reductions import HeadOutput
from workbench.analyses.tiles import MEMORY, Mask, MaskFunction, Reduction, Shape, Tile, reduce_tiles
from workbench.core.errors import InputError
from workbench.core.operands import checked

TOLERANCE = (
    1e-5  # of the largest: residual at which a pair is found; products in float32 leave some 1e-7 of it
)
PRODUCTS = 24
_SPARE = 8  # vectors more than pairs in a block, so that the last of these are found as soon as the first
_FLAT = 1e-13  # of the largest: what is left of a block that has nothing new

Product = Callable[[Tensor], Tensor]


class Leading(NamedTuple):
    """The largest eigenvalues, largest first, and what is known of them.

    residual: ‖A x − λ x‖ of every pair, by a product of its own. Some eigenvalue of A lies that near to each of them;
    that none above was passed over is what the iteration makes likely and does not prove. converged: residuals within
    the tolerance, a share of the largest eigenvalue. trace: the sum of all eigenvalues, exactly. products: with how
    many blocks of vectors the matrix was multiplied. All values, residuals and the trace times exp(log_factor).
    """

    values: Float[Tensor, " value"]
    vectors: Float[Tensor, "token value"]
    residual: Float[Tensor, " value"]
    converged: Bool[Tensor, " value"]
    trace: Float[Tensor, ""]
    products: int
    log_factor: Float[Tensor, ""]

    def words(self) -> str:
        """How far this is to be trusted, in a sentence."""
        found, asked = int(self.converged.sum()), len(self.values)
        worst = float(self.residual.max() / self.values[0]) if self.values[0] > 0 else 0.0
        said = f"largest residual {worst:.1e} of the largest eigenvalue after {self.products} products"
        if found == asked:
            return f"{asked} pairs converged: {said}"
        return f"{found} of {asked} pairs converged, the others did not (a flat spectrum needs more products): {said}"


@checked
def gram_leading(
    k: Float[Tensor, "token head_dim"],
    scale: float,
    count: int = 64,
    *,
    tolerance: float = TOLERANCE,
    products: int = PRODUCTS,
    memory: int = MEMORY,
) -> Leading:
    """The leading eigenpairs of the centred Gram matrix K̃ = C K_φ C of one head's keys (teo2024 eq. 11).

    Products are of the keys' own precision, float32 at least. Raises `InputError` for keys that are not finite, and for
    more pairs than tokens.
    """
    keys = k[None, None]
    first = reduce_tiles(keys, keys, "entropy", scale=scale, memory=memory)
    log_normaliser = first.log_normaliser[0, 0]
    log_diagonal = k.double().square().sum(-1) * scale - 2 * log_normaliser
    log_factor = log_diagonal.amax()  # of a matrix without negative eigenvalues no entry exceeds the diagonal
    middle = log_normaliser.mean()
    bias = Mask(tensor=(middle - log_normaliser)[None, None, None])

    def kernel_product(block: Tensor) -> Tensor:
        """K_φ X: weights of scores less ℓ_j, each row times its own normaliser over g(k_i)."""
        of_block = HeadOutput(block[None, None])
        found = reduce_tiles(keys, keys, of_block, scale=scale, mask=bias, memory=memory)
        factor = (found.log_normaliser[0, 0] - log_normaliser - middle - log_factor).exp()
        return factor[:, None] * found["output"][0, 0]

    def product(block: Tensor) -> Tensor:
        there = kernel_product(block - block.mean(0))
        return there - there.mean(0)

    ones = torch.ones(len(k), 1, dtype=torch.float64, device=k.device)
    trace = (log_diagonal - log_factor).exp().sum() - kernel_product(ones).sum() / len(k)
    found = _leading(product, ones, count, tolerance, products)
    return found._replace(trace=trace, log_factor=log_factor)


@checked
def attention_leading(
    q: Float[Tensor, "query head_dim"],
    k: Float[Tensor, "key head_dim"],
    scale: float,
    count: int = 64,
    *,
    mask: Mask | Tensor | MaskFunction | None = None,
    tolerance: float = TOLERANCE,
    products: int = PRODUCTS,
    memory: int = MEMORY,
) -> Leading:
    """The leading eigenpairs of Aᵀ A, A the attention of one head: squared singular values, right singular vectors.

    The trace is ‖A‖_F², so that shares of it are the explained variance of chen2023 Fig. 1. ``mask`` as for
    `workbench.analyses.tiles.reduce_tiles`. A singular value σ is right to its pair's residual over σ.
    """
    queries, keys = q[None, None], k[None, None]
    squares = reduce_tiles(queries, keys, "squares", scale=scale, mask=mask, memory=memory)["squares"].sum()

    def product(block: Tensor) -> Tensor:
        return reduce_tiles(queries, keys, _Normal(block), scale=scale, mask=mask, memory=memory)["normal"]

    ones = torch.ones(len(k), 1, dtype=torch.float64, device=k.device)
    return _leading(product, ones, count, tolerance, products)._replace(trace=squares)


class _Normal(Reduction):
    """Aᵀ A X of one head, in one pass."""

    name = "normal"

    def __init__(self, block: Tensor) -> None:
        self.block = block

    def start(self, shape: Shape) -> None:
        self.wide = self.block.to(shape.dtype)
        self.sum = torch.zeros_like(self.block)

    def add(self, tile: Tile) -> None:
        weights = tile.weights[0]
        self.sum[tile.columns] += weights.mT @ (weights @ self.wide[tile.columns])

    def result(self) -> Tensor:
        return self.sum


def _leading(product: Product, like: Tensor, count: int, tolerance: float, products: int) -> Leading:
    """The largest eigenpairs of a symmetric matrix that has no negative ones, from a block Krylov space.

    ``like`` is a column of as many rows. The start is always the same.
    """
    size = len(like)
    if not 1 <= count <= size:
        raise InputError(f"count is 1 to {size}, the number of tokens; got {count}")
    source = torch.Generator().manual_seed(0)
    start = torch.randn(size, min(size, count + _SPARE), dtype=torch.float64, generator=source)
    basis = block = torch.linalg.qr(start.to(like.device)).Q
    images, inner = basis[:, :0], like.new_zeros(0, 0)
    done = 0
    while True:
        image = product(block)
        done += 1
        images = torch.cat([images, image], 1)
        new = basis.mT @ image
        grown = like.new_zeros(basis.shape[1], basis.shape[1])
        grown[: len(inner), : len(inner)] = inner
        grown[:, len(inner) :], grown[len(inner) :] = new, new.mT
        inner = grown
        values, mix = torch.linalg.eigh(inner)
        values, mix = values.flip(0)[:count], mix.flip(1)[:, :count]
        vectors = basis @ mix
        off = torch.linalg.vector_norm(images @ mix - vectors * values, dim=0)
        left = size - basis.shape[1]
        found = bool((off <= 0.5 * tolerance * values[0]).all())
        rest = image - basis @ new
        if found or not left or done >= products - 1 or float(rest.abs().amax()) <= _FLAT * values[0]:
            break
        block = torch.linalg.qr(rest / torch.linalg.vector_norm(rest)).Q[:, :left]
        block = torch.linalg.qr(block - basis @ (basis.mT @ block)).Q
        basis = torch.cat([basis, block], 1)
    residual = torch.linalg.vector_norm(product(vectors) - vectors * values, dim=0)
    within = residual <= tolerance * values[0].clamp_min(0)
    zero = like.new_zeros(())
    return Leading(values.clamp_min(0), vectors, residual, within, zero, done + 1, zero)
