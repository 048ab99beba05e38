"""The Gram matrix of one head's keys, and its attention, known by products in tiles: leading pairs, trace, norm, rank.

Neither matrix is ever formed: a product with a block of vectors forms its entries a tile at a time, which costs more
than the vectors do. So a block of them is multiplied at once and the whole Krylov space is kept (Golub & Underwood
1977; Musco & Musco 2015), where Lanczos iteration of a library would form every entry again for each single vector.
Traces and Frobenius norms are exact. The effective rank, which needs every eigenvalue, lies between two bounds, and is
estimated: the leading pairs as they are, the others by random vectors (Hutch++, Meyer et al. 2021) with Lanczos
quadrature (Ubaru, Chen & Saad 2017).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from workbench.analyses.reductions import RowSquares
from workbench.analyses.tiles import (
    MEMORY,
    Mask,
    MaskFunction,
    Reduction,
    Shape,
    Tile,
    reduce_tiles,
    row_sums,
)
from workbench.core.errors import InputError
from workbench.core.operands import checked_tensors

TOLERANCE = (
    1e-5  # of the largest: residual at which a pair is found; products in float32 leave some 1e-7 of it
)
PRODUCTS = 24
_SPARE = 8  # vectors more than pairs in a block, so that the last of these are found as soon as the first
_FLAT = 1e-13  # of the largest: what is left of a block that has nothing new
_SIDE = 1024  # tokens on a side of a tile: larger matrix products gain nothing
_AT_ONCE = 512  # vectors that are multiplied at once
_PROBES, STEPS = 16, 10  # random vectors of an estimate, and steps of the quadrature for each

Product = Callable[[Tensor], Tensor]


class Leading(NamedTuple):
    """The largest eigenvalues, largest first, with residuals and bounds.

    residual: ‖A x − λ x‖ of every pair, by another product. Some eigenvalue of A lies that near to each of them;
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
        converged_count, value_count = int(self.converged.sum()), len(self.values)
        worst = float(self.residual.max() / self.values[0]) if self.values[0] > 0 else 0.0
        residual_words = (
            f"largest residual {worst:.1e} of the largest eigenvalue after {self.products} products"
        )
        if converged_count == value_count:
            return f"{value_count} pairs converged: {residual_words}"
        return (
            f"{converged_count} of {value_count} pairs converged, the others did not (a flat spectrum needs more "
            f"products): {residual_words}"
        )


