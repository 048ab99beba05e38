"""The library's own analyses of a model in training: on the same few inputs after every epoch."""

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
"""Metrics of an epoch: means over inputs, heads and layers, and with ``_last`` those of the last layer."""


def monitor(model: nn.Module, watched: Mapping[str, Batch]) -> dict[str, dict[str, float]]:
    """Split → ``MONITORED`` metrics of a model on a few inputs; the model is back in its mode afterwards.

    projection_error and the norms are those of saritas2025, of the model's own queries, keys and values, over
    the layers that attend from token to token: where there are none, they are left out.
    """
    training, device = model.training, next(model.parameters()).device
    model.eval()
    try:
        return {split: _measured(model, placed(batch, device)) for split, batch in watched.items()}
    finally:
        model.train(training)


def attends_to_tokens(model: nn.Module) -> bool:
    """Whether any layer has a softmax over tokens: one of timm's, or a variant that has."""
    from timm.layers import Attention

    return any(
        isinstance(part, Attention) or (isinstance(part, AttentionModule) and part.attends == "token")
        for part in model.modules()
    )


def _measured(model: nn.Module, batch: Batch) -> dict[str, float]:
    found: dict[str, float] = {}
    if attends_to_tokens(model):
        frame = _quietly(
            "projection-error", model, batch, convention="saritas2025", per_head=True, null_samples=0
        )
        for metric in ("projection_error", "phi_norm2", "h_norm2"):
            rows = frame[frame["metric"] == metric]
            if metric != "projection_error":
                rows = rows[rows["statistic"] == "mean"]
            found |= _mean_and_last(metric, rows)
    frame = _quietly("token-similarity", model, batch, null="permutation", null_samples=0)
    return found | _mean_and_last("token_cosine", frame[frame["metric"] == "token_cosine"])


def _quietly(name: str, model: nn.Module, batch: Batch, **options: Any) -> pd.DataFrame:
    with torch.no_grad():
        return analyze(name, model=model, inputs=batch, batch_size=size_of(batch), **options)


def _mean_and_last(metric: str, rows: pd.DataFrame) -> dict[str, float]:
    """Mean over all rows, and over those of the last layer; nothing where a layer's value is undefined."""
    rows = rows[rows["value"].notna()]
    if rows.empty:
        return {}
    last = rows[rows["layer"] == rows["layer"].max()]
    return {metric: float(rows["value"].mean()), f"{metric}_last": float(last["value"].mean())}
