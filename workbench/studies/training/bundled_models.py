"""Make the bundled models again: ``workbench study records training`` (hours; see docs/training.md).

Trains three seeds of each bundled model, each on one thread, so that sums do not depend on the number of cores;
``--workers`` sets the number of parallel runs. The first seed's checkpoints go to ``data/models/NAME``, all seeds'
metrics to ``data/records/NAME``. An interrupted call resumes.
"""

from __future__ import annotations

import json
import math
import shutil
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from workbench.core.children import safe_path
from workbench.core.errors import InputError, UnknownName
from workbench.core.threads import one_thread
from workbench.studies.records import METRICS_FILE, RECORD_FILE, read_metrics, write_record
from workbench.studies.seeds import CONFIRMATORY, CONTINUED, SEEDS, SOFTMAX_ALTERNATIVES
from workbench.studies.training.epoch_report import in_words
from workbench.studies.training.run_folder import MODEL_FILE, TrainResult, copy_model
from workbench.studies.training.runs import train


@dataclass(frozen=True)
class Bundled:
    """A bundled model: its training, and the checkpoints kept, "all" or the "last"."""

    task: str
    attention: str | None = None
    boost: bool = False
    recipe: str | None = None
    """The task's by default."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the attention that differ from the recipe's."""
    keep: str = "last"


_DIGITS = ("softmax-sym", "rpc-sym", "scaled-free", "scaled-alpha", "tssa", "primal", "bilateral")
_RAW = {"convention": "as_published"}
"""Memberships from features without normalisation: models named "…-text"."""
_PROSE = ("softmax", "tssa-causal", "primal-causal", "rpc-sym")
MODELS: dict[str, Bundled] = {
    "digits-vit": Bundled("digits", keep="all"),
    **{f"digits-{name}": Bundled("digits", name) for name in _DIGITS},
    # teo2024, Table 14: RPC-Attention where the queries are not the keys.
    **{f"digits-{name}": Bundled("digits", name) for name in ("rpc-asym", "rpc-sym-asym")},
    "digits-softmax-boost": Bundled("digits", "softmax", boost=True),
    "digits-bilateral-boost": Bundled("digits", "bilateral", boost=True),
    **{f"prose-{name}": Bundled("prose", name) for name in _PROSE},
    "prose-bilateral-boost": Bundled("prose", "bilateral", boost=True),
    # wu2025: ToST beside its baselines, and (Table 8) without normalisation and with ISTA in the place of the MLP.
    "photos-vit": Bundled("photos"),
    **{
        f"{task}-{name}": Bundled(task, recipe=f"{task}-{name}")
        for task in ("digits", "photos")
        for name in ("tost", "xcit")
    },
    **{
        f"{task}-{name}{raw}": Bundled(task, recipe=f"{task}-{name}", options=_RAW if raw else {})
        for task in ("digits", "photos")
        for name, raw in (("tost", "-text"), ("tost-ista", ""), ("tost-ista", "-text"))
    },
    "prose-tost": Bundled("prose", recipe="prose-tost"),
}


def _alternative(name: str) -> Bundled:
    """Return an alternative to softmax; those on prose have a smaller recipe than the bundled models."""
    if name.startswith("digits-"):
        return Bundled("digits", name.removeprefix("digits-"))
    if name == "prose-small-softmax-qk-clip":
        return Bundled("prose", "softmax", recipe="prose-small-qk-clip")
    return Bundled("prose", name.removeprefix("prose-small-"), recipe="prose-small")


_RPC_SETTINGS: dict[str, dict[str, Any]] = {
    "n5": {"num_iter": [5]},
    "n6": {"num_iter": [6]},
    "all": {"num_iter": 2, "lambd": 3.0},
    "implemented": {"convention": "as_implemented"},
    "iterated": {"lambd": math.inf},
}
"""teo2024, Tables 1 and 2: differences from `digits-rpc-sym`; "iterated" has no sparse part and is a control."""
CONFIRMED_ONLY: dict[str, Bundled] = {
    "prose-softmax-sym": Bundled("prose", "softmax-sym"),
    **{
        f"digits-rpc-sym-{name}": Bundled("digits", "rpc-sym", options=options)
        for name, options in _RPC_SETTINGS.items()
    },
    # abdullaev2025 §VI-A: softmax and bilateral attention without positions; the second learns its bandwidth
    "digits-no-positions": Bundled("digits", "nonlocal", options={"learn_bandwidths": False}),
    "digits-bilateral-no-positions": Bundled("digits", "nonlocal"),
    **{name: _alternative(name) for name in SOFTMAX_ALTERNATIVES},
}
"""Models trained with the confirmatory seeds only: their records are committed, their weights are not."""
COMMAND = "workbench study records training"


