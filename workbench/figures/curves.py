"""Curves: values along x, a colour for each series, a panel for each metric or value of a column."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from workbench.core.errors import InputError
from workbench.figures.composition import Axis, Panel, beside_panels, compose, in_the_middle, with_room
from workbench.figures.drawing import Drawing, dashed, entries, metric_axis, unit_of
from workbench.figures.estimates import quantity
from workbench.figures.frames import series_labels, without_provenance
from workbench.figures.marks import NEUTRAL_STYLE, Band, Line, Series, coloured, key_entry
from workbench.figures.specification import SERIES, Specification
from workbench.figures.text_widths import cut, widest
from workbench.figures.theme import WIDTHS, depth_scale, theme_of
from workbench.figures.words import COLUMNS
from workbench.frames.metric import METRICS, Metric

_USUAL_ROOM = 160  # pixels along y
_ASIDE = 0.4  # of the way between two places, that bars of several series take
_MOST_COLOURS = 6  # beyond so many, ordered colours have a bar instead of a key


class Curves(Drawing):
    """A `Plot` whose values run up, against a column along x."""

    default = Line()

    def __init__(self, plot: Specification) -> None:
        if not plot.metrics:
            raise InputError("the plot has no metric; choose with .metric('attention_entropy', …)")
        frame = without_provenance(plot.frame)
        if plot.x == "depth":
            deepest = frame.groupby("model")["layer"].transform("max").clip(lower=1)
            frame = frame.assign(depth=frame["layer"].astype(float) / deepest.astype(float))
        color = plot.color or (None if plot.panel in ("model", SERIES) else SERIES)
        if "checkpoint" not in (color, plot.panel, plot.dash) and _are_steps(frame, str(plot.x)):
            frame = frame.drop(columns="checkpoint")
        columns = [str(plot.x), plot.color, plot.panel, plot.dash]
        columns += ["model", "checkpoint"] if "model" in frame else []
        columns += ["standardize"] if SERIES in columns else []
        kept_columns = [name for name in dict.fromkeys(columns) if name and name in frame]
        self.x = str(plot.x)
        rows = {metric: quantity(frame, metric, plot.kept, kept_columns) for metric in plot.metrics}
        if SERIES in (color, plot.panel) and SERIES not in frame:
            labels = series_labels(pd.concat([*rows.values()], ignore_index=True)).to_numpy()
            for metric, metric_rows in rows.items():
                rows[metric], labels = (
                    metric_rows.assign(series=labels[: len(metric_rows)]),
                    labels[len(metric_rows) :],
                )
        super().__init__(plot, rows, color)
        self.panels, self.dashes = self.values(plot.panel), self.values(plot.dash)

    def series(self, metric: str, panel: Any) -> list[Series]:
        """The series of one panel, in the order of their colours."""
        rows = self.rows[metric]
        if self.plot.panel is not None:
            rows = rows[rows[self.plot.panel] == panel]
        series = []
        for value, (number, mark) in itertools.product(self.colours, enumerate(self.dashes)):
            selected = rows if value is None else rows[rows[self.color] == value]
            selected = selected if mark is None else selected[selected[self.plot.dash] == mark]
            if len(selected):
                words = self.labels[value], self.label(self.plot.dash, mark, selected)
                label = ", ".join(filter(None, words))
                style = self.styles[value] if mark is None else dashed(self.styles[value], number)
                sampled = self.units[metric], self.inputs, self.null_range
                series.append(Series(selected, self.x, label, style, str(value), *sampled))
        return series

    def figure(
        self, width: str | float, height: float | None, columns: int | None, labels: str, empty: str
    ) -> go.Figure:
        parts = {cell: self.series(*cell) for cell in itertools.product(self.plot.metrics, self.panels)}
        parts = {cell: members for cell, members in parts.items() if members or len(self.plot.metrics) > 1}
        for bars in (mark for mark in self.plot.marks if isinstance(mark, Band) and mark.bars):
            parts = {cell: _side_by_side(members, bars) for cell, members in parts.items()}
        drawn = [series for members in parts.values() for series in members]
        marks = self.layers([*parts.values()])
        drawings = {
            cell: [[*mark.together(members)] if members else [] for mark in marks]
            for cell, members in parts.items()
        }
        if not any(itertools.chain.from_iterable([*drawings.values()])):
            raise InputError(
                "the marks draw nothing of this frame; add Line(), which draws every value's mean"
            )
        traces = {
            cell: [trace.update(showlegend=False) for members in by_mark for trace in members]
            for cell, by_mark in drawings.items()
        }
        several = len(self.colours) > 1
        bar = several and self.ordered and (labels == "bar" or len(self.colours) > _MOST_COLOURS)
        at_ends = self._ends(parts, labels, width) if several and not bar else {}
        named = self.colours if several and not bar and not at_ends and labels != "none" else []
        key = [self._colour_entry(value, drawn) for value in named]
        style = NEUTRAL_STYLE if several else drawn[0].style
        for number, mark in enumerate(self.dashes):
            words = self.label(self.plot.dash, mark, drawn[0].rows)
            key += [key_entry(words, mode="lines+markers", **dashed(style, number))] * bool(words)
        across = columns or self._columns(len(parts), width)
        matrix = len(self.panels) > 1 and across == len(self.panels)
        free, free_y = (self.plot.scales.get(name, False) for name in ("x_free", "y_free"))
        shapes = [shape for mark in marks for shape in mark.shapes()]
        panels = []
        for cell, members in traces.items():
            metric, panel = cell
            across_from = [
                cell_traces
                for at, cell_traces in traces.items()
                if not free or at == cell or (matrix and at[1] == panel)
            ]
            alike, unit = (
                [cell_traces for at, cell_traces in traces.items() if cell_traces and at[0] == metric],
                self.units[metric],
            )
            if members and (free_y if isinstance(free_y, bool) else metric in free_y):
                alike, unit = [members], unit_of(metric, parts[cell][0].rows)
            y = self._y_axis(metric, [self._reach(cell_traces, metric) for cell_traces in alike], unit)
            titled = len(self.panels) > 1 and (not matrix or metric == self.plot.metrics[0])
            panels.append(Panel(
                members, self._x_axis(across_from, cell), y,
                self.label(self.plot.panel, panel, self.rows[metric]) if titled else "",
                shapes=shapes, ends=at_ends.get(cell, ()), notes=() if members else (in_the_middle(empty),),
            ))  # fmt: skip
        axes = [panel.y for panel in panels]
        for number in reversed(range(len(marks))):
            parts_drawn = [by_mark[number] for by_mark in drawings.values()]
            key += entries(marks[number], parts_drawn, axes, drawn, style, _USUAL_ROOM)
        together = (len(self.plot.metrics) == 1 or len(self.panels) > 1) and not free_y
        fig = compose(
            panels, across, key, width=width, height=height, right=theme_of(width).font * 4.2 if bar else 0,
            shared=("c" * matrix if free else "x") + "y" * together,
            letters=len(self.plot.metrics) > 1 and len(self.panels) == 1,
        )  # fmt: skip
        return _add_bar(fig, self.colours, COLUMNS.get(str(self.color), str(self.color))) if bar else fig

    def _columns(self, count: int, width: str | float) -> int:
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
        self, parts: Mapping[Any, list[Series]], labels: str, width: str | float
    ) -> dict[Any, list[tuple[str, float, str]]]:
        """The names of the colours at the ends of one panel's lines; empty where the key names them."""
        lines = [mark for mark in self.plot.marks if isinstance(mark, Line)]
        if labels in ("key", "none") or not lines or (labels == "auto" and len(parts) > 1):
            return {}
        font, room = theme_of(width).font, 0.32 * theme_of(width).pixels(width)
        last_places = {
            series.rows[series.x].max() for cell_series in parts.values() for series in cell_series
        }
        crowded = len(self.colours) < 3 or widest(self.labels.values(), font) > room
        uneven = len(last_places) > 1  # a name would stand far from its line's end
        if labels == "auto" and (crowded or uneven):
            return {}
        words = {str(value): cut(label, room, font) for value, label in self.labels.items()}
        ends: dict[Any, list[tuple[str, float, str]]] = {}
        for cell, cell_series in parts.items():
            first = {series.group: series for series in reversed(cell_series)}  # the key names the dashes
            for group, series in reversed(first.items()):
                level = series.sample().estimate(lines[0].estimator)["value"].iloc[-1]
                ends.setdefault(cell, []).append((words[group], level, series.colour))
        return ends

    def _x_axis(self, traces: Sequence[Sequence[go.Scatter]], cell: Sequence[Any]) -> Axis:
        places = np.asarray(
            [float(x) for cell_traces in traces for trace in cell_traces for x in trace.x if x is not None]
        )
        log = self.plot.scales.get("x_log", False) if (places > 0).any() else False
        places = places[places > 0] if log else places
        x_values = self.rows[cell[0]][self.x].dropna().astype(float)
        # of the rows: what is drawn may stand aside of its place
        integral = (self.x == "layer" or bool((x_values % 1 == 0).all())) and not log
        title = self.plot.scales.get("x_title", {})
        if isinstance(title, Mapping):
            usual = COLUMNS.get(self.x, self.x.replace("_", " ").capitalize())
            title = next((title[key] for key in cell if key in title), usual)
        return with_room(Axis(title, places.min(), places.max(), log=log, whole=integral), 0.03)

    def _reach(self, traces: Sequence[go.Scatter], metric: str) -> tuple[float, float]:
        """Return the reach of an axis: all that is drawn or, if it is cut, little more than the lines."""
        log = bool(self.scale("y_log", metric))
        least, most = _reach(traces, log)
        if not self.scale("y_cut", metric):
            return least, most
        low, high = _reach([trace for trace in traces if trace.fill is None], log)
        transform = math.log10 if log else float
        span = transform(high) - transform(low)
        if transform(most) - transform(least) < 1.6 * span:
            return least, most
        room = 10 ** (0.25 * span) if log else 0.25 * span
        low, high = (low / room, high * room) if log else (low - room, high + room)
        return max(low, least), min(high, most)

    def _y_axis(self, metric: str, reaches: Sequence[tuple[float, float]], unit: str) -> Axis:
        entry = METRICS[metric] if metric in METRICS else Metric(metric, metric, "")
        entry = replace(entry, unit=unit, label=self.plot.names.get(metric, entry.label))
        names = [name for name in self.plot.scales if name[:2] == "y_" and name != "y_free"]
        return metric_axis(entry, reaches, **{name[2:]: self.scale(name, metric) for name in names})


