"""Coding rates of tokens: how much volume they take, all together and group by group (wu2025 eqs. 1 and 4).

Tokens are rows here, columns in the paper. ``eps`` is ε, in the unit of the tokens; everything depends on d/ε² with d
the width of a token. None stands for d/ε² = 1, which is what the trained U_k of wu2025 have absorbed (C.1). Rates are
in nats, float64; padding (``mask`` false) counts neither as a token nor in n.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

import pandas as pd
import torch
from annotated_types import Ge, Le
from jaxtyping import Bool, Float
from torch import Tensor

from workbench.analyses.layer import Layer
from workbench.analyses.linalg import head_bases
from workbench.analyses.membership import memberships, own_convention
from workbench.analyses.registry import Analysis, OfInputs
from workbench.captures import first_norm
from workbench.core import operands
from workbench.core.errors import InputError
from workbench.core.intervals import Finding, mean_interval
from workbench.core.operands import check_axes, check_finite, checked_tensors
from workbench.frames.measurement import Measurement
from workbench.frames.metric import Metric

STREAMS = ("input", "resid_mid", "resid_post")


@dataclass(frozen=True)
class Options(OfInputs):
    """Distortion, membership and streams of the rates."""

    eps: Annotated[
        Annotated[float, Ge(1e-100), Le(1e100)] | None,
        "distortion ε of the rates, in the unit of the tokens; none: d/ε² = 1 with d the width of a token, as the "
        "trained projections have absorbed it",
    ] = None
    membership: Annotated[
        Literal["layer", "uniform"],
        "layer: as the layer itself groups its tokens (softmax: ours, from its value projections); uniform: every "
        "token equally in all heads",
    ] = "layer"
    normalize: Annotated[
        Literal["layer", "none"],
        "layer: streams pass through the norm before the layer's attention, so that they compare with its input; none: "
        "as they are",
    ] = "layer"


_CODING_RATE = Metric(
    "coding_rate",
    "Coding rate R",
    "R(Z) = ½ log det(I + (d/ε²)(1/n) ZᵀZ) of the tokens named by the candidate: what attention receives "
    "(input), the stream after attention, or after the block",
    "wu2025 eq. 1",
    unit="nats",
    low=0,
)
_CODING_RATE_COMPRESSION = Metric(
    "coding_rate_compression",
    "Coding rate within heads R_c",
    "R_c(Z, Π) = ½ Σ_k (n_k/n) log det(I + (d/ε²)(1/n_k) Zᵀ Diag(π_k) Z), Π by its convention",
    "wu2025 eq. 1",
    unit="nats",
    low=0,
)
_CODING_RATE_REDUCTION = Metric(
    "coding_rate_reduction",
    "Coding rate reduction ΔR",
    "ΔR = R − R_c: what grouping the tokens by head saves",
    "wu2025 eq. 1",
    unit="nats",
    low=0,
)
_CODING_RATE_VARIATIONAL = Metric(
    "coding_rate_variational",
    "Variational compression R_c^var",
    "½ Σ_k (n_k/n) Σ_i log(1 + (d/ε²)(1/n_k) Σ_j Π_jk w_jki²), w_k = Z U_k; U_k as the layer has them, or "
    "orthonormal (standardize)",
    "wu2025 eq. 4, Fig. 4a",
    unit="nats",
    low=0,
)


@checked_tensors
def coding_rate(
    z: Float[Tensor, "*batch token width"],
    eps: float | None = None,
    mask: Bool[Tensor, "*batch token"] | None = None,
) -> Float[Tensor, "*batch"]:
    """R(Z) = ½ log det(I + (d/ε²)(1/n) ZᵀZ): nats to code a token up to the distortion ε (wu2025 eq. 1).

    Raises `InputError` for missing axes, NaN or infinite values, ``eps`` outside 1e-100 to 1e100, and a mask that
    leaves fewer than two tokens.
    """
    z, real = _real(z, mask)
    return _half_log_det(z * (_precision(eps, z.shape[-1]) / real.double().sum(-1))[..., None, None].sqrt())


@checked_tensors
def coding_rate_compression(
    z: Float[Tensor, "*batch token width"],
    membership: Float[Tensor, "*batch head token"],
    eps: float | None = None,
    mask: Bool[Tensor, "*batch token"] | None = None,
) -> Float[Tensor, "*batch"]:
    """R_c(Z, Π) = ½ Σ_k (n_k/n) log det(I + (d/ε²)(1/n_k) Zᵀ Diag(π_k) Z), n_k = Σ_j Π_jk (wu2025 eq. 1).

    Never more than `coding_rate` where Π sums to 1 over heads; the difference is the rate reduction ΔR. A head without
    tokens counts 0. Raises what `coding_rate` raises, and `InputError` where Π does not fit the tokens.
    """
    z, real = _real(z, mask)
    weights = _weights(membership, z, real)
    size = weights.sum(-1)
    factor = _precision(eps, z.shape[-1]) / torch.where(size > 0, size, 1.0)
    rates = [  # head by head: all at once would hold a copy of the tokens for each
        _half_log_det(z * (factor[..., head, None] * weights[..., head, :]).sqrt()[..., None])
        for head in range(weights.shape[-2])
    ]
    return (size * torch.stack(rates, -1)).sum(-1) / real.sum(-1)


@checked_tensors
def variational_compression(
    w: Float[Tensor, "*batch head token head_dim"],
    membership: Float[Tensor, "*batch head token"],
    width: int,
    eps: float | None = None,
    mask: Bool[Tensor, "*batch token"] | None = None,
) -> Float[Tensor, "*batch"]:
    """R_c^var = ½ Σ_k (n_k/n) Σ_i log(1 + (d/ε²)(1/n_k) Σ_j Π_jk w_jki²), w_k = Z U_k (wu2025 eq. 4).

    What token statistics attention descends on. For orthonormal U_k whose image holds that of Zᵀ Diag(π_k) Z it
    bounds `coding_rate_compression` from above, and equals it where U_k diagonalises that matrix (Corollary 1).
    ``width`` is d, that of a token. Raises what `coding_rate_compression` raises.
    """
    w, real = _real(w, None if mask is None else mask[..., None, :])
    weights = _weights(membership, w[..., 0, :, :], real[..., 0, :])
    size = weights.sum(-1)
    moments = (weights[..., None, :] @ w.square()).squeeze(-2) / torch.where(size > 0, size, 1.0)[..., None]
    rates = torch.log1p(_precision(eps, width) * moments).sum(-1) / 2
    return (size * rates).sum(-1) / real[..., 0, :].sum(-1)


def _precision(eps: float | None, width: int) -> float:
    """d/ε²."""
    if eps is None:
        return 1.0
    if isinstance(eps, (bool, str)) or not 1e-100 <= eps <= 1e100:
        raise InputError(f"eps must be a number from 1e-100 to 1e100; got {eps!r}")
    return width / eps**2


def _real(x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Tokens in float64, zero where padding, and which are real, (*batch, token)."""
    check_axes("tokens", x, ("token", "width"))
    real = torch.ones(x.shape[:-1], dtype=torch.bool, device=x.device)
    if mask is not None:
        real = operands.check_mask(mask, x.shape[:-1]).to(x.device)
        x = torch.where(real[..., None], x, 0.0)
    check_finite("tokens", x, ("token", "width"))
    return x.double(), real


