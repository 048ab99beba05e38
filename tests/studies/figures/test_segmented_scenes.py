"""Images and their maps of classes: every pixel in the colour of its class, and the key says which are there."""

import numpy as np
import pytest
from plotly.colors import hex_to_rgb

from workbench.core.errors import InputError, UnknownName
from workbench.studies.figures import predictions_figure, scenes_figure
from workbench.studies.figures.segmented_scenes import CLASSES

NAMES = ("sky", "grass", "a_wall")


def scene(number):
    draw = np.random.default_rng(number)
    return draw.integers(0, 256, (4, 6, 3), dtype=np.uint8), np.array([[0, 0, 2, 2, 2, 2]] * 4)


def test_a_pixel_has_the_colour_of_its_class_and_the_image_its_own():
    images, truth = zip(*map(scene, range(2)), strict=True)
    figure = scenes_figure(images, {"truth": truth, "predicted": [2 - one for one in truth]}, NAMES)
    pictures = [np.asarray(trace.z) for trace in figure.data if trace.type == "image"]
    assert len(pictures) == 3 * 2
    assert np.array_equal(pictures[1], images[1])
    assert tuple(pictures[2][0, 0]) == hex_to_rgb(CLASSES[0])
    assert tuple(pictures[4][0, 0]) == hex_to_rgb(CLASSES[2])
    assert [trace.name for trace in figure.data if trace.type == "scatter"] == ["sky", "a wall"]


def test_titles_stand_over_the_images_alone():
    images, truth = zip(*map(scene, range(2)), strict=True)
    figure = scenes_figure(images, {"truth": truth}, NAMES, ["clean", "noise"])
    assert [note.text for note in figure.layout.annotations if note.text in ("clean", "noise")] == [
        "clean",
        "noise",
    ]
    with pytest.raises(InputError, match="1 titles for 2 images"):
        scenes_figure(images, {"truth": truth}, NAMES, ["clean"])


def test_predictions_stand_under_the_image_and_condition_that_they_are_of():
    clean, truth = zip(*map(scene, range(3)), strict=True)
    noisy, _ = zip(*map(scene, range(3, 6)), strict=True)
    images = {"clean": clean, "noisy": noisy}
    found = {name: [np.full((4, 6), number) for number in range(3)] for name in images}
    found["noisy"] = found["noisy"][::-1]
    figure = predictions_figure(images, truth, {"rpc-sym": found}, NAMES, n=2)
    pictures = [np.asarray(trace.z) for trace in figure.data if trace.type == "image"]
    columns = [clean[0], clean[1], noisy[0], noisy[1]]
    assert all(np.array_equal(drawn, own) for drawn, own in zip(pictures, columns, strict=False))
    assert len(pictures) == 3 * 4
    assert [trace.name for trace in figure.data if trace.type == "image"][8:] == ["symmetric RPC"] * 4
    assert [tuple(drawn[0, 0]) for drawn in pictures[8:]] == [hex_to_rgb(CLASSES[at]) for at in (0, 1, 2, 1)]
    over = [note.text for note in figure.layout.annotations if note.text in images]
    assert over == ["clean", "noisy"]  # over the first image of each
    with pytest.raises(UnknownName, match="attention variant"):
        predictions_figure(images, truth, {"mine": found}, NAMES)


def test_maps_that_do_not_fit_are_refused():
    image, truth = scene(0)
    with pytest.raises(InputError, match="truth: 1 maps for 2 images"):
        scenes_figure([image] * 2, {"truth": [truth]}, NAMES)
    with pytest.raises(InputError, match="classes 0 to 2, of 2 names"):
        scenes_figure([image], {"truth": [truth]}, NAMES[:2])
    with pytest.raises(InputError, match="12 classes"):
        scenes_figure([image], {"truth": [truth]}, ["x"] * 12)
