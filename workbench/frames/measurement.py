"""Measurements: one metric of one layer, and their accumulation over layers and batches into a frame."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, cast

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from workbench.core.errors import InputError
from workbench.core.null_distributions import Null, null_of_draws
from workbench.core.options import ranges
from workbench.frames.metric import METRICS, Metric
from workbench.frames.moments import Moments
from workbench.frames.results import STEP, conform

LABELS = ("axis", "statistic", "convention", "standardize", "candidate", "unit", "null")
"""Columns that distinguish quantities, with layer and metric."""
_NULL = ("null_mean", "null_low", "null_high", "z")
_OBSERVED = ""


@dataclass
class Measurement:
    """One metric of one layer: ``values`` with an axis per name in ``axes`` (input, head, rank), or none.

    ``metric`` is a `Metric`, or the name of one in the table. ``null_samples`` maps the name of each
    null distribution to its samples, along a last axis. ``form`` decides the rows: "rows" gives one row per value, or
    aggregated rows if the run requests them; "across" gives the same for values of no single layer; "intermediate"
    gives none, and the analysis computes its results across layers from it.
    """

    metric: Metric | str
    values: Tensor
    axes: tuple[str, ...] = ("input", "head")
    null: Null | None = None
    columns: dict[str, Any] = field(default_factory=dict)
    null_samples: Mapping[str, Tensor] = field(default_factory=dict)
    form: Literal["rows", "across", "intermediate"] = "rows"
    inputs: tuple[str, ...] | None = None
    """Names along the axis input; None for all inputs of the batch."""

    def names(self, layer: MeasuredLayer) -> Sequence[str]:
        """Return the names along the axis input."""
        return layer.ids if self.inputs is None else self.inputs

    @property
    def name(self) -> str:
        """Return the metric's name."""
        return self.metric if isinstance(self.metric, str) else self.metric.name

    @property
    def unit(self) -> str | None:
        """Return the metric's unit, or None."""
        metric = METRICS[self.metric] if isinstance(self.metric, str) else self.metric
        return metric.unit or None


class MeasuredLayer(Protocol):
    """Protocol of a measured layer, as the rows of a measurement use it."""

    ids: Sequence[str]
    """Names of the inputs."""
    heads: list[int]
    """Numbers of the heads that were measured."""

    step: int | None
    """Number of the generated token, where a model generated."""

    @property
    def index(self) -> int:
        """Return the number of the layer."""
        ...


class Counts:
    """Counts of notable events over heads, by message."""

    def __init__(self, counts: Mapping[str, Sequence[int]] | None = None) -> None:
        self.counts: dict[str, list[int]] = {message: list(pair) for message, pair in (counts or {}).items()}
        """[count, total] by message."""

    def add(self, message: str, where: Tensor) -> None:
        """Count the true entries of ``where`` under a message that goes on from "3 of 40 "."""
        self.count(message, int(where.sum()), where.numel())

    def count(self, message: str, count: int, total: int) -> None:
        """Add a count from elsewhere."""
        counted = self.counts.setdefault(message, [0, 0])
        counted[0] += count
        counted[1] += total

    def merge(self, other: Counts) -> None:
        """Add the counts of another."""
        for message, pair in other.counts.items():
            self.count(message, *pair)

    def notes(self) -> list[str]:
        """Return a note, "3 of 40 …", for each message with a positive count."""
        return [f"{count} of {total} {message}" for message, (count, total) in self.counts.items() if count]


