"""What was measured: one metric of one layer, and those of all layers and batches until they become one frame."""

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
from workbench.frames.metrics import METRICS, Metric
from workbench.frames.moments import Moments
from workbench.frames.results import STEP, conform

LABELS = ("axis", "statistic", "convention", "standardize", "candidate", "unit", "null")
"""Columns that tell one quantity from another, beside its layer and metric."""
_NULL = ("null_mean", "null_low", "null_high", "z")
_OBSERVED = ""


@dataclass
class Measurement:
    """One metric of one layer: ``values`` with an axis per name in ``axes`` (input, head, rank), or none.

    ``metric`` is a `Metric`, or the name of one in the table. ``null_samples`` holds the same number in samples of each
    null distribution, by its name, with a last axis for the samples. ``form`` says what becomes of it: "rows" is one
    row per value, or aggregated rows where the run asks for those; "across" is the same of what belongs to no single
    layer; "intermediate" makes no row: what an analysis says of all layers together is computed from it.
    """

    metric: Metric | str
    values: Tensor
    axes: tuple[str, ...] = ("input", "head")
    null: Null | None = None
    columns: dict[str, Any] = field(default_factory=dict)
    null_samples: Mapping[str, Tensor] = field(default_factory=dict)
    form: Literal["rows", "across", "intermediate"] = "rows"

    @property
    def name(self) -> str:
        """Name of the metric."""
        return self.metric if isinstance(self.metric, str) else self.metric.name

    @property
    def unit(self) -> str | None:
        """Unit of the metric; None where it has none."""
        metric = METRICS[self.metric] if isinstance(self.metric, str) else self.metric
        return metric.unit or None


class MeasuredLayer(Protocol):
    """What the rows of a measurement take from the layer that was measured."""

    ids: Sequence[str]
    """Names of the inputs."""
    heads: list[int]
    """Numbers of the heads that were measured."""

    step: int | None
    """Number of the generated token, where a model generated."""

    @property
    def index(self) -> int:
        """Number of the layer."""
        ...


class Counts:
    """Counts of heads in which something a reader should know happened."""

    def __init__(self, counts: Mapping[str, Sequence[int]] | None = None) -> None:
        self.counts: dict[str, list[int]] = {message: list(pair) for message, pair in (counts or {}).items()}
        """[how many, of how many] by message."""

    def add(self, message: str, where: Tensor) -> None:
        """Count the true entries of ``where`` under a message that goes on from "3 of 40 "."""
        self.count(message, int(where.sum()), where.numel())

    def count(self, message: str, count: int, total: int) -> None:
        """Count what was counted elsewhere."""
        counted = self.counts.setdefault(message, [0, 0])
        counted[0] += count
        counted[1] += total

    def merge(self, other: Counts) -> None:
        """Take the counts of another."""
        for message, pair in other.counts.items():
            self.count(message, *pair)

    def notes(self) -> list[str]:
        """A note, "3 of 40 …", for each message that was true anywhere."""
        return [f"{count} of {total} {message}" for message, (count, total) in self.counts.items() if count]


