"""Does attention project its queries on the principal axes of its keys: the projection error J_proj.

The loss of outputs h_i as coordinates on axes u_d is mean_i ‖φ(q_i) − Σ_d h_id u_d‖² (teo2024 eq. 12, 13). Papers
report ‖φ(q_i)‖² − ‖h_i‖² instead, in three conventions; this module also has the loss itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any, Literal, NamedTuple

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from workbench.analyses.kernel_pca import PrincipalAxes, kpca_values, principal_axes
from workbench.analyses.layer import Layer, need_token_attention, report_axes, standardize_column
from workbench.analyses.linalg import EPSILON
from workbench.analyses.null_values import NULLS, check_nulls, for_each_head, null_values
from workbench.analyses.reductions import HeadOutput
from workbench.analyses.registry import Analysis, OfValues
from workbench.analyses.tiles import Attention, Maps, Mask, Operands, reduce_tiles
from workbench.captures import attention_weights
from workbench.core import operands
from workbench.core.errors import InputError, UnknownName
from workbench.core.intervals import mean_interval, paired_interval
from workbench.core.operands import check_axes, check_finite, checked_tensors, map_heads, stack_heads
from workbench.frames.estimate import over_everything, side_of_null, unit_of
from workbench.frames.measurement import Measurement
from workbench.frames.metric import Metric

CONVENTIONS = ("teo2024_as_published", "teo2024_as_implemented", "saritas2025", "exact")
_STANDARDS = ("none", "per-token")
NORM_STATISTICS = ("mean", "median", "q2.5", "q25", "q75", "q97.5")
QUANTILES = (0.5, 0.025, 0.25, 0.75, 0.975)
_RATIO_EPSILON = 1e-8  # of saritas2025's relative errors
LARGEST = torch.finfo(torch.float64).max


@dataclass(frozen=True)
class Options(OfValues):
    """Conventions and standardisation."""

    convention: Annotated[
        Literal["teo2024_as_published", "teo2024_as_implemented", "saritas2025", "exact", "all"],
        "teo2024_as_published, teo2024_as_implemented, saritas2025, exact or all",
    ] = "all"
    standardize: Annotated[
        Literal["none", "per-token"],
        "none, or per-token: q and k over features, and attention from them (teo2024_as_implemented always does)",
    ] = "none"


_PROJECTION_ERROR = Metric(
    "projection_error",
    "Projection error",
    "J_proj by its convention: teo2024_as_published mean(‖φ‖² − ‖h‖²), teo2024_as_implemented its logarithm (nats) as "
    "published, saritas2025 mean |‖φ‖² − ‖h‖²|, exact the loss of the best signed assignment of outputs "
    "to axes",
    "teo2024 eq. 13, Fig. 1; saritas2025 App. A",
    log=True,
)
_PROJECTION_FLOOR = Metric(
    "projection_floor",
    "Projection error of the true projections",
    "exact projection error of h = P/μ, the least there is",
    low=0,
    log=True,
)
_PROJECTION_ZERO_PREDICTOR = Metric(
    "projection_zero_predictor",
    "Projection error of the zero predictor",
    "mean over tokens of ‖φ(q)‖²: the exact projection error of an output of zeros",
    low=0,
    log=True,
)
_PHI_NORM2 = Metric(
    "phi_norm2",
    "Squared norm of φ(q)",
    "‖φ(q_i)‖² = exp(s q_i·q_i − 2 log g(q_i)); mean, median or quantile over tokens",
    "saritas2025 Figs 1, 2, 5",
    low=0,
    log=True,
)
_H_NORM2 = Metric(
    "h_norm2",
    "Squared norm of the head output",
    "‖h_i‖² of a head's attention output before the output projection; mean, median or quantile over tokens",
    "saritas2025 Figs 1, 2, 5",
    low=0,
    log=True,
)
_PROJECTION_ERROR_OVER_PHI = Metric(
    "projection_error_over_phi",
    "Projection error relative to ‖φ(q)‖²",
    "mean over tokens of |‖φ‖² − ‖h‖²| / (‖φ‖² + 1e-8)",
    "saritas2025 App. A",
    low=0,
)
_PROJECTION_ERROR_OVER_H = Metric(
    "projection_error_over_h",
    "Projection error relative to ‖h‖²",
    "mean over tokens of |‖φ‖² − ‖h‖²| / (‖h‖² + 1e-8)",
    "saritas2025 App. A",
    low=0,
)


class ProjectionErrors(NamedTuple):
    """Projection errors, norms and null samples per head; see `projection_errors`.

    ``errors`` by convention, ``null_samples`` by null; statistic follows `NORM_STATISTICS`.
    """

    errors: dict[str, Float[Tensor, "*batch"]]
    floor: Float[Tensor, "*batch"]
    baseline: Float[Tensor, "*batch"]
    error_over_phi: Float[Tensor, "*batch"]
    error_over_h: Float[Tensor, "*batch"]
    phi_norm2: Float[Tensor, "*batch statistic"]
    h_norm2: Float[Tensor, "*batch statistic"]
    null_samples: dict[str, Float[Tensor, "*batch sample"]]
    axes: Int[Tensor, "*batch"]
    resolved: Int[Tensor, "*batch"]
    converged: Int[Tensor, "*batch"]


@checked_tensors
def projection_errors(
    q: Float[Tensor, "*batch query head_dim"],
    k: Float[Tensor, "*batch token head_dim"],
    v: Float[Tensor, "*batch token value_dim"],
    scale: float | Tensor,
    mask: Bool[Tensor, "*batch token"] | None = None,
    *,
    attention_mask: Tensor | Mask | None = None,
    output: Float[Tensor, "*batch query value_dim"] | None = None,
    standardize: str = "none",
    conventions: Sequence[str] = CONVENTIONS,
    shared: Float[Tensor, "*#batch token width"] | None = None,
    null_samples: int = 0,
    nulls: Sequence[str] = NULLS,
    seeds: Sequence[int] | None = None,
    tiled: bool = False,
) -> ProjectionErrors:
    """Projection error of every head by each convention, with φ(q_i) over all (real) keys and h_i the output.

    errors: "teo2024_as_published" mean_i(‖φ‖² − ‖h‖²) (eq. 13); "saritas2025" mean_i |‖φ‖² − ‖h‖²| (App. A);
        "teo2024_as_implemented" the natural logarithm of mean_i(‖φ‖² − ‖h‖²) as the authors' code has it: q and k
        standardised per token, ‖φ‖² := exp(q·q − 2 log g(q) − 2(1 − s) q·k_1) with the scale s left out in two
        places; NaN where the mean is not positive. "exact" the least loss over all assignments of output columns
        to axes with signs: the axes are orthogonal, so the loss is a sum over axes, and the best assignment is
        linear. The top min(d_v, N − 1) axes; output columns beyond them are assigned to none.
    floor: the exact loss of the true projections, h_id := φ(q_i)·u_d / μ_d. baseline: mean_i ‖φ(q_i)‖², the loss
        of h = 0. Both NaN unless "exact" is asked for.
    error_over_phi, error_over_h: mean_i of saritas2025's error / (norm² + 1e-8).
    phi_norm2, h_norm2: statistics of ‖φ(q_i)‖² and ‖h_i‖² over queries.

    All dimensionless up to the unit of v. k and v come one copy per query head. Queries may differ in number from
    keys (class attention); else ``mask`` (true at real tokens) leaves padding out as query and key.
    ``attention_mask`` (true = may attend, or added to the scores; in tiles also a causal `Mask`, with equal numbers of
    queries and keys) shapes only h: the kernel has no masks.
    ``output`` is what the model gave; without it, or with standardize = "per-token" (q and k, unbiased standard
    deviation over features, constant tokens 0), h = softmax(s q kᵀ + attention_mask) v. ``null_samples``: the exact
    error with v replaced by values of each null (`null_values.null_values`, which may read ``shared``, the values of
    all heads side by side, broadcast to k), ``seeds`` one per flattened head. ``tiled`` forms no matrix of
    queries × keys.

    NaN: the exact error, its floor and null samples where all keys are equal (``resolved`` 0). A ‖φ‖² above 1.8e308
    counts as that, and means over it are infinite. ``resolved`` is ``axes`` where "exact" is not asked for.
    Raises `InputError` for missing, unequal or empty axes, NaN or infinite values, a wrong scale or mask.
    """
    for convention in conventions:
        if convention not in CONVENTIONS:
            raise UnknownName("convention", convention, CONVENTIONS)
    if standardize not in _STANDARDS:
        raise UnknownName("standardize", standardize, _STANDARDS)
    if isinstance(attention_mask, Mask) and not tiled:
        raise InputError("attention_mask is a Mask, which is read in tiles; give tiled=True, or a tensor")
    check_nulls(nulls, null_samples)
    shared = for_each_head(shared, k)
    more = {"output": output, "shared": shared}
    operands_by_name = {"q": q, "k": k, "v": v} | {
        name: part for name, part in more.items() if part is not None
    }
    masks = _check(operands_by_name, mask)
    batch, heads = k.shape[:-2], k[..., 0, 0].numel()
    scales = operands.check_scale(scale, batch, k).expand(*batch, 1, 1).reshape(-1)
    if seeds is not None and len(seeds) != heads:
        raise InputError(f"got {len(seeds)} seeds for {heads} heads; give one seed per head")
    drawn = dict.fromkeys(nulls, null_samples) if null_samples and "exact" in conventions else {}

    def of_head(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        shared: Tensor | None,
        output: Tensor | None,
        kept: Tensor | None,
        bias: Tensor | Mask | None,
        scale: Tensor,
        seed: int,
    ) -> ProjectionErrors:
        if kept is not None and not kept.all():
            if len(q) == len(k):
                q, output = q[kept], None if output is None else output[kept]
                bias = bias[kept] if isinstance(bias, Tensor) else bias
            k, v, shared = k[kept], v[kept], None if shared is None else shared[kept]
            bias = bias[:, kept] if isinstance(bias, Tensor) else bias  # the order of those left is as it was
        attention_mask = bias if isinstance(bias, Mask) else Mask(bias)
        head = Operands(q.double()[None, None], k.double()[None, None], scale, attention_mask, None)
        outputs = None if output is None else output.double()
        if standardize == "per-token":
            head, outputs = _standardized(head), None
        return _of_head(head, v.double(), outputs, shared, conventions, drawn, seed, tiled)

    def flat(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor.detach().reshape(-1, *tensor.shape[-2:])

    parts = map_heads(
        of_head,
        flat(q),
        flat(k),
        flat(v),
        flat(shared),
        flat(output),
        None if masks is None else masks.reshape(heads, -1),
        _per_head(attention_mask, (*batch, q.shape[-2], k.shape[-2]), k.device),
        scales,
        range(heads) if seeds is None else seeds,
    )
    return stack_heads(parts, batch)


@checked_tensors
def log_feature_norms(
    q: Float[Tensor, "*batch query head_dim"],
    k: Float[Tensor, "*batch token head_dim"],
    scale: float | Tensor,
) -> Float[Tensor, "*batch query"]:
    """log ‖φ(q_i)‖² = s q_i·q_i − 2 log Σ_j exp(s q_i·k_j) in nats (teo2024 eq. 8)."""
    return _log_norms(q, (scale * (q @ k.mT)).logsumexp(-1), scale)


def _log_norms(q: Tensor, log_normaliser: Tensor, scale: float | Tensor) -> Tensor:
    return scale * q.square().sum(-1) - 2 * log_normaliser


@checked_tensors
def projections(
    q: Float[Tensor, "query head_dim"],
    k: Float[Tensor, "token head_dim"],
    scale: float | Tensor,
    axes: PrincipalAxes,
) -> Float[Tensor, "query axis"]:
    """P_id = φ(q_i)·u_d: attention with the kernel-PCA values V̇ in place of V (teo2024 theorem 1)."""
    values = kpca_values(axes)
    return (scale * (q @ k.mT)).softmax(-1) @ values.values * values.log_factor.exp()


def least_assigned(
    h: Float[Tensor, "*draw query value_dim"],
    projected: Float[Tensor, "query axis"],
    eigenvalues: Float[Tensor, " axis"],
) -> Float[Tensor, "*draw"]:
    """Return what the best assignment of output columns to axes, with signs, adds to mean ‖φ(q_i)‖².

    Σ_d [−2 |Pᵀh|_{d,π(d)} / N + μ_d mean_i h²_{i,π(d)}], least over π: a linear assignment problem. Never below
    −Σ_d mean P_d² / μ_d. saritas2025 (App. A) takes it for a search through d_v! assignments.
    """
    gain = (projected.mT @ h).abs() * (2 / h.shape[-2])
    cost = eigenvalues[:, None] * h.square().mean(-2, keepdim=True) - gain
    flat = cost.reshape(math.prod(cost.shape[:-2]), *cost.shape[-2:])  # there may be no axes
    best = [cost_matrix[linear_sum_assignment(cost_matrix.cpu().numpy())].sum() for cost_matrix in flat]
    return torch.stack(best).reshape(cost.shape[:-2])


@checked_tensors
def assigned_range(
    h: Float[Tensor, "*draw query value_dim"],
    projected: Float[Tensor, "query axis"],
    eigenvalues: Float[Tensor, " axis"],
) -> Float[Tensor, "*draw end"]:
    """`least_assigned`, and the most that an assignment of output columns to axes, with signs, can add instead.

    The two ends say how far the loss depends on the assignment (saritas2025 App. A.1).
    """
    gain = (projected.mT @ h).abs() * (2 / h.shape[-2])
    cost = eigenvalues[:, None] * h.square().mean(-2, keepdim=True) + gain
    flat = cost.reshape(math.prod(cost.shape[:-2]), *cost.shape[-2:])
    most = [
        cost_matrix[linear_sum_assignment(cost_matrix.cpu().numpy(), maximize=True)].sum()
        for cost_matrix in flat
    ]
    return torch.stack(
        [least_assigned(h, projected, eigenvalues), torch.stack(most).reshape(cost.shape[:-2])], -1
    )


@checked_tensors
def cross_term(
    h: Float[Tensor, "*batch value_dim"], axes: Float[Tensor, "feature value_dim"]
) -> Float[Tensor, "*batch"]:
    """Σ_mn u_m·u_n h_m h_n = ‖Σ_d h_d u_d‖² of outputs and the columns u_d of ``axes`` (saritas2025 App. A.1)."""
    return (h @ axes.mT).square().sum(-1)


@checked_tensors
def cross_term_range(
    h: Float[Tensor, "*draw query value_dim"], eigenvalues: Float[Tensor, " value_dim"]
) -> Float[Tensor, "*draw end"]:
    """Least and largest mean `cross_term` over all assignments of output columns to orthogonal axes, ‖u_d‖² = μ_d.

    It is Σ_d μ_d mean_i h²_{i,π(d)} then, least and largest where one factor falls and rises with the other
    (rearrangement inequality), so no search through the d_v! assignments of saritas2025 App. A.1 is needed. Axes of one
    length give one value: it is ‖h‖² for unit axes.
    """
    sizes = h.square().mean(-2).sort(-1).values
    lengths = eigenvalues.sort().values
    return torch.stack([(sizes * lengths.flip(0)).sum(-1), (sizes * lengths).sum(-1)], -1)


def _output(attention: Attention, values: Tensor) -> Tensor:
    """Return attention times values (…, token, value_dim); 0 for a query that may attend to nothing."""
    if isinstance(attention, Maps):
        return attention.attn[0, 0] @ values
    columns = values.movedim(-2, 0)
    reduced = attention.reduced(HeadOutput(columns.flatten(1)[None, None]))
    return reduced["output"][0, 0].view(-1, *columns.shape[1:]).movedim(0, -2)


def _attention(head: Operands, tiled: bool) -> Attention:
    """Return the operands themselves for tiles, else their attention map."""
    return head if tiled else Maps(attention_weights(head.q, head.k, head.scale, head.mask.tensor))


def _log_normaliser(head: Operands, tiled: bool) -> Tensor:
    """Return log Σ_j exp(s q_i·k_j) over all keys."""
    if tiled:
        return reduce_tiles(head.q, head.k, scale=head.scale).log_normaliser[0, 0]
    return (head.scale * (head.q[0, 0] @ head.k[0, 0].mT)).logsumexp(-1)


def _of_head(
    head: Operands,
    v: Tensor,
    output: Tensor | None,
    shared: Tensor | None,
    conventions: Sequence[str],
    drawn: dict[str, int],
    seed: int,
    tiled: bool,
) -> ProjectionErrors:
    """Return `projection_errors` of one head."""
    q, k, scale = head.q[0, 0], head.k[0, 0], head.scale
    attention = _attention(head, tiled) if output is None or drawn else head
    h = _output(attention, v) if output is None else output
    h_norm = h.square().sum(-1)
    phi = _log_norms(q, _log_normaliser(head, tiled), scale).exp().clamp_max(LARGEST)
    gaps = (phi - h_norm).abs()
    errors = {"teo2024_as_published": (phi - h_norm).mean(), "saritas2025": gaps.mean()}
    if "teo2024_as_implemented" in conventions:
        errors["teo2024_as_implemented"] = _log_error_of_code(_standardized(head), v, tiled)
    floor = baseline = phi.new_full((), torch.nan)
    null_samples: dict[str, Tensor] = {}
    count = torch.tensor(min(v.shape[-1], len(k) - 1), device=k.device)
    resolved = converged = count
    if "exact" in conventions:
        baseline = phi.mean()
        axes = principal_axes(k, scale, int(count), tiled=tiled)
        resolved, converged = axes.resolved, axes.converged
        undefined = torch.where(resolved > 0, 0.0, torch.nan)  # equal keys have no axes to project on
        top = int(resolved)
        values = kpca_values(axes)
        unmasked = _attention(head._replace(mask=Mask()), tiled)  # kernel PCA sees all keys
        shares = _output(unmasked, values.values)[:, :top]  # axes within rounding have no length
        projected = shares * values.log_factor.exp()
        eigenvalues = axes.eigenvalues[:top] * axes.log_factor.exp()
        errors["exact"] = baseline + least_assigned(h, projected, eigenvalues) + undefined
        floor = baseline - _captured(shares, axes, values.log_factor) + undefined
        for null, number in drawn.items():
            others = _output(attention, null_values(v, null, number, seed, shared))
            null_samples[null] = baseline + least_assigned(others, projected, eigenvalues) + undefined
    return ProjectionErrors(
        errors={name: errors[name] for name in conventions},
        floor=floor,
        baseline=baseline,
        error_over_phi=(gaps / (phi + _RATIO_EPSILON)).mean(),
        error_over_h=(gaps / (h_norm + _RATIO_EPSILON)).mean(),
        phi_norm2=_statistics(phi),
        h_norm2=_statistics(h_norm),
        null_samples=null_samples,
        axes=count,
        resolved=resolved,
        converged=converged,
    )


def _captured(shares: Tensor, axes: PrincipalAxes, log_factor: Tensor) -> Tensor:
    """Σ_d mean_i (φ(q_i)·u_d)² / μ_d, with the factors of both taken together: each may underflow by itself.

    ``shares`` times exp(log_factor) are the projections P_id.
    """
    factor = (2 * log_factor - axes.log_factor).exp()
    return (shares.square().mean(0) / axes.eigenvalues[: shares.shape[1]]).sum() * factor


def _log_error_of_code(head: Operands, v: Tensor, tiled: bool) -> Tensor:
    """The authors' code: log mean(‖φ‖² − ‖h‖²) of standardised q and k, NaN where the mean is not positive."""
    q, k, scale = head.q[0, 0], head.k[0, 0], head.scale
    log_phi = q.square().sum(-1) - 2 * _log_normaliser(head, tiled) - 2 * (1 - scale) * (q @ k[0])
    positive = log_phi.logsumexp(0)
    negative = _output(_attention(head, tiled), v).square().sum().log()
    # log(e^a − e^b) = a + log(1 − e^(b − a))
    error = positive + torch.log1p(-(negative - positive).exp()) - math.log(len(q))
    return torch.where(negative < positive, error, torch.nan)


