"""Evaluate the bundled models for the committed record: ``workbench study records robustness [--confirm]``.

Attacks of many steps run on 100 fixed images, the others on every test image, perplexities on 20 held-out texts, with
one seed. The most expensive are restricted to the models of the paper that reports them. Each (model, protocol) is kept
when it is finished, so an interrupted call resumes. Numbers and their origin go to ``data/records/robustness``.
Confirmatory seeds undergo only the comparisons in claims, and go to ``data/confirmed/records/robustness``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from workbench.core.children import safe_path
from workbench.core.errors import InputError, MissingResource, UnknownName
from workbench.core.files import sha256_file
from workbench.frames.provenance import versions
from workbench.papers.published import claim_options, stated_claims
from workbench.papers.verdicts import parse_measure
from workbench.studies.evaluation.evaluating import evaluate
from workbench.studies.evaluation.protocols import PROTOCOLS
from workbench.studies.records import (
    CONFIRMED_COLUMNS,
    EVALUATION_COLUMNS,
    EVALUATIONS_FILE,
    RECORD_FILE,
    ROBUSTNESS,
    conform_evaluation,
    finished_part,
    read_evaluation,
    write_record,
)

COMMAND = "workbench study records robustness"
_REFERENCE = "bundled:digits-vit"
"""The softmax baseline: mCE is relative to its errors."""
SEED = 0
_ALL_TEST_IMAGES = 445
RUNS = {
    "image": {
        "clean": _ALL_TEST_IMAGES,
        "noise": _ALL_TEST_IMAGES,
        "fgsm": _ALL_TEST_IMAGES,
        "corruptions": _ALL_TEST_IMAGES,
        "ood": _ALL_TEST_IMAGES,
        "pgd": 100,
        "sld": 100,
        "spsa": 100,
        "cw": 100,
        "square": 100,
        "autoattack": 100,
        "pgd-random": 100,
        "transfer": 100,
    },
    "text": {"word-swap": 20},
}
"""Modality → protocol → number of inputs."""
DEAR = {
    **dict.fromkeys(
        ("sld", "spsa", "cw", "square", "autoattack"),
        ("bundled:digits-vit", "bundled:digits-softmax-sym", "bundled:digits-rpc-sym"),
    ),
    **dict.fromkeys(("pgd-random", "transfer"), ("bundled:digits-softmax-sym", "bundled:digits-rpc-sym")),
}
"""Protocols restricted to these models by default: only teo2024 reports them, for RPC-Attention and its symmetric
baseline, and together they take five times as long as all others.
"""


class _Job(NamedTuple):
    """One evaluation: its weights, protocol, and file names."""

    model: str
    protocol: str
    n: int
    stem: str
    seed: int | None = None
    """Seed of a confirmatory training, whose weights are not bundled."""
    epsilons: tuple[float, ...] | None = None
    file: Path | None = None


def make_robustness_record(
    models: Sequence[str] | None,
    protocols: Sequence[str] | None,
    data: Path,
    work: Path,
    *,
    limit: int | None = None,
    workers: int = 1,
    runs: Path | None = None,
) -> dict[str, Any]:
    """Evaluate models under protocols and write ``data/records/robustness``.

    The record is replaced; with named models or protocols, other rows are kept if their weights are still the bundled
    ones.

    Args:
        models: specs; all bundled models of digits or prose by default.
        protocols: names; ``RUNS`` without ``DEAR`` by default.
        data: the folder of ``records/``.
        work: folder of unfinished work.
        limit: number of inputs of every run.
        workers: number of parallel evaluations, on one thread each.
        runs: the folder written by ``workbench study records training --confirm``. Its seeds that `data` has on record
            are evaluated instead of the bundled weights, under the comparisons in claims (`claimed`), with per-input
            outcomes. Other recorded rows of these seeds are kept; a seed without weights in `runs` is skipped if all of
            its budgets are on record.

    Raises:
        UnknownName: an unknown model or protocol, or a model that no claim compares.
        InputError: weights differ from the recorded ones.
        MissingResource: no seed has its weights.
    """
    from joblib import Parallel, delayed

    if runs is None:
        wanted = _jobs(models, protocols, limit)
    else:
        wanted = _confirmatory_jobs(models, protocols, limit, data, runs)
    with safe_path():
        done = Parallel(n_jobs=workers)(delayed(_finish)(job, work) for job in wanted)
    columns = EVALUATION_COLUMNS if runs is None else CONFIRMED_COLUMNS
    frame = pd.concat([read_evaluation(path, columns) for path, _ in done], ignore_index=True)
    origins = [origin for _, origin in done]
    names = [job.stem.removesuffix(f"-{job.protocol}") if job.seed else job.model for job in wanted]
    about = {
        "name": ROBUSTNESS,
        "command": COMMAND if runs is None else f"{COMMAND} --confirm",
        "seed": SEED,
        "threads": 1,
        **({"reference": _REFERENCE} if runs is None else {}),
        "models": {name: run["model"] for name, run in zip(names, origins, strict=True)},
        "protocols": {
            run["evaluation"]: {key: run[key] for key in ("inputs", "epsilons", "settings")}
            for run in origins
        },
        "seconds": {
            f"{name} {run['evaluation']}": run["seconds"] for name, run in zip(names, origins, strict=True)
        },
        "notes": sorted({note for run in origins for note in run["notes"]}),
        "versions": versions() | {"adversarial-robustness-toolbox": _toolbox_version()},
    }
    folder = data / "records" / ROBUSTNESS
    if (runs is not None or models or protocols) and (folder / RECORD_FILE).is_file():
        frame, about = _with_recorded(
            folder, frame, about, _weights_of_bundled if runs is None else _weights_on_record(folder)
        )
    return write_record(folder, EVALUATIONS_FILE, frame, about)


def _weights_on_record(folder: Path) -> Callable[[str], str | None]:
    """Return the hash of the last checkpoint of NAME-SEED in its training record."""
    hashes = {
        f"{path.parent.name}-{run['seed']}": run["last_checkpoint_sha256"]
        for path in folder.parent.glob(f"*/{RECORD_FILE}")
        for run in json.loads(path.read_text(encoding="utf-8")).get("runs", ())
    }
    return hashes.get


def _weights_of_bundled(spec: str) -> str | None:
    from workbench import load
    from workbench.models.catalog import bundled_models

    is_bundled = spec in {entry.spec for entry in bundled_models()}
    return load(spec).identity["sha256"] if is_bundled else None


def _with_recorded(
    folder: Path, frame: pd.DataFrame, about: dict[str, Any], weights: Callable[[str], str | None]
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Merge the record with recorded rows of other seeds, models and protocols whose weights are unchanged.

    ``weights``: a model's name in the record → its hash.
    """
    old = json.loads((folder / RECORD_FILE).read_text(encoding="utf-8"))
    same = {
        name: entry.get("file_sha256", entry["sha256"]) == weights(name)
        for name, entry in old["models"].items()
    }
    stays = [key for key in old["seconds"] if key not in about["seconds"] and same[key.rpartition(" ")[0]]]
    rows = read_evaluation(folder / EVALUATIONS_FILE, tuple(frame.columns))
    names = rows["model"]
    if "training_seed" in rows:
        names = names.str.removeprefix("bundled:") + "-" + rows["training_seed"].astype(str)
    rows = rows[(names + " " + rows["protocol"]).isin(stays)]
    stay = {key.rpartition(" ")[0]: old["models"][key.rpartition(" ")[0]] for key in stays}
    joined = {
        **about,
        "models": stay | about["models"],
        "protocols": old["protocols"] | about["protocols"] if stays else about["protocols"],
        "seconds": {key: old["seconds"][key] for key in stays} | about["seconds"],
        "notes": sorted({*(old["notes"] if stays else ()), *about["notes"]}),
    }
    order = [name for column in RUNS.values() for name in column]
    both = pd.concat([rows, frame], ignore_index=True)
    by = ["model", *(["training_seed"] if "training_seed" in both else []), "protocol"]
    both = both.sort_values(
        by,
        kind="stable",
        ignore_index=True,
        key=lambda column: column.map(order.index) if column.name == "protocol" else column,
    )
    return both, joined


