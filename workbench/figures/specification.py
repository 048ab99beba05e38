"""The specification of a figure: a frame, columns for axes, colours and panels, marks and scales; no drawing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import pandas as pd

from workbench.core.errors import InputError, UnknownName
from workbench.figures.figure_arguments import SCALES, check_arguments, check_frame, check_numbers
from workbench.figures.marks import Mark, Rule
from workbench.figures.words import UNITS

SERIES = "series"
"""The column of models with their checkpoints, as `series_labels` names them."""


@dataclass(frozen=True)
class Specification:
    """The columns, marks and scales of a `Plot`, whose docstring has its arguments."""

    frame: pd.DataFrame
    x: str | Sequence[str] | Mapping[str, str] = "layer"
    color: str | None = None
    panel: str | None = None
    dash: str | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    y: str | None = None
    group: str | None = None
    metrics: tuple[str, ...] = ()
    marks: tuple[Mark, ...] = ()
    kept: Mapping[str, Any] = field(default_factory=dict)
    scales: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_arguments(names=self.names, metrics=self.metrics)
        optional = {"color": self.color, "panel": self.panel}
        columns = {name: column for name, column in optional.items() if column != SERIES}
        check_frame(self.frame, dash=self.dash, y=self.y, group=self.group, **columns)
        for mark in self.marks:
            if not isinstance(mark, Mark):
                raise InputError(f"{mark!r} is no mark; give marks such as Line(), Band() or Null()")
            check_arguments(estimator=getattr(mark, "estimator", "mean"))
            if (over := getattr(mark, "over", None)) not in UNITS:
                check_frame(self.frame, over=over)
            if isinstance(mark, Rule):
                check_frame(self.frame, column=mark.column)
        if self.y is None and self.x == "depth":
            check_frame(self.frame, "layer", "model")
        elif self.y is None and self.metrics:
            check_frame(self.frame, x=str(self.x))
            check_numbers(self.frame[self.x])

    def metric(self, *names: str) -> Self:
        """Return the same with these metrics, a panel each."""
        return replace(self, metrics=names)

    def where(self, **kept: Any) -> Self:
        """Keep rows where a column equals a value, one of several, or (None) holds nothing."""
        return replace(self, kept={**self.kept, **kept})

    def add(self, *marks: Mark) -> Self:
        """Return the same with these marks as well."""
        return replace(self, marks=(*self.marks, *marks))

    def scale(self, **scales: Any) -> Self:
        """Return the same with other axes; those of values may be a mapping by metric or panel.

        ``x_log`` and ``y_log`` (True, False; 2 for ticks of x at powers of 2; of rows, also the panels), ``x_title``,
        ``y_title``, ``y_range``, ``y_zero`` (zero is shown). With ``x_free`` and ``y_free`` (True, or of these metrics)
        each panel has separate axes, in a matrix each column its x; the title of x may then be a mapping by panel or
        metric. ``y_cut`` cuts bands that reach much further than the lines. Of rows: ``x_range``, beyond which
        intervals are cut with an arrow, ``x_same`` (True, or lists of the panels that share an axis), and ``row``, the
        height of one in letters.
        """
        for name in scales:
            if name not in SCALES:
                raise UnknownName("scale", name, SCALES)
        check_arguments(**scales)
        return replace(self, scales={**self.scales, **scales})
