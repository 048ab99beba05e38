"""What principal attention pursuit splits off the keys (teo2024 §3): how sparse it is, and what it marks.

Keys K are (*batch, token, head_dim); the pursuit says K = L + S with L of low rank and S sparse. RPC-Attention puts
out L; nothing in the model reads S, so what it holds has to be looked at.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from scipy.stats import rankdata
from torch import Tensor

from workbench.analyses import validation
from workbench.core.errors import InputError


class Split(NamedTuple):
    """A split of keys, each (*batch), float64.

    zeros: share of entries of S that are exactly zero. share: ‖S‖² / ‖K‖². evenness: over how many tokens ‖S_j‖² is
    spread, (Σ_j e_j)² / (N Σ_j e_j²), from 1/N (one token) to 1 (all alike); NaN for S = 0. gap: ‖K − L − S‖ / ‖K‖,
    what the constraint L + S = K is missed by. share and gap are NaN for keys of zero.
    """

    zeros: Tensor
    share: Tensor
    evenness: Tensor
    gap: Tensor


def split_of(
    keys: Float[Tensor, "*batch token head_dim"],
    low_rank: Float[Tensor, "*batch token head_dim"],
    sparse: Float[Tensor, "*batch token head_dim"],
    mask: Bool[Tensor, "*batch token"] | None = None,
) -> Split:
    """How sparse S is, how much it holds, and whether L + S is K, padding (``mask`` false) left out.

    Raises InputError where the three differ in shape, or hold NaN or infinite values.
    """
    parts = {"keys": keys, "low_rank": low_rank, "sparse": sparse}
    for name, part in parts.items():
        validation.check_axes(name, part, validation.TOKENS)
        validation.check_finite(name, part, validation.TOKENS)
        if part.shape != keys.shape:
            raise InputError(
                f"keys of shape {tuple(keys.shape)} were not split into {name} of shape {tuple(part.shape)}; the "
                "parts are as large as the whole"
            )
    real = torch.ones(keys.shape[:-1], dtype=torch.bool, device=keys.device)
    if mask is not None:
        real = validation.check_mask(mask, keys.shape[:-1]).to(keys.device)
    k, low, s = (torch.where(real[..., None], part.double(), 0.0) for part in parts.values())
    count = real.sum(-1)
    energy = s.square().sum(-1)
    whole = k.square().sum((-2, -1))
    nonzero = (s != 0).sum((-2, -1))
    return Split(
        zeros=1 - nonzero / (count * keys.shape[-1]),
        share=energy.sum(-1) / whole,
        evenness=energy.sum(-1).square() / (count * energy.square().sum(-1)),
        gap=((k - low - s).square().sum((-2, -1)) / whole).sqrt(),
    )


def token_size(part: Float[Tensor, "*batch head token head_dim"]) -> Float[Tensor, "*batch token"]:
    """‖S_j‖ of every token over all heads: the length of its row with the heads put side by side. float64."""
    validation.check_axes("part", part, ("head", *validation.TOKENS))
    return part.double().square().sum((-3, -1)).sqrt()


def detection_auc(
    scores: Float[Tensor, "*batch token"], marked: Bool[Tensor, "*batch token"]
) -> Float[Tensor, "*batch"]:
    """Area under the ROC curve of telling marked tokens by a large score: 1 for all above the others, 1/2 by chance.

    The chance that a marked token scores higher than another one, ties counted as half (Mann and Whitney 1947). NaN
    where all tokens are marked, or none.
    """
    scores, marked = torch.broadcast_tensors(scores.double().cpu(), marked.cpu())
    ranks = torch.from_numpy(rankdata(scores.numpy(), axis=-1))
    inside, outside = marked.sum(-1), (~marked).sum(-1)
    above = (ranks * marked).sum(-1) - inside * (inside + 1) / 2
    pairs = inside * outside
    return torch.where(pairs > 0, above / pairs.clamp_min(1), math.nan)


def marked_share(
    scores: Float[Tensor, "*batch token"], marked: Bool[Tensor, "*batch token"]
) -> Float[Tensor, "*batch"]:
    """Share of Σ_j e_j² that lies on marked tokens; by chance their share of the tokens. NaN where all are zero."""
    energy, marked = torch.broadcast_tensors(scores.double().cpu().square(), marked.cpu())
    return (energy * marked).sum(-1) / energy.sum(-1)
