"""Read the committed records of long runs: training and evaluation of the bundled models, scaling, claims, theorems.

``make train``, ``make records`` and ``make scaling`` write them to ``data/records``; ``make confirm`` writes those of
the confirmatory seeds to ``data/confirmed/records``. Every read checks the recorded hash.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from workbench.core import paths
from workbench.core.errors import InputError, MissingResource, UnknownName
from workbench.core.files import atomic_write, jsonable, sha256_file, write_json
from workbench.core.threads import one_thread
from workbench.frames.results import shared
from workbench.models.catalog import ATTENTION_KEYS
from workbench.papers.verdicts import evidence
from workbench.studies.seeds import CONFIRMATORY, CONFIRMED, CONTINUED, EXPLORED

RECORD_FILE, METRICS_FILE, EVALUATIONS_FILE = "record.json", "metrics.csv", "evaluations.csv"
POINTS_FILE, EPOCHS_FILE, CLAIMS_FILE, THEOREMS_FILE = (
    "points.csv",
    "epochs.csv",
    "claims.csv",
    "theorems.csv",
)
ROBUSTNESS, OPERATORS, CLAIMS, THEOREMS = "robustness", "operators", "claims", "theorems"
"""Records of evaluations, of the efficiency study, of claims and of theorems; all others are of training."""
EMBEDDED_RECORDS = "embedded"
"""Folder of the records of embedded tasks, one for each data set."""
LEARNED, PILOTS_FILE = "learned", "pilots.csv"
"""Record of the pilot runs, which decide which embedded data sets are learned."""
EMBEDDED_COLUMNS = (
    "data", "variant", "attention", "seed", "epoch", "split", "metric", "value", "unit",
)  # fmt: skip
EVALUATION_COLUMNS = (
    "model", "checkpoint", "inputs", "n", "seed", "protocol", "kind", "epsilon", "severity", "metric", "value",
    "low", "high", "unit", "version",
)  # fmt: skip
CONFIRMED_COLUMNS = ("training_seed", *EVALUATION_COLUMNS, "outcomes")
"""Columns for confirmatory seeds: also whether each input was right, "0110…", in the order of the inputs."""
_TRAINING_COLUMNS = (
    "model", "run", "task", "attention", "seed", "epoch", "split", "metric", "value", "unit",
)  # fmt: skip
SCALING_COLUMNS = (
    "sweep", "figure", "operator", "condition", "layers", "heads", "width", "tokens", "metric", "value", "low", "high",
    "unit", "passes", "ended", "device", "dtype", "threads", "version",
)  # fmt: skip
_SCALING_TYPES = {
    **dict.fromkeys(("layers", "heads", "width", "tokens", "passes", "threads"), "Int64"),
    **dict.fromkeys(("value", "low", "high"), "float64"),
}
# the make target of a record; of others: train
_MADE_BY = {
    **dict.fromkeys((ROBUSTNESS, CLAIMS, THEOREMS), "records"),
    OPERATORS: "scaling",
    **dict.fromkeys((EMBEDDED_RECORDS, LEARNED), "embedded"),
}
_CLAIM_NUMBERS = (
    "published", "measured", "low", "high", "null_mean", "null_low", "null_high", "p", "p_adjusted", "p_permutation",
    "low_adjusted", "high_adjusted", "detectable", "untrained", "untrained_low", "untrained_high",
)  # fmt: skip
_EVALUATION_TYPES = {
    "training_seed": "Int64",
    "n": "Int64",
    "seed": "Int64",
    "severity": "Int64",
    **dict.fromkeys(("epsilon", "value", "low", "high"), "float64"),
}


_OF_EVALUATION = {"pixel_accuracy": "accuracy", "accuracy_top1": "accuracy"}
"""Training metric → its name in evaluations."""


def _folder(confirmed: bool = False) -> Path:
    return paths.data_dir() / ("confirmed/records" if confirmed else "records")


def trained_models(*, confirmed: bool = False) -> list[str]:
    """List the bundled models with a training record ("digits-rpc-sym"), or with one of ``confirmed`` seeds."""
    folder = _folder(confirmed)
    return sorted(path.parent.name for path in folder.glob(f"*/{METRICS_FILE}"))


def confirmed_seeds(names: Sequence[str]) -> dict[str, list[int]]:
    """Return the confirmatory seeds on record of each model that has any, without reading their numbers."""
    recorded_names = set(trained_models(confirmed=True))
    return {name: _described(name, confirmed=True)["seeds"] for name in names if name in recorded_names}


def trained_alike(name: str) -> list[str]:
    """List the recorded bundled models that differ from `name` in their attention only, `name` included.

    A ToST is not among the ViT-like models, whatever its attention, because the rest of its architecture differs.

    Raises `UnknownName` for a model without a record.
    """
    bodies = {model: _body(model) for model in trained_models()}
    if name not in bodies:
        raise UnknownName("model whose training is on record", name, bodies)
    return [model for model, body in bodies.items() if body == bodies[name]]


def _body(name: str) -> dict[str, Any]:
    """Return a bundled model's task and architecture without the attention."""
    recipe = _described(name)["recipe"]
    rest = {key: value for key, value in recipe["architecture"].items() if key not in ATTENTION_KEYS}
    return {"task": recipe["task"], **rest}


