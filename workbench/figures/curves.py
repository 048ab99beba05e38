"""Curves: values along x, a colour for each series, a panel for each metric or value of a column."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from workbench.core.errors import InputError
from workbench.figures.composition import Axis, Panel, beside_panels, compose, in_the_middle, with_room
from workbench.figures.drawing import SERIES, Drawing, dashed, entries, metric_axis, unit_of
from workbench.figures.estimates import quantity
from workbench.figures.frames import series_labels, without_provenance
from workbench.figures.marks import NEUTRAL_STYLE, Band, Line, Series, coloured, key_entry
from workbench.figures.measuring import cut, widest
from workbench.figures.theme import WIDTHS, depth_scale, theme_of
from workbench.figures.words import COLUMNS
from workbench.frames.metrics import METRICS, Metric

if TYPE_CHECKING:
    from workbench.figures.grammar import Plot

_USUAL_ROOM = 160  # pixels along y
_MOST_COLOURS = 6  # beyond so many, ordered colours have a bar instead of a key


class Curves(Drawing):
    """A `Plot` whose values run up, against a column along x."""

    default = Line()

    def __init__(self, plot: Plot) -> None:
        if not plot.metrics:
            raise InputError("the plot has no metric; choose with .metric('attention_entropy', …)")
        frame = without_provenance(plot.frame)
        if plot.x == "depth":
            deepest = frame.groupby("model")["layer"].transform("max").clip(lower=1)
            frame = frame.assign(depth=frame["layer"].astype(float) / deepest.astype(float))
        color = plot.color or (None if plot.panel in ("model", SERIES) else SERIES)
        columns = [str(plot.x), plot.color, plot.panel, plot.dash]
        columns += ["model", "checkpoint"] if "model" in frame else []
        columns += ["standardize"] if SERIES in columns else []
        apart = [name for name in dict.fromkeys(columns) if name and name in frame]
        self.x = str(plot.x)
        rows = {metric: quantity(frame, metric, plot.kept, apart) for metric in plot.metrics}
        if SERIES in (color, plot.panel) and SERIES not in frame:
            labels = series_labels(pd.concat([*rows.values()], ignore_index=True)).to_numpy()
            for metric, held in rows.items():
                rows[metric], labels = held.assign(series=labels[: len(held)]), labels[len(held) :]
        super().__init__(plot, rows, color)
        self.panels, self.dashes = self.values(plot.panel), self.values(plot.dash)

    def series(self, metric: str, panel: Any) -> list[Series]:
        """The series of one panel, in the order of their colours."""
        rows = self.rows[metric]
        if self.plot.panel is not None:
            rows = rows[rows[self.plot.panel] == panel]
        found = []
        for value, (number, mark) in itertools.product(self.colours, enumerate(self.dashes)):
            own = rows if value is None else rows[rows[self.color] == value]
            own = own if mark is None else own[own[self.plot.dash] == mark]
            if len(own):
                words = self.labels[value], self.label(self.plot.dash, mark, own)
                label = ", ".join(filter(None, words))
                style = self.styles[value] if mark is None else dashed(self.styles[value], number)
                sampled = self.units[metric], self.inputs, self.null_range
                found.append(Series(own, self.x, label, style, str(value), *sampled))
        return found

    def figure(
        self, width: str, height: float | None, columns: int | None, labels: str, empty: str
    ) -> go.Figure:
        parts = {cell: self.series(*cell) for cell in itertools.product(self.plot.metrics, self.panels)}
        parts = {cell: own for cell, own in parts.items() if own or len(self.plot.metrics) > 1}
        for bars in (mark for mark in self.plot.marks if isinstance(mark, Band) and mark.bars):
            parts = {cell: _side_by_side(own, bars) for cell, own in parts.items()}
        drawn = [series for own in parts.values() for series in own]
        marks = self.layers([*parts.values()])
        made = {cell: [[*mark.together(own)] if own else [] for mark in marks] for cell, own in parts.items()}
        if not any(itertools.chain.from_iterable([*made.values()])):
            raise InputError(
                "the marks draw nothing of this frame; add Line(), which draws every value's mean"
            )
        traces = {
            cell: [trace.update(showlegend=False) for own in by_mark for trace in own]
            for cell, by_mark in made.items()
        }
        several = len(self.colours) > 1
        bar = several and self.ordered and (labels == "bar" or len(self.colours) > _MOST_COLOURS)
        at_ends = self._ends(parts, labels, width) if several and not bar else {}
        named = self.colours if several and not bar and not at_ends else []
        key = [self._colour_entry(value, drawn) for value in named]
        style = NEUTRAL_STYLE if several else drawn[0].style
        for number, mark in enumerate(self.dashes):
            words = self.label(self.plot.dash, mark, drawn[0].rows)
            key += [key_entry(words, mode="lines+markers", **dashed(style, number))] * bool(words)
        across = columns or self._columns(len(parts), width)
        matrix = len(self.panels) > 1 and across == len(self.panels)
        free, apart = (self.plot.scales.get(name, False) for name in ("x_free", "y_free"))
        shapes = [shape for mark in marks for shape in mark.shapes()]
        panels = []
        for cell, own in traces.items():
            metric, panel = cell
            across_from = [
                one for at, one in traces.items() if not free or at == cell or (matrix and at[1] == panel)
            ]
            alike, unit = [one for at, one in traces.items() if one and at[0] == metric], self.units[metric]
            if own and (apart if isinstance(apart, bool) else metric in apart):
                alike, unit = [own], unit_of(metric, parts[cell][0].rows)
            y = self._y_axis(metric, [self._reach(one, metric) for one in alike], unit)
            titled = len(self.panels) > 1 and (not matrix or metric == self.plot.metrics[0])
            panels.append(Panel(
                own, self._x_axis(across_from, cell), y,
                self.label(self.plot.panel, panel, self.rows[metric]) if titled else "",
                shapes=shapes, ends=at_ends.get(cell, ()), notes=() if own else (in_the_middle(empty),),
            ))  # fmt: skip
        axes = [panel.y for panel in panels]
        for number in reversed(range(len(marks))):
            parts_drawn = [by_mark[number] for by_mark in made.values()]
            key += entries(marks[number], parts_drawn, axes, drawn, style, _USUAL_ROOM)
        together = (len(self.plot.metrics) == 1 or len(self.panels) > 1) and not apart
        fig = compose(
            panels, across, key, width=width, height=height, right=theme_of(width).font * 4.2 if bar else 0,
            shared=("c" * matrix if free else "x") + "y" * together,
            letters=len(self.plot.metrics) > 1 and len(self.panels) == 1,
        )  # fmt: skip
        return _add_bar(fig, self.colours, COLUMNS.get(str(self.color), str(self.color))) if bar else fig

    def _columns(self, count: int, width: str) -> int:
        if len(self.panels) > 1 and len(self.plot.metrics) > 1:
            return len(self.panels)
        room = 2 if WIDTHS.get(width, 1280) < 400 else 3 if len(self.panels) == 1 else 4
        room = 1 if room == 2 and len(self.panels) == 1 else room
        return -(-count // -(-count // room))

    def _colour_entry(self, value: Any, drawn: Sequence[Series]) -> go.Scatter:
        bare = all(not mark.markers for mark in self.plot.marks if isinstance(mark, Line))
        bare = bare or all(series.many for series in drawn if series.group == str(value))
        mode = "lines" if bare else "lines+markers"
        return key_entry(self.labels[value], mode=mode, legendgroup=str(value), **self.styles[value])

    def _ends(
        self, parts: Mapping[Any, list[Series]], labels: str, width: str
    ) -> dict[Any, list[tuple[str, float, str]]]:
        """The names of the colours at the ends of one panel's lines; empty where the key names them."""
        lines = [mark for mark in self.plot.marks if isinstance(mark, Line)]
        if labels == "key" or not lines or (labels == "auto" and len(parts) > 1):
            return {}
        font, room = theme_of(width).font, 0.32 * theme_of(width).widths[width]
        last_places = {series.rows[series.x].max() for own in parts.values() for series in own}
        crowded = len(self.colours) < 3 or widest(self.labels.values(), font) > room
        apart = len(last_places) > 1  # a name would stand far from its line's end
        if labels == "auto" and (crowded or apart):
            return {}
        words = {str(value): cut(label, room, font) for value, label in self.labels.items()}
        found: dict[Any, list[tuple[str, float, str]]] = {}
        for cell, own in parts.items():
            first = {series.group: series for series in reversed(own)}  # the key names the dashes
            for group, series in reversed(first.items()):
                level = series.sample().estimate(lines[0].estimator)["value"].iloc[-1]
                found.setdefault(cell, []).append((words[group], level, series.colour))
        return found

    def _x_axis(self, traces: Sequence[Sequence[go.Scatter]], cell: Sequence[Any]) -> Axis:
        places = np.asarray([float(x) for own in traces for trace in own for x in trace.x if x is not None])
        log = self.plot.scales.get("x_log", False) if (places > 0).any() else False
        places = places[places > 0] if log else places
        held = self.rows[cell[0]][self.x].dropna().astype(float)
        # of the rows: what is drawn may stand aside of its place
        whole = bool((held % 1 == 0).all()) and not log
        title = self.plot.scales.get("x_title", {})
        if isinstance(title, Mapping):
            usual = COLUMNS.get(self.x, self.x.replace("_", " ").capitalize())
            title = next((title[one] for one in cell if one in title), usual)
        return with_room(Axis(title, places.min(), places.max(), log=log, whole=whole), 0.03)

    def _reach(self, traces: Sequence[go.Scatter], metric: str) -> tuple[float, float]:
        """What an axis holds: all that is drawn or, if it is cut, little more than the lines."""
        log = bool(self.scale("y_log", metric))
        least, most = _reach(traces, log)
        if not self.scale("y_cut", metric):
            return least, most
        low, high = _reach([one for one in traces if one.fill is None], log)
        place = math.log10 if log else float
        span = place(high) - place(low)
        if place(most) - place(least) < 1.6 * span:
            return least, most
        room = 10 ** (0.25 * span) if log else 0.25 * span
        low, high = (low / room, high * room) if log else (low - room, high + room)
        return max(low, least), min(high, most)

    def _y_axis(self, metric: str, reaches: Sequence[tuple[float, float]], unit: str) -> Axis:
        known = METRICS[metric] if metric in METRICS else Metric(metric, metric, "")
        known = replace(known, unit=unit, label=self.plot.names.get(metric, known.label))
        names = [name for name in self.plot.scales if name[:2] == "y_" and name != "y_free"]
        return metric_axis(known, reaches, **{name[2:]: self.scale(name, metric) for name in names})


