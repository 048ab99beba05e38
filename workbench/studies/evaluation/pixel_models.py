"""Images for attacks and corruptions: pixels from 0 to 1, with the normalisation inside the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from workbench.core.errors import InputError
from workbench.studies.finite import not_finite

if TYPE_CHECKING:
    from workbench.data.batches import Inputs
    from workbench.models.loading import LoadedModel

BATCH = 256
PHOTO_CUTS = "task:photos"
"""The test images of ``workbench study train photos``; not in `inputs`, since they fit one model size."""
SCENES = "segmentation:"
"""Prefix of a folder in ADE20K's layout, or of the name of embedded scenes: their test images."""


class PixelModel(nn.Module):
    """A classifier of pixels in [0, 1]: normalises, runs the model, gives float32 logits.

    Raises InputError when called if the model gives anything but one finite logit per class.
    """

    mean: Tensor
    std: Tensor
    axes = 2
    """Of the logits: (n, classes)."""
    wanted = "one logit per class; this protocol takes a model with a classifier"

    def __init__(
        self, module: nn.Module, mean: tuple[float, ...], std: tuple[float, ...], by_name: bool = False
    ) -> None:
        super().__init__()
        self.module = module
        self.by_name = by_name
        self.kept: Sequence[int] | None = None
        """The outputs that classify, where the images are of some of the model's classes; all for None."""
        weight = next(module.parameters())
        self.register_buffer("mean", torch.tensor(mean, device=weight.device).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std, device=weight.device).view(-1, 1, 1))

    def forward(self, pixels: Float[Tensor, "n channel height width"]) -> Float[Tensor, "n classes"]:
        prepared = self.prepared(pixels)
        output = self.module(**prepared) if isinstance(prepared, dict) else self.module(prepared)
        logits = getattr(output, "logits", output)
        if not isinstance(logits, Tensor) or logits.ndim != self.axes or logits.shape[1] < 2:
            what = tuple(logits.shape) if isinstance(logits, Tensor) else type(output).__name__
            raise InputError(f"the model gives {what}, not {self.wanted}")
        if not logits.isfinite().all():
            raise not_finite("logits", self.module, prepared)
        return logits.float() if self.kept is None else logits[:, self.kept].float()

    def prepared(self, pixels: Float[Tensor, "n channel height width"]) -> Tensor | dict[str, Tensor]:
        """Return the model's own input for these pixels."""
        weight = next(self.module.parameters())
        batch = ((pixels.to(self.mean) - self.mean) / self.std).to(weight.dtype)
        return {"pixel_values": batch} if self.by_name else batch

    @torch.no_grad()
    def logits(self, pixels: Float[Tensor, "n channel height width"]) -> Float[Tensor, "n classes"]:
        """Return logits on the CPU, computed in batches."""
        return torch.cat([self(part.to(self.mean.device)).cpu() for part in pixels.split(BATCH)])


class SceneModel(PixelModel):
    """A segmentation of pixels in [0, 1]: float32 logits of every class at every pixel."""

    axes = 4
    wanted = "logits of every pixel; scenes take a model that segments"


@dataclass
class Images:
    """Labelled images of one evaluation."""

    pixels: Float[Tensor, "n channel height width"]
    """From 0 to 1, on the CPU, in the model's size."""
    targets: Int[Tensor, " n"] | Int[Tensor, "n height width"]
    """A class for every image, or of scenes for every pixel."""
    ids: list[str]
    identity: dict[str, Any]
    notes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.ids)


def open_images(model: LoadedModel, spec: str, n: int | str | None, seed: int) -> tuple[PixelModel, Images]:
    """Open `n` labelled images of `spec` as pixels, and `model` as a classifier of them.

    A model with its own preprocessing uses it, any other that of saritas2025 (see ``workbench.inputs``). If
    ``imagenet:FOLDER`` has only some of the model's classes, the classifier chooses among those (see `class_indices`).
    Raises InputError as ``inputs`` does, for images without classes, for a class without a logit, and for class folders
    that are not classes of the model.
    """
    from workbench.data.classes import class_indices

    if spec == PHOTO_CUTS or spec.startswith(SCENES):
        return _open_test_set(model, spec, n, seed)
    classifier, chosen, pixels = _pixels_of(model, spec, n, seed)
    if chosen.targets is None:
        raise InputError(
            f"{spec} has no classes to be right about; take bundled:digits, or imagenet:FOLDER with a folder per class"
        )
    images = Images(pixels, torch.tensor(chosen.targets), chosen.ids, chosen.identity, chosen.notes)
    if chosen.classes is not None:
        outputs = classifier.logits(images.pixels[:1]).shape[1]
        model_classes = (model.meta or {}).get("classes") or ()
        try:
            indices = class_indices(chosen.classes, outputs, model_classes)
        except InputError as error:
            raise InputError(f"{spec} does not fit {model.spec}: {error}") from None
        if len(indices) < outputs:
            classifier.kept = indices
            note = f"{len(indices)} of the {outputs} classes of {model.spec}; the logits of the others are left out"
            images.notes.append(note)
    _check_classes(classifier, images, model, spec)
    return classifier, images


