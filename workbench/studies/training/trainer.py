"""The training loop on accelerate, the same on two cores and many GPUs."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

from workbench.attention.primal import kept_penalty, primal_layers
from workbench.core.errors import InputError, MissingResource, WorkbenchError
from workbench.models.architectures import build
from workbench.models.loading import find_device
from workbench.studies.finite import first_layer_not_finite
from workbench.studies.training.augmentation import Mixing, augment, drop_paths
from workbench.studies.training.feeding import feed, named_tensors, shapes_of
from workbench.studies.training.logit_clipping import LogitClipping
from workbench.studies.training.objectives import classification_scores
from workbench.studies.training.recipes import Augmentation

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch import Tensor

    from workbench.studies.training.feeding import Batch
    from workbench.studies.training.recipes import Recipe
    from workbench.studies.training.tasks import Task

_EVALUATION_BATCH = 256


class TrainingDiverged(WorkbenchError):
    """The loss or the gradient stopped being a finite number."""


class Trainer:
    """A model with its optimiser and data; each call trains one epoch.

    All randomness of an epoch derives from (seed, epoch). A resumed run therefore draws the same numbers as an
    uninterrupted one, and no random state is stored. Raises InputError if architecture and task do not fit together.
    """

    def __init__(self, task: Task, recipe: Recipe, seed: int, device: str | None = None) -> None:
        self.accelerator = _accelerator(device)
        self.recipe = recipe
        self.seed = seed
        self.objective = task.objective
        self._order = torch.Generator()
        self._seed_everything(epoch=0)
        self.module = build(recipe.architecture)
        _check_fit(self.module, task)
        drop_paths(self.module, recipe.drop_path)
        self._mix = Mixing(recipe, len(task.classes))
        changed = self._mix.in_pairs or recipe.augmentation != Augmentation()
        dense = len(task.output) > 1
        if task.collate is not None and (changed or (dense and recipe.label_smoothing)):
            what = "a target for every place, as label_smoothing has not" if dense else "sequences"
            raise InputError(
                f"recipe: mixup, cutmix and [augmentation] change images, and task {task.name!r} has {what}; "
                "leave them out"
            )
        self._primal = primal_layers(self.module) if recipe.ksvd_weight else []
        self._clipping = LogitClipping(self.module, recipe.qk_clip) if recipe.qk_clip else None
        loader = DataLoader(
            task.train,
            recipe.batch_size,
            shuffle=True,
            generator=self._order,
            num_workers=task.workers,
            drop_last=self._mix.in_pairs,
            collate_fn=task.collate,
        )
        # Sequences of thousands of tokens fill the memory as soon in a test as in training.
        rows = _EVALUATION_BATCH if task.collate is None else recipe.batch_size
        self.optimizer = torch.optim.AdamW(
            self.module.parameters(), recipe.learning_rate, weight_decay=recipe.weight_decay
        )
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer,
            recipe.learning_rate,
            total_steps=recipe.epochs * len(loader),
            pct_start=recipe.warmup,
        )
        self._model, self._optimizer, self._scheduler, self._train, self._test = self.accelerator.prepare(
            self.module,
            self.optimizer,
            self.scheduler,
            loader,
            DataLoader(task.test, rows, num_workers=task.workers, collate_fn=task.collate),
        )

    @property
    def is_main(self) -> bool:
        """Whether this process writes the files (the only one, unless several train together)."""
        return self.accelerator.is_main_process

    def train_epoch(self, epoch: int, on_step: Callable[[int, int], None] | None = None) -> dict[str, float]:
        """Train for one pass over the training set; calls `on_step(done, total)` after each batch.

        Returns means over the epoch while the weights change: the task's scores (``loss`` in nats, ``accuracy``, …),
        ``gradient_norm`` (before clipping), ``ksvd_penalty`` of primal layers (not part of ``loss``),
        ``max_logit`` (nats, the largest before QK-Clip), and ``learning_rate`` (at the end), ``seconds``. Raises
        TrainingDiverged, before the weights change, if the loss or the gradient is not finite.
        """
        self._seed_everything(epoch)
        self._model.train()
        started = time.perf_counter()
        means, norms, penalties, logits = _Means(), [], [], []
        for step, (batch, targets) in enumerate(self._train, start=1):
            seen, wanted = self._mix(augment(batch, self.recipe.augmentation), targets)
            scores = self.objective.score(feed(self._model, seen), wanted)
            total = scores["loss"].mean()
            if self._primal:
                penalty = kept_penalty(self._primal)
                penalties.append(penalty.detach())
                total = total + self.recipe.ksvd_weight * penalty
            self._optimizer.zero_grad()
            self.accelerator.backward(total)
            norm = self.accelerator.clip_grad_norm_(self._model.parameters(), self.recipe.clip_norm)
            # With float16 an infinite gradient is no accident: the gradient scaler skips that step by itself.
            if not (total.isfinite() and (norm.isfinite() or self.accelerator.mixed_precision == "fp16")):
                where = first_non_finite(self.module, seen, wanted, self.objective.score)
                raise TrainingDiverged(f"the loss is {total.item()} in epoch {epoch}, step {step}: {where}")
            self._optimizer.step()
            self._scheduler.step()
            if self._clipping is not None:
                logits.append(self._clipping.clip())
            means.add(self.accelerator.gather_for_metrics(_detached(scores)))
            norms.append(norm.detach())
            if on_step is not None:
                on_step(step, len(self._train))
        return {
            **self.objective.derive(means.result()),
            "gradient_norm": _mean([torch.stack(norms)]),
            **({"ksvd_penalty": _mean([torch.stack(penalties)])} if penalties else {}),
            **({"max_logit": float(torch.stack(logits).max())} if logits else {}),
            "learning_rate": float(self.scheduler.get_last_lr()[0]),
            "seconds": time.perf_counter() - started,
        }

    @torch.inference_mode()
    def evaluate(self) -> dict[str, float]:
        """Return the task's scores (``loss`` in nats, ``accuracy``, …) on the test set.

        Raises TrainingDiverged if the loss is not finite, which the last step of an epoch can cause.
        """
        self._model.eval()
        means = _Means()
        for batch, targets in self._test:
            scores = self.accelerator.gather_for_metrics(
                self.objective.score(feed(self._model, batch), targets)
            )
            if not scores["loss"].isfinite().all():
                where = first_non_finite(self.module, batch, targets, self.objective.score)
                raise TrainingDiverged(f"the loss is {scores['loss'].mean().item()} on the test set: {where}")
            means.add(scores)
        return self.objective.derive(means.result())

    def state_dict(self) -> dict[str, Any]:
        """Return the weights, optimiser and schedule for resuming."""
        return {
            "model": self.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state returned by :meth:`state_dict`."""
        self.module.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])

    def _seed_everything(self, epoch: int) -> None:
        """Seed Python, numpy, torch and the order of the batches."""
        from accelerate.utils import set_seed

        order, seed = np.random.SeedSequence([self.seed, epoch]).generate_state(2)
        set_seed(int(seed) % 2**31 + self.accelerator.process_index)  # numpy takes 32 bits
        self._order.manual_seed(int(order))


