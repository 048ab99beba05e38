"""Attention as kernel SVD (chen2023): the spectrum of a token × token matrix, and the two scores that it holds.

K (*batch, query, key) is the attention of a head, or the kernel that Primal-Attention induces. K = H_e Σ H_rᵀ has
left singular vectors H_e and right ones H_r. The e-scores K H_r = H_e Σ are what attention would put out if its values
were H_r; the r-scores Kᵀ H_e = H_r Σ it never computes. Everything in float64, for real tokens only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import torch
from annotated_types import Ge
from jaxtyping import Float
from torch import Tensor

from workbench.analyses import gram_spectrum
from workbench.analyses.attention_matrix import (
    AttentionMatrix,
    Group,
    MetricValues,
    groups_of,
    noise_like,
    primal_matrix,
    softmax_matrix,
    together,
    with_null,
)
from workbench.analyses.gram_spectrum import EFFECTIVE_RANK, RANK_90
from workbench.analyses.layer import Layer, NotApplicable, need_token_attention
from workbench.analyses.linalg import best_matches, head_bases, inside_share, left_out
from workbench.analyses.null_values import null_values
from workbench.analyses.reductions import HeadOutput
from workbench.analyses.registry import Analysis, OfValues, Single
from workbench.analyses.tiled_spectra import attention_leading
from workbench.analyses.tiles import Operands, layer_operands, reduce_tiles
from workbench.attention.primal import PrimalAttention
from workbench.core.errors import InputError
from workbench.core.operands import TOKENS, check_axes, check_finite, checked_tensors, map_heads, stack_heads
from workbench.frames.estimate import compare_with_null, over_inputs
from workbench.frames.measurement import Measurement
from workbench.frames.metric import Metric

if TYPE_CHECKING:
    import pandas as pd

_KERNEL = ("query", "key")
_TOLERANCE = (
    1e-10  # of the largest squared singular value: residual at which products in tiles have found a triplet
)
_KNOWN = 1e-6  # of the largest singular value: below it squares tell no direction
_TINY = torch.finfo(torch.float64).tiny


@dataclass(frozen=True)
class Options(OfValues):
    """How many singular values; the null distribution of the spectra is that of random queries and keys."""

    max_rank: Annotated[
        Literal["all"] | Annotated[int, Ge(1)], "how many singular values per head: a number or all"
    ] = "all"
    laplacian: Annotated[
        bool,
        "also eigenvalues of the Laplacian of softmax attention, and its spectral gap; of whole matrices",
    ] = False
    single: Single = False

    @property
    def map_limit(self) -> int | None:
        """The largest matrices, in entries, that are formed whole; None for all."""
        return None if self.max_rank == "all" else super().map_limit


SINGULAR_VALUE = Metric(
    "singular_value",
    "Singular value of attention",
    "σ_r of the token × token matrix, largest first: the attention matrix, or the kernel (Φ_q F)(Φ_k F)ᵀ "
    "that Primal-Attention induces; null distribution: Gaussian queries and keys of the same mean square",
    "chen2023 Fig. 1",
    low=0,
    log=True,
)
_SINGULAR_VALUE_RELATIVE = Metric(
    "singular_value_relative",
    "Singular value over the largest",
    "σ_r / σ_1 of the token × token matrix",
    "chen2023 Fig. 1",
    low=0,
    high=1,
    log=True,
)
_EXPLAINED_VARIANCE = Metric(
    "explained_variance",
    "Cumulative explained variance",
    "Σ_{i≤r} σ_i² / Σ σ_i² of the token × token matrix",
    "chen2023 Fig. 1",
    low=0,
    high=1,
)
_RANK_90_SHARE = Metric(
    "rank_90_share",
    "Share of the ranks holding 90 % of the variance",
    "rank_90 divided by the number of tokens",
    "chen2023 Fig. 1",
    low=0,
    high=1,
)
_R_SCORE_SHARE = Metric(
    "r_score_share",
    "Residual r-score energy",
    "share of ‖Kᵀ H_e‖² of the first head_dim directions outside the span of the same number of e-scores K H_r "
    "(candidate e_scores: residual even for values equal to H_r), or of the head's output (output); "
    "0 for a symmetric K, 1 − head_dim/N for random directions",
    "chen2023 Remark 3.4; workbench",
    low=0,
    high=1,
)
_RIGHT_SINGULAR_SHARE = Metric(
    "right_singular_share",
    "Share of V in the span of the right singular vectors",
    "share of ‖V‖² inside the span of the first head_dim right singular vectors H_r of attention; "
    "head_dim/N for random values",
    "chen2023 Remark 3.3; workbench",
    low=0,
    high=1,
)


_LAPLACIAN_EIGENVALUE = Metric(
    "laplacian_eigenvalue",
    "Eigenvalue of the Laplacian",
    "eigenvalue of 1 − D^−½ W D^−½, smallest first, of W = (A + Aᵀ) / 2 with row sums D: attention as the weights of a "
    "graph of tokens; null distribution: Gaussian queries and keys of the same mean square",
    "Chung 1997",
    low=0,
    high=2,
)
_SPECTRAL_GAP = Metric(
    "spectral_gap",
    "Spectral gap",
    "second smallest eigenvalue of the Laplacian: 0 where the tokens fall into parts without attention between them; "
    "null distribution: Gaussian queries and keys of the same mean square",
    "Chung 1997",
    low=0,
    high=2,
)


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


@checked_tensors
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


@checked_tensors
def laplacian_eigenvalues(attention: Float[Tensor, "*batch query key"]) -> Float[Tensor, "*batch rank"]:
    """Return the eigenvalues of the normalised Laplacian of attention, smallest first, from 0 to 2 (Chung 1997).

    The graph of tokens is undirected: its weights are the means of both directions. A token without any weight has the
    eigenvalue 0. Raises `InputError` for entries that are negative or not finite, and for another number of keys than
    of queries.
    """
    _check(attention)
    if attention.shape[-1] != attention.shape[-2] or bool((attention < 0).any()):
        raise InputError("a Laplacian is of weights between the same tokens, none of them negative")
    weights = (attention.double() + attention.double().mT) / 2
    degree = weights.sum(-1)
    root = torch.where(degree > 0, degree.clamp_min(_TINY).rsqrt(), 0)
    laplacian = torch.diag_embed((degree > 0).double()) - root[..., None] * weights * root[..., None, :]
    return torch.linalg.eigvalsh(laplacian).clamp(0, 2)  # beyond these only by rounding


@checked_tensors
def relative_values(spectrum: Float[Tensor, "*batch rank"]) -> Float[Tensor, "*batch rank"]:
    """σ_r / σ_1, which starts at 1; zeros stay zero (chen2023 Fig. 1)."""
    return spectrum / torch.where(spectrum[..., :1] > 0, spectrum[..., :1], 1.0)


@checked_tensors
def kernel_svd(kernel: Float[Tensor, "*batch query key"], directions: int) -> KernelSVD:
    """The first ``directions`` singular triplets of every matrix, or all if it has fewer (chen2023).

    Rounding is that of the dtype that arrives. Raises as `singular_values`, and for fewer than one direction.
    """
    _check(kernel)
    if directions < 1:
        raise InputError(f"directions must be at least 1; got {directions}")
    rounding = max(kernel.shape[-2:]) * torch.finfo(kernel.dtype).eps
    flat = kernel.double().reshape(-1, *kernel.shape[-2:])

    def first(matrix: Tensor) -> KernelSVD:
        left, values, right = torch.linalg.svd(matrix, full_matrices=False)
        resolved = (values > rounding * values[0])[:directions]
        return KernelSVD(
            left[:, :directions] * resolved,
            values[:directions] * resolved,
            right.mT[:, :directions] * resolved,
        )

    return stack_heads(map_heads(first, flat), kernel.shape[:-2])


@checked_tensors
def singular_alignment(
    vectors: Float[Tensor, "*batch key column"], right: Float[Tensor, "*batch key direction"]
) -> Float[Tensor, "*batch"]:
    """Mean |cosine| of columns and singular vectors under the best one-to-one matching (saritas2025 App. D).

    1 if the columns are multiples of different singular vectors, whatever their order and signs. Unlike
    `inside_share` it sees a rotation of the columns inside their span. NaN with a column of zeros.
    """
    unit = vectors.double() / torch.linalg.vector_norm(vectors.double(), dim=-2, keepdim=True)
    cosines = (unit.mT @ right.double()).abs()
    flat = cosines.reshape(-1, *cosines.shape[-2:])
    means = [
        best_matches(cosine_matrix).mean()
        if cosine_matrix.isfinite().all()
        else cosine_matrix.new_full((), torch.nan)
        for cosine_matrix in flat
    ]
    return torch.stack(means).reshape(cosines.shape[:-2])


def _check(kernel: Tensor) -> None:
    check_axes("kernel", kernel, _KERNEL)
    check_finite("kernel", kernel, _KERNEL)
    if not kernel.numel():
        raise InputError(f"kernel has shape {tuple(kernel.shape)}; there is no matrix in it")
    for axis, size in zip(_KERNEL, kernel.shape[-2:], strict=True):
        if size < 2:
            raise InputError(
                f"a kernel matrix of {size} {axis} has one singular value and no spectrum; at least 2 are needed "
                f"(axis {axis})"
            )


def measure(layer: Layer, options: Options) -> Iterator[Measurement]:
    """Singular values of every head's attention or Primal kernel, its r-scores, and V beside its right directions.

    The matrix is that of the real tokens among themselves; of windows, each window by itself.
    """
    attention = _attention_of(layer, options)
    groups = groups_of(layer, attention.q, options.padding)
    parts = [_of_group(layer, attention, options, group) for group in groups]
    for parts_of_metric in zip(*parts, strict=True):
        yield together(layer, groups, parts_of_metric, len(attention.q))
    lacking = (
        "without the effective rank and the Laplacian, which need a whole matrix, and null distributions"
    )
    layer.count_tiled(isinstance(attention, Operands), lacking)


def _in_tiles(layer: Layer, options: Options) -> bool:
    primal = "e_scores" in layer.record.extra
    if options.method == "tiled":
        if primal:
            raise NotApplicable("attends by another kernel, whose products in tiles are not known")
        if options.max_rank == "all":
            raise InputError(
                "max_rank='all' asks for every singular value, which only a whole matrix has; give a number, or take "
                "method='dense'"
            )
        return True
    has_operands = layer.record.q is not None and layer.record.k is not None and layer.record.attn is None
    return not primal and has_operands and options.in_tiles(layer.site("k").shape[-2] ** 2)


def _leading_triplets(
    operands: Operands, options: Options, v: Tensor | None, width: int, group: Group, layer: Layer
) -> tuple[list[MetricValues], KernelSVD | None, Tensor]:
    """The spectra, the leading singular triplets by products in tiles, and attention to v."""
    batch, heads, tokens = operands.q.shape[:3]
    shared = heads // operands.k.shape[1]
    assert isinstance(options.max_rank, int)  # refused or done whole otherwise
    limit = options.max_rank
    scales = torch.as_tensor(operands.scale, dtype=torch.float64).flatten().expand(heads)
    full_mask = operands.mask.tensor
    if full_mask is not None:
        full_mask = full_mask.expand(batch, heads, tokens, tokens)

    def of_head(head_index: tuple[int, int, int]) -> tuple[Tensor, ...]:
        number, input, head = head_index
        q, k = (
            part[input, at][group.tokens].double()
            for part, at in ((operands.q, head), (operands.k, head // shared))
        )
        mask = operands.mask
        if full_mask is not None:
            mask = replace(mask, tensor=full_mask[input, head][group.tokens][:, group.tokens])
        scale = float(scales[head])
        leading = attention_leading(
            q, k, scale, min(len(q), max(limit, width)), mask=mask, tolerance=_TOLERANCE
        )
        values = leading.values.sqrt()
        put_out = leading.vectors if v is None else torch.cat([leading.vectors, v[number, head]], 1)
        images = reduce_tiles(
            q[None, None], k[None, None], HeadOutput(put_out[None, None]), scale=scale, mask=mask
        )
        image = images["output"][0, 0]
        of_vectors, of_values = image[:, : len(values)], image[:, len(values) :]
        resolved = values > _KNOWN * values[0]
        left = torch.where(resolved, of_vectors / values.clamp_min(_TINY), 0)
        return values, left, leading.vectors * resolved, leading.trace, leading.converged.all(), of_values

    inputs = torch.arange(batch)[group.inputs].tolist()
    places = [(number, input, head) for number, input in enumerate(inputs) for head in range(heads)]
    each = map_heads(of_head, places)
    values, left, right, trace, converged, attention_to_v = (
        torch.stack(part).unflatten(0, (len(inputs), heads)) for part in zip(*each, strict=True)
    )
    layer.counts.add(
        f"heads have singular triplets that products in tiles did not find to {_TOLERANCE:g} (a flat spectrum): they "
        "are near, and no more",
        ~converged,
    )
    explained = values.square().cumsum(-1) / trace[..., None]
    holds = explained >= 0.9 * (1 - tokens * torch.finfo(torch.float64).eps)
    rank = torch.where(holds.any(-1), holds.int().argmax(-1) + 1.0, torch.nan).double()
    layer.counts.add(
        f"heads hold less than 90 % of the variance in the {values.shape[-1]} singular values that were computed: "
        "rank_90 is unknown",
        rank.isnan(),
    )
    curves = {
        SINGULAR_VALUE: values,
        _SINGULAR_VALUE_RELATIVE: relative_values(values),
        _EXPLAINED_VARIANCE: explained,
    }
    metrics = [MetricValues(metric, curve[..., :limit], ranked=True) for metric, curve in curves.items()]
    metrics += [MetricValues(RANK_90, rank), MetricValues(_RANK_90_SHARE, rank / left.shape[-2])]
    directions = min(width, values.shape[-1])
    svd = KernelSVD(left[..., :directions], values[..., :directions], right[..., :directions])
    return metrics, svd if width else None, attention_to_v


def _attention_of(layer: Layer, options: Options) -> AttentionMatrix | Operands:
    module = layer.module if "e_scores" in layer.record.extra else None
    tiled = _in_tiles(layer, options)
    if isinstance(module, PrimalAttention) and not tiled:
        return primal_matrix(layer, module)
    need_token_attention(layer)
    attention = layer_operands(layer) if tiled else softmax_matrix(layer)
    queries, keys = attention.q.shape[-2], attention.k.shape[-2]
    if queries != keys:
        raise NotApplicable(f"attends from {queries} queries to {keys} keys, not among the same tokens")
    if isinstance(attention, AttentionMatrix):
        layer.counts.add(
            "heads do not attend by softmax(scale q kᵀ + mask) alone: their spectra have no null distribution",
            torch.full(attention.q.shape[:2], attention.captured is not None),
        )
    return attention


def _of_group(
    layer: Layer, attention: AttentionMatrix | Operands, options: Options, group: Group
) -> list[MetricValues]:
    """Everything about inputs that have the same real tokens, only these."""
    record = layer.record
    v = None if record.v is None else group.cut(layer.of_queries(record.v, layer.total_heads)).double()
    if v is not None:
        check_finite("v", v, TOKENS)
    output = None if record.head_out is None else group.cut(record.head_out[:, layer.heads]).double()
    width = next((part.shape[-1] for part in (output, v) if part is not None), 0)
    null_samples = options.null_samples if "gaussian" in options.nulls else 0
    if isinstance(attention, Operands):
        metrics, svd, of_values = _leading_triplets(attention, options, v, width, group, layer)
    else:
        metrics, svd, of_values = _whole(attention, options, v, width, group, null_samples)
    if svd is None:
        return metrics
    output = of_values if output is None else output
    random = noise_like(output, null_samples, group, "output")  # a seed's name: another changes numbers
    layer.counts.add(
        f"heads have no more tokens than the {width} features of their output: every score lies inside",
        torch.full(svd.left.shape[:2], svd.left.shape[-2] <= width),
    )
    metrics += _left_out(svd, output, random)
    return metrics + ([] if v is None else [_values_in_span(svd, v, random, layer, group, options)])


def _whole(
    attention: AttentionMatrix,
    options: Options,
    v: Tensor | None,
    width: int,
    group: Group,
    null_samples: int,
) -> tuple[list[MetricValues], KernelSVD | None, Tensor]:
    """The spectra beside their null distribution, the first singular triplets, and attention to v."""
    cut, captured = group.cut, attention.captured
    q, k = cut(attention.q), cut(attention.k)
    tokens = (group.inputs, group.tokens)
    kernel = attention.matrix(q, k, *tokens) if captured is None else cut(captured)[..., group.tokens]
    limit = None if options.max_rank == "all" else options.max_rank
    laplacian = options.laplacian and attention.logits is not None  # a Primal kernel has negative entries
    with_nulls = with_null(
        _spectra(kernel, limit, laplacian),
        lambda q, k: _spectra(attention.matrix(q, k, *tokens), limit, laplacian),
        (q, k),
        null_samples if captured is None else 0,
        group,
    )
    svd = kernel_svd(kernel, min(width, kernel.shape[-1])) if width else None
    return with_nulls, svd, kernel if v is None else kernel.double() @ v


def _spectra(kernel: Tensor, limit: int | None, laplacian: bool) -> list[MetricValues]:
    values = singular_values(kernel)
    variance = values.square()
    rank = gram_spectrum.rank_holding(variance, 0.9)
    curves = {
        SINGULAR_VALUE: values,
        _SINGULAR_VALUE_RELATIVE: relative_values(values),
        _EXPLAINED_VARIANCE: gram_spectrum.spectrum_share(variance).cumsum(-1),
    }
    numbers = {
        EFFECTIVE_RANK: gram_spectrum.effective_rank(values),
        RANK_90: rank,
        _RANK_90_SHARE: rank / kernel.shape[-1],
    }
    if laplacian:
        eigenvalues = laplacian_eigenvalues(kernel)
        curves[_LAPLACIAN_EIGENVALUE], numbers[_SPECTRAL_GAP] = eigenvalues, eigenvalues[..., 1]
    return [
        *(MetricValues(metric, curve[..., :limit], ranked=True) for metric, curve in curves.items()),
        *(MetricValues(metric, number) for metric, number in numbers.items()),
    ]


def _left_out(svd: KernelSVD, output: Tensor, random: Tensor) -> list[MetricValues]:
    """Share of the r-scores outside the span of the e-scores, and outside that of the head's output."""
    scores = svd.r_scores
    # columns of Gaussian noise span a random subspace
    null_samples = (
        {"gaussian": left_out(scores, torch.linalg.qr(random).Q).movedim(0, -1)} if len(random) else {}
    )
    candidates = {"e_scores": svd.left, "head_out": head_bases(output)}
    return [
        MetricValues(_R_SCORE_SHARE, left_out(scores, basis), null_samples, {"candidate": name})
        for name, basis in candidates.items()
    ]


