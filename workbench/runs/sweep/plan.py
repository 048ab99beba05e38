"""The plan of a sweep: models, inputs, analyses, and how the list of inputs is cut into shards."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Annotated, Any

from annotated_types import Ge

from workbench.analyses.registry import ANALYSES, check_request
from workbench.core.errors import InputError, UnknownName
from workbench.core.notebook_html import shortened
from workbench.core.options import parse_numbers
from workbench.core.store import differences
from workbench.data.batches import PREPROCESSING, check_takes, pool_count, pool_positions
from workbench.data.pools import Pool, open_pool
from workbench.models.loading import LoadedModel, check_name, known_modality
from workbench.runs.settings import RunSettings

SHARD = 256
"""Inputs of a shard, about, where nothing else is asked for."""
HELD: dict[str, LoadedModel] = {}
"""Models that were given to a sweep of this process, by their names in its plan."""
_MOST_TASKS = 1_000_000
"""Of a plan; each is a file."""


@dataclass(frozen=True)
class PlannedModel:
    """One model with its inputs, their number, and a hash of the names of the whole pool."""

    spec: str
    inputs: str
    n: Annotated[int, Ge(1)]
    names: str


@dataclass(frozen=True)
class PlannedAnalysis:
    """One analysis with its complete options; the label distinguishes it from others of its name."""

    label: str
    name: str
    options: Mapping[str, Any]


@dataclass(frozen=True)
class Task:
    """One analysis of one model on one shard of its inputs, for one worker."""

    model: int
    analysis: int
    shard: int


@dataclass(frozen=True)
class Plan:
    """Everything that the numbers of a sweep depend on. Two sweeps with the same plan give the same numbers.

    The inputs of a model are the first n in the order that ``seed`` draws, as in `workbench.inputs`. They are cut into
    micro-batches of ``batch``, and shards hold whole micro-batches: what is computed of an input does not depend on
    how many shards there are, or who computes them.
    """

    models: tuple[PlannedModel, ...]
    analyses: tuple[PlannedAnalysis, ...]
    shards: tuple[Annotated[int, Ge(1)], ...]
    """Number of shards of each model's inputs."""
    settings: RunSettings
    """Settings of every run, without its model and inputs."""

    def __post_init__(self) -> None:
        """Raise `InputError` for a plan that does not fit together or has too many tasks."""
        if len(self.shards) != len(self.models):
            raise InputError(f"it has {len(self.models)} models, and shards of {len(self.shards)}")
        tasks = sum(self.shards) * len(self.analyses)
        if tasks > _MOST_TASKS:
            raise InputError(
                f"a sweep of {tasks:,} tasks is too long; {_MOST_TASKS:,} is the most: take fewer shards"
            )

    def tasks(self) -> Iterator[Task]:
        """Iterate by model, then analysis, then shard, so that a worker keeps its model."""
        for model in range(len(self.models)):
            for analysis in range(len(self.analyses)):
                yield from self.tasks_of(model, analysis)

    def tasks_of(self, model: int, analysis: int) -> Iterator[Task]:
        """Iterate over the tasks of one model and analysis, in the order of the inputs."""
        return (Task(model, analysis, shard) for shard in range(self.shards[model]))

    def span(self, task: Task) -> range:
        """Return the positions of a task's inputs in the list: complete micro-batches."""
        n, shards = self.models[task.model].n, self.shards[task.model]
        size = self.settings.batch_size
        batches = -(-n // size)
        start, stop = (shard * batches // shards * size for shard in (task.shard, task.shard + 1))
        return range(start, min(stop, n))

    def places(self, task: Task) -> tuple[Pool, list[int]]:
        """Return the pool of a task's inputs and their numbers in it; raises `InputError` where the pool changed."""
        model = self.models[task.model]
        pool, drawn = _drawn(model.inputs, model.names, self.settings.seed, self.settings.order)
        span = self.span(task)
        return pool, drawn[span.start : span.stop]

    def name(self, task: Task) -> str:
        """Return a task in words."""
        model, analysis = self.models[task.model], self.analyses[task.analysis]
        return f"{model.spec}, {analysis.label}, shard {task.shard} of {self.shards[task.model]}"

    def as_json(self) -> dict[str, Any]:
        """Return the plan as the manifest holds it; `conforming` reads it."""
        return json.loads(json.dumps(asdict(self)))

    @property
    def fingerprint(self) -> str:
        """Return a hash of the plan."""
        return hashlib.sha256(json.dumps(self.as_json(), sort_keys=True).encode()).hexdigest()

    def fingerprint_of(self, model: int, analysis: int) -> str:
        """Return the hash of one analysis of one model, which its parts carry: it does not depend on the others."""
        models, analyses, shards = (
            (self.models[model],),
            (self.analyses[analysis],),
            (self.shards[model],),
        )
        return replace(self, models=models, analyses=analyses, shards=shards).fingerprint

    def added_to(self, stored: Plan) -> Plan:
        """Return a stored plan with the other models and analyses of this plan.

        Raises `InputError` where this one lacks a model or analysis of the stored plan, or plans it differently.
        """
        stored_parts, wanted_parts = stored._by_name(), self._by_name()
        common = {
            kind: {name: wanted_parts[kind].get(name) for name in names}
            for kind, names in stored_parts.items()
        }
        if differing := differences(stored_parts, common, stored_parts):
            raise InputError(
                f"the folder holds a sweep with other settings ({'; '.join(differing)}): name its models and analyses "
                "too, give another folder (--out), or start over (--restart), which moves the old one aside"
            )
        models = {
            **dict(zip(stored.models, stored.shards, strict=True)),
            **dict(zip(self.models, self.shards, strict=True)),
        }
        analyses = {entry.label: entry for entry in (*stored.analyses, *self.analyses)}
        return Plan((*models,), (*analyses.values(),), (*models.values(),), self.settings)

    def _by_name(self) -> dict[str, dict[str, Any]]:
        """Models and analyses by name, with their planned shards."""
        planned = zip(self.models, self.shards, strict=True)
        return {
            "models": {
                f"{model.spec} over {model.inputs}": f"{model.n} inputs ({model.names[:8]}) in {shards} shards"
                for model, shards in planned
            },
            "analyses": {entry.label: entry.options for entry in self.analyses},
        }


def named_models(models: Any) -> list[Any]:
    """Return models by name: specs as they are; a loaded model is kept under its name and the hash of its weights."""
    items = (
        [models] if isinstance(models, str) or hasattr(models, "modality") or models is None else [*models]
    )
    names = []
    for model in items:
        if hasattr(model, "modality"):
            name = f"{model.name or model.spec}@{model.fingerprint[:12]}"
            HELD[name] = model
            model = name
        if not isinstance(model, str | None):
            raise InputError(
                f"models must be specs, or what load() or wrap() returned; got {shortened(repr(model))}"
            )
        names.append(model)
    return names


def make_plan(
    pairs: Sequence[tuple[str, str]],
    analyses: Sequence[str | tuple[str, Mapping[str, Any]]],
    settings: RunSettings,
    *,
    shards: int | None = None,
    per_input: bool = False,
) -> Plan:
    """Make the plan of these (model, inputs) pairs under these analyses, each a name or (name, options).

    ``settings.n`` is by default 25, or fewer if the source has fewer; "all" takes all. ``shards`` is by default
    one per `SHARD` inputs. Reads the names of the inputs, and no input, and checks the names of the models
    without their weights. Raises `InputError` for a request that cannot be run, `UnknownName` for unknown names, and
    what `open_pool` raises.
    """
    if not pairs or not analyses:
        raise InputError("a sweep needs at least one model with inputs, and one analysis")
    if settings.preprocessing not in PREPROCESSING:
        raise UnknownName("preprocessing", str(settings.preprocessing), PREPROCESSING)
    settings = replace(settings, **{name: _text(getattr(settings, name)) for name in ("device", "dtype")})
    for kind in ("layers", "heads"):  # as numbers, so that plans are the same where these are
        settings = replace(settings, **{kind: parse_numbers(kind[:-1], getattr(settings, kind))})
    batch_size = settings.batch_size
    models, counts, listed = [], [], {}
    for spec, inputs in dict.fromkeys(pairs):
        pool, names = listed[inputs] = listed.get(inputs) or _listed(inputs)
        count = pool_count(settings.n, pool)
        if spec in HELD:
            modality = HELD[spec].modality
        else:
            check_name(spec, device=settings.device, dtype=settings.dtype)
            modality = known_modality(spec)
        if modality is not None:
            check_takes(spec, modality, inputs, pool)
        models.append(PlannedModel(spec, inputs, count, names))
        batches = -(-count // batch_size)
        counts.append(min(batches, shards or max(1, -(-count // SHARD))))
    planned = tuple(_planned(analysis, per_input, settings.heads) for analysis in analyses)
    labels = [analysis.label for analysis in planned]
    if len({*labels}) < len(labels):
        raise InputError(f"an analysis is named twice: {', '.join(labels)}")
    return Plan(tuple(models), planned, tuple(counts), replace(settings, n=None))


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _planned(analysis: str | tuple[str, Mapping[str, Any]], per_input: bool, heads: Any) -> PlannedAnalysis:
    name, options = (analysis, {}) if isinstance(analysis, str) else analysis
    label = ":".join([name, *(f"{key}={value}" for key, value in sorted(options.items()))])
    chosen = check_request(name, options)
    if not ANALYSES[name].sites:
        raise InputError(
            f"{name} reads weights, not inputs: run `workbench analyze {name}`, it takes seconds"
        )
    if "per_input" in options:
        raise InputError(
            "rows per input are chosen for the whole sweep, with per_input (--set per_input=true)"
        )
    if heads is not None and not ANALYSES[name].of_heads:
        raise InputError(f"{name} measures whole layers; leave out heads={heads!r}")
    return PlannedAnalysis(label, name, chosen | {"per_input": per_input})


def _listed(inputs: str) -> tuple[Pool, str]:
    """A pool, and a hash of its names; no input is read."""
    pool = open_pool(inputs)
    return pool, hashlib.sha256("\n".join(pool.ids).encode()).hexdigest()


@lru_cache(maxsize=4)
def _drawn(inputs: str, names: str, seed: int, order: str | None) -> tuple[Pool, list[int]]:
    """A plan's pool and the order of its inputs; kept, since listing a folder of 50 000 takes a moment.

    The plan's hash of the names is part of the key, so that for another plan the folder is listed again.
    """
    pool, names_hash = _listed(inputs)
    if names_hash != names:
        raise InputError(
            f"{inputs} no longer holds what it held when the sweep was planned: files have come, gone or been renamed; "
            "restore them, or sweep into another folder"
        )
    return pool, pool_positions(pool, seed, order)
