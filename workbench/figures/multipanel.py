"""Several figures as the panels of one multi-panel figure, with panel letters and one legend."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from workbench.core.errors import InputError
from workbench.figures.theme import PAGE, find_theme, panel_letter, series_style

# Kinds of subplot that own a rectangle of the page, and the trace attribute that names them.
_REGIONS = {"scene": "scene", "polar": "subplot", "ternary": "subplot", "geo": "geo", "smith": "subplot"}
_AXIS = re.compile(r"^([xy])axis(\d*)$")
_REFERENCE = re.compile(r"^([xy])(\d*)( domain)?$")
_CARTESIAN_TRACES = {
    "scatter", "scattergl", "bar", "box", "violin", "histogram", "histogram2d", "histogram2dcontour", "heatmap",
    "contour", "image", "funnel", "waterfall", "ohlc", "candlestick",
}  # fmt: skip
_SCENE_TRACES = {"scatter3d", "surface", "mesh3d", "cone", "streamtube", "volume", "isosurface"}
_DOMAIN_TRACES = {
    "pie",
    "sunburst",
    "treemap",
    "icicle",
    "funnelarea",
    "indicator",
    "table",
    "sankey",
    "parcoords",
}
_LEGEND_TRACES = {
    "scatter",
    "scattergl",
    "bar",
    "box",
    "violin",
    "histogram",
    "scatterpolar",
    "scatter3d",
    "pie",
}
# Which coordinates of an item are positions: "x", "x0", "x1" …
_COORDINATES = {"annotations": ("",), "shapes": ("0", "1"), "images": ("",)}
_GLOBAL = ("barmode", "barnorm", "bargap", "bargroupgap", "boxmode", "boxgap", "violinmode", "violingap")
_LETTER_ROOM = 16  # px above a panel for its letter
_BAR_ROOM = 62  # px right of a panel for a colour bar that its figure left to plotly to place
_LEGEND_ROW = 16


def multipanel(
    figures: Sequence[go.Figure],
    columns: int = 2,
    letters: str | None = "a",
    widths: Sequence[float] | None = None,
    width: float = PAGE,
) -> go.Figure:
    """One figure whose panels are `figures`, row by row, each marked with a bold letter.

    Panels keep everything they had: axes and the links between them (shared, anchored or overlaid axes), facets,
    colour bars, images, annotations and shapes. Sizes of panels follow the figures' own heights and margins.
    Legends become one, above the panels: entries that look alike and are called alike appear once.

    Args:
        figures: at least one; cartesian, heat map, image, pie, polar, ternary, geo and 3-D panels all work.
        columns: panels per row.
        letters: the first letter ("a", "A", …), or None for none.
        widths: relative widths of the columns; equal by default.
        width: of the multi-panel figure, in pixels of 1/96 in; `save_figure(…, width="page")` prints it as it is.

    Raises:
        InputError: no figure, no column, widths that do not fit, or figures whose bars or boxes are arranged in
            ways that one figure cannot hold.
    """
    figures = list(figures)
    if not figures or not all(isinstance(figure, go.Figure) for figure in figures):
        raise InputError("a multi-panel figure is made of one or more plotly figures")
    if columns < 1:
        raise InputError(f"a multi-panel figure has 1 or more columns; got {columns}")
    columns = min(columns, len(figures))
    shares = list(widths) if widths is not None else [1.0] * columns
    if len(shares) != columns or min(shares) <= 0:
        raise InputError(f"widths must be {columns} positive numbers, one per column; got {shares}")
    if letters is not None and (len(letters) != 1 or not letters.isalpha()):
        raise InputError(f"letters is {letters!r}; give the first letter, such as 'a' or 'A', or None")

    sources = [copy.deepcopy(figure.to_plotly_json()) for figure in figures]
    rows = [sources[start : start + columns] for start in range(0, len(sources), columns)]
    heights = [max(_height(source) for source in row) + (_LETTER_ROOM if letters else 0) for row in rows]
    entries = _merge_legends(sources)
    top = _LEGEND_ROW * -(-entries // max(1, int(width / 160))) + 4 if entries else 0
    total = sum(heights) + top

    merged: dict[str, Any] = {"data": [], "layout": {}}
    counters = {"x": 0, "y": 0, "coloraxis": 0, "legend": 1, **dict.fromkeys(_REGIONS, 0)}
    notes: list[dict[str, Any]] = []
    above = float(top)
    for number, source in enumerate(sources):
        row, column = divmod(number, columns)
        if column == 0 and row:
            above += heights[row - 1]
        left = width * sum(shares[:column]) / sum(shares)
        across = width * shares[column] / sum(shares)
        cell = _inner_cell(source, left, above, across, heights[row], bool(letters))
        panel = _Panel(cell, width, total, counters)
        panel.add(source, merged)
        if letters:
            letter = chr(ord(letters) + number)
            notes.append(panel_letter(letter, left / width, 1 - above / total))
    layout = merged["layout"]
    layout["annotations"] = [*layout.get("annotations", []), *notes]
    layout.update(
        template=find_theme().template,
        width=width,
        height=round(total),
        margin={"l": 0, "r": 0, "t": 0, "b": 0, "autoexpand": False},
        showlegend=entries > 0,
        legend={"orientation": "h", "x": 0.5, "xanchor": "center", "y": 1, "yanchor": "top"},
    )
    return go.Figure(merged)


def _height(source: dict[str, Any]) -> float:
    return float(source["layout"].get("height") or 225)


def _inner_cell(
    source: dict[str, Any], left: float, above: float, across: float, tall: float, lettered: bool
) -> tuple[float, float, float, float]:
    """Where the panel's own paper lies, in pixels from the top left: (left, top, right, bottom)."""
    layout = source["layout"]
    margin = {"l": 44.0, "r": 8.0, "t": 10.0, "b": 36.0} | {
        side: value
        for side, value in (layout.get("margin") or {}).items()
        if side in "lrtb" and value is not None
    }
    legend = layout.get("legend") or {}
    if legend.get("orientation") == "h" and (legend.get("y") or 0) >= 1:
        # The room that the figure left for its own legend; the multi-panel figure has one legend, above all panels.
        titled = any((note.get("y") or 0) >= 0.99 for note in layout.get("annotations") or ())
        margin["t"] = min(margin["t"], 24 if titled else 10)
    if _has_bar(source) and margin["r"] < _BAR_ROOM:
        margin["r"] = _BAR_ROOM
    top = margin["t"] + (_LETTER_ROOM if lettered else 0) + (16 if _title(layout) else 0)
    right, bottom = left + across - margin["r"], above + tall - margin["b"]
    if right - left - margin["l"] < 20 or bottom - above - top < 20:
        raise InputError(
            f"a panel of {across:.0f} × {tall:.0f} px is all margin; take fewer columns or a taller figure"
        )
    return left + margin["l"], above + top, right, bottom