def _values_in_span(
    svd: KernelSVD, v: Tensor, random: Tensor, layer: Layer, group: Group, options: Options
) -> MetricValues:
    """The share of the squared norm of V in the span of the right singular vectors."""
    drawn = {}
    if len(random):
        drawn["gaussian"] = random
    if options.null_samples and "permutation" in options.nulls:
        places = torch.arange(v.shape[-2], device=v.device, dtype=torch.float64)[:, None]
        orders = [
            null_values(places, "permutation", options.null_samples, seed)
            for seed in group.seeds.flatten().tolist()
        ]
        order = torch.stack(orders, 1).unflatten(1, v.shape[:2]).long()
        drawn["permutation"] = torch.take_along_dim(v[None], order, -2)
    shared = options.shared_values(layer, group.inputs)
    all_values = [None] * len(v) if shared is None else [*shared[:, 0, group.tokens]]
    seeds = group.seeds.tolist()
    others = [null for null in options.nulls if null not in ("gaussian", "permutation")]
    for null in others if options.null_samples else ():
        inputs = [
            [
                null_values(head, null, options.null_samples, seed, input_values)
                for head, seed in zip(*part, strict=True)
            ]
            for *part, input_values in zip(v, seeds, all_values, strict=True)
        ]
        drawn[null] = torch.stack([torch.stack(heads, 1) for heads in inputs], 1)
    null_samples = {name: inside_share(values, svd.right).movedim(0, -1) for name, values in drawn.items()}
    return MetricValues(_RIGHT_SINGULAR_SHARE, inside_share(v, svd.right), null_samples)