def _are_steps(frame: pd.DataFrame, x: str) -> bool:
    """Return whether each value along x is a checkpoint of its own: a training is one line."""
    if x not in frame or "checkpoint" not in frame:
        return False
    pairs = frame[[x, "checkpoint"]].dropna().drop_duplicates()
    return len(pairs) > 1 and pairs[x].is_unique and pairs["checkpoint"].is_unique


def _side_by_side(panel: Sequence[Series], bars: Band) -> list[Series]:
    """The series of a panel next to each other where several have bars at the same places.

    Where only the last place has bars, these stand after it, and nothing else moves.
    """
    intervals = [ends[ends["high"] > ends["low"]] for ends in map(bars.ends, panel)]
    if sum(map(bool, map(len, intervals))) < 2:
        return [*panel]
    places = sorted({float(position) for series in panel for position in series.rows[series.x].dropna()})
    at = [{*ends[series.x].astype(float)} for series, ends in zip(panel, intervals, strict=True)]
    if {*itertools.chain(*at)} == {places[-1]} and len(places) > 1:
        step = 0.015 * (places[-1] - places[0])
        return [replace(series, after=step * (number + 1)) for number, series in enumerate(panel)]
    width = min((after - before for before, after in itertools.pairwise(places)), default=1.0) * _ASIDE
    crowded = [
        number for number, own in enumerate(at) if own & {*itertools.chain(*at[:number], *at[number + 1 :])}
    ]
    asides = {number: width * ((place + 0.5) / len(crowded) - 0.5) for place, number in enumerate(crowded)}
    return [replace(series, aside=asides.get(number, 0.0)) for number, series in enumerate(panel)]


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
