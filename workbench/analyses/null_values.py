"""Null samples of the values V."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from workbench.core.errors import InputError, UnknownName
from workbench.core.operands import TOKENS, check_finite, checked_tensors
from workbench.core.plugins import Registry

NULLS = ("gaussian", "permutation", "rotation")
"""The nulls that read only the values of one head."""


class HeadValues(NamedTuple):
    """Values of one head in float64, and of all heads of its layer side by side, over the same (real) tokens.

    ``shared`` is None where an analysis function is called without it.
    """

    v: Float[Tensor, "token head_dim"]
    shared: Float[Tensor, "token width"] | None


class NullSource(Protocol):
    """A null of a plug-in: values to replace ``values.v``, of its shape, drawn only with the generator."""

    def __call__(self, values: HeadValues, generator: torch.Generator) -> Tensor: ...


Draws = Callable[[HeadValues, int, int], Tensor]
"""A function of values, a number of null samples and a seed that gives (draw, token, head_dim)."""


@checked_tensors
def null_values(
    v: Float[Tensor, "token head_dim"],
    null: str,
    null_samples: int,
    seed: int,
    shared: Float[Tensor, "token width"] | None = None,
) -> Float[Tensor, "draw token head_dim"]:
    """Draws of the values of one head under a null, always the same for one seed, on any device.

    gaussian: independent normal entries with the mean square of v. permutation: v with its tokens in another
    order. rotation: O v with O a Haar-random rotation of the tokens that leaves their mean where it is (O 1 = 1), so
    that vᵀv, the singular values of v and those of v less its mean are kept. projection: S P of the mean square of v, S
    = ``shared`` the values of all heads of the layer side by side and P of independent normal entries; S is the layer's
    input X times its weights W, so that S P = X (W P) is another projection of the same input, whose weights have the
    covariance of W over heads. Of a layer with a single head it only mixes the columns of v. Another: that of a
    plug-in, of ``v`` and ``shared``. Raises `UnknownName` for a null that is in no table, `InputError` for projection
    without ``shared``.
    """
    check_nulls([null], null_samples)
    values = HeadValues(v.double(), None if shared is None else shared.double())
    return SOURCES[null](values, null_samples, seed)


def for_each_head(
    shared: Float[Tensor, "*#batch token width"] | None, like: Tensor
) -> Float[Tensor, "*batch token width"] | None:
    """The values of all heads side by side, once for every head of ``like`` (*batch, token, …), without a copy."""
    if shared is None:
        return None
    try:
        return shared.expand(*like.shape[:-1], shared.shape[-1])
    except RuntimeError as error:
        raise InputError(
            f"shared of shape {tuple(shared.shape)} does not fit {tuple(like.shape)}: give (*batch, token, width), "
            "with 1 for the axis of heads"
        ) from error


def reads_shared(nulls: Sequence[str]) -> bool:
    """Whether one of the nulls may read the values of all heads."""
    return any(null not in NULLS for null in nulls)


def _gaussian(values: HeadValues, null_samples: int, seed: int) -> Tensor:
    v = values.v
    # numpy draws normal numbers three times as fast as torch does in double precision
    noise = torch.from_numpy(np.random.default_rng(seed).standard_normal((null_samples, *v.shape)))
    return noise.to(v.device) * v.square().mean().sqrt()


def _permuted(values: HeadValues, null_samples: int, seed: int) -> Tensor:
    v, generator = values.v, torch.Generator().manual_seed(seed)
    orders = [torch.randperm(len(v), generator=generator) for _ in range(null_samples)]
    return v[torch.stack(orders).to(v.device)] if orders else v.new_empty(0, *v.shape)


def _rotated(values: HeadValues, null_samples: int, seed: int) -> Tensor:
    """Rotations of v about the mean of its tokens.

    A rotation takes the left singular vectors of v less its mean to an orthonormal frame that is uniform among those
    orthogonal to 1: the Q of centred Gaussian columns, with R's diagonal positive (Mezzadri 2007). That is all of the
    rotation that v sees, in O(N d²).
    """
    v = values.v
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


def _projected(values: HeadValues, null_samples: int, seed: int) -> Tensor:
    v, shared = values
    if shared is None:
        raise InputError(
            "null 'projection' projects the values of all heads of a layer, and got those of one; give "
            "shared=(*batch, 1, token, heads · head_dim)"
        )
    weights = np.random.default_rng(seed).standard_normal((null_samples, shared.shape[1], v.shape[1]))
    drawn = shared @ torch.from_numpy(weights).to(shared.device)
    size = drawn.square().mean((1, 2), keepdim=True).sqrt()
    return drawn / torch.where(size > 0, size, 1) * v.square().mean().sqrt()


def _of_plugin(name: str, source: NullSource) -> Draws:
    """Return the draws of a plug-in's null, in sequence from one generator."""
    if not callable(source):
        raise InputError(f"it is a {type(source).__name__}; give a callable of (HeadValues, generator)")

    def draws(values: HeadValues, null_samples: int, seed: int) -> Tensor:
        generator, drawn = (
            torch.Generator().manual_seed(seed),
            values.v.new_empty(null_samples, *values.v.shape),
        )
        for number in range(null_samples):
            sample = source(values, generator)
            if not isinstance(sample, Tensor) or sample.shape != values.v.shape:
                arrived = tuple(sample.shape) if isinstance(sample, Tensor) else type(sample).__name__
                raise InputError(
                    f"null {name!r} returned {arrived}; return a tensor of v's shape {tuple(values.v.shape)}"
                )
            check_finite(f"a sample of null {name!r}", sample, TOKENS)
            drawn[number] = sample
        return drawn

    return draws


SOURCES: Registry[Draws] = Registry(
    {"gaussian": _gaussian, "permutation": _permuted, "rotation": _rotated, "projection": _projected},
    "workbench.nulls",
    _of_plugin,
)


def check_nulls(nulls: Sequence[str], null_samples: int) -> None:
    """Every null is known and the number of null samples is not negative."""
    for null in nulls:
        if null not in SOURCES:
            raise UnknownName("null", null, SOURCES)
    if null_samples < 0:
        raise InputError(f"null_samples must be 0 or more; got {null_samples}")
