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


CLASSIFICATION = Objective("accuracy", classification_scores)
LANGUAGE = Objective("perplexity", language_scores, with_perplexity)
