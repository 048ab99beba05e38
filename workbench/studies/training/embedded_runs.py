"""Train the recorded runs of the embedded tasks: ``workbench study records embedded`` (hours; see docs/training.md).

`PLAN` lists the mechanisms and seeds for each data set. Every record also has the trivial predictor, which predicts the
most frequent training class, and softmax attention on shuffled tokens. A record is written when all its runs are
complete; an interrupted call resumes and trains nothing twice.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from workbench.core.children import safe_path
from workbench.core.errors import InputError, UnknownName
from workbench.core.threads import one_thread
from workbench.studies.records import (
    EMBEDDED_COLUMNS,
    EMBEDDED_RECORDS,
    EPOCHS_FILE,
    METRICS_FILE,
    RECORD_FILE,
    embedded_record,
    read_metrics,
    write_record,
)
from workbench.studies.training.recipes import Recipe
from workbench.studies.training.run_folder import MODEL_FILE, copy_model
from workbench.studies.training.runs import recipe_for, train
from workbench.studies.training.tasks import load_task, usual_recipe
from workbench.studies.training.tasks.embedded import EMBEDDED, PREFIX

SEEDS = (1907, 1912, 1931)
"""Seeds of softmax and of the mechanisms in claims; other mechanisms use the first only."""
MAJORITY = "majority"
"""Name of the trivial predictor in the record."""
COMMAND = "workbench study records embedded"
_CURVES = ("loss", "accuracy", "mean_iou", "normalised_return")
"""Metrics kept for every epoch; of others only the last epoch is kept."""


@dataclass(frozen=True)
class Planned:
    """A mechanism and its training settings on one data set."""

    variant: str
    """Its name in the record."""
    attention: str = "softmax"
    layers: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    boost: bool = False
    shuffled: bool = False
    ksvd_weight: float | None = None
    """η, if it differs from the recipe's."""
    pretrained: str | None = None
    """Attention of the pre-training run, if it differs."""
    seeds: tuple[int, ...] = SEEDS[:1]

    def recipe(self, data: str) -> Recipe:
        """Return the recipe of the data set for this mechanism."""
        task = EMBEDDED[data].task
        named = usual_recipe(task, PREFIX + data)
        recipe = recipe_for(task, named, self.attention, self.layers, self.options, self.boost)
        return (
            recipe if self.ksvd_weight is None else dataclasses.replace(recipe, ksvd_weight=self.ksvd_weight)
        )


