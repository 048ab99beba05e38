"""Grids of maps: numbers over a patch grid, a row of panels per input and a column per layer and head, one scale."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from workbench.core.errors import InputError
from workbench.figures.composition import Axis, Panel, compose
from workbench.figures.frames import short_name, without_provenance
from workbench.figures.measuring import line_count, widest, wrap
from workbench.figures.overlays import OVERLAY, cells, data_uri, need_columns, under_cells
from workbench.figures.theme import theme_of

_NEEDS = ("row", "column", "value")
_WIDEST = 4.5  # so many maps of the largest size fit a page
_NARROW = 0.75  # of a map's width, the one image of all maps
_BAR = 5.5  # letters, of a colour bar with its title


@dataclass(frozen=True)
class Maps:
    """A map for each value of the columns, side by side, in a row for each value of ``rows``; all share one scale.

    Values of a categorical column stand in its order, numbers by their size, others as they appear.

    Args:
        frame: a row per number of a patch grid, with columns row, column and value.
        rows: the column whose values have a row of maps each.
        cols: columns whose values, the last changing fastest, have a column of maps each; the first ones are headings.
        under: an image for each row, in their order: shown first, and with ``overlay`` faded under its maps.
        overlay: whether maps lie over the images.
        title: what the numbers are, beside the colour bar.
        ends: from where to where the colours reach; by default from 0 to the largest value.
        names: what headings say of a value.
    """

    frame: pd.DataFrame
    rows: str = "input"
    cols: tuple[str, ...] = ("layer", "head")
    under: Sequence[np.ndarray] | None = None
    overlay: bool = True
    title: str = ""
    ends: tuple[float, float] | None = None
    names: Mapping[Any, str] = field(default_factory=dict)

    def figure(self, width: str = "page") -> go.Figure:
        """The figure, at a printed width of `workbench.figures.theme.WIDTHS`, or "slides".

        Raises:
            InputError: a missing column, images and rows that differ in number, a row without one of the maps, or a
                map with more or fewer numbers than its grid has cells.
        """
        frame = without_provenance(self.frame)
        need_columns(frame, (self.rows, *self.cols, *_NEEDS), "a frame of maps")
        lines = [*dict.fromkeys(frame[self.rows])]
        if self.under is not None and len(self.under) != len(lines):
            raise InputError(f"{len(self.under)} images for {len(lines)} {self.rows}s; give one each")
        grid = int(frame["row"].max()) + 1, int(frame["column"].max()) + 1
        columns = _in_order(frame, self.cols)
        keys = [self.rows, *self.cols]
        maps = dict(iter(frame.groupby(keys, sort=False, observed=True)))
        faded: list[str | None] = [None] * len(lines)
        if self.overlay and self.under is not None:
            faded = [data_uri(image, fade=True) for image in self.under]
        panels = []
        for number, line in enumerate(lines):
            side = self._say(self.rows, line)
            if self.under is not None:
                title = "" if number else self.rows
                panels.append(image_panel(self.under[number], grid, side, title))
            for column in columns:
                where = ", ".join(map(self._say, self.cols, column))
                values = _grid_of(f"{side}, {where}", maps.get((line, *column)), grid)
                title = "" if number else self._say(self.cols[-1], column[-1])
                side_title = side if self.under is None and column == columns[0] else ""
                panels.append(map_panel(values, f"{side}<br>{where}", title, side_title, image=faded[number]))
        return self._composed(panels, columns, width, any(faded))

    def _composed(self, panels: list[Panel], columns: list[tuple], width: str, over: bool) -> go.Figure:
        first = int(self.under is not None)
        return compose_maps(
            panels, len(columns) + first, self.ends or (0.0, float(self.frame["value"].max())), self.title, width,
            scale=OVERLAY if over else None, last=self.cols[-1],
            headings={} if len(self.cols) == 1 else self._headings(columns, first),
        )  # fmt: skip

    def _headings(self, columns: list[tuple], first: int) -> dict[tuple[int, ...], str]:
        """The places of columns that all but the last of their values are common to, and these values in words."""
        found = {}
        for head, own in itertools.groupby(range(len(columns)), lambda place: columns[place][:-1]):
            found[tuple(place + first for place in own)] = ", ".join(map(self._say, self.cols[:-1], head))
        return found

    def _say(self, column: str, value: Any) -> str:
        if value in self.names:
            return self.names[value]
        if column == "model":
            return short_name(value)
        return f"{column} {value}" if column in ("layer", "head") else str(value)

    def _repr_mimebundle_(self, *args: Any, **kwargs: Any) -> Any:
        return self.figure()._repr_mimebundle_(*args, **kwargs)


def _in_order(frame: pd.DataFrame, cols: Sequence[str]) -> list[tuple]:
    """The combinations of values that the columns hold, the last changing fastest."""
    held = frame[[*cols]].drop_duplicates(ignore_index=True)
    places = held.copy()
    for name, own in held.items():
        if not isinstance(own.dtype, pd.CategoricalDtype) and not pd.api.types.is_numeric_dtype(own):
            places[name] = own.map({value: place for place, value in enumerate(dict.fromkeys(own))})
    ordered = held.loc[places.sort_values([*cols], kind="stable").index]
    return [*ordered.itertuples(index=False, name=None)]


def _grid_of(place: str, rows: pd.DataFrame | None, grid: tuple[int, int]) -> np.ndarray:
    count = 0 if rows is None else len(rows)
    if rows is None or count != grid[0] * grid[1] or rows.duplicated(["row", "column"]).any():
        raise InputError(
            f"{place}: {count} values for a map of {grid[0]} × {grid[1]} cells; different patch grids do not fit one "
            "figure, and every row needs the same maps"
        )
    values = np.full(grid, np.nan)
    values[rows["row"].astype(int), rows["column"].astype(int)] = rows["value"].astype(float)
    return values


def map_panel(
    values: np.ndarray | list[list[None]],
    label: str,
    title: str = "",
    side: str = "",
    image: str | None = None,
    shapes: Sequence[dict[str, Any]] = (),
) -> Panel:
    """A map with its title above, words at its left side, and an image (`data_uri`) beneath."""
    down, across = len(values), len(values[0])
    x, y = Axis("", -0.5, across - 0.5, bare=True), Axis(side, down - 0.5, -0.5, bare=True)
    images = () if image is None else ({"source": image, **under_cells(down, across)},)
    return Panel([cells(values, label)], x, y, title, images=images, shapes=shapes)


def image_panel(
    image: np.ndarray, grid: tuple[int, int], label: str, title: str = "", side: str = "", **more: Any
) -> Panel:
    """An image in the place of a map: plotly draws it where there is a trace, be it empty."""
    return map_panel([[None] * grid[1]] * grid[0], label, title, side, data_uri(image), **more)


def compose_maps(
    panels: Sequence[Panel],
    across: int,
    ends: tuple[float, float],
    title: str,
    width: str = "page",
    *,
    scale: Any = None,
    headings: Mapping[tuple[int, ...], str] | None = None,
    image: np.ndarray | None = None,
    last: str = "",
) -> go.Figure:
    """Panels of `map_panel`, of square cells, beside the one colour bar of them all.

    Args:
        across: panels in a row.
        ends: from where to where the colours reach.
        title: what the numbers are, beside the colour bar.
        scale: of colours; by default the theme's.
        headings: words over the columns at these places, which stand apart from those before.
        image: shown at the left, once.
        last: what single columns are, for the headings where they have no room but for a number ("head").
    """
    theme, headings = theme_of(width), headings or {}
    font, whole, lines = theme.font, theme.widths[width], -(-len(panels) // across)
    down, right = np.shape(panels[0].traces[0].z)
    gap, bar = 0.45 * font, _BAR * font
    sided = 2 * font if any(panel.y.title for panel in panels[::across]) else 0.0
    beside, share = (0.0, 0.0) if image is None else (font, _NARROW)  # of the one image of all maps
    before = dict.fromkeys(range(across), 0.0) | {places[0]: font for places in headings if places[0]}
    for _ in range(3):  # a group of maps is as wide as the widest word over it, which the others give room
        spent = 1.2 * font + sided + (across - 1) * gap + sum(before.values()) + bar + beside
        cell = min((whole - spent) / (across + share), whole / _WIDEST)
        if theme.fixed_height:
            cell = min(cell, (whole * 9 / 16 - 5 * font) / lines * right / down)
        for places, said in headings.items():
            lacks = (widest(said.split(), font) - len(places) * (cell + gap) + gap) / 2
            for place in (places[0], places[-1] + 1):
                if place in before:
                    before[place] = max(before[place], font + lacks)
    short = bool(last) and widest([panel.title for panel in panels[:across]], font) > cell
    if short:
        panels = [replace(panel, title=panel.title.removeprefix(f"{last} ")) for panel in panels]
    words = {}
    for places, said in headings.items():
        room = max(len(places) * (cell + gap) - gap, widest(said.split(), font))
        words[places] = wrap(f"{said}, by {last}" if short else said, room, font)
    rest = max(whole - spent - (across + share) * cell, 0) / 2
    before[0] += rest + beside + share * cell
    fig = compose(
        panels, across, width=width, shared="xy", right=bar + rest, inner=cell * down / right, gap=gap,
        before=before, heading=max(map(line_count, words.values()), default=0) * 1.3 * font,
    )  # fmt: skip
    axes = [*fig.select_xaxes()]
    for places, said in words.items():
        fig.add_annotation(
            text=said, x=(axes[places[0]].domain[0] + axes[places[-1]].domain[1]) / 2, xref="paper", y=1,
            yref="paper", xanchor="center", yanchor="top", borderpad=0, yshift=-2, showarrow=False,
        )  # fmt: skip
    if image is not None:
        place = {"xref": "paper", "yref": "paper", "y": fig.layout.yaxis.domain[1]}
        wide, tall = share * cell / whole, share * cell * down / right / fig.layout.height
        start = axes[0].domain[0] - wide - (beside + sided) / whole
        fig.add_layout_image(
            source=data_uri(image), x=start, sizex=wide, sizey=tall, sizing="stretch", **place
        )
        fig.add_annotation(
            text="input",
            x=start + wide / 2,
            xanchor="center",
            yanchor="bottom",
            borderpad=0,
            showarrow=False,
            **place,
        )
    return add_scale(squared(fig), ends, title, font, scale)


def squared(fig: go.Figure) -> go.Figure:
    """The figure with square cells in all its panels, whose upper ends stay where they are."""
    fig.update_xaxes(constrain="domain", matches=None)
    for axis in fig.update_yaxes(constrain="domain", constraintoward="top", matches=None).select_yaxes():
        axis.update(scaleanchor=axis.anchor, scaleratio=1)
    return fig


def add_scale(
    fig: go.Figure, ends: tuple[float, float], title: str, font: float, scale: Any = None
) -> go.Figure:
    """The figure with the colour bar of all its panels beside them, as tall as they are."""
    heights = [end for axis in fig.select_yaxes() for end in axis.domain]
    low, high = min(heights), max(heights)
    bar = {
        "title": {"text": wrap(title, max((high - low) * fig.layout.height, 5 * font), font), "side": "right"},
        "x": max(axis.domain[1] for axis in fig.select_xaxes()), "len": high - low, "y": (low + high) / 2,
    }  # fmt: skip
    return fig.update_layout(coloraxis=_colour_axis(ends, scale, bar))


@dataclass(frozen=True)
class Scale:
    """From where to where the colours of some panels reach, what they mean, and which they are, if not the theme's."""

    ends: tuple[float, float]
    title: str = ""
    colours: Any = None
    ticks: Mapping[str, Any] = field(default_factory=dict)


