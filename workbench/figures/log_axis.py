"""Values outside an axis: at or below 0 on a log axis, or beyond the ends that were chosen for it."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from workbench.figures.marks import key_entry
from workbench.figures.theme import GREY, NULL_BAND, SIZE, marker_of, readable

_BEYOND = "to 0 or less (log axis)"
BELOW = "below the axis"
# Arrows have their tip at the place, so that none lies over a tick label.
_ARROWS = {"x": "arrow-left", "y": "arrow-down"}
_OTHER_END = {"x": "arrow-right", "y": "arrow-up"}
_SOLID = re.compile(r"rgba\((\d+), ?(\d+), ?(\d+),.*\)")
_SLACK = 1e-9
_MOST_VALUES = 3  # that are written beside the arrows of a trace


def on_log_axis(trace: Any, letter: str, low: float, cut: bool = False) -> list[Any]:
    """The trace on an axis ("x" or "y") that begins at ``low`` > 0, and an arrow at that end for what lies beyond it.

    A band goes on below it; an interval goes to it; a value below it has the arrow in its place. The arrow's ``meta``
    says in words what it stands for. On a ``cut`` axis only what is at or below 0 is meant: see `within_ends`.
    """
    if trace.type != "scatter" or trace[letter] is None:
        return [trace]
    values, up, down = _numbers(trace, letter)
    least = np.finfo(float).tiny if cut else low * (1 - _SLACK)
    if trace.fill not in (None, "none"):
        if letter == "y" and not cut:
            return _band(trace, low, values)
        trace[letter] = np.where(values < least, low, values)
        return [trace]
    below, beyond = values < least, values - down < least
    if not (below | beyond).any():
        return [trace]
    words = _BEYOND if (np.where(below, values, values - down)[below | beyond] <= 0).all() else BELOW
    trace[letter] = np.where(below, np.nan, values)
    if trace.mode == "lines":  # where it leaves the axis: an arrow for each value would be a row of them
        beyond[1:] &= ~below[:-1]
        below[1:] &= ~below[:-1]
    up = np.maximum(values + up - low, 0) * below
    arrow = _arrow(trace, letter, low, values, up, below | beyond, words)
    bars = trace[f"error_{letter}"]
    if bars.array is not None:
        bars.update(symmetric=False, arrayminus=np.where(beyond, np.maximum(values - low, 0), down))
    return [trace, arrow]


def _numbers(trace: Any, letter: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values along an axis, and how far their intervals reach up and down."""
    values = pd.to_numeric(pd.Series([*trace[letter]], dtype=object), errors="coerce").to_numpy(dtype=float)
    bars = trace[f"error_{letter}"]
    up = np.zeros(len(values)) if bars.array is None else np.asarray(bars.array, dtype=float)
    return values, up, up if bars.arrayminus is None else np.asarray(bars.arrayminus, dtype=float)


def _colour(trace: Any, letter: str) -> str:
    """That of a trace's intervals, its line or its markers."""
    colours = trace[f"error_{letter}"].color, trace.line.color, trace.marker.color, "black"
    return next(colour for colour in colours if isinstance(colour, str))


