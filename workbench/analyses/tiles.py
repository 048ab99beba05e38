"""Attention in tiles: what is a sum over its queries or keys, without the matrix of queries × keys.

`layer_attention` gives a layer's attention as `Operands`, worked through in tiles, or as `Maps`, one tile per input.

A tile of operands is some queries of some heads against every key that these may see. Its scores are formed once,
float32 (float64 operands stay float64); their row maxima and log-sum-exp turn them into weights where they stand
(Milakov & Gimelshein 2018; Rabe & Staats 2021), and the reductions take what they need of it. Sums over keys are added
up in float64. Memory grows with the number of keys, time with the number of pairs that see each other: keys that a
causal or windowed mask hides from all queries of a tile are never formed. Queries of one group read their shared keys
unexpanded.

B batch, H query head, K key head, N query, M key, D head_dim.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from workbench.analyses.layer import (
    NEVER,
    WINDOW_MASK,
    Layer,
    NotApplicable,
    need_room_for_maps,
    token_attention,
    visible_of,
)
from workbench.analyses.registry import Method, OfMatrices
from workbench.captures import attention_weights
from workbench.core.errors import InputError, UnknownName
from workbench.core.operands import checked_tensors

MEMORY = 96 * 2**20
"""Bytes of the buffers of a tile; a buffer in the processor's cache is read faster than a larger buffer."""
MAPS_AT_ONCE = 2**17
"""Entries of maps in one tile, unless a single input has more: 1 MB in float64 stays in a processor's cache."""
ROWS = 256
"""Rows of one matrix product at most: more gain nothing."""
_CHUNK = (
    512  # numbers that float32 adds up before float64 does: their rounding is a few units of the last digit
)
_SHARP = (
    0.5  # below it what lies beside a row's largest weight is added up without that weight, to all its digits
)
_PLACES = 8
_ROW_TOLERANCE = 1e-2  # of a row's sum from 1: the rounding of bfloat16 weights, summed over a row
_SAME = 1e-3  # of an entry of attention, which is at most 1: beyond the rounding of single precision
_COMPARED = 4

MaskFunction = Callable[[Tensor, Tensor], Tensor]
"""Of the numbers of queries (N, 1) and keys (1, M): true where a query sees a key, or what is added to the score."""


class Place(NamedTuple):
    """Position of NaN or infinite scores: queries and keys from the first to the last, both included."""

    batch: int
    head: int
    queries: tuple[int, int]
    keys: tuple[int, int]

    def __str__(self) -> str:
        (first, last), (left, right) = self.queries, self.keys
        return f"input {self.batch}, head {self.head}, queries {first} to {last}, keys {left} to {right}"


