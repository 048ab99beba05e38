"""The efficiency study: every operator along every sweep, each point in its own process, until it ends."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch

from workbench._version import __version__
from workbench.core.errors import InputError, UnknownName
from workbench.core.files import write_json
from workbench.core.progress import progress_bars
from workbench.core.store import RunStore
from workbench.frames.metric import METRICS
from workbench.frames.provenance import versions
from workbench.frames.results import shared
from workbench.papers.operators import CONDITIONS, LAYERS, OPERATORS, SWEEPS, Point
from workbench.studies.records import OPERATORS as RECORD
from workbench.studies.records import POINTS_FILE, SCALING_COLUMNS, conform_scaling, write_record
from workbench.studies.scaling.layers import Forecast, forecast
from workbench.studies.scaling.timed_points import ENOUGH, ROUNDS, THREADS, measured
from workbench.studies.training.cost_measures import device_name, free_memory, memory_measure

SECONDS_A_PASS = 30.0
"""A pass expected to take longer is skipped, and ends its curve."""
MEMORY_SHARE = 0.8
"""Share of the free memory that a pass may use."""
_DTYPES = ("float32", "bfloat16", "float16")
IDENTITY_FILE = "study.json"
COMMAND = "workbench study records operators"
_STARTING = 1.5  # seconds that a point takes beside its passes, about


def scaling_study(
    sweeps: Sequence[str] | None = None,
    *,
    operators: Sequence[str] | None = None,
    sizes: Sequence[int] | None = None,
    conditions: Sequence[str] = CONDITIONS,
    budget: float | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    out: str | Path | None = None,
    progress: bool = False,
) -> pd.DataFrame:
    """Measure time, memory and multiply–accumulates of ``LAYERS`` attention layers against tokens and features.

    A layer is the operator with its projections; the batch size is 1. ``sweeps``, ``operators`` and ``sizes`` (on the
    sweep's axis) choose from `SWEEPS`; None takes all. The smallest sizes of all curves come first, so that any
    ``budget`` (minutes) gives complete curves up to some size; no point starts that is expected to exceed it. ``out``
    is a folder of finished points for resuming an interrupted study; one of another device, dtype or versions is
    rejected. Every point runs in its own process: a script calls this below ``if __name__ == "__main__":``.

    On a CPU, seconds are process time on one thread and memory is resident memory; on CUDA they are wall time and the
    allocator's memory. A pass without enough memory, or expected to take more than ``SECONDS_A_PASS`` from the previous
    size, is skipped: its row gives the reason in ``ended``, and the curve ends.

    Columns are `SCALING_COLUMNS`, a row per point, condition and metric: ``seconds_per_sample`` (median over passes;
    ``low`` to ``high`` their interquartile range), ``device_memory``, ``peak_memory`` (of the tensors, by their shapes)
    and ``macs``. ``attrs`` hold ``provenance`` and ``notes``.

    Raises UnknownName for an unknown sweep, operator, condition or dtype, InputError for sizes or a budget that are not
    positive, a device that is not available, or a folder of another study.
    """
    _check(sweeps, operators, sizes, conditions, budget, device, dtype)
    curves = _curves(sweeps, operators, sizes)
    identity = study_identity(device, dtype)
    folder = None
    if out is not None:
        store = RunStore(out, "study of operators", IDENTITY_FILE, format=2, unknown="*")
        if not store.open(identity):
            store.write(identity)
        folder = store.path
    started = time.monotonic()
    levels = max((len(curve.points) for curve in curves), default=0)
    planned = [(curve, level) for level in range(levels) for curve in curves if level < len(curve.points)]
    beyond = 0
    study = _Study(device, dtype, folder, identity)
    with progress_bars(visible=progress, transient=True) as bar:
        task = bar.add_task("", total=len(planned))
        for curve, level in planned:
            point = curve.points[level]
            bar.update(task, advance=1, description=f"{point.operator}, {point.tokens} × {point.width}")
            left = None if budget is None else 60 * budget - (time.monotonic() - started)
            beyond += not study.take(curve, point, conditions, left)
    rows = [row for curve in curves for row in curve.rows]
    frame = conform_scaling(pd.DataFrame(rows, columns=list(SCALING_COLUMNS)))
    notes = (
        [f"{beyond} of {len(planned)} points lie beyond the budget of {budget:g} minutes"] if beyond else []
    )
    frame.attrs = {
        "provenance": shared(
            {
                "analysis": "operator-scaling",
                "options": {"sweeps": list(dict.fromkeys(curve.sweep for curve in curves)), "budget": budget},
                "seed": 0,
                **identity,
            }
        ),
        "notes": notes,
    }
    return frame


def make_operators_record(
    data: Path, work: Path, *, sweeps: list[str] | None = None, device: str = "cpu", dtype: str = "float32"
) -> dict[str, Any]:
    """Measure all sweeps (or those named), and replace ``data/records/operators``."""
    started = time.monotonic()
    frame = scaling_study(sweeps, device=device, dtype=dtype, out=work, progress=sys.stderr.isatty())
    folder = data / "records" / RECORD
    run = frame.attrs["provenance"]
    about = {
        "name": RECORD,
        "command": COMMAND,
        "seed": run["seed"],
        **{name: run[name] for name in ("device", "dtype", "threads", "memory", "options")},
        "layers": LAYERS,
        "seconds_a_pass": SECONDS_A_PASS,
        "memory_share": MEMORY_SHARE,
        "seconds": round(time.monotonic() - started),
        "notes": list(frame.attrs["notes"]),
        "versions": versions(),
    }
    return write_record(folder, POINTS_FILE, frame, about)


def study_identity(device: str, dtype: str) -> dict[str, Any]:
    """Return the settings that all measurements of a study share."""
    current_versions = versions()
    return {
        "device": device_name(device),
        "dtype": dtype,
        "threads": THREADS if device == "cpu" else torch.get_num_threads(),
        "memory": memory_measure(device),
        "versions": {name: current_versions.get(name) for name in ("python", "torch", "workbench")},
    }


class _Curve:
    """An operator along a sweep, from its smallest point until it ends in each condition."""

    def __init__(self, sweep: str, points: list[Point]) -> None:
        self.sweep = sweep
        self.points = points
        self.rows: list[dict[str, Any]] = []
        self.ended: set[str] = set()
        self.before: dict[str, tuple[float, float]] = {}
        """Condition → multiply–accumulates and seconds of the largest point so far."""

    def add(self, row: Mapping[str, Any], common: Mapping[str, Any]) -> None:
        condition = row["condition"]
        if row.get("ended"):
            self.ended.add(condition)
            self.rows.append({**common, "condition": condition, "ended": row["ended"]})
            return
        seconds = pd.Series(row["seconds"])
        self.before[condition] = (row["macs"], float(seconds.median()))
        low, middle, high = seconds.quantile([0.25, 0.5, 0.75])
        common_columns = {**common, "condition": condition}
        self.rows.append(
            {**common_columns, "metric": "seconds_per_sample", "value": middle, "low": low, "high": high,
             "unit": METRICS["seconds_per_sample"].unit, "passes": len(seconds)}
        )  # fmt: skip
        for metric, name in (("device_memory", "memory"), ("peak_memory", "tensors"), ("macs", "macs")):
            self.rows.append(
                {**common_columns, "metric": metric, "value": row[name], "unit": METRICS[metric].unit}
            )


class _Study(NamedTuple):
    device: str
    dtype: str
    folder: Path | None
    identity: Mapping[str, Any]

    def take(self, curve: _Curve, point: Point, conditions: Sequence[str], left: float | None) -> bool:
        """Add the point to its curve, measured unless it is kept; return False if too few seconds are left."""
        path = None if self.folder is None else self.folder / f"{point.name}.json"
        kept = json.loads(path.read_text(encoding="utf-8")) if path is not None and path.is_file() else []
        rows = {row["condition"]: row for row in kept}
        open_ones = [name for name in conditions if name not in curve.ended]
        if missing := [name for name in open_ones if name not in rows]:
            fresh = self._measured(curve, point, missing, left)
            if fresh is None:
                return False
            rows |= {row["condition"]: row for row in fresh}
            if path is not None:
                write_json(path, list(rows.values()))
        common = {
            "sweep": point.sweep, "figure": SWEEPS[point.sweep].figure, "operator": point.operator,
            "layers": point.layers, "heads": point.heads, "width": point.width, "tokens": point.tokens,
            **{name: self.identity[name] for name in ("device", "dtype", "threads")}, "version": __version__,
        }  # fmt: skip
        for name in open_ones:
            curve.add(rows[name], common)
        return True

    def _measured(
        self, curve: _Curve, point: Point, conditions: Sequence[str], left: float | None
    ) -> list[dict[str, Any]] | None:
        if left is not None and left < _STARTING:
            return None
        kind = getattr(torch, self.dtype)
        foreseen = {name: forecast(point, name, kind) for name in conditions}
        expected = {name: _expected(curve, name, foreseen) for name in conditions}
        ends = {
            name: reason
            for name in conditions
            if (reason := _too_much(foreseen[name], expected[name], self.device))
        }
        todo = [name for name in conditions if name not in ends]
        if left is not None and _STARTING + sum(_several(expected[name] or 0) for name in todo) > left:
            return None
        rows_measured = measured(point, todo, self.device, self.dtype) if todo else {}
        rows = []
        for name in conditions:
            row = {"condition": name, "ended": ends[name]} if name in ends else rows_measured[name]
            rows.append({**row, "macs": foreseen[name].macs, "tensors": foreseen[name].tensors})
        return rows


def _expected(curve: _Curve, condition: str, foreseen: Mapping[str, Forecast]) -> float | None:
    """Return the expected seconds of a pass from the previous size at the same rate; None for the first."""
    if condition not in curve.before:
        return None
    macs, seconds = curve.before[condition]
    return seconds * foreseen[condition].macs / macs


def _several(seconds: float) -> float:
    """Return the seconds of all passes of a point: see `workbench.studies.scaling.timed_points`."""
    return max(seconds, min((ROUNDS + 1) * seconds, ENOUGH + seconds))


def _too_much(foreseen: Forecast, expected: float | None, device: str) -> str | None:
    """Return the reason to skip a pass, or None."""
    if expected is not None and expected > SECONDS_A_PASS:
        return f"about {expected:.0f} s expected, {SECONDS_A_PASS:.0f} s allowed"
    free = MEMORY_SHARE * free_memory(device)
    if foreseen.needed > free:
        return f"would need {foreseen.needed / 2**30:.1f} GiB of {free / 2**30:.1f} GiB"
    return None


def _check(
    sweeps: Sequence[str] | None,
    operators: Sequence[str] | None,
    sizes: Sequence[int] | None,
    conditions: Sequence[str],
    budget: float | None,
    device: str,
    dtype: str,
) -> None:
    for kind, names, accepted in (
        ("sweep", sweeps or (), SWEEPS),
        ("operator", operators or (), OPERATORS),
        ("condition", conditions, CONDITIONS),
        ("dtype", [dtype], _DTYPES),
    ):
        for name in names:
            if name not in accepted:
                raise UnknownName(kind, name, accepted)
    if sizes is not None and not all(isinstance(size, int) and size > 0 for size in sizes):
        raise InputError(f"sizes are positive whole numbers of tokens (or features), got {list(sizes)}")
    if budget is not None and not budget >= 0:
        raise InputError(f"the budget is a number of minutes from 0 up, got {budget}")
    if device != "cpu" and not (device.partition(":")[0] == "cuda" and torch.cuda.is_available()):
        raise InputError(f"operators are measured on cpu or an available cuda device, not on {device!r}")


def _curves(
    sweeps: Sequence[str] | None, operators: Sequence[str] | None, sizes: Sequence[int] | None
) -> list[_Curve]:
    curves = []
    for name in SWEEPS if sweeps is None else dict.fromkeys(sweeps):
        sweep = SWEEPS[name]
        steps = sweep.sizes if sizes is None else sorted(set(sizes))
        curves += [
            _Curve(name, [sweep.point(name, operator, size) for size in steps])
            for operator in sweep.operators
            if operators is None or operator in operators
        ]
    if not curves:
        raise InputError(
            f"no sweep of {', '.join(sweeps or SWEEPS)} has an operator of {', '.join(operators or ())}; causal ones "
            "are in the sweep causal, the others everywhere else"
        )
    return curves
