"""Measure claims about models at hand for the committed record, and read them from it.

``workbench study records claims`` measures the default `QUESTIONS` of the notebook `claims` and writes
``data/records/claims``, because a call of `workbench.claims` takes minutes. Each call is kept when it is finished, so
an interrupted command resumes. `measured_claims` reads recorded calls and measures the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from workbench.core.children import safe_path
from workbench.core.errors import MissingResource
from workbench.core.files import sha256_bytes
from workbench.frames.provenance import versions
from workbench.frames.results import is_random, join_frames, provenance_of, shared
from workbench.papers import verdicts
from workbench.papers.published import RECORDED, stated_claims
from workbench.studies.records import (
    CLAIMS,
    CLAIMS_FILE,
    claims_record,
    finished_part,
    read_claims,
    write_record,
)

COMMAND = "workbench study records claims"
SEED, NULL_SAMPLES, UNTRAINED = 0, 20, 6
_WORDS = ["place", "claim", "interpretation", "label", "stated"]
"""Columns without influence on measured numbers, so today's wording replaces the recorded one."""


class _Question(NamedTuple):
    """One call of `workbench.claims`: the claims of a paper, or of all, about a model on n inputs."""

    paper: str | None
    model: str
    inputs: str
    n: int


QUESTIONS = (
    _Question(None, "bundled:digits-vit", "bundled:digits", 25),
    _Question(None, "all-MiniLM-L6-v2", "bundled:prose", 8),
    _Question("wu2025", "bundled:digits-tost", "bundled:digits", 25),
    _Question("chen2023", "bundled:digits-primal", "bundled:digits", 25),
    _Question("abdullaev2025", "bundled:digits-bilateral-boost", "bundled:digits", 25),
)
"""The recorded calls: the defaults of the notebook `claims`."""


def measured_claims(
    questions: Iterable[tuple[str | None, str, str, int]],
    *,
    seed: int = SEED,
    null_samples: int = NULL_SAMPLES,
    untrained: int = UNTRAINED,
    again: bool = False,
    progress: bool = False,
) -> pd.DataFrame:
    """Return `workbench.claims` for several (paper, model, inputs, n), read from the record where possible.

        measured_claims([("wu2025", "bundled:digits-tost", "bundled:digits", 25)])

    A question is on record with just these settings, the claims as they are stated today, and the weights that the
    model has here; every other one is measured, and with ``again`` all are. A record of all papers answers a question
    about one of them: verdicts do not depend on other papers. If the weights are not on this machine the record
    stands, and a note says that nobody compared them.

    ``attrs["records"]`` names the record where rows are from it, ``attrs["absent"]`` lists models that this machine
    cannot have, with the reason; ``provenance`` and ``notes`` are those of `workbench.claims`.

    Raises `MissingResource` where all models are absent, `InputError` for a record that was changed, and what
    `workbench.claims` raises.
    """
    from workbench.papers.claims import claims

    frames, absent = [], {}
    settings: dict[str, Any] = {"seed": seed, "null_samples": null_samples, "untrained": untrained}
    for question in (_Question(*call) for call in questions):
        rows = None if again else _on_record(question, settings)
        if rows is None:
            try:
                rows = claims(**question._asdict(), **settings, progress=progress)
            except MissingResource as reason:
                absent[question.model] = str(reason).splitlines()[0]
                continue
        frames += [rows] if len(rows) else []
    if not frames:
        raise MissingResource(
            "; ".join(f"{name}: {why}" for name, why in absent.items()) or "no model to ask"
        )
    joined = join_frames(frames)
    joined.attrs["absent"] = absent
    return joined


