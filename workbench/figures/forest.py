"""Forests: a row for each model, variant or claim, a panel for each quantity, an estimate with its interval in each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from workbench.core.errors import InputError
from workbench.core.intervals import mean_interval
from workbench.figures.composition import Axis, Panel, compose, with_room
from workbench.figures.estimates import UNITS, Sample, quantity, within_bounds
from workbench.figures.frames import band, short_name, without_provenance
from workbench.figures.grammar import metric_axis
from workbench.figures.marks import (
    NEUTRAL,
    NULL_LINE,
    RULE_LINE,
    Mark,
    Null,
    Published,
    Rule,
    as_null,
    key_entry,
    key_swatch,
    null_of,
    published_trace,
)
from workbench.figures.measuring import line_count, text_width, widest
from workbench.figures.theme import GREY, NULL_BAND, RED, series_style, theme_of
from workbench.figures.variants import LOOKS, in_order, look_of
from workbench.frames.estimate import null_range
from workbench.frames.metrics import METRICS, Metric

_ROW = "row of the forest"
_PALE = "#E6E6E6"
_ROW_LINE = {"type": "line", "xref": "domain", "layer": "below", "line": {"color": _PALE, "width": 0.5}}


@dataclass(frozen=True)
class Interval(Mark):
    """An estimate and its interval in a `Forest`: the mean over a unit with its 95 % confidence interval.

    Where the frame holds the mean over everything, that is the estimate. With ``columns`` value, low and high stand in
    the frame, and ``words`` say what they are, and ``alone`` what a value without an interval is. ``hollow`` names a
    column whose true values have an open marker, and says what that means.
    """

    over: str = "input"
    ci: float = 95
    columns: tuple[str, str, str] | None = None
    words: str = ""
    hollow: tuple[str, str] | None = None
    alone: str = ""

    def table(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Columns ``value``, ``low``, ``high`` (NaN without an interval) and ``n`` of every row of the forest."""
        if self.columns is not None:
            held = rows[[*self.columns]].set_axis(["value", "low", "high"], axis=1)
            return rows.assign(n=rows.get("n", np.nan), **held)
        sample = Sample.of(rows, (_ROW,), self.over)
        if self.over not in sample.units:
            table = sample.estimate("mean").assign(low=np.nan, high=np.nan, n=np.nan)
            if {"low", "high", "n"} <= set(rows):  # of a frame that holds them in the place of inputs
                ends = rows.groupby(_ROW)[["low", "high", "n"]].first()
                table = table.drop(columns=[*ends]).join(ends, on=_ROW)
            return table
        means = sample.rows.groupby([_ROW, self.over], sort=False)["value"].mean()
        ends = [
            (place, *mean_interval(own)[:3], len(own)) for place, own in means.groupby(level=0, sort=False)
        ]
        table = pd.DataFrame(ends, columns=[_ROW, "value", "low", "high", "n"])
        overall = Sample.means(rows, (_ROW,))
        if not overall.units:
            whole = overall.estimate("mean").set_index(_ROW)["value"]
            table["value"] = table[_ROW].map(whole).fillna(table["value"])
        return table

    def says(self, counts: Sequence[int], seen: Sequence[bool] = ()) -> str:
        """The estimator, its interval and its unit of sampling, and where markers cover some or all intervals."""
        if self.words or self.columns is not None:
            return self.words or "value and interval of the frame"
        if not counts:
            return "mean"
        many = str(min(counts)) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
        where = "" if all(seen) else " where wider than the marker" if any(seen) else " within the marker"
        return f"mean over {many} {UNITS.get(self.over, self.over)}, 95 % CI{where}"


@dataclass(frozen=True)
class Verdict(Mark):
    """The words of a column at the right end of each row, under a title: whether a claim holds, what a paper prints."""

    column: str = "verdict"
    title: str = ""


@dataclass(frozen=True)
class Stroke(Mark):
    """A grey stroke at the value of a column in each row, as a floor, with its name in the key."""

    column: str = "floor"
    name: str = "floor"


@dataclass(frozen=True)
class Ticks(Mark):
    """Single values that the estimates of a `Forest` are means of: thin ticks, or crosses.

    ``rows`` have the forest's columns and ``value``. ``words`` are what the key says of each value of ``column``, the
    first a tick and the second, which is no part of the mean, a cross.
    """

    rows: pd.DataFrame
    column: str
    words: Mapping[Any, str]


