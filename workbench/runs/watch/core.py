"""``watch``: analyses of a model at regular steps of its training, within a limit on cost."""

from __future__ import annotations

import contextlib
import math
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor, nn

from workbench.analyses.registry import ANALYSES, check_request
from workbench.captures.capturing import capture, is_plain
from workbench.core.errors import InputError
from workbench.core.options import Numbers, check_argument, checked
from workbench.frames.results import conform, provenance_of, shared
from workbench.runs import settings as setting
from workbench.runs.analyze import run_analysis
from workbench.runs.cache import content_sha256
from workbench.runs.settings import RunSettings
from workbench.runs.watch.alerts import Alert, Condition, alerts_of, analyses_with, conditions
from workbench.runs.watch.trackers import Tracker, tracker
from workbench.runs.watch.undisturbed import undisturbed
from workbench.runs.watch.watch_folder import WatchFolder, checkpoint_name

if TYPE_CHECKING:
    import pandas as pd

    from workbench.data.batches import Inputs
    from workbench.models.loading import LoadedModel

ANALYSES_WATCHED: dict[str, dict[str, Any]] = {
    "projection-error": {"null_samples": 0},
    "gram-spectrum": {},
    "token-similarity": {"null_samples": 0},
    "membership": {},
}
"""Default analyses with their options, without null samples, which would take most of the time."""
EVERY = 500
"""Default number of steps between two loggings."""
_MAX_COST = 0.03
"""Share of the training's time that loggings may take."""
_GIVE_UP = 3
"""Failures in a row after which an analysis is no longer tried."""
OnAlert = Literal["warn", "stop"] | Callable[[Alert], object]


@checked
def watch(
    model: nn.Module | LoadedModel,
    batch: Tensor | Mapping[str, Tensor] | Inputs,
    *,
    out: str | os.PathLike[str],
    every: Annotated[int, Ge(1)] = EVERY,
    analyses: Sequence[str] | Mapping[str, Mapping[str, Any]] | None = None,
    metrics: str | Sequence[str] = (),
    layers: Numbers = None,
    seed: setting.Seed = 0,
    max_cost: Annotated[float, Gt(0), Le(1)] | None = _MAX_COST,
    alert: Mapping[str, str] | None = None,
    on_alert: OnAlert = "warn",
    on_rows: Callable[..., object] | None = None,
    report_to: Tracker | None = None,
    name: str | None = None,
    restart: bool = False,
) -> Watch:
    """Analyse a model on the same few inputs at regular steps, while any code trains it.

        watch = workbench.watch(model, images[:8], out="runs/a/watch")
        for step, batch in enumerate(loader):
            …
            watch.step(step)

    The training is not disturbed: its weights end bit for bit the same without the watch. The model runs on ``batch``
    in eval mode, and its mode, random state, buffers, gradients and autocast are as they were afterwards.

    model: the module that trains. Of a compiled model or one in ``DistributedDataParallel`` the module inside is run.
    batch: a few inputs (about eight), copied now: a tensor, a dict or any other mapping of tensors, or what `inputs`
        returned.
    out: a folder for the rows, which `read_watch` reads.
    every: steps between two loggings. The first call of ``step`` always logs.
    analyses: names, or names with options; by default those of ``metrics``, or else `ANALYSES_WATCHED`.
    metrics: metrics such as ``["max_logit", "gate_sparsity", "sink_rate"]``, whose analyses are watched too.
    layers: which layers; all for None. One pass now finds those that the model does not have.
    max_cost: the share of the training's time that loggings may take. If one costs more, the cadence becomes
        a multiple of ``every``, with a warning and a note in the log. None for no limit.
    alert: conditions by metric, ``{"attention_entropy_share": "< 0.05"}``, on the mean over the inputs in each layer
        and head. The analysis of a metric is watched too. A condition newly met is noted in the folder.
    on_alert: "warn", "stop" (a warning, and ``watch.stopped`` is true from then on, which ends a training by one of
        the callbacks), or a function of the `Alert`.
    on_rows: a function of the rows of each analysis logged, and the step, for a tracker (see `scalars`).
    report_to: "tensorboard" (event files in the folder ``tensorboard`` in ``out``) or "wandb" (the active run), which
        gets the means of every logging by metric and layer.
    name: the model's name in the column ``model``; by default its class.
    restart: start over, with the old folder renamed. Otherwise the watch resumes in a folder that holds a part of this
        run; loggings of later steps than the one it resumes from are set aside, and made again.

    Of several processes that train together only the first one logs. An analysis that fails is noted once, in the
    folder and in a warning, and the training goes on.

    Raises `InputError` for a batch, a number or a condition that does not fit, a folder of another run, and weights
    that are spread over processes (FSDP, ZeRO-3), `UnknownName` for an analysis, option or metric, and
    `MissingResource` for a tracker that is not installed.
    """
    module = bare(model)
    _check_whole_weights(module)
    wanted = conditions(alert) if alert else {}
    metrics = [metrics] if isinstance(metrics, str) else metrics
    options = {} if analyses is None and metrics else _options(analyses)
    for argument, names in (("metrics", metrics), ("alert", [*wanted])):
        options |= {name: _without_null(name) for name in analyses_with(names, [*options], argument)}
    chosen = {key: check_request(key, value) for key, value in options.items()}
    kept = _copy(batch)
    name = name or getattr(model, "spec", None) or type(module).__name__
    settings = RunSettings(
        model=module, inputs=kept, seed=seed, layers=layers, batch_size=max(1, _size(kept))
    )
    identity = {
        "model": name,
        "shapes": content_sha256({key: tuple(value.shape) for key, value in module.named_parameters()}),
        "inputs": {"n": _size(kept), "sha256": content_sha256(kept)},
        "analyses": chosen,
        "layers": settings.layers,
        "seed": seed,
    }
    if layers is not None and is_main_process():
        with undisturbed(module):  # refuses a layer that is not there
            capture(module, kept, layers=settings.layers, sites=["mask"], check=False)
    folder = WatchFolder(out, identity, restart) if is_main_process() else None
    reports = [] if on_rows is None else [on_rows]
    if folder is not None and report_to is not None:
        reports.append(tracker(report_to, folder.store.path))
    return Watch(settings, folder, identity, every, max_cost, wanted, on_alert, reports)


