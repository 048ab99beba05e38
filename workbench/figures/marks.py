"""Marks of a figure: traces of a series of rows, and their entries in the key.

Estimates are drawn in the colour of their series; a null distribution is always grey and named with its kind; published
numbers always have one colour, as crosses or as a line across all x, with paper and table in their hover text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from workbench.core.errors import InputError
from workbench.core.intervals import mean_interval
from workbench.figures.estimates import Sample, null_kinds, within_bounds
from workbench.figures.frames import band, short_name
from workbench.figures.text_widths import in_rows, legend_entry
from workbench.figures.theme import (
    GREY,
    NULL_BAND,
    NULL_EDGE,
    PUBLISHED,
    RED,
    SIZE,
    WIDTH,
    marker_of,
    translucent,
)
from workbench.figures.words import NULLS, STATISTIC, UNITS, in_words

_NEUTRAL = "#6E6E6E"  # of a key's entry that holds for all colours: neither black nor a null's
NEUTRAL_STYLE: dict[str, Any] = {
    "line": {"color": _NEUTRAL, "dash": "solid"}, "marker": {"color": _NEUTRAL, "symbol": "circle"},
}  # fmt: skip
PLACE = "place of the category"


@dataclass
class Categories:
    """The categorical axis of one panel: where each category stands, and which colours have a value there."""

    rows: pd.DataFrame
    """All rows of the panel, with the column `PLACE`."""
    column: str
    name: Any
    by: tuple[str | None, str]
    """The columns of headings and of categories."""
    color: str | None
    split: str | None
    """The column whose values are series: that of colours, or of categories that have separate looks."""
    places: Mapping[Any, int]
    """(heading, category) → its place along the axis."""
    words: Sequence[str]
    """The words at each place, headings included."""
    shown: dict[Any, set[int]] = field(default_factory=dict)
    shifts: dict[int, dict[Any, float]] = field(default_factory=dict)
    kinds: int = 0
    """How many kinds of published numbers a category of some panel has beside its estimates."""

    @property
    def apart(self) -> list[str]:
        return [name for name in (*self.by, self.color) if name is not None]

    def placed(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return the rows of another table about this panel, with their places."""
        rows = rows[rows[self.column] == self.name] if self.column in rows else rows
        heading, category = self.by
        heads = [None] * len(rows) if heading is None else rows[heading]
        places = {(head, short_name(value)): position for (head, value), position in self.places.items()}
        keys = zip(heads, rows[category].map(short_name), strict=True)
        rows = rows.assign(**{PLACE: [places.get(key, -1) for key in keys]})
        return rows[rows[PLACE] >= 0]

    def shift(self, position: int, slot: Any) -> float:
        """Return how far beside its category a colour or a kind of published numbers stands."""
        return self.shifts.get(position, {}).get(slot, 0.0)

    def sample(self) -> Sample:
        return Sample.means(self.rows, (PLACE,))


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
    null_range: str = "95 % range"
    aside: float = 0.0
    """How far from its place it is drawn, so that the bars of several series do not cover each other."""
    after: float = 0.0
    """How far after its place a bar alone is drawn, where only the last place has one."""
    value: Any = None
    """The common value of the rows: one of the column of colours."""
    slot: Any = None
    categories: Categories | None = None
    _found: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Results from the rows that are computed already: marks, key and axes ask for the same."""

    @property
    def colour(self) -> str:
        return self.style["line"]["color"]

    @property
    def many(self) -> bool:
        """Whether markers on all places would hide the line."""
        return self.rows[self.x].nunique() > 26

    @property
    def rowed(self) -> Categories:
        """The categorical axis of the series.

        Raises:
            InputError: it has none.
        """
        if self.categories is None:
            raise InputError("strokes and ticks are drawn by category; give the plot a column y")
        return self.categories

    def at(self, places: Iterable[Any]) -> list[float]:
        """Return where along the axis the series is drawn at its places."""
        if self.categories is None:
            return [position + self.aside for position in places]
        return [position + self.categories.shift(position, self.slot) for position in places]

    def named(self, trace: go.Scatter) -> go.Scatter:
        """A trace that belongs to this series."""
        return trace.update(name=self.label, legendgroup=self.group)

    def sample(self, over: str | None = None, *more: str) -> Sample:
        return self.once((over, *more), lambda: Sample.of(self.rows, (self.x, *more), over))

    def interval(self, over: str) -> pd.DataFrame:
        return self.once(("interval", over), lambda: self.sample(over).interval(over))

    def null(self, kind: str | None, how: str = "mean") -> pd.DataFrame:
        return self.once(("null", kind, how), lambda: self.sample().null(kind, self.rows, how))

    def once(self, key: Any, take: Callable[[], Any]) -> Any:
        if key not in self._found:
            self._found[key] = take()
        return self._found[key]

    def hover(self, words: str) -> str:
        name = f"{self.label}<br>" if self.label else ""
        return f"{name}{words}<br>{self.x} %{{x}}: %{{y:.4g}} {self.unit}".rstrip() + "<extra></extra>"


@dataclass(frozen=True)
class Mark:
    """Something drawn of every series: its traces, and its entries in the key."""

    depth: ClassVar[int] = 0
    """The order of drawing, from 0 at the back."""

    def within(self, panels: Sequence[Sequence[Series]]) -> Mark:
        """The same for a figure of these panels."""
        return self

    def traces(self, series: Series) -> Iterator[go.Scatter]:
        """Yield the traces of one series."""
        yield from ()

    def shapes(self) -> Iterator[dict[str, Any]]:
        """Yield the shapes of every panel, whatever it holds."""
        yield from ()

    def visible(self, entry: go.Scatter, traces: Sequence[tuple[go.Scatter, Any]], room: float) -> go.Scatter:
        """Return an entry of the key with what can be seen of its traces, each with its axis of ``room`` pixels."""
        return _says_how_wide(
            entry, [_widest(trace, axis) for trace, axis in traces if trace.fill == "toself"]
        )

    def together(self, panel: Sequence[Series]) -> Iterator[go.Scatter]:
        """Yield the traces of all series of a panel: by default each by itself."""
        for series in panel:
            yield from map(series.named, self.traces(series))

    def key(self, drawn: Sequence[Series], style: dict[str, Any]) -> Iterator[go.Scatter]:
        """Entries of the key, in the style that stands for all series."""
        yield from ()


@dataclass(frozen=True)
class Line(Mark):
    """The estimate against x: ``mean`` or ``median`` of all values at each place.

    Where the rows are estimates already, ``words`` say of what; None leaves the key to the colours. Two layers are two
    dots, without a line between them.
    """

    estimator: Literal["mean", "median"] = "mean"
    markers: bool = True
    words: str | None = ""
    depth: ClassVar[int] = 3

    def traces(self, series: Series) -> Iterator[go.Scatter]:
        level = series.sample().estimate(self.estimator)
        if len(level):
            mode = "lines+markers" if self.markers and not series.many else "lines"
            if self.markers and series.x == "layer" and len(level) == 2:
                mode = "markers"
            words = self._words(series)
            hover = series.hover(words)
            yield go.Scatter(
                x=level[series.x] + series.aside, y=level["value"], mode=mode, line=series.style["line"],
                marker=series.style["marker"], customdata=level["n"], text=level[series.x] if series.aside else None,
                hovertemplate=hover.replace("%{x}", "%{text}") if series.aside else hover,
            )  # fmt: skip

    def _words(self, series: Series) -> str:
        over = series.sample().counts(series.inputs)
        return self.words or ("one input" if over == "1 input" else f"{self.estimator} over {over}")

    def key(self, drawn: Sequence[Series], style: dict[str, Any]) -> Iterator[go.Scatter]:
        if self.words is None or not drawn:
            return
        words = _common([self._words(series) for series in drawn])
        bare = not self.markers or all(series.many for series in drawn)
        yield key_entry(words, "Lines", mode="lines" if bare else "lines+markers", **style)


@dataclass(frozen=True)
class Band(Mark):
    """The spread of an estimate: the 95 % confidence interval of its mean over a unit, or with ``quantiles`` a range.

    Quantiles in per cent, of all values or, with ``over``, of a unit's means; (25, 75) are quartiles. With
    ``columns`` the frame has the ends, and ``words`` name them. With ``bars`` it is a bar at each
    place, since many bands would hide each other. Of fewer than `FEW` units each has a thin line (with ``bars`` a tick)
    in place of the quartiles.
    """

    ci: float | None = 95
    over: str | None = None
    quantiles: tuple[float, float] | None = None
    columns: tuple[str, str] | None = None
    words: str = ""
    alpha: float = 0.2
    bars: bool = False
    depth: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if self.ci not in (95, None):
            raise InputError(f"ci is {self.ci!r}; intervals here are 95 % confidence intervals")

    def ends(self, series: Series) -> pd.DataFrame:
        """Columns ``low`` and ``high`` at each place."""
        if self.columns is not None:
            renamed = series.rows.rename(columns=dict(zip(self.columns, ("low", "high"), strict=True)))
            return renamed.groupby(series.x)[["low", "high"]].mean().dropna().reset_index()
        if self.quantiles is not None:
            ends = (0, 100) if self._few(series) else self.quantiles
            return series.sample(self.over).quantiles(ends, self.over)
        return series.interval(self.over or "input")

    def _few(self, series: Series) -> bool:
        return self.quantiles not in (None, (0, 100)) and series.sample(self.over).few(
            self.over, series.inputs
        )

    def _singles(self, series: Series) -> list[pd.DataFrame]:
        return series.sample(self.over).singles(self.over) if self._few(series) else []

    def _single_lines(self, series: Series, singles: Sequence[pd.DataFrame]) -> go.Scatter:
        """All lines of a series in one trace, or ticks where it has bars."""
        shift = series.aside + series.after if self.bars else 0.0
        x = [x_value for unit_rows in singles for x_value in (*(unit_rows[series.x] + shift), None)]
        y = [value for unit_rows in singles for value in (*unit_rows["value"], None)]
        if self.bars:
            tick = marker_of("line-ew-open", SIZE.tick, series.colour, WIDTH.fine)
            return go.Scatter(x=x, y=y, mode="markers", marker=tick, hoverinfo="skip")
        return go.Scatter(x=x, y=y, mode="lines", line=_thin(series.colour), hoverinfo="skip")

    def traces(self, series: Series) -> Iterator[go.Scatter]:
        ends, singles = self.ends(series), self._singles(series)
        if not (ends["high"] > ends["low"]).any():
            return
        if singles:
            yield self._single_lines(series, singles)
        elif self.bars:
            bar = {"color": series.colour, "width": WIDTH.fine, "dash": "solid"}
            yield _bars(ends[series.x] + series.aside + series.after, ends["low"], ends["high"], bar)
        else:
            edge = {"width": WIDTH.edge, "color": translucent(series.colour, 0.5), "dash": "solid"}
            fill = translucent(series.colour, self.alpha)
            yield band(ends[series.x], ends["low"], ends["high"], fill).update(line=edge)

    def says(self, series: Series) -> str:
        """Return the band in words."""
        if singles := self._singles(series):
            sample = series.sample(self.over)
            over = f"{len(singles)} {UNITS[self.over]}" if self.over else sample.counts()
            panel, _, rest = self.words.partition("IQR")  # "c: IQR over inputs, train batch"
            _, comma, which = rest.partition(", ")
            return f"{panel}each of {over}{comma}{which}"
        if self.words and not self._few(series):
            return self.words
        if self.columns is not None:
            return "interval of the frame"
        if self.quantiles is None:
            return f"95 % CI over {UNITS.get(self.over or 'input', self.over)}"
        sample = series.sample(self.over)
        over = UNITS[self.over] if self.over else sample.counts(series.inputs)
        low, high = (0, 100) if self._few(series) else self.quantiles
        names = {(25, 75): "IQR", (0, 100): "range"}
        return f"{names.get((low, high), f'{low:g} to {high:g} %')} over {over}"

    def key(self, drawn: Sequence[Series], style: dict[str, Any]) -> Iterator[go.Scatter]:
        banded = [member for member in drawn if self.ends(member).eval("high > low").any()]
        if banded:
            words = _common([self.says(series) for series in banded])
            if any(map(self._singles, banded)):
                line = _thin(style["line"]["color"] if len(banded) > 1 else banded[0].colour)
                tick = marker_of("line-ew-open", SIZE.tick, _NEUTRAL, WIDTH.fine)
                look: dict[str, Any] = {"mode": "markers", "marker": tick}
                look = look if self.bars else {"mode": "lines", "line": line}
                yield key_entry(words, "Ticks" if self.bars else "Thin lines", **look)
            elif self.bars:
                look = marker_of("line-ns-open", SIZE.ring, _NEUTRAL, WIDTH.bar)
                yield key_entry(words, "Bars", mode="markers", marker=look)
            else:
                alone = len({series.colour for series in banded}) == 1  # no other has one
                colour = banded[0].colour if alone else style["line"]["color"]
                # around an estimate, as no null is
                edge = {"width": WIDTH.bold, "color": colour, "dash": "solid"}
                glyph = "Pale bands" if self.alpha < 0.2 else "Dark bands" if self.alpha > 0.2 else "Bands"
                yield _key_swatch(words, translucent(colour, self.alpha + 0.1), glyph).update(line=edge)


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
            yield key_entry(f"one {self.by}", "Dots", mode="markers", marker=_dot(style["line"]["color"]))


@dataclass(frozen=True)
class Interval(Mark):
    """An estimate and its interval: the mean over a unit with its 95 % confidence interval.

    Where the frame holds the mean over everything, that is the estimate. With ``columns`` value, low and high stand in
    the frame, and ``words`` say what they are, and ``alone`` what a value without an interval is. ``hollow`` names a
    column whose true values have an open marker, and says what that means.
    """

    over: str = "input"
    columns: tuple[str, str, str] | None = None
    words: str = ""
    hollow: tuple[str, str] | None = None
    alone: str = ""
    depth: ClassVar[int] = 3

    def table(self, series: Series) -> pd.DataFrame:
        """Return columns ``value``, ``low``, ``high`` (NaN without an interval) and ``n`` at each place."""
        return series.once(("table", self), lambda: self._table(series.rows, series.x))

    def _table(self, rows: pd.DataFrame, column: str) -> pd.DataFrame:
        if self.columns is not None:
            ends = rows[[*self.columns]].set_axis(["value", "low", "high"], axis=1)
            return rows.assign(n=rows.get("n", np.nan), **ends)
        sample = Sample.of(rows, (column,), self.over)
        if self.over not in sample.units:
            table = sample.estimate("mean").assign(low=np.nan, high=np.nan, n=np.nan)
            if {"low", "high", "n"} <= set(rows):  # of a frame that holds them in the place of inputs
                ends = rows.groupby(column)[["low", "high", "n"]].first()
                table = table.drop(columns=[*ends]).join(ends, on=column)
        else:
            means = sample.rows.groupby([column, self.over], sort=False)["value"].mean()
            groups = means.groupby(level=0, sort=False)
            ends = [(at, *mean_interval(values)[:3], len(values)) for at, values in groups]
            table = pd.DataFrame(ends, columns=[column, "value", "low", "high", "n"])
            overall = Sample.means(rows, (column,))
            if not overall.units:
                overall_mean = overall.estimate("mean").set_index(column)["value"]
                table["value"] = table[column].map(overall_mean).fillna(table["value"])
        return within_bounds(table.astype({"low": float, "high": float}), rows)

    def traces(self, series: Series) -> Iterator[go.Scatter]:
        table = self.table(series).dropna(subset=["value"])
        if table.empty:
            return
        ends, value = table[["low", "high"]].astype(float), table["value"].astype(float)
        edge, marker = series.colour, {"size": SIZE.estimate, **series.style["marker"]}
        if self.alone:  # several may cover each other
            marker["opacity"] = ends.isna().all(axis=1).map({True: _SINGLE["opacity"], False: 1}).tolist()
        if self.hollow is not None:
            opened = table[self.hollow[0]].fillna(False).astype(bool)
            marker["color"] = opened.map({True: "white", False: edge}).tolist()
            marker["line"] = {"color": edge, "width": WIDTH.outline}
        words = series.categories.words if series.categories else None
        yield go.Scatter(
            x=series.at(table[series.x]), y=value, mode="markers", marker=marker,
            error_y={
                "type": "data", "symmetric": False, "color": edge, "thickness": WIDTH.bar, "width": 0,
                "array": (ends["high"] - value).fillna(0).clip(lower=0),
                "arrayminus": (value - ends["low"]).fillna(0).clip(lower=0),
            },
            text=[words[position] if words else f"{series.x} {position}" for position in table[series.x]],
            customdata=np.stack([ends["low"], ends["high"], table["n"].astype(float)], axis=-1),
            hovertemplate="%{text}<br>%{y:.4g} [%{customdata[0]:.4g}, %{customdata[1]:.4g}]<br>"
            "n = %{customdata[2]}<extra></extra>", cliponaxis=False,
        )  # fmt: skip

    def key(self, drawn: Sequence[Series], style: dict[str, Any]) -> Iterator[go.Scatter]:
        yield key_entry(self._says(drawn), "Markers", mode="lines+markers", **style)
        marker = style["marker"]
        if self.alone:
            yield key_entry(self.alone, "Pale markers", mode="markers", marker={**marker, **_SINGLE})
        column, words = self.hollow or ("", "")
        if words and any(series.rows[column].fillna(False).any() for series in drawn):
            edge = {"color": style["line"]["color"], "width": WIDTH.outline}
            yield key_entry(
                words, "Open markers", mode="markers", marker={**marker, "color": "white", "line": edge}
            )

    def _says(self, drawn: Sequence[Series]) -> str:
        """Return the estimator, its interval and its unit of sampling."""
        if self.words or self.columns is not None:
            return self.words or "value and interval of the frame"
        counts = [int(n) for series in drawn for n in self.table(series)["n"].dropna()]
        if not counts:
            return "mean"
        many = str(min(counts)) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
        return f"mean over {many} {UNITS.get(self.over, self.over)}, 95 % CI"

    def visible(self, entry: go.Scatter, traces: Sequence[tuple[go.Scatter, Any]], room: float) -> go.Scatter:
        reaches = [wide * room > 3.5 for trace, axis in traces for wide in _bar_shares(trace, axis)]
        if entry.name.endswith("95 % CI") and not self.words and reaches and not any(reaches):
            entry.name += " within the marker"
        return entry


@dataclass(frozen=True)
class Stroke(Mark):
    """A grey stroke at the value of a column in each category, as a floor, with its name in the key."""

    column: str = "floor"
    name: str = "floor"
    depth: ClassVar[int] = 1

    def together(self, panel: Sequence[Series]) -> Iterator[go.Scatter]:
        categories, rows = panel[0].rowed, panel[0].rowed.rows
        rows = rows[rows[self.column].notna()] if self.column in rows else rows.iloc[:0]
        if len(rows):
            slot = next(iter(categories.shown)) if len(categories.shown) == 1 else PLACE  # else in the middle
            yield go.Scatter(
                x=[position + categories.shift(position, slot) for position in rows[PLACE]], y=rows[self.column],
                mode="markers", marker=_STROKE, hovertemplate=f"{self.name} %{{y:.4g}}<extra></extra>",
            )  # fmt: skip

    def key(self, drawn: Sequence[Series], style: dict[str, Any]) -> Iterator[go.Scatter]:
        if any([*self.together([series])] for series in drawn):
            yield key_entry(self.name, "Strokes", mode="markers", marker=_STROKE, legend=True)


@dataclass(frozen=True)
class Null(Mark):
    """The null distribution in grey: its range, and its mean as a dotted line; always named with its kind.

    Of several series in a panel the band reaches from the least end to the largest, and the key says over how many
    where they differ; of series that stand aside of each other each has its own, as a box behind its
    estimate. ``kind`` keeps one kind of several; a second kind is outlined. ``words`` say what of the model is random,
    instead of the kind's name.
    """

    kind: str | None = None
    words: str = ""
    ends: str = ""
    """The meaning of its ends, where that is not the same in all panels."""
    estimator: Literal["mean", "median"] = "mean"
    """Of the nulls of all values at a place, as of the values themselves."""
    pooled: Mapping[str | None, int] = field(default_factory=dict)
    """Every kind of the figure, so that each looks the same in all panels, and how many differing series share a band
    of it at most; a `Plot` finds them itself."""
    bars: bool = False
    """Whether each place has a bar behind it, in place of a band: places that no line joins, as of heads."""
    single: bool = False
    """Whether no panel has the null of several series, so that its mean is drawn as well; a `Plot` finds it itself."""

    def together(self, panel: Sequence[Series]) -> Iterator[go.Scatter]:
        if panel[0].categories is not None:
            yield from self._boxes(panel[0].categories)
            return
        box = {"color": NULL_BAND, "width": 7, "dash": "solid"}
        for kind in self.kinds(series.rows for series in panel):
            if self._boxed(panel, kind):
                for series, level in ((member, self._of(member, kind)) for member in panel):
                    if level["null_low"].notna().any():
                        places = level[series.x] + series.aside
                        yield _bars(places, level["null_low"], level["null_high"], box)
                continue
            number = [*self.pooled].index(kind) if kind in self.pooled else 0
            before = -math.inf
            for last, part in self._as_far(panel, kind):  # where a model ends its null does
                ends = self.level(part, kind)
                ends = ends[ends[panel[0].x].astype(float).between(before, last)]
                ends, before = ends.dropna(subset=["null_low", "null_high"]), last
                bounds = ends[panel[0].x], ends["null_low"], ends["null_high"]
                if len(ends) == 1:  # a band would have no width, and a bar has no edge
                    yield _bars(*bounds, box | {"color": NULL_EDGE})
                elif self.bars:
                    yield _bars(*bounds, box | {"color": NULL_EDGE, "width": WIDTH.thick})
                elif len(ends):
                    x = bounds[0].to_numpy(float, copy=True)
                    x[[0, -1]] += 1.2 * max(abs(series.aside) for series in panel) * np.array([-1, 1])
                    yield _as_null(band(x, *bounds[1:], NULL_BAND), number)
            level = self.level(panel, kind)
            finite = level.notna().any()
            if (
                finite["null_mean"]
                and not self.bars
                and (len(self._tables(panel, kind)) == 1 or not finite["null_low"])
            ):
                yield go.Scatter(
                    x=level[panel[0].x], y=level["null_mean"], mode="lines", line=NULL_LINE,
                    hovertemplate=f"{self.name(kind)}<br>%{{x}}: %{{y:.4g}}<extra></extra>",
                )  # fmt: skip

    def _boxes(self, categories: Categories) -> Iterator[go.Scatter]:
        """Yield a box for each category, seen on both sides of the marker on it; without ends a stroke at the mean."""
        for kind in self.kinds([categories.rows]):
            level = categories.sample().null(kind, categories.rows)
            for position, mean, low, high in level.itertuples(index=False):
                ends = [position - _NULL_HALF, position + _NULL_HALF]
                if pd.notna(low) and pd.notna(high):
                    yield _as_null(band(ends, [low] * 2, [high] * 2, NULL_BAND), [*self.pooled].index(kind))
                elif pd.notna(mean):
                    hover = f"{self.name(kind)}<br>%{{y:.4g}}<extra></extra>"
                    yield go.Scatter(x=ends, y=[mean] * 2, mode="lines", line=NULL_LINE, hovertemplate=hover)

    def _boxed(self, panel: Sequence[Series], kind: str | None) -> bool:
        return any(series.aside for series in panel) and self.pooled.get(kind, 1) > 1

    def name(self, kind: str | None) -> str:
        """Return its words in the key."""
        return f"null: {self.words}" if self.words else null_name(kind)

    def level(self, panel: Sequence[Series], kind: str | None) -> pd.DataFrame:
        """Mean, low and high of the null at each place: of several series the widest band."""
        level = pd.concat(self._tables(panel, kind)).groupby(panel[0].x)
        return level.agg({"null_mean": "mean", "null_low": "min", "null_high": "max"}).reset_index()

    def _as_far(self, panel: Sequence[Series], kind: str | None) -> list[tuple[float, list[Series]]]:
        """Every last place of a null, and the series whose null comes as far, least first."""
        lasts = [
            (float(self._of(member, kind)[member.x].max()), member)
            for member in panel
            if len(self._of(member, kind))
        ]
        ends = sorted({last for last, _ in lasts})
        return [(end, [series for last, series in lasts if last >= end]) for end in ends]

    def _tables(self, panel: Sequence[Series], kind: str | None) -> list[pd.DataFrame]:
        return [self._of(series, kind) for series in panel if len(self._of(series, kind))]

    def _of(self, series: Series, kind: str | None) -> pd.DataFrame:
        return series.null(kind, self.estimator)

    def within(self, panels: Sequence[Sequence[Series]]) -> Null:
        """With the most series of one panel whose nulls of a kind differ, so that one band stands for all; else 1."""
        kinds = self.kinds(series.rows for panel in panels for series in panel)
        if panels[0] and panels[0][0].categories is not None:
            return replace(self, pooled=dict.fromkeys(kinds, 1))
        pooled = {kind: max(self._differing(panel, kind) for panel in panels if panel) for kind in kinds}
        most = max((len(self._tables(panel, kind)) for panel in panels if panel for kind in kinds), default=1)
        return replace(self, pooled=pooled, single=most == 1)

    def _differing(self, panel: Sequence[Series], kind: str | None) -> int:
        tables = self._tables(panel, kind)
        if len(tables) < 2:
            return 1
        ends = pd.concat(tables).groupby(panel[0].x)
        least, most = ends.min(), ends.max()
        return len(tables) if ((most - least) > 1e-9 * most.abs()).any(axis=None) else 1

    def kinds(self, parts: Iterable[pd.DataFrame]) -> list[str | None]:
        """The kinds that rows hold and that are drawn."""
        kinds = dict.fromkeys(kind for rows in parts for kind in null_kinds(rows))
        return [kind for kind in kinds if self.kind is None or kind == self.kind]

    def key(self, drawn: Sequence[Series], style: dict[str, Any]) -> Iterator[go.Scatter]:
        for number, kind in enumerate(self.kinds(series.rows for series in drawn)):
            categories = _categories_of(drawn)
            columns = categories[0].apart if categories else ()
            samples = [source.sample().null_sample(kind, source.rows) for source in categories or drawn]
            samples = [sample for sample in samples if len(sample.rows)]
            several = self.pooled.get(kind, 1)
            if not any(sample.bounded for sample in samples):
                many = f" (mean of {several} curves)" if several > 1 else ""
                yield key_entry(self.name(kind) + many, "Grey", mode="lines", line=NULL_LINE, legend=True)
                continue
            boxed = self._boxed(drawn, kind)
            many = f"; envelope of {several} curves" if several > 1 else ""
            many = "; each curve's own" if boxed else many
            alone = any(len(self._of(series, kind).dropna(subset=["null_low"])) == 1 for series in drawn)
            many += "; a bar at a single place" if alone and not boxed and not categories else ""
            words = f"{self.name(kind)} ({_null_of(samples, columns, drawn[0].null_range, self.ends)}{many})"
            entry = _as_null(_key_swatch(words, NULL_BAND, "Grey", legend=True), number)
            line = (
                {"line": {**NULL_LINE, "width": WIDTH.bold}}
                if self.single and not number and not self.bars
                else {}
            )
            yield entry.update(line)


@dataclass(frozen=True)
class Published(Mark):
    """Numbers that papers print: a red cross at its place, a thin line where a number holds for every x.

    ``rows`` are those of `workbench.published`; numbers of other metrics and of models that are not drawn are left out.
    The hover text names paper, table and row. With ``ranges`` several numbers of one category are drawn as their
    median, with a line from the least to the largest; ``words`` replace the papers in the key; ``beside``
    sets them beside the estimates of a category, not upon them; a second kind has another ``symbol``.
    """

    rows: pd.DataFrame | None = None
    ranges: bool = False
    beside: bool = False
    words: str = ""
    symbol: str = PUBLISHED["symbol"]
    depth: ClassVar[int] = 4

    def together(self, panel: Sequence[Series]) -> Iterator[go.Scatter]:
        if panel[0].categories is not None:
            yield from self._by_category(panel[0].categories)
            return
        everywhere = sorted(
            {position for series in panel for position in series.rows[series.x].dropna().unique()}
        )
        for series in panel:
            for position, rows in self.matching(series):
                x = (
                    [position]
                    if position is not None
                    else list(dict.fromkeys((everywhere[0], everywhere[-1])))
                )
                for row in rows.to_dict("records"):
                    trace = _published_trace(x, [row["value"]] * len(x), [row] * len(x))
                    yield trace if len(x) == 1 else trace.update(mode="lines", line=_PUBLISHED_LINE)

    def by_slot(self, categories: Categories) -> dict[tuple[int, Any], list[dict[str, Any]]]:
        """Return the numbers of each category, by its place and the colour that they belong to, if any."""
        numbers: dict[tuple[int, Any], list[dict[str, Any]]] = {}
        if self.rows is not None:
            alone = self.beside and len(categories.shown) == 1
            for row in categories.placed(self.rows[self.rows["value"].notna()]).to_dict("records"):
                colour = row.get(categories.color)
                slot = colour if colour in categories.shown and not alone else None
                numbers.setdefault((row[PLACE], slot), []).append(row)
        return numbers

    def _by_category(self, categories: Categories) -> Iterator[go.Scatter]:
        for (position, slot), rows in self.by_slot(categories).items():
            x = position + categories.shift(position, id(self) if slot is None else slot)
            values = np.asarray([row["value"] for row in rows], dtype=float)
            several = self.ranges and len(rows) > 1
            middle = [float(np.median(values))] if several else values.tolist()
            trace = _published_trace([x] * len(middle), middle, rows[: len(middle)])
            trace.marker.symbol = self.symbol
            if categories.kinds > 1:
                trace.marker.size = 5.5
            if several:
                trace.error_y = {
                    "type": "data", "symmetric": False, "array": [values.max() - middle[0]],
                    "arrayminus": [middle[0] - values.min()], "color": RED, "thickness": WIDTH.bar, "width": 0,
                }  # fmt: skip
                trace.text = f"median of {len(rows)}, {values.min():.4g} to {values.max():.4g}"
            elif any(pd.notna(row.get("spread")) for row in rows):
                spread = [row["spread"] for row in rows]
                trace.error_y = {"type": "data", "array": spread, "color": RED, "thickness": WIDTH.fine}
            yield trace

    def says(self, papers: Iterable[str]) -> str:
        """Return their words in the key."""
        named = ", ".join(dict.fromkeys(papers))
        return in_words(f"published{self.words or (f' ({named})' if named else '')}")

    def matching(self, series: Series) -> Iterator[tuple[Any, pd.DataFrame]]:
        """The rows about this series, place by place; None for every place."""
        if self.rows is None or self.rows.empty:
            return
        printed = self.rows[
            self.rows["metric"].isin(series.rows["metric"].unique()) & self.rows["value"].notna()
        ]
        if "model" in printed and printed["model"].notna().any():
            printed = printed[
                printed["model"].map(short_name).isin(series.rows["model"].map(short_name).unique())
            ]
        for column in ("axis", "statistic", "convention", "candidate", "standardize"):
            if column in printed and column in series.rows:
                printed = printed[
                    printed[column].isna() | printed[column].isin(series.rows[column].dropna().unique())
                ]
        if series.x in printed:
            for position, at in printed.groupby(series.x, dropna=False):
                yield (None if pd.isna(position) else position), at
        elif len(printed):
            yield None, printed

    def key(self, drawn: Sequence[Series], style: dict[str, Any]) -> Iterator[go.Scatter]:
        categories = _categories_of(drawn)
        if categories:
            traces = [trace for part_rows in categories for trace in self._by_category(part_rows)]
            rows = [
                row for part_rows in categories for part in self.by_slot(part_rows).values() for row in part
            ]
            if traces:
                bars = any(trace.error_y.array for trace in traces)
                words = self.says(str(row["paper"]) for row in rows if pd.notna(row.get("paper")))
                look = {"mode": "lines+markers" if bars else "markers", "marker": traces[0].marker}
                line = {**_PUBLISHED_LINE, "width": WIDTH.bar}
                yield key_entry(words, f"Red {_SIGNS[self.symbol]}", **look, line=line, legend=True)
            return
        printed = [part_rows for series in drawn for _, part_rows in self.matching(series)]
        if printed:
            papers = [str(name) for part_rows in printed for name in part_rows.get("paper", ())]
            drawn_as = {trace.mode for trace in self.together(drawn)}
            look = {"marker": PUBLISHED} | ({"line": _PUBLISHED_LINE} if "lines" in drawn_as else {})
            glyph = f"Red {_SIGNS[self.symbol]}" if "markers" in drawn_as else "Red"
            yield key_entry(self.says(papers), glyph, mode="+".join(sorted(drawn_as)), **look, legend=True)


@dataclass(frozen=True)
class Points(Mark):
    """Single values over the lines: what was measured beside them, or where a curve ends.

    ``rows`` hold them, with the columns of the frame; they are drawn in the panel whose rows share their values of
    ``by``. They are grey. Without a symbol their words replace a marker.
    """

    rows: pd.DataFrame = field(default_factory=pd.DataFrame)
    words: str = ""
    by: tuple[str, ...] = ("metric",)
    symbol: str = "asterisk-open"
    depth: ClassVar[int] = 5

    def together(self, panel: Sequence[Series]) -> Iterator[go.Scatter]:
        rows = self.rows
        for name in self.by if len(rows) else ():
            rows = rows[rows[name] == panel[0].rows[name].iloc[0]]
        if len(rows):
            hover = f"{self.words}<br>%{{x:.4g}}: %{{y:.4g}} %{{text}}<extra></extra>"
            mark = {"mode": "markers", "marker": self._marker, "text": rows.get("words")}
            label = {"mode": "text", "text": [self.words] * len(rows), "textposition": "middle left"}
            yield go.Scatter(
                x=rows[panel[0].x], y=rows["value"], name=self.words, cliponaxis=False, hovertemplate=hover,
                **(mark if self.symbol else label),
            )  # fmt: skip

    @property
    def _marker(self) -> dict[str, Any]:
        return marker_of(self.symbol, SIZE.large, GREY, WIDTH.bar)

    def key(self, drawn: Sequence[Series], style: dict[str, Any]) -> Iterator[go.Scatter]:
        if len(self.rows) and self.symbol:
            glyph = "Stars" if self.symbol == "asterisk-open" else "Crosses"
            yield key_entry(self.words, glyph, mode="markers", marker=self._marker, legend=True)


@dataclass(frozen=True)
class Rule(Mark):
    """A level that is the same everywhere, as a trivial predictor or no change: a thin line with its name in the key.

    With ``column`` each panel has its own, the largest value of that column; where it is empty there is none.
    Across categories the value may be a mapping by panel.
    """

    value: Any = 0.0
    name: str = ""
    column: str | None = None

    def together(self, panel: Sequence[Series]) -> Iterator[go.Scatter]:
        categories = panel[0].categories
        if categories is not None:
            level = self.level(categories)
            ends = [-0.6, len(categories.words) - 0.4]
        elif self._there(panel):
            level = (
                self.value if self.column is None else max(member.rows[self.column].max() for member in panel)
            )
            rows = [
                series.rows if self.column is None else series.rows.dropna(subset=[self.column])
                for series in panel
            ]
            places = pd.concat([own[panel[0].x] for own in rows]).dropna().astype(float)
            ends = [places.min(), places.max()]
        else:
            return
        if np.isfinite(level):
            yield go.Scatter(x=ends, y=[level] * 2, mode="lines", line=RULE_LINE, hoverinfo="skip")

    def level(self, categories: Categories) -> float:
        """Return the value in a panel; NaN where it has none."""
        return self.value.get(categories.name, math.nan) if isinstance(self.value, Mapping) else self.value

    def _there(self, panel: Sequence[Series]) -> bool:
        return self.column is None or any(series.rows[self.column].notna().any() for series in panel)

    def key(self, drawn: Sequence[Series], style: dict[str, Any]) -> Iterator[go.Scatter]:
        if self.name and self._there(drawn):
            yield key_entry(self.name, "Thin line", mode="lines", line=RULE_LINE, legend=True)


@dataclass(frozen=True)
class At(Mark):
    """One place along x that is marked, as the layer one looks at: a dashed line through the panel."""

    place: float = 0.0
    name: str = ""
    dash: str = "dash"

    @property
    def line(self) -> dict[str, Any]:
        return {"color": GREY, "dash": self.dash, "width": WIDTH.fine}

    def shapes(self) -> Iterator[dict[str, Any]]:
        line = {"x0": self.place, "x1": self.place, "y0": 0, "y1": 1, "yref": "domain"}
        yield {"type": "line", "line": self.line, "layer": "below", **line}

    def key(self, drawn: Sequence[Series], style: dict[str, Any]) -> Iterator[go.Scatter]:
        words = self.name or f"at {self.place:g}"
        yield key_entry(words, "Upright line", mode="lines", line=self.line, legend=True)


NOISE = "Gaussian noise for V"  # a null of the values
NULL_LINE = {"color": GREY, "dash": "dot"}
_SINGLE = {"opacity": 0.6}
_NULL_HALF = 0.45  # of a category: a null is seen on both sides of the marker on it
_STROKE = marker_of("line-ns-open", SIZE.stroke, GREY, WIDTH.bold)
_VISIBLE = 0.014  # of the axis: a band is as wide as a line there, and hidden by it
_PUBLISHED_LINE = {"color": RED, "dash": "solid", "width": WIDTH.fine}
_SIGNS = {"x-thin-open": "×", "cross-thin-open": "+"}  # of published numbers, as a caption writes them
RULE_LINE = {"color": GREY, "dash": "solid", "width": WIDTH.rule}


def _common(words: Sequence[str]) -> str:
    """Return the common words; of texts that differ only in numbers all numbers, else all texts with 'or'."""
    words_once = list(dict.fromkeys(words))
    columns = [
        list(dict.fromkeys(column)) for column in zip(*(each.split() for each in words_once), strict=False)
    ]
    numbers = all(len(column) == 1 or all(map(str.isdigit, column)) for column in columns)
    if numbers and len({len(each.split()) for each in words_once}) == 1:
        spans = [sorted(column, key=int) if len(column) > 1 else column for column in columns]
        return " ".join(
            " or ".join(group) if len(group) < 3 else f"{group[0]} to {group[-1]}" for group in spans
        )
    return f"{words_once[0]} (or {'; '.join(each.split(' over ')[-1] for each in words_once[1:])})"


def _says_how_wide(entry: go.Scatter, widths: Sequence[float]) -> go.Scatter:
    """A band's entry in the key, which names a hidden band: its widest parts as shares of the axis, panel by panel."""
    hidden = bool(widths) and all(width < _VISIBLE for width in widths)
    seen = entry.fillcolor == NULL_BAND and entry.line.dash != "dot"  # a null without a line: its edges show
    if hidden and entry.fill == "toself" and not seen:
        name, more = entry.name, "narrower than the line"
        entry.update(name=f"{name[:-1]}, {more})" if name.endswith(")") else f"{name}, {more}")
    return entry


