"""Measure the cost of each attention variant in one model, and read the papers' printed costs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor, nn

from workbench._version import __version__
from workbench.attention.bilateral import BilateralAttention
from workbench.attention.primal import kept_penalty, primal_layers
from workbench.core.errors import InputError
from workbench.core.threads import one_thread
from workbench.frames.metric import METRICS
from workbench.frames.provenance import versions
from workbench.frames.results import shared
from workbench.models.architectures import ATTENTION_KEYS, build
from workbench.papers.published import published
from workbench.studies.training.cost_measures import Allocations, in_turns
from workbench.studies.training.costs import model_costs
from workbench.studies.training.objectives import classification_scores
from workbench.studies.training.recipes import Recipe
from workbench.studies.training.runs import recipe_for

if TYPE_CHECKING:
    from workbench.data.batches import Inputs
    from workbench.models.loading import LoadedModel

SOFTMAX, SYMMETRIC = "softmax", "softmax-sym"
VARIANTS = (
    SOFTMAX, "softmax+boost", SYMMETRIC, "rpc-sym", "rpc-sym num_iter=[5]", "rpc-sym num_iter=[6]",
    "rpc-sym num_iter=2", "scaled-free", "scaled-alpha", "tssa", "mssa", "xca", "primal", "bilateral",
    "bilateral+boost",
)  # fmt: skip
"""Variants measured by default: those of the bundled models of digits, those whose cost teo2024 prints, and the
operators that wu2025 compares with.
"""
COLUMNS = (
    "model", "source", "attention", "row", "baseline", "metric", "condition", "value", "unit", "ratio", "low", "high",
    "version",
)  # fmt: skip
QUANTITIES = (
    ("parameters", ""),
    ("macs", "training"),
    ("macs", "test"),
    ("seconds_per_sample", "training"),
    ("seconds_per_sample", "test"),
    ("peak_memory", "training"),
    ("peak_memory", "test"),
    ("macs", "training, in a batch"),
)
"""(metric, condition) in the order of a frame."""
# The papers' names for variants of ours, the baseline of each table first, and the recipe with the paper's sizes.
_PRINTED = {
    ("teo2024", "13", "imagenet-vit-tiny"): {
        "SymViT (baseline)": SYMMETRIC,
        "RPC-SymViT (4iter/layer1)": "rpc-sym",
        "RPC-SymViT (5iter/layer1)": "rpc-sym num_iter=[5]",
        "RPC-SymViT (6iter/layer1)": "rpc-sym num_iter=[6]",
        "RPC-SymViT (2iter/layer)": "rpc-sym num_iter=2",
    },
    ("abdullaev2025", "V", "imagenet-deit-tiny"): {
        "DeiT": SOFTMAX,
        "DeiT + Boost": "softmax+boost",
        "DeiT + Bilateral": "bilateral",
    },
}


class VariantName(NamedTuple):
    """A variant as users write it: ``NAME``, ``NAME+boost``, ``NAME OPTION=VALUE …``."""

    attention: str
    options: Mapping[str, Any]
    boost: bool


def parse_variant(text: str) -> VariantName:
    """Read "bilateral+boost" or "rpc-sym num_iter=[5]"; values are JSON, otherwise words.

    Raises InputError for anything else; unknown names raise when the model is built.
    """
    words = text.split() if isinstance(text, str) else []
    pairs = [word.partition("=") for word in words[1:]]
    name, plus, ending = words[0].partition("+") if words else ("", "", "")
    if not name or ending != ("boost" if plus else "") or not all(key and value for key, _, value in pairs):
        raise InputError(
            f"cannot read the attention variant {text!r}; write NAME, NAME+boost or NAME OPTION=VALUE, as in "
            "'rpc-sym num_iter=[5]'"
        )
    return VariantName(name, {key: _value(value) for key, _, value in pairs}, ending == "boost")


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def variant_costs(
    model: str = "bundled:digits-vit",
    inputs: str = "bundled:digits",
    variants: Sequence[str] | None = None,
    *,
    n: int | None = None,
    rounds: int = 7,
    seed: int = 0,
) -> pd.DataFrame:
    """Measure the cost of each attention variant in a small transformer, with softmax attention in the same run.

    ``model`` is an image model with softmax attention trained by this library. Each variant is put into its
    architecture with random weights, in the layers and with the options of its task's recipe. ``variants`` (see
    `parse_variant`) are `VARIANTS` by default; softmax is always included. ``n`` images form the batch (the recipe's
    batch size by default); each variant is timed ``rounds`` times, in turns, on one thread.

    Columns are `COLUMNS`, a row per variant, quantity of `QUANTITIES` and baseline:

    - ``parameters``;
    - ``macs``: see `workbench.studies.training.costs.model_costs`; at test, the position term of bilateral attention is
      precomputed, and in a batch it is shared;
    - ``seconds_per_sample`` and ``peak_memory`` (bytes of the tensors that a step allocates and holds at once, per
      image, without weights): in training forward, loss and backward, at test forward.

    ``ratio`` is relative to the ``baseline``: softmax, and for RPC-Attention also symmetric softmax, its baseline in
    teo2024. For seconds it is the median over rounds of the ratio within a round; ``low`` to ``high`` is the range.

    Raises InputError for a model that was not trained here, has another attention or takes no images, and UnknownName
    for an unknown variant or option.
    """
    from workbench.data.batches import inputs as choose
    from workbench.models.loading import load

    if isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 1:
        raise InputError(f"rounds is a whole number from 1 up, got {rounds!r}")
    loaded = load(model)
    names = list(dict.fromkeys([SOFTMAX, *(VARIANTS if variants is None else variants)]))
    recipes = {name: _recipe(loaded, parse_variant(name)) for name in names}
    batch = choose(inputs, loaded, n=recipes[SOFTMAX].batch_size if n is None else n, seed=seed)
    # Where cores are shared, threads wait for each other at every operation, and nothing else shows.
    with one_thread(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        steps = {name: _Steps(recipe, batch) for name, recipe in recipes.items()}
        costs = _counted(steps, len(batch))
        times = _timed(steps, rounds, len(batch))
    pairs = [
        (name, base) for base in (SOFTMAX, SYMMETRIC) for name in names if base in _baselines(name, names)
    ]
    rows = [row for name, base in pairs for row in rows_of_costs(costs, times, name, base)]
    frame = frame_of_costs(rows, model=loaded.spec, source="measured")
    frame.attrs["provenance"] = shared(
        {
            "analysis": "variant-costs",
            "options": {"variants": names, "rounds": rounds},
            "model": loaded.identity,
            "inputs": batch.identity,
            "seed": seed,
            "versions": versions(),
        }
    )
    return frame


def _recipe(model: LoadedModel, wanted: VariantName) -> Recipe:
    """Return the recipe of the model's task with the variant, and with the model's sizes."""
    meta = model.meta
    if (
        meta is None
        or model.modality != "image"
        or meta.get("attention", SOFTMAX) != SOFTMAX
        or meta.get("boost")
    ):
        raise InputError(
            f"{model.spec} is not an image model with softmax attention that was trained here, whose architecture "
            "the variants could share; give bundled:digits-vit, or file:CHECKPOINT of a run of `workbench study train`"
        )
    chosen = recipe_for(meta["task"], None, wanted.attention, None, wanted.options, wanted.boost)
    sizes = {key: value for key, value in meta["architecture"].items() if key not in ATTENTION_KEYS}
    return dataclasses.replace(chosen, architecture={**chosen.architecture, **sizes})


class _Steps:
    """Two fresh models of one variant: one in training, one ready for use."""

    def __init__(self, recipe: Recipe, batch: Inputs) -> None:
        if not isinstance(batch.batch, Tensor) or batch.targets is None:
            raise InputError(
                f"{batch.spec} has no classes to train on; give bundled:digits, or imagenet:FOLDER"
            )
        self.recipe, self.images = recipe, batch.batch
        self.targets = torch.tensor(batch.targets)
        self.model: nn.Module = build(recipe.architecture).train()
        self.ready: nn.Module = build(recipe.architecture).eval().requires_grad_(False)
        for layer in self.ready.modules():
            if isinstance(layer, BilateralAttention):
                layer.precompute()
        self.primal = primal_layers(self.model)

    def training(self) -> None:
        """Run forward, loss and backward of a batch."""
        loss = classification_scores(self.model(self.images), self.targets)["loss"].mean()
        if self.primal:
            loss = loss + self.recipe.ksvd_weight * kept_penalty(self.primal)
        loss.backward()
        self.model.zero_grad(set_to_none=True)

    def test(self) -> None:
        """Run forward of a batch."""
        self.ready(self.images)


def _counted(steps: Mapping[str, _Steps], n: int) -> dict[str, dict[tuple[str, str], float]]:
    """Return variant → (metric, condition) → the costs that need no clock."""
    costs = {}
    for name, step in steps.items():
        costs[name] = {
            **_as_quantities(model_costs(step.model, step.images[:1])),
            ("macs", "training, in a batch"): model_costs(step.model, step.images)["macs"] / n,
            ("peak_memory", "training"): _peak(step.training) / n,
            ("peak_memory", "test"): _peak(step.test) / n,
        }
    return costs


def _peak(function: Callable[[], None]) -> int:
    with Allocations() as seen:
        function()
    return seen.peak


def _timed(steps: Mapping[str, _Steps], rounds: int, n: int) -> dict[str, dict[tuple[str, str], pd.Series]]:
    """Return variant → (metric, condition) → seconds per image in every round."""
    times: dict[str, dict[tuple[str, str], pd.Series]] = {name: {} for name in steps}
    for condition in ("training", "test"):
        taken = in_turns([getattr(step, condition) for step in steps.values()], rounds)
        for name, seconds in zip(steps, taken, strict=True):
            times[name]["seconds_per_sample", condition] = pd.Series(seconds) / n
    return times


def rows_of_costs(
    costs: Mapping[str, Mapping[tuple[str, str], float]],
    times: Mapping[str, Mapping[tuple[str, str], pd.Series]],
    name: str,
    baseline: str,
) -> Iterator[dict[str, Any]]:
    """Yield a row for every quantity counted or timed, as a multiple of the baseline's."""
    for metric, condition in QUANTITIES:
        quantity = metric, condition
        if quantity in times.get(name, {}):
            ratios = times[name][quantity] / times[baseline][quantity]
            value, (low, ratio, high) = times[name][quantity].median(), ratios.agg(["min", "median", "max"])
        elif quantity in costs[name]:
            value = costs[name][quantity]
            low = ratio = high = value / costs[baseline][quantity]
        else:
            continue
        yield {
            "attention": name, "baseline": baseline, "metric": metric, "condition": condition,
            "value": value, "ratio": ratio, "low": low, "high": high,
        }  # fmt: skip