class Accumulator:
    """Accumulate the measurements of one analysis, with its counts and notes.

    Every quantity (a metric with its labels) is stored in one of three forms. `Values` hold one row per number. With
    ``aggregate``, `Means` hold means over inputs and heads, over layers and heads, and over everything; ``single`` adds
    `Values`. Without ``per_input``, `Moments` hold mean, deviation, interval and quantiles over inputs, in memory that
    does not grow with the inputs; means then have no rows of single inputs. Parts of the inputs can be measured
    separately and merged, also through a file (`state`, `from_state`).
    """

    def __init__(self, aggregate: bool = False, per_input: bool = True, single: bool = False) -> None:
        self.rows: list[pd.DataFrame] = []
        """Rows of tokens or pairs, as an analysis yields them layer by layer."""
        self.counts = Counts()
        self.left_out: dict[str, list[int]] = {}
        """Layers that were not measured, by reason."""
        self.heads: set[int] = set()
        """Numbers of the heads that were measured in any layer."""
        self.most_heads = 0
        """Number of heads of the layer with the most heads."""
        self.sources: dict[int, str] = {}
        """Kind of attention by layer: "self" or "cross"."""
        self._aggregate, self._per_input, self._single = aggregate, per_input, single
        self._quantities: dict[tuple[Any, ...], Values | Means | Moments] = {}

    def __bool__(self) -> bool:
        return bool(self._quantities or self.rows)

    def add(self, measurement: Measurement, layer: MeasuredLayer) -> None:
        """Add one measurement of one batch of inputs."""
        self._check(measurement, layer)
        labels = {"metric": measurement.name, "unit": measurement.unit, **measurement.columns}
        if layer.step is not None:
            labels[STEP] = layer.step
        ranked = "rank" in measurement.axes
        if self._aggregate:
            quantity = self._quantity(labels, lambda: Means(labels, ranked, self._per_input))
            cast("Means", quantity).add(measurement, layer)
            if not self._single or measurement.form == "across":
                return
        labels |= {"layer": None if measurement.form == "across" else layer.index}
        nulls: Mapping[str | None, Any] = {**measurement.null_samples} or {None: None}
        for name, draws in nulls.items():
            null_labels = labels if name is None else labels | {"null": name}
            if self._per_input:
                null = measurement.null
                if draws is not None:
                    null = null_of_draws(measurement.values, draws, _z_samples(measurement.name))
                quantity = self._quantity(null_labels, lambda null_labels=null_labels: Values(null_labels))
                cast("Values", quantity).add(measurement, layer, null)
                continue
            if "input" not in measurement.axes:
                raise InputError(
                    f"{measurement.name} belongs to no input: there is nothing to average over inputs"
                )
            expected = measurement.null.mean if measurement.null is not None else None
            heads = layer.heads if "head" in measurement.axes else ()
            quantity = self._quantity(
                null_labels, lambda null_labels=null_labels, heads=heads: Moments(null_labels, heads, ranked)
            )
            cast("Moments", quantity).add(measurement.values, expected if draws is None else draws.mean(-1))

    def _quantity(self, labels: Mapping[str, Any], make: Any) -> Values | Means | Moments:
        """Return the quantity of these labels, created on first use, so that the order of rows ignores the batches."""
        key = _key(labels)
        if key not in self._quantities:
            self._quantities[key] = make()
        return self._quantities[key]

    def _check(self, measurement: Measurement, layer: MeasuredLayer) -> None:
        shape, names = tuple(measurement.values.shape), measurement.axes
        sizes = {
            "input": len(measurement.names(layer)),
            "head": len(layer.heads),
            "rank": shape[-1] if shape else 0,
        }
        if tuple(sizes[name] for name in names) != shape:
            raise InputError(f"{measurement.name} of shape {shape} does not fit its axes {names}")

    def leave_out(self, reason: str, layer: int) -> None:
        """Note that a layer was not measured."""
        indices = self.left_out.setdefault(reason, [])
        if layer not in indices:
            indices.append(layer)

    def layers_left_out(self) -> list[str]:
        """Return a sentence for each reason."""
        return [
            f"layer{'s' if len(indices) > 1 else ''} {ranges(indices)} left out: {reason}"
            for reason, indices in self.left_out.items()
        ]

    def notes(self) -> list[str]:
        """Return the notes: layers left out, counts, and undefined values that means leave out."""
        return [*self.layers_left_out(), *self.counts.notes(), *_undefined(self._quantities.values())]

    def frame(self, **constant: Any) -> pd.DataFrame:
        """Return all rows in the shared columns, by layer, metric, input, head and rank."""
        frame = _table([part for quantity in self._quantities.values() for part in quantity.rows()])
        frame = frame.assign(**constant)
        if "cross" in self.sources.values():
            frame["source"] = frame["layer"].map(self.sources)
        return conform(frame)

    def finer_rows(self, model: str) -> pd.DataFrame:
        """Return all rows of tokens or pairs, by layer and input, independent of the batches."""
        frame = pd.concat(self.rows, ignore_index=True)
        places = [name for name in ("layer", "input") if name in frame]
        frame = frame.sort_values(
            places, key=lambda column: pd.factorize(column)[0], kind="stable", ignore_index=True
        )
        frame.insert(0, "model", model)
        return frame

    def merge(self, other: Accumulator) -> None:
        """Add the measurements of other inputs; rows come in the order of merging."""
        for key, quantity in other._quantities.items():
            if key in self._quantities:
                cast("Any", self._quantities[key]).merge(quantity)
            else:
                self._quantities[key] = quantity
        self.counts.merge(other.counts)
        for reason, indices in other.left_out.items():
            for index in indices:
                self.leave_out(reason, index)
        self.heads |= other.heads
        self.sources |= other.sources
        self.most_heads = max(self.most_heads, other.most_heads)

    def state(self) -> tuple[pd.DataFrame, dict[str, Any]]:
        """Return the state for `from_state`: one table whose rows have a ``form``, and the rest as JSON values."""
        tables = [columns for quantity in self._quantities.values() for columns in quantity.state()]
        empty = pd.DataFrame(columns=list(STATE))  # of a shard whose images cannot be read
        parts = [pd.DataFrame(_listed(columns)) for columns in tables] or [empty]
        table = pd.concat(parts, ignore_index=True).reindex(columns=list(STATE)).astype(STATE)
        rest = {"left_out": self.left_out, "heads": sorted(self.heads), "most": self.most_heads}
        rest["cross"] = sorted(layer for layer, source in self.sources.items() if source == "cross")
        rest["self"] = sorted(layer for layer, source in self.sources.items() if source == "self")
        return table, {"counts": self.counts.counts, **rest}

    @classmethod
    def from_state(cls, table: pd.DataFrame, rest: Mapping[str, Any]) -> Accumulator:
        """Restore an accumulator from `state`; it can be merged with others, but takes no measurements."""
        accumulator = cls()
        accumulator.counts = Counts(rest["counts"])
        accumulator.left_out = {reason: list(indices) for reason, indices in rest["left_out"].items()}
        accumulator.heads, accumulator.most_heads = set(rest["heads"]), rest["most"]
        accumulator.sources = {layer: source for source in ("self", "cross") for layer in rest[source]}
        sketches = {key: rows for key, _, rows in _by_label(table[table["form"] == "sketch"])}
        for form, rows in table.groupby("form", sort=False):
            if form == "row":
                for key, labels, part in _by_label(rows):
                    accumulator._quantities[key] = Values(labels, [_columns(part)])
            elif form == "moments":
                for key, labels, part in _by_label(rows):
                    accumulator._quantities[key] = Moments.from_state(labels, part, sketches[key])
            elif form == "sums":
                for key, labels, part in _by_label(rows, without=("layer", "null")):
                    accumulator._quantities[key] = Means.from_state(labels, part)
            elif form == "input":
                for key, _, part in _by_label(rows, without=("layer", "null")):
                    finished = cast("Means", accumulator._quantities[key]).finished
                    for kind, input_rows in part.groupby(part["null"].fillna(_OBSERVED), sort=False):
                        finished[str(kind)] = [_columns(input_rows)]
        return accumulator


