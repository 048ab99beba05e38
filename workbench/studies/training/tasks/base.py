"""What a task is: data cut into a training and a test set, and what a checkpoint must say about them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.core.errors import InputError
from workbench.studies.training.objectives import CLASSIFICATION, Objective

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor
    from torch.utils.data import Dataset

    from workbench.studies.training.feeding import Batch

WATCHED = 8
"""Examples of each split on which the analyses of every epoch are taken."""


@dataclass(frozen=True)
class Task:
    """A training set and a test set of (input, target) pairs, and what to do with them."""

    name: str
    classes: tuple[str, ...]
    """Names of the classes; empty where a model does not classify."""
    train: Dataset[Any]
    test: Dataset[Any]
    preprocessing: dict[str, Any]
    """How raw inputs become what the model receives; fits in JSON."""
    data: dict[str, Any]
    """Identity of the data: source, and per split its size and sha256; fits in JSON."""
    output: tuple[int, ...]
    """Shape of the model's output for one example."""
    objective: Objective = CLASSIFICATION
    architecture: dict[str, Any] = field(default_factory=dict)
    """What the data decides about the model: number of classes, channels, vocabulary."""
    watched: Mapping[str, Batch] = field(default_factory=dict)
    """Split → the same few inputs in every epoch, as the model receives them in a test."""
    workers: int = 0
    """Processes that read examples."""
    collate: Callable[..., Any] | None = None
    """Makes a batch of examples that differ in length, or whose targets do not bear changed images; None elsewhere."""
    reorder: Callable[[Any, Any, np.random.Generator], tuple[Any, Any]] | None = None
    """Input and target with the tokens in an order drawn at random; None where there is no such control."""
    acting: Callable[[Any], dict[str, float]] | None = None
    """Test scores of a model that it earns by acting, taken after every epoch; None where a test set says all."""
    trivial: Callable[[Task], dict[str, float]] | None = None
    """Test scores of a predictor that sees no input; None: one that knows how frequent the classes are."""

    def together(self, examples: list[Any]) -> tuple[Batch, Tensor]:
        """Examples as a batch, and their targets."""
        from torch.utils.data import default_collate

        return (self.collate or default_collate)(examples)


@dataclass(frozen=True)
class Asked:
    """What decides a task's data besides its name."""

    limit: int | None
    data: Path | None
    architecture: dict[str, Any]
    """Of the recipe: the size of images, the length of texts."""
    images: Any = None
    """Of the recipe: how the images of a folder are read."""
    characters: str = ""
    """Of the model that the training starts with."""

    def number(self, name: str) -> int:
        """A whole number of the architecture; InputError where the recipe does not say it."""
        value = self.architecture.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(
                f"recipe: [architecture] needs {name}, a whole number above 0, to cut the data; got {value!r}"
            )
        return value


def spread(total: int, wanted: int | None) -> list[int]:
    """At most ``wanted`` of the numbers 0 … total − 1, evenly over the range; all of them for None."""
    if wanted is None or wanted >= total:
        return list(range(total))
    return [number * total // wanted for number in range(wanted)]


def watched_of(split: Any) -> Tensor:
    """A few inputs of a split, evenly over it."""
    import torch

    return torch.stack([split[number][0] for number in spread(len(split), WATCHED)])