def _has_bar(source: dict[str, Any]) -> bool:
    layout, traces = source["layout"], source["data"]
    if any(key.startswith("coloraxis") and layout[key].get("showscale") is not False for key in layout):
        return True
    return any(_own_bar(trace) or (trace.get("marker") or {}).get("showscale") for trace in traces)


def _title(layout: dict[str, Any]) -> str:
    title = layout.get("title") or {}
    return title if isinstance(title, str) else title.get("text") or ""


def _merge_legends(sources: list[dict[str, Any]]) -> int:
    """Leave one legend entry for all traces of one name and look; the number of entries left.

    A figure with one trace has no legend of its own unless it asks for one, and does not get one here.
    """
    seen: set[str] = set()
    merged = [source for source in sources if not _keys(source)]
    for number, source in enumerate(merged):
        able = [trace for trace in source["data"] if trace["type"] in _LEGEND_TRACES]
        listed = [trace for trace in able if trace.get("showlegend") is not False]
        asked = source["layout"].get("showlegend")
        if asked is None:
            asked = len(listed) > 1 or any(trace.get("showlegend") for trace in listed)
        shown = [id(trace) for trace in listed] if asked else []
        for index, trace in enumerate(able):
            _fix_look(trace, index)
            marker, line = trace.get("marker") or {}, trace.get("line") or {}
            look = [line.get("color"), line.get("dash"), marker.get("symbol"), marker.get("color")]
            key = f"{trace.get('name', f'trace {index}')}|{look}"
            trace["showlegend"] = id(trace) in shown and key not in seen
            if id(trace) in shown:
                trace["legendgroup"] = key  # clicking the one entry hides its traces in every panel
                seen.add(key)
            elif trace.get("legendgroup"):
                trace["legendgroup"] = f"{number}|{trace['legendgroup']}"
    return sum(bool(trace.get("showlegend")) for source in merged for trace in source["data"])


def _keys(source: dict[str, Any]) -> list[str]:
    """The legends of a figure that has them in rows of their own, as the grammar composes them: it keeps these."""
    layout = source["layout"]
    return [
        name
        for name in layout
        if name.startswith("legend")
        and layout[name].get("yref") == "container"
        and layout["margin"].get("autoexpand") is False
    ]


