"""Attention beside the kernels of image filters (abdullaev2025 §II-C, Prop. III.2): how much of it they explain.

Rows of the kernel are normalised as attention's rows are, so that it has no amplitude, only bandwidths, found by
least squares over all entries. Attention is (*batch, query, key), one matrix per head.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from workbench.analyses.layer import (
    Layer,
    NotApplicable,
    need_room_for_maps,
    need_token_attention,
    token_attention,
    visible_of,
)
from workbench.analyses.registry import Analysis, OfHeads, Single
from workbench.core import operands
from workbench.core.errors import InputError, UnknownName
from workbench.core.operands import check_finite, checked_tensors
from workbench.core.options import Accepted, NullSamples
from workbench.frames.estimate import null_range, over_everything, overall_null_rows, unit_of
from workbench.frames.measurement import Measurement
from workbench.frames.metric import Metric

KERNELS = {
    "gaussian": ("position",),
    "nlm": ("content",),
    "bilateral": ("position", "content"),
}
"""Filters by the distances that their kernels fall with: of places, of what stands there, of both."""
# log of (mean squared distance / h²): where the search starts, and where a kernel is even or an identity.
_STARTS = (-3.0, -1.0, 0.5, 2.0, 4.0)
_ENDS = (-12.0, 12.0)
_STEPS = 60
_FLAT = 1e-9  # of the squares of attention less its mean: a gradient that has vanished
_ROUNDED = 1e-13  # of them: a difference that rounding makes
_NEAR = 1e-9  # of a logarithm: steps shorter than this change nothing
_ENTRIES = 2**16  # of maps that are fitted at once, so that they stay in a cache
_EVEN = 1e-2  # over a mean distance a kernel of this weight falls by 1 %: it does not fall with it
_CONTENTS = ("tokens", "heads")
_WHOLE = (
    "every fit evaluates its kernel at all pairs of tokens some hundred times; take fewer tokens, or images at a lower "
    "resolution"
)
_MAPS = 4  # of attention, of the distances of contents, of the kernel and of what it misses


@dataclass(frozen=True)
class Options(OfHeads):
    """What contents are."""

    content: Annotated[
        Literal["tokens", "heads", "both"],
        "what contents are: tokens (of the attention's input, the paper's W = I), heads (queries and keys, its W = "
        "W_QᵀW_K) or both",
    ] = "both"
    method: Annotated[
        Literal["auto", "dense"],
        "matrices of tokens × tokens are formed whole",
        Accepted(f"'auto' or 'dense': {_WHOLE}"),
    ] = "auto"
    null_samples: Annotated[
        NullSamples,
        "samples of the null distribution, the kernel's tokens permuted, at least 2; 0 leaves it out",
    ] = 4
    single: Single = False


_FILTER_SHARE = Metric(
    "filter_share",
    "Share of attention explained",
    "1 − Σ(A − K)² / Σ(A − E)² with K the fitted filter's normalised kernel (candidate) and E even "
    "attention; convention says whose distances: tokens, or queries and keys",
    "abdullaev2025 §III",
    low=0,
    high=1,
)
_FILTER_POSITION = Metric(
    "filter_position",
    "Fitted bandwidth h_p of positions",
    "h_p of exp(−‖p_i − p_j‖²/h_p²), in patches or tokens; undefined where the fit does not fall with the "
    "distance",
    "abdullaev2025 eq. 13",
    low=0,
)
_FILTER_CONTENT = Metric(
    "filter_content",
    "Fitted bandwidth h_y of contents",
    "h_y of exp(−‖y_i − y_j‖²/h_y²) over the root mean square distance; undefined where the fit does not "
    "fall with it",
    "abdullaev2025 eqs. 13, 14",
    low=0,
)


class FilterFit(NamedTuple):
    """A kernel fitted to attention, each (*batch), float64.

    share: 1 − Σ(A − K)² / Σ(A − E)², with K the kernel and E uniform attention to the keys a query may see: 0 for a fit
    no better than uniform, 1 for attention that is the kernel; NaN for uniform attention.
    position, content: h_p and h_y in the units of their distances, ∞ where the fitted kernel does not fall with that
    distance, NaN where it has none.
    """

    share: Tensor
    position: Tensor
    content: Tensor


@checked_tensors
def squared_distances(
    x: Float[Tensor, "*batch query space"], y: Float[Tensor, "*batch key space"] | None = None
) -> Float[Tensor, "*batch query key"]:
    """‖x_i − y_j‖² in float64; among the rows of x without y."""
    x = x.double()
    other = x if y is None else y.double()
    return torch.cdist(x, other, compute_mode="donot_use_mm_for_euclid_dist").square()


@checked_tensors
def fit_filter(
    attn: Float[Tensor, "*batch query key"],
    kernel: str,
    *,
    position: Float[Tensor, "*batch query key"] | None = None,
    content: Float[Tensor, "*batch query key"] | None = None,
    visible: Bool[Tensor, "*batch query key"] | None = None,
) -> FilterFit:
    """Fit the bandwidths of a kernel (one of `KERNELS`) so that its normalised rows are nearest to attention.

    The kernels are those of abdullaev2025 eqs. 12 to 14; the fit is ours.

    ``position`` and ``content`` are squared distances of every query and key, broadcast to the attention; ``visible``
    (true = may attend) is the model's mask. Rows of attention are scaled to sum to 1 over the keys of the call, so
    that tokens without a place can be left out beforehand; a row of zeros is left out. The bilateral kernel starts from
    the fits of the other two, and so is never worse.

    Raises UnknownName for another kernel, InputError for axes that do not fit, for NaN or infinite values and for
    fewer than two tokens.
    """
    if kernel not in KERNELS:
        raise UnknownName("filter", kernel, KERNELS)
    distances_by_name, parts = {"position": position, "content": content}, KERNELS[kernel]
    for name in parts:
        if distances_by_name[name] is None:
            raise InputError(f"the {kernel} filter falls with the distance of {name}s; give {name}")
    distances = {name: tensor for name in parts if (tensor := distances_by_name[name]) is not None}
    return _fit_all(attn, distances, {kernel: parts}, visible)[kernel]


def _fit_all(
    attn: Float[Tensor, "*batch query key"],
    distances: Mapping[str, Float[Tensor, "*batch query key"]],
    kernels: Mapping[Any, tuple[str, ...]],
    visible: Bool[Tensor, "*batch query key"] | None,
) -> dict[Any, FilterFit]:
    """Fit every kernel, given as the distances that it falls with, position first."""
    check_finite("attn", attn, ("query", "key"))
    operands.check_token_count("attention", attn.shape[-1])
    seen = torch.ones_like(attn, dtype=torch.bool) if visible is None else _fitting("visible", visible, attn)
    fitting = [_fitting(name, distance, attn) for name, distance in distances.items()]
    batch, size = attn.shape[:-2], attn.shape[-2:]
    flat = batch or (1,)
    flat_tensors = [tensor.detach().cpu().expand(*flat, *size) for tensor in (attn.double(), seen, *fitting)]
    fits_by_kernel = {
        key: [torch.empty(0, 1 + len(parts), dtype=torch.float64)] for key, parts in kernels.items()
    }
    for piece in torch.arange(math.prod(batch)).split(max(1, _ENTRIES // math.prod(size))):
        rows, real, *fit_distances = (tensor[torch.unravel_index(piece, flat)] for tensor in flat_tensors)
        for key, fit in _fit(rows, real, dict(zip(distances, fit_distances, strict=True)), kernels).items():
            fits_by_kernel[key].append(fit)
    fits = {}
    for key, parts in kernels.items():
        share, *bandwidths = torch.cat(fits_by_kernel[key]).reshape(*batch, 1 + len(parts)).unbind(-1)
        absent = torch.full_like(share, math.nan)
        places = bandwidths[0] if parts[0] == "position" else absent
        fits[key] = FilterFit(share, places, absent if parts[-1] == "position" else bandwidths[-1])
    return fits


def _fitting(name: str, tensor: Tensor, attn: Tensor) -> Tensor:
    if tensor.dtype != torch.bool:
        check_finite(name, tensor, ("query", "key"))
        tensor = tensor.double()
    try:
        return tensor.to(attn.device).expand(attn.shape)
    except RuntimeError:
        raise InputError(
            f"{name} of shape {tuple(tensor.shape)} does not fit attention of shape {tuple(attn.shape)} (…, query, key)"
        ) from None


def _fit(
    attn: Float[Tensor, "batch query key"],
    visible: Bool[Tensor, "batch query key"],
    distances: Mapping[str, Float[Tensor, "batch query key"]],
    kernels: Mapping[Any, tuple[str, ...]],
) -> dict[Any, Float[Tensor, "batch part"]]:
    """Of every kernel the share explained, then the bandwidth of each distance, of every matrix."""
    attn = attn.where(visible, 0)
    sums = attn.sum(-1)
    rows = visible.any(-1) & (sums > 0)  # the others are left out
    attn = (attn / sums[..., None]).where(rows[..., None], 0)
    visible = visible & rows[..., None]
    seen = visible.sum(-1)
    even = visible.double() / seen.clamp(min=1)[..., None]
    total = (attn - even).square().sum((-2, -1))
    # Distances in units of their mean, so that the same starts serve all of them.
    gaps = {name: distance.where(visible, 0) for name, distance in distances.items()}
    units = {name: distance.sum((-2, -1)) / seen.sum(-1) for name, distance in gaps.items()}
    varied = total > 1e-20 * rows.sum(-1)
    fits = {
        key: torch.full((len(attn), 1 + len(parts)), math.nan, dtype=torch.float64)
        for key, parts in kernels.items()
    }
    if not varied.any():
        return fits
    if not varied.all():
        attn, visible, total = attn[varied], visible[varied], total[varied]
        gaps, units = ({name: part[varied] for name, part in both.items()} for both in (gaps, units))
    lengths = {name: unit.where(unit > 0, 1) for name, unit in units.items()}
    scaled = {name: distance / lengths[name][:, None, None] for name, distance in gaps.items()}
    mask = None if visible.all() else visible
    alone = {name: _alone(attn, mask, distance, total) for name, distance in scaled.items()}
    for key, parts in kernels.items():
        ends = [alone[name] for name in parts]
        full_kernel = (
            ends[0]
            if len(ends) == 1
            else _together(attn, mask, [scaled[name] for name in parts], total, ends)
        )
        weights, unit = full_kernel[0].exp(), torch.stack([units[name] for name in parts], -1)
        bandwidths = (unit / weights).sqrt().masked_fill(weights < _EVEN, math.inf)
        share = (1 - full_kernel[1] / total).clamp(min=0)  # uniform attention is a kernel: rounding
        defined = (unit > 0).all(-1, keepdim=True)  # where nothing is apart there is no distance to fall with
        fits[key][varied] = torch.cat([share[:, None], bandwidths], -1).masked_fill(~defined, math.nan)
    return fits


class Squares(NamedTuple):
    """Σ(A − K)² of every matrix, its gradient and its second derivatives in the logarithms of the weights."""

    left: Float[Tensor, "*batch"]
    slope: Float[Tensor, "*batch distance"]
    curvature: Float[Tensor, "*batch distance distance"]


def squares_left(
    log_weights: Float[Tensor, "*batch distance"],
    attn: Float[Tensor, "*batch query key"],
    visible: Bool[Tensor, "*batch query key"] | None,
    distances: Sequence[Float[Tensor, "*batch query key"]],
) -> Squares:
    """Σ(A − K)² with K the softmax of −Σ w d over several squared distances d, w = 1/h² (abdullaev2025 eq. 13).

    Hidden keys have no weight; the row of a query that sees nothing is 0 in K, as it must be in A.
    """
    weights = log_weights.exp()
    kernel, gap = _kernel(weights, attn, visible, distances)
    # dK/d(log w) = −w K c and d²K/d(log w)d(log v) = w v K (c b − Σ_j K c b) − δ w K c, with c = d − Σ_j K d
    centred = [distance - (kernel * distance).sum(-1, keepdim=True) for distance in distances]
    pull = gap * kernel
    slope = -2 * weights * torch.stack([_dot(pull, c) for c in centred], -1)
    bend = pull + kernel * (kernel - pull.sum(-1, keepdim=True))
    turned = [bend * c for c in centred]
    curvature = torch.stack([torch.stack([_dot(product, c) for c in centred], -1) for product in turned], -1)
    curvature = 2 * weights[..., None] * weights[..., None, :] * curvature + torch.diag_embed(slope)
    return Squares(_dot(gap, gap), slope, curvature)


def _kernel(
    weights: Float[Tensor, "*batch distance"],
    attn: Float[Tensor, "*batch query key"],
    visible: Bool[Tensor, "*batch query key"] | None,
    distances: Sequence[Float[Tensor, "*batch query key"]],
) -> tuple[Float[Tensor, "*batch query key"], Float[Tensor, "*batch query key"]]:
    """K, and K − A; a row that sees nothing is 0 in both."""
    first, *others = (-w[..., None, None] for w in weights.unbind(-1))
    logits = first * distances[0]
    for w, distance in zip(others, distances[1:], strict=True):
        logits.addcmul_(w, distance)
    if visible is not None:
        logits.masked_fill_(~visible, -math.inf)
    # overwritten, since torch.softmax takes half as long again
    kernel = logits.sub_(logits.amax(-1, keepdim=True)).exp_()
    kernel.div_(kernel.sum(-1, keepdim=True))
    if visible is not None:
        kernel.nan_to_num_(nan=0.0)
    return kernel, kernel - attn


def _dot(
    x: Float[Tensor, "*batch query key"], y: Float[Tensor, "*batch query key"]
) -> Float[Tensor, "*batch"]:
    return (x * y).sum((-2, -1))


_Ends = tuple[
    Float[Tensor, "batch distance"], Float[Tensor, " batch"]
]  # log weights with the least squares left


def _alone(
    attn: Float[Tensor, "batch query key"],
    visible: Bool[Tensor, "batch query key"] | None,
    distance: Float[Tensor, "batch query key"],
    total: Float[Tensor, " batch"],
) -> _Ends:
    """The best kernel of one distance, from the best two of `_STARTS`."""
    starts = torch.tensor(_STARTS, dtype=torch.float64)
    losses = []
    for start in starts:
        _, gap = _kernel(start.exp().expand(len(attn), 1), attn, visible, [distance])
        losses.append(_dot(gap, gap))
    best = torch.stack(losses).argsort(0)[:2]
    return _least([_descend(starts[at][:, None], attn, visible, [distance], total) for at in best])


def _together(
    attn: Float[Tensor, "batch query key"],
    visible: Bool[Tensor, "batch query key"] | None,
    distances: list[Float[Tensor, "batch query key"]],
    total: Float[Tensor, " batch"],
    alone: Sequence[_Ends],
) -> _Ends:
    """The best kernel of several distances, no worse than that of each."""
    single = [  # the others without weight
        torch.cat(
            [end if chosen == index else torch.full_like(end, _ENDS[0]) for index in range(len(alone))], -1
        )
        for chosen, (end, _) in enumerate(alone)
    ]
    starts = [torch.cat([end for end, _ in alone], -1), *(start.clamp(min=_STARTS[0]) for start in single)]
    tried = [(start, squares_left(start, attn, visible, distances).left) for start in single]
    return _least(tried + [_descend(start, attn, visible, distances, total) for start in starts])


def _least(tried: list[_Ends]) -> _Ends:
    """Of every matrix the best of several ends."""
    ends, left = (torch.stack(part) for part in zip(*tried, strict=True))
    best, every = left.argmin(0), torch.arange(left.shape[1])
    return ends[best, every], left[best, every]


def _descend(
    start: Float[Tensor, "batch distance"],
    attn: Float[Tensor, "batch query key"],
    visible: Bool[Tensor, "batch query key"] | None,
    distances: list[Float[Tensor, "batch query key"]],
    total: Float[Tensor, " batch"],
) -> tuple[Float[Tensor, "batch distance"], Float[Tensor, " batch"]]:
    """A minimum of Σ(A − K)² from a start, by Newton's steps within a trust radius, for all matrices at once.

    Along directions of negative curvature a step goes down by the curvature's size. Matrices whose gradient has
    vanished beside ``total`` are done, and no longer evaluated.
    """
    ends, left = start.clone(), torch.full_like(total, math.inf)
    places, radius = torch.arange(len(start)), torch.ones_like(total)
    at, now = start, squares_left(start, attn, visible, distances)
    for _ in range(_STEPS):
        ends[places], left[places] = at, now.left
        outward = ((at <= _ENDS[0]) & (now.slope > 0)) | ((at >= _ENDS[1]) & (now.slope < 0))
        slope = now.slope.where(~outward, 0)
        going = (slope.abs().amax(-1) > _FLAT * total) & (radius > _NEAR)
        if not going.any():
            break
        if not going.all():
            places, at, radius, attn, total, slope, outward = (
                part[going] for part in (places, at, radius, attn, total, slope, outward)
            )
            visible = None if visible is None else visible[going]
            distances = [distance[going] for distance in distances]
            now = Squares(*(part[going] for part in now))
        fixed = outward[..., None] | outward[..., None, :]
        curvature = now.curvature.where(~fixed, torch.eye(at.shape[-1], dtype=at.dtype))
        values, vectors = torch.linalg.eigh(curvature)
        along = (vectors.mT @ slope[..., None])[..., 0] / values.abs().clamp(min=_FLAT * total[..., None])
        step = -(vectors @ along[..., None])[..., 0]
        size = step.norm(dim=-1)
        step = step * (radius / size).clamp(max=1)[..., None]
        there = (at + step).clamp(*_ENDS)
        then = squares_left(there, attn, visible, distances)
        better = then.left <= now.left + _ROUNDED * total
        radius = torch.where(better, (2 * radius).clamp(max=4), torch.minimum(size, radius) / 4)
        at = there.where(better[:, None], at)
        now = Squares(
            *(
                new.where(better.reshape(-1, *[1] * (new.ndim - 1)), old)
                for new, old in zip(then, now, strict=True)
            )
        )
    return ends, left


def measure(layer: Layer, options: Options) -> Iterator[Measurement]:
    """Share explained and bandwidths of every head's fit, for each filter and each kind of content.

    Tokens without a place (class, register) and padding are left out, and rows scaled to sum to 1 over the rest.
    """
    need_token_attention(layer)
    need_room_for_maps(layer, _MAPS, _WHOLE)
    attn = layer.choose_heads(token_attention(layer.record))
    count = attn.shape[-1]
    if attn.shape[-2] != count:
        raise NotApplicable("has queries that are not its keys, so that no filter runs over its tokens")
    positions = layer.positions(count)
    if positions is None:
        raise NotApplicable("has patches whose places are not known")
    kept = _kept(layer, positions, len(attn))
    if int(kept.sum(-1).min()) < 2:
        raise NotApplicable("has a single token with a place, and all filters agree there")
    near = squared_distances(positions)
    alike = {name: _contents(layer, name) for name in _CONTENTS if options.content in (name, "both")}
    fits = _fits(layer, attn, kept, near, alike, options.null_samples)
    for kernel, parts in KERNELS.items():
        for name in alike if "content" in parts else (None,):
            fit, drawn = fits[kernel, name]
            columns = (
                layer.window_column | {"candidate": kernel} | ({} if name is None else {"convention": name})
            )
            layer.counts.add(
                "fits were to uniform attention, which leaves nothing to explain", fit.share.isnan()
            )
            null_samples = {} if drawn is None else {"permutation": layer.per_input(drawn)}
            yield Measurement(
                _FILTER_SHARE, layer.per_input(fit.share), columns=columns, null_samples=null_samples
            )
            for part in parts:
                bandwidth = getattr(fit, part)
                bandwidth = layer.per_input(bandwidth.masked_fill(bandwidth.isinf(), torch.nan))
                if part == "content":
                    yield Measurement(_FILTER_CONTENT, bandwidth, columns=columns)
                else:
                    unit = {"unit": "patches" if positions.shape[-1] == 2 else "tokens"}
                    yield Measurement(_FILTER_POSITION, bandwidth, columns=columns | unit)


def _kept(layer: Layer, positions: Tensor, batch: int) -> Bool[Tensor, "batch token"]:
    """Mark real tokens with a position."""
    placed = positions.isfinite().all(-1).expand(batch, -1)
    real = layer.real_tokens(placed.shape[-1])
    return placed if real is None else placed & real.cpu()


def _contents(layer: Layer, name: str) -> Float[Tensor, "batch head_or_one query key"]:
    """Squared distances of what stands at every token: of the attention's input, or of each head's q and k."""
    if name == "heads":
        q, k = layer.site("q"), layer.site("k")
        k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)  # grouped queries share their keys
        return squared_distances(q[:, layer.heads], k[:, layer.heads]).cpu()
    return squared_distances(layer.site("input"))[:, None].cpu()


def _fits(
    layer: Layer,
    attn: Float[Tensor, "batch head query key"],
    kept: Bool[Tensor, "batch token"],
    near: Float[Tensor, "query key"],
    alike: Mapping[str, Float[Tensor, "batch head_or_one query key"]],
    null_samples: int,
) -> dict[tuple[str, str | None], tuple[FilterFit, Float[Tensor, "batch head draw"] | None]]:
    """By kernel and content, the fit to every input and head, and the shares that the null distribution explains.

    The null distribution is that of the kernel of the same tokens, places and contents together, in another order:
    attention of tokens to themselves stays on the diagonal.
    """
    visible = visible_of(layer, attn)
    attn = attn.detach().double().cpu()
    fit_parts, drawn = [], []
    for input_index, seed in enumerate(layer.seeds(len(attn))[:: len(layer.heads)]):
        tokens = kept[input_index].nonzero()[:, 0]
        rows = _among(attn[input_index], tokens)
        seen = None if visible is None else _among(visible[input_index].cpu(), tokens)
        contents = {name: content[input_index] for name, content in alike.items()}
        source = torch.Generator().manual_seed(seed)
        orders = torch.rand(null_samples, len(tokens), generator=source).argsort(-1)
        groups = tokens[orders].split(max(1, _ENTRIES // rows.numel()))
        fit_parts.append(_fit_tokens(rows, near, contents, seen, tokens))
        drawn.append([_fit_tokens(rows[:, None], near, contents, seen, group) for group in groups])
    return {
        key: (
            FilterFit(*(torch.stack(part) for part in zip(*(fits[key] for fits in fit_parts), strict=True))),
            torch.stack([torch.cat([fits[key].share for fits in groups], -1) for groups in drawn])
            if null_samples
            else None,
        )
        for key in fit_parts[0]
    }


def _fit_tokens(
    rows: Float[Tensor, "head *draw query key"],
    near: Float[Tensor, "token token"],
    alike: Mapping[str, Float[Tensor, "head_or_one token token"]],
    seen: Tensor | None,
    tokens: Int[Tensor, "*draw token"],
) -> dict[tuple[str, str | None], FilterFit]:
    """All kernels of these tokens, in every order given; h_y relative to their root mean square distance."""
    if seen is not None:
        seen = seen.reshape(len(seen), *[1] * (tokens.ndim - 1), *seen.shape[-2:])
    if tokens.ndim > 1:
        rows = rows.expand(-1, len(tokens), -1, -1)
    contents = {name: _among(content, tokens) for name, content in alike.items()}
    kernels: dict[tuple[str, str | None], tuple[str, ...]] = {("gaussian", None): ("position",)}
    for name in contents:
        kernels |= {("nlm", name): (name,), ("bilateral", name): ("position", name)}
    fits = _fit_all(rows, {"position": _among(near, tokens), **contents}, kernels, seen)
    for (kernel, name), fit in fits.items():
        if name is not None:
            fits[kernel, name] = fit._replace(content=fit.content / contents[name].mean((-2, -1)).sqrt())
    return fits


def _among(
    pairs: Float[Tensor, "*batch query key"], tokens: Int[Tensor, "*draw token"]
) -> Float[Tensor, "*batch *draw token token"]:
    """The rows and columns of some tokens, in their order, or in each of several."""
    return pairs[..., tokens[..., :, None], tokens[..., None, :]]


_FILTERS = {
    ("gaussian", ""): "Gaussian of the places",
    ("nlm", "tokens"): "non-local means of the tokens",
    ("nlm", "heads"): "of queries and keys",
    ("bilateral", "tokens"): "bilateral filter of the tokens",
    ("bilateral", "heads"): "of queries and keys",
}


def findings(frame: pd.DataFrame, options: Options) -> list[str]:
    """Say how much of the attention each filter explains, with the null of permuted tokens, and the bandwidths."""
    shares = frame[frame["metric"] == _FILTER_SHARE.name]
    by_filter = dict(iter(shares.groupby([shares["candidate"], shares["convention"].fillna("")])))
    fits = {name: over_everything(by_filter[name]) for name in _FILTERS if name in by_filter}
    if not fits or all(math.isnan(fit.value) for fit in fits.values()):
        return []
    explained = "; ".join(f"{_FILTERS[name]} {fit.words('.1%')}" for name, fit in fits.items())
    placed = pd.concat([overall_null_rows(rows) for rows in by_filter.values()])
    null_words = (
        f"; above the {null_range(frame, placed['null'].iloc[0])}: {placed['above'].sum()} of {len(placed)} "
        f"(nulls at most {placed['null_mean'].max():.1%})"
        if len(placed)
        else ""
    )
    over = unit_of(next(iter(fits.values()))).removeprefix("mean over ")
    sentences = [f"attention explained by a {explained}; mean over layers, heads and {over}{null_words}"]
    widths = []
    for (kernel, convention), words in {
        name: _FILTERS[name] for name in fits if name[0] == "bilateral"
    }.items():
        rows = frame[(frame["candidate"] == kernel) & (frame["convention"] == convention)]
        positions = rows[rows["metric"] == _FILTER_POSITION.name]
        h_p, h_y = (
            over_everything(part) for part in (positions, rows[rows["metric"] == _FILTER_CONTENT.name])
        )
        if math.isfinite(h_p.value) and math.isfinite(h_y.value):
            widths.append(
                f"{words} h_p = {h_p.words('.1f')} {positions['unit'].iloc[0]}, h_y = {h_y.words()}"
            )
    if widths:
        sentences.append(
            f"bandwidths of the {'; '.join(widths)} (h_y over the root mean square distance); mean over the fits that "
            "have both"
        )
    return sentences


ANALYSIS = Analysis(
    "filter-kernels",
    "Attention beside fitted Gaussian, non-local-means and bilateral kernels",
    ("input", "q", "k", "mask", "attn"),
    measure,
    (_FILTER_SHARE, _FILTER_POSITION, _FILTER_CONTENT),
    Options,
    findings=findings,
)