def _baselines(name: str, measured: Sequence[str]) -> list[str]:
    """Return softmax; for RPC-Attention also symmetric softmax, its baseline in teo2024, if measured."""
    symmetric = parse_variant(name).attention == "rpc-sym" and SYMMETRIC in measured
    return [SOFTMAX, SYMMETRIC] if symmetric else [SOFTMAX]


def frame_of_costs(rows: pd.DataFrame | list[dict[str, Any]], **constant: Any) -> pd.DataFrame:
    """Return these rows in the columns of `variant_costs`, with the unit of each quantity."""
    frame = pd.DataFrame(rows).assign(version=__version__, **constant)
    frame["unit"] = frame["metric"].map(lambda metric: METRICS[metric].unit)
    return frame.reindex(columns=list(COLUMNS))


def published_costs() -> pd.DataFrame:
    """Return teo2024's Table 13 and abdullaev2025's Table V in the format of `variant_costs`.

    Values are multiples of each table's baseline; rows have our names. Operations for one image (Table 13) are listed
    as multiply–accumulates, which they are (see docs/published.md).
    """
    parts = []
    for (paper, table, _), names in _PRINTED.items():
        rows = published(paper, table)
        operations = rows["metric"] == "flops_per_sample"
        rows = rows.assign(
            source=f"{paper} Table {table}",
            attention=rows["row"].map(names),
            baseline=next(iter(names.values())),
            metric=rows["metric"].mask(operations, "macs"),
            condition=rows["condition"].mask(operations, "training").replace("inference", "test").fillna(""),
        )
        quantity = ["metric", "condition"]
        base = rows[rows["attention"] == rows["baseline"]].set_index(quantity)["value"]
        rows["ratio"] = rows["value"] / rows.set_index(quantity).index.map(base)
        parts.append(rows)
    joined = pd.concat(parts, ignore_index=True)
    return frame_of_costs(joined.assign(low=joined["ratio"], high=joined["ratio"]), model="")