def _widest(trace: go.Scatter, axis: Any) -> float:
    """Return the widest place of a band as a share of the axis."""
    ends = [axis.place(max(float(y), axis.low) if axis.log else float(y)) for y in trace.y]
    half = len(ends) // 2
    return max(abs(ends[index] - ends[2 * half - 1 - index]) for index in range(half))


def _bar_shares(trace: go.Scatter, axis: Any) -> Iterator[float]:
    """Yield how far each interval reaches beyond its value, as a share of the axis."""
    letter = "x" if trace.error_x.array is not None else "y"
    bars = trace[f"error_{letter}"]
    if bars.array is None or bars.arrayminus is None:
        return
    for value, up, down in zip(trace[letter], bars.array, bars.arrayminus, strict=True):
        if up > 0 or down > 0:
            ends = (value - down, value, value + up)
            low, at, high = (axis.place(max(end, axis.low) if axis.log else end) for end in ends)
            yield max(high - at, at - low)


def _categories_of(drawn: Iterable[Series]) -> list[Categories]:
    """Return the categorical axes of the panels of these series, each once."""
    return [*{id(series.categories): series.categories for series in drawn if series.categories}.values()]


def lying(trace: go.Scatter) -> go.Scatter:
    """Return a trace on its side: places along y, values along x."""
    hover, bars = (trace.hovertemplate or "").replace("%{y", "%{x") or None, trace.error_y.to_plotly_json()
    return trace.update(x=trace.y, y=trace.x, error_x=bars, hovertemplate=hover, overwrite=True).update(
        error_y=None
    )


