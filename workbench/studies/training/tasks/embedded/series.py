"""Six problems of multivariate time series in the UEA archive's format, each with one distinguishing feature.

Lengths differ independently of the class, and every channel is noisy. The archive itself (Bagnall et al. 2018) has 30
problems; chen2023 uses ten.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
from jaxtyping import Float

Series = Float[np.ndarray, "step channel"]
SHORTEST, LONGEST = 40, 80
NOISE = 0.3
"""Default standard deviation of the noise on every value."""


def phase(draw: np.random.Generator, label: int, steps: int) -> Series:
    """Make two sines of one frequency; the class is the phase between them, in quarters of a turn."""
    angle = 2 * math.pi * (np.arange(steps) * draw.uniform(0.05, 0.1) + draw.uniform())
    both = np.stack([np.sin(angle), np.sin(angle - label * math.pi / 2)], axis=1)
    return both + draw.normal(0, NOISE, (steps, 2))


LAGS = (-4, 0, 4)
"""Lag of the second channel behind the first, in steps."""


def lag(draw: np.random.Generator, label: int, steps: int) -> Series:
    """Make a smooth random course and a copy some steps earlier, simultaneous or later; the class is the lag.

    A course is a sum of four sines of random frequencies and phases. The third channel is another course.
    """
    time, most = np.arange(-LAGS[-1], steps + LAGS[-1]), LAGS[-1]
    source, other = (
        np.sin(2 * math.pi * (np.outer(time, draw.uniform(0.02, 0.08, 4)) + draw.uniform(size=4))).sum(1)
        for _ in range(2)
    )
    first, third = source[most : most + steps], other[most : most + steps]
    start = most - LAGS[label]
    values = np.stack([first, source[start : start + steps], third], axis=1) / math.sqrt(2)
    return values + draw.normal(0, 0.2, values.shape)


FREQUENCIES = (0.04, 0.07, 0.11, 0.16)
"""Of the sine, in turns per step."""


def frequency(draw: np.random.Generator, label: int, steps: int) -> Series:
    """Make a sine that starts in the same quarter of its turn in one of three channels; the class is its frequency.

    The other channels are noise of the same size.
    """
    values = draw.normal(0, 1, (steps, 3))
    angle = 2 * math.pi * (np.arange(steps) * FREQUENCIES[label] + draw.uniform(0, 0.25))
    values[:, draw.integers(3)] = math.sqrt(2) * np.sin(angle) + draw.normal(0, NOISE, steps)
    return values


def shape(draw: np.random.Generator, label: int, steps: int) -> Series:
    """Make a cylinder, bell or funnel (Saito 1994) at a random position, and a random one in the second channel.

    The class is the first channel's shape.
    """
    return np.stack(
        [_event(draw, which, steps) for which in (label, int(draw.integers(3)))], axis=1
    ) + draw.normal(0, 1, (steps, 2))


def _event(draw: np.random.Generator, which: int, steps: int) -> Float[np.ndarray, " step"]:
    start = int(draw.integers(steps // 8, steps // 4 + 1))
    stop = start + int(draw.integers(steps // 4, 3 * steps // 4 + 1 - steps // 8))
    time = np.arange(steps)
    inside = (time >= start) & (time <= stop)
    rise = (time - start) / (stop - start)
    form = (np.ones(steps), rise, 1 - rise)[which]
    return (6 + draw.normal()) * form * inside


def chirp(draw: np.random.Generator, label: int, steps: int) -> Series:
    """Make two channels whose frequency rises or falls between the same two values; the class is the direction."""
    low, high = draw.uniform(0.01, 0.03), draw.uniform(0.1, 0.14)
    course = np.linspace(low, high, steps) if label else np.linspace(high, low, steps)
    angle = 2 * math.pi * (np.cumsum(course) + draw.uniform(0, 0.25))
    both = np.stack([np.sin(angle), np.cos(angle)], axis=1)
    return both + draw.normal(0, 1.5, (steps, 2))


def oscillators(draw: np.random.Generator, label: int, steps: int) -> Series:
    """Simulate three phase oscillators (Kuramoto 1975) of different frequencies; the class is the coupled pair.

    The coupled pair synchronises; the third runs freely.
    """
    # no two of these have their mean, where the coupled two meet, near the third
    frequencies = 2 * math.pi * np.array([0.05, 0.06, 0.11])[draw.permutation(3)]
    coupling = np.zeros((3, 3))
    first, second = ((0, 1), (0, 2), (1, 2))[label]
    coupling[first, second] = coupling[second, first] = 0.3
    angles = draw.uniform(0, 2 * math.pi, 3)
    values = np.empty((steps, 3))
    for step in range(steps):
        values[step] = np.sin(angles)
        pull = (coupling * np.sin(angles[None, :] - angles[:, None])).sum(1)
        angles = angles + frequencies + pull
    return values + draw.normal(0, 1, (steps, 3))


PROBLEMS: Mapping[str, tuple[Callable[[np.random.Generator, int, int], Series], tuple[str, ...]]] = {
    "phase": (phase, ("0", "90", "180", "270")),
    "lag": (lag, tuple(map(str, LAGS))),
    "frequency": (frequency, tuple(map(str, FREQUENCIES))),
    "shape": (shape, ("cylinder", "bell", "funnel")),
    "chirp": (chirp, ("falling", "rising")),
    "oscillators": (oscillators, ("1-2", "1-3", "2-3")),
}
"""Problem → function of one of its series, and the names of its classes."""


def write(problem: str, folder: Path, sizes: dict[str, int], seed: int) -> None:
    """Write ``NAME_TRAIN.ts`` and ``NAME_TEST.ts`` with four decimals, the classes in turns."""
    make, classes = PROBLEMS[problem]
    for at, (split, count) in enumerate(sizes.items()):
        draw = np.random.default_rng([seed, [*PROBLEMS].index(problem), at])
        lines = []
        for index in range(count):
            label = index % len(classes)
            values = make(draw, label, int(draw.integers(SHORTEST, LONGEST + 1)))
            lines.append(
                ":".join(
                    [*(",".join(f"{value:.4f}" for value in channel) for channel in values.T), classes[label]]
                )
            )
        head = (
            f"@problemName {problem}\n@timeStamps false\n@missing false\n@univariate false\n"
            f"@dimensions {values.shape[1]}\n@equalLength false\n@classLabel true {' '.join(classes)}\n@data\n"
        )
        text = head + "\n".join(lines) + "\n"
        (folder / f"{problem}_{split.upper()}.ts").write_text(text, encoding="utf-8")


WRITERS = {problem: partial(write, problem) for problem in PROBLEMS}
