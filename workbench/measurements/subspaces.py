"""The subspaces of a layer's heads, from its weights: coherence of their directions, and angles between them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from workbench.analyses.null_values import null_values
from workbench.analyses.subspaces import mean_coherence, subspace_angles
from workbench.core import null_distributions as chance
from workbench.frames.measurement import Measurement
from workbench.measurements.layers import Layer


def subspaces_of_heads(layer: Layer, options: Mapping[str, Any]) -> Iterator[Measurement]:
    """Mean coherence inside and between heads, and the angles of every two, beside those of random directions."""
    u = layer.choose_heads(layer.projection(options["projection"]).weight[None])[0].double()
    heads, _, dim = u.shape
    seed = chance.derived_seed(layer.seed, layer.index)
    drawn = (
        null_values(u.mT.flatten(0, 1), "gaussian", options["null_samples"], seed)
        .unflatten(1, (heads, dim))
        .mT
    )
    by_chance = [mean_coherence(directions) for directions in drawn]
    for place, metric in enumerate(("coherence_inside", "coherence_between")):
        if (dim, heads)[place] < 2:  # no pair
            continue
        null_samples = {"isotropic": torch.stack([found[place] for found in by_chance])} if by_chance else {}
        yield Measurement(metric, mean_coherence(u)[place], (), null_samples=null_samples)
    if heads < 2:
        return
    # what chance gives is the same for every pair: one pair of each draw is enough
    null_samples = {"isotropic": subspace_angles(drawn[:, :2])[:, 0].T} if by_chance else {}
    pairs = itertools.combinations(layer.heads, 2)
    for (head, other), angles in zip(pairs, subspace_angles(u), strict=True):
        labels = {"head": head, "axis": f"head {other}"}
        yield Measurement("subspace_angle", angles, ("rank",), columns=labels, null_samples=null_samples)
