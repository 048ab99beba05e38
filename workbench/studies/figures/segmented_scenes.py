"""Images with a class for every pixel: the image, the true classes, predictions of models, and their attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go
from plotly.colors import hex_to_rgb

from workbench.core.errors import InputError
from workbench.core.options import checked
from workbench.figures.composition import Axis, Panel, compose
from workbench.figures.maps import squared
from workbench.figures.marks import key_entry
from workbench.figures.theme import PAGE, SIZE, theme_of
from workbench.figures.variants import look_of

CLASSES = (
    "#332288", "#DDCC77", "#44AA99", "#882255", "#88CCEE", "#117733", "#CC6677", "#999933", "#AA4499", "#BBBBBB",
    "#000000",
)  # fmt: skip
"""A colour for each class: those of P. Tol's "muted" scheme, which colour-blind readers tell apart."""


@checked
def scenes_figure(
    images: Sequence[np.ndarray],
    masks: Mapping[str, Sequence[np.ndarray]],
    classes: Sequence[str],
    titles: Sequence[str] = (),
) -> go.Figure:
    """Draw a column per image: the image, and below it a map of classes for each of the ``masks``, in their order.

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
    maps = {name: [np.asarray(class_map) for class_map in class_maps] for name, class_maps in masks.items()}
    for name, class_maps in maps.items():
        if len(class_maps) != len(images):
            raise InputError(f"{name}: {len(class_maps)} maps for {len(images)} images; give one each")
    if titles and len(titles) != len(images):
        raise InputError(f"{len(titles)} titles for {len(images)} images; give one each")
    class_numbers = sorted(
        {
            int(number)
            for class_maps in maps.values()
            for class_map in class_maps
            for number in np.unique(class_map)
        }
    )
    if class_numbers and not 0 <= class_numbers[0] <= class_numbers[-1] < len(classes):
        raise InputError(
            f"maps hold classes {class_numbers[0]} to {class_numbers[-1]}, of {len(classes)} names"
        )
    colours = np.array([hex_to_rgb(colour) for colour in CLASSES], dtype=np.uint8)
    lines = {
        "image": [*images],
        **{name: [colours[class_map] for class_map in class_maps] for name, class_maps in maps.items()},
    }
    panels = []
    for name, pictures in lines.items():
        for number, picture in enumerate(pictures):
            tall, across = np.shape(picture)[:2]
            trace = go.Image(z=picture, name=name, hoverinfo="name")
            y = Axis("" if number else name, tall - 0.5, -0.5, bare=True)
            title = titles[number] if titles and name == "image" else ""
            panels.append(Panel([trace], Axis("", -0.5, across - 0.5, bare=True), y, title))
    key = [
        key_entry(
            classes[number].replace("_", " "),
            mode="markers",
            marker={"symbol": "square", "size": SIZE.ring, "color": CLASSES[number], "line": {"width": 0}},
        )
        for number in class_numbers
    ]
    gap, font = 4.0, theme_of("page").font
    side = (PAGE - 3 * font + gap) / max(len(images), 4) - gap
    fig = compose(panels, len(images), key, width="page", shared="xy", inner=side * tall / across, gap=gap)
    return squared(fig)


@checked
def predictions_figure(
    images: Mapping[str, Sequence[np.ndarray]],
    truth: Sequence[np.ndarray],
    masks: Mapping[str, Mapping[str, Sequence[np.ndarray]]],
    classes: Sequence[str],
    n: int = 3,
) -> go.Figure:
    """The first ``n`` images under each condition, their true classes, and what models predict: a row per attention.

    Args:
        images: condition → (height, width, 3) pixels of each image, the same images in the same order.
        truth: (height, width) true class numbers of each image.
        masks: attention as `workbench.figures.variants.LOOKS` names it → condition → predicted classes of each image.
        classes: their names, from class 0.
        n: how many images are shown.

    Raises:
        InputError: as `scenes_figure`, which draws it.
        UnknownName: an attention without a look.
    """
    rows = {"truth": [*truth[:n]] * len(images)}
    for name, by_condition in masks.items():
        rows[look_of(name).label] = [mask for condition in images for mask in by_condition[condition][:n]]
    pictures = [image for pixels in images.values() for image in pixels[:n]]
    over = ["" if number else name for name, pixels in images.items() for number, _ in enumerate(pixels[:n])]
    return scenes_figure(pictures, rows, classes, over)