def first_non_finite(
    module: nn.Module,
    batch: Batch,
    targets: Tensor,
    score: Callable[[Tensor, Tensor], dict[str, Tensor]] = classification_scores,
) -> str:
    """Name the origin of the first NaN or infinity: a parameter, the input, a layer, or a gradient.

    The order of the search is the order of causes. The module's gradients must be those of this batch.
    """
    for name, parameter in module.named_parameters():
        if not parameter.isfinite().all():
            return f"the parameter {name} is not finite"
    if not all(tensor.isfinite().all() for tensor in named_tensors(batch).values()):
        return "the input itself is not finite"
    layer, loss = first_layer_not_finite(module, lambda: score(feed(module, batch), targets)["loss"])
    if layer is not None:
        return f"the output of {layer} is the first that is not finite"
    if not loss.isfinite().all():
        return "every layer's output is finite, but their cross-entropy is not"
    # The gradient flows from the last parameter to the first.
    for name, parameter in reversed(list(module.named_parameters())):
        if parameter.grad is not None and not parameter.grad.isfinite().all():
            return f"every layer's output is finite; the gradient of {name} is the first that is not"
    return "it did not happen again when the batch was repeated: suspect a random layer, or the hardware"


@contextmanager
def reproducible() -> Generator[None]:
    """Make torch use deterministic operations within this context; the former setting returns at the end."""
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # CUDA's matrix products need it for the same
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def _accelerator(device: str | None) -> Accelerator:
    from accelerate import Accelerator
    from accelerate.state import is_initialized

    # asked first: accelerate would take another device where this one is absent, and keep to it
    wanted = None if device is None else find_device(device).type
    already = is_initialized()
    if wanted == "cpu":
        try:
            return Accelerator(cpu=True)
        except ValueError as error:
            raise InputError(
                "this process already trains on another device, and accelerate keeps to one per process; "
                "start a new one for the CPU"
            ) from error
    accelerator = Accelerator()
    if wanted is not None and accelerator.device.type != wanted:
        begun = ", on which this process trains already: start a new one" if already else ""
        raise MissingResource(
            f"device {device!r} cannot be trained on: accelerate offers {accelerator.device.type}{begun}"
        )
    return accelerator


def _check_fit(module: nn.Module, task: Task) -> None:
    example, _ = task.together([task.train[0]])
    try:
        with torch.inference_mode():
            shape = tuple(feed(module.eval(), example).shape)
    except (RuntimeError, AssertionError, ValueError, IndexError) as error:
        raise InputError(
            f"the recipe's architecture does not take what task {task.name!r} gives, {shapes_of(example)}: "
            f"{error}"
        ) from error
    if shape != (1, *task.output):
        what = "num_classes" if task.classes else "vocabulary"
        raise InputError(
            f"the recipe's architecture gives {shape} for one example of task {task.name!r}, "
            f"which needs {(1, *task.output)}: set {what}"
        )


class _Means:
    """Means over examples of scores collected batch by batch."""

    def __init__(self) -> None:
        self._parts: dict[str, list[Tensor]] = {}

    def add(self, scores: dict[str, Tensor]) -> None:
        for name, values in scores.items():
            self._parts.setdefault(name, []).append(values)

    def result(self) -> dict[str, float]:
        return {name: _mean(parts) for name, parts in self._parts.items()}


def _detached(scores: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: values.detach() for name, values in scores.items()}


def _mean(parts: list[Tensor]) -> float:
    return float(torch.cat(parts).double().mean()) if parts else math.nan
