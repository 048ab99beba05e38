"""Segmentation under the protocols of images: scores of all pixels together, and attacks on the loss of the pixels.

teo2024 Table 6 (ADE20K, clean and corrupted); the attacks are those of its Table 2 asked of a segmentation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from workbench.studies.evaluation.images import BATCH
from workbench.studies.training.objectives import SEGMENTATION

if TYPE_CHECKING:
    from workbench.studies.evaluation.images import PixelModel

Pixels = Float[Tensor, "n channel height width"]
Labels = Int[Tensor, "n height width"]
METRICS_OF_SCENES = {"mean_iou": "mean_iou", "pixel_accuracy": "accuracy", "class_accuracy": "class_accuracy"}
"""Metric of an evaluation → what training calls it."""


def scene_scores(
    model: PixelModel, pixels: Pixels, targets: Labels, **named: Any
) -> Iterator[dict[str, Any]]:
    """Rows of mean IoU, pixel accuracy and class accuracy of all images together."""
    parts = [
        SEGMENTATION.score(model.logits(some), labels)
        for some, labels in zip(pixels.split(BATCH), targets.split(BATCH), strict=True)
    ]
    means = {name: float(torch.cat([part[name] for part in parts]).double().mean()) for name in parts[0]}
    found = SEGMENTATION.derive(means)
    for metric, name in METRICS_OF_SCENES.items():
        yield {"metric": metric, "value": found[name], **named}


def climb(
    model: PixelModel,
    pixels: Pixels,
    targets: Labels,
    epsilon: float,
    *,
    steps: int = 1,
    step_size: float = 1.0,
    seed: int = 0,
) -> Pixels:
    """`steps` of size `step_size` · `epsilon` along the sign of the gradient of the mean loss of a scene's pixels.

    Each goes back into the budget (L∞) and into [0, 1]; it starts at the image. One step of size 1 is FGSM (Goodfellow
    et al. 2015), more are PGD (Madry et al. 2018). The toolbox of the other attacks takes one class an image.
    """
    del seed  # nothing is drawn
    device = next(model.parameters()).device
    found = []
    for start, labels in zip(pixels.split(BATCH), targets.split(BATCH), strict=True):
        changed = start
        for _ in range(steps):
            at = changed.to(device).requires_grad_()
            loss = SEGMENTATION.score(model(at), labels.to(device))["loss"].sum()
            (slope,) = torch.autograd.grad(loss, at)
            moved = changed + step_size * epsilon * slope.sign().cpu()
            changed = moved.clamp(start - epsilon, start + epsilon).clamp(0, 1)
        found.append(changed)
    return torch.cat(found)


def mean_over_corruptions(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Each metric once more, its mean over types and severities (the means of teo2024 Table 6)."""
    for metric in METRICS_OF_SCENES:
        values = [row["value"] for row in rows if row["metric"] == metric]
        yield {"metric": metric, "value": math.fsum(values) / len(values)}
