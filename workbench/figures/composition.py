"""Panels to one figure of a printed width: axes, ticks, margins, titles, letters and key, all by measured text.

Lengths are pixels of 1/96 in. Nothing is left to plotly's automatic margins, so that a figure's panels are as large as
they were planned, its key is above them and never takes a third of the height.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import plotly.graph_objects as go

from workbench.core.errors import InputError
from workbench.figures.log_axis import BELOW, arrow_entry, on_log_axis, shape_on_log_axis, within_ends
from workbench.figures.marks import in_legend
from workbench.figures.text_widths import (
    in_rows,
    legend_entry,
    legend_row,
    line_count,
    text_width,
    widest,
    wrap,
    wrap_evenly,
)
from workbench.figures.theme import GREY, THEMES, WIDTH, panel_letter, readable, theme_of

_LEADER = 1.0  # letters, from the end of a line to the words at it
_KEY_SHARE = 0.3  # of a figure's height, that its key takes at most
TALLEST = 432  # pixels that a figure without a height takes, if its panels need no more: 4.5 in
_MOST_TICKS = 7
_NEAR = 0.08  # of an axis
_STEPS = (1, 2, 5)
_TIGHT = 1.6  # letters, from label to label up an axis that would have two of them otherwise
# What a template says of the first legend alone, for all of them.
_PLAIN_LEGEND = {"bgcolor": "rgba(255,255,255,0)", "itemsizing": "trace", "itemwidth": 30, "borderwidth": 0}


@dataclass(frozen=True)
class Axis:
    """An axis: its title, its ends in the unit of the data, and how its ticks are chosen.

    ``names`` are categories at 0, 1, …, with ``steep`` written upwards; ``whole`` says that only whole numbers have a
    meaning; a ``bare`` axis is the edge of a map, without ticks. ``log`` 2 is a log axis with ticks at powers of 2.
    With ``cut`` an arrow at an end marks what lies beyond it.
    """

    title: str
    low: float
    high: float
    log: bool | int = False
    whole: bool = False
    names: tuple[str, ...] = ()
    bare: bool = False
    steep: bool = False
    cut: bool = False
    labels: tuple[str, ...] = ()
    """The label of each name; several may be the same."""
    more: dict[str, Any] = field(default_factory=dict)

    def place(self, value: float) -> float:
        """Return the position of a value as a share of the axis."""
        low, high, value = (math.log10(x) if self.log else x for x in (self.low, self.high, value))
        return (value - low) / ((high - low) or 1)

    def layout(self) -> dict[str, Any]:
        """Type and range, as plotly takes them."""
        ends = [math.log10(end) if self.log else end for end in (self.low, self.high)]
        bare = {"showticklabels": False, "ticks": "", "mirror": True} if self.bare else {}
        steep = {"tickangle": -90} if self.steep else {}
        return {"range": ends, **({"type": "log"} if self.log else {}), **bare, **steep, **self.more}


@dataclass(frozen=True)
class Panel:
    """Traces on a pair of axes, with a title; ``notes`` are annotations and ``shapes`` in the panel's own axes."""

    traces: Sequence[Any]
    x: Axis
    y: Axis
    title: str = ""
    notes: Sequence[dict[str, Any]] = ()
    shapes: Sequence[dict[str, Any]] = ()
    images: Sequence[dict[str, Any]] = ()
    ends: Sequence[tuple[str, float, str]] = ()
    """Words at the ends of lines: (words, value, colour)."""
    arrows: tuple[tuple[str, str, str], ...] = ()
    """The log axes, "x" or "y", beyond whose lower end something lies, what, its colour: `compose` finds them."""