class GramTiles:
    """The centred Gram matrix K̃ = C K_φ C of one head's keys (teo2024 eq. 11) over exp(``log_factor``), as a factor.

    ``tiles @ block`` is K̃ times a block of vectors (…, token, axis). Entries are those of `factored_gram`, in the
    keys' own precision, float32 at least; sums are float64. Of two entries that symmetry makes equal one is formed.
    """

    def __init__(
        self, k: Float[Tensor, "token head_dim"], scale: float | Tensor, memory: int = MEMORY
    ) -> None:
        dtype = torch.promote_types(k.dtype, torch.float32)
        size = torch.as_tensor(scale, dtype=torch.float64, device=k.device).sqrt()
        self._keys = (k.detach().double() * size).to(dtype)
        self.dtype, self.device = dtype, k.device
        numbers = memory // (2 * dtype.itemsize)  # a tile and what is made of it
        self._side = max(1, min(_SIDE, math.isqrt(numbers)))
        self.log_normaliser = self._normalisers(max(1, numbers // len(k)))
        log_diagonal = self._keys.double().square().sum(-1) - 2 * self.log_normaliser
        self.log_factor = (
            log_diagonal.amax()
        )  # of a matrix without negative eigenvalues no entry exceeds the diagonal
        self._less = (self.log_normaliser + self.log_factor / 2).to(dtype)
        self._means = self._kernel_times(torch.ones(len(k), 1, dtype=torch.float64, device=k.device))[
            :, 0
        ] / len(k)
        self.trace = (log_diagonal - self.log_factor).exp().sum() - self._means.sum()

    def __len__(self) -> int:
        return len(self._keys)

    def __matmul__(self, block: Float[Tensor, "*draw token axis"]) -> Float[Tensor, "*draw token axis"]:
        tokens_first = block.double().movedim(-2, 0)
        parts = []
        for part in tokens_first.flatten(1).split(_AT_ONCE, 1):
            there = self._kernel_times(part - part.mean(0))
            parts.append(there - there.mean(0))
        return torch.cat(parts, 1).view(tokens_first.shape).movedim(0, -2).to(block.dtype)

    def squares(self) -> Float[Tensor, ""]:
        """‖K̃‖_F² over exp(2 log_factor): the sum of all squared eigenvalues, exactly."""
        middle, total = self._means.mean(), self._means.new_zeros(())
        for rows, columns in self._pairs():
            tile = self._entries(rows, columns).double()
            tile -= self._means[rows, None] - middle
            tile -= self._means[columns]
            total += tile.square_().sum() * (1 if rows == columns else 2)
        return total

    def leading(self, count: int, tolerance: float = TOLERANCE, products: int = PRODUCTS) -> Leading:
        """The ``count`` largest eigenvalues with their axes, all orthogonal to 1."""
        ones = torch.ones(len(self), 1, dtype=torch.float64, device=self.device)
        pairs = _leading(self.__matmul__, ones, count, tolerance, products, centred=True)
        return pairs._replace(trace=self.trace, log_factor=self.log_factor)

    def _normalisers(self, at_once: int) -> Float[Tensor, " token"]:
        """ℓ_i = log Σ_j exp(s k_i·k_j)."""
        normalisers = torch.empty(len(self), dtype=torch.float64, device=self.device)
        for start in range(0, len(self), at_once):
            rows = slice(start, start + at_once)
            scores = self._keys[rows] @ self._keys.mT
            top = scores.amax(-1, keepdim=True)
            normalisers[rows] = row_sums(scores.sub_(top).exp_()).log_() + top[:, 0]
        return normalisers

    def _pairs(self) -> Iterator[tuple[slice, slice]]:
        """Tiles on the diagonal and above it."""
        cuts = [slice(start, start + self._side) for start in range(0, len(self), self._side)]
        return ((rows, columns) for tile, rows in enumerate(cuts) for columns in cuts[tile:])

    def _entries(self, rows: slice, columns: slice) -> Tensor:
        tile = self._keys[rows] @ self._keys[columns].mT
        tile -= self._less[rows, None]
        tile -= self._less[columns]
        return tile.exp_()

    def _kernel_times(self, block: Float[Tensor, "token axis"]) -> Float[Tensor, "token axis"]:
        """K_φ X, not centred."""
        cast_block, total = block.to(self.dtype), torch.zeros_like(block)
        for rows, columns in self._pairs():
            tile = self._entries(rows, columns)
            total[rows] += tile @ cast_block[columns]
            if rows != columns:
                total[columns] += tile.mT @ cast_block[rows]
        return total


class RankEstimate(NamedTuple):
    """The effective rank exp(−Σ p log p) of a spectrum with known leading values and known sum.

    It lies between ``low`` and ``high``, if the known pairs converged: the rest is spread over as few values as the sum
    of squares allows, or over all. ``value`` is estimated, with the standard error of its random vectors.
    """

    value: Float[Tensor, ""]
    error: Float[Tensor, ""]
    low: Float[Tensor, ""]
    high: Float[Tensor, ""]


def effective_rank_of(tiles: GramTiles, leading: Leading) -> RankEstimate:
    """The effective rank (Roy & Vetterli 2007) of K̃: of its leading pairs, and of the rest by random vectors."""
    size, trace = len(tiles) - 1, tiles.trace
    if not bool(trace > 0) or not bool(leading.values[0] > 0):
        return RankEstimate(*(torch.zeros_like(trace) for _ in RankEstimate._fields))
    probabilities = leading.values / trace
    entropy = torch.special.entr(probabilities).sum()
    rest = (1 - probabilities.sum()).clamp_min(0)
    squares = (tiles.squares() / trace.square() - probabilities.square().sum()).clamp_min(0)
    left = size - len(probabilities)
    if left < 1 or bool(rest <= len(tiles) * torch.finfo(torch.float64).eps):
        rank_of_all = entropy.exp()
        return RankEstimate(rank_of_all, torch.zeros_like(rank_of_all), rank_of_all, rank_of_all)
    # the logarithm is concave: Σ p log p ≤ Σ p · log(Σ p² / Σ p), the mean p of the rest, which no p known is below
    typical = torch.minimum((squares / rest).clamp_min(rest / left), probabilities[-1])
    low, high = entropy - rest * typical.log(), entropy + rest * (left / rest).log()
    value, error = _entropy_left(tiles, leading, rest, typical)
    middle = torch.minimum(torch.maximum(entropy + value, low), high).exp()
    return RankEstimate(middle, middle * error, low.exp(), high.exp())


def _entropy_left(tiles: GramTiles, pairs: Leading, rest: Tensor, typical: Tensor) -> tuple[Tensor, Tensor]:
    """−Σ p log p over the eigenvalues beside those found, as shares of the trace, and its standard error.

    z·h(B)z over random signs z, B what is left of K̃, h(x) = −x log(x / typical): of the −x log typical beside it the
    sum is known. By Lanczos iteration for all z at once, with full reorthogonalisation.
    """
    source = torch.Generator().manual_seed(0)
    signs = torch.randint(2, (len(tiles), _PROBES), generator=source).mul_(2).sub_(1)
    known_vectors = pairs.vectors

    def outside(block: Tensor) -> Tensor:
        block = block - block.mean(0)
        return block - known_vectors @ (known_vectors.mT @ block)

    start = outside(signs.to(known_vectors))
    length = torch.linalg.vector_norm(start, dim=0)
    basis = [start / length]
    diagonals, besides = [], []
    for step in range(min(STEPS, len(tiles) - 1 - known_vectors.shape[1])):
        image = outside(tiles @ basis[-1]) / tiles.trace
        diagonals.append((image * basis[-1]).sum(0))
        for _ in range(2):  # twice is enough
            for other in basis:
                image = image - other * (other * image).sum(0)
        rest_norm = torch.linalg.vector_norm(image, dim=0)
        if step + 1 == STEPS or bool((rest_norm <= _FLAT).any()):
            break
        besides.append(rest_norm)
        basis.append(image / rest_norm)
    inner = torch.diag_embed(torch.stack(diagonals, -1))
    if besides := besides[: len(diagonals) - 1]:
        next_to = torch.stack(besides, -1)
        inner = inner + torch.diag_embed(next_to, 1) + torch.diag_embed(next_to, -1)
    nodes, vectors = torch.linalg.eigh(inner)
    nodes = nodes.clamp_min(0)
    of_nodes = torch.where(nodes > 0, -nodes * (nodes / typical).log(), 0)
    each = length.square() * (vectors[:, 0].square() * of_nodes).sum(-1)
    return each.mean() - rest * typical.log(), each.std() / math.sqrt(_PROBES)


@checked_tensors
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
    squares = reduce_tiles(queries, keys, RowSquares(), scale=scale, mask=mask, memory=memory)[
        "squares"
    ].sum()

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


def _leading(
    product: Product, like: Tensor, count: int, tolerance: float, products: int, centred: bool = False
) -> Leading:
    """The largest eigenpairs of a symmetric matrix that has no negative ones, from a block Krylov space.

    ``like`` is a column of the same length. The start is always the same; ``centred`` it is orthogonal to 1.
    """
    size = len(like)
    if not 1 <= count <= size:
        raise InputError(f"count is 1 to {size}, the number of tokens; got {count}")
    source = torch.Generator().manual_seed(0)
    start = torch.randn(size, min(size, count + _SPARE), dtype=torch.float64, generator=source)
    start = start.to(like.device)
    block = torch.linalg.qr(start - start.mean(0) if centred else start).Q
    # room for all that may come, filled and so taken up as it comes: joining blocks would need it twice
    room = like.new_empty(min(size, max(1, products - 1) * block.shape[1]), size).mT
    basis = room[:, : block.shape[1]]
    basis[:] = block
    inner = like.new_zeros(0, 0)
    done = 0
    while True:
        image = product(block)
        done += 1
        new = basis.mT @ image
        rest = image - basis @ new
        grown = like.new_zeros(basis.shape[1], basis.shape[1])
        grown[: len(inner), : len(inner)] = inner
        grown[:, len(inner) :], grown[len(inner) :] = new, new.mT
        inner = grown
        values, mix = torch.linalg.eigh(inner)
        values, mix = values.flip(0)[:count], mix.flip(1)[:, :count]
        # A times the basis is the basis times what is inside, and in its last block the rest
        off = torch.linalg.vector_norm(rest @ mix[-block.shape[1] :], dim=0)
        left = size - basis.shape[1]
        all_converged = bool((off <= 0.5 * tolerance * values[0]).all())
        if all_converged or not left or done >= products - 1 or float(rest.abs().amax()) <= _FLAT * values[0]:
            break
        block = torch.linalg.qr(rest / torch.linalg.vector_norm(rest)).Q[:, :left]
        block = torch.linalg.qr(block - basis @ (basis.mT @ block)).Q
        basis_size = basis.shape[1]
        basis = room[:, : basis_size + block.shape[1]]
        basis[:, basis_size:] = block
    vectors = basis @ mix
    residual = torch.linalg.vector_norm(product(vectors) - vectors * values, dim=0)
    within = residual <= tolerance * values[0].clamp_min(0)
    zero = like.new_zeros(())
    return Leading(values.clamp_min(0), vectors, residual, within, zero, done + 1, zero)
