"""A task: training and test data, and their description in a checkpoint."""

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
"""Number of examples of each split for the analyses of every epoch."""


@dataclass(frozen=True)
class Task:
    """A training set and a test set of (input, target) pairs, and their settings."""

    name: str
    classes: tuple[str, ...]
    """Names of the classes; empty for tasks without classification."""
    train: Dataset[Any]
    test: Dataset[Any]
    preprocessing: dict[str, Any]
    """Conversion of raw inputs to the model's inputs; fits in JSON."""
    data: dict[str, Any]
    """Identity of the data: source, and per split its size and sha256; fits in JSON."""
    output: tuple[int, ...]
    """Shape of the model's output for one example."""
    objective: Objective = CLASSIFICATION
    architecture: dict[str, Any] = field(default_factory=dict)
    """Architecture settings that depend on the data: number of classes, channels, vocabulary."""
    watched: Mapping[str, Batch] = field(default_factory=dict)
    """Split → the same few inputs in every epoch, as in a test."""
    workers: int = 0
    """Processes that read examples."""
    collate: Callable[..., Any] | None = None
    """Makes a batch of examples of different lengths, or with targets that forbid changed images; else None."""
    reorder: Callable[[Any, Any, np.random.Generator], tuple[Any, Any]] | None = None
    """Shuffles the tokens of an input and its target; None without such a control."""
    acting: Callable[[Any], dict[str, float]] | None = None
    """Test scores of a model that acts, measured after every epoch; None if a test set suffices."""
    trivial: Callable[[Task], dict[str, float]] | None = None
    """Test scores of a predictor without inputs; None: that of the class frequencies."""

    def together(self, examples: list[Any]) -> tuple[Batch, Tensor]:
        """Return examples as a batch, and their targets."""
        from torch.utils.data import default_collate

        return (self.collate or default_collate)(examples)


@dataclass(frozen=True)
class DataRequest:
    """The settings, besides its name, that determine a task's data."""

    limit: int | None
    data: Path | None
    architecture: dict[str, Any]
    """Of the recipe: the size of images, the length of texts."""
    images: Any = None
    """Of the recipe: how the images of a folder are read."""
    characters: str = ""
    """Of the model that the training starts from."""

    def number(self, name: str) -> int:
        """Return a whole number of the architecture; InputError if the recipe lacks it."""
        value = self.architecture.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(
                f"recipe: [architecture] needs {name}, a whole number above 0, to cut the data; got {value!r}"
            )
        return value


def spread(total: int, wanted: int | None) -> list[int]:
    """Return at most ``wanted`` of the numbers 0 … total − 1, evenly spaced; all of them for None."""
    if wanted is None or wanted >= total:
        return list(range(total))
    return [number * total // wanted for number in range(wanted)]


def watched_of(split: Any) -> Tensor:
    """Return a few inputs of a split, evenly spaced."""
    import torch

    return torch.stack([split[number][0] for number in spread(len(split), WATCHED)])