class Watch:
    """The watch of one training run; a loop calls ``step``."""

    def __init__(
        self,
        settings: RunSettings,
        folder: WatchFolder | None,
        identity: Mapping[str, Any],
        every: int,
        max_cost: float | None,
        wanted: Mapping[str, Condition],
        on_alert: OnAlert,
        reports: Sequence[Callable[..., object]],
    ) -> None:
        self.wanted, self.on_alert, self.reports = wanted, on_alert, reports
        self.stopped = False
        """Whether a condition was met with ``on_alert="stop"``; a loop of one's own reads it after each step."""
        self.settings, self.folder, self.identity = settings, folder, identity
        self.module = bare(settings.model)
        self.every, self.max_cost = every, max_cost
        self.cadence = every
        """Steps between two loggings now: ``every``, or a multiple where that would cost too much."""
        self.costs: list[float] = []
        """Seconds that each logging took."""
        self._step: int | None = None
        self._logged = self._asked = -1
        self._ended = self._began = time.perf_counter()
        self._met: dict[str, set[tuple[str, str]]] = {}
        self._failures = dict.fromkeys(identity["analyses"], 0)
        self._warned: set[str] = set()

    @property
    def share(self) -> float:
        """Share of the time since the first step that loggings took so far."""
        return sum(self.costs) / max(time.perf_counter() - self._began, 1e-9)

    def step(self, step: int | None = None) -> bool:
        """After every step of the optimiser: log, if it is time to; returns whether it did.

        ``step`` is the number of the step, by default counted here from 0. The same number again does
        nothing. Raises `InputError` for anything but a whole number from 0 up.
        """
        if step is not None:
            number = step.item() if isinstance(step, Tensor) and step.numel() == 1 else step
            step = check_argument("step", Annotated[int, Ge(0)], number)
        return self._guarded(step, last=False)

    def finish(self) -> bool:
        """Log the last step too, if it was not; returns whether it was logged now."""
        return self._step is not None and self._guarded(self._step, last=True)

    def _guarded(self, step: int | None, last: bool) -> bool:
        if self.folder is None or not is_main_process():
            return False
        try:
            number = (0 if self._step is None else self._step + 1) if step is None else step
            if self._step is None:
                self._begin(self.folder, number)
            elif number == self._step and not last:
                return False
            self._step = number
            if number == self._logged or not (last or self._is_due(number)):
                return False
            self._log(self.folder, number)
        except Exception as error:  # whatever it is, it must not end somebody's training
            self._tell(step, f"not logged: {_one_line(error)}", key=type(error).__name__)
            return False
        return True

    def _begin(self, folder: WatchFolder, number: int) -> None:
        self._began = self._ended = time.perf_counter()
        last = folder.last_step()
        if last is not None:
            moved = folder.set_aside(number)
            aside = f"; {moved} files of this step and later ones, to {last}, set aside" if moved else ""
            folder.note(number, f"the run goes on{aside}")

    def _is_due(self, number: int) -> bool:
        # Not a remainder: who calls only now and then passes a multiple without meeting it. Asked once at each.
        passed = number // self.every
        if passed <= self._asked:
            return False
        self._asked = passed
        times = self._times(number)
        due = self._logged < 0 or passed - self._logged // self.every >= times
        if times * self.every > self.cadence or (due and times * self.every < self.cadence):
            self._change_cadence(number, times * self.every)
        return due

    def _times(self, number: int) -> int:
        """The multiple of ``every`` between two loggings that keeps to their share of the time."""
        if self.max_cost is None or not self.costs:
            return 1
        return max(1, math.ceil(self._cost() / (self.max_cost * self._pace(number) * self.every)))

    def _cost(self) -> float:
        return median(self.costs[-3:])  # the first logging also loads libraries

    def _pace(self, number: int) -> float:
        return (time.perf_counter() - self._ended) / (number - self._logged)

    def _change_cadence(self, number: int, cadence: int) -> None:
        how = "stretched" if cadence > self.cadence else "shortened"
        before, self.cadence = self.cadence, cadence
        if self.folder is not None:
            self.folder.note(
                number,
                f"cadence {how} from every {before} to every {cadence} steps: a logging takes {self._cost():.3g} s, a "
                f"step {self._pace(number):.3g} s, and max_cost is {self.max_cost:.1%}",
            )
        if how == "stretched" and "cadence" not in self._warned:
            self._warned.add("cadence")
            self._warn(number, f"logged every {cadence} steps instead of {before}; max_cost=None keeps every")

    def _log(self, folder: WatchFolder, number: int) -> None:
        started = self._clock()
        try:
            with undisturbed(self.module):
                for name, options in self.identity["analyses"].items():
                    if self._failures[name] < _GIVE_UP:
                        self._analyse(folder, name, options, number)
        finally:
            self._logged, self._ended = number, self._clock()
            self.costs.append(self._ended - started)

    def _analyse(self, folder: WatchFolder, name: str, options: Mapping[str, Any], number: int) -> None:
        try:
            frame = run_analysis(name, self.settings, options)
            frame = self._named(frame, number)
            folder.write(name, number, frame)
        except Exception as error:
            self._failures[name] += 1
            last = f"; not tried again after {_GIVE_UP} in a row" if self._failures[name] == _GIVE_UP else ""
            if isinstance(error, torch.cuda.OutOfMemoryError):
                torch.cuda.empty_cache()  # the training may need what the attempt has left reserved
            self._tell(
                number, f"{name} failed: {_one_line(error)}{last}", key=f"{name} {type(error).__name__}{last}"
            )
        else:
            self._failures[name] = 0
            self._alert(folder, name, frame, number)
            for report in self.reports:
                report(frame, number)

    def _alert(self, folder: WatchFolder, name: str, frame: pd.DataFrame, number: int) -> None:
        """Note the conditions that are met now and were not at the logging before, and act on them."""
        alerts = alerts_of(frame, self.wanted, number)
        before = self._met.get(name, set())
        self._met[name] = {(alert.metric, alert.where) for alert in alerts}
        for alert in alerts:
            if (alert.metric, alert.where) in before:
                continue
            folder.note(number, f"alert: {alert}")
            if callable(self.on_alert):
                self.on_alert(alert)
                continue
            self.stopped |= self.on_alert == "stop"
            self._warn(number, str(alert))

    def _named(self, frame: pd.DataFrame, number: int) -> pd.DataFrame:
        model = {"spec": self.identity["model"], "checkpoint": checkpoint_name(number)}
        inputs = self.identity["inputs"]
        runs = [
            run | {"model": {**run["model"], **model}, "inputs": {**run["inputs"], **inputs}}
            for run in provenance_of(frame)
        ]
        named = conform(frame.assign(model=model["spec"], checkpoint=model["checkpoint"]))
        named.attrs = {**frame.attrs, "provenance": shared(runs)}
        return named

    def _clock(self) -> float:
        device = next((parameter.device for parameter in self.module.parameters()), None)
        if device is not None and device.type == "cuda":
            torch.cuda.synchronize(device)  # the step before us may still be running there
        return time.perf_counter()

    def _tell(self, step: int | None, text: str, key: str) -> None:
        """Note an error once for each ``key``: in the log and as a warning."""
        if key in self._warned:
            return
        self._warned.add(key)
        with contextlib.suppress(Exception):  # a full disk is one of the things that go wrong
            if self.folder is not None:
                self.folder.note(step, text)
        self._warn(step, text)

    def _warn(self, step: int | None, text: str) -> None:
        with contextlib.suppress(Warning):  # where warnings are errors, ours must not be one
            warnings.warn(f"watch, step {step}: {text}", RuntimeWarning, stacklevel=2)


