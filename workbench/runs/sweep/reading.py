"""The numbers of a sweep, as frames like those of any other run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from workbench.analyses.registry import check_request, find_analysis
from workbench.core.errors import InputError, UnknownName
from workbench.core.options import parse_numbers
from workbench.data.batches import skipped_note
from workbench.frames.results import join_frames
from workbench.runs.analyze import result_frame
from workbench.runs.loop import Source
from workbench.runs.settings import RunSettings
from workbench.runs.sweep.folder import SweepFolder
from workbench.runs.sweep.merging import merged_parts
from workbench.runs.sweep.plan import Plan

SWEEP = "sweep:"
"""How inputs that are read from a sweep begin."""


def read_sweep(
    folder: str | Path,
    analyses: str | Sequence[str] | None = None,
    models: str | Sequence[str] | None = None,
    *,
    allow_partial: bool = False,
) -> pd.DataFrame:
    """What a sweep has measured: the frames of its models and analyses, under one another.

    ``analyses`` keeps some, by name or by label ("gram-spectrum:max_rank=8"), ``models`` some of the models. Where the
    sweep has several analyses, the first column, ``analysis``, holds their labels. ``frame.attrs["notes"]`` says which
    inputs could not be read, and what else a run would say.

    Where parts are missing or damaged these are fewer inputs than the sweep was asked for, and nothing is read unless
    ``allow_partial``; the notes then say how many there are.

    Raises `InputError` where the folder holds no sweep, and where parts are missing (with ``allow_partial``: all of
    them); `UnknownName` for an analysis or a model that it has not got.
    """
    sweep = SweepFolder(folder)
    plan, manifest = sweep.plan()
    lines = manifest["parts"]
    specs = [planned.spec for planned in plan.models]
    wanted = _among(f"model of the sweep {sweep.path}", models, {spec: spec for spec in specs})
    labels = {planned.label: planned.name for planned in plan.analyses}
    chosen = _among(f"analysis of the sweep {sweep.path}", analyses, labels)
    frames, notes, waiting = [], [], []
    for which, spec in enumerate(specs):
        for number, label in enumerate(labels):
            if spec not in wanted or label not in chosen:
                continue
            frame = _frame(sweep, plan, lines, which, number, allow_partial)
            if frame is None:
                waiting.append(f"{label} of {spec}")
                continue
            if len(labels) > 1:
                frame.insert(0, "analysis", label)
            frames.append(frame)
            notes += [f"{spec}: {note}" if len(wanted) > 1 else note for note in frame.attrs["notes"]]
    if not frames:
        raise InputError(f"{sweep.path} holds no finished shard of {'; '.join(waiting)} yet")
    joined = frames[0] if len(frames) == 1 else join_frames(frames)
    joined.attrs["notes"] = [*dict.fromkeys(notes), *(f"no finished shard of {name} yet" for name in waiting)]
    return joined


def _among(kind: str, asked: str | Sequence[str] | None, known: Mapping[str, str]) -> set[str]:
    """The keys that were asked for, each by itself or by its value; all for None."""
    if asked is None:
        return {*known}
    found = set()
    for name in [asked] if isinstance(asked, str) else asked:
        matching = {name} if name in known else {key for key, value in known.items() if value == name}
        if not matching:
            raise UnknownName(kind, name, known)
        found |= matching
    return found


def sweep_frame(
    folder: str | Path, name: str, settings: RunSettings, given: Mapping[str, Any]
) -> pd.DataFrame:
    """What a sweep has measured of one model, in the place of a run with these settings and options.

    Raises `InputError` where the sweep is another one, saying what it has, or is not whole.
    """
    if not isinstance(settings.model, str):
        raise InputError(f"{SWEEP}{folder} holds results by the name of their model; give the model's spec")
    sweep = SweepFolder(folder)
    plan, manifest = sweep.plan()
    which, number = _planned(sweep, plan, name, settings.model, check_request(name, given), given)
    _check_settings(sweep, plan, which, settings)
    frame = _frame(sweep, plan, manifest["parts"], which, number, allow_partial=False)
    assert frame is not None  # it is whole
    return frame


def sweep_inputs(folder: str | Path, model: str) -> str:
    """The spec of the inputs that a sweep runs a model over. Raises `UnknownName` for a model that it has not got."""
    plan, _ = SweepFolder(folder).plan()
    planned_inputs = {planned.spec: planned.inputs for planned in plan.models}
    if model not in planned_inputs:
        raise UnknownName(f"model of the sweep {folder}", model, planned_inputs)
    return planned_inputs[model]


def _frame(
    sweep: SweepFolder, plan: Plan, lines: Mapping[str, Any], which: int, number: int, allow_partial: bool
) -> pd.DataFrame | None:
    """The frame of one model and analysis; None where no shard is finished.

    Raises `InputError` where it is not whole and `allow_partial` is not said.
    """
    merged = merged_parts(sweep, plan, which, number, lines)
    planned, shards = plan.models[which], plan.shards[which]
    missing = shards if merged is None else len(merged.missing)
    if missing and not allow_partial:
        raise InputError(
            f"{missing} of {shards} shards of {plan.analyses[number].label} of {planned.spec} are missing or damaged "
            f"in {sweep.path}: these would be {merged.inputs if merged else 0} of {planned.n} inputs; run the sweep "
            "again, which computes the rest, or read what is there with allow_partial=True (workbench sweep read "
            "--allow-partial)"
        )
    if merged is None:
        return None
    notes = [*merged.notes]
    if merged.missing:
        notes.append(
            f"{missing} of {shards} shards are missing: these are {merged.inputs} of {planned.n} inputs; `workbench "
            f"sweep run … --out {sweep.path.name}` computes the rest"
        )
    if merged.skipped:
        notes.append(skipped_note(merged.skipped))
    inputs = {
        "spec": planned.inputs,
        "n": merged.inputs,
        "seed": plan.settings.seed,
        "preprocessing": plan.settings.preprocessing,
        "sha256": merged.sha256,
        "sweep": {"folder": sweep.path.name, "plan": plan.fingerprint},
    }
    source = Source(merged.model, inputs, merged.inputs, lambda: iter(()), notes)
    analysis, options = find_analysis(plan.analyses[number].name, plan.analyses[number].options)
    settings = replace(plan.settings, model=planned.spec, inputs=planned.inputs)
    return result_frame(analysis, options, source, settings, merged.accumulated)


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
        own = plan.analyses[number].options
        # rows per input are the default of a run, and not of a sweep: only who asks for them must get them
        wanted = {key: value for key, value in options.items() if key != "per_input" or key in given}
        differ[number] = [
            f"{key} is {own.get(key)!r} and {value!r} is asked for"
            for key, value in wanted.items()
            if own.get(key) != value
        ]
        if not differ[number]:
            return models.index(model), number
    others = "; ".join(
        f"{plan.analyses[number].label}: {', '.join(parts)}" for number, parts in differ.items()
    )
    raise InputError(f"the sweep {sweep.path} has {name} with other options: {others}")


def _check_settings(sweep: SweepFolder, plan: Plan, which: int, asked: RunSettings) -> None:
    names = ("seed", "layers", "heads", "checkpoint", "preprocessing", "device", "dtype")
    there = {"n": plan.models[which].n} | {name: getattr(plan.settings, name) for name in names}
    wanted = {"n": there["n"] if asked.n is None else asked.n} | {
        name: getattr(asked, name) for name in names
    }
    for kind in ("layers", "heads"):
        there[kind], wanted[kind] = (parse_numbers(kind[:-1], table[kind]) for table in (there, wanted))
    # a device or a type of numbers that is not asked for is the sweep's own
    differ = [
        f"{name} = {there[name]!r}, not {value!r}"
        for name, value in wanted.items()
        if value != there[name] and not (name in ("device", "dtype") and value is None)
    ]
    if differ:
        raise InputError(
            f"the sweep {sweep.path} has {'; '.join(differ)}: ask for what it has, or sweep anew"
        )
