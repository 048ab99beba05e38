"""Spectrum of the keys' centred Gram matrix: how many directions of feature space does attention project on?

K̃ = C K_φ C with C = I − 1/N (teo2024 eq. 11) has the eigenvalues μ_d = N λ_d that saritas2025 lists in Tables 2 and 3.
The feature map φ of a token has inner products k_φ(x, y) = exp(s x·y) / (g(x) g(y)) with g(x) = Σ_j exp(s x·k_j)
(teo2024 eq. 8). Everything is computed in float64 and in the log domain: no key scale overflows, and no term has to be
added to a denominator. These are measurements: no gradient flows back to the keys.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import torch
from annotated_types import Ge
from jaxtyping import Bool, Float
from torch import Tensor

from workbench.analyses.attention_matrix import Group, MetricValues, groups_of, noise_like, together
from workbench.analyses.layer import Layer, chosen_keys, need_token_attention, standardize_column
from workbench.analyses.linalg import EPSILON
from workbench.analyses.registry import Analysis, OfInputs, Standardize
from workbench.analyses.tiled_spectra import GramTiles, effective_rank_of
from workbench.core import operands
from workbench.core.errors import InputError
from workbench.core.operands import check_axes, check_finite, checked_tensors
from workbench.core.options import NullSamples
from workbench.frames.estimate import first_to_last, over_inputs
from workbench.frames.measurement import Counts, Measurement
from workbench.frames.metric import Metric

if TYPE_CHECKING:
    import pandas as pd

SIGNIFICANT_NEGATIVE = 1e-5  # of the largest eigenvalue; the ratio scikit-learn refuses in double precision
_SMALLEST_NUMBER = sys.float_info.min
SMALLEST = math.log(_SMALLEST_NUMBER)  # nats
_RESIDUAL = 1e-6  # of the largest eigenvalue: where a pair by products in tiles counts as found


@dataclass(frozen=True)
class Options(OfInputs):
    """Number of eigenvalues, keys and unit."""

    max_rank: Annotated[
        Literal["head_dim", "all"] | Annotated[int, Ge(1)],
        "how many eigenvalues per head: a number, head_dim (as the papers' tables) or all",
    ] = "head_dim"
    standardize: Standardize = "none"
    normalize: Annotated[
        Literal["none", "trace"],
        "none: eigenvalues; trace: each one's share of their sum, which no key scale makes underflow",
    ] = "none"
    null_samples: Annotated[
        NullSamples,
        "samples of the null distribution, Gaussian keys of the same shape and mean square, at least 2; each costs as "
        "much as the spectrum itself; 0 leaves it out",
    ] = 0


_EIGENVALUE = Metric(
    "eigenvalue",
    "Gram eigenvalue",
    "μ_d of K̃ = C K_φ C, largest first; N times teo2024's λ_d",
    "teo2024 eq. 11; saritas2025 Tables 2, 3",
    low=0,
    log=True,
)
_EIGENVALUE_PROFILE = Metric(
    "eigenvalue_profile",
    "Gram eigenvalue, mean over heads and layers",
    "μ_d averaged over the heads and layers of an input at each of the top head_dim ranks; then maximum, minimum, mean "
    "or lower median over the ranks",
    "saritas2025 App. B.1, Tables 2, 3",
    low=0,
)
_EIGENVALUE_SHARE = Metric(
    "eigenvalue_share",
    "Share of the spectrum",
    "eigenvalue divided by the sum of the head's spectrum; defined also where eigenvalues underflow",
    low=0,
    high=1,
)
_GRAM_LOG_TRACE = Metric(
    "gram_log_trace",
    "Logarithm of the Gram matrix's trace",
    "log Σ_d μ_d; with eigenvalue_share it gives every eigenvalue, however small",
    unit="nats",
)
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


_EIGENVALUE_RESIDUAL = Metric(
    "eigenvalue_residual",
    "Residual of a Gram eigenpair",
    "‖K̃u − μu‖ over the largest μ: some eigenvalue lies that near; of pairs by products in tiles",
    "Golub & Underwood 1977",
    low=0,
)
_EFFECTIVE_RANK_LOW = Metric(
    "effective_rank_low",
    "Lower bound of the effective rank",
    "that of the leading pairs with the rest of the trace on as few eigenvalues as its sum of squares allows; in tiles",
    low=0,
)
_EFFECTIVE_RANK_HIGH = Metric(
    "effective_rank_high",
    "Upper bound of the effective rank",
    "that of the leading pairs with the rest of the trace spread evenly over all other eigenvalues; in tiles",
    low=0,
)
_EFFECTIVE_RANK_ERROR = Metric(
    "effective_rank_error",
    "Standard error of the effective rank",
    "of the share that all but the leading eigenvalues add, estimated by random vectors; in tiles",
    "Meyer et al. 2021",
    low=0,
)


class Factored(NamedTuple):
    """A quantity ``values · exp(log_factor)``: the factor may lie outside what float64 can hold.

    ``log_factor`` (nats) has the axes of ``values`` without the matrix or rank axes.
    """

    values: Tensor
    log_factor: Tensor

    def product(self) -> Tensor:
        """Return the quantity; numbers below 1e-308 become 0."""
        missing = self.values.ndim - self.log_factor.ndim
        return self.values * self.log_factor.exp().reshape(*self.log_factor.shape, *[1] * missing)


@checked_tensors
def log_kernel(
    k: Float[Tensor, "*batch token head_dim"], scale: float | Tensor
) -> Float[Tensor, "*batch token token"]:
    """Logarithm (nats) of the kernel matrix K_φ of the keys with themselves.

    log K_φ(i, j) = s k_i·k_j − ℓ_i − ℓ_j with ℓ_i = log Σ_j exp(s k_i·k_j) (teo2024 eq. 8). Never positive:
    ℓ_i ≥ s k_i·k_j, and ℓ_j ≥ s k_j·k_j ≥ 0. So K_φ cannot overflow at any key scale; it can underflow.
    ``scale`` is that of the model, a number or one per head. Raises `InputError` for a missing axis, NaN or
    infinite keys, fewer than two tokens, or a scale that is not finite and positive.
    """
    _check_keys(k)
    k = k.double()
    scores = (k @ k.mT) * operands.check_scale(scale, k.shape[:-2], k)
    log_normaliser = scores.logsumexp(-1)
    return scores - (log_normaliser[..., :, None] + log_normaliser[..., None, :])


def _check_keys(k: Tensor) -> None:
    check_axes("k", k, operands.TOKENS)
    check_finite("k", k, operands.TOKENS)
    operands.check_token_count("k", k.shape[-2])


@checked_tensors
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
        gram, log_factor, _ = raw_gram(k, operands.check_scale(scale, k.shape[:-2], k))
        return Factored(_symmetric(gram), log_factor)
    k, mask = _check_masked(k, mask)
    k = k.double()
    scores = (k @ k.mT) * operands.check_scale(scale, k.shape[:-2], k)
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
    check_axes("k", k, operands.TOKENS)
    mask = operands.check_mask(mask, k.shape[:-1])
    clean = torch.where(mask[..., None], k, 0)
    check_finite("k", clean, operands.TOKENS)
    return clean, mask


@checked_tensors
def raw_gram(
    k: Float[Tensor, "*batch token head_dim"], scale: Float[Tensor, "*#batch 1 1"]
) -> tuple[Float[Tensor, "*batch token token"], Float[Tensor, "*batch"], Float[Tensor, "*batch token"]]:
    """`factored_gram` (teo2024 eq. 11) of checked keys without a mask, symmetric up to rounding, in one piece.

    Returns values, log_factor and the log normalisers ℓ (*batch, token), both in nats.

    Most of the time beside the decomposition goes into passes over N×N numbers, so every step overwrites its input.
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


