"""Numbers of the tokens of an image side by side: maps of the patches, and beneath them the special tokens."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from workbench.figures.overlays import cells, data_uri, frame_shape, outline, scale_lines, under_cells
from workbench.figures.theme import PAGE
from workbench.figures.tokens import TokenView

WIDTH = PAGE  # px, for which heights are composed
GAP = 0.05  # between panels, of the width of all
BAR = 50  # px, of a colour bar under the panels with its title
LABEL = 34  # px, of a name with its number beneath
NAMED = 6  # so many special tokens have room for their names


@dataclass(frozen=True)
class Panel:
    """A number per token of a view, under a title; ``hover`` begins what a cell says, ``scale`` names its colours."""

    title: str
    hover: str
    values: np.ndarray
    scale: str = "coloraxis"


def panel_domains(count: int) -> list[tuple[float, float]]:
    """From where to where each of ``count`` panels side by side reaches, as shares of the width of all."""
    side = (1 - GAP * (max(count, 2) - 1)) / max(count, 2)
    first = (
        (1 - side) / 2 if count == 1 else 0.0
    )  # one panel is as large as one of two, and stands in the middle
    return [(first + place * (side + GAP), first + place * (side + GAP) + side) for place in range(count)]


def patch_panels(
    view: TokenView,
    panels: Sequence[Panel],
    images: Sequence[np.ndarray | None],
    scales: Mapping[str, dict],
    chosen: int | None = None,
) -> go.Figure:
    """A map per panel, over its faded image where it has one, and a strip of the class and register tokens.

    No token is left out: patches and strip together are the whole of a panel's values. Every cell carries its
    token's number as ``customdata``; the token at the place ``chosen`` of the view is framed. ``scales`` are the colour
    axes that the panels name, as `workbench.figures.overlays.flat_scale` gives them.

    Raises:
        InputError: the image is not one; see `workbench.figures.overlays.data_uri`.
    """
    assert view.grid is not None
    rows, columns = view.grid
    index = np.asarray(view.index)
    patches, special = view.patches, view.special
    left, right = panel_domains(len(panels))[0]
    unit = (WIDTH - 16) * (right - left) / columns  # px, of a patch
    strip = _Strip(rows, columns, len(special), unit)
    faded: dict[int, str] = {}  # an image that several panels share is faded once
    traces: list[go.Heatmap | go.Scatter] = []
    layout: dict = {"shapes": [], "images": [], "annotations": [], **scales}
    places = zip(panels, images, panel_domains(len(panels)), strict=True)
    for number, (panel, image, domain) in enumerate(places, start=1):
        axis = "" if number == 1 else str(number)
        axes = {"xaxis": f"x{axis}", "yaxis": f"y{axis}"}
        own = {"coloraxis": panel.scale, **axes}
        numbers = index[patches].reshape(rows, columns)
        patch_map = panel.values[patches].reshape(rows, columns)
        traces.append(cells(patch_map, panel.hover, customdata=numbers, **own))
        if special:
            traces += strip.traces(panel, view, own, axes)
            layout["shapes"] += [
                frame_shape(pair, (strip.top, strip.top + strip.tall), axes) for pair in strip.cells()
            ]
        layout["shapes"].append(frame_shape((-0.5, columns - 0.5), (-0.5, rows - 0.5), axes))
        if chosen is not None:
            layout["shapes"] += outline(*_corners(chosen, patches, special, columns, strip), axes)
        if image is not None:
            if id(image) not in faded:
                faded[id(image)] = data_uri(image, fade=True)
            where = {"xref": axes["xaxis"], "yref": axes["yaxis"]}
            layout["images"].append({"source": faded[id(image)], **where, **under_cells(rows, columns)})
        layout["annotations"].append(
            {"text": panel.title, "x": 0.5, "y": 1, "xref": f"{axes['xaxis']} domain", "showarrow": False}
            | {"yref": f"{axes['yaxis']} domain", "xanchor": "center", "yanchor": "bottom"}
        )  # fmt: skip
        bare = {"showticklabels": False, "ticks": "", "showline": False, "constrain": "domain"}
        layout[f"xaxis{axis}"] = {
            **bare,
            "range": [-0.5, columns - 0.5],
            "domain": domain,
            "anchor": axes["yaxis"],
        }
        layout[f"yaxis{axis}"] = {
            **bare, "range": [strip.end, -0.5], "anchor": axes["xaxis"], "scaleanchor": axes["xaxis"],
            "constraintoward": "top",
        }  # fmt: skip
    margin = {"l": 8, "r": 8, "t": 20, "b": 8}
    height = unit * (strip.end + 0.5) + margin["t"] + margin["b"] + BAR + 13 * scale_lines(scales)
    return go.Figure(
        traces, {**layout, "margin": margin, "width": WIDTH, "height": round(min(max(height, 160), 680))}
    )


class _Strip:
    """Where the special tokens stand: cells beneath the patches, in units of a patch."""

    def __init__(self, rows: int, columns: int, count: int, unit: float) -> None:
        self.count = count
        self.tall = max(1.0, 0.06 * columns)
        self.wide = min(columns / max(count, 1), 0.25 * columns)
        self.top = rows - 0.5 + 0.3 * self.tall
        named = LABEL / unit if 1 < count <= NAMED else 0.2  # one alone is named at its side
        self.end = self.top + self.tall + named if count else rows - 0.5

    def cells(self) -> list[tuple[float, float]]:
        """From where to where each reaches."""
        edges = self.edges().tolist()
        return list(itertools.pairwise(edges))

    def edges(self) -> np.ndarray:
        return -0.5 + self.wide * np.arange(self.count + 1)

    def traces(self, panel: Panel, view: TokenView, own: dict, axes: dict) -> list[go.Heatmap | go.Scatter]:
        """Its cells, and with each its name and number, since colours are scaled to the patches."""
        names, values = [view.names[place] for place in view.special], panel.values[view.special]
        edges, bottom = self.edges(), self.top + self.tall
        strip = cells(
            values[None], panel.hover,
            x=edges, y=[self.top, bottom], customdata=[[view.index[place] for place in view.special]],
            hovertext=[names], hovertemplate=f"{panel.hover}<br>%{{hovertext}}<br>%{{z:.4f}}<extra></extra>", **own,
        )  # fmt: skip
        if self.count > NAMED:
            return [strip]
        if self.count > 2:  # side by side they are cut to what a cell has room for
            names = _initials([view.kinds[place] for place in view.special])
        said = [_number(value, 4 if self.count <= 2 else 2) for value in values]
        if self.count == 1:
            spot = {"x": edges[1:] + 0.2, "y": [(self.top + bottom) / 2], "textposition": "middle right"}
            spot["text"] = [f"{names[0]} {said[0]}"]
        else:
            middle = (edges[1:] + edges[:-1]) / 2
            spot = {
                "x": middle,
                "y": [bottom + 0.1 * self.tall] * self.count,
                "textposition": "bottom center",
            }
            spot["text"] = [f"{name}<br>{number}" for name, number in zip(names, said, strict=True)]
        label = go.Scatter(mode="text", hoverinfo="skip", showlegend=False, cliponaxis=False, **spot, **axes)
        return [strip, label]


def _number(value: float, digits: int) -> str:
    if np.isnan(value):
        return "none"
    return (f"{value:.{digits}f}" if abs(value) < 1 else f"{value:.3g}").replace("-", "−")


def _initials(kinds: Sequence[str]) -> list[str]:
    """The tokens beside the patches, in short: CLS, DIST, R1, R2, …."""
    registers = 0
    said = []
    for kind in kinds:
        registers += kind == "register"
        said.append(f"R{registers}" if kind == "register" else "CLS" if kind == "class" else "DIST")
    return said


def _corners(
    chosen: int, patches: list[int], special: list[int], columns: int, strip: _Strip
) -> tuple[tuple[float, float], tuple[float, float]]:
    """x and y from where to where the token at a place is drawn."""
    if chosen in special:
        return strip.cells()[special.index(chosen)], (strip.top, strip.top + strip.tall)
    row, column = divmod(patches.index(chosen), columns)
    return (column - 0.5, column + 0.5), (row - 0.5, row + 0.5)
