"""Train pilot runs, which decide on a validation split whether a mechanism learns an embedded data set.

A pilot trains one mechanism by its recipe, with the seed `PILOT`, on a training set without its validation split. After
every epoch the validation split is scored. The pilot ends as soon as the score's interval is above the trivial
predictor. The test set is not read. ``workbench study records learned`` makes the record and resumes.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch.utils.data import DataLoader, Subset

from workbench.core.errors import UnknownName
from workbench.core.files import sha256_bytes
from workbench.core.intervals import share_interval
from workbench.core.threads import one_thread
from workbench.frames.provenance import versions
from workbench.papers.published import claim_options, stated_claims
from workbench.studies.records import (
    EMBEDDED_RECORDS,
    LEARNED,
    PILOTS_FILE,
    RECORD_FILE,
    read_metrics,
    write_record,
)
from workbench.studies.seeds import PILOT
from workbench.studies.training.embedded_runs import PLAN, PRETRAINED, Planned, pretrain
from workbench.studies.training.feeding import feed
from workbench.studies.training.loop import Trainer, reproducible
from workbench.studies.training.starting import read_start
from workbench.studies.training.tasks import load_task
from workbench.studies.training.tasks.embedded import EMBEDDED, PREFIX, SEED, written
from workbench.studies.training.tasks.embedded.prose import GENRES, LENGTH, STRIDE
from workbench.studies.training.tasks.images import CUTS

if TYPE_CHECKING:
    from workbench.studies.training.tasks import Task

SHARE = 0.2
"""Share of the sources of each class in the validation split, rounded, at least one."""
ERROR = 0.05
"""Chance that one of two mechanisms at chance is called learned: half for each, divided by the number of epochs."""
RESAMPLES = 20_000
"""Bootstrap samples of the validation images, for a mean IoU."""
COMMAND = "workbench study records learned"


def split_numbers(name: str, folder: Path, targets: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the numbers of the training examples that a pilot trains on, and of its validation split.

    ``folder`` holds the written files of the embedded data ``name``. Sources are drawn by the seed of the data: files
    of prose, fifths of each of five files, tiles of a photograph, otherwise single examples. No source, and no two
    passages that overlap, are in both parts; within the validation split no two cuts or passages overlap. Pairs of
    passages are in a part if both their files are, as many of one file as of two.
    """
    if EMBEDDED[name].task == "retrieval":
        return _split_pairs(folder, targets)
    examples = _sources(name, folder, targets)
    held_out = examples["source"].isin(_held_out(examples))
    validation: list[int] = []
    for _, rows in examples[held_out].groupby("text"):
        last = -np.inf
        for number, place in rows["place"].sort_values().items():
            if place - last >= rows["apart"].iloc[0]:
                validation.append(int(number))
                last = place
    away = pd.Series(np.inf, examples.index)
    for text, rows in examples[held_out].groupby("text"):
        others = examples[~held_out & (examples["text"] == text)]
        distance = np.abs(others["place"].to_numpy()[:, None] - rows["place"].to_numpy()).min(1)
        away[others.index] = distance
    training = examples.index[~held_out & (away >= examples["apart"])].tolist()
    return training, sorted(validation)


