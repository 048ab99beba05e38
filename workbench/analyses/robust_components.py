"""The sparse component of the keys by principal attention pursuit (teo2024 §3): its sparsity, and the tokens it marks.

Keys K are (*batch, token, head_dim); the pursuit says K = L + S with L of low rank and S sparse. RPC-Attention puts
out L; nothing in the model reads S, so what it holds has to be looked at.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import pandas as pd
import torch
from jaxtyping import Bool, Float
from scipy.stats import rankdata
from torch import Tensor

from workbench.analyses.layer import Layer, NotApplicable, patch_places
from workbench.analyses.registry import Analysis, OfHeads
from workbench.attention.rpc import principal_component_pursuit
from workbench.core import operands
from workbench.core.errors import InputError
from workbench.core.operands import check_axes, check_finite, checked_tensors
from workbench.frames.estimate import over_everything, unit_of
from workbench.frames.measurement import Measurement
from workbench.frames.metric import Metric

# Of the pursuit by ADMM: beyond what a rank of sizes can tell.
_TOLERANCE, _STEPS = 1e-5, 500


_SPARSE_ZEROS = Metric(
    "sparse_zeros",
    "Zeros of the sparse part",
    "share of the entries of S that are exactly zero, S being what RPC-Attention splits off its keys",
    "teo2024 §3; workbench",
    low=0,
    high=1,
)
_SPARSE_SHARE = Metric(
    "sparse_share",
    "Energy of the sparse part",
    "‖S‖² / ‖K‖²; above 1 where S and the rest cancel",
    "teo2024 §3; workbench",
    low=0,
)
_PURSUIT_GAP = Metric(
    "pursuit_gap",
    "Gap of the pursuit",
    "‖K − L − S‖ / ‖K‖: what the constraint L + S = K of principal component pursuit is missed by",
    "teo2024 eq. 14; workbench",
    low=0,
)


class Split(NamedTuple):
    """A split of keys, each (*batch), float64.

    zeros: share of entries of S that are exactly zero. share: ‖S‖² / ‖K‖². gap: ‖K − L − S‖ / ‖K‖, the violation
    of the constraint L + S = K. share and gap are NaN for keys of zero.
    """

    zeros: Tensor
    share: Tensor
    gap: Tensor


@checked_tensors
def split_of(
    keys: Float[Tensor, "*batch token head_dim"],
    low_rank: Float[Tensor, "*batch token head_dim"],
    sparse: Float[Tensor, "*batch token head_dim"],
    mask: Bool[Tensor, "*batch token"] | None = None,
) -> Split:
    """How sparse S is, how much it holds, and whether L + S is K (teo2024 eq. 14), padding left out.

    Raises InputError where the three differ in shape, or hold NaN or infinite values.
    """
    parts = {"keys": keys, "low_rank": low_rank, "sparse": sparse}
    for name, part in parts.items():
        check_axes(name, part, operands.TOKENS)
        check_finite(name, part, operands.TOKENS)
        if part.shape != keys.shape:
            raise InputError(
                f"keys of shape {tuple(keys.shape)} were not split into {name} of shape {tuple(part.shape)}; the "
                "parts are as large as the whole"
            )
    real = torch.ones(keys.shape[:-1], dtype=torch.bool, device=keys.device)
    if mask is not None:
        real = operands.check_mask(mask, keys.shape[:-1]).to(keys.device)
    k, low, s = (torch.where(real[..., None], part.double(), 0.0) for part in parts.values())
    count = real.sum(-1)
    key_norm = k.square().sum((-2, -1))
    nonzero = (s != 0).sum((-2, -1))
    return Split(
        zeros=1 - nonzero / (count * keys.shape[-1]),
        share=s.square().sum(-1).sum(-1) / key_norm,
        gap=((k - low - s).square().sum((-2, -1)) / key_norm).sqrt(),
    )


@checked_tensors
def token_size(part: Float[Tensor, "*batch head token head_dim"]) -> Float[Tensor, "*batch token"]:
    """‖S_j‖ (S of teo2024 eq. 14) of every token over all heads: its row's length, heads side by side. float64."""
    return part.double().square().sum((-3, -1)).sqrt()


@checked_tensors
def detection_auc(
    scores: Float[Tensor, "*batch token"], marked: Bool[Tensor, "*batch token"]
) -> Float[Tensor, "*batch"]:
    """Area under the ROC curve of detecting marked tokens by a large score: 1 for all above the others, 1/2 at random.

    The probability that a marked token scores higher than another token, ties counted as half (Mann and Whitney 1947).
    NaN where all tokens are marked, or none.
    """
    scores, marked = torch.broadcast_tensors(scores.double().cpu(), marked.cpu())
    ranks = torch.from_numpy(rankdata(scores.numpy(), axis=-1))
    inside, outside = marked.sum(-1), (~marked).sum(-1)
    above = (ranks * marked).sum(-1) - inside * (inside + 1) / 2
    pairs = inside * outside
    return torch.where(pairs > 0, above / pairs.clamp_min(1), math.nan)


