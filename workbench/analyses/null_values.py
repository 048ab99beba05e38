"""Null samples of the values V: what a null distribution puts in their place."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from workbench.core.errors import InputError, UnknownName
from workbench.core.operands import checked

NULLS = ("gaussian", "permutation", "rotation")


@checked
def null_values(
    v: Float[Tensor, "token head_dim"], null: str, null_samples: int, seed: int
) -> Float[Tensor, "draw token head_dim"]:
    """Draws of the values of one head under a null, always the same for one seed, on any device.

    gaussian: independent normal entries with the mean square of v. permutation: v with its tokens in another
    order. rotation: O v with O a Haar-random rotation of the tokens that leaves their mean where it is (O 1 = 1), so
    that vᵀv, the singular values of v and those of v less its mean are kept. Raises `UnknownName` for another null.
    """
    check_nulls([null], null_samples)
    v = v.double()
    if null == "gaussian":
        # numpy draws normal numbers three times as fast as torch does in double precision
        noise = torch.from_numpy(np.random.default_rng(seed).standard_normal((null_samples, *v.shape)))
        return noise.to(v.device) * v.square().mean().sqrt()
    if null == "rotation":
        return _rotated(v, null_samples, seed)
    generator = torch.Generator().manual_seed(seed)
    orders = [torch.randperm(len(v), generator=generator) for _ in range(null_samples)]
    return v[torch.stack(orders).to(v.device)] if orders else v.new_empty(0, *v.shape)


def _rotated(v: Tensor, null_samples: int, seed: int) -> Tensor:
    """Rotations of v about the mean of its tokens.

    A rotation takes the left singular vectors of v less its mean to an orthonormal frame that is uniform among those
    orthogonal to 1: the Q of centred Gaussian columns, with R's diagonal positive (Mezzadri 2007). That is all of the
    rotation that v sees, in O(N d²).
    """
    mean = v.mean(0)
    _, singular, right = torch.linalg.svd(v - mean, full_matrices=False)
    rank = min(len(v) - 1, v.shape[1])
    noise = torch.from_numpy(np.random.default_rng(seed).standard_normal((null_samples, len(v), rank)))
    q, r = torch.linalg.qr(noise - noise.mean(1, keepdim=True))
    frames = q * torch.where(r.diagonal(dim1=1, dim2=2) < 0, -1.0, 1.0)[:, None]
    right = right[:rank]
    largest = right.gather(
        1, right.abs().argmax(1, keepdim=True)
    )  # positive, so that signs are the same anywhere
    return frames.to(v.device) @ (singular[:rank, None] * right * largest.sign()) + mean


def check_nulls(nulls: Sequence[str], null_samples: int) -> None:
    """Every null is known and the number of null samples is not negative."""
    for null in nulls:
        if null not in NULLS:
            raise UnknownName("null", null, NULLS)
    if null_samples < 0:
        raise InputError(f"null_samples must be 0 or more; got {null_samples}")
