"""Kernel PCA of the keys: eigenvectors of the centred Gram matrix, and the value matrix they call for.

One head at a time, real tokens only; `parallel.map_tokens` cuts a batch into heads.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from workbench.analyses.kernel_pca import EPSILON, Factored, check_psd_eigenvalues, raw_gram


class PrincipalAxes(NamedTuple):
    """Kernel PCA of one head's keys.

    vectors: A, unit eigenvectors of K̃, largest eigenvalue first, the largest-magnitude entry of each positive.
    eigenvalues: of ``gram``, never negative; μ_d of K̃ itself is eigenvalues · exp(log_factor).
    gram: K̃ without its common factor, symmetric up to rounding. log_factor and log_normaliser
    (ℓ_j = log g(k_j)) in nats. resolved: how many of the eigenvalues stand above rounding; axes past them are
    an arbitrary basis, orthogonal to 1 like the others. 0 where all keys are equal.
    """

    vectors: Float[Tensor, "token axis"]
    eigenvalues: Float[Tensor, " axis"]
    gram: Float[Tensor, "token token"]
    log_factor: Float[Tensor, ""]
    log_normaliser: Float[Tensor, " token"]
    resolved: Int[Tensor, ""]


def principal_axes(
    k: Float[Tensor, "token head_dim"], scale: float | Tensor, axes: int | None = None
) -> PrincipalAxes:
    """The first ``axes`` principal axes of one head's keys (teo2024 eq. 11), at most and by default N − 1.

    N tokens have N − 1 axes: centring removes one direction. ``k`` is finite with two tokens or more, and
    ``scale`` the model's own. Raises `InputError` where K̃ has a negative eigenvalue beyond rounding.
    """
    k = k.detach().double()
    tokens = k.shape[0]
    gram, log_factor, log_normaliser = raw_gram(
        k, torch.as_tensor(scale, dtype=torch.float64, device=k.device)
    )
    # a constant taken off every entry sends the removed direction, 1, below zero, to the very end: the axes
    # stay orthogonal to it, also those whose eigenvalue is rounding
    shift = gram.diagonal().sum().clamp_min(EPSILON) / tokens**2
    eigenvalues, vectors = torch.linalg.eigh(gram - shift)
    count = tokens - 1 if axes is None else min(axes, tokens - 1)
    # the largest entry of K_φ is 1 here, so its rounding moves an eigenvalue by at most N times this
    spectrum = check_psd_eigenvalues(eigenvalues[1:].flip(0), noise=tokens * EPSILON)
    rounding = tokens * EPSILON * spectrum[0].clamp_min(1.0)
    vectors = vectors[:, tokens - count :].flip(1)
    largest = vectors.gather(0, vectors.abs().argmax(0, keepdim=True))
    return PrincipalAxes(
        vectors=vectors * largest.sign(),
        eigenvalues=spectrum[:count],
        gram=gram,
        log_factor=log_factor,
        log_normaliser=log_normaliser,
        resolved=(spectrum[:count] > rounding).sum(),
    )


def kpca_values(axes: PrincipalAxes) -> Factored:
    """The value matrix of kernel PCA, V̇ = G A, (token, axis), as ``values · exp(log_factor)`` (saritas2025
    eq. 5).

    G = diag(1/g(k_j)). The centring term G 1_N A of the paper is 0, since every axis is orthogonal to 1.
    Attention with V := V̇ gives exactly the projections of the queries on the axes (teo2024 theorem 1).
    """
    smallest = axes.log_normaliser.amin()
    return Factored(axes.vectors * (smallest - axes.log_normaliser).exp()[:, None], -smallest)
