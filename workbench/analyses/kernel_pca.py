"""Attention as kernel PCA of the keys: the kernel, its centred Gram matrix, its spectrum, its axes and their values.

The feature map φ of a token has inner products k_φ(x, y) = exp(s x·y) / (g(x) g(y)) with g(x) = Σ_j exp(s
x·k_j) (teo2024 eq. 8). Everything is computed in float64 and in the log domain: no key scale overflows, and
no term has to be added to a denominator. These are measurements: no gradient flows back to the keys.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from workbench.analyses import validation
from workbench.analyses.linalg import EPSILON, leading_eigenpairs, map_heads
from workbench.core.errors import InputError, UnknownName
from workbench.frames.metrics import Metric

SIGNIFICANT_NEGATIVE = 1e-5  # of the largest eigenvalue; the ratio scikit-learn refuses in double precision

STANDARDIZATIONS = ("none", "per-token", "per-feature")


EFFECTIVE_RANK = Metric(
    "effective_rank",
    "Effective rank",
    "exp(−Σ p log p) with p the spectrum divided by its sum; 0 for a spectrum of zeros; of tokens: their singular "
    "values",
    "Roy & Vetterli 2007",
    low=0,
)
RANK_90 = Metric(
    "rank_90",
    "Rank holding 90 % of the variance",
    "smallest r at which the first r spectrum values hold 90 % of the variance; 0 for a spectrum of zeros",
    "chen2023 Fig. 1",
    low=0,
)
SPAN_SHARE = Metric(
    "span_share",
    "Share of the squared norm inside the span",
    "share of ‖V‖² inside span(V̇); for a candidate, of ‖Â‖² inside the span of the top eigenvectors (isotropic null "
    "distribution: d_v/(N−1))",
    low=0,
    high=1,
)


class Factored(NamedTuple):
    """A quantity ``values · exp(log_factor)``: the factor may lie outside what float64 can hold.

    ``log_factor`` (nats) has the axes of ``values`` without the matrix or rank axes.
    """

    values: Tensor
    log_factor: Tensor

    def product(self) -> Tensor:
        """The quantity itself; what is smaller than 1e-308 becomes 0."""
        missing = self.values.ndim - self.log_factor.ndim
        return self.values * self.log_factor.exp().reshape(*self.log_factor.shape, *[1] * missing)


def standardize(
    x: Float[Tensor, "*batch token head_dim"],
    how: str,
    mask: Bool[Tensor, "*batch token"] | None = None,
    eps: float = 1e-8,
) -> Float[Tensor, "*batch token head_dim"]:
    """(x − mean) / (standard deviation + eps), with the unbiased deviation (ddof = 1), in float64.

    ``how``: "per-token", over the features of each token (the published code of saritas2025 and, with eps = 0,
    of teo2024); "per-feature", over the (real) tokens, as the text of saritas2025 says; "none", x as it is. What
    does not vary becomes 0, and so does padding (``mask`` false). Raises `UnknownName` for another ``how``, and
    `InputError` for fewer than two features or tokens and for values that are not finite.
    """
    if how not in STANDARDIZATIONS:
        raise UnknownName("standardization", how, STANDARDIZATIONS)
    if how == "none":
        return x
    validation.check_axes("x", x, validation.TOKENS)
    if how == "per-token" and x.shape[-1] < 2:
        raise InputError("standardizing per token needs 2 features or more; got 1 (axis head_dim)")
    validation.check_token_count("x", x.shape[-2])
    real = None if mask is None else validation.check_mask(mask, x.shape[:-1]).to(x.device)[..., None]
    x = (x if real is None else torch.where(real, x, 0)).double()
    validation.check_finite("x", x, validation.TOKENS)
    if how == "per-token":
        centred, count = x - x.mean(-1, keepdim=True), x.shape[-1]
        axis = -1
    else:
        count = x.shape[-2] if real is None else real.sum(-2, keepdim=True)
        centred = x - x.sum(-2, keepdim=True) / count
        centred = centred if real is None else centred * real
        axis = -2
    deviation = (centred.square().sum(axis, keepdim=True) / (count - 1)).sqrt() + eps
    return centred / torch.where(deviation > 0, deviation, 1.0)


def log_kernel(
    k: Float[Tensor, "*batch token head_dim"], scale: float | Tensor
) -> Float[Tensor, "*batch token token"]:
    """Logarithm (nats) of the kernel matrix K_φ of the keys with themselves.

    log K_φ(i, j) = s k_i·k_j − ℓ_i − ℓ_j with ℓ_i = log Σ_j exp(s k_i·k_j) (teo2024 eq. 8). Never positive:
    ℓ_i ≥ s k_i·k_j, and ℓ_j ≥ s k_j·k_j ≥ 0. So K_φ cannot overflow at any key scale; it can underflow.
    ``scale`` is the model's own, one number or one per head. Raises `InputError` for a missing axis, NaN or
    infinite keys, fewer than two tokens, or a scale that is not finite and positive.
    """
    _check_keys(k)
    k = k.double()
    scores = (k @ k.mT) * validation.check_scale(scale, k.shape[:-2], k)
    log_normaliser = scores.logsumexp(-1)
    return scores - (log_normaliser[..., :, None] + log_normaliser[..., None, :])


def _check_keys(k: Tensor) -> None:
    validation.check_axes("k", k, validation.TOKENS)
    validation.check_finite("k", k, validation.TOKENS)
    validation.check_token_count("k", k.shape[-2])


def factored_gram(
    k: Float[Tensor, "*batch token head_dim"],
    scale: float | Tensor,
    mask: Bool[Tensor, "*batch token"] | None = None,
) -> Factored:
    """Centred Gram matrix K̃ = C K_φ C as ``values · exp(log_factor)`` (teo2024 eq. 11).

    ``log_factor`` = max log K_φ of each matrix, so ``values`` is C K_φ C with the largest entry of K_φ scaled
    to 1: finite and not all zero for keys of any size, where exp(log K_φ) itself would be 0 throughout
    (entries fall like exp(−s‖k‖²); keys a hundred times larger give exp(−80 000)).

    ``mask`` (true at real tokens, broadcast over heads as (*batch, 1, token)) restricts the kernel, its
    normaliser and the mean to real tokens; rows and columns of padding are 0. Raises as `log_kernel`, and
    where the mask leaves fewer than two tokens.
    """
    if mask is None:
        _check_keys(k)
        gram, log_factor, _ = raw_gram(k, validation.check_scale(scale, k.shape[:-2], k))
        return Factored(_symmetric(gram), log_factor)
    k, mask = _check_masked(k, mask)
    k = k.double()
    scores = (k @ k.mT) * validation.check_scale(scale, k.shape[:-2], k)
    pairs = mask[..., :, None] & mask[..., None, :]
    log_normaliser = scores.masked_fill(~mask[..., None, :], -math.inf).logsumexp(-1)
    log_k = scores - (log_normaliser[..., :, None] + log_normaliser[..., None, :])
    log_k = log_k.masked_fill(~pairs, -math.inf)
    log_factor = log_k.amax((-2, -1))
    kernel = (log_k - log_factor[..., None, None]).exp()
    count = mask.sum(-1)[..., None, None]
    centred = (kernel - kernel.sum(-1, keepdim=True) / count) * pairs
    return Factored(_symmetric((centred - centred.sum(-2, keepdim=True) / count) * pairs), log_factor)


def _check_masked(k: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Keys with padding set to 0 (it may hold anything) and the mask in full."""
    validation.check_axes("k", k, validation.TOKENS)
    mask = validation.check_mask(mask, k.shape[:-1])
    clean = torch.where(mask[..., None], k, 0)
    validation.check_finite("k", clean, validation.TOKENS)
    return clean, mask