_TICKS = ({"symbol": "line-ns-open", "size": 6, "opacity": 0.75}, {"symbol": "x-thin-open", "size": 4.5})
_SINGLE = {"opacity": 0.6}
_NULL_HALF = 0.45  # of a row: a null is seen above and below the marker on it
_STROKE = {"symbol": "line-ns-open", "size": 12, "color": GREY, "line": {"color": GREY, "width": 1.5}}


@dataclass(frozen=True)
class Forest:
    """A row for each value of a column, a panel for each metric: estimates with their intervals, null and published.

    Args:
        frame: a result frame, or with ``panel`` any table whose `Interval` names its columns.
        y: the column whose values are the rows, in order of appearance.
        x: metrics, or values of the column ``panel``, a panel each; as a mapping with the panel's title.
        group: the column whose values are headings over the rows.
        panel: the column that ``x`` are values of.
        color: the column whose values have a colour each, side by side in a row.
        names: what rows and key say of a value.
        strokes: values of ``color`` that are strokes, which can be distinguished where they lie close.

    Variants of attention have their own colours and markers in every row, unless colours mean something else. Where a
    row has no value in a panel, the words of the column ``finding`` stand in its place.
    """

    frame: pd.DataFrame
    y: str = "model"
    x: Sequence[str] | Mapping[str, str] = ()
    group: str | None = None
    panel: str = "metric"
    color: str | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    strokes: Sequence[str] = ()
    marks: tuple[Mark, ...] = ()
    kept: Mapping[str, Any] = field(default_factory=dict)
    scales: Mapping[str, Any] = field(default_factory=dict)

    def add(self, *marks: Mark) -> Forest:
        """The same with these marks as well."""
        return replace(self, marks=(*self.marks, *marks))

    def where(self, **kept: Any) -> Forest:
        """The same of those rows alone in which a column holds a value, one of several, or (None) nothing."""
        return replace(self, kept={**self.kept, **kept})

    def scale(self, **scales: Any) -> Forest:
        """The same with other axes.

        ``log`` (True, or the panels), ``range`` (or by panel), beyond which intervals are cut with an arrow, ``same``
        (True, or lists of the panels that share an axis), ``row``: its height.
        """
        return replace(self, scales={**self.scales, **scales})

    def figure(self, width: str = "page", columns: int | None = None) -> go.Figure:
        """The figure, at a printed width of `workbench.figures.theme.WIDTHS`, or "slides".

        Raises:
            InputError: no such panels, or several ways of measuring a metric that the figure does not tell apart.
        """
        return _Drawing(self).figure(width, columns)

    def _repr_mimebundle_(self, *args: Any, **kwargs: Any) -> Any:
        return self.figure()._repr_mimebundle_(*args, **kwargs)


