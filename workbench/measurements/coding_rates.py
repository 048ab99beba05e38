"""Coding rates of a layer's tokens: as attention receives them, after attention, and after the block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from workbench.analyses.coding_rate import coding_rate, coding_rate_compression, variational_compression
from workbench.analyses.subspaces import head_bases
from workbench.captures import first_norm
from workbench.core.errors import InputError
from workbench.frames.measurement import Measurement
from workbench.measurements.layers import Layer
from workbench.measurements.membership import memberships, own_convention

STREAMS = ("input", "resid_mid", "resid_post")


def coding_rates(layer: Layer, options: Mapping[str, Any]) -> Iterator[Measurement]:
    """R, R_c, ΔR, and R_c^var with U_k as they are and orthonormal, per input, of each stream of a layer."""
    weights = layer.projection()
    bases = head_bases(weights.weight)
    eps = options["eps"]
    for site in STREAMS:
        z = _received(layer, site, options["normalize"])
        real = layer.real_tokens(z.shape[1])
        real = None if real is None else real.to(z.device)
        found = memberships(layer, z)
        convention = own_convention(layer)
        membership = found[convention]
        if options["membership"] == "uniform":
            convention, membership = "uniform", torch.full_like(membership, 1 / membership.shape[1])
        columns = {"candidate": site, "convention": convention}
        try:
            whole = coding_rate(z, eps, real)
            parts = coding_rate_compression(z, membership, eps, real)
            width = z.shape[-1]
            trained = variational_compression(weights(z), membership, width, eps, real)
            bound = variational_compression(z[:, None] @ bases, membership, width, eps, real)
        except InputError as error:
            raise InputError(f"layer {layer.index}, {site}: {error}") from None
        for metric, values, more in (
            ("coding_rate", whole, {}),
            ("coding_rate_compression", parts, {}),
            ("coding_rate_reduction", whole - parts, {}),
            ("coding_rate_variational", trained, {}),
            ("coding_rate_variational", bound, {"standardize": "orthonormal"}),
        ):
            yield Measurement(metric, values, ("input",), columns=columns | more)


def _received(layer: Layer, site: str, normalize: str) -> Float[Tensor, "batch token width"]:
    """Tokens of a stream as the layer's attention would receive them, in float64.

    In a block that normalises first the streams pass through that norm: they differ from the attention's input in size
    above all, and U_k and ε are made for its input. With ``normalize`` "none" they are taken as they are.
    """
    stream = layer.site(site)
    if stream.ndim == 4:  # (batch, row, column, width)
        stream = stream.flatten(1, 2)
    if site == "input" or normalize == "none":
        return stream.double()
    assert layer.model is not None  # its projection was read
    norm = first_norm(layer.model, layer.record.path)
    layer.counts.add(
        "streams (two per input and layer) are taken as they are: no norm is known before the attention",
        torch.full((len(layer.ids),), norm is None),
    )
    if norm is None:
        return stream.double()
    with torch.no_grad():
        return norm(stream).double()