def _side_by_side(panel: Sequence[Series], bars: Band) -> list[Series]:
    """The series of a panel next to each other where several have bars, within a third of the way between places.

    Where only the last place has bars, these stand after it, and nothing else moves.
    """
    found = [ends[ends["high"] > ends["low"]] for ends in map(bars.ends, panel)]
    if sum(map(bool, map(len, found))) < 2:
        return [*panel]
    places = sorted({float(place) for series in panel for place in series.rows[series.x].dropna()})
    at = {float(place) for series, ends in zip(panel, found, strict=True) for place in ends[series.x]}
    if at == {places[-1]} and len(places) > 1:
        step = 0.015 * (places[-1] - places[0])
        return [replace(series, after=step * (number + 1)) for number, series in enumerate(panel)]
    apart = min((after - before for before, after in itertools.pairwise(places)), default=1.0) / 3
    return [
        replace(series, aside=apart * ((number + 0.5) / len(panel) - 0.5))
        for number, series in enumerate(panel)
    ]


def _reach(traces: Sequence[go.Scatter], log: bool = False) -> tuple[float, float]:
    """The least and the largest value that traces draw; for a log axis of those above 0, where there are any."""
    values = [float(y) for trace in traces for y in trace.y if y is not None and np.isfinite(float(y))]
    if not values:
        raise InputError("no value is finite: there is nothing to draw")
    above = [value for value in values if value > 0] if log else []
    return min(above or values), max(above or values)


def _add_bar(fig: go.Figure, values: Sequence[Any], title: str) -> go.Figure:
    """A colour bar for ordered colours: it stays readable at 48 layers, where a key would not."""
    fig.add_trace(coloured(values[0], "coloraxis"))
    bar = {"title": {"text": title, "side": "right"}, "nticks": 6, **beside_panels(fig)}
    ends = {"cmin": values[0], "cmax": values[-1]}
    return fig.update_layout(coloraxis={"colorscale": depth_scale(), "colorbar": bar, **ends})