def training_record(models: str | Sequence[str] | None = None, *, confirmed: bool = False) -> pd.DataFrame:
    """Return the metrics of every epoch and seed of bundled models, concatenated.

    Columns: ``model`` (the bundled name), ``run``, ``task``, ``attention`` (ending in "+boost" if boosted), ``seed``,
    ``epoch``, ``split`` ("train", "test", "model"), ``metric``, ``value``, ``unit``; docs/training.md defines the
    metrics. ``attrs["records"]`` lists the files read, ``attrs["provenance"]`` their origin.

    Args:
        models: bundled names; all on record by default.
        confirmed: read the trained confirmatory seeds instead of the bundled ones.

    Raises:
        UnknownName: a model without a record.
        InputError: a file differs from the recorded one, or confirmatory seeds were trained by another recipe.
    """
    model_names = trained_models(confirmed=confirmed)
    names = model_names if models is None else [models] if isinstance(models, str) else list(models)
    frames, files, runs = [], [], []
    for name in names:
        if name not in model_names:
            raise UnknownName("model whose training is on record", name, model_names)
        about, path = _open(name, METRICS_FILE, confirmed=confirmed)
        if confirmed and name in trained_models() and about["recipe"] != _described(name)["recipe"]:
            raise InputError(
                f"the confirmatory seeds of {name} ({path}) were trained by another recipe than data/records/{name}: "
                "train them again with: make confirm"
            )
        frame = read_metrics(path)
        frame.insert(0, "model", name)
        frames.append(frame)
        files.append(path)
        runs.append(
            {
                "analysis": "training",
                "command": about["command"],
                "seed": about["seeds"][0],
                "seeds": about["seeds"],
                "model": {
                    "spec": f"bundled:{name}",
                    "checkpoint": None,
                    "sha256": about["runs"][0]["last_checkpoint_sha256"],
                },
                "inputs": {
                    "spec": f"task:{about['recipe']['task']}",
                    "sha256": about["data"]["test"]["sha256"],
                },
                "versions": about["versions"],
            }
        )
    joined = pd.concat(frames, ignore_index=True)
    joined.attrs = {"records": shared(files), "provenance": shared(runs), "notes": []}
    return joined


def evaluation_record(*, confirmed: bool = False) -> pd.DataFrame:
    """Return the evaluations of the bundled models: attacks, corruptions, out-of-distribution inputs, swapped words.

    Columns: `EVALUATION_COLUMNS`; with ``confirmed`` the confirmatory seeds, with `CONFIRMED_COLUMNS` and only the
    protocols that claims compare. ``attrs`` as those of `training_record`.

    Raises `MissingResource` without a record, `InputError` for a file that differs from the recorded one.
    """
    about, path = _open(ROBUSTNESS, EVALUATIONS_FILE, confirmed=confirmed)
    frame = read_evaluation(path, CONFIRMED_COLUMNS if confirmed else EVALUATION_COLUMNS)
    runs = [
        {
            "analysis": "evaluation",
            "command": about["command"],
            "seed": about["seed"],
            "model": model,
            "inputs": about["protocols"][name]["inputs"],
            "settings": about["protocols"][name]["settings"],
            "evaluation": name,
        }
        for model in about["models"].values()
        for name in frame.loc[frame["model"] == model["spec"], "protocol"].unique()
    ]
    frame.attrs = {"records": shared([path]), "provenance": shared(runs), "notes": list(about["notes"])}
    return frame


