"""Primal-Attention: kernel SVD of an asymmetric kernel in its primal form (Chen et al. 2023), linear in tokens.

The kernel matrix K = (Φ_q F)(Φ_k F)ᵀ is never formed. Queries and keys are projected on weights that take the
place of its singular vectors, and both projections are kept: e, which is what attention outputs, and r, which
it leaves out. A penalty (`ksvd_penalty`) pulls the weights towards the singular vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from workbench.attention.base import (
    AttentionModule,
    check_convention,
    checked_mechanism,
    required_tokens,
    split_heads,
    token_mask,
)
from workbench.core.errors import InputError, UnknownName

_WHAT = "primal attention"
SCORES = ("both", "e")


@checked_mechanism
def primal_scores(
    q: Float[Tensor, "batch head token head_dim"],
    k: Float[Tensor, "batch head token head_dim"],
    we: Float[Tensor, "head sample direction"],
    wr: Float[Tensor, "head sample direction"],
    *,
    x: Float[Tensor, "batch head token head_dim"] | None = None,
    causal: bool = False,
    mask: Bool[Tensor, ...] | None = None,
) -> tuple[Float[Tensor, "batch head token direction"], Float[Tensor, "batch head token direction"]]:
    """Scores e = Φ_q F W_e and r = Φ_k F W_r of every token along the directions (chen2023 eqs. 8, 9).

    Φ are the queries and keys at unit length. With ``x``, the head's channels of what attention receives,
    the weights depend on the data: F = f(X) holds ``x`` at one position for each row of ``we`` (see
    `sampled_tokens`). Without it F = I and ``we`` has head_dim rows. ``causal`` replaces q and k by their
    running means over tokens, before they are normalised, and cannot have ``x``, whose samples lie in the
    future. Tokens whose ``mask``, (batch, token), is false are neither sampled nor averaged. No setting gives
    softmax attention back. O(token · head_dim · direction) time; never token × token.

    Raises InputError where the shapes of the weights do not fit, or for ``x`` with ``causal``.
    """
    _check_weights(q, we, x, causal)
    phi_q, phi_k = primal_features(q, k, causal=causal, mask=mask)
    if x is None:
        return phi_q @ we, phi_k @ wr
    samples = sampled_tokens(x, we.shape[-2], mask)
    return phi_q @ (samples @ we), phi_k @ (samples @ wr)


@checked_mechanism
def primal_features(
    q: Float[Tensor, "batch head token head_dim"],
    k: Float[Tensor, "batch head token head_dim"],
    *,
    causal: bool = False,
    mask: Bool[Tensor, ...] | None = None,
) -> tuple[Float[Tensor, "batch head token head_dim"], Float[Tensor, "batch head token head_dim"]]:
    """Feature maps Φ_q, Φ_k: q / ‖q‖ and k / ‖k‖ (chen2023 Remark 4.1); ``causal``: of the running means."""
    tokens = token_mask(mask, q, _WHAT)
    if causal:
        q, k = _running_mean(q, tokens), _running_mean(k, tokens)
    return F.normalize(q, dim=-1), F.normalize(k, dim=-1)


def _running_mean(x: Tensor, tokens: Tensor | None) -> Tensor:
    """Mean over the real tokens up to and including each; zero where there is none yet."""
    total = x.to(torch.promote_types(x.dtype, torch.float32))
    if tokens is None:
        count = torch.arange(1, x.shape[-2] + 1, device=x.device)[:, None]
    else:
        total = torch.where(tokens[:, None, :, None], total, 0.0)
        count = tokens.cumsum(-1).clamp(min=1)[:, None, :, None]
    return (total.cumsum(-2) / count).to(x.dtype)


@checked_mechanism
def sampled_tokens(
    x: Float[Tensor, "batch head token head_dim"], count: int, mask: Bool[Tensor, ...] | None = None
) -> Float[Tensor, "batch head head_dim sample"]:
    """F = f(X): ``x`` at ``count`` evenly spaced real tokens, ⌊i (N−1)/(count−1)⌋, transposed (chen2023 B.1).

    A sequence shorter than ``count`` has tokens taken more than once. In whole numbers: rounding in the
    authors' floating-point linspace moves single positions by one at some lengths.
    """
    return _positions_of(x, count, token_mask(mask, x, _WHAT)).mT


def _positions_of(x: Tensor, count: int, tokens: Tensor | None) -> Tensor:
    steps = torch.arange(count, device=x.device)
    if tokens is None:
        return x[..., _spread(steps, x.shape[-2]), :]
    # real tokens first, in their order: so padding on either side changes nothing
    order = tokens.logical_not().long().argsort(dim=-1, stable=True)
    lengths = tokens.sum(-1, keepdim=True)
    chosen = order.gather(-1, _spread(steps, lengths.clamp(min=1)))
    index = chosen[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[-1])
    # an input without any real token has nothing to sample
    return torch.where(lengths[:, None, :, None] > 0, x.gather(-2, index), 0.0)


def _spread(steps: Int[Tensor, " sample"], tokens: int | Tensor) -> Int[Tensor, "*batch sample"]:
    return steps * (tokens - 1) // max(1, len(steps) - 1)


@checked_mechanism
def primal_kernel(
    q: Float[Tensor, "batch head token head_dim"],
    k: Float[Tensor, "batch head token head_dim"],
    *,
    x: Float[Tensor, "batch head token head_dim"] | None = None,
    samples: int | None = None,
    causal: bool = False,
    mask: Bool[Tensor, ...] | None = None,
) -> Float[Tensor, "batch head query key"]:
    """Induced kernel matrix K = (Φ_q F)(Φ_k F)ᵀ, whose singular vectors the weights stand for (chen2023 eq. 7).

    For looking at, as the attention matrix of softmax attention is: token × token. ``samples``: how many tokens
    of ``x`` make F (the rows of the weights). Not a softmax: entries may be negative, rows sum to anything.
    Rows and columns of padding are zero. Raises InputError for ``x`` without samples or with ``causal``.
    """
    tokens = token_mask(mask, q, _WHAT)
    phi_q, phi_k = primal_features(q, k, causal=causal, mask=mask)
    if x is not None:
        if causal or samples is None:
            raise InputError("x needs samples, how many of its tokens to take, and has no causal form")
        weights = sampled_tokens(x, samples, mask)
        phi_q, phi_k = phi_q @ weights, phi_k @ weights
    kernel = phi_q @ phi_k.mT
    if tokens is None:
        return kernel
    return torch.where(tokens[:, None, :, None] & tokens[:, None, None, :], kernel, 0.0)


@checked_mechanism
def ksvd_loss(
    e: Float[Tensor, "batch head token direction"],
    r: Float[Tensor, "batch head token direction"],
    we: Float[Tensor, "head sample direction"],
    wr: Float[Tensor, "head sample direction"],
    lam: Float[Tensor, "*head direction"],
    *,
    mask: Bool[Tensor, ...] | None = None,
    convention: str = "as_published",
) -> Float[Tensor, "*batch_head"]:
    """Objective J of kernel SVD (chen2023 eq. 11), zero at its solution; `ksvd_penalty` squares it.

    text: ½ Σ_i e_iᵀ Λ e_i + ½ Σ_j r_jᵀ Λ r_j − Tr(W_eᵀ W_r) for each input and head, (batch, head); at the
    solution Λ = Σ⁻¹ (Lemma 4.2). code: E + R − T, one number, with E and R the means over inputs, heads and
    tokens of ½ ‖e Λ‖² and ½ ‖r Λ‖², and T the trace of the mean of W_eᵀ W_r over heads; zero at Λ = √(N/σ).

    ``lam`` is the diagonal of Λ, positive, one row or a row per head; ``mask`` leaves padding out. J can be
    negative.
    """
    check_convention(convention)
    tokens = token_mask(mask, e, _WHAT)
    weight = lam if convention == "as_published" else lam.square()
    weight = weight[..., None, :]  # over tokens
    energy = 0.5 * ((e.square() + r.square()) * weight).sum(-1)  # (batch, head, token)
    if tokens is not None:
        energy = torch.where(tokens[:, None], energy, 0.0)
    trace = (we * wr).sum((-2, -1))  # (head,)
    if convention == "as_published":
        return energy.sum(-1) - trace
    real = energy.numel() if tokens is None else tokens.sum().clamp(min=1) * energy.shape[1]
    return energy.sum() / real - trace.mean()


def ksvd_penalty(objectives: Sequence[Tensor], *, convention: str = "as_published") -> Float[Tensor, ""]:
    """What η multiplies in the total loss, task + η · penalty, from `ksvd_loss` of every primal layer.

    ``objectives`` has what `ksvd_loss` gave for each layer, by the same ``convention``. as_published: Σ_layers of the
    mean over inputs and heads of J² (chen2023 eq. 10); as_implemented: the mean over layers. Raises InputError
    without a layer, UnknownName for another convention.
    """
    check_convention(convention)
    if not objectives:
        raise InputError(
            "there is no KSVD objective to add up: the model has no primal layer, or saw no input"
        )
    squares = torch.stack([objective.square().mean() for objective in objectives])
    return squares.sum() if convention == "as_published" else squares.mean()


def kept_penalty(layers: Sequence[PrimalAttention]) -> Float[Tensor, ""]:
    """`ksvd_penalty` (chen2023) of what primal layers kept of their last forward pass in training."""
    objectives = [layer.objective for layer in layers if layer.objective is not None]
    return ksvd_penalty(objectives, convention=layers[0].convention if layers else "as_published")


def _check_weights(q: Tensor, we: Tensor, x: Tensor | None, causal: bool) -> None:
    if x is not None and causal:
        raise InputError(
            "the causal form has data-independent weights: samples of x would show later tokens to earlier "
            "ones; leave out x"
        )
    if x is None and we.shape[1] != q.shape[-1]:
        raise InputError(
            f"without x, we and wr must be (head, head_dim, direction) = (…, {q.shape[-1]}, …); got {tuple(we.shape)}"
        )


class PrimalAttention(AttentionModule):
    """Primal-Attention, a replacement of attention (chen2023 eq. 9 and Algorithm 1).

    ``qkv`` holds q and k only. ``low_rank``: directions s. ``independent``: data-independent weights; a causal
    layer always has them. Data-dependent weights have m = min(num_tokens, rank_multi · s) rows (rank_multi · s
    without num_tokens); an input shorter than m has tokens sampled more than once.

    The output of a head is one linear map of [e; r], shared by all heads; with ``scores`` "e" only of e, as
    in chen2023 Table 8, while the penalty keeps both. Λ is learned as its logarithm, so that it stays positive.
    In training mode, ``objective`` keeps J of the last forward pass with its graph, for `ksvd_penalty`.
    """

    sites = ("q", "k", "e_scores", "r_scores")
    attends = "none"
    projections = ("q", "k")

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        low_rank: int = 96,
        rank_multi: int = 10,
        independent: bool = False,
        scores: str = "both",
        convention: str = "as_published",
        **shared: Any,
    ) -> None:
        super().__init__(dim, num_heads, **shared)
        check_convention(convention)
        if scores not in SCORES:
            raise UnknownName("scores", str(scores), SCORES)
        for name, value in (("low_rank", low_rank), ("rank_multi", rank_multi)):
            if value < 1:
                raise InputError(f"{name} must be at least 1; got {value}")
        self.convention = convention  # of the loss; the layer itself is the same in both
        self.independent = independent or self.causal
        rows = self.head_dim
        if not self.independent:
            rows = rank_multi * low_rank
            if self.num_tokens is not None:
                rows = min(required_tokens(self.num_tokens, _WHAT), rows)
        self.we = nn.Parameter(torch.empty(num_heads, rows, low_rank))
        self.wr = nn.Parameter(torch.empty(num_heads, rows, low_rank))
        self.log_lam = nn.Parameter(torch.zeros(num_heads, low_rank))
        self.scores = scores
        self.mix = nn.Linear((2 if scores == "both" else 1) * low_rank, self.head_dim)
        self.objective: Tensor | None = None
        for weight in (*self.we.data, *self.wr.data):
            nn.init.orthogonal_(weight)

    def attend(
        self, x: Tensor, mask: Tensor | None = None, *, observe: bool = False
    ) -> tuple[Tensor, dict[str, Any]]:
        q, k = self.project(x)
        slices = None if self.independent else split_heads(x, self.num_heads)
        e, r = primal_scores(q, k, self.we, self.wr, x=slices, causal=self.causal, mask=mask)
        lam = self.log_lam.exp()
        self.objective = (
            ksvd_loss(e, r, self.we, self.wr, lam, mask=mask, convention=self.convention)
            if self.training
            else None
        )
        output = self.mix(torch.cat([e, r], -1) if self.scores == "both" else e)
        return output, {"q": q, "k": k, "e_scores": e, "r_scores": r} if observe else {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "objective": None}  # a tensor inside a graph can be neither copied nor saved

    def kernel(
        self, x: Float[Tensor, "batch token dim"], mask: Tensor | None = None
    ) -> Float[Tensor, "batch head query key"]:
        """Induced kernel matrix of this layer for an input: see `primal_kernel`."""
        q, k = self.project(x)
        slices = None if self.independent else split_heads(x, self.num_heads)
        return primal_kernel(q, k, x=slices, samples=self.we.shape[1], causal=self.causal, mask=mask)


def primal_layers(model: nn.Module) -> list[PrimalAttention]:
    """The primal layers of a model, in the order of its modules; their ``objective`` is what a loss adds."""
    return [module for module in model.modules() if isinstance(module, PrimalAttention)]