def claimed() -> dict[str, dict[str, tuple[float, ...]]]:
    """Return the budgets under which a claim of ``claims.csv`` compares a model: model → protocol → budgets.

    Each list of budgets includes 0, no perturbation, as the reference.
    """
    budgets_of: dict[str, dict[str, set[float]]] = {}
    for claim in stated_claims().query("analysis == 'evaluation'").to_dict("records"):
        (term,) = parse_measure(claim["measure"])
        for name in claim_options(claim["options"]).values():
            budgets = budgets_of.setdefault(name, {}).setdefault(term.where["protocol"], set())
            budgets |= {0.0, float(term.where["epsilon"])} if "epsilon" in term.where else set()
    return {
        name: {protocol: tuple(sorted(budgets)) for protocol, budgets in by_protocol.items()}
        for name, by_protocol in budgets_of.items()
    }


def _budgets_on_record(folder: Path) -> dict[tuple[str, str], set[float]]:
    """Return (hash of the weights, protocol) → budgets on record, NaN for a protocol without budgets."""
    if not (folder / RECORD_FILE).is_file():
        return {}
    models = json.loads((folder / RECORD_FILE).read_text(encoding="utf-8"))["models"]
    rows = read_evaluation(folder / EVALUATIONS_FILE, CONFIRMED_COLUMNS)
    names = rows["model"].str.removeprefix("bundled:") + "-" + rows["training_seed"].astype(str)
    budgets: dict[tuple[str, str], set[float]] = {}
    for name, protocol, epsilon in zip(names, rows["protocol"], rows["epsilon"], strict=True):
        budgets.setdefault((models[name]["file_sha256"], protocol), set()).add(epsilon)
    return budgets


