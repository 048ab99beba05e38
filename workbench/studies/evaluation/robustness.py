"""Evaluate the bundled models for the committed record: ``workbench study records robustness``.

Attacks of many steps run on 100 fixed images, the others on every test image, perplexities on 20 held-out texts;
one seed. The dearest are left to the models of the paper that reports them. Each (model, protocol) is kept as it is
finished, so an interrupted call goes on where it stopped. Everything
ends in ``data/records/robustness``: the numbers, and what they came from.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from workbench.core.children import safe_path
from workbench.core.errors import UnknownName
from workbench.core.files import atomic_write, write_json
from workbench.frames.provenance import versions
from workbench.studies.evaluation.protocols import PROTOCOLS
from workbench.studies.evaluation.running import evaluate
from workbench.studies.records import EVALUATIONS_FILE, ROBUSTNESS, read_evaluation, write_record

COMMAND = "workbench study records robustness"
REFERENCE = "bundled:digits-vit"
"""The softmax baseline: mCE is relative to its errors."""
SEED = 0
ALL_TEST_IMAGES = 445
RUNS = {
    "image": {
        "clean": ALL_TEST_IMAGES,
        "noise": ALL_TEST_IMAGES,
        "fgsm": ALL_TEST_IMAGES,
        "corruptions": ALL_TEST_IMAGES,
        "ood": ALL_TEST_IMAGES,
        "pgd": 100,
        "spsa": 100,
        "cw": 100,
        "square": 100,
        "autoattack": 100,
    },
    "text": {"word-swap": 20},
}
"""Modality → protocol → how many inputs."""
DEAR = dict.fromkeys(
    ("spsa", "cw", "square", "autoattack"),
    ("bundled:digits-vit", "bundled:digits-softmax-sym", "bundled:digits-rpc-sym"),
)
"""Protocols that only these models undergo unless they are asked for: teo2024 alone reports them, of RPC-Attention
and its symmetric baseline, and they take five times as long as all others together."""


def make_robustness_record(
    models: Sequence[str] | None,
    protocols: Sequence[str] | None,
    data: Path,
    work: Path,
    *,
    limit: int | None = None,
    workers: int = 1,
) -> dict[str, Any]:
    """Evaluate `models` (all bundled ones trained on digits or prose) under `protocols` (``RUNS``, less ``DEAR``).

    Numbers and record go to ``data/records/robustness``, in place of what is there. Unfinished work lies in
    `work` until then; `limit` shortens every run; `workers` evaluations run at a time, on one thread
    each.
    """
    from joblib import Parallel, delayed

    wanted = _jobs(models, protocols, limit)
    with safe_path():
        done = Parallel(n_jobs=workers)(
            delayed(_finish)(model, protocol, count, work) for model, protocol, count in wanted
        )
    frame = pd.concat([read_evaluation(path) for path, _ in done], ignore_index=True)
    runs = [json.loads(about.read_text(encoding="utf-8")) for _, about in done]
    folder = data / "records" / ROBUSTNESS
    about = {
        "name": ROBUSTNESS,
        "command": COMMAND,
        "seed": SEED,
        "threads": 1,
        "reference": REFERENCE,
        "models": {run["model"]["spec"]: run["model"] for run in runs},
        "protocols": {
            run["evaluation"]: {key: run[key] for key in ("inputs", "epsilons", "settings")} for run in runs
        },
        "seconds": {f"{run['model']['spec']} {run['evaluation']}": run["seconds"] for run in runs},
        "notes": sorted({note for run in runs for note in run["notes"]}),
        "versions": versions() | {"adversarial-robustness-toolbox": _toolbox_version()},
    }
    return write_record(folder, EVALUATIONS_FILE, frame, about)


def _jobs(
    models: Sequence[str] | None, protocols: Sequence[str] | None, n: int | None
) -> list[tuple[str, str, int]]:
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
        (spec, protocol, n or count)
        for spec, modality in bundled.items()
        for protocol, count in RUNS[modality].items()
        if (models is None or spec in models)
        and (spec in DEAR.get(protocol, (spec,)) if protocols is None else protocol in protocols)
    ]


def _finish(model: str, protocol: str, n: int, work: Path) -> tuple[Path, Path]:
    """One evaluation on one thread, unless the same one lies finished in `work`: files of numbers and origin."""
    import torch

    from workbench import load

    torch.set_num_threads(1)
    stem = f"{model.removeprefix('bundled:')}-{protocol}"
    path, about = work / f"{stem}.csv", work / f"{stem}.json"
    loaded = load(model)
    asked = {"model": loaded.identity, "n": n, "defaults": _defaults(protocol), "versions": versions()}
    if path.is_file() and about.is_file():
        saved = json.loads(about.read_text(encoding="utf-8"))
        if saved.get("asked") == json.loads(json.dumps(asked)):
            return path, about
    reference = REFERENCE if protocol == "corruptions" else None
    frame = evaluate(loaded, protocol, n=n, seed=SEED, reference=reference)
    origin = {**frame.attrs["provenance"][0], "notes": frame.attrs["notes"], "asked": asked}
    atomic_write(path, lambda handle: frame.to_csv(handle, index=False, lineterminator="\n"))
    write_json(about, origin)
    print(f"{model} {protocol}: {origin['seconds']:.0f} s", file=sys.stderr, flush=True)
    return path, about


def _defaults(protocol: str) -> dict[str, Any]:
    chosen = PROTOCOLS[protocol]
    return {"epsilons": list(chosen.budgets), "settings": chosen.defaults}


def _toolbox_version() -> str | None:
    import importlib.metadata

    try:
        return importlib.metadata.version("adversarial-robustness-toolbox")
    except importlib.metadata.PackageNotFoundError:
        return None
