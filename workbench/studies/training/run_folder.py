"""Read and write the folder of a training run.

It holds ``model.json`` (the model, and a table of its checkpoints), ``epoch-NNN.safetensors``, ``metrics.csv`` (one row
per epoch, split and metric) and, until the run is complete, ``resume.pt``.
"""

from __future__ import annotations

import io
import json
import math
import os
import platform
import shlex
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from workbench._version import __version__
from workbench.core.errors import InputError
from workbench.core.files import atomic_write, sha256_file, write_json
from workbench.core.store import RunStore
from workbench.models.architectures import attention_of
from workbench.models.checkpoints import FORMAT, check_description, load_weights, write_checkpoint
from workbench.models.source import read_torch_file
from workbench.studies.records import METRICS_FILE, read_metrics, write_rows
from workbench.studies.training.cost_measures import device_name
from workbench.studies.training.epoch_report import in_words
from workbench.studies.training.recipes import Recipe
from workbench.studies.training.tasks import Task
from workbench.studies.training.trainer import Trainer

MODEL_FILE = "model.json"
_RESUME_FILE = "resume.pt"
METRIC_COLUMNS = ("run", "task", "attention", "seed", "epoch", "split", "metric", "value", "unit")
_UNITS = {"loss": "nats", "max_logit": "nats", "seconds": "s", "peak_memory": "bytes"}
# What a checkpoint says of its epoch: nothing that the clock decides, or the same run would not give the same
# bytes; the rest is in metrics.csv.
_IN_CHECKPOINT = (
    "loss",
    "accuracy",
    "mean_iou",
    "normalised_return",
    "perplexity",
    "gradient_norm",
    "learning_rate",
)


@dataclass(frozen=True)
class TrainResult:
    """The result of a finished run."""

    out: Path
    checkpoints: list[Path]
    metrics: pd.DataFrame
    """The rows of ``metrics.csv``."""
    test: dict[str, float]
    """Scores on the test set after the last epoch: ``loss``, ``accuracy``, ``perplexity`` of language models."""
    headline: str
    """Name of the main test score."""
    resumed_from: int | None
    """The epoch the run resumed from; None if it was not interrupted."""

    @property
    def test_accuracy(self) -> float:
        """Share of test examples (of a language model: of next tokens) correctly classified after the last epoch."""
        return self.test["accuracy"]

    def __str__(self) -> str:
        reached = in_words(self.headline, self.test[self.headline])
        return f"{self.out}: test {reached}, {len(self.checkpoints)} checkpoints"


def copy_model(run: Path, models: Path, keep: str = "last") -> None:
    """Copy a finished run's checkpoints, "all" or the "last", to a bundled model's folder."""
    for old in models.glob("epoch-*.safetensors"):
        old.unlink()
    about = json.loads((run / MODEL_FILE).read_text(encoding="utf-8"))
    about["checkpoints"] = about["checkpoints"][0 if keep == "all" else -1 :]
    for row in about["checkpoints"]:
        atomic_write(models / row["file"], (run / row["file"]).read_bytes())
    write_json(models / MODEL_FILE, about)


