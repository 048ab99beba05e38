"""The segmentation task: a class for every pixel, from a folder in ADE20K's layout."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset, default_collate

from workbench.core.errors import InputError
from workbench.studies.training.objectives import SEGMENTATION, UNLABELLED
from workbench.studies.training.tasks.images import normalised, open_image, preprocessing_of
from workbench.studies.training.tasks.task import DataRequest, Task, spread, watched_of
from workbench.studies.training.tasks.user_files import numbered_lines

_SPLITS = {"train": "training", "test": "validation"}
_LAYOUT = (
    "images/training/*.jpg, annotations/training/*.png, the same under validation, and objectInfo150.txt"
)


class Scenes(Dataset):
    """Images and the classes of their pixels from files, resized to the shorter side and cropped to the centre."""

    def __init__(
        self, pairs: Sequence[tuple[Path, Path]], size: int, classes: int, flip: float = 0.0
    ) -> None:
        self.pairs, self.size, self.classes, self.flip = pairs, size, classes, flip

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image, labels = self.read(index)
        pixels, targets = normalised(image[None])[0], torch.from_numpy(labels)
        if self.flip and float(torch.rand(())) < self.flip:
            pixels, targets = pixels.flip(-1), targets.flip(-1)
        return pixels, targets

    def read(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (size, size, 3) colours and (size, size) classes from 0, UNLABELLED for unlabelled pixels."""
        path, marked = self.pairs[index]
        image, labels = open_image(str(path)), _open_labels(marked)
        if image.size != labels.size:
            raise InputError(
                f"{marked} has {labels.size[0]} × {labels.size[1]} pixels and {path} {image.size[0]} × {image.size[1]};"
                " an annotation is as large as its image"
            )
        numbers = np.asarray(_square(labels, self.size, Image.Resampling.NEAREST)).astype(np.int64)
        if numbers.max() > self.classes:
            raise InputError(
                f"{marked} has class {numbers.max()}, and the list of classes ends at {self.classes}; take the list "
                "and the annotations of one data set"
            )
        colours = np.array(_square(image, self.size, Image.Resampling.BILINEAR))
        return colours, np.where(numbers > 0, numbers - 1, UNLABELLED)

    def identity(self) -> dict[str, Any]:
        """Hash names and sizes of the files, in order."""
        digest = hashlib.sha256()
        for path in (path for pair in self.pairs for path in pair):
            digest.update(f"{path.name} {path.stat().st_size}\n".encode())
        return {"n": len(self), "sha256": digest.hexdigest(), "hash_of": "names and sizes of the files"}

    def in_memory(self) -> tuple[TensorDataset, dict[str, Any]]:
        """Return the data without the files, and their identity: a hash over colours and classes."""
        pixels, targets = default_collate([self[number] for number in range(len(self))])
        digest = hashlib.sha256()
        for number in range(len(self)):
            for part in self.read(number):
                digest.update(part.tobytes())
        return TensorDataset(pixels, targets), {"n": len(self), "sha256": digest.hexdigest()}


def _open_labels(path: Path) -> Image.Image:
    try:
        with Image.open(path) as image:
            image.load()
    except (OSError, UnidentifiedImageError) as error:
        raise InputError(f"the annotation {path} cannot be read ({error}); replace or remove it") from error
    if image.mode not in ("L", "P"):
        raise InputError(
            f"the annotation {path} has pixels of mode {image.mode}; a grey or palette PNG holds the class of each"
        )
    return image