def bare(model: Any) -> nn.Module:
    """The module that trains, out of what `load` returned, a compiled model or a data-parallel wrapper."""
    module = model if isinstance(model, nn.Module) else getattr(model, "module", None)
    if not isinstance(module, nn.Module):
        raise InputError(
            f"model must be a torch.nn.Module or what load() returned, not {type(model).__name__}"
        )
    while True:
        if isinstance(module, nn.parallel.DistributedDataParallel | nn.DataParallel):
            module = module.module
        elif "_orig_mod" in module._modules:
            module = module.get_submodule("_orig_mod")
        else:
            return module


def is_main_process() -> bool:
    """Whether this is the only process that trains, or the first of several."""
    running = torch.distributed.is_available() and torch.distributed.is_initialized()
    return not running or torch.distributed.get_rank() == 0


def _check_whole_weights(module: nn.Module) -> None:
    # Their forward pass needs every process, and only the first one watches: it would wait for ever.
    spread = [
        type(part).__name__
        for part in (*module.modules(), *module.parameters())
        if type(part).__name__ in ("FullyShardedDataParallel", "DTensor") or hasattr(part, "ds_id")
    ]
    if spread:
        raise InputError(
            f"the weights of {type(module).__name__} are spread over processes ({spread[0]}); watch a model whose "
            "weights are whole in the first process (DistributedDataParallel), or analyse its checkpoints"
        )


