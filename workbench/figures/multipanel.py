"""Several figures as the panels of one, each as large as it was drawn, with panel letters."""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from workbench.core.errors import InputError
from workbench.figures.figure_arguments import check_arguments
from workbench.figures.text_widths import in_rows, legend_row
from workbench.figures.theme import PANEL_LETTER, apply_theme, letter_after, panel_letter, theme_of

_NUMBERED = re.compile(r"(x|y|coloraxis|legend)(?:axis)?(\d*)")
_REFERENCE = re.compile(r"([xy]\d*)( domain)?")
_LINKS = ("xaxis", "yaxis", "coloraxis", "legend", "anchor", "matches", "overlaying", "scaleanchor")
_LISTS = ("annotations", "shapes", "images")
_COMMON = ("barmode", "boxmode", "bargap", "hovermode")
_COLOURED = ("heatmap", "contour", "histogram2d")
_LETTER_ROOM = 16  # px above a panel for its letter
_BAR_ROOM = 62  # px at the right of a panel for a colour bar that plotly places


def multipanel(
    figures: Sequence[go.Figure], columns: int = 2, letters: str | None = "a", width: str | float = "page"
) -> go.Figure:
    """One figure whose panels are `figures`, row by row, marked with bold letters, also those of several panels.

    Nothing is scaled: a figure that was made for a printed width (`Plot.figure`, every figure function) keeps its size,
    its key, and its letters of 8 pt, so that the figures of two columns are made for a column's width. Any other plotly
    figure gets the width of its cell; its legend is above it in rows. Panels keep their axes and the links between
    them, facets, colour bars, images, annotations and shapes.

    Args:
        figures: at least one, such as `Plot.figure` gives and ``NAME.figure.json`` holds; drawn on x and y axes.
        columns: panels per row.
        letters: the first letter as it is written ("a", "A", "(a)", …), or None for none.
        width: printed width of the whole: inches, or one of `workbench.figures.theme.WIDTHS`.

    Raises:
        InputError: no figure, no column, a figure wider than its cell or on other axes than x and y.
    """
    figures = [*figures] if np.iterable(figures) else figures
    check_arguments(figures=figures, columns=columns, letters=letters)
    theme, columns = theme_of(width), min(columns, len(figures))
    page_width = theme.pixels(width)
    across = page_width / columns
    parts = [_part(figure, across, columns) for figure in figures]
    rows = [parts[first : first + columns] for first in range(0, len(parts), columns)]
    lettered = [_LETTER_ROOM if letters and any(not _letters(part) for part in row) else 0 for row in rows]
    tall = [max(part["layout"]["height"] for part in row) for row in rows]
    heights = [part_letters + room for part_letters, room in zip(tall, lettered, strict=True)]
    marks = [words for figure in figures for words in (figure.layout.meta or {}).get("marks", ())]
    runs = [run for figure in figures for run in (figure.layout.meta or {}).get("runs", ())]
    layout: dict[str, Any] = {
        "meta": {"marks": list(dict.fromkeys(marks)), **({"runs": runs} if runs else {})},
        "template": theme.template, "width": page_width, "height": round(sum(heights)), "showlegend": True,
        "margin": dict.fromkeys("lrtb", 0) | {"autoexpand": False}, "annotations": [], "shapes": [], "images": [],
    }  # fmt: skip
    traces: list[dict[str, Any]] = []
    numbers = itertools.count()
    count = dict.fromkeys(("x", "y", "coloraxis", "legend"), 0)
    for number, part in enumerate(parts):
        row, column = divmod(number, columns)
        left, above = column * across, sum(heights[:row])
        _rename(part, count)
        _place(part, left, above + lettered[row], page_width, sum(heights))
        part_letters = _letters(part)
        for letter in part_letters if letters else ():
            letter["text"] = f"<b>{letter_after(letters or '', next(numbers))}</b>"
        traces += part["data"]
        for key, value in part["layout"].items():
            if key in _LISTS:
                layout[key] += value
            elif _NUMBERED.fullmatch(key):
                layout[key] = value
            elif key in _COMMON:
                layout.setdefault(key, value)
        if letters and not part_letters:
            corner = left / page_width, 1 - above / sum(heights)
            layout["annotations"].append(panel_letter(letter_after(letters or "", next(numbers)), *corner))
    return go.Figure({"data": traces, "layout": layout})


def _letters(part: dict[str, Any]) -> list[dict[str, Any]]:
    """The panel letters that a figure has."""
    return [note for note in part["layout"].get("annotations") or () if note.get("name") == PANEL_LETTER]


def _part(figure: go.Figure, across: float, columns: int) -> dict[str, Any]:
    """A figure as plain data, as wide as it will be: a composed one as it is, another in the theme and its cell."""
    composed = figure.layout.margin.autoexpand is False and figure.layout.width is not None
    if composed and figure.layout.width > across + 1:
        raise InputError(
            f"a figure of {figure.layout.width} px does not fit one of {columns} columns, {across:.0f} px wide: "
            "draw it for a column, or take fewer columns"
        )
    strange = next((trace.type for trace in figure.data if "xaxis" not in trace), None)
    if strange:
        raise InputError(f"a panel is drawn on x and y axes; got a trace of type {strange!r}")
    figure = figure if composed else apply_theme(figure)
    part = copy.deepcopy(figure.to_plotly_json())
    layout = part["layout"]
    layout["margin"] = figure.layout.template.layout.margin.to_plotly_json() | layout.get("margin", {})
    for kind, axis in itertools.product(_LISTS, "xy"):
        for item in layout.get(kind) or ():
            item.setdefault(f"{axis}ref", "paper" if kind == "images" else axis)
    for trace in part["data"]:
        trace |= {key: trace.get(key) or key.removesuffix("axis") for key in ("xaxis", "yaxis", "legend")}
        if trace["type"] in _COLOURED and not trace.get("coloraxis"):
            # its bar moves like those of several traces
            colours = {
                "cmin": trace.get("zmin"),
                "cmax": trace.get("zmax"),
                "colorscale": trace.get("colorscale"),
            }
            trace["coloraxis"] = f"coloraxis{10 + len(layout)}"
            layout[trace["coloraxis"]] = {"colorbar": trace.pop("colorbar", {}), **colours}
    if not composed:
        _make_room(part, across)
    return part


