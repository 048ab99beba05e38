"""A training run from its recipe: what `workbench study train` calls."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workbench.core.errors import InputError
from workbench.core.extras import require
from workbench.core.options import Numbers
from workbench.studies.training.costs import model_costs
from workbench.studies.training.feeding import placed
from workbench.studies.training.folder import RunFolder, TrainResult, command_line
from workbench.studies.training.loop import Trainer, TrainingDiverged, reproducible
from workbench.studies.training.measuring import peak_memory
from workbench.studies.training.monitoring import monitor
from workbench.studies.training.progress import Report
from workbench.studies.training.recipes import Recipe, load_recipe
from workbench.studies.training.starting import read_start
from workbench.studies.training.tasks import Task, check_data, find_task, load_task, usual_recipe
from workbench.studies.training.tasks.embedded import embedded_name


def train(
    task: str,
    out: str | Path,
    *,
    attention: str | None = None,
    layers: Numbers = None,
    options: Mapping[str, Any] | None = None,
    boost: bool = False,
    seed: int = 0,
    epochs: int | None = None,
    restart: bool = False,
    device: str | None = None,
    limit: int | None = None,
    data: str | Path | None = None,
    recipe: Recipe | str | Path | None = None,
    shuffled: bool = False,
    start: str | Path | None = None,
    progress: bool = True,
) -> TrainResult:
    """Train a task's model from its recipe into the folder `out`.

    The same task, recipe, seed, library versions, device and number of threads give the same numbers;
    Python's, numpy's and torch's random states are set along the way. A run that was interrupted goes on from
    its last whole epoch and ends with the numbers it would have had; a complete one is returned as it is.
    ``restart`` begins anew; what `out` holds is moved aside, to ``OUT.before-1``.

    `attention` is a variant of `workbench.attention.VARIANTS` (softmax, unless the recipe says otherwise), in
    `layers` and with `options` where the recipe's own table of that variant is not to hold; `boost` gives
    every layer a boosted residual. `epochs` overrides the recipe's, `limit` keeps only that many training
    examples, `data` is the folder or file of tasks that need one or "embedded:NAME", `recipe` is another recipe
    (its name, its file, or the object), `shuffled` draws the order of every sequence's tokens at random, `start` is a
    checkpoint whose weights the run begins with, all but the head's (the architectures must agree),
    `device` is ``"cpu"``, ``"cuda"``, … (default: what accelerate finds).

    Raises UnknownName for an unknown task, variant or option, InputError for values that cannot be and for a
    folder that holds a different run, MissingResource if `out` cannot be written, TrainingDiverged if the
    loss stops being finite (the last good epoch's weights are kept as a checkpoint).
    """
    find_task(task)
    check_data(task, data)
    if not 0 <= seed < 2**32:
        raise InputError(f"seed must be a whole number from 0 to 2**32 - 1, got {seed}")
    require("training", "accelerate")
    made = embedded_name(task, data)
    if recipe is None and made is not None:
        recipe = usual_recipe(task, data)
    chosen = asked_recipe(task, recipe, attention, layers, options, boost).with_epochs(epochs)
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
    named = recipe if made is None or isinstance(recipe, Recipe) else f"{made}-embedded"
    run = RunFolder(
        Path(out), loaded, chosen, seed, command, run_name(task, named, attention, options, boost)
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


def run_name(
    task: str,
    recipe: Recipe | str | Path | None,
    attention: str | None = None,
    options: Mapping[str, Any] | None = None,
    boost: bool = False,
) -> str | None:
    """What a run is called after the recipe that it names; None: after its task and model.

    So a causal ToST on prose ("prose-tost") is distinguished from the plain language model with the same attention.
    """
    if recipe is None or isinstance(recipe, Recipe) or Path(recipe).stem == task:
        return None
    words = [attention] if attention else []
    words += [_written(value) for value in (options or {}).values()]
    words += ["boost"] if boost else []
    return "-".join([Path(recipe).stem, *words])


def asked_recipe(
    task: str,
    recipe: Recipe | str | Path | None,
    attention: str | None,
    layers: Numbers,
    options: Mapping[str, Any] | None,
    boost: bool,
) -> Recipe:
    """The recipe of a run with what was asked for besides, as `train` takes it."""
    found = recipe if isinstance(recipe, Recipe) else load_recipe(recipe or task, attention)
    if found.task != task:
        raise InputError(f"the recipe is for task {found.task!r}, not {task!r}")
    if attention is None and layers is None and not options and not boost:
        return found
    architecture = found.architecture
    same = attention in (None, found.attention)
    return found.with_attention(
        attention or found.attention,
        architecture.get("attention_layers") if layers is None and same else layers,
        {**(architecture.get("attention_options", {}) if same else {}), **(options or {})},
        boost or found.boost,
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
    """What was asked for, as the command line writes it."""
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
    """What the analyses say of the weights as they are; one process is enough to ask them."""
    if not trainer.is_main:
        return {}
    found = monitor(trainer.module, task.watched)
    if task.acting is not None:
        found["test"] = found.get("test", {}) | task.acting(trainer.module)
    return found


def _costs(task: Task, trainer: Trainer) -> dict[str, dict[str, float]]:
    if not trainer.is_main:
        return {}
    example, _ = task.together([task.test[0]])
    return {"model": model_costs(trainer.module, placed(example, trainer.accelerator.device))}
