"""Grids of maps: numbers over a patch grid, a row of panels per input and a column per layer and head, one scale.

The images are beside their maps, whose cells have the pure colours of the bar.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from workbench.core.errors import InputError
from workbench.figures.composition import TALLEST, Axis, Panel, beside_panels, compose
from workbench.figures.frames import short_name, without_provenance
from workbench.figures.overlays import cells, contour, data_uri, need_columns, under_cells
from workbench.figures.scales import MASKED, Scale, bar_room, masked_key, masked_shape, set_scale
from workbench.figures.text_widths import line_count, widest, wrap, wrap_evenly
from workbench.figures.theme import theme_of

_NEEDS = ("row", "column", "value")
_WIDEST = 4.5  # so many maps of the largest size fit a page


@dataclass(frozen=True)
class Maps:
    """A map for each value of the columns, side by side, in a row for each value of ``rows``; all share one scale.

    Values of a categorical column stand in its order, numbers by their size, others as they appear.

    Args:
        frame: a row per number of a patch grid, with columns row, column and value.
        rows: the column whose values have a row of maps each.
        cols: columns whose values, the last changing fastest, have a column of maps each; the first ones are headings.
        images: an image for each row, in their order, at its beginning.
        title: what the numbers are, beside the colour bar.
        scale: of their colours; by default `Scale.of` all values.
        names: what headings say of a value.
        outlined: a mask of the cells that are outlined, by row, in all its maps.
    """

    frame: pd.DataFrame
    rows: str = "input"
    cols: tuple[str, ...] = ("layer", "head")
    images: Sequence[np.ndarray] | None = None
    title: str = ""
    scale: Scale | None = None
    names: Mapping[Any, str] = field(default_factory=dict)
    outlined: Mapping[Any, np.ndarray] = field(default_factory=dict)

    def figure(self, width: str | float = "page") -> go.Figure:
        """The figure, at a printed width of `workbench.figures.theme.WIDTHS`, or "slides".

        Raises:
            InputError: a missing column, images and rows that differ in number, a row without one of the maps, a map
                with more or fewer numbers than its grid has cells, or grids of unlike shapes, such as 2 × 5 and 4 × 4.
        """
        frame = without_provenance(self.frame)
        need_columns(frame, (self.rows, *self.cols, *_NEEDS), "a frame of maps")
        lines = [*dict.fromkeys(frame[self.rows])]
        if self.images is not None and len(self.images) != len(lines):
            raise InputError(f"{len(self.images)} images for {len(lines)} {self.rows}s; give one each")
        columns = _in_order(frame, self.cols)
        grids = {
            column: (int(part["row"].max()) + 1, int(part["column"].max()) + 1)
            for column, part in frame.groupby([*self.cols], observed=True)
        }
        if len({rows / across for rows, across in grids.values()}) > 1:
            sizes = " and ".join(f"{rows} × {across}" for rows, across in dict.fromkeys(grids.values()))
            raise InputError(
                f"patch grids of {sizes} have unlike shapes and do not fit one figure; draw one each"
            )
        keys = [self.rows, *self.cols]
        maps = dict(iter(frame.groupby(keys, sort=False, observed=True)))
        panels = []
        for number, line in enumerate(lines):
            side = self._say(self.rows, line)
            if self.images is not None:
                title = "" if number else self.rows
                words = self.names.get(line, "")  # the name of an input says nothing beside its image
                panels.append(image_panel(self.images[number], grids[columns[0]], side, title, words))
            for column in columns:
                where = ", ".join(map(self._say, self.cols, column))
                values = _grid_of(f"{side}, {where}", maps.get((line, *column)), grids[column])
                title = "" if number else self._say(self.cols[-1], column[-1])
                side_title = side if self.images is None and column == columns[0] else ""
                shapes = [contour(self.outlined[line])] if line in self.outlined else []
                panels.append(map_panel(values, f"{side}<br>{where}", title, side_title, shapes=shapes))
        first = int(self.images is not None)
        return compose_maps(
            panels, len(columns) + first, self.scale or Scale.of([frame["value"]], self.title), width,
            last=self.cols[-1], headings={} if len(self.cols) == 1 else self._headings(columns, first),
        )  # fmt: skip

    def _headings(self, columns: list[tuple], first: int) -> dict[tuple[int, int], str]:
        """First and last place of the columns that have all but their last values in common, and these in words."""
        spans = {}
        for head, group in itertools.groupby(range(len(columns)), lambda column: columns[column][:-1]):
            places = [column + first for column in group]
            spans[places[0], places[-1]] = ", ".join(map(self._say, self.cols[:-1], head))
        return spans

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
    combinations = frame[[*cols]].drop_duplicates(ignore_index=True)
    places = combinations.copy()
    for name, values in combinations.items():
        if not isinstance(values.dtype, pd.CategoricalDtype) and not pd.api.types.is_numeric_dtype(values):
            places[name] = values.map(
                {value: position for position, value in enumerate(dict.fromkeys(values))}
            )
    ordered = combinations.loc[places.sort_values([*cols], kind="stable").index]
    return [*ordered.itertuples(index=False, name=None)]


def _grid_of(cell: str, rows: pd.DataFrame | None, grid: tuple[int, int]) -> np.ndarray:
    count = 0 if rows is None else len(rows)
    if rows is None or count != grid[0] * grid[1] or rows.duplicated(["row", "column"]).any():
        raise InputError(
            f"{cell}: {count} values for a map of {grid[0]} × {grid[1]} cells; every row needs the same maps"
        )
    values = np.full(grid, np.nan)
    values[rows["row"].astype(int), rows["column"].astype(int)] = rows["value"].astype(float)
    return values


def map_panel(
    values: np.ndarray | list[list[None]],
    label: str,
    title: str = "",
    side: str = "",
    under: str = "",
    shapes: Sequence[dict[str, Any]] = (),
) -> Panel:
    """A map with its title above and words at its left side and below; cells without a number are masked."""
    down, across = len(values), len(values[0])
    x, y = Axis(under, -0.5, across - 0.5, bare=True), Axis(side, down - 0.5, -0.5, bare=True)
    masked = np.isnan(np.asarray(values, dtype=float)).any()
    return Panel([cells(values, label)], x, y, title, shapes=[*shapes, *([masked_shape()] if masked else [])])


def image_panel(
    image: np.ndarray,
    grid: tuple[int, int],
    label: str,
    title: str = "",
    side: str = "",
    shapes: Sequence[dict[str, Any]] = (),
    **more: Any,
) -> Panel:
    """An image instead of a map, whose cells are there, but colourless."""
    bare = {"coloraxis": None, "colorscale": [[0, "rgba(0,0,0,0)"], [1, "rgba(0,0,0,0)"]], "showscale": False}
    hover = f"{label}<br>row %{{y}}, column %{{x}}<extra></extra>"
    panel = map_panel(np.zeros(grid), label, title, side, shapes=shapes)
    panel.traces[0].update({**bare, "hovertemplate": hover, **more})
    return replace(panel, images=({"source": data_uri(image), **under_cells(*grid)},))


def compose_maps(
    panels: Sequence[Panel],
    across: int,
    scale: Scale,
    width: str | float = "page",
    *,
    headings: Mapping[tuple[int, int], str] | None = None,
    image: np.ndarray | None = None,
    last: str = "",
    notes: Sequence[str] = (),
) -> go.Figure:
    """Panels of `map_panel`, of square cells, beside the one colour bar of them all.

    Args:
        across: panels in a row.
        scale: the ends of the colours, and their meaning.
        headings: words over the columns from the first to the second of two places, apart from those before.
        image: shown at the left, once.
        last: what single columns are, for the headings where they have no room but for a number ("head").
        notes: sentences below everything.
    """
    theme, headings = theme_of(width), headings or {}
    font, page_width, lines = theme.font, theme.pixels(width), -(-len(panels) // across)
    down, right = np.shape(panels[0].traces[0].z)
    gap, cell = 0.45 * font, page_width / _WIDEST
    sided = 2 * font if any(panel.y.title for panel in panels[::across]) else 0.0
    image_gap = 0.0 if image is None else 1.5 * font
    before = dict.fromkeys(range(across), 0.0) | {start: font for start, _ in headings if start}
    key = [masked_key()] if any(map(is_masked, panels)) else []

    def room_of(length: float) -> float:
        words = wrap_evenly(scale.words, max(length, 7 * font), font)
        return bar_room(scale, length, font, line_count(words))

    for _ in range(4):  # a group of maps is as wide as the widest word over it, which the others give room
        tall = lines * cell * down / right + (lines - 1) * gap
        bar = room_of(tall)
        spent = 1.2 * font + sided + (across - 1) * gap + sum(before.values()) + bar + image_gap
        cell = min((page_width - spent) / (across + (image is not None)), page_width / _WIDEST)
        tallest = page_width * 9 / 16 - 7 * font if theme.fixed_height else TALLEST - 5 * font
        cell = min(cell, max((tallest - (lines - 1) * gap) / lines, 2.5 * font) * right / down)
        for (start, end), wording in headings.items():
            lacks = (widest(wording.split(), font) - (end + 1 - start) * (cell + gap) + gap) / 2
            for position in (start, end + 1):
                if position in before:
                    before[position] = max(before[position], font + lacks)
    titles = [panel.title for panel in panels[:across]]
    short = bool(last) and widest([title for title in titles if title.startswith(last)], font) > cell
    if short or widest(titles, font) > cell:  # "head 3" to "3", "mean of 3 heads" to "mean"
        wording = [panel.title.partition(" of ")[0] for panel in panels]
        wording = [text.removeprefix(f"{last} ") for text in wording] if short else wording
        panels = [replace(panel, title=title) for panel, title in zip(panels, wording, strict=True)]
    words = {}
    for (start, end), wording in headings.items():
        room = max((end + 1 - start) * (cell + gap) - gap, widest(wording.split(), font))
        words[start, end] = wrap_evenly(f"{wording}, by {last}" if short else wording, room, font)
    rest = max(page_width - spent - (across + (image is not None)) * cell, 0) / 2
    before[0] += rest + image_gap + (0 if image is None else cell)
    fig = compose(
        panels, across, key, width=width, shared="xy", right=bar + rest, inner=cell * down / right, gap=gap,
        before=before, heading=max(map(line_count, words.values()), default=0) * 1.3 * font, notes=notes,
    )  # fmt: skip
    axes = [*fig.select_xaxes()]
    plain = {"xref": "paper", "yref": "paper", "xanchor": "center", "borderpad": 0, "showarrow": False}
    for (start, end), wording in words.items():
        middle = (axes[start].domain[0] + axes[end].domain[1]) / 2
        fig.add_annotation(text=wording, x=middle, y=1, yanchor="top", yshift=-2, **plain)
    if image is None:
        return add_scale(squared(fig), scale, font)
    wide, high = cell / page_width, cell * down / right / fig.layout.height
    left, top = axes[0].domain[0] - wide - (image_gap + sided) / page_width, fig.layout.yaxis.domain[1]
    paper = {"xref": "paper", "yref": "paper", "y": top}
    fig.add_layout_image(source=data_uri(image), x=left, sizex=wide, sizey=high, sizing="contain", **paper)
    fig.add_annotation(text="input", x=left + wide / 2, yanchor="bottom", **plain | paper)
    return add_scale(squared(fig), scale, font)


def is_masked(panel: Panel) -> bool:
    """Whether a panel has masked cells."""
    return any(shape.get("fillcolor") == MASKED for shape in panel.shapes)


def squared(fig: go.Figure) -> go.Figure:
    """The figure with square cells in all its panels, whose upper ends stay where they are."""
    fig.update_xaxes(constrain="domain", matches=None)
    for axis in fig.update_yaxes(constrain="domain", constraintoward="top", matches=None).select_yaxes():
        axis.update(scaleanchor=axis.anchor, scaleratio=1)
    return fig


def add_scale(fig: go.Figure, scale: Scale, font: float) -> go.Figure:
    """The figure with the colour bar of all its panels beside them, as tall as they are."""
    position = beside_panels(fig)
    length = position["len"] * fig.layout.height
    bar = {
        "title": {"text": wrap_evenly(scale.words, max(length, 7 * font), font), "side": "right"},
        **position,
    }
    return set_scale(fig, "coloraxis", scale, bar, length, font)


def over_bars(
    panels: Sequence[Panel], columns: int, scales: Sequence[Scale], width: str | float = "page", **more: Any
) -> go.Figure:
    """`compose` of panels, with a bar for each scale below those that it colours: "coloraxis", "coloraxis2" ….

    A scale's bar is as wide as the columns of its panels.
    """
    font, page_width = theme_of(width).font, theme_of(width).pixels(width)
    names = [f"coloraxis{number or ''}" for number in (0, *range(2, len(scales) + 1))]
    columns = min(columns, len(panels))
    coloured = [
        {(trace.marker if trace.type != "heatmap" else trace).coloraxis for trace in panel.traces}
        for panel in panels
    ]
    places = [
        [index % columns for index, columns_used in enumerate(coloured) if name in columns_used]
        for name in names
    ]
    titles = [
        wrap_evenly(scale.words, (max(columns_used) - min(columns_used) + 0.8) / columns * page_width, font)
        for scale, columns_used in zip(scales, places, strict=True)
    ]
    tall = font * (2.5 + 1.3 * max(line_count(title) if title else 0 for title in titles))
    fig = compose(panels, columns, width=width, below=tall, **more)
    axes = [*fig.select_xaxes()]
    under = _room_under(panels[-1].x, page_width / columns, font) / fig.layout.height
    bottom = min(axis.domain[0] for axis in fig.select_yaxes()) - under
    for name, scale, columns_used, title in zip(names, scales, places, titles, strict=True):
        left, right = axes[min(columns_used)].domain[0], axes[max(columns_used)].domain[1]
        # a bar as long as a page says no more; one of several panels leaves its neighbour's numbers room
        length = min(
            right - left - (3 if max(columns_used) > min(columns_used) else 1) * font / page_width, 0.5
        )
        bar = {
            "title": {"text": title, "side": "bottom"}, "orientation": "h", "x": (left + right) / 2, "xpad": 0,
            "len": length, "y": bottom, "yanchor": "top", "ypad": 0.5 * font,
        }  # fmt: skip
        set_scale(fig, name, scale, bar, length * page_width, font)
    return fig


def _room_under(x: Axis, wide: float, font: float) -> float:
    """Pixels that the ticks, their labels and the title of a lowest axis take."""
    title = 1.46 * font * line_count(wrap(x.title, 0.8 * wide, font))
    return 0.0 if x.bare else 0.4 * font + widest(x.labels or x.names, font) + title
