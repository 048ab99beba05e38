"""Load test images of an embedded segmentation, clean and corrupted, with masks and models' predictions."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from PIL import Image

from workbench.core.null_distributions import derived_seed
from workbench.data.batches import Inputs, inputs
from workbench.data.corruptions import corrupt
from workbench.frames.results import join_frames
from workbench.models.loading import LoadedModel
from workbench.studies.evaluation.conditions import by_attention, under_conditions
from workbench.studies.training.tasks.embedded import EMBEDDED, PREFIX, SEED


@dataclass(frozen=True)
class EmbeddedScenes:
    """Some test images of an embedded segmentation; its folders of masks exist as long as the object."""

    inputs: dict[str, Inputs]
    """The "clean" images and the same ones "corrupted", in the same order."""
    truth: list[np.ndarray]
    """(height, width) classes of the pixels of each, from 0."""
    masks: str
    """The folder of masks, for analyses."""
    other_masks: str
    """A folder with another image's mask for each image: the control for the position of patches."""
    _folder: tempfile.TemporaryDirectory = field(repr=False)

    @property
    def images(self) -> dict[str, list[np.ndarray]]:
        """Return (height, width, 3) pixels of each image by condition, for display."""
        return {words: batch.images or [] for words, batch in self.inputs.items()}


def embedded_scenes(
    data: str, model: LoadedModel, *, n: int, corruption: str, severity: int, seed: int = 0
) -> EmbeddedScenes:
    """Return ``n`` test images of the embedded segmentation ``data``, for a model trained on it.

    Raises the errors of `workbench.inputs` and `workbench.data.corruptions.corrupt`, and KeyError for other data.
    """
    temporary = tempfile.TemporaryDirectory(prefix="workbench-scenes-")
    root, entry = Path(temporary.name), EMBEDDED[data]
    entry.write(root, {"train": 0, "test": entry.test}, SEED)
    images, masks = root / "images" / "validation", root / "annotations" / "validation"
    corrupted, others = root / "corrupted", root / "others"
    corrupted.mkdir()
    others.mkdir()
    names = sorted(path.name for path in images.iterdir())
    for name, following in zip(names, [*names[1:], names[0]], strict=True):
        shutil.copyfile(masks / following, others / name)
        pixels = np.asarray(Image.open(images / name), dtype=np.float32) / 255
        changed = corrupt(
            pixels, corruption, severity, np.random.default_rng(derived_seed(seed, corruption, name))
        )
        Image.fromarray(np.round(255 * changed).astype(np.uint8)).save(corrupted / name)
    batches = {
        words: replace(
            inputs(f"images:{image_folder}", model, n=n, seed=seed), spec=f"{PREFIX}{data}, {words}"
        )
        for words, image_folder in (("clean", images), ("corrupted", corrupted))
    }
    truth = [np.array(Image.open(masks / name)).astype(np.int64) - 1 for name in batches["clean"].ids]
    return EmbeddedScenes(batches, truth, str(masks), str(others), temporary)


def segment_shares(
    models: Iterable[LoadedModel], scenes: EmbeddedScenes, *, layers: str | None = None, seed: int = 0
) -> pd.DataFrame:
    """Return the share of a patch's attention on other patches of its segment, on the clean images.

    Rows of ``pattern_segment`` by image, layer and head as in `under_conditions`, with its errors. The ``condition`` is
    "own segments", or the control "another image's segments", explained by the position of patches only.
    """
    models, clean = [*models], scenes.inputs["clean"]
    segments = {"own segments": scenes.masks, "another image's segments": scenes.other_masks}
    return join_frames(
        [
            under_conditions(
                "attention-patterns", "pattern_segment", [(words, model, clean) for model in models],
                masks=masks, layers=layers, seed=seed,
            )
            for words, masks in segments.items()
        ]
    )  # fmt: skip


@torch.no_grad()
def predicted_masks(
    models: Iterable[LoadedModel], scenes: EmbeddedScenes
) -> tuple[dict[str, dict[str, list[np.ndarray]]], pd.DataFrame]:
    """Return the classes that segmentation models predict, by attention and condition, and the share of correct pixels.

    The frame has the columns attention, condition, input, metric (accuracy) and value.

    Raises the errors of `by_attention`.
    """
    masks, rows = {}, []
    for name, model in by_attention(models).items():
        masks[name] = {
            words: [*model.module(batch.batch).argmax(1).cpu().numpy()]
            for words, batch in scenes.inputs.items()
        }
        for words, predictions in masks[name].items():
            for label, predicted, true in zip(
                scenes.inputs[words].ids, predictions, scenes.truth, strict=True
            ):
                right = float((predicted == true).mean())
                rows.append({"attention": name, "condition": words, "input": label, "value": right})
    return masks, pd.DataFrame(rows).assign(metric="accuracy")