def _fix_look(trace: dict[str, Any], index: int) -> None:
    """Write down the style that a trace's place in its own figure gave it: among the panels its place is another."""
    style = series_style(index)
    marker, line = trace.get("marker") or {}, trace.get("line") or {}
    if trace["type"] not in ("scatter", "scattergl"):
        if not marker.get("color") and not marker.get("colors") and trace["type"] != "pie":
            trace["marker"] = {"color": style["marker"]["color"], **marker}
        return
    colour = line.get("color") or (marker.get("color") if isinstance(marker.get("color"), str) else None)
    trace["line"] = {**style["line"], **({"color": colour} if colour else {}), **line}
    if marker.get("color") is None:
        marker = {**marker, "color": colour or style["line"]["color"]}
    trace["marker"] = {"symbol": style["marker"]["symbol"], **marker}


class _Panel:
    """One figure's way into the multi-panel figure: its axes renumbered, its paper coordinates moved into its cell."""

    def __init__(
        self, cell: tuple[float, float, float, float], width: float, height: float, counters: dict[str, int]
    ) -> None:
        left, top, right, bottom = cell
        self.origin = {"x": left / width, "y": 1 - bottom / height}
        self.size = {"x": (right - left) / width, "y": (bottom - top) / height}
        self.counters = counters
        self.names: dict[str, str] = {}  # this figure's axis and region names to the plate's

    def place(self, axis: str, value: float) -> float:
        """A paper coordinate of the figure, in the multi-panel figure."""
        return self.origin[axis] + value * self.size[axis]

    def add(self, source: dict[str, Any], merged: dict[str, Any]) -> None:
        layout, into = source["layout"], merged["layout"]
        self._number_axes(source)
        for key in _keys(source):
            self.names[key] = self._next("legend")
            moved = {"x": self.place("x", layout[key]["x"]), "y": self.place("y", layout[key]["y"])}
            into[self.names[key]] = {**layout[key], **moved}
        for key, value in layout.items():
            match = _AXIS.match(key)
            region = re.match(r"^([a-z]+?)(\d*)$", key)
            if match:
                self._add_axis(match.group(1), match.group(2), value, into)
            elif key.startswith("coloraxis"):
                value["colorbar"] = self._bar(value.get("colorbar"))
                into[self.names[key]] = value
            elif region and region.group(1) in _REGIONS:
                into[self.names[key]] = {**value, "domain": self._domain(value.get("domain"))}
            elif key in _GLOBAL and value is not None and into.setdefault(key, value) != value:
                raise InputError(
                    f"two figures differ in {key} ({into[key]!r}, {value!r}); a multi-panel figure has only one"
                )
        for name in self._unwritten(source):
            letter, number = name[0], name[1:]
            self._add_axis(letter, number, {}, into)
        for kind in ("annotations", "shapes", "images"):
            items = [self._move(dict(item), kind) for item in layout.get(kind) or ()]
            into[kind] = [*into.get(kind, []), *items]
        if _title(layout):
            into["annotations"].append(
                {
                    "text": _title(layout),
                    "x": self.place("x", 0.5),
                    "y": self.place("y", 1),
                    "xref": "paper",
                    "yref": "paper",
                    "yanchor": "bottom",
                    "yshift": 2,
                    "showarrow": False,
                }
            )
        merged["data"] += [self._trace(trace) for trace in source["data"]]

    def _number_axes(self, source: dict[str, Any]) -> None:
        """New names for every axis, colour axis and region that the figure has, also those it only implies."""
        layout = source["layout"]
        used = (
            {"x", "y"}
            if any(_cartesian(trace) for trace in source["data"]) or layout.get("images")
            else set()
        )
        for key in layout:
            match = _AXIS.match(key)
            if match:
                used.add(match.group(1) + match.group(2))
        for trace in source["data"]:
            if _cartesian(trace):
                used |= {trace.get("xaxis", "x"), trace.get("yaxis", "y")}
        for name in sorted(used, key=lambda name: (name[0], int(name[1:] or 1))):
            self.names[name] = self._next(name[0])
        for key in ["coloraxis", *layout]:
            traces = [trace for trace in source["data"] if _color_axis(trace) == key]
            if key.startswith("coloraxis") and (key in layout or traces) and key not in self.names:
                layout.setdefault(key, {})
                self.names[key] = self._next("coloraxis")
        for trace in source["data"]:
            for kind, attribute in _REGIONS.items():
                if kind in trace["type"] or (kind == "scene" and trace["type"] in _SCENE_TRACES):
                    key = trace.get(attribute, kind)
                    layout.setdefault(key, {})
                    if key not in self.names:
                        self.names[key] = self._next(kind)

    def _next(self, kind: str) -> str:
        self.counters[kind] += 1
        return kind if self.counters[kind] == 1 else f"{kind}{self.counters[kind]}"

    def _unwritten(self, source: dict[str, Any]) -> list[str]:
        written = {"".join(match.groups()) for key in source["layout"] if (match := _AXIS.match(key))}
        return [name for name in self.names if name[0] in "xy" and name not in written]

    def _add_axis(self, letter: str, number: str, axis: dict[str, Any], into: dict[str, Any]) -> None:
        axis = copy.deepcopy(axis)
        start, end = axis.get("domain") or (0, 1)
        axis["domain"] = [_unit(self.place(letter, start)), _unit(self.place(letter, end))]
        # An axis that names no partner stands on the first of the other kind, which has another name now.
        axis.setdefault("anchor", "y" if letter == "x" else "x")
        if axis["anchor"] == "free":
            axis["position"] = self.place("y" if letter == "x" else "x", axis.get("position") or 0)
        for link in ("anchor", "matches", "overlaying", "scaleanchor"):
            if axis.get(link) in self.names:
                axis[link] = self.names[axis[link]]
        axis["automargin"] = False  # the cell already holds the figure's own margins
        name = self.names[letter + number]
        into[f"{letter}axis{name[1:]}"] = axis

    def _domain(self, domain: dict[str, Any] | None) -> dict[str, list[float]]:
        domain = domain or {}
        return {axis: [_unit(self.place(axis, end)) for end in domain.get(axis) or (0, 1)] for axis in "xy"}

    def _bar(self, bar: dict[str, Any] | None) -> dict[str, Any]:
        """A colour bar at the same place of its own panel; its length in shares of the panel's height."""
        bar = dict(bar or {})
        flat = bar.get("orientation") == "h"
        along, across = ("x", "y") if flat else ("y", "x")
        if bar.get("lenmode", "fraction") == "fraction":
            bar["len"] = (bar.get("len") or 1) * self.size[along]
        for axis, usual in ((across, 1.02), (along, 0.5)):
            given = bar.get(axis)
            bar[axis] = self.place(axis, usual if given is None else given)
        if not flat:
            bar.setdefault("xanchor", "left")
        return bar

    def _trace(self, trace: dict[str, Any]) -> dict[str, Any]:
        if _cartesian(trace):
            trace["xaxis"] = self.names[trace.get("xaxis", "x")]
            trace["yaxis"] = self.names[trace.get("yaxis", "y")]
        if trace.get("legend", "legend") in self.names:
            trace["legend"] = self.names[trace.get("legend", "legend")]
        for attribute in {*_REGIONS.values()}:
            if trace.get(attribute) in self.names:
                trace[attribute] = self.names[trace[attribute]]
        for kind, attribute in _REGIONS.items():
            if kind in self.names and kind in trace["type"]:
                trace.setdefault(attribute, self.names[kind])
        if trace["type"] in _SCENE_TRACES:
            trace.setdefault("scene", self.names.get("scene", "scene"))
        if trace["type"] in _DOMAIN_TRACES:
            trace["domain"] = self._domain(trace.get("domain"))
        for holder in (trace, trace.get("marker") or {}, trace.get("line") or {}):
            if holder.get("coloraxis") in self.names:
                holder["coloraxis"] = self.names[holder["coloraxis"]]
            elif holder.get("colorbar") or (holder is trace and _own_bar(trace)) or holder.get("showscale"):
                holder["colorbar"] = self._bar(holder.get("colorbar"))
        return trace

    def _move(self, item: dict[str, Any], kind: str) -> dict[str, Any]:
        """An annotation, shape or image, with its references and its paper coordinates moved."""
        for axis in "xy":
            reference = item.get(f"{axis}ref") or ("paper" if kind == "images" else axis)
            match = _REFERENCE.match(reference)
            if reference == "paper":
                for key in _COORDINATES[kind]:
                    name = axis + key
                    if item.get(name) is not None:
                        item[name] = self.place(axis, item[name])
                if kind == "images":
                    item.setdefault(axis, self.place(axis, 0 if axis == "x" else 1))
                    if item.get(f"size{axis}") is not None:
                        item[f"size{axis}"] *= self.size[axis]
            elif match and (name := match.group(1) + match.group(2)) in self.names:
                item[f"{axis}ref"] = self.names[name] + (match.group(3) or "")
            arrow = item.get(f"a{axis}ref")
            if arrow in self.names:
                item[f"a{axis}ref"] = self.names[arrow]
        return item


def _unit(value: float) -> float:
    """Within 0..1 in spite of rounding."""
    return min(max(value, 0.0), 1.0)


def _cartesian(trace: dict[str, Any]) -> bool:
    return trace["type"] in _CARTESIAN_TRACES


def _color_axis(trace: dict[str, Any]) -> str | None:
    holders = (trace, trace.get("marker") or {}, trace.get("line") or {})
    return next((holder["coloraxis"] for holder in holders if holder.get("coloraxis")), None)


def _own_bar(trace: dict[str, Any]) -> bool:
    scaled = trace["type"] in ("heatmap", "contour", "histogram2d", "histogram2dcontour", "surface")
    return scaled and "coloraxis" not in trace and trace.get("showscale") is not False
