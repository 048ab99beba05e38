"""Numbers of the tokens of one input: maps of patches with the special tokens below, or a text as coloured boxes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import plotly.graph_objects as go

from workbench.figures.composition import Axis, Panel, with_sentences
from workbench.figures.maps import image_panel, over_bars, squared
from workbench.figures.marks import key_entry
from workbench.figures.overlays import CHOSEN, cells, frame_shape, outline
from workbench.figures.scales import Scale
from workbench.figures.text_widths import cut, text_width, widest
from workbench.figures.theme import COLOURS, GREY, luminance, theme_of
from workbench.figures.tokens import TokenView

WIDTH = "page"
_LINE = 1.8  # letters, of a line of boxes
_FEWEST = 3  # a panel alone is as large as one of three
_HIDDEN = {"visible": False}


@dataclass(frozen=True)
class Numbers:
    """A number per token of a view, under a title; ``hover`` begins what a cell says, ``scale`` names its colours."""

    title: str
    hover: str
    values: np.ndarray
    scale: str = "coloraxis"


def with_images(panels: Sequence[Numbers], images: Sequence[np.ndarray | None]) -> list[Numbers | np.ndarray]:
    """Put each image before its panel, or a single image before the first."""
    parts: list[Numbers | np.ndarray] = []
    for number, panel in enumerate(panels):
        image = images[number] if number < len(images) else None
        parts += [panel] if image is None else [image, panel]
    return parts


def row_of_panels(count: int) -> tuple[float, float, float]:
    """Return the side of a panel in a row, the gap between two, and the margin at either end, in pixels."""
    theme = theme_of(WIDTH)
    font, width = theme.font, theme.widths[WIDTH]
    gap, room = 1.4 * font, width - 1.2 * font
    most = max(count, _FEWEST)
    side = (room - (most - 1) * gap) / most
    side = min(side, width * 9 / 16 - 12 * font) if theme.fixed_height else side
    return side, gap, (room - count * side - (count - 1) * gap) / 2


def patch_panels(
    view: TokenView,
    panels: Sequence[Numbers | np.ndarray],
    scales: Sequence[Scale],
    chosen: int | None = None,
    notes: Sequence[str] = (),
    most: bool = False,
) -> go.Figure:
    """Draw a map per panel, with a strip of the class and register tokens below it, and images.

    No token is left out: patches and strip together are the whole of a panel's values. Every cell, of an image too,
    carries its token's number as ``customdata``; the token at the position ``chosen`` of the view is framed, and with
    ``most`` the token with the largest number of each map has a ring.

    Raises:
        InputError: the image is not one; see `workbench.figures.overlays.data_uri`.
    """
    assert view.grid is not None
    rows, columns = view.grid
    side, gap, rest = row_of_panels(len(panels))
    strip = _Strip(view, side / columns)
    numbers = np.asarray(view.index)[view.patches].reshape(rows, columns)
    grid_frame = (-0.5, columns - 0.5), (-0.5, rows - 0.5)
    shapes = [frame_shape(*corners) for corners in (*strip.cells, grid_frame)]
    if chosen is not None:
        shapes += outline(*strip.corners(chosen))
    edge = 3 * columns / side  # so that no frame is cut
    x = Axis("", -0.5 - edge, columns - 0.5 + edge, bare=True, more={"showline": False})
    y = Axis("", strip.end + edge, -0.5 - edge, bare=True, more={"showline": False})
    ring = {"symbol": "circle-open", "size": 9, "color": CHOSEN, "line": {"width": 2, "color": CHOSEN}}
    halo = {**ring, "color": "white", "line": {"width": 4, "color": "white"}}
    drawn = []
    for panel in panels:
        if isinstance(panel, np.ndarray):
            of_image = [shape for shape in shapes if max(shape["y0"], shape["y1"]) < rows]
            panel_of_image = image_panel(
                panel, view.grid, "input", "input", shapes=of_image, customdata=numbers
            )
            drawn.append(replace(panel_of_image, x=x, y=y))
            continue
        values = panel.values[view.patches].reshape(rows, columns)
        traces = [cells(values, panel.hover, customdata=numbers, coloraxis=panel.scale), *strip.traces(panel)]
        if most:
            spot = strip.middle(int(np.nan_to_num(panel.values).argmax()))
            traces += [go.Scatter(marker=look, **spot) for look in (halo, ring)]
        drawn.append(Panel(traces, x, y, panel.title, shapes=shapes))
    key = [key_entry("largest weight of the map", mode="markers", marker=ring)] if most else []
    fig = over_bars(
        drawn, len(drawn), scales, WIDTH, shared="xy", gap=gap, before={0: rest}, right=rest,
        inner=side * (strip.end + 0.5 + 2 * edge) / (columns + 2 * edge), key=key,
    )  # fmt: skip
    return with_sentences(squared(fig), notes)


class _Strip:
    """Cells of the special tokens below the patches, in units of a patch, each with its name and number."""

    def __init__(self, view: TokenView, unit: float) -> None:
        (rows, columns), count = view.grid or (0, 0), len(view.special)
        self.view, self.columns = view, columns
        self.tall = max(1.0, 0.06 * columns)
        wide = min(columns / max(count, 1), 0.25 * columns)
        top = rows - 0.5 + 0.3 * self.tall
        self.edges = -0.5 + wide * np.arange(count + 1)
        self.bottom = top + self.tall
        self.cells = [(pair, (top, self.bottom)) for pair in itertools.pairwise(self.edges.tolist())]
        font = theme_of(WIDTH).font
        self.short = count > 2  # side by side they are cut to what a cell has room for
        self.named = widest(self._names(), font) < wide * unit or count == 1
        named = 2.9 * font / unit if self.named and count > 1 else 0.2  # one alone is named at its side
        self.end = self.bottom + named if count else rows - 0.5

    def corners(self, position: int) -> tuple[tuple[float, float], tuple[float, float]]:
        """Return the ends in x and in y of the token at a position."""
        if position in self.view.special:
            return self.cells[self.view.special.index(position)]
        row, column = divmod(self.view.patches.index(position), self.columns)
        return (column - 0.5, column + 0.5), (row - 0.5, row + 0.5)

    def middle(self, position: int) -> dict[str, Any]:
        """Return a trace at the middle of a token, without its marker."""
        x, y = (sum(ends) / 2 for ends in self.corners(position))
        return {"x": [x], "y": [y], "mode": "markers", "hoverinfo": "skip", "showlegend": False}

    def _names(self) -> list[str]:
        """Return the names of the tokens, short where there are many: CLS, DIST, R1, R2, …."""
        if not self.short:
            return [self.view.names[position] for position in self.view.special]
        registers = itertools.count(1)
        short = {"class": "CLS", "distillation": "DIST"}
        kinds = [self.view.kinds[position] for position in self.view.special]
        return [short.get(kind) or f"R{next(registers)}" for kind in kinds]

    def traces(self, panel: Numbers) -> list[go.Heatmap | go.Scatter]:
        """Return its cells, each with name and number, since colours are scaled to the patches."""
        view = self.view
        if not view.special:
            return []
        values, top = panel.values[view.special], self.bottom - self.tall
        strip = cells(
            values[None], panel.hover, x=self.edges, y=[top, self.bottom], coloraxis=panel.scale,
            customdata=[[view.index[position] for position in view.special]],
            hovertext=[[view.names[position] for position in view.special]],
            hovertemplate=f"{panel.hover}<br>%{{hovertext}}<br>%{{z:.4f}}<extra></extra>",
        )  # fmt: skip
        if not self.named:
            return [strip]
        words = zip(self._names(), [_number(value, 2 if self.short else 4) for value in values], strict=True)
        x, y = (self.edges[1:] + self.edges[:-1]) / 2, self.bottom + 0.1 * self.tall
        position, between = "bottom center", "<br>"
        if len(values) == 1:
            x, y, position, between = self.edges[1:] + 0.2, self.bottom - self.tall / 2, "middle right", " "
        label = go.Scatter(
            x=x, y=[y] * len(values), mode="text", text=[between.join(pair) for pair in words], textposition=position,
            hoverinfo="skip", showlegend=False, cliponaxis=False,
        )  # fmt: skip
        return [strip, label]


def _number(value: float, digits: int) -> str:
    if np.isnan(value):
        return "none"
    if 0 < abs(value) < 0.5 * 10**-digits:
        return f"&lt; {10**-digits:g}"
    return (f"{value:.{digits}f}" if abs(value) < 1 else f"{value:.3g}").replace("-", "−")


# ---------------------------------------------------------------------------------------------------- a text


def word_panels(
    view: TokenView,
    panels: Sequence[Numbers],
    positions: Sequence[int],
    scale: Scale,
    chosen: int | None = None,
    notes: Sequence[str] = (),
    masked: bool = False,
) -> go.Figure:
    """Draw a block of boxes per panel: the tokens at the places ``shown`` of the view, in reading order.

    Every box carries its token's number as ``customdata``; the token at the position ``chosen`` has a heavy frame.
    Where some are ``masked``, the letters of those whose number is 0 are grey.
    """
    font = theme_of(WIDTH).font
    labels = [view.labels[position] for position in positions]
    left, line, wide = _flow(labels)
    looks = [(COLOURS[0], 2.5) if position == chosen else (GREY, 0.5) for position in positions]
    border = dict(zip(("color", "width"), map(list, zip(*looks, strict=True)), strict=True))
    x = Axis("", -1.5, _room() + 1.5, bare=True, more=_HIDDEN)  # so that no box is cut
    y = Axis("", float(line[-1]) + 0.5, -0.5, bare=True, more=_HIDDEN)
    drawn = []
    for panel in panels:
        boxes = go.Bar(
            x=wide, base=left, y=line, width=0.88, orientation="h", name=panel.title, showlegend=False,
            text=[cut(label, _room() - font, font) for label in labels],
            textposition="inside", insidetextanchor="middle", textangle=0, constraintext="none",
            insidetextfont={"color": _letters(scale, panel.values[list(positions)], masked)},
            cliponaxis=False, customdata=[view.index[position] for position in positions],
            hovertext=[view.names[position] for position in positions],
            hovertemplate=f"{panel.hover}<br>%{{hovertext}}<br>%{{marker.color:.4f}}<extra></extra>",
            marker={"color": panel.values[list(positions)], "coloraxis": panel.scale, "line": border},
        )  # fmt: skip
        drawn.append(Panel([boxes], x, y, panel.title))
    inner = (int(line[-1]) + 1) * _LINE * font
    fig = over_bars(drawn, 1, [scale], WIDTH, inner=inner, shared="xy", gap=0.3 * font)
    return with_sentences(fig, notes)


def _letters(scale: Scale, values: np.ndarray, masked: bool) -> list[str]:
    """Return black or white, whichever is readable on the colour of a number; grey where it is masked."""
    letters = ["white" if luminance(colour) < 0.18 else "black" for colour in scale.colour(values)]
    return [
        "#999999" if masked and not value else letter for letter, value in zip(letters, values, strict=True)
    ]


def page(view: TokenView, position: int | None, most: int) -> list[int]:
    """Return the places of the tokens in that part of a long text, of ``most`` lines, with the one at ``position``.

    Parts do not move when another token of the same is chosen. Padding is left out.
    """
    real = view.real
    part = _flow([view.labels[here] for here in real])[1] // max(most, 1)
    chosen = part[real.index(position)] if position in real else 0
    return [here for here, number in zip(real, part, strict=True) if number == chosen]


def _room() -> float:
    """Return the pixels of a line of boxes."""
    return theme_of(WIDTH).widths[WIDTH] - 1.2 * theme_of(WIDTH).font


def _flow(labels: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return left edge, line and width of every box, in pixels: a box that does not fit begins a line."""
    font, room = theme_of(WIDTH).font, _room()
    wide = [min(text_width(label, font) + 0.9 * font, room) for label in labels]
    places, position, number = [], 0.0, 0
    for width in wide:
        if position and position + width > room:
            position, number = 0.0, number + 1
        places.append((position, number))
        position += width + 0.25 * font
    left, line = map(np.array, zip(*places, strict=True))
    return left, line, np.array(wide)
