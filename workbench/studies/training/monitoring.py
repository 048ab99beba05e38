"""Run the library's analyses on a model in training, on the same few inputs after every epoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from workbench.attention import AttentionModule
from workbench.runs.analyze import analyze
from workbench.studies.training.feeding import placed, size_of

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

    from workbench.studies.training.feeding import Batch

MONITORED = ("projection_error", "phi_norm2", "h_norm2", "token_cosine")
"""Metrics of an epoch: means over inputs, heads and layers; with ``_last`` those of the last layer."""


def monitor(model: nn.Module, watched: Mapping[str, Batch]) -> dict[str, dict[str, float]]:
    """Return ``MONITORED`` metrics of a model on a few inputs by split; the model's mode is restored afterwards.

    projection_error and the norms are those of saritas2025 for the model's queries, keys and values, over layers with
    attention between tokens; without such layers they are absent.
    """
    training, device = model.training, next(model.parameters()).device
    model.eval()
    try:
        return {split: _measured(model, placed(batch, device)) for split, batch in watched.items()}
    finally:
        model.train(training)


def attends_to_tokens(model: nn.Module) -> bool:
    """Return whether any layer has a softmax over tokens: timm's attention or such a variant."""
    from timm.layers import Attention

    return any(
        isinstance(part, Attention) or (isinstance(part, AttentionModule) and part.attends == "token")
        for part in model.modules()
    )


def _measured(model: nn.Module, batch: Batch) -> dict[str, float]:
    means: dict[str, float] = {}
    if attends_to_tokens(model):
        frame = _quietly(
            "projection-error", model, batch, convention="saritas2025", per_head=True, null_samples=0
        )
        for metric in ("projection_error", "phi_norm2", "h_norm2"):
            rows = frame[frame["metric"] == metric]
            if metric != "projection_error":
                rows = rows[rows["statistic"] == "mean"]
            means |= _mean_and_last(metric, rows)
    frame = _quietly("token-similarity", model, batch, null="permutation", null_samples=0)
    return means | _mean_and_last("token_cosine", frame[frame["metric"] == "token_cosine"])


def _quietly(name: str, model: nn.Module, batch: Batch, **options: Any) -> pd.DataFrame:
    with torch.no_grad():
        return analyze(name, model=model, inputs=batch, batch_size=size_of(batch), **options)


def _mean_and_last(metric: str, rows: pd.DataFrame) -> dict[str, float]:
    """Return the mean over all rows and over the last layer; empty if a layer's value is undefined."""
    rows = rows[rows["value"].notna()]
    if rows.empty:
        return {}
    last = rows[rows["layer"] == rows["layer"].max()]
    return {metric: float(rows["value"].mean()), f"{metric}_last": float(last["value"].mean())}
