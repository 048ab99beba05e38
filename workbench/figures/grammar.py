"""Frame in, figure out: curves with their spread and null, forests of estimates, and grids of maps.

A `Plot` says which columns of a result frame are seen as x, colour and panels; marks added to it say what is drawn of
them, from estimators down to published numbers. What a mark shows stands in the figure's key by construction: the
estimator, its unit of sampling and their number, the kind of null. Label, unit, scale and range come from the metric.

    Plot(frame, color="model").metric("attention_entropy").add(Line("mean"), Band(ci=95, over="input"), Null()).figure()

Every `Plot` is a value: adding to one gives another (as in seaborn.objects, Waskom 2021). A null distribution is always
grey, published numbers are always open diamonds of one colour, and everything else is an estimate.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from workbench.core.errors import InputError
from workbench.figures.composition import Axis, Panel, compose, with_room
from workbench.figures.estimates import NULLS, UNITS, Sample, input_count, null_kinds, quantity
from workbench.figures.frames import UNTRAINED, band, series_labels, short_name, without_provenance
from workbench.figures.measuring import cut, widest
from workbench.figures.theme import (
    GREY,
    NULL_BAND,
    PUBLISHED,
    WIDTHS,
    depth_colours,
    depth_scale,
    series_style,
    theme_of,
    translucent,
)
from workbench.figures.variants import LOOKS, in_order, look_of
from workbench.frames.metrics import METRICS, Metric
from workbench.frames.results import RANDOM_WEIGHTS

SERIES = "series"  # the column of models with their checkpoints, as `series_of` names them
NEUTRAL = "#444444"  # of a key's entry that holds for all colours
TITLES = {
    "layer": "Layer", "rank": "Rank", "epoch": "Epoch", "epsilon": "Budget ε", "severity": "Severity",
    "head": "Head", "depth": "Depth (share of layers)", "seed": "Seed", "step": "Step",
}  # fmt: skip
_ORDERED = ("layer", "rank", "epoch", "severity", "step")  # as colours these run from dark to light
_MOST_COLOURS = 6  # beyond so many, ordered colours have a bar in the place of a key


@dataclass(frozen=True)
class Series:
    """The rows of one colour in one panel, and how they look."""

    rows: pd.DataFrame
    x: str
    label: str
    style: dict[str, Any]
    group: str
    unit: str = ""
    inputs: int | None = None

    @property
    def colour(self) -> str:
        return self.style["line"]["color"]

    @property
    def many(self) -> bool:
        """Whether there are so many places that a marker on each would hide the line."""
        return self.rows[self.x].nunique() > 26

    def sample(self, over: str | None = None, *more: str) -> Sample:
        return Sample.of(self.rows, (self.x, *more), over)

    def hover(self, words: str) -> str:
        name = f"{self.label}<br>" if self.label else ""
        return f"{name}{words}<br>{self.x} %{{x}}: %{{y:.4g}} {self.unit}".rstrip() + "<extra></extra>"


@dataclass(frozen=True)
class Mark:
    """Something drawn of every series: its traces, and its entries in the key."""

    depth: ClassVar[int] = 0
    """What lies behind what, from 0."""

    def traces(self, series: Series) -> Iterator[go.Scatter]:
        """What is drawn of one series."""
        yield from ()

    def together(self, panel: Sequence[Series]) -> Iterator[go.Scatter]:
        """What is drawn of all series of a panel: by default each by itself."""
        for series in panel:
            yield from self.traces(series)

    def key(self, drawn: Sequence[Series], style: dict[str, Any]) -> Iterator[go.Scatter]:
        """Entries of the key, in the style that stands for all series."""
        yield from ()


@dataclass(frozen=True)
class Line(Mark):
    """The estimate against x: ``mean`` or ``median`` of all values at each place."""

    estimator: Literal["mean", "median"] = "mean"
    markers: bool = True
    depth: ClassVar[int] = 3

    def traces(self, series: Series) -> Iterator[go.Scatter]:
        level = series.sample().estimate(self.estimator)
        if len(level):
            mode = "lines+markers" if self.markers and not series.many else "lines"
            words = self._words(series)
            yield go.Scatter(
                x=level[series.x], y=level["value"], mode=mode, hovertemplate=series.hover(words), **series.style
            )  # fmt: skip

    def _words(self, series: Series) -> str:
        return f"{self.estimator} over {series.sample().counts(series.inputs)}"

    def key(self, drawn: Sequence[Series], style: dict[str, Any]) -> Iterator[go.Scatter]:
        words = _common([self._words(series) for series in drawn])
        bare = not self.markers or all(series.many for series in drawn)
        yield key_entry(words, mode="lines" if bare else "lines+markers", **style)


@dataclass(frozen=True)
class Band(Mark):
    """The spread of an estimate: the 95 % confidence interval of its mean over a unit, or with ``quantiles`` a range.

    Quantiles in per cent, of all values or, with ``over``, of a unit's means; (25, 75) is the interquartile range. With
    ``columns`` the ends stand in the frame, and ``words`` say what they are.
    """

    ci: float | None = 95
    over: str | None = None
    quantiles: tuple[float, float] | None = None
    columns: tuple[str, str] | None = None
    words: str = ""
    depth: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if self.ci not in (95, None):
            raise InputError(f"ci is {self.ci!r}; intervals here are 95 % confidence intervals")

    def ends(self, series: Series, *more: str) -> pd.DataFrame:
        """Columns ``low`` and ``high`` at each place."""
        if self.columns is not None:
            held = series.rows.rename(columns=dict(zip(self.columns, ("low", "high"), strict=True)))
            return held.groupby(series.x)[["low", "high"]].mean().dropna().reset_index()
        if self.quantiles is not None:
            return series.sample(self.over, *more).quantiles(self.quantiles, self.over)
        over = self.over or "input"
        return series.sample(over, *more).interval(over)

    def traces(self, series: Series) -> Iterator[go.Scatter]:
        ends = self.ends(series)
        if (ends["high"] > ends["low"]).any():
            yield band(ends[series.x], ends["low"], ends["high"], translucent(series.colour, 0.2))

    def says(self, series: Series) -> str:
        """What the band is, in words."""
        if self.words or self.columns is not None:
            return self.words or "interval of the frame"
        if self.quantiles is None:
            return f"95 % CI over {UNITS.get(self.over or 'input', self.over)}"
        sample = series.sample(self.over)
        over = UNITS[self.over] if self.over else sample.counts(series.inputs)
        low, high = self.quantiles
        known = {(25, 75): "IQR", (0, 100): "range"}
        return f"{known.get((low, high), f'{low:g} to {high:g} %')} over {over}"

    def key(self, drawn: Sequence[Series], style: dict[str, Any]) -> Iterator[go.Scatter]:
        if any((ends["high"] > ends["low"]).any() for ends in map(self.ends, drawn)):
            yield key_swatch(
                _common([self.says(series) for series in drawn]), translucent(style["line"]["color"], 0.3)
            )


@dataclass(frozen=True)
class Dots(Mark):
    """A dot for each value of a column, as for each head: the mean over everything else."""

    by: str = "head"
    depth: ClassVar[int] = 2

    def traces(self, series: Series) -> Iterator[go.Scatter]:
        level = self._level(series)
        if len(level):
            yield go.Scatter(
                x=level[series.x], y=level["value"], mode="markers", customdata=level[self.by],
                marker=_dot(series.colour), hovertemplate=series.hover(f"{self.by} %{{customdata}}"),
            )  # fmt: skip

    def _level(self, series: Series) -> pd.DataFrame:
        if self.by not in series.rows or series.rows[self.by].isna().all():
            return pd.DataFrame()
        return series.sample(None, self.by).estimate("mean")

    def key(self, drawn: Sequence[Series], style: dict[str, Any]) -> Iterator[go.Scatter]:
        if any(len(self._level(series)) for series in drawn):
            yield key_entry(f"one {self.by}", mode="markers", marker=_dot(style["line"]["color"]))


@dataclass(frozen=True)
class Null(Mark):
    """The null distribution in grey: its 95 % band, and its mean as a dotted line; always named with its kind.

    Of several series the band reaches from the least end to the largest. ``kind`` keeps one kind of several; a second
    kind is outlined.
    """

    kind: str | None = None

    def together(self, panel: Sequence[Series]) -> Iterator[go.Scatter]:
        for number, kind in enumerate(self.kinds(panel)):
            level = self.level(panel, kind)
            if {"null_low", "null_high"} <= set(level) and level["null_low"].notna().any():
                ends = level.dropna(subset=["null_low", "null_high"])
                yield as_null(band(ends[panel[0].x], ends["null_low"], ends["null_high"], NULL_BAND), number)
            if len(panel) == 1 or not level.get("null_low", pd.Series(dtype=float)).notna().any():
                yield go.Scatter(
                    x=level[panel[0].x], y=level["null_mean"], mode="lines", line={"color": GREY, "dash": "dot"},
                    hovertemplate=f"{null_name(kind)}<br>%{{x}}: %{{y:.4g}}<extra></extra>",
                )  # fmt: skip

    def level(self, panel: Sequence[Series], kind: str | None) -> pd.DataFrame:
        """Mean, low and high of the null at each place: of several series the widest band."""
        tables = [series.sample().null(kind, series.rows) for series in panel]
        level = pd.concat([table for table in tables if len(table)])
        how = {"null_mean": "mean", "null_low": "min", "null_high": "max"}
        return level.groupby(panel[0].x).agg({name: how[name] for name in level if name in how}).reset_index()

    def kinds(self, panel: Sequence[Series]) -> list[str | None]:
        found = dict.fromkeys(kind for series in panel for kind in null_kinds(series.rows))
        return [kind for kind in found if self.kind is None or kind == self.kind]

    def key(self, drawn: Sequence[Series], style: dict[str, Any]) -> Iterator[go.Scatter]:
        for number, kind in enumerate(self.kinds(drawn)):
            own = [series for series in drawn if kind in null_kinds(series.rows)]
            if not any("null_low" in series.rows and series.rows["null_low"].notna().any() for series in own):
                yield key_entry(null_name(kind), mode="lines", line={"color": GREY, "dash": "dot"})
                continue
            units = own[0].sample().units
            what = f" of one {units[-1]}" if units else " of the mean"
            yield as_null(key_swatch(f"{null_name(kind)} (95 %{what})", NULL_BAND), number)


@dataclass(frozen=True)
class Published(Mark):
    """What papers print: an open diamond at its place, a thin line where a number holds for every x.

    ``rows`` are those of `workbench.published`; numbers of other metrics and of models that are not drawn are left out.
    The hover text names paper, table and row.
    """

    rows: pd.DataFrame | None = None
    depth: ClassVar[int] = 4

    def together(self, panel: Sequence[Series]) -> Iterator[go.Scatter]:
        for series in panel:
            for place, own in self.matching(series):
                x = [place] if place is not None else sorted(series.rows[series.x].dropna().unique())[::_LAST]
                for row in own.to_dict("records"):
                    yield published_trace(x, [row["value"]] * len(x), [row] * len(x))

    def matching(self, series: Series) -> Iterator[tuple[Any, pd.DataFrame]]:
        """The rows about this series, place by place; None for every place."""
        if self.rows is None or self.rows.empty:
            return
        own = self.rows[self.rows["metric"].isin(series.rows["metric"].unique()) & self.rows["value"].notna()]
        if "model" in own and own["model"].notna().any():
            own = own[own["model"].map(short_name).isin(series.rows["model"].map(short_name).unique())]
        for column in ("axis", "statistic", "convention", "candidate", "standardize"):
            if column in own and column in series.rows:
                own = own[own[column].isna() | own[column].isin(series.rows[column].dropna().unique())]
        if series.x in own:
            for place, at in own.groupby(series.x, dropna=False):
                yield (None if pd.isna(place) else place), at
        elif len(own):
            yield None, own

    def key(self, drawn: Sequence[Series], style: dict[str, Any]) -> Iterator[go.Scatter]:
        papers = [
            str(name) for series in drawn for _, own in self.matching(series) for name in own.get("paper", ())
        ]
        if any(True for series in drawn for _ in self.matching(series)):
            names = ", ".join(dict.fromkeys(papers))
            yield key_entry(
                f"published ({names})" if names else "published", mode="markers", marker=PUBLISHED
            )


_LAST = 10**9  # a step beyond every list: keeps the first


@dataclass(frozen=True)
class Rule(Mark):
    """A level that is the same everywhere, as chance or no change: a thin line with its name in the key."""

    value: float = 0.0
    name: str = ""

    def together(self, panel: Sequence[Series]) -> Iterator[go.Scatter]:
        places = [float(place) for series in panel for place in series.rows[series.x].dropna().unique()]
        yield go.Scatter(
            x=[min(places), max(places)], y=[self.value] * 2, mode="lines", line=RULE_LINE, hoverinfo="skip"
        )  # fmt: skip

    def key(self, drawn: Sequence[Series], style: dict[str, Any]) -> Iterator[go.Scatter]:
        if self.name:
            yield key_entry(self.name, mode="lines", line=RULE_LINE)


@dataclass(frozen=True)
class At(Mark):
    """One place along x that is marked, as the layer one looks at: a dashed line through the panel."""

    place: float = 0.0
    name: str = ""

    def key(self, drawn: Sequence[Series], style: dict[str, Any]) -> Iterator[go.Scatter]:
        yield key_entry(self.name or f"at {self.place:g}", mode="lines", line=AT_LINE)


AT_LINE = {"color": GREY, "dash": "dash", "width": 1}
RULE_LINE = {"color": GREY, "dash": "solid", "width": 0.8}


@dataclass(frozen=True)
class Plot:
    """Curves of one or several metrics against a column: what is seen as colour, and what has a panel of its own.

    Args:
        frame: a result frame, of `workbench.analyze` and its like.
        x: the column along the axis; "depth" is the layer as a share of the model's layers.
        color: the column whose values have a colour each; by default "series": the models, with their checkpoint where
            a model has several, and if asked for by this name with what was standardised.
        panel: the column whose values have a panel each.
        names: what the key and the titles say of a value or a metric, and in this order: {"resid_post": "after the
            block"}.
    """

    frame: pd.DataFrame
    x: str = "layer"
    color: str | None = None
    panel: str | None = None
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
        """The same with other axes: ``y_log`` and ``x_log`` (True, False), ``y_range``, ``x_title``, ``y_title``."""
        unknown = set(scales) - {"x_log", "y_log", "y_range", "x_title", "y_title"}
        if unknown:
            raise InputError(
                f"no scale {', '.join(unknown)}; there are x_log, y_log, y_range, x_title and y_title"
            )
        return replace(self, scales={**self.scales, **scales})

    def figure(
        self,
        width: str = "column",
        height: float | None = None,
        columns: int | None = None,
        labels: Literal["auto", "ends", "key"] = "auto",
    ) -> go.Figure:
        """The figure, at a printed width of `workbench.figures.theme.WIDTHS`, or "slides".

        Args:
            height: in pixels of 1/96 in; by default panels have a usual shape.
            columns: panels in a row.
            labels: whether colours are named at the ends of their lines, or in the key; "auto" takes the ends of one
                panel's lines where there is room for the names.
        """
        drawing = _Drawing(self)
        return drawing.figure(width, height, columns, labels)

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
    marks: list[Mark] = [Null(), Band(), Line()]
    if color != "head" and x != "head" and panel != "head" and (color is None or color != "layer"):
        marks.append(Dots())
    return drawn.add(*marks).figure(width)


class _Drawing:
    """One `Plot` on its way to a figure."""

    def __init__(self, plot: Plot) -> None:
        if not plot.metrics:
            raise InputError("the plot has no metric; choose with .metric('attention_entropy', …)")
        self.plot, self.inputs = plot, input_count(plot.frame)
        frame = without_provenance(plot.frame)
        if plot.x == "depth":
            deepest = frame.groupby("model")["layer"].transform("max").clip(lower=1)
            frame = frame.assign(depth=frame["layer"].astype(float) / deepest.astype(float))
        self.color = plot.color or (None if plot.panel in ("model", SERIES) else SERIES)
        seen = [name for name in (plot.x, plot.color, plot.panel) if name is not None]
        apart = [name for name in seen if name != SERIES] + ["model", "checkpoint"] * ("model" in frame)
        apart += ["standardize"] if SERIES in seen else []
        kept = [name for name in dict.fromkeys(apart) if name in frame]
        self.rows = {metric: quantity(frame, metric, plot.kept, kept) for metric in plot.metrics}
        if SERIES in (self.color, plot.panel):
            labels = series_labels(pd.concat([*self.rows.values()], ignore_index=True)).to_numpy()
            for metric, rows in self.rows.items():
                self.rows[metric] = rows.assign(series=labels[: len(rows)])
                labels = labels[len(rows) :]
        self.units = {metric: _unit(metric, rows) for metric, rows in self.rows.items()}
        everything = pd.concat([*self.rows.values()])
        self.colours = self._values(self.color, everything)
        self.panels = self._values(plot.panel, everything)
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
        named = [value for value in self.plot.names if value in held]
        return [*named, *(value for value in held if value not in named)]

    def _label(self, column: str | None, value: Any, rows: pd.DataFrame) -> str:
        if value is None or column is None:
            return ""
        if value in self.plot.names:
            return self.plot.names[value]
        if column == SERIES:
            return str(value)
        if column == "model":
            random = "checkpoint" in rows and set(rows.loc[rows["model"] == value, "checkpoint"]) == {
                RANDOM_WEIGHTS
            }
            return short_name(value) + (f" {UNTRAINED}" if random else "")
        if column == "attention" and value in LOOKS:
            return LOOKS[value].label
        return f"{column} {value}" if column in (*_ORDERED, "head") else str(value).replace("_", " ")

    def _styles(self) -> dict[Any, dict[str, Any]]:
        if self.color == "attention" and set(self.colours) <= set(LOOKS):
            return {value: look_of(value).style for value in self.colours}
        if self.ordered:
            shades = depth_colours(len(self.colours))
            plain = {"symbol": "circle", "size": 4, "line": {"width": 0}}
            return {
                value: {"line": {"color": shade, "dash": "solid"}, "marker": {**plain, "color": shade}}
                for value, shade in zip(self.colours, shades, strict=True)
            }
        return {value: series_style(number) for number, value in enumerate(self.colours)}

    def series(self, metric: str, panel: Any) -> list[Series]:
        """The series of one panel, in the order of their colours."""
        rows = self.rows[metric]
        if self.plot.panel is not None:
            rows = rows[rows[self.plot.panel] == panel]
        found = []
        for value in self.colours:
            own = rows if value is None else rows[rows[self.color] == value]
            if len(own):
                label = self.labels[value]
                found.append(
                    Series(
                        own,
                        self.plot.x,
                        label,
                        self.styles[value],
                        str(value),
                        self.units[metric],
                        self.inputs,
                    )
                )
        return found

    def figure(self, width: str, height: float | None, columns: int | None, labels: str) -> go.Figure:
        marks = sorted(self.plot.marks or (Line(),), key=lambda mark: mark.depth)
        cells = [(metric, panel) for metric in self.plot.metrics for panel in self.panels]
        cells = [cell for cell in cells if len(self.plot.metrics) > 1 or self.series(*cell)]
        parts = {cell: self.series(*cell) for cell in cells}
        drawn = [series for own in parts.values() for series in own]
        traces = {
            cell: [trace for mark in marks for trace in _drawn(mark, own)] for cell, own in parts.items()
        }
        several = len(self.colours) > 1
        bar = self.ordered and len(self.colours) > _MOST_COLOURS
        at_ends = self._ends(parts, labels, width) if several and not bar else {}
        style = {
            "line": {"color": NEUTRAL, "dash": "solid"},
            "marker": {"color": NEUTRAL, "symbol": "circle"},
        }
        style = style if several else drawn[0].style
        key = (
            [self._colour_entry(value) for value in self.colours]
            if several and not bar and not at_ends
            else []
        )
        key += [entry for mark in reversed(marks) for entry in mark.key(drawn, style)]
        across = columns or self._columns(len(cells), width)
        by_metric: dict[Any, list[tuple[float, float]]] = {}
        for (metric, _), own in traces.items():
            by_metric.setdefault(metric, []).append(_reach(own))
        shapes = [
            {
                "type": "line",
                "x0": mark.place,
                "x1": mark.place,
                "y0": 0,
                "y1": 1,
                "yref": "domain",
                "line": AT_LINE,
            }
            for mark in marks
            if isinstance(mark, At)
        ]
        titled, alone = self.plot.metrics[0], across != len(self.panels)
        panels = [
            Panel(
                own, self._x_axis([*traces.values()]), self._y_axis(cell[0], by_metric[cell[0]]),
                self._label(self.plot.panel, cell[1], self.rows[cell[0]]) if cell[0] == titled or alone else "",
                shapes=shapes, ends=at_ends.get(cell, ()),
            )
            for cell, own in traces.items()
        ]  # fmt: skip
        shared = "xy" if len(self.plot.metrics) == 1 or len(self.panels) > 1 else "x"
        right = theme_of(width).font * 4.2 if bar else 0
        fig = compose(
            panels, across, key, width=width, height=height, shared=shared, right=right,
            letters=len(self.plot.metrics) > 1 and len(self.panels) == 1,
        )  # fmt: skip
        if bar:
            _add_bar(fig, self.colours, TITLES.get(str(self.color), str(self.color)))
        return fig

    def _columns(self, count: int, width: str) -> int:
        if len(self.panels) > 1 and len(self.plot.metrics) > 1:
            return len(self.panels)
        room = 2 if WIDTHS.get(width, 1280) < 400 else 3 if len(self.panels) == 1 else 4
        room = 1 if room == 2 and len(self.panels) == 1 else room
        return -(-count // -(-count // room))

    def _colour_entry(self, value: Any) -> go.Scatter:
        return key_entry(
            self.labels[value], mode="lines+markers", legendgroup=str(value), **self.styles[value]
        )

    def _ends(
        self, parts: Mapping[Any, list[Series]], labels: str, width: str
    ) -> dict[Any, list[tuple[str, float, str]]]:
        """The names of the colours at the ends of one panel's lines; empty where the key names them."""
        lines = [mark for mark in self.plot.marks if isinstance(mark, Line)]
        if labels == "key" or not lines or (labels == "auto" and len(parts) > 1):
            return {}
        font, room = theme_of(width).font, 0.32 * theme_of(width).widths[width]
        if labels == "auto" and (len(self.colours) < 3 or widest(self.labels.values(), font) > room):
            return {}
        found: dict[Any, list[tuple[str, float, str]]] = {}
        for cell, own in parts.items():
            last = [
                (series, series.sample().estimate(lines[0].estimator)["value"].iloc[-1]) for series in own
            ]
            found[cell] = [(cut(series.label, room, font), value, series.colour) for series, value in last]
        return found

    def _x_axis(self, traces: Sequence[Sequence[go.Scatter]]) -> Axis:
        places = np.asarray([float(x) for own in traces for trace in own for x in trace.x if x is not None])
        log = self.plot.scales.get("x_log", False)
        whole = bool((places == np.round(places)).all()) and not log
        title = self.plot.scales.get(
            "x_title", TITLES.get(self.plot.x, self.plot.x.replace("_", " ").capitalize())
        )
        return with_room(Axis(title, places.min(), places.max(), log=log, whole=whole), 0.03)

    def _y_axis(self, metric: str, reaches: Sequence[tuple[float, float]]) -> Axis:
        known = METRICS[metric] if metric in METRICS else Metric(metric, metric, "")
        known = replace(known, unit=self.units[metric], label=self.plot.names.get(metric, known.label))
        return metric_axis(known, reaches, **{
            name.removeprefix("y_"): value for name, value in self.plot.scales.items() if name.startswith("y_")
        })  # fmt: skip


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
) -> Axis:
    """The axis of a metric that holds these values: its title with unit and better direction, its scale, its ends."""
    low, high = min(low for low, _ in reaches), max(high for _, high in reaches)
    log = (metric.log and low > 0 and high > 10 * low) if log is None else log and low > 0
    arrow = {"higher": " (↑ better)", "lower": " (↓ better)"}.get(metric.better, "")
    title = metric.axis_title + arrow if title is None else title
    if range is not None:
        return Axis(title, *range, log=log)
    if not log and metric.low == 0 <= low < 0.5 * high:
        low = 0.0
    if (
        not log
        and math.isfinite(metric.low)
        and high - low > 0.6 * (metric.high - max(metric.low, min(low, 0)))
    ):
        high = max(high, metric.high)
    return with_room(Axis(title, low, high, log=log))