def _band(trace: go.Scatter, low: float, values: np.ndarray) -> list[go.Scatter]:
    """The band as it goes on below the axis, with an arrow where its lower edge alone does: else its line has one."""
    trace.y = np.where(values <= 0, low / 2, values)
    above, under = np.split(values[: len(values) // 2 * 2] < low * (1 - _SLACK), 2)
    if above.any() or not under.any():
        return [trace]
    under[:-1] &= ~under[1:]  # the edge runs backwards: where it leaves
    chosen = np.concatenate([above, under, np.zeros(len(values) % 2, dtype=bool)])
    grey = trace.fillcolor.startswith(NULL_BAND.rpartition(",")[0])
    solid = GREY if grey else _SOLID.sub(r"rgb(\1,\2,\3)", trace.fillcolor)
    plain = go.Scatter(trace).update(line={"color": solid})
    words = _BEYOND if (values[chosen] <= 0).all() else BELOW
    return [trace, _arrow(plain, "y", low, values, np.zeros(len(values)), chosen, words)]


def _arrow(
    trace: go.Scatter,
    letter: str,
    low: float,
    values: np.ndarray,
    up: np.ndarray,
    chosen: np.ndarray,
    words: str,
) -> go.Scatter:
    other = "y" if letter == "x" else "x"
    colour, thickness = _colour(trace, letter), trace[f"error_{letter}"].thickness
    bar = {"type": "data", "symmetric": False, "array": up[chosen], "arrayminus": up[chosen] * 0}
    return go.Scatter(
        {
            letter: np.full(chosen.sum(), low),
            other: [position for position, flag in zip(trace[other], chosen, strict=True) if flag],
            f"error_{letter}": {**bar, "color": colour, "thickness": thickness, "width": 0},
        },
        mode="markers", marker=marker_of(_ARROWS[letter], SIZE.tick, colour),
        text=[f"{value:.4g}" for value in values[chosen]], hovertemplate=f"%{{text}}, {words}<extra></extra>",
        meta=words, cliponaxis=False, showlegend=False, name=trace.name, legendgroup=trace.legendgroup,
    )  # fmt: skip


def arrow_entry(letter: str, words: str, colour: str) -> go.Scatter:
    """The entry of a key that says what the arrows are."""
    symbol = _ARROWS[letter].replace("arrow", "triangle")  # whose middle, not tip, stands beside the words
    return key_entry(words, mode="markers", marker=marker_of(symbol, SIZE.tick, colour))


def shape_on_log_axis(shape: dict[str, Any], letter: str, low: float) -> dict[str, Any] | None:
    """The shape cut at the lower end of a log axis; None where it lies beyond it."""
    ends = [name for name in (f"{letter}0", f"{letter}1") if name in shape]
    cut = [name for name in ends if shape[name] <= 0 and shape.get(f"{letter}ref") != "domain"]
    if cut and len(cut) == len(ends):
        return None
    return {**shape, **dict.fromkeys(cut, low)}


def within_ends(trace: Any, letter: str, low: float, high: float) -> list[Any]:
    """Cut the trace at the ends of an axis, with an arrow wherever it continues, and the value that it reaches.

    Of neighbouring places beyond an end one has the arrow: of a band the farthest, of a line where it leaves. Intervals
    that go on have one without a value.
    """
    if trace.type != "scatter" or trace[letter] is None:
        return [trace]
    other, bars = "y" if letter == "x" else "x", trace[f"error_{letter}"]
    values, up, down = _numbers(trace, letter)
    filled = trace.fill not in (None, "none")
    if letter == "x" and filled:  # a null beside an estimate, which has the arrow
        return [trace.update(x=[None if np.isnan(value) else min(max(value, low), high) for value in values])]
    inside, line = np.clip(values, low, high), bars.array is None and not filled
    drawn, arrows = inside.copy(), []
    for end, reach, symbol in ((low, values - down, _ARROWS), (high, values + up, _OTHER_END)):
        beyond = reach < end - _SLACK * abs(end) if end == low else reach > end + _SLACK * abs(end)
        for run in np.split(np.arange(len(values)), np.flatnonzero(np.diff(beyond)) + 1):
            if len(run) and beyond[run[0]]:
                far = run[np.argmax(np.abs(reach[run] - end))]
                edge = run[0] if line else far
                if bars.array is None:
                    drawn[run[1:-1] if run[-1] < len(values) - 1 else run[1:]] = np.nan if line else end
                at = f" at {trace[other][far]:g}" if edge != far else ""
                words = "" if values[far] == inside[far] else f"{'band ' * filled}to {_short(reach[far])}{at}"
                single = run if bars.array is not None else [edge]
                arrows += [(trace[other][index], end, symbol[letter], words) for index in single]
    if not arrows:
        return [trace]
    trace[letter] = [None if np.isnan(value) else value for value in drawn]
    if line:  # the arrow stands in the place of the marker
        trace.marker.opacity = [float(kept == value) for kept, value in zip(drawn, values, strict=True)]
    if bars.array is not None:
        ends = {"array": np.minimum(up, high - inside), "arrayminus": np.minimum(down, inside - low)}
        bars.update(symmetric=False, **ends)
    colour = _SOLID.sub(r"rgb(\1,\2,\3)", trace.fillcolor) if filled else _colour(trace, letter)
    letters = readable(colour) if colour.startswith(("#", "rgb(")) else colour
    places, at, symbols, words = zip(*arrows, strict=True)
    upright = {low: "top", high: "bottom"} if letter == "y" else dict.fromkeys((low, high), "middle")
    arrow = go.Scatter(
        {letter: at, other: places}, mode="markers+text", text=words if len(words) <= _MOST_VALUES else None,
        textposition=[f"{upright[end]} right" for end in at], textfont={"color": letters},
        marker=marker_of(symbols, SIZE.tick, colour),
        customdata=words, hovertemplate="beyond the axis %{customdata}<extra></extra>",
        cliponaxis=False, showlegend=False, name=trace.name, legendgroup=trace.legendgroup,
    )  # fmt: skip
    return [trace, arrow]


def _short(value: float) -> str:
    """A value to two digits, of many as a power of ten."""
    digits, _, power = f"{value:.1e}".partition("e")
    if -4 < int(power) < 4:
        return f"{float(f'{value:.2g}'):g}"
    return f"{float(digits):g}·10<sup>{int(power)}</sup>".replace("-", "−")