def _undefined(quantities: Any) -> list[str]:
    """List the quantities with undefined values, one line per count."""
    alike: dict[tuple[int, int], list[str]] = {}
    left_out: dict[str, int] = {}
    for quantity in quantities:
        if isinstance(quantity, Means) and quantity.undefined and not quantity.ranked:
            alike.setdefault((quantity.undefined, quantity.taken), []).append(quantity.name)
        if isinstance(quantity, Moments):
            metric = str(quantity.columns["metric"])
            left_out[metric] = left_out.get(metric, 0) + quantity.left_out
    notes = [
        f"{undefined} of {taken} values of {', '.join(names)} are undefined and left out"
        for (undefined, taken), names in alike.items()
    ]
    counted = [f"{count} of {metric}" for metric, count in left_out.items() if count]
    return [*notes, f"undefined or infinite values left out: {', '.join(counted)}"] if counted else notes


class Values:
    """Single numbers of one quantity, a row for each; ranks that an input does not have (NaN) make no row."""

    def __init__(self, columns: Mapping[str, Any], parts: list[dict[str, Any]] | None = None) -> None:
        self.columns = dict(columns)
        self.parts = [] if parts is None else parts
        """Columns of each batch's rows."""

    def add(self, measurement: Measurement, layer: MeasuredLayer, null: Any) -> None:
        """Add one batch, with its null distribution or None."""
        names, shape = measurement.axes, tuple(measurement.values.shape)
        labels = {
            "input": list(measurement.names(layer)),
            "head": layer.heads,
            "rank": list(range(1, (shape[-1] if shape else 0) + 1)),
        }
        value = measurement.values.double().cpu().numpy().ravel()
        kept = ~np.isnan(value) if "rank" in names else np.ones(value.shape, dtype=bool)
        places = np.indices(shape).reshape(len(shape), value.size)[:, kept]
        columns: dict[str, Any] = {
            name: np.asarray(labels[name], dtype=object if name == "input" else np.int64)[axis_indices]
            for name, axis_indices in zip(names, places, strict=True)
        }
        if null is not None:
            for name, part in zip(_NULL, null, strict=True):
                columns[name] = part.double().cpu().numpy().ravel()[kept]
        self.parts.append(columns | self.columns | {"value": value[kept]})

    def merge(self, other: Values) -> None:
        """Add the values of other inputs."""
        self.parts += other.parts

    def rows(self) -> list[dict[str, Any]]:
        """Return the columns of the rows."""
        return self.parts

    def state(self) -> Iterator[dict[str, Any]]:
        """Yield the columns of the rows of `Accumulator.state`."""
        for columns in self.parts:
            yield columns | {"form": "row"}


