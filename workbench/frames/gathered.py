"""What one analysis has measured so far, which parts of a sweep hand on to be merged."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from workbench.core.selection import ranges
from workbench.frames.measurement import Counts
from workbench.frames.rows import Rows


@dataclass
class Gathered:
    """Rows of all layers and inputs, and what is told about them."""

    rows: Rows
    counts: Counts = field(default_factory=Counts)
    left_out: dict[str, list[int]] = field(default_factory=dict)
    """Layers that were not measured, by the reason."""
    heads: set[int] = field(default_factory=set)
    """Numbers of the heads that were measured in any layer."""
    most: int = 0
    """Heads of the layer that has most of them."""

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

    def merge(self, other: Gathered) -> None:
        """Take what was gathered from other inputs."""
        self.rows.merge(other.rows)
        self.counts.merge(other.counts)
        for reason, indices in other.left_out.items():
            for index in indices:
                self.leave_out(reason, index)
        self.heads |= other.heads
        self.most = max(self.most, other.most)

    def state(self) -> tuple[pd.DataFrame, dict[str, Any]]:
        """The rows as a table, and the rest as JSON has it: what `from_state` takes."""
        told = {
            "counts": self.counts.counts,
            "left_out": self.left_out,
            "heads": sorted(self.heads),
            "most": self.most,
        }
        return self.rows.state(), told

    @classmethod
    def from_state(cls, table: pd.DataFrame, told: dict[str, Any]) -> Gathered:
        """What `state` told of."""
        left_out = {reason: list(indices) for reason, indices in told["left_out"].items()}
        counts = Counts(told["counts"])
        return cls(Rows.from_state(table), counts, left_out, set(told["heads"]), told["most"])
