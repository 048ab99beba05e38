"""Train pilot runs, which decide on a validation split whether a mechanism learns an embedded data set.

A pilot trains one mechanism by its recipe, with the seed `PILOT`, on a training set without its validation split. After
every epoch the validation split is scored. The pilot ends when the score's interval is above the trivial predictor, or
with the recipe's last epoch. The test set is not read.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import nn
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
    learned_in_pilots,
    read_pilots,
    write_record,
)
from workbench.studies.seeds import PILOT
from workbench.studies.training.embedded_runs import PLAN, PRETRAINED, Planned, pretrain
from workbench.studies.training.feeding import feed
from workbench.studies.training.starting import read_start
from workbench.studies.training.tasks import load_task
from workbench.studies.training.tasks.embedded import EMBEDDED, PREFIX, SEED, written
from workbench.studies.training.tasks.embedded.validation import SHARE, validation_split
from workbench.studies.training.tasks.offline import ConstantAction, episode_returns
from workbench.studies.training.trainer import Trainer, reproducible

if TYPE_CHECKING:
    from workbench.studies.training.tasks import Task

_ERROR = 0.05
"""Chance that one of two mechanisms at chance is called learned: half for each, divided by the number of epochs."""
RESAMPLES = 20_000
"""Bootstrap samples, for scores that are no accuracy."""
EPISODES, FIRST_SEED = 40, 2_000_000
"""Validation episodes of an agent, and the seed of the first one's start state."""
COMMAND = "workbench study records learned"


def make_learned_record(
    names: Sequence[str], data: Path, work: Path, *, epochs: int | None = None, restart: bool = False
) -> Iterator[str]:
    """Train the pilots of the embedded claims that are not on record; write the record and yield a line after each.

    A claim needs one mechanism that learns. Its baseline is trained first, its model only if the baseline does not
    learn. ``names`` restricts the data sets; ``restart`` trains theirs again.

    Raises UnknownName for data that no claim is about.
    """
    pairs = compared_on()
    for name in names:
        if name not in pairs:
            raise UnknownName("embedded data of claims", name, pairs)
    folder = data / "records" / LEARNED
    rows, splits = pd.DataFrame(columns=["data", "variant", "low", "trivial"]), []
    if (folder / PILOTS_FILE).is_file():
        rows = read_pilots(folder / PILOTS_FILE)
        splits = json.loads((folder / RECORD_FILE).read_text(encoding="utf-8"))["pilots"]
    if restart:
        rows = rows[~rows["data"].isin(names or [*pairs])]
        splits = [split for split in splits if split["data"] not in (names or pairs)]
    for name in names or pairs:
        planned = {entry.variant: entry for entry in PLAN[name]}
        todo = [(sides, variant) for sides in pairs[name] for variant in sides]
        for sides, variant in todo:
            learned = learned_in_pilots(rows)
            if (name, variant) in learned or any(learned.get((name, side)) for side in sides):
                continue
            frame, split = pilot(name, planned[variant], work, epochs=epochs)
            rows = pd.concat([rows, frame], ignore_index=True) if len(rows) else frame
            splits = [*splits, split]
            write_record(folder, PILOTS_FILE, rows, {
                "command": COMMAND, "seed": PILOT, "seed_of_split": SEED, "share": SHARE, "error": _ERROR,
                "resamples": RESAMPLES, "device": "cpu", "threads": 1, "pilots": splits, "versions": versions(),
            })  # fmt: skip
            last = frame.iloc[-1]
            yield (
                f"{name}, {variant}: {'' if last['low'] > last['trivial'] else 'not '}learned, validation "
                f"{last['metric']} {last['value']:.3f} in epoch {last['epoch']}, at least {last['low']:.3f}, "
                f"trivial {last['trivial']:.3f}"
            )


def compared_on() -> dict[str, list[tuple[str, str]]]:
    """Return (baseline, model) of every claim about embedded data, by data set."""
    claims = stated_claims()
    pairs: dict[str, list[tuple[str, str]]] = {}
    for text in claims.loc[claims["analysis"] == EMBEDDED_RECORDS, "options"]:
        options = claim_options(text)
        for name in options["data"].split("+"):
            pairs.setdefault(name, []).append((options["baseline"], options["model"]))
    return pairs


