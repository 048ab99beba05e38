"""`sweep` runs the tasks of a plan and writes their parts."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Gt

from workbench.core.errors import InputError, MissingResource, WorkbenchError
from workbench.core.options import Accepted, Numbers, checked
from workbench.core.progress import progress_bars
from workbench.models.loading import LoadedModel
from workbench.runs import settings as setting
from workbench.runs.settings import RunSettings, model_pairs
from workbench.runs.sweep.plan import HELD, Plan, Task, make_plan, named_models
from workbench.runs.sweep.status import SweepStatus, sweep_status
from workbench.runs.sweep.sweep_folder import DamagedPart, SweepFolder
from workbench.runs.sweep.tasks import Outcome, run_task
from workbench.runs.sweep.workers import Pool, open_pool

_RETRIES = 2
_IDLE_LOSSES = 5
_MANIFEST_SECONDS = 5.0
"""Shortest time between two writes of the manifest; after a crash, parts are found without it."""
PATIENCE = 60.0
"""Seconds to wait for the manifest, which parts of a sweep write in turn."""
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


@checked
def sweep(
    models: str | LoadedModel | Sequence[Any],
    inputs: str | Sequence[str],
    analyses: str | Sequence[str | tuple[str, Mapping[str, Any]]],
    out: str | Path,
    *,
    n: setting.Count | None = None,
    seed: setting.Seed = 0,
    layers: Numbers = None,
    heads: Numbers = None,
    order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model",
    batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None,
    dtype: setting.DType | None = None,
    shards: Annotated[int, Ge(1)] | None = None,
    part: str | None = None,
    workers: Annotated[int, Ge(1)] = 1,
    backend: str = "loky",
    scheduler: str | None = None,
    restart: bool = False,
    max_time: Annotated[float, Gt(0), Accepted("a number of seconds above 0")] | None = None,
    per_input: bool = False,
    progress: bool = False,
) -> SweepStatus:
    """Run analyses of models over inputs in shards, and keep the results in the folder ``out``.

    ``models`` are specs, or with one worker what `load` or `wrap` returned. ``inputs`` is one spec for all models, or
    one for each. Analyses are names, or (name, options). Settings are those
    of `analyze`. Memory does not grow with the inputs: results are means, moments and quantiles over them, unless
    ``per_input`` asks for rows of every input. Tasks are one analysis of one model on one of ``shards`` parts of its
    inputs (about 256 each); ``workers`` processes run them, joblib's own (``backend="loky"``) or those of a Dask or Ray
    cluster at the address ``scheduler``, which must see the folder under the same path. The numbers do not depend on
    workers, shards, or interruptions; `read_sweep` reads them.

    A sweep goes on where it stopped, computing what is missing or damaged. Models and analyses may be added to those
    of the folder; other settings are refused, and ``restart`` starts over and moves the old folder aside. With ``part``
    ("2/8") one of several processes runs its share of the tasks, on any machine that sees the folder. A shard that
    fails is tried again, twice at most, then named, and the others go on. After ``max_time`` seconds no task is begun,
    and running tasks stop.

    Raises `InputError` for a request that cannot be run, for a folder with another plan, and for one that another
    sweep is writing into; `MissingResource` where the folder cannot be written (full disk: make room and run it again)
    or the cluster is not there.
    """
    listed = [analyses] if isinstance(analyses, str) else analyses
    settings = RunSettings(
        None, None, n, seed, layers, heads, order, preprocessing, batch_size, device, dtype
    )
    names = named_models(models)
    if {*names} & {*HELD} and (workers > 1 or backend != "loky"):
        raise InputError(
            "a model in memory stays in this process: take workers=1, or name it by a spec (py:…)"
        )
    if {*names} & {*HELD} and any(value is not None for value in (device, dtype)):
        raise InputError("device and dtype load a model given by name; this one is loaded already")
    plan = make_plan(model_pairs(names, inputs), listed, settings, shards=shards, per_input=per_input)
    deadline = None if max_time is None else time.time() + max_time
    folder, number, count = SweepFolder(out), *_part(part)
    if part is not None and restart:
        raise InputError(
            "a part does not start over in a folder that other parts write into; leave out one of both"
        )
    with folder.store.locked() if part is None else folder.part_locked(number, count):
        if part is None and folder.parts_running():
            raise InputError(
                f"parts of this sweep are writing into {folder.path}; wait for them, or give --part"
            )
        with nullcontext() if part is None else folder.store.locked(PATIENCE):
            progressing = _Sweep(folder, plan, restart, deadline, workers, number - 1, count)
        todo = progressing.todo()
        if todo:
            with (
                open_pool(backend, workers, scheduler) as pool,
                _bar(progressing.plan, todo, progress) as tell,
            ):
                progressing.run(pool, todo, tell)
    return sweep_status(folder.path)


def _part(text: str | None) -> tuple[int, int]:
    """Return the number of a part and the number of parts from "2/8"; "1/1" for None."""
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", "1/1" if text is None else text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise InputError(f"part must be I/N with I from 1 to N, such as 2/8; got {text!r}")
    return int(match[1]), int(match[2])


class _Sweep:
    """The tasks of one sweep, their outcomes, and the manifest that lists them."""

    def __init__(
        self,
        folder: SweepFolder,
        plan: Plan,
        restart: bool,
        deadline: float | None,
        workers: int,
        part: int = 0,
        of: int = 1,
    ) -> None:
        self.folder, self.deadline, self.workers, self.shared = folder, deadline, workers, of > 1
        manifest = folder.store.open(plan.as_json(), restart, ignored=("models", "analyses", "shards"))
        self.plan = plan.added_to(folder.plan()[0]) if manifest else plan
        self.tasks = dict.fromkeys(islice(self.plan.tasks(), part, None, of))
        """Those of this process."""
        self.names = {folder.part_name(self.plan, task) for task in self.tasks}
        self.parts: dict[str, Any] = {
            name: line for name, line in manifest.get("parts", {}).items() if name in self.names
        }
        self.failed: dict[str, Any] = {}
        self.attempts: Counter[Task] = Counter()
        self.lost: dict[int, str] = {}
        self.written = 0.0
        self.idle = 0
        """Number of consecutive losses of workers before any task was begun."""
        self._write(self.plan, manifest)

    def todo(self) -> list[Task]:
        """Return the tasks without a sound part; the line of a damaged part is removed."""
        self.folder.take_marks(self.tasks)
        missing = []
        for task in self.tasks:
            name = self.folder.part_name(self.plan, task)
            try:
                self.parts[name] = self.folder.line_of(self.plan, task, self.parts.get(name))
            except DamagedPart:
                self.parts.pop(name, None)
                missing.append(task)
        self.write()
        return missing

    def write(self, now: bool = True) -> None:
        """Write the manifest, unless it was just written."""
        if now or time.monotonic() - self.written > _MANIFEST_SECONDS:
            if self.shared:
                with self.folder.store.locked(PATIENCE):
                    self._write(*self.folder.plan())
            else:
                self._write(self.plan, {})
            self.written = time.monotonic()

    def _write(self, plan: Plan, manifest: Mapping[str, Any]) -> None:
        """Write the manifest, with the lines of other processes as they are."""
        parts, failed = (
            {name: line for name, line in manifest.get(kind, {}).items() if name not in self.names} | mine
            for kind, mine in (("parts", self.parts), ("failed", self.failed))
        )
        self.folder.write_manifest(plan, parts, failed, workers=self.workers, updated=time.time())

    def run(self, pool: Pool, todo: list[Task], tell: Callable[[Outcome], None]) -> None:
        """Run all tasks; those that were underway when a worker was lost run again, one at a time."""
        self.workers = pool.workers
        try:
            suspects = self.run_some(pool, todo, tell)
            while suspects:
                again = []
                for task in sorted(suspects, key=todo.index):
                    again += self.run_some(pool, [task], tell, alone=True)
                suspects = again
        finally:
            self.write()

    def run_some(
        self, pool: Pool, tasks: list[Task], tell: Callable[[Outcome], None], alone: bool = False
    ) -> list[Task]:
        """Run tasks, again where they fail; returns those that were underway when a worker was lost."""
        waiting, suspects = list(tasks), []
        while waiting:
            open_tasks, again = dict.fromkeys(waiting), []
            arguments = (
                (str(self.folder.path), self.plan, task, self.deadline) for task in self.wanted(waiting)
            )
            try:
                for outcome in pool.run(run_task, arguments):
                    open_tasks.pop(outcome.task, None)
                    again += self.take(outcome, tell)
            except (MissingResource, InputError):
                raise
            except Exception as error:  # each backend has its own error for a worker that is gone
                pool.renew()
                marked = self.folder.take_marks(self.tasks)
                for task in [*open_tasks]:
                    again += self.after_loss(task, task in marked, alone, error, suspects, tell)
                nothing = not (marked & open_tasks.keys()) and len(again) == len(waiting)
                self.idle = self.idle + 1 if nothing else 0
                if self.idle > _IDLE_LOSSES:
                    raise WorkbenchError(
                        f"workers ended {self.idle} times before they began anything ({error}); what is finished is "
                        "kept: see why, with one worker (--workers 1), then run it again"
                    ) from error
            for task in [*open_tasks]:
                if task.model in self.lost:
                    self.take(Outcome(task, "failed", error=self.lost[task.model], final=True), tell)
            waiting = again
        return suspects

    def wanted(self, tasks: list[Task]) -> Iterator[Task]:
        """Iterate over tasks as workers become free: none of a missing model, none when time is up."""
        for task in tasks:
            if self.deadline is not None and time.time() > self.deadline:
                return
            if task.model not in self.lost:
                yield task

    def take(self, outcome: Outcome, tell: Callable[[Outcome], None]) -> list[Task]:
        """Note the outcome of a task; return it where it is to be run again."""
        task, name = outcome.task, self.folder.part_name(self.plan, outcome.task)
        if outcome.state == "full":
            with suppress(MissingResource):  # parts are found without their lines
                self.write()
            raise MissingResource(f"{outcome.error}; what is finished is kept: make room, then run it again")
        if outcome.state == "done":
            self.parts[name] = outcome.line
            self.write(now=False)
        if outcome.state == "failed":
            self.attempts[task] += 1
            if not outcome.final and self.attempts[task] <= _RETRIES:
                return [task]
            self.failed[name] = {"attempts": self.attempts[task], "error": outcome.error}
            if outcome.lost_model:
                self.lost[task.model] = outcome.error
            self.write(now=False)
        tell(outcome)
        return []

    def after_loss(
        self,
        task: Task,
        marked: bool,
        alone: bool,
        error: Exception,
        suspects: list[Task],
        tell: Callable[[Outcome], None],
    ) -> list[Task]:
        """Handle a task that a lost pool had not reported; return it where it is to be run as before."""
        try:  # it may have been finished and not reported
            return self.take(Outcome(task, "done", line=self.folder.line_of(self.plan, task)), tell)
        except DamagedPart:
            if not marked:
                return [task]
        if not alone:  # it, or one that was underway beside it
            suspects.append(task)
            return []
        why = f"its worker ended before it was done ({type(error).__name__}): killed, or short of memory"
        return self.take(Outcome(task, "failed", error=why), tell)


@contextmanager
def _bar(plan: Plan, todo: list[Task], wanted: bool) -> Generator[Callable[[Outcome], None]]:
    """A function of the outcome of each task; it shows a bar with an estimate, and failures."""
    if not wanted:
        yield lambda outcome: None
        return
    with progress_bars(remembered=600) as bar:
        line = bar.add_task("shards", total=len(todo))

        def tell(outcome: Outcome) -> None:
            if outcome.state == "failed":
                bar.console.print(f"failed: {plan.name(outcome.task)}: {outcome.error}", markup=False)
            if outcome.state != "left":
                bar.advance(line)

        yield tell


def parse_duration(text: str) -> float:
    """Seconds from "90", "30m", "1.5h" or "2d". Raises `InputError` for anything else."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhd]?)\s*", text)
    if match is None or float(match[1]) == 0:
        raise InputError(f"a time is a number with s, m, h or d, such as 90s, 30m or 8h; got {text!r}")
    return float(match[1]) * _UNITS[match[2]]