def scaling_record() -> pd.DataFrame:
    """Return the recorded time and memory of the attention operators along four sweeps (`scaling_study`).

    Columns: `SCALING_COLUMNS`. ``attrs`` as those of `training_record`.

    Raises `MissingResource` without a record, `InputError` for a file that differs from the recorded one.
    """
    about, path = _open(OPERATORS, POINTS_FILE)
    frame = pd.read_csv(path, dtype="string", keep_default_na=False, na_values=[""])
    frame = conform_scaling(frame)
    kept = ("command", "seed", "device", "dtype", "threads", "memory", "options", "versions")
    run = {"analysis": "operator-scaling", **{name: about[name] for name in kept}}
    frame.attrs = {"records": shared([path]), "provenance": shared([run]), "notes": list(about["notes"])}
    return frame


def claims_record() -> pd.DataFrame:
    """Return the recorded verdicts of `workbench.claims` on bundled models and MiniLM, one call after another.

    Columns as those of `workbench.claims`. ``attrs["calls"]`` lists the calls: paper, model, inputs, n, a hash of each
    paper's claims, notes, runs; other ``attrs`` as those of `training_record`.

    Raises `MissingResource` without a record, `InputError` for a file that differs from the recorded one.
    """
    about, path = _open(CLAIMS, CLAIMS_FILE)
    frame = read_claims(path)
    calls = [
        {**call, "runs": [{**run, "versions": about["versions"]} for run in call["runs"]]}
        for call in about["calls"]
    ]
    frame.attrs = {
        "records": shared([path]),
        "provenance": shared([run for call in calls for run in call["runs"]]),
        "notes": list(dict.fromkeys(note for call in calls for note in call["notes"])),
        "settings": {"seed": about["seed"], **about["settings"]},
        "calls": shared(calls),
    }
    return frame


def read_theorems(path: str | Path) -> pd.DataFrame:
    """Read rows of a record of theorems with the types they were written in; empty texts stay empty."""
    return pd.read_csv(
        path, keep_default_na=False, na_values={name: [""] for name in ("value", "low", "high")}
    )


def theorems_record() -> pd.DataFrame:
    """Return the measured terms of theorems and remarks in bundled models, one quantity of a model per row.

    Columns: those of `workbench.studies.theorems.Row`; ``attrs`` as those of `training_record`. Raises as
    `claims_record`.
    """
    about, path = _open(THEOREMS, THEOREMS_FILE)
    frame = read_theorems(path)
    run = {"analysis": THEOREMS, **{name: about[name] for name in ("command", "seed", "threads", "versions")}}
    frame.attrs = {"records": shared([path]), "provenance": shared([run]), "notes": []}
    return frame