def pilot(
    name: str, planned: Planned, work: Path, *, epochs: int | None = None
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Train one pilot on one thread of the CPU; return its rows of the record, and a description of its split.

    ``work`` is the folder of pre-training runs, whose text has the validation passages without their classes.
    """
    task, recipe = EMBEDDED[name].task, planned.recipe(name).with_epochs(epochs)
    start = None
    if task in PRETRAINED:
        attention = planned.pretrained or planned.attention
        start = read_start(pretrain(task, attention, PILOT, work, epochs=epochs, limit=None))
    loaded = load_task(
        task,
        data=PREFIX + name,
        architecture=recipe.architecture,
        images=recipe.images,
        characters=start.characters if start else "",
    )
    recipe = recipe.completed(loaded.architecture)
    numbers = _split(name, loaded)
    parts = {part: Subset(loaded.train, chosen) for part, chosen in numbers.items()}
    divided = dataclasses.replace(loaded, train=parts["training"], test=parts["validation"])
    score = "normalised_return" if loaded.acting else loaded.objective.headline
    level = 1 - _ERROR / recipe.epochs
    rows = []
    with one_thread(), reproducible():
        trainer = Trainer(divided, recipe, PILOT, "cpu")
        if start:
            start.put_into(trainer.module)
        floor = _trivial_score(divided)
        for epoch in range(1, recipe.epochs + 1):
            trainer.train_epoch(epoch)
            scores = _example_scores(trainer.module, divided, recipe.batch_size)
            means = divided.objective.derive({key: float(values.mean()) for key, values in scores.items()})
            low = lower_end(scores, score, divided.objective.derive, level)
            rows.append({"epoch": epoch, "value": means[score], "low": low, "trivial": floor})
            if low > floor:
                break
    frame = pd.DataFrame(rows).assign(data=name, variant=planned.variant, seed=PILOT, metric=score)
    about = {"data": name, "variant": planned.variant, "level": level, "epochs": recipe.epochs}
    return frame, about | {"train": loaded.data["train"]} | {
        part: {"n": len(chosen), "numbers_sha256": sha256_bytes(" ".join(map(str, chosen)).encode())}
        for part, chosen in numbers.items()
    }


def _split(name: str, task: Task) -> dict[str, list[int]]:
    """Return the numbers of the training examples in each part; agents act in new episodes and need no examples."""
    examples: Any = task.train
    if task.acting:
        return {"training": [*range(len(examples))], "validation": []}
    targets = [int(target) if np.ndim(target) == 0 else 0 for _, target in examples]
    with written(name) as folder:
        return dict(zip(("training", "validation"), validation_split(name, folder, targets), strict=True))


@torch.inference_mode()
def _example_scores(module: nn.Module, task: Task, rows: int) -> dict[str, np.ndarray]:
    """Return every score of each validation example, or the normalised return of each validation episode.

    The validation split is ``task.test``, which is read in batches of ``rows``.
    """
    if task.acting:
        known: Any = task.acting
        returns = episode_returns(module, **known.keywords, episodes=EPISODES, first_seed=FIRST_SEED)
        return {
            "normalised_return": np.array([known.keywords["kind"].normalised(total) for total in returns])
        }
    module.eval()
    parts = [
        task.objective.score(feed(module, batch), targets)
        for batch, targets in DataLoader(task.test, rows, collate_fn=task.collate)
    ]
    return {key: torch.cat([part[key] for part in parts]).double().numpy() for key in parts[0]}


def lower_end(
    scores: Mapping[str, np.ndarray],
    score: str,
    derive: Callable[[Mapping[str, float]], Mapping[str, float]],
    level: float,
) -> float:
    """Return the lower end of a score's interval, given the scores of each example.

    It is Wilson's for an accuracy, otherwise a percentile of a bootstrap over examples.
    """
    table = np.stack([*scores.values()], axis=1)
    n = len(table)
    if score == "accuracy":
        return share_interval(float(scores[score].mean()), n, level).low
    weights = np.random.default_rng(SEED).multinomial(n, np.full(n, 1 / n), RESAMPLES) / n
    values = [derive(dict(zip(scores, means, strict=True)))[score] for means in weights @ table]
    return float(np.quantile(values, (1 - level) / 2))


def _trivial_score(task: Task) -> float:
    """Return the validation score of a constant answer: the best class, the usual pixel, the mean action."""
    parts: tuple[Any, Any] = task.train, task.test
    if task.acting:
        policy = ConstantAction(parts[0].dataset)
        return float(_example_scores(policy, task, 1)["normalised_return"].mean())
    if task.trivial:
        return task.trivial(task)[task.objective.headline]
    targets = [int(target) for _, target in parts[1]]
    return max(Counter(targets).values()) / len(targets)
