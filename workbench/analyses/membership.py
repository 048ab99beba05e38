"""Token memberships as soft clusterings (wu2025 eq. 10, Figs 4b and 9): even, and close to a segmentation?

Membership Π is (*batch, head, token) and sums to 1 over heads. An attention with its own convention names it.
For one that has not, `subspace_membership` is eq. 10 in the setting it is derived in, with the subspaces that the
heads' projections span.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from workbench.analyses.layer import Layer, NotApplicable, patch_places, rows_of_tokens
from workbench.analyses.linalg import head_bases
from workbench.analyses.patch_segments import Masks, patch_segments
from workbench.analyses.registry import Analysis, OfHeads, OfMatrices, Single
from workbench.attention.base import CONVENTIONS
from workbench.attention.tssa import TokenStatisticsAttention, token_membership
from workbench.core import operands
from workbench.core.errors import InputError
from workbench.core.operands import checked_tensors
from workbench.core.options import NullSamples
from workbench.frames.estimate import null_range, over_inputs
from workbench.frames.measurement import Measurement
from workbench.frames.metric import Metric

MEMBERSHIP = ("head", "token")
OURS = "ours"


@dataclass(frozen=True)
class Options(OfHeads):
    """Which segmentation memberships are compared with."""

    masks: Annotated[
        Masks,
        "segmentation to compare with: a folder with one mask image per input, of its name; ink (bright patches, for "
        "the bundled digits); or none",
    ] = None
    null_samples: Annotated[
        NullSamples,
        "samples of the null distribution, patches of the mask permuted, at least 2; 0 leaves it out",
    ] = 20
    per_head: Annotated[
        bool,
        "one row per input and layer, with the share of every head, in place of means and the null distribution of a "
        "mean",
    ] = False
    single: Single = False


@dataclass(frozen=True)
class TokenOptions(OfMatrices):
    """By which formula to show memberships token by token."""

    convention: Annotated[
        Literal["as_published", "as_implemented"] | None,
        "of token statistics attention: as_published (wu2025 eq. 10) or as_implemented (as ToST is trained); none: "
        "what each layer computes itself",
    ] = None


_MEMBERSHIP_ENTROPY_SHARE = Metric(
    "membership_entropy_share",
    "Normalised entropy of membership",
    "−Σ_k Π_jk log Π_jk / log(heads), mean over tokens: 0 where every token belongs to one head, 1 where "
    "to all equally; convention as_published, as_implemented (as ToST is trained) or ours (softmax models: "
    "subspaces of the values)",
    "wu2025 eq. 10",
    low=0,
    high=1,
)
_MEMBERSHIP_SHARE = Metric(
    "membership_share",
    "Share of the tokens in a head",
    "mean over tokens of Π_jk, of each head or of the largest (statistic max; 1/heads where all are equal)",
    "wu2025 eq. 10",
    low=0,
    high=1,
)
_MEMBERSHIP_ARI = Metric(
    "membership_ari",
    "Adjusted Rand index of heads and segments",
    "agreement of the patches' heads (largest Π_jk) with a segmentation: 1 the same partition, 0 on "
    "average for permuted patches",
    "wu2025 Figs 4b, 9; Hubert & Arabie 1985",
    low=-0.5,
    high=1,
)
_MEMBERSHIP_IOU = Metric(
    "membership_iou",
    "IoU of segments with their best head",
    "intersection over union of a segment's patches with those of the head (largest Π_jk) that fits best, "
    "mean over the segments; the null distribution is above 0, since the best head is chosen",
    "wu2025 Figs 4b, 9",
    low=0,
    high=1,
)


@checked_tensors
def subspace_membership(
    z: Float[Tensor, "*batch token width"],
    bases: Float[Tensor, "head width head_dim"],
    mask: Bool[Tensor, "*batch token"] | None = None,
) -> Float[Tensor, "*batch head token"]:
    """Π = softmax_k(‖U_kᵀ z_j‖² / 2η) with orthonormal U_k (wu2025 eq. 10), η estimated from the tokens.

    Each token belongs to the subspaces U_k near it, in a mixture of Gaussians on them with noise ηI. η is the mean
    over the input's (real) tokens of the squared distance to the nearest subspace, per dimension outside it. Tokens
    that all lie inside one belong only to their nearest subspace, in equal parts if several are equally near.
    Memberships of padding are those of a zero token. float64. Raises `InputError` for a missing axis, and for bases
    or a mask that do not fit.
    """
    if bases.ndim != 3 or bases.shape[1] != z.shape[-1]:
        raise InputError(
            f"bases of shape {tuple(bases.shape)} do not fit tokens of width {z.shape[-1]}; expected "
            f"(head, {z.shape[-1]}, head_dim)"
        )
    z = z.double()
    real = torch.ones(z.shape[:-1], dtype=torch.bool, device=z.device)
    if mask is not None:
        real = operands.check_mask(mask, z.shape[:-1]).to(z.device)
        z = torch.where(real[..., None], z, 0.0)
    inside = (z[..., None, :, :] @ bases.to(z)).square().sum(-1)
    nearest = inside.amax(-2, keepdim=True)
    outside = (z.square().sum(-1) - nearest.squeeze(-2)).clamp_min(0.0)
    room = max(bases.shape[1] - bases.shape[2], 1)
    noise = (outside.sum(-1) / real.sum(-1) / room)[..., None, None]
    # what rounding leaves of a distance of 0; below it the nearest alone counts
    rounding = bases.shape[1] * torch.finfo(torch.float64).eps * nearest.amax((-2, -1), keepdim=True)
    closest = (inside >= nearest - rounding).double()
    exact = noise <= rounding
    soft = ((inside - nearest) / (2 * torch.where(exact, 1.0, noise))).softmax(-2)
    return torch.where(exact, closest / closest.sum(-2, keepdim=True), soft)


class Evenness(NamedTuple):
    """How evenly tokens belong to heads, and how much belongs to each head.

    entropy_share: −Σ_k Π_jk log Π_jk / log(heads), mean over tokens, from 0 (every token in one head) to 1
    (every token in all equally), NaN for a single head; share: mean over tokens of each head's Π.
    """

    entropy_share: Float[Tensor, "*batch"]
    share: Float[Tensor, "*batch head"]


@checked_tensors
def evenness(
    membership: Float[Tensor, "*batch head token"], mask: Bool[Tensor, "*batch token"] | None = None
) -> Evenness:
    """How evenly tokens are spread over heads by Π (wu2025 eq. 10), padding (``mask`` false) left out."""
    membership = membership.double()
    *batch, heads, tokens = membership.shape
    real = torch.ones(*batch, tokens, dtype=torch.bool, device=membership.device)
    if mask is not None:
        real = operands.check_mask(mask, (*batch, tokens)).to(membership.device)
    kept = torch.where(real[..., None, :], membership, 0.0)
    count = real.sum(-1)
    entropy = torch.special.entr(kept).sum((-2, -1)) / count
    return Evenness(
        entropy / math.log(heads) if heads > 1 else torch.full_like(entropy, math.nan),
        kept.sum(-1) / count[..., None],
    )


@checked_tensors
def membership_map(
    membership: Float[Tensor, "*batch head token"], kinds: Sequence[str], grid: tuple[int, int] | None
) -> Float[Tensor, "*batch head row column"]:
    """Π of the patches on their grid (wu2025 Figs 4b, 9), tokens of other kinds (class, …) left out.

    Raises `InputError` for tokens without a grid, and unless there is one kind per token.
    """
    places = patch_places(kinds, grid)
    if len(kinds) != membership.shape[-1]:
        raise InputError(
            f"membership of {membership.shape[-1]} tokens does not fit {len(kinds)} kinds of tokens"
        )
    assert grid is not None  # patch_places raises otherwise
    return membership[..., places].unflatten(-1, grid)


class Agreement(NamedTuple):
    """Of a clustering with a segmentation: adjusted Rand index, and IoU of the best head, mean over the segments."""

    ari: Float[Tensor, "*batch"]
    iou: Float[Tensor, "*batch"]


def agreement(
    clusters: Int[Tensor, "*batch token"], segments: Int[Tensor, "*batch token"], heads: int
) -> Agreement:
    """How well hard clusters, numbered 0 to heads − 1, fit segments, numbered from 0.

    ari (Hubert & Arabie 1985) is 1 for the same partition and 0 on average for tokens permuted at random. iou: for
    each segment the intersection over union with the one head that has most, then the mean over the segments that
    hold a token; one head may be the best of several. Both are NaN where all tokens lie in one segment: there is
    nothing to agree with. Raises `InputError` for clusters and segments of several numbers of tokens.
    """
    if clusters.shape[-1] != segments.shape[-1]:
        raise InputError(
            f"clusters of {clusters.shape[-1]} tokens do not fit segments of {segments.shape[-1]} (axis token)"
        )
    numbers = int(segments.max()) + 1 if segments.numel() else 1
    table = F.one_hot(clusters, heads).double().mT @ F.one_hot(segments, numbers).double()  # head × segment
    rows, columns = table.sum(-1), table.sum(-2)
    together, in_heads, in_segments = _pairs(table.flatten(-2)), _pairs(rows), _pairs(columns)
    pairs = _pairs(columns.sum(-1, keepdim=True))
    expected = in_heads * in_segments / pairs
    ari = (together - expected) / ((in_heads + in_segments) / 2 - expected)
    union = rows[..., :, None] + columns[..., None, :] - table
    best = torch.where(union > 0, table / union, 0.0).amax(-2)
    present = columns > 0
    iou = best.sum(-1) / present.sum(-1)
    defined = present.sum(-1) > 1
    return Agreement(*(torch.where(defined, x, torch.nan) for x in (ari, iou)))


def _pairs(counts: Tensor) -> Tensor:
    """Σ n(n − 1)/2 over the last axis."""
    return (counts * (counts - 1) / 2).sum(-1)


@checked_tensors
def memberships(
    layer: Layer, z: Float[Tensor, "batch token width"]
) -> dict[str, Float[Tensor, "batch head token"]]:
    """Π of tokens ``z`` in the heads of a layer (wu2025 eq. 10), by convention, in float64.

    Token statistics attention: text (eq. 10) and code (as ToST is trained), with the layer's own temperatures,
    whichever of the two it computes itself. Any other attention: ours, eq. 10 with the subspaces that its value
    projections read (`subspace_membership`). Raises `NotApplicable` for windows and for
    a single head.
    """
    if layer.record.origin is not None:
        raise NotApplicable("cuts the image into windows, and has no clustering of all its tokens")
    module, projection = layer.module, layer.projection()
    if len(projection.weight) < 2:
        raise NotApplicable("has a single head, to which every token belongs")
    z, real = z.double(), layer.real_on(z)
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


def measure(layer: Layer, options: Options) -> Iterator[Measurement]:
    """How even memberships are, the share of each head, and their agreement with a segmentation."""
    memberships_by_convention = memberships(layer, layer.site("input"))
    convention_of_layer = own_convention(layer)
    for convention in CONVENTIONS:
        layer.counts.add(
            f"memberships (one per input and layer) are the model's own by convention {convention}",
            torch.full((len(layer.ids),), convention_of_layer == convention),
        )
    for convention, membership in memberships_by_convention.items():
        columns = {"convention": convention}
        even = evenness(membership, layer.real_on(membership, -1))
        yield Measurement(_MEMBERSHIP_ENTROPY_SHARE, even.entropy_share, ("input",), columns=columns)
        largest = even.share.amax(-1)
        yield Measurement(_MEMBERSHIP_SHARE, largest, ("input",), columns=columns | {"statistic": "max"})
        if options.per_head:
            yield Measurement(_MEMBERSHIP_SHARE, layer.choose_heads(even.share), columns=columns)
        if options.masks is not None:
            yield from _agreement(layer, membership, options.masks, options.null_samples, columns)


def token_rows(layer: Layer, options: TokenOptions) -> Iterator[pd.DataFrame]:
    """Membership of every token in every head (wu2025 Figs 4b and 9); over heads those of a token add up to 1.

    A row per input, head and token, with its label, kind, and a patch's row and column, and the convention. Padding is
    left out.
    """
    memberships_by_convention = memberships(layer, layer.site("input"))
    convention = OURS if OURS in memberships_by_convention else options.convention or own_convention(layer)
    values = layer.choose_heads(memberships_by_convention[convention])
    yield rows_of_tokens(layer, values, layer.heads, convention=convention)


def placed_share(rows: pd.DataFrame) -> float:
    """Share of the variance of Π that the mean of each patch over inputs has, by head: the part set by position.

    Of ``membership`` per token (wu2025 Fig. 9): 1 where every input has the same map, 1/n on average over n inputs
    where places do not matter.
    """
    mean = rows.groupby(["layer", "head"])["value"].transform("mean")
    patch = rows.groupby(["layer", "head", "row", "column"])["value"].transform("mean")
    return float(((patch - mean) ** 2).sum() / ((rows["value"] - mean) ** 2).sum())


_WAYS = {
    "ours": "with logits from the value projections",
    "as_published": "from features as they are (as published)",
    "as_implemented": "from features normalised over the tokens (as in the authors' code)",
}


def token_findings(frame: pd.DataFrame, options: TokenOptions) -> list[str]:
    """How much of the memberships of patches is the same for every input."""
    patches = frame[frame["kind"] == "patch"]
    n = patches["input"].nunique()
    if n < 2 or patches["row"].isna().any():
        return []
    ways = " and ".join(_WAYS[name] for name in patches["convention"].unique())
    return [
        f"the place of a patch explains {placed_share(patches):.0%} of the variance of Π, computed {ways}, over "
        f"layers, heads, patches and {n} inputs ({1 / n:.0%} if places did not matter)"
    ]


def findings(frame: pd.DataFrame, options: Options) -> list[str]:
    """Say how uniform memberships are, how large the largest head is, and in how many layers heads agree with masks."""
    sentences = []
    for convention, rows in frame.groupby("convention", sort=False):
        entropy_rows = rows[(rows["metric"] == "membership_entropy_share") & rows["input"].notna()]
        even = over_inputs(entropy_rows)
        shares = rows[(rows["metric"] == "membership_share") & rows["input"].notna() & rows["head"].isna()]
        largest = over_inputs(shares)
        sentences.append(
            f"normalised entropy of membership {even.words()} and share of the largest head {largest.words()} "
            f"({convention}), {even.over('inputs')}; 1 and 1/heads where every token belongs to all heads equally"
        )
        agreement = rows[(rows["metric"] == "membership_ari") & rows["layer"].notna()]
        agreed = agreement[agreement["input"].isna()]
        if len(agreed) and agreed["value"].notna().any():
            best = agreed.loc[agreed["value"].idxmax()]
            value = over_inputs(agreement[agreement["layer"] == best["layer"]]).words(".3f")
            above = int((agreed["value"] > agreed["null_high"]).sum())
            sentences.append(
                f"adjusted Rand index of heads and masks ({options.masks}) at most {value}, in layer "
                f"{best['layer']} ({convention}, mean over {even.n} inputs); above the "
                f"{null_range(frame, 'permutation')} in {above} of {len(agreed)} layers"
            )
    return sentences


def _agreement(
    layer: Layer, membership: Tensor, masks: str, samples: int, labels: dict[str, Any]
) -> Iterator[Measurement]:
    """Both agreements of the patches' heads with the masks, and with the masks' patches permuted."""
    maps = membership_map(membership, layer.token_kinds(membership.shape[-1]), layer.grid)
    heads, rows, columns = maps.shape[1:]
    clusters = maps.flatten(-2).argmax(1).cpu()
    observed, drawn = [], []
    for number, name in enumerate(layer.ids):
        segments = patch_segments(masks, name, (rows, columns), layer.image(number))
        orders = layer.orders(name, len(segments), samples)
        observed.append(agreement(clusters[number], segments, heads))
        drawn.append(agreement(clusters[number], segments[orders], heads))
    seen, by_chance = (
        Agreement(*(torch.stack(x) for x in zip(*agreements, strict=True)))
        for agreements in (observed, drawn)
    )
    layer.counts.add("agreements have a mask of a single segment: no value", seen.ari.isnan())
    for metric, values, null_samples in zip((_MEMBERSHIP_ARI, _MEMBERSHIP_IOU), seen, by_chance, strict=True):
        null_samples = {"permutation": null_samples} if samples else {}
        yield Measurement(metric, values, ("input",), columns=labels, null_samples=null_samples)


ANALYSIS = Analysis(
    "membership",
    "Tokens as members of heads: how evenly, and along which segments",
    ("input", "v"),
    measure,
    (_MEMBERSHIP_ENTROPY_SHARE, _MEMBERSHIP_SHARE, _MEMBERSHIP_ARI, _MEMBERSHIP_IOU),
    Options,
    of_heads=False,
    findings=findings,
    finer=(
        Analysis(
            "membership",
            "Membership of every token in every head",
            ("input", "v"),
            token_rows,
            (),
            TokenOptions,
            per="token",
            findings=token_findings,
        ),
    ),
)
