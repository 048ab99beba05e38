"""Models of embedded tasks looked into under conditions: the inputs as they are, and the same inputs changed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd

from workbench.core.errors import InputError
from workbench.frames.results import join_frames, provenance_of
from workbench.models.architectures import attention_of
from workbench.models.loading import LoadedModel
from workbench.runs.analyze import analyze
from workbench.runs.findings import findings

Run = tuple[str, LoadedModel, Any]
"""A condition in words, a model, and the inputs that it is given under this condition, as `analyze` takes them."""


def named(runs: Iterable[Run]) -> list[tuple[dict[str, str], LoadedModel, Any]]:
    """Runs with what names them in the place of the condition: ``{"condition": "clean", "attention": "rpc-sym"}``.

    Raises `InputError` for a model that was not trained here, whose attention is not known by name, and for two of the
    same attention under one condition.
    """
    found = []
    for condition, model, given in runs:
        if not (model.meta and "architecture" in model.meta):
            raise InputError(
                f"{model.spec} was not trained here; give a model that is, or that you have trained"
            )
        name = {"condition": condition, "attention": attention_of(model.meta["architecture"])}
        if any(name == other for other, *_ in found):
            raise InputError(f"several models have {name['attention']}; give one of each attention")
        found.append((name, model, given))
    return found


def by_attention(models: Iterable[LoadedModel]) -> dict[str, LoadedModel]:
    """Models that were trained here by their attention ("rpc-sym"), in their order. Raises what `named` raises."""
    return {name["attention"]: model for name, model, _ in named(("", model, {}) for model in models)}


def under_conditions(analysis: str, metric: str, runs: Iterable[Run], **settings: Any) -> pd.DataFrame:
    """The rows of one metric of an analysis of every run, under one another, as `workbench.analyze` gives them.

    The columns ``condition`` and ``attention`` say which run a row is of. Raises what `named` and `workbench.analyze`
    raise.
    """
    frames = [
        analyze(analysis, model=model, inputs=given, **settings).assign(**name)
        for name, model, given in named(runs)
    ]
    return join_frames([frame[frame["metric"] == metric] for frame in frames])


def entropy_and_cosine(runs: Iterable[Run], *, null_samples: int, **settings: Any) -> pd.DataFrame:
    """By layer how even the attention of every run is, and below it how alike its tokens are after the block.

    Rows of ``attention_entropy_share`` (entropy over that of even attention, which needs no null distribution) and of
    ``token_cosine`` (beside random directions), otherwise as `under_conditions` has them, with its errors.
    """
    runs = [*runs]
    entropy = under_conditions("attention-map", "attention_entropy_share", runs, null_samples=0, **settings)
    cosine = under_conditions("token-similarity", "token_cosine", runs, null_samples=null_samples, **settings)
    return join_frames([entropy, cosine])


def condition_findings(*frames: pd.DataFrame) -> list[str]:
    """What `workbench.findings` says of each metric of each run, behind the condition: "clean: bundled:…: …".

    Raises `InputError` for a frame that is not whole, as `under_conditions` or its like gave it.
    """
    sentences = []
    for frame in frames:
        parts = [own for _, own in frame.groupby(["metric", "condition", "attention"], sort=False)]
        runs = provenance_of(frame)
        if len(parts) != len(runs):
            raise InputError(
                f"the frame has {len(parts)} parts by metric, condition and attention, of {len(runs)} runs; give the "
                "whole result of under_conditions() or its like"
            )
        for own, run in zip(parts, runs, strict=True):
            own.attrs = {"provenance": [run]}
            sentences.append(": ".join([own["condition"].iloc[0], *findings(own)]))
    return sentences


def condition_means(frame: pd.DataFrame, format: str = ".0%") -> str:
    """The mean value of each attention under each condition, as a caption has it: "rpc-sym 81% and 41%; …".

    Attentions and conditions are in the order in which the frame has them first.
    """
    means = frame.pivot_table("value", "attention", "condition", sort=False)
    return "; ".join(
        f"{name} {' and '.join(f'{mean:{format}}' for mean in own)}" for name, own in means.iterrows()
    )
