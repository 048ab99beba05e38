"""Do a head's outputs project its queries: J_proj by every convention, and the norms it is made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from workbench.analyses.projection_error import CONVENTIONS, NORM_STATISTICS, projection_errors
from workbench.core.errors import InputError
from workbench.frames.measurement import Measurement
from workbench.measurements.keys import chance_of, report_axes, standardize_column
from workbench.measurements.layers import Layer, need_token_attention


def errors_of_projection(layer: Layer, options: Mapping[str, Any]) -> Iterator[Measurement]:
    """Projection errors, floor, baseline and norms, one per input and query head, beside chance."""
    need_token_attention(layer)
    record = layer.record
    queries = layer.site("q")
    q = layer.choose_heads(queries)
    k, v = (layer.of_queries(layer.site(name), queries.shape[1]) for name in "kv")
    real = layer.head_mask(k, options["padding"])
    asked = CONVENTIONS if options["convention"] == "all" else (options["convention"],)
    try:
        found = projection_errors(
            q,
            k,
            v,
            layer.scale(q.shape[-1], queries.shape[1]),
            real,
            attention_mask=_attention_mask(layer, queries.shape[1]),
            output=None if record.head_out is None else record.head_out[:, layer.heads],
            standardize=options["standardize"],
            conventions=asked,
            seeds=layer.seeds(len(q)),
            **chance_of(options),
        )
    except InputError as error:
        raise InputError(f"layer {layer.index}: {error}") from None
    report_axes(layer, found.resolved, found.axes, v.shape[-1])
    _tell_of_attention(layer, found.phi_norm2[..., 0])
    standardized = standardize_column(options)

    def each(metric: str, values: Tensor, **columns: Any) -> Measurement:
        return Measurement(metric, layer.per_input(values), columns=standardized | columns)

    for convention in asked:
        measured = each("projection_error", found.errors[convention], convention=convention)
        if convention == "exact":
            measured.null_samples = {
                name: layer.per_input(drawn) for name, drawn in found.null_samples.items()
            }
        yield measured
    if "exact" in asked:
        yield each("projection_floor", found.floor, convention="exact")
        yield each("projection_zero_predictor", found.baseline, convention="exact")
    if "saritas2025" in asked:
        yield each("projection_error_over_phi", found.error_over_phi, convention="saritas2025")
        yield each("projection_error_over_h", found.error_over_h, convention="saritas2025")
    for number, statistic in enumerate(NORM_STATISTICS):
        yield each("phi_norm2", found.phi_norm2[..., number], statistic=statistic)
        yield each("h_norm2", found.h_norm2[..., number], statistic=statistic)


def _attention_mask(layer: Layer, heads: int) -> Tensor | None:
    mask = layer.record.mask
    if mask is not None and mask.ndim == 4 and mask.shape[1] == heads > 1:
        return mask[:, layer.heads]
    return mask


def _tell_of_attention(layer: Layer, like: Tensor) -> None:
    """Count the heads whose attention is not that of the kernel: masked or biased by query, or no softmax."""
    record = layer.record
    mixed = torch.full_like(like, not record.rows_sum_to_one, dtype=torch.bool)
    layer.counts.add("heads do not attend by a softmax over the tokens; h is the model's own output", mixed)
    if record.mask is None:
        return
    uneven = (record.mask != record.mask[..., :1, :]).any()
    layer.counts.add(
        "heads have a mask or bias that differs from query to query (causal, windows, positions); the kernel "
        "sees all keys",
        torch.full_like(like, bool(uneven), dtype=torch.bool),
    )
