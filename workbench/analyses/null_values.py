"""Null samples of the values V: what a null distribution puts in their place."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from workbench.core.errors import InputError, UnknownName
from workbench.core.operands import checked

NULLS = ("gaussian", "permutation")


@checked
def null_values(
    v: Float[Tensor, "token head_dim"], null: str, null_samples: int, seed: int
) -> Float[Tensor, "draw token head_dim"]:
    """Draws of the values of one head under a null, always the same for one seed, on any device.

    gaussian: independent normal entries with the mean square of v. permutation: v with its tokens in another
    order. Raises `UnknownName` for another null.
    """
    check_nulls([null], null_samples)
    v = v.double()
    if null == "gaussian":
        # numpy draws normal numbers three times as fast as torch does in double precision
        noise = torch.from_numpy(np.random.default_rng(seed).standard_normal((null_samples, *v.shape)))
        return noise.to(v.device) * v.square().mean().sqrt()
    generator = torch.Generator().manual_seed(seed)
    orders = [torch.randperm(len(v), generator=generator) for _ in range(null_samples)]
    return v[torch.stack(orders).to(v.device)] if orders else v.new_empty(0, *v.shape)


def check_nulls(nulls: Sequence[str], null_samples: int) -> None:
    """Every null is known and the number of null samples is not negative."""
    for null in nulls:
        if null not in NULLS:
            raise UnknownName("null", null, NULLS)
    if null_samples < 0:
        raise InputError(f"null_samples must be 0 or more; got {null_samples}")
