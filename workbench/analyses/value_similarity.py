"""How similar are the values V of a head to V̇ = G A, what kernel PCA of its keys calls for, beside random values?

The measures are those of saritas2025 (§3, Tables 1 and 4).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal, NamedTuple

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from workbench.analyses.kernel_pca import SPAN_SHARE, PrincipalAxes, kpca_values, principal_axes
from workbench.analyses.layer import Layer, chosen_keys, need_token_attention, report_axes, standardize_column
from workbench.analyses.linalg import best_matches
from workbench.analyses.null_values import NULLS, check_nulls, for_each_head, null_values
from workbench.analyses.registry import Analysis, OfValues, Standardize
from workbench.analyses.value_matrix import (
    PermutedValues,
    ValueMatrix,
    principal_cosines_and_sines,
    tiled_kernel_alignment,
)
from workbench.core.errors import UnknownName
from workbench.core.operands import checked_tensors, map_tokens, stack_heads
from workbench.frames.estimate import null_range, over_everything, overall_null_rows, side_of_null, unit_of
from workbench.frames.measurement import Measurement
from workbench.frames.metric import Metric

SAMPLES, SAMPLED = 4, 1024  # of tokens, in place of a matching of all of them


@dataclass(frozen=True)
class Options(OfValues):
    """Which vectors are compared, and what becomes of their similarities."""

    axis: Annotated[
        Literal["tokens", "features", "both"],
        "features: compare columns of V and V̇ (as the text has it); tokens: rows (as its code); both",
    ] = "both"
    statistic: Annotated[Literal["max", "mean", "both"], "over the matched pairs: max, mean or both"] = "both"
    standardize: Standardize = "none"


MDC = Metric(
    "MDC",
    "Cosine of V and V̇ matched by index",
    "cosine of the columns (axis features) or rows (axis tokens) of V and V̇ of equal index; maximum or "
    "mean over the pairs",
    "saritas2025 Tables 1, 4",
    low=-1,
    high=1,
)
MOC = Metric(
    "MOC",
    "Cosine of V and V̇ matched best",
    "cosine of the columns (axis features) or rows (axis tokens) of V and V̇ under the one-to-one "
    "matching of largest sum; maximum or mean over the pairs",
    "saritas2025 Tables 1, 4",
    low=-1,
    high=1,
)
_ABS_COS = Metric(
    "abs_cos",
    "Unsigned cosine of V and V̇ matched by index",
    "|cos| of the columns of V and V̇ of equal index, maximum or mean; no sign of an eigenvector changes it",
    low=0,
    high=1,
)
LCKA = Metric(
    "LCKA",
    "Linear CKA of V and V̇",
    "linear centred kernel alignment of V and V̇",
    "saritas2025 Tables 1, 4; Kornblith et al. 2019",
    low=0,
    high=1,
)
KCKA = Metric(
    "KCKA",
    "RBF CKA of V and V̇",
    "centred kernel alignment with exp(−D/2σ²), σ² the lower median of the squared distances D of each "
    "matrix; biased HSIC",
    "saritas2025 Tables 1, 4; Kornblith et al. 2019",
    low=0,
    high=1,
)
_ALLCLOSE = Metric(
    "allclose",
    "Share of heads whose V equals V̇",
    "1 where every entry of V is close to that of V̇, else 0: |a−b| ≤ 1e-3 + 1e-5|b| (convention as_published) or "
    "≤ 1e-5 + 1e-3|b| (as_implemented)",
    "saritas2025 §3",
    low=0,
    high=1,
)
_PRINCIPAL_ANGLE = Metric(
    "principal_angle",
    "Principal angle between span(V) and span(V̇)",
    "angles between the column spaces of V and V̇, minimum or mean; neither sign nor order of "
    "eigenvectors changes them",
    unit="radians",
    low=0,
    high=math.pi / 2,
)


class Quantity(NamedTuple):
    """One number that compares V with V̇; None where a part does not apply."""

    metric: str
    axis: str | None = None
    statistic: str | None = None
    convention: str | None = None


QUANTITIES = (
    *(Quantity("MDC", axis, statistic) for axis in ("features", "tokens") for statistic in ("max", "mean")),
    *(Quantity("MOC", axis, statistic) for axis in ("features", "tokens") for statistic in ("max", "mean")),
    *(Quantity("abs_cos", "features", statistic) for statistic in ("max", "mean")),
    Quantity("LCKA"),
    Quantity("KCKA"),
    *(Quantity("allclose", convention=convention) for convention in ("as_published", "as_implemented")),
    *(Quantity("principal_angle", statistic=statistic) for statistic in ("min", "mean")),
    Quantity("span_share"),
)

_TOLERANCES = {"as_published": (1e-5, 1e-3), "as_implemented": (1e-3, 1e-5)}  # (relative, absolute)
_STATISTICS: dict[str, Callable[[Tensor], Tensor]] = {
    "max": Tensor.amax,
    "min": Tensor.amin,
    "mean": Tensor.mean,
}


class ValueSimilarity(NamedTuple):
    """Similarities of V and V̇ and of null samples of each null with V̇; see `value_similarity`.

    ``axes``: how many principal axes V̇ has, min(d_v, N − 1); ``converged``: how many of them products in tiles
    found (all without tiles); ``resolved``: how many have an eigenvalue above rounding (the others are arbitrary);
    ``close``: how many of these lie so near to a neighbour's that which comes first is arbitrary, and with it all
    that is matched by index or reads single axes.
    """

    observed: Float[Tensor, "*batch quantity"]
    null_samples: dict[str, Float[Tensor, "*batch draw quantity"]]
    resolved: Int[Tensor, "*batch"]
    axes: Int[Tensor, "*batch"]
    close: Int[Tensor, "*batch"]
    converged: Int[Tensor, "*batch"]


@checked_tensors
def value_similarity(
    k: Float[Tensor, "*batch token head_dim"],
    v: Float[Tensor, "*batch token value_dim"],
    scale: float | Tensor,
    mask: Bool[Tensor, "*batch token"] | None = None,
    *,
    shared: Float[Tensor, "*#batch token width"] | None = None,
    null_samples: int = 0,
    nulls: Sequence[str] = NULLS,
    seeds: Sequence[int] | None = None,
    quantities: Sequence[Quantity] = QUANTITIES,
    tiled: bool = False,
) -> ValueSimilarity:
    """Every similarity of V and V̇ = G A of every head (saritas2025 Tables 1 and 4), and null distributions.

    MDC, MOC: cosines of vectors matched by index, and under the one-to-one matching with the largest sum; maximum
        or mean over the matched pairs. Vectors are columns (axis features: d_v vectors of N numbers) or rows
        (axis tokens: N vectors of d_v numbers). A vector of zeros has cosine 0 with every other.
    abs_cos: |cos| of the columns matched by index.
    LCKA, KCKA: linear CKA, and CKA of kernels exp(−D/(2σ²)) with D the squared distances between tokens and σ²
        their lower median over pairs, for each matrix its own; biased HSIC (Kornblith et al. 2019).
    allclose: 1 where |V − V̇| ≤ 1e-3 + 1e-5 |V̇| in every entry (convention as_published) or 1e-5 + 1e-3 |V̇|
        (as_implemented).
    principal_angle: between span(V) and span(V̇), radians in [0, π/2].
    span_share: ‖V‖² inside span(V̇) over ‖V‖². These two, like LCKA and KCKA for a fixed G A, do not see the signs
        and the order of the eigenvectors, which MDC depends on and MOC through the signs; abs_cos sees the order.

    All other quantities are dimensionless. No small number is added to a denominator, and V̇ is never so small that
    it underflows: each quantity but allclose is free of its scale. For d_v > N − 1 there are only N − 1 axes: the
    columns of V beyond them find no partner, and rows of V̇ are completed with zeros.

    ``mask`` (true at real tokens, broadcast as (*batch, 1, token)) leaves padding out altogether. ``null_samples`` per
    null repeat everything with V replaced (`null_values.null_values`); ``seeds`` are one per flattened head, by
    default 0, 1, …. ``shared`` is what such a null may read beside v: the values of all heads side by side,
    broadcast to k. ``tiled`` forms no matrix of tokens × tokens: axes and KCKA come from products and sums in tiles,
    and MOC of tokens is that of `SAMPLES` samples of `SAMPLED` tokens, each matched by itself: over all tokens its mean
    is larger. NaN: where all keys are equal (``resolved`` 0) everything; where V has equal rows LCKA and KCKA;
    where V is 0 the angles and the span share. Raises `InputError` as `linalg.map_tokens`.
    """
    check_nulls(nulls, null_samples)
    _check_quantities(quantities)

    def of_head(k: Tensor, v: Tensor, shared: Tensor | None, scale: Tensor, seed: int) -> ValueSimilarity:
        axes = principal_axes(k, scale, v.shape[-1], tiled=tiled)
        wanted = _reference(axes, v.shape[-1])
        values = ValueMatrix(v)
        measures = MEASURES | IN_TILES if tiled else MEASURES
        observed = _compare(values, wanted, quantities, measures)
        drawn = {
            null: torch.stack(
                [
                    _compare(other, wanted, quantities, measures)
                    for other in _drawn(values, null, null_samples, seed, shared)
                ]
            )
            for null in (nulls if null_samples else ())
        }
        count = torch.tensor(axes.vectors.shape[1], device=k.device)
        result = ValueSimilarity(observed, drawn, axes.resolved, count, axes.close, axes.converged)
        if axes.resolved:
            return result
        nothing = {null: torch.full_like(part, torch.nan) for null, part in drawn.items()}
        return result._replace(observed=torch.full_like(observed, torch.nan), null_samples=nothing)

    if seeds is None and isinstance(k, Tensor):  # what is no tensor, map_tokens refuses
        seeds = range(math.prod(k.shape[:-2]))
    tensors = {"k": k, "v": v, "shared": for_each_head(shared, k)}
    return stack_heads(map_tokens(of_head, tensors, scale, mask, seeds), k.shape[:-2])


def _drawn(
    values: ValueMatrix, null: str, null_samples: int, seed: int, shared: Tensor | None
) -> Iterator[ValueMatrix]:
    """Draws of `null_values`, one at a time; permuted values reuse results of the original."""
    if null == "permutation":
        index = torch.arange(len(values.values), device=values.values.device, dtype=torch.float64)[:, None]
        for order in null_values(index, null, null_samples, seed):
            yield PermutedValues(values, order[:, 0].long())
    else:
        for noise in null_values(values.values, null, null_samples, seed, shared):
            yield ValueMatrix(noise)


@checked_tensors
def similarities(
    v: Float[Tensor, "*draw token value_dim"],
    axes: PrincipalAxes,
    quantities: Sequence[Quantity] = QUANTITIES,
) -> Float[Tensor, "*draw quantity"]:
    """The quantities of `value_similarity` (saritas2025 §3) for any values of one head, on min(d_v, N − 1) axes."""
    _check_quantities(quantities)
    wanted = _reference(axes, v.shape[-1])
    flat = v.double().reshape(-1, *v.shape[-2:])
    each = [_compare(ValueMatrix(values), wanted, quantities, MEASURES) for values in flat]
    return torch.stack(each).reshape(*v.shape[:-2], len(quantities))


def _check_quantities(quantities: Sequence[Quantity]) -> None:
    for quantity in quantities:
        if quantity not in QUANTITIES:
            raise UnknownName("quantity", str(quantity), map(str, QUANTITIES))


def _reference(axes: PrincipalAxes, value_dim: int) -> ValueMatrix:
    """V̇; its rows at unit length are those of A, since G only scales rows: they survive where G underflows."""
    values = kpca_values(axes)
    padded = torch.nn.functional.pad(axes.vectors, (0, max(0, value_dim - axes.vectors.shape[1])))
    return ValueMatrix(values.values, log_factor=values.log_factor, rows_from=padded)


Measures = dict[tuple[str, str | None], Callable[["_Pair"], Tensor]]


def _compare(
    v: ValueMatrix, wanted: ValueMatrix, quantities: Sequence[Quantity], measures: Measures
) -> Tensor:
    """Return the quantities for one V: (quantity,). Shared parts are computed once."""
    parts: dict[tuple[str, str | None], Tensor] = {}
    pair = _Pair(v, wanted)
    values = []
    for metric, axis, statistic, convention in quantities:
        if metric == "allclose":
            values.append(_allclose(pair, *_TOLERANCES[str(convention)]))
            continue
        if (metric, axis) not in parts:
            parts[metric, axis] = measures[metric, axis](pair)
        part = parts[metric, axis]
        values.append(_STATISTICS[statistic](part) if statistic else part)
    return torch.stack(values)


class _Pair:
    """V and V̇ with the cosines that several quantities share."""

    def __init__(self, v: ValueMatrix, wanted: ValueMatrix) -> None:
        self.v, self.wanted = v, wanted

    @cached_property
    def feature_cosines(self) -> Tensor:
        return self.v.columns.T @ self.wanted.columns

    @cached_property
    def angles(self) -> Tensor:
        cosines, sines = principal_cosines_and_sines(self.v.basis, self.wanted.basis)
        angles = torch.atan2(sines, cosines)
        return angles if len(angles) else angles.new_full((1,), torch.nan)  # V = 0 spans nothing


def _direct_tokens(pair: _Pair) -> Tensor:
    return (pair.v.rows * pair.wanted.rows).sum(1)


def _optimal_tokens(pair: _Pair) -> Tensor:
    # the best matching does not see the order of the rows, so a permuted V has that of V
    v = pair.v.original
    if pair.wanted not in v.matched_rows:
        v.matched_rows[pair.wanted] = best_matches(v.rows @ pair.wanted.rows.T)
    return v.matched_rows[pair.wanted]


def _sampled_tokens(pair: _Pair) -> Tensor:
    """Cosines of tokens matched within samples, which are the same for every pair."""
    v, wanted = pair.v.original, pair.wanted
    if wanted not in v.matched_rows:
        order = torch.randperm(len(v.values), generator=torch.Generator().manual_seed(0)).to(v.values.device)
        count = max(1, min(SAMPLES, len(order) // SAMPLED))
        chosen = order[: SAMPLED * count].chunk(count)
        v.matched_rows[wanted] = torch.cat([best_matches(v.rows[at] @ wanted.rows[at].T) for at in chosen])
    return v.matched_rows[wanted]


def _linear_cka(pair: _Pair) -> Tensor:
    """‖XᵀY‖² / (‖XᵀX‖ ‖YᵀY‖) with X, Y centred and at norm 1 before any product."""
    (x, norm), (y, others) = pair.v.centred, pair.wanted.centred
    return (x.T @ y).square().sum() / (norm * others)


def _kernel_cka(pair: _Pair) -> Tensor:
    return (pair.v.kernel * pair.wanted.kernel).sum()


def _span_share(pair: _Pair) -> Tensor:
    scaled = pair.v.scaled
    return (pair.wanted.basis.T @ scaled).square().sum() / scaled.square().sum()


def _allclose(pair: _Pair, relative: float, absolute: float) -> Tensor:
    wanted = pair.wanted.product
    values = pair.v.values[:, : wanted.shape[1]]
    # nearly always the first token is far enough off to answer no
    close = all(
        bool(((values[part] - wanted[part]).abs() <= absolute + relative * wanted[part].abs()).all())
        for part in (slice(1), slice(1, None))
    )
    return wanted.new_tensor(float(close))


MEASURES: Measures = {
    ("MDC", "features"): lambda pair: pair.feature_cosines.diagonal(),
    ("MDC", "tokens"): _direct_tokens,
    ("MOC", "features"): lambda pair: best_matches(pair.feature_cosines),
    ("MOC", "tokens"): _optimal_tokens,
    ("abs_cos", "features"): lambda pair: pair.feature_cosines.diagonal().abs(),
    ("LCKA", None): _linear_cka,
    ("KCKA", None): _kernel_cka,
    ("principal_angle", None): lambda pair: pair.angles,
    ("span_share", None): _span_share,
}
IN_TILES: Measures = {
    ("MOC", "tokens"): _sampled_tokens,
    ("KCKA", None): lambda pair: tiled_kernel_alignment(pair.v, pair.wanted),
}


def measure(layer: Layer, options: Options) -> Iterator[Measurement]:
    """Every similarity of V with V̇ = G A, one per input and (kv) head, beside its null distribution."""
    need_token_attention(layer)
    v = layer.choose_heads(layer.site("v"))
    k, scale, real = chosen_keys(layer, options.standardize, options.padding)
    quantities = chosen_quantities(options)
    tiled = options.in_tiles(k.shape[-2] ** 2)
    similarity = value_similarity(
        k,
        v,
        scale,
        real,
        shared=options.shared_values(layer),
        null_samples=options.null_samples,
        nulls=options.nulls,
        seeds=layer.seeds(len(k)),
        quantities=quantities,
        tiled=tiled,
    )
    report_axes(layer, similarity.resolved, similarity.axes, similarity.converged, v.shape[-1])
    sampled = f"MOC of tokens is of samples of {SAMPLED}, a lower bound of its mean over all"
    layer.count_tiled(tiled, sampled if k.shape[-2] > SAMPLED else "")
    layer.counts.add(
        "heads have top axes whose eigenvalues lie closer together than their residual: which comes first is "
        "arbitrary, and with it MDC, MOC and abs_cos; angles, span share, LCKA and KCKA do not see it",
        similarity.close > 0,
    )
    for number, (name, *parts) in enumerate(quantities):
        labels = zip(Quantity._fields[1:], parts, strict=True)
        yield Measurement(
            _METRICS[name],
            layer.per_input(similarity.observed[..., number]),
            columns=standardize_column(options.standardize) | {key: word for key, word in labels if word},
            null_samples={
                null: layer.per_input(drawn[..., number]) for null, drawn in similarity.null_samples.items()
            },
        )


def chosen_quantities(options: Options) -> tuple[Quantity, ...]:
    """The quantities of the chosen axis and statistic; those that have neither always."""
    axis, statistic = options.axis, options.statistic
    return tuple(
        quantity
        for quantity in QUANTITIES
        if (axis == "both" or quantity.axis in (None, axis))
        # the smallest angle belongs to the largest cosine
        and (statistic == "both" or quantity.statistic in (None, statistic, {"max": "min"}.get(statistic)))
    )


def findings(frame: pd.DataFrame, options: Options) -> list[str]:
    """Report the share of V in the span of V̇, in how many measures V is above random values, and whether it is V̇."""
    sentences = []
    inside, equal = (frame[frame["metric"] == name] for name in ("span_share", "allclose"))
    # Gaussian values keep only the size of V: they are named where no other null was sampled
    sampled = [str(null) for null in frame["null"].dropna().unique()]
    nulls = [null for null in ("rotation", "permutation") if null in sampled] or sampled
    if len(inside):
        share = over_everything(inside)
        side = side_of_null(inside[inside["null"].isin(nulls[:1])], ".3f")
        sentences.append(f"span(V̇) holds {share.words('.3f')} of ‖V‖², {unit_of(share)}{side}")
    # the angles are small where V and V̇ are alike, and hardly a V equals its V̇
    similarities = frame[~frame["metric"].isin(["principal_angle", "allclose"])]
    counts = []
    for null in nulls:
        placed = overall_null_rows(similarities[similarities["null"] == null])
        if len(placed) > 1:
            above, below = placed["above"].sum(), placed["below"].sum()
            total, samples = len(placed), null_range(frame, null)
            counts.append(f"{above} of {total} lie above the {samples} and {below} below it")
    if counts:
        sentences.append(f"similarities, means over layers, heads and inputs: {', '.join(counts)}")
    if len(equal):
        most = equal.loc[equal["input"].isna() & equal["layer"].isna() & equal["head"].isna(), "value"].max()
        sentences.append(f"V equals V̇ entry by entry in {most:.1%} of the heads")
    return sentences


_METRICS = {
    metric.name: metric
    for metric in (MDC, MOC, _ABS_COS, LCKA, KCKA, _ALLCLOSE, _PRINCIPAL_ANGLE, SPAN_SHARE)
}
ANALYSIS = Analysis(
    "value-similarity",
    "Similarity of the values V with the kernel-PCA values V̇",
    ("k", "v", "scale"),
    measure,
    (*_METRICS.values(),),
    Options,
    cross="keys",
    findings=findings,
)
