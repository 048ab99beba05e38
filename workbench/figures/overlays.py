"""Numbers over the cells of a patch grid, laid over the picture they belong to."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import plotly.graph_objects as go

from workbench.errors import InputError

# Transparent to dark red: on a faded image, in print and in grey, darker is more. Opacity rises fast at first, since
# the small weights would be lost beside the one largest; the colour bar shows the same course.
OVERLAY = [
    [place, f"rgba(122,4,45,{0.92 * place**0.6:.3f})"] for place in (0, 0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1)
]


def cells(values: np.ndarray | list[list[None]], label: str) -> go.Heatmap:
    """A map of a figure's shared colour scale; of None it shows nothing, but gives a panel its axes."""
    return go.Heatmap(
        z=values,
        coloraxis="coloraxis",
        name=label,
        hovertemplate=f"{label}<br>row %{{y}}, column %{{x}}<br>%{{z:.4f}}<extra></extra>",
    )


def shared_scale(scale: Any, highest: float, title: str, lowest: float = 0.0) -> dict:
    """The colour axis of all maps, from `lowest` to `highest`, with its bar; `scale` None is the theme's own."""
    return {
        **({"colorscale": scale} if scale else {}),
        "cmin": lowest,
        "cmax": highest or 1.0,
        "colorbar": {"title": {"text": title, "side": "right"}, "len": 1, "ypad": 0, "nticks": 5},
    }


def picture(image: np.ndarray, fade: bool = False) -> str:
    """The image as PNG in a data address; faded to light greys to carry an overlay.

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
    shown = Image.fromarray(array.squeeze(2) if array.ndim == 3 and array.shape[2] == 1 else array)
    if fade:
        shown = shown.convert("L").point(lambda level: 165 + level * 90 // 255)
    smallest = min(shown.size)
    if smallest < 128:  # few pixels are shown as squares, not smeared by the viewer's interpolation
        grow = -(-128 // smallest)
        shown = shown.resize((shown.width * grow, shown.height * grow), Image.Resampling.NEAREST)
    elif smallest > 384:
        shown.thumbnail((512, 512))
    written = io.BytesIO()
    shown.save(written, "PNG")
    return "data:image/png;base64," + base64.b64encode(written.getvalue()).decode()


def under_cells(rows: int, columns: int) -> dict:
    """Where a picture lies in a panel of `cells`, as `go.Figure.add_layout_image` takes it: exactly under them."""
    return {"x": -0.5, "y": -0.5, "sizex": columns, "sizey": rows, "sizing": "stretch", "layer": "below"}


def square_cells(fig: go.Figure, rows: int, columns: int) -> None:
    """Axes of panels that all hold `cells`: row 0 at the top, square, without ticks, in a frame."""
    fig.update_xaxes(range=[-0.5, columns - 0.5], constrain="domain")
    fig.update_yaxes(range=[rows - 0.5, -0.5], constrain="domain")
    fig.update_xaxes(showticklabels=False, ticks="", showline=True, mirror=True)
    fig.update_yaxes(showticklabels=False, ticks="", showline=True, mirror=True)
    for axis in fig.select_yaxes():
        axis.update(scaleanchor=axis.anchor or "x", scaleratio=1)
