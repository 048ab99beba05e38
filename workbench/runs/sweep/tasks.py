"""One task of a sweep in a worker: a shard of the inputs, through one model, into one file."""

from __future__ import annotations

import threading
import time
import warnings
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from workbench.analyses.registry import find_analysis
from workbench.core.errors import MissingResource, NothingToMeasure, WorkbenchError
from workbench.core.threads import one_thread
from workbench.data.batches import ListedInputs
from workbench.frames.measurement import Accumulator
from workbench.models.loading import LoadedModel, load
from workbench.runs.loop import accumulate, analysis_source
from workbench.runs.sweep.plan import HELD, Plan, Task
from workbench.runs.sweep.sweep_folder import PartialResult, SweepFolder

# Threads of one worker (Dask may start several) share its model, which capture hooks into: one task at a time.
_ONE_AT_A_TIME = threading.Lock()


class OutOfTime(Exception):
    """The time of the whole sweep is up: the task is left for another run."""


@dataclass(frozen=True)
class Outcome:
    """The end of a task: done, failed, left (time was up) or full (it could not be written)."""

    task: Task
    state: str
    line: dict[str, Any] | None = None
    """The line in the manifest, of a done task."""
    error: str = ""
    final: bool = False
    """Whether the failure would be the same another time."""
    lost_model: bool = False
    """Whether the model itself cannot be had."""


def run_task(folder: str, plan: Plan, task: Task, deadline: float | None) -> Outcome:
    """Measure one shard and write its part; errors are in the outcome, not raised.

    ``deadline`` is a time as `time.time` gives it; past it no task is begun, and a running one stops at the next
    layer without being written.
    """
    sweep = SweepFolder(Path(folder))
    with _ONE_AT_A_TIME, sweep.begun(task), one_thread():
        try:
            _check_time(deadline)
            try:
                model = _model(
                    plan.models[task.model].spec,
                    plan.settings.device,
                    plan.settings.dtype,
                )
            except WorkbenchError as error:
                return Outcome(task, "failed", error=str(error), final=True, lost_model=True)
            part = _measure(plan, task, model, deadline)
        except OutOfTime:
            return Outcome(task, "left")
        except WorkbenchError as error:
            return Outcome(task, "failed", error=str(error), final=True)
        except Exception as error:  # what a library raises about one shard must not end the others
            return Outcome(task, "failed", error=f"{type(error).__name__}: {error}")
        try:
            sweep.write_part(plan, task, part)
        except MissingResource as error:
            return Outcome(task, "full", error=str(error))
        return Outcome(task, "done", line=sweep.line_of(plan, task))


def _check_time(deadline: float | None) -> None:
    if deadline is not None and time.time() > deadline:
        raise OutOfTime


@lru_cache(maxsize=1)
def _model(spec: str, device: str | None, dtype: str | None) -> LoadedModel:
    if spec in HELD:
        return HELD[spec]
    return load(spec, device=device, dtype=dtype)


def _measure(plan: Plan, task: Task, model: LoadedModel, deadline: float | None) -> PartialResult:
    """The task's part; where memory is short, the number of inputs per forward pass is halved."""
    started, size = time.perf_counter(), plan.settings.batch_size
    while True:
        try:
            accumulated, inputs = _accumulated(plan, task, model, size, deadline)
            break
        except (MemoryError, RuntimeError) as error:
            if not _is_out_of_memory(error):
                raise
            if size == 1:
                raise WorkbenchError(
                    f"{plan.models[task.model].spec} does not fit into memory with one input at a time ({error}); give "
                    "a machine or device with more of it, fewer workers, or fewer layers"
                ) from error
            size = max(1, size // 2)
            _free_memory()
    if inputs.cut is not None:
        count, length = inputs.cut
        accumulated.counts.count(
            f"texts were longer than {length} tokens and were cut", count, len(inputs.digests)
        )
    if inputs.digests and not accumulated:
        reasons = "; ".join(accumulated.layers_left_out())
        raise NothingToMeasure(f"{plan.analyses[task.analysis].name}: nothing to measure; {reasons}")
    seconds = time.perf_counter() - started
    return PartialResult(
        accumulated, dict(model.identity), inputs.skipped, inputs.digests, [*inputs.notes], size, seconds
    )


def _accumulated(
    plan: Plan, task: Task, model: LoadedModel, size: int, deadline: float | None
) -> tuple[Accumulator, ListedInputs]:
    pool, numbers = plan.places(task)
    planned, analysis = plan.models[task.model], plan.analyses[task.analysis]
    inputs = ListedInputs(
        planned.inputs,
        pool,
        model,
        numbers,
        plan.settings.batch_size,
        seed=plan.settings.seed,
        preprocessing=plan.settings.preprocessing,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is worth telling is in the notes, once for all shards
        chosen, options = find_analysis(analysis.name, analysis.options)
        settings = replace(
            plan.settings,
            model=model,
            inputs=inputs,
            batch_size=size,
            order=None,
            device=None,
            dtype=None,
        )
        source = analysis_source(chosen, options, settings)
        accumulated = accumulate(
            chosen, options, source, settings, progress=lambda done: _check_time(deadline)
        )
    return accumulated, inputs


def _is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory was short, of an accelerator or of the machine."""
    import torch

    text = str(error).lower()
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or any(
        words in text for words in ("out of memory", "can't allocate memory", "not enough memory")
    )


def _free_memory() -> None:
    import gc

    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
