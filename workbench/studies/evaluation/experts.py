"""Measure how a mixture of experts distributes tokens: how evenly, and how far the token decides."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import pandas as pd
import torch
from jaxtyping import Int
from torch import Tensor, nn

from workbench.core.null_distributions import derived_seed, null_of_draws
from workbench.models.architectures.mixture import SwitchMlp, expert_choices
from workbench.studies.evaluation.conditions import Run, named


def expert_use(
    model: nn.Module, batch: dict[str, Tensor], *, seed: int = 0, null_samples: int = 20
) -> pd.DataFrame:
    """Measure by layer how the real tokens of a batch are distributed among the experts.

    Columns ``layer``, ``expert``, ``metric``, ``value``, ``null_mean``, ``null_low``, ``null_high``. ``expert_share``:
    share of the tokens of an expert. ``expert_evenness``: entropy of these shares divided by log of the number of
    experts, 1 for equal shares. ``expert_by_token``: mutual information of expert and token (a character) divided by
    the entropy of the shares, 1 if the character decides; its null permutes the choices among the tokens
    ``null_samples`` times (at least once).

    Raises `InputError` for a model without a mixture of experts.
    """
    choices, ids = expert_choices(model, **batch), batch["input_ids"]
    real = batch.get("attention_mask", torch.ones_like(ids)).bool()
    experts = [len(part.experts) for part in model.modules() if isinstance(part, SwitchMlp)]
    rows: list[dict[str, Any]] = []
    for layer, (chosen, count) in enumerate(zip(choices, experts, strict=True)):
        chosen_experts, tokens = chosen[real], ids[real]
        shares = torch.bincount(chosen_experts, minlength=count).double() / len(chosen_experts)
        spent = float(torch.special.entr(shares).sum())
        rows += [
            {"layer": layer, "expert": expert, "metric": "expert_share", "value": float(share)}
            for expert, share in enumerate(shares)
        ]
        rows.append({"layer": layer, "metric": "expert_evenness", "value": spent / math.log(count)})
        if spent > 0:
            generator = torch.Generator().manual_seed(derived_seed(seed, f"experts of layer {layer}"))
            orders = [torch.randperm(len(chosen_experts), generator=generator) for _ in range(null_samples)]
            null = torch.tensor(
                [information(chosen_experts[order], tokens) / spent for order in orders]
            ).double()
            value = information(chosen_experts, tokens) / spent
            mean, low, high, _ = map(float, null_of_draws(torch.tensor(value), null))
            estimate = {"value": value, "null_mean": mean, "null_low": low, "null_high": high}
            rows.append({"layer": layer, "metric": "expert_by_token", **estimate})
    columns = ["layer", "expert", "metric", "value", "null_mean", "null_low", "null_high"]
    return pd.DataFrame(rows, columns=columns).astype({"expert": "Int64"})


def experts_under_conditions(runs: Iterable[Run], *, seed: int = 0, null_samples: int = 20) -> pd.DataFrame:
    """Return `expert_use` of the model of every run on its batch, concatenated.

    The columns ``condition`` and ``attention`` name the run of a row. Raises the errors of
    `workbench.studies.evaluation.conditions.named` and `expert_use`.
    """
    frames = [
        expert_use(model.module, inputs, seed=seed, null_samples=null_samples).assign(**name)
        for name, model, inputs in named(runs)
    ]
    return pd.concat(frames, ignore_index=True)


def information(choices: Int[Tensor, " token"], tokens: Int[Tensor, " token"]) -> float:
    """Return the mutual information (nats) of two numbers per token."""
    first, second = (part.unique(return_inverse=True)[1] for part in (choices, tokens))
    joint = torch.zeros(int(first.max()) + 1, int(second.max()) + 1, dtype=torch.float64)
    joint.index_put_((first, second), torch.ones(len(first), dtype=torch.float64), accumulate=True)
    joint = joint / joint.sum()
    entropy = [torch.special.entr(part).sum() for part in (joint.sum(0), joint.sum(1), joint)]
    return max(float(entropy[0] + entropy[1] - entropy[2]), 0.0)


def expert_findings(use: pd.DataFrame) -> list[str]:
    """State by layer how evenly experts are used, and how much of the choice the character explains, with its null.

    One sentence for each attention and condition of the result of `experts_under_conditions`.
    """
    sentences = []
    for _, run in use.groupby(["attention", "condition"], sort=False):
        name, parts = ", ".join(run[["attention", "condition"]].iloc[0]), []
        for layer, layer_rows in run.groupby("layer"):
            even = layer_rows.loc[layer_rows["metric"] == "expert_evenness", "value"].iloc[0]
            information_rows = layer_rows[layer_rows["metric"] == "expert_by_token"]
            words = "".join(
                f", {row.value:.0%} of the choice told by the character (null {row.null_mean:.1%})"
                for row in information_rows.itertuples()
            )
            parts.append(f"layer {layer} evenness {even:.2f}{words}")
        sentences.append(f"Experts of {name}: {'; '.join(parts)}.")
    return sentences