class Accumulator:
    """What one analysis has measured so far, and its counts and notes.

    Every quantity (a metric with its labels) is held in one of three ways. As `Values`, one row per number. With
    ``aggregate`` as `Means` over inputs and heads, over layers and heads, and over everything; with ``single`` as
    `Values` besides. Else without ``per_input`` as `Moments`: mean, deviation, interval and quantiles over inputs, in
    memory that does not grow with them; means have then no rows of single inputs either. Parts of the inputs can be
    measured apart and merged, also by way of a file (`state`, `from_state`).
    """

    def __init__(self, aggregate: bool = False, per_input: bool = True, single: bool = False) -> None:
        self.rows: list[pd.DataFrame] = []
        """Rows finer than any metric, as an analysis yields them layer by layer."""
        self.counts = Counts()
        self.left_out: dict[str, list[int]] = {}
        """Layers that were not measured, by the reason."""
        self.heads: set[int] = set()
        """Numbers of the heads that were measured in any layer."""
        self.most_heads = 0
        """Heads of the layer that has most of them."""
        self.sources: dict[int, str] = {}
        """Of every layer "self" or "cross": whether its keys are of the tokens that its queries are of."""
        self._aggregate, self._per_input, self._single = aggregate, per_input, single
        self._quantities: dict[tuple[Any, ...], Values | Means | Moments] = {}

    def __bool__(self) -> bool:
        return bool(self._quantities or self.rows)

    def add(self, measurement: Measurement, layer: MeasuredLayer) -> None:
        """Take one measurement of one batch of inputs."""
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
            own = labels if name is None else labels | {"null": name}
            if self._per_input:
                null = measurement.null if draws is None else null_of_draws(measurement.values, draws)
                quantity = self._quantity(own, lambda own=own: Values(own))
                cast("Values", quantity).add(measurement, layer, null)
                continue
            if "input" not in measurement.axes:
                raise InputError(
                    f"{measurement.name} belongs to no input: there is nothing to average over inputs"
                )
            expected = measurement.null.mean if measurement.null is not None else None
            heads = layer.heads if "head" in measurement.axes else ()
            quantity = self._quantity(own, lambda own=own, heads=heads: Moments(own, heads, ranked))
            cast("Moments", quantity).add(measurement.values, expected if draws is None else draws.mean(-1))

    def _quantity(self, labels: Mapping[str, Any], make: Any) -> Values | Means | Moments:
        """The quantity of these labels, made where it is new: so rows come by layer and metric whatever the batches."""
        key = _key(labels)
        if key not in self._quantities:
            self._quantities[key] = make()
        return self._quantities[key]

    def _check(self, measurement: Measurement, layer: MeasuredLayer) -> None:
        shape, names = tuple(measurement.values.shape), measurement.axes
        sizes = {"input": len(layer.ids), "head": len(layer.heads), "rank": shape[-1] if shape else 0}
        if tuple(sizes[name] for name in names) != shape:
            raise InputError(f"{measurement.name} of shape {shape} does not fit its axes {names}")

    def leave_out(self, reason: str, layer: int) -> None:
        """Note that a layer was not measured."""
        indices = self.left_out.setdefault(reason, [])
        if layer not in indices:
            indices.append(layer)

    def layers_left_out(self) -> list[str]:
        """A sentence for each reason."""
        return [
            f"layer{'s' if len(indices) > 1 else ''} {ranges(indices)} left out: {reason}"
            for reason, indices in self.left_out.items()
        ]

    def notes(self) -> list[str]:
        """Which layers were left out, what was counted, and which values are undefined and left out of means."""
        return [*self.layers_left_out(), *self.counts.notes(), *_undefined(self._quantities.values())]

    def frame(self, **constant: Any) -> pd.DataFrame:
        """All rows in the columns every result shares: by layer, metric, input, head and rank."""
        whole = _table([part for quantity in self._quantities.values() for part in quantity.rows()])
        whole = whole.assign(**constant)
        if "cross" in self.sources.values():
            whole["source"] = whole["layer"].map(self.sources)
        return conform(whole)

    def finer_rows(self, model: str) -> pd.DataFrame:
        """All rows that are finer than any metric: by layer and input, whatever the batches were."""
        whole = pd.concat(self.rows, ignore_index=True)
        places = [name for name in ("layer", "input") if name in whole]
        whole = whole.sort_values(
            places, key=lambda column: pd.factorize(column)[0], kind="stable", ignore_index=True
        )
        whole.insert(0, "model", model)
        return whole

    def merge(self, other: Accumulator) -> None:
        """Take what another has measured of other inputs; rows come in the order of merging."""
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
        """Everything as one table, each row by its ``form``, and the rest as JSON has it: what `from_state` takes."""
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
        """What `state` gave; to be merged with its like, and not to be added to."""
        made = cls()
        made.counts = Counts(rest["counts"])
        made.left_out = {reason: list(indices) for reason, indices in rest["left_out"].items()}
        made.heads, made.most_heads = set(rest["heads"]), rest["most"]
        made.sources = {layer: source for source in ("self", "cross") for layer in rest[source]}
        sketches = {key: rows for key, _, rows in _by_label(table[table["form"] == "sketch"])}
        for form, rows in table.groupby("form", sort=False):
            if form == "row":
                for key, labels, part in _by_label(rows):
                    made._quantities[key] = Values(labels, [_columns(part)])
            elif form == "moments":
                for key, labels, part in _by_label(rows):
                    made._quantities[key] = Moments.from_state(labels, part, sketches[key])
            elif form == "sums":
                for key, labels, part in _by_label(rows, without=("layer", "null")):
                    made._quantities[key] = Means.from_state(labels, part)
            elif form == "input":
                for key, _, part in _by_label(rows, without=("layer", "null")):
                    finished = cast("Means", made._quantities[key]).finished
                    for kind, own in part.groupby(part["null"].fillna(_OBSERVED), sort=False):
                        finished[str(kind)] = [_columns(own)]
        return made


