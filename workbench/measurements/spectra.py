"""Spectra of the keys' centred Gram matrices."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from workbench.analyses import kernel_pca
from workbench.core.errors import InputError
from workbench.frames.measurement import Measurement
from workbench.measurements.keys import chosen_keys, standardize_column
from workbench.measurements.layers import Layer, need_token_attention
from workbench.measurements.operators import groups_of, noise_like


def gram_spectrum(layer: Layer, options: Mapping[str, Any]) -> Iterator[Measurement]:
    """Spectrum of the centred Gram matrix of the keys, one per input and (kv) head.

    Chance is that of Gaussian keys; in another order the tokens of the keys themselves have the same spectrum.
    """
    need_token_attention(layer)
    try:
        k, scale, real = chosen_keys(layer, options)
        spectrum = kernel_pca.gram_spectrum(k, scale, real)
        drawn = _drawn_spectrum(layer, k, scale, options["null_samples"])
    except InputError as error:
        raise InputError(f"layer {layer.index}: {error}") from None
    standardized = standardize_column(options)
    columns = standardized | ({} if layer.record.origin is None else {"statistic": "mean"})
    shares = options["normalize"] == "trace"
    tokens = spectrum.values.shape[-1]
    limit = {"head_dim": k.shape[-1], "all": tokens}.get(options["max_rank"], options["max_rank"])
    found = _numbers(spectrum, shares, limit)
    by_chance = {} if drawn is None else _numbers(drawn, shares, limit)
    for metric, values in found.items():
        null_samples = {"gaussian": layer.per_input(by_chance[metric].movedim(0, -1))} if by_chance else {}
        ranked = ("rank",) if values.ndim == 3 else ()
        yield Measurement(
            metric,
            layer.per_input(values),
            ("input", "head", *ranked),
            columns=columns,
            null_samples=null_samples,
        )
    yield Measurement(
        "eigenvalue_profile",
        layer.per_input(spectrum.product()[..., : k.shape[-1]]),
        ("input", "head", "rank"),
        columns=standardized,
        form="held",
    )


def profile_of_spectra(
    measured: Sequence[tuple[Layer, Measurement]], options: Mapping[str, Any]
) -> Iterator[Measurement]:
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
        yield Measurement("eigenvalue_profile", values[:, 0], ("input",), columns=columns, form="across")


def _numbers(spectrum: kernel_pca.Factored, shares: bool, limit: int) -> dict[str, Tensor]:
    """The metrics of spectra (…, input, head, rank), the ranks cut at a limit."""
    values = kernel_pca.spectrum_share(spectrum.values) if shares else spectrum.product()
    return {
        "eigenvalue_share" if shares else "eigenvalue": values[..., :limit],
        "effective_rank": kernel_pca.effective_rank(spectrum.values),
        "rank_90": kernel_pca.rank_holding(spectrum.values, 0.9),
        "gram_log_trace": spectrum.values.nansum(-1).log() + spectrum.log_factor,
    }


def _drawn_spectrum(
    layer: Layer, k: Tensor, scale: float | Tensor, null_samples: int
) -> kernel_pca.Factored | None:
    """Spectra of random keys of the same real tokens and mean square, (draw, input, head, rank); NaN past these."""
    if not null_samples:
        return None
    values = k.new_full((null_samples, *k.shape[:-1]), math.nan, dtype=torch.float64)
    factors = k.new_empty((null_samples, *k.shape[:-2]), dtype=torch.float64)
    for group in groups_of(layer, k):
        random = kernel_pca.gram_spectrum(noise_like(group.cut(k), null_samples, group, "k"), scale)
        values[:, group.inputs, :, : random.values.shape[-1]] = random.values
        factors[:, group.inputs] = random.log_factor
    return kernel_pca.Factored(values, factors)
