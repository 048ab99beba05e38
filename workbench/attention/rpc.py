"""Robust principal components (teo2024 §3): pursuit by ADMM, and attention that performs a few steps of it.

``principal_component_pursuit`` splits a matrix into low rank + sparse. ``rpc_attention`` does so with the
keys, where softmax attention replaces the singular value thresholding, and returns the low-rank
part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, overload

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from workbench.attention.base import AttentionModule, attention_mask, check_convention, checked_mechanism
from workbench.attention.softmax import softmax_attention
from workbench.core.errors import InputError, UnknownName

_SYMMETRIES = ("sym", "asym", "sym-asym")


class PrincipalComponents(NamedTuple):
    """M = low_rank + sparse up to ``residual``, ‖M − L − S‖_F / ‖M‖_F, after ``iterations`` steps."""

    low_rank: Float[Tensor, "*batch row column"]
    sparse: Float[Tensor, "*batch row column"]
    residual: Float[Tensor, " *batch"]
    iterations: int


@checked_mechanism
def principal_component_pursuit(
    m: Float[Tensor, "*batch row column"],
    *,
    lambd: float | None = None,
    mu: float | None = None,
    tol: float = 1e-7,
    max_iter: int = 1000,
) -> PrincipalComponents:
    """Minimise ‖L‖_* + λ‖S‖_1 subject to L + S = M, by ADMM (Candès et al. 2011, Algorithm 1).

    ``lambd`` is 1/√max(row, column) and ``mu`` row · column / (4‖M‖_1), by default, one for each matrix
    of the batch. It ends when every residual is at most ``tol``, or after ``max_iter`` steps: read
    ``residual``. (The L-step printed in teo2024, D_μ with −Y/μ, diverges; this is D_{1/μ} with +Y/μ.)

    Raises InputError for values that are not finite, and for lambd or mu that are not positive.
    """
    rows, columns = m.shape[-2:]
    lambd = 1 / math.sqrt(max(rows, columns)) if lambd is None else lambd
    if not lambd > 0 or (mu is not None and not mu > 0):
        raise InputError(f"lambd and mu must be positive, got lambd={lambd}, mu={mu}")
    if max_iter < 1:
        raise InputError(f"max_iter must be at least 1, got {max_iter}")
    if not bool(torch.isfinite(m).all()):
        raise InputError("the matrix has values that are NaN or infinite; there is nothing to decompose")
    inverse_mu = torch.full_like(m[..., :1, :1], 1 / mu) if mu else 4 * m.abs().mean((-2, -1), keepdim=True)
    size = torch.linalg.matrix_norm(m).clamp_min(torch.finfo(m.dtype).tiny)
    low_rank, dual = torch.zeros_like(m), torch.zeros_like(m)  # dual is Y/μ
    for iteration in range(1, max_iter + 1):  # noqa: B007 the number of steps is part of the result
        sparse = shrink(m - low_rank + dual, lambd * inverse_mu)
        low_rank = _shrink_singular_values(m - sparse + dual, inverse_mu)
        gap = m - low_rank - sparse
        dual = dual + gap
        residual = torch.linalg.matrix_norm(gap) / size
        if bool((residual <= tol).all()):
            break
    return PrincipalComponents(low_rank, sparse, residual, iteration)


@checked_mechanism
def shrink(x: Float[Tensor, "*size"], threshold: Float[Tensor, "*#size"]) -> Float[Tensor, "*size"]:
    """Soft thresholding, sign(x) max(|x| − threshold, 0), entry by entry (Candès et al. 2011)."""
    return x - x.clamp(-threshold, threshold)


def _shrink_singular_values(x: Tensor, threshold: Tensor) -> Tensor:
    u, values, vh = torch.linalg.svd(x, full_matrices=False)
    return (u * (values - threshold.squeeze(-1)).clamp_min(0).unsqueeze(-2)) @ vh


class RobustAttention(NamedTuple):
    """The result of the pursuit, (batch, head, token, head_dim) each.

    ``output`` is the last of ``low_rank``, the L of every iteration; ``sparse`` S and ``dual`` Y after the
    last; ``keys`` the K' whose attention made the output.
    """

    output: Tensor
    sparse: Tensor
    dual: Tensor
    keys: Tensor
    low_rank: tuple[Tensor, ...]


@overload
def rpc_attention(
    k: Tensor,
    v: Tensor,
    *,
    q: Tensor | None = None,
    scale: float | None = None,
    num_iter: int = 4,
    lambd: float = 4.0,
    convention: str = "as_published",
    mask: Tensor | None = None,
    causal: bool = False,
    details: Literal[False] = False,
) -> Tensor: ...
@overload
def rpc_attention(
    k: Tensor,
    v: Tensor,
    *,
    q: Tensor | None = None,
    scale: float | None = None,
    num_iter: int = 4,
    lambd: float = 4.0,
    convention: str = "as_published",
    mask: Tensor | None = None,
    causal: bool = False,
    details: Literal[True],
) -> RobustAttention: ...
@checked_mechanism
def rpc_attention(
    k: Float[Tensor, "batch head token head_dim"],
    v: Float[Tensor, "batch head token head_dim"],
    *,
    q: Float[Tensor, "batch head token head_dim"] | None = None,
    scale: float | None = None,
    num_iter: int = 4,
    lambd: float = 4.0,
    convention: str = "as_published",
    mask: Bool[Tensor, ...] | None = None,
    causal: bool = False,
    details: bool = False,
) -> Tensor | RobustAttention:
    """RPC-Attention: ``num_iter`` steps of principal attention pursuit (teo2024 Algorithm 1).

    From L = Y = 0: S ← shrink_τ(K − L + Y/μ); K' ← K − S − Y/μ; L ← softmax(scale K' K'ᵀ) V;
    Y ← Y + μ(K − L − S). The last L is returned, with ``details`` everything else too. With ``q`` the scores
    are scale q K'ᵀ (Appendix E.10). lambd = ∞ with num_iter = 1 is symmetric softmax attention (softmax
    attention with ``q``), with num_iter = 2 that, applied to its own output as keys.

    τ and μ: "as_published" τ = λ/μ, μ = N d / (4‖K‖_1) with d = head_dim; "as_implemented" τ = λμ, d the
    width of all heads. N and ‖K‖_1 are those of the tokens a query may attend to, so padding counts for nothing,
    and with ``causal`` every token has the μ of the sequence that ends with it (one μ for a whole sequence, as
    published, would tell it about later tokens).

    Raises InputError when keys and values differ in width, for num_iter < 1 and for lambd < 0.
    """
    check_convention(convention)
    if num_iter < 1 or not lambd >= 0:
        raise InputError(f"num_iter must be at least 1 and lambd at least 0, got {num_iter} and {lambd}")
    if mask is not None:
        mask, causal = attention_mask(mask, k, causal=causal), False
    mu = _step_size(k, mask, causal, convention)
    threshold = lambd / mu if convention == "as_published" else lambd * mu
    low_rank, dual = torch.zeros_like(k), torch.zeros_like(k)  # dual is Y/μ, which needs no μ
    iterates = []
    for _ in range(num_iter):
        # An infinite threshold has no gradient, and what it leaves is zero.
        sparse = torch.zeros_like(k) if math.isinf(lambd) else shrink(k - low_rank + dual, threshold)
        keys = k - sparse - dual
        low_rank = softmax_attention(keys if q is None else q, keys, v, scale=scale, mask=mask, causal=causal)
        dual = dual + (k - low_rank - sparse)
        iterates.append(low_rank)
    if not details:
        return low_rank
    return RobustAttention(low_rank, sparse, mu * dual, keys, tuple(iterates))


def _step_size(k: Tensor, mask: Tensor | None, causal: bool, convention: str) -> Tensor:
    """μ = N d / (4‖K‖_1) for every token, over the tokens that it may attend to: (batch, head, token | 1, 1)."""
    width = k.shape[-1] if convention == "as_published" else k.shape[-1] * k.shape[-3]
    norms = k.abs().sum(-1, keepdim=True)  # (batch, head, token, 1)
    if mask is None and causal:
        mean = norms.cumsum(-2) / torch.arange(1, k.shape[-2] + 1, device=k.device).to(k.dtype).unsqueeze(-1)
    elif mask is None:
        mean = norms.mean(-2, keepdim=True)
    else:
        allowed = mask.to(k.dtype)
        mean = (allowed @ norms) / allowed.sum(-1, keepdim=True).clamp_min(1)
    return width / (4 * mean.clamp_min(width * torch.finfo(k.dtype).tiny))


class RPCAttention(AttentionModule):
    """RPC-Attention as a module: symmetric, asymmetric, or symmetric in the robust layers only.

    ``num_iter`` is one number, or one for each layer from layer 0, where 0 (and a layer beyond the end of the
    list) is ordinary attention: [4] is the papers' "first layer only". ``symmetry`` "sym" has one projection
    for queries and keys in all layers, "asym" two, "sym-asym" one in robust layers and two in the others.
    """

    sites = ("q", "k", "v", "attn", "low_rank", "sparse", "projected_k")

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        symmetry: str = "sym",
        num_iter: int | Sequence[int] = 4,
        lambd: float = 4.0,
        convention: str = "as_published",
        layer: int = 0,
        **shared: Any,
    ) -> None:
        check_convention(convention)
        if symmetry not in _SYMMETRIES:
            raise UnknownName("symmetry", symmetry, _SYMMETRIES)
        counts = [num_iter] * (layer + 1) if isinstance(num_iter, int) else list(num_iter)
        if any(not isinstance(count, int) or count < 0 for count in counts) or not lambd >= 0:
            raise InputError(
                f"num_iter is a number from 0, or a list of them, and lambd at least 0; got {num_iter!r} and {lambd!r}"
            )
        steps = counts[layer] if layer < len(counts) else 0
        symmetric = symmetry == "sym" or (symmetry == "sym-asym" and steps > 0)
        self.projections = ("k", "v") if symmetric else ("q", "k", "v")
        super().__init__(dim, num_heads, layer=layer, **shared)
        self.num_iter = steps
        self.lambd = float(lambd)
        self.convention = convention

    def attend(
        self, x: Tensor, mask: Tensor | None = None, *, observe: bool = False
    ) -> tuple[Tensor, dict[str, Any]]:
        *q, k, v = self.project(x)
        if self.num_iter == 0:
            queries = q[0] if q else k
            output = softmax_attention(queries, k, v, scale=self.scale, mask=mask, causal=self.causal)
            inside: dict[str, Any] = {"q": queries, "k": k}
        else:
            observed = rpc_attention(
                k,
                v,
                q=q[0] if q else None,
                scale=self.scale,
                num_iter=self.num_iter,
                lambd=self.lambd,
                convention=self.convention,
                mask=mask,
                causal=self.causal,
                details=True,
            )
            output = observed.output
            inside = {"q": q[0] if q else observed.keys, "k": observed.keys, "projected_k": k}
            inside |= {"low_rank": output, "sparse": observed.sparse}
        if not observe:
            return output, {}
        return output, inside | {
            "v": v,
            "scale": self.scale,
            "mask": attention_mask(mask, k, causal=self.causal),
        }

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, num_iter={self.num_iter}, lambd={self.lambd:g}, {self.convention}"
