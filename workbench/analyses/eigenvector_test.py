"""Are the columns of V eigenvectors of the keys' centred Gram matrix K̃, as self-attention as kernel PCA needs?

The published test (teo2024 §2.2.2): for an eigenvector â the ratios γ_i = (K̃ â)_i / (N â_i) are one number. Its
converse: Â = C G⁻¹ V is what V would have to be made from. The exact test: the residual of the eigenvalue equation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import pandas as pd
import torch
from annotated_types import Ge, Le
from jaxtyping import Bool, Float, Int
from torch import Tensor

from workbench.analyses.kernel_pca import SPAN_SHARE, PrincipalAxes, principal_axes
from workbench.analyses.layer import Layer, chosen_keys, need_token_attention, report_axes, standardize_column
from workbench.analyses.linalg import EPSILON
from workbench.analyses.null_values import NULLS, check_nulls, for_each_head, null_values
from workbench.analyses.pairs import absolute_differences, relative_differences
from workbench.analyses.registry import Analysis, OfValues, Standardize
from workbench.analyses.tiled_spectra import GramTiles
from workbench.core.errors import InputError, UnknownName
from workbench.core.intervals import mean_interval
from workbench.core.null_distributions import derived_seed
from workbench.core.operands import checked_tensors, map_tokens, stack_heads
from workbench.frames.estimate import null_range, over_everything, overall_null_rows, side_of_null, unit_of
from workbench.frames.measurement import Measurement
from workbench.frames.metric import Metric

CANDIDATES = ("true", "perturbed", "values")
PAIR_STATISTICS = ("mean", "std")
_PRECISIONS = {"float64": torch.float64, "float32": torch.float32}
_LOWEST = torch.finfo(torch.float64).min
_CODE_EPSILON = 1e-10  # what the authors' code adds to the denominator of relative differences


@dataclass(frozen=True)
class Options(OfValues):
    """In which precision, and how much noise perturbs the eigenvectors."""

    precision: Annotated[
        Literal["float64", "float32"], "float64, or float32 as published: what rounding alone does to γ"
    ] = "float64"
    noise: Annotated[
        float, Ge(0), Le(1e6), "standard deviation of the noise added to the perturbed eigenvectors"
    ] = 0.1
    standardize: Standardize = "none"


_GAMMA_ABS = Metric(
    "gamma_abs",
    "Difference of γ",
    "|γ_i − γ_j| over pairs of tokens i<j, mean or standard deviation, with γ = (K̃â)/(Nâ) elementwise; 0 "
    "for an eigenvector",
    "teo2024 Figs 2, 5; saritas2025 Fig. 3",
    low=0,
)
_GAMMA_REL = Metric(
    "gamma_rel",
    "Relative difference of γ",
    "|γ_i − γ_j| / (max(|γ_i|, |γ_j|) + 1e-10) over pairs of tokens i<j, mean or standard deviation",
    "saritas2025 Fig. 3",
    low=0,
)
_GAMMA_SIZE = Metric(
    "gamma_size",
    "Mean size of γ",
    "mean |γ_i| over tokens of a true eigenvector (μ_d/N), which gamma_abs is to be read against",
    low=0,
)
_INCONSISTENCY = Metric(
    "inconsistency",
    "Inconsistency of V with any eigenvectors",
    "‖1_N G⁻¹V‖ / ‖G⁻¹V‖: 0 where a matrix A with V = G A − G 1_N A exists, 1 where V has no part of that "
    "form",
    low=0,
    high=1,
)
_EIGEN_RESIDUAL = Metric(
    "eigen_residual",
    "Eigen-residual",
    "‖K̃â − ρâ‖ / ‖K̃â‖ with the Rayleigh quotient ρ = âᵀK̃â / âᵀâ; 0 for an eigenvector",
    low=0,
    high=1,
)


class EigenvectorDraws(NamedTuple):
    """The tests of V with values of a null instead."""

    inconsistency: Float[Tensor, "*batch draw"]
    eigen_residual: Float[Tensor, "*batch draw axis"]
    span_share: Float[Tensor, "*batch draw"]


class EigenvectorTest(NamedTuple):
    """Tests of three candidates for the eigenvectors; see `eigenvector_test`.

    The axis candidate follows `CANDIDATES`, statistic `PAIR_STATISTICS`; axis has the d_v columns of V, NaN where
    there are fewer eigenvectors. ``null_samples`` by null.
    """

    gamma_abs: Float[Tensor, "*batch candidate axis statistic"]
    gamma_rel: dict[str, Float[Tensor, "*batch candidate axis statistic"]]
    gamma_size: Float[Tensor, "*batch candidate axis"]
    inconsistency: Float[Tensor, "*batch"]
    eigen_residual: Float[Tensor, "*batch candidate axis"]
    span_share: Float[Tensor, "*batch candidate"]
    span_isotropic: Float[Tensor, "*batch"]
    null_samples: dict[str, EigenvectorDraws]
    axes: Int[Tensor, "*batch"]
    resolved: Int[Tensor, "*batch"]
    converged: Int[Tensor, "*batch"]


@checked_tensors
def eigenvector_test(
    k: Float[Tensor, "*batch token head_dim"],
    v: Float[Tensor, "*batch token value_dim"],
    scale: float | Tensor,
    mask: Bool[Tensor, "*batch token"] | None = None,
    *,
    noise: float = 0.1,
    precision: str = "float64",
    shared: Float[Tensor, "*#batch token width"] | None = None,
    null_samples: int = 0,
    nulls: Sequence[str] = NULLS,
    seeds: Sequence[int] | None = None,
    tiled: bool = False,
) -> EigenvectorTest:
    """Test three candidates for the top min(d_v, N − 1) eigenvectors of K̃ (teo2024 §2.2.2, saritas2025 Fig. 3).

    Candidates: true, the eigenvectors A themselves; perturbed, Q of qr(A + ``noise`` · N(0, 1)); values,
    Â = C G⁻¹ V, the least-squares solution of V = G C Â. For each axis:

    gamma_abs, gamma_rel: |γ_i − γ_j| and |γ_i − γ_j| / max(|γ_i|, |γ_j|) over all pairs of tokens, mean and standard
        deviation (ddof = 1). gamma_rel by convention: "as_implemented" adds 1e-10 to the denominator, which is no
        small number beside many a γ; "as_published" nothing. Tokens where a candidate is exactly 0 have no γ and are
        left out.
    gamma_size: mean |γ|, for true eigenvectors μ_d/N: what the differences are to be read against.
    eigen_residual: ‖K̃â − ρâ‖ / ‖K̃â‖, ρ = âᵀK̃â / âᵀâ: 0 for an eigenvector, at most 1.

    For the head: inconsistency ‖1_N G⁻¹V‖ / ‖G⁻¹V‖, 0 where V = G C Â can hold and 1 where it cannot; span_share,
    the share of a candidate's squared norm inside the span of the resolved top axes; span_isotropic, the same for a
    random direction: their number / (N − 1). All dimensionless.

    ``precision`` is that of the eigenvectors, of K̃â and of the candidates ("float32" shows the rounding that
    published code works with); everything else is float64. ``null_samples`` per null repeat the tests of V with
    values of that null (`null_values.null_values`, which may read ``shared``, the values of all heads side by side,
    broadcast to k); ``seeds`` are one per flattened head, by default 0, 1, …. ``mask``
    (true at real tokens, broadcast as (*batch, 1, token)) leaves padding out altogether. ``tiled`` forms no matrix of
    tokens × tokens: K̃ is known only by its products, in float64.

    NaN: where all keys are equal (``resolved`` 0) everything but the inconsistency; columns of Â that are 0 to
    rounding (V constant along G, or 0). Raises `InputError` as `linalg.map_tokens`.
    """
    if precision not in _PRECISIONS:
        raise UnknownName("precision", precision, _PRECISIONS)
    if not 0 <= noise < float("inf"):
        raise InputError(f"noise must be finite and not negative; got {noise}")
    if tiled and precision != "float64":
        raise InputError(
            f"precision {precision!r} decomposes whole matrices of that precision; tiles are float64: take "
            "method='dense', or precision='float64'"
        )
    check_nulls(nulls, null_samples)

    def test_head(k: Tensor, v: Tensor, shared: Tensor | None, scale: Tensor, seed: int) -> EigenvectorTest:
        axes = principal_axes(k, scale, v.shape[-1], tiled=tiled)
        return _test(axes, v, shared, noise, _PRECISIONS[precision], null_samples, nulls, seed)

    if seeds is None and isinstance(k, Tensor):  # what is no tensor, map_tokens refuses
        seeds = range(math.prod(k.shape[:-2]))
    tensors = {"k": k, "v": v, "shared": for_each_head(shared, k)}
    return stack_heads(map_tokens(test_head, tensors, scale, mask, seeds), k.shape[:-2])


@checked_tensors
def _candidate_of_values(
    v: Float[Tensor, "*draw token value_dim"], log_normaliser: Float[Tensor, " token"]
) -> tuple[Float[Tensor, "*draw token value_dim"], Float[Tensor, "*draw"]]:
    """Â = C G⁻¹ V up to a common factor, and the inconsistency ‖1_N G⁻¹V‖_F / ‖G⁻¹V‖_F.

    C is its own pseudo-inverse, so the answer of least squares to V = G C Â needs no inverse of the singular C
    (saritas2025 §5 calls this infeasible). Columns that are 0 to rounding are NaN; so is the inconsistency of V = 0.
    """
    # token by token: neither g(k_j) nor V itself need be of a size that float64 holds
    row = v.abs().amax(-1, keepdim=True)
    size = row.log() + log_normaliser[:, None]
    weight = (size - size.amax(-2, keepdim=True).clamp_min(_LOWEST)).exp()
    undone = v / torch.where(row > 0, row, 1) * weight
    mean = undone.mean(-2, keepdim=True)
    candidate = undone - mean
    norms = torch.linalg.vector_norm(undone, dim=-2)
    lost = torch.linalg.vector_norm(candidate, dim=-2) <= v.shape[-2] * EPSILON * norms
    share = v.shape[-2] ** 0.5 * torch.linalg.vector_norm(mean, dim=(-2, -1))
    inconsistency = share / torch.linalg.vector_norm(norms, dim=-1)
    return candidate.masked_fill(lost[..., None, :], torch.nan), inconsistency


@checked_tensors
def gamma_ratios(
    gram: Float[Tensor, "token token"] | GramTiles, candidate: Float[Tensor, "token axis"]
) -> Float[Tensor, "axis token"]:
    """γ_i = (K̃ â)_i / (N â_i) of each column (teo2024 §2.2.2), in the precision given; NaN where it is not finite."""
    ratios = ((gram @ candidate) / (len(gram) * candidate)).double().mT
    return torch.where(ratios.isfinite(), ratios, torch.nan)


@checked_tensors
def eigen_residual(
    gram: Float[Tensor, "token token"] | GramTiles, candidate: Float[Tensor, "*draw token axis"]
) -> Float[Tensor, "*draw axis"]:
    """‖K̃â − ρâ‖ / ‖K̃â‖ with the Rayleigh quotient ρ, for each column of a candidate; NaN where K̃â = 0.

    It is 0 for an eigenvector, which is what teo2024 §2.2.2 calls for.
    """
    image = gram @ candidate
    quotient = (candidate * image).sum(-2, keepdim=True) / candidate.square().sum(-2, keepdim=True)
    rest = torch.linalg.vector_norm(image - quotient * candidate, dim=-2)
    return (rest / torch.linalg.vector_norm(image, dim=-2)).double()


def span_share(
    vectors: Float[Tensor, "token axis"], candidate: Float[Tensor, "*draw token value_dim"]
) -> Float[Tensor, "*draw"]:
    """Share of ‖Â‖² (teo2024 §2.2.2) inside the span of orthonormal ``vectors``.

    Columns that are NaN are left out, NaN if all are.
    """
    candidate = candidate.nan_to_num(nan=0.0)
    inside = (vectors.mT @ candidate).square().sum((-2, -1))
    return (inside / candidate.square().sum((-2, -1))).double()


def _test(
    axes: PrincipalAxes,
    v: Tensor,
    shared: Tensor | None,
    noise: float,
    dtype: torch.dtype,
    null_samples: int,
    nulls: Sequence[str],
    seed: int,
) -> EigenvectorTest:
    """`eigenvector_test` of one head."""
    has_axes = axes.resolved > 0  # equal keys have no eigenvectors, whatever rounding makes of K̃
    gram = axes.gram.to(dtype) if isinstance(axes.gram, Tensor) else axes.gram
    vectors = _in_precision(axes, dtype)
    resolved = vectors[:, : int(axes.resolved)]
    value_candidates, inconsistency = _candidate_of_values(v, axes.log_normaliser)
    perturbed = _perturbed(axes.vectors, noise, derived_seed(seed, "perturbed"))
    candidates = (vectors, perturbed.to(dtype), _unit(value_candidates).to(dtype))
    factor = axes.log_factor.exp()

    gamma = torch.stack([_padded(gamma_ratios(gram, candidate), v.shape[-1]) for candidate in candidates])
    gamma = gamma.masked_fill(~has_axes, torch.nan)
    # γ carries the factor: beside a γ of no size 1e-10 is infinite, and relative differences vanish
    epsilons = torch.stack([torch.zeros_like(factor), _CODE_EPSILON * (-axes.log_factor).exp()])
    relative = torch.stack(relative_differences(gamma, epsilons[:, None, None]), -1)

    def shares(candidate: Tensor) -> Tensor:
        return span_share(resolved, candidate.to(dtype)).masked_fill(~has_axes, torch.nan)

    def residuals(candidate: Tensor) -> Tensor:
        return eigen_residual(gram, candidate).masked_fill(~has_axes, torch.nan)

    null = {}
    for name in nulls if null_samples else ():
        drawn, drawn_inconsistency = _candidate_of_values(
            null_values(v, name, null_samples, seed, shared), axes.log_normaliser
        )
        residual = residuals(_unit(drawn).to(dtype))
        null[name] = EigenvectorDraws(drawn_inconsistency, residual, shares(drawn))

    count = axes.vectors.shape[1]
    share = axes.resolved.double() / (len(gram) - 1)
    return EigenvectorTest(
        gamma_abs=torch.stack(absolute_differences(gamma), -1) * factor,
        gamma_rel=dict(zip(("as_published", "as_implemented"), relative, strict=True)),
        gamma_size=gamma.abs().nanmean(-1) * factor,
        inconsistency=inconsistency,
        eigen_residual=torch.stack([_padded(residuals(part), v.shape[-1]) for part in candidates]),
        span_share=torch.stack([shares(part) for part in (vectors, perturbed, value_candidates)]),
        span_isotropic=share.masked_fill(~has_axes, torch.nan),
        null_samples=null,
        axes=torch.tensor(count, device=v.device),
        resolved=axes.resolved,
        converged=axes.converged,
    )


def _in_precision(axes: PrincipalAxes, dtype: torch.dtype) -> Tensor:
    if dtype == axes.vectors.dtype or not isinstance(axes.gram, Tensor):
        return axes.vectors
    # as in principal_axes: the constant sends the direction that centring removes to the end
    shift = axes.gram.diagonal().sum().clamp_min(EPSILON) / len(axes.gram) ** 2
    vectors = torch.linalg.eigh((axes.gram - shift).to(dtype)).eigenvectors
    return vectors.flip(1)[:, : axes.vectors.shape[1]]


def _perturbed(vectors: Tensor, noise: float, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    errors = torch.randn(vectors.shape, dtype=vectors.dtype, generator=generator).to(vectors.device)
    return torch.linalg.qr(vectors + noise * errors).Q


def _unit(candidate: Tensor) -> Tensor:
    """Columns of norm 1: no test depends on their size, but float32 would not hold it."""
    return candidate / torch.linalg.vector_norm(candidate, dim=-2, keepdim=True)


def _padded(values: Tensor, axes: int) -> Tensor:
    """(axis, …) with NaN for the axes that N tokens do not have."""
    missing = values.new_full((axes - len(values), *values.shape[1:]), torch.nan)
    return torch.cat([values, missing])


def measure(layer: Layer, options: Options) -> Iterator[Measurement]:
    """γ, inconsistency, eigen-residual and span share of the three candidates, per input and (kv) head."""
    need_token_attention(layer)
    v = layer.choose_heads(layer.site("v"))
    k, scale, real = chosen_keys(layer, options.standardize, options.padding)
    tiled = options.in_tiles(k.shape[-2] ** 2) and (
        options.method == "tiled" or options.precision == "float64"
    )
    test = eigenvector_test(
        k,
        v,
        scale,
        real,
        noise=options.noise,
        precision=options.precision,
        shared=options.shared_values(layer),
        null_samples=options.null_samples,
        nulls=options.nulls,
        seeds=layer.seeds(len(k)),
        tiled=tiled,
    )
    report_axes(layer, test.resolved, test.axes, test.converged, v.shape[-1])
    layer.count_tiled(tiled)
    standardized = standardize_column(options.standardize)

    def ranked(
        metric: Metric, values: Tensor, columns: dict[str, str], **null_samples: Tensor
    ) -> Measurement:
        drawn = {name: layer.per_input(part.movedim(-2, -1)) for name, part in null_samples.items()}
        axes = ("input", "head", "rank")
        return Measurement(metric, layer.per_input(values), axes, None, standardized | columns, drawn)

    for number, candidate in enumerate(CANDIDATES):
        for column, statistic in enumerate(PAIR_STATISTICS):
            columns = {"candidate": candidate, "statistic": statistic}
            yield ranked(_GAMMA_ABS, test.gamma_abs[..., number, :, column], columns)
            for convention, relative in test.gamma_rel.items():
                yield ranked(
                    _GAMMA_REL, relative[..., number, :, column], columns | {"convention": convention}
                )
        of_values = candidate == "values"
        null_samples = (
            {name: drawn.eigen_residual for name, drawn in test.null_samples.items()} if of_values else {}
        )
        columns = {"candidate": candidate}
        yield ranked(_EIGEN_RESIDUAL, test.eigen_residual[..., number, :], columns, **null_samples)
        if candidate == "true":  # all of its norm lies in the span
            columns = {"candidate": candidate, "statistic": "mean"}
            yield ranked(_GAMMA_SIZE, test.gamma_size[..., number, :], columns)
            continue
        null_samples = {name: layer.per_input(drawn.span_share) for name, drawn in test.null_samples.items()}
        share = layer.per_input(test.span_share[..., number])
        yield Measurement(
            SPAN_SHARE, share, columns=standardized | columns, null_samples=null_samples if of_values else {}
        )
    yield Measurement(
        _INCONSISTENCY,
        layer.per_input(test.inconsistency),
        columns=standardized | {"candidate": "values"},
        null_samples={
            name: layer.per_input(drawn.inconsistency) for name, drawn in test.null_samples.items()
        },
    )


def findings(frame: pd.DataFrame, options: Options) -> list[str]:
    """How far γ of the vectors from V is from one number, their eigen-residual, and whether any Â exists."""
    per_input = frame[frame[["layer", "head"]].isna().all(axis=1) & frame["input"].notna()]
    size = per_input[per_input["metric"] == "gamma_size"].groupby("input")["value"].mean()
    if size.empty:
        return []
    means = per_input[(per_input["metric"] == "gamma_abs") & (per_input["statistic"] == "mean")]
    perturbed, from_v = (
        mean_interval(means[means["candidate"] == name].groupby("input")["value"].mean() / size, ratio=True)
        for name in ("perturbed", "values")
    )
    residuals = frame[(frame["metric"] == "eigen_residual") & (frame["candidate"] == "values")]
    residual, placed = over_everything(residuals), overall_null_rows(residuals)
    axes = (
        f"; below the {null_range(residuals, placed['null'].iloc[0])} on {placed['below'].sum()} of {len(placed)} axes"
        if len(placed)
        else ""
    )
    lost = frame[frame["metric"] == "inconsistency"]
    return [
        f"mean |γ_i − γ_j| of the vectors from V is {from_v.words('.3g')} times the eigenvectors' mean |γ|, of "
        f"perturbed eigenvectors {perturbed.words('.3g')} times, geometric mean over {from_v.n} inputs with its "
        "95 % CI (an eigenvector: 0)",
        f"eigen-residual of the vectors from V {residual.words()}, {unit_of(residual)}{axes} (an eigenvector: 0)",
        f"inconsistency of V with any eigenvectors {over_everything(lost).words()}{side_of_null(lost)} (0 where V can "
        "be made of eigenvectors)",
    ]


ANALYSIS = Analysis(
    "eigenvector-test",
    "Are the values made of eigenvectors of the centred Gram matrix",
    ("k", "v", "scale"),
    measure,
    (_GAMMA_ABS, _GAMMA_REL, _GAMMA_SIZE, _INCONSISTENCY, _EIGEN_RESIDUAL, SPAN_SHARE),
    Options,
    cross="keys",
    findings=findings,
)