class RunFolder:
    """The folder of one run, with all reads and writes."""

    def __init__(
        self, out: Path, task: Task, recipe: Recipe, seed: int, command: str, name: str | None = None
    ) -> None:
        self.out, self.task, self.recipe, self.seed = out, task, recipe, seed
        self.store = RunStore(out, "training run", MODEL_FILE, format=FORMAT, check=check_description)
        self.rows: list[dict[str, Any]] = []
        self.table: list[dict[str, Any]] = []
        self.identity = {
            "name": name or _name(task, recipe),
            "task": task.name,
            "attention": recipe.attention,
            **_variant(recipe),
            "architecture": recipe.architecture,
            "classes": list(task.classes),
            "preprocessing": task.preprocessing,
            "data": task.data,
            "recipe": recipe.as_dict(),
            "seed": seed,
            "command": command,
        }

    def alone(self) -> AbstractContextManager[None]:
        """Lock the folder for this run; of several processes training together, only the first locks it."""
        return self.store.locked() if _is_first() else nullcontext()

    def prepare_folder(self, restart: bool) -> None:
        """Create the folder, or check that it holds this run (see `RunStore`)."""
        # of several processes that train together the first one moves what is there
        restart = restart and _is_first()
        self.store.open({**dict.fromkeys(_VARIANT), **self.identity}, restart, ignored=["command"])

    def path(self, name: str) -> Path:
        """Return the path of a file of the run."""
        return self.out / name

    def finished(self) -> TrainResult | None:
        """Return the result if the folder holds the complete run."""
        content = self.store.content()
        if content is None or not content.get("complete"):
            return None
        files = {self.path(row["file"]): row["sha256"] for row in content["checkpoints"]}
        if not all(path.exists() for path in (*files, self.path(METRICS_FILE))):
            return None
        for path, digest in files.items():
            if sha256_file(path) != digest:
                raise InputError(
                    f"{path} is not the file that this run wrote, or only a part of it; start over (--restart), which "
                    "moves the folder aside, or give another folder (--out)"
                )
        return self.result(None)

    def restore(self, trainer: Trainer) -> int | None:
        """Restore the trainer to the last complete epoch and return it, or None if there is none."""
        path = self.path(_RESUME_FILE)
        if not path.exists() or self.store.content() is None:
            return None
        try:
            state = read_torch_file(path)
        except InputError as error:
            raise InputError(f"{error}. Without it the run cannot go on: start over (--restart)") from error
        try:
            load_weights(trainer.module, state["trainer"]["model"], origin=str(path))
            trainer.load_state_dict(state["trainer"])
            self.rows = json.loads(state["rows"])
            self.table = json.loads(state["table"])
            return int(state["epoch"])
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            reason = "" if isinstance(error, InputError) else f"{path} does not hold what this run wrote: "
            raise InputError(f"{reason}{error}. Start over (--restart)") from error

    def record(
        self,
        trainer: Trainer,
        epoch: int,
        scores: dict[str, dict[str, float]],
        watched: dict[str, dict[str, float]] | None = None,
    ) -> None:
        """Write an epoch's metrics, a checkpoint if the recipe wants it, and the state for resuming.

        ``scores`` and ``watched`` hold metrics by split; NaN values are skipped.
        """
        if not trainer.is_main:
            return
        for table in (scores, watched or {}):
            for split, metrics in table.items():
                self.rows += [
                    self._row(epoch, split, metric, value)
                    for metric, value in metrics.items()
                    if not math.isnan(value)
                ]
        if epoch in self.recipe.checkpoint_epochs():
            self.write_checkpoint(trainer.module.state_dict(), epoch)
        self.write_metrics()
        self.write_model(trainer, complete=False)
        # Last, and whole or not at all: what it says has happened has happened.
        buffer = io.BytesIO()
        state = {
            "epoch": epoch,
            "rows": json.dumps(self.rows),
            "table": json.dumps(self.table),
            "trainer": trainer.state_dict(),
        }
        torch.save(state, buffer)
        atomic_write(self.path(_RESUME_FILE), buffer.getvalue())

    def write_checkpoint(self, state: dict[str, torch.Tensor], epoch: int) -> Path:
        """Write an epoch's weights, and their row in the table of ``model.json``."""
        metrics = {
            f"{row['split']}_{row['metric']}": row["value"]
            for row in self.rows
            if row["epoch"] == epoch and row["metric"] in _IN_CHECKPOINT
        }
        name = f"epoch-{epoch:03d}"
        path = self.path(f"{name}.safetensors")
        meta = {**self.identity, "format": FORMAT, "epoch": epoch, "metrics": metrics, "versions": versions()}
        digest = write_checkpoint(path, state, meta)
        self.table.append({"name": name, "file": path.name, "epoch": epoch, **metrics, "sha256": digest})
        return path

    def write_metrics(self) -> None:
        """Write ``metrics.csv``."""
        frame = pd.DataFrame(self.rows, columns=list(METRIC_COLUMNS))
        write_rows(self.path(METRICS_FILE), frame)

    def write_model(self, trainer: Trainer, complete: bool) -> None:
        """Write ``model.json``."""
        about = {
            "complete": complete,
            "device": device_name(trainer.accelerator.device),
            "versions": versions(),
            "checkpoints": self.table,
        }
        self.store.write({**self.identity, **about})

    def keep_last_good(self, trainer: Trainer) -> Path:
        """Make a checkpoint of the last complete epoch, unless the recipe already did."""
        state = read_torch_file(self.path(_RESUME_FILE))
        epoch = int(state["epoch"])
        kept = [row for row in self.table if row["epoch"] == epoch]
        if kept:
            return self.path(kept[0]["file"])
        path = self.path(f"epoch-{epoch:03d}.safetensors")
        if trainer.is_main:
            self.write_checkpoint(state["trainer"]["model"], epoch)
            self.write_model(trainer, complete=False)
        return path

    def finish(self, trainer: Trainer) -> None:
        """Mark the run complete and remove the state for resuming."""
        if trainer.is_main:
            self.write_model(trainer, complete=True)
            self.path(_RESUME_FILE).unlink(missing_ok=True)
        trainer.accelerator.wait_for_everyone()

    def result(self, resumed_from: int | None) -> TrainResult:
        """Return the result of the complete run, read from its folder."""
        table = (self.store.content() or {})["checkpoints"]
        return TrainResult(
            out=self.out,
            checkpoints=[self.path(row["file"]) for row in table],
            metrics=read_metrics(self.path(METRICS_FILE)),
            test={
                name.removeprefix("test_"): float(value)
                for name, value in table[-1].items()
                if name.startswith("test_")
            },
            headline=self.task.objective.headline,
            resumed_from=resumed_from,
        )

    def _row(self, epoch: int, split: str, metric: str, value: float) -> dict[str, Any]:
        return {
            "run": f"{self.identity['name']}-seed{self.seed}",
            "task": self.task.name,
            "attention": self.recipe.attention + ("+boost" if self.recipe.boost else ""),
            "seed": self.seed,
            "epoch": epoch,
            "split": split,
            "metric": metric,
            "value": value,
            "unit": _UNITS.get(metric, ""),
        }


