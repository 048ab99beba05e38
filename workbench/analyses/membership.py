"""Token memberships as soft clusterings (wu2025 eq. 10, Figs 4b and 9): how even, on the patch grid, and how
close to a segmentation.

Membership Π is (*batch, head, token) and sums to 1 over heads. It is given here, not computed: an attention that
has one of its own says so itself. For one that has not, `subspace_membership` is eq. 10 in the setting it is
derived in, with the subspaces that the heads' projections span.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from workbench.analyses import validation
from workbench.core.errors import InputError

MEMBERSHIP = ("head", "token")


def subspace_membership(
    z: Float[Tensor, "*batch token width"],
    bases: Float[Tensor, "head width head_dim"],
    mask: Bool[Tensor, "*batch token"] | None = None,
) -> Float[Tensor, "*batch head token"]:
    """Π = softmax_k(‖U_kᵀ z_j‖² / 2η) with orthonormal U_k (wu2025 eq. 10), η estimated from the tokens.

    Each token belongs to the subspaces U_k near it, in a mixture of Gaussians on them with noise ηI. η is the mean
    over the input's (real) tokens of the squared distance to the nearest subspace, per dimension outside it. Tokens
    that all lie inside one belong to their nearest subspace alone, in equal parts where several are as near.
    Memberships of padding are those of a zero token. float64. Raises `InputError` for a missing axis, and for bases
    or a mask that do not fit.
    """
    validation.check_axes("z", z, ("token", "width"))
    if bases.ndim != 3 or bases.shape[1] != z.shape[-1]:
        raise InputError(
            f"bases of shape {tuple(bases.shape)} do not fit tokens of width {z.shape[-1]}; expected "
            f"(head, {z.shape[-1]}, head_dim)"
        )
    z = z.double()
    real = torch.ones(z.shape[:-1], dtype=torch.bool, device=z.device)
    if mask is not None:
        real = validation.check_mask(mask, z.shape[:-1]).to(z.device)
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
    """entropy_share: −Σ_k Π_jk log Π_jk / log(heads), mean over tokens, from 0 (every token in one head) to 1
    (every token in all alike), NaN for a single head; share: mean over tokens of each head's Π."""

    entropy_share: Float[Tensor, "*batch"]
    share: Float[Tensor, "*batch head"]


def evenness(
    membership: Float[Tensor, "*batch head token"], mask: Bool[Tensor, "*batch token"] | None = None
) -> Evenness:
    """How evenly tokens are spread over heads, padding (``mask`` false) left out."""
    validation.check_axes("membership", membership, MEMBERSHIP)
    membership = membership.double()
    *batch, heads, tokens = membership.shape
    real = torch.ones(*batch, tokens, dtype=torch.bool, device=membership.device)
    if mask is not None:
        real = validation.check_mask(mask, (*batch, tokens)).to(membership.device)
    kept = torch.where(real[..., None, :], membership, 0.0)
    count = real.sum(-1)
    entropy = torch.special.entr(kept).sum((-2, -1)) / count
    return Evenness(
        entropy / math.log(heads) if heads > 1 else torch.full_like(entropy, math.nan),
        kept.sum(-1) / count[..., None],
    )


def patch_places(kinds: Sequence[str], grid: tuple[int, int] | None) -> list[int]:
    """Places of the patches among the tokens, in reading order.

    Raises `InputError` where there are none (a text), or where they do not fill the grid.
    """
    places = [place for place, kind in enumerate(kinds) if kind == "patch"]
    if grid is None or not places:
        held = ", ".join(sorted(set(kinds))) or "nothing"
        raise InputError(
            f"there is no patch grid: the tokens are {held}; maps and masks of patches need an image model and images"
        )
    if len(places) != grid[0] * grid[1]:
        raise InputError(f"{len(places)} patches do not fill a grid of {grid[0]} × {grid[1]}")
    return places


def membership_map(
    membership: Float[Tensor, "*batch head token"], kinds: Sequence[str], grid: tuple[int, int] | None
) -> Float[Tensor, "*batch head row column"]:
    """Π of the patches on their grid, tokens of other kinds (class, register, …) left out.

    Raises `InputError` for tokens without a grid, and where ``kinds`` are not as many as the tokens.
    """
    validation.check_axes("membership", membership, MEMBERSHIP)
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