def embedded_record(names: str | Sequence[str] | None = None) -> pd.DataFrame:
    """Return the training records of embedded data sets (all, or those named), concatenated.

    Columns: `EMBEDDED_COLUMNS`. ``variant`` is a mechanism of `PLAN` in `studies.training.embedded_runs`, or
    "majority", the trivial predictor, which has no seed. ``split`` is "train", "test", or a perturbation of the test
    set with its budget ("fgsm 0.02", "corruptions"). ``attrs`` as those of `training_record`.

    Raises `UnknownName` for data without a record, `InputError` for a file that differs from the recorded one.
    """
    folder = paths.data_dir() / "records" / EMBEDDED_RECORDS
    data_names = sorted(path.parent.name for path in folder.glob(f"*/{EPOCHS_FILE}"))
    frames, files, runs = [_nothing(EMBEDDED_COLUMNS)], [], []
    for name in data_names if names is None else [names] if isinstance(names, str) else names:
        if name not in data_names:
            raise UnknownName("embedded data on record", name, data_names)
        about, path = _open(f"{EMBEDDED_RECORDS}/{name}", EPOCHS_FILE)
        frame = read_metrics(path).fillna({"attention": ""}).astype({"seed": "Int64"})
        frames.append(frame.replace({"metric": _OF_EVALUATION}))
        files.append(path)
        runs.append(
            {
                "analysis": "training",
                "command": about["command"],
                "seeds": sorted({run["seed"] for run in about["runs"]}),
                "inputs": {"spec": about["data"]["source"], "sha256": about["data"]["test"]["sha256"]},
                "versions": about["versions"],
            }
        )
    joined = pd.concat(frames[1:] or frames, ignore_index=True)
    joined.attrs = {"records": shared(files), "provenance": shared(runs), "notes": []}
    return joined


def learned_record() -> pd.DataFrame:
    """Return the pilot runs, which decide on validation splits which embedded data sets are learned.

    A row per epoch, with columns ``data``, ``variant``, ``seed``, ``epoch``, ``metric``; ``value`` on the validation
    split with the lower end of its interval, ``low``; ``trivial``, the value of the trivial predictor. ``attrs`` as
    those of `training_record`.

    Raises `MissingResource` without a record, `InputError` for a file that differs from the recorded one.
    """
    about, path = _open(LEARNED, PILOTS_FILE)
    frame = read_pilots(path)
    run = {"analysis": "pilot", **{name: about[name] for name in ("command", "seed", "versions")}}
    frame.attrs = {"records": shared([path]), "provenance": shared([run]), "notes": []}
    return frame


def read_pilots(path: str | Path) -> pd.DataFrame:
    """Read the rows of a record of pilot runs."""
    return pd.read_csv(path)


def learned_in_pilots(pilots: pd.DataFrame) -> dict[tuple[str, str], bool]:
    """Return whether each mechanism learned each data set in its pilot run, by (data, variant).

    It did if, in one epoch, the lower end of the validation score's interval is above the trivial predictor.
    """
    above = (pilots["low"] > pilots["trivial"]).groupby([pilots["data"], pilots["variant"]]).any()
    return {(str(data), str(variant)): bool(learned) for (data, variant), learned in above.items()}


def beside_softmax(record: pd.DataFrame, metrics: Sequence[str]) -> pd.DataFrame:
    """Return the rows of these metrics of an `embedded_record`, as multiples of softmax's mean on the same data.

    Raises `InputError` if softmax lacks one of them.
    """
    rows = record[record["metric"].isin(metrics)]
    of_softmax = rows[rows["variant"] == "softmax"].groupby(["data", "metric"])["value"].mean()
    unit = rows[["data", "metric"]].join(of_softmax, on=["data", "metric"])["value"]
    lacking = {*metrics} - {*rows["metric"]} | {*rows.loc[unit.isna(), "metric"]}
    if lacking:
        raise InputError(f"the record has no {', '.join(sorted(lacking))} of softmax on each of its data")
    return rows.assign(value=rows["value"] / unit)


def beside_perturbed(record: pd.DataFrame, conditions: Mapping[str, str]) -> pd.DataFrame:
    """Return the last epochs of an `embedded_record`, with one data set for each perturbation of the test set.

    ``conditions`` maps words to ``split``: {"clean": "test", "FGSM, ε = 0.02": "fgsm 0.02"}. ``data`` becomes "mosaics,
    FGSM, ε = 0.02" and ``split`` "test"; other columns are unchanged. The trivial predictor ignores its inputs, so its
    score is repeated in each.

    Raises `InputError` if the record has none of the conditions.
    """
    last = record.groupby(["data", "variant", "seed"], dropna=False)["epoch"].transform("max")
    record = record[record["epoch"] == last]
    trivial = record[record["variant"] == "majority"]
    parts = []
    for (data, data_rows), (words, split) in itertools.product(
        record.groupby("data", sort=False), conditions.items()
    ):
        rows = data_rows[(data_rows["split"] == split) & (data_rows["variant"] != "majority")]
        if len(rows):
            rows = pd.concat([trivial[trivial["data"] == data], rows])
            parts.append(rows.assign(data=f"{data}, {words}", split="test"))
    if not parts:
        splits = ", ".join(map(str, record["split"].unique())) or "nothing"
        raise InputError(f"the record holds {splits}; nothing of {', '.join(conditions.values())}")
    table = pd.concat(parts, ignore_index=True)
    table.attrs = record.attrs
    return table


