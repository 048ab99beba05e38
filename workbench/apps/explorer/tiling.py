"""The image of an input with several grids of patches: one image read in tiles, or several images in a strip."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torchvision.transforms.functional import resize

if TYPE_CHECKING:
    from workbench.captures import TokenInfo
    from workbench.data.batches import Inputs

_CORRELATION = 0.95
"""Correlation of the joined tiles with the image from which on their arrangement counts as known."""


_LEAST_CELL, _LARGEST_CELL = 8, 32  # pixels of a patch in a strip


class Tiling(NamedTuple):
    """An image, with the overview that the model reads beside its tiles at its right, and the cell of every patch."""

    image: np.ndarray
    grid: tuple[int, int]
    """(rows, columns) of cells; some are empty where there is an overview."""
    cells: np.ndarray
    """By token the number of its cell, row by row; NaN for tokens that are no patches."""


def strip_of(sample: Inputs, tokens: TokenInfo) -> Tiling | None:
    """Return the several images of an input side by side, an empty column apart; None where it has one, or tiles."""
    grids = tokens.image_grids[0] if tokens.image_grids else []
    if not sample.images or not any(sample.others):
        return None
    images = [sample.images[0], *sample.others[0]]
    if len(grids) != len(images) or sum(map(math.prod, grids)) != tokens.kinds[0].count("patch"):
        return None
    side = max(round(image.shape[0] / rows) for image, (rows, _) in zip(images, grids, strict=True))
    side = max(_LEAST_CELL, min(_LARGEST_CELL, side))
    starts = [sum(columns + 1 for _, columns in grids[:number]) for number in range(len(grids))]
    grid = max(rows for rows, _ in grids), starts[-1] + grids[-1][1]
    strip = np.zeros((grid[0] * side, grid[1] * side, 3), np.uint8)
    for image, (rows, columns), start in zip(images, grids, starts, strict=True):
        size = [rows * side, columns * side]
        scaled = resize(torch.from_numpy(np.array(image)).permute(2, 0, 1), size, antialias=True)
        strip[: size[0], start * side : start * side + size[1]] = scaled.permute(1, 2, 0).numpy()
    cells = np.full(len(tokens.labels[0]), np.nan, np.float32)
    for token, label in enumerate(tokens.labels[0]):
        if tokens.kinds[0][token] == "patch":
            number, _, place = label.partition(":")
            row, column = map(int, place.split(","))
            cells[token] = row * grid[1] + starts[int(number)] + column
    return Tiling(strip, grid, cells)


class _Arrangement(NamedTuple):
    rows: int
    columns: int
    overview: int | None
    """Which tile is the whole image."""


def tiling_of(sample: Inputs, tokens: TokenInfo) -> Tiling | None:
    """Return the tiling of an input's first image; None where it is no tiles, or their arrangement is not clear."""
    grids = tokens.image_grids[0] if tokens.image_grids else []
    pixels = sample.batch.get("pixel_values") if isinstance(sample.batch, dict) else None
    if len(grids) < 2 or len(set(grids)) > 1 or sample.images is None or not isinstance(pixels, Tensor):
        return None
    tiles = pixels.detach().double().cpu().flatten(0, -4)
    tiles = tiles[(tiles != 0).flatten(1).any(-1)]  # tiles of zeros fill up inputs that have fewer
    if len(tiles) != len(grids) or math.prod(grids[0]) * len(grids) != tokens.kinds[0].count("patch"):
        return None
    image = np.array(sample.images[0])
    arrangement = _arrangement(tiles.mean(1), torch.from_numpy(image).double().mean(-1))
    if arrangement is None:
        return None
    (rows, columns), across = grids[0], arrangement.columns
    parts = [tile for tile in range(len(grids)) if tile != arrangement.overview]
    grid = arrangement.rows * rows, across * columns + (0 if arrangement.overview is None else columns)
    cells = np.full(len(tokens.labels[0]), np.nan, np.float32)
    for token, label in enumerate(tokens.labels[0]):
        if tokens.kinds[0][token] != "patch":
            continue
        tile, _, place = label.partition(":")
        row, column = map(int, place.split(","))
        if int(tile) == arrangement.overview:
            column += across * columns
        else:
            down, right = divmod(parts.index(int(tile)), across)
            row, column = row + down * rows, column + right * columns
        cells[token] = row * grid[1] + column
    return Tiling(image if arrangement.overview is None else _with_overview(image, arrangement), grid, cells)


def _arrangement(
    tiles: Float[Tensor, "tile height width"], image: Float[Tensor, "height width"]
) -> _Arrangement | None:
    """Return the arrangement whose joined tiles are most like the image."""
    best, highest = None, _CORRELATION
    for arrangement in _arrangements(len(tiles)):
        parts = torch.stack([tile for number, tile in enumerate(tiles) if number != arrangement.overview])
        rows = parts.unflatten(0, (arrangement.rows, arrangement.columns)).transpose(1, 2).flatten(2)
        joined = rows.flatten(0, 1)
        reference = resize(image[None], list(joined.shape), antialias=True)[0]
        correlation = torch.corrcoef(torch.stack([joined.flatten(), reference.flatten()]))[0, 1].item()
        if correlation > highest:  # false for an image of one colour, whose correlation is NaN
            best, highest = arrangement, correlation
    return best


def _arrangements(count: int) -> Iterator[_Arrangement]:
    """Yield every grid of tiles, without an overview, and with one last or first."""
    for overview in (None, count - 1, 0):
        parts = count if overview is None else count - 1
        for rows in range(1, parts + 1):
            if parts % rows == 0:
                yield _Arrangement(rows, parts // rows, overview)


def _with_overview(image: np.ndarray, arrangement: _Arrangement) -> np.ndarray:
    """Return the image with itself, as large as one tile, at its right."""
    height = max(1, round(len(image) / arrangement.rows))
    width = max(1, round(image.shape[1] / arrangement.columns))
    pixels = torch.from_numpy(image).permute(2, 0, 1)
    wider = np.pad(image, [(0, 0), (0, width), (0, 0)])
    wider[:height, -width:] = resize(pixels, [height, width], antialias=True).permute(1, 2, 0).numpy()
    return wider
