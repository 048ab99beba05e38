"""Image tasks: the digits, cuts of photographs, and a user's folder."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch.utils.data import Subset, TensorDataset

from workbench.core.errors import InputError, MissingResource
from workbench.data.pools import DIGITS_MEAN, DIGITS_SIZE, DIGITS_STD, digits_split, photo_files, read_image
from workbench.studies.training.tasks.task import DataRequest, Task, spread, watched_of

MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, as everywhere
TILES = 4
"""Rows and columns of tiles in the central square of a photograph."""
TEST_TILES = ((0, 1), (1, 3), (2, 0), (3, 2))
"""Test tiles (row, column) of a photograph: one in each row and column."""
CUTS = 3
"""Cuts along each side of a tile, overlapping by half; a tile is twice as wide as a cut."""


def digits(request: DataRequest) -> Task:
    """Load scikit-learn's digits: 8×8 grey images of ten classes, resized to 16×16."""
    train, test = digits_split("train"), digits_split("test")
    train = train.first(request.limit)
    pairs = TensorDataset(train.images, train.labels), TensorDataset(test.images, test.labels)
    return Task(
        name="digits",
        classes=tuple("0123456789"),
        train=pairs[0],
        test=pairs[1],
        preprocessing={
            "scale": 1 / 16,
            "resize": DIGITS_SIZE,
            "interpolation": "bilinear",
            "mean": [DIGITS_MEAN],
            "std": [DIGITS_STD],
        },
        data={
            "source": "sklearn.datasets.load_digits",
            "train": {"n": len(train.images), "sha256": train.sha256()},
            "test": {"n": len(test.images), "sha256": test.sha256()},
        },
        output=(10,),
        watched={"train": watched_of(pairs[0]), "test": watched_of(pairs[1])},
    )


# Photographs ------------------------------------------------------------------------------------------------


def photos(request: DataRequest) -> Task:
    """Cut the bundled photographs into square images labelled by photograph.

    The central square of each photograph is cut into 4×4 tiles, with four test tiles; each tile is resized
    separately and cut into nine overlapping images. No pixel of a photograph is in both splits, not even through
    resizing.
    """
    files = photo_files()
    if len(files) < 2:
        raise MissingResource(
            "no photographs in the installed scikit-image and scikit-learn; install them again"
        )
    size = request.number("img_size")
    cuts: dict[str, list[np.ndarray]] = {"train": [], "test": []}
    labels: dict[str, list[int]] = {"train": [], "test": []}
    for label, path in enumerate(files.values()):
        for split, images in cuts_of(read_image(path), size).items():
            cuts[split] += images
            labels[split] += [label] * len(images)
    kept = {"train": spread(len(cuts["train"]), request.limit), "test": spread(len(cuts["test"]), None)}
    sets: dict[str, Any] = {}
    data: dict[str, Any] = {"source": "scikit-image and scikit-learn photographs"}
    for split, numbers in kept.items():
        raw = np.stack([cuts[split][number] for number in numbers])
        targets = torch.tensor([labels[split][number] for number in numbers])
        sets[split] = TensorDataset(normalised(raw), targets)
        digest = hashlib.sha256(raw.tobytes() + targets.numpy().astype("<i8").tobytes()).hexdigest()
        data[split] = {"n": len(raw), "sha256": digest}
    return Task(
        name="photos",
        classes=tuple(files),
        **sets,
        preprocessing=preprocessing_of(size),
        data=data,
        output=(len(files),),
        architecture={"num_classes": len(files), "in_chans": 3},
        watched={split: watched_of(pairs) for split, pairs in sets.items()},
    )


