"""Analyse models of embedded tasks under conditions: original inputs, and the same inputs changed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd

from workbench.core.errors import InputError
from workbench.core.intervals import mean_interval
from workbench.frames.results import join_frames, provenance_of
from workbench.models.architectures import attention_of
from workbench.models.loading import LoadedModel
from workbench.runs.analyze import analyze
from workbench.runs.result_findings import findings

Run = tuple[str, LoadedModel, Any]
"""A condition's label, a model, and its inputs under this condition, as `analyze` takes them."""


def named(runs: Iterable[Run]) -> list[tuple[dict[str, str], LoadedModel, Any]]:
    """Replace the condition of each run by the names of the run: ``{"condition": "clean", "attention": "rpc-sym"}``.

    Raises `InputError` for a model that was not trained here, and for two runs with the same attention and condition.
    """
    named_runs = []
    for condition, model, inputs in runs:
        if not (model.meta and "architecture" in model.meta):
            raise InputError(
                f"{model.spec} was not trained here; give a model that is, or that you have trained"
            )
        name = {"condition": condition, "attention": attention_of(model.meta["architecture"])}
        if any(name == other for other, *_ in named_runs):
            raise InputError(f"several models have {name['attention']}; give one of each attention")
        named_runs.append((name, model, inputs))
    return named_runs


def by_attention(models: Iterable[LoadedModel]) -> dict[str, LoadedModel]:
    """Return models trained here by their attention ("rpc-sym"), in order. Raises the errors of `named`."""
    return {name["attention"]: model for name, model, _ in named(("", model, {}) for model in models)}


def under_conditions(analysis: str, metric: str, runs: Iterable[Run], **settings: Any) -> pd.DataFrame:
    """Return the rows of one metric of an analysis for every run, concatenated, as from `workbench.analyze`.

    The columns ``condition`` and ``attention`` name the run of a row. Raises the errors of `named` and
    `workbench.analyze`.
    """
    frames = [
        analyze(analysis, model=model, inputs=inputs, **settings).assign(**name)
        for name, model, inputs in named(runs)
    ]
    return join_frames([frame[frame["metric"] == metric] for frame in frames])


def entropy_and_cosine(runs: Iterable[Run], *, null_samples: int, **settings: Any) -> pd.DataFrame:
    """Return by layer the entropy of the attention of every run, and the similarity of its tokens after the block.

    Rows of ``attention_entropy_share`` (entropy divided by that of uniform attention, without a null) and of
    ``token_cosine`` (with random directions as the null), otherwise as in `under_conditions`, with its errors.
    """
    runs = [*runs]
    entropy = under_conditions("attention-map", "attention_entropy_share", runs, null_samples=0, **settings)
    cosine = under_conditions("token-similarity", "token_cosine", runs, null_samples=null_samples, **settings)
    return join_frames([entropy, cosine])


def condition_findings(*frames: pd.DataFrame) -> list[str]:
    """Return the sentences of `workbench.findings` for each metric of each run, after the condition: "clean: …".

    Raises `InputError` for a frame that is not the complete result of `under_conditions` or a similar function.
    """
    sentences = []
    for frame in frames:
        parts = [part for _, part in frame.groupby(["metric", "condition", "attention"], sort=False)]
        runs = provenance_of(frame)
        if len(parts) != len(runs):
            raise InputError(
                f"the frame has {len(parts)} parts by metric, condition and attention, of {len(runs)} runs; give the "
                "whole result of under_conditions() or its like"
            )
        for part, run in zip(parts, runs, strict=True):
            part.attrs = {"provenance": [run]}
            sentences.append(": ".join([part["condition"].iloc[0], *findings(part)]))
    return sentences


def condition_differences(frame: pd.DataFrame) -> str:
    """Format the first condition's mean minus the second's for each attention: "+14 points in softmax and +4 in a".

    "Not significant" marks a difference whose 95 % CI over inputs includes 0. Attentions and conditions are in the
    order of their first row.
    """
    means = frame.pivot_table("value", ["attention", "input"], "condition", sort=False)
    changes = 100 * (means.iloc[:, 0] - means.iloc[:, 1])
    parts = []
    for name, values in changes.groupby(level="attention", sort=False):
        change = mean_interval(values)
        open_words = " (not significant)" * bool(change.low <= 0 <= change.high)
        points = f"{change.value:+z.0f}".replace("-", "−") + " points" * (not parts)
        parts.append(f"{points} in {name}{open_words}")
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def condition_ranks(frame: pd.DataFrame) -> str:
    """Name the attention with the largest and the one with the smallest mean under each condition, with 95 % CIs."""
    parts = []
    for condition, rows in frame.groupby("condition", sort=False):
        scores: pd.Series = 100 * rows["value"]
        means = {name: mean_interval(values) for name, values in scores.groupby(rows["attention"])}
        best, worst = (end(means, key=lambda name: means[name].value) for end in (max, min))
        most, fewest = (means[name].within(0, 100).words(".0f") for name in (best, worst))
        parts.append(f"{condition}: most with {best} ({most} %), fewest with {worst} ({fewest} %)")
    return "; ".join(parts)
