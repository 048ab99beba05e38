"""Memberships of tokens in heads: how even they are, and how close to a segmentation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from workbench.analyses.membership import (
    Agreement,
    agreement,
    evenness,
    membership_map,
    subspace_membership,
)
from workbench.analyses.subspaces import head_bases
from workbench.attention.base import CONVENTIONS
from workbench.attention.tssa import TokenStatisticsAttention, token_membership
from workbench.core import null_distributions as chance
from workbench.frames.measurement import Measurement
from workbench.measurements.layers import Layer, NotApplicable
from workbench.measurements.segments import patch_segments

OURS = "ours"


def memberships(
    layer: Layer, z: Float[Tensor, "batch token width"]
) -> dict[str, Float[Tensor, "batch head token"]]:
    """Π of tokens ``z`` in the heads of a layer, by convention, in float64.

    Token statistics attention: text (eq. 10) and code (as ToST is trained), with the layer's own temperatures,
    whichever of the two it computes itself. Any other attention: ours, eq. 10 with the subspaces that its value
    projections read (`workbench.analyses.membership.subspace_membership`). Raises `NotApplicable` for windows and for
    a single head.
    """
    if layer.record.origin is not None:
        raise NotApplicable("cuts the image into windows, and has no clustering of all its tokens")
    module, projection = layer.module, layer.projection()
    if len(projection.weight) < 2:
        raise NotApplicable("has a single head, to which every token belongs")
    z, real = z.double(), layer.real_tokens(z.shape[1])
    real = None if real is None else real.to(z.device)
    if not isinstance(module, TokenStatisticsAttention):
        return {OURS: subspace_membership(z, head_bases(projection.weight), real)}
    w = projection(z)
    bias = None if module.denom_bias is None else module.denom_bias.detach().to(w)
    return {
        convention: token_membership(
            w, module.temp.detach().to(w), causal=module.causal, bias=bias, mask=real, convention=convention
        )
        for convention in CONVENTIONS
    }


def own_convention(layer: Layer) -> str:
    """By which of the conventions of `memberships` a layer's own attention computes Π; ours where it computes none."""
    module = layer.module
    return module.convention if isinstance(module, TokenStatisticsAttention) else OURS


def membership_of_tokens(layer: Layer, options: Mapping[str, Any]) -> Iterator[Measurement]:
    """How even memberships are, the share of each head, and their agreement with a segmentation beside chance."""
    found = memberships(layer, layer.site("input"))
    own = own_convention(layer)
    for convention in CONVENTIONS:
        layer.counts.add(
            f"memberships (one per input and layer) are the model's own by convention {convention}",
            torch.full((len(layer.ids),), own == convention),
        )
    for convention, membership in found.items():
        columns = {"convention": convention}
        real = layer.real_tokens(membership.shape[-1])
        even = evenness(membership, None if real is None else real.to(membership.device))
        yield Measurement("membership_entropy_share", even.entropy_share, ("input",), columns=columns)
        largest = even.share.amax(-1)
        yield Measurement("membership_share", largest, ("input",), columns=columns | {"statistic": "max"})
        if options["per_head"]:
            yield Measurement("membership_share", layer.choose_heads(even.share), columns=columns)
        if options["masks"] is not None:
            yield from _agreement(layer, membership, options, columns)


def _agreement(
    layer: Layer, membership: Tensor, options: Mapping[str, Any], labels: dict[str, Any]
) -> Iterator[Measurement]:
    """Both agreements of the patches' heads with the masks, and with the masks' patches permuted."""
    maps = membership_map(membership, layer.token_kinds(membership.shape[-1]), layer.grid)
    heads, rows, columns = maps.shape[1:]
    clusters = maps.flatten(-2).argmax(1).cpu()
    observed, drawn = [], []
    for number, name in enumerate(layer.ids):
        picture = None if layer.pictures is None else layer.pictures[number]
        segments = patch_segments(options["masks"], name, (rows, columns), picture)
        source = chance.generator(layer.seed, name, layer.index)
        orders = torch.rand(options["null_samples"], len(segments), generator=source).argsort(-1)
        observed.append(agreement(clusters[number], segments, heads))
        drawn.append(agreement(clusters[number], segments[orders], heads))
    seen, by_chance = (
        Agreement(*(torch.stack(x) for x in zip(*found, strict=True))) for found in (observed, drawn)
    )
    layer.counts.add("agreements have a mask of a single segment: no value", seen.ari.isnan())
    for metric, values, null_samples in zip(
        ("membership_ari", "membership_iou"), seen, by_chance, strict=True
    ):
        null_samples = {"permutation": null_samples} if options["null_samples"] else {}
        yield Measurement(metric, values, ("input",), columns=labels, null_samples=null_samples)