def raw_gram(
    k: Float[Tensor, "*batch token head_dim"], scale: Float[Tensor, "*#batch 1 1"]
) -> tuple[Float[Tensor, "*batch token token"], Float[Tensor, "*batch"], Float[Tensor, "*batch token"]]:
    """`factored_gram` (teo2024 eq. 11) of checked keys without a mask, symmetric up to rounding, in one piece.

    Returns values, log_factor and the log normalisers ℓ (*batch, token), both in nats.

    Most of the time beside the decomposition goes into passes over N×N numbers, so every step is in place.
    """
    k = k.detach().double() * scale.sqrt()
    log_k = k @ k.mT
    log_normaliser = log_k.logsumexp(-1)
    log_k -= log_normaliser[..., :, None]
    log_k -= log_normaliser[..., None, :]
    log_factor = log_k.amax((-2, -1))
    kernel = log_k.sub_(log_factor[..., None, None]).exp_()
    # rows, then columns of what is left: K̃1 stays at rounding size relative to K̃, not to K_φ
    kernel -= kernel.mean(-1, keepdim=True)
    kernel -= kernel.mean(-2, keepdim=True)
    return kernel, log_factor, log_normaliser


def _symmetric(matrices: Tensor) -> Tensor:
    return (matrices + matrices.mT) / 2


