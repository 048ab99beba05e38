"""Objectives of tasks: scores of each example, and quantities derived from their means."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor


@dataclass(frozen=True)
class Objective:
    """``score(output, targets)`` returns one number per example under each name, ``loss`` (nats) first.

    ``derive`` adds quantities computed from the means over examples; ``headline`` is the main score.
    """

    headline: str
    score: Callable[[Tensor, Tensor], dict[str, Tensor]]
    derive: Callable[[Mapping[str, float]], dict[str, float]] = dict


def classification_scores(
    logits: Float[Tensor, "n classes"], targets: Int[Tensor, " n"] | Float[Tensor, "n classes"]
) -> dict[str, Float[Tensor, " n"]]:
    """Return cross-entropy in nats (``loss``), and 1 if the right class is the most likely (``accuracy``).

    With more than five classes also ``accuracy_top5``: among the five most likely. Targets may be probabilities of the
    classes; the right class is then the most probable.
    """
    from torch.nn.functional import cross_entropy

    loss = cross_entropy(logits.float(), targets, reduction="none")
    right = targets if targets.ndim == 1 else targets.argmax(1)
    scores = {"loss": loss, "accuracy": (logits.argmax(1) == right).float()}
    if logits.shape[1] > 5:
        scores["accuracy_top5"] = (logits.topk(5).indices == right[:, None]).any(1).float()
    return scores


def language_scores(
    logits: Float[Tensor, "n token vocabulary"], targets: Int[Tensor, "n token"]
) -> dict[str, Float[Tensor, " n"]]:
    """Return means over the tokens of a text: next-token cross-entropy (``loss``) and accuracy."""
    from torch.nn.functional import cross_entropy

    loss = cross_entropy(logits.float().transpose(1, 2), targets, reduction="none")
    return {"loss": loss.mean(1), "accuracy": (logits.argmax(-1) == targets).float().mean(1)}


def _with_perplexity(means: Mapping[str, float]) -> dict[str, float]:
    """Add ``perplexity``, exp of the mean loss per token, to the means."""
    return {**means, "perplexity": math.exp(min(means["loss"], 700.0))}


UNLABELLED = -100
"""Target of an unlabelled pixel, which does not count."""


def _segmentation_scores(
    logits: Float[Tensor, "n classes height width"], targets: Int[Tensor, "n height width"]
) -> dict[str, Float[Tensor, " n"]]:
    """Return the mean cross-entropy over the labelled pixels of an image (``loss``), and pixel counts for each class c.

    Counts are shares of the image's pixels: ``right_c`` are predicted correctly, ``labelled_c`` have the class,
    ``said_c`` are predicted as the class. Unlabelled pixels are excluded.
    """
    import torch
    from torch.nn.functional import cross_entropy, one_hot

    real = targets != UNLABELLED
    loss = cross_entropy(logits.float(), targets, reduction="none", ignore_index=UNLABELLED)
    scores = {"loss": loss.sum((1, 2)) / real.sum((1, 2)).clamp(min=1)}
    predicted, labelled = (
        (one_hot(labels, logits.shape[1]) * real[..., None]).flatten(1, 2).float()
        for labels in (logits.argmax(1), torch.where(real, targets, 0))
    )
    for name, marked in (("right", predicted * labelled), ("labelled", labelled), ("said", predicted)):
        scores |= {f"{name}_{number}": share for number, share in enumerate(marked.mean(1).unbind(1))}
    return scores


def with_mean_iou(means: Mapping[str, float]) -> dict[str, float]:
    """Return ``loss``, and over all pixels together ``accuracy``, ``class_accuracy`` and ``mean_iou``.

    The accuracy of a class is the share of its pixels predicted as the class; its IoU is the intersection of true and
    predicted pixels divided by their union. Means are over the classes that occur in the data or in the predictions.
    """
    counts: dict[str, list[float]] = {"right": [], "labelled": [], "said": []}
    for name, value in means.items():
        kind, _, number = name.partition("_")
        if number.isdigit():
            counts[kind].append(value)
    right, labelled, predicted = counts.values()
    union = [
        class_labelled + class_predicted - both
        for both, class_labelled, class_predicted in zip(right, labelled, predicted, strict=True)
    ]
    return {
        "loss": means["loss"],
        "accuracy": _ratio(math.fsum(right), math.fsum(labelled)),
        "class_accuracy": _mean_ratio(right, labelled),
        "mean_iou": _mean_ratio(right, union),
    }


def _ratio(part: float, total: float) -> float:
    return part / total if total else math.nan


def _mean_ratio(parts: list[float], wholes: list[float]) -> float:
    ratios = [part / total for part, total in zip(parts, wholes, strict=True) if total]
    return math.fsum(ratios) / len(ratios) if ratios else math.nan


def _action_scores(
    actions: Float[Tensor, "n step action"], targets: Float[Tensor, "n step action"]
) -> dict[str, Float[Tensor, " n"]]:
    """Return half the squared distance of an action (``loss``), mean over the steps with a target (others are NaN).

    In nats it is the cross-entropy of a Gaussian with standard deviation 1, minus its constant.
    """
    import torch

    real = ~targets.isnan().any(-1)
    away = (actions.float() - torch.where(real[..., None], targets, actions.float())).square().sum(-1) / 2
    return {"loss": away.sum(1) / real.sum(1).clamp(min=1)}


CLASSIFICATION = Objective("accuracy", classification_scores)
LANGUAGE = Objective("perplexity", language_scores, _with_perplexity)
SEGMENTATION = Objective("mean_iou", _segmentation_scores, with_mean_iou)
ACTIONS = Objective("loss", _action_scores)
