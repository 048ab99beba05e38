"""Frame in, figure out: curves with their spread and null, forests of estimates, and grids of maps.

A `Plot` says which columns of a result frame are seen as x, colour and panels; marks added to it say what is drawn of
them, from estimators down to published numbers. What a mark shows stands in the figure's key by construction: the
estimator, its unit of sampling and their number, the kind of null. Label, unit, scale and range come from the metric.

    Plot(frame, color="model").metric("attention_entropy").add(Line("mean"), Band(ci=95, over="input"), Null()).figure()

Every `Plot` is a value: adding to one gives another (as in seaborn.objects, Waskom 2021). A null distribution is always
grey, published numbers are always open diamonds (or a line across) of one colour, and everything else an estimate. A
marker is open where a difference is not significant, and for nothing else.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from workbench.core.errors import InputError
from workbench.figures.composition import Axis, Panel, beside_panels, compose, with_room
from workbench.figures.estimates import input_count, quantity
from workbench.figures.frames import model_label, series_labels, without_provenance
from workbench.figures.marks import (
    NEUTRAL_STYLE,
    Band,
    Dots,
    Line,
    Mark,
    Null,
    Series,
    coloured,
    key_entry,
    says_how_wide,
)
from workbench.figures.measuring import cut, widest
from workbench.figures.theme import WIDTHS, depth_colours, depth_scale, series_style, theme_of
from workbench.figures.variants import LOOKS, in_order, look_of
from workbench.figures.words import NO_DATA, attention_of
from workbench.frames.estimate import null_range
from workbench.frames.metrics import METRICS, Metric

SERIES = "series"  # the column of models with their checkpoints, as `series_labels` names them
TITLES = {
    "layer": "Layer", "rank": "Rank", "epoch": "Epoch", "epsilon": "Budget ε", "severity": "Severity",
    "head": "Head", "depth": "Depth (share of layers)", "seed": "Seed", "step": "Step",
}  # fmt: skip
SCALES = ("x_log", "x_title", "x_free", "y_log", "y_title", "y_range", "y_zero", "y_free", "y_cut")
_ORDERED = ("layer", "rank", "epoch", "severity", "step")  # as colours these run from dark to light
_MOST_COLOURS = 6  # beyond so many, ordered colours have a bar in the place of a key


@dataclass(frozen=True)
class Plot:
    """Curves of one or several metrics against a column: what is seen as colour, and what has a panel of its own.

    Args:
        frame: a result frame, of `workbench.analyze` and its like.
        x: the column along the axis; "depth" is the layer as a share of the model's layers.
        color: the column whose values have a colour each; by default "series": the models, with their checkpoint where
            a model has several, and if asked for by this name with what was standardised.
        panel: the column whose values have a panel each.
        dash: the column whose values have a dash and a marker each.
        names: what the key and the titles say of a value or a metric, and in this order: {"resid_post": "after the
            block"}.
    """

    frame: pd.DataFrame
    x: str = "layer"
    color: str | None = None
    panel: str | None = None
    dash: str | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    metrics: tuple[str, ...] = ()
    marks: tuple[Mark, ...] = ()
    kept: Mapping[str, Any] = field(default_factory=dict)
    scales: Mapping[str, Any] = field(default_factory=dict)

    def metric(self, *names: str) -> Plot:
        """The same with these metrics, a panel each."""
        return replace(self, metrics=names)

    def where(self, **kept: Any) -> Plot:
        """The same of those rows alone in which a column holds a value, one of several, or (None) nothing."""
        return replace(self, kept={**self.kept, **kept})

    def add(self, *marks: Mark) -> Plot:
        """The same with these marks as well."""
        return replace(self, marks=(*self.marks, *marks))

    def scale(self, **scales: Any) -> Plot:
        """The same with other axes; those of y may be a mapping by metric.

        ``x_log`` and ``y_log`` (True, False; 2 for ticks of x at powers of 2), ``x_title``, ``y_title``, ``y_range``,
        ``y_zero`` (zero is shown). With ``x_free`` and ``y_free`` (True, or of these metrics) each panel has axes of
        its own, in a matrix each column its x; the title of x may then be a mapping by panel or metric. ``y_cut`` cuts
        bands that reach much further than the lines.
        """
        unknown = set(scales) - {*SCALES}
        if unknown:
            raise InputError(f"no scale {', '.join(unknown)}; there are {', '.join(SCALES)}")
        return replace(self, scales={**self.scales, **scales})

    def figure(
        self,
        width: str = "column",
        height: float | None = None,
        columns: int | None = None,
        labels: Literal["auto", "ends", "key", "bar"] = "auto",
        empty: str = NO_DATA,
    ) -> go.Figure:
        """The figure, at a printed width of `workbench.figures.theme.WIDTHS`, or "slides".

        Args:
            height: in pixels of 1/96 in; by default panels have a usual shape.
            columns: panels in a row.
            labels: whether colours are named at the ends of their lines, in the key, or (of layers, ranks and the like)
                by a bar; "auto" takes a bar for many of these, the ends of one panel's lines where there is room.
            empty: what a panel without data says.
        """
        return _Drawing(self).figure(width, height, columns, labels, empty)

    def _repr_mimebundle_(self, *args: Any, **kwargs: Any) -> Any:
        return self.figure()._repr_mimebundle_(*args, **kwargs)


def plot(
    frame: pd.DataFrame, *metrics: str, x: str | None = None, color: str | None = None, panel: str | None = None,
    width: str = "column", **kept: Any,
) -> go.Figure:  # fmt: skip
    """Metrics of a frame by layer (or rank, epoch …): mean, its interval over inputs, heads as dots, null distribution.

    What the frame does not hold is not drawn. Columns given by name keep the rows with that value. For anything else
    compose a `Plot`.

    Raises:
        InputError: no such rows, or several ways of measuring a metric that the figure does not tell apart.
    """
    names = metrics or tuple(dict.fromkeys(frame["metric"].dropna()))
    x = x or next((name for name in TITLES if name in frame and frame[name].nunique() > 1), "layer")
    drawn = Plot(frame, x, color, panel).metric(*names).where(**kept)
    heads = [] if "head" in (x, color, panel) or color == "layer" else [Dots()]
    return drawn.add(Null(), Band(), Line(), *heads).figure(width)


class _Drawing:
    """One `Plot` on its way to a figure."""

    def __init__(self, plot: Plot) -> None:
        if not plot.metrics:
            raise InputError("the plot has no metric; choose with .metric('attention_entropy', …)")
        self.plot, self.inputs, self.null_range = plot, input_count(plot.frame), null_range(plot.frame)
        frame = without_provenance(plot.frame)
        if plot.x == "depth":
            deepest = frame.groupby("model")["layer"].transform("max").clip(lower=1)
            frame = frame.assign(depth=frame["layer"].astype(float) / deepest.astype(float))
        self.color = plot.color or (None if plot.panel in ("model", SERIES) else SERIES)
        seen = [plot.x, plot.color, plot.panel, plot.dash]
        seen += ["model", "checkpoint"] if "model" in frame else []
        seen += ["standardize"] if SERIES in seen else []
        apart = [name for name in dict.fromkeys(seen) if name and name in frame]
        self.rows = {metric: quantity(frame, metric, plot.kept, apart) for metric in plot.metrics}
        if SERIES in (self.color, plot.panel) and SERIES not in frame:
            labels = series_labels(pd.concat([*self.rows.values()], ignore_index=True)).to_numpy()
            for metric, rows in self.rows.items():
                self.rows[metric] = rows.assign(series=labels[: len(rows)])
                labels = labels[len(rows) :]
        self.units = {metric: _unit(metric, rows) for metric, rows in self.rows.items()}
        everything = pd.concat([*self.rows.values()])
        self.colours = self._values(self.color, everything)
        self.panels, self.dashes = self._values(plot.panel, everything), self._values(plot.dash, everything)
        self.labels = {value: self._label(self.color, value, everything) for value in self.colours}
        self.ordered = self.color in _ORDERED
        self.styles = self._styles()

    def _values(self, column: str | None, rows: pd.DataFrame) -> list[Any]:
        if column is None:
            return [None]
        held = list(rows[column].dropna().unique())
        if column == "attention" and set(held) <= set(LOOKS):
            return in_order(held)
        if column in _ORDERED:
            return sorted(held)
        return [*dict.fromkeys(value for value in (*self.plot.names, *held) if value in held)]

    def _label(self, column: str | None, value: Any, rows: pd.DataFrame) -> str:
        if value is None or column is None:
            return ""
        if value in self.plot.names:
            return self.plot.names[value]
        if column == SERIES:
            return str(value)
        if column == "model":
            return model_label(rows, value)
        if column == "attention" and value in LOOKS:
            return LOOKS[value].label
        return f"{column} {value}" if column in (*_ORDERED, "head") else str(value).replace("_", " ")

    def _styles(self) -> dict[Any, dict[str, Any]]:
        if self.color == "attention" and set(self.colours) <= set(LOOKS):
            return {value: look_of(value).style for value in self.colours}
        if self.ordered:
            shades = zip(self.colours, depth_colours(len(self.colours)), strict=True)
            plain = {"symbol": "circle", "size": 4, "line": {"width": 0}}
            return {
                value: {"line": {"color": shade, "dash": "solid"}, "marker": {**plain, "color": shade}}
                for value, shade in shades
            }
        styles = {value: series_style(number) for number, value in enumerate(self.colours)}
        known = {value: attention_of(str(value)) for value in self.colours}
        if all(known.values()) and len({*known.values()}) == len(known) > 1:
            # models of the records look alike in all figures
            styles = {value: look_of(name).style for value, name in known.items()}
        return {value: _dashed(style, 0) for value, style in styles.items()} if self.plot.dash else styles

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
                words = self.labels[value], self._label(self.plot.dash, mark, own)
                label = ", ".join(filter(None, words))
                style = self.styles[value] if mark is None else _dashed(self.styles[value], number)
                sampled = self.units[metric], self.inputs, self.null_range
                found.append(Series(own, self.plot.x, label, style, str(value), *sampled))
        return found

    def figure(
        self, width: str, height: float | None, columns: int | None, labels: str, empty: str
    ) -> go.Figure:
        parts = {cell: self.series(*cell) for cell in itertools.product(self.plot.metrics, self.panels)}
        parts = {cell: own for cell, own in parts.items() if own or len(self.plot.metrics) > 1}
        for bars in (mark for mark in self.plot.marks if isinstance(mark, Band) and mark.bars):
            parts = {cell: _side_by_side(own, bars) for cell, own in parts.items()}
        drawn = [series for own in parts.values() for series in own]
        marks = sorted(self.plot.marks or (Line(),), key=lambda mark: mark.depth)
        marks = [mark.within([*parts.values()]) for mark in marks]
        made = {cell: [[*mark.together(own)] if own else [] for mark in marks] for cell, own in parts.items()}
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
            words = self._label(self.plot.dash, mark, drawn[0].rows)
            key += [key_entry(words, mode="lines+markers", **_dashed(style, number))] * bool(words)
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
                alike, unit = [own], _unit(metric, parts[cell][0].rows)
            y = self._y_axis(metric, [self._reach(one, metric) for one in alike], unit)
            titled = len(self.panels) > 1 and (not matrix or metric == self.plot.metrics[0])
            panels.append(Panel(
                own, self._x_axis(across_from, cell), y,
                self._label(self.plot.panel, panel, self.rows[metric]) if titled else "",
                shapes=shapes, ends=at_ends.get(cell, ()), notes=() if own else (_in_the_middle(empty),),
            ))  # fmt: skip
        for number, mark in reversed([*enumerate(marks)]):
            drawn_on = zip((by_mark[number] for by_mark in made.values()), panels, strict=True)
            bands = [_widest(one, panel.y) for own, panel in drawn_on for one in own if one.fill == "toself"]
            key += [says_how_wide(entry, bands) for entry in mark.key(drawn, style)]
        together = (len(self.plot.metrics) == 1 or len(self.panels) > 1) and not apart
        fig = compose(
            panels, across, key, width=width, height=height, right=theme_of(width).font * 4.2 if bar else 0,
            shared=("c" * matrix if free else "x") + "y" * together,
            letters=len(self.plot.metrics) > 1 and len(self.panels) == 1,
        )  # fmt: skip
        return _add_bar(fig, self.colours, TITLES.get(str(self.color), str(self.color))) if bar else fig

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
        held = self.rows[cell[0]][self.plot.x].dropna().astype(float)
        # of the rows: what is drawn may stand aside of its place
        whole = bool((held % 1 == 0).all()) and not log
        title = self.plot.scales.get("x_title", {})
        if isinstance(title, Mapping):
            usual = TITLES.get(self.plot.x, self.plot.x.replace("_", " ").capitalize())
            title = next((title[one] for one in cell if one in title), usual)
        return with_room(Axis(title, places.min(), places.max(), log=log, whole=whole), 0.03)

    def _reach(self, traces: Sequence[go.Scatter], metric: str) -> tuple[float, float]:
        """What an axis holds: all that is drawn or, if it is cut, little more than the lines."""
        log = bool(self._scale("y_log", metric))
        least, most = _reach(traces, log)
        if not self._scale("y_cut", metric):
            return least, most
        low, high = _reach([one for one in traces if one.fill is None], log)
        place = math.log10 if log else float
        span = place(high) - place(low)
        if place(most) - place(least) < 1.6 * span:
            return least, most
        room = 10 ** (0.25 * span) if log else 0.25 * span
        low, high = (low / room, high * room) if log else (low - room, high + room)
        return max(low, least), min(high, most)

    def _scale(self, name: str, metric: str) -> Any:
        """A scale of y, which may be a mapping by metric."""
        value = self.plot.scales.get(name)
        return value.get(metric) if isinstance(value, Mapping) else value

    def _y_axis(self, metric: str, reaches: Sequence[tuple[float, float]], unit: str) -> Axis:
        known = METRICS[metric] if metric in METRICS else Metric(metric, metric, "")
        known = replace(known, unit=unit, label=self.plot.names.get(metric, known.label))
        names = [name for name in self.plot.scales if name[:2] == "y_" and name != "y_free"]
        return metric_axis(known, reaches, **{name[2:]: self._scale(name, metric) for name in names})


def _in_the_middle(text: str) -> dict[str, Any]:
    return {"text": text, "x": 0.5, "y": 0.5, "xref": "domain", "yref": "domain"}


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


def _dashed(style: dict[str, Any], number: int) -> dict[str, Any]:
    """A colour's style for one of several dashes: of the first its own marker, of others one for all colours."""
    symbol = (style["marker"]["symbol"], "x", "star")[number % 3]
    return {
        "line": {**style["line"], "dash": ("solid", "dash", "dot")[number % 3]},
        "marker": {**style["marker"], "symbol": symbol, "size": 5},
    }


def _unit(metric: str, rows: pd.DataFrame) -> str:
    """The unit of these values: the rows' own where all have the same, since distances are in patches or tokens."""
    own = rows["unit"].dropna().unique() if "unit" in rows else []
    return str(own[0]) if len(own) == 1 else METRICS[metric].unit if metric in METRICS else ""


def metric_axis(
    metric: Metric,
    reaches: Sequence[tuple[float, float]],
    log: bool | None = None,
    range: tuple[float, float] | None = None,
    title: str | None = None,
    zero: bool | None = None,
    cut: bool | None = None,
) -> Axis:
    """The axis of a metric that holds these values: its title with unit and better direction, its scale, its ends."""
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
    whole = metric.high - max(metric.low, min(low, 0))
    if not log and math.isfinite(metric.low) and high - low > 0.6 * whole:
        high = max(high, metric.high)
    return with_room(Axis(title, low, high, log=log, cut=bool(cut)))


def _reach(traces: Sequence[go.Scatter], log: bool = False) -> tuple[float, float]:
    """The least and the largest value that traces draw; for a log axis of those above 0, where there are any."""
    values = [float(y) for trace in traces for y in trace.y if y is not None and np.isfinite(float(y))]
    if not values:
        raise InputError("no value is finite: there is nothing to draw")
    above = [value for value in values if value > 0] if log else []
    return min(above or values), max(above or values)


def _widest(band: go.Scatter, axis: Axis) -> float:
    """The widest place of a band as a share of the axis."""
    ends = [axis.place(max(float(y), axis.low) if axis.log else float(y)) for y in band.y]
    half = len(ends) // 2
    return max(abs(ends[place] - ends[2 * half - 1 - place]) for place in range(half))


def _add_bar(fig: go.Figure, values: Sequence[Any], title: str) -> go.Figure:
    """A colour bar for ordered colours: it stays readable at 48 layers, where a key would not."""
    fig.add_trace(coloured(values[0], "coloraxis"))
    bar = {"title": {"text": title, "side": "right"}, "nticks": 6, **beside_panels(fig)}
    ends = {"cmin": values[0], "cmax": values[-1]}
    return fig.update_layout(coloraxis={"colorscale": depth_scale(), "colorbar": bar, **ends})