def centred_gram(
    k: Float[Tensor, "*batch token head_dim"],
    scale: float | Tensor,
    mask: Bool[Tensor, "*batch token"] | None = None,
) -> Float[Tensor, "*batch token token"]:
    """Centred Gram matrix K̃ = C K_φ C of the keys in feature space, C = I − 1/N (teo2024 eq. 11).

    Dimensionless, symmetric, positive semidefinite, and always singular: K̃1 = 0. Underflows to 0 for very
    large keys; `factored_gram` does not, and takes the same arguments and raises the same errors.
    """
    return factored_gram(k, scale, mask).product()


def check_psd_eigenvalues(
    eigenvalues: Float[Tensor, "*batch token"], noise: Float[Tensor, "*batch"] | float = 0.0
) -> Float[Tensor, "*batch token"]:
    """Eigenvalues of a positive semidefinite matrix with rounding-size negatives set to exactly 0.

    A spectrum that lies wholly below ``noise`` is 0 throughout (all keys equal: K̃ is 0 up to rounding).
    Positive values are kept as they are, also those near rounding. Raises `InputError` where a negative
    eigenvalue exceeds 1e-5 of the largest: then the matrix was no Gram matrix. The rule follows
    scikit-learn's check of PSD spectra.
    """
    size = eigenvalues.abs().amax(-1)
    size = torch.where(size <= noise, torch.zeros_like(size), size)
    eigenvalues = torch.where((size > 0)[..., None], eigenvalues, torch.zeros_like(eigenvalues))
    worst = (-eigenvalues.amin(-1)) / size.clamp_min(torch.finfo(eigenvalues.dtype).tiny)
    if (worst > SIGNIFICANT_NEGATIVE).any():
        raise InputError(
            f"a spectrum has a negative eigenvalue of {worst.max().item():.3g} times its largest, which no "
            "Gram matrix has: check the keys and the scale"
        )
    return eigenvalues.clamp_min(0)


def gram_spectrum(
    k: Float[Tensor, "*batch token head_dim"],
    scale: float | Tensor,
    mask: Bool[Tensor, "*batch token"] | None = None,
) -> Factored:
    """Eigenvalues μ_d of the centred Gram matrix, largest first, as ``values · exp(log_factor)``.

    μ_d = N λ_d of teo2024 eq. 11; what the tables of saritas2025 list. ``values`` (*batch, token) is never
    negative, and its last real entry is rounding of 0, because centring removes one direction. Finite at any
    key scale. With a ``mask`` the spectrum is that of the real tokens alone, computed on the submatrix, and
    ranks past their number are NaN. Raises as `factored_gram`.
    """
    if mask is not None:
        k, mask = _check_masked(k, mask)
    if mask is None or mask.all():
        _check_keys(k)
        return _spectrum(k, validation.check_scale(scale, k.shape[:-2], k))
    flat, masks = k.reshape(-1, *k.shape[-2:]), mask.reshape(-1, mask.shape[-1])
    scales = validation.check_scale(scale, k.shape[:-2], k).expand(*k.shape[:-2], 1, 1).reshape(-1, 1, 1)
    values = torch.full(masks.shape, math.nan, dtype=torch.float64, device=k.device)
    factors = torch.empty(len(flat), dtype=torch.float64, device=k.device)
    patterns, which = masks.unique(dim=0, return_inverse=True)
    for number, pattern in enumerate(patterns):
        chosen = which == number
        part = _spectrum(flat[chosen][:, pattern], scales[chosen])
        values[chosen, : part.values.shape[-1]] = part.values
        factors[chosen] = part.log_factor
    return Factored(values.reshape(mask.shape), factors.reshape(k.shape[:-2]))


