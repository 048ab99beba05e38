"""All parts of one model and analysis as one, in the order of the inputs, merged once: many parts take seconds."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from workbench.core.errors import InputError, MissingResource
from workbench.core.files import sha256_file
from workbench.frames.measurement import Accumulator
from workbench.runs.sweep.folder import FORMAT, DamagedPart, SweepFolder, read_table, write_table
from workbench.runs.sweep.plan import Plan, Task


@dataclass
class Merged:
    """What the parts that are there come to together."""

    accumulated: Accumulator
    model: dict[str, Any]
    """Identity of the model."""
    inputs: int
    sha256: str
    """Over the hashes of all inputs that were read, in order."""
    skipped: Sequence[Sequence[str]]
    notes: list[str]
    missing: list[int]
    """Shards without a sound part."""


def merged_parts(
    sweep: SweepFolder, plan: Plan, model: int, analysis: int, lines: Mapping[str, Any]
) -> Merged | None:
    """The parts of one model and analysis, merged; None where there is none yet. ``lines`` is the manifest's list.

    What they come to is kept in the folder under a hash of all these parts as they lie there, and merged anew when one
    has come, gone or changed. Rows of single inputs are not kept: they are as large as the parts themselves. Raises
    `InputError` where parts were measured with different weights.
    """
    key = _key(sweep, plan, model, analysis, lines)
    path = sweep.merged_path(plan, model, analysis)
    with suppress(DamagedPart, LookupError, TypeError, ValueError, AttributeError):  # it is merged anew
        table, about = read_table(path)
        if about["key"] == key:
            return Merged(Accumulator.from_state(table, about["state"]), **about["merged"])
    merged = _merge(sweep, plan, model, analysis, lines)
    keeps = merged is not None and not plan.analyses[analysis].options.get("per_input", True)
    # the same key again: no part has changed while they were read
    if keeps and key == _key(sweep, plan, model, analysis, lines):
        table, state = merged.accumulated.state()
        plain = {name: value for name, value in vars(merged).items() if name != "accumulated"}
        with suppress(
            MissingResource
        ):  # a full disk, or a folder that is only read, must not cost the result
            write_table(path, table, {"key": key, "state": state, "merged": plain})
    return merged


def _merge(
    sweep: SweepFolder, plan: Plan, model: int, analysis: int, lines: Mapping[str, Any]
) -> Merged | None:
    accumulated, identity = Accumulator(), None
    digests, skipped, missing, notes = [], [], [], {}
    for task in _tasks(plan, model, analysis):
        try:
            sweep.line_of(plan, task, lines.get(sweep.part_name(plan, task)))
            part = sweep.read_part(plan, task)
        except DamagedPart:
            missing.append(task.shard)
            continue
        if identity is not None and identity != part.model:
            raise InputError(
                f"shards of {sweep.path} were measured with different weights of {part.model['spec']} "
                f"({identity.get('sha256')} and {part.model.get('sha256')}); sweep anew, into another folder"
            )
        identity = part.model
        accumulated.merge(part.accumulated)
        digests += part.digests
        skipped += part.skipped
        notes |= dict.fromkeys(part.notes)
    if identity is None:
        return None
    content = hashlib.sha256(b"".join(digests)).hexdigest()
    return Merged(accumulated, identity, len(digests), content, skipped, [*notes], missing)


def _tasks(plan: Plan, model: int, analysis: int) -> list[Task]:
    return [Task(model, analysis, shard) for shard in range(plan.shards[model])]


def _key(sweep: SweepFolder, plan: Plan, model: int, analysis: int, lines: Mapping[str, Any]) -> str:
    """Hash of the plan, and of the content of every part and what the manifest says that it is."""
    digest = hashlib.sha256(f"{FORMAT} {plan.fingerprint} {model} {analysis}".encode())
    for task in _tasks(plan, model, analysis):
        path = sweep.part_path(plan, task)
        content = sha256_file(path) if path.is_file() else "missing"
        line = lines.get(sweep.part_name(plan, task))
        digest.update(
            f"\n{content}{'' if line is None or line['sha256'] == content else ' damaged'}".encode()
        )
    return digest.hexdigest()