def _on_record(question: _Question, settings: Mapping[str, Any]) -> pd.DataFrame | None:
    """Return the recorded rows that answer this question, or None if claims or weights differ."""
    from workbench.models.loading import find_device

    try:
        record = claims_record()
    except MissingResource:
        return None
    stated = _stated(question.paper)
    hashes = _sha256_by_paper(stated)
    calls = [
        call
        for call in record.attrs["calls"]
        if all(call[name] == getattr(question, name) for name in ("model", "inputs", "n"))
        and hashes.items() <= call["claims"].items()
    ]
    if not calls or record.attrs["settings"] != settings or find_device(None).type != "cpu":
        return None
    runs = [run for run in calls[0]["runs"] if run["analysis"] in {*stated["analysis"]}]
    unseen = []
    for spec, checkpoint, sha256 in _weights(runs):
        try:
            if _weights_sha256(spec, checkpoint) != sha256:
                return None
        except MissingResource:
            unseen.append(
                f"{spec} is not on this machine: its claims are those on record, of weights {sha256[:12]}…"
            )
    rows = record[(record["model"] == question.model) & (record["inputs"] == question.inputs)]
    rows = rows[rows["paper"].isin(stated["paper"])]
    words = {name: stated[name].tolist() for name in _WORDS}
    rows = rows.reset_index(drop=True).assign(**words)
    for family in verdicts.families(rows):  # a date decides with which others a claim is judged
        if not np.allclose(family["p_adjusted"], verdicts.holm(family["p"]), rtol=1e-9, atol=0):
            return None
    rows.attrs = {
        "records": record.attrs["records"],
        "provenance": shared(runs),
        "notes": [*dict.fromkeys(note for run in runs for note in run.get("notes", ())), *unseen],
    }
    return rows


def _stated(paper: str | None) -> pd.DataFrame:
    """Return the claims about a model at hand, as `workbench.claims` takes them."""
    stated = stated_claims(paper)
    return stated[~stated["analysis"].isin(RECORDED)]


def _sha256_by_paper(stated: pd.DataFrame) -> dict[str, str]:
    """Hash the claims of each paper, without their wording."""
    return {
        str(paper): sha256_bytes(rows.drop(columns=_WORDS).to_csv(index=False).encode())
        for paper, rows in stated.groupby("paper", sort=False)
    }


def _weights(runs: Iterable[Mapping[str, Any]]) -> list[tuple[str, str | None, str]]:
    """List the trained models that ran, their checkpoints and the hashes of their weights, each once.

    Random weights are left out: their checkpoint names their seed, and another version of a library may draw others.
    """
    models = [run["model"] for run in runs if run.get("model")]
    models = [model for model in models if not is_random(model["checkpoint"])]
    return [*dict.fromkeys((model["spec"], model["checkpoint"], model["sha256"]) for model in models)]


@cache
def _weights_sha256(spec: str, checkpoint: str | None) -> str:
    from workbench.models.loading import load

    return load(spec, checkpoint=checkpoint, device="cpu").fingerprint


def make_claims_record(data: Path, work: Path, *, workers: int = 1) -> dict[str, Any]:
    """Measure all `QUESTIONS` and replace ``data/records/claims``.

    Unfinished work is kept in `work`; `workers` questions run in parallel, on one thread each. Raises MissingResource
    if a model is not on this machine.
    """
    from joblib import Parallel, delayed

    with safe_path():
        done = Parallel(n_jobs=workers)(delayed(_answer)(question, work) for question in QUESTIONS)
    frame = pd.concat([read_claims(path) for path, _ in done], ignore_index=True)
    about = {
        "name": CLAIMS,
        "command": COMMAND,
        "seed": SEED,
        "settings": {"null_samples": NULL_SAMPLES, "untrained": UNTRAINED},
        "threads": 1,
        "calls": [call for _, call in done],
        "versions": versions(),
    }
    return write_record(data / "records" / CLAIMS, CLAIMS_FILE, frame, about)


def _answer(question: _Question, work: Path) -> tuple[Path, dict[str, Any]]:
    """Answer one question unless `work` has its answer; return the file of rows and their origin."""
    from workbench.models.loading import load
    from workbench.papers.claims import claims

    call = {**question._asdict(), "claims": _sha256_by_paper(_stated(question.paper))}
    weights = load(question.model, device="cpu").fingerprint
    settings: dict[str, Any] = {"seed": SEED, "null_samples": NULL_SAMPLES, "untrained": UNTRAINED}

    def measure() -> tuple[pd.DataFrame, dict[str, Any]]:
        frame = claims(**question._asdict(), **settings, device="cpu")
        runs = [
            {key: value for key, value in run.items() if key != "versions"} for run in provenance_of(frame)
        ]
        return frame, {**call, "notes": frame.attrs["notes"], "runs": runs}

    stem = question.model.rpartition(":")[2]
    return finished_part(
        work, stem, {**call, "weights": weights, **settings, "versions": versions()}, measure
    )