def _spectrum(k: Tensor, scale: Tensor) -> Factored:
    batch, tokens = k.shape[:-2], k.shape[-2]
    if k.device.type != "cpu":  # many matrices in one call suit an accelerator
        whole = _matrix_spectrum(k, scale)
        return whole._replace(values=check_psd_eigenvalues(whole.values, noise=tokens * EPSILON))
    keys = k.reshape(-1, *k.shape[-2:])
    scales = scale.expand(*batch, 1, 1).reshape(-1, 1, 1)
    parts = map_heads(_matrix_spectrum, keys, scales)
    values = torch.stack([values for values, _ in parts]).reshape(*batch, tokens)
    log_factor = torch.stack([log_factor for _, log_factor in parts]).reshape(batch)
    # the largest entry of K_φ is 1 here, so its rounding moves an eigenvalue by at most N times this
    return Factored(check_psd_eigenvalues(values, noise=tokens * EPSILON), log_factor)


def _matrix_spectrum(k: Tensor, scale: Tensor) -> Factored:
    gram, log_factor, _ = raw_gram(k, scale)
    return Factored(torch.linalg.eigvalsh(gram).flip(-1), log_factor)


def gram_eigenvalues(
    k: Float[Tensor, "*batch token head_dim"],
    scale: float | Tensor,
    mask: Bool[Tensor, "*batch token"] | None = None,
) -> Float[Tensor, "*batch token"]:
    """Eigenvalues μ_d of the centred Gram matrix of the keys, largest first (teo2024 eq. 11, times N).

    Dimensionless, in [0, N]; 0 where float64 cannot hold the value, as happens for very large keys:
    `gram_spectrum` keeps those. Arguments, masks and errors as there.
    """
    return gram_spectrum(k, scale, mask).product()


def effective_rank(spectrum: Float[Tensor, "*batch rank"]) -> Float[Tensor, "*batch"]:
    """exp(−Σ p log p) with p the spectrum divided by its sum (Roy & Vetterli 2007).

    Between 1 and the number of nonzero values; 0 for a spectrum that is 0 throughout. NaN entries (ranks a
    masked input does not have) count as absent. Does not change when the spectrum is multiplied by a
    constant.
    """
    share = spectrum_share(spectrum).nan_to_num(nan=0.0)
    rank = torch.special.entr(share).sum(-1).exp()
    return torch.where(share.sum(-1) > 0, rank, torch.zeros_like(rank))


def rank_holding(spectrum: Float[Tensor, "*batch rank"], share: float = 0.9) -> Float[Tensor, "*batch"]:
    """The smallest r at which the first r values hold ``share`` of the spectrum's sum (chen2023 Fig. 1: 0.9).

    The spectrum is sorted largest first; 0 for one that is 0 throughout; NaN entries count as absent. For the
    share of variance of singular values, give their squares. Raises `InputError` for a share outside (0, 1].
    """
    if not 0 < share <= 1:
        raise InputError(f"share must lie in (0, 1]; got {share}")
    held = spectrum_share(spectrum).nan_to_num(nan=0.0).cumsum(-1)
    # the last sum is 1 only up to rounding
    enough = held >= share * held[..., -1:] * (1 - held.shape[-1] * EPSILON)
    first = enough.to(torch.int8).argmax(-1) + 1
    return torch.where(held[..., -1] > 0, first, torch.zeros_like(first)).double()


