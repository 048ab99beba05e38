"""Test passages of an embedded task with some of their words swapped, and the attention that these words get."""

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
from workbench.studies.evaluation.texts import swap_words
from workbench.studies.training.feeding import pad_together
from workbench.studies.training.tasks import Task, load_task
from workbench.studies.training.tasks.base import spread
from workbench.studies.training.tasks.passages import decoded, encoded


def passages_of(about: Mapping[str, Any]) -> Task:
    """The task ``passages`` that a checkpoint was trained on, in its characters, with one passage for training."""
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
    """The test passages of a task ``passages``, a share of the words replaced: ids, class, and which tokens are new.

    The same words at every call, and with a larger share these and more.
    """
    characters, context = task.preprocessing["characters"], task.preprocessing["context"]
    held: Any = task.test  # `Sequences`
    for number, (ids, target) in enumerate(zip(held.sequences, held.targets, strict=True)):
        draw = np.random.default_rng(derived_seed(0, str(number)))
        changed = swap_words(decoded(ids, characters), share, draw)
        ids = torch.from_numpy(encoded(changed.text, characters, context).astype(np.int64))
        yield ids, int(target), torch.from_numpy(~changed.kept[:context])


@dataclass(frozen=True)
class EmbeddedPassages:
    """Some test passages, as they are and with a share of their words swapped, in the same order."""

    given: dict[str, dict[str, Tensor]]
    """What the model takes: the "clean" passages and the same "swapped"."""
    swapped: Bool[Tensor, "batch token"]
    """Which tokens of the swapped ones are of words put in the place of others."""
    targets: Int[Tensor, " batch"]


def embedded_passages(model: LoadedModel, swapped: float, *, n: int) -> EmbeddedPassages:
    """``n`` test passages, spread over all, of the embedded data that a classifier of passages was trained on.

    ``swapped`` is the share of words that is swapped.
    """
    assert model.meta is not None  # it was trained here
    task = passages_of(model.meta)
    given, new, targets = {}, torch.empty(0), torch.empty(0)
    for words, share in {"clean": 0.0, "swapped": swapped}.items():
        every = [*swapped_passages(task, share)]
        chosen = [every[number] for number in spread(len(every), n)]
        given[words], targets = pad_together([(ids, target) for ids, target, _ in chosen], "input_ids")
        new = torch.nn.utils.rnn.pad_sequence([new for *_, new in chosen], batch_first=True)
    return EmbeddedPassages(given, new, targets)


def attention_on_swapped(models: Iterable[LoadedModel], passages: EmbeddedPassages) -> pd.DataFrame:
    """Share of a head's attention on swapped words, mean over queries that see some; beside it the null distribution.

    Columns mechanism (the attention of a model), input, layer, head, metric "swapped_share", value, null
    ("permutation": the weights of a query among the keys that it sees), null_mean, null_low, null_high; without input
    and head the mean of a layer, whose null is narrower: each head of each input is permuted by itself.

    Raises what `by_attention` raises.
    """
    batch, new = passages.given["swapped"], passages.swapped
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
            found = pattern_scores(maps, {"swapped": swapped_keys})["swapped"]
            for place in np.ndindex(*found.value.shape):
                null = {
                    f"null_{part}": float(getattr(found.null, part)[place])
                    for part in ("mean", "low", "high")
                }
                one = {"mechanism": name, "input": str(place[0]), "layer": layer.index, "head": place[1]}
                rows.append({**one, "value": float(found.value[place]), **null})
    single = pd.DataFrame(rows).dropna(subset="value").assign(metric="swapped_share", null="permutation")
    return with_means(single, ["mechanism", "layer"])
