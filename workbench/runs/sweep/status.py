"""The progress of a sweep, read from its folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.core.options import checked
from workbench.runs.sweep.plan import Plan, Task
from workbench.runs.sweep.sweep_folder import DamagedPart, SweepFolder


@dataclass(frozen=True)
class SweepStatus:
    """Numbers of tasks of a sweep that are done, failed, damaged and left."""

    folder: Path
    rows: list[dict[str, Any]] = field(repr=False)
    """One per model and analysis: model, analysis, done, failed, damaged, left, inputs, skipped, seconds left."""
    failures: dict[str, str]
    """Errors by task."""
    running: bool

    @property
    def done(self) -> int:
        """Finished tasks."""
        return sum(row["done"] for row in self.rows)

    @property
    def failed(self) -> int:
        """Tasks that were given up."""
        return sum(row["failed"] for row in self.rows)

    @property
    def damaged(self) -> int:
        """Tasks whose part is damaged; running the sweep again computes them."""
        return sum(row["damaged"] for row in self.rows)

    @property
    def left(self) -> int:
        """Tasks that are none of these."""
        return sum(row["left"] for row in self.rows)

    def __str__(self) -> str:
        others = {word: getattr(self, word) for word in ("failed", "damaged", "left")}
        total = self.done + sum(others.values())
        more = [f"{count} {word}" for word, count in others.items() if count]
        words = "; ".join([f"{self.folder}: {self.done} of {total} tasks done", *more])
        return f"{words} (running)" if self.running else words


@checked
def sweep_status(folder: str | Path) -> SweepStatus:
    """Return the status of the sweep in a folder, comparing the parts with the manifest.

    Raises `InputError` where the folder holds no sweep.
    """
    sweep = SweepFolder(folder)
    plan, manifest = sweep.plan()
    rows: dict[tuple[int, int], dict[str, Any]] = {}
    failures = {}
    for task in plan.tasks():
        key = task.model, task.analysis
        if key not in rows:
            rows[key] = _row(plan, task)
        row, name = rows[key], sweep.part_name(plan, task)
        if sweep.part_path(plan, task).is_file():
            try:  # a part of the last few seconds is not in the manifest yet
                line = sweep.line_of(plan, task, manifest["parts"].get(name))
            except DamagedPart:
                row["damaged"] += 1
                continue
            row["done"] += 1
            row["seconds"] += [line["seconds"]]
            row["inputs"] += line["inputs"]
            row["skipped"] += line["skipped"]
        elif name in manifest["failed"]:
            row["failed"] += 1
            failures[plan.name(task)] = manifest["failed"][name]["error"]
        else:
            row["left"] += 1
    every = [seconds for row in rows.values() for seconds in row["seconds"]]
    for row in rows.values():
        measured = row.pop("seconds") or every
        row["seconds left"] = (
            (row["left"] + row["damaged"])
            * sum(measured)
            / len(measured)
            / max(1, manifest.get("workers", 1))
            if measured
            else None
        )
    return SweepStatus(
        sweep.path, [*rows.values()], failures, sweep.store.is_locked() or sweep.parts_running()
    )


def _row(plan: Plan, task: Task) -> dict[str, Any]:
    named = {"model": plan.models[task.model].spec, "analysis": plan.analyses[task.analysis].label}
    return (
        named | dict.fromkeys(("done", "failed", "damaged", "left", "inputs", "skipped"), 0) | {"seconds": []}
    )
