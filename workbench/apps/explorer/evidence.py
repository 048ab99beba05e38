"""Numbers of a head in a bundle besides its matrix: spectra with their null band, q and k, and both in one plane."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from workbench.apps.explorer.measures import NULL_SAMPLES, NUMBERS
from workbench.core.errors import InputError, MissingResource
from workbench.core.operands import map_heads

if TYPE_CHECKING:
    import pandas as pd

    from workbench.captures import LayerRecord

SPECTRA = {
    "eigenvalue": ("gram-spectrum", {"null_samples": NULL_SAMPLES}),
    "singular_value": (
        "attention-spectrum",
        {"per_head": True, "null_samples": NULL_SAMPLES, "null": "gaussian"},
    ),
}
"""Metrics that have a number for every rank, each from an analysis with options."""
MOST_TOKENS = 256
"""Of longer inputs no spectra and memberships are taken."""
MOST_WORK = 2e8
"""Heads × N³ up to which spectra are taken unasked: a decomposition costs N³, for every head and null sample."""

_LEAST_POINTS = 8
"""Of fewer queries and keys UMAP has no neighbourhoods to keep."""


class Plane(NamedTuple):
    """Queries and keys as points of one plane, and the share of their variance that each of its axes holds."""

    queries: Float[Tensor, "*batch query 2"]
    keys: Float[Tensor, "*batch key 2"]
    share: Float[Tensor, "*batch 2"]


def joint_plane(q: Float[Tensor, "*batch query dim"], k: Float[Tensor, "*batch key dim"]) -> Plane:
    """Project queries and keys of a head on their first two joint principal components (after Yeh et al. 2023, §4).

    Attention stays as it is where one vector is added to all keys, and where queries are multiplied by what keys are
    divided by. So the keys are moved onto the mean of the queries, and both scaled to one mean square distance from it:
    what is near in the plane is near for attention, not for the sizes of two projections. The largest entry of every
    component is positive.
    """
    both = _joined(q, k)
    gram = both.mT @ both  # of features: smaller than a matrix of tokens
    heads = map_heads(torch.linalg.eigh, gram.reshape(-1, *gram.shape[-2:]))
    variance, axes = (torch.stack(part).flip(-1) for part in zip(*heads, strict=True))
    variance = variance.clamp_min(0).reshape(gram.shape[:-1])  # below by rounding alone
    axes = axes.reshape(gram.shape)[..., :2]
    missing = max(0, 2 - axes.shape[-1])  # heads of one feature
    largest = axes.gather(-2, axes.abs().argmax(-2, keepdim=True))
    points = torch.nn.functional.pad(both @ (axes * torch.where(largest < 0, -1.0, 1.0)), (0, missing))
    total = variance.sum(-1, keepdim=True).clamp_min(torch.finfo(variance.dtype).tiny)
    share = torch.nn.functional.pad(variance[..., :2] / total, (0, missing))
    return Plane(points[..., : q.shape[-2], :], points[..., q.shape[-2] :, :], share)


def umap_plane(
    q: Float[Tensor, "query dim"], k: Float[Tensor, "key dim"], seed: int = 0
) -> tuple[Float[np.ndarray, "query 2"], Float[np.ndarray, "key 2"]]:
    """Lay the vectors of `joint_plane` out by UMAP (McInnes et al. 2018), 15 neighbours, Euclidean.

    Raises `MissingResource` where umap-learn is not installed, and `InputError` for fewer points than it can lay out.
    """
    try:
        umap = import_module("umap")
    except ImportError:
        raise MissingResource("UMAP needs a package that is not here: pip install umap-learn") from None
    both = _joined(q, k).numpy()
    if len(both) < _LEAST_POINTS:
        raise InputError(f"UMAP lays out {_LEAST_POINTS} queries and keys at least; here are {len(both)}")
    settings = {"n_neighbors": min(15, len(both) - 1), "random_state": seed, "n_jobs": 1}
    points = umap.UMAP(**settings).fit_transform(both)
    return points[: len(q)], points[len(q) :]


def _joined(
    q: Float[Tensor, "*batch query dim"], k: Float[Tensor, "*batch key dim"]
) -> Float[Tensor, "*batch both dim"]:
    """Return queries and keys as points of one space, as `joint_plane` describes."""
    q, k = q.double(), k.double()
    spread = [(x - x.mean(-2, keepdim=True)).square().mean((-2, -1), keepdim=True) for x in (q, k)]
    varies = (spread[0] > 0) & (spread[1] > 0)
    factor = torch.where(varies, spread[1] / torch.where(varies, spread[0], 1.0), 1.0) ** 0.25
    q, k = q * factor, k / factor
    centre = q.mean(-2, keepdim=True)
    return torch.cat([q - centre, k - k.mean(-2, keepdim=True)], -2)


def operands(record: LayerRecord, real: Bool[Tensor, " token"]) -> dict[str, np.ndarray]:
    """Return q, k and scale of a layer by token, and its heads' planes; nothing for a layer without them.

    Points of padding are NaN. Heads that share keys have them once; planes are of every head of queries.
    """
    q, k = record.q, record.k
    if q is None or k is None or q.ndim != 4 or k.ndim != 4 or record.scale is None:
        return {}
    if k.shape[-2] != len(real) or q.shape[-2] not in (1, len(real)) or q.shape[-1] != k.shape[-1]:
        return {}
    heads = q.shape[1]
    scale = torch.as_tensor(record.scale, dtype=torch.float64).reshape(-1)
    if len(scale) not in (1, heads):
        return {}
    real = real.to(k.device)
    asking = real if q.shape[-2] == len(real) else real.new_ones(1)
    of_queries = k[0].detach().repeat_interleave(heads // k.shape[1], 0)
    plane = joint_plane(q[0].detach()[:, asking], of_queries[:, real])
    arrays = {
        "q": q[0].detach().double().cpu().numpy(),
        "k": k[0].detach().double().cpu().numpy(),
        "scale": scale.expand(heads).cpu().numpy().copy(),
        "plane.share": plane.share.cpu().numpy().astype(np.float32),
    }
    for name, points, mask in (("plane.q", plane.queries, asking), ("plane.k", plane.keys, real)):
        points_of_all = np.full((heads, len(mask), 2), np.nan, np.float32)
        points_of_all[:, mask.cpu().numpy()] = points.cpu().numpy()
        arrays[name] = points_of_all
    return arrays


def spectra(frame: Callable[..., pd.DataFrame | None]) -> dict[str, pd.DataFrame]:
    """Return the rows of every metric of `SPECTRA` of a model; ``frame(analysis, **options)`` runs an analysis."""
    frames: dict[str, pd.DataFrame] = {}
    for analysis, options in SPECTRA.values():
        rows = frame(analysis, **options)
        frames |= {} if rows is None else ranked(analysis, rows)
    return frames


def ranked(analysis: str, frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the rows of an analysis' metrics of `SPECTRA`."""
    of_heads = frame[frame["head"].notna()]
    rows = {
        metric: of_heads[of_heads["metric"] == metric]
        for metric, (name, _) in SPECTRA.items()
        if name == analysis
    }
    return {metric: each for metric, each in rows.items() if len(each)}


def by_rank(rows: pd.DataFrame) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    """Yield by layer the value, the null's mean and its interval as (head, rank), NaN where there is none."""
    for layer in rows["layer"].unique():
        layer_rows = rows[rows["layer"] == layer]
        shape = int(layer_rows["head"].max()) + 1, int(layer_rows["rank"].max())
        index = layer_rows["head"].to_numpy(int), layer_rows["rank"].to_numpy(int) - 1
        arrays = {}
        for number in NUMBERS:
            arrays[number] = np.full(shape, np.nan, np.float32)
            arrays[number][index] = layer_rows[number].to_numpy(float, na_value=np.nan)
        yield int(layer), arrays
