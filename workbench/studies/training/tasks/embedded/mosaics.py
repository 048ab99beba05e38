"""Images with a class for every pixel, in ADE20K's layout: mosaics of textures, and digits on a texture.

Textures are cuts of the bundled photographs with the split of the task ``photos``: no pixel is in both splits.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from workbench.core.errors import MissingResource
from workbench.data.pools import digits_split, photo_files, read_image
from workbench.studies.training.tasks.images import cuts_of

SIDE = 32
"""Pixels along the side of an image."""
TEXTURES = ("brick", "coins", "flower", "grass", "gravel", "hubble_deep_field", "ihc", "moon")
"""Photographs with homogeneous texture."""
FIELDS = (3, 5)
"""Fewest and most fields of a mosaic."""
DIGITS = (2, 3)
"""Fewest and most digits of a collage."""
INK = 8
"""Smallest grey level, of 16, that counts as ink."""
_FOLDERS = {"train": "training", "test": "validation"}

Drawn = tuple[np.ndarray, np.ndarray]
"""(side, side, 3) colours and (side, side) classes from 1; 0 is an unlabelled pixel."""


def textures() -> dict[str, dict[str, list[np.ndarray]]]:
    """Return the cuts of each texture by split, (SIDE, SIDE, 3)."""
    files = photo_files()
    if absent := [name for name in TEXTURES if name not in files]:
        raise MissingResource(f"no photograph {absent[0]} in the installed scikit-image; install it again")
    cuts = {name: cuts_of(read_image(files[name]), SIDE) for name in TEXTURES}
    return {split: {name: both[split] for name, both in cuts.items()} for split in _FOLDERS}


def mosaic(draw: np.random.Generator, cuts: dict[str, list[np.ndarray]]) -> Drawn:
    """Draw the Voronoi fields of random points, each with a different texture."""
    chosen = draw.choice(len(TEXTURES), draw.integers(FIELDS[0], FIELDS[1] + 1), replace=False)
    points = draw.uniform(0, SIDE, (len(chosen), 2))
    spots = np.moveaxis(np.mgrid[:SIDE, :SIDE], 0, -1)
    nearest = ((spots[:, :, None] - points) ** 2).sum(-1).argmin(-1)
    colours = np.zeros((SIDE, SIDE, 3), dtype=np.uint8)
    for field, number in enumerate(chosen):
        colours[nearest == field] = _cut(draw, cuts[TEXTURES[number]])[nearest == field]
    return colours, (chosen + 1)[nearest]


def collage(
    draw: np.random.Generator, cuts: dict[str, list[np.ndarray]], digits: tuple[np.ndarray, np.ndarray]
) -> Drawn:
    """Draw digits at twice their size in one colour, in different quarters of a texture, which is class 1."""
    image = _cut(draw, cuts[TEXTURES[draw.integers(len(TEXTURES))]]).copy()
    labels = np.ones((SIDE, SIDE), dtype=np.int64)
    half = SIDE // 2
    for quarter in draw.choice(4, draw.integers(DIGITS[0], DIGITS[1] + 1), replace=False):
        number = draw.integers(len(digits[0]))
        ink = np.kron(digits[0][number] >= INK, np.ones((2, 2), dtype=bool))
        top, left = quarter // 2 * half, quarter % 2 * half
        image[top : top + half, left : left + half][ink] = draw.integers(0, 256, 3)
        labels[top : top + half, left : left + half][ink] = 2 + digits[1][number]
    return image, labels


def _cut(draw: np.random.Generator, cuts: list[np.ndarray]) -> np.ndarray:
    return cuts[draw.integers(len(cuts))]


def write_mosaics(folder: Path, sizes: dict[str, int], seed: int) -> None:
    """Write mosaics of textures, a class for each texture."""
    cuts = textures()
    _write(folder, sizes, seed, TEXTURES, lambda draw, split: mosaic(draw, cuts[split]))


def write_collages(folder: Path, sizes: dict[str, int], seed: int) -> None:
    """Write digits on textures: the class "texture", and one for each digit."""
    cuts = textures()
    splits = {split: digits_split(split) for split in _FOLDERS}
    digits = {split: (part.raw, part.labels.numpy()) for split, part in splits.items()}
    names = ("texture", *"0123456789")
    _write(folder, sizes, seed, names, lambda draw, split: collage(draw, cuts[split], digits[split]))


def _write(
    folder: Path,
    sizes: dict[str, int],
    seed: int,
    names: tuple[str, ...],
    make: Callable[[np.random.Generator, str], Drawn],
) -> None:
    """Write ``images/training/*.png``, ``annotations/training/*.png``, both ``validation``, and the list of classes."""
    listed = "".join(f"{number}\t{name}\n" for number, name in enumerate(names, 1))
    (folder / "objectInfo.txt").write_text(f"Idx\tName\n{listed}", encoding="utf-8")
    for at, (split, count) in enumerate(sizes.items()):
        draw = np.random.default_rng([seed, at])
        for number in range(count):
            for kind, pixels in zip(("images", "annotations"), make(draw, split), strict=True):
                target = folder / kind / _FOLDERS[split]
                target.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels.astype(np.uint8)).save(target / f"{number:05d}.png")