def _undefined(quantities: Any) -> list[str]:
    """Which quantities are undefined somewhere and were left out there, as often as one another in one line."""
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
        """Take one batch, with its null distribution or None."""
        names, shape = measurement.axes, tuple(measurement.values.shape)
        labels = {
            "input": list(layer.ids),
            "head": layer.heads,
            "rank": list(range(1, (shape[-1] if shape else 0) + 1)),
        }
        value = measurement.values.double().cpu().numpy().ravel()
        kept = ~np.isnan(value) if "rank" in names else np.ones(value.shape, dtype=bool)
        places = np.indices(shape).reshape(len(shape), value.size)[:, kept]
        columns: dict[str, Any] = {
            name: np.asarray(labels[name], dtype=object if name == "input" else np.int64)[place]
            for name, place in zip(names, places, strict=True)
        }
        if null is not None:
            for name, part in zip(_NULL, null, strict=True):
                columns[name] = part.double().cpu().numpy().ravel()[kept]
        self.parts.append(columns | self.columns | {"value": value[kept]})

    def merge(self, other: Values) -> None:
        """Take those of other inputs."""
        self.parts += other.parts

    def rows(self) -> list[dict[str, Any]]:
        """Columns of the rows."""
        return self.parts

    def state(self) -> Iterator[dict[str, Any]]:
        """Columns of the rows of `Accumulator.state`."""
        for columns in self.parts:
            yield columns | {"form": "row"}


