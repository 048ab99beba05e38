"""Make the bundled models again: ``python -m workbench.training.bundle`` (about five minutes).

Trains three seeds of each bundled model on one thread, so that the sums are taken in the same order whatever
the number of cores. The first seed's checkpoints go to ``data/models/NAME``, all seeds' metrics to
``data/records/NAME``. An interrupted call goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from workbench.checkpoints import file_sha256
from workbench.errors import WorkbenchError
from workbench.paths import data_dir
from workbench.results import atomic_write
from workbench.training.folder import METRICS_FILE, MODEL_FILE, TrainResult
from workbench.training.recipes import load_recipe
from workbench.training.runs import train

MODELS = {"digits-vit": "digits"}
"""Bundled model → the task it is trained on."""
SEEDS = (0, 1, 2)
RECORD_FILE = "record.json"
COMMAND = "python -m workbench.training.bundle"


def bundle(
    name: str,
    data: Path,
    work: Path,
    *,
    epochs: int | None = None,
    limit: int | None = None,
    resume: bool = True,
) -> dict[str, Any]:
    """Train `name` with every seed in `work`, put checkpoints and records under `data`; returns the record.

    `epochs` and `limit` shorten the runs; ``resume=False`` starts unfinished ones over. `work` is emptied once
    everything has been copied.
    """
    task = MODELS[name]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        results = [
            train(
                task,
                work / name / f"seed-{seed}",
                seed=seed,
                epochs=epochs,
                limit=limit,
                resume=resume,
                device="cpu",
            )
            for seed in SEEDS
        ]
    finally:
        torch.set_num_threads(threads)
    models, records = data / "models" / name, data / "records" / name
    _copy_model(results[0], models)
    record = _write_records(name, results, models, records)
    shutil.rmtree(work / name)
    return record


def _copy_model(result: TrainResult, models: Path) -> None:
    for old in models.glob("epoch-*.safetensors"):
        old.unlink()
    for source in (*result.checkpoints, result.out / MODEL_FILE):
        content = source.read_bytes()
        atomic_write(models / source.name, lambda handle, content=content: handle.write(content))


def _write_records(name: str, results: list[TrainResult], models: Path, records: Path) -> dict[str, Any]:
    metrics = pd.concat([result.metrics for result in results], ignore_index=True)
    path = records / METRICS_FILE
    atomic_write(path, lambda handle: metrics.to_csv(handle, index=False, lineterminator="\n"))
    described = [json.loads((result.out / MODEL_FILE).read_text(encoding="utf-8")) for result in results]
    record = {
        "name": name,
        "command": COMMAND,
        "threads": 1,
        "seeds": list(SEEDS),
        "test_accuracy_median": statistics.median(result.test_accuracy for result in results),
        "runs": [
            {
                "seed": model["seed"],
                "command": model["command"],
                "test_accuracy": result.test_accuracy,
                "seconds": round(_seconds(result.metrics), 1),
                "last_checkpoint_sha256": model["checkpoints"][-1]["sha256"],
            }
            for model, result in zip(described, results, strict=True)
        ],
        **{key: described[0][key] for key in ("recipe", "data", "versions")},
        "files": {
            METRICS_FILE: file_sha256(path),
            **{f"../../models/{name}/{file.name}": file_sha256(file) for file in sorted(models.iterdir())},
        },
    }
    content = (json.dumps(record, indent=1) + "\n").encode()
    atomic_write(records / RECORD_FILE, lambda handle: handle.write(content))
    return record


def _seconds(metrics: pd.DataFrame) -> float:
    return float(metrics.loc[metrics["metric"] == "seconds", "value"].sum())


def main(arguments: list[str] | None = None) -> int:
    """Command line of this module."""
    parser = argparse.ArgumentParser(prog=COMMAND, description="Train the bundled models again.")
    parser.add_argument(
        "--data", type=Path, default=data_dir(), help="folder to write to (default: %(default)s)"
    )
    parser.add_argument(
        "--work", type=Path, default=Path("runs/bundle"), help="unfinished runs (default: %(default)s)"
    )
    parser.add_argument("--restart", action="store_true", help="do not go on with unfinished runs")
    options = parser.parse_args(arguments)
    try:
        for name, task in MODELS.items():
            print(f"{name}: {len(SEEDS)} seeds of {load_recipe(task).epochs} epochs each", file=sys.stderr)
            record = bundle(name, options.data, options.work, resume=not options.restart)
            accuracies = ", ".join(f"{run['test_accuracy']:.2%}" for run in record["runs"])
            print(f"{name}: test accuracy {accuracies}; median {record['test_accuracy_median']:.2%}")
    except WorkbenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