_VARIANT = ("attention_layers", "attention_options", "boost")
"""Entries of the identity that a plain model lacks: a variant is a different run."""


def _name(task: Task, recipe: Recipe) -> str:
    architecture = recipe.architecture["name"]
    default_attention = attention_of({"name": architecture})
    if default_attention != "softmax":
        parts = [architecture, *([] if recipe.attention == default_attention else [recipe.attention])]
    else:
        # The plain vision transformer had its name before there were variants.
        plain = architecture == "vit" and recipe.attention == "softmax" and not recipe.boost
        parts = [architecture if plain else recipe.attention]
    mlp = recipe.architecture.get("mlp", "mlp")
    parts += ([] if mlp == "mlp" else [mlp]) + (["boost"] if recipe.boost else [])
    return "-".join([task.name, *parts])


def _variant(recipe: Recipe) -> dict[str, Any]:
    """Describe a variant: its layers (None: all), options and boost; empty for the plain model."""
    if recipe.attention == "softmax" and not recipe.boost:
        return {}
    return {
        "attention_layers": recipe.architecture.get("attention_layers"),
        "attention_options": recipe.architecture.get("attention_options", {}),
        "boost": recipe.boost,
    }


def command_line(task: str, flags: dict[str, Any], seed: int, epochs: int) -> str:
    """Return the command that repeats a run. Flags are values, lists of values (repeated), or True."""
    words = ["workbench", "study", "train", task]
    for name, value in flags.items():
        for entry in value if isinstance(value, list) else [value]:
            words += [f"--{name}"] if entry is True else [f"--{name}", shlex.quote(str(entry))]
    return " ".join([*words, "--seed", str(seed), "--epochs", str(epochs)])


def versions() -> dict[str, str]:
    """Return the versions that a run's numbers may depend on."""
    packages = ("torch", "timm", "accelerate", "numpy", "scikit-learn")
    return {
        "workbench": __version__,
        "python": platform.python_version(),
        **{name: version(name) for name in packages},
    }


def _is_first() -> bool:
    """Return whether this process trains alone or is the first of several."""
    return os.environ.get("RANK", "0") == "0"