def _drawn(mark: Mark, panel: Sequence[Series]) -> Iterator[go.Scatter]:
    """A mark's traces, each with its series' name, without an entry of its own in the key."""
    if type(mark).together is not Mark.together:
        yield from (trace.update(showlegend=False) for trace in mark.together(panel))
        return
    for series in panel:
        for trace in mark.traces(series):
            yield trace.update(showlegend=False, name=series.label, legendgroup=series.group)


def _reach(traces: Sequence[go.Scatter]) -> tuple[float, float]:
    """The least and the largest value that traces draw."""
    values = [float(y) for trace in traces for y in trace.y if y is not None and np.isfinite(float(y))]
    if not values:
        raise InputError("no value is finite: there is nothing to draw")
    return min(values), max(values)


def _common(words: Sequence[str]) -> str:
    """What all say; of several sayings the shortest beginning they share, or the first with 'or' the others."""
    said = list(dict.fromkeys(words))
    return (
        said[0]
        if len(said) == 1
        else f"{said[0]} (or {'; '.join(each.split(' over ')[-1] for each in said[1:])})"
    )


def key_entry(name: str, **look: Any) -> go.Scatter:
    """An entry of the key: a trace that is nowhere."""
    return go.Scatter(x=[None], y=[None], name=name, hoverinfo="skip", **look)