def findings(frame: pd.DataFrame, options: Options) -> list[str]:
    """The ranks of attention, what its r-scores hold besides, and V beside H_r, each with its null distribution."""
    sentences = []
    ranks, holding = (frame[frame["metric"] == metric.name] for metric in (EFFECTIVE_RANK, RANK_90))
    if len(ranks) or len(holding):
        rank = over_inputs(ranks if len(ranks) else holding)
        parts = [f"effective rank of attention {rank.words('.1f')}"] if len(ranks) else []
        if len(holding):
            parts.append(f"90 % of the variance in {over_inputs(holding).words('.1f')} singular values")
        null_words = compare_with_null(ranks if len(ranks) else holding, ".1f")
        sentences.append(f"{', '.join(parts)}, {rank.over('inputs')}{null_words}")
    gaps = frame[frame["metric"] == _SPECTRAL_GAP.name]
    if len(gaps):
        gap = over_inputs(gaps)
        sentences.append(
            f"spectral gap of attention {gap.words('.2f')}, {gap.over('inputs')}{compare_with_null(gaps, '.2f')}"
        )
    scores = frame[frame["metric"] == _R_SCORE_SHARE.name]
    for candidate, words in {"e_scores": "e-scores of as many directions", "head_out": "output"}.items():
        if len(rows := scores[scores["candidate"] == candidate]):
            share = over_inputs(rows)
            sentences.append(
                f"{share.words('.0%')} of the r-scores lie outside the {words}, {share.over('inputs')}"
                f"{compare_with_null(rows)}"
            )
    inside = frame[frame["metric"] == _RIGHT_SINGULAR_SHARE.name]
    for _, rows in inside[inside["null"] == "permutation"].groupby("metric"):
        share = over_inputs(rows)
        sentences.append(
            f"{share.words('.0%')} of V lies in the span of the right singular vectors, {share.over('inputs')}"
            f"{compare_with_null(rows)}"
        )
    return sentences


ANALYSIS = Analysis(
    "attention-spectrum",
    "Spectrum of attention and of the Primal kernel; r-scores, and the values beside the right singular vectors",
    ("q", "k", "v", "scale", "mask", "attn", "head_out"),
    measure,
    (
        SINGULAR_VALUE,
        _SINGULAR_VALUE_RELATIVE,
        _EXPLAINED_VARIANCE,
        EFFECTIVE_RANK,
        RANK_90,
        _RANK_90_SHARE,
        _R_SCORE_SHARE,
        _RIGHT_SINGULAR_SHARE,
        _LAPLACIAN_EIGENVALUE,
        _SPECTRAL_GAP,
    ),
    Options,
    findings=findings,
    also=("input",),  # of which Primal-Attention takes samples
)