@dataclass(frozen=True)
class Mask:
    """Which keys the queries see; everything that is given holds at once.

    tensor: (batch or 1, head or 1, query or 1, key), true where a query may attend, or added to the scores; function:
    the same of numbers of queries and keys, tile by tile; causal: key j ≤ query i + offset; window: number of keys
    back, the query's own included, and also ahead where attention is not causal. ``hidden_at``: an additive mask at or
    below it counts as hiding a key (`visible_keys`).
    """

    tensor: Tensor | None = None
    function: MaskFunction | None = None
    causal: bool = False
    window: int | None = None
    offset: int = 0
    hidden_at: float = NEVER

    def allows(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return which keys queries see under causality and window, by their numbers."""
        at = queries + self.offset
        near = keys <= at if self.causal else torch.ones_like(keys <= at)
        if self.window is not None:
            near &= keys > at - self.window
            near &= keys < at + self.window
        return near

    @property
    def by_head(self) -> bool:
        """Whether the mask differs between heads."""
        return self.tensor is not None and self.tensor.ndim == 4 and self.tensor.shape[1] > 1

    def span(self, rows: slice, keys: int) -> slice:
        """The keys that some of these queries may see, as far as causality and window tell."""
        first, last = rows.start + self.offset, rows.stop - 1 + self.offset
        low, high = 0, keys
        if self.window is not None:
            low = max(0, first - self.window + 1)
            high = keys if self.causal else min(keys, last + self.window)
        if self.causal:
            high = min(high, last + 1)
        return slice(min(low, max(high, 0)), max(high, 0))


class _Seen(NamedTuple):
    """Visibility of a tile's pairs under a mask, (1 or head, query, key of ``columns``)."""

    columns: slice
    bias: Tensor | None
    """Added to the scores."""
    hidden: Tensor | None
    """True where there is no weight, for the keys ``fringe``; the others are hidden from no query."""
    fringe: slice
    visible: Tensor | None
    """True for keys that are neither hidden nor padding; None if all are."""
    count: Tensor
    """How many keys count as seen, (1 or head, query), float64."""


@dataclass
class Tile:
    """Some queries of some heads, and the keys ``columns`` that they may see; everything else is 0.

    batch: an input, or where maps are given whole a slice of inputs, which are then an axis in front of the others.
    weights: attention (head, query, key). total: the sum of a row's weights on keys that are no padding, 1 but for
    rows that see nothing. visible, count: as the mask says, with 1 head where it is that of all. below: each score less
    the largest of its row, 0 where hidden; log_sum: log Σ exp(below), (head, query), so that log attention is
    ``below − log_sum``. spare: a buffer like the weights. top: the largest score of each row, (head, query), −∞ where
    it sees nothing. These four are None for attention maps.
    """

    batch: int | slice
    heads: slice
    rows: slice
    columns: slice
    weights: Tensor
    total: Tensor
    visible: Tensor | None
    count: Tensor
    below: Tensor | None = None
    log_sum: Tensor | None = None
    spare: Tensor | None = None
    top: Tensor | None = None

    @property
    def slices(self) -> tuple[int | slice, slice, slice]:
        """Index of these rows in (batch, head, query)."""
        return self.batch, self.heads, self.rows

    def sum_of(self, factor: Tensor) -> Float[Tensor, "*input head query"]:
        """Σ over keys of weights × factor, in float64."""
        return row_sums(torch.mul(self.weights, factor, out=self.spare))


class Shape(NamedTuple):
    """Sizes of attention that is worked through."""

    batch: int
    heads: int
    queries: int
    keys: int
    device: torch.device
    dtype: torch.dtype

    def rows(self, *more: int, fill: float = 0.0, dtype: torch.dtype = torch.float64) -> Tensor:
        """A number per (batch, head, query, …)."""
        return torch.full(
            (self.batch, self.heads, self.queries, *more), fill, dtype=dtype, device=self.device
        )


REDUCTIONS: dict[str, type[Reduction]] = {}
"""Reductions by name; a subclass of `Reduction` joins by being defined."""


class Reduction(ABC):
    """A reduction of attention tile by tile: `start`, `add` of every tile, `end_rows` after all heads, `result`.

    Tiles come by input, then by queries, then by heads. A subclass with a ``name`` is found by it.
    """

    name: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.name:
            REDUCTIONS[cls.name] = cls

    @abstractmethod
    def start(self, shape: Shape) -> None:
        """Before the first tile."""

    @abstractmethod
    def add(self, tile: Tile) -> None:
        """Another tile."""

    def end_rows(self, batch: int | slice, rows: slice) -> None:  # noqa: B027 - only what is kept of several heads ends rows
        """All heads of these queries have been added."""

    @abstractmethod
    def result(self) -> Any:
        """After the last tile."""


@dataclass
class Reduced:
    """Results of all tiles by the names of reductions, and the state of every row (batch, head, query).

    log_normaliser: log Σ_j exp(score), −∞ where a query sees nothing (and for maps, whose scores are unknown); total,
    count: as in `Tile`; broken: rows with a score that is NaN or +∞, whose weights count as 0 (of maps rows with a
    weight that is NaN, infinite or negative, which counts as 0); nonfinite: weights of a row that are NaN or
    infinite; places: where such scores stood, the first few.
    """

    results: dict[str, Any]
    log_normaliser: Tensor
    total: Tensor
    count: Tensor
    broken: Tensor
    nonfinite: Tensor
    places: list[Place] = field(default_factory=list)

    @classmethod
    def of(cls, shape: Shape) -> Reduced:
        """Before the first tile."""
        rows = (shape.rows(fill=-math.inf), shape.rows(), shape.rows())
        return cls({}, *rows, shape.rows(dtype=torch.bool), shape.rows(dtype=torch.int64))

    @property
    def faulty(self) -> Tensor:
        """Rows that are no distributions over keys."""
        return self.broken | ((self.total - 1).abs() > _ROW_TOLERANCE)

    def reduce(self, tiles: Iterator[Tile], shape: Shape, reductions: Sequence[Reduction]) -> Reduced:
        """Add the results of reductions of all tiles."""
        for reduction in reductions:
            reduction.start(shape)
        with torch.no_grad():
            for tile in tiles:
                for reduction in reductions:
                    reduction.add(tile)
                    if tile.heads.stop == shape.heads:
                        reduction.end_rows(tile.batch, tile.rows)
        self.results = {reduction.name: reduction.result() for reduction in reductions}
        return self

    def __getitem__(self, name: str) -> Any:
        return self.results[name]


def row_sums(values: Float[Tensor, "*batch query key"]) -> Float[Tensor, "*batch query"]:
    """Sums over keys: float32 over a few hundred at a time, float64 over these."""
    if values.dtype == torch.float64:
        return values.sum(-1)
    chunked = values.shape[-1] // _CHUNK * _CHUNK
    rest = values[..., chunked:].sum(-1).double()
    if not chunked:
        return rest
    return values[..., :chunked].unflatten(-1, (-1, _CHUNK)).sum(-1).sum(-1, dtype=torch.float64) + rest


@checked_tensors
def reduce_tiles(
    q: Float[Tensor, "batch head query head_dim"],
    k: Float[Tensor, "batch kv_head key head_dim"],
    *reductions: str | Reduction,
    scale: float | Tensor | None = None,
    mask: Mask | Tensor | MaskFunction | None = None,
    keys: Bool[Tensor, "batch key"] | None = None,
    memory: int = MEMORY,
    nonfinite: Literal["raise", "keep"] = "raise",
) -> Reduced:
    """Work through softmax(scale q kᵀ + mask) tile by tile; ``reductions`` are names of `REDUCTIONS` or reductions.

    ``scale`` (default 1/√head_dim) is a number or one per head; ``mask`` a `Mask`, a tensor that broadcasts to
    (batch, head, query, key), or a function. ``keys`` marks real tokens: weights on padding
    that the mask does not hide take part in the softmax and count as 0 afterwards. k may have fewer heads than q.
    ``memory`` bounds the buffers of a tile, in bytes, down to a single row. Queries that see nothing have weights 0.
    Raises `InputError` for operands that do not fit, and for scores that are NaN or infinite, saying where these stand,
    unless they are kept: their rows then count as 0 and are reported.
    """
    mask = _as_mask(mask)
    _check_fit(q, k, mask, keys)
    wanted = [_found(reduction) for reduction in reductions]
    dtype = torch.promote_types(q.dtype, torch.float32)
    batch, heads, queries, _ = q.shape
    shape = Shape(batch, heads, queries, k.shape[2], q.device, dtype)
    reduced = Reduced.of(shape)
    tiles = _tiles(q, k, _by_head(scale, q), mask, keys, shape, memory, reduced)
    return reduced.reduce(_finite(tiles, reduced) if nonfinite == "raise" else tiles, shape, wanted)


def _finite(tiles: Iterator[Tile], reduced: Reduced) -> Iterator[Tile]:
    """The tiles up to the first with scores that are NaN or infinite, which raises `InputError`."""
    for tile in tiles:
        if reduced.places:
            raise InputError(
                f"scores are NaN or infinite at {reduced.places[0]}; run the model in float32 or bfloat16, or "
                "leave that layer or input out"
            )
        yield tile


def _tiles(
    q: Tensor,
    k: Tensor,
    scales: Tensor,
    mask: Mask,
    keys: Tensor | None,
    shape: Shape,
    memory: int,
    reduced: Reduced,
) -> Iterator[Tile]:
    """Every tile in turn, its buffers being those of the one before; ``reduced`` gets what is known of their rows."""
    group = shape.heads // k.shape[1]
    wide = k.to(shape.dtype)
    longest = max(_width(mask, rows, shape.keys) for rows in _slices(shape.queries, ROWS))
    most = max(group, memory // (3 * max(1, longest) * shape.dtype.itemsize))
    size = min(shape.queries, max(1, min(ROWS, most) // group))
    at_once = max(1, min(k.shape[1], most // (size * group)))
    buffers = torch.empty(3, at_once * group * size * longest, dtype=shape.dtype, device=shape.device)
    for batch in range(shape.batch):
        real = None if keys is None or bool(keys[batch].all()) else keys[batch].to(shape.device)
        for rows in _slices(shape.queries, size):
            seen = None
            for pairs in _slices(k.shape[1], at_once):
                taken = slice(pairs.start * group, pairs.stop * group)
                if seen is None or mask.by_head:
                    seen = _seen(mask, batch, taken, rows, shape, real)
                yield _tile(q, wide, scales, batch, pairs, taken, rows, seen, real, buffers, reduced)


def _tile(
    q: Tensor,
    k: Tensor,
    scales: Tensor,
    batch: int,
    pairs: slice,
    heads: slice,
    rows: slice,
    seen: _Seen,
    real: Tensor | None,
    buffers: Tensor,
    reduced: Reduced,
) -> Tile:
    """Scores, row maxima, log-sum-exp and weights of one tile."""
    columns, count = seen.columns, seen.count
    asking = q[batch, heads, rows].to(k.dtype) * scales[heads].to(k.dtype)
    height, width = asking.shape[1], columns.stop - columns.start
    used = buffers[:, : len(asking) * height * width].view(3, len(asking), height, width)
    below, weights, spare = used
    tile_index = batch, heads, rows
    log_sum = torch.full(asking.shape[:2], -math.inf, dtype=torch.float64, device=k.device)
    largest, total = log_sum, torch.zeros_like(log_sum)
    if width:
        torch.bmm(
            asking.reshape(pairs.stop - pairs.start, -1, asking.shape[-1]),
            k[batch, pairs, columns].mT,
            out=below.view(pairs.stop - pairs.start, -1, width),
        )
        if seen.bias is not None:
            below += seen.bias
        if seen.hidden is not None:
            below[..., seen.fringe].masked_fill_(seen.hidden, -math.inf)
        top = below.amax(-1, keepdim=True)
        empty = _hidden_from_all(seen, width)
        finite = torch.isfinite(top)
        broken = ~finite[..., 0] & ~empty
        below -= torch.where(finite, top, 0)
        torch.exp(below, out=weights)
        if seen.hidden is not None:
            below[..., seen.fringe].masked_fill_(seen.hidden, 0)
        if bool(broken.any()):
            _note_broken(reduced, tile_index, columns, below, broken)
            reduced.nonfinite[tile_index] = broken * (k.shape[2] if real is None else int(real.sum()))
            for part in (below, weights):
                part.masked_fill_(broken[..., None], 0)
        filled = finite[..., 0]
        rest = _beside_largest(weights, filled)
        log_sum = torch.where(filled, torch.log1p(rest), -math.inf)
        weights *= torch.where(filled, 1 / (1 + rest), 0).to(weights.dtype)[..., None]
        total = filled.double()
        largest = torch.where(filled, top[..., 0].double(), -math.inf)
        reduced.log_normaliser[tile_index] = largest + log_sum
        if real is not None and not bool(real[columns].all()):
            weights.masked_fill_(~real[columns], 0)
            total = row_sums(weights)
    reduced.total[tile_index], reduced.count[tile_index] = total, count
    return Tile(
        batch, heads, rows, columns, weights, total, seen.visible, count, below, log_sum, spare, largest
    )


def _beside_largest(weights: Tensor, filled: Tensor) -> Tensor:
    """Σ of a row's exponentials without the largest, which is 1, (head, query): to all digits where it is small."""
    rest = row_sums(weights) - 1
    sharp = filled & (rest < _SHARP)
    if bool(sharp.any()):
        few = weights[sharp]
        few.scatter_(-1, few.argmax(-1, keepdim=True), 0)
        rest[sharp] = row_sums(few)
    return rest


def _hidden_from_all(seen: _Seen, width: int) -> Tensor:
    """Return the rows (1 or head, query) whose keys in the tile are all hidden."""
    if seen.hidden is None or seen.fringe.stop - seen.fringe.start < width:
        return torch.zeros_like(seen.count, dtype=torch.bool)
    return seen.hidden.all(-1)


def _note_broken(
    reduced: Reduced, tile_index: tuple[int, slice, slice], columns: slice, below: Tensor, broken: Tensor
) -> None:
    batch, heads, rows = tile_index
    reduced.broken[tile_index] = broken
    for head in broken.any(-1).nonzero()[:, 0].tolist():
        if len(reduced.places) == _PLACES:
            return
        which = broken[head].nonzero()[:, 0]
        bad = ~torch.isfinite(below[head][which])
        at = bad.any(0).nonzero()[:, 0]
        reduced.places.append(
            Place(
                batch,
                heads.start + head,
                (rows.start + int(which[0]), rows.start + int(which[-1])),
                (columns.start + int(at[0]), columns.start + int(at[-1])),
            )
        )


def _seen(mask: Mask, batch: int, heads: slice, rows: slice, shape: Shape, real: Tensor | None) -> _Seen:
    """Return the visibility of these pairs, without the keys at both ends that no query sees."""
    columns = mask.span(rows, shape.keys)
    queries = torch.arange(rows.start, rows.stop, device=shape.device)[:, None]
    allowed, bias = None, None
    parts = []
    if mask.causal or mask.window is not None:
        keys = torch.arange(columns.start, columns.stop, device=shape.device)[None]
        parts.append(mask.allows(queries, keys)[None])
    if mask.tensor is not None:
        parts.append(_cut(mask.tensor, batch, heads, rows, columns, shape).to(shape.device))
    if mask.function is not None:
        keys = torch.arange(columns.start, columns.stop, device=shape.device)[None]
        seen = mask.function(queries, keys).to(shape.device)
        parts.append(seen.expand(len(queries), columns.stop - columns.start)[None])
    for part in parts:
        if part.dtype == torch.bool:
            allowed = part if allowed is None else allowed & part
        else:
            bias = part if bias is None else bias + part
    height, width = len(queries), columns.stop - columns.start
    visible = allowed
    if bias is not None:
        key_count = bias > max(mask.hidden_at, torch.finfo(bias.dtype).min / 10)
        visible = key_count if visible is None else visible & key_count
        open_ = bias != -math.inf
        if bool(visible.any(-1).all()):  # weights of what is near the lowest number are exactly 0
            open_ = bias > torch.finfo(bias.dtype).min / 10
        allowed = open_ if allowed is None else allowed & open_
        bias = bias.to(shape.dtype)
    if allowed is None:
        key_count = width if real is None else int(real.sum())
        visible = None if real is None else real.expand(1, height, width)
        count = torch.full((1, height), float(key_count), dtype=torch.float64, device=shape.device)
        return _Seen(columns, None, None, slice(0, 0), visible, count)
    used = allowed.any(-2).any(0).nonzero()[:, 0]
    low, high = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, 0)
    columns = slice(columns.start + low, columns.start + high)
    allowed = allowed.expand(-1, height, -1)[..., low:high]
    visible = allowed if visible is None else visible.expand(-1, height, -1)[..., low:high]
    if real is not None:
        visible = visible & real[columns]
    partial = (~allowed.all(-2).all(0)).nonzero()[:, 0]
    fringe = slice(int(partial[0]), int(partial[-1]) + 1) if len(partial) else slice(0, 0)
    return _Seen(
        columns,
        None if bias is None else bias.expand(-1, height, -1)[..., low:high],
        ~allowed[..., fringe] if len(partial) else None,
        fringe,
        visible,
        visible.sum(-1).double(),
    )


def _cut(tensor: Tensor, batch: int, heads: slice, rows: slice, columns: slice, shape: Shape) -> Tensor:
    """The part of a mask tensor, (1 or head, 1 or query, key)."""
    four_axes = tensor[(None,) * (4 - tensor.ndim)]
    of_input = four_axes[batch if four_axes.shape[0] > 1 else 0]
    of_heads = of_input[heads] if of_input.shape[0] > 1 else of_input
    of_rows = of_heads[:, rows] if of_heads.shape[1] > 1 else of_heads
    return of_rows[..., columns].expand(-1, -1, columns.stop - columns.start)


def _slices(count: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


def _width(mask: Mask, rows: slice, keys: int) -> int:
    columns = mask.span(rows, keys)
    return columns.stop - columns.start


def _as_mask(mask: Mask | Tensor | MaskFunction | None) -> Mask:
    if isinstance(mask, Mask):
        return mask
    if mask is None or isinstance(mask, Tensor):
        return Mask(tensor=mask)
    return Mask(function=mask)


def _found(reduction: str | Reduction) -> Reduction:
    if isinstance(reduction, Reduction):
        return reduction
    if reduction not in REDUCTIONS:
        raise UnknownName("reduction", reduction, REDUCTIONS)
    try:
        return REDUCTIONS[reduction]()
    except TypeError as error:
        raise InputError(
            f"the reduction {reduction!r} needs an argument: give {REDUCTIONS[reduction].__name__}(…) ({error})"
        ) from None


def _by_head(scale: float | Tensor | None, q: Tensor) -> Tensor:
    """The scale of every head, (head, 1, 1)."""
    value = torch.as_tensor(
        q.shape[-1] ** -0.5 if scale is None else scale, dtype=torch.float64, device=q.device
    ).flatten()
    if len(value) not in (1, q.shape[1]):
        raise InputError(f"a scale of {len(value)} numbers does not fit {q.shape[1]} heads")
    return value.expand(q.shape[1])[:, None, None]


def _check_fit(q: Tensor, k: Tensor, mask: Mask, keys: Tensor | None) -> None:
    if q.ndim != 4 or k.ndim != 4:
        raise InputError(
            f"q and k must be (batch, head, token, head_dim); got {tuple(q.shape)} and {tuple(k.shape)}"
        )
    if q.shape[0] != k.shape[0] or q.shape[-1] != k.shape[-1] or q.shape[1] % k.shape[1]:
        raise InputError(
            f"k of shape {tuple(k.shape)} does not go with q of shape {tuple(q.shape)}: batch and head_dim are the "
            "same, and the heads of q a multiple of those of k"
        )
    full = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    if mask.tensor is not None:
        try:
            mask.tensor.expand(full)
        except RuntimeError as error:
            raise InputError(
                f"mask of shape {tuple(mask.tensor.shape)} does not fit attention of shape {full} "
                "(batch, head, query, key)"
            ) from error
    if mask.window is not None and mask.window < 1:
        raise InputError(f"window is at least 1, the query's own key; got {mask.window}")
    if keys is not None and (keys.dtype != torch.bool or keys.shape != (full[0], full[3])):
        raise InputError(
            f"keys must be boolean of shape {(full[0], full[3])}; got {keys.dtype} of shape {tuple(keys.shape)}"
        )


class Operands(NamedTuple):
    """Operands of the attention of a layer's chosen heads, as `reduce_tiles` takes them."""

    q: Tensor
    k: Tensor
    scale: float | Tensor
    mask: Mask
    keys: Tensor | None
    """Real tokens among the keys; None where all are."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(batch, head, query, key)."""
        return (*self.q.shape[:3], self.k.shape[2])

    def of_queries(self, chosen: Tensor) -> Operands:
        """Keep some queries, by their numbers."""
        mask, places = self.mask, chosen[:, None]
        if mask.causal or mask.window is not None:
            near = replace(mask, tensor=None, function=None)
            mask = replace(
                mask,
                causal=False,
                window=None,
                offset=0,
                function=lambda i, j: near.allows(places[i[:, 0]], j),
            )
        if mask.tensor is not None and mask.tensor.ndim > 1 and mask.tensor.shape[-2] > 1:
            mask = replace(mask, tensor=mask.tensor[..., chosen, :])
        return self._replace(q=self.q[:, :, chosen], mask=mask)

    def reduced(self, *reductions: Reduction) -> Reduced:
        """All tiles; rows with scores that are NaN or infinite count as 0, and are reported."""
        return reduce_tiles(
            self.q, self.k, *reductions, scale=self.scale, mask=self.mask, keys=self.keys, nonfinite="keep"
        )


class Maps(NamedTuple):
    """Dense attention maps: the same reductions, of one tile for many small inputs, in float64.

    attn: (batch, head, query, key); visible: true where a query may attend, broadcast to it; keys: as of `Operands`.
    """

    attn: Tensor
    visible: Tensor | None = None
    keys: Tensor | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """(batch, head, query, key)."""
        return tuple(self.attn.shape)

    def of_queries(self, chosen: Tensor) -> Maps:
        """Keep some queries, by their numbers."""
        visible = None if self.visible is None else self.visible.expand(self.shape)[:, :, chosen]
        return self._replace(attn=self.attn[:, :, chosen], visible=visible)

    def reduced(self, *reductions: Reduction) -> Reduced:
        """All inputs; weights that are NaN, infinite or negative count as 0, and their rows are reported."""
        batch, heads, queries, keys = self.shape
        shape = Shape(batch, heads, queries, keys, self.attn.device, torch.float64)
        reduced, at_once = Reduced.of(shape), max(1, MAPS_AT_ONCE // (heads * queries * keys))
        return reduced.reduce(
            (self._tile(part, reduced) for part in _slices(batch, at_once)), shape, reductions
        )

    def _tile(self, inputs: slice, reduced: Reduced) -> Tile:
        weights = self.attn[inputs].double()
        _, heads, queries, keys = weights.shape
        real = None if self.keys is None else self.keys[inputs].to(weights.device)[:, None, None]
        if real is not None and bool(real.all()):
            real = None
        if real is not None:
            weights = weights.masked_fill(~real, 0)
        total = weights.sum(-1)
        if not (bool(torch.isfinite(total).all()) and bool((weights >= 0).all())):
            finite = torch.isfinite(weights)
            fine = finite & (weights >= 0)
            reduced.broken[inputs], reduced.nonfinite[inputs] = ~fine.all(-1), (~finite).sum(-1)
            weights = torch.where(fine, weights, 0)
            total = weights.sum(-1)
        visible = None if real is None else real.expand(-1, 1, queries, keys)
        if self.visible is not None:
            seen = self.visible.expand(self.shape)[inputs]
            seen = seen[:, :1] if seen.stride(1) == 0 else seen
            visible = seen if real is None else seen & real
        count = (
            total.new_full((len(total), 1, queries), keys) if visible is None else visible.sum(-1).double()
        )
        reduced.total[inputs], reduced.count[inputs] = total, count
        every = slice(0, heads), slice(0, queries), slice(0, keys)
        return Tile(inputs, *every, weights=weights, total=total, visible=visible, count=count)


Attention = Operands | Maps


def layer_attention(layer: Layer, method: Method) -> Attention:
    """Attention of the chosen heads of a layer: operands to work through in tiles, or maps where these may be formed.

    Raises `NotApplicable` where tiles are asked for and attention is not the softmax of its queries and keys.
    """
    attn, q, k = layer.record.attn, layer.record.q, layer.record.k
    if method == "auto" and attn is None and q is not None and k is not None:
        entries = q.shape[1] * q.shape[2] * k.shape[2]
        method = "tiled" if OfMatrices(method).in_tiles(entries) else "dense"
    if method == "tiled":
        return layer_operands(layer)
    need_room_for_maps(layer, 2, "leave method='dense' out, or take fewer tokens or heads")
    kept = layer.choose_heads(token_attention(layer.record))
    return Maps(kept, visible_of(layer, kept), layer.real_on(kept, -1, keys=True))


def layer_operands(layer: Layer) -> Operands:
    """Return the operands of the attention of a layer's chosen heads.

    Raises `NotApplicable` where attention is not the softmax of its queries and keys.
    """
    record = layer.record
    if record.q is None or record.k is None:
        raise NotApplicable("holds no queries and keys that make its attention: take method='dense'")
    queries, keys = record.q, record.k
    heads = queries.shape[1]
    q = layer.choose_heads(queries)
    k = keys if len(layer.heads) == heads else layer.of_queries(keys, heads)
    hidden_at = NEVER if record.origin is None else WINDOW_MASK
    mask = Mask(causal=True) if record.causal else Mask(layer.head_attention_mask, hidden_at=hidden_at)
    operands = Operands(q, k, layer.scale(q.shape[-1], heads), mask, layer.real_on(k, 2, keys=True))
    if record.attn is not None:
        _check_same(operands, record.attn[:, layer.heads])
    return operands


def _check_same(operands: Operands, attn: Tensor) -> None:
    """The captured attention is what the operands give, in a few rows."""
    rows = slice(None, None, max(1, (attn.shape[-2] - 1) // (_COMPARED - 1)))
    mask = operands.mask.tensor
    if mask is not None and mask.ndim > 1 and mask.shape[-2] > 1:
        mask = mask[..., rows, :]
    scale = operands.scale
    if isinstance(scale, Tensor) and scale.numel() > 1:
        scale = scale.reshape(-1, 1, 1)
    again = attention_weights(operands.q[:, :, rows], operands.k, scale, mask)
    if (again - attn[:, :, rows]).abs().amax() > _SAME:
        raise NotApplicable(
            "has weights that are not the softmax of q kᵀ: method='dense' reads them as they are"
        )


def report_broken(layer: Layer | None, reduced: Reduced) -> None:
    """Say where scores were NaN or infinite."""
    if layer is not None and reduced.places:
        message = f"rows of attention have scores that are NaN or infinite: layer {layer.index}, {reduced.places[0]}"
        layer.counts.add(message, reduced.broken)
