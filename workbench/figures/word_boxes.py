"""A text as coloured boxes, a box per token, in lines as one reads them."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go

from workbench.figures.overlays import scale_lines
from workbench.figures.patch_panels import BAR, Panel
from workbench.figures.theme import COLOURS, GREY
from workbench.figures.tokens import TokenView

LETTERS = 62  # of a line
LINE = 19  # px
TITLE = 20  # px


def word_panels(
    view: TokenView,
    panels: Sequence[Panel],
    shown: Sequence[int],
    scales: Mapping[str, dict],
    chosen: int | None = None,
) -> go.Figure:
    """A block of boxes per panel, above each other: the tokens at the places ``shown`` of the view, in reading order.

    Every box carries its token's number as ``customdata``; the token at the place ``chosen`` has a heavy frame.
    ``scales`` are the colour axes that the panels name, as `workbench.figures.overlays.flat_scale` gives them.
    """
    left, line, wide = _flow([view.labels[place] for place in shown])
    lines = int(line[-1]) + 1
    block = lines * LINE
    inner = len(panels) * (block + TITLE)
    framed = np.array([place == chosen for place in shown])
    traces: list[go.Bar] = []
    layout: dict = {"annotations": [], **scales}
    for number, panel in enumerate(panels, start=1):
        axis = "" if number == 1 else str(number)
        top = 1 - ((number - 1) * (block + TITLE) + TITLE) / inner
        traces.append(
            go.Bar(
                x=wide, base=left, y=line, width=0.88, orientation="h", showlegend=False,
                xaxis=f"x{axis}", yaxis=f"y{axis}", name=panel.title,
                text=[view.labels[place] for place in shown], textposition="inside", insidetextanchor="middle",
                textangle=0, constraintext="inside", cliponaxis=False,
                customdata=[view.index[place] for place in shown],
                hovertext=[view.names[place] for place in shown],
                hovertemplate=f"{panel.hover}<br>%{{hovertext}}<br>%{{marker.color:.4f}}<extra></extra>",
                marker={
                    "color": panel.values[list(shown)], "coloraxis": panel.scale,
                    "line": {
                        "color": np.where(framed, COLOURS[0], GREY).tolist(),
                        "width": np.where(framed, 2.5, 0.5).tolist(),
                    },
                },
            )
        )  # fmt: skip
        layout["annotations"].append(
            {"text": panel.title, "x": 0, "y": top, "xref": "paper", "yref": "paper", "showarrow": False}
            | {"xanchor": "left", "yanchor": "bottom"}
        )  # fmt: skip
        layout[f"xaxis{axis}"] = {"visible": False, "range": [0, LETTERS], "anchor": f"y{axis}"}
        layout[f"yaxis{axis}"] = {
            "visible": False, "range": [lines - 0.5, -0.5], "anchor": f"x{axis}",
            "domain": [max(top - block / inner, 0), top],
        }  # fmt: skip
    margin = {"l": 8, "r": 8, "t": 4, "b": 8}
    return go.Figure(
        traces,
        {
            **layout,
            "barmode": "overlay",
            "margin": margin,
            "height": inner + margin["t"] + margin["b"] + BAR + 13 * scale_lines(scales),
        },
    )


def page(view: TokenView, place: int | None, most: int) -> list[int]:
    """Places of the tokens in that part of a long text, of ``most`` lines, which holds the one at ``place``.

    Parts do not move when another token of the same is chosen. Padding is left out.
    """
    real = view.real
    part = _flow([view.labels[here] for here in real])[1] // max(most, 1)
    chosen = part[real.index(place)] if place in real else 0
    return [here for here, number in zip(real, part, strict=True) if number == chosen]


def _flow(labels: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Left edge, line and width of every box, in letters: a box that does not fit begins a line."""
    left, line = [], []
    place, number = 0.0, 0
    wide = [min(max(len(_bare(label)), 1) + 1.2, float(LETTERS)) for label in labels]
    for width in wide:
        if place and place + width > LETTERS:
            place, number = 0.0, number + 1
        left.append(place)
        line.append(number)
        place += width + 0.3
    return np.array(left), np.array(line), np.array(wide)


def _bare(label: str) -> str:
    """A label as it is seen, without the escapes of markup."""
    return html.unescape(label)
