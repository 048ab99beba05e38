"""Swap words in the test passages of an embedded task, and measure attention on the swapped words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from workbench.analyses.attention_patterns import pattern_scores
from workbench.analyses.tiles import Maps
from workbench.captures import capture
from workbench.core.null_distributions import derived_seed
from workbench.frames.estimate import with_means
from workbench.models.loading import LoadedModel
from workbench.studies.evaluation.conditions import by_attention
from workbench.studies.evaluation.perplexity import swap_words
from workbench.studies.training.feeding import pad_together
from workbench.studies.training.tasks import Task, load_task
from workbench.studies.training.tasks.passages import decoded, encoded
from workbench.studies.training.tasks.task import spread


def passages_of(about: Mapping[str, Any]) -> Task:
    """Load the task ``passages`` of a checkpoint, with its characters and one training passage."""
    read = about["preprocessing"]
    return load_task(
        "passages",
        1,
        data=about["data"]["source"],
        architecture=about["architecture"],
        characters=read["characters"],
    )


def swapped_passages(
    task: Task, share: float
) -> Iterator[tuple[Int[Tensor, " token"], int, Bool[Tensor, " token"]]]:
    """Yield ids, class and swapped tokens of the test passages of a task, with a share of their words replaced.

    The replaced words are the same at every call; a larger share includes those of a smaller one.
    """
    characters, context = task.preprocessing["characters"], task.preprocessing["context"]
    test_set: Any = task.test  # `Sequences`
    for number, (ids, target) in enumerate(zip(test_set.sequences, test_set.targets, strict=True)):
        draw = np.random.default_rng(derived_seed(0, str(number)))
        changed = swap_words(decoded(ids, characters), share, draw)
        ids = torch.from_numpy(encoded(changed.text, characters, context).astype(np.int64))
        yield ids, int(target), torch.from_numpy(~changed.kept[:context])


@dataclass(frozen=True)
class EmbeddedPassages:
    """Some test passages, original and with a share of words swapped, in the same order."""

    inputs: dict[str, dict[str, Tensor]]
    """Inputs of the model: the "clean" passages and the same ones "swapped"."""
    swapped: Bool[Tensor, "batch token"]
    """Which tokens of the swapped passages belong to replaced words."""
    targets: Int[Tensor, " batch"]


def embedded_passages(model: LoadedModel, swapped: float, *, n: int) -> EmbeddedPassages:
    """Return ``n`` evenly spaced test passages of the embedded data that a classifier was trained on.

    ``swapped`` is the share of words that is swapped.
    """
    assert model.meta is not None  # it was trained here
    task = passages_of(model.meta)
    batches, new, targets = {}, torch.empty(0), torch.empty(0)
    for words, share in {"clean": 0.0, "swapped": swapped}.items():
        every = [*swapped_passages(task, share)]
        chosen = [every[number] for number in spread(len(every), n)]
        batches[words], targets = pad_together([(ids, target) for ids, target, _ in chosen], "input_ids")
        new = torch.nn.utils.rnn.pad_sequence([new for *_, new in chosen], batch_first=True)
    return EmbeddedPassages(batches, new, targets)


def attention_on_swapped(models: Iterable[LoadedModel], passages: EmbeddedPassages) -> pd.DataFrame:
    """Return the share of a head's attention on swapped words, mean over queries that see some, with its null.

    Columns mechanism (the attention of a model), input, layer, head, metric "swapped_share", value, null
    ("permutation": the weights of a query among its visible keys), null_mean, null_low, null_high. Rows without input
    and head are means of a layer; their null is narrower because each head of each input is permuted independently.

    Raises the errors of `by_attention`.
    """
    batch, new = passages.inputs["swapped"], passages.swapped
    count = new.shape[1]
    real = batch.get("attention_mask", torch.ones_like(batch["input_ids"])).bool()
    before = torch.ones(count, count, dtype=torch.bool).tril()

    def swapped_keys(number: int, queries: range) -> tuple[torch.Tensor, ...]:
        return new[number].expand(len(queries), -1).nonzero(as_tuple=True)

    rows = []
    for name, model in by_attention(models).items():
        for layer in capture(model, batch, sites=["attn"]):
            assert layer.attn is not None  # of a language model every layer has one
            maps = Maps(layer.attn, before, real)
            shares = pattern_scores(maps, {"swapped": swapped_keys})["swapped"]
            for index in np.ndindex(*shares.value.shape):
                null = {
                    f"null_{part}": float(getattr(shares.null, part)[index])
                    for part in ("mean", "low", "high")
                }
                row = {"mechanism": name, "input": str(index[0]), "layer": layer.index, "head": index[1]}
                rows.append({**row, "value": float(shares.value[index]), **null})
    single = pd.DataFrame(rows).dropna(subset="value").assign(metric="swapped_share", null="permutation")
    return with_means(single, ["mechanism", "layer"])