def _confirmatory_jobs(
    models: Sequence[str] | None, protocols: Sequence[str] | None, n: int | None, data: Path, runs: Path
) -> list[_Job]:
    """Return the claimed evaluations of every recorded seed whose weights are in `runs`."""
    chosen = claimed()
    for name in models or ():
        if name.removeprefix("bundled:") not in chosen:
            raise UnknownName("model that a claim about robustness compares", name, chosen)
    for name in protocols or ():
        if name not in PROTOCOLS:
            raise UnknownName("protocol", name, PROTOCOLS)
    counts = {protocol: count for of_modality in RUNS.values() for protocol, count in of_modality.items()}
    jobs, recorded = [], _budgets_on_record(data / "records" / ROBUSTNESS)
    for name in chosen:
        about = data / "records" / name / RECORD_FILE
        if (models is not None and f"bundled:{name}" not in models) or not about.is_file():
            continue
        for run in json.loads(about.read_text(encoding="utf-8"))["runs"]:
            folder = runs / name / f"seed-{run['seed']}"
            file = max(folder.glob("epoch-*.safetensors"), default=None)
            chosen_budgets = {
                protocol: budgets
                for protocol, budgets in chosen[name].items()
                if protocols is None or protocol in protocols
            }
            weights = run["last_checkpoint_sha256"]
            if file is None and all(
                (weights, protocol) in recorded and {*budgets} <= recorded[weights, protocol]
                for protocol, budgets in chosen_budgets.items()
            ):
                continue
            if file is None or sha256_file(file) != weights:
                raise InputError(
                    f"{folder} does not hold the weights that {about} describes: say with --runs where they are, or "
                    "train them again with: make confirm"
                )
            jobs += [
                _Job(
                    f"file:{file}", protocol, n or counts[protocol], f"{name}-{run['seed']}-{protocol}", run["seed"],
                    budgets or None, file,
                )
                for protocol, budgets in chosen_budgets.items()
            ]  # fmt: skip
    if not jobs:
        raise MissingResource(
            f"no confirmatory seed on record in {data / 'records'} has its weights in {runs}; train them with: "
            "make confirm"
        )
    return jobs


def _jobs(models: Sequence[str] | None, protocols: Sequence[str] | None, n: int | None) -> list[_Job]:
    from workbench.models.catalog import bundled_models

    bundled = {
        entry.spec: entry.modality
        for entry in bundled_models()
        if entry.alias.startswith(("digits-", "prose-"))
    }
    for name in models or ():
        if name not in bundled:
            raise UnknownName("bundled model of digits or prose", name, bundled)
    for name in protocols or ():
        if name not in PROTOCOLS:
            raise UnknownName("protocol", name, PROTOCOLS)
    return [
        _Job(spec, protocol, n or count, f"{spec.removeprefix('bundled:')}-{protocol}")
        for spec, modality in bundled.items()
        for protocol, count in RUNS[modality].items()
        if (models is None or spec in models)
        and (spec in DEAR.get(protocol, (spec,)) if protocols is None else protocol in protocols)
    ]


def _finish(job: _Job, work: Path) -> tuple[Path, dict[str, Any]]:
    """Run one evaluation unless `work` has it, and return its file of numbers and its origin."""
    from workbench import load

    loaded = load(job.model)
    defaults = _defaults(job.protocol) | ({"epsilons": list(job.epsilons)} if job.epsilons else {})
    identity: dict[str, Any] = {**loaded.identity}
    if job.file is not None:  # not where it lies, which is another place on every machine
        name = f"bundled:{job.file.parent.parent.name}"
        identity |= {"spec": name, "training_seed": job.seed, "file_sha256": sha256_file(job.file)}

    def measure() -> tuple[pd.DataFrame, dict[str, Any]]:
        frame = evaluate(
            loaded,
            job.protocol,
            n=job.n,
            seed=SEED,
            epsilons=job.epsilons,
            reference=_REFERENCE if job.protocol == "corruptions" and job.file is None else None,
            outcomes=job.file is not None,
        )
        notes = [note.replace(job.model, str(identity["spec"])) for note in frame.attrs["notes"]]
        origin = {**frame.attrs["provenance"][0], "model": identity, "notes": notes}
        if job.file is not None:
            frame = conform_evaluation(
                frame.assign(training_seed=job.seed, model=identity["spec"]), CONFIRMED_COLUMNS
            )
        return frame, origin

    question = {"model": identity, "n": job.n, "defaults": defaults, "versions": versions()}
    return finished_part(work, job.stem, question, measure)


def _defaults(protocol: str) -> dict[str, Any]:
    chosen = PROTOCOLS[protocol]
    return {"epsilons": list(chosen.budgets), "settings": chosen.defaults}


def _toolbox_version() -> str | None:
    import importlib.metadata

    try:
        return importlib.metadata.version("adversarial-robustness-toolbox")
    except importlib.metadata.PackageNotFoundError:
        return None
