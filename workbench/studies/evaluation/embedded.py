"""What the models trained on embedded tasks undergo for the record, beside the test set as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from workbench.studies.evaluation.images import PHOTO_CUTS
from workbench.studies.evaluation.running import evaluate

PROTOCOLS_OF_TASK = {"segmentation": ("corruptions", "fgsm", "pgd"), "images": ("fgsm", "pgd")}
INPUTS_OF_TASK = {"images": PHOTO_CUTS}
"""Where a checkpoint does not say its test set: the embedded cuts are those of the task ``photos``."""


def undergone(checkpoint: Path, task: str) -> pd.DataFrame:
    """``split`` (the protocol, with its budget), ``metric`` and ``value`` of a checkpoint under what its task has.

    Corruptions are the mean over types and severities.
    """
    rows: list[dict[str, Any]] = []
    for protocol in PROTOCOLS_OF_TASK.get(task, ()):
        found = evaluate(f"file:{checkpoint}", protocol, INPUTS_OF_TASK.get(task), n="all")
        if protocol == "corruptions":
            found = found[found["kind"].isna()]
        for row in found.to_dict("records"):
            budget = "" if pd.isna(row["epsilon"]) else f" {row['epsilon']:g}"
            rows.append({"split": protocol + budget, "metric": row["metric"], "value": row["value"]})
    return pd.DataFrame(rows, columns=["split", "metric", "value"])
