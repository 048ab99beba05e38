"""A sweep in the place of a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workbench.core.errors import InputError, UnknownName
from workbench.core.selection import parse_numbers
from workbench.data.batches import skipped_note
from workbench.frames.accumulator import Accumulator
from workbench.runs.stream import Stream
from workbench.runs.sweep.folder import SweepFolder
from workbench.runs.sweep.merging import merged_parts
from workbench.runs.sweep.plan import Plan

SWEEP = "sweep:"
"""How inputs that are read from a sweep begin."""


def read_sweep(
    folder: str | Path,
    name: str,
    model: str,
    options: Mapping[str, Any],
    *,
    given: Mapping[str, Any],
    settings: Mapping[str, Any],
    n: int | None = None,
) -> tuple[Accumulator, Stream, dict[str, Any]]:
    """What a sweep measured of one model under one analysis: rows, what they come from, and the complete options.

    ``options`` are complete, those ``given`` by the user among them; ``settings`` and ``n`` are those of the run that
    the sweep stands for. Raises `InputError` where the sweep is another one, saying what it has, or has no part yet;
    shards that are missing are told in the stream's notes.
    """
    sweep = SweepFolder(folder)
    plan, _ = sweep.plan()
    which, analysis = _planned(sweep, plan, name, model, options, given)
    _check_settings(sweep, plan, which, settings, n)
    merged = merged_parts(sweep, plan, which, analysis)
    if merged is None:
        raise InputError(
            f"{sweep.path} holds no finished shard of {plan.analyses[analysis].label} of {model} yet"
        )
    planned, told = plan.models[which], [*merged.notes]
    if merged.missing:
        told.append(
            f"{len(merged.missing)} of {plan.shards[which]} shards are missing: these are {merged.inputs} of "
            f"{planned.n} inputs; `workbench sweep run … --out {sweep.path.name}` computes the rest"
        )
    if merged.skipped:
        told.append(skipped_note(merged.skipped))
    inputs = {
        "spec": planned.inputs,
        "n": merged.inputs,
        "seed": plan.seed,
        "preprocessing": plan.preprocessing,
        "sha256": merged.sha256,
        "sweep": {"folder": sweep.path.name, "plan": plan.fingerprint},
    }
    stream = Stream(merged.model, inputs, merged.inputs, lambda each: iter(()), told)
    return merged.gathered, stream, dict(plan.analyses[analysis].options)


def _planned(
    sweep: SweepFolder,
    plan: Plan,
    name: str,
    model: str,
    options: Mapping[str, Any],
    given: Mapping[str, Any],
) -> tuple[int, int]:
    """Numbers of the model and of the analysis with these options."""
    models = [planned.spec for planned in plan.models]
    if model not in models:
        raise UnknownName(f"model of the sweep {sweep.path}", model, models)
    named = [number for number, planned in enumerate(plan.analyses) if planned.name == name]
    if not named:
        labels = [planned.label for planned in plan.analyses]
        raise UnknownName(f"analysis of the sweep {sweep.path}", name, labels)
    differ = {}
    for number in named:
        held = plan.analyses[number].options
        # rows per input are the default of a run, and not of a sweep: only who asks for them must get them
        wanted = {key: value for key, value in options.items() if key != "per_input" or key in given}
        differ[number] = [
            f"{key} is {held.get(key)!r} and {value!r} is asked for"
            for key, value in wanted.items()
            if held.get(key) != value
        ]
        if not differ[number]:
            return models.index(model), number
    told = "; ".join(f"{plan.analyses[number].label}: {', '.join(parts)}" for number, parts in differ.items())
    raise InputError(f"the sweep {sweep.path} has {name} with other options: {told}")


def _check_settings(
    sweep: SweepFolder, plan: Plan, which: int, settings: Mapping[str, Any], n: int | None
) -> None:
    has = {"n": plan.models[which].n, "seed": plan.seed} | {
        key: getattr(plan, key)
        for key in ("layers", "heads", "checkpoint", "preprocessing", "device", "dtype")
    }
    asked = {"n": has["n"] if n is None else n, **settings}
    for kind in ("layers", "heads"):
        has[kind], asked[kind] = (parse_numbers(kind[:-1], held[kind]) for held in (has, asked))
    # a device or a type of numbers that is not asked for is the sweep's own
    told = [
        f"{key} = {has[key]!r}, not {value!r}"
        for key, value in asked.items()
        if value != has[key] and not (key in ("device", "dtype") and value is None)
    ]
    if told:
        raise InputError(f"the sweep {sweep.path} has {'; '.join(told)}: ask for what it has, or sweep anew")
