"""Spectrum of the keys' centred Gram matrix: how many directions of feature space does attention project on?

K̃ = C K_φ C with C = I − 1/N (teo2024 eq. 11) has the eigenvalues μ_d = N λ_d that saritas2025 lists in Tables 2 and 3;
`workbench.analyses.kernel_pca` computes them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import torch
from annotated_types import Ge
from torch import Tensor

from workbench.analyses import kernel_pca
from workbench.analyses.attention_matrix import groups_of, noise_like
from workbench.analyses.kernel_pca import EFFECTIVE_RANK, RANK_90
from workbench.analyses.layer import Layer, chosen_keys, need_token_attention, standardize_column
from workbench.analyses.registry import Analysis, OfInputs, Standardize
from workbench.core.options import NullSamples
from workbench.frames.measurement import Measurement
from workbench.frames.metrics import Metric

if TYPE_CHECKING:
    import pandas as pd

SMALLEST = math.log(sys.float_info.min)  # nats


@dataclass(frozen=True)
class Options(OfInputs):
    """How many eigenvalues, of which keys, in which unit."""

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


EIGENVALUE = Metric(
    "eigenvalue",
    "Gram eigenvalue",
    "μ_d of K̃ = C K_φ C, largest first; N times teo2024's λ_d",
    "teo2024 eq. 11; saritas2025 Tables 2, 3",
    low=0,
)
EIGENVALUE_PROFILE = Metric(
    "eigenvalue_profile",
    "Gram eigenvalue, mean over heads and layers",
    "μ_d averaged over the heads and layers of an input at each of the top head_dim ranks; then maximum, minimum, mean "
    "or lower median over the ranks",
    "saritas2025 App. B.1, Tables 2, 3",
    low=0,
)
EIGENVALUE_SHARE = Metric(
    "eigenvalue_share",
    "Share of the spectrum",
    "eigenvalue divided by the sum of the head's spectrum; defined also where eigenvalues underflow",
    low=0,
    high=1,
)
GRAM_LOG_TRACE = Metric(
    "gram_log_trace",
    "Logarithm of the Gram matrix's trace",
    "log Σ_d μ_d; with eigenvalue_share it gives every eigenvalue, however small",
    unit="nats",
)


def measure(layer: Layer, options: Options) -> Iterator[Measurement]:
    """Spectrum of the centred Gram matrix of the keys, one per input and (kv) head.

    The null distribution is that of Gaussian keys; in another order the tokens of the keys themselves have the same
    spectrum.
    """
    need_token_attention(layer)
    k, scale, real = chosen_keys(layer, options.standardize)
    spectrum = kernel_pca.gram_spectrum(k, scale, real)
    standardized = standardize_column(options.standardize)
    shares = options.normalize == "trace"
    tokens = spectrum.values.shape[-1]
    rank = options.max_rank
    limit = rank if isinstance(rank, int) else {"head_dim": k.shape[-1], "all": tokens}[rank]
    null = (
        _numbers(_null_spectra(layer, k, scale, options.null_samples), shares, limit)
        if options.null_samples
        else {}
    )
    for metric, values in _numbers(spectrum, shares, limit).items():
        null_samples = {"gaussian": layer.per_input(null[metric].movedim(0, -1))} if null else {}
        axes = ("input", "head", *(("rank",) if values.ndim == 3 else ()))
        columns = standardized | layer.window_column
        yield Measurement(metric, layer.per_input(values), axes, columns=columns, null_samples=null_samples)
    top = layer.per_input(spectrum.product()[..., : k.shape[-1]])
    yield Measurement(EIGENVALUE_PROFILE, top, ("input", "head", "rank"), columns=standardized, form="held")


def across(measured: Sequence[tuple[Layer, Measurement]], options: Options) -> Iterator[Measurement]:
    """Maximum, minimum, mean and lower median over ranks of each input's mean spectrum over heads and layers.

    saritas2025 App. B.1, which takes absolute values first; μ_d is never negative here.
    """
    held = [measurement for _, measurement in measured if measurement.form == "held"]
    ranks = max(measurement.values.shape[-1] for measurement in held)
    total = count = torch.zeros((), dtype=torch.float64)
    for measurement in held:
        values = measurement.values.double()
        values = torch.nn.functional.pad(values, (0, ranks - values.shape[-1]), value=math.nan)
        total, count = total + values.nansum(1), count + (~values.isnan()).sum(1)
    profile = torch.where(count > 0, total / count, torch.nan).sort(-1).values  # NaN comes last
    known = (~profile.isnan()).sum(-1, keepdim=True)
    statistics = {
        "max": profile.gather(-1, (known - 1).clamp(min=0)),
        "min": profile[:, :1],
        "mean": profile.nanmean(-1, keepdim=True),
        "median": profile.gather(-1, (known - 1).clamp(min=0) // 2),
    }
    for statistic, values in statistics.items():
        columns = held[0].columns | {"statistic": statistic}
        yield Measurement(EIGENVALUE_PROFILE, values[:, 0], ("input",), columns=columns, form="across")


def _numbers(spectrum: kernel_pca.Factored, shares: bool, limit: int) -> dict[Metric, Tensor]:
    """The metrics of spectra (…, input, head, rank), the ranks cut at a limit."""
    values = kernel_pca.spectrum_share(spectrum.values) if shares else spectrum.product()
    return {
        EIGENVALUE_SHARE if shares else EIGENVALUE: values[..., :limit],
        EFFECTIVE_RANK: kernel_pca.effective_rank(spectrum.values),
        RANK_90: kernel_pca.rank_holding(spectrum.values, 0.9),
        GRAM_LOG_TRACE: spectrum.values.nansum(-1).log() + spectrum.log_factor,
    }


def _null_spectra(layer: Layer, k: Tensor, scale: float | Tensor, null_samples: int) -> kernel_pca.Factored:
    """Spectra of random keys of the same real tokens and mean square, (sample, input, head, rank); NaN past these."""
    values = k.new_full((null_samples, *k.shape[:-1]), math.nan, dtype=torch.float64)
    factors = k.new_empty((null_samples, *k.shape[:-2]), dtype=torch.float64)
    for group in groups_of(layer, k):
        random = kernel_pca.gram_spectrum(noise_like(group.cut(k), null_samples, group, "k"), scale)
        values[:, group.inputs, :, : random.values.shape[-1]] = random.values
        factors[:, group.inputs] = random.log_factor
    return kernel_pca.Factored(values, factors)


def findings(frame: pd.DataFrame, options: Options) -> list[str]:
    """How many spectra are zero, and how many too small to be held."""
    trace = frame.loc[frame["metric"] == "gram_log_trace", "value"]
    equal = int((trace == -math.inf).sum())
    tiny = int((trace < SMALLEST).sum()) - equal
    found = []
    if equal:
        found.append(f"{equal} of {len(trace)} spectra are zero: all keys of the head are equal")
    if tiny and options.normalize == "none":
        found.append(
            f"{tiny} of {len(trace)} spectra are too small for float64 and read 0; normalize=trace keeps them"
        )
    return found


ANALYSIS = Analysis(
    "gram-spectrum",
    "Spectrum of the centred Gram matrix of the keys",
    ("k", "scale"),
    measure,
    (EIGENVALUE, EIGENVALUE_PROFILE, EIGENVALUE_SHARE, GRAM_LOG_TRACE, EFFECTIVE_RANK, RANK_90),
    Options,
    findings,
    across=across,
)