def spectrum_share(spectrum: Float[Tensor, "*batch rank"]) -> Float[Tensor, "*batch rank"]:
    """The spectrum divided by its sum: each rank's share (chen2023 Fig. 1).

    A spectrum of zeros stays zero; NaN stays NaN. Raises `InputError` for negative or infinite values.
    """
    spectrum = spectrum.double()
    if (spectrum < 0).any() or torch.isinf(spectrum).any():
        raise InputError("a spectrum must be finite and not negative")
    total = spectrum.nansum(-1, keepdim=True)
    return torch.where(total > 0, spectrum / total, spectrum)


# One head at a time, real tokens only; `linalg.map_tokens` cuts a batch into heads.


class PrincipalAxes(NamedTuple):
    """Kernel PCA of one head's keys.

    vectors: A, unit eigenvectors of K̃, largest eigenvalue first, the largest-magnitude entry of each positive.
    eigenvalues: of ``gram``, never negative; μ_d of K̃ itself is eigenvalues · exp(log_factor).
    gram: K̃ without its common factor, symmetric up to rounding. log_factor and log_normaliser
    (ℓ_j = log g(k_j)) in nats. resolved: how many of the eigenvalues stand above rounding; axes past them are
    an arbitrary basis, orthogonal to 1 like the others. 0 where all keys are equal. close: how many resolved axes have
    a neighbour whose eigenvalue is no further off than the pairs' residual: which of them comes first is arbitrary.
    """

    vectors: Float[Tensor, "token axis"]
    eigenvalues: Float[Tensor, " axis"]
    gram: Float[Tensor, "token token"]
    log_factor: Float[Tensor, ""]
    log_normaliser: Float[Tensor, " token"]
    resolved: Int[Tensor, ""]
    close: Int[Tensor, ""]


def principal_axes(
    k: Float[Tensor, "token head_dim"], scale: float | Tensor, axes: int | None = None
) -> PrincipalAxes:
    """The first ``axes`` principal axes of one head's keys (teo2024 eq. 11), at most and by default N − 1.

    N tokens have N − 1 axes: centring removes one direction. A few axes of very many tokens come from iteration
    (`leading.leading_eigenpairs`). ``k`` is finite with two tokens or more, and
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
    count = tokens - 1 if axes is None else min(axes, tokens - 1)
    eigenvalues, vectors, residual = leading_eigenpairs(gram - shift, count)
    # the largest entry of K_φ is 1 here, so its rounding moves an eigenvalue by at most N times this
    spectrum = check_psd_eigenvalues(eigenvalues[: tokens - 1], noise=tokens * EPSILON)
    rounding = tokens * EPSILON * spectrum[0].clamp_min(1.0)
    resolved = spectrum[:count] > rounding
    near = eigenvalues[:count] - eigenvalues[1 : count + 1] <= residual  # axis i and the one after it
    largest = vectors.gather(0, vectors.abs().argmax(0, keepdim=True))
    return PrincipalAxes(
        vectors=vectors * largest.sign(),
        eigenvalues=spectrum[:count],
        gram=gram,
        log_factor=log_factor,
        log_normaliser=log_normaliser,
        resolved=resolved.sum(),
        close=((near | torch.nn.functional.pad(near[:-1], (1, 0))) & resolved).sum(),
    )


def kpca_values(axes: PrincipalAxes) -> Factored:
    """The value matrix of kernel PCA, V̇ = G A, as ``values · exp(log_factor)`` (saritas2025 eq. 5).

    V̇ is (token, axis) and G = diag(1/g(k_j)). The centring term G 1_N A of the paper is 0, since every axis is
    orthogonal to 1. Attention with V := V̇ gives exactly the projections of the queries on the axes (teo2024 theorem 1).
    """
    smallest = axes.log_normaliser.amin()
    return Factored(axes.vectors * (smallest - axes.log_normaliser).exp()[:, None], -smallest)
