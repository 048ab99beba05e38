"""One metric of one layer, on its way from an analysis into a frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from torch import Tensor

from workbench.core.null_distributions import Null
from workbench.frames.metrics import METRICS, Metric


@dataclass
class Measurement:
    """One metric of one layer: ``values`` with an axis per name in ``axes`` (input, head, rank), or none.

    ``metric`` is a `Metric`, or the name of one in the table. ``null_samples`` holds what the same number came to under
    chance, by the name of the chance level, with a last axis for the draws. ``form`` says what becomes of it: "rows" is
    one row per value, or aggregated rows where the run asks for those; "across" is the same of what belongs to no
    single layer; "held" makes no row: what an analysis says of all layers together is computed from it.
    """

    metric: Metric | str
    values: Tensor
    axes: tuple[str, ...] = ("input", "head")
    null: Null | None = None
    columns: dict[str, Any] = field(default_factory=dict)
    null_samples: Mapping[str, Tensor] = field(default_factory=dict)
    form: Literal["rows", "across", "held"] = "rows"

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
