"""Random turns, shifts and zooms of a batch of images."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from workbench.training.recipes import Augmentation


def augment(
    images: Float[Tensor, "batch channel height width"], options: Augmentation
) -> Float[Tensor, "batch channel height width"]:
    """Each image turned, shifted and zoomed by its own uniform draws from torch's generator; bilinear.

    What comes in from outside is the image's nearest edge pixel. Without any change asked for, the very same
    tensor comes back and nothing is drawn.
    """
    if not (options.rotation or options.shift or options.zoom):
        return images
    # Drawn on the CPU whatever the device, so that the same seed changes the images in the same way.
    draws = torch.rand(len(images), 4).mul(2).sub(1)
    angle = draws[:, 0] * math.radians(options.rotation)
    size = 1 + draws[:, 1] * options.zoom
    shift = draws[:, 2:] * 2 * options.shift  # the image spans two units of the grid
    cosine, sine = angle.cos() / size, angle.sin() / size
    across = torch.stack([cosine, -sine, shift[:, 0]], dim=1)
    down = torch.stack([sine, cosine, shift[:, 1]], dim=1)
    # A non-square image must be turned in pixels, not in units of its own width and height.
    height, width = images.shape[-2:]
    across[:, 1] *= height / width
    down[:, 0] *= width / height
    grid = F.affine_grid(torch.stack([across, down], dim=1), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid.to(images), padding_mode="border", align_corners=False)