def _sources(name: str, folder: Path, targets: Sequence[int]) -> pd.DataFrame:
    """Return ``stratum``, ``source`` and ``text`` of every example, its ``place`` there, and how far overlap reaches."""
    task = EMBEDDED[name].task
    frame = pd.DataFrame({"stratum": targets, "place": 0, "apart": 1})
    frame["source"] = frame["text"] = [f"{number:05d}" for number in frame.index]
    if task == "segmentation":
        return frame.assign(stratum=0)
    if task in ("bytes", "passages"):
        stems = [path.stem.split("_") for path in sorted((folder / "train").glob("*/*"))]
        files, place = pd.Series([stem[0] for stem in stems]), pd.Series([int(stem[1]) for stem in stems])
        parts = place * 5 // (place.groupby(files).transform("max") + 1)
        source = files + "." + parts.astype(str) if name == "five-files" else files
        return frame.assign(source=source, text=files, place=place, apart=-(-LENGTH // STRIDE["train"]))
    if name == "cuts":
        numbers = pd.Series([int(path.stem) for path in sorted((folder / "train").glob("*/*"))])
        tile = (numbers // CUTS**2).astype(str)
        return frame.assign(source=tile, text=tile, place=numbers % CUTS**2, apart=CUTS**2)
    return frame


def _held_out(examples: pd.DataFrame) -> set[str]:
    draw, chosen = np.random.default_rng(SEED), set()
    for _, sources in examples.drop_duplicates("source").groupby("stratum")["source"]:
        chosen.update(draw.permutation(sorted(sources))[: max(1, round(SHARE * len(sources)))].tolist())
    return chosen


def _split_pairs(folder: Path, targets: Sequence[int]) -> tuple[list[int], list[int]]:
    (table,) = folder.glob("*.train.tsv")
    rows = [line.split("\t")[1:3] for line in table.read_text(encoding="utf-8").splitlines()]
    pairs = [{passage.partition("_")[0] for passage in row} for row in rows]
    genre = {file: name for name, files in GENRES.items() for file in files}
    files = sorted(set.union(*pairs))
    held_out = _held_out(pd.DataFrame({"source": files, "stratum": [genre[file] for file in files]}))
    parts = (
        [number for number, pair in enumerate(pairs) if not pair & held_out],
        [number for number, pair in enumerate(pairs) if pair <= held_out],
    )
    return _balanced(parts[0], targets), _balanced(parts[1], targets)


def _balanced(numbers: Sequence[int], targets: Sequence[int]) -> list[int]:
    """Return the first numbers of every class, equally many of each."""
    classes = pd.Series([targets[number] for number in numbers], index=numbers)
    fewest = int(classes.value_counts().min())
    return sorted(classes.groupby(classes).head(fewest).index.tolist())


def lower_end(scores: Mapping[str, np.ndarray], task: Task, level: float) -> float:
    """Return the lower end of the interval of the task's main score over validation examples.

    Wilson's interval for an accuracy, otherwise percentiles of a bootstrap over examples.
    """
    table = np.stack([*scores.values()], axis=1)
    n, headline = len(table), task.objective.headline
    if headline == "accuracy":
        return share_interval(float(scores[headline].mean()), n, level).low
    weights = np.random.default_rng(SEED).multinomial(n, np.full(n, 1 / n), RESAMPLES) / n
    values = [task.objective.derive(dict(zip(scores, row, strict=True)))[headline] for row in weights @ table]
    return float(np.quantile(values, (1 - level) / 2))


def trivial_score(task: Task) -> float:
    """Return the main score of the best constant answer on the validation split, ``test`` of a pilot's task."""
    if task.trivial is not None:
        return task.trivial(task)[task.objective.headline]
    targets = [int(target) for _, target in task.test]
    return max(Counter(targets).values()) / len(targets)


def pilot(
    name: str, planned: Planned, work: Path, *, epochs: int | None = None
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Train one pilot on one thread of the CPU; return a row for every epoch, and the split.

    Columns: ``epoch``, ``value`` and ``low`` of the main score on the validation split, ``trivial``.
    """
    entry, recipe = EMBEDDED[name], planned.recipe(name).with_epochs(epochs)
    start = None
    if entry.task in PRETRAINED:
        start = read_start(
            pretrain(
                entry.task, planned.pretrained or planned.attention, PILOT, work, epochs=epochs, limit=None
            )
        )
    whole = load_task(
        entry.task, data=PREFIX + name, architecture=recipe.architecture, images=recipe.images,
        characters=start.characters if start else "",
    )  # fmt: skip
    recipe = recipe.completed(whole.architecture)
    targets = [int(target) if np.ndim(target) == 0 else 0 for _, target in whole.train]
    with written(name) as folder:
        numbers = split_numbers(name, folder, targets)
    parts: list[Subset] = [Subset(whole.train, part) for part in numbers]
    task = dataclasses.replace(whole, train=parts[0], test=parts[1], watched={})
    floor, level = trivial_score(task), 1 - ERROR / recipe.epochs
    rows = []
    with one_thread(), reproducible():
        trainer = Trainer(task, recipe, PILOT, "cpu")
        if start:
            start.put_into(trainer.module)
        for epoch in range(1, recipe.epochs + 1):
            trainer.train_epoch(epoch)
            scores = _scores(trainer, task, recipe.batch_size)
            means = task.objective.derive({key: float(part.mean()) for key, part in scores.items()})
            low = lower_end(scores, task, level)
            rows.append(
                {"epoch": epoch, "value": means[task.objective.headline], "low": low, "trivial": floor}
            )
            if low > floor:
                break
    frame = pd.DataFrame(rows).assign(
        data=name, variant=planned.variant, seed=PILOT, metric=task.objective.headline
    )
    split = {
        part: {"n": len(chosen), "numbers_sha256": sha256_bytes(" ".join(map(str, chosen)).encode())}
        for part, chosen in zip(("training", "validation"), numbers, strict=True)
    }
    return frame, {"level": level, "epochs": recipe.epochs, "train": whole.data["train"], **split}


@torch.inference_mode()
def _scores(trainer: Trainer, task: Task, rows: int) -> dict[str, np.ndarray]:
    """Return every score of each validation example."""
    trainer.module.eval()
    parts = [
        task.objective.score(feed(trainer.module, batch), targets)
        for batch, targets in DataLoader(task.test, rows, collate_fn=task.collate)
    ]
    return {key: torch.cat([part[key] for part in parts]).double().numpy() for key in parts[0]}


def make_learned_record(
    names: Sequence[str], data: Path, work: Path, *, epochs: int | None = None
) -> Iterator[str]:
    """Train the pilots of the embedded claims that are not on record; write the record and yield a line after each.

    The baseline of a claim comes first; the other mechanism is trained only if the baseline does not learn.

    Raises UnknownName for data that no claim is about.
    """
    claims = compared_on()
    for name in names:
        if name not in claims:
            raise UnknownName("embedded data of claims", name, claims)
    folder = data / "records" / LEARNED
    rows = read_metrics(folder / PILOTS_FILE) if (folder / PILOTS_FILE).is_file() else pd.DataFrame()
    splits = json.loads((folder / RECORD_FILE).read_text(encoding="utf-8"))["pilots"] if len(rows) else []
    for name in names or claims:
        planned = {entry.variant: entry for entry in PLAN[name]}
        for role in ("baseline", "model"):
            for claim in claims[name]:
                if (name, claim[role]) in _outcomes(rows) or _outcomes(rows).get((name, claim["baseline"])):
                    continue
                frame, about = pilot(name, planned[claim[role]], work, epochs=epochs)
                rows = pd.concat([rows, frame], ignore_index=True)
                splits = [*splits, {"data": name, "variant": claim[role], **about}]
                _write(folder, rows, splits)
                last = frame.iloc[-1]
                word = "learned" if last["low"] > last["trivial"] else "not learned"
                yield (
                    f"{name}, {claim[role]}: {word}, validation {last['metric']} {last['value']:.3f} in epoch "
                    f"{last['epoch']}, at least {last['low']:.3f}, trivial {last['trivial']:.3f}"
                )


def compared_on() -> dict[str, list[dict[str, str]]]:
    """Return ``model`` and ``baseline`` of every claim about embedded data, by data set."""
    claims = stated_claims()
    pairs: dict[str, list[dict[str, str]]] = {}
    for text in claims.loc[claims["analysis"] == EMBEDDED_RECORDS, "options"]:
        options = claim_options(text)
        for name in options["data"].split("+"):
            pairs.setdefault(name, []).append({role: options[role] for role in ("model", "baseline")})
    return pairs


def _outcomes(rows: pd.DataFrame) -> dict[tuple[str, str], bool]:
    """Return whether each pilot on record, by data and variant, learned."""
    if rows.empty:
        return {}
    learned = (rows["low"] > rows["trivial"]).groupby([rows["data"], rows["variant"]]).any()
    return dict(zip(learned.index, learned, strict=True))


def _write(folder: Path, rows: pd.DataFrame, splits: Sequence[Mapping[str, Any]]) -> None:
    write_record(folder, PILOTS_FILE, rows, {
        "command": COMMAND, "seed": PILOT, "seed_of_split": SEED, "share": SHARE, "error": ERROR,
        "resamples": RESAMPLES, "device": "cpu", "threads": 1, "pilots": [*splits], "versions": versions(),
    })  # fmt: skip
