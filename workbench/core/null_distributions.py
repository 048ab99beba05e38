"""Null distributions: seeds that do not depend on the batching, and nulls from samples."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from workbench.core.intervals import FEW_NULL_SAMPLES


def derived_seed(seed: int, *keys: str | int) -> int:
    """Return a seed for some keys (input, layer, …) under a run's seed, the same on every machine and batching."""
    text = "\x1f".join([str(seed), *map(str, keys)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *keys: str | int) -> torch.Generator:
    """Return a CPU random generator seeded with `derived_seed`."""
    return torch.Generator().manual_seed(derived_seed(seed, *keys))


ROUNDING = 1e-12  # relative; draws closer than this differ in the order of their sums


class Null(NamedTuple):
    """The null distribution of one number: mean, ends of its range, and the observed value's z-score."""

    mean: Tensor
    low: Tensor
    high: Tensor
    z: Tensor

    @classmethod
    def at(cls, mean: Tensor) -> Null:
        """Return a null that is a single number, without a range and a z-score."""
        undefined = torch.full_like(mean, torch.nan)
        return cls(mean, undefined, undefined, undefined)


def null_of_draws(
    observed: Float[Tensor, "*batch"], null_samples: Float[Tensor, "*batch draw"], z_samples: int = 2
) -> Null:
    """Return mean and range of null samples, and z = (observed − mean) / standard deviation (ddof = 1).

    The range is from the least to the largest of fewer than `FEW_NULL_SAMPLES`, else from the 2.5 % to the 97.5 %
    quantile. z is NaN where all null samples agree up to rounding, and of fewer null samples than ``z_samples``.
    """
    null_samples = null_samples.double()
    if null_samples.shape[-1] < FEW_NULL_SAMPLES:
        low, high = null_samples.aminmax(dim=-1)
    else:
        low, high = torch.quantile(null_samples, null_samples.new_tensor([0.025, 0.975]), dim=-1)
    spread = null_samples.std(-1)
    z = torch.where(
        (spread > ROUNDING * null_samples.abs().amax(-1)) & (null_samples.shape[-1] >= z_samples),
        (observed - null_samples.mean(-1)) / spread,
        torch.nan,
    )
    return Null(null_samples.mean(-1), low, high, z)
