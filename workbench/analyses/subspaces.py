"""The subspaces that heads read: how nearly orthogonal their directions are, inside a head and between heads.

U_k (head, width, head_dim) holds the directions of head k in its columns, as in wu2025 Fig. 11; float64.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import numpy as np
import pandas as pd
import torch
from annotated_types import Ge
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from workbench.analyses.layer import Layer
from workbench.analyses.linalg import head_bases, span_angles
from workbench.analyses.null_values import null_values
from workbench.analyses.registry import Analysis, OfMatrices
from workbench.core.errors import InputError
from workbench.core.null_distributions import derived_seed, generator
from workbench.core.operands import check_finite, checked_tensors
from workbench.core.options import NullSamples
from workbench.frames.estimate import null_range
from workbench.frames.measurement import Measurement
from workbench.frames.metric import Metric

DIRECTIONS = ("head", "width", "head_dim")
Of = Annotated[
    Literal["v", "q", "k"],
    "whose directions: those of the projection to v, q or k (for all, if there is only one, as in TSSA)",
]


@dataclass(frozen=True)
class Options(OfMatrices):
    """Whose directions."""

    projection: Of = "v"
    null_samples: Annotated[
        NullSamples, "samples of the null distribution, random directions, at least 2; 0 leaves it out"
    ] = 20


@dataclass(frozen=True)
class PairOptions(OfMatrices):
    """Whose directions, and how many, to show pair by pair."""

    projection: Of = "v"
    directions: Annotated[
        Annotated[int, Ge(1)] | None, "directions of each head, picked at random as in the paper; none: all"
    ] = 4


_COHERENCE_INSIDE = Metric(
    "coherence_inside",
    "Mean |cos| of two directions of a head",
    "mean over the pairs of different columns of the same U_k, at unit length; null distribution: random directions",
    "wu2025 Fig. 11",
    low=0,
    high=1,
)
_COHERENCE_BETWEEN = Metric(
    "coherence_between",
    "Mean |cos| of directions of two heads",
    "mean over the pairs of columns of different U_k, at unit length; null distribution: random directions",
    "wu2025 Fig. 11",
    low=0,
    high=1,
)
_SUBSPACE_ANGLE = Metric(
    "subspace_angle",
    "Principal angle between two heads",
    "angles between the span of this head's U_k and that of the head named by axis, smallest first; "
    "null distribution: random subspaces",
    unit="radians",
    low=0,
    high=math.pi / 2,
)


class Coherence(NamedTuple):
    """Mean |cos| of two directions: of one head, and of different heads; NaN where there is no such pair."""

    inside: Float[Tensor, "*batch"]
    between: Float[Tensor, "*batch"]


@checked_tensors
def coherence(
    u: Float[Tensor, "*batch head width head_dim"],
) -> Float[Tensor, "*batch head head_dim head head_dim"]:
    """|cos| of every two directions, |[U_1 … U_K]ᵀ[U_1 … U_K]| with columns of unit length (wu2025 Fig. 11).

    A zero direction has the cosine 0 with every other. Raises `InputError` for missing axes, NaN or infinite values.
    """
    check_finite("u", u, DIRECTIONS)
    heads, _, dim = u.shape[-3:]
    directions = F.normalize(u.double(), dim=-2, eps=torch.finfo(torch.float64).tiny).mT.flatten(-3, -2)
    return (directions @ directions.mT).abs().unflatten(-1, (heads, dim)).unflatten(-3, (heads, dim))


@checked_tensors
def mean_coherence(u: Float[Tensor, "*batch head width head_dim"]) -> Coherence:
    """Mean of `coherence` (wu2025 Fig. 11) over pairs of directions inside heads, and of different heads."""
    blocks = coherence(u).sum((-3, -1))  # head × head
    heads, dim = u.shape[-3], u.shape[-1]
    norms = blocks.diagonal(dim1=-2, dim2=-1).sum(-1)
    with_itself = (u != 0).any(-2).double().sum((-2, -1))  # every direction's |cos| with itself is 1
    inside_pairs, between_pairs = heads * dim * (dim - 1), heads * (heads - 1) * dim**2

    def mean(total: Tensor, pairs: int) -> Tensor:
        return total / pairs if pairs else torch.full_like(total, math.nan)

    return Coherence(
        mean(norms - with_itself, inside_pairs),
        mean(blocks.sum((-2, -1)) - norms, between_pairs),
    )


@checked_tensors
def subspace_angles(
    u: Float[Tensor, "*batch head width head_dim"],
) -> Float[Tensor, "*batch pair head_dim"]:
    """Principal angles between the subspaces of every two heads, smallest first, in radians.

    Unlike the coherence of wu2025 Fig. 11 they do not depend on the bases.

    Pairs are (0, 1), (0, 2), …, (1, 2), …. The number of angles of two subspaces is the dimension of the smaller; the
    rest is NaN. Angles below 1e-7 are rounding. Raises `InputError` for fewer than two heads.
    """
    check_finite("u", u, DIRECTIONS)
    heads = u.shape[-3]
    if heads < 2:
        raise InputError(f"angles are between subspaces of two heads; u has {heads} (axis head)")
    bases = head_bases(u)
    first, second = zip(*itertools.combinations(range(heads), 2), strict=True)
    return span_angles(bases[..., first, :, :], bases[..., second, :, :])


def measure(layer: Layer, options: Options) -> Iterator[Measurement]:
    """Mean coherence inside and between heads, and the angles of every two, beside those of random directions."""
    u = layer.choose_heads(layer.projection(options.projection).weight[None])[0].double()
    heads, _, dim = u.shape
    seed = derived_seed(layer.seed, layer.index)
    drawn = (
        null_values(u.mT.flatten(0, 1), "gaussian", options.null_samples, seed).unflatten(1, (heads, dim)).mT
    )
    random = [mean_coherence(directions) for directions in drawn]
    for number, metric in enumerate((_COHERENCE_INSIDE, _COHERENCE_BETWEEN)):
        if (dim, heads)[number] < 2:  # no pair
            continue
        null_samples = (
            {"isotropic": torch.stack([coherences[number] for coherences in random])} if random else {}
        )
        yield Measurement(metric, mean_coherence(u)[number], (), null_samples=null_samples)
    if heads < 2:
        return
    # the null distribution is the same for every pair: one pair of each sample is enough
    null_samples = {"isotropic": subspace_angles(drawn[:, :2])[:, 0].T} if random else {}
    pairs = itertools.combinations(layer.heads, 2)
    for (head, other), angles in zip(pairs, subspace_angles(u), strict=True):
        columns = {"head": head, "axis": f"head {other}"}
        yield Measurement(_SUBSPACE_ANGLE, angles, ("rank",), columns=columns, null_samples=null_samples)


def pair_rows(layer: Layer, options: PairOptions) -> Iterator[pd.DataFrame]:
    """|cos| of every two directions that the heads read (wu2025 Fig. 11), as rows.

    Columns: layer, head, direction, other_head, other_direction, value.
    """
    u = layer.choose_heads(layer.projection(options.projection).weight[None])[0]
    orders = [
        torch.randperm(u.shape[-1], generator=generator(layer.seed, layer.index, head))
        for head in layer.heads
    ]
    picked = torch.stack([order[: options.directions].sort().values for order in orders])
    values = coherence(u.gather(-1, picked.to(u.device)[:, None].expand(-1, u.shape[1], -1)))
    names = ["head", "direction", "other_head", "other_direction"]
    places = pd.MultiIndex.from_product([range(size) for size in values.shape], names=names).to_frame(
        index=False
    )
    rows = pd.DataFrame({"layer": layer.index}, places.index)
    for head, direction in (names[:2], names[2:]):
        rows[head] = np.array(layer.heads)[places[head]]
        rows[direction] = picked.numpy()[places[head], places[direction]]
    yield rows.assign(value=values.cpu().numpy().ravel())


def findings(frame: pd.DataFrame, options: Options) -> list[str]:
    """How parallel directions of different heads, and of one head, are; how near subspaces come; beside random ones."""
    sentences = []
    for metric, words in ((_COHERENCE_BETWEEN, "different heads"), (_COHERENCE_INSIDE, "one head")):
        rows = frame[frame["metric"] == metric.name]
        if len(rows):
            sentences.append(
                f"mean |cos| of two directions of {words} {rows['value'].mean():.3f}, {rows['value'].min():.3f} to "
                f"{rows['value'].max():.3f} by layer{_beside_random(rows, '.3f')}"
            )
    angles = frame[(frame["metric"] == _SUBSPACE_ANGLE.name) & (frame["rank"] == 1)]
    if len(angles):
        nearest = angles.assign(**{name: np.degrees(angles[name]) for name in ("value", *_NULL)})
        sentences.append(
            f"smallest principal angle of two heads {nearest['value'].mean():.0f}°, mean over layers and pairs"
            f"{_beside_random(nearest, '.0f', '°')}"
        )
    return sentences


_NULL = ("null_mean", "null_low", "null_high")


def _beside_random(rows: pd.DataFrame, format: str, unit: str = "") -> str:
    """On which side of the null distribution single values lie."""
    nulls = rows[rows["null_low"].notna()]
    if nulls.empty:
        return ""
    above, below = (
        (nulls["value"] > nulls["null_high"]).sum(),
        (nulls["value"] < nulls["null_low"]).sum(),
    )
    places = "pairs of heads" if unit else "layers"
    return (
        f"; above the {null_range(rows, 'isotropic')} (mean {nulls['null_mean'].mean():{format}}{unit}) in {above} and "
        f"below in {below} of {len(nulls)} {places}"
    )


ANALYSIS = Analysis(
    "subspaces",
    "Subspaces that the heads read: coherence and angles, from the weights",
    (),
    measure,
    (_COHERENCE_INSIDE, _COHERENCE_BETWEEN, _SUBSPACE_ANGLE),
    Options,
    finer=(
        Analysis(
            "subspaces",
            "|cos| of every two directions that the heads read",
            (),
            pair_rows,
            (),
            PairOptions,
            per="pair",
        ),
    ),
    findings=findings,
)
