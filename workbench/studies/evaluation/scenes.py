"""Segmentation under the protocols of images: scores over all pixels, and attacks on the pixel loss.

teo2024 Table 6 (ADE20K, clean and corrupted); the attacks are those of its Table 2 applied to segmentation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from workbench.studies.evaluation.pixel_models import BATCH
from workbench.studies.training.objectives import SEGMENTATION

if TYPE_CHECKING:
    from workbench.studies.evaluation.pixel_models import PixelModel

Pixels = Float[Tensor, "n channel height width"]
Labels = Int[Tensor, "n height width"]
_METRICS_OF_SCENES = {
    "mean_iou": "mean_iou",
    "pixel_accuracy": "accuracy",
    "class_accuracy": "class_accuracy",
}
"""Metric of an evaluation → its name in training."""


def scene_scores(
    model: PixelModel, pixels: Pixels, targets: Labels, **named: Any
) -> Iterator[dict[str, Any]]:
    """Yield rows of mean IoU, pixel accuracy and class accuracy over all images together."""
    parts = [
        SEGMENTATION.score(model.logits(some), labels)
        for some, labels in zip(pixels.split(BATCH), targets.split(BATCH), strict=True)
    ]
    means = {name: float(torch.cat([part[name] for part in parts]).double().mean()) for name in parts[0]}
    scores = SEGMENTATION.derive(means)
    for metric, name in _METRICS_OF_SCENES.items():
        yield {"metric": metric, "value": scores[name], **named}


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
    """Take `steps` of size `step_size` · `epsilon` along the sign of the gradient of the mean pixel loss.

    Each step is projected to the budget (L∞) and [0, 1]; the start is the image. One step of size 1 is FGSM (Goodfellow
    et al. 2015), more are PGD (Madry et al. 2018). The toolbox of the other attacks only takes one class per image.
    """
    del seed  # nothing is drawn
    device = next(model.parameters()).device
    adversarial = []
    for start, labels in zip(pixels.split(BATCH), targets.split(BATCH), strict=True):
        changed = start
        for _ in range(steps):
            at = changed.to(device).requires_grad_()
            loss = SEGMENTATION.score(model(at), labels.to(device))["loss"].sum()
            (slope,) = torch.autograd.grad(loss, at)
            moved = changed + step_size * epsilon * slope.sign().cpu()
            changed = moved.clamp(start - epsilon, start + epsilon).clamp(0, 1)
        adversarial.append(changed)
    return torch.cat(adversarial)


def mean_over_corruptions(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the mean of each metric over types and severities (teo2024 Table 6)."""
    for metric in _METRICS_OF_SCENES:
        values = [row["value"] for row in rows if row["metric"] == metric]
        yield {"metric": metric, "value": math.fsum(values) / len(values)}
