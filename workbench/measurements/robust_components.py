"""The sparse part of RPC-Attention's keys: how sparse, and whether it lies where an image was contaminated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from workbench.analyses.membership import patch_places
from workbench.analyses.robust_components import detection_auc, marked_share, split_of, token_size
from workbench.attention.rpc import principal_component_pursuit
from workbench.core import null_distributions as chance
from workbench.frames.measurement import Measurement
from workbench.measurements.layers import Layer, NotApplicable

# Of the pursuit by ADMM: beyond what a rank of sizes can tell.
_TOLERANCE, _STEPS = 1e-5, 500


def robust_components(layer: Layer, options: Mapping[str, Any]) -> Iterator[Measurement]:
    """Sparsity, size and evenness of S, and the gap between K and L + S, of every head."""
    return split_of_layer(layer, {})


def split_of_layer(layer: Layer, columns: dict[str, Any]) -> Iterator[Measurement]:
    """What `robust_components` measures, in rows with further ``columns``."""
    _need_split(layer)
    record = layer.record
    keys, low_rank, sparse = (
        layer.choose_heads(part) for part in (record.projected_k, record.low_rank, record.sparse)
    )
    found = split_of(keys, low_rank, sparse, layer.head_mask(keys))
    layer.counts.add("heads have S = 0: its evenness is undefined", found.zeros == 1)
    yield Measurement("sparse_zeros", found.zeros, columns=columns)
    yield Measurement("sparse_share", found.share, columns=columns)
    yield Measurement("sparse_evenness", found.evenness, columns=columns)
    yield Measurement("pursuit_gap", found.gap, columns=columns)


def _need_split(layer: Layer) -> None:
    if "sparse" not in layer.record.extra:
        raise NotApplicable("performs no pursuit (RPC-Attention does), and splits nothing off")


def patches_of(layer: Layer, sizes: Float[Tensor, "batch token"]) -> Float[Tensor, "batch patch"]:
    """Of one number per token those of the patches, in reading order."""
    return sizes[:, patch_places(layer.token_kinds(sizes.shape[-1]), layer.grid)]


def contamination_scores(
    clean: Layer, layer: Layer, pursuit: bool = True
) -> dict[str, Float[Tensor, "batch patch"]]:
    """What might tell the contaminated patches of an image, a number per patch and candidate.

    sparse: ‖S_j‖; clean: the same of the image before, whose S knows nothing of what was done to it; change: ‖S_j −
    S_j before‖; keys: the distance of the keys from their mean, without any pursuit; ``pursuit``: ‖S_j‖ of principal
    component pursuit by ADMM, run to its end on the same keys.
    """
    _need_split(layer)
    before, after, keys = clean.record.sparse, layer.record.sparse, layer.record.projected_k.double()
    parts = {
        "sparse": after,
        "clean": before,
        "change": after - before,
        "keys": keys - keys.mean(-2, keepdim=True),
    }
    if pursuit:
        found = principal_component_pursuit(keys, tol=_TOLERANCE, max_iter=_STEPS)
        unfinished = found.residual > _TOLERANCE
        layer.counts.add(f"pursuits were not done after {_STEPS} steps", unfinished)
        parts["pursuit"] = found.sparse
    return {name: patches_of(layer, token_size(part)) for name, part in parts.items()}


def found_contamination(
    clean: Layer,
    layer: Layer,
    marked: Bool[Tensor, "batch patch"],
    null_samples: int,
    pursuit: bool = True,
) -> Iterator[Measurement]:
    """How well each candidate tells the ``marked`` patches, beside the same with the patches permuted."""
    orders = [
        torch.rand(
            null_samples, marked.shape[-1], generator=chance.generator(layer.seed, name, layer.index)
        ).argsort(-1)
        for name in layer.ids
    ]
    by_chance = torch.stack([own[order] for own, order in zip(marked, orders, strict=True)])
    for candidate, scores in contamination_scores(clean, layer, pursuit).items():
        for metric, measure in (("contamination_auc", detection_auc), ("contamination_share", marked_share)):
            drawn = {"permutation": measure(scores[:, None], by_chance)} if null_samples else {}
            values = measure(scores, marked)
            yield Measurement(
                metric, values, ("input",), columns={"candidate": candidate}, null_samples=drawn
            )
