"""Patches coloured by their first three components."""

import base64
import io

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from workbench.core.errors import InputError
from workbench.figures import patch_pca_figure


def components():
    """Two inputs of 2 × 3 patches, two layers, three components, whose values rise with the patch."""
    places = pd.MultiIndex.from_product(
        [["a", "b"], [0, 1], [1, 2, 3], [0, 1], [0, 1, 2]],
        names=["input", "layer", "component", "row", "column"],
    )
    frame = places.to_frame(index=False).assign(model="m")
    return frame.assign(value=(frame["column"] * frame["component"] * (1 + frame["layer"])).astype(float))


def pixels(image):
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(image.source.partition(",")[2]))))


def test_red_green_and_blue_are_the_first_three_components():
    frame = components()
    frame.loc[frame["component"] == 2, "value"] *= -1
    fig = patch_pca_figure(frame)
    assert len(fig.layout.images) == 4
    for image in fig.layout.images:
        drawn = pixels(image)
        left, right = drawn[5, 5], drawn[5, -5]
        assert left.tolist() == [0, 255, 0]
        assert right.tolist() == [255, 0, 255]
    assert [note.text for note in fig.layout.annotations] == ["layer 0", "layer 1"]


def test_images_stand_in_front_and_what_does_not_fit_is_refused():
    frame = components()
    images = [np.zeros((4, 6, 3), dtype=np.uint8)] * 2
    assert len(patch_pca_figure(frame, images).layout.images) == 6
    with pytest.raises(InputError, match="1 images for 2 inputs; give one each"):
        patch_pca_figure(frame, images[:1])
    with pytest.raises(InputError, match="no component 3; give components=3"):
        patch_pca_figure(frame[frame["component"] < 3])
    with pytest.raises(InputError, match="2 models do not fit one figure"):
        patch_pca_figure(pd.concat([frame, frame.assign(model="other")]))
