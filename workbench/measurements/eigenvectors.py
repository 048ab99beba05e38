"""Is V made of eigenvectors: the published test of constant γ, its converse, and the exact residual."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from workbench.analyses.eigenvectors import CANDIDATES, PAIR_STATISTICS, eigenvector_test
from workbench.core.errors import InputError
from workbench.frames.measurement import Measurement
from workbench.measurements.keys import chance_of, chosen_keys, report_axes, standardize_column
from workbench.measurements.layers import Layer, need_token_attention

RANKED = ("input", "head", "rank")


def eigenvectors_of_values(layer: Layer, options: Mapping[str, Any]) -> Iterator[Measurement]:
    """γ, inconsistency, eigen-residual and span share of the three candidates, per input and (kv) head."""
    need_token_attention(layer)
    v = layer.choose_heads(layer.site("v"))
    try:
        k, scale, real = chosen_keys(layer, options)
        found = eigenvector_test(
            k,
            v,
            scale,
            real,
            noise=options["noise"],
            precision=options["precision"],
            seeds=layer.seeds(len(k)),
            **chance_of(options),
        )
    except InputError as error:
        raise InputError(f"layer {layer.index}: {error}") from None
    report_axes(layer, found.resolved, found.axes, v.shape[-1])
    standardized = standardize_column(options)

    def ranked(
        metric: str, values: Tensor, null_samples: Mapping[str, Tensor], **columns: Any
    ) -> Measurement:
        null_samples = {name: layer.per_input(drawn.movedim(-2, -1)) for name, drawn in null_samples.items()}
        return Measurement(
            metric, layer.per_input(values), RANKED, None, standardized | columns, null_samples
        )

    for number, candidate in enumerate(CANDIDATES):
        for place, statistic in enumerate(PAIR_STATISTICS):
            columns = {"candidate": candidate, "statistic": statistic}
            yield ranked("gamma_abs", found.gamma_abs[..., number, :, place], {}, **columns)
            for convention, relative in found.gamma_rel.items():
                part = relative[..., number, :, place]
                yield ranked("gamma_rel", part, {}, convention=convention, **columns)
        of_values = candidate == "values"
        null_samples = (
            {name: drawn.eigen_residual for name, drawn in found.null_samples.items()} if of_values else {}
        )
        yield ranked(
            "eigen_residual", found.eigen_residual[..., number, :], null_samples, candidate=candidate
        )
        if candidate == "true":  # all of its norm lies in the span
            yield ranked("gamma_floor", found.gamma_floor, {}, candidate=candidate, statistic="mean")
            size = found.gamma_size[..., number, :]
            yield ranked("gamma_size", size, {}, candidate=candidate, statistic="mean")
            continue
        null_samples = {name: layer.per_input(drawn.span_share) for name, drawn in found.null_samples.items()}
        columns = standardized | {"candidate": candidate}
        share = layer.per_input(found.span_share[..., number])
        yield Measurement(
            "span_share", share, columns=columns, null_samples=null_samples if of_values else {}
        )
    yield Measurement(
        "inconsistency",
        layer.per_input(found.inconsistency),
        columns=standardized | {"candidate": "values"},
        null_samples={
            name: layer.per_input(drawn.inconsistency) for name, drawn in found.null_samples.items()
        },
    )
