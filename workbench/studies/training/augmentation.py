"""Augment training: images, pairs of images and their targets, and the model's depth."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn

from workbench.core.errors import InputError

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from workbench.studies.training.recipes import Augmentation, Recipe


def augment(
    images: Float[Tensor, "batch channel height width"], options: Augmentation
) -> Float[Tensor, "batch channel height width"]:
    """Rotate, shift and zoom each image by its own uniform draws from torch's generator; bilinear.

    Pixels from outside take the value of the nearest edge pixel. Without any change in ``options`` the same tensor is
    returned and nothing is drawn.
    """
    if not (options.rotation or options.shift or options.zoom):
        return images
    # Drawn on the CPU whatever the device, so that the same seed changes the images in the same way.
    null_samples = torch.rand(len(images), 4).mul(2).sub(1)
    angle = null_samples[:, 0] * math.radians(options.rotation)
    size = 1 + null_samples[:, 1] * options.zoom
    shift = null_samples[:, 2:] * 2 * options.shift  # the image spans two units of the grid
    cosine, sine = angle.cos() / size, angle.sin() / size
    across = torch.stack([cosine, -sine, shift[:, 0]], dim=1)
    down = torch.stack([sine, cosine, shift[:, 1]], dim=1)
    # A non-square image must be turned in pixels, not in units of its own width and height.
    height, width = images.shape[-2:]
    across[:, 1] *= height / width
    down[:, 0] *= width / height
    grid = F.affine_grid(torch.stack([across, down], dim=1), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid.to(images), padding_mode="border", align_corners=False)


class Mixing:
    """Mixup, CutMix and label smoothing of a batch, by timm; without them batch and targets pass through.

    Otherwise the targets become probabilities of the classes.
    """

    def __init__(self, recipe: Recipe, classes: int) -> None:
        self.in_pairs = bool(recipe.mixup or recipe.cutmix)
        """Whether images are mixed two by two: batches must then be even."""
        self._smoothing, self._classes, self._mixup = recipe.label_smoothing, classes, None
        if (self.in_pairs or self._smoothing) and not classes:
            raise InputError("recipe: mixup, cutmix and label_smoothing belong to tasks with classes")
        if self.in_pairs:
            from timm.data import Mixup

            if recipe.batch_size % 2:
                raise InputError(f"recipe: mixup and cutmix need an even batch_size, got {recipe.batch_size}")
            self._mixup = Mixup(
                recipe.mixup, recipe.cutmix, label_smoothing=self._smoothing, num_classes=classes
            )

    def __call__(self, batch: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        if self._mixup is not None:
            return self._mixup(batch, targets)
        if self._smoothing:
            sure = F.one_hot(targets, self._classes).float()
            return batch, sure * (1 - self._smoothing) + self._smoothing / self._classes
        return batch, targets


def drop_paths(model: nn.Module, rate: float) -> None:
    """Make timm's blocks skip their updates at random in training, the last with probability `rate`.

    The probability grows linearly from 0 in the first block. Raises InputError for a model without such blocks.
    """
    if not rate:
        return
    from timm.layers import DropPath
    from timm.models.vision_transformer import Block

    blocks = [part for part in model.modules() if isinstance(part, Block)]
    if not blocks:
        raise InputError(f"recipe: drop_path needs timm's blocks, and {type(model).__name__} has none")
    for number, block in enumerate(blocks):
        probability = rate * number / max(1, len(blocks) - 1)
        block.drop_path1, block.drop_path2 = DropPath(probability), DropPath(probability)