def _table(parts: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Concatenate columns into a table; a column that a part lacks is empty there.

    Works column by column, since a data frame per part would take longer than measuring a small model.
    """
    lengths = [max((len(column) for column in part.values() if np.ndim(column)), default=1) for part in parts]
    columns = {}
    for name in dict.fromkeys(name for part in parts for name in part):
        arrays = [np.asarray(part[name]) if name in part else None for part in parts]
        numeric = all(column is None or column.dtype.kind in "iuf" for column in arrays)
        kind, empty = (None, np.nan) if numeric else (object, None)
        columns[name] = np.concatenate(
            [
                np.broadcast_to(np.asarray(empty if column is None else column, dtype=kind), length)
                for column, length in zip(arrays, lengths, strict=True)
            ]
        )
    return pd.DataFrame(columns)


def _z_samples(metric: str) -> int:
    """Return how many null samples a z-score of a metric needs."""
    return METRICS[metric].z_samples if metric in METRICS else 2


class Means:
    """Means of one quantity: per layer (over inputs and heads), per input (over layers and heads), and over all.

    Every head of every input and layer counts once. The null distribution of a mean consists of means of null samples,
    never of averaged z. Values that are undefined (NaN) are left out, with their null samples, and counted.
    Without ``per_input`` there are no rows per input, and memory does not grow with the inputs.
    """

    def __init__(self, columns: Mapping[str, Any], ranked: bool, per_input: bool = True) -> None:
        self.columns = {name: label for name, label in columns.items() if label is not None}
        self.ranked, self.per_input = ranked, per_input
        self.layers: dict[int, dict[str, _Sums]] = {}
        self.inputs: dict[str, dict[str, _Sums]] = {}
        self.finished: dict[str, list[dict[str, Any]]] = {}
        """Columns of the input rows of other runs, by null distribution."""
        self.undefined = self.taken = 0

    @property
    def name(self) -> str:
        """Return the metric with its distinguishing labels."""
        return " ".join(
            str(label) for name, label in self.columns.items() if name not in ("unit", "standardize")
        )

    def add(self, measurement: Measurement, layer: MeasuredLayer) -> None:
        """Add one batch, input by input, so that no sum depends on the batches."""
        observed = measurement.values.double().cpu().numpy()
        draws = {name: drawn.double().cpu().numpy() for name, drawn in measurement.null_samples.items()}
        if "head" not in measurement.axes:  # a measure of the whole layer counts as one head
            observed = observed[:, None]
            draws = {name: drawn[:, None] for name, drawn in draws.items()}
        if not self.ranked:
            observed = observed[..., None]
            draws = {name: drawn[..., None, :] for name, drawn in draws.items()}
        observed = observed[..., None]  # (input, head, rank, draw)
        absent = np.isnan(observed)
        self.undefined += int(absent.sum())
        self.taken += absent.size
        # a head without a value has no null samples either
        parts = {_OBSERVED: observed} | {
            name: np.where(absent, np.nan, drawn) for name, drawn in draws.items()
        }
        for number, name in enumerate(measurement.names(layer)):
            places = [self.layers.setdefault(layer.index, {})]
            if self.per_input:
                places.append(self.inputs.setdefault(name, {}))
            for sums in places:
                for kind, values in parts.items():
                    sums.setdefault(kind, _Sums()).add(values[number])

    def merge(self, other: Means) -> None:
        """Add the means of other inputs, whose rows are finished."""
        self.undefined += other.undefined
        self.taken += other.taken
        for kind, rows in other.finished.items():
            self.finished.setdefault(kind, []).extend(rows)
        for index, kinds in other.layers.items():
            for kind, sums in kinds.items():
                self.layers.setdefault(index, {}).setdefault(kind, _Sums()).merge(sums)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the columns of the rows: layers in order, inputs, and the overall mean."""
        indices = sorted(self.layers)
        totals: dict[str, _Sums] = {}
        for index in indices:
            for kind, sums in self.layers[index].items():
                totals.setdefault(kind, _Sums()).merge(sums)
        yield from self._rows({"layer": indices}, [self.layers[index] for index in indices])
        yield from self._input_rows()
        yield from (rows for of_kind in self.finished.values() for rows in of_kind)
        yield from self._rows({}, [totals])

    def _input_rows(self) -> Iterator[dict[str, Any]]:
        if self.inputs:
            yield from self._rows({"input": list(self.inputs)}, list(self.inputs.values()))

    def _rows(
        self, labels: Mapping[str, Sequence[Any]], places: Sequence[Mapping[str, _Sums]]
    ) -> Iterator[dict[str, Any]]:
        observed = _stack(places, _OBSERVED)[..., 0]
        kept = ~observed.isnan() if self.ranked else torch.ones_like(observed, dtype=torch.bool)
        position, rank = (axis.numpy() for axis in kept.nonzero(as_tuple=True))
        columns = self.columns | {"value": observed[kept].numpy()}
        columns |= {name: np.asarray(values, dtype=object)[position] for name, values in labels.items()}
        if self.ranked:
            columns["rank"] = rank + 1
        names = [name for name in places[0] if name != _OBSERVED]
        if not names:
            yield columns
        for name in names:
            null = null_of_draws(observed, _stack(places, name), _z_samples(self.columns["metric"]))
            parts = zip(_NULL, null, strict=True)
            yield columns | {"null": name} | {key: part[kept].numpy() for key, part in parts}

    def state(self) -> Iterator[dict[str, Any]]:
        """Yield the columns of the rows for `from_state`: sums by layer, rank and kind, and rows of the inputs."""
        counted = {"left_out": self.undefined, "taken": self.taken}
        for index, kinds in self.layers.items():
            for kind, sums in kinds.items():
                sums_columns = {
                    "form": "sums",
                    "layer": index,
                    "null": kind or None,
                    "rank": np.arange(len(sums.total)) + 1,
                    "ranked": self.ranked,
                    "sums": [*sums.total],
                    "sum_counts": [*sums.count],
                }
                yield self.columns | counted | sums_columns
                counted = {}
        yield from (rows | {"form": "input"} for rows in self._input_rows())

    @classmethod
    def from_state(cls, columns: Mapping[str, Any], table: pd.DataFrame) -> Means:
        """Restore the sums from `state`."""
        means = cls(columns, bool(table["ranked"].iloc[0]))
        means.undefined, means.taken = (int(table[name].max()) for name in ("left_out", "taken"))
        for layer, of_layer in table.groupby("layer", sort=False):
            kinds = means.layers[int(str(layer))] = {}
            for kind, rows in of_layer.groupby(of_layer["null"].fillna(_OBSERVED), sort=False):
                of_kind = kinds[str(kind)] = _Sums()
                of_kind.total = np.stack([*rows["sums"]])
                of_kind.count = np.stack([*rows["sum_counts"]])
        return means


class _Sums:
    """Sums and counts of (rank, draw) arrays that may differ in their number of ranks; NaN counts as absent."""

    def __init__(self) -> None:
        self.total = np.zeros((0, 0))
        self.count = np.zeros((0, 0), dtype=np.int64)

    def add(self, values: np.ndarray) -> None:
        """Add an array (many, rank, draw), summed over its first axis."""
        present = ~np.isnan(values)
        self._add(np.where(present, values, 0.0).sum(0), present.sum(0))

    def merge(self, other: _Sums) -> None:
        """Add the sums of another."""
        self._add(other.total, other.count)

    def _add(self, total: np.ndarray, count: np.ndarray) -> None:
        ranks = max(len(total), len(self.total))
        self.total = _padded(self.total, ranks, total.shape[1]) + _padded(total, ranks, total.shape[1])
        self.count = _padded(self.count, ranks, total.shape[1]) + _padded(count, ranks, total.shape[1])

    def mean(self) -> np.ndarray:
        """Return the means (rank, draw); NaN where nothing was counted."""
        with np.errstate(invalid="ignore"):
            return np.where(self.count > 0, self.total / np.maximum(self.count, 1), np.nan)


def _padded(array: np.ndarray, ranks: int, null_samples: int) -> np.ndarray:
    if array.shape == (ranks, null_samples):
        return array
    larger = np.zeros((ranks, null_samples), dtype=array.dtype)
    larger[: array.shape[0], : array.shape[1]] = array
    return larger


def _stack(places: Sequence[Mapping[str, _Sums]], kind: str) -> Tensor:
    """Stack means as (place, rank, draw); missing ranks are NaN."""
    means = [sums[kind].mean() for sums in places]
    stacked = np.full((len(means), max(map(len, means)), means[0].shape[1]), np.nan)
    for row, mean in zip(stacked, means, strict=True):
        row[: len(mean)] = mean
    return torch.from_numpy(stacked)


_NUMBERS = (
    "value", *_NULL, "count", "mean", "squares", "least", "largest", "null_sum", "null_count", "left_out", "taken"
)  # fmt: skip
_LISTS = ("sums", "sum_counts", "bins", "bin_counts")
STATE: dict[str, Any] = (
    dict.fromkeys(("form", "input"), "string")
    | {"layer": "Int64", "head": "Int64", "metric": "string"}
    | dict.fromkeys(LABELS, "string")
    | {"rank": "Int64", "ranked": "boolean"}
    | dict.fromkeys(_NUMBERS, "float64")
    | dict.fromkeys(_LISTS, "object")
)
"""Columns of the table of `Accumulator.state` and their types."""


def _key(labels: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(sorted((name, label) for name, label in labels.items() if label is not None))


def _by_label(
    table: pd.DataFrame, without: Sequence[str] = ()
) -> Iterator[tuple[tuple[Any, ...], dict[str, Any], pd.DataFrame]]:
    """Yield (key, labels, rows) of every combination of labels, in order of appearance."""
    names = [name for name in ("layer", "metric", *LABELS) if name not in without]
    for values, rows in table.groupby(names, dropna=False, sort=False):
        pairs = zip(names, cast("tuple[Any, ...]", values), strict=True)
        labels = {name: label for name, label in pairs if pd.notna(label)}
        yield _key(labels), labels, rows


def _columns(rows: pd.DataFrame) -> dict[str, Any]:
    """Return the non-empty columns of a table as arrays."""
    kept = rows.drop(columns="form").dropna(axis=1, how="all")
    return {str(name): kept[name].to_numpy() for name in kept}


def _listed(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Wrap scalar columns in lists where no column has a length, as pandas needs."""
    if any(isinstance(part, (list, np.ndarray)) for part in columns.values()):
        return dict(columns)
    return {name: [part] for name, part in columns.items()}
