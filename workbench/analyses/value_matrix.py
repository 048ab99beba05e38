"""One matrix of values in the forms that comparisons need, each computed once and only when asked for.

The comparisons are those of saritas2025 (Tables 1 and 4).
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from workbench.analyses.linalg import EPSILON

NEARLY_PARALLEL = 0.999  # above this squared cosine an angle is read off its sine


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
        distances, own = _squared_distances(self.scaled)
        width = _lower_median(distances)
        rounding = 2 * self.values.shape[1] * EPSILON
        if width <= 2 * rounding * float(own.amax()):  # pairs may be equal, or look so beside larger ones
            distances.masked_fill_(distances <= rounding * (own[:, None] + own), 0)
            width = _lower_median(distances)
        kernel = distances.mul_(-0.5 / width).exp_() if width > 0 else (distances == 0).double()
        kernel -= kernel.mean(0)
        kernel -= kernel.mean(1, keepdim=True)
        return kernel.div_(kernel.norm())


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
    def kernel(self) -> Tensor:
        # symmetric, so that reordered rows of reordered rows are reordered rows and columns
        return self._original.kernel.index_select(0, self.order).mT.index_select(0, self.order)


def _squared_distances(
    values: Float[Tensor, "token feature"],
) -> tuple[Float[Tensor, "token token"], Float[Tensor, " token"]]:
    """‖x_i − x_j‖² of all pairs, up to rounding beside ‖x_i‖² + ‖x_j‖², on the diagonal exactly 0; and ‖x_i‖²."""
    gram = values @ values.T
    own = gram.diagonal().clone()
    distances = gram.mul_(-2).add_(own).add_(own[:, None]).clamp_(min=0)
    distances.fill_diagonal_(0)
    return distances, own


def _lower_median(distances: Tensor) -> float:
    """Over the pairs i < j of a symmetric matrix without negative entries and with a diagonal of zeros."""
    count = len(distances)
    pairs = count * (count - 1) // 2
    # in the whole matrix the diagonal's zeros come first, and every pair stands twice
    place = count + 2 * ((pairs + 1) // 2) - 2
    if distances.device.type != "cpu":  # a whole matrix takes longer to fetch than to search
        return float(distances.flatten().kthvalue(place + 1).values)
    return float(np.partition(distances.cpu().numpy().ravel(), place)[place])


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
    if len(cosines) and cosines[0] ** 2 > NEARLY_PARALLEL:
        exact = torch.linalg.svdvals(second - first @ product).flip(0).clamp(max=1.0)
        sines = torch.where(cosines.square() > NEARLY_PARALLEL, exact, sines)
    return cosines, sines


def _unit(values: Tensor, axis: int) -> Tensor:
    length = torch.linalg.vector_norm(values, dim=axis, keepdim=True)
    return values / torch.where(length > 0, length, 1.0)
