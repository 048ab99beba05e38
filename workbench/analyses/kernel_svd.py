"""Attention as kernel SVD (chen2023): the spectrum of a token × token matrix, and the two scores that it holds.

K (*batch, query, key) is the attention of a head, or the kernel that Primal-Attention induces. K = H_e Σ H_rᵀ has
left singular vectors H_e and right ones H_r. The e-scores K H_r = H_e Σ are what attention would put out if its values
were H_r; the r-scores Kᵀ H_e = H_r Σ it never computes. Everything in float64, for real tokens only.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from workbench.analyses import validation
from workbench.analyses.parallel import map_heads
from workbench.analyses.stacking import stack_heads
from workbench.core.errors import InputError

KERNEL = ("query", "key")


class KernelSVD(NamedTuple):
    """The first directions of K = H_e Σ H_rᵀ, largest singular value first.

    left: H_e, unit columns; values: the diagonal of Σ; right: H_r. A direction whose singular value is rounding of 0
    could be any: its columns and its value are zero.
    """

    left: Float[Tensor, "*batch query direction"]
    values: Float[Tensor, "*batch direction"]
    right: Float[Tensor, "*batch key direction"]

    @property
    def e_scores(self) -> Float[Tensor, "*batch query direction"]:
        """K H_r = H_e Σ (chen2023 eq. 8): the output of attention whose values are H_r."""
        return self.left * self.values[..., None, :]

    @property
    def r_scores(self) -> Float[Tensor, "*batch key direction"]:
        """Kᵀ H_e = H_r Σ (chen2023 eq. 8): what attention does not put out."""
        return self.right * self.values[..., None, :]


def singular_values(kernel: Float[Tensor, "*batch query key"]) -> Float[Tensor, "*batch rank"]:
    """Singular values σ_r of every matrix, largest first (chen2023 Fig. 1); all matrices of a batch in one call.

    Dimensionless, of the size of K: attention whose rows sum to 1 has 1 ≤ σ_1 ≤ √N. Raises `InputError` for a missing
    axis, fewer than two queries or keys, and entries that are not finite.
    """
    _check(kernel)
    flat = kernel.double().reshape(-1, *kernel.shape[-2:])
    if flat.device.type != "cpu":
        values = torch.linalg.svdvals(flat)
    else:
        # a batch for every thread: LAPACK's own threads only cost time at these sizes
        parts = flat.chunk(torch.get_num_threads())
        values = torch.cat(map_heads(torch.linalg.svdvals, parts))
    return values.reshape(*kernel.shape[:-2], -1)


def relative_values(spectrum: Float[Tensor, "*batch rank"]) -> Float[Tensor, "*batch rank"]:
    """σ_r / σ_1, which starts at 1; zeros stay zero."""
    return spectrum / torch.where(spectrum[..., :1] > 0, spectrum[..., :1], 1.0)


def kernel_svd(kernel: Float[Tensor, "*batch query key"], directions: int) -> KernelSVD:
    """The first ``directions`` singular triplets of every matrix, at most as many as it has.

    Rounding is that of the dtype that arrives. Raises as `singular_values`, and for fewer than one direction.
    """
    _check(kernel)
    if directions < 1:
        raise InputError(f"directions must be at least 1; got {directions}")
    rounding = max(kernel.shape[-2:]) * torch.finfo(kernel.dtype).eps
    flat = kernel.double().reshape(-1, *kernel.shape[-2:])

    def first(matrix: Tensor) -> KernelSVD:
        left, values, right = torch.linalg.svd(matrix, full_matrices=False)
        known = (values > rounding * values[0])[:directions]
        return KernelSVD(
            left[:, :directions] * known, values[:directions] * known, right.mT[:, :directions] * known
        )

    return stack_heads(map_heads(first, flat), kernel.shape[:-2])


def left_out(
    scores: Float[Tensor, "*batch token direction"], basis: Float[Tensor, "*batch token dim"]
) -> Float[Tensor, "*batch"]:
    """Share of ‖scores‖² outside the span of the orthonormal columns of ``basis`` (some may be zero).

    With r-scores and the basis H_e of as many e-scores this is what the output leaves out even where its values are the
    right singular vectors (chen2023 Remark 3.4): no linear map of the e-scores gives it. 0 for a symmetric kernel,
    1 − directions/N for unrelated directions; NaN for scores of zero.
    """
    scores = scores.double()
    inside = (basis.double().mT @ scores).square().sum((-2, -1)) / scores.square().sum((-2, -1))
    return (1 - inside).clamp(min=0.0)  # below 0 only by rounding


def inside_share(
    values: Float[Tensor, "*batch token value_dim"], basis: Float[Tensor, "*batch token dim"]
) -> Float[Tensor, "*batch"]:
    """Share of ‖values‖² inside the span of the orthonormal columns of ``basis``; NaN for values of zero."""
    return 1 - left_out(values, basis)


def span_angles(
    first: Float[Tensor, "*batch token dim"], second: Float[Tensor, "*batch token other_dim"]
) -> Float[Tensor, "*batch angle"]:
    """Principal angles between the spans of two orthonormal bases (as in `left_out`), in radians, smallest first.

    There are as many as the smaller span has dimensions; the rest is NaN. Angles below 1e-7 are rounding.
    """
    bases = (first.double(), second.double())
    cosines = torch.linalg.svdvals(bases[0].mT @ bases[1])
    count = torch.minimum(*(basis.square().sum((-2, -1)).round() for basis in bases))[..., None]
    real = torch.arange(cosines.shape[-1], device=cosines.device) < count
    return torch.where(real, cosines.clamp(max=1.0).arccos(), torch.nan)


def _check(kernel: Tensor) -> None:
    validation.check_axes("kernel", kernel, KERNEL)
    validation.check_finite("kernel", kernel, KERNEL)
    if not kernel.numel():
        raise InputError(f"kernel has shape {tuple(kernel.shape)}; there is no matrix in it")
    for axis, size in zip(KERNEL, kernel.shape[-2:], strict=True):
        if size < 2:
            raise InputError(
                f"a kernel matrix of {size} {axis} has one singular value and no spectrum; at least 2 are needed "
                f"(axis {axis})"
            )
