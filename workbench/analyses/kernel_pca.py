"""Kernel PCA of one head's keys: the axes of their centred Gram matrix, and the values of the tokens on these.

The matrix is that of `workbench.analyses.gram_spectrum`. Tokens are real: `map_tokens` cuts a batch into heads.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from workbench.analyses.gram_spectrum import Factored, check_psd_eigenvalues, gram_rounding, raw_gram
from workbench.analyses.linalg import EPSILON, leading_eigenpairs
from workbench.analyses.tiled_spectra import GramTiles
from workbench.core.operands import checked_tensors
from workbench.frames.metric import Metric

SPAN_SHARE = Metric(
    "span_share",
    "Share of the squared norm inside the span",
    "share of ‖V‖² inside span(V̇); for a candidate, of ‖Â‖² inside the span of the top eigenvectors (isotropic null "
    "distribution: d_v/(N−1))",
    low=0,
    high=1,
)


TOLERANCE = 1e-10  # of the largest eigenvalue: residual at which products in tiles have found an axis


class PrincipalAxes(NamedTuple):
    """Kernel PCA of one head's keys.

    vectors: A, unit eigenvectors of K̃, largest eigenvalue first, the largest-magnitude entry of each positive.
    eigenvalues: of ``gram``, never negative; μ_d of K̃ itself is eigenvalues · exp(log_factor).
    gram: K̃ without its common factor, symmetric up to rounding, or its products in tiles. log_factor and log_normaliser
    (ℓ_j = log g(k_j)) in nats. resolved: how many eigenvalues exceed rounding; later axes are
    an arbitrary basis, orthogonal to 1 like the others. 0 where all keys are equal. close: how many resolved axes have
    a neighbour whose eigenvalue is no further off than the pairs' residual: which of them comes first is arbitrary.
    converged: how many axes there are whose residual is small enough: all but where products in tiles did not converge.
    """

    vectors: Float[Tensor, "token axis"]
    eigenvalues: Float[Tensor, " axis"]
    gram: Float[Tensor, "token token"] | GramTiles
    log_factor: Float[Tensor, ""]
    log_normaliser: Float[Tensor, " token"]
    resolved: Int[Tensor, ""]
    close: Int[Tensor, ""]
    converged: Int[Tensor, ""]


@checked_tensors
def principal_axes(
    k: Float[Tensor, "token head_dim"],
    scale: float | Tensor,
    axes: int | None = None,
    *,
    tiled: bool = False,
) -> PrincipalAxes:
    """The first ``axes`` principal axes of one head's keys (teo2024 eq. 11), at most and by default N − 1.

    N tokens have N − 1 axes: centring removes one direction. A few axes of very many tokens come from iteration
    (`linalg.leading_eigenpairs`), and with ``tiled`` from products in tiles, without any matrix of tokens × tokens.
    ``k`` is finite with two tokens or more, and ``scale`` that of the model. Raises `InputError` where K̃ has a negative
    eigenvalue beyond rounding.
    """
    k = k.detach().double()
    tokens = k.shape[0]
    count = tokens - 1 if axes is None else min(axes, tokens - 1)
    if tiled:
        return _tiled_axes(k, scale, count)
    gram, log_factor, log_normaliser = raw_gram(
        k, torch.as_tensor(scale, dtype=torch.float64, device=k.device)
    )
    # a constant taken off every entry sends the removed direction, 1, below zero, to the very end: the axes
    # stay orthogonal to it, also those whose eigenvalue is rounding
    shift = gram.diagonal().sum().clamp_min(EPSILON) / tokens**2
    eigenvalues, vectors, residual = leading_eigenpairs(gram - shift, count)
    noise = gram_rounding(tokens, log_factor)
    spectrum = check_psd_eigenvalues(eigenvalues[: tokens - 1], noise)
    rounding = noise * spectrum[0].clamp_min(1.0)
    resolved = spectrum[:count] > rounding
    near = eigenvalues[:count] - eigenvalues[1 : count + 1] <= residual  # axis i and the one after it
    converged = torch.tensor(count, device=k.device)
    return _axes(gram, log_factor, log_normaliser, spectrum[:count], vectors, resolved, near, converged)


def _tiled_axes(k: Tensor, scale: float | Tensor, count: int) -> PrincipalAxes:
    """`principal_axes` by products in tiles: one pair more than asked for, which gives the last gap."""
    tokens = len(k)
    gram = GramTiles(k, scale)
    pairs = gram.leading(min(count + 1, tokens - 1), TOLERANCE)
    noise = gram_rounding(tokens, gram.log_factor)
    spectrum = check_psd_eigenvalues(pairs.values, noise)
    rounding = torch.maximum(noise * spectrum[0].clamp_min(1.0), pairs.residual[:count])
    resolved = (spectrum[:count] > rounding).cumprod(0).bool()
    gaps = spectrum[:count] - torch.nn.functional.pad(spectrum, (0, 1), value=-torch.inf)[1 : count + 1]
    near = gaps <= pairs.residual[:count].amax()
    vectors, converged = pairs.vectors[:, :count], pairs.converged[:count].sum()
    return _axes(
        gram, gram.log_factor, gram.log_normaliser, spectrum[:count], vectors, resolved, near, converged
    )


def _axes(
    gram: Tensor | GramTiles,
    log_factor: Tensor,
    log_normaliser: Tensor,
    eigenvalues: Tensor,
    vectors: Tensor,
    resolved: Tensor,
    near: Tensor,
    converged: Tensor,
) -> PrincipalAxes:
    """Axes whose largest entry is positive; ``near`` are those that cannot be separated from the one after."""
    largest = vectors.gather(0, vectors.abs().argmax(0, keepdim=True))
    return PrincipalAxes(
        vectors=vectors * largest.sign(),
        eigenvalues=eigenvalues,
        gram=gram,
        log_factor=log_factor,
        log_normaliser=log_normaliser,
        resolved=resolved.sum(),
        close=((near | torch.nn.functional.pad(near[:-1], (1, 0))) & resolved).sum(),
        converged=converged,
    )


def kpca_values(axes: PrincipalAxes) -> Factored:
    """The value matrix of kernel PCA, V̇ = G A, as ``values · exp(log_factor)`` (saritas2025 eq. 5).

    V̇ is (token, axis) and G = diag(1/g(k_j)). The centring term G 1_N A of the paper is 0, since every axis is
    orthogonal to 1. Attention with V := V̇ gives exactly the projections of the queries on the axes (teo2024 theorem 1).
    """
    smallest = axes.log_normaliser.amin()
    return Factored(axes.vectors * (smallest - axes.log_normaliser).exp()[:, None], -smallest)
