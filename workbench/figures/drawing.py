"""The common parts of curves and forests: rows by panel, colours with labels and looks, marks, the key."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from workbench.figures.composition import Axis, with_room
from workbench.figures.estimates import input_count
from workbench.figures.frames import legend_names, model_label
from workbench.figures.marks import Mark, Series
from workbench.figures.specification import SERIES, Specification
from workbench.figures.theme import COLOURS, DASHES, GREY, SIZE, depth_colours, plain_style, series_style
from workbench.figures.variants import LOOKS, in_order, look_of
from workbench.figures.words import NAMES, attention_of
from workbench.frames.estimate import null_range
from workbench.frames.metric import METRICS, Metric

_ORDERED = ("layer", "rank", "epoch", "severity", "step")  # as colours these run from dark to light


class Drawing:
    """One `Plot` on its way to a figure."""

    default: Mark

    def __init__(self, plot: Specification, rows: Mapping[Any, pd.DataFrame], color: str | None) -> None:
        self.plot, self.rows, self.color = plot, rows, color
        self.inputs, self.null_range = input_count(plot.frame), null_range(plot.frame)
        self.units = {name: unit_of(name, panel_rows) for name, panel_rows in rows.items()}
        self.everything = pd.concat([*rows.values()])
        self.colours = self.values(color)
        self.labels = {value: self.label(color, value) for value in self.colours}
        self.ordered = color in _ORDERED
        self.styles = self._styles()
        self.marks: Sequence[Mark] = plot.marks or (self.default,)

    def values(self, column: str | None) -> list[Any]:
        """Return the values of a column in the order of figures."""
        if column is None:
            return [None]
        values = [*self.everything[column].dropna().unique()]
        if column == "attention" and set(values) <= set(LOOKS):
            return in_order(values)
        if column in _ORDERED:
            return sorted(values)
        return [*dict.fromkeys(value for value in (*self.plot.names, *values) if value in values)]

    def label(self, column: str | None, value: Any, rows: pd.DataFrame | None = None) -> str:
        """Return what key, titles and axes say of a value."""
        if value is None or column is None:
            return ""
        if value in self.plot.names:
            return self.plot.names[value]
        if column == SERIES:
            return str(value)
        if column == "model":
            if self.plot.y:
                return legend_names(self.everything["model"].unique())[value]
            return model_label(self.everything if rows is None else rows, value)
        if column == "attention" and value in LOOKS:
            return LOOKS[value].label
        if column in (*_ORDERED, "head"):
            return f"{column} {value}"
        return NAMES.get(value) or str(value).replace("_", " ")

    def _styles(self) -> dict[Any, dict[str, Any]]:
        if self.color == "attention" and (self.plot.color is None or set(self.colours) <= set(LOOKS)):
            return {value: look_of(value).style for value in self.colours}
        if self.ordered:
            shades = zip(self.colours, depth_colours(len(self.colours)), strict=True)
            return {value: plain_style(shade, size=SIZE.small) for value, shade in shades}
        attentions = {value: attention_of(str(value)) for value in self.colours}
        known = {value: name for value, name in attentions.items() if name}
        if len({*known.values()}) == len(known) > 0 and len(attentions) > 1:
            # a mechanism has one colour in all figures; other models have those that none has
            free = [colour for colour in COLOURS if colour not in {look.colour for look in LOOKS.values()}]
            spare = itertools.chain(zip(free, DASHES[1:], strict=False), itertools.repeat((GREY, "solid")))
            others = {value: plain_style(*next(spare)) for value in attentions if value not in known}
            looks = {value: look_of(name).style for value, name in known.items()}
            return {value: (looks | others)[value] for value in attentions}
        styles = {value: series_style(number) for number, value in enumerate(self.colours)}
        return {value: dashed(style, 0) for value, style in styles.items()} if self.plot.dash else styles

    def layers(self, panels: Sequence[Sequence[Series]]) -> list[Mark]:
        """Return the marks for a figure of these panels, from the hindmost to the foremost."""
        return [mark.within(panels) for mark in sorted(self.marks, key=lambda mark: mark.depth)]

    def scale(self, name: str, panel: Any) -> Any:
        """Return a scale, which may be a mapping by panel."""
        value = self.plot.scales.get(name)
        return value.get(panel) if isinstance(value, Mapping) else value


def entries(
    mark: Mark, traces: Sequence[Sequence[go.Scatter]], axes: Sequence[Axis], drawn: Sequence[Series],
    style: dict[str, Any], room: float,
) -> list[go.Scatter]:  # fmt: skip
    """Return the entries of the key of a mark, from its traces in each panel."""
    seen = [(trace, axis) for panel_traces, axis in zip(traces, axes, strict=True) for trace in panel_traces]
    return [mark.visible(entry, seen, room) for entry in mark.key(drawn, style)]


def dashed(style: dict[str, Any], number: int) -> dict[str, Any]:
    """Return a colour's style for one of several dashes: of the first its own marker, of others one for all colours."""
    symbol = (style["marker"]["symbol"], "x", "star")[number % 3]
    return {
        "line": {**style["line"], "dash": ("solid", "dash", "dot")[number % 3]},
        "marker": {**style["marker"], "symbol": symbol, "size": SIZE.dashed},
    }


def unit_of(metric: Any, rows: pd.DataFrame) -> str:
    """Return the unit of values: the rows' own where all have the same, since distances are in patches or tokens."""
    units = rows["unit"].dropna().unique() if "unit" in rows else []
    return str(units[0]) if len(units) == 1 else METRICS[metric].unit if metric in METRICS else ""


def metric_axis(
    metric: Metric,
    reaches: Sequence[tuple[float, float]],
    log: bool | None = None,
    range: tuple[float, float] | None = None,
    title: str | None = None,
    zero: bool | None = None,
    cut: bool | None = None,
) -> Axis:
    """Return the axis of a metric that holds these values: title with unit and better direction, scale, ends."""
    low, high = min(low for low, _ in reaches), max(high for _, high in reaches)
    log = (metric.log and low > 0 and high > 10 * low) if log is None else log and low > 0
    arrow = {"higher": " (↑ better)", "lower": " (↓ better)"}.get(metric.better, "")
    title = metric.axis_title + arrow if title is None else title
    if range is not None:
        return Axis(title, *range, log=log, cut=bool(cut))
    if low == high and not log and math.isfinite(metric.low) and math.isfinite(metric.high):
        low, high = metric.low, metric.high  # one value for all: where it lies is what there is to see
    if zero and not log:
        low, high = min(low, 0.0), max(high, 0.0)
    if not log and metric.low == 0 <= low < 0.5 * high:
        low = 0.0
    span = metric.high - max(metric.low, min(low, 0))
    if not log and math.isfinite(metric.low) and high - low > 0.6 * span:
        high = max(high, metric.high)
    return with_room(Axis(title, low, high, log=log, cut=bool(cut)))
