"""Colours of numbers: from where to where they reach, along which course, values beyond them, and their bar.

A number keeps its value and has the pure colour of the bar. Along a linear course one large number would leave all
others the colour of 0; `Scale.of` then takes another, by a rule, and the bar names it. Cells that are masked have a
colour that no number has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import plotly.graph_objects as go
from plotly.colors import get_colorscale, sample_colorscale

from workbench.figures.marks import coloured, key_entry
from workbench.figures.text_widths import widest
from workbench.figures.theme import DIVERGING, GREY, SIZE, marker_of

Course = Literal["linear", "root", "log"]
# White to dark red, ever darker: more is darker in grey as well, and words can be read on it.
WEIGHTS = [
    [0, "#FFFFFF"],
    [0.15, "#FDE3D3"],
    [0.4, "#F4A582"],
    [0.65, "#D05A4A"],
    [0.85, "#A0172C"],
    [1, "#5E0019"],
]
MASKED = "#E2E7EB"
_NAMES = {"linear": "", "root": "square-root scale", "log": "log scale"}
_STOPS = 48


def course_of(sizes: np.ndarray) -> Course:
    """Along what colours run, for numbers from 0: linear where a tenth of those above 0 reach a fifth of the largest.

    Else along their square root where a tenth reach a fiftieth of it, else along their logarithm.
    """
    above = sizes[np.isfinite(sizes) & (sizes > 0)]
    level = float(np.quantile(above, 0.9) / above.max()) if above.size else 1.0
    return "linear" if level >= 0.2 else "root" if level >= 0.02 else "log"


@dataclass(frozen=True)
class Scale:
    """Colours from ``ends[0]`` to ``ends[1]``, with ``middle`` to both sides of it; and their meaning.

    ``reach`` are the least and the largest number that is drawn: where they lie beyond the ends, the bar shows it.
    """

    ends: tuple[float, float]
    title: str = ""
    colours: Any = None
    course: Course = "linear"
    middle: float | None = None
    reach: tuple[float, float] | None = None

    @classmethod
    def of(
        cls, numbers: Sequence[Any], title: str, *, ends: tuple[float, float] | None = None, colours: Any = None,
        course: Course | None = None, middle: float | None = None,
    ) -> Scale:  # fmt: skip
        """The scale of these arrays: from 0 to the largest, or as far from the middle to both sides."""
        values = np.concatenate([np.asarray(array, dtype=float).ravel() for array in numbers])
        values = values[np.isfinite(values)]
        values = values if values.size else np.zeros(1)
        low, high = float(values.min()), float(values.max())
        sizes = values if middle is None else np.abs(values - middle)
        course = course or course_of(sizes)
        if ends is None:
            most = float(sizes.max()) or 1.0
            ends = (min(low, 0.0), high or 1.0) if middle is None else (middle - most, middle + most)
            if course == "log" and middle is None:
                ends = (max(ends[1] / 1000, float(sizes[sizes > 0].min())), ends[1])
        course = "root" if course == "log" and (middle is not None or ends[0] <= 0) else course
        return cls(
            ends, title, colours or (WEIGHTS if middle is None else DIVERGING), course, middle, (low, high)
        )

    @property
    def words(self) -> str:
        """The meaning of the colours, with their course."""
        course = _NAMES[self.course]
        if course and self.middle:
            course = f"{course} around uniform"
        return ", ".join(part for part in (self.title, course) if part)

    def place(self, value: Any) -> Any:
        """Return the position of a number along the bar: from 0 to 1, or with a middle at 0 from -1 to 1 at most."""
        low, high = self.ends
        power = 0.5 if self.course == "root" else 1
        if self.middle is not None:
            share = (np.asarray(value) - self.middle) / max(high - self.middle, self.middle - low)
            return np.sign(share) * np.abs(share) ** power
        if self.course == "log":
            return np.log(np.maximum(value, low) / low) / np.log(high / low)
        return np.maximum((np.asarray(value) - low) / (high - low), 0) ** power

    def value(self, share: Any) -> Any:
        """The number at a place along the bar."""
        low, high = self.ends
        power = 2 if self.course == "root" else 1
        if self.middle is not None:
            side = max(high - self.middle, self.middle - low)
            return self.middle + np.sign(share) * np.abs(share) ** power * side
        return low * (high / low) ** share if self.course == "log" else low + share**power * (high - low)

    def colour(self, value: Any) -> list[str]:
        """The colours of numbers."""
        return self._at(self.place(np.nan_to_num(np.asarray(value, dtype=float), nan=self.ends[0])))

    def _at(self, places: Any) -> list[str]:
        colours = get_colorscale(self.colours) if isinstance(self.colours, str) else self.colours
        places = np.asarray(places) if self.middle is None else (np.asarray(places) + 1) / 2
        return sample_colorscale(colours, np.clip(places, 0, 1).tolist())

    def axes(self, bar: dict[str, Any], length: float, font: float) -> list[dict[str, Any]]:
        """The colour axis of the cells and, where their course is not linear, that of their bar."""
        low, high = self.ends
        ends = {"cmin": low, "cmax": high}
        scale_colours = {"colorscale": self.colours} if self.colours else {}
        outline = {"outlinewidth": font / 16, "outlinecolor": GREY}  # a bar may begin white
        bar = {**bar, **outline, **self.ticks(length, font, bar.get("orientation") == "h")}
        if self.course == "linear" and self.middle in (None, (low + high) / 2):
            return [{**scale_colours, **ends, "colorbar": bar}]
        first, last = self.place(low), self.place(high)
        places = np.linspace(first, last, _STOPS)
        shares = np.clip((self.value(places) - low) / (high - low), 0, 1)
        shares[0], shares[-1] = 0, 1
        colours = self._at(places)
        cells = {"colorscale": [[*pair] for pair in zip(shares.tolist(), colours, strict=True)], **ends}
        even = [[*pair] for pair in zip(np.linspace(0, 1, _STOPS).tolist(), colours, strict=True)]
        visible = {"colorscale": even, "cmin": first, "cmax": last, "colorbar": bar}
        return [{**cells, "showscale": False}, visible]

    def ticks(self, length: float, font: float, flat: bool = False) -> dict[str, Any]:
        """Round numbers along the bar with room between them, and at its ends what lies beyond."""
        low, high = self.ends
        span = float(self.place(high) - self.place(low))
        marks = self._beyond()
        kept = [*marks]
        firsts = (high, low) if self.middle == 0 else (high,) if self.middle is None else (self.middle, high)
        for value in [*firsts, *self._candidates()]:
            text = _number(value, high - low)
            widths = [widest([text, marks[neighbour]], font) for neighbour in kept]
            rooms = [wide + 0.6 * font if flat else 2.4 * font for wide in widths]
            distances = [
                abs(self.place(value) - self.place(neighbour)) * max(length, 1) / span for neighbour in kept
            ]
            if low <= value <= high and all(gap >= room for gap, room in zip(distances, rooms, strict=True)):
                kept.append(value)
                marks[value] = text
        plain = self.course == "linear" and self.middle in (None, (low + high) / 2)
        places = [float(value if plain else self.place(value)) for value in marks]
        return {"tickmode": "array", "tickvals": places, "ticktext": [*marks.values()]}

    def _beyond(self) -> dict[float, str]:
        """Return the words of the bar at the ends beyond which numbers lie."""
        (low, high), (least, most) = self.ends, self.reach or self.ends
        slack, arrows = 1e-9 * (high - low), {}
        if least < low - slack:
            arrows[low] = (
                f"≤ {_number(low)}" if self.course == "log" else f"▼ {_number(low)}, to {_number(least)}"
            )
        if most > high + slack:
            arrows[high] = f"▲ {_number(high)}, to {_number(most)}"
        return arrows

    def _candidates(self) -> list[float]:
        """Round numbers, the roundest first."""
        low, high = self.ends
        if self.middle not in (None, 0):
            digits = [0, 1, *(step / 10 for step in (5, 2, 4, 3, 6, 8, 1, 7, 9))]
            if high <= 1 <= high + low + 1:
                return [self.middle, *digits]
        if self.course == "linear":
            step = 10 ** np.floor(np.log10((high - low) or 1))
            wide = next(s for s in (step / 5, step / 2, step, 2 * step) if (high - low) / s <= 5.5)
            return [round(k * wide, 12) for k in range(int(np.ceil(low / wide)), int(high / wide + 1e-9) + 1)]
        most = max(abs(low), abs(high))
        powers = range(int(np.floor(np.log10(most))), int(np.floor(np.log10(most))) - 4, -1)
        sizes = [0.0, *(digit * 10.0**power for digit in (1, 5, 2, 3, 7) for power in powers)]
        signs = (1, -1) if self.middle == 0 else (1,)
        return [sign * size for size in sizes for sign in signs if not (size == 0 and sign < 0)]


def _number(value: float, span: float = math.inf) -> str:
    """A number with two digits, or more if these tell it apart from others within the span."""
    digits = max(2, round(math.log10(abs(value) / span)) + 2) if value and 0 < span < math.inf else 2
    if abs(value) >= 100:
        return f"{value:.0f}".replace("-", "−")
    text = f"{value:.{digits}g}"
    if not math.isclose(float(text), value, rel_tol=1e-9):  # rounded: as many digits as its neighbours
        text = f"{value:#.{digits}g}".rstrip(".")
    return text.replace("-", "−")


def bar_room(scale: Scale, length: float, font: float, lines: int) -> float:
    """Pixels that an upright bar takes with its numbers and the lines of its title."""
    return widest(scale.ticks(length, font)["ticktext"], font) + font * (2.2 + 1.3 * lines)


def set_scale(
    fig: go.Figure, name: str, scale: Scale, bar: dict[str, Any], length: float, font: float
) -> go.Figure:
    """The figure with the colours of the axis ``name`` and their bar, which may need a separate axis."""
    axes = scale.axes(bar, length, font)
    fig.layout[name] = axes[0]
    if len(axes) > 1:
        other = f"coloraxis{2 * int(name.removeprefix('coloraxis') or 1) + 10}"
        fig.layout[other] = axes[1]
        fig.add_trace(coloured(axes[1]["cmin"], other))
    return fig


def causal(weights: np.ndarray) -> np.ndarray:
    """Which cells of a (query, key) matrix are masked: all keys later than the query, if none of these has a weight."""
    later = np.triu(np.ones(weights.shape[-2:], dtype=bool), 1)
    square = weights.shape[-1] == weights.shape[-2] > 2
    return later if square and not np.any(weights[..., later]) else np.zeros_like(later)


def masked_key() -> go.Scatter:
    """The key's entry for masked cells."""
    look = marker_of("square", SIZE.cell, MASKED)
    return key_entry("masked: keys later than the query", mode="markers", marker=look)


def masked_shape() -> dict[str, Any]:
    """The colour of masked cells, below a panel's own."""
    panel = {"x0": 0, "x1": 1, "xref": "domain", "y0": 0, "y1": 1, "yref": "domain"}
    return {"type": "rect", **panel, "layer": "below", "fillcolor": MASKED, "line": {"width": 0}}