def other_images(
    model: LoadedModel, spec: str, most: int, seed: int
) -> Float[Tensor, "n channel height width"]:
    """Return at most ``most`` images of ``spec`` in the model's size, from 0 to 1.

    Raises InputError as ``inputs`` does, and for texts.
    """
    from workbench.data.pools import open_pool

    return _pixels_of(model, spec, min(most, len(open_pool(spec))), seed)[2]


def _pixels_of(
    model: LoadedModel, spec: str, n: int | str | None, seed: int
) -> tuple[PixelModel, Inputs, Float[Tensor, "n channel height width"]]:
    from workbench.data.batches import IMAGENET_MEAN, IMAGENET_STD, inputs

    has_preprocessing = model.image is not None and (
        model.image.recorded or model.image.preprocess is not None
    )
    chosen = inputs(
        spec, model, n=n, seed=seed, preprocessing="model" if has_preprocessing else "saritas2025"
    )
    if model.image is None:
        raise InputError(f"{model.spec} takes no images, and {spec} gives them")
    colour = model.image.channels == 3
    mean, std = (
        (IMAGENET_MEAN, IMAGENET_STD)
        if colour and not has_preprocessing
        else (model.image.mean, model.image.std)
    )
    by_name = isinstance(chosen.batch, dict)
    batch = chosen.batch["pixel_values"] if isinstance(chosen.batch, dict) else chosen.batch
    classifier = PixelModel(model.module, mean, std, by_name)
    return classifier, chosen, _plain(batch, classifier)


def _open_test_set(
    model: LoadedModel, spec: str, n: int | str | None, seed: int
) -> tuple[PixelModel, Images]:
    """Open the test images of a training task, ``photos`` or ``segmentation``, in the model's size."""
    import numpy as np

    from workbench.data.batches import chosen_count
    from workbench.studies.training.tasks import load_task
    from workbench.studies.training.tasks.embedded import EMBEDDED, PREFIX

    if model.image is None or model.image.channels != 3 or len(set(model.image.size)) > 1:
        raise InputError(f"{spec} are square colour images; {model.spec} takes others")
    size: dict[str, Any] = {"img_size": model.image.size[0]}
    if spec == PHOTO_CUTS:
        task, kind, name = load_task("photos", architecture=size), PixelModel, "photos"
    else:
        name = spec.removeprefix(SCENES)
        data = PREFIX + name if name in EMBEDDED else name
        # the training images are of no use here, nor is the size of patches
        task = load_task("segmentation", 1, data=data, architecture=size | {"patch_size": 1})
        kind = SceneModel
        _check_names(model, spec, task.classes)
    total = len(task.test)  # ty: ignore[invalid-argument-type] - these test sets have a length
    n = chosen_count(n, total, f"the test set of {name}")
    order = np.random.default_rng(seed).permutation(total)[:n].tolist()
    classifier = kind(model.module, tuple(task.preprocessing["mean"]), tuple(task.preprocessing["std"]))
    images, targets = zip(*(task.test[number] for number in order), strict=True)
    identity = {"spec": spec, "n": n, "seed": seed, "sha256": task.data["test"]["sha256"]}
    images = Images(
        _plain(torch.stack(images), classifier),
        torch.stack(targets),
        [f"{name}/test/{number}" for number in order],
        identity,
    )
    _check_classes(classifier, images, model, spec)
    return classifier, images


def _check_names(model: LoadedModel, spec: str, names: tuple[str, ...]) -> None:
    about = model.meta or {}
    model_classes = tuple(about.get("classes", ()))
    if about.get("task") == "segmentation" and model_classes != names:
        odd = [name for name in names if name not in model_classes] or ["their order"]
        raise InputError(
            f"{spec} has the classes {', '.join(names[:4])}, … ({len(names)}), and {model.spec} was trained on "
            f"{', '.join(model_classes[:4])}, … ({len(model_classes)}); not the same: {', '.join(odd[:3])}"
        )


def _plain(batch: Tensor, classifier: PixelModel) -> Tensor:
    """Convert normalised images to pixels, clamped because of rounding."""
    return (batch.cpu().float() * classifier.std.cpu() + classifier.mean.cpu()).clamp(0, 1)


def _check_classes(classifier: PixelModel, images: Images, model: LoadedModel, spec: str) -> None:
    classes, highest = classifier.logits(images.pixels[:1]).shape[1], int(images.targets.max())
    if highest >= classes:
        raise InputError(
            f"{spec} has class {highest}, and {model.spec} knows classes 0 to {classes - 1}; give the images it "
            "was trained to tell apart"
        )
