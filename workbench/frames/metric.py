"""Metrics: what each number in a result frame means."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Literal

from workbench.core import sources
from workbench.core.errors import InputError
from workbench.core.plugins import LOCK, Registry, instance_of

if TYPE_CHECKING:
    import pandas as pd

_INF = math.inf
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Metric:
    """A quantity that a result frame may hold.

    ``label`` is what a figure's axis says, ``source`` where it is defined or first measured; ``unit`` is empty where
    the quantity has none; ``low`` and ``high`` bound its values.
    """

    name: str
    label: str
    definition: str
    source: str = "workbench"
    _: KW_ONLY
    unit: str = ""
    low: float = -_INF
    high: float = _INF
    averaged: bool = True
    """Whether a mean of it means anything: the number of a token has none."""
    log: bool = False
    """Whether its values are compared by ratio: drawn on a logarithmic axis where they span more than a decade."""
    better: Literal["higher", "lower", ""] = ""
    """Which values are better; empty where neither is."""
    z_samples: int = 2
    """Null samples that a z-score needs; with fewer the column z is empty."""
    largest_null: str = ""
    """Null whose mean is the largest possible value of an input: uniform attention has the largest entropy."""

    @property
    def axis_title(self) -> str:
        """Label with its unit, as an axis shows it."""
        return f"{self.label} ({self.unit})" if self.unit else self.label


class Metrics(Registry[Metric]):
    """Metrics by name: what measures a metric registers it."""

    def register(self, metric: Metric) -> None:
        """Add a metric. Raises `InputError` where another metric has its name."""
        if self._entries.setdefault(metric.name, metric) != metric:
            raise InputError(f"its metric {metric.name!r} is the name of another; call it otherwise")

    def __getitem__(self, name: str) -> Metric:
        self._find(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self._find(name)
        return super().__contains__(name)

    def _find(self, name: object) -> None:
        """Complete the table where it misses a name: plug-ins first, since analyses import torch."""
        if name not in self._entries:
            super().complete()
        if name not in self._entries:
            self.complete()

    def complete(self) -> None:
        """Load the plug-ins and call the sources, once."""
        with LOCK:
            super().complete()
            while sources.METRICS:
                sources.METRICS.pop()()


METRICS = Metrics({}, "workbench.metrics", instance_of(Metric))


def bounds_of(rows: pd.DataFrame) -> tuple[float, float]:
    """Return the bounds of the metric that the rows hold: −1 and 1 of a cosine.

    The largest entropy is that of uniform attention, where the rows have this null. Rows of several metrics, and
    values beyond the bounds such as differences, have none.
    """
    names = rows["metric"].unique() if "metric" in rows else ()
    metrics = [METRICS[name] for name in names if name in METRICS]
    if len({(metric.low, metric.high, metric.largest_null) for metric in metrics}) != 1:
        return -math.inf, math.inf
    low, high = metrics[0].low, metrics[0].high
    if not rows["value"].dropna().between(low - _ROUNDING, high + _ROUNDING).all():
        return -math.inf, math.inf
    if "null" in rows and metrics[0].largest_null:
        largest = rows.loc[rows["null"] == metrics[0].largest_null, "null_mean"].max()
        high = high if math.isnan(largest) else float(largest)
    return low, high
