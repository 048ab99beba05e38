"""A training run from its recipe: what `workbench train` calls."""

from __future__ import annotations

import time
from pathlib import Path

from workbench.errors import InputError
from workbench.training.folder import RunFolder, TrainResult
from workbench.training.loop import Trainer, TrainingDiverged, reproducible
from workbench.training.progress import Report
from workbench.training.recipes import Recipe, load_recipe
from workbench.training.tasks import load_task


def train(
    task: str,
    out: str | Path,
    *,
    seed: int = 0,
    epochs: int | None = None,
    resume: bool = True,
    device: str | None = None,
    limit: int | None = None,
    recipe: Recipe | str | Path | None = None,
    progress: bool = True,
) -> TrainResult:
    """Train a task's model from its recipe into the folder `out`.

    The same task, recipe, seed, library versions, device and number of threads give the same numbers;
    Python's, numpy's and torch's random states are set along the way. A run that was interrupted goes on from
    its last whole epoch and ends with the numbers it would have had; a complete one is returned as it is.
    ``resume=False`` starts over, replacing the run in `out`.

    `epochs` overrides the recipe's, `limit` keeps only that many training examples, `recipe` is another
    recipe (its name, its file, or the object), `device` is ``"cpu"``, ``"cuda"``, … (default: what accelerate
    finds).

    Raises UnknownName for an unknown task, InputError for values that cannot be and for a folder that holds a
    different run, MissingResource if `out` cannot be written, TrainingDiverged if the loss stops being finite
    (the last good epoch's weights are kept as a checkpoint).
    """
    chosen = recipe if isinstance(recipe, Recipe) else load_recipe(task if recipe is None else recipe)
    if chosen.task != task:
        raise InputError(f"the recipe is for task {chosen.task!r}, not {task!r}")
    if not 0 <= seed < 2**32:
        raise InputError(f"seed must be a whole number from 0 to 2**32 - 1, got {seed}")
    run = RunFolder(Path(out), load_task(task, limit), chosen.with_epochs(epochs), seed, limit)
    run.prepare_folder(resume)
    if (finished := run.finished()) is not None:
        return finished
    with reproducible():
        trainer = Trainer(run.task, run.recipe, seed, device)
        report = Report(run.recipe.epochs, shown=progress and trainer.is_main)
        return _train(run, trainer, report)


def _train(run: RunFolder, trainer: Trainer, report: Report) -> TrainResult:
    start = done = run.restore(trainer)
    try:
        if done is None:
            run.record(trainer, 0, {"test": trainer.evaluate()})
            done = 0
        else:
            report.say(f"going on after epoch {done} of {run.recipe.epochs}")
        with report.running():
            for epoch in range(done + 1, run.recipe.epochs + 1):
                started = time.perf_counter()
                scores = {"train": trainer.train_epoch(epoch, report.step), "test": trainer.evaluate()}
                run.record(trainer, epoch, scores)
                done = epoch
                report.epoch(epoch, scores, time.perf_counter() - started)
    except KeyboardInterrupt:
        saved = "nothing is saved yet" if done is None else f"epoch {done} of {run.recipe.epochs} is saved"
        report.say(f"interrupted: {saved} in {run.out}; the same command goes on from there")
        raise
    except TrainingDiverged as error:
        if done is None:
            raise
        kept = run.keep_last_good(trainer)
        raise TrainingDiverged(
            f"training stopped: {error}. The weights after epoch {done} are kept in {kept}; "
            "try a lower learning_rate or clip_norm in the recipe"
        ) from error
    run.finish(trainer)
    return run.result(start)
