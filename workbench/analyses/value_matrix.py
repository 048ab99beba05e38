"""One matrix of values in the forms that comparisons need, each computed once and only when asked for.

The comparisons are those of saritas2025 (Tables 1 and 4).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from workbench.analyses.linalg import EPSILON

_SIDE = 1024  # tokens on a side of a tile of distances
_FEW_PAIRS = 2**22  # of which all distances are kept to find the median
_DRAWN = 2**17  # distances that tell between which two the median lies
_AROUND = 7e-3  # on either side of it, as shares of the pairs: five standard errors of so many
_NEARLY_PARALLEL = 0.999  # above this squared cosine an angle is read off its sine


class ValueMatrix:
    """(token, feature) values times exp(log_factor); all forms but `product` are free of that factor.

    ``rows_from``: a matrix whose rows have the directions of ``values``, where those themselves may underflow.
    """

    def __init__(
        self,
        values: Float[Tensor, "token feature"],
        log_factor: Tensor | None = None,
        rows_from: Tensor | None = None,
    ) -> None:
        self.values, self.log_factor, self.rows_from = values, log_factor, rows_from
        self.matched_rows: dict[ValueMatrix, Tensor] = {}

    @property
    def original(self) -> ValueMatrix:
        """Itself; for permuted values those in the original order."""
        return self

    @cached_property
    def product(self) -> Tensor:
        """The values themselves, 0 where they underflow."""
        return self.values if self.log_factor is None else self.values * self.log_factor.exp()

    @cached_property
    def scaled(self) -> Tensor:
        """Values with the largest at magnitude 1, so that squares neither overflow nor all vanish."""
        largest = self.values.abs().amax()
        return self.values / torch.where(largest > 0, largest, 1.0)

    @cached_property
    def columns(self) -> Tensor:
        """Columns at unit length; zero columns stay zero."""
        return _unit(self.scaled, 0)

    @cached_property
    def rows(self) -> Tensor:
        """Rows at unit length; zero rows stay zero."""
        return _unit(self.values if self.rows_from is None else self.rows_from, 1)

    @cached_property
    def basis(self) -> Tensor:
        """Orthonormal basis of the column space, (token, rank); columns within rounding of others add nothing."""
        q, r = torch.linalg.qr(self.scaled)
        size = r.diagonal().abs()
        floor = max(self.values.shape) * EPSILON
        if self.values.shape[1] <= self.values.shape[0] and size.amin() > floor * size.amax():
            return q
        left, singular, _ = torch.linalg.svd(self.scaled, full_matrices=False)
        return left[:, singular > floor * singular[0]]

    @cached_property
    def centred(self) -> tuple[Tensor, Tensor]:
        """X = C values at norm 1, and ‖XᵀX‖; NaN where all rows are equal."""
        x = self.scaled - self.scaled.mean(0)
        length = x.norm()
        x = x / torch.where(length > len(x) * EPSILON * self.scaled.norm(), length, torch.nan)
        return x, (x.T @ x).norm()

    @cached_property
    def kernel(self) -> Tensor:
        """Centred Gaussian kernel of the tokens at norm 1, width σ² the lower median squared distance over pairs.

        Where σ² is 0 (more than half of the pairs are equal) it is the limit: 1 for equal tokens, else 0. NaN
        where all rows are equal.
        """
        distances, squared_norms = _squared_distances(self.scaled)
        width = _lower_median(distances)
        if self._pairs_may_be_equal(width, squared_norms):
            distances.masked_fill_(distances <= self._rounding * (squared_norms[:, None] + squared_norms), 0)
            width = _lower_median(distances)
        kernel = _gaussian(distances, width)
        kernel -= kernel.mean(0)
        kernel -= kernel.mean(1, keepdim=True)
        return kernel.div_(kernel.norm())

    @property
    def _rounding(self) -> float:
        """Of a squared distance, as a share of both squared lengths."""
        return 2 * self.values.shape[1] * EPSILON

    @cached_property
    def width(self) -> tuple[float, bool]:
        """σ² of `kernel` without forming it, and whether distances within rounding count as 0."""
        squared_norms = self.scaled.square().sum(1)
        width = self._tiled_median(False)
        if self._pairs_may_be_equal(width, squared_norms):
            return self._tiled_median(True), True
        return width, False

    def _pairs_may_be_equal(self, width: float, squared_norms: Tensor) -> bool:
        """Or look so beside larger ones, of squared lengths ``own``."""
        return width <= 2 * self._rounding * float(squared_norms.amax())

    def _tiled_median(self, rounded: bool) -> float:
        """The lower median of the squared distances, exactly: counted below a bracket, and sorted within it."""
        tokens = len(self.values)
        pairs = tokens * (tokens - 1) // 2
        wanted = (pairs + 1) // 2
        low, high = -1.0, math.inf
        if pairs > _FEW_PAIRS:
            source = torch.Generator().manual_seed(0)
            first, second = torch.randint(tokens, (2, _DRAWN), generator=source).to(self.values.device)
            drawn_distances = (self.scaled[first] - self.scaled[second]).square().sum(1)[first != second]
            low, high = (
                float(drawn_distances.kthvalue(max(1, round(share * len(drawn_distances)))).values)
                for share in (0.5 - _AROUND, 0.5 + _AROUND)
            )
        while True:
            below, at_low, inside, at_high = 0, 0, [], 0
            for rows, columns in _tiles_above(tokens):
                distances = self.distances(rows, columns, rounded)
                flat = (
                    distances[torch.ones_like(distances, dtype=torch.bool).triu(1)]
                    if rows == columns
                    else distances
                )
                below += int((flat < low).sum())
                at_low += int((flat == low).sum())
                at_high += int((flat == high).sum())
                inside.append(flat[(flat > low) & (flat < high)])
            within_bracket = torch.cat([part.flatten() for part in inside])
            rank = wanted - below - at_low
            if below < wanted and rank <= 0:
                return low
            if 0 < rank <= len(within_bracket):
                return float(within_bracket.kthvalue(rank).values)
            if len(within_bracket) < rank <= len(within_bracket) + at_high:
                return high
            low, high = (-1.0, low) if rank <= 0 else (high, math.inf)

    def distances(self, rows: slice, columns: slice, rounded: bool) -> Float[Tensor, "row column"]:
        """‖x_i − x_j‖² of a tile, on the diagonal exactly 0; with ``rounded`` also where rounding is all there is."""
        here, there = self.scaled[rows], self.scaled[columns]
        squared_norms, others = here.square().sum(1), there.square().sum(1)
        distances = (here @ there.T).mul_(-2).add_(squared_norms[:, None]).add_(others).clamp_(min=0)
        if rows == columns:
            distances.fill_diagonal_(0)
        if rounded:
            distances.masked_fill_(distances <= self._rounding * (squared_norms[:, None] + others), 0)
        return distances

    def kernel_tile(self, rows: slice, columns: slice) -> Float[Tensor, "row column"]:
        """A tile of the Gaussian kernel, neither centred nor scaled."""
        width, rounded = self.width
        return _gaussian(self.distances(rows, columns, rounded), width)


class PermutedValues(ValueMatrix):
    """Values with their tokens in another order; every form is that of the original, reordered."""

    def __init__(self, original: ValueMatrix, order: Tensor) -> None:
        super().__init__(original.values[order])
        self._original, self.order = original, order

    @property
    def original(self) -> ValueMatrix:
        return self._original

    @cached_property
    def scaled(self) -> Tensor:
        return self._original.scaled[self.order]

    @cached_property
    def columns(self) -> Tensor:
        return self._original.columns[self.order]

    @cached_property
    def rows(self) -> Tensor:
        return self._original.rows[self.order]

    @cached_property
    def basis(self) -> Tensor:
        return self._original.basis[self.order]

    @cached_property
    def centred(self) -> tuple[Tensor, Tensor]:
        x, size = self._original.centred
        return x[self.order], size

    @cached_property
    def width(self) -> tuple[float, bool]:
        return self._original.width

    @cached_property
    def kernel(self) -> Tensor:
        # symmetric, so that reordered rows of reordered rows are reordered rows and columns
        return self._original.kernel.index_select(0, self.order).mT.index_select(0, self.order)


def _gaussian(distances: Tensor, width: float) -> Tensor:
    return distances.mul_(-0.5 / width).exp_() if width > 0 else (distances == 0).double()


def _tiles_above(tokens: int) -> Iterator[tuple[slice, slice]]:
    """Rows and columns of the tiles on and above the diagonal of a matrix of tokens × tokens."""
    cuts = [slice(start, min(start + _SIDE, tokens)) for start in range(0, tokens, _SIDE)]
    return ((rows, columns) for tile, rows in enumerate(cuts) for columns in cuts[tile:])


def tiled_kernel_alignment(first: ValueMatrix, second: ValueMatrix) -> Float[Tensor, ""]:
    """Σ of the product of both centred kernels at norm 1 (KCKA of saritas2025), in one pass of tiles."""
    tokens = len(first.values)
    sums = first.values.new_zeros(2, tokens)
    squares = first.values.new_zeros(2, 2)
    for rows, columns in _tiles_above(tokens):
        tiles = torch.stack([matrix.kernel_tile(rows, columns) for matrix in (first, second)])
        sums[:, rows] += tiles.sum(2)
        if rows != columns:
            sums[:, columns] += tiles.sum(1)
        flat = tiles.flatten(1)
        squares += flat @ flat.T * (1 if rows == columns else 2)
    total = sums.sum(1)
    centred = squares - 2 * (sums @ sums.T) / tokens + total[:, None] * total / tokens**2
    return centred[0, 1] / (centred[0, 0] * centred[1, 1]).sqrt()


def _squared_distances(
    values: Float[Tensor, "token feature"],
) -> tuple[Float[Tensor, "token token"], Float[Tensor, " token"]]:
    """‖x_i − x_j‖² of all pairs, up to rounding beside ‖x_i‖² + ‖x_j‖², on the diagonal exactly 0; and ‖x_i‖²."""
    gram = values @ values.T
    squared_norms = gram.diagonal().clone()
    distances = gram.mul_(-2).add_(squared_norms).add_(squared_norms[:, None]).clamp_(min=0)
    distances.fill_diagonal_(0)
    return distances, squared_norms


def _lower_median(distances: Tensor) -> float:
    """Over the pairs i < j of a symmetric matrix without negative entries and with a diagonal of zeros."""
    count = len(distances)
    pairs = count * (count - 1) // 2
    # in the whole matrix the diagonal's zeros come first, and every pair stands twice
    rank = count + 2 * ((pairs + 1) // 2) - 2
    if distances.device.type != "cpu":  # a whole matrix takes longer to fetch than to search
        return float(distances.flatten().kthvalue(rank + 1).values)
    return float(np.partition(distances.cpu().numpy().ravel(), rank)[rank])


def principal_cosines_and_sines(
    first: Float[Tensor, "token axis_a"], second: Float[Tensor, "token axis_b"]
) -> tuple[Float[Tensor, " angle"], Float[Tensor, " angle"]]:
    """Cosines and sines of the min(a, b) principal angles between two spans' orthonormal bases, smallest first.

    The cosine says little about an angle near 0, so there the sine is computed for itself (Björck & Golub 1973).
    """
    if first.shape[1] < second.shape[1]:
        first, second = second, first
    product = first.T @ second
    cosines = torch.linalg.svdvals(product).clamp(max=1.0)
    sines = (1 - cosines.square()).sqrt()
    if len(cosines) and cosines[0] ** 2 > _NEARLY_PARALLEL:
        exact = torch.linalg.svdvals(second - first @ product).flip(0).clamp(max=1.0)
        sines = torch.where(cosines.square() > _NEARLY_PARALLEL, exact, sines)
    return cosines, sines


def _unit(values: Tensor, axis: int) -> Tensor:
    length = torch.linalg.vector_norm(values, dim=axis, keepdim=True)
    return values / torch.where(length > 0, length, 1.0)
