"""Forests: a row for each model, variant or claim, a panel for each quantity, an estimate with its interval in each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from workbench.core.errors import InputError
from workbench.figures.composition import Axis, Panel, compose, with_room
from workbench.figures.drawing import Drawing, entries, metric_axis
from workbench.figures.estimates import quantity
from workbench.figures.figure_arguments import check_arguments
from workbench.figures.frames import without_provenance
from workbench.figures.marks import (
    NEUTRAL_STYLE,
    PLACE,
    Categories,
    Interval,
    Mark,
    Published,
    Rule,
    Series,
    key_entry,
    lying,
)
from workbench.figures.specification import Specification
from workbench.figures.text_widths import widest
from workbench.figures.theme import PALE, SIZE, WIDTH, theme_of
from workbench.frames.metric import METRICS, Metric

_GRID = {"color": PALE, "width": WIDTH.hair}
_ROW_LINE = {"type": "line", "xref": "domain", "layer": "below", "line": _GRID}
_NEUTRAL = {
    "line": {**NEUTRAL_STYLE["line"], "width": WIDTH.bar}, "marker": {**NEUTRAL_STYLE["marker"], "size": SIZE.row},
}  # fmt: skip
_ORDER: dict[type[Mark], int] = {Interval: 0, Rule: 2}  # in the key


class Forest(Drawing):
    """A `Plot` whose categories stand one below the other, with values along x."""

    default = Interval()

    def __init__(self, plot: Specification) -> None:
        check_arguments(x=plot.x)
        self.titles: Mapping[str, str] = plot.x if isinstance(plot.x, Mapping) else dict.fromkeys(plot.x, "")
        frame, self.column = without_provenance(plot.frame), plot.panel or "metric"
        self.by = (plot.group, str(plot.y))
        if self.column == "metric":
            columns = [name for name in (plot.y, plot.group, plot.color) if name is not None]
            rows = {name: quantity(frame, name, plot.kept, columns) for name in self.titles}
        else:
            rows = {name: frame[frame[self.column] == name] for name in self.titles}
        absent = [name for name, panel_rows in rows.items() if panel_rows.empty]
        if absent:
            values = ", ".join(map(str, frame[self.column].dropna().unique()))
            raise InputError(f"the frame has no {', '.join(absent)} in {self.column}; it holds {values}")
        super().__init__(plot, rows, plot.color or ("attention" if plot.y == "attention" else None))
        self.words: list[str] = []
        self.places = self._places()
        self.interval = next((mark for mark in self.marks if isinstance(mark, Interval)), Interval())
        self.axes: dict[str, Categories] = {}
        self.panels = {name: self._series(name) for name in self.titles}
        self._set_side_by_side()

    def _places(self) -> dict[Any, int]:
        """Return the place of each category from the top, headings included; `words` are what stands there."""
        places: dict[Any, int] = {}
        group, rows = self.plot.group, self.everything
        for head, head_rows in [(None, rows)] if group is None else rows.groupby(group, sort=False):
            if head is not None:
                self.words.append(f"<b>{self.plot.names.get(head, head)}</b>")
            values = [*head_rows[self.plot.y].dropna().unique()]
            if self.plot.y == "attention":
                values = [value for value in self.values("attention") if value in values]
            for value in values:
                places[head, value] = len(self.words)
                self.words.append(self.label(self.plot.y, value))
        return places

    def _series(self, name: str) -> list[Series]:
        """Return the series of one panel, with the places of their categories."""
        rows = self.rows[name]
        heads = [None] * len(rows) if self.plot.group is None else rows[self.plot.group]
        places = [self.places.get(key, -1) for key in zip(heads, rows[self.plot.y], strict=True)]
        rows = rows.assign(**{PLACE: places})
        rows = rows[rows[PLACE] >= 0]
        colours = self.plot.color, self.color
        categories = self.axes[name] = Categories(
            rows, self.column, name, self.by, *colours, self.places, self.words
        )
        panel = []
        for value in self.colours:
            selected = rows if value is None else rows[rows[self.color] == value]
            if len(selected):
                slot, label = value if self.plot.color else None, self.labels[value]
                sampled = self.units[name], self.inputs, self.null_range
                look = self._look(value)
                series = Series(
                    selected,
                    PLACE,
                    label,
                    look,
                    label,
                    *sampled,
                    value=value,
                    slot=slot,
                    categories=categories,
                )
                drawn = self.interval.table(series).dropna(subset=["value"])[PLACE]
                if len(drawn):
                    categories.shown.setdefault(slot, set()).update(drawn)
                panel.append(series)
        return panel

    def _look(self, value: Any) -> dict[str, Any]:
        style = self.styles[value]
        line, marker = {**style["line"], "dash": "solid", "width": WIDTH.bar}, {**style["marker"]}
        if self.plot.color or value is None:
            marker["size"] = SIZE.row
        return {"marker": marker, "line": line}

    def _set_side_by_side(self) -> None:
        """Set colours, and after them each kind of published numbers beside them, side by side in each category."""
        printed = [mark for mark in self.marks if isinstance(mark, Published)]
        several = len(self.colours) > 1 and self.plot.color is not None
        for categories in self.axes.values():
            places = set().union(*categories.shown.values())
            slots: dict[int, dict[Any, None]] = {}
            for slot, positions in categories.shown.items():
                slot_names = {
                    position
                    for mark in printed
                    for position, colour in mark.by_slot(categories)
                    if colour == slot
                }
                for position in positions | slot_names:
                    slots.setdefault(position, {})[slot] = None
            for mark in printed:
                free = [position for position, slot in mark.by_slot(categories) if slot is None]
                if (several or mark.beside) and (free if several else places & {*free}):
                    categories.kinds += 1
                    for position in free:
                        slots.setdefault(position, {})[id(mark)] = None
            step = 0.8 / max(map(len, slots.values()), default=1)
            categories.shifts = {
                position: {
                    slot: (number - (len(slot_names) - 1) / 2) * step
                    for number, slot in enumerate(slot_names)
                }
                for position, slot_names in slots.items()
            }
        most = max(categories.kinds for categories in self.axes.values())
        for categories in self.axes.values():
            categories.kinds = most

    def figure(self, width: str | float, columns: int | None) -> go.Figure:
        font, marks = theme_of(width).font, self.layers([*self.panels.values()])
        drawings = {
            name: [
                [lying(trace.update(showlegend=False)) for trace in mark.together(panel)] for mark in marks
            ]
            for name, panel in self.panels.items()
        }
        panels = self._alike([self._panel(name, traces) for name, traces in drawings.items()])
        panels = [
            replace(panel, notes=[*self._reasons(name, panel.x)])
            for name, panel in zip(drawings, panels, strict=True)
        ]
        several = len(self.colours) if self.plot.color else 1
        row = self.plot.scales.get("row", 1.5 if several == 1 else 0.9 * several + 0.8)
        across = columns or len(panels)
        each = (theme_of(width).pixels(width) - widest(self.words, font)) / across - 3 * font
        return compose(
            panels, across, self._key(marks, drawings, panels, each), width=width, shared="y",
            inner=(len(self.words) + 0.3) * row * font,
        )  # fmt: skip

    def _key(
        self, marks: Sequence[Mark], drawings: Mapping[str, list[list[go.Scatter]]], panels: Sequence[Panel],
        room: float,
    ) -> list[go.Scatter]:  # fmt: skip
        drawn = [series for panel in self.panels.values() for series in panel]
        style = drawn[0].style if self.color is None else _NEUTRAL
        key = [
            key_entry(self.labels[value], mode="markers", **self._look(value))
            for value in (self.colours if self.plot.color else ())
        ]
        axes = [panel.x for panel in panels]
        for number in sorted(range(len(marks)), key=lambda number: _ORDER.get(type(marks[number]), 1)):
            interval_traces = [
                traces[number] if marks[number] is self.interval else [] for traces in drawings.values()
            ]
            key += entries(marks[number], interval_traces, axes, drawn, style, room)
        return key

    def _alike(self, panels: list[Panel]) -> list[Panel]:
        """Return the panels, those of one measure with one axis."""
        same, names = self.plot.scales.get("x_same", ()), [*self.titles]
        for group in [names] if same is True else same:
            axes = {number: panels[number].x for number in map(names.index, group)}
            ends = {"low": min(x.low for x in axes.values()), "high": max(x.high for x in axes.values())}
            for number, x in axes.items():
                panels[number] = replace(panels[number], x=replace(x, **ends))
        return panels

    def _tables(self, name: str) -> Iterator[pd.DataFrame]:
        yield from map(self.interval.table, self.panels[name])

    def _panel(self, name: str, drawings: Sequence[Sequence[go.Scatter]]) -> Panel:
        traces = [trace for mark_traces in drawings for trace in mark_traces]
        values = np.asarray([value for trace in traces for value in _reach(trace)])
        values = values[np.isfinite(values)]
        metrics = self.rows[name].get("metric", pd.Series(dtype=str)).dropna().unique()
        metric = metrics[0] if len(metrics) == 1 else name
        entry = METRICS[metric] if metric in METRICS else Metric(name, name, "")
        log, ends = self.plot.scales.get("x_log"), self.scale("x_range", name)
        log = log if log is None or isinstance(log, bool) else name in log
        if log and (values > 0).any():  # what is at or below 0 has an arrow at the axis' lower end
            values = values[values > 0]
        reach = [(values.min(), values.max())]
        shared = self.plot.scales.get("x_title")
        x = metric_axis(entry, reach, title=shared or self.titles[name] or None, log=log, range=ends)
        x = replace(x, cut=True) if ends else with_room(x, 0.03)  # for the markers
        headed = len(self.places) < len(self.words)  # a grid would go through the headings
        grid = {} if headed else {"showgrid": True, "gridwidth": 0.5, "gridcolor": PALE}
        look = {"ticks": "", "showline": False, **grid}
        y = Axis("", len(self.words) - 0.35, -0.65, names=tuple(self.words), more=look)
        places = self.places.values() if headed else ()
        rows = [{**_ROW_LINE, "x0": 0, "x1": 1, "y0": position, "y1": position} for position in places]
        title = self.titles[name] if shared else ""
        return Panel(traces, x, y, title, shapes=rows)

    def _reasons(self, name: str, x: Axis) -> Iterator[dict[str, Any]]:
        """Yield why a category has no value, once for all colours."""
        reasons = {
            (position, word): None
            for table in self._tables(name) if "finding" in table
            for position, word in zip(table[PLACE], table["finding"], strict=True)
            if not pd.isna(word) and pd.isna(table.loc[table[PLACE] == position, "value"]).all()
        }  # fmt: skip
        levels = [mark.level(self.axes[name]) for mark in self.marks if isinstance(mark, Rule)]
        at = next((x.place(level) for level in levels if np.isfinite(level)), 0.5)  # beside its line
        side = {"xanchor": "left", "xshift": 4} if at <= 0.5 else {"xanchor": "right", "xshift": -4}
        for position, word in reasons:
            yield {
                "text": str(word),
                "x": at,
                "xref": "domain",
                "y": position,
                "bgcolor": "white",
                "borderpad": 0,
                **side,
            }


def _reach(trace: go.Scatter) -> list[float]:
    """Return every x that a trace covers, its error bars included."""
    reach = [float(x) for x in trace.x]
    bars = trace.error_x
    if bars.array is not None:
        down = bars.array if bars.arrayminus is None else bars.arrayminus
        reach += [float(x + up) for x, up in zip(trace.x, bars.array, strict=True)]
        reach += [float(x - less) for x, less in zip(trace.x, down, strict=True)]
    return reach
