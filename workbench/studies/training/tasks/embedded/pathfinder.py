"""Pathfinder (Linsley et al. 2018), small: do the two marked ends belong to one dashed path?

As in the original, every image has two long dashed paths, distractors, and two discs at ends of the long paths: of the
same one ("connected") or of both ("apart"). The other path's end is chosen to make the distance of the discs as
uninformative as possible. The originals have 300×300 pixels, the Long Range Arena's 32×32, these 16×16, drawn at four
times that size.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw

SIDE = 16
LONG, SHORT = 13, 5
"""Steps of one pixel in a path that may be marked, and in a distractor."""
_DISTRACTORS = 2
_TURN = 0.3
"""Standard deviation of the change of direction from step to step, in radians."""
CLEAR = 2.0
"""Pixels between two paths; half of that between a path and the border."""
_TRIALS = 48
"""Number of candidate paths drawn at once; the first that fits is taken."""
_DASH, GAP = 2, 1
"""Numbers of steps drawn and skipped, alternating."""
_DISC = 1.3
_FINE = 4
CLASSES = ("apart", "connected")


def picture(draw: np.random.Generator, connected: bool) -> UInt8[np.ndarray, "16 16"]:
    """Draw one image of a class."""
    while True:
        paths: list[np.ndarray] = []
        for steps in (LONG, LONG, *[SHORT] * _DISTRACTORS):
            path = path_beside(draw, steps, paths)
            if path is None:
                break
            paths.append(path)
        else:
            return _drawn(paths, ends_marked(draw, paths, connected))


def path_beside(
    draw: np.random.Generator, steps: int, others: list[np.ndarray]
) -> Float[np.ndarray, "point 2"] | None:
    """Draw a slightly curved path clear of the others and of itself; None if no trial fits."""
    turns = draw.normal(0, _TURN, (_TRIALS, steps)).cumsum(1) + draw.uniform(0, 2 * math.pi, (_TRIALS, 1))
    moves = np.stack([np.cos(turns), np.sin(turns)], axis=-1)
    paths = np.concatenate([np.zeros((_TRIALS, 1, 2)), moves.cumsum(1)], axis=1)
    low = paths.min(1)
    room = SIDE - CLEAR - (paths.max(1) - low)
    paths += (CLEAR / 2 - low + draw.uniform(size=(_TRIALS, 2)) * room)[:, None]
    clear = (room >= 0).all(1)
    # of itself: a path that leads straight on is this far from where it was so many steps before
    after = math.ceil(CLEAR) + 1
    for gap in range(after, steps + 1):
        clear &= (_distances(paths[:, gap:], paths[:, :-gap]) >= CLEAR).all(1)
    if others:
        taken = np.concatenate(others)
        clear &= (_distances(paths[:, :, None], taken[None, None]) >= CLEAR).all((1, 2))
    fitting = np.flatnonzero(clear)
    return paths[fitting[0]] if len(fitting) else None


def _distances(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.hypot(first[..., 0] - second[..., 0], first[..., 1] - second[..., 1])


def ends_marked(
    draw: np.random.Generator, paths: list[np.ndarray], connected: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Place the discs: at both ends of a long path, or at the two paths' ends with the closest distance."""
    path, other_path = paths[:2] if draw.random() < 0.5 else paths[1::-1]
    if connected:
        return path[0], path[-1]
    distance = math.dist(path[0], path[-1])
    pairs = [(end, other_end) for end in (path[0], path[-1]) for other_end in (other_path[0], other_path[-1])]
    return min(pairs, key=lambda pair: abs(math.dist(*pair) - distance))


def _drawn(paths: list[np.ndarray], discs: tuple[np.ndarray, np.ndarray]) -> UInt8[np.ndarray, "16 16"]:
    image = Image.new("L", (SIDE * _FINE, SIDE * _FINE))
    pen = ImageDraw.Draw(image)
    for path in paths:
        fine = [(float(x), float(y)) for x, y in path * _FINE]
        for start in range(0, len(fine) - 1, _DASH + GAP):
            pen.line(fine[start : start + _DASH + 1], fill=160, width=_FINE - 1)
    for x, y in discs:
        pen.ellipse(
            [(x - _DISC) * _FINE, (y - _DISC) * _FINE, (x + _DISC) * _FINE, (y + _DISC) * _FINE], fill=255
        )
    return np.asarray(image.reduce(_FINE))


def write(folder: Path, sizes: dict[str, int], seed: int) -> None:
    """Write ``train/CLASS/*.png`` and ``test/CLASS/*.png``, with equal numbers of each class."""
    for number, (split, count) in enumerate(sizes.items()):
        draw = np.random.default_rng([seed, number])
        for label in CLASSES:
            (folder / split / label).mkdir(parents=True)
        for index in range(count):
            label = CLASSES[index % 2]
            image = picture(draw, label == "connected")
            Image.fromarray(image).save(folder / split / label / f"{index:05d}.png")