def compose(
    panels: Sequence[Panel],
    columns: int,
    key: Sequence[Any] = (),
    *,
    width: str | float = "column",
    height: float | None = None,
    shared: str = "",
    letters: bool = False,
    right: float = 0,
    inner: float | Sequence[float] | None = None,
    gap: float | None = None,
    before: Mapping[int, float] | None = None,
    heading: float = 0,
    below: float = 0,
    notes: Sequence[str] = (),
) -> go.Figure:
    """One figure of all panels, row by row, its key in rows above them.

    Args:
        key: traces that show nothing but their entry in the legend, in its order.
        width: a width of `workbench.figures.theme`.
        height: of the figure in pixels; by default the panels have a usual shape.
        shared: "x", "y" or "xy": axes that are the same in all panels, and labelled at the edge only; with "c" in the
            place of "x" they are the same down each column.
        letters: mark the panels a, b, c.
        right: room at the right edge, as of a colour bar.
        inner: height of a panel in pixels, for rows of a fixed size; or of each row.
        gap: between panels without labels, in pixels, as between maps.
        before: more room before the column at a place, in pixels.
        heading: room above everything, as for headings over several columns.
        below: room below the panels, as for colour bars.
        notes: sentences below everything.
    """
    font, panels = theme_of(width).font, [_on_its_axes(panel) for panel in panels]
    arrows = {words: letter for panel in panels for letter, words, _ in panel.arrows}
    if BELOW in arrows:  # one sign has one meaning in a figure, and 0 is below as well
        arrows = {BELOW: arrows[BELOW]}
    colours = {colour for panel in panels for *_, colour in panel.arrows}
    colour = colours.pop() if len(colours) == 1 else GREY
    key = [*key, *(arrow_entry(letter, words, colour) for words, letter in arrows.items())]
    page = _Page(panels, columns, key, width, shared, letters)
    page.right += right
    page.above += heading
    page.gap = page.gap if gap is None else gap
    page.before = before or {}
    note = "<br>".join(wrap(item, page.width - 1.2 * font, font) for item in notes)
    page.below = below + (1.3 * font * line_count(note) + 0.4 * font if notes else 0)
    if isinstance(inner, Sequence):
        page.shares, inner = [item / inner[0] for item in inner], inner[0]
    fig = page.figure(height, inner)
    if notes:
        fig.add_annotation(
            text=note, x=0.6 * font / page.width, y=0, xref="paper", yref="paper", xanchor="left",
            yanchor="bottom", align="left", showarrow=False, borderpad=0,
        )  # fmt: skip
    return fig


def with_sentences(fig: go.Figure, sentences: Sequence[str]) -> go.Figure:
    """Return the figure with sentences that `save_figure` adds to its caption."""
    meta = fig.layout.meta
    return fig.update_layout(meta={**meta, "marks": [*meta["marks"], *sentences]})


def in_the_middle(text: str) -> dict[str, Any]:
    """Return the note of a panel without data."""
    return {"text": text, "x": 0.5, "y": 0.5, "xref": "domain", "yref": "domain"}


def _on_its_axes(panel: Panel) -> Panel:
    """The panel with nothing where an axis has no place for it: at or below 0 of a log axis, or beyond an end."""
    for letter, axis in (("x", panel.x), ("y", panel.y)):
        if axis.log:
            traces = [on_log_axis(trace, letter, axis.low, axis.cut) for trace in panel.traces]
            shapes = [shape_on_log_axis(shape, letter, axis.low) for shape in panel.shapes]
            arrows = [(letter, parts[1].meta, parts[1].marker.color) for parts in traces if len(parts) > 1]
            panel = replace(
                panel, traces=[trace for parts in traces for trace in parts],
                shapes=[shape for shape in shapes if shape is not None], arrows=(*panel.arrows, *arrows),
            )  # fmt: skip
    for letter, axis in (("x", panel.x), ("y", panel.y)):
        if axis.cut:
            cut = [within_ends(trace, letter, axis.low, axis.high) for trace in panel.traces]
            _apart_from_one_another([arrow for parts in cut for arrow in parts[1:]])
            panel = replace(panel, traces=[trace for parts in cut for trace in parts])
    if panel.y.log:
        ends = [(words, value if value > 0 else panel.y.low, colour) for words, value, colour in panel.ends]
        panel = replace(panel, ends=ends)
    return panel


def _apart_from_one_another(arrows: Sequence[Any]) -> None:
    """Set a second arrow at a place within the first, its value in a separate line or at the other side."""
    seen = set()
    for arrow in arrows:
        places, sides = zip(arrow.x, arrow.y, strict=True), [*arrow.textposition]
        words, sizes = [*(arrow.text or [""] * len(sides))], []
        for number, position in enumerate(places):
            if position in seen and sides[number].startswith("bottom"):
                words[number] = f"<br>{words[number]}"
            elif position in seen:
                sides[number] = sides[number].replace("right", "left")
            sizes.append(3 if position in seen else arrow.marker.size)
            seen.add(position)
        size = sizes if len({*sizes}) > 1 else sizes[0]
        arrow.update(textposition=sides, text=words if arrow.text else None, marker_size=size)


