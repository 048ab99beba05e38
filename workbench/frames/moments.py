"""Statistics of one quantity over inputs, head by head and rank by rank, in memory that does not grow with them.

Quantiles come from a DDSketch (Masson, Rim & Lee 2019), which counts values in bins whose bounds grow by a constant
factor. A quantile is read from its bin, so it is within the relative error `ACCURACY` of the value of that
rank; nothing is drawn at random, and sketches merge in any order to the same result. Negative values have
separate bins, and zero (anything below the smallest normal float) is counted exactly. NaN and infinite values belong to
no bin and must not be added.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from ddsketch import DDSketch
from torch import Tensor

from workbench.core.intervals import half_width
from workbench.frames.metric import METRICS

ACCURACY = 0.005
"""Largest relative error of a quantile."""
QUANTILES = {"q25": 0.25, "median": 0.5, "q75": 0.75}
_SUMS = ("count", "mean", "squares", "least", "largest", "null_sum", "null_count")
_START = dict(zip(_SUMS, (0.0, 0.0, 0.0, math.inf, -math.inf, 0.0, 0.0), strict=True))
SUMMARY = ("mean", "std", "low", "high", "min", "max")
POOLED = ("mean", "min", *QUANTILES, "max")


class Moments:
    """Count, mean, sum of squared deviations, extremes and quantiles of a quantity over inputs, batch by batch.

    Batches, and parts of a sweep, are merged by the exact formula for two groups (Chan, Golub & LeVeque 1983), so
    results depend on their sizes only by rounding. Quantiles are over all heads together, from a sketch for each
    rank. Values that are undefined (NaN) or infinite are left out, and counted in ``left_out``.
    """

    def __init__(self, columns: Mapping[str, Any], heads: Sequence[int] = (), ranked: bool = False) -> None:
        self.columns = dict(columns)
        self.heads, self.ranked = list(heads), ranked
        rows = max(1, len(self.heads))
        self._sums = {name: np.full((rows, 0), start) for name, start in _START.items()}
        self._sketches: list[DDSketch] = []
        self.left_out = 0

    @property
    def count(self) -> np.ndarray:
        """Return the number of inputs with a value, as (head, rank)."""
        return self._sums["count"]

    def add(self, values: Tensor, null_mean: Tensor | None = None) -> None:
        """Add one batch, (input[, head][, rank]), with the mean of each value's null; undefined values count none."""
        x = self._table(values)
        finite = np.isfinite(x)
        absent = np.isnan(x) if self.ranked else np.zeros_like(finite)  # a rank that an input has not got
        self.left_out += int((~finite & ~absent).sum())
        count = finite.sum(0).astype(float)
        with np.errstate(invalid="ignore"):
            mean = np.where(count > 0, np.where(finite, x, 0.0).sum(0) / np.maximum(count, 1), 0.0)
        batch_sums = {
            "count": count,
            "mean": mean,
            "squares": np.square(np.where(finite, x - mean, 0.0)).sum(0),
            "least": np.where(finite, x, math.inf).min(0),
            "largest": np.where(finite, x, -math.inf).max(0),
            "null_sum": np.zeros_like(mean),
            "null_count": np.zeros_like(mean),
        }
        if null_mean is not None:
            by_chance = self._table(null_mean)
            there = finite & np.isfinite(by_chance)
            batch_sums["null_sum"] = np.where(there, by_chance, 0.0).sum(0)
            batch_sums["null_count"] = there.sum(0).astype(float)
        sketches = [sketch_of(x[:, :, rank][finite[:, :, rank]].tolist()) for rank in range(x.shape[2])]
        self._merge(batch_sums, sketches)

    def _table(self, values: Tensor) -> np.ndarray:
        """Return values as (input, head, rank), with one head or rank where the quantity has no such axis."""
        array = values.double().cpu().numpy()
        if not self.heads:
            array = array[:, None]
        return array if self.ranked else array[..., None]

    def merge(self, other: Moments) -> None:
        """Add the moments of other inputs."""
        self._merge(other._sums, other._sketches)
        self.left_out += other.left_out

    def _merge(self, other_sums: Mapping[str, np.ndarray], sketches: Sequence[DDSketch]) -> None:
        ranks = max(self.count.shape[1], other_sums["count"].shape[1])
        a, b = (
            {name: _padded(part[name], ranks, _START[name]) for name in _SUMS}
            for part in (self._sums, other_sums)
        )
        total = a["count"] + b["count"]
        difference, divisor = b["mean"] - a["mean"], np.maximum(total, 1)
        self._sums = {
            "count": total,
            # where one side is empty the mean is the other's as it is
            "mean": np.where(a["count"] == 0, b["mean"], a["mean"] + difference * b["count"] / divisor),
            "squares": a["squares"] + b["squares"] + difference**2 * a["count"] * b["count"] / divisor,
            "least": np.minimum(a["least"], b["least"]),
            "largest": np.maximum(a["largest"], b["largest"]),
            "null_sum": a["null_sum"] + b["null_sum"],
            "null_count": a["null_count"] + b["null_count"],
        }
        self._sketches += [sketch_of() for _ in range(ranks - len(self._sketches))]
        for mine, theirs in zip(self._sketches, sketches, strict=False):
            mine.merge(theirs)

    def statistics(self) -> dict[str, np.ndarray]:
        """Return `SUMMARY` as (head, rank): mean, standard deviation (ddof = 1), Student's t interval, extremes.

        The interval ends at the bounds of the metric. NaN where there are too few inputs: none for the mean, fewer than
        two for deviation and interval.
        """
        sums, count = self._sums, self.count
        several, empty = count > 1, count == 0
        with np.errstate(invalid="ignore", divide="ignore"):
            deviation = np.where(several, np.sqrt(sums["squares"] / (count - 1)), np.nan)
            half = np.where(several, half_width(deviation / np.sqrt(count), count - 1), np.nan)
        mean = np.where(empty, np.nan, sums["mean"])
        name = str(self.columns.get("metric"))
        bounds = (METRICS[name].low, METRICS[name].high) if name in METRICS else (-math.inf, math.inf)
        interval = [np.clip(end, *bounds) for end in (mean - half, mean + half)]
        ends = [np.where(empty, np.nan, sums[name]) for name in ("least", "largest")]
        return dict(zip(SUMMARY, (mean, deviation, *interval, *ends), strict=True))

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the columns of the rows: each head's ``statistic`` (`SUMMARY`), then all heads together (`POOLED`).

        The mean has the null distribution's mean in its row. A measure with its own statistic, such as max, keeps that
        word for its mean, and the others are named "std of max".
        """
        if not self.count.size:  # nothing came
            self._sums = {name: _padded(part, 1, _START[name]) for name, part in self._sums.items()}
            self._sketches = [sketch_of()]
        statistics = self.statistics()
        heads, ranks = np.indices(self.count.shape).reshape(2, -1)
        kept = self.count.ravel() > 0 if self.ranked else np.ones(self.count.size, dtype=bool)
        with np.errstate(invalid="ignore", divide="ignore"):
            expected = self._sums["null_sum"] / self._sums["null_count"]
        for name, values in statistics.items():
            columns: dict[str, Any] = {"statistic": self._word(name), "value": values.ravel()[kept]}
            if self.heads:
                columns["head"] = np.asarray(self.heads)[heads[kept]]
            if self.ranked:
                columns["rank"] = ranks[kept] + 1
            if name == "mean":
                columns["null_mean"] = expected.ravel()[kept]
            yield self.columns | columns
        yield from self._pooled(statistics)

    def _pooled(self, statistics: Mapping[str, np.ndarray]) -> Iterator[dict[str, Any]]:
        """Yield statistics over all heads, rank by rank; without heads only those that are not in `SUMMARY`."""
        weights = self.count.sum(0)
        kept = weights > 0 if self.ranked else np.ones(len(weights), dtype=bool)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = np.where(weights > 0, (self._sums["mean"] * self.count).sum(0) / weights, np.nan)
        quantiles = np.asarray([quantiles_of(sketch) for sketch in self._sketches]).T
        least, largest = self._sums["least"].min(0), self._sums["largest"].max(0)
        ends = (np.where(weights > 0, end, np.nan) for end in (least, largest))
        for name, values in zip(POOLED, (mean, next(ends), *quantiles, next(ends)), strict=True):
            if not self.heads and name in statistics:
                continue
            columns = {"statistic": self._word(name), "value": values[kept]}
            yield self.columns | columns | ({"rank": np.flatnonzero(kept) + 1} if self.ranked else {})

    def _word(self, name: str) -> str:
        statistic = self.columns.get("statistic")
        return name if statistic is None else statistic if name == "mean" else f"{name} of {statistic}"

    def state(self) -> Iterator[dict[str, Any]]:
        """Yield the columns of the rows for `from_state`: sums by head and rank, and the sketch of each rank."""
        heads, ranks = np.indices(self.count.shape).reshape(2, -1)
        sums = {name: values.ravel() for name, values in self._sums.items()}
        head_columns: dict[str, Any] = {"head": np.asarray(self.heads)[heads]} if self.heads else {}
        yield (
            self.columns | head_columns | {"form": "moments", "rank": ranks + 1, "ranked": self.ranked} | sums
        )
        bins = [[*zip(*bins_of(sketch), strict=True)] or [(), ()] for sketch in self._sketches]
        yield self.columns | {
            "form": "sketch",
            "rank": np.arange(len(bins)) + 1,
            "ranked": self.ranked,
            "bins": [list(values) for values, _ in bins],
            "bin_counts": [list(counts) for _, counts in bins],
            "left_out": [self.left_out, *[0] * (len(bins) - 1)],
        }

    @classmethod
    def from_state(cls, columns: Mapping[str, Any], sums: Any, sketches: Any) -> Moments:
        """Restore moments from the rows of `state`: those of the form moments, and those of the form sketch."""
        heads = [int(head) for head in sums["head"].dropna().unique()]
        moments = cls(columns, heads, bool(sums["ranked"].iloc[0]))
        shape = max(1, len(heads)), int(sums["rank"].max())
        moments._sums = {name: sums[name].to_numpy(float).reshape(shape) for name in _SUMS}
        pairs = zip(sketches["bins"], sketches["bin_counts"], strict=True)
        moments._sketches = [sketch_from(values, counts) for values, counts in pairs]
        moments.left_out = int(sketches["left_out"].sum())
        return moments


def _padded(array: np.ndarray, ranks: int, value: float) -> np.ndarray:
    missing = ranks - array.shape[1]
    return np.pad(array, ((0, 0), (0, missing)), constant_values=value) if missing else array


def sketch_of(values: Iterable[float] = ()) -> DDSketch:
    """Build a sketch of finite values."""
    sketch = DDSketch(ACCURACY)
    for value in values:
        sketch.add(value)
    return sketch


def bins_of(sketch: DDSketch) -> Iterator[tuple[float, int]]:
    """Yield (value, count) of every non-empty bin, from the least, for `sketch_from`."""
    mapping, negative, positive = sketch._mapping, sketch._negative_store, sketch._store
    for index in range(len(negative.bins) - 1, -1, -1):
        if negative.bins[index]:
            yield -mapping.value(index + negative.offset), int(negative.bins[index])
    if sketch._zero_count:
        yield 0.0, int(sketch._zero_count)
    for index, count in enumerate(positive.bins):
        if count:
            yield mapping.value(index + positive.offset), int(count)


def sketch_from(values: Iterable[float], counts: Iterable[int]) -> DDSketch:
    """Restore a sketch from `bins_of`: the middle of a bin falls into that bin again."""
    sketch = DDSketch(ACCURACY)
    for value, count in zip(values, counts, strict=True):
        sketch.add(value, float(count))
    return sketch


def quantiles_of(sketch: DDSketch) -> list[float]:
    """Return the `QUANTILES`; NaN without values."""
    quantiles = [sketch.get_quantile_value(share) for share in QUANTILES.values()]
    return [float("nan") if value is None else float(value) for value in quantiles]