@checked_tensors
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


@checked_tensors
def check_psd_eigenvalues(
    eigenvalues: Float[Tensor, "*batch token"], noise: Float[Tensor, "*batch"] | float = 0.0
) -> Float[Tensor, "*batch token"]:
    """Eigenvalues of a positive semidefinite matrix with rounding-size negatives set to exactly 0.

    A spectrum that lies below ``noise`` is 0 throughout (all keys equal: K̃ is 0 up to rounding).
    Positive values are kept as they are, also those near rounding. Raises `InputError` where a negative
    eigenvalue exceeds the noise and 1e-5 of the largest: then the matrix was no Gram matrix. The rule follows
    scikit-learn's check of PSD spectra.
    """
    size = eigenvalues.abs().amax(-1)
    size = torch.where(size <= noise, torch.zeros_like(size), size)
    eigenvalues = torch.where((size > 0)[..., None], eigenvalues, torch.zeros_like(eigenvalues))
    lowest = -eigenvalues.amin(-1)
    worst = lowest / size.clamp_min(torch.finfo(eigenvalues.dtype).tiny)
    worst = torch.where(
        lowest > noise, worst, 0
    )  # keys that differ little have a spectrum not far above rounding
    if (worst > SIGNIFICANT_NEGATIVE).any():
        raise InputError(
            f"a spectrum has a negative eigenvalue of {worst.max().item():.3g} times its largest, which no "
            "Gram matrix has: check the keys and the scale"
        )
    return eigenvalues.clamp_min(0)