def key_entry(name: str, glyph: str = "", legend: bool = False, **look: Any) -> go.Scatter:
    """Return an entry of the key: a trace that is nowhere.

    With a ``glyph`` it describes a mark ("Bands: 95 % CI over inputs"), and the caption has it instead of the legend;
    with ``legend`` only where the legend's row has no room, or the words are a statistic.
    """
    meta = {"glyph": glyph, "legend": legend} if glyph else None
    return go.Scatter(x=[None], y=[None], name=name, hoverinfo="skip", meta=meta, **look)


def in_legend(key: Sequence[go.Scatter], width: float, font: float) -> tuple[list[go.Scatter], list[str]]:
    """Split a key into the entries of a legend of one row and the sentences of a caption about all other marks.

    Series without a glyph are always in the legend. The words in brackets of a null are in the caption.
    """
    shown, sentences = [entry for entry in key if entry.meta is None], []
    for entry in (entry for entry in key if entry.meta is not None):
        glyph, name = entry.meta["glyph"], entry.name
        head, _, ends = name.removesuffix(")").partition(" (")
        short = head if glyph == "Grey" else name
        of_null = [f"Grey ({head.removeprefix('null: ')}): {ends}."] if ends and glyph == "Grey" else []
        names = [one.name for one in shown]
        fits = legend_entry(short, font) <= width and len(in_rows([*names, short], width, font)) == 1
        if entry.meta["legend"] and fits and not STATISTIC.search(short):
            shown.append(entry.update(name=short))
            sentences += of_null
        else:
            sentences += of_null or [f"{glyph}: {name}."]
    return shown, list(dict.fromkeys(sentences))