def _table(parts: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Rows of columns under one another; a column that a part lacks is empty there.

    Column by column: a frame for each part would take pandas longer than small models take to be measured.
    """
    lengths = [max((len(column) for column in part.values() if np.ndim(column)), default=1) for part in parts]
    columns = {}
    for name in dict.fromkeys(name for part in parts for name in part):
        given = [np.asarray(part[name]) if name in part else None for part in parts]
        numeric = all(column is None or column.dtype.kind in "iuf" for column in given)
        kind, empty = (None, np.nan) if numeric else (object, None)
        columns[name] = np.concatenate(
            [
                np.broadcast_to(np.asarray(empty if column is None else column, dtype=kind), length)
                for column, length in zip(given, lengths, strict=True)
            ]
        )
    return pd.DataFrame(columns)


class Means:
    """Means of one quantity: per layer (over inputs and heads), per input (over layers and heads), and over all.

    Every head of every input and layer counts once. The null distribution of a mean comes from the means of the null
    samples, never from averaged z. Values that are undefined (NaN) are left out, with their null samples, and counted.
    Without ``per_input`` there are no rows per input, and memory does not grow with the inputs.
    """

    def __init__(self, columns: Mapping[str, Any], ranked: bool, per_input: bool = True) -> None:
        self.columns = {name: label for name, label in columns.items() if label is not None}
        self.ranked, self.per_input = ranked, per_input
        self.layers: dict[int, dict[str, _Sums]] = {}
        self.inputs: dict[str, dict[str, _Sums]] = {}
        self.finished: dict[str, list[dict[str, Any]]] = {}
        """Columns of rows of inputs that another run measured, by null distribution."""
        self.undefined = self.taken = 0

    @property
    def name(self) -> str:
        """The metric and the labels that tell it from others."""
        return " ".join(
            str(label) for name, label in self.columns.items() if name not in ("unit", "standardize")
        )

    def add(self, measurement: Measurement, layer: MeasuredLayer) -> None:
        """Take one batch, input by input, so that no sum depends on the batches."""
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
        for number, name in enumerate(layer.ids):
            places = [self.layers.setdefault(layer.index, {})]
            if self.per_input:
                places.append(self.inputs.setdefault(name, {}))
            for sums in places:
                for kind, values in parts.items():
                    sums.setdefault(kind, _Sums()).add(values[number])

    def merge(self, other: Means) -> None:
        """Take what another has of other inputs, whose rows are finished."""
        self.undefined += other.undefined
        self.taken += other.taken
        for kind, rows in other.finished.items():
            self.finished.setdefault(kind, []).extend(rows)
        for index, kinds in other.layers.items():
            for kind, sums in kinds.items():
                self.layers.setdefault(index, {}).setdefault(kind, _Sums()).merge(sums)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Columns of the rows: of the layers in order, of the inputs, and of everything together."""
        indices = sorted(self.layers)
        whole: dict[str, _Sums] = {}
        for index in indices:
            for kind, sums in self.layers[index].items():
                whole.setdefault(kind, _Sums()).merge(sums)
        yield from self._rows({"layer": indices}, [self.layers[index] for index in indices])
        yield from self._input_rows()
        yield from (rows for of_kind in self.finished.values() for rows in of_kind)
        yield from self._rows({}, [whole])

    def _input_rows(self) -> Iterator[dict[str, Any]]:
        if self.inputs:
            yield from self._rows({"input": list(self.inputs)}, list(self.inputs.values()))

    def _rows(
        self, labels: Mapping[str, Sequence[Any]], places: Sequence[Mapping[str, _Sums]]
    ) -> Iterator[dict[str, Any]]:
        observed = _stack(places, _OBSERVED)[..., 0]
        kept = ~observed.isnan() if self.ranked else torch.ones_like(observed, dtype=torch.bool)
        place, rank = (axis.numpy() for axis in kept.nonzero(as_tuple=True))
        columns = self.columns | {"value": observed[kept].numpy()}
        columns |= {name: np.asarray(values, dtype=object)[place] for name, values in labels.items()}
        if self.ranked:
            columns["rank"] = rank + 1
        names = [name for name in places[0] if name != _OBSERVED]
        if not names:
            yield columns
        for name in names:
            null = null_of_draws(observed, _stack(places, name))
            parts = zip(_NULL, null, strict=True)
            yield columns | {"null": name} | {key: part[kept].numpy() for key, part in parts}

    def state(self) -> Iterator[dict[str, Any]]:
        """Columns of the rows that `from_state` takes: sums by layer, rank and kind, and rows of the inputs."""
        counted = {"left_out": self.undefined, "taken": self.taken}
        for index, kinds in self.layers.items():
            for kind, sums in kinds.items():
                own = {
                    "form": "sums",
                    "layer": index,
                    "null": kind or None,
                    "rank": np.arange(len(sums.total)) + 1,
                    "ranked": self.ranked,
                    "sums": [*sums.total],
                    "sum_counts": [*sums.count],
                }
                yield self.columns | counted | own
                counted = {}
        yield from (rows | {"form": "input"} for rows in self._input_rows())

    @classmethod
    def from_state(cls, columns: Mapping[str, Any], table: pd.DataFrame) -> Means:
        """Sums as `state` gave them."""
        made = cls(columns, bool(table["ranked"].iloc[0]))
        made.undefined, made.taken = (int(table[name].max()) for name in ("left_out", "taken"))
        for layer, of_layer in table.groupby("layer", sort=False):
            kinds = made.layers[int(str(layer))] = {}
            for kind, rows in of_layer.groupby(of_layer["null"].fillna(_OBSERVED), sort=False):
                of_kind = kinds[str(kind)] = _Sums()
                of_kind.total = np.stack([*rows["sums"]])
                of_kind.count = np.stack([*rows["sum_counts"]])
        return made


class _Sums:
    """Sums and counts of (rank, draw) arrays that may differ in their number of ranks; NaN counts as absent."""

    def __init__(self) -> None:
        self.total = np.zeros((0, 0))
        self.count = np.zeros((0, 0), dtype=np.int64)

    def add(self, values: np.ndarray) -> None:
        """Take an array (many, rank, draw), adding up its first axis."""
        present = ~np.isnan(values)
        self._add(np.where(present, values, 0.0).sum(0), present.sum(0))

    def merge(self, other: _Sums) -> None:
        """Take the sums of another."""
        self._add(other.total, other.count)

    def _add(self, total: np.ndarray, count: np.ndarray) -> None:
        ranks = max(len(total), len(self.total))
        self.total = _padded(self.total, ranks, total.shape[1]) + _padded(total, ranks, total.shape[1])
        self.count = _padded(self.count, ranks, total.shape[1]) + _padded(count, ranks, total.shape[1])

    def mean(self) -> np.ndarray:
        """(rank, draw); NaN where nothing was counted."""
        with np.errstate(invalid="ignore"):
            return np.where(self.count > 0, self.total / np.maximum(self.count, 1), np.nan)


def _padded(array: np.ndarray, ranks: int, null_samples: int) -> np.ndarray:
    if array.shape == (ranks, null_samples):
        return array
    larger = np.zeros((ranks, null_samples), dtype=array.dtype)
    larger[: array.shape[0], : array.shape[1]] = array
    return larger


def _stack(places: Sequence[Mapping[str, _Sums]], kind: str) -> Tensor:
    """Means of several places as (place, rank, draw); ranks that a place has not got are NaN."""
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
    """(key, labels, rows) of everything that the labels tell apart, in order of appearance."""
    names = [name for name in ("layer", "metric", *LABELS) if name not in without]
    for values, rows in table.groupby(names, dropna=False, sort=False):
        found = zip(names, cast("tuple[Any, ...]", values), strict=True)
        labels = {name: label for name, label in found if pd.notna(label)}
        yield _key(labels), labels, rows


def _columns(rows: pd.DataFrame) -> dict[str, Any]:
    """Rows of a table as columns, without those that are empty."""
    kept = rows.drop(columns="form").dropna(axis=1, how="all")
    return {str(name): kept[name].to_numpy() for name in kept}


def _listed(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Columns that pandas can make rows from: at least one of them has a length."""
    if any(isinstance(part, (list, np.ndarray)) for part in columns.values()):
        return dict(columns)
    return {name: [part] for name, part in columns.items()}