def bundle(
    name: str,
    data: Path,
    work: Path,
    *,
    epochs: int | None = None,
    limit: int | None = None,
    seeds: Sequence[int] = SEEDS,
) -> dict[str, Any]:
    """Train `name` with every seed in `work`, write checkpoints and records to `data`, and return the record.

    `epochs` and `limit` shorten the runs. Runs stay in `work`; complete ones are not trained again.
    """
    results = [run(name, seed, work, epochs=epochs, limit=limit) for seed in seeds]
    return collect(name, results, data)


def run(
    name: str,
    seed: int,
    work: Path,
    *,
    epochs: int | None = None,
    limit: int | None = None,
    progress: bool = True,
) -> TrainResult:
    """Train one seed of a bundled model on one thread."""
    model = (MODELS | CONFIRMED_ONLY)[name]
    with one_thread():
        return train(
            model.task,
            work / name / f"seed-{seed}",
            recipe=model.recipe,
            attention=model.attention,
            options=model.options,
            boost=model.boost,
            seed=seed,
            epochs=epochs,
            limit=limit,
            device="cpu",
            progress=progress,
        )


def collect(name: str, results: Sequence[TrainResult], data: Path, *, weights: bool = True) -> dict[str, Any]:
    """Copy the runs of a bundled model, first seed first, to the package's data folder.

    Without ``weights`` only the record is written, with the weights' hashes; other recorded seeds are kept.

    Raises InputError if the recorded seeds used another recipe or other data.
    """
    models, records = data / "models" / name, data / "records" / name
    if weights:
        copy_model(results[0].out, models, MODELS[name].keep)
    return _write_records(name, results, models if weights else None, records)


def _write_records(
    name: str, results: Sequence[TrainResult], models: Path | None, records: Path
) -> dict[str, Any]:
    metrics = pd.concat([result.metrics for result in results], ignore_index=True)
    described = [json.loads((result.out / MODEL_FILE).read_text(encoding="utf-8")) for result in results]
    reported = dict.fromkeys(("accuracy", results[0].headline))
    shared = {key: described[0][key] for key in ("recipe", "data", "versions")}
    runs = [
        {
            "seed": model["seed"],
            "command": model["command"],
            **{f"test_{metric}": result.test[metric] for metric in reported},
            "seconds": round(_seconds(result.metrics), 1),
            "last_checkpoint_sha256": model["checkpoints"][-1]["sha256"],
        }
        for model, result in zip(described, results, strict=True)
    ]
    if models is None and (records / RECORD_FILE).is_file():
        metrics, runs = _beside_recorded(records, metrics, runs, shared)
    about = {
        "name": name,
        "command": f"{COMMAND} --model bundled:{name}{' --confirm' if models is None else ''}",
        "threads": 1,
        "seeds": [run["seed"] for run in runs],
        **{
            f"test_{metric}_median": statistics.median(run[f"test_{metric}"] for run in runs)
            for metric in reported
        },
        "runs": runs,
        **shared,
    }
    return write_record(records, METRICS_FILE, metrics, about, *(sorted(models.iterdir()) if models else ()))


