"""Evaluate models trained on embedded tasks under perturbations, for the record."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from workbench.models.checkpoints import restore
from workbench.studies.evaluation.embedded_passages import passages_of, swapped_passages
from workbench.studies.evaluation.evaluating import evaluate
from workbench.studies.evaluation.pixel_models import BATCH, PHOTO_CUTS
from workbench.studies.training.feeding import pad_together

_PROTOCOLS_OF_TASK = {"segmentation": ("corruptions", "fgsm", "pgd"), "images": ("fgsm", "pgd")}
IMAGES = {("images", "pgd"): 100}
"""Number of test images if not all: FAN takes PGD's twenty steps on 100, as the models of digits do."""
BUDGETS = dict.fromkeys([("images", "fgsm"), ("images", "pgd")], (0.0, 0.0025, 0.005, 0.0075, 0.01, 0.02))
"""Budgets that replace the protocol's, under which PGD reduces FAN to zero (docs/papers/verdicts.md)."""
_INPUTS_OF_TASK = {"images": PHOTO_CUTS}
"""Test set of checkpoints that do not name theirs: the embedded cuts are those of the task ``photos``."""


def undergone(checkpoint: Path, task: str) -> pd.DataFrame:
    """Return ``split`` (protocol and budget), ``metric`` and ``value`` of a checkpoint under its task's protocols.

    Corruptions are the mean over types and severities.
    """
    if task == "passages":
        return swapped(checkpoint)
    rows: list[dict[str, Any]] = []
    for protocol in _PROTOCOLS_OF_TASK.get(task, ()):
        evaluation = evaluate(
            f"file:{checkpoint}",
            protocol,
            _INPUTS_OF_TASK.get(task),
            n=IMAGES.get((task, protocol), "all"),
            epsilons=BUDGETS.get((task, protocol)),
        )
        if protocol == "corruptions":
            evaluation = evaluation[evaluation["kind"].isna()]
        for row in evaluation.to_dict("records"):
            budget = "" if pd.isna(row["epsilon"]) else f" {row['epsilon']:g}"
            rows.append({"split": protocol + budget, "metric": row["metric"], "value": row["value"]})
    return pd.DataFrame(rows, columns=["split", "metric", "value"])


@torch.no_grad()
def swapped(checkpoint: Path, shares: Sequence[float] = (0.0, 0.05, 0.1, 0.2)) -> pd.DataFrame:
    """Return a passage classifier's test accuracy with a share of the words replaced (teo2024 App. A.4)."""
    module, about = restore(checkpoint)
    task = passages_of(about)
    rows = []
    for share in shares:
        examples, right = [(ids, target) for ids, target, _ in swapped_passages(task, share)], []
        for start in range(0, len(examples), BATCH):
            batch, targets = pad_together(examples[start : start + BATCH], "input_ids")
            right.append(module.eval()(**batch).argmax(1) == targets)
        rows.append(
            {
                "split": f"word-swap {share:g}",
                "metric": "accuracy",
                "value": float(torch.cat(right).double().mean()),
            }
        )
    return pd.DataFrame(rows)
