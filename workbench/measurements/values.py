"""Values beside the kernel-PCA values: how similar V is to V̇."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from workbench.analyses.value_similarity import QUANTITIES, Quantity, value_similarity
from workbench.core.errors import InputError
from workbench.frames.measurement import Measurement
from workbench.measurements.keys import (
    chance_of,
    chosen_keys,
    report_axes,
    standardize_column,
)
from workbench.measurements.layers import Layer, need_token_attention


def similarity_of_values(layer: Layer, options: Mapping[str, Any]) -> Iterator[Measurement]:
    """Every similarity of V with V̇ = G A, one per input and (kv) head, beside chance."""
    need_token_attention(layer)
    v = layer.choose_heads(layer.site("v"))
    quantities = chosen_quantities(options)
    try:
        k, scale, real = chosen_keys(layer, options)
        found = value_similarity(
            k,
            v,
            scale,
            real,
            seeds=layer.seeds(len(k)),
            quantities=quantities,
            **chance_of(options),
        )
    except InputError as error:
        raise InputError(f"layer {layer.index}: {error}") from None
    report_axes(layer, found.resolved, found.axes, v.shape[-1])
    layer.counts.add(
        "heads have top axes whose eigenvalues lie closer together than their residual: which comes first is "
        "arbitrary, and with it MDC, MOC and abs_cos; angles, span share, LCKA and KCKA do not see it",
        found.close > 0,
    )
    for number, quantity in enumerate(quantities):
        columns = {name: part for name, part in quantity._asdict().items() if name != "metric" and part}
        yield Measurement(
            quantity.metric,
            layer.per_input(found.observed[..., number]),
            columns=standardize_column(options) | columns,
            null_samples={
                name: layer.per_input(drawn[..., number]) for name, drawn in found.null_samples.items()
            },
        )


def chosen_quantities(options: Mapping[str, Any]) -> tuple[Quantity, ...]:
    """The quantities of the chosen axis and statistic; those that have neither always."""
    axis, statistic = options["axis"], options["statistic"]
    return tuple(
        quantity
        for quantity in QUANTITIES
        if (axis == "both" or quantity.axis in (None, axis))
        # the smallest angle belongs to the largest cosine
        and (statistic == "both" or quantity.statistic in (None, statistic, {"max": "min"}.get(statistic)))
    )