def gram_rounding(tokens: int, log_factor: Tensor) -> Tensor:
    """How far rounding may move an eigenvalue of K̃ (teo2024 eq. 11) over exp(log_factor).

    The largest entry of K_φ is 1 there, and its logarithm was a difference of numbers as large as ``log_factor``.
    """
    return tokens * EPSILON * log_factor.abs().clamp_min(1)


@checked_tensors
def gram_spectrum(
    k: Float[Tensor, "*batch token head_dim"],
    scale: float | Tensor,
    mask: Bool[Tensor, "*batch token"] | None = None,
) -> Factored:
    """Eigenvalues μ_d of the centred Gram matrix, largest first, as ``values · exp(log_factor)``.

    μ_d = N λ_d of teo2024 eq. 11, as in the tables of saritas2025. ``values`` (*batch, token) is never
    negative, and its last real entry is rounding of 0, because centring removes one direction. Finite at any
    key scale. With a ``mask`` the spectrum is that of the real tokens, computed on the submatrix, and
    ranks past their number are NaN. Raises as `factored_gram`.
    """
    if mask is not None:
        k, mask = _check_masked(k, mask)
    if mask is None or mask.all():
        _check_keys(k)
        return _spectrum(k, operands.check_scale(scale, k.shape[:-2], k))
    flat, masks = k.reshape(-1, *k.shape[-2:]), mask.reshape(-1, mask.shape[-1])
    scales = operands.check_scale(scale, k.shape[:-2], k).expand(*k.shape[:-2], 1, 1).reshape(-1, 1, 1)
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
        spectrum = _matrix_spectrum(k, scale)
        noise = gram_rounding(tokens, spectrum.log_factor)
        return spectrum._replace(values=check_psd_eigenvalues(spectrum.values, noise))
    keys = k.reshape(-1, *k.shape[-2:])
    scales = scale.expand(*batch, 1, 1).reshape(-1, 1, 1)
    parts = operands.map_heads(_matrix_spectrum, keys, scales)
    values = torch.stack([values for values, _ in parts]).reshape(*batch, tokens)
    log_factor = torch.stack([log_factor for _, log_factor in parts]).reshape(batch)
    return Factored(check_psd_eigenvalues(values, gram_rounding(tokens, log_factor)), log_factor)


def _matrix_spectrum(k: Tensor, scale: Tensor) -> Factored:
    gram, log_factor, _ = raw_gram(k, scale)
    return Factored(torch.linalg.eigvalsh(gram).flip(-1), log_factor)


@checked_tensors
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


@checked_tensors
def effective_rank(spectrum: Float[Tensor, "*batch rank"]) -> Float[Tensor, "*batch"]:
    """exp(−Σ p log p) with p the spectrum divided by its sum (Roy & Vetterli 2007).

    Between 1 and the number of nonzero values; 0 for a spectrum that is 0 throughout. NaN entries (ranks a
    masked input does not have) count as absent; where all are NaN, so is the rank. Does not change when the spectrum is
    multiplied by a constant.
    """
    share = spectrum_share(spectrum).nan_to_num(nan=0.0)
    rank = torch.special.entr(share).sum(-1).exp()
    rank = torch.where(share.sum(-1) > 0, rank, torch.zeros_like(rank))
    return rank.masked_fill(spectrum.isnan().all(-1), torch.nan)