def key_swatch(name: str, colour: str, **look: Any) -> go.Scatter:
    """An entry of the key for a band."""
    return key_entry(
        name, mode="lines", fill="toself", fillcolor=colour, line={"width": 0, "color": colour}, **look
    )


def _dot(colour: str) -> dict[str, Any]:
    return {"color": translucent(colour, 0.5), "size": 3.5, "symbol": "circle", "line": {"width": 0}}


def as_null(trace: go.Scatter, number: int) -> go.Scatter:
    """A band in the look of a null distribution: the first plain grey, a second one in outline."""
    if number:
        return trace.update(
            fillcolor="rgba(120,120,120,0.05)", line={"width": 0.8, "color": "#8A8A8A", "dash": "solid"}
        )
    return trace.update(fillcolor=NULL_BAND, line={"width": 0, "color": NULL_BAND})


def null_name(kind: str | None) -> str:
    """A null distribution as a key calls it."""
    return f"null: {NULLS.get(kind, kind.replace('_', ' '))}" if kind else "null distribution"


def published_trace(x: Sequence[Any], y: Sequence[Any], rows: Sequence[Mapping[str, Any]]) -> go.Scatter:
    """Published numbers in their one look, with paper, table and row in the hover text."""
    said = [
        ", ".join(str(row[name]) for name in ("paper", "table", "row") if not pd.isna(row.get(name)))
        for row in rows
    ]
    return go.Scatter(
        x=x, y=y, mode="markers", marker=PUBLISHED, text=said, cliponaxis=False, showlegend=False,
        hovertemplate="published: %{text}<br>%{y:.4g}<extra></extra>",
    )  # fmt: skip


def _add_bar(fig: go.Figure, values: Sequence[Any], title: str) -> None:
    """A colour bar for ordered colours: it stays readable at 48 layers, where a key would not."""
    fig.add_trace(
        go.Scatter(
            x=[None], y=[None], mode="markers", showlegend=False, hoverinfo="skip",
            marker={"color": [values[0]], "coloraxis": "coloraxis"},
        )
    )  # fmt: skip
    domains = [axis.domain for axis in fig.select_yaxes()]
    low, high = min(low for low, _ in domains), max(high for _, high in domains)
    right = max(axis.domain[1] for axis in fig.select_xaxes())
    bar = {
        "title": {"text": title, "side": "right"},
        "len": high - low,
        "y": (low + high) / 2,
        "x": right,
        "nticks": 6,
    }
    fig.update_layout(
        coloraxis={"colorscale": depth_scale(), "cmin": values[0], "cmax": values[-1], "colorbar": bar}
    )