def coloured(value: float, axis: str) -> go.Scatter:
    """A trace that is nowhere, so that a colour axis has a bar."""
    marker = {"color": [value], "coloraxis": axis}
    return go.Scatter(x=[None], y=[None], mode="markers", marker=marker, showlegend=False, hoverinfo="skip")


def _key_swatch(name: str, colour: str, glyph: str = "", legend: bool = False) -> go.Scatter:
    """An entry of the key for a band."""
    line = {"width": 0, "color": colour}
    return key_entry(name, glyph, legend, mode="lines", fill="toself", fillcolor=colour, line=line)


def _bars(places: pd.Series, low: pd.Series, high: pd.Series, line: dict[str, Any]) -> go.Scatter:
    """An upright line at each place."""
    x = [x_value for at in places for x_value in (at, at, None)]
    y = [end for pair in zip(low, high, strict=True) for end in (*pair, None)]
    return go.Scatter(x=x, y=y, mode="lines", line=line, hoverinfo="skip")


def _thin(colour: str) -> dict[str, Any]:
    return {"color": translucent(colour, 0.55), "width": WIDTH.single, "dash": "solid"}


def _dot(colour: str) -> dict[str, Any]:
    return marker_of("circle", SIZE.dot, translucent(colour, 0.5))


def _as_null(trace: go.Scatter, number: int) -> go.Scatter:
    """A band in the look of a null distribution: the first plain grey, a second one in a dark outline.

    Its edge goes all around, so that it is seen where it is narrower than a line.
    """
    fill, width, edge = ("rgba(120,120,120,0.05)", 1, "#333333") if number else (NULL_BAND, 0.7, NULL_EDGE)
    if trace.x[0] is not None:
        trace.update(x=[*trace.x, trace.x[0]], y=[*trace.y, trace.y[0]])
    return trace.update(fillcolor=fill, line={"width": width, "color": edge, "dash": "solid"})


