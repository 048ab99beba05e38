"""Means over heads, layers and inputs, of what was observed and of every draw under chance alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch

from workbench.core.null_distributions import null_of_draws
from workbench.frames.measurement import MeasuredLayer, Measurement

OBSERVED = ""


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


class _Quantity:
    """One metric with its columns: sums of each layer and of each input, observed and by chance level."""

    def __init__(self, columns: Mapping[str, Any], ranked: bool, per_input: bool = True) -> None:
        self.columns = dict(columns)
        self.ranked, self.per_input = ranked, per_input
        self.layers: dict[int, dict[str, _Sums]] = {}
        self.inputs: dict[str, dict[str, _Sums]] = {}
        self.finished: dict[str, list[dict[str, Any]]] = {}
        """Rows of inputs that another run measured, by chance level."""
        self.undefined = self.taken = 0

    def add(self, observed: np.ndarray, null_samples: Mapping[str, np.ndarray], layer: MeasuredLayer) -> None:
        """Take (input, head, rank, draw) arrays; input by input, so that no sum depends on the batches."""
        absent = np.isnan(observed)
        self.undefined += int(absent.sum())
        self.taken += absent.size
        # a head without a value has none under chance either
        parts = {OBSERVED: observed} | {
            name: np.where(absent, np.nan, drawn) for name, drawn in null_samples.items()
        }
        for number, name in enumerate(layer.ids):
            places = [self.layers.setdefault(layer.index, {})]
            if self.per_input:
                places.append(self.inputs.setdefault(name, {}))
            for sums in places:
                for kind, values in parts.items():
                    sums.setdefault(kind, _Sums()).add(values[number])

    def merge(self, other: _Quantity) -> None:
        """Take what another gathered from other inputs, whose rows are finished."""
        self.undefined += other.undefined
        self.taken += other.taken
        for kind, rows in other.finished.items():
            self.finished.setdefault(kind, []).extend(rows)
        for index, kinds in other.layers.items():
            for kind, sums in kinds.items():
                self.layers.setdefault(index, {}).setdefault(kind, _Sums()).merge(sums)

    def groups(self) -> Iterator[tuple[dict[str, Any], list[dict[str, _Sums]]]]:
        """(labels, sums) of the layers in order, of the inputs, and of everything together."""
        indices = sorted(self.layers)
        yield {"layer": indices}, [self.layers[index] for index in indices]
        if self.inputs:
            yield {"input": list(self.inputs)}, list(self.inputs.values())
        whole: dict[str, _Sums] = {}
        for index in indices:
            for kind, sums in self.layers[index].items():
                whole.setdefault(kind, _Sums()).merge(sums)
        yield {}, [whole]


class Means:
    """Aggregated rows: per layer (over inputs and heads), per input (over layers and heads), and over all.

    Every head of every input and layer counts once. The chance level of a mean comes from the means of the
    draws, never from averaged z. Values that are undefined (NaN) are left out, with their null samples, and counted.
    Without ``per_input`` there are no rows per input, and memory does not grow with the inputs.
    """

    def __init__(self, per_input: bool = True) -> None:
        self._quantities: dict[tuple[Any, ...], _Quantity] = {}
        self._per_input = per_input

    def __bool__(self) -> bool:
        return bool(self._quantities)

    def add(self, measurement: Measurement, layer: MeasuredLayer) -> None:
        ranked = "rank" in measurement.axes
        values = measurement.values.double().cpu().numpy()
        null_samples = {
            name: drawn.double().cpu().numpy() for name, drawn in measurement.null_samples.items()
        }
        if "head" not in measurement.axes:  # a measure of the whole layer counts as one head
            values = values[:, None]
            null_samples = {name: drawn[:, None] for name, drawn in null_samples.items()}
        if not ranked:
            values = values[..., None]
            null_samples = {name: drawn[..., None, :] for name, drawn in null_samples.items()}
        key = (measurement.name, *sorted(measurement.columns.items()))
        if key not in self._quantities:
            columns = {"metric": measurement.name, "unit": measurement.unit, **measurement.columns}
            self._quantities[key] = _Quantity(columns, ranked, self._per_input)
        quantity = self._quantities[key]
        quantity.add(values[..., None], null_samples, layer)

    def merge(self, other: Means) -> None:
        """Take what another gathered from other inputs."""
        for key, quantity in other._quantities.items():
            self._quantities.setdefault(key, _Quantity(quantity.columns, quantity.ranked)).merge(quantity)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Columns of the aggregated rows: by quantity, first its layers, then its inputs, then the whole."""
        for quantity in self._quantities.values():
            for labels, places in quantity.groups():
                if not labels:  # the whole comes last
                    yield from (rows for of_kind in quantity.finished.values() for rows in of_kind)
                yield from _rows(quantity, labels, places)

    def state(self) -> Iterator[dict[str, Any]]:
        """Columns of the rows that `load` takes: sums by layer, rank and kind, and finished rows of the inputs."""
        for quantity in self._quantities.values():
            told = {"left_out": quantity.undefined, "taken": quantity.taken}
            for index, kinds in quantity.layers.items():
                for kind, sums in kinds.items():
                    yield (
                        quantity.columns
                        | told
                        | {
                            "form": "sums",
                            "layer": index,
                            "null": kind or None,
                            "rank": np.arange(len(sums.total)) + 1,
                            "ranked": quantity.ranked,
                            "sums": [*sums.total],
                            "sum_counts": [*sums.count],
                        }
                    )
                    told = {}
            for labels, places in quantity.groups():
                if "input" in labels:
                    yield from (rows | {"form": "input"} for rows in _rows(quantity, labels, places))

    def load(self, key: tuple[Any, ...], columns: Mapping[str, Any], sums: pd.DataFrame) -> None:
        """Take one quantity's sums as `state` told them."""
        quantity = _Quantity(columns, bool(sums["ranked"].iloc[0]))
        quantity.undefined, quantity.taken = (int(sums[name].max()) for name in ("left_out", "taken"))
        for layer, of_layer in sums.groupby("layer", sort=False):
            kinds = quantity.layers[int(str(layer))] = {}
            for kind, rows in of_layer.groupby(of_layer["null"].fillna(OBSERVED), sort=False):
                held = kinds[str(kind)] = _Sums()
                held.total = np.stack([*rows["sums"]])
                held.count = np.stack([*rows["sum_counts"]])
        self._quantities[key] = quantity

    def finish(self, key: tuple[Any, ...], kind: str, rows: dict[str, Any]) -> None:
        """Take finished rows of one quantity's inputs, with one chance level or none."""
        self._quantities[key].finished.setdefault(kind, []).append(rows)

    def take_profiles(self) -> list[dict[str, Any]]:
        """`profiles` of the inputs so far, which are forgotten."""
        found = [*self.profiles()]
        for quantity in self._quantities.values():
            quantity.inputs.clear()
            quantity.layers.clear()
        return found

    def profiles(self) -> Iterator[dict[str, Any]]:
        """Maximum, minimum, mean and lower median over ranks of each input's mean over heads and layers."""
        for quantity in self._quantities.values():
            for name, sums in quantity.inputs.items():
                profile = sums[OBSERVED].mean()[:, 0]
                profile = np.sort(profile[~np.isnan(profile)])
                if not len(profile):
                    continue
                statistics = {
                    "max": profile[-1],
                    "min": profile[0],
                    "mean": profile.mean(),
                    "median": profile[(len(profile) - 1) // 2],
                }
                yield quantity.columns | {
                    "input": name, "statistic": list(statistics), "value": list(statistics.values())
                }  # fmt: skip

    def notes(self) -> list[str]:
        """Which quantities are undefined somewhere and were left out there, as often as one another in one line."""
        alike: dict[tuple[int, int], list[str]] = {}
        for quantity in self._quantities.values():
            if quantity.undefined and not quantity.ranked:
                alike.setdefault((quantity.undefined, quantity.taken), []).append(_name(quantity))
        return [
            f"{undefined} of {taken} values of {', '.join(names)} are undefined and left out"
            for (undefined, taken), names in alike.items()
        ]


def _name(quantity: _Quantity) -> str:
    kept = {name: value for name, value in quantity.columns.items() if name not in ("unit", "standardize")}
    return " ".join(str(value) for value in kept.values())


def _stack(places: Sequence[Mapping[str, _Sums]], kind: str) -> torch.Tensor:
    """Means of several places as (place, rank, draw); ranks that a place has not got are NaN."""
    means = [sums[kind].mean() for sums in places]
    stacked = np.full((len(means), max(map(len, means)), means[0].shape[1]), np.nan)
    for row, mean in zip(stacked, means, strict=True):
        row[: len(mean)] = mean
    return torch.from_numpy(stacked)


def _rows(
    quantity: _Quantity, labels: Mapping[str, Sequence[Any]], places: Sequence[Mapping[str, _Sums]]
) -> Iterator[dict[str, Any]]:
    observed = _stack(places, OBSERVED)[..., 0]
    kept = ~observed.isnan() if quantity.ranked else torch.ones_like(observed, dtype=torch.bool)
    place, rank = (axis.numpy() for axis in kept.nonzero(as_tuple=True))
    columns = quantity.columns | {"value": observed[kept].numpy()}
    columns |= {name: np.asarray(values, dtype=object)[place] for name, values in labels.items()}
    if quantity.ranked:
        columns["rank"] = rank + 1
    names = [name for name in places[0] if name != OBSERVED]
    if not names:
        yield columns
    for name in names:
        null = null_of_draws(observed, _stack(places, name))
        parts = zip(("null_mean", "null_low", "null_high", "z"), null, strict=True)
        yield columns | {"null": name} | {key: part[kept].numpy() for key, part in parts}
