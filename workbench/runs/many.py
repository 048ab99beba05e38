"""One analysis of several models, checkpoints or options, their frames under one another."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pandas as pd

from workbench.analyses.registry import Per
from workbench.core.errors import InputError, MissingResource, NothingToMeasure, WorkbenchError
from workbench.core.options import Numbers, checked
from workbench.data.batches import inputs as choose_inputs
from workbench.frames.results import join_frames, with_distinct_models
from workbench.models.loading import load
from workbench.runs import settings as setting
from workbench.runs.analyze import run_analysis
from workbench.runs.settings import RunSettings
from workbench.runs.sweep.reading import SWEEP, sweep_frame, sweep_inputs

if TYPE_CHECKING:
    from workbench.data.batches import Inputs
    from workbench.models.loading import LoadedModel

Pairs = Iterable[tuple[Any, Any]]


@checked
def analyze_many(
    analysis: str,
    runs: Pairs,
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
    name: str | None = None,
    per: Per | None = None,
    checkpoints: Iterable[str | int] | str | None = None,
    progress: bool | Callable[[float], None] = False,
    cache: bool | None = None,
    **options: Any,
) -> pd.DataFrame:
    """Run `analyze` for several (model, inputs) pairs and concatenate the frames.

        analyze_many("token-similarity", [("bundled:digits-vit", "bundled:digits"), (…, …)], n=25, seed=0)

    Models, inputs, settings and options are those of `analyze`. Models with the same name and different weights are
    numbered ("ViT 1", "ViT 2"), unless ``load(…, name=…)`` gave them names; ``name`` is for a single model.

    A pair whose model is None is skipped. For inputs "sweep:FOLDER" the numbers of a finished sweep are read instead of
    a run; its options and settings must be those given here. ``checkpoints`` are names or epochs (``"epoch-003"``, 3)
    of bundled models, "all" for all of them; ``frame.attrs["epochs"]`` maps each to its epoch.

    A model that the analysis cannot measure, and a model or input that this machine cannot have (no network, an
    optional package not installed), is listed in ``frame.attrs["absent"]``, ``{model: reason}``, so that a figure can
    show the reason. ``frame.attrs["notes"]`` holds the notes of all runs, each beginning with its model.

    Raises `InputError` without any pair or for a malformed one, `NothingToMeasure` or `MissingResource` if no model
    remains, and what `analyze` raises.
    """
    listed: list[Any] = [runs] if isinstance(runs, str) else list(runs)
    wrong = next((run for run in listed if isinstance(run, str) or len(run) != 2), None)
    if wrong is not None:
        raise InputError(
            f"analyze_many runs over pairs (model, inputs), got {wrong!r}; write [(model, inputs), …]"
        )
    settings = RunSettings(
        None, None, n, seed, layers, heads, order, preprocessing, batch_size, device, dtype, name
    )
    _check_name(settings, [model for model, _ in listed if model is not None])
    wanted = checkpoints if checkpoints is None or isinstance(checkpoints, str) else [*checkpoints]
    frames = _Frames()
    for model, inputs in listed:
        if model is None:
            continue
        pair = replace(settings, model=model, inputs=inputs)
        for checkpoint in [None] if wanted is None else _chosen(model, wanted, frames.epochs):
            with frames.unless_absent(model):
                if isinstance(inputs, str) and inputs.startswith(SWEEP):
                    if per is not None:
                        raise InputError(f"a sweep holds metrics, and no rows per {per}: leave per out")
                    frame = sweep_frame(inputs.removeprefix(SWEEP), analysis, pair, options)
                else:
                    run = pair if checkpoint is None else replace(pair, model=f"{model}@{checkpoint}")
                    frame = run_analysis(analysis, run, options, per=per, progress=progress, cache=cache)
                frames.add(frame, model, () if wanted is None else (checkpoint,))
    return frames.joined()


def example(pairs: Pairs, seed: int = 0, preprocessing: str = "model") -> tuple[LoadedModel, Inputs]:
    """Return the first model of (model, inputs) pairs that this machine can have, on the CPU, and one of its inputs.

        loaded, inputs = workbench.runs.example([("bundled:digits-vit", "bundled:digits")])

    Inputs "sweep:FOLDER" are those that the sweep ran over. Raises `MissingResource` where no pair is here.
    """
    reasons = []
    for model, inputs in pairs:
        if model is None or inputs is None:
            continue
        try:
            loaded = load(model, device="cpu")  # where one computes by hand
            swept = inputs.startswith(SWEEP)
            spec = sweep_inputs(inputs.removeprefix(SWEEP), model) if swept else inputs
            return loaded, choose_inputs(spec, loaded, n=1, seed=seed, preprocessing=preprocessing)
        except MissingResource as error:
            reasons.append(f"{model}: {error}")
    raise MissingResource("; ".join(reasons) or "no model to look at; give at least one (model, inputs) pair")


@checked
def analyze_grid(
    analysis: str,
    runs: Pairs,
    grid: Mapping[str, Sequence[Any]],
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
    name: str | None = None,
    per: Per | None = None,
    progress: bool | Callable[[float], None] = False,
    cache: bool | None = None,
    **options: Any,
) -> pd.DataFrame:
    """Run `analyze_many` for every combination of some options' values, such as ``{"noise": […], "severity": […]}``.

    The frame has a column for each of these options. Settings and the other options are those of `analyze`. A model is
    loaded once for all combinations; one without measurements is listed in ``frame.attrs["absent"]`` as in
    `analyze_many`. Raises what `analyze_many` raises, and `InputError` for an option without values.
    """
    twice = [option for option in grid if option in options]
    if twice:
        raise InputError(f"{twice[0]} is in the grid and given as an option; give it once")
    empty = [option for option, values in grid.items() if not values]
    if empty:
        raise InputError(f"give at least one value of {empty[0]}")
    settings = RunSettings(
        None, None, n, seed, layers, heads, order, preprocessing, batch_size, device, dtype, name
    )
    listed = [*runs]
    _check_name(settings, [model for model, _ in listed if model is not None])
    frames = _Frames()
    for model, inputs in listed:
        if model is None or inputs is None:
            continue
        with frames.unless_absent(model):
            loaded = model
            if isinstance(model, str):
                loaded = load(model, device=settings.device, dtype=settings.dtype)
            chosen_inputs = inputs
            if isinstance(inputs, str):
                chosen_inputs = choose_inputs(
                    inputs,
                    loaded,
                    n=settings.n,
                    seed=settings.seed,
                    preprocessing=settings.preprocessing,
                    order=settings.order,
                )
            run = replace(
                settings, model=loaded, inputs=chosen_inputs, n=None, order=None, device=None, dtype=None
            )
            for values in itertools.product(*grid.values()):
                varied = dict(zip(grid, values, strict=True))
                frame = run_analysis(analysis, run, options | varied, per=per, progress=progress, cache=cache)
                frames.add(frame.assign(**varied), model, values)
    return frames.joined()


def _check_name(settings: RunSettings, models: Sequence[Any]) -> None:
    """Raise `InputError` where one name is asked for several models."""
    several = {model if isinstance(model, str) else id(model) for model in models}
    if settings.name is not None and len(several) > 1:
        raise InputError(
            f"name={settings.name!r} names one model, and there are {len(several)}; give each its name, as "
            "load(…, name=…)"
        )


class _Frames:
    """Frames of several runs, which of them could not be had, and the notes of all."""

    def __init__(self) -> None:
        self.frames: list[pd.DataFrame] = []
        self.absent: dict[str, WorkbenchError] = {}
        self.names: list[tuple[Any, str]] = []
        self.epochs: dict[str, int] = {}

    @contextmanager
    def unless_absent(self, model: Any) -> Generator[None]:
        """Note a model that this machine cannot have, or that the analysis cannot measure, instead of raising."""
        try:
            yield
        except (MissingResource, NothingToMeasure) as error:
            self.absent[str(getattr(model, "spec", model))] = error

    def add(self, frame: pd.DataFrame, model: Any, varied: Sequence[Any]) -> None:
        """Take the frame of a model under some values of what varies."""
        self.frames.append(frame)
        self.names.append((model, "".join(f", {value}" for value in varied)))

    def joined(self) -> pd.DataFrame:
        absent = {model: str(error) for model, error in self.absent.items()}
        if not self.frames and absent:
            reasons = "; ".join(f"{model}: {reason}" for model, reason in absent.items())
            raise type(next(iter(self.absent.values())))(reasons)
        if not self.frames:
            raise InputError("no model to run; give at least one (model, inputs) pair")
        frames, notes = with_distinct_models(self.frames)
        joined = join_frames(frames)
        for frame, (model, varied) in zip(frames, self.names, strict=True):
            name = model if isinstance(model, str) else frame["model"].iloc[0]
            notes += [f"{name}{varied}: {note}" for note in frame.attrs["notes"]]
        joined.attrs |= {"absent": absent, "notes": notes}
        if self.epochs:
            joined.attrs["epochs"] = self.epochs
        return joined


def _chosen(model: Any, checkpoints: Sequence[str | int] | str, epochs: dict[str, int]) -> list[str]:
    """Names of a bundled model's checkpoints, whose epochs are noted."""
    from workbench.models import catalog
    from workbench.models.loading import bundled_checkpoint, bundled_checkpoints

    if not isinstance(model, str):
        raise InputError(f"checkpoints are loaded by spec; got a {type(model).__name__}, give bundled:NAME")
    entry = catalog.find(model)
    scheme, _, short = (entry.spec if entry else model).partition(":")
    if scheme != "bundled":
        raise InputError(f"checkpoints travel with bundled models only; got {model!r}, give bundled:NAME")
    stems = bundled_checkpoints(short)
    if checkpoints != "all":
        listed = [checkpoints] if isinstance(checkpoints, str) else checkpoints
        chosen = {bundled_checkpoint(short, str(checkpoint)).stem for checkpoint in listed}
        stems = {stem: epoch for stem, epoch in stems.items() if stem in chosen}
    if not stems:
        raise InputError('no checkpoint to run; name some, or "all"')
    epochs |= stems
    return [*stems]
