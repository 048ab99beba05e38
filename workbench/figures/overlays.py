"""Cells of a patch grid, and the image that they belong to."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from workbench.core.errors import InputError
from workbench.figures.theme import COLOURS, WIDTH

CHOSEN = COLOURS[0]  # what is chosen, framed


def cells(values: np.ndarray | list[list[None]], label: str, **more: Any) -> go.Heatmap:
    """A map of a figure's shared colour scale; of None it shows nothing, but gives a panel its axes."""
    hover = f"{label}<br>row %{{y}}, column %{{x}}<br>%{{z:.4f}}<extra></extra>"
    return go.Heatmap(
        **{"z": values, "coloraxis": "coloraxis", "name": label, "hovertemplate": hover, **more}
    )


def data_uri(image: np.ndarray) -> str:
    """The image as PNG in a data address.

    Raises InputError unless it is height × width (× 1 or 3), uint8 or float from 0 to 1.
    """
    from PIL import Image

    array = np.asarray(image)
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3)):
        raise InputError(f"an image is height × width or height × width × 3; got shape {array.shape}")
    if array.dtype != np.uint8:
        if not np.isfinite(array).all() or array.min() < 0 or array.max() > 1:
            raise InputError(
                "a float image holds values from 0 to 1; this one does not (give uint8, or rescale)"
            )
        array = np.round(array * 255).astype(np.uint8)
    picture = Image.fromarray(array.squeeze(2) if array.ndim == 3 and array.shape[2] == 1 else array)
    smallest = min(picture.size)
    if smallest < 128:  # few pixels are shown as squares, not smeared by the viewer's interpolation
        grow = -(-128 // smallest)
        picture = picture.resize((picture.width * grow, picture.height * grow), Image.Resampling.NEAREST)
    elif smallest > 384:
        picture.thumbnail((512, 512))
    written = io.BytesIO()
    picture.save(written, "PNG")
    return "data:image/png;base64," + base64.b64encode(written.getvalue()).decode()


def under_cells(rows: int, columns: int) -> dict:
    """Return the position of an image in a panel of `cells`, exactly under them, for `go.Figure.add_layout_image`."""
    return {"x": -0.5, "y": -0.5, "sizex": columns, "sizey": rows, "sizing": "stretch", "layer": "below"}


def frame_shape(x: tuple[float, float], y: tuple[float, float], **line: Any) -> dict:
    """A shape of a panel that frames its cells from x[0] to x[1] and y[0] to y[1]."""
    ends = {"x0": x[0], "x1": x[1], "y0": y[0], "y1": y[1]}
    return {"type": "rect", **ends, "line": {"color": "black", "width": WIDTH.fine, **line}}


def contour(mask: np.ndarray) -> dict:
    """A shape of a panel that follows the edge of the cells of a mask."""
    inside = np.pad(np.asarray(mask, dtype=int), 1)
    across = np.argwhere(np.diff(inside, axis=0)[:, 1:-1]) - 0.5
    down = np.argwhere(np.diff(inside, axis=1)[1:-1]) - 0.5
    parts = [f"M{x},{y}L{x + 1},{y}" for y, x in across] + [f"M{x},{y}L{x},{y + 1}" for y, x in down]
    return {"type": "path", "path": "".join(parts), "line": {"color": "black", "width": WIDTH.bold}}


def outline(x: tuple[float, float], y: tuple[float, float]) -> list[dict]:
    """The frame of the chosen cell, dark on light: seen on any colour."""
    return [
        frame_shape(x, y, color="white", width=WIDTH.halo),
        frame_shape(x, y, color=CHOSEN, width=WIDTH.frame),
    ]


def need_columns(
    frame: pd.DataFrame, columns: Sequence[str], source: str, alternatives: Sequence[str] = ()
) -> None:
    """Raise `InputError` where a frame lacks a column, has no rows, or several values where it may have ``one``.

    ``source`` is what gives such a frame.
    """
    missing = [name for name in columns if name not in frame]
    if missing or frame.empty:
        lacks = f"column {', '.join(missing)}" if missing else "rows"
        raise InputError(f"the frame has no {lacks}; give the frame of `{source}`")
    for column in alternatives:
        if frame[column].nunique() > 1:
            raise InputError(f"{frame[column].nunique()} {column}s do not fit one figure; keep one of them")
