"""What the analyses of the keys' kernel share: chosen and standardised keys, chance, and what to tell of the axes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from workbench.analyses import kernel_pca
from workbench.measurements.layers import Layer


def chosen_keys(layer: Layer, options: Mapping[str, Any]) -> tuple[Tensor, float | Tensor, Tensor | None]:
    """Keys of the chosen heads, standardised as asked, with their scale and the mask of their tokens."""
    whole = layer.site("k")
    k = layer.choose_heads(whole)
    real = layer.head_mask(k, options.get("padding", "mask"))
    if options["standardize"] != "none":
        k = kernel_pca.standardize(k, options["standardize"], real)
    return k, layer.scale(k.shape[-1], whole.shape[1]), real


def standardize_column(options: Mapping[str, Any]) -> dict[str, Any]:
    """The column that names how the keys were standardised; empty where they were not."""
    return {} if options["standardize"] == "none" else {"standardize": options["standardize"]}


def chance_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """How many draws of which chance levels."""
    nulls = ("gaussian", "permutation") if options["null"] == "both" else (options["null"],)
    return {"null_samples": options["null_samples"], "nulls": nulls}


def report_axes(layer: Layer, resolved: Tensor, axes: Tensor, value_dim: int) -> None:
    """Count the heads without principal axes, with fewer than asked for, and with some within rounding."""
    layer.counts.add("heads have keys that are all equal and so no principal axes: no value", resolved == 0)
    layer.counts.add(
        f"heads have no more tokens than the {value_dim} columns of v: N − 1 axes are taken", axes < value_dim
    )
    layer.counts.add(
        "heads have top axes whose eigenvalues are within rounding: such axes are arbitrary",
        (resolved > 0) & (resolved < axes),
    )
