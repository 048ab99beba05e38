"""Train a model from a recipe: the call of ``workbench study train``."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge

from workbench.core.errors import InputError
from workbench.core.extras import require
from workbench.core.options import Numbers, checked
from workbench.runs.settings import Seed
from workbench.studies.training.cost_measures import peak_memory
from workbench.studies.training.costs import model_costs
from workbench.studies.training.epoch_report import Report
from workbench.studies.training.feeding import placed
from workbench.studies.training.monitoring import monitor
from workbench.studies.training.recipes import Recipe, load_recipe
from workbench.studies.training.run_folder import RunFolder, TrainResult, command_line
from workbench.studies.training.starting import read_start
from workbench.studies.training.tasks import Task, check_data, find_task, load_task, usual_recipe
from workbench.studies.training.tasks.embedded import embedded_name
from workbench.studies.training.trainer import Trainer, TrainingDiverged, reproducible


@checked
def train(
    task: str,
    out: str | Path,
    *,
    attention: str | None = None,
    layers: Numbers = None,
    options: Mapping[str, Any] | None = None,
    boost: bool = False,
    seed: Seed = 0,
    epochs: Annotated[int, Ge(1)] | None = None,
    restart: bool = False,
    device: str | None = None,
    limit: Annotated[int, Ge(1)] | None = None,
    data: str | Path | None = None,
    recipe: Recipe | str | Path | None = None,
    shuffled: bool = False,
    start: str | Path | None = None,
    progress: bool = True,
) -> TrainResult:
    """Train a task's model from its recipe into the folder `out`.

    The same task, recipe, seed, library versions, device and number of threads give the same numbers; Python's, numpy's
    and torch's random states are set for this. An interrupted run resumes from its last complete epoch and ends with
    the same numbers as an uninterrupted one; a complete run is returned unchanged. ``restart`` starts over and moves
    the content of `out` to ``OUT.before-1``.

    Args:
        task: a key of `workbench.studies.training.tasks.TASKS`.
        out: folder of the run.
        attention: a variant of `workbench.attention.VARIANTS`; the recipe's, or softmax, by default.
        layers: layers with this attention; the recipe's by default.
        options: options of the variant that replace the recipe's.
        boost: give every layer a boosted residual.
        seed: random seed.
        epochs: number of epochs; the recipe's by default.
        restart: start over.
        device: ``"cpu"``, ``"cuda"``, …; chosen by accelerate by default.
        limit: number of training examples kept; all by default.
        data: folder or file of tasks that need one, or "embedded:NAME".
        recipe: another recipe: its name, its file, or the object.
        shuffled: shuffle the tokens of every sequence.
        start: a checkpoint with initial weights, except the head's (the architectures must agree).
        progress: report the progress on standard error.

    Raises:
        UnknownName: an unknown task, variant or option.
        InputError: an invalid value, or a folder that holds a different run.
        MissingResource: `out` cannot be written.
        TrainingDiverged: the loss is not finite; the weights of the last good epoch are kept as a checkpoint.
    """
    find_task(task)
    check_data(task, data)
    require("training", "accelerate")
    data_name = embedded_name(task, data)
    if recipe is None and data_name is not None:
        recipe = usual_recipe(task, data)
    chosen = recipe_for(task, recipe, attention, layers, options, boost).with_epochs(epochs)
    begun = None if start is None else read_start(start)
    loaded = load_task(
        task,
        limit,
        data=data,
        architecture=chosen.architecture,
        images=chosen.images,
        shuffled=shuffled,
        characters=begun.characters if begun else "",
    )
    if begun:
        loaded = dataclasses.replace(loaded, data=loaded.data | {"start": begun.identity()})
    chosen = chosen.completed(loaded.architecture)
    flags = _flags(attention, layers, options, boost, recipe, data, limit)
    flags |= {"shuffled": True} if shuffled else {}
    flags |= {"start": start} if begun else {}
    if isinstance(recipe, Recipe):
        command = (
            f"workbench.studies.training.train({task!r}, OUT, seed={seed}, limit={limit}, recipe=RECIPE)"
        )
    else:
        command = command_line(task, flags, seed, chosen.epochs)
    named = recipe if data_name is None or isinstance(recipe, Recipe) else f"{data_name}-embedded"
    run = RunFolder(
        Path(out), loaded, chosen, seed, command, _run_name(task, named, attention, options, boost)
    )
    with run.alone():
        run.prepare_folder(restart)
        if (finished := run.finished()) is not None:
            return finished
        with reproducible():
            trainer = Trainer(run.task, run.recipe, seed, device)
            if begun:
                begun.put_into(trainer.module)
            report = Report(run.recipe.epochs, progress and trainer.is_main, loaded.objective.headline)
            return _train(run, trainer, report)


def _run_name(
    task: str,
    recipe: Recipe | str | Path | None,
    attention: str | None = None,
    options: Mapping[str, Any] | None = None,
    boost: bool = False,
) -> str | None:
    """Return a run's name derived from its recipe, or None if it is named after its task and model.

    This distinguishes a causal ToST on prose ("prose-tost") from the plain language model with the same attention.
    """
    if recipe is None or isinstance(recipe, Recipe) or Path(recipe).stem == task:
        return None
    words = [attention] if attention else []
    words += [_written(value) for value in (options or {}).values()]
    words += ["boost"] if boost else []
    return "-".join([Path(recipe).stem, *words])


def recipe_for(
    task: str,
    recipe: Recipe | str | Path | None,
    attention: str | None,
    layers: Numbers,
    options: Mapping[str, Any] | None,
    boost: bool,
) -> Recipe:
    """Return a run's recipe with the requested changes, as `train` takes them."""
    base = recipe if isinstance(recipe, Recipe) else load_recipe(recipe or task, attention)
    if base.task != task:
        raise InputError(f"the recipe is for task {base.task!r}, not {task!r}")
    if attention is None and layers is None and not options and not boost:
        return base
    architecture = base.architecture
    same = attention in (None, base.attention)
    return base.with_attention(
        attention or base.attention,
        architecture.get("attention_layers") if layers is None and same else layers,
        {**(architecture.get("attention_options", {}) if same else {}), **(options or {})},
        boost or base.boost,
    )