def papers_counts() -> pd.DataFrame:
    """Count parameters and multiply–accumulates of the models in `published_costs` at the papers' sizes.

    The counts need the recipe only, no training. Columns as in `variant_costs`.
    """
    parts = []
    for (paper, _, recipe), names in _PRINTED.items():
        costs = {}
        for name in names.values():
            wanted = parse_variant(name)
            chosen = recipe_for("images", recipe, wanted.attention, None, wanted.options, wanted.boost)
            architecture = {"num_classes": 1000, "in_chans": 3, **chosen.architecture}
            side = architecture["img_size"]
            costs_of_model = model_costs(
                build(architecture), torch.zeros(1, architecture["in_chans"], side, side)
            )
            costs[name] = _as_quantities(costs_of_model)
        base = next(iter(names.values()))
        rows = [row for name in names.values() for row in rows_of_costs(costs, {}, name, base)]
        parts.append(frame_of_costs(rows, source=f"counted as in {paper}", model=recipe))
    return pd.concat(parts, ignore_index=True)


def _as_quantities(costs: Mapping[str, float]) -> dict[tuple[str, str], float]:
    return {
        ("parameters", ""): costs["parameters"],
        ("macs", "training"): costs["macs"],
        ("macs", "test"): costs["macs_inference"],
    }