def scores_by_epoch(
    record: pd.DataFrame,
    metric: str = "accuracy",
    *,
    shares: Sequence[float] = (0.1, 0.3, 1),
    digits: int = 3,
) -> pd.DataFrame:
    """Return the test score of every mechanism after shares of its training, mean over seeds.

    A row per mechanism, a column per data set (or task) and epoch; ``record`` is an `embedded_record` or training
    curves. An epoch that the shares do not meet is rounded up. ``digits`` are the decimal places.

    Raises `InputError` if the record has no test rows of the metric.
    """
    rows = record[(record["split"] == "test") & (record["metric"] == metric) & (record["epoch"] > 0)]
    if rows.empty:
        raise InputError(f"the record has no test {metric}; it has {', '.join(record['metric'].unique())}")
    data, mechanism = ("data", "variant") if "variant" in rows else ("task", "label")
    last = rows.groupby(data)["epoch"].transform("max")
    wanted = pd.concat([rows["epoch"] == np.ceil((share * last).round(9)) for share in shares], axis=1).any(
        axis=1
    )
    table = rows[wanted].pivot_table("value", mechanism, [data, "epoch"], sort=False)
    return table.sort_index(axis=1).round(digits)


def recorded(models: Sequence[str], kind: Literal["training", "evaluation"]) -> pd.DataFrame:
    """Return every committed seed of the bundled `models` ("digits-vit", …), in their order; absent ones are no error.

    Columns as those of `training_record`, or `CONFIRMED_COLUMNS` of an evaluation with ``attention``; and
    ``seed_kind``: "exploratory" for seeds seen before, "confirmatory" for seeds fixed beforehand. A model's
    confirmatory seeds are included only if all of them are on record (for evaluations, budget by budget), since partial
    results could influence when to stop. The frame may be empty. ``attrs["absent"]`` gives, for every model without a
    row, the reason and the command that makes its record.
    """
    explored = trained_models()
    trained = {*explored, *trained_models(confirmed=True)}
    absent = {
        name: f"no record of the training; make it with: make train FLAGS='-m bundled:{name}'"
        for name in models
        if name not in trained
    }
    names_on_record = [name for name in models if name in trained]
    frame = (
        _every_training(names_on_record) if names_on_record else _nothing((*_TRAINING_COLUMNS, "seed_kind"))
    )
    if kind == "training":
        frame.attrs["absent"] = absent
        return frame
    attention = frame.drop_duplicates("model").set_index("model")["attention"]
    try:
        exploratory = evaluation_record()
    except MissingResource as reason:
        nothing = _nothing((*CONFIRMED_COLUMNS, "attention", "seed_kind"))
        nothing.attrs["absent"] = absent | dict.fromkeys(names_on_record, str(reason))
        return nothing
    specs = [f"bundled:{name}" for name in names_on_record]
    bundled = {
        f"bundled:{name}": _described(name)["seeds"][0] for name in names_on_record if name in explored
    }
    frames = [exploratory.assign(training_seed=exploratory["model"].map(bundled), seed_kind=EXPLORED)]
    try:
        confirmed = evaluation_record(confirmed=True)
        frames.append(_complete(confirmed[confirmed["model"].isin(specs)]).assign(seed_kind=CONFIRMED))
    except MissingResource:
        pass
    frame = pd.concat([conform_evaluation(source, (*CONFIRMED_COLUMNS, "seed_kind")) for source in frames])
    rows = frame[frame["model"].isin(specs)].reset_index(drop=True)
    names = rows["model"].str.removeprefix("bundled:")
    rows = rows.assign(attention=names.map(attention))
    order = {name: number for number, name in enumerate(names_on_record)}
    rows = rows.sort_values("model", key=lambda specs: names[specs.index].map(order), kind="stable")
    for name in set(names_on_record) - set(names):
        absent[name] = "not in the record of evaluations; make it with: make records"
    sources = [exploratory, confirmed] if len(frames) > 1 else [exploratory]
    runs = [run for source in sources for run in source.attrs["provenance"] if run["model"]["spec"] in specs]
    rows.attrs = {
        "records": shared([file for source in sources for file in source.attrs["records"]]),
        "provenance": shared(runs),
        "notes": list(dict.fromkeys(note for source in sources for note in source.attrs["notes"])),
        "absent": absent,
    }
    return rows.reset_index(drop=True)


