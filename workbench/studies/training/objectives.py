"""What a task asks of a model: scores of each example, and the quantities that follow from their means."""

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
    """``score(output, targets)`` gives one number per example under each name, ``loss`` (nats) first.

    ``derive`` adds to the means over examples what follows from them; ``headline`` is the number to tell.
    """

    headline: str
    score: Callable[[Tensor, Tensor], dict[str, Tensor]]
    derive: Callable[[Mapping[str, float]], dict[str, float]] = dict


def classification_scores(
    logits: Float[Tensor, "n classes"], targets: Int[Tensor, " n"] | Float[Tensor, "n classes"]
) -> dict[str, Float[Tensor, " n"]]:
    """Cross-entropy in nats (``loss``), and 1 where the right class is the most likely (``accuracy``).

    With more than five classes also ``accuracy_top5``: among the five most likely. Targets may be
    probabilities of the classes; the right class is then the most probable.
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
    """Mean over the tokens of a text: cross-entropy of the next one (``loss``), and next-token accuracy."""
    from torch.nn.functional import cross_entropy

    loss = cross_entropy(logits.float().transpose(1, 2), targets, reduction="none")
    return {"loss": loss.mean(1), "accuracy": (logits.argmax(-1) == targets).float().mean(1)}


def with_perplexity(means: Mapping[str, float]) -> dict[str, float]:
    """``perplexity``, exp of the mean loss per token, beside the means."""
    return {**means, "perplexity": math.exp(min(means["loss"], 700.0))}


UNLABELLED = -100
"""The target of a pixel that counts for nothing."""


def segmentation_scores(
    logits: Float[Tensor, "n classes height width"], targets: Int[Tensor, "n height width"]
) -> dict[str, Float[Tensor, " n"]]:
    """Mean cross-entropy of the pixels of an image that have a class (``loss``), and what is counted of each class c.

    As shares of the image's pixels: ``right_c`` are of the class and said to be, ``labelled_c`` are of it, ``said_c``
    are said to be, labelled or not of any class left out.
    """
    import torch
    from torch.nn.functional import cross_entropy, one_hot

    real = targets != UNLABELLED
    loss = cross_entropy(logits.float(), targets, reduction="none", ignore_index=UNLABELLED)
    scores = {"loss": loss.sum((1, 2)) / real.sum((1, 2)).clamp(min=1)}
    said, held = (
        (one_hot(labels, logits.shape[1]) * real[..., None]).flatten(1, 2).float()
        for labels in (logits.argmax(1), torch.where(real, targets, 0))
    )
    for name, marked in (("right", said * held), ("labelled", held), ("said", said)):
        scores |= {f"{name}_{number}": share for number, share in enumerate(marked.mean(1).unbind(1))}
    return scores


def with_mean_iou(means: Mapping[str, float]) -> dict[str, float]:
    """``loss``, and of all pixels together ``accuracy``, ``class_accuracy`` and ``mean_iou``.

    Accuracy of a class is the share of its pixels that are said to be of it; its IoU the pixels that are of it and said
    to be, over those that are either. Means are over the classes that there are in the data, or in the answers.
    """
    counts: dict[str, list[float]] = {"right": [], "labelled": [], "said": []}
    for name, value in means.items():
        kind, _, number = name.partition("_")
        if number.isdigit():
            counts[kind].append(value)
    right, labelled, said = counts.values()
    union = [held + given - both for both, held, given in zip(right, labelled, said, strict=True)]
    return {
        "loss": means["loss"],
        "accuracy": _ratio(math.fsum(right), math.fsum(labelled)),
        "class_accuracy": _mean_ratio(right, labelled),
        "mean_iou": _mean_ratio(right, union),
    }


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan


def _mean_ratio(parts: list[float], wholes: list[float]) -> float:
    found = [part / whole for part, whole in zip(parts, wholes, strict=True) if whole]
    return math.fsum(found) / len(found) if found else math.nan


def action_scores(
    actions: Float[Tensor, "n step action"], targets: Float[Tensor, "n step action"]
) -> dict[str, Float[Tensor, " n"]]:
    """``loss``: half the squared distance of an action, mean over the steps that have a target (the others are NaN).

    In nats it is the cross-entropy of a Gaussian with standard deviation 1, less its constant.
    """
    import torch

    real = ~targets.isnan().any(-1)
    away = (actions.float() - torch.where(real[..., None], targets, actions.float())).square().sum(-1) / 2
    return {"loss": away.sum(1) / real.sum(1).clamp(min=1)}


CLASSIFICATION = Objective("accuracy", classification_scores)
LANGUAGE = Objective("perplexity", language_scores, with_perplexity)
SEGMENTATION = Objective("mean_iou", segmentation_scores, with_mean_iou)
ACTIONS = Objective("loss", action_scores)