_ALL = "0-1"
_COMPARED = (
    Planned("softmax", seeds=SEEDS),
    Planned("softmax-shuffled", shuffled=True),
    Planned("primal", "primal", seeds=SEEDS),
    Planned("primal-all", "primal", _ALL, seeds=SEEDS),
    Planned("primal-independent", "primal-independent"),
)
"""chen2023: in the last layer (Primal.+Trans.), in all (PrimalFormer), and with data-independent weights."""
_ARENA = (
    *_COMPARED,
    Planned("primal-e", "primal", options={"scores": "e"}),
    Planned("primal-all-e", "primal", _ALL, options={"scores": "e"}),
    Planned("tssa", "tssa", options={"convention": "as_implemented"}, seeds=SEEDS),
    Planned("bilateral", "bilateral", seeds=SEEDS),
    Planned("bilateral-boost", "bilateral", boost=True),
    Planned("softmax-boost", boost=True),
    Planned("alibi", "alibi"),
    Planned("linformer", "linformer"),
    Planned("nystrom", "nystrom"),
)
_GRID = tuple(
    Planned(f"primal-all s={rank} η={weight}", "primal", _ALL, {"low_rank": rank}, ksvd_weight=weight)
    for rank in (20, 30, 40)
    for weight in (0.0, 0.1, 0.2, 0.5)
)
"""chen2023, Table 9."""
_SCENES = (
    Planned("softmax", seeds=SEEDS),
    Planned("softmax-shuffled", shuffled=True),
    Planned("softmax-sym", "softmax-sym", seeds=SEEDS),
    Planned("rpc-sym", "rpc-sym", seeds=SEEDS),
    Planned("softmax-boost", boost=True),
    Planned("bilateral", "bilateral", seeds=SEEDS),
    Planned("bilateral-boost", "bilateral", boost=True, seeds=SEEDS),
)
"""teo2024 Table 6: RPC-Attention beside its symmetric baseline; abdullaev2025 Table IV: bilateral attention, boost."""
_AGENTS = (
    Planned("softmax", seeds=SEEDS),
    Planned("softmax-shuffled", shuffled=True),
    Planned("primal-causal", "primal-causal", seeds=SEEDS),
    *(
        Planned(f"primal-causal s={rank}", "primal-causal", options={"low_rank": rank})
        for rank in (8, 16, 64)
    ),
)
"""chen2023 Tables 5 and 10: Primal-Attention in the last layer of a decision transformer, and its s."""
_FAN = (
    Planned("softmax", seeds=SEEDS),
    Planned("rpc-asym", "rpc-asym", seeds=SEEDS),
    Planned("softmax-sym", "softmax-sym", seeds=SEEDS),
    Planned("rpc-sym", "rpc-sym", seeds=SEEDS),
)
"""teo2024 Tables 9 and 10: its FAN has symmetric attention (Appendix E.7)."""
_TWICE = {"num_iter": 2, "lambd": 3.0}
"""teo2024, Appendices A.1 and E.8: two iterations in every layer."""
_TUNED = (
    Planned("softmax", seeds=SEEDS),
    Planned("softmax-shuffled", shuffled=True),
    Planned("softmax-sym", "softmax-sym", seeds=SEEDS),
    Planned("rpc-sym", "rpc-sym", seeds=SEEDS),
    Planned("rpc-sym-tuned", "rpc-sym", options=_TWICE, pretrained="softmax-sym", seeds=SEEDS),
    Planned("rpc-asym-tuned", "rpc-asym", options=_TWICE, pretrained="softmax", seeds=SEEDS),
)
"""teo2024 Tables 11 and 12: RPC-Attention in fine-tuning only ("…-tuned"), and also in pre-training (four iterations in
the first layer), which is not in the paper.
"""
PRETRAINED = {"passages": ("text", PREFIX + "unlabelled")}
"""Task → task and data of its pre-training runs."""
_OF_TASK = {
    "passages": _TUNED,
    "images": _FAN,
    "series": (*_COMPARED, *_GRID),
    "segmentation": _SCENES,
    "rl": _AGENTS,
}
PLAN: dict[str, tuple[Planned, ...]] = {
    name: _OF_TASK.get(entry.task, _ARENA)
    for name, entry in EMBEDDED.items()
    if entry.train and name != "photos"  # digits ask the question of Image already, in two thirds of the time
}


KEPT: dict[str, tuple[str, ...]] = {
    "digits": ("softmax", "bilateral", "tssa", "primal"),
    "mosaics": ("softmax-sym", "rpc-sym", "bilateral"),
    "genres": ("softmax-sym", "rpc-sym"),
}
"""Variants whose last checkpoint of the first seed is bundled as embedded-DATA-VARIANT, for use in notebooks."""


def names_on_record(asks_for: str) -> list[str]:
    """List the recorded embedded data that stand in for a published benchmark, in the order of `PLAN`.

    ``asks_for`` is a prefix of `Embedded.asks_for`: "Long Range Arena", "UEA archive", "D4RL".

    Raises UnknownName for a benchmark without embedded data, InputError if none of its data have a record.
    """
    published = {name: EMBEDDED[name].asks_for for name in PLAN}
    matching = [name for name in PLAN if published[name].startswith(asks_for)]
    if not matching:
        raise UnknownName("published data of embedded tasks", asks_for, sorted(set(published.values())))
    recorded_data = set(embedded_record()["data"])
    names = [name for name in matching if name in recorded_data]
    if not names:
        raise InputError(
            f"no data on record ask the question of {asks_for}; make a record with: {COMMAND} --name NAME, where NAME "
            f"is one of {', '.join(matching)} (hours each; `make embedded` makes all)"
        )
    return names