def _flags(
    attention: str | None,
    layers: Numbers,
    options: Mapping[str, Any] | None,
    boost: bool,
    recipe: Any,
    data: str | Path | None,
    limit: int | None,
) -> dict[str, Any]:
    """Return the command-line flags of a run."""
    flags: dict[str, Any] = {}
    if attention is not None:
        flags["attention"] = attention
    if layers is not None:
        flags["layers"] = layers if isinstance(layers, str) else ",".join(map(str, _listed(layers)))
    if options:
        flags["set"] = [f"{name}={_written(value)}" for name, value in options.items()]
    if boost:
        flags["boost"] = True
    named = {"recipe": recipe, "data": data, "limit": limit}
    return flags | {name: value for name, value in named.items() if value is not None}


def _listed(layers: Any) -> list[int]:
    return [layers] if isinstance(layers, int) else list(layers)


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _train(run: RunFolder, trainer: Trainer, report: Report) -> TrainResult:
    start = done = run.restore(trainer)
    try:
        if done is None:
            before = {"test": trainer.evaluate()}
            run.record(trainer, 0, before, _watch(run.task, trainer) | _costs(run.task, trainer))
            done = 0
        else:
            report.say(f"going on after epoch {done} of {run.recipe.epochs}")
        with report.running():
            for epoch in range(done + 1, run.recipe.epochs + 1):
                started = time.perf_counter()
                scores = {"train": trainer.train_epoch(epoch, report.step), "test": trainer.evaluate()}
                scores["train"]["peak_memory"] = peak_memory(trainer.accelerator.device)
                run.record(trainer, epoch, scores, _watch(run.task, trainer))
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


def _watch(task: Task, trainer: Trainer) -> dict[str, dict[str, float]]:
    """Return the analyses' metrics of the current weights, on the main process only."""
    if not trainer.is_main:
        return {}
    scores = monitor(trainer.module, task.watched)
    if task.acting is not None:
        scores["test"] = scores.get("test", {}) | task.acting(trainer.module)
    return scores


def _costs(task: Task, trainer: Trainer) -> dict[str, dict[str, float]]:
    if not trainer.is_main:
        return {}
    example, _ = task.together([task.test[0]])
    return {"model": model_costs(trainer.module, placed(example, trainer.accelerator.device))}
