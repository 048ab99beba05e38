"""What a log axis has no place for: values and ends of intervals at or below 0 reach beyond its lower end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

BEYOND = "to 0 or less (log axis)"
# Arrows have their tip at the place, so that none lies over a tick label.
_ARROWS = {"x": "arrow-left", "y": "arrow-down"}


def on_log_axis(trace: Any, letter: str, low: float) -> list[Any]:
    """The trace on an axis ("x" or "y") that begins at ``low`` > 0, and an arrow at that end for what lies beyond it.

    A band is cut at the end; an interval goes to it; a value at or below 0 has the arrow in its place.
    """
    if trace.type != "scatter" or trace[letter] is None:
        return [trace]
    values = pd.to_numeric(pd.Series([*trace[letter]], dtype=object), errors="coerce").to_numpy(dtype=float)
    if trace.fill not in (None, "none"):
        trace[letter] = np.where(values <= 0, low, values)
        return [trace]
    bars = trace[f"error_{letter}"]
    up = np.zeros(len(values)) if bars.array is None else np.asarray(bars.array, dtype=float)
    down = up if bars.arrayminus is None else np.asarray(bars.arrayminus, dtype=float)
    below, beyond = values <= 0, values - down <= 0
    if not (below | beyond).any():
        return [trace]
    trace[letter] = np.where(below, np.nan, values)
    arrow = _arrow(trace, letter, low, values, np.maximum(values + up - low, 0) * below, below | beyond)
    if bars.array is not None:
        bars.update(symmetric=False, arrayminus=np.where(beyond, np.maximum(values - low, 0), down))
    return [trace, arrow]


def _arrow(
    trace: go.Scatter, letter: str, low: float, values: np.ndarray, up: np.ndarray, chosen: np.ndarray
) -> go.Scatter:
    other = "y" if letter == "x" else "x"
    bars = trace[f"error_{letter}"]
    colour = next(
        c for c in (bars.color, trace.line.color, trace.marker.color, "black") if isinstance(c, str)
    )
    bar = {"type": "data", "symmetric": False, "array": up[chosen], "arrayminus": up[chosen] * 0}
    return go.Scatter(
        {
            letter: np.full(chosen.sum(), low),
            other: [place for place, one in zip(trace[other], chosen, strict=True) if one],
            f"error_{letter}": {**bar, "color": colour, "thickness": bars.thickness, "width": 0},
        },
        mode="markers", marker={"symbol": _ARROWS[letter], "size": 6, "color": colour, "line": {"width": 0}},
        text=[f"{value:.4g}" for value in values[chosen]], hovertemplate=f"%{{text}}, {BEYOND}<extra></extra>",
        cliponaxis=False, showlegend=False, name=trace.name, legendgroup=trace.legendgroup,
    )  # fmt: skip


def arrow_entry(letter: str, colour: str) -> go.Scatter:
    """The entry of a key that says what the arrows are."""
    marker = {"symbol": _ARROWS[letter], "size": 6, "color": colour, "line": {"width": 0}}
    return go.Scatter(x=[None], y=[None], name=BEYOND, mode="markers", marker=marker, hoverinfo="skip")


def shape_on_log_axis(shape: dict[str, Any], letter: str, low: float) -> dict[str, Any] | None:
    """The shape cut at the lower end of a log axis; None where it lies beyond it."""
    ends = [name for name in (f"{letter}0", f"{letter}1") if name in shape]
    cut = [name for name in ends if shape[name] <= 0 and shape.get(f"{letter}ref") != "domain"]
    if cut and len(cut) == len(ends):
        return None
    return {**shape, **dict.fromkeys(cut, low)}
