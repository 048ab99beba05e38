"""The picture of an input that a model reads in tiles: the tiles' patches laid back over the one picture."""

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

_ALIKE = 0.95
"""Correlation of the joined tiles with the picture from which on their arrangement counts as known."""


class Tiling(NamedTuple):
    """A picture, with the overview that the model reads beside its tiles at its right, and the cell of every patch."""

    image: np.ndarray
    grid: tuple[int, int]
    """(rows, columns) of cells; some are empty where there is an overview."""
    cells: np.ndarray
    """By token the number of its cell, row by row; NaN for tokens that are no patches."""


class _Arrangement(NamedTuple):
    rows: int
    columns: int
    overview: int | None
    """Which tile is the whole picture."""


def tiling_of(sample: Inputs, tokens: TokenInfo) -> Tiling | None:
    """Return the picture of an input's first image; None where it is no tiles, or their arrangement is not clear."""
    grids = tokens.image_grids[0] if tokens.image_grids else []
    pixels = sample.batch.get("pixel_values") if isinstance(sample.batch, dict) else None
    if len(grids) < 2 or len(set(grids)) > 1 or sample.images is None or not isinstance(pixels, Tensor):
        return None
    tiles = pixels.detach().double().cpu().flatten(0, -4)
    tiles = tiles[(tiles != 0).flatten(1).any(-1)]  # tiles of zeros fill up inputs that have fewer
    if len(tiles) != len(grids) or math.prod(grids[0]) * len(grids) != tokens.kinds[0].count("patch"):
        return None
    picture = np.array(sample.images[0])
    found = _arrangement(tiles.mean(1), torch.from_numpy(picture).double().mean(-1))
    if found is None:
        return None
    (rows, columns), across = grids[0], found.columns
    parts = [tile for tile in range(len(grids)) if tile != found.overview]
    grid = found.rows * rows, across * columns + (0 if found.overview is None else columns)
    cells = np.full(len(tokens.labels[0]), np.nan, np.float32)
    for token, label in enumerate(tokens.labels[0]):
        if tokens.kinds[0][token] != "patch":
            continue
        tile, _, place = label.partition(":")
        row, column = map(int, place.split(","))
        if int(tile) == found.overview:
            column += across * columns
        else:
            down, right = divmod(parts.index(int(tile)), across)
            row, column = row + down * rows, column + right * columns
        cells[token] = row * grid[1] + column
    return Tiling(picture if found.overview is None else _with_overview(picture, found), grid, cells)


def _arrangement(
    tiles: Float[Tensor, "tile height width"], picture: Float[Tensor, "height width"]
) -> _Arrangement | None:
    """Return the arrangement whose joined tiles are most like the picture."""
    best, most = None, _ALIKE
    for found in _arrangements(len(tiles)):
        parts = torch.stack([tile for number, tile in enumerate(tiles) if number != found.overview])
        rows = parts.unflatten(0, (found.rows, found.columns)).transpose(1, 2).flatten(2)
        joined = rows.flatten(0, 1)
        reference = resize(picture[None], list(joined.shape), antialias=True)[0]
        alike = torch.corrcoef(torch.stack([joined.flatten(), reference.flatten()]))[0, 1].item()
        if alike > most:  # false for a picture of one colour, whose correlation is NaN
            best, most = found, alike
    return best


def _arrangements(count: int) -> Iterator[_Arrangement]:
    """Yield every grid of tiles, without an overview, and with one last or first."""
    for overview in (None, count - 1, 0):
        parts = count if overview is None else count - 1
        for rows in range(1, parts + 1):
            if parts % rows == 0:
                yield _Arrangement(rows, parts // rows, overview)


def _with_overview(picture: np.ndarray, found: _Arrangement) -> np.ndarray:
    """Return the picture with itself, as large as one tile, at its right."""
    height, width = (
        max(1, round(size / parts)) for size, parts in zip(picture.shape[:2], found[:2], strict=True)
    )
    small = resize(torch.from_numpy(picture).permute(2, 0, 1), [height, width], antialias=True).permute(
        1, 2, 0
    )
    wider = np.pad(picture, [(0, 0), (0, width), (0, 0)])
    wider[:height, -width:] = small.numpy()
    return wider