def cuts_of(photo: np.ndarray, size: int) -> dict[str, list[np.ndarray]]:
    """Return the (size, size, 3) cuts of one photograph by split, row by row."""
    image = Image.fromarray(photo).convert("RGB")
    side = min(image.size) // TILES
    left, top = ((extent - TILES * side) // 2 for extent in image.size)
    cuts: dict[str, list[np.ndarray]] = {"train": [], "test": []}
    for row in range(TILES):
        for column in range(TILES):
            x, y = left + column * side, top + row * side
            tile = image.crop((x, y, x + side, y + side))
            pixels = np.asarray(tile.resize((2 * size, 2 * size), Image.Resampling.BILINEAR))
            split = "test" if (row, column) in TEST_TILES else "train"
            for down in range(CUTS):
                for right in range(CUTS):
                    start = down * size // (CUTS - 1), right * size // (CUTS - 1)
                    cuts[split].append(pixels[start[0] : start[0] + size, start[1] : start[1] + size])
    return cuts


def normalised(raw: np.ndarray) -> torch.Tensor:
    """Convert (n, height, width, 3) colours from 0 to 255 to (n, 3, height, width) with ImageNet's normalisation."""
    images = torch.from_numpy(raw).permute(0, 3, 1, 2).float() / 255
    return (images - torch.tensor(MEAN).view(-1, 1, 1)) / torch.tensor(_STD).view(-1, 1, 1)


def preprocessing_of(size: int) -> dict[str, Any]:
    """Describe the preprocessing of a square colour image with this side in pixels."""
    return {
        "scale": 1 / 255,
        "resize": size,
        "interpolation": "bilinear",
        "mean": list(MEAN),
        "std": list(_STD),
    }


# A folder ---------------------------------------------------------------------------------------------------


def folder(request: DataRequest) -> Task:
    """Read a folder with ``train/CLASS/IMAGE``, and ``val`` (or ``test``), with torchvision and timm."""
    from timm.data import create_transform

    size, options = request.number("img_size"), request.images
    plain: Any = create_transform(size, crop_pct=options.test_crop, mean=MEAN, std=_STD)
    changing: Any = create_transform(
        size,
        is_training=True,
        scale=(options.smallest_crop, 1.0),
        hflip=options.flip,
        color_jitter=options.color_jitter,
        auto_augment=options.auto_augment or None,
        re_prob=options.random_erasing,
        re_mode="pixel",
        mean=MEAN,
        std=_STD,
    )
    train, test = open_splits("images", request.data, changing, plain)
    seen: Any = Subset(train, spread(len(train), request.limit))
    still: Any = Subset(_image_folder(Path(train.root), plain), seen.indices)
    return Task(
        name="images",
        classes=tuple(train.classes),
        train=seen,
        test=test,
        preprocessing=preprocessing_of(size),
        data={
            "source": "images in a folder",
            "train": folder_identity(train, seen.indices),
            "test": folder_identity(test, range(len(test))),
        },
        output=(len(train.classes),),
        architecture={"num_classes": len(train.classes), "in_chans": 3},
        watched={"train": watched_of(still), "test": watched_of(test)},
        workers=options.workers,
    )


def open_splits(task: str, root: Path | None, training: Any, test: Any) -> tuple[Any, Any]:
    """Open ``train`` and ``val`` (or ``test``) of a folder, each with its transform; their classes must agree."""
    if root is None or not root.is_dir():
        raise InputError(f"{root} is no folder; task {task} takes a folder with train/ and val/ (or test/)")
    held_out = next((name for name in ("val", "test") if (root / name).is_dir()), None)
    if held_out is None or not (root / "train").is_dir():
        inside = ", ".join(sorted(path.name for path in root.iterdir() if path.is_dir())[:6]) or "none"
        raise InputError(f"{root} must hold train/ and val/ (or test/); its folders are: {inside}")
    seen, unseen = _image_folder(root / "train", training), _image_folder(root / held_out, test)
    if seen.classes != unseen.classes:
        odd = sorted(set(seen.classes) ^ set(unseen.classes))
        raise InputError(
            f"{root}: train/ and {held_out}/ must hold the same class folders; only one of them has "
            + ", ".join(odd[:5])
        )
    return seen, unseen


def _image_folder(path: Path, transform: Any) -> Any:
    from torchvision.datasets import ImageFolder

    try:
        return ImageFolder(str(path), transform=transform, loader=open_image)
    except FileNotFoundError as error:  # no class folders, or one without images
        raise InputError(f"{path} must hold a folder of images for each class: {error}") from error


def open_image(path: str) -> Image.Image:
    """Read an image file in colour; InputError if it cannot be read."""
    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    except (OSError, UnidentifiedImageError) as error:
        raise InputError(f"the image {path} cannot be read ({error}); replace or remove it") from error


def folder_identity(images: Any, numbers: Any) -> dict[str, Any]:
    """Hash names and sizes of the files in order: hashing a million images would take an hour."""
    digest = hashlib.sha256()
    root = Path(images.root)
    for number in numbers:
        path = Path(images.samples[number][0])
        digest.update(f"{path.relative_to(root).as_posix()} {path.stat().st_size}\n".encode())
    return {"n": len(numbers), "sha256": digest.hexdigest(), "hash_of": "names and sizes of the files"}
