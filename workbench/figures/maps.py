"""Grids of maps: numbers over a patch grid, a row of panels per input and a column per layer and head, one scale."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from workbench.core.errors import InputError
from workbench.figures.composition import Axis, Panel, compose
from workbench.figures.frames import short_name, without_provenance
from workbench.figures.measuring import wrap
from workbench.figures.overlays import OVERLAY, cells, data_uri, need_columns, shared_scale, under_cells
from workbench.figures.theme import theme_of

_NEEDS = ("row", "column", "value")


@dataclass(frozen=True)
class Maps:
    """A map for each value of the columns, side by side, in a row for each value of ``rows``; all share one scale.

    Args:
        frame: a row per number of a patch grid, with columns row, column and value.
        rows: the column whose values have a row of maps each.
        cols: columns whose values, the last changing fastest, have a column of maps each; the first ones are headings.
        under: an image for each row, in their order: shown first, and faded under its maps.
        title: what the numbers are, beside the colour bar.
        ends: from where to where the colours reach; by default from 0 to the largest value.
        names: what headings say of a value.
    """

    frame: pd.DataFrame
    rows: str = "input"
    cols: tuple[str, ...] = ("layer", "head")
    under: Sequence[np.ndarray] | None = None
    title: str = ""
    ends: tuple[float, float] | None = None
    names: Mapping[Any, str] = field(default_factory=dict)

    def figure(self, width: str = "page") -> go.Figure:
        """The figure, at a printed width of `workbench.figures.theme.WIDTHS`, or "slides".

        Raises:
            InputError: a missing column, images and rows that differ in number, or a map with more or fewer numbers
                than its grid has cells.
        """
        frame = without_provenance(self.frame)
        need_columns(frame, (self.rows, *self.cols, *_NEEDS), "a frame of maps")
        lines = list(dict.fromkeys(frame[self.rows]))
        if self.under is not None and len(self.under) != len(lines):
            raise InputError(f"{len(self.under)} images for {len(lines)} rows of maps; give one each")
        grid = int(frame["row"].max()) + 1, int(frame["column"].max()) + 1
        columns = list(dict.fromkeys(frame[[*self.cols]].itertuples(index=False, name=None)))
        maps = {
            key: self._map(key, own, grid) for key, own in frame.groupby([self.rows, *self.cols], sort=False)
        }
        faded = None if self.under is None else [data_uri(image, fade=True) for image in self.under]
        panels = []
        for number, line in enumerate(lines):
            if self.under is not None:
                blank = cells([[None] * grid[1]] * grid[0], str(line))
                panels.append(
                    self._panel(blank, grid, "" if number else self.rows, data_uri(self.under[number]))
                )
            for column in columns:
                where = ", ".join(
                    self._say(name, value) for name, value in zip(self.cols, column, strict=True)
                )
                trace = cells(maps.get((line, *column), [[None] * grid[1]] * grid[0]), f"{line}<br>{where}")
                title = "" if number else self._say(self.cols[-1], column[-1])
                panels.append(self._panel(trace, grid, title, None if faded is None else faded[number]))
        return self._composed(panels, columns, grid, width)

    def _composed(
        self, panels: list[Panel], columns: list[tuple], grid: tuple[int, int], width: str
    ) -> go.Figure:
        theme, first = theme_of(width), self.under is not None
        across, right, gap = len(columns) + first, theme.font * 5.5, theme.font * 0.45
        cell = min((theme.widths[width] - right) / across - gap, theme.widths[width] / 4)
        right += theme.widths[width] - right - across * (cell + gap)
        headings = {} if len(self.cols) == 1 else self._headings(columns, int(first))
        fig = compose(
            panels, across, width=width, shared="xy", right=right, inner=cell * grid[0] / grid[1], gap=gap,
            heading=1.4 * theme.font if headings else 0,
        )  # fmt: skip
        axes = list(fig.select_xaxes())
        for places, words in headings.items():
            fig.add_annotation(
                text=words, x=(axes[places[0]].domain[0] + axes[places[-1]].domain[1]) / 2, xref="paper", y=1,
                yref="paper", yanchor="top", borderpad=0, yshift=-2, showarrow=False,
            )  # fmt: skip
        lowest, highest = self.ends or (0.0, float(self.frame["value"].max()))
        heights = [end for axis in fig.select_yaxes() for end in axis.domain]
        words = wrap(self.title, (max(heights) - min(heights)) * fig.layout.height, theme.font)
        scale = shared_scale(OVERLAY if first else None, highest, words, lowest)
        scale["colorbar"] |= {
            "x": max(axis.domain[1] for axis in axes), "len": max(heights) - min(heights),
            "y": (max(heights) + min(heights)) / 2,
        }  # fmt: skip
        return fig.update_layout(coloraxis=scale)

    def _headings(self, columns: list[tuple], first: int) -> dict[tuple[int, ...], str]:
        """The places of columns that all but the last of their values are common to, and these values in words."""
        found = {}
        for head, own in itertools.groupby(range(len(columns)), lambda place: columns[place][:-1]):
            words = ", ".join(
                self._say(name, value) for name, value in zip(self.cols[:-1], head, strict=True)
            )
            found[tuple(place + first for place in own)] = words
        return found

    def _say(self, column: str, value: Any) -> str:
        if value in self.names:
            return self.names[value]
        return (
            short_name(value)
            if column == "model"
            else f"{column} {value}"
            if column in ("layer", "head")
            else str(value)
        )

    def _panel(self, trace: go.Heatmap, grid: tuple[int, int], title: str, image: str | None) -> Panel:
        x, y = Axis("", -0.5, grid[1] - 0.5, bare=True), Axis("", grid[0] - 0.5, -0.5, bare=True)
        images = () if image is None else ({"source": image, **under_cells(*grid)},)
        return Panel([trace], x, y, title, images=images)

    def _map(self, key: Any, rows: pd.DataFrame, grid: tuple[int, int]) -> np.ndarray:
        if len(rows) != grid[0] * grid[1] or rows.duplicated(["row", "column"]).any():
            raise InputError(f"{key}: {len(rows)} values for a map of {grid[0]} × {grid[1]} cells")
        values = np.full(grid, np.nan)
        values[rows["row"].astype(int), rows["column"].astype(int)] = rows["value"].astype(float)
        return values

    def _repr_mimebundle_(self, *args: Any, **kwargs: Any) -> Any:
        return self.figure()._repr_mimebundle_(*args, **kwargs)