def _weights(membership: Tensor, z: Tensor, real: Tensor) -> Tensor:
    """Π in float64, zero for padding."""
    check_axes("membership", membership, ("head", "token"))
    if membership.shape[:-2] != z.shape[:-2] or membership.shape[-1] != z.shape[-2]:
        raise InputError(
            f"membership of shape {tuple(membership.shape)} does not fit tokens of shape {tuple(z.shape)}: expected "
            "(*batch, head, token)"
        )
    weights = torch.where(real[..., None, :], membership.double(), 0.0)
    check_finite("membership", weights, ("head", "token"))
    return weights


def _half_log_det(x: Float[Tensor, "*batch token width"]) -> Float[Tensor, "*batch"]:
    """½ log det(I + xᵀx), by the smaller of xᵀx and xxᵀ, which have the same eigenvalues but for zeros."""
    gram = x @ x.mT if x.shape[-2] <= x.shape[-1] else x.mT @ x
    gram.diagonal(dim1=-2, dim2=-1).add_(1.0)
    return torch.linalg.cholesky(gram).diagonal(dim1=-2, dim2=-1).log().sum(-1)


def measure(layer: Layer, options: Options) -> Iterator[Measurement]:
    """R, R_c, ΔR, and R_c^var with U_k as they are and orthonormal, per input, of each stream of a layer."""
    weights = layer.projection()
    bases = head_bases(weights.weight)
    eps = options.eps
    for site in STREAMS:
        z = _received(layer, site, options.normalize)
        real = layer.real_on(z)
        memberships_by_convention = memberships(layer, z)
        convention = own_convention(layer)
        membership = memberships_by_convention[convention]
        if options.membership == "uniform":
            convention, membership = "uniform", torch.full_like(membership, 1 / membership.shape[1])
        columns = {"candidate": site, "convention": convention}
        try:
            rate = coding_rate(z, eps, real)
            parts = coding_rate_compression(z, membership, eps, real)
            width = z.shape[-1]
            trained = variational_compression(weights(z), membership, width, eps, real)
            bound = variational_compression(z[:, None] @ bases, membership, width, eps, real)
        except InputError as error:
            raise InputError(f"layer {layer.index}, {site}: {error}") from None
        for metric, values, more in (
            (_CODING_RATE, rate, {}),
            (_CODING_RATE_COMPRESSION, parts, {}),
            (_CODING_RATE_REDUCTION, rate - parts, {}),
            (_CODING_RATE_VARIATIONAL, trained, {}),
            (_CODING_RATE_VARIATIONAL, bound, {"standardize": "orthonormal"}),
        ):
            yield Measurement(metric, values, ("input",), columns=columns | more)


