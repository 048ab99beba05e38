"""Reductions of attention tile by tile: numbers of rows, of keys, coarse maps, chosen rows and columns.

Each is a `workbench.analyses.tiles.Reduction`, given to `reduce_tiles` by its name or, where it needs an argument,
as an object. Numbers of rows are (batch, head, query), float64, 0 for queries that see nothing.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from workbench.analyses.tiles import Reduction, Shape, Tile, row_sums
from workbench.core.errors import InputError

PatternPlaces = Callable[[int, range], tuple[Tensor, ...]]
"""The keys of a pattern: of (input, some queries in a row) the numbers of queries and keys, pair by pair."""


class _OfRows(Reduction):
    """A number of every row."""

    def start(self, shape: Shape) -> None:
        self.values = shape.rows()

    def add(self, tile: Tile) -> None:
        self.values[tile.slices] = self.of(tile)

    @abstractmethod
    def of(self, tile: Tile) -> Tensor:
        """Of the rows of a tile."""

    def result(self) -> Float[Tensor, "batch head query"]:
        return self.values


class RowEntropy(_OfRows):
    """−Σ_j A_ij log A_ij in nats, every term of it positive: exact to its own size also where a row is nearly sharp."""

    name = "entropy"

    def of(self, tile: Tile) -> Tensor:
        if tile.below is None or tile.log_sum is None:
            return torch.special.entr(tile.weights).sum(-1)
        spent = tile.sum_of(tile.below)
        if bool(torch.isnan(spent).any()):  # a score of −∞ that no mask asked for: 0 · ∞
            spent = row_sums(torch.where(tile.weights > 0, tile.weights * tile.below, 0))
        return torch.where(tile.total > 0, tile.log_sum * tile.total, 0) - spent


class RowSquares(_OfRows):
    """Σ_j A_ij²."""

    name = "squares"

    def of(self, tile: Tile) -> Tensor:
        return tile.sum_of(tile.weights)


class EvenOverlap(_OfRows):
    """Σ_j min(A_ij, 1/m) over the m keys that a query sees."""

    name = "overlap"

    def of(self, tile: Tile) -> Tensor:
        even = (1 / tile.count.clamp_min(1)).to(tile.weights.dtype)[..., None]
        return row_sums(torch.minimum(tile.weights, even, out=tile.spare))


class RowScores(NamedTuple):
    """Scores of each row: the largest, −∞ where a query sees no key; sum and sum of squares over visible keys."""

    largest: Float[Tensor, "batch head query"]
    total: Float[Tensor, "batch head query"]
    squares: Float[Tensor, "batch head query"]


class Scores(Reduction):
    """The arguments of the softmax, scale q kᵀ + mask, of operands."""

    name = "scores"

    def start(self, shape: Shape) -> None:
        self.rows = RowScores(shape.rows(fill=-math.inf), shape.rows(), shape.rows())

    def add(self, tile: Tile) -> None:
        if tile.below is None or tile.top is None:
            raise InputError("attention maps hold no scores; give queries and keys")
        below = tile.below if tile.visible is None else tile.below * tile.visible
        sums, squares = row_sums(below), row_sums(below * below)
        top = torch.where(tile.top > -math.inf, tile.top, 0)
        self.rows.largest[tile.slices] = tile.top
        self.rows.total[tile.slices] = sums + tile.count * top
        self.rows.squares[tile.slices] = squares + 2 * top * sums + tile.count * top.square()

    def result(self) -> RowScores:
        return self.rows


class _OnceForHeads:
    """Cache of a tile's tensors that are the same for all heads."""

    def __init__(self) -> None:
        self.at: tuple[int | slice, slice, slice] | None = None
        self.tensors: tuple[Tensor, ...] = ()

    def of(self, tile: Tile, make: Callable[[Tile], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        at = tile.batch, tile.rows, tile.columns
        if self.at != at:
            self.at, self.tensors = at, make(tile)
        return self.tensors


class RowDistances(NamedTuple):
    """Mean distances of rows, of their attention and of uniform attention to the keys that a query sees."""

    attention: Float[Tensor, "batch head query"]
    uniform: Float[Tensor, "batch head query"]


@dataclass
class RowDistance(Reduction):
    """Σ_j A_ij |p_i − p_j| / Σ_j A_ij over keys with a position; NaN for queries without, or none but such keys."""

    name = "distance"
    query_positions: Float[Tensor, "query space"]
    key_positions: Float[Tensor, "key space"]

    def start(self, shape: Shape) -> None:
        self.values, self.uniform = (shape.rows(fill=math.nan) for _ in range(2))
        self.once, self.once_uniform = _OnceForHeads(), _OnceForHeads()
        self.from_, self.to = (
            part.to(shape.device, torch.float64) for part in (self.query_positions, self.key_positions)
        )
        self.everywhere = bool(torch.isfinite(self.from_).all() & torch.isfinite(self.to).all())

    def add(self, tile: Tile) -> None:
        distance, placed = self.once.of(tile, self._distances)
        mass = tile.total if self.everywhere else tile.sum_of(placed)
        self.values[tile.slices] = torch.where(mass > 0, tile.sum_of(distance) / mass, math.nan)

        def uniform(tile: Tile) -> tuple[Tensor]:
            parts = [part if tile.visible is None else part * tile.visible for part in (distance, placed)]
            sums = [row_sums(part) for part in parts]
            return (sums[0] / sums[1],)

        by_head = tile.count.shape[-2] > 1
        (self.uniform[tile.slices],) = uniform(tile) if by_head else self.once_uniform.of(tile, uniform)

    def _distances(self, tile: Tile) -> tuple[Tensor, ...]:
        here, there = self.from_[tile.rows], self.to[tile.columns]
        distance = torch.cdist(here, there, compute_mode="donot_use_mm_for_euclid_dist")
        placed = torch.isfinite(distance)
        dtype = tile.weights.dtype
        return torch.where(placed, distance, 0).to(dtype), placed.to(dtype)

    def result(self) -> RowDistances:
        return RowDistances(self.values, self.uniform)


class ReceivedSums(NamedTuple):
    """Attention that every key receives, and would receive of uniform attention to the keys that a query sees."""

    attention: Float[Tensor, "batch head key"]
    uniform: Float[Tensor, "batch head key"]


@dataclass
class Received(Reduction):
    """Sums over the real ``queries`` of the attention that a key receives."""

    name = "received"
    queries: Bool[Tensor, "batch query"] | None = None

    def start(self, shape: Shape) -> None:
        sums = (shape.batch, shape.heads, shape.keys)
        self.attention, self.uniform = (
            torch.zeros(sums, dtype=torch.float64, device=shape.device) for _ in range(2)
        )
        self.once = _OnceForHeads()

    def add(self, tile: Tile) -> None:
        asking = torch.ones_like(tile.count[..., 0, :])
        if self.queries is not None:
            asking = self.queries[tile.batch, tile.rows].to(asking)
        asking = asking[..., None, :]
        received = asking.to(tile.weights.dtype)[..., None, :] @ tile.weights
        self.attention[tile.batch, tile.heads, tile.columns] += received[..., 0, :]
        if tile.count.shape[-2] > 1:
            (uniform,) = _uniform(tile, asking)
        else:
            (uniform,) = self.once.of(tile, lambda tile: _uniform(tile, asking))
        self.uniform[tile.batch, tile.heads, tile.columns] += uniform

    def result(self) -> ReceivedSums:
        return ReceivedSums(self.attention, self.uniform)


def _uniform(tile: Tile, asking: Tensor) -> tuple[Tensor]:
    """Σ over queries of 1/m on the m keys that each sees, (input, 1 or head, key)."""
    share = asking / tile.count.clamp_min(1)
    if tile.visible is None:
        width = tile.columns.stop - tile.columns.start
        return (share.sum(-1, keepdim=True).expand(*share.shape[:-1], width),)
    return ((share[..., None, :] @ tile.visible.double())[..., 0, :],)


class PatternSums(NamedTuple):
    """Of every row: its weights on the keys of a pattern, and how many of these it sees."""

    weight: Float[Tensor, "batch head query"]
    keys: Float[Tensor, "batch head query"]


def _by_head(part: Tensor) -> Tensor:
    """The numbers of a tile's pairs as (head, input, query, key)."""
    return part[:, None] if part.ndim == 3 else part.transpose(0, 1)


@dataclass
class OnPatterns(Reduction):
    """Attention on the keys of patterns, by name; of keys that a query does not see nothing counts."""

    name = "patterns"
    places: Mapping[str, PatternPlaces]

    def start(self, shape: Shape) -> None:
        self.sums = {name: PatternSums(shape.rows(), shape.rows()) for name in self.places}
        self.once = {name: _OnceForHeads() for name in self.places}

    def add(self, tile: Tile) -> None:
        weights, visible = _by_head(tile.weights), None if tile.visible is None else _by_head(tile.visible)
        heads, inputs, queries, _ = weights.shape
        for name, sums in self.sums.items():
            numbers, rows, keys = self.once[name].of(tile, lambda tile, name=name: self._inside(name, tile))
            on = weights[:, numbers, rows, keys]
            seen = torch.ones_like(on[:1]) if visible is None else visible[:, numbers, rows, keys].to(on)
            for into, part in ((sums.weight, on * seen), (sums.keys, seen)):
                added = torch.zeros(len(part), inputs * queries, dtype=torch.float64, device=on.device)
                added.index_add_(1, numbers * queries + rows, part.double())
                by_input = added.view(-1, inputs, queries).expand(heads, -1, -1)
                into[tile.slices] = (
                    by_input[:, 0] if isinstance(tile.batch, int) else by_input.transpose(0, 1)
                )

    def _inside(self, name: str, tile: Tile) -> tuple[Tensor, ...]:
        """Inputs, rows and columns within the tile of the pattern's pairs."""
        batch, rows = tile.batch, range(tile.rows.start, tile.rows.stop)
        inputs = range(batch, batch + 1) if isinstance(batch, int) else range(batch.start, batch.stop)
        pairs = [self.places[name](number, rows) for number in inputs]
        counts = torch.tensor([len(queries) for queries, _ in pairs])
        numbers = torch.arange(len(pairs)).repeat_interleave(counts)
        queries, keys = (torch.cat(part) for part in zip(*pairs, strict=True))
        inside = (keys >= tile.columns.start) & (keys < tile.columns.stop)
        pair_indices = numbers, queries - tile.rows.start, keys - tile.columns.start
        return tuple(part[inside].to(tile.weights.device) for part in pair_indices)

    def result(self) -> dict[str, PatternSums]:
        return self.sums


class Diversity(Reduction):
    """Jensen–Shannon divergence of the heads over log(heads) (Lin 1991), (batch, query); NaN where one sees nothing."""

    name = "diversity"

    def start(self, shape: Shape) -> None:
        self.heads = shape.heads
        self.values = torch.full(
            (shape.batch, shape.queries), math.nan, dtype=torch.float64, device=shape.device
        )
        self.joint = torch.zeros(1, shape.keys, dtype=shape.dtype, device=shape.device)
        self.single = torch.zeros((), dtype=torch.float64)
        self.entropy = RowEntropy()

    def add(self, tile: Tile) -> None:
        height = tile.weights.shape[-2]
        if tile.heads.start == 0:
            self.joint = self.joint.new_zeros(*tile.weights.shape[:-3], height, self.joint.shape[-1])
            self.single = torch.zeros_like(tile.total[..., 0, :])
        total = tile.total
        self.single = self.single + (self.entropy.of(tile) / total + total.log()).sum(
            -2
        )  # NaN where total is 0
        weights = tile.weights
        if bool(((total != 1) & (total != 0)).any()):
            weights = torch.div(weights, total.to(weights.dtype)[..., None], out=tile.spare)
        self.joint[..., tile.columns] += weights.sum(-3)

    def end_rows(self, batch: int | slice, rows: slice) -> None:
        joint = self.joint / self.heads
        divergence = row_sums(torch.special.entr(joint)) - self.single / self.heads
        self.values[batch, rows] = (
            divergence.clamp_min(0.0) / math.log(self.heads) if self.heads > 1 else math.nan
        )

    def result(self) -> Float[Tensor, "batch query"]:
        return self.values


class Top(NamedTuple):
    """The keys with the largest weights, largest first; key −1 and weight 0 where a query sees no more."""

    weights: Float[Tensor, "batch head query rank"]
    keys: Int[Tensor, "batch head query rank"]


@dataclass
class TopKeys(Reduction):
    """The ``count`` keys that each query attends to most."""

    name = "top"
    count: int = 4

    def start(self, shape: Shape) -> None:
        self.weights = shape.rows(self.count, dtype=shape.dtype)
        self.keys = shape.rows(self.count, fill=-1, dtype=torch.int64)

    def add(self, tile: Tile) -> None:
        rank_count = min(self.count, tile.weights.shape[-1])
        if rank_count:
            weights, keys = tile.weights.topk(rank_count, -1)
            self.weights[tile.slices][..., :rank_count] = weights
            self.keys[tile.slices][..., :rank_count] = torch.where(weights > 0, keys + tile.columns.start, -1)

    def result(self) -> Top:
        return Top(self.weights, self.keys)


@dataclass
class HeadOutput(Reduction):
    """attention × v, every group of heads reading its own v."""

    name = "output"
    v: Float[Tensor, "batch kv_head key value_dim"]

    def start(self, shape: Shape) -> None:
        self.group = shape.heads // self.v.shape[1]
        self.wide = self.v.to(shape.device, shape.dtype)
        self.values = shape.rows(self.v.shape[-1], dtype=shape.dtype)

    def add(self, tile: Tile) -> None:
        self.average(tile, tile.weights)

    def average(self, tile: Tile, weights: Tensor) -> None:
        """Put weights × v of a tile into its rows."""
        values = self.wide[tile.batch, tile.heads.start // self.group : tile.heads.stop // self.group]
        *_, heads, height, width = weights.shape
        grouped = weights.reshape(*values.shape[:-2], heads // values.shape[-3] * height, width)
        output = grouped @ values[..., tile.columns, :]
        self.values[tile.slices] = output.view(*weights.shape[:-1], -1)

    def result(self) -> Float[Tensor, "batch head query value_dim"]:
        return self.values


@dataclass
class UniformOutput(HeadOutput):
    """Uniform attention to the keys that a query sees × v."""

    name = "uniform_output"

    def add(self, tile: Tile) -> None:
        share = (1 / tile.count.clamp_min(1)).to(tile.weights.dtype)[..., None]
        share = share if tile.visible is None else share * tile.visible
        self.average(tile, share.expand(tile.weights.shape))


class CoarseMaps(NamedTuple):
    """Maps of cells: mean and maximum over all pairs of a cell; hidden pairs are 0."""

    mean: Float[Tensor, "batch head row column"]
    maximum: Float[Tensor, "batch head row column"]


def bin_edges(count: int, bins: int) -> list[int]:
    """Return the start of each bin and the end of the last: place i is in bin ⌊i · bins / count⌋."""
    return [-(-number * count // bins) for number in range(bins + 1)]


@dataclass
class Pooled(Reduction):
    """A coarse map of every map: ``size`` cells on a side, at most one per query or key.

    Cells differ by one query or key at most (`bin_edges`). ``keys`` keeps a range of keys.
    """

    name = "pooled"
    size: int = 512
    keys: range | None = None

    def start(self, shape: Shape) -> None:
        keys = range(shape.keys) if self.keys is None else self.keys
        _check_places("key", [*keys[:1], *keys[-1:]], shape.keys)
        self.edges = [
            [first + edge for edge in bin_edges(count, min(self.size, count))]
            for first, count in ((0, shape.queries), (keys.start, len(keys)))
        ]
        cells = [len(edges) - 1 for edges in self.edges]
        starts = torch.tensor(self.edges[1], device=shape.device)
        widest = int(starts.diff().max())
        self.places = starts[:-1, None] + torch.arange(widest, device=shape.device)
        self.inside = self.places < starts[1:, None]
        self.sum, self.top = (
            torch.zeros(
                shape.batch,
                shape.heads,
                *cells,
                dtype=torch.float64 if first else shape.dtype,
                device=shape.device,
            )
            for first in (True, False)
        )

    def add(self, tile: Tile) -> None:
        rows, columns = self.edges
        first = bisect_right(columns, tile.columns.start) - 1
        cells_reached = slice(
            max(first, 0), bisect_left(columns, tile.columns.stop)
        )  # the cells that the tile reaches into
        places, width = self.places[cells_reached] - tile.columns.start, tile.weights.shape[-1]
        if not places.numel() or not width:
            return
        there = self.inside[cells_reached] & (places >= 0) & (places < width)
        # weights are never negative, so that a 0 beside them changes neither sum nor maximum
        cells = torch.where(there, tile.weights[..., places.clamp(0, width - 1)], 0)
        sums, tops = cells.sum(-1).double(), cells.amax(-1)
        of_sum, of_top = (part[tile.batch, tile.heads, :, cells_reached] for part in (self.sum, self.top))
        for cell in range(bisect_right(rows, tile.rows.start) - 1, bisect_left(rows, tile.rows.stop)):
            rows_of_cell = slice(max(0, rows[cell] - tile.rows.start), rows[cell + 1] - tile.rows.start)
            of_sum[:, cell] += sums[:, rows_of_cell].sum(1)
            of_top[:, cell] = torch.maximum(of_top[:, cell], tops[:, rows_of_cell].amax(1))

    def result(self) -> CoarseMaps:
        sizes = [torch.tensor(edges).diff().to(self.sum) for edges in self.edges]
        return CoarseMaps(self.sum / (sizes[0][:, None] * sizes[1]), self.top)


@dataclass
class ChosenRows(Reduction):
    """The attention of some queries to every key, (batch, head, chosen query, key)."""

    name = "rows"
    queries: Sequence[int]

    def start(self, shape: Shape) -> None:
        _check_places("query", self.queries, shape.queries)
        self.values = torch.zeros(
            shape.batch, shape.heads, len(self.queries), shape.keys, dtype=shape.dtype, device=shape.device
        )

    def add(self, tile: Tile) -> None:
        for row, query in enumerate(self.queries):
            if tile.rows.start <= query < tile.rows.stop:
                self.values[tile.batch, tile.heads, row, tile.columns] = tile.weights[
                    :, query - tile.rows.start
                ]

    def result(self) -> Float[Tensor, "batch head chosen key"]:
        return self.values


@dataclass
class ChosenColumns(Reduction):
    """The attention of every query to some keys, (batch, head, query, chosen key)."""

    name = "columns"
    keys: Sequence[int]

    def start(self, shape: Shape) -> None:
        _check_places("key", self.keys, shape.keys)
        self.values = shape.rows(len(self.keys), dtype=shape.dtype)

    def add(self, tile: Tile) -> None:
        for column, key in enumerate(self.keys):
            if tile.columns.start <= key < tile.columns.stop:
                self.values[tile.slices][..., column] = tile.weights[..., key - tile.columns.start]

    def result(self) -> Float[Tensor, "batch head query chosen"]:
        return self.values


class Estimated(NamedTuple):
    """A mean over sampled queries, and its standard error as an estimate of the mean over all of them."""

    mean: Float[Tensor, "batch head other_head"]
    error: Float[Tensor, "batch head other_head"]


@dataclass
class HeadPairs(Reduction):
    """Similarity of heads' attention, pair by pair: Σ_j √(A_ij B_ij) (Bhattacharyya 1943), mean over sampled queries.

    1 where two heads have the same attention, 0 where they never look at the same key. The standard error is that of a
    sample without replacement: 0 where all queries are taken.
    """

    name = "pairs"
    samples: int = 64
    seed: int = 0

    def start(self, shape: Shape) -> None:
        drawn = torch.randperm(shape.queries, generator=torch.Generator().manual_seed(self.seed))
        self.chosen = drawn[: self.samples].sort().values.to(shape.device)
        self.total = shape.queries
        sizes = (shape.batch, shape.heads, shape.heads)
        self.sum, self.squares = (
            torch.zeros(sizes, dtype=torch.float64, device=shape.device) for _ in range(2)
        )
        self.roots: list[tuple[Tensor, slice]] = []
        self.keys = shape.keys

    def add(self, tile: Tile) -> None:
        inside = self.chosen[(self.chosen >= tile.rows.start) & (self.chosen < tile.rows.stop)]
        if len(inside):
            self.roots.append((tile.weights[:, inside - tile.rows.start].sqrt(), tile.columns))

    def end_rows(self, batch: int | slice, rows: slice) -> None:
        if not self.roots:
            return
        full_roots = [root.new_zeros(*root.shape[:2], self.keys) for root, _ in self.roots]
        for into, (root, columns) in zip(full_roots, self.roots, strict=True):
            into[..., columns] = root
        by_query = torch.cat(full_roots).transpose(0, 1)  # query, head, key
        alike = (by_query @ by_query.mT).double()
        self.sum[batch] += alike.sum(0)
        self.squares[batch] += alike.square().sum(0)
        self.roots.clear()

    def result(self) -> Estimated:
        count = len(self.chosen)
        mean = self.sum / count
        left = (1 - count / self.total) / max(1, count - 1)
        spread = (self.squares / count - mean.square()).clamp_min(0)
        return Estimated(mean, (spread * left).sqrt() if count > 1 else torch.full_like(mean, math.nan))


def _check_places(axis: str, places: Sequence[int], count: int) -> None:
    for position in places:
        if not 0 <= position < count:
            raise InputError(f"there is no {axis} {position}: numbers are 0 to {count - 1}")