def run(
    name: str,
    planned: Planned,
    seed: int,
    work: Path,
    *,
    epochs: int | None,
    limit: int | None,
    device: str = "cpu",
) -> Path:
    """Train one run on one thread (or a GPU) unless it is complete, and return its folder."""
    out = work / name / planned.variant.replace(" ", "_") / f"seed-{seed}"
    recipe = planned.recipe(name).with_epochs(epochs)
    if _is_complete(out, recipe):
        return out
    arguments: dict[str, Any] = {"recipe": recipe}
    if planned.ksvd_weight is None:  # then the command says all of it
        arguments = {
            "attention": planned.attention,
            "layers": planned.layers,
            "options": planned.options,
            "boost": planned.boost,
        }
    task = EMBEDDED[name].task
    if task in PRETRAINED:
        arguments["start"] = pretrain(
            task,
            planned.pretrained or planned.attention,
            seed,
            work,
            epochs=epochs,
            limit=limit,
            device=device,
        )
    with one_thread():
        train(
            task,
            out,
            data=PREFIX + name,
            shuffled=planned.shuffled,
            seed=seed,
            epochs=epochs,
            limit=limit,
            device=device,
            progress=False,
            **arguments,
        )
    return out


def pretrain(
    task: str,
    attention: str,
    seed: int,
    work: Path,
    *,
    epochs: int | None,
    limit: int | None,
    device: str = "cpu",
) -> Path:
    """Train the checkpoint that runs of this task, attention and seed start from, once, and return its path."""
    before, data = PRETRAINED[task]
    out = work / data.removeprefix(PREFIX) / attention / f"seed-{seed}"
    with one_thread():
        result = train(
            before,
            out,
            attention=attention,
            data=data,
            seed=seed,
            epochs=epochs,
            limit=limit,
            device=device,
            progress=False,
        )
    return result.checkpoints[-1]


def _is_complete(out: Path, recipe: Recipe) -> bool:
    """Return whether the folder holds the complete run of this recipe, without making the data again."""
    try:
        about = json.loads((out / MODEL_FILE).read_text(encoding="utf-8"))
        recorded, wanted = about["recipe"], json.loads(json.dumps(recipe.as_dict()))
        complete = bool(about["complete"])
    except (OSError, ValueError, LookupError, TypeError):
        return False
    sizes = recorded.pop("architecture"), wanted.pop("architecture")  # the data decide some of a run's own
    return complete and recorded == wanted and sizes[0] == {**sizes[0], **sizes[1]}


def trivial(targets: Sequence[int], test: Sequence[int]) -> dict[str, float]:
    """Return the test ``accuracy`` and ``loss`` (nats) of a predictor of class frequencies in training."""
    count = Counter(targets)
    usual = min(count, key=lambda label: (-count[label], label))
    share = {label: number / len(targets) for label, number in count.items()}
    return {
        "accuracy": sum(label == usual for label in test) / len(test),
        "loss": -sum(math.log(share[label]) for label in test) / len(test),
    }


def _targets(split: Any) -> list[int]:
    return split.targets if hasattr(split, "targets") else [int(target) for _, target in split]