def _without_null(analysis: str) -> dict[str, Any]:
    """Return the options of an analysis that is watched for a metric: no null samples."""
    return {"null_samples": 0} if "null_samples" in ANALYSES[analysis].options else {}


def _options(analyses: Any) -> dict[str, Mapping[str, Any]]:
    if analyses is None:
        return dict(ANALYSES_WATCHED)
    if isinstance(analyses, str):
        analyses = [analyses]
    if not analyses:
        raise InputError(
            f"analyses is empty; name at least one, or leave it out: {', '.join(ANALYSES_WATCHED)}"
        )
    if isinstance(analyses, Mapping):
        return dict(analyses)
    return {name: ANALYSES_WATCHED.get(name, {}) for name in analyses}


def _copy(batch: Any) -> Any:
    """The batch, safe from whatever the loop does to its tensors."""
    if not is_plain(batch) and hasattr(batch, "batches"):
        return batch
    if isinstance(batch, Tensor):
        return batch.detach().clone()
    if isinstance(batch, Mapping) and all(isinstance(value, Tensor) for value in batch.values()) and batch:
        return {key: value.detach().clone() for key, value in batch.items()}
    raise InputError(
        f"batch must be a tensor, a mapping of tensors or what inputs() returned, got {type(batch).__name__}: give "
        "what the model is called with, as images[:8]"
    )


def _size(batch: Any) -> int:
    return len(next(iter(batch.values())) if isinstance(batch, Mapping) else batch)


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}"