def _square(image: Image.Image, size: int, how: Image.Resampling) -> Image.Image:
    """Return the central square of an image, ``size`` pixels along its side."""
    side = min(image.size)
    left, top = ((extent - side) // 2 for extent in image.size)
    return image.resize((size, size), how, box=(left, top, left + side, top + side))


def segment(request: DataRequest) -> Task:
    """Read a folder with images/, annotations/ (0 is no class, 1 the first of the list) and a list of classes."""
    size, patch, root = request.number("img_size"), request.number("patch_size"), request.data
    if root is None or not root.is_dir():
        raise InputError(f"{root} is no folder; task segmentation takes a folder with {_LAYOUT}")
    pairs = {split: _pairs(root, name) for split, name in _SPLITS.items()}
    classes = _classes(root)
    kept = [pairs["train"][number] for number in spread(len(pairs["train"]), request.limit)]
    test = Scenes(pairs["test"], size, len(classes))
    still = Scenes(kept, size, len(classes))
    return Task(
        name="segmentation",
        classes=classes,
        train=Scenes(kept, size, len(classes), request.images.flip),
        test=test,
        preprocessing=preprocessing_of(size) | {"patch": patch},
        data={
            "source": "images and annotations in a folder",
            "train": still.identity(),
            "test": test.identity(),
        },
        output=(len(classes), size, size),
        objective=SEGMENTATION,
        architecture={"num_classes": len(classes), "in_chans": 3},
        watched={"train": watched_of(still), "test": watched_of(test)},
        workers=request.images.workers,
        collate=default_collate,
        reorder=Patches(patch),
        trivial=most_frequent,
    )


def _pairs(root: Path, name: str) -> list[tuple[Path, Path]]:
    """Return the images of a split, by name, and their annotations."""
    images, annotations = root / "images" / name, root / "annotations" / name
    for folder in (images, annotations):
        if not folder.is_dir():
            inside = ", ".join(sorted(path.name for path in root.iterdir())[:6]) or "nothing"
            raise InputError(
                f"{root} holds {inside}, and no {folder.relative_to(root).as_posix()}; task segmentation takes a "
                f"folder with {_LAYOUT}"
            )
    pairs = []
    for path in sorted(images.iterdir()):
        if path.suffix.lower() not in (".jpg", ".jpeg", ".png"):
            continue
        marked = annotations / f"{path.stem}.png"
        if not marked.is_file():
            raise InputError(
                f"there is no {marked}, the annotation of {path.name}; put it there, or remove the image"
            )
        pairs.append((path, marked))
    if not pairs:
        raise InputError(f"{images} holds no .jpg or .png; copy the images again")
    return pairs


def _classes(root: Path) -> tuple[str, ...]:
    """Read names from ``objectInfo*.txt``: tab-separated columns, Idx from 1 and Name of the class."""
    path = next(iter(sorted(root.glob("objectInfo*.txt"))), None)
    if path is None:
        raise InputError(f"{root} has no objectInfo150.txt, the list of classes; a folder has {_LAYOUT}")
    lines = numbered_lines(path)
    header = [cell.strip() for cell in next(lines, (0, ""))[1].split("\t")]
    if "Idx" not in header or "Name" not in header:
        raise InputError(
            f"{path} begins with {header[:4]}; a list of classes has the columns Idx and Name, tabs between"
        )
    names = []
    for number, line in lines:
        cells = [cell.strip() for cell in line.split("\t")]
        if len(cells) != len(header) or cells[header.index("Idx")] != str(len(names) + 1):
            raise InputError(
                f"{path}, line {number}: {cells[:4]}; class {len(names) + 1} belongs here, with {header}"
            )
        names.append(cells[header.index("Name")])
    if not names:
        raise InputError(f"{path} has a header and no classes; copy it again")
    return tuple(names)


class Patches:
    """The control of a segmentation: shuffle the patches of an image together with their classes.

    The content of each patch is kept, its context is not.
    """

    def __init__(self, side: int) -> None:
        self.side = side

    def __call__(self, image: Tensor, targets: Tensor, draw: np.random.Generator) -> tuple[Tensor, Tensor]:
        rows, columns = (extent // self.side for extent in targets.shape)
        order = torch.from_numpy(draw.permutation(rows * columns))

        def moved(x: Tensor) -> Tensor:
            cut = x.unflatten(-1, (columns, -1)).unflatten(-3, (rows, -1))  # …, row, down, column, right
            flat = cut.transpose(-3, -2).flatten(-4, -3)[..., order, :, :]
            return flat.unflatten(-3, (rows, columns)).transpose(-3, -2).flatten(-2).flatten(-3, -2)

        return moved(image), moved(targets)


def most_frequent(task: Task) -> dict[str, float]:
    """Return the test scores of predicting the class frequencies of the training pixels."""
    count = torch.zeros(len(task.classes))
    for _, targets in task.train:
        count += torch.bincount(targets[targets != UNLABELLED], minlength=len(count))
    logits = (count / count.sum()).clamp(min=math.ulp(0.0) ** 0.5).log()
    means: dict[str, list[float]] = {}
    for _, targets in task.test:
        scores = task.objective.score(
            logits[None, :, None, None].expand(-1, -1, *targets.shape), targets[None]
        )
        for name, value in scores.items():
            means.setdefault(name, []).append(float(value))
    return task.objective.derive({name: math.fsum(values) / len(values) for name, values in means.items()})