def _beside_recorded(
    records: Path, metrics: pd.DataFrame, runs: list[dict[str, Any]], shared: dict[str, Any]
) -> tuple[pd.DataFrame, list[dict[str, Any]]]:
    """Merge metrics and runs with the recorded ones of other seeds, ordered by seed.

    A run keeps its own versions if they differ from those of ``shared``.
    """
    old = json.loads((records / RECORD_FILE).read_text(encoding="utf-8"))
    if old["recipe"] != shared["recipe"] or old["data"] != shared["data"]:
        raise InputError(
            f"{records} holds seeds of another recipe or of other data than these runs: remove it, and train "
            "every seed again with: make confirm"
        )
    new = {run["seed"] for run in runs}
    versions = {} if old["versions"] == shared["versions"] else {"versions": old["versions"]}
    stay = [{**versions, **run} for run in old["runs"] if run["seed"] not in new]
    rows = read_metrics(records / METRICS_FILE)
    both = pd.concat([rows[~rows["seed"].isin(new)], metrics], ignore_index=True)
    both = both.sort_values("seed", kind="stable", ignore_index=True)
    return both, sorted([*stay, *runs], key=lambda run: run["seed"])


def _seconds(metrics: pd.DataFrame) -> float:
    return float(metrics.loc[metrics["metric"] == "seconds", "value"].sum())


def _run_all(
    seeds: Mapping[str, Sequence[int]], workers: int, **options: Any
) -> Iterable[tuple[str, TrainResult]]:
    """Yield every seed of every name when it finishes, in `workers` processes."""
    from joblib import Parallel, delayed

    call, todo = delayed(_run_one), [(name, seed) for name in seeds for seed in seeds[name]]
    together = Parallel(n_jobs=workers, return_as="generator_unordered")
    with safe_path():
        yield from together(call(name, seed, options) for name, seed in todo)


def _run_one(name: str, seed: int, options: dict[str, Any]) -> tuple[str, TrainResult]:
    return name, run(name, seed, **options, progress=False)


def _not_on_record(data: Path, name: str) -> list[int]:
    """Return the confirmatory seeds that the records in ``data`` lack, the first stage first."""
    path = data / "records" / name / RECORD_FILE
    recorded = json.loads(path.read_text(encoding="utf-8"))["seeds"] if path.is_file() else []
    return [seed for seed in (*CONFIRMATORY[name], *CONTINUED.get(name, ())) if seed not in recorded]


def make_training_records(
    names: Sequence[str],
    data: Path,
    work: Path,
    *,
    workers: int = 1,
    epochs: int | None = None,
    limit: int | None = None,
    confirm: bool = False,
) -> Iterator[str]:
    """Train the named bundled models (all by default) with every seed; yield one line for each complete model.

    ``confirm`` trains the models that claims compare with the seeds of `CONFIRMATORY` and `CONTINUED` that `data`
    lacks, writes records without weights after each seed, and leaves the runs in `work` for evaluations. Unfinished
    runs in `work` are resumed. Raises UnknownName for an unknown name.
    """
    seeds: Mapping[str, Sequence[int]] = CONFIRMATORY if confirm else dict.fromkeys(MODELS, SEEDS)
    for name in names:
        if name not in seeds:
            raise UnknownName("bundled model", name, seeds)
    seeds = {name: seeds[name] for name in names or seeds}
    if confirm:
        seeds = {name: _not_on_record(data, name) for name in seeds}
    done: dict[str, list[TrainResult]] = {name: [] for name in seeds}
    every = dict.fromkeys(str(seed) for model_seeds in seeds.values() for seed in model_seeds)
    print(f"{len(seeds)} models, seeds {', '.join(every)}", file=sys.stderr)
    for name, result in _run_all(seeds, workers, work=work, epochs=epochs, limit=limit):
        print(str(result), file=sys.stderr, flush=True)
        done[name].append(result)
        complete = len(done[name]) == len(seeds[name])
        if not (confirm or complete):
            continue
        results = sorted(done[name], key=lambda result: result.out.name)
        record = collect(name, results, data, weights=not confirm)
        if not complete:  # which seeds are there, and not what they give: nobody is to look before the last
            continue
        metric = results[0].headline
        each = ", ".join(f"{run[f'test_{metric}']:.4g}" for run in record["runs"])
        yield f"{name}: test {each}; median {in_words(metric, record[f'test_{metric}_median'])}"
    # Only now: until everything is done, a second call would train what is finished again.
    for name in () if confirm else seeds:
        shutil.rmtree(work / name)