@checked_tensors
def rank_holding(spectrum: Float[Tensor, "*batch rank"], share: float = 0.9) -> Float[Tensor, "*batch"]:
    """The smallest r at which the first r values hold ``share`` of the spectrum's sum (chen2023 Fig. 1: 0.9).

    The spectrum is sorted largest first; 0 for one that is 0 throughout, NaN for one that is; single NaN entries count
    as absent. For the share of variance of singular values, give their squares. Raises `InputError` for a share outside
    (0, 1].
    """
    if not 0 < share <= 1:
        raise InputError(f"share must lie in (0, 1]; got {share}")
    summed = spectrum_share(spectrum).nan_to_num(nan=0.0).cumsum(-1)
    # the last sum is 1 only up to rounding
    enough = summed >= share * summed[..., -1:] * (1 - summed.shape[-1] * EPSILON)
    first = enough.to(torch.int8).argmax(-1) + 1
    rank = torch.where(summed[..., -1] > 0, first, torch.zeros_like(first)).double()
    return rank.masked_fill(spectrum.isnan().all(-1), torch.nan)


@checked_tensors
def spectrum_share(spectrum: Float[Tensor, "*batch rank"]) -> Float[Tensor, "*batch rank"]:
    """The spectrum divided by its sum: each rank's share (chen2023 Fig. 1).

    A spectrum of zeros stays zero; NaN stays NaN. Raises `InputError` for negative or infinite values.
    """
    spectrum = spectrum.double()
    if (spectrum < 0).any() or torch.isinf(spectrum).any():
        raise InputError("a spectrum must be finite and not negative")
    total = spectrum.nansum(-1, keepdim=True)
    return torch.where(total > 0, spectrum / total, spectrum)


class LeadingSpectrum(NamedTuple):
    """A spectrum computed without its matrix: the leading eigenvalues times exp(log_factor), and sums of all.

    ``residual`` of every pair over the largest eigenvalue; NaN past the ranks that few tokens have. ``rank`` is the
    effective rank, estimated with a standard ``error``, in any case between ``low`` and ``high``. ``rank_90`` is NaN
    where the pairs hold less than 90 %. ``converged``: whether all pairs have a residual of 1e-6 at most.
    """

    values: Float[Tensor, "*batch rank"]
    residual: Float[Tensor, "*batch rank"]
    log_factor: Float[Tensor, "*batch"]
    trace: Float[Tensor, "*batch"]
    rank: Float[Tensor, "*batch"]
    error: Float[Tensor, "*batch"]
    low: Float[Tensor, "*batch"]
    high: Float[Tensor, "*batch"]
    rank_90: Float[Tensor, "*batch"]
    converged: Bool[Tensor, "*batch"]


@checked_tensors
def _leading_spectrum(
    k: Float[Tensor, "*batch token head_dim"],
    scale: float | Tensor,
    count: int,
) -> LeadingSpectrum:
    """The ``count`` largest eigenvalues of K̃ (teo2024 eq. 11) by products in tiles, and its effective rank.

    The trace and the norm are exact. Arguments and errors as `gram_spectrum`.
    """
    ranks = min(count, k.shape[-2])

    def of_head(k: Tensor, scale: Tensor, seed: None) -> LeadingSpectrum:
        tiles = GramTiles(k, scale)
        pairs = tiles.leading(min(ranks, len(k) - 1), _RESIDUAL)
        values = check_psd_eigenvalues(pairs.values, gram_rounding(len(k), pairs.log_factor))
        trace = torch.where(values[0] > 0, pairs.trace, 0)
        shares = (values / trace.clamp_min(_SMALLEST_NUMBER)).cumsum(0)
        holding = (shares >= 0.9 * (1 - len(k) * EPSILON)).nonzero()
        holding_90 = (
            holding[0, 0] + 1.0 if len(holding) else shares.new_tensor(math.nan if trace > 0 else 0.0)
        )
        rank = effective_rank_of(tiles, pairs._replace(values=values, trace=trace))
        missing_ranks = min(ranks, len(k)) - len(
            values
        )  # centring removes a direction: the last eigenvalue of all is 0

        def to_ranks(part: Tensor) -> Tensor:
            all_ranks = torch.nn.functional.pad(part, (0, missing_ranks))
            return torch.nn.functional.pad(all_ranks, (0, ranks - len(all_ranks)), value=math.nan)

        return LeadingSpectrum(
            to_ranks(values),
            to_ranks(pairs.residual / values[0].clamp_min(_SMALLEST_NUMBER)),
            pairs.log_factor,
            trace,
            *rank,
            holding_90.to(values),
            (pairs.converged | (trace == 0)).all(),
        )

    return operands.stack_heads(operands.map_tokens(of_head, {"k": k}, scale), k.shape[:-2])


