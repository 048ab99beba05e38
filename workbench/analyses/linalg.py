"""Linear algebra that several analyses share: leading eigenpairs, matchings, spans.

Lanczos iteration replaces a full decomposition where it is faster.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from scipy.linalg import get_blas_funcs
from scipy.optimize import linear_sum_assignment
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh
from torch import Tensor
from torch.nn import functional as F

from workbench.core.operands import checked_tensors, map_heads

EPSILON = torch.finfo(torch.float64).eps
MANY = 1024  # rows from which iterating for a few pairs is faster than decomposing
SHARE = 32  # iterate for at most N/32 pairs; N/16 of random keys costs up to twice as much
RESTARTS = 40  # random keys need ten
TOLERANCE = 1e-12  # of an eigenvalue: residual at which its pair is done
_MISSED = 1e-4  # the same for what may lie outside the pairs found; the eigenvalue is right to its square
ACCURACY = 1e-8  # of the largest eigenvalue: what may be left outside
MATCHED_MANY = 192  # rows and columns from which prices pay for themselves
_PRICE_TEMPERATURE = 0.01  # of the prices; any value gives the same matching, in more or less time
_PRICE_STEPS = 8
_LARGEST_WEIGHT = 1e30  # column weight, so that none is infinite: nobody wants some columns


class _Product(LinearOperator):
    """A matrix that is known by its products with vectors."""

    def __init__(self, size: int, product: Callable[[np.ndarray], np.ndarray]) -> None:
        super().__init__(np.float64, (size, size))
        self.product = product

    def _matvec(self, x: np.ndarray) -> np.ndarray:
        return self.product(x)


class Eigenpairs(NamedTuple):
    """Eigenvalues, largest first: all, or from iteration one more than vectors, which gives the last gap.

    residual: the largest ‖Ax − μx‖ of the pairs found (from decomposition its rounding, N ε times the largest |μ|).
    Every eigenvalue is right to it, and a vector to it over the gap to the next one.
    """

    values: Float[Tensor, " value"]
    vectors: Float[Tensor, "token axis"]
    residual: Float[Tensor, ""]


@checked_tensors
def leading_eigenpairs(matrix: Float[Tensor, "token token"], count: int) -> Eigenpairs:
    """The ``count`` pairs with the largest eigenvalues, by the way that is faster for this size.

    Iteration is ARPACK's restarted Lanczos (Lehoucq, Sorensen & Yang 1998), from a start that is always the same. It
    can miss a copy of a repeated eigenvalue: what lies outside the pairs found is therefore searched, and where it
    holds a larger eigenvalue, or iteration does not converge, the matrix is decomposed after all.
    """
    if iterates(matrix, count):
        pairs = iterated(matrix, count)
        if pairs is not None:
            return pairs
    values, vectors = torch.linalg.eigh(matrix)
    rounding = len(matrix) * EPSILON * values[[0, -1]].abs().amax()
    return Eigenpairs(values.flip(0), vectors[:, len(matrix) - count :].flip(1), rounding)


def iterates(matrix: Float[Tensor, "token token"], count: int) -> bool:
    """Return whether iterating for ``count`` pairs is faster; on an accelerator it would wait for every product."""
    return len(matrix) >= MANY and SHARE * count <= len(matrix) and matrix.device.type == "cpu"


@checked_tensors
def iterated(matrix: Float[Tensor, "token token"], count: int) -> Eigenpairs | None:
    """Return the pairs by iteration; None if it fails or misses a pair."""
    symmetric = matrix.double().numpy().T  # in Fortran's order without a copy; a product reads half of it
    symv = get_blas_funcs("symv", (symmetric,))

    def product(x: np.ndarray) -> np.ndarray:
        return symv(1.0, symmetric, x)

    def outside(x: np.ndarray) -> np.ndarray:
        rest = product(x - vectors @ (x @ vectors))
        return rest - vectors @ (rest @ vectors)

    def largest_of(product: Callable[[np.ndarray], np.ndarray], count: int, **options: Any) -> Any:
        return eigsh(_Product(len(matrix), product), count, which="LA", maxiter=RESTARTS, **options)

    first, second = np.random.default_rng(0).standard_normal((2, len(matrix)))
    try:
        values, vectors = largest_of(product, count + 1, v0=first, tol=TOLERANCE)
        (largest,) = largest_of(outside, 1, v0=second, tol=_MISSED, return_eigenvectors=False)
    except ArpackError:
        return None
    if largest > values[0] + ACCURACY * values[-1]:
        return None
    eigenvalues, axes = torch.from_numpy(values).flip(0), torch.from_numpy(vectors).flip(1)
    residual = torch.linalg.vector_norm(matrix @ axes - axes * eigenvalues, dim=0).amax()
    return Eigenpairs(eigenvalues, axes[:, :count], residual)


@checked_tensors
def best_matches(cosines: Float[Tensor, "row column"]) -> Float[Tensor, " pair"]:
    """The cosines of the matching with the largest sum, exactly, by row (or by column where those are fewer)."""
    table = cosines.cpu()
    ranked = table + column_prices(table) if min(table.shape) >= MATCHED_MANY else table
    # ranked may break ties, never change the sum; what comes back are the cosines themselves
    rows, columns = linear_sum_assignment(ranked.numpy(), maximize=True)
    return table[torch.from_numpy(rows), torch.from_numpy(columns)].to(cosines.device)


@checked_tensors
def column_prices(cosines: Float[Tensor, "row column"]) -> Float[Tensor, " column"]:
    """Return what to add to each column so that fewer rows want the same column: a few steps of Sinkhorn's balancing.

    In a square matrix every column is taken once, so a constant per column moves every matching's sum by the same
    amount and leaves the best one best; the search for it, of shortest augmenting paths, gets up to twice as fast.
    Columns that stay free in a rectangular matrix would make this untrue: there the prices are 0.
    """
    if cosines.shape[0] != cosines.shape[1]:
        return cosines.new_zeros(cosines.shape[1])
    # between 0 and 1, and 1 somewhere in each row; single precision is plenty for prices
    kernel = ((cosines - cosines.amax(1, keepdim=True)).float() / _PRICE_TEMPERATURE).exp_()
    column = kernel.new_ones(cosines.shape[1])
    for _ in range(_PRICE_STEPS):
        row = (kernel @ column).reciprocal_().clamp_(1 / _LARGEST_WEIGHT, _LARGEST_WEIGHT)
        column = (row @ kernel).reciprocal_().clamp_(1 / _LARGEST_WEIGHT, _LARGEST_WEIGHT)
    return _PRICE_TEMPERATURE * column.log().to(cosines)


@checked_tensors
def head_bases(weight: Float[Tensor, "*batch width head_dim"]) -> Float[Tensor, "*batch width head_dim"]:
    """Orthonormal columns that span what a projection reads: its left singular vectors, largest first.

    Columns past the projection's rank are zero.
    """
    columns = (
        weight.double() if torch.is_grad_enabled() else weight.double().detach()
    )  # threads record gradients
    heads = map_heads(partial(torch.linalg.svd, full_matrices=False), columns.reshape(-1, *weight.shape[-2:]))
    left = torch.stack([head.U for head in heads]).reshape(*weight.shape[:-1], -1)
    size = torch.stack([head.S for head in heads]).reshape(*weight.shape[:-2], -1)
    rounding = max(weight.shape[-2:]) * torch.finfo(torch.float64).eps * size[..., :1]
    basis = left * (size > rounding)[..., None, :]
    return F.pad(basis, (0, weight.shape[-1] - basis.shape[-1]))


@checked_tensors
def left_out(
    scores: Float[Tensor, "*batch token direction"], basis: Float[Tensor, "*batch token dim"]
) -> Float[Tensor, "*batch"]:
    """Share of ‖scores‖² outside the span of the orthonormal columns of ``basis`` (some may be zero).

    With r-scores and the basis H_e of the same number of e-scores this is the output's residual even if its values are
    the right singular vectors (chen2023 Remark 3.4): no linear map of the e-scores gives it. 0 for a symmetric kernel,
    1 − directions/N for unrelated directions; NaN for scores of zero.
    """
    scores = scores.double()
    inside = (basis.double().mT @ scores).square().sum((-2, -1)) / scores.square().sum((-2, -1))
    return (1 - inside).clamp(min=0.0)  # below 0 only by rounding


@checked_tensors
def inside_share(
    values: Float[Tensor, "*batch token value_dim"], basis: Float[Tensor, "*batch token dim"]
) -> Float[Tensor, "*batch"]:
    """Share of ‖values‖² inside the span of the orthonormal columns of ``basis``; NaN for values of zero."""
    return 1 - left_out(values, basis)


@checked_tensors
def span_angles(
    first: Float[Tensor, "*batch token dim"], second: Float[Tensor, "*batch token other_dim"]
) -> Float[Tensor, "*batch angle"]:
    """Principal angles between the spans of two orthonormal bases (as in `left_out`), in radians, smallest first.

    The dimension of the smaller span is the number of angles; the rest is NaN. Angles below 1e-7 are rounding.
    """
    bases = (first.double(), second.double())
    cosines = torch.linalg.svdvals(bases[0].mT @ bases[1])
    count = torch.minimum(*(basis.square().sum((-2, -1)).round() for basis in bases))[..., None]
    real = torch.arange(cosines.shape[-1], device=cosines.device) < count
    return torch.where(real, cosines.clamp(max=1.0).arccos(), torch.nan)
