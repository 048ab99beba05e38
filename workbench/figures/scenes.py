"""Images with a class for every pixel: the image, the true classes, and what models predict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go
from plotly.colors import hex_to_rgb

from workbench.core.errors import InputError
from workbench.figures.composition import Axis, Panel, compose
from workbench.figures.marks import key_entry
from workbench.figures.theme import PAGE, theme_of

CLASSES = (
    "#332288", "#DDCC77", "#44AA99", "#882255", "#88CCEE", "#117733", "#CC6677", "#999933", "#AA4499", "#BBBBBB",
    "#000000",
)  # fmt: skip
"""A colour for each class: those of P. Tol's "muted" scheme, which colour-blind readers tell apart."""


def scenes_figure(
    images: Sequence[np.ndarray],
    masks: Mapping[str, Sequence[np.ndarray]],
    classes: Sequence[str],
    titles: Sequence[str] = (),
) -> go.Figure:
    """A column per image: the image, and beneath it a map of classes for each of the ``masks``, in their order.

    Args:
        images: (height, width, 3) each, 8 bits.
        masks: what a row is called → a (height, width) map of class numbers for each image.
        classes: their names, from class 0; the key has those that a map holds.
        titles: what stands over each image, or nothing.

    Raises:
        InputError: other numbers of images and maps or titles, more classes than there are colours, or a class without
            a name.
    """
    if len(classes) > len(CLASSES):
        raise InputError(f"{len(classes)} classes; a figure has colours for {len(CLASSES)}: draw fewer")
    maps = {name: [np.asarray(one) for one in own] for name, own in masks.items()}
    for name, own in maps.items():
        if len(own) != len(images):
            raise InputError(f"{name}: {len(own)} maps for {len(images)} images; give one each")
    if titles and len(titles) != len(images):
        raise InputError(f"{len(titles)} titles for {len(images)} images; give one each")
    held = sorted({int(number) for own in maps.values() for one in own for number in np.unique(one)})
    if held and not 0 <= held[0] <= held[-1] < len(classes):
        raise InputError(f"maps hold classes {held[0]} to {held[-1]}, of {len(classes)} names")
    colours = np.array([hex_to_rgb(colour) for colour in CLASSES], dtype=np.uint8)
    lines = {"image": [*images], **{name: [colours[one] for one in own] for name, own in maps.items()}}
    panels = []
    for name, own in lines.items():
        for number, picture in enumerate(own):
            tall, across = np.shape(picture)[:2]
            trace = go.Image(z=picture, name=name, hoverinfo="name")
            y = Axis("" if number else name, tall - 0.5, -0.5, bare=True)
            title = titles[number] if titles and name == "image" else ""
            panels.append(Panel([trace], Axis("", -0.5, across - 0.5, bare=True), y, title))
    key = [
        key_entry(
            classes[number].replace("_", " "),
            mode="markers",
            marker={"symbol": "square", "size": 9, "color": CLASSES[number], "line": {"width": 0}},
        )
        for number in held
    ]
    gap, font = 4.0, theme_of("page").font
    side = (PAGE - 3 * font + gap) / max(len(images), 4) - gap
    fig = compose(panels, len(images), key, width="page", shared="xy", inner=side * tall / across, gap=gap)
    return fig.update_xaxes(showticklabels=False, ticks="", matches=None).update_yaxes(
        showticklabels=False, ticks="", matches=None
    )