class _Drawing:
    """One `Forest` on its way to a figure."""

    def __init__(self, forest: Forest) -> None:
        self.forest, frame = forest, without_provenance(forest.frame)
        self.titles = forest.x if isinstance(forest.x, Mapping) else dict.fromkeys(forest.x, "")
        if not self.titles:
            raise InputError("the forest has no panels; give x=['metric', …]")
        apart = [name for name in (forest.y, forest.group, forest.color) if name is not None]
        if forest.panel == "metric":
            rows = {name: quantity(frame, name, forest.kept, apart) for name in self.titles}
        else:
            rows = {name: frame[frame[forest.panel] == name] for name in self.titles}
        absent = [name for name, own in rows.items() if own.empty]
        if absent:
            known = ", ".join(map(str, frame[forest.panel].dropna().unique()))
            raise InputError(f"the frame has no {', '.join(absent)} in {forest.panel}; it holds {known}")
        everything = pd.concat([*rows.values()])
        self.rows = {name: own.assign(**{_ROW: self._keys(own)}) for name, own in rows.items()}
        held = [None] if forest.color is None else [*everything[forest.color].dropna().unique()]
        self.colours = [*dict.fromkeys(one for one in (*forest.names, *held) if one in held)]
        self.words: list[str] = []
        self.places = self._places(everything)
        self.interval = next((mark for mark in forest.marks if isinstance(mark, Interval)), Interval())
        self.tables = {
            (name, colour): self._table(own if colour is None else own[own[forest.color] == colour])
            for (name, own), colour in itertools.product(self.rows.items(), self.colours)
        }
        self.shown = {name: self._shown(name) for name in self.titles}
        self.printed = {id(mark): mark for mark in forest.marks if isinstance(mark, Published)}
        self.found = {
            name: {key: self._found(name, mark) for key, mark in self.printed.items()} for name in self.titles
        }
        self.shifts = {name: self._shifts(name) for name in self.titles}

    def _table(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Value and ends of each row; an interval reaches no further than its metric can."""
        table = self.interval.table(rows)
        if self.interval.columns is None:
            table = within_bounds(table.astype({"low": float, "high": float}), rows)
        return table

    def _keys(self, rows: pd.DataFrame) -> list[Any]:
        """What row of the forest each row of the frame belongs to."""
        heads = [None] * len(rows) if self.forest.group is None else rows[self.forest.group]
        return [*zip(heads, rows[self.forest.y], strict=True)]

    def _places(self, rows: pd.DataFrame) -> dict[Any, int]:
        """The place of each row from the top, headings included, and in ``words`` what stands beside it."""
        places: dict[Any, int] = {}
        forest = self.forest
        for head, own in [(None, rows)] if forest.group is None else rows.groupby(forest.group, sort=False):
            if head is not None:
                self.words.append(f"<b>{forest.names.get(head, head)}</b>")
            values = [*own[forest.y].dropna().unique()]
            if forest.y == "attention" and set(values) <= set(LOOKS):
                values = in_order(values)
            for value in values:
                places[head, value] = len(self.words)
                self.words.append(self._label(value))
        return places

    def _label(self, value: Any) -> str:
        if value in self.forest.names:
            return self.forest.names[value]
        columns = self.forest.y, self.forest.color
        if "attention" in columns and value in LOOKS:
            return LOOKS[value].label
        return short_name(value) if "model" in columns else str(value)

    def figure(self, width: str, columns: int | None) -> go.Figure:
        font = theme_of(width).font
        verdict = next((mark for mark in self.forest.marks if isinstance(mark, Verdict)), Verdict())
        said = dict(self._verdicts(verdict)) if verdict in self.forest.marks else {}
        panels = self._alike([self._panel(name) for name in self.titles])
        room = widest(said.values(), font) + 0.6 * font if said else 0.0
        title = verdict.title
        room = max(room, text_width(title, font) + font) if title else room
        row = self.forest.scales.get("row", 1.5 if len(self.colours) == 1 else 0.9 * len(self.colours) + 0.8)
        across = columns or len(panels)
        room_for_each = (theme_of(width).widths[width] - widest(self.words, font) - room) / across - 3 * font
        seen = [end for panel in panels for end in _seen(panel, room_for_each)]
        fig = compose(
            panels, across, [*self._key(seen)], width=width, shared="y", right=room,
            inner=(len(self.words) + 0.3) * row * font, heading=1.3 * font * line_count(title) if title else 0,
        )  # fmt: skip
        right = max(axis.domain[1] for axis in fig.select_xaxes())
        for place, word in (said | ({-1: title} if title else {})).items():
            fig.add_annotation(
                text=word, x=right, xref="paper", xanchor="left", xshift=font * 0.5, align="left", borderpad=0,
                y=place + 0.4 * (place < 0), yref="y", yanchor="bottom" if place < 0 else "middle", showarrow=False,
            )  # fmt: skip
        return fig

    def _alike(self, panels: list[Panel]) -> list[Panel]:
        """The panels, those of one measure with one axis."""
        same, names = self.forest.scales.get("same", ()), [*self.titles]
        for group in [names] if same is True else same:
            own = [names.index(name) for name in group]
            low, high = min(panels[one].x.low for one in own), max(panels[one].x.high for one in own)
            for one in own:
                panels[one] = replace(panels[one], x=replace(panels[one].x, low=low, high=high))
        return panels

    def _verdicts(self, mark: Verdict) -> Iterator[tuple[int, str]]:
        for table in self.tables.values():
            for key, word in zip(table[_ROW], table.get(mark.column, ()), strict=False):
                if not pd.isna(word):
                    yield self.places[key], str(word)

    def _level(self, rule: Rule, name: str) -> float:
        return rule.value.get(name, np.nan) if isinstance(rule.value, Mapping) else rule.value

    def _look(self, colour: Any) -> dict[str, Any]:
        style = series_style(self.colours.index(colour))
        if self.forest.color == "attention" and colour in LOOKS:
            style = look_of(colour).style
        line = {**style["line"], "dash": "solid", "width": 1.2}
        marker = {**style["marker"], "size": 5.5}
        if colour in self.forest.strokes:
            marker |= {"symbol": "line-ns-open", "size": 7, "line": {"width": 1.5, "color": marker["color"]}}
        return {"marker": marker, "line": line}

    def _panel(self, name: str) -> Panel:
        traces = [trace for colour in self.colours for trace in self._dots(name, colour)]
        rules = []
        for mark in self.forest.marks:
            if isinstance(mark, Null):
                traces = [*self._null(name, mark), *traces]
            elif isinstance(mark, Stroke):
                traces = [*self._strokes(name, mark), *traces]
            elif isinstance(mark, Ticks):
                traces = [*self._ticks(name, mark), *traces]
            elif isinstance(mark, Published):
                traces += [trace for trace, _ in self._published(name, mark)]
            elif isinstance(mark, Rule):
                level = self._level(mark, name)
                if np.isfinite(level):
                    ends = {"x0": level, "x1": level, "y0": -0.6, "y1": len(self.words) - 0.4}
                    rules.append({"type": "line", "line": RULE_LINE, "layer": "below", **ends})
        values = np.asarray([*(x for trace in traces for x in _reach(trace)), *(one["x0"] for one in rules)])
        values = values[np.isfinite(values)]
        own = self.rows[name].get("metric", pd.Series(dtype=str)).dropna().unique()
        metric = own[0] if len(own) == 1 else name
        known = METRICS[metric] if metric in METRICS else Metric(name, name, "")
        log, ends = self.forest.scales.get("log"), self.forest.scales.get("range")
        ends = ends.get(name) if isinstance(ends, Mapping) else ends
        log = log if log is None or isinstance(log, bool) else name in log
        if log and (values > 0).any():  # what is at or below 0 has an arrow at the axis' lower end
            values = values[values > 0]
        x = metric_axis(
            known, [(values.min(), values.max())], title=self.titles[name] or None, log=log, range=ends
        )
        x = replace(x, cut=True) if ends else with_room(x, 0.03)  # for the markers
        headed = len(self.places) < len(self.words)  # a grid would go through the headings
        look = {"ticks": "", "showline": False} | (
            {} if headed else {"showgrid": True, "gridwidth": 0.5, "gridcolor": _PALE}
        )
        y = Axis("", len(self.words) - 0.35, -0.65, names=tuple(self.words), more=look)
        places = self.places.values() if headed else ()
        rows = [{**_ROW_LINE, "x0": 0, "x1": 1, "y0": place, "y1": place} for place in places]
        return Panel(traces, x, y, shapes=[*rows, *rules], notes=[*self._reasons(name, x)])

    def _reasons(self, name: str, x: Axis) -> Iterator[dict[str, Any]]:
        """Why a row has no value, once for all colours."""
        said: set[Any] = set()
        for colour in self.colours:
            table = self.tables[name, colour]
            for key, word in zip(table[_ROW], table.get("finding", ()), strict=False):
                none = pd.isna(table.loc[table[_ROW] == key, "value"]).all() and not pd.isna(word)
                if none and (key, word) not in said:
                    said.add((key, word))
                    levels = (self._level(mark, name) for mark in self.forest.marks if isinstance(mark, Rule))
                    at = next(
                        (x.place(level) for level in levels if np.isfinite(level)), 0.5
                    )  # beside its line
                    yield {
                        "text": str(word), "x": at, "xref": "domain", "y": self.places[key], "bgcolor": "white",
                        "borderpad": 0, "xanchor": "left" if at <= 0.5 else "right", "xshift": 4 if at <= 0.5 else -4,
                    }  # fmt: skip

    def _dots(self, name: str, colour: Any) -> Iterator[go.Scatter]:
        """A trace for a colour; of variants of attention for each row, since each has its own look."""
        every, shifts = self.tables[name, colour].dropna(subset=["value"]), self.shifts[name]
        parts = [(every, self._look(colour), "" if colour is None else self._label(colour))]
        if self.colours == [None] and self.forest.y == "attention":
            parts = [
                (every[every[_ROW].map(key.__eq__)], look_of(key[1]).style, LOOKS[key[1]].label)
                for key in every[_ROW].drop_duplicates()
            ]
        for table, look, words in parts if len(every) else ():
            places = [self.places[key] for key in table[_ROW]]
            ends, value = table[["low", "high"]].astype(float), table["value"].astype(float)
            edge = look["line"]["color"]
            marker = {"size": 6.5, **look["marker"]}
            if self.interval.alone:  # several may cover each other
                marker["opacity"] = ends.isna().all(axis=1).map({True: _SINGLE["opacity"], False: 1}).tolist()
            if self.interval.hollow is not None:
                opened = table[self.interval.hollow[0]].fillna(False).astype(bool)
                marker["color"] = opened.map({True: "white", False: edge}).tolist()
                marker["line"] = {"color": edge, "width": 1.3}
            yield go.Scatter(
                x=value, y=[place + shifts[place][colour] for place in places], mode="markers", marker=marker,
                error_x={
                    "type": "data", "symmetric": False, "array": (ends["high"] - value).fillna(0).clip(lower=0),
                    "arrayminus": (value - ends["low"]).fillna(0).clip(lower=0), "color": edge,
                    "thickness": 1.2, "width": 0,
                },
                text=[self.words[place] for place in places], name=words, legendgroup=words,
                customdata=np.stack([ends["low"], ends["high"], table["n"].astype(float)], axis=-1),
                hovertemplate="%{text}<br>%{x:.4g} [%{customdata[0]:.4g}, %{customdata[1]:.4g}]<br>"
                "n = %{customdata[2]}<extra></extra>", showlegend=False, cliponaxis=False,
            )  # fmt: skip

    def _shown(self, name: str) -> dict[Any, set[int]]:
        """The colours that a panel holds, each with the places of its rows."""
        rows = {one: self.tables[name, one].dropna(subset=["value"])[_ROW] for one in self.colours}
        return {one: {self.places[key] for key in own} for one, own in rows.items() if len(own)}

    def _shifts(self, name: str) -> dict[int, dict[Any, float]]:
        """Where in each row its colours stand, and after them each kind of published numbers beside them."""
        found = [(mark, *place) for mark, own in self.found[name].items() for place in own]
        slots: dict[int, list[Any]] = {}
        for colour, held in self.shown[name].items():
            for place in held | {place for _, place, one in found if one == colour}:
                slots.setdefault(place, []).append(colour)
        apart = self._apart(name)
        for mark, place, one in found:
            if one is None and mark in apart:
                slots.setdefault(place, []).append(mark)
        step = 0.8 / max((len(own) for own in slots.values()), default=1)
        return {
            place: {one: (number - (len(own) - 1) / 2) * step for number, one in enumerate(own)}
            for place, own in slots.items()
        }

    def _apart(self, name: str) -> list[int]:
        """The published numbers that have a place of their own in a panel's rows: several colours' or those beside."""
        several, held = len(self.colours) > 1, set().union(*self.shown[name].values())
        return [
            key for key, mark in self.printed.items()
            if (several or mark.beside)
            and any(one is None if several else place in held for place, one in self.found[name][key])
        ]  # fmt: skip

    def _strokes(self, name: str, mark: Stroke) -> Iterator[go.Scatter]:
        rows = self.rows[name]
        held = rows[rows[mark.column].notna()] if mark.column in rows else rows.iloc[:0]
        if len(held):
            beside, shifts = [*self.shown[name]], self.shifts[name]
            alone = beside[0] if len(beside) == 1 else _ROW  # else in the middle
            places = [self.places[key] for key in held[_ROW]]
            yield go.Scatter(
                x=held[mark.column], y=[place + shifts.get(place, {}).get(alone, 0.0) for place in places],
                mode="markers", marker=_STROKE,
                hovertemplate=f"{mark.name} %{{x:.4g}}<extra></extra>", showlegend=False,
            )  # fmt: skip

    def _ticks(self, name: str, mark: Ticks) -> Iterator[go.Scatter]:
        rows = mark.rows[mark.rows[self.forest.panel] == name]
        rows = rows.assign(**{_ROW: self._keys(rows)})
        rows = rows[rows[_ROW].isin(self.places.keys())]
        by = self.forest.color or self.forest.y
        for (series, value), own in rows.groupby([by, mark.column], sort=False):
            look = dict(zip(mark.words, _TICKS, strict=False)).get(value)
            if look is None or (self.forest.color is not None and series not in self.shown[name]):
                continue
            colour = series if self.forest.color is not None else None
            style = look_of(series).style if by == "attention" and series in LOOKS else self._look(colour)
            places = [self.places[key] for key in own[_ROW]]
            yield go.Scatter(
                x=own["value"].astype(float), mode="markers", marker=_tick(look, style["line"]["color"]),
                y=[place + self.shifts[name].get(place, {}).get(colour, 0.0) for place in places],
                text=[f"{self.words[place]}, {mark.words[value]}" for place in places], showlegend=False,
                hovertemplate="%{text}<br>%{x:.4g}<extra></extra>", cliponaxis=False,
            )  # fmt: skip

    def _null(self, name: str, mark: Null) -> Iterator[go.Scatter]:
        rows = self.rows[name]
        for kind in mark.kinds([rows]):
            number = mark.kinds(self.rows.values()).index(kind)
            level = Sample.means(rows, (_ROW,)).null(kind, rows)
            for key, mean, low, high in level.itertuples(index=False):
                y = self.places[key]
                if pd.notna(low) and pd.notna(high):
                    box = band([low, high], [y - _NULL_HALF] * 2, [y + _NULL_HALF] * 2, NULL_BAND)
                    yield as_null(box, number)
                elif pd.notna(mean):
                    yield go.Scatter(
                        x=[mean] * 2, y=[y - _NULL_HALF, y + _NULL_HALF], mode="lines", line=NULL_LINE,
                        showlegend=False, hovertemplate=f"{mark.name(kind)}<br>%{{x:.4g}}<extra></extra>",
                    )  # fmt: skip

    def _found(self, name: str, mark: Published) -> dict[tuple[int, Any], list[dict[str, Any]]]:
        """The published numbers of each row in a panel, by its place and, where they have one, their colour."""
        if mark.rows is None:
            return {}
        rows = mark.rows[mark.rows["value"].notna()]
        if self.forest.panel in rows:
            rows = rows[rows[self.forest.panel] == name]
        known = {(head, short_name(value)): place for (head, value), place in self.places.items()}
        found: dict[tuple[int, Any], list[dict[str, Any]]] = {}
        beside = self.shown[name]
        for (head, value), row in zip(self._keys(rows), rows.to_dict("records"), strict=True):
            if (head, short_name(value)) in known:
                colour = row.get(self.forest.color)
                alone = mark.beside and len(beside) == 1
                place = known[head, short_name(value)], colour if colour in beside and not alone else None
                found.setdefault(place, []).append(row)
        return found

    def _published(self, name: str, mark: Published) -> Iterator[tuple[go.Scatter, list[str]]]:
        """A diamond for each published number of a row, and their papers."""
        shifts = self.shifts[name]
        crowded = any(len(self._apart(one)) > 1 for one in self.titles)  # of several kinds in a row
        for (place, colour), own in self.found[name][id(mark)].items():
            y = place + shifts.get(place, {}).get(id(mark) if colour is None else colour, 0.0)
            values = np.asarray([row["value"] for row in own], dtype=float)
            several = mark.ranges and len(own) > 1
            middle = [float(np.median(values))] if several else values.tolist()
            trace = published_trace(middle, [y] * len(middle), own[: len(middle)])
            trace.marker.symbol = mark.symbol
            if crowded:
                trace.marker.size = 5.5
            trace.hovertemplate = trace.hovertemplate.replace("%{y", "%{x")  # values lie along x here
            if several:
                trace.error_x = {
                    "type": "data", "symmetric": False, "array": [values.max() - middle[0]],
                    "arrayminus": [middle[0] - values.min()], "color": RED, "thickness": 1.2, "width": 0,
                }  # fmt: skip
                trace.text = f"median of {len(own)}, {values.min():.4g} to {values.max():.4g}"
            elif any(pd.notna(row.get("spread")) for row in own):
                spread = [row["spread"] for row in own]
                trace.error_x = {"type": "data", "array": spread, "color": RED, "thickness": 1}
            yield trace, [str(row["paper"]) for row in own if pd.notna(row.get("paper"))]

    def _key(self, seen: Sequence[bool]) -> Iterator[go.Scatter]:
        for colour in self.colours if self.forest.color is not None else ():
            words = self.forest.names.get(colour, str(colour))
            yield key_entry(words, mode="markers", **self._look(colour))
        counts = [int(n) for table in self.tables.values() for n in table["n"].dropna()]
        look = {
            "marker": {"color": NEUTRAL, "symbol": "circle", "size": 5.5},
            "line": {"color": NEUTRAL, "width": 1.2, "dash": "solid"},
        }
        if self.colours == [None] and self.forest.y != "attention":
            look = self._look(None)
        yield key_entry(self.interval.says(counts, seen), mode="lines+markers", **look)
        if self.interval.alone:
            yield key_entry(self.interval.alone, mode="markers", marker={**look["marker"], **_SINGLE})
        column, words = self.interval.hollow or ("", "")
        if words and any(rows[column].fillna(False).any() for rows in self.rows.values()):
            edge = {"color": look["line"]["color"], "width": 1.3}
            yield key_entry(words, mode="markers", marker={**look["marker"], "color": "white", "line": edge})
        for mark in self.forest.marks:
            if isinstance(mark, Null):
                yield from self._null_key(mark)
            elif isinstance(mark, Stroke) and any([*self._strokes(name, mark)] for name in self.titles):
                yield key_entry(mark.name, mode="markers", marker=_STROKE)
            elif isinstance(mark, Ticks):
                for (value, words), look in zip(mark.words.items(), _TICKS, strict=False):
                    if (mark.rows[mark.column] == value).any():
                        yield key_entry(words, mode="markers", marker=_tick(look, NEUTRAL))
            elif isinstance(mark, Published):
                drawn = [one for name in self.titles for one in self._published(name, mark)]
                if drawn:
                    words = mark.says(part for _, papers in drawn for part in papers)
                    mode = "lines+markers" if any(one.error_x.array for one, _ in drawn) else "markers"
                    line = {"color": RED, "width": 1.2, "dash": "solid"}
                    yield key_entry(words, mode=mode, marker=drawn[0][0].marker, line=line)
            elif isinstance(mark, Rule):
                yield from mark.key([], {})

    def _null_key(self, mark: Null) -> Iterator[go.Scatter]:
        """Each kind of null with what its ends are of: some frames have the null of the mean, others of one input."""
        apart = [name for name in (self.forest.y, self.forest.group, self.forest.color) if name is not None]
        for number, kind in enumerate(mark.kinds(self.rows.values())):
            samples = [Sample.means(rows, (_ROW,)).null_sample(kind, rows) for rows in self.rows.values()]
            if any(sample.bounded for sample in samples):
                words = f"{mark.name(kind)} ({null_of(samples, apart, null_range(self.forest.frame))})"
                yield as_null(key_swatch(words, NULL_BAND), number)
            else:
                yield key_entry(mark.name(kind), mode="lines", line=NULL_LINE)


def _tick(look: Mapping[str, Any], colour: str) -> dict[str, Any]:
    return {**look, "color": colour, "line": {"color": colour, "width": 1}}


def _seen(panel: Panel, room: float) -> Iterator[bool]:
    """Whether each interval of a panel of that many pixels reaches beyond its marker."""
    for trace in panel.traces:
        bars = trace.error_x
        if bars.array is None or bars.arrayminus is None:
            continue
        for x, up, down in zip(trace.x, bars.array, bars.arrayminus, strict=True):
            if up > 0 or down > 0:
                low, at, high = (
                    panel.x.place(max(end, panel.x.low) if panel.x.log else end)
                    for end in (x - down, x, x + up)
                )
                yield max(high - at, at - low) * room > 3.5


def _reach(trace: go.Scatter) -> list[float]:
    """Every x that a trace covers, its error bars included."""
    found = [float(x) for x in trace.x]
    bars = trace.error_x
    if bars.array is not None:
        down = bars.array if bars.arrayminus is None else bars.arrayminus
        found += [float(x + up) for x, up in zip(trace.x, bars.array, strict=True)]
        found += [float(x - less) for x, less in zip(trace.x, down, strict=True)]
    return found