@checked_tensors
def marked_share(
    scores: Float[Tensor, "*batch token"], marked: Bool[Tensor, "*batch token"]
) -> Float[Tensor, "*batch"]:
    """Share of Σ_j e_j² that lies on marked tokens; at random their share of the tokens. NaN where all are zero."""
    energy, marked = torch.broadcast_tensors(scores.double().cpu().square(), marked.cpu())
    return (energy * marked).sum(-1) / energy.sum(-1)


def measure(layer: Layer, options: OfHeads) -> Iterator[Measurement]:
    """Sparsity and size of S, and the gap between K and L + S, of every head."""
    return split_of_layer(layer, {})


def split_of_layer(layer: Layer, columns: dict[str, Any]) -> Iterator[Measurement]:
    """What `measure` does, in rows with further ``columns``."""
    _need_split(layer)
    record = layer.record
    keys, low_rank, sparse = (
        layer.choose_heads(part) for part in (record.projected_k, record.low_rank, record.sparse)
    )
    split = split_of(keys, low_rank, sparse, layer.head_mask(keys))
    layer.counts.add("heads have S = 0", split.zeros == 1)
    yield Measurement(_SPARSE_ZEROS, split.zeros, columns=columns)
    yield Measurement(_SPARSE_SHARE, split.share, columns=columns)
    yield Measurement(_PURSUIT_GAP, split.gap, columns=columns)


def _need_split(layer: Layer) -> None:
    if "sparse" not in layer.record.extra:
        raise NotApplicable("performs no pursuit (RPC-Attention does), and splits nothing off")


@checked_tensors
def patches_of(layer: Layer, sizes: Float[Tensor, "batch token"]) -> Float[Tensor, "batch patch"]:
    """Of one number per token those of the patches, in reading order."""
    return sizes[:, patch_places(layer.token_kinds(sizes.shape[-1]), layer.grid)]


def contamination_scores(
    clean: Layer, layer: Layer, pursuit: bool = True
) -> dict[str, Float[Tensor, "batch patch"]]:
    """Scores that might tell the contaminated patches of an image, a number per patch and candidate.

    sparse: ‖S_j‖; clean: the same of the clean image, whose S does not depend on the contamination; change: ‖S_j −
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
        pursuit_result = principal_component_pursuit(keys, tol=_TOLERANCE, max_iter=_STEPS)
        unfinished = pursuit_result.residual > _TOLERANCE
        layer.counts.add(f"pursuits were not done after {_STEPS} steps", unfinished)
        parts["pursuit"] = pursuit_result.sparse
    return {name: patches_of(layer, token_size(part)) for name, part in parts.items()}


def found_contamination(
    clean: Layer,
    layer: Layer,
    marked: Bool[Tensor, "batch patch"],
    null_samples: int,
    pursuit: bool = True,
) -> Iterator[Measurement]:
    """How well each candidate tells the ``marked`` patches, beside the same with the patches permuted."""
    orders = [layer.orders(name, marked.shape[-1], null_samples) for name in layer.ids]
    permuted = torch.stack([input_marks[order] for input_marks, order in zip(marked, orders, strict=True)])
    for candidate, scores in contamination_scores(clean, layer, pursuit).items():
        for metric, compare in (("contamination_auc", detection_auc), ("contamination_share", marked_share)):
            drawn = {"permutation": compare(scores[:, None], permuted)} if null_samples else {}
            values = compare(scores, marked)
            yield Measurement(
                metric, values, ("input",), columns={"candidate": candidate}, null_samples=drawn
            )


def findings(frame: pd.DataFrame, options: OfHeads) -> list[str]:
    """How sparse and how large S is, and by how much L + S misses the keys."""
    zeros, share, gap = (
        over_everything(frame[frame["metric"] == metric.name])
        for metric in (_SPARSE_ZEROS, _SPARSE_SHARE, _PURSUIT_GAP)
    )
    return [
        f"{zeros.words('.3f')} of the entries of S are zero; ‖S‖² / ‖K‖² is {share.words('.3g')}, and L + S misses the "
        f"keys by ‖K − L − S‖ / ‖K‖ = {gap.words('.3g')}, {unit_of(zeros)}"
    ]


ANALYSIS = Analysis(
    "robust-components",
    "What RPC-Attention splits off its keys: how sparse, how much, and whether the parts add up",
    ("k",),
    measure,
    (_SPARSE_ZEROS, _SPARSE_SHARE, _PURSUIT_GAP),
    OfHeads,
    findings=findings,
)
