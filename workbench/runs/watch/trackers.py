"""Trackers that a watch reports to: TensorBoard and Weights & Biases."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from workbench.core.errors import MissingResource
from workbench.runs.watch.alerts import scalars

if TYPE_CHECKING:
    import pandas as pd

Tracker = Literal["tensorboard", "wandb"]
Report = Callable[["pd.DataFrame", int], object]


def tracker(name: Tracker, folder: Path) -> Report:
    """Return a function that sends the means of a logging, by metric and layer, to a tracker.

    TensorBoard reads the folder ``tensorboard`` in the watch's folder. Weights & Biases gets the values with the next
    step that the training logs, in the run that is active; one begins if there is none. Raises `MissingResource` where
    the package is not installed.
    """
    try:
        return (_tensorboard if name == "tensorboard" else _wandb)(folder)
    except ModuleNotFoundError as error:
        raise MissingResource(f"report_to={name!r} needs {name}; pip install {name}") from error


def _tensorboard(folder: Path) -> Report:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder / "tensorboard"))

    def report(rows: pd.DataFrame, step: int) -> None:
        for label, value in scalars(rows).items():
            writer.add_scalar(label, value, step)
        writer.flush()

    return report


def _wandb(folder: Path) -> Report:
    wandb = importlib.import_module("wandb")  # not among the packages of development

    def report(rows: pd.DataFrame, step: int) -> None:
        run: Any = wandb.run or wandb.init(dir=str(folder))
        run.log({**scalars(rows), "watch_step": step}, commit=False)

    return report