def _make_room(part: dict[str, Any], across: float) -> None:
    """Give a figure that plotly would lay out the width of its cell, a legend above it, and room for a colour bar."""
    layout, margin = part["layout"], part["layout"]["margin"]
    font = theme_of("column").font
    named = [trace for trace in part["data"] if trace.get("name") and trace.get("showlegend") is not False]
    listed = len(named) > 1 and layout.get("showlegend") is not False
    for trace in part["data"]:
        trace["showlegend"] = listed and trace in named
    rows = in_rows([trace["name"] for trace in named], across - font, font) if listed else []
    layout["legend"] = {"orientation": "h", "x": 0, "y": 1, "xanchor": "left", "yanchor": "bottom"}
    layout["width"] = across
    margin["t"] += len(rows) * legend_row(font)
    axes = [*layout, *(trace.get("coloraxis") or "" for trace in part["data"])]
    if any(name.startswith("coloraxis") for name in axes):
        margin["r"] = max(margin["r"], _BAR_ROOM)


def _rename(part: dict[str, Any], count: dict[str, int]) -> None:
    """Number the axes, colour axes and legends of a figure again, also those that it only implies."""
    layout = part["layout"]
    keys = {_NUMBERED.fullmatch(key) for key in layout}
    used = {match[1] + match[2] for match in keys if match}
    used |= {trace[key] for trace in part["data"] for key in _LINKS if trace.get(key)}
    names = {}
    for name in sorted(used, key=lambda name: int(re.sub(r"\D", "", name) or 1)):
        kind = re.sub(r"\d", "", name)
        count[kind] += 1
        names[name] = f"{kind}{count[kind] if count[kind] > 1 else ''}"

    def full(name: str) -> str:
        return re.sub(r"^([xy])", r"\1axis", name)

    numbered = {full(names[name]): layout.pop(full(name), {}) for name in used}
    layout |= numbered
    items = [item for key in _LISTS for item in layout.get(key) or ()]
    for holder_item in [*part["data"], *items, *numbered.values()]:
        for holder in (holder_item, holder_item.get("marker") or {}):
            for key in _LINKS:
                if isinstance(holder, dict) and holder.get(key) in names:
                    holder[key] = names[holder[key]]
        for key in ("xref", "yref", "axref", "ayref"):
            match = _REFERENCE.fullmatch(str(holder_item.get(key)))
            if match:
                holder_item[key] = names.get(match[1], match[1]) + (match[2] or "")
    for name, key in names.items():
        if name[0] in "xy":  # an axis that names no partner stands on the first of the other kind
            other = "y" if name[0] == "x" else "x"
            numbered[full(key)].setdefault("anchor", names[other])


def _place(part: dict[str, Any], left: float, above: float, width: float, height: float) -> None:
    """Move what lies in coordinates of a figure's paper to where the figure's upper left corner is put, in pixels."""
    layout, margin = part["layout"], part["layout"]["margin"]
    wide, tall = layout["width"], layout["height"]
    extent = {"x": (left / width, wide / width), "y": (1 - (above + tall) / height, tall / height)}
    size = {"x": (wide - margin["l"] - margin["r"]) / width, "y": (tall - margin["t"] - margin["b"]) / height}
    start = {"x": (left + margin["l"]) / width, "y": 1 - (above + tall - margin["b"]) / height}

    def paper(axis: str, value: float) -> float:
        return min(max(start[axis] + value * size[axis], 0.0), 1.0)

    for key, value in layout.items():
        if key[:5] in ("xaxis", "yaxis"):
            value["domain"] = [paper(key[0], end) for end in value.get("domain") or (0, 1)]
            value["automargin"] = False  # the cell already holds the figure's own margins
        elif key.startswith("coloraxis"):
            bar = value["colorbar"] = value.get("colorbar") or {}
            along, across = ("x", "y") if bar.get("orientation") == "h" else ("y", "x")
            bar["len"] = (bar.get("len") or 1) * size[along]
            bar |= {along: paper(along, bar.get(along, 0.5)), across: paper(across, bar.get(across, 1.02))}
        elif _NUMBERED.fullmatch(key):  # a legend
            for axis in "xy":
                inside = value.get(f"{axis}ref") != "container"
                first, share = (start[axis], size[axis]) if inside else extent[axis]
                value[axis] = first + value.get(axis, 1.0) * share
                # in the lower half of a container plotly would keep titles above it
                value[f"{axis}ref"] = "paper"
    for item, axis in ((item, axis) for key in _LISTS for item in layout.get(key) or () for axis in "xy"):
        if item[f"{axis}ref"] == "paper":
            for name in (axis, f"{axis}0", f"{axis}1"):
                if item.get(name) is not None:
                    item[name] = paper(axis, item[name])
            if item.get(f"size{axis}") is not None:
                item[f"size{axis}"] *= size[axis]
