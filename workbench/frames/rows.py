"""Measurements of all layers and batches, until they become one frame."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from workbench.core.errors import InputError
from workbench.core.null_distributions import null_of_draws
from workbench.frames.means import Means
from workbench.frames.measurement import MeasuredLayer, Measurement
from workbench.frames.moments import Moments
from workbench.frames.results import conform

LABELS = ("axis", "statistic", "convention", "standardize", "candidate", "unit", "null")
"""Columns that tell one quantity from another, beside its metric."""


class Rows:
    """Measurements of all layers and batches, as columns, until they become one frame.

    With ``aggregate`` the means over inputs and heads, over layers and heads, and over everything take the
    place of single heads (`Means`). Without ``per_input`` there are no rows of single inputs: means as before, or of
    what is not averaged mean, deviation, interval and quantiles over inputs (`Moments`), in memory that does not grow
    with them. Several can be made of parts of the inputs and merged, also by way of a file (`state`, `from_state`).
    """

    def __init__(self, aggregate: bool = False, per_input: bool = True) -> None:
        self._parts: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
        self._aggregate, self._per_input = aggregate, per_input
        self._moments: dict[tuple[Any, ...], Moments] = {}
        self._means = Means(per_input)
        self._profiles = Means()
        self._finished_profiles: list[dict[str, Any]] = []

    def __bool__(self) -> bool:
        return bool(self._parts or self._means or self._moments)

    def add(self, measurement: Measurement, layer: MeasuredLayer) -> None:
        """Take one measurement; ranks that an input does not have (NaN) make no row."""
        self._check(measurement, layer)
        if measurement.form == "profile":
            self._profiles.add(measurement, layer)
        elif self._aggregate:
            self._means.add(measurement, layer)
        elif not self._per_input:
            self._add_moments(measurement, layer)
        elif measurement.null_samples:
            for name, null_samples in measurement.null_samples.items():
                null = null_of_draws(measurement.values, null_samples)
                columns = measurement.columns | {"null": name}
                self._add_rows(replace(measurement, null=null, columns=columns, null_samples={}), layer)
        else:
            self._add_rows(measurement, layer)

    def end_batch(self) -> None:
        """All layers of a batch are in: profiles of its inputs are complete."""
        if self._per_input:
            return
        for rows in self._profiles.take_profiles():
            for statistic, value in zip(rows["statistic"], rows["value"], strict=True):
                columns = {name: part for name, part in rows.items() if name not in ("input", "value")}
                columns["statistic"] = statistic
                self._moments_of(None, columns).add(torch.tensor([value], dtype=torch.float64))

    def _add_moments(self, measurement: Measurement, layer: MeasuredLayer) -> None:
        metric = measurement.name
        columns = {"metric": metric, "unit": measurement.unit} | measurement.columns
        place = None if measurement.form == "across" else layer.index
        axes = measurement.axes
        if "input" not in axes:
            raise InputError(f"{metric} belongs to no input: there is nothing to average over inputs")
        nulls: dict[str | None, Tensor | None] = {
            name: part.mean(-1) for name, part in measurement.null_samples.items()
        }
        if not nulls:
            nulls = {None: None if measurement.null is None else measurement.null.mean}
        for name, expected in nulls.items():
            own = columns if name is None else columns | {"null": name}
            heads = layer.heads if "head" in axes else ()
            self._moments_of(place, own, heads, "rank" in axes).add(measurement.values, expected)

    def _moments_of(
        self, place: int | None, columns: Mapping[str, Any], heads: Sequence[int] = (), ranked: bool = False
    ) -> Moments:
        key = _key(place, columns)
        if key not in self._moments:
            self._moments[key] = Moments({"layer": place, **columns}, heads, ranked)
        return self._moments[key]

    def _check(self, measurement: Measurement, layer: MeasuredLayer) -> None:
        shape, names = tuple(measurement.values.shape), measurement.axes
        labels = {"input": len(layer.ids), "head": len(layer.heads), "rank": shape[-1] if shape else 0}
        if tuple(labels[name] for name in names) != shape:
            raise InputError(f"{measurement.name} of shape {shape} does not fit its axes {names}")

    def _add_rows(self, measurement: Measurement, layer: MeasuredLayer) -> None:
        names, shape = measurement.axes, tuple(measurement.values.shape)
        last = shape[-1] if shape else 0
        labels = {"input": list(layer.ids), "head": layer.heads, "rank": list(range(1, last + 1))}
        value = measurement.values.double().cpu().numpy().ravel()
        kept = ~np.isnan(value) if "rank" in names else np.ones(value.shape, dtype=bool)
        places = np.indices(shape).reshape(len(shape), value.size)[:, kept]
        columns: dict[str, Any] = {
            name: np.asarray(labels[name], dtype=object if name == "input" else np.int64)[place]
            for name, place in zip(names, places, strict=True)
        }
        if measurement.null is not None:
            for name, part in zip(("null_mean", "null_low", "null_high", "z"), measurement.null, strict=True):
                columns[name] = part.double().cpu().numpy().ravel()[kept]
        metric = measurement.name
        constants = {"unit": measurement.unit} | measurement.columns
        place = None if measurement.form == "across" else layer.index
        columns |= constants | {"layer": place, "metric": metric, "value": value[kept]}
        # a dict keeps the order of arrival: with the key, rows come by layer and metric whatever the batches
        key = (place, metric, *sorted(measurement.columns.items()))
        self._parts.setdefault(key, []).append(columns)

    def frame(self, **constant: Any) -> pd.DataFrame:
        """All rows in the columns every result shares: by layer, metric, input, head and rank; then means."""
        parts = [pd.DataFrame(part) for parts in self._parts.values() for part in parts]
        parts += [pd.DataFrame(part) for part in [*self._means.rows(), *self._profiles.profiles()]]
        parts += [pd.DataFrame(part) for part in self._finished_profiles]
        parts += [pd.DataFrame(part) for held in self._moments.values() for part in held.rows()]
        return conform(pd.concat(parts, ignore_index=True).assign(**constant))

    def notes(self) -> list[str]:
        """Which values are undefined and were left out of means."""
        notes = self._means.notes()
        left_out: dict[str, int] = {}
        for held in self._moments.values():
            metric = str(held.columns["metric"])
            left_out[metric] = left_out.get(metric, 0) + held.left_out
        counted = [f"{count} of {metric}" for metric, count in left_out.items() if count]
        return [*notes, f"undefined or infinite values left out: {', '.join(counted)}"] if counted else notes

    def merge(self, other: Rows) -> None:
        """Take what another gathered from other inputs; rows come in the order of merging."""
        for key, parts in other._parts.items():
            self._parts.setdefault(key, []).extend(parts)
        for key, held in other._moments.items():
            if key in self._moments:
                self._moments[key].merge(held)
            else:
                self._moments[key] = held
        self._means.merge(other._means)
        self._finished_profiles += other._finished_profiles

    def state(self) -> pd.DataFrame:
        """Everything as one table, each row by its ``form``: what `from_state` makes rows from that can be merged."""
        told = [columns | {"form": "row"} for parts in self._parts.values() for columns in parts]
        told += [columns | {"form": "profile"} for columns in self._profiles.profiles()]
        told += self._means.state()
        told += [columns for held in self._moments.values() for columns in held.state()]
        empty = pd.DataFrame(columns=list(STATE))  # of a shard whose pictures cannot be read
        parts = [pd.DataFrame(_listed(columns)) for columns in told] or [empty]
        return pd.concat(parts, ignore_index=True).reindex(columns=list(STATE)).astype(STATE)

    @classmethod
    def from_state(cls, table: pd.DataFrame) -> Rows:
        """What `state` told of; to be merged with its like, and not to be added to."""
        made = cls()
        sketches = dict(_quantities(table[table["form"] == "sketch"], _PLACES))
        for form, rows in table.groupby("form", sort=False):
            if form == "profile":
                made._finished_profiles.append(_columns(rows))
            elif form == "row":
                for key, part in _quantities(rows, _PLACES):
                    made._parts[key] = [_columns(part)]
            elif form == "moments":
                for key, part in _quantities(rows, _PLACES):
                    made._moments[key] = Moments.from_state(_labels(part), part, sketches[key])
            elif form == "sums":  # of every layer, and with every chance level
                for key, part in _quantities(rows, _PLACES[1:-1]):
                    labels = _labels(part)
                    made._means.load(
                        key, {name: labels[name] for name in labels if name not in ("layer", "null")}, part
                    )
            elif form == "input":
                for key, part in _quantities(rows, _PLACES[1:-1]):
                    for kind, own in part.groupby(part["null"].fillna(""), sort=False):
                        made._means.finish(key, str(kind), _columns(own))
        return made


_NUMBERS = (
    "value", "null_mean", "null_low", "null_high", "z", "count", "mean", "squares", "least", "largest", "null_sum",
    "null_count", "left_out", "taken",
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
"""Columns of `Rows.state` and their types."""


def _key(place: int | None, columns: Mapping[str, Any]) -> tuple[Any, ...]:
    metric = columns["metric"]
    labels = ((name, word) for name, word in columns.items() if name != "metric" and word is not None)
    return (place, metric, *sorted(labels))


_PLACES = ("layer", "metric", *LABELS)


def _quantities(table: pd.DataFrame, places: Sequence[str]) -> Iterator[tuple[tuple[Any, ...], pd.DataFrame]]:
    """(key, rows) of everything that these columns tell apart, in order of appearance."""
    for labels, rows in table.groupby([*places], dropna=False, sort=False):
        yield tuple(None if pd.isna(label) else label for label in cast("tuple[Any, ...]", labels)), rows


def _labels(rows: pd.DataFrame) -> dict[str, Any]:
    """The columns that are the same in all rows of one quantity, without those that are empty; the layer always."""
    first = rows.iloc[0]
    held = {name: first[name] for name in _PLACES if pd.notna(first[name])}
    return {"layer": None} | held


def _columns(rows: pd.DataFrame) -> dict[str, Any]:
    """Rows of a table as columns, without those that are empty."""
    kept = rows.drop(columns="form").dropna(axis=1, how="all")
    return {str(name): kept[name].to_numpy() for name in kept}


def _listed(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Columns that pandas can make rows from: at least one of them has a length."""
    if any(isinstance(part, (list, np.ndarray)) for part in columns.values()):
        return dict(columns)
    return {name: [part] for name, part in columns.items()}
