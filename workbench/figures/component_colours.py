"""Principal components of patches as colours."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from workbench.core.errors import InputError
from workbench.core.options import checked
from workbench.figures.composition import Panel, compose
from workbench.figures.maps import image_panel, squared
from workbench.figures.overlays import need_columns
from workbench.figures.theme import theme_of

COLUMNS = ("model", "input", "layer", "component", "row", "column", "value")


@checked
def patch_pca_figure(frame: pd.DataFrame, images: Sequence[np.ndarray] | None = None) -> go.Figure:
    """Draw a row per input: the image, then the patches of each layer, coloured by their first three components.

    Red, green and blue are components 1, 2 and 3, each from its 1st to its 99th percentile over the inputs of a layer.
    One colour means the same in all images of a layer, and nothing between layers.

    Args:
        frame: the result of ``patch-pca`` per token, of one model; keep the inputs and layers to be shown.
        images: an image per input, in the order of the frame; by default colours only.

    Raises:
        InputError: the frame lacks a column or a component, or images and inputs differ in number.
    """
    need_columns(frame, COLUMNS, 'workbench.analyze("patch-pca", …, per="token")', alternatives=("model",))
    if missing := {1, 2, 3} - {*frame["component"]}:
        raise InputError(f"the frame has no component {min(missing)}; give components=3 to the analysis")
    inputs, layers = (list(dict.fromkeys(frame[name])) for name in ("input", "layer"))
    if images is not None and len(images) != len(inputs):
        raise InputError(f"{len(images)} images for {len(inputs)} inputs; give one each")
    grid = int(frame["row"].max()) + 1, int(frame["column"].max()) + 1
    ends = {
        place: np.quantile(values, [0.01, 0.99])
        for place, values in frame.groupby(["layer", "component"])["value"]
    }
    panels: list[Panel] = []
    for number, name in enumerate(inputs):
        side = "" if images is not None else str(name)
        if images is not None:
            panels.append(image_panel(images[number], grid, str(name), "" if number else "input"))
        for layer in layers:
            colours = np.zeros((*grid, 3))
            of_panel = frame[(frame["input"] == name) & (frame["layer"] == layer)]
            for component in (1, 2, 3):
                rows = of_panel[of_panel["component"] == component]
                low, high = ends[layer, component]
                values = (rows["value"] - low) / (high - low) if high > low else rows["value"] * 0 + 0.5
                colours[rows["row"].astype(int), rows["column"].astype(int), component - 1] = values.clip(
                    0, 1
                )
            title = "" if number else f"layer {layer}"
            panels.append(image_panel(colours, grid, f"{name}<br>layer {layer}", title, side))
            side = ""
    across = len(layers) + (images is not None)
    gap = 0.45 * theme_of("page").font
    room = (theme_of("page").pixels("page") - 2 * gap) / max(across, 4) - gap
    fig = compose(panels, across, width="page", shared="xy", inner=room * grid[0] / grid[1], gap=gap)
    return squared(fig)