def null_name(kind: str | None) -> str:
    """A null distribution as a key calls it."""
    return f"null: {NULLS.get(kind, kind.replace('_', ' '))}" if kind else "null distribution"


def _null_of(
    samples: Sequence[Sample], columns: Sequence[str] = (), ends: str = "95 % range", of: str = ""
) -> str:
    """Return the meaning of a null's ends: the mean, or one head or input (or else the last unit) of several.

    ``ends`` is what `null_range` says of the frame; ``of`` says what the ends are of in other words.
    Units in ``apart`` are what the figure tells apart, so they are not sampled over.
    """
    units = [[unit for unit in sample.units if unit not in columns] for sample in samples if sample.bounded]
    named = [
        next((unit for unit in ("head", "input", *sample_units[-1:]) if unit in sample_units), "")
        for sample_units in units
    ]
    phrases = dict.fromkeys(f"one {unit}" if unit else "the mean" for unit in named)
    return f"{ends} of {of or ' or '.join(phrases)}"


def _published_trace(x: Sequence[Any], y: Sequence[Any], rows: Sequence[Mapping[str, Any]]) -> go.Scatter:
    """Published numbers in their one look, with paper, table and row in the hover text."""
    hover = [
        ", ".join(str(row[name]) for name in ("paper", "table", "row") if not pd.isna(row.get(name)))
        for row in rows
    ]
    return go.Scatter(
        x=x, y=y, mode="markers", marker=PUBLISHED, text=hover, cliponaxis=False, showlegend=False,
        hovertemplate="published: %{text}<br>%{y:.4g}<extra></extra>",
    )  # fmt: skip
