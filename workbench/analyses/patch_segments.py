"""Segmentations of images, patch by patch: from the pixels, or from mask images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Predicate
from jaxtyping import Bool, Int, UInt8
from torch import Tensor

from workbench.core.errors import InputError
from workbench.core.options import Accepted
from workbench.data.pools import IMAGE_SUFFIXES, Unreadable, read_image

INK = "ink"


def _is_folder(name: str) -> bool:
    return Path(name).expanduser().is_dir()


Masks = Literal["ink"] | Annotated[str, Predicate(_is_folder), Accepted("a folder that is there")] | None
"""Source of patch masks, as an option."""
_HALF = 127.5  # of white


def patch_segments(
    masks: str, name: str, grid: tuple[int, int], image: UInt8[np.ndarray, "height width 3"] | None
) -> Int[Tensor, " patch"]:
    """The segment of every patch of one input, numbered from 0, in reading order.

    ``masks`` "ink": 1 where the patch is brighter than half of white, on average (in the bundled digits ink is
    bright). Else a folder with an image of the input's name: each colour or grey level is a segment, and a patch
    belongs to the one that most of its pixels have. The mask has the size of the ``image`` as the model sees it,
    or one pixel per patch. Raises `InputError` where it is missing, unreadable, or of another size.
    """
    if masks == INK:
        return _ink(grid, image).long()
    mask = _read_mask(Path(masks), name, grid, image)
    size = mask.shape[:2]
    _, labels = np.unique(mask.reshape(size[0] * size[1], -1), axis=0, return_inverse=True)
    cells = _cells(labels.reshape(size), grid)
    return torch.from_numpy(np.array([np.bincount(cell).argmax() for cell in cells], dtype=np.int64))


def patch_foreground(
    masks: str, name: str, grid: tuple[int, int], image: UInt8[np.ndarray, "height width 3"] | None
) -> Bool[Tensor, " patch"]:
    """Which patches of one input are foreground, in reading order: ink, or where most of the mask is not black.

    ``masks``, sizes and errors as in `patch_segments`.
    """
    if masks == INK:
        return _ink(grid, image)
    mask = _read_mask(Path(masks), name, grid, image)
    foreground = mask.reshape(*mask.shape[:2], -1).max(-1) > 0
    return torch.from_numpy(_cells(foreground, grid).mean(-1) > 0.5)


def _ink(grid: tuple[int, int], image: np.ndarray | None) -> Bool[Tensor, " patch"]:
    if image is None:
        raise InputError(
            "ink is seen in the pixels, which are known for inputs given by spec; give such, or a folder of masks"
        )
    return torch.from_numpy(_cells(image.mean(-1), grid).mean(-1) > _HALF)


def _read_mask(folder: Path, name: str, grid: tuple[int, int], image: np.ndarray | None) -> np.ndarray:
    path = _mask_file(folder, name)
    try:
        mask = read_image(path)
    except Unreadable as error:
        raise InputError(f"the mask {path} cannot be read: {error}") from error
    size = mask.shape[:2]
    seen = None if image is None else image.shape[:2]
    if size not in (grid, seen):
        pixels = "" if seen is None else f"{seen[0]} × {seen[1]} pixels, as the model sees the image, or "
        raise InputError(
            f"the mask {path} is {size[0]} × {size[1]}; expected {pixels}{grid[0]} × {grid[1]}, one pixel per patch: "
            "resize it without interpolation"
        )
    return mask


def _mask_file(folder: Path, name: str) -> Path:
    stem = folder.expanduser() / name
    candidates = [stem.with_name(stem.stem + suffix) for suffix in IMAGE_SUFFIXES]
    mask_path = next((path for path in candidates if path.is_file()), None)
    if mask_path is None:
        raise InputError(
            f"no mask for input {name!r}: looked for {candidates[0].with_suffix('')} with an ending of "
            f"{', '.join(IMAGE_SUFFIXES)}"
        )
    return mask_path


def _cells(pixels: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
    """(height, width) as (patch, pixel); pixels that fill no patch, at the right and the bottom, are left out."""
    rows, columns = grid
    height, width = pixels.shape[0] // rows, pixels.shape[1] // columns
    cut = pixels[: rows * height, : columns * width]
    return cut.reshape(rows, height, columns, width).swapaxes(1, 2).reshape(rows * columns, height * width)