def measure(layer: Layer, options: Options) -> Iterator[Measurement]:
    """Spectrum of the centred Gram matrix of the keys, one per input and (kv) head.

    The null distribution is that of Gaussian keys; in another order the tokens of the keys themselves have the same
    spectrum. In tiles: the leading eigenvalues, their residuals, and bounds of quantities that need all eigenvalues.
    """
    need_token_attention(layer)
    k, scale, real = chosen_keys(layer, options.standardize)
    if real is not None:
        _check_masked(k, real)  # by the places that tokens have beside padding
    tokens, head_dim = k.shape[-2:]
    tiled = options.in_tiles(tokens**2) and (options.method == "tiled" or options.max_rank != "all")
    if tiled and options.max_rank == "all":
        raise InputError(
            f"max_rank='all' asks for all {tokens} eigenvalues, which only a whole matrix has; give a number, or take "
            "method='dense'"
        )
    rank = options.max_rank
    limit = rank if isinstance(rank, int) else {"head_dim": head_dim, "all": tokens}[rank]
    groups = groups_of(layer, k)
    parts = [_of_group(layer, group.cut(k), scale, options, limit, tiled, group) for group in groups]
    for parts_of_metric in zip(*parts, strict=True):
        measured = together(layer, groups, parts_of_metric, len(k))
        if measured.metric is _EIGENVALUE_PROFILE:
            measured.form, measured.columns = "intermediate", standardize_column(options.standardize)
        yield measured
    layer.count_tiled(tiled)


def _of_group(
    layer: Layer, k: Tensor, scale: float | Tensor, options: Options, limit: int, tiled: bool, group: Group
) -> list[MetricValues]:
    """The metrics of inputs that have the same real tokens, beside those of random keys of the same mean square."""
    metrics = _metrics(k, scale, options, limit, layer.counts if tiled else None, tiled)
    null: dict[Metric, dict[str, Tensor]] = {}
    if options.null_samples:
        drawn = _metrics(noise_like(k, options.null_samples, group, "k"), scale, options, limit, None, tiled)
        kept = (_EIGENVALUE, _EIGENVALUE_SHARE, EFFECTIVE_RANK, RANK_90, _GRAM_LOG_TRACE)
        null = {
            part.metric: {"gaussian": part.values.movedim(0, -1)} for part in drawn if part.metric in kept
        }
    columns = standardize_column(options.standardize)
    return [part._replace(null_samples=null.get(part.metric, {}), columns=columns) for part in metrics]


def _metrics(
    k: Tensor, scale: float | Tensor, options: Options, limit: int, counts: Counts | None, tiled: bool
) -> list[MetricValues]:
    """The metrics of the spectra of keys (…, input, head, token, feature), the ranks cut at a limit."""
    more = []
    if tiled:
        leading = _leading_spectrum(k, scale, max(limit, k.shape[-1]))
        spectrum, trace = Factored(leading.values, leading.log_factor), leading.trace
        rank, rank_90 = leading.rank, leading.rank_90
        more = [
            MetricValues(_EIGENVALUE_RESIDUAL, leading.residual[..., :limit], ranked=True),
            MetricValues(_EFFECTIVE_RANK_LOW, leading.low),
            MetricValues(_EFFECTIVE_RANK_HIGH, leading.high),
            MetricValues(_EFFECTIVE_RANK_ERROR, leading.error),
        ]
        if counts is not None:
            counts.add(
                f"heads have eigenpairs with a residual above {_RESIDUAL:g} of the largest eigenvalue (a flat "
                "spectrum): eigenvalue_residual says how far off they may be",
                ~leading.converged,
            )
            counts.add(
                f"heads hold less than 90 % of the spectrum in the {max(limit, k.shape[-1])} eigenvalues that were "
                "computed: rank_90 is unknown",
                rank_90.isnan(),
            )
    else:
        spectrum = gram_spectrum(k, scale)
        trace = spectrum.values.sum(-1)
        rank, rank_90 = effective_rank(spectrum.values), rank_holding(spectrum.values, 0.9)
    values = spectrum.product()
    shares = options.normalize == "trace"
    ranked = spectrum.values / torch.where(trace > 0, trace, 1)[..., None] if shares else values
    return [
        MetricValues(_EIGENVALUE_SHARE if shares else _EIGENVALUE, ranked[..., :limit], ranked=True),
        MetricValues(EFFECTIVE_RANK, rank),
        MetricValues(RANK_90, rank_90),
        MetricValues(_GRAM_LOG_TRACE, trace.log() + spectrum.log_factor),
        MetricValues(_EIGENVALUE_PROFILE, values[..., : k.shape[-1]], ranked=True),
        *more,
    ]


