"""The leading eigenpairs of a symmetric matrix: by full decomposition, or by Lanczos iteration where that is faster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from scipy.linalg import get_blas_funcs
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh
from torch import Tensor

EPSILON = torch.finfo(torch.float64).eps
MANY = 1024  # rows from which iterating for a few pairs is faster than decomposing
SHARE = 16  # and at most one pair in so many is wanted; for random keys, which need most steps, this is even
RESTARTS = 40  # random keys need ten
TOLERANCE = 1e-12  # of an eigenvalue: residual at which its pair is done
MISSED = 1e-4  # the same for what may lie outside the pairs found; the eigenvalue is right to its square
ACCURACY = 1e-8  # of the largest eigenvalue: what may be left outside


class _Product(LinearOperator):
    """A matrix that is known by its products with vectors."""

    def __init__(self, size: int, product: Callable[[np.ndarray], np.ndarray]) -> None:
        super().__init__(np.float64, (size, size))
        self.product = product

    def _matvec(self, x: np.ndarray) -> np.ndarray:
        return self.product(x)


class Eigenpairs(NamedTuple):
    """Eigenvalues, largest first: all, or from iteration one more than vectors, so that the last gap is known.

    residual: the largest ‖Ax − μx‖ of the pairs found (from decomposition its rounding, N ε times the largest |μ|).
    Every eigenvalue is right to it, and a vector to it over the gap to the next one.
    """

    values: Float[Tensor, " value"]
    vectors: Float[Tensor, "token axis"]
    residual: Float[Tensor, ""]


def leading_eigenpairs(matrix: Float[Tensor, "token token"], count: int) -> Eigenpairs:
    """The ``count`` pairs with the largest eigenvalues, by the way that is faster for this size.

    Iteration is ARPACK's restarted Lanczos (Lehoucq, Sorensen & Yang 1998), from a start that is always the same. It
    can miss a copy of a repeated eigenvalue: what lies outside the pairs found is therefore searched, and where it
    holds a larger eigenvalue, or iteration does not converge, the matrix is decomposed after all.
    """
    if iterates(matrix, count):
        found = iterated(matrix, count)
        if found is not None:
            return found
    values, vectors = torch.linalg.eigh(matrix)
    rounding = len(matrix) * EPSILON * values[[0, -1]].abs().amax()
    return Eigenpairs(values.flip(0), vectors[:, len(matrix) - count :].flip(1), rounding)


def iterates(matrix: Float[Tensor, "token token"], count: int) -> bool:
    """Whether iterating for so many pairs is faster; on an accelerator it would wait for every product."""
    return len(matrix) >= MANY and SHARE * count <= len(matrix) and matrix.device.type == "cpu"


def iterated(matrix: Float[Tensor, "token token"], count: int) -> Eigenpairs | None:
    """The pairs by iteration; None where it fails, or misses one."""
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
        (largest,) = largest_of(outside, 1, v0=second, tol=MISSED, return_eigenvectors=False)
    except ArpackError:
        return None
    if largest > values[0] + ACCURACY * values[-1]:
        return None
    found, axes = torch.from_numpy(values).flip(0), torch.from_numpy(vectors).flip(1)
    residual = torch.linalg.vector_norm(matrix @ axes - axes * found, dim=0).amax()
    return Eigenpairs(found, axes[:, :count], residual)
