"""Spectra of the keys' centred Gram matrices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from workbench.analyses import kernel_pca
from workbench.errors import InputError
from workbench.measurements.keys import chosen_keys, standardize_column
from workbench.measurements.layers import Layer, need_token_attention
from workbench.measurements.rows import Measurement


def gram_spectrum(layer: Layer, options: Mapping[str, Any]) -> Iterator[Measurement]:
    """Spectrum of the centred Gram matrix of the keys, one per input and (kv) head."""
    need_token_attention(layer)
    try:
        k, scale, real = chosen_keys(layer, options)
        spectrum = kernel_pca.gram_spectrum(k, scale, real)
    except InputError as error:
        raise InputError(f"layer {layer.index}: {error}") from None
    standardized = standardize_column(options)
    columns = standardized | ({} if layer.record.origin is None else {"statistic": "mean"})
    total = spectrum.values.nansum(-1)
    shares = options["normalize"] == "trace"
    values = kernel_pca.spectrum_share(spectrum.values) if shares else spectrum.product()
    limit = {"head_dim": k.shape[-1], "all": values.shape[-1]}.get(options["max_rank"], options["max_rank"])
    yield Measurement(
        "eigenvalue_share" if shares else "eigenvalue",
        layer.per_input(values[..., :limit]),
        ("input", "head", "rank"),
        columns=columns,
    )
    per_head = {
        "effective_rank": kernel_pca.effective_rank(spectrum.values),
        "rank_90": kernel_pca.rank_holding(spectrum.values, 0.9),
        "gram_log_trace": total.log() + spectrum.log_factor,
    }
    for metric, value in per_head.items():
        yield Measurement(metric, layer.per_input(value), columns=columns)
    # saritas2025 App. B.1 takes absolute values first; μ_d is never negative here
    yield Measurement(
        "eigenvalue_profile",
        layer.per_input(spectrum.product()[..., : k.shape[-1]]),
        ("input", "head", "rank"),
        columns=standardized,
        form="profile",
    )
