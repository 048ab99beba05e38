"""The results of a sweep, as frames like those of any other run."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from workbench.analyses.registry import check_request, find_analysis
from workbench.core.errors import InputError, UnknownName
from workbench.core.files import sha256_file
from workbench.core.options import checked, parse_numbers
from workbench.core.store import differences
from workbench.data.batches import skipped_note
from workbench.frames.provenance import versions
from workbench.frames.results import join_frames
from workbench.runs.analyze import result_frame
from workbench.runs.cache import Store, content_sha256, source_sha256
from workbench.runs.loop import Source
from workbench.runs.settings import RunSettings
from workbench.runs.sweep.plan import Plan
from workbench.runs.sweep.sweep_folder import MERGED, DamagedPart, PartialResult, SweepFolder

SWEEP = "sweep:"
"""Prefix of inputs that are read from a sweep."""


@checked
def read_sweep(
    folder: str | Path | Sequence[str | Path],
    analyses: str | Sequence[str] | None = None,
    models: str | Sequence[str] | None = None,
    *,
    allow_partial: bool = False,
) -> pd.DataFrame:
    """Read the results of a sweep, or of several folders: one frame of all models and analyses.

    ``analyses`` keeps some, by name or by label ("gram-spectrum:max_rank=8"), ``models`` some of the models.
    With several analyses the first column, ``analysis``, holds their labels. ``frame.attrs["notes"]`` lists
    unreadable inputs and the notes of a run.

    A sweep with missing or damaged parts is read only with ``allow_partial``; the notes then give the number of inputs.

    Raises `InputError` where a folder holds no sweep, where parts are missing (with ``allow_partial``: all of them),
    and where two folders have the same analysis of the same model; `UnknownName` for an analysis or a model that is in
    no folder.
    """
    sweeps = [SweepFolder(path) for path in ([folder] if isinstance(folder, str | Path) else folder)]
    plans = [(sweep, *sweep.plan()) for sweep in sweeps]
    where = ", ".join(str(sweep.path) for sweep in sweeps)
    specs = {planned.spec: planned.spec for _, plan, _ in plans for planned in plan.models}
    chosen_models = _among(f"model of the sweep {where}", models, specs)
    labels = {planned.label: planned.name for _, plan, _ in plans for planned in plan.analyses}
    chosen = _among(f"analysis of the sweep {where}", analyses, labels)
    frames, notes, waiting = [], [], []
    read: dict[tuple[str, str], Path] = {}
    for sweep, plan, manifest in plans:
        for model, analysis in itertools.product(range(len(plan.models)), range(len(plan.analyses))):
            spec, label = plan.models[model].spec, plan.analyses[analysis].label
            if spec not in chosen_models or label not in chosen:
                continue
            if read.setdefault((spec, label), sweep.path) != sweep.path:
                raise InputError(
                    f"{read[spec, label]} and {sweep.path} both hold {label} of {spec}; read one of them"
                )
            frame = _frame(sweep, plan, manifest["parts"], model, analysis, allow_partial)
            if frame is None:
                waiting.append(f"{label} of {spec}")
                continue
            if len(labels) > 1:
                frame.insert(0, "analysis", label)
            frames.append(frame)
            notes += [f"{spec}: {note}" if len(chosen_models) > 1 else note for note in frame.attrs["notes"]]
    if not frames:
        raise InputError(f"{where} holds no finished shard of {'; '.join(waiting)} yet")
    joined = frames[0] if len(frames) == 1 else join_frames(frames)
    joined.attrs["notes"] = [*dict.fromkeys(notes), *(f"no finished shard of {name} yet" for name in waiting)]
    return joined


def _among(kind: str, names: str | Sequence[str] | None, labels: Mapping[str, str]) -> set[str]:
    """The keys that were named, each by itself or by its value; all for None."""
    if names is None:
        return {*labels}
    keys = set()
    for name in [names] if isinstance(names, str) else names:
        matching = {name} if name in labels else {key for key, value in labels.items() if value == name}
        if not matching:
            raise UnknownName(kind, name, labels)
        keys |= matching
    return keys


def sweep_frame(
    folder: str | Path, name: str, settings: RunSettings, options: Mapping[str, Any]
) -> pd.DataFrame:
    """Return the result that a sweep has of one model, instead of running it with these settings and options.

    Raises `InputError` where the sweep has other settings or options, naming them, or is not complete.
    """
    if not isinstance(settings.model, str):
        raise InputError(f"{SWEEP}{folder} holds results by the name of their model; give the model's spec")
    sweep = SweepFolder(folder)
    plan, manifest = sweep.plan()
    models = [planned.spec for planned in plan.models]
    if settings.model not in models:
        raise UnknownName(f"model of the sweep {sweep.path}", settings.model, models)
    model = models.index(settings.model)
    analysis = _analysis_number(sweep, plan, name, options)
    _check_settings(sweep, plan, model, settings)
    frame = _frame(sweep, plan, manifest["parts"], model, analysis, allow_partial=False)
    assert frame is not None  # it is complete
    return frame


def sweep_inputs(folder: str | Path, model: str) -> str:
    """Return the spec of the inputs that a sweep runs a model over; raises `UnknownName` for another model."""
    plan, _ = SweepFolder(folder).plan()
    planned_inputs = {planned.spec: planned.inputs for planned in plan.models}
    if model not in planned_inputs:
        raise UnknownName(f"model of the sweep {folder}", model, planned_inputs)
    return planned_inputs[model]


def _frame(
    sweep: SweepFolder, plan: Plan, lines: Mapping[str, Any], model: int, analysis: int, allow_partial: bool
) -> pd.DataFrame | None:
    """The frame of one model and analysis; None where no shard is finished.

    The frame of all parts is kept under a hash of their content, since merging many takes seconds; rows of single
    inputs are not, since they are as large as the parts. Raises `InputError` where parts are missing, unless
    ``allow_partial``, and where they were measured with different weights.
    """
    store, key = Store(sweep.path / MERGED), _parts_key(sweep, plan, model, analysis, lines)
    if key is not None and (frame := store.read(key)) is not None:
        return frame
    part, missing = _merged(sweep, plan, model, analysis, lines)
    planned, label, shards = plan.models[model], plan.analyses[analysis].label, plan.shards[model]
    inputs_read = len(part.digests) if part else 0
    if missing and not allow_partial:
        raise InputError(
            f"{missing} of {shards} shards of {label} of {planned.spec} are missing or damaged in {sweep.path}: these "
            f"would be {inputs_read} of {planned.n} inputs; run the sweep again, which computes the rest, or read what "
            "is there with allow_partial=True (workbench sweep read --allow-partial)"
        )
    if part is None:
        return None
    notes = [*part.notes]
    if missing:
        notes.append(
            f"{missing} of {shards} shards are missing: these are {inputs_read} of {planned.n} inputs; `workbench "
            f"sweep run … --out {sweep.path.name}` computes the rest"
        )
    if part.skipped:
        notes.append(skipped_note(part.skipped))
    inputs = {
        "spec": planned.inputs,
        "n": inputs_read,
        "seed": plan.settings.seed,
        "preprocessing": plan.settings.preprocessing,
        "sha256": hashlib.sha256(b"".join(part.digests)).hexdigest(),
        "sweep": {"folder": sweep.path.name, "plan": plan.fingerprint_of(model, analysis)},
    }
    source = Source(part.model, inputs, inputs_read, lambda: iter(()), notes)
    entry, options = find_analysis(plan.analyses[analysis].name, plan.analyses[analysis].options)
    settings = replace(plan.settings, model=planned.spec, inputs=planned.inputs)
    frame = result_frame(entry, options, source, settings, part.accumulated)
    per_input = plan.analyses[analysis].options.get("per_input", True)
    # the same key again: no part has changed while they were read
    if key is not None and not per_input and key == _parts_key(sweep, plan, model, analysis, lines):
        store.write(key, frame)  # a full disk or a read-only folder costs the copy, not the result
    return frame


def _parts_key(
    sweep: SweepFolder, plan: Plan, model: int, analysis: int, lines: Mapping[str, Any]
) -> str | None:
    """Hash of the plan, our code and every part; None where a part is missing or not the one that is listed."""
    parts = []
    for task in plan.tasks_of(model, analysis):
        path, line = sweep.part_path(plan, task), lines.get(sweep.part_name(plan, task))
        content = sha256_file(path) if path.is_file() else None
        if content is None or (line is not None and line["sha256"] != content):
            return None
        parts.append(content)
    where = [sweep.path.name, plan.fingerprint_of(model, analysis)]
    return content_sha256([*where, parts, source_sha256(), versions()])


def _merged(
    sweep: SweepFolder, plan: Plan, model: int, analysis: int, lines: Mapping[str, Any]
) -> tuple[PartialResult | None, int]:
    """Merge all sound parts in the order of the inputs; also return the number of missing or damaged parts."""
    merged, missing = None, 0
    for task in plan.tasks_of(model, analysis):
        try:
            sweep.line_of(plan, task, lines.get(sweep.part_name(plan, task)))
            part = sweep.read_part(plan, task)
        except DamagedPart:
            missing += 1
            continue
        if merged is None:
            merged = part
        else:
            merged.merge(part)
    return merged, missing


def _analysis_number(sweep: SweepFolder, plan: Plan, name: str, options: Mapping[str, Any]) -> int:
    """The number of the analysis of the plan that has these options."""
    # rows per input are the default of a run, and not of a sweep: only those who ask for them must get them
    wanted = {
        key: value
        for key, value in check_request(name, options).items()
        if key != "per_input" or key in options
    }
    others = {}
    for number, planned in enumerate(plan.analyses):
        if planned.name == name:
            others[planned.label] = differences(planned.options, wanted, wanted)
            if not others[planned.label]:
                return number
    if not others:
        raise UnknownName(
            f"analysis of the sweep {sweep.path}", name, [planned.label for planned in plan.analyses]
        )
    each = "; ".join(f"{label}: {', '.join(parts)}" for label, parts in others.items())
    raise InputError(f"the sweep {sweep.path} has {name} with other options: {each}")


def _check_settings(sweep: SweepFolder, plan: Plan, model: int, settings: RunSettings) -> None:
    names = ("seed", "layers", "heads", "order", "preprocessing", "device", "dtype")
    stored, wanted = (
        {name: getattr(each, name) for name in names}
        | {kind: parse_numbers(kind[:-1], getattr(each, kind)) for kind in ("layers", "heads")}
        for each in (plan.settings, settings)
    )
    stored["n"] = plan.models[model].n
    wanted |= {} if settings.n is None else {"n": settings.n}
    for name in ("device", "dtype"):  # by default those of the sweep
        if wanted[name] is None:
            del wanted[name]
    if differing := differences(stored, wanted, wanted):
        raise InputError(
            f"the sweep {sweep.path} has {'; '.join(differing)}: ask for these, or run another sweep"
        )
