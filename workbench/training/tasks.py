"""Tasks: data cut into a training and a test set, and what a checkpoint must say about them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch.utils.data import TensorDataset

from workbench.datasets import DIGITS_MEAN, DIGITS_SIZE, DIGITS_STD, digits_split
from workbench.errors import InputError, UnknownName

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor


@dataclass(frozen=True)
class Task:
    """A classification task, in memory."""

    name: str
    classes: tuple[str, ...]
    train: TensorDataset
    test: TensorDataset
    preprocessing: dict[str, Any]
    """How raw inputs become what the model receives; fits in JSON."""
    data: dict[str, Any]
    """Identity of the data: source, and per split its size and sha256; fits in JSON."""


def classification_scores(
    logits: Float[Tensor, "n classes"], targets: Int[Tensor, " n"]
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """Per example: cross-entropy in nats, and 1 where the most likely class is the right one, else 0."""
    from torch.nn.functional import cross_entropy

    return cross_entropy(logits.float(), targets, reduction="none"), (logits.argmax(1) == targets).float()


def load_task(name: str, limit: int | None = None) -> Task:
    """A task by name; `limit` keeps only that many training examples, for trying things out.

    Raises UnknownName for a task that does not exist, InputError for a limit below 1.
    """
    if name not in TASKS:
        raise UnknownName("training task", name, TASKS)
    if limit is not None and limit < 1:
        raise InputError(f"limit: keep at least one training example, got {limit}")
    return TASKS[name](limit)


def digits(limit: int | None = None) -> Task:
    """Scikit-learn's digits: 8×8 grey images of ten classes, resized to 16×16."""
    train, test = digits_split("train"), digits_split("test")
    train = train.first(limit)
    return Task(
        name="digits",
        classes=tuple("0123456789"),
        train=TensorDataset(train.images, train.labels),
        test=TensorDataset(test.images, test.labels),
        preprocessing={
            "scale": 1 / 16,
            "resize": DIGITS_SIZE,
            "interpolation": "bilinear",
            "mean": [DIGITS_MEAN],
            "std": [DIGITS_STD],
        },
        data={
            "source": "sklearn.datasets.load_digits",
            "train": {"n": len(train.images), "sha256": train.sha256()},
            "test": {"n": len(test.images), "sha256": test.sha256()},
        },
    )


TASKS: dict[str, Callable[[int | None], Task]] = {"digits": digits}
