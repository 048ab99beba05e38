"""The subspaces that heads read: how nearly orthogonal their directions are, inside a head and between heads.

U_k (head, width, head_dim) holds the directions of head k in its columns, as in wu2025 Fig. 11; float64.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from workbench.analyses import validation
from workbench.core.errors import InputError

DIRECTIONS = ("head", "width", "head_dim")


def head_bases(weight: Float[Tensor, "*batch width head_dim"]) -> Float[Tensor, "*batch width head_dim"]:
    """Orthonormal columns that span what a projection reads: its left singular vectors, largest first.

    Columns past the projection's rank are zero.
    """
    validation.check_axes("weight", weight, ("width", "head_dim"))
    left, size, _ = torch.linalg.svd(weight.double(), full_matrices=False)
    rounding = max(weight.shape[-2:]) * torch.finfo(torch.float64).eps * size[..., :1]
    basis = left * (size > rounding)[..., None, :]
    return F.pad(basis, (0, weight.shape[-1] - basis.shape[-1]))


class Coherence(NamedTuple):
    """Mean |cos| of two directions: of one head, and of different heads; NaN where there is no such pair."""

    inside: Float[Tensor, "*batch"]
    between: Float[Tensor, "*batch"]


def coherence(
    u: Float[Tensor, "*batch head width head_dim"],
) -> Float[Tensor, "*batch head head_dim head head_dim"]:
    """|cos| of every two directions, |[U_1 … U_K]ᵀ[U_1 … U_K]| with columns of unit length (wu2025 Fig. 11).

    A zero direction has the cosine 0 with every other. Raises `InputError` for missing axes, NaN or infinite values.
    """
    validation.check_axes("u", u, DIRECTIONS)
    validation.check_finite("u", u, DIRECTIONS)
    heads, _, dim = u.shape[-3:]
    directions = F.normalize(u.double(), dim=-2, eps=torch.finfo(torch.float64).tiny).mT.flatten(-3, -2)
    return (directions @ directions.mT).abs().unflatten(-1, (heads, dim)).unflatten(-3, (heads, dim))


def mean_coherence(u: Float[Tensor, "*batch head width head_dim"]) -> Coherence:
    """Mean of `coherence` over the pairs of different directions inside heads, and over those of different heads."""
    blocks = coherence(u).sum((-3, -1))  # head × head
    heads, dim = u.shape[-3], u.shape[-1]
    own = blocks.diagonal(dim1=-2, dim2=-1).sum(-1)
    with_itself = (u != 0).any(-2).double().sum((-2, -1))  # every direction's |cos| with itself is 1
    inside_pairs, between_pairs = heads * dim * (dim - 1), heads * (heads - 1) * dim**2

    def mean(total: Tensor, pairs: int) -> Tensor:
        return total / pairs if pairs else torch.full_like(total, math.nan)

    return Coherence(mean(own - with_itself, inside_pairs), mean(blocks.sum((-2, -1)) - own, between_pairs))


def subspace_angles(
    u: Float[Tensor, "*batch head width head_dim"],
) -> Float[Tensor, "*batch pair head_dim"]:
    """Principal angles between the subspaces of every two heads, smallest first, in radians.

    Pairs are (0, 1), (0, 2), …, (1, 2), …. Two subspaces have as many angles as the smaller has dimensions; the rest
    is NaN. Angles below 1e-7 are rounding. Raises `InputError` for fewer than two heads.
    """
    validation.check_axes("u", u, DIRECTIONS)
    validation.check_finite("u", u, DIRECTIONS)
    heads = u.shape[-3]
    if heads < 2:
        raise InputError(f"angles are between subspaces of two heads; u has {heads} (axis head)")
    bases = head_bases(u)
    first, second = zip(*itertools.combinations(range(heads), 2), strict=True)
    cosines = torch.linalg.svdvals(bases[..., first, :, :].mT @ bases[..., second, :, :])
    ranks = bases.square().sum(-2).round().sum(-1)
    count = torch.minimum(ranks[..., first], ranks[..., second])[..., None]
    real = torch.arange(u.shape[-1], device=u.device) < count
    return torch.where(real, cosines.clamp(max=1.0).arccos(), torch.nan)
