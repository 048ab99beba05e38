"""Measurements of all layers and batches, until they become one frame."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import pandas as pd
from torch import Tensor

from workbench.analyses.chance import Null, null_of_draws
from workbench.errors import InputError
from workbench.measurements.layers import Layer
from workbench.measurements.means import Means
from workbench.measurements.moments import Moments
from workbench.metrics import METRICS
from workbench.results import conform


@dataclass
class Measurement:
    """One metric of one layer: ``values`` with an axis per name in ``axes`` (input, head, rank), or none.

    ``draws`` holds what the same number came to under chance, by the name of the chance level, with a last
    axis for the draws. ``form`` says what becomes of it: "rows" is one row per value, or aggregated rows where
    the run asks for those; "profile" is the maximum, minimum, mean and lower median over ranks of each input's
    mean over heads and layers; "across" is one row per value that belongs to no single layer.
    """

    metric: str
    values: Tensor
    axes: tuple[str, ...] = ("input", "head")
    null: Null | None = None
    columns: dict[str, Any] = field(default_factory=dict)
    draws: Mapping[str, Tensor] = field(default_factory=dict)
    form: Literal["rows", "profile", "across"] = "rows"


class Rows:
    """Measurements of all layers and batches, as columns, until they become one frame.

    With ``aggregate`` the means over inputs and heads, over layers and heads, and over everything take the
    place of single heads (`Means`); with ``moments`` the mean, deviation and interval over inputs that of single
    inputs (`Moments`).
    """

    def __init__(self, aggregate: bool = False, moments: bool = False) -> None:
        self._parts: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
        self._aggregate = aggregate
        self._moments: dict[tuple[Any, ...], Moments] | None = {} if moments else None
        self._means = Means()
        self._profiles = Means()

    def __bool__(self) -> bool:
        return bool(self._parts or self._means or self._moments)

    def add(self, measurement: Measurement, layer: Layer) -> None:
        """Take one measurement; ranks that an input does not have (NaN) make no row."""
        self._check(measurement, layer)
        if measurement.form == "profile":
            self._profiles.add(measurement, layer)
        elif self._moments is not None:
            self._add_moments(self._moments, measurement, layer)
        elif self._aggregate:
            self._means.add(measurement, layer)
        elif measurement.draws:
            for name, draws in measurement.draws.items():
                null = null_of_draws(measurement.values, draws)
                columns = measurement.columns | {"null": name}
                self._add_rows(replace(measurement, null=null, columns=columns, draws={}), layer)
        else:
            self._add_rows(measurement, layer)

    def _add_moments(
        self, held: dict[tuple[Any, ...], Moments], measurement: Measurement, layer: Layer
    ) -> None:
        place = None if measurement.form == "across" else layer.index
        key = (place, measurement.metric, *sorted(measurement.columns.items()))
        if key not in held:
            labels = {
                "layer": place,
                "metric": measurement.metric,
                "unit": METRICS[measurement.metric].unit or None,
            }
            held[key] = Moments(labels | measurement.columns)
        null = None if measurement.null is None else measurement.null.mean
        held[key].add(measurement.values, null)

    def _check(self, measurement: Measurement, layer: Layer) -> None:
        shape, names = tuple(measurement.values.shape), measurement.axes
        labels = {"input": len(layer.ids), "head": len(layer.heads), "rank": shape[-1] if shape else 0}
        if tuple(labels[name] for name in names) != shape:
            raise InputError(f"{measurement.metric} of shape {shape} does not fit its axes {names}")

    def _add_rows(self, measurement: Measurement, layer: Layer) -> None:
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
        metric = measurement.metric
        constants = {"unit": METRICS[metric].unit or None} | measurement.columns
        place = None if measurement.form == "across" else layer.index
        columns |= constants | {"layer": place, "metric": metric, "value": value[kept]}
        # a dict keeps the order of arrival: with the key, rows come by layer and metric whatever the batches
        key = (place, metric, *sorted(measurement.columns.items()))
        self._parts.setdefault(key, []).append(columns)

    def frame(self, **constant: Any) -> pd.DataFrame:
        """All rows in the columns every result shares: by layer, metric, input, head and rank; then means."""
        parts = [pd.DataFrame(part) for parts in self._parts.values() for part in parts]
        parts += [pd.DataFrame(part) for part in [*self._means.rows(), *self._profiles.profiles()]]
        parts += [pd.DataFrame(held.rows()) for held in (self._moments or {}).values()]
        return conform(pd.concat(parts, ignore_index=True).assign(**constant))

    def notes(self) -> list[str]:
        """Which values are undefined and were left out of means."""
        return self._means.notes()
