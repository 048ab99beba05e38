"""What attention costs on the tasks of chen2023: a step of training beside softmax's, at short and published lengths.

Time and memory of the runs on record say nothing, since other runs shared their machine. Here all mechanisms take turns
in one process, so that multiples of softmax attention can be compared: of that which forms the token × token matrix, as
the paper's baseline did. A fused kernel, which forms none, is a row of its own. What the tokens are changes no cost:
they are drawn.
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
from workbench.studies.training.costs import model_costs
from workbench.studies.training.efficiency import COLUMNS, SOFTMAX, frame_of_costs, rows_of_costs
from workbench.studies.training.feeding import Batch, feed
from workbench.studies.training.measuring import Allocations, in_turns, seconds_of
from workbench.studies.training.objectives import ACTIONS, CLASSIFICATION
from workbench.studies.training.recipes import Recipe
from workbench.studies.training.runs import recipe_for

TASK_COLUMNS = ("task", "problem", "tokens", *COLUMNS)
EAGER, PRIMAL_ALL = "softmax-eager", "primal layers=0-1"
_TOKENS = 2048
"""Of a batch, or of one example that is longer."""


@dataclass(frozen=True)
class CostedTask:
    """A task of the papers as its models see it."""

    title: str
    recipe: str
    """With the paper's sizes; NAME-embedded has those of the task that is made here."""
    embedded: int
    """Tokens (of agents: steps) of a sequence of the embedded task."""
    published: Mapping[str, int]
    """Data set, as the papers' tables name it → the longest of its sequences."""
    sizes: Mapping[str, Any]
    """Of the architecture, which the data decide."""
    variants: Mapping[str, str]
    """A mechanism, with its layers where they are not the recipe's, → what the table calls it, if it has it."""
    table: str
    """Of chen2023."""
    batch: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Argument → what each place has; ids of tokens unless given."""


_ARENA = {
    EAGER: "Trans.",
    SOFTMAX: "",
    "primal": "Primal.Trans.",
    PRIMAL_ALL: "Primal.",
    "linformer": "Lin.",
    "nystrom": "Nyström.",
}
_BYTES = {"vocabulary": 258, "num_classes": 2}
_HOPPER = {"observations": 11, "actions": 3, "horizon": 1000}
TASKS: dict[str, CostedTask] = {
    "listops": CostedTask(
        "ListOps", "listops", 100, {"LRA ListOps": 2000}, {"vocabulary": 20, "num_classes": 10}, _ARENA, "4"
    ),
    "bytes": CostedTask("Text", "bytes", 256, {"LRA Text": 4000}, _BYTES, _ARENA, "4"),
    "retrieval": CostedTask(
        "Retrieval", "retrieval", 256, {"LRA Retrieval": 4000}, {**_BYTES, "pairs": True}, _ARENA, "4"
    ),
    "pixels": CostedTask(
        "Image", "pixels", 256, {"LRA Image": 1024}, {"vocabulary": 258, "num_classes": 10}, _ARENA, "4"
    ),
    "series": CostedTask(
        "UEA",
        "series",
        80,
        {"UEA JapaneseVowels": 29, "UEA EthanolConcentration": 1751},
        {"channels": 3, "num_classes": 4},
        {EAGER: "Trans.", SOFTMAX: "", "primal": "Primal.Trans.", PRIMAL_ALL: "Primal."},
        "2",
        {"values": (3,)},
    ),
    "rl": CostedTask(
        "D4RL",
        "rl",
        20,
        {"D4RL Medium": 20},
        _HOPPER,
        {EAGER: "DT", SOFTMAX: "", "primal-causal": "Primal.DT"},
        "6",
        {"returns": (1,), "observations": (11,), "actions": (3,), "times": ()},
    ),
}  # fmt: skip
LENGTHS = ("embedded", "published")


def task_costs(
    tasks: Sequence[str] | None = None,
    lengths: Sequence[str] = LENGTHS,
    *,
    rounds: int = 3,
    budget: float | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Time and memory of a training step (forward, loss, backward) of chen2023's mechanisms, as multiples of softmax's.

    The ``baseline`` is softmax attention that forms the token × token matrix, ``softmax-eager``, as do the layers that
    a mechanism leaves alone; ``softmax`` is the fused kernel.

    Of each of ``tasks`` (all of `TASKS` unless named): the embedded task's model at its length, and the paper's model
    (the recipe of its size) at that of the paper's data, as ``lengths`` says. ``rounds`` is how often each is timed, in
    turns, on one thread, with no new round after ``budget`` seconds of one task and length (all ``rounds`` unless
    given), and the first, whose memory is counted, left out unless it spends them; a batch has at most 2048 tokens, or
    is one example, and none of its tokens is padding.

    Columns are `TASK_COLUMNS`, rows as those of `variant_costs`: ``seconds_per_sample``, ``peak_memory`` (bytes of the
    tensors that a step makes and holds at once) and ``macs`` of training, and ``parameters``. ``task`` is the key of
    `TASKS`, ``problem`` its title with the number of ``tokens``. Raises UnknownName for a task or kind of length that
    is none, InputError for rounds below 1 or a budget that is not above 0.
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
            asked = {"embedded": [chosen.embedded], "published": [*chosen.published.values()]}
            parts += [
                _measured(
                    name,
                    f"{chosen.recipe}{'-embedded' if kind == 'embedded' else ''}",
                    length,
                    rounds,
                    budget,
                )
                for kind in lengths
                for length in asked[kind]
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
        counted = model_costs(step.model, step.one)
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
    rows = [row for variant in steps for row in rows_of_costs(costs, times, variant, EAGER)]
    frame = frame_of_costs(rows, model=recipe, source="measured")
    tokens = length * (3 if name == "rl" else 1)
    title = f"{task.title} (embedded)" if recipe != task.recipe else task.title
    return frame.assign(task=name, problem=f"{title}, {tokens} tokens", tokens=tokens)


def _recipe(task: CostedTask, recipe: str, variant: str, length: int) -> Recipe:
    attention, _, layers = variant.partition(" layers=")
    name = SOFTMAX if attention == EAGER else attention
    found = recipe_for(task.recipe, recipe, name, layers or None, None, False)
    return dataclasses.replace(found, architecture={**found.architecture, **task.sizes, "context": length})


class _Step:
    """A step of training of a model with weights drawn anew, on inputs that are drawn."""

    def __init__(self, recipe: Recipe, task: CostedTask, length: int, *, fused: bool) -> None:
        self.recipe = recipe
        self.fused = fused
        self.model = build(recipe.architecture).train()
        self.n = max(1, min(recipe.batch_size, _TOKENS // length))
        self.batch = _drawn(task, self.n, length)
        self.one = _drawn(task, 1, length)
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


def _drawn(task: CostedTask, n: int, length: int) -> Batch:
    rows = 2 * n if task.sizes.get("pairs") else n
    if not task.batch:
        return {"input_ids": torch.randint(2, task.sizes["vocabulary"], (rows, length))}
    found: dict[str, Tensor] = {}
    for argument, rest in task.batch.items():
        steps = torch.arange(length).expand(rows, length)
        found[argument] = torch.randn(rows, length, *rest) if rest else steps
    return found


def published_task_costs() -> pd.DataFrame:
    """chen2023's Tables 2, 4 and 6 as `task_costs` would put them: multiples of the transformer with softmax attention.

    Their memory is all that the device held; of UEA it is that of the whole archive, and stands nowhere here.
    """
    rows = []
    for name, task in TASKS.items():
        printed = published("chen2023", task.table)
        names = {row: variant for variant, row in task.variants.items() if row}
        for data, length in task.published.items():
            tokens = length * (3 if name == "rl" else 1)
            own = printed[(printed["data"] == data) & printed["row"].isin(names)]
            for metric, values in own.groupby("metric", sort=False):
                if metric not in _PRINTED:
                    continue
                by_variant = values.set_index(values["row"].map(names))["value"]
                rows += [
                    {
                        "task": name, "problem": f"{task.title}, {tokens} tokens", "tokens": tokens,
                        "source": f"chen2023 Table {task.table}", "attention": variant, "row": task.variants[variant],
                        "baseline": EAGER, "metric": _PRINTED[str(metric)], "condition": "training", "value": value,
                        "ratio": value / by_variant[EAGER],
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
"""What the tables have → ours; of multiples it does not matter over how many steps a time is taken."""


def task_cost_findings(costs: pd.DataFrame, printed: pd.DataFrame) -> list[str]:
    """Of every mechanism: where it is cheaper than softmax attention, beside what chen2023 prints.

    Of the frames of `task_costs` and `published_task_costs`.
    """
    sentences = []
    for metric, words in (("seconds_per_sample", "time"), ("peak_memory", "memory")):
        for variant, own in costs[costs["metric"] == metric].groupby("attention", sort=False):
            if variant == EAGER:
                continue
            theirs = printed[(printed["metric"] == metric) & (printed["attention"] == variant)]
            theirs = theirs.set_index("problem")["ratio"]
            told = [
                f"{row['ratio']:.2f} ({row['problem']}"
                + (f"; printed {theirs[row['problem']]:.2f})" if row["problem"] in theirs else ")")
                for row in own.to_dict("records")
            ]
            sentences.append(
                f"{variant}, {words} of training, multiples of eager softmax: {', '.join(told)}."
            )
    return sentences