def _every_training(names: Sequence[str]) -> pd.DataFrame:
    """Return the training of these models: exploratory seeds, and confirmatory ones if all are on record."""
    seeds = {
        name: _answering(name, seeds_on_record) for name, seeds_on_record in confirmed_seeds(names).items()
    }
    complete = [name for name, seeds_on_record in seeds.items() if seeds_on_record]
    explored = [name for name in names if name in trained_models()]
    frames = [training_record(explored).assign(seed_kind=EXPLORED)] if explored else []
    if complete:
        confirmed = training_record(complete, confirmed=True)
        fixed = [
            seed in seeds[name] for name, seed in zip(confirmed["model"], confirmed["seed"], strict=True)
        ]
        attrs = confirmed.attrs
        frames.append(confirmed[fixed].assign(seed_kind=CONFIRMED))
        frames[-1].attrs = attrs
    joined = pd.concat(frames, ignore_index=True)
    order = {name: number for number, name in enumerate(names)}
    joined = joined.sort_values("model", key=lambda column: column.map(order), kind="stable").reset_index(
        drop=True
    )
    joined.attrs = {
        "records": shared([file for part in frames for file in part.attrs["records"]]),
        "provenance": shared([run for part in frames for run in part.attrs["provenance"]]),
        "notes": [],
    }
    return joined


