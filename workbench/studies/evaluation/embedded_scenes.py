"""Test images of an embedded segmentation, clean and corrupted, with their masks, and what models make of them."""

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
    """Some test images of an embedded segmentation; the folders of masks are there as long as this is."""

    given: dict[str, Inputs]
    """The "clean" images and the same "corrupted", in the same order."""
    truth: list[np.ndarray]
    """(height, width) classes of the pixels of each, from 0."""
    masks: str
    """The folder of masks, as analyses take it."""
    other_masks: str
    """One in which every image has the mask of another: what only the place of patches decides is the same there."""
    _folder: tempfile.TemporaryDirectory = field(repr=False)

    @property
    def images(self) -> dict[str, list[np.ndarray]]:
        """(height, width, 3) pixels of each image by condition, for people."""
        return {words: batch.images or [] for words, batch in self.given.items()}


def embedded_scenes(
    data: str, model: LoadedModel, *, n: int, corruption: str, severity: int, seed: int = 0
) -> EmbeddedScenes:
    """``n`` test images of the embedded segmentation ``data``, for a model that was trained on it.

    Raises what `workbench.inputs` and `workbench.data.corruptions.corrupt` raise, and KeyError for other data.
    """
    held = tempfile.TemporaryDirectory(prefix="workbench-scenes-")
    root, entry = Path(held.name), EMBEDDED[data]
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
    given = {
        words: replace(inputs(f"images:{place}", model, n=n, seed=seed), spec=f"{PREFIX}{data}, {words}")
        for words, place in (("clean", images), ("corrupted", corrupted))
    }
    truth = [np.array(Image.open(masks / name)).astype(np.int64) - 1 for name in given["clean"].ids]
    return EmbeddedScenes(given, truth, str(masks), str(others), held)


def segment_shares(
    models: Iterable[LoadedModel], scenes: EmbeddedScenes, *, layers: str | None = None, seed: int = 0
) -> pd.DataFrame:
    """Share of a patch's attention that other patches of its segment get, on the clean images.

    Rows of ``pattern_segment`` by image, layer and head as `under_conditions` has them, with its errors; the
    ``condition`` says whether segments are the image's "own segments", or "another image's segments", which leave what
    the place of patches explains.
    """
    models, clean = [*models], scenes.given["clean"]
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
    """The classes that segmentation models predict, by attention and condition, and the share of pixels that are right.

    The frame has the columns attention, condition, input, metric (accuracy) and value.

    Raises what `by_attention` raises.
    """
    masks, rows = {}, []
    for name, model in by_attention(models).items():
        masks[name] = {
            words: [*model.module(batch.batch).argmax(1).cpu().numpy()]
            for words, batch in scenes.given.items()
        }
        for words, own in masks[name].items():
            for label, found, true in zip(scenes.given[words].ids, own, scenes.truth, strict=True):
                right = float((found == true).mean())
                rows.append({"attention": name, "condition": words, "input": label, "value": right})
    return masks, pd.DataFrame(rows).assign(metric="accuracy")