def collect(
    name: str,
    runs: Mapping[tuple[str, int], Path],
    data: Path,
    limit: int | None,
    undergone: Callable[[Path, str], pd.DataFrame] | None = None,
    *,
    keep_others: bool = False,
) -> dict[str, Any]:
    """Write the record of one data set from its complete runs, and return the content of its JSON file.

    ``undergone(checkpoint, task)`` returns further rows of ``split``, ``metric`` and ``value``. With ``keep_others``,
    recorded mechanisms without a run here are kept.

    Raises InputError if the runs, or the recorded mechanisms, used other data than are generated now.
    """
    about = json.loads((next(iter(runs.values())) / MODEL_FILE).read_text(encoding="utf-8"))
    characters = about["preprocessing"].get("characters", "")  # those of the model that a run began with
    task: Any = load_task(EMBEDDED[name].task, limit, data=PREFIX + name, characters=characters)
    headline = "test_normalised_return" if task.acting else f"test_{task.objective.headline}"
    scores = task.trivial(task) if task.trivial else trivial(*map(_targets, (task.train, task.test)))
    frames = [
        pd.DataFrame(
            [
                {"variant": MAJORITY, "attention": "", "seed": None, "epoch": 0, "split": "test", "metric": metric,
                 "value": value, "unit": "nats" if metric == "loss" else ""}
                for metric, value in scores.items()
            ]
        )
    ]  # fmt: skip
    listed, described, devices = [], {}, set()
    for (variant, seed), folder in runs.items():
        about = json.loads((folder / MODEL_FILE).read_text(encoding="utf-8"))
        for split in ("train", "test"):
            if about["data"][split] != task.data[split]:
                raise InputError(
                    f"{folder} was trained on other data than {PREFIX}{name} is now: start over (--restart)"
                )
        metrics = read_metrics(folder / METRICS_FILE)
        kept = metrics["metric"].isin(_CURVES) if " " not in variant else metrics["epoch"] < 0
        kept |= metrics["epoch"].isin([0, metrics["epoch"].max()])
        frames.append(
            metrics[kept & ~metrics["metric"].isin(["seconds", "peak_memory"])].assign(variant=variant)
        )
        last = about["checkpoints"][-1]
        # the control is of shuffled inputs, and these would not be
        has_conditions = undergone is not None and not about["data"].get("shuffled")
        if has_conditions and not (rows := undergone(folder / last["file"], task.name)).empty:
            frames.append(rows.assign(variant=variant, attention="", seed=seed, epoch=last["epoch"], unit=""))
        listed.append(
            {
                "variant": variant,
                "seed": seed,
                "command": about["command"],
                headline: last[headline],
                "seconds": round(float(metrics.loc[metrics["metric"] == "seconds", "value"].sum()), 1),
                "last_checkpoint_sha256": last["sha256"],
            }
        )
        described[variant] = about["recipe"]
        devices.add(about["device"])
    folder_of_record = data / "records" / EMBEDDED_RECORDS / name
    versions = json.loads((folder / MODEL_FILE).read_text(encoding="utf-8"))["versions"]
    if keep_others and (folder_of_record / RECORD_FILE).is_file():
        rows, old = _others_on_record(folder_of_record, described, task.data)
        frames.append(rows)
        listed, described = [*old["runs"], *listed], {**old["recipes"], **described}
        if old["versions"] != versions or old.get("device", "") != " and ".join(sorted(devices)):
            origin = {key: old[key] for key in ("versions", "device") if key in old}
            listed = [run if run["variant"] not in old["recipes"] else {**origin, **run} for run in listed]
    frame = pd.concat(frames, ignore_index=True).assign(data=name)
    frame["seed"] = frame["seed"].astype("Int64")
    about = {
        "name": name,
        "title": EMBEDDED[name].title,
        "asks_for": EMBEDDED[name].asks_for,
        "command": f"{COMMAND} --name {name}",
        "device": " and ".join(sorted(devices)),
        "threads": 1,
        "trivial": scores,
        "runs": listed,
        "recipes": described,
        "data": task.data,
        "versions": versions,
    }
    return write_record(folder_of_record, EPOCHS_FILE, frame[list(EMBEDDED_COLUMNS)], about)