def across(measured: Sequence[tuple[Layer, Measurement]], options: Options) -> Iterator[Measurement]:
    """Maximum, minimum, mean and lower median over ranks of each input's mean spectrum over heads and layers.

    saritas2025 App. B.1, which takes absolute values first; μ_d is never negative here.
    """
    profiles = [measurement for _, measurement in measured if measurement.form == "intermediate"]
    ranks = max(measurement.values.shape[-1] for measurement in profiles)
    total = count = torch.zeros((), dtype=torch.float64)
    for measurement in profiles:
        values = measurement.values.double()
        values = torch.nn.functional.pad(values, (0, ranks - values.shape[-1]), value=math.nan)
        total, count = total + values.nansum(1), count + (~values.isnan()).sum(1)
    profile = torch.where(count > 0, total / count, torch.nan).sort(-1).values  # NaN comes last
    count_known = (~profile.isnan()).sum(-1, keepdim=True)
    statistics = {
        "max": profile.gather(-1, (count_known - 1).clamp(min=0)),
        "min": profile[:, :1],
        "mean": profile.nanmean(-1, keepdim=True),
        "median": profile.gather(-1, (count_known - 1).clamp(min=0) // 2),
    }
    for statistic, values in statistics.items():
        columns = profiles[0].columns | {"statistic": statistic}
        yield Measurement(_EIGENVALUE_PROFILE, values[:, 0], ("input",), columns=columns, form="across")


def notes(frame: pd.DataFrame, options: Options) -> list[str]:
    """Say how many spectra are zero or too small for a number, and how good an estimated effective rank is."""
    trace = frame.loc[frame["metric"] == "gram_log_trace", "value"]
    equal = int((trace == -math.inf).sum())
    tiny = int((trace < SMALLEST).sum()) - equal
    sentences = []
    if equal:
        sentences.append(f"{equal} of {len(trace)} spectra are zero: all keys of the head are equal")
    if tiny and options.normalize == "none":
        sentences.append(
            f"{tiny} of {len(trace)} spectra are too small for float64 and read 0; normalize=trace keeps them"
        )
    errors = frame.loc[(frame["metric"] == _EFFECTIVE_RANK_ERROR.name) & frame["input"].notna(), "value"]
    if len(errors):
        sentences.append(
            f"effective_rank is estimated, with a standard error of at most {errors.max():.2g}; effective_rank_low and "
            "effective_rank_high bound it"
        )
    return sentences


def findings(frame: pd.DataFrame, options: Options) -> list[str]:
    """How many eigenvalues hold 90 % of the spectrum in the first and the last layer, and in the null distribution."""
    ranks = frame[frame["metric"] == "rank_90"]
    by_layer = {int(layer): over_inputs(rows) for layer, rows in ranks.groupby("layer")}
    null = ranks["null_mean"].dropna()
    null_words = f"; Gaussian keys of the same mean square give {null.mean():.1f}" if len(null) else ""
    return [
        f"eigenvalues that hold 90 % of the spectrum: {first_to_last(by_layer, '.1f')}, "
        f"{by_layer[min(by_layer)].over('inputs')}, of the mean over heads{null_words}"
    ]


ANALYSIS = Analysis(
    "gram-spectrum",
    "Spectrum of the centred Gram matrix of the keys",
    ("k", "scale"),
    measure,
    (
        _EIGENVALUE,
        _EIGENVALUE_PROFILE,
        _EIGENVALUE_SHARE,
        _GRAM_LOG_TRACE,
        EFFECTIVE_RANK,
        RANK_90,
        _EIGENVALUE_RESIDUAL,
        _EFFECTIVE_RANK_LOW,
        _EFFECTIVE_RANK_HIGH,
        _EFFECTIVE_RANK_ERROR,
    ),
    Options,
    notes,
    across=across,
    cross="keys",
    findings=findings,
)