class _Page:
    """Positions of everything: first the widths, from the widest labels, then the heights."""

    def __init__(
        self,
        panels: list[Panel],
        columns: int,
        key: list[Any],
        width: str | float,
        shared: str,
        letters: bool,
    ) -> None:
        self.panels, self.theme = panels, theme_of(width)
        self.width, font = self.theme.pixels(width), self.theme.font
        self.columns = min(columns, len(panels))
        self.lines = -(-len(panels) // self.columns)
        self.by_column, self.shared_y = "c" in shared, "y" in shared
        self.shared_x = "x" in shared or self.by_column
        self.letters = letters and len(panels) > 1
        self.font, self.title_font = font, font * 9 / 8
        self.tick = font / 3 + 4  # the tick and the gap between it and its label
        self.right, self.gap = font * 0.9, font * 1.1
        self.slack = font * 0.6  # by which an axis title may be wider than its panel
        self.before: Mapping[int, float] = {}
        self.below = 0.0
        self.shares = [1.0] * self.lines  # heights of the rows, by that of the first
        key, self.sentences = in_legend(key, self.width - font, font)
        self.key = key
        for trace in key:
            trace.name = wrap(trace.name, self.width - font - legend_entry("", font), font)
        self.key_rows = in_rows([trace.name for trace in key], self.width - font, font)
        self.key_lines = [max(line_count(key[index].name) for index in places) for places in self.key_rows]
        self.above = sum(self.key_lines) * legend_row(font) + (6 if key else 0)
        self.ends_room = widest((words for panel in panels for words, _, _ in panel.ends), font)

    def figure(self, height: float | None, inner: float | None) -> go.Figure:
        if self.theme.fixed_height:
            height = self.width * 9 / 16
        across = (self.width - self.right) / self.columns * 0.8
        tall = inner or min(max(0.62 * across, 8.5 * self.font), 15 * self.font)
        usual = tall
        for _ in range(3):  # ticks need the panel's size, which needs the widths of the ticks' labels
            tops, bottoms = self._rows_of_words(across, tall)
            spent = sum(tops) + sum(bottoms) + self.above + self.below
            if height:
                tall = max((height - spent) / sum(self.shares), 3 * self.font)
            elif inner is None and spent + tall * sum(self.shares) > TALLEST:
                tall = max((TALLEST - spent) / sum(self.shares), 5 * self.font)
            elif self.above > _KEY_SHARE * (spent + tall * sum(self.shares)):
                tall = min((self.above / _KEY_SHARE - spent) / sum(self.shares), 1.8 * usual)
            lefts = self._lefts(tall, across)
            if self.shared_y and self.columns > 1:
                self.slack = min(lefts[1:]) - 0.3 * self.font
            gap = self.ends_room + (self.font * (0.6 + _LEADER) if self.ends_room else 0)
            across = (self.width - sum(lefts) - self.right - gap * self.columns) / self.columns
        needed = spent + tall * sum(self.shares)
        total = height or needed
        if total < needed - self.below - bottoms[-1]:
            raise InputError(
                f"height is {total:g} pixels; the panels and their words need {needed:.0f} or more"
            )
        fig = go.Figure()
        layout: dict[str, Any] = {"annotations": [], "shapes": [], "images": []}
        for number, panel in enumerate(self.panels):
            row, column = divmod(number, self.columns)
            x0 = sum(lefts[: column + 1]) + column * (across + gap)
            y0 = self.above + sum(tops[: row + 1]) + sum(bottoms[:row]) + tall * sum(self.shares[:row])
            box = (x0, x0 + across, y0, y0 + tall * self.shares[row])
            self._add(fig, layout, number, panel, box, total, tops[row], x0 - lefts[column])
        self._add_key(fig, layout, total)
        layout |= {"width": self.width, "height": round(total), "template": self.theme.template}
        layout["meta"] = {"marks": self.sentences}
        margin = dict.fromkeys("lrtb", 0) | {"autoexpand": False}
        return fig.update_layout(layout, margin=margin, barmode="overlay")

    def _rows_of_words(self, across: float, tall: float) -> tuple[list[float], list[float]]:
        """For each row of panels the room above it (titles, letters) and below it (ticks, axis titles)."""
        tops, bottoms = [], []
        for line in range(self.lines):
            row_panels = self.panels[line * self.columns : (line + 1) * self.columns]
            titles = [wrap_evenly(panel.title, across + self.ends_room, self.font) for panel in row_panels]
            top = 0 if line and self.shared_x else self.font * 0.7
            titled = any(titles) or self.letters
            tops.append(max(map(line_count, titles)) * 1.3 * self.font + 3 if titled else top)
            lowest = len(self.panels) < (line + 2) * self.columns or not self.shared_x
            room = self.gap if self.shared_x else self.font * 0.8
            room = max(room, self.font * 0.7) if lowest else room  # for the last label of a colour bar
            if lowest and any(not panel.x.bare or panel.x.title for panel in row_panels):
                room = max(self._tall_labels(panel.x, across) for panel in row_panels) + self.font * 0.4
                room += max(self._tall_title(panel.x.title, across + self.slack) for panel in row_panels)
            bottoms.append(room)
        return tops, bottoms

    def _tall_title(self, title: str, room: float) -> float:
        """Return the height of an axis title along a length in pixels."""
        return 1.3 * self.title_font * line_count(wrap_evenly(title, room, self.title_font)) if title else 0.0

    def _tall_labels(self, axis: Axis, across: float) -> float:
        """The height of the ticks and their labels below a panel."""
        if axis.bare:
            return 0.0
        labels = ticks(axis, across, self.font, False)[1] or [""]
        tall = widest(labels, self.font) if axis.steep else 1.3 * self.font * max(map(line_count, labels))
        return self.tick + tall

    def _lefts(self, tall: float, across: float) -> list[float]:
        """For each column the room at the left of its panels: tick labels and the axis title."""
        rooms = []
        for column in range(self.columns):
            column_panels = self.panels[column :: self.columns]
            if column and self.shared_y:
                neighbours = [*column_panels, *self.panels[column - 1 :: self.columns]]
                flat = [panel.x for panel in neighbours if not panel.x.steep]
                labels = [label for axis in flat for label in ticks(axis, across, self.font, False)[1]]
                ends = widest(labels, self.font) + 0.3 * self.font
                room = self.gap if all(axis.bare for axis in flat) else max(self.gap, ends)
            else:
                lengths = [
                    *zip(
                        (panel.y for panel in column_panels),
                        (tall * share for share in self.shares),
                        strict=False,
                    )
                ]
                room = max(widest(ticks(y, length, self.font, True)[1], self.font) for y, length in lengths)
                room += max(
                    self._tall_title(y.title, length) + self.font * 0.5 * bool(y.title)
                    for y, length in lengths
                )
                room += 0 if all(y.bare for y, _ in lengths) else self.tick
                room += self.font * (0.9 if column else 0.3)
            rooms.append(room + self.before.get(column, 0))
        return rooms

    def _add(
        self, fig: go.Figure, layout: dict[str, Any], number: int, panel: Panel, box: tuple[float, float, float, float],
        total: float, top: float, start: float,
    ) -> None:  # fmt: skip
        """A panel's traces, axes and words; ``box`` is left, right, top and bottom in pixels from the upper left."""
        suffix = str(number + 1) if number else ""
        left, right, upper, lower = box
        lowest, first = number + self.columns >= len(self.panels), number % self.columns == 0
        # plotly puts the notes of axes that have no trace elsewhere
        bare = panel.notes and not (panel.traces or panel.images)
        empty = [go.Scatter(x=[None], y=[None], showlegend=False)] if bare else []
        for trace in [*panel.traces, *empty]:
            fig.add_trace(self._sized(trace).update(xaxis=f"x{suffix}", yaxis=f"y{suffix}"))
        for letter, axis, edge, shared, ends, extent, length, room in (
            ("x", panel.x, lowest, self.shared_x, (left, right), self.width, right - left, self.slack),
            ("y", panel.y, first, self.shared_y, (total - lower, total - upper), total, lower - upper, 0),
        ):
            settings, _ = ticks(axis, length, self.font, letter == "y")
            title = wrap_evenly(axis.title, length + room, self.title_font)
            named = {"title": {"text": title, "standoff": self.font * 0.4}}
            visible = named if edge or not shared else {"showticklabels": False}
            layout[f"{letter}axis{suffix}"] = {
                "domain": [end / extent for end in ends], "anchor": f"{'y' if letter == 'x' else 'x'}{suffix}",
                "automargin": False, "tickangle": 0, **axis.layout(), **settings, **visible,
                **({"matches": self._partner(letter, number)} if shared and number else {}),
            }  # fmt: skip
        axes = {"xref": f"x{suffix}", "yref": f"y{suffix}"}
        domains = {"xref": f"x{suffix} domain", "yref": f"y{suffix} domain"}
        layout["annotations"] += [
            {**axes, "showarrow": False, **note, **self._whole(note, domains)} for note in panel.notes
        ]
        layout["images"] += [{**axes, **image} for image in panel.images]
        layout["shapes"] += [{**axes, **shape, **self._whole(shape, domains)} for shape in panel.shapes]
        if panel.title:
            layout["annotations"].append({
                "text": wrap_evenly(panel.title, right - left + self.ends_room, self.font), "x": 0.5, "y": 1, **domains,
                "xanchor": "center", "yanchor": "bottom", "borderpad": 0, "yshift": self.font / 6, "showarrow": False,
            })  # fmt: skip
        if self.letters:
            x_letter = start + self.font * (0.2 if first else 0.9)
            y = 1 - (upper - top) / total
            layout["annotations"].append(panel_letter(chr(ord("a") + number), x_letter / self.width, y))
        words, leaders = self._end_words(panel, domains, right - left, lower - upper)
        layout["annotations"] += words
        layout["shapes"] += leaders

    def _sized(self, trace: Any) -> Any:
        """A trace in the sizes of the theme: what marks say is meant for paper."""
        factor = self.theme.font / THEMES["paper"].font
        if factor != 1 and trace.type == "scatter":
            for holder, name in ((trace.marker, "size"), (trace.line, "width"), (trace.error_x, "thickness")):
                if holder is not None and isinstance(holder[name], (int, float)):
                    holder[name] *= factor
        return trace

    def _whole(self, shape: dict[str, Any], domains: dict[str, str]) -> dict[str, str]:
        """The references of what stands in its panel, whatever its axes are."""
        return {name: domains[name] for name in domains if shape.get(name) == "domain"}

    def _partner(self, letter: str, number: int) -> str | None:
        """The axis that this one is linked with: of x the first of all or of its column, of y of its row."""
        column = number % self.columns
        first = number - column if letter == "y" else column if self.by_column else 0
        return None if first == number else f"{letter}{first + 1 if first else ''}"

    def _end_words(
        self, panel: Panel, domains: dict[str, str], across: float, tall: float
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The words at the ends of lines, and a leader from each end to its words, which others may have moved."""
        ends = [panel.y.place(value) for _, value, _ in panel.ends]
        places = _spread_out([end * tall for end in ends], 1.25 * self.font, tall)
        look = {  # in the middle: plotly's "auto" hangs the words of the upper third from their place
            **domains, "x": 1, "xanchor": "left", "yanchor": "middle", "xshift": self.font * (0.4 + _LEADER),
            "borderpad": 0, "showarrow": False,
        }  # fmt: skip
        words, leaders = [], []
        for (text, _, colour), end, label_y in zip(panel.ends, ends, places, strict=True):
            coloured = f'<span style="color:{readable(colour)}">{text}</span>'
            words.append(look | {"text": coloured, "y": label_y / tall})
            leader = {
                "x0": 0.98,
                "y0": end,
                "x1": 1 + (0.2 + _LEADER) * self.font / across,
                "y1": label_y / tall,
            }
            leaders.append(
                {"type": "line", **domains, **leader, "line": {"color": colour, "width": WIDTH.rule}}
            )
        return words, leaders

    def _add_key(self, fig: go.Figure, layout: dict[str, Any], total: float) -> None:
        """A legend for each row of the key: so plotly cannot break it differently."""
        for number, places in enumerate(self.key_rows):
            name = f"legend{number + 1 if number else ''}"
            for index in places:
                fig.add_trace(self._sized(self.key[index]).update(legend=name, showlegend=True))
            layout[name] = {
                **_PLAIN_LEGEND, "font": {"size": self.font}, "orientation": "h",
                "traceorder": "normal", "xref": "container", "yref": "container",
                "x": self.font * 0.3 / self.width, "xanchor": "left", "yanchor": "top",
                "y": 1 - sum(self.key_lines[:number]) * legend_row(self.font) / total,
            }  # fmt: skip


def beside_panels(fig: go.Figure) -> dict[str, float]:
    """Return the position of a colour bar at the right of all panels, as tall as they are together."""
    low, *_, high = sorted(end for axis in fig.select_yaxes() for end in axis.domain)
    right = max(axis.domain[1] for axis in fig.select_xaxes())
    return {"x": right, "len": high - low, "y": (low + high) / 2}


def _spread_out(places: Sequence[float], least: float, room: float) -> list[float]:
    """The places moved as little as needed for ``least`` between them, inside the room."""
    order = np.argsort(places, kind="stable")
    moved = np.asarray(places, dtype=float)[order]
    for _ in range(200):
        gaps = np.diff(moved)
        if not (gaps < least - 1e-6).any():
            break
        for here in np.flatnonzero(gaps < least - 1e-6):
            push = (least - (moved[here + 1] - moved[here])) / 2
            moved[here] -= push
            moved[here + 1] += push
    if len(moved):  # inside the axis at its lower end, where its ticks are
        moved += max(0, least / 2 - moved[0]) - max(0, moved[-1] - room - least / 2)
    spread = np.empty_like(moved)
    spread[order] = moved
    return spread.tolist()


def ticks(axis: Axis, room: float, font: float, upright: bool) -> tuple[dict[str, Any], list[str]]:
    """Axis settings for the round numbers that have room, and what their labels say."""
    if axis.bare:
        return {}, []
    if axis.names:
        if axis.more.get("type") == "category":  # a name that is a number would be looked up by that
            return _token_ticks(axis, room, font)
        return _array([*range(len(axis.names))], [*axis.names])
    fewest: tuple[dict[str, Any], list[str]] = ({}, [])
    for settings, labels in _log_ticks(axis) if axis.log else _linear_ticks(axis, room / font):
        if len(labels) < 2 and fewest[1]:
            break
        if upright and len(labels) < 3 <= len(fewest[1]) and len(fewest[1]) * _TIGHT * font <= room:
            break  # two labels may end at half the axis
        fewest = settings, labels
        if len(labels) <= _MOST_TICKS and _apart(axis, settings, labels, room, font, upright):
            break
    return fewest


def tick_values(axis: Axis, room: float, font: float, upright: bool) -> tuple[list[float], list[str]]:
    """Where `ticks` stand, and what their labels say."""
    settings, labels = ticks(axis, room, font, upright)
    return _values(axis, settings, labels), labels


def _values(axis: Axis, settings: Mapping[str, Any], labels: Sequence[str]) -> list[float]:
    step = settings.get("dtick", 1)
    first = math.ceil(min(axis.low, axis.high) / step - 1e-9)
    return settings.get("tickvals") or [(first + n) * step for n in range(len(labels))]


def _token_ticks(axis: Axis, room: float, font: float) -> tuple[dict[str, Any], list[str]]:
    """Every category with its label where there is room for all, else its number, at round ones."""
    names, labels = list(axis.names), list(axis.labels or axis.names)
    if len(names) * 0.85 * font > room:
        steps = (1, 5, 10, 20, 50, 100, 200, 500, 1000, 10**9)
        step = next(step for step in steps if room * step >= 2.2 * font * len(names))
        names, labels = names[::step], [str(number) for number in range(0, len(names), step)]
    return _array(names, labels)


def _apart(
    axis: Axis, settings: dict[str, Any], labels: list[str], room: float, font: float, upright: bool
) -> bool:
    """Whether no label comes too near to its neighbour."""
    if upright:
        return len(labels) * 2.1 * font <= room
    places = [axis.place(value) * room for value in _values(axis, settings, labels)]
    ends = [*zip(places, (text_width(label, font) / 2 for label in labels), strict=True)]
    return all(
        at - before >= half + half_width + 0.7 * font for (before, half), (at, half_width) in pairwise(ends)
    )


def _linear_ticks(axis: Axis, most: float) -> Any:
    """Ever fewer ticks at multiples of 1, 2 or 5 times a power of ten."""
    low, high = sorted((axis.low, axis.high))
    reach = high - low
    power = 10.0 ** math.floor(math.log10(reach / most))
    steps = (digit * power * scale for scale in (1, 10, 100) for digit in _STEPS)
    for step in (step for step in steps if not axis.whole or (step >= 1 and step == round(step))):
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        labels = [f"{multiple * step:.6g}".replace("-", "−") for multiple in range(first, last + 1)]
        yield {"tickmode": "linear", "tick0": 0, "dtick": step}, labels


def _log_ticks(axis: Axis) -> Any:
    """Digits of each power of ten where there are few decades, then powers, then every second or third of them."""
    low, high = math.log10(axis.low), math.log10(axis.high)
    first, last = math.ceil(math.log2(axis.low) - 1e-9), math.floor(math.log2(axis.high) + 1e-9)
    for step in (1, 2, 3, 4) if axis.log == 2 and last > first else ():
        tick_powers = [2.0**power for power in range(first, last + 1, step)]
        yield _array(tick_powers, [f"{value:g}" for value in tick_powers])
    powers = range(math.floor(low), math.ceil(high) + 1)
    fine = ((1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8), (1, 1.5, 2, 3, 5, 7)) if high - low < 0.8 else ()
    few = math.floor(high + 1e-9) - math.ceil(low - 1e-9) < 2  # powers are two ticks, or one
    coarse = [(1, 3)] if few else []
    for digits in (*fine, (1, 2, 3, 5), (1, 2, 5), (1, 3)) if high - low < 2.2 else coarse:
        pairs = [(digit, power) for power in powers for digit in digits]
        pairs = [(d, p) for d, p in pairs if low - 1e-9 <= math.log10(d) + p <= high + 1e-9]
        far = any(not -3 < power < 4 for _, power in pairs)
        yield _array([d * 10.0**p for d, p in pairs], [_decimal(d, p, far) for d, p in pairs])
    for step in (1, 2, 3, 5, 10):
        tick_powers = [power for power in powers if power % step == 0 and low - 1e-9 <= power <= high + 1e-9]
        far = any(not -3 < power < 4 for power in tick_powers)  # then all are powers: labels of one kind
        yield _array(
            [10.0**power for power in tick_powers], [_decimal(1, power, far) for power in tick_powers]
        )


def _array(places: list[Any], labels: list[str]) -> tuple[dict[str, Any], list[str]]:
    return {"tickmode": "array", "tickvals": places, "ticktext": labels}, labels


def _decimal(digit: float, power: int, as_power: bool = False) -> str:
    if -3 < power < 4 and not as_power:
        return f"{digit * 10.0**power:g}"
    times = "" if digit == 1 else f"{digit:g}·"
    return f"{times}10<sup>{power}</sup>".replace("-", "−")


def round_up(value: float) -> float:
    """The next multiple of its power of ten: where an axis from 0 ends at a tick."""
    step = 10.0 ** math.floor(math.log10(value)) if value > 0 else 1.0
    return step * math.ceil(value / step - 1e-9) if value > 0 else step


def with_room(axis: Axis, share: float = 0.04) -> Axis:
    """The axis with some room beyond its ends."""
    if axis.log:
        factor = (axis.high / axis.low) ** share if axis.high > axis.low else 2
        low, high = axis.low / factor, axis.high * factor
        least, near = 10.0 ** math.floor(math.log10(low)), (high / low) ** (_NEAR / 2)
        return replace(axis, low=least if low / least < near and high / low > 100 else low, high=high)
    pad = share * ((axis.high - axis.low) or abs(axis.high) or 1)
    low, high = axis.low - pad, axis.high + pad
    if not axis.whole:  # a round number just beyond an end is shown: ticks do not end at half the range
        power = 10.0 ** math.floor(math.log10(high - low))
        sizes = (share * power for share in (0.1, 0.2, 0.5, 1))
        step = max(size for size in sizes if high - low >= 1.8 * size)
        near = _NEAR * (high - low)
        above, below = (round_ * step for round_ in (math.ceil(high / step), math.floor(low / step)))
        high, low = above if above - high < near else high, below if low < 0 and low - below < near else low
    return replace(axis, low=low, high=high)
