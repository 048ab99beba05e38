"""Differences over all pairs of a list of numbers, from sorting: O(N log N), never a loop over pairs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from workbench.core.operands import checked_tensors


class PairStatistics(NamedTuple):
    """Mean and standard deviation (ddof = 1) over the pairs i < j; NaN where there are too few pairs."""

    mean: Tensor
    std: Tensor


@checked_tensors
def absolute_differences(x: Float[Tensor, "*batch token"]) -> PairStatistics:
    """Statistics of |x_i − x_j| over all pairs, in the unit of x. Entries that are NaN are left out."""
    x, size, count = _scaled(x)
    x = _sorted(x)  # NaN goes last
    absent = x.isnan()
    # centred first: of numbers that are all alike, the sums below would keep nothing but rounding
    c = x - _mean(x, absent, count)[..., None]
    c = (c - _mean(c, absent, count)[..., None]).masked_fill(absent, 0)
    index = torch.arange(x.shape[-1], dtype=x.dtype, device=x.device)
    total = ((2 * index - count[..., None] + 1) * c).sum(-1)
    squares = count * c.square().sum(-1) - c.sum(-1).square()
    mean, std = _statistics(total, squares, count)
    return PairStatistics(mean * size, std * size)


@checked_tensors
def relative_differences(x: Float[Tensor, "*batch token"], epsilon: float | Tensor = 0.0) -> PairStatistics:
    """Statistics of |x_i − x_j| / (max(|x_i|, |x_j|) + ε) over all pairs: between 0 and 2.

    ``epsilon`` has the unit of x and broadcasts with its leading axes (several at once cost one sorting). Two
    zeros differ by 0. NaN entries are left out.
    """
    x, size, count = _scaled(x)
    epsilon = torch.as_tensor(epsilon, dtype=x.dtype, device=x.device) / size
    x = x.gather(-1, _order(x.abs()))  # of each pair, the later one is the larger; NaN goes last
    absent = x.isnan()
    # Sums over the earlier entries, of x − middle: of numbers that are nearly alike, those of x itself would
    # lose the differences. Those of x are exact for entries far below the middle one, whose own differences
    # x − middle would lose.
    middle = x.gather(-1, ((count - 1) / 2).long().clamp_min(0)[..., None]).nan_to_num(nan=0.0)
    x = torch.where(absent, middle, x)
    c = torch.where(x.abs() < middle.abs() / 2, 0, middle)
    index = torch.arange(x.shape[-1], dtype=x.dtype, device=x.device)
    shifted = x - c
    far = c == 0
    moved = x - middle
    before = torch.where(far, _sums_before(x), _sums_before(moved))
    squares_before = torch.where(far, _sums_before(x * x), _sums_before(moved * moved))
    # |x_j| ≤ |x_i| for j < i, so x_i − x_j has the sign of x_i
    total = x.sign() * (index * shifted - before)
    squares = (index * shifted - 2 * before) * shifted + squares_before
    bottom = (x.abs() + epsilon[..., None]).masked_fill(absent, torch.inf)
    bottom = torch.where(bottom > 0, bottom, torch.inf)
    return _statistics((total / bottom).sum(-1), (squares / bottom / bottom).sum(-1), count)


def _scaled(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """x divided by its largest magnitude, so that squares neither overflow nor underflow; that; the count."""
    x = x.detach().double()
    size = x.abs().nan_to_num(nan=0.0).amax(-1)
    size = torch.where(size > 0, size, torch.ones_like(size))
    return x / size[..., None], size, (~x.isnan()).sum(-1).double()


def _sorted(x: Tensor) -> Tensor:
    """Ascending. numpy's sort is ten times as fast as torch's on short rows of a CPU."""
    return torch.from_numpy(np.sort(x.numpy())) if x.device.type == "cpu" else x.sort(-1).values


def _order(x: Tensor) -> Tensor:
    """Places of ascending entries."""
    return torch.from_numpy(np.argsort(x.numpy())) if x.device.type == "cpu" else x.argsort(-1)


def _mean(x: Tensor, absent: Tensor, count: Tensor) -> Tensor:
    return x.masked_fill(absent, 0).sum(-1) / count


def _sums_before(x: Tensor) -> Tensor:
    """Σ_{j<i} x_j for every i."""
    return x.cumsum(-1) - x


def _statistics(total: Tensor, squares: Tensor, count: Tensor) -> PairStatistics:
    """Mean and standard deviation from the sum over pairs and the sum of squares."""
    pairs = count * (count - 1) / 2
    mean = total.clamp_min(0) / torch.where(pairs > 0, pairs, torch.nan)
    variance = (squares - pairs * mean.square()).clamp_min(0) / torch.where(pairs > 1, pairs - 1, torch.nan)
    return PairStatistics(mean, variance.sqrt())