def _standardized(head: Operands) -> Operands:
    """Each query and key over its features: mean 0, unbiased variance 1; 0 where all features are equal to rounding.

    Unlike `operands.standardize` for a single query too, and nothing added to the deviation, as published.
    """

    def standardized(x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        rounding = x.shape[-1] * EPSILON * x.abs().amax(-1, keepdim=True)
        return torch.where(
            centred.abs().amax(-1, keepdim=True) > rounding, centred / x.std(-1, keepdim=True), 0
        )

    return head._replace(q=standardized(head.q), k=standardized(head.k))


def _statistics(norms: Tensor) -> Tensor:
    quantiles = torch.quantile(norms, norms.new_tensor(QUANTILES))
    return torch.cat([norms.mean()[None], quantiles])


def _per_head(
    mask: Tensor | Mask | None, shape: tuple[int, ...], device: torch.device
) -> list[Tensor] | list[Mask] | None:
    """(query, token) views of an attention mask, one per flattened head; broadcast, not copied."""
    if mask is None:
        return None
    if isinstance(mask, Mask):
        return [mask] * math.prod(shape[:-2])
    try:
        expanded = mask.to(device).expand(shape)
    except RuntimeError as error:
        raise InputError(
            f"attention_mask of shape {tuple(mask.shape)} does not fit (batch, head, query, key) = {shape}"
        ) from error
    return [expanded[index] for index in product(*map(range, shape[:-2]))]


def _check(tensors: dict[str, Tensor], mask: Tensor | None) -> Tensor | None:
    """Check what an analysis of q, k, v needs; returns the mask in full."""
    for name, tensor in tensors.items():
        check_axes(name, tensor, operands.TOKENS)
    q, k, v = tensors["q"], tensors["k"], tensors["v"]
    wanted = {"q": (*k.shape[:-2], q.shape[-2], k.shape[-1]), "v": (*k.shape[:-1], v.shape[-1])}
    wanted["output"] = (*q.shape[:-1], v.shape[-1])
    if "shared" in tensors:
        wanted["shared"] = (*k.shape[:-1], tensors["shared"].shape[-1])
    for name, tensor in tensors.items():
        if tuple(tensor.shape) != wanted.get(name, tuple(k.shape)):
            raise InputError(
                f"{name} of shape {tuple(tensor.shape)} does not fit k of shape {tuple(k.shape)}: expected "
                f"{wanted[name]}; give grouped-query k and v one copy per query head"
            )
    operands.check_token_count("k", k.shape[-2])
    full = None if mask is None else operands.check_mask(mask, k.shape[:-1]).to(k.device)
    for name, tensor in tensors.items():
        fits = full is not None and tensor.shape[-2] == k.shape[-2]
        seen = torch.where(full[..., None], tensor, 0) if full is not None and fits else tensor
        check_finite(name, seen, operands.TOKENS)
    return full


def measure(layer: Layer, options: Options) -> Iterator[Measurement]:
    """Projection errors, floor, zero predictor and norms, one per input and query head, beside random values."""
    need_token_attention(layer)
    record = layer.record
    queries = layer.site("q")
    q = layer.choose_heads(queries)
    k, v = (layer.of_queries(layer.site(name), queries.shape[1]) for name in "kv")
    conventions = CONVENTIONS if options.convention == "all" else (options.convention,)
    tiled = options.in_tiles(k.shape[-2] ** 2)
    causal = tiled and record.causal and q.shape[-2] == k.shape[-2]
    errors = projection_errors(
        q,
        k,
        v,
        layer.scale(q.shape[-1], queries.shape[1]),
        layer.head_mask(k, options.padding),
        attention_mask=Mask(causal=True) if causal else layer.head_attention_mask,
        output=None if record.head_out is None else record.head_out[:, layer.heads],
        standardize=options.standardize,
        conventions=conventions,
        shared=options.shared_values(layer),
        null_samples=options.null_samples,
        nulls=options.nulls,
        seeds=layer.seeds(len(q)),
        tiled=tiled,
    )
    report_axes(layer, errors.resolved, errors.axes, errors.converged, v.shape[-1])
    layer.count_tiled(tiled)
    _report_attention(layer, errors.phi_norm2[..., 0])
    standardized = standardize_column(options.standardize)

    def each(metric: Metric, values: Tensor, **columns: Any) -> Measurement:
        return Measurement(metric, layer.per_input(values), columns=standardized | columns)

    for convention in conventions:
        measured = each(_PROJECTION_ERROR, errors.errors[convention], convention=convention)
        if convention == "exact":
            measured.null_samples = {
                name: layer.per_input(drawn) for name, drawn in errors.null_samples.items()
            }
        yield measured
    if "exact" in conventions:
        yield each(_PROJECTION_FLOOR, errors.floor, convention="exact")
        yield each(_PROJECTION_ZERO_PREDICTOR, errors.baseline, convention="exact")
    if "saritas2025" in conventions:
        yield each(_PROJECTION_ERROR_OVER_PHI, errors.error_over_phi, convention="saritas2025")
        yield each(_PROJECTION_ERROR_OVER_H, errors.error_over_h, convention="saritas2025")
    for number, statistic in enumerate(NORM_STATISTICS):
        yield each(_PHI_NORM2, errors.phi_norm2[..., number], statistic=statistic)
        yield each(_H_NORM2, errors.h_norm2[..., number], statistic=statistic)


def _report_attention(layer: Layer, like: Tensor) -> None:
    """Count the heads whose attention is not that of the kernel: masked or biased by query, or no softmax."""
    record = layer.record
    mixed = torch.full_like(like, not record.rows_sum_to_one, dtype=torch.bool)
    layer.counts.add("heads do not attend by a softmax over the tokens; h is the model's own output", mixed)
    if record.causal:  # not written out for this
        uneven = record.q is not None and record.q.shape[-2] > 1
    elif record.mask is None:
        return
    else:
        uneven = (record.mask != record.mask[..., :1, :]).any()
    layer.counts.add(
        "heads have a mask or bias that differs from query to query (causal, windows, positions); the kernel "
        "sees all keys",
        torch.full_like(like, bool(uneven), dtype=torch.bool),
    )


def findings(frame: pd.DataFrame, options: Options) -> list[str]:
    """Report the exact error with floor, zero predictor and null; the papers' formulas; the gap between both norms.

    Of several checkpoints, how each of these changes from the first to the last.
    """
    if frame["checkpoint"].nunique() > 1:
        return _through_training(frame)
    errors = frame[frame["metric"] == "projection_error"]
    by_convention = dict(iter(errors.groupby("convention", sort=False)))
    sentences = []
    if "exact" in by_convention:
        rows = by_convention.pop("exact")
        exact, floor, zero = (
            over_everything(part)
            for part in (
                rows,
                *(
                    frame[frame["metric"] == name]
                    for name in ("projection_floor", "projection_zero_predictor")
                ),
            )
        )
        sentences.append(
            f"exact projection error {exact.words('.3g')}, {unit_of(exact)}: {exact.value / zero.value:.1%} of "
            f"the zero predictor's (true projections: {floor.value / zero.value:.1%}){side_of_null(rows, '.3g')}"
        )
    if by_convention:
        values = {name: over_everything(rows) for name, rows in by_convention.items()}
        parts = [f"{_FORMULAS[name]} is {value.words('.3g')}" for name, value in values.items()]
        sentences.append(f"{'; '.join(parts)}, {unit_of(next(iter(values.values())))}")
    return sentences + _norms_apart(frame[frame["metric"].isin(["phi_norm2", "h_norm2"])])


def _through_training(frame: pd.DataFrame) -> list[str]:
    """From the first checkpoint to the last, input by input: what grows or falls, if the ratio's interval leaves 1."""
    quantities = {
        "mean |‖φ(q)‖² − ‖h‖²|": ("projection_error", "convention", "saritas2025"),
        "mean ‖h‖²": ("h_norm2", "statistic", "mean"),
        "mean ‖φ(q)‖²": ("phi_norm2", "statistic", "mean"),
        "exact projection error": ("projection_error", "convention", "exact"),
        "its floor": ("projection_floor", "convention", "exact"),
    }
    overall = frame[frame[["layer", "head"]].isna().all(axis=1)]
    ends, changes = [*dict.fromkeys(overall["checkpoint"])], []
    first, last = ends[0], ends[-1]
    for words, (metric, column, kind) in quantities.items():
        rows = overall[(overall["metric"] == metric) & (overall[column] == kind)]
        start, end = (rows[rows["checkpoint"] == name] for name in (first, last))
        by_input = [part[part["input"].notna()].groupby("input")["value"].mean() for part in (start, end)]
        if start.empty or end.empty:
            continue
        ratio = paired_interval(by_input[1], by_input[0], ratio=True)
        verdict = "grows" if ratio.low > 1 else "falls" if ratio.high < 1 else "does not change significantly"
        changes.append(
            f"{words} {verdict}, from {over_everything(start).value:.3g} to {over_everything(end).value:.3g}, "
            f"{ratio.words('.3g')} times"
        )
    if not changes:
        return []
    return [
        f"from {first} to {last}, {unit_of(ratio).replace('mean', 'geometric mean')}: {'; '.join(changes)}"
    ]


_FORMULAS = {
    "teo2024_as_published": "mean (‖φ(q)‖² − ‖h‖²) of eq. 13",
    "teo2024_as_implemented": "its logarithm as the authors' code has it",
    "saritas2025": "mean |‖φ(q)‖² − ‖h‖²|",
}


def _norms_apart(norms: pd.DataFrame) -> list[str]:
    """The ratio of the mean norms over inputs, and in how many layers the middle 95 % of tokens do not overlap."""
    if norms.empty:
        return []
    overall = norms[norms[["layer", "head"]].isna().all(axis=1) & (norms["statistic"] == "mean")]
    each = overall[overall["input"].notna()].pivot_table(index="input", columns="metric", values="value")
    layered = norms[norms["layer"].notna() & norms["head"].isna() & norms["input"].isna()]
    table = layered.pivot_table(index="layer", columns=["metric", "statistic"], values="value")
    if each.empty or table.empty:
        return []
    ratio = mean_interval(each["h_norm2"] / each["phi_norm2"], ratio=True)
    phi, h = table["phi_norm2"], table["h_norm2"]
    disjoint = (h["q2.5"] > phi["q97.5"]) | (phi["q2.5"] > h["q97.5"])
    wider = phi["q97.5"] / phi["q2.5"] > h["q97.5"] / h["q2.5"]
    by_layer = h["mean"] / phi["mean"]
    return [
        f"mean ‖h‖² is {ratio.words('.3g')} times mean ‖φ(q)‖², geometric mean over {ratio.n} inputs with its 95 % "
        f"CI, and {by_layer.min():.3g} to {by_layer.max():.3g} times by layer; the middle 95 % of their tokens are "
        f"apart in {disjoint.sum()} of {len(table)} layers, and ‖φ(q)‖² spreads wider in {wider.sum()}"
    ]


ANALYSIS = Analysis(
    "projection-error",
    "Do head outputs project the queries on the principal axes",
    ("q", "k", "v", "scale", "mask", "head_out"),
    measure,
    (
        _PROJECTION_ERROR,
        _PROJECTION_FLOOR,
        _PROJECTION_ZERO_PREDICTOR,
        _PHI_NORM2,
        _H_NORM2,
        _PROJECTION_ERROR_OVER_PHI,
        _PROJECTION_ERROR_OVER_H,
    ),
    Options,
    findings=findings,
    pooled=("checkpoint",),
)