def _others_on_record(
    folder: Path, new_variants: Mapping[str, Any], data: Mapping[str, Any]
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Return rows and description of the recorded mechanisms that are not among ``new_variants``."""
    old = json.loads((folder / RECORD_FILE).read_text(encoding="utf-8"))
    if any(old["data"][split] != data[split] for split in ("train", "test")):
        raise InputError(f"{folder} is of other data than there are now: make all of it, without --variant")
    rows = read_metrics(folder / EPOCHS_FILE)
    rows = rows[~rows["variant"].isin([MAJORITY, *new_variants])].astype({"seed": "Int64"})
    runs = [run for run in old["runs"] if run["variant"] not in new_variants]
    recipes = {variant: recipe for variant, recipe in old["recipes"].items() if variant not in new_variants}
    return rows, {**old, "runs": runs, "recipes": recipes}


def make_embedded_records(
    names: Sequence[str],
    data: Path,
    work: Path,
    *,
    workers: int = 1,
    epochs: int | None = None,
    limit: int | None = None,
    device: str = "cpu",
    undergone: Callable[[Path, str], pd.DataFrame] | None = None,
    variants: Sequence[str] = (),
) -> Iterator[str]:
    """Train the plan of these embedded data sets (all by default); yield one line for each record written.

    ``variants`` restricts the mechanisms trained; the others keep their recorded rows. ``undergone`` as in `collect`.
    Raises UnknownName for an unknown name.
    """
    for name in names:
        if name not in PLAN:
            raise UnknownName("embedded data", name, PLAN)
    plan = {
        name: [planned for planned in PLAN[name] if not variants or planned.variant in variants]
        for name in names or PLAN
    }
    for variant in variants:
        if variant not in {planned.variant for mechanisms in plan.values() for planned in mechanisms}:
            known_variants = {planned.variant for name in plan for planned in PLAN[name]}
            raise UnknownName("mechanism", variant, known_variants)
    todo = [(name, planned, seed) for name in plan for planned in plan[name] for seed in planned.seeds]
    print(f"{len(todo)} runs on {len(plan)} data sets", file=sys.stderr)
    waiting = Counter(name for name, *_ in todo)
    folders: dict[str, dict[tuple[str, int], Path]] = {name: {} for name in waiting}
    from joblib import Parallel, delayed

    together = Parallel(n_jobs=workers, return_as="generator_unordered")
    run_options: dict[str, Any] = {"epochs": epochs, "limit": limit, "device": device}
    before = {
        (EMBEDDED[name].task, planned.pretrained or planned.attention, seed) for name, planned, seed in todo
    }
    before = sorted(key for key in before if key[0] in PRETRAINED)
    with safe_path():
        # first what several runs begin with, so that no two train the same
        for checkpoint in together(delayed(pretrain)(*key, work, **run_options) for key in before):
            print(f"{checkpoint.parent}", file=sys.stderr, flush=True)
        for name, variant, seed, folder in together(
            delayed(_run_one)(*job, work, **run_options) for job in todo
        ):
            print(f"{folder}", file=sys.stderr, flush=True)
            folders[name][variant, seed] = folder
            if len(folders[name]) == waiting[name]:
                runs = {
                    (planned.variant, seed): folders[name][planned.variant, seed]
                    for planned in plan[name]
                    for seed in planned.seeds
                }
                record = collect(name, runs, data, limit, undergone, keep_others=bool(variants))
                for planned in plan[name]:
                    if planned.variant in KEPT.get(name, ()):
                        bundled = data / "models" / f"embedded-{name}-{planned.variant}"
                        copy_model(folders[name][planned.variant, planned.seeds[0]], bundled)
                yield _line(name, record)


def _run_one(
    name: str, planned: Planned, seed: int, work: Path, **run_options: Any
) -> tuple[str, str, int, Path]:
    return name, planned.variant, seed, run(name, planned, seed, work, **run_options)


def _line(name: str, record: Mapping[str, Any]) -> str:
    scores: dict[str, list[float]] = {}
    headline = next(key for key in record["runs"][0] if key.startswith("test_"))
    for run in record["runs"]:
        scores.setdefault(run["variant"], []).append(run[headline])
    best = ", ".join(
        f"{variant} {sum(all_) / len(all_):.3f}" for variant, all_ in scores.items() if " " not in variant
    )
    metric = headline.removeprefix("test_")
    return f"{name}: test {metric} {best}; trivial {record['trivial'][metric]:.3f}"
