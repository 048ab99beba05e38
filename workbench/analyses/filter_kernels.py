"""Attention beside the kernels of image filters (abdullaev2025 §II-C, Prop. III.2): how much of it they explain.

Rows of the kernel are normalised as attention's rows are, so that it has no amplitude; what is left are its bandwidths,
found by least squares over all entries. Attention is (*batch, query, key), one matrix per head.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from scipy.optimize import minimize
from torch import Tensor

from workbench.analyses.layer import (
    Layer,
    NotApplicable,
    need_room_for_maps,
    need_token_attention,
    token_attention,
    visible_of,
)
from workbench.analyses.registry import Analysis, FromMaps, OfHeads, Single
from workbench.core import operands
from workbench.core.errors import InputError, UnknownName
from workbench.core.operands import check_finite, checked
from workbench.core.options import NullSamples
from workbench.frames.estimate import over_everything, place_in_null, unit_of
from workbench.frames.measurement import Measurement
from workbench.frames.metrics import Metric

KERNELS = {
    "gaussian": ("position",),
    "nlm": ("content",),
    "bilateral": ("position", "content"),
}
"""Filters by the distances that their kernels fall with: of places, of what stands there, of both."""
# log of (mean squared distance / h²): where the search starts, and where a kernel is even or an identity.
_STARTS = (-3.0, -1.0, 0.5, 2.0, 4.0)
_ENDS = (-12.0, 12.0)
_EVEN = 1e-2  # over a mean distance a kernel of this weight falls by 1 %: it does not fall with it
CONTENTS = ("tokens", "heads")
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
    null_samples: Annotated[
        NullSamples,
        "samples of the null distribution, the kernel's tokens permuted, at least 2; 0 leaves it out",
    ] = 4
    single: Single = False

    @property
    def map_limit(self) -> int | None:
        """The largest maps, in entries per input, that are captured beside what they are made of."""
        return FromMaps().map_limit


FILTER_SHARE = Metric(
    "filter_share",
    "Share of attention explained",
    "1 − Σ(A − K)² / Σ(A − E)² with K the fitted filter's normalised kernel (candidate) and E even "
    "attention; convention says whose distances: tokens, or queries and keys",
    "abdullaev2025 §III",
    low=0,
    high=1,
)
FILTER_POSITION = Metric(
    "filter_position",
    "Fitted bandwidth h_p of positions",
    "h_p of exp(−‖p_i − p_j‖²/h_p²), in patches or tokens; undefined where the fit does not fall with the "
    "distance",
    "abdullaev2025 eq. 13",
    low=0,
)
FILTER_CONTENT = Metric(
    "filter_content",
    "Fitted bandwidth h_y of contents",
    "h_y of exp(−‖y_i − y_j‖²/h_y²) over the root mean square distance; undefined where the fit does not "
    "fall with it",
    "abdullaev2025 eqs. 13, 14",
    low=0,
)


class FilterFit(NamedTuple):
    """A kernel fitted to attention, each (*batch), float64.

    share: 1 − Σ(A − K)² / Σ(A − E)², with K the kernel and E even attention to the keys a query may see: 0 for what is
    no better than an even mean, 1 for attention that is the kernel; NaN for attention that is even itself.
    position, content: h_p and h_y in the units of their distances, ∞ where the fitted kernel does not fall with that
    distance, NaN where it has none.
    """

    share: Tensor
    position: Tensor
    content: Tensor


@checked
def squared_distances(
    x: Float[Tensor, "*batch query space"], y: Float[Tensor, "*batch key space"] | None = None
) -> Float[Tensor, "*batch query key"]:
    """‖x_i − y_j‖² in float64; among the rows of x where y is not given."""
    x = x.double()
    other = x if y is None else y.double()
    return torch.cdist(x, other, compute_mode="donot_use_mm_for_euclid_dist").square()


def log_filter_kernel(
    distances: Sequence[Float[np.ndarray, "query key"]],
    weights: Sequence[float] | np.ndarray,
    visible: Bool[np.ndarray, "query key"] | None = None,
) -> Float[np.ndarray, "query key"]:
    """−Σ w d over several squared distances d, w = 1/h², −∞ at hidden keys (abdullaev2025 eq. 13)."""
    first, *others = distances
    logits = first * -weights[0]
    for weight, distance in zip(weights[1:], others, strict=True):
        logits -= weight * distance
    if visible is not None:
        logits[~visible] = -np.inf
    return logits


@checked
def fit_filter(
    attn: Float[Tensor, "*batch query key"],
    kernel: str,
    *,
    position: Float[Tensor, "*batch query key"] | None = None,
    content: Float[Tensor, "*batch query key"] | None = None,
    visible: Bool[Tensor, "*batch query key"] | None = None,
) -> FilterFit:
    """The bandwidths of a kernel (one of `KERNELS`) with which its normalised rows are nearest to attention.

    The kernels are those of abdullaev2025 eqs. 12 to 14; the fit is ours.

    ``position`` and ``content`` are squared distances of every query and key, broadcast to the attention; ``visible``
    (true = may attend) is the model's mask. Rows of attention are scaled to sum to 1 over the keys that are given, so
    that tokens without a place can be left out beforehand; a row of zeros is left out. The bilateral kernel starts from
    the fits of the other two, and so is never worse.

    Raises UnknownName for another kernel, InputError for axes that do not fit, for NaN or infinite values and for
    fewer than two tokens.
    """
    if kernel not in KERNELS:
        raise UnknownName("filter", kernel, KERNELS)
    check_finite("attn", attn, ("query", "key"))
    operands.check_token_count("attention", attn.shape[-1])
    given = {"position": position, "content": content}
    distances = []
    for name in KERNELS[kernel]:
        distance = given[name]
        if distance is None:
            raise InputError(f"the {kernel} filter falls with the distance of {name}s; give {name}")
        distances.append(_fitting(name, distance, attn))
    seen = torch.ones_like(attn, dtype=torch.bool) if visible is None else _fitting("visible", visible, attn)
    batch, size = attn.shape[:-2], attn.shape[-2:]
    flat = [tensor.detach().cpu().reshape(-1, *size).numpy() for tensor in (attn.double(), seen, *distances)]
    found = np.array([_fit(one[0], one[1], one[2:]) for one in zip(*flat, strict=True)]).reshape(*batch, -1)
    share, bandwidths = (
        found[..., 0],
        dict(zip(KERNELS[kernel], np.moveaxis(found[..., 1:], -1, 0), strict=True)),
    )
    absent = np.full(batch, math.nan)
    return FilterFit(
        *(
            torch.from_numpy(np.array(part, dtype=np.float64))
            for part in (share, bandwidths.get("position", absent), bandwidths.get("content", absent))
        )
    )


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


def _fit(attn: np.ndarray, visible: np.ndarray, distances: Sequence[np.ndarray]) -> list[float]:
    """Share explained and the bandwidth of each distance, of one matrix."""
    attn = np.where(visible, attn, 0.0)
    sums = attn.sum(-1)
    rows = visible.any(-1) & (sums > 0)
    attn, visible = attn[rows] / sums[rows, None], visible[rows]
    even = visible / visible.sum(-1, keepdims=True)
    total = np.square(attn - even).sum()
    # Distances in units of their mean, so that the same starts serve all of them.
    apart = [distance[rows] for distance in distances]
    units = [distance[visible].mean() for distance in apart]
    if total <= 1e-20 * len(attn) or not all(unit > 0 for unit in units):
        return [math.nan] * (1 + len(distances))
    scaled = [np.where(visible, distance / unit, 0.0) for distance, unit in zip(apart, units, strict=True)]
    log_weights, left = _least_squares(attn, visible, scaled)
    weights = np.exp(log_weights)
    bandwidths = [
        math.inf if weight < _EVEN else math.sqrt(unit / weight)
        for weight, unit in zip(weights, units, strict=True)
    ]
    return [
        max(0.0, 1 - left / total),
        *bandwidths,
    ]  # even attention is among the kernels: below 0 by rounding


def squares_left(
    log_weights: np.ndarray,
    attn: Float[np.ndarray, "query key"],
    visible: Bool[np.ndarray, "query key"] | None,
    distances: Sequence[Float[np.ndarray, "query key"]],
    free: Sequence[int] | None = None,
) -> tuple[float, np.ndarray]:
    """Σ(A − K)² with K the normalised kernel of `log_filter_kernel`, and its gradient in the logarithms of the w.

    With ``free`` the gradient is that along these alone.
    """
    weights = np.exp(log_weights)
    kernel = log_filter_kernel(distances, weights, visible)
    kernel -= kernel.max(-1, keepdims=True)
    np.exp(kernel, out=kernel)
    kernel /= kernel.sum(-1, keepdims=True)
    gap = kernel - attn
    left = float(np.vdot(gap, gap))
    along = range(len(distances)) if free is None else free
    if not len(along):
        return left, np.array([])
    # dK/dw = −K (d − Σ_j K d), and dw/d(log w) = w
    pull = np.multiply(gap, kernel, out=gap)
    pulls = pull.sum(-1)
    slopes = [
        -2
        * weights[index]
        * (np.vdot(pull, distances[index]) - pulls @ np.einsum("qk,qk->q", kernel, distances[index]))
        for index in along
    ]
    return left, np.array(slopes)


def _least_squares(
    attn: np.ndarray, visible: np.ndarray, distances: list[np.ndarray]
) -> tuple[np.ndarray, float]:
    """Logarithms of the weights of the distances with the least Σ(A − K)², and that sum."""
    mask = None if visible.all() else visible

    def loss(log_weights: np.ndarray, free: Sequence[int]) -> tuple[float, np.ndarray]:
        return squares_left(log_weights, attn, mask, distances, free)

    def search(start: Sequence[float] | np.ndarray, free: Sequence[int]) -> tuple[np.ndarray, float]:
        """From one start, with the distances that are not ``free`` left as they are."""
        fixed = np.array(start, dtype=float)

        def part(x: np.ndarray) -> tuple[float, np.ndarray]:
            at = fixed.copy()
            at[list(free)] = x
            return loss(at, free)

        found = minimize(part, fixed[list(free)], jac=True, method="L-BFGS-B", bounds=[_ENDS] * len(free))
        fixed[list(free)] = found.x
        return fixed, float(found.fun)

    ends: list[tuple[np.ndarray, float]] = []
    count = len(distances)
    for place in range(count):  # each distance alone, the other without weight
        starts = [[at if other == place else _ENDS[0] for other in range(count)] for at in _STARTS]
        losses = [loss(np.array(start), ())[0] for start in starts]
        best = sorted(range(len(starts)), key=losses.__getitem__)[:2]
        ends += [search(starts[index], [place]) for index in best]
    if count > 1:
        alone = [min(ends[2 * place : 2 * place + 2], key=lambda end: end[1])[0] for place in range(count)]
        both = [alone[place][place] for place in range(count)]
        starts = [both, *(np.maximum(one, _STARTS[0]) for one in alone)]
        ends += [search(start, range(count)) for start in starts]
    return min(ends, key=lambda end: end[1])


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
        raise NotApplicable("has a single token with a place, to which every filter is the same")
    near = squared_distances(positions)
    alike = {name: _contents(layer, name) for name in CONTENTS if options.content in (name, "both")}
    for kernel, parts in KERNELS.items():
        for name, content in alike.items() if "content" in parts else ((None, None),):
            found, drawn = _fits(layer, attn, kept, kernel, near, content, options.null_samples)
            columns = (
                layer.window_column | {"candidate": kernel} | ({} if name is None else {"convention": name})
            )
            layer.counts.add(
                "fits were to even attention, of which there is nothing to explain", found.share.isnan()
            )
            null_samples = {} if drawn is None else {"permutation": layer.per_input(drawn)}
            yield Measurement(
                FILTER_SHARE, layer.per_input(found.share), columns=columns, null_samples=null_samples
            )
            for part in parts:
                bandwidth = getattr(found, part)
                bandwidth = layer.per_input(bandwidth.masked_fill(bandwidth.isinf(), torch.nan))
                if part == "content":
                    yield Measurement(FILTER_CONTENT, bandwidth, columns=columns)
                else:
                    unit = {"unit": "patches" if positions.shape[-1] == 2 else "tokens"}
                    yield Measurement(FILTER_POSITION, bandwidth, columns=columns | unit)


def _kept(layer: Layer, positions: Tensor, batch: int) -> Bool[Tensor, "batch token"]:
    """Real tokens that have a place."""
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
    kernel: str,
    near: Float[Tensor, "query key"],
    content: Float[Tensor, "batch head_or_one query key"] | None,
    null_samples: int,
) -> tuple[FilterFit, Float[Tensor, "batch head draw"] | None]:
    """The fit to every input and head, and the shares that the null distribution explains.

    The null distribution is that of the kernel of the same tokens, places and contents together, in another order:
    what tokens give themselves stays in its place.
    """
    visible = visible_of(layer, attn)
    attn = attn.detach().double().cpu()
    found, drawn = [], []
    for place, seed in enumerate(layer.seeds(len(attn))[:: len(layer.heads)]):
        tokens = kept[place].nonzero()[:, 0]
        rows = _among(attn[place], tokens)
        seen = None if visible is None else _among(visible[place].cpu(), tokens)
        alike = None if content is None else content[place]
        found.append(_fit_tokens(rows, kernel, near, alike, seen, tokens))
        source = torch.Generator().manual_seed(seed)
        orders = torch.rand(null_samples, len(tokens), generator=source).argsort(-1)
        shares = [_fit_tokens(rows, kernel, near, alike, seen, tokens[order]).share for order in orders]
        drawn += [torch.stack(shares, -1)] if null_samples else []
    fits = FilterFit(*(torch.stack(part) for part in zip(*found, strict=True)))
    return fits, torch.stack(drawn) if null_samples else None


def _fit_tokens(
    rows: Tensor, kernel: str, near: Tensor, alike: Tensor | None, seen: Tensor | None, tokens: Tensor
) -> FilterFit:
    """A fit to the kernel of these tokens; h_y relative to their root mean square distance."""
    position = _among(near, tokens)
    if alike is None:
        return fit_filter(rows, kernel, position=position, visible=seen)
    content = _among(alike, tokens)
    fit = fit_filter(rows, kernel, position=position, content=content, visible=seen)
    return fit._replace(content=fit.content / content.mean((-2, -1)).sqrt())


def _among(pairs: Float[Tensor, "*batch query key"], tokens: Tensor) -> Float[Tensor, "*batch query key"]:
    """The rows and columns of some tokens, in their order."""
    return pairs[..., tokens, :][..., tokens]


_FILTERS = {
    ("gaussian", ""): "Gaussian of the places",
    ("nlm", "tokens"): "non-local means of the tokens",
    ("nlm", "heads"): "of queries and keys",
    ("bilateral", "tokens"): "bilateral filter of the tokens",
    ("bilateral", "heads"): "of queries and keys",
}


def findings(frame: pd.DataFrame, options: Options) -> list[str]:
    """How much of the attention each fitted filter explains, beside the same filter with its tokens permuted."""
    shares = frame[frame["metric"] == FILTER_SHARE.name]
    by_filter = dict(iter(shares.groupby([shares["candidate"], shares["convention"].fillna("")])))
    fits = {name: over_everything(by_filter[name]) for name in _FILTERS if name in by_filter}
    if not fits or all(math.isnan(fit.value) for fit in fits.values()):
        return []
    explained = "; ".join(f"{_FILTERS[name]} {fit.words('.1%')}" for name, fit in fits.items())
    placed = pd.concat([place_in_null(rows) for rows in by_filter.values()])
    beside = (
        f"; above the {placed['null'].iloc[0]} null's 95 % band: {placed['above'].sum()} of {len(placed)} "
        f"(nulls at most {placed['null_mean'].max():.1%})"
        if len(placed)
        else ""
    )
    over = unit_of(next(iter(fits.values()))).removeprefix("mean over ")
    return [f"attention explained by a {explained}; mean over layers, heads and {over}{beside}"]


ANALYSIS = Analysis(
    "filter-kernels",
    "Attention beside fitted Gaussian, non-local-means and bilateral kernels",
    ("input", "q", "k", "mask", "attn"),
    measure,
    (FILTER_SHARE, FILTER_POSITION, FILTER_CONTENT),
    Options,
    findings=findings,
    whole=_WHOLE,
)
