"""Grey pixels of the bundled images as class folders: the digits, and cuts of photographs.

They replace CIFAR-10, which the Long Range Arena's Image uses and which is not bundled.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from workbench.core.errors import MissingResource
from workbench.data.pools import digits_split, photo_files, read_image
from workbench.studies.training.tasks.images import cuts_of
from workbench.studies.training.tasks.task import spread

SIDE = 16
"""Pixels along the side of a cut."""


def write_digits(folder: Path, sizes: dict[str, int], seed: int) -> None:
    """Write scikit-learn's digits with its training and test split, 8×8; nothing is drawn at random."""
    for split, count in sizes.items():
        digits = digits_split(split)
        grey = (digits.raw.astype(np.float64) * (255 / 16)).round().astype(np.uint8)
        _save(folder / split, [(str(int(label)), grey[at]) for at, label in enumerate(digits.labels)], count)


def write_photos(
    folder: Path, sizes: dict[str, int], seed: int, *, side: int = SIDE, mode: str = "L"
) -> None:
    """Write cuts of the photographs, grey unless ``mode`` is "RGB"; the class is the photograph; nothing is random."""
    files = photo_files()
    if len(files) < 2:
        raise MissingResource(
            "no photographs in the installed scikit-image and scikit-learn; install them again"
        )
    cuts = {name: cuts_of(read_image(path), side) for name, path in files.items()}
    for split, count in sizes.items():
        _save(
            folder / split, [(name, cut) for name, both in cuts.items() for cut in both[split]], count, mode
        )


write_cuts = partial(write_photos, side=2 * SIDE, mode="RGB")


def _save(folder: Path, images: list[tuple[str, np.ndarray]], count: int, mode: str = "L") -> None:
    """Save at most ``count`` images, spread evenly over the classes."""
    order = sorted(range(len(images)), key=lambda number: images[number][0])
    for number in (order[index] for index in spread(len(order), count)):
        label, image = images[number]
        (folder / label).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).convert(mode).save(folder / label / f"{number:05d}.png")