def cost_findings(costs: pd.DataFrame, printed: pd.DataFrame, counted: pd.DataFrame) -> list[str]:
    """State the most costly variant, and the costs of bilateral and RPC-Attention with the papers' printed values.

    Takes the frames of `variant_costs`, `published_costs` and `papers_counts`.
    """
    dearest = []
    for metric, condition, words in _REPORTED:
        ratios = _ratios(costs, metric, condition)
        dearest.append(f"{words} {ratios.idxmax()} ({ratios.max():.2f}×)")
    sentences = [f"The most costly, as multiples of softmax attention: {', '.join(dearest)}."]
    table_5, table_13 = (printed[printed["source"] == table] for table in _TABLES)
    if "bilateral" in set(costs["attention"]):
        ours, theirs = (
            {form: _ratios(frame, "macs", form).get("bilateral") for form in ("training", "test")}
            for frame in (costs, table_5)
        )
        batch = _ratios(costs, "macs", "training, in a batch")["bilateral"]
        seconds = _ratios(costs, "seconds_per_sample", "test")["bilateral"]
        sentences.append(
            f"Bilateral attention takes {ours['training']:.3f} times softmax's multiply–accumulates in training, for "
            f"an image by itself (Table V: {theirs['training']:.2f}), {batch:.3f} in a batch, whose images share the "
            f"position term; in inference, with that term computed beforehand, {ours['test']:.3f} (Table V: "
            f"{theirs['test']:.2f}), and {seconds:.2f} times its time."
        )
    for metric, condition, words in _REPORTED[:3]:
        both = [_ratios(frame, metric, condition, SYMMETRIC) for frame in (costs, table_13)]
        shared = [name for name in both[1].index if name != SYMMETRIC and name in both[0]]
        if shared:
            ours, theirs = (f"{part[shared].min():.2f} to {part[shared].max():.2f}" for part in both)
            sentences.append(
                f"RPC-Attention, {words}, of symmetric softmax: {ours} here, {theirs} printed (Table 13)."
            )
    for source, count in _TABLES.items():
        at_size = [
            frame[
                (frame["source"] == name) & (frame["metric"] == "macs") & (frame["condition"] == "training")
            ]
            for frame, name in ((counted, count), (printed, source))
        ]
        times = at_size[0].set_index("attention")["value"] / at_size[1].set_index("attention")["value"]
        giga = ", so giga are meant where it prints mega" if times.between(900, 1100).all() else ""
        sentences.append(
            f"Multiply–accumulates counted here at the size of {source}: {times.min():.4g} to {times.max():.4g} times "
            f"what it prints{giga}."
        )
    return sentences


_REPORTED = (
    ("macs", "training", "multiply–accumulates in training"),
    ("seconds_per_sample", "training", "time of training"),
    ("seconds_per_sample", "test", "time of inference"),
    ("peak_memory", "training", "memory of training"),
)
_TABLES = {
    "abdullaev2025 Table V": "counted as in abdullaev2025",
    "teo2024 Table 13": "counted as in teo2024",
}


def _ratios(frame: pd.DataFrame, metric: str, condition: str, baseline: str = SOFTMAX) -> pd.Series:
    """Return the multiple of the baseline by attention."""
    rows = frame[
        (frame["metric"] == metric) & (frame["condition"] == condition) & (frame["baseline"] == baseline)
    ]
    return rows.set_index("attention")["ratio"]