def over_bars(
    panels: Sequence[Panel], columns: int, scales: Sequence[Scale], width: str = "page", **more: Any
) -> go.Figure:
    """`compose` of panels, with a bar for each scale beneath those that it colours: "coloraxis", "coloraxis2" ….

    A scale's bar is as wide as the columns of its panels.
    """
    font, whole = theme_of(width).font, theme_of(width).widths[width]
    names = [f"coloraxis{number or ''}" for number in (0, *range(2, len(scales) + 1))]
    columns = min(columns, len(panels))
    coloured = [{_scale_of(trace) for trace in panel.traces} for panel in panels]
    places = [[place % columns for place, own in enumerate(coloured) if name in own] for name in names]
    titles = [
        wrap(scale.title, (max(own) - min(own) + 0.8) / columns * whole, font)
        for scale, own in zip(scales, places, strict=True)
    ]
    tall = font * (2.5 + 1.3 * max(line_count(title) if title else 0 for title in titles))
    fig = compose(panels, columns, width=width, below=tall, **more)
    axes = [*fig.select_xaxes()]
    bottom = min(axis.domain[0] for axis in fig.select_yaxes())
    for name, scale, own, title in zip(names, scales, places, titles, strict=True):
        left, right = axes[min(own)].domain[0], axes[max(own)].domain[1]
        bar = {
            "title": {"text": title, "side": "bottom"}, "orientation": "h", "x": (left + right) / 2, "xpad": 0,
            "len": right - left - 3 * font / whole, "y": bottom, "yanchor": "top", "ypad": 0.5 * font,
        }  # fmt: skip
        fig.layout[name] = _colour_axis(scale.ends, scale.colours, {**bar, **scale.ticks})
    return fig


def _colour_axis(ends: tuple[float, float], colours: Any, bar: Mapping[str, Any]) -> dict[str, Any]:
    """Colours, by default the theme's, from one end to the other, and their bar."""
    own = {"colorscale": colours} if colours else {}
    return {**own, "cmin": ends[0], "cmax": ends[1] or 1.0, "colorbar": {"nticks": 5, **bar}}


def _scale_of(trace: Any) -> str | None:
    return trace.coloraxis if trace.type == "heatmap" else trace.marker.coloraxis