def _complete(confirmed: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of fixed seeds of each model and budget, where all seeds of a stage are on record."""
    keys = ["protocol", "kind", "epsilon", "severity", "metric"]
    parts = [confirmed.iloc[:0]]
    for model, model_rows in confirmed.groupby("model", sort=False):
        name = str(model).removeprefix("bundled:")
        for _, rows in model_rows.groupby(keys, dropna=False, sort=False):
            parts.append(rows[rows["training_seed"].isin(_answering(name, rows["training_seed"].tolist()))])
    return pd.concat(parts)


def _answering(name: str, seeds: Sequence[int]) -> tuple[int, ...]:
    """Return those of the recorded ``seeds`` that count as confirmatory for one model."""
    return evidence([name], CONFIRMATORY, {name: seeds}, continued=CONTINUED)[0].get(name, ())


def _nothing(columns: Sequence[str]) -> pd.DataFrame:
    frame = pd.DataFrame(columns=list(columns))
    frame.attrs = {"records": [], "provenance": [], "notes": []}
    return frame


def read_metrics(path: str | Path) -> pd.DataFrame:
    """Read the rows of a ``metrics.csv``, every digit kept; missing units become empty texts."""
    return pd.read_csv(path).fillna({"unit": ""})


def read_evaluation(path: str | Path, columns: Sequence[str] = EVALUATION_COLUMNS) -> pd.DataFrame:
    """Read an evaluation written as CSV by ``workbench study evaluate`` or a record, types restored."""
    frame = pd.read_csv(path, dtype="string", keep_default_na=False, na_values=[""])
    absent = [name for name in columns if name not in frame]
    if absent:
        raise InputError(f"{path} holds no evaluation: it has no column {', '.join(absent)}")
    return conform_evaluation(frame, columns)


def read_claims(path: str | Path) -> pd.DataFrame:
    """Read a table of `workbench.claims` from CSV, every digit kept, types restored."""
    frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    frame = frame.assign(n=frame["n"].astype(int), primary=frame["primary"] == "True")
    frame["untrained_n"] = pd.to_numeric(frame["untrained_n"]).astype("Int64")
    for name in _CLAIM_NUMBERS:  # pandas' own parser may round the last bit of a number
        frame[name] = frame[name].replace("", "nan").astype(float)
    absent = {
        name: frame[name].where(frame[name] != "") for name in ("null", "interval", "untrained_verdict")
    }
    return frame.assign(**absent)


def conform_evaluation(frame: pd.DataFrame, columns: Sequence[str] = EVALUATION_COLUMNS) -> pd.DataFrame:
    """Return the rows with exactly these columns, in order and with fixed types; absent ones are null."""
    frame = frame.reindex(columns=list(columns))
    return frame.astype({name: _EVALUATION_TYPES.get(name, "string") for name in columns})


def _described(name: str, *, confirmed: bool = False) -> dict[str, Any]:
    path = _folder(confirmed) / name / RECORD_FILE
    return json.loads(path.read_text(encoding="utf-8"))


def conform_scaling(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with exactly `SCALING_COLUMNS`, in order and with fixed types; absent ones are null."""
    frame = frame.reindex(columns=list(SCALING_COLUMNS))
    return frame.astype({name: _SCALING_TYPES.get(name, "string") for name in SCALING_COLUMNS})


def write_rows(path: Path, frame: pd.DataFrame) -> Path:
    """Write rows as CSV, as all records have them."""
    return atomic_write(path, lambda handle: frame.to_csv(handle, index=False, lineterminator="\n"))


def finished_part(
    work: Path,
    stem: str,
    question: Mapping[str, Any],
    measure: Callable[[], tuple[pd.DataFrame, Mapping[str, Any]]],
) -> tuple[Path, dict[str, Any]]:
    """Return the file of rows of one part of a record, and its origin; measure it unless ``work`` holds it.

    A part is kept as ``STEM.csv`` and ``STEM.json``, with the question that it answers: all that its numbers depend on.
    ``measure`` runs on one thread and returns the rows and their origin.
    """
    path, about = work / f"{stem}.csv", work / f"{stem}.json"
    asked = json.loads(json.dumps(jsonable(question)))
    if path.is_file() and about.is_file():
        origin = json.loads(about.read_text(encoding="utf-8"))
        if origin.pop("asked", None) == asked:
            return path, origin
    started = time.monotonic()
    with one_thread():
        frame, origin = measure()
    origin = jsonable({"seconds": round(time.monotonic() - started), **origin})
    write_rows(path, frame)
    write_json(about, {**origin, "asked": asked})
    print(f"{stem}: {origin['seconds']:.0f} s", file=sys.stderr, flush=True)
    return path, origin


def write_record(
    folder: Path, file: str, frame: pd.DataFrame, about: Mapping[str, Any], *more: Path
) -> dict[str, Any]:
    """Write a record: numbers as CSV, and a description with the hashes of the CSV and of ``more`` files.

    Returns the content of its JSON file.
    """
    path = write_rows(folder / file, frame)
    hashes = {
        os.path.relpath(written, folder).replace(os.sep, "/"): sha256_file(written)
        for written in (path, *more)
    }
    record = {**about, "files": hashes}
    write_json(folder / RECORD_FILE, record)
    return record


def _open(name: str, file: str, *, confirmed: bool = False) -> tuple[dict[str, Any], Path]:
    """Return a record's description and its file of numbers, after checking the recorded hash."""
    path = _folder(confirmed) / name / file
    where = f"data/{'confirmed/' if confirmed else ''}records/{name}/{file}"
    if not path.is_file():
        target = "confirm" if confirmed else _MADE_BY.get(name.partition("/")[0], "train")
        raise MissingResource(f"no record {where}; make it with: make {target}")
    about = _described(name, confirmed=confirmed)
    recorded, actual = about["files"][file], sha256_file(path)
    if recorded != actual:
        raise InputError(
            f"{where} is not the one that its {RECORD_FILE} describes (SHA-256 {actual[:12]}…, "
            f"recorded {recorded[:12]}…): restore it from version control, or make the record again"
        )
    return about, path