def _received(layer: Layer, site: str, normalize: str) -> Float[Tensor, "batch token width"]:
    """Tokens of a stream as the layer's attention would receive them, in float64.

    In a block that normalises first the streams pass through that norm: they differ from the attention's input in size
    above all, and U_k and ε are made for its input. With ``normalize`` "none" they are taken as they are.
    """
    stream = layer.site(site)
    if stream.ndim == 4:  # (batch, row, column, width)
        stream = stream.flatten(1, 2)
    if site == "input" or normalize == "none":
        return stream.double()
    assert layer.model is not None  # its projection was read
    norm = first_norm(layer.model, layer.record.path)
    layer.counts.add(
        "streams (two per input and layer) are taken as they are: no norm is known before the attention",
        torch.full((len(layer.ids),), norm is None),
    )
    if norm is None:
        return stream.double()
    with torch.no_grad():
        return norm(stream).double()


_SHARE_COLUMNS = ("model", "checkpoint", "convention", "step", "steps", "lowered", "share", "low", "high")


def compression_shares(frame: pd.DataFrame) -> pd.DataFrame:
    """In how many layers attention lowers R_c^var, and in how many it falls to the next layer (wu2025 §4.1, Fig. 4a).

    From a ``coding-rate`` result, a row per model, convention and step: "attention", from the attention's input to
    the stream after it, both with U_k of the layer; "layer", from the output of one layer to that of the next, each
    with its U_k, as the paper's figure compares. steps: their number; lowered: how many lower the mean over inputs;
    share: of the steps of one input, mean over inputs, with its 95 % t interval (low, high). Only R_c^var with
    U_k as they are counts. Raises `InputError` where the frame holds none.
    """
    chosen = frame[(frame["metric"] == "coding_rate_variational") & frame["standardize"].isna()]
    if chosen.empty:
        raise InputError("this result holds no coding rates; compute them with the analysis 'coding-rate'")
    shares = []
    for labels, rows in chosen.groupby(["model", "checkpoint", "convention"], dropna=False, sort=False):
        table = rows.pivot_table(index=["candidate", "layer"], columns="input", values="value", sort=False)
        table = table.sort_index()
        before, after, hidden = (table.loc[site] for site in ("input", "resid_mid", "resid_post"))
        changes = {"attention": after - before, "layer": hidden.diff().iloc[1:]}
        shares += [
            dict(zip(_SHARE_COLUMNS[:3], labels, strict=True)) | {"step": step} | _lowered(change)
            for step, change in changes.items()
            if len(change)
        ]
    return pd.DataFrame(shares, columns=list(_SHARE_COLUMNS))


def _lowered(change: pd.DataFrame) -> dict[str, float]:
    """Of a table (layer, input) of changes: how many layers fall on average, and the share of those of an input."""
    shares = (change < 0).mean(axis=0)
    middle, low, high, count = mean_interval(shares)[:4]
    return {
        "steps": len(change),
        "lowered": int((change.mean(axis=1) < 0).sum()),
        "share": middle,
        "low": max(low, 0.0) if count > 1 else middle,
        "high": min(high, 1.0) if count > 1 else middle,
    }


def notes(frame: pd.DataFrame, options: Options) -> list[str]:
    """In how many layers attention lowers the compression, on average."""
    shares = compression_shares(frame)
    return [
        f"attention lowers R_c^var in {row['lowered']} of {row['steps']} layers with membership {row['convention']}"
        for row in shares[shares["step"] == "attention"].to_dict("records")
    ]


def findings(frame: pd.DataFrame, options: Options) -> list[str]:
    """How often attention lowers the compression, and how often it falls to the next layer, with intervals."""
    step_names = (
        (frame["metric"] == "coding_rate_variational") & frame["standardize"].isna() & frame["input"].notna()
    )
    if not step_names.any():
        return []
    words = {
        "attention": "attention lowers R_c^var in {} of {} layers",
        "layer": "it falls in {} of {} steps to the next",
    }
    changes_by_convention: dict[str, list[str]] = {}
    for row in compression_shares(frame[step_names]).to_dict("records"):
        share = Finding(row["share"], row["low"], row["high"], frame["input"].nunique())
        changes_by_convention.setdefault(row["convention"], []).append(
            words[row["step"]].format(row["lowered"], row["steps"])
            + f" ({share.words('.0%')} of those of an input, {share.over('inputs')})"
        )
    return [f"with membership {how} {'; '.join(parts)}" for how, parts in changes_by_convention.items()]


ANALYSIS = Analysis(
    "coding-rate",
    "Coding rates of the tokens before and after attention",
    ("input", "v", "resid_mid", "resid_post"),
    measure,
    (_CODING_RATE, _CODING_RATE_COMPRESSION, _CODING_RATE_REDUCTION, _CODING_RATE_VARIATIONAL),
    Options,
    notes,
    of_heads=False,
    findings=findings,
)
