"""Measure the cost of attention on the tasks of chen2023: a training step relative to softmax's, at two lengths.

Recorded runs give no usable time or memory, since they shared their machine. Here all mechanisms take turns in one
process. Costs are multiples of softmax attention that forms the token × token matrix, the paper's baseline; a fused
kernel has its own row. Token values do not change the cost, so they are random.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from workbench.attention.primal import kept_penalty, primal_layers
from workbench.core.errors import InputError, UnknownName
from workbench.core.threads import one_thread
from workbench.frames.provenance import versions
from workbench.frames.results import shared
from workbench.models.architectures import build
from workbench.papers.published import published
from workbench.studies.training.cost_measures import Allocations, in_turns, seconds_of
from workbench.studies.training.costs import model_costs
from workbench.studies.training.efficiency import COLUMNS, SOFTMAX, frame_of_costs, rows_of_costs
from workbench.studies.training.feeding import Batch, feed
from workbench.studies.training.objectives import ACTIONS, CLASSIFICATION
from workbench.studies.training.recipes import Recipe
from workbench.studies.training.runs import recipe_for

TASK_COLUMNS = ("task", "problem", "tokens", *COLUMNS)
_EAGER, _PRIMAL_ALL = "softmax-eager", "primal layers=0-1"
_TOKENS = 2048
"""Largest number of tokens of a batch, unless one example is longer."""


@dataclass(frozen=True)
class _CostedTask:
    """A task of the papers with the sizes of its models."""

    title: str
    recipe: str
    """Recipe with the paper's sizes; NAME-embedded has those of the embedded task."""
    embedded: int
    """Tokens (of agents: steps) of a sequence of the embedded task."""
    published: Mapping[str, int]
    """Data set in the papers' tables → its longest sequence."""
    sizes: Mapping[str, Any]
    """Architecture settings that depend on the data."""
    variants: Mapping[str, str]
    """A mechanism, with its layers if they differ from the recipe's, → its name in the table, if any."""
    table: str
    """Of chen2023."""
    batch: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Argument → shape of each position; ids of tokens by default."""


_ARENA = {
    _EAGER: "Trans.",
    SOFTMAX: "",
    "primal": "Primal.Trans.",
    _PRIMAL_ALL: "Primal.",
    "linformer": "Lin.",
    "nystrom": "Nyström.",
}
_BYTES = {"vocabulary": 258, "num_classes": 2}
_HOPPER = {"observations": 11, "actions": 3, "horizon": 1000}
TASKS: dict[str, _CostedTask] = {
    "listops": _CostedTask(
        "ListOps", "listops", 100, {"LRA ListOps": 2000}, {"vocabulary": 20, "num_classes": 10}, _ARENA, "4"
    ),
    "bytes": _CostedTask("Text", "bytes", 256, {"LRA Text": 4000}, _BYTES, _ARENA, "4"),
    "retrieval": _CostedTask(
        "Retrieval", "retrieval", 256, {"LRA Retrieval": 4000}, {**_BYTES, "pairs": True}, _ARENA, "4"
    ),
    "pixels": _CostedTask(
        "Image", "pixels", 256, {"LRA Image": 1024}, {"vocabulary": 258, "num_classes": 10}, _ARENA, "4"
    ),
    "series": _CostedTask(
        "UEA",
        "series",
        80,
        {"UEA JapaneseVowels": 29, "UEA EthanolConcentration": 1751},
        {"channels": 3, "num_classes": 4},
        {_EAGER: "Trans.", SOFTMAX: "", "primal": "Primal.Trans.", _PRIMAL_ALL: "Primal."},
        "2",
        {"values": (3,)},
    ),
    "rl": _CostedTask(
        "D4RL",
        "rl",
        20,
        {"D4RL Medium": 20},
        _HOPPER,
        {_EAGER: "DT", SOFTMAX: "", "primal-causal": "Primal.DT"},
        "6",
        {"returns": (1,), "observations": (11,), "actions": (3,), "times": ()},
    ),
}
LENGTHS = ("embedded", "published")


def task_costs(
    tasks: Sequence[str] | None = None,
    lengths: Sequence[str] = LENGTHS,
    *,
    rounds: int = 3,
    budget: float | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Measure time and memory of a training step of chen2023's mechanisms, as multiples of softmax's.

    The step is forward, loss and backward. The ``baseline`` is ``softmax-eager``, which forms the token × token matrix,
    as do the layers that a mechanism does not replace; ``softmax`` is the fused kernel.

    Args:
        tasks: keys of `TASKS`; all by default.
        lengths: "embedded", the embedded task's model at its length; "published", the paper's model at the length of
            the paper's data.
        rounds: number of timed rounds, in turns, on one thread. The first, whose memory is counted, is dropped unless
            it spends the budget.
        budget: seconds of one task and length after which no round starts; None runs all rounds.
        seed: random seed.

    Returns:
        Columns `TASK_COLUMNS`, rows as those of `variant_costs`: ``seconds_per_sample``, ``peak_memory`` (bytes of the
        tensors that a step allocates and holds at once) and ``macs`` of training, and ``parameters``. ``task`` is the
        key of `TASKS`, ``problem`` its title with the number of ``tokens``. A batch has at most 2048 tokens, or one
        example; no token is padding.

    Raises:
        UnknownName: an unknown task or kind of length.
        InputError: rounds below 1, or a budget that is not above 0.
    """
    if isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 1:
        raise InputError(f"rounds is a whole number from 1 up, got {rounds!r}")
    if budget is not None and not budget > 0:
        raise InputError(f"budget is a number of seconds above 0, or None for all rounds, got {budget!r}")
    for name in tasks or ():
        if name not in TASKS:
            raise UnknownName("task whose cost is measured", name, TASKS)
    for kind in lengths:
        if kind not in LENGTHS:
            raise UnknownName("kind of length", kind, LENGTHS)
    parts = []
    with one_thread(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for name in tasks or TASKS:
            chosen = TASKS[name]
            lengths_of_kind = {"embedded": [chosen.embedded], "published": [*chosen.published.values()]}
            parts += [
                _measured(
                    name,
                    f"{chosen.recipe}{'-embedded' if kind == 'embedded' else ''}",
                    length,
                    rounds,
                    budget,
                )
                for kind in lengths
                for length in lengths_of_kind[kind]
            ]
    frame = pd.concat(parts, ignore_index=True).reindex(columns=list(TASK_COLUMNS))
    about = {
        "analysis": "task-costs",
        "options": {"tasks": [*(tasks or TASKS)], "lengths": [*lengths], "rounds": rounds, "budget": budget},
    }
    frame.attrs["provenance"] = shared({**about, "seed": seed, "versions": versions()})
    return frame


def _measured(name: str, recipe: str, length: int, rounds: int, budget: float | None) -> pd.DataFrame:
    task = TASKS[name]
    steps = {
        variant: _Step(_recipe(task, recipe, variant, length), task, length, fused=variant == SOFTMAX)
        for variant in task.variants
    }
    costs: dict[str, dict[tuple[str, str], float]] = {}
    first = []
    for variant, step in steps.items():
        with Allocations() as seen:
            # what is counted at every operation takes no time beside steps that spend a budget
            first.append(seconds_of(step))
        counted = model_costs(step.model, step.single)
        costs[variant] = {
            ("parameters", ""): counted["parameters"],
            ("macs", "training"): counted["macs"],
            ("peak_memory", "training"): seen.peak / step.n,
        }
    taken = in_turns([*steps.values()], rounds, budget=math.inf if budget is None else budget, first=first)
    times = {
        variant: {("seconds_per_sample", "training"): pd.Series(seconds) / steps[variant].n}
        for variant, seconds in zip(steps, taken, strict=True)
    }
    rows = [row for variant in steps for row in rows_of_costs(costs, times, variant, _EAGER)]
    frame = frame_of_costs(rows, model=recipe, source="measured")
    tokens = length * (3 if name == "rl" else 1)
    title = f"{task.title} (embedded)" if recipe != task.recipe else task.title
    return frame.assign(task=name, problem=f"{title}, {tokens} tokens", tokens=tokens)


def _recipe(task: _CostedTask, recipe: str, variant: str, length: int) -> Recipe:
    attention, _, layers = variant.partition(" layers=")
    name = SOFTMAX if attention == _EAGER else attention
    base = recipe_for(task.recipe, recipe, name, layers or None, None, False)
    return dataclasses.replace(base, architecture={**base.architecture, **task.sizes, "context": length})


class _Step:
    """A training step of a model with random weights, on random inputs."""

    def __init__(self, recipe: Recipe, task: _CostedTask, length: int, *, fused: bool) -> None:
        self.recipe = recipe
        self.fused = fused
        self.model = build(recipe.architecture).train()
        self.n = max(1, min(recipe.batch_size, _TOKENS // length))
        self.batch = _drawn(task, self.n, length)
        self.single = _drawn(task, 1, length)
        agent = "actions" in task.batch
        self.score = (ACTIONS if agent else CLASSIFICATION).score
        size = (self.n, length, task.sizes["actions"]) if agent else (self.n,)
        self.targets = torch.zeros(size) if agent else torch.zeros(size, dtype=torch.long)
        self.primal = primal_layers(self.model) if recipe.ksvd_weight else []

    def __call__(self) -> None:
        with nullcontext() if self.fused else sdpa_kernel(SDPBackend.MATH):
            loss = self.score(feed(self.model, self.batch), self.targets)["loss"].mean()
            if self.primal:
                loss = loss + self.recipe.ksvd_weight * kept_penalty(self.primal)
            loss.backward()
        self.model.zero_grad(set_to_none=True)


def _drawn(task: _CostedTask, n: int, length: int) -> Batch:
    rows = 2 * n if task.sizes.get("pairs") else n
    if not task.batch:
        return {"input_ids": torch.randint(2, task.sizes["vocabulary"], (rows, length))}
    batch: dict[str, Tensor] = {}
    for argument, rest in task.batch.items():
        steps = torch.arange(length).expand(rows, length)
        batch[argument] = torch.randn(rows, length, *rest) if rest else steps
    return batch


def published_task_costs() -> pd.DataFrame:
    """Return chen2023's Tables 2, 4 and 6 in the format of `task_costs`: multiples of softmax attention.

    Their memory is that of the whole device; for UEA it covers the whole archive and is left out.
    """
    rows = []
    for name, task in TASKS.items():
        printed = published("chen2023", task.table)
        names = {row: variant for variant, row in task.variants.items() if row}
        for data, length in task.published.items():
            tokens = length * (3 if name == "rl" else 1)
            data_rows = printed[(printed["data"] == data) & printed["row"].isin(names)]
            for metric, values in data_rows.groupby("metric", sort=False):
                if metric not in _PRINTED:
                    continue
                by_variant = values.set_index(values["row"].map(names))["value"]
                rows += [
                    {
                        "task": name, "problem": f"{task.title}, {tokens} tokens", "tokens": tokens,
                        "source": f"chen2023 Table {task.table}", "attention": variant, "row": task.variants[variant],
                        "baseline": _EAGER, "metric": _PRINTED[str(metric)], "condition": "training", "value": value,
                        "ratio": value / by_variant[_EAGER],
                    }
                    for variant, value in by_variant.items()
                ]  # fmt: skip
    frame = pd.DataFrame(rows)
    frame = frame.assign(low=frame["ratio"], high=frame["ratio"], model="")
    return frame.reindex(columns=list(TASK_COLUMNS))


_PRINTED = {
    "seconds_per_epoch": "seconds_per_sample",
    "seconds_per_1000_steps": "seconds_per_sample",
    "training_time": "seconds_per_sample",
    "peak_memory": "peak_memory",
    "training_memory": "peak_memory",
}
"""Metric of the tables → ours; a multiple does not depend on the number of steps timed."""


def task_cost_findings(costs: pd.DataFrame, printed: pd.DataFrame) -> list[str]:
    """State the cost of every mechanism relative to softmax attention, with chen2023's printed values.

    Takes the frames of `task_costs` and `published_task_costs`.
    """
    sentences = []
    for metric, words in (("seconds_per_sample", "time"), ("peak_memory", "memory")):
        for variant, variant_rows in costs[costs["metric"] == metric].groupby("attention", sort=False):
            if variant == _EAGER:
                continue
            theirs = printed[(printed["metric"] == metric) & (printed["attention"] == variant)]
            theirs = theirs.set_index("problem")["ratio"]
            phrases = [
                f"{row['ratio']:.2f} ({row['problem']}"
                + (f"; printed {theirs[row['problem']]:.2f})" if row["problem"] in theirs else ")")
                for row in variant_rows.to_dict("records")
            ]
            sentences.append(
                f"{variant}, {words} of training, multiples of eager softmax: {', '.join(phrases)}."
            )
    return sentences
