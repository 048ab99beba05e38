"""Data sets of offline reinforcement learning, by the recipe of D4RL (Fu et al. 2020) with scripted policies.

There a policy in training is stopped half way; here the scripted expert acts at random a share of the time.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from workbench.studies.training.control import ENVIRONMENTS, episode

MEDIUM = 0.6
"""Share of random actions of the medium policy, whose returns lie half way."""
QUALITIES = ("medium", "medium-replay", "medium-expert")
NAMES = tuple(
    f"{name}-{quality}"
    for name, kind in ENVIRONMENTS.items()
    if kind.policy is not None
    for quality in QUALITIES
)


def noises(quality: str, count: int) -> list[float]:
    """Share of random actions of each episode of a data set.

    "medium": the medium policy. "medium-replay": what it saw while it was trained, from all random on. "medium-expert":
    half of the episodes are the expert's.
    """
    if quality == "medium-replay":
        return np.linspace(1, MEDIUM, count).tolist()
    return [0.0 if quality == "medium-expert" and number % 2 else MEDIUM for number in range(count)]


def write(name: str, folder: Path, sizes: dict[str, int], seed: int) -> None:
    """``NAME.npz`` with all episodes in random order, by D4RL's names."""
    environment, quality = split_name(name)
    kind, draw, count = ENVIRONMENTS[environment], np.random.default_rng(seed), sum(sizes.values())
    shares = noises(quality, count)
    episodes = [episode(kind, shares[at], seed * 10_000 + int(at), draw) for at in draw.permutation(count)]
    arrays: dict[str, Any] = {key: np.concatenate([one[key] for one in episodes]) for key in episodes[0]}
    np.savez(folder / f"{name}.npz", **arrays)


def split_name(name: str) -> tuple[str, str]:
    """Environment and quality: ("mountain-car", "medium-replay"); the first is "" for one that there is not."""
    environment = next((known for known in ENVIRONMENTS if name.startswith(known)), "")
    return environment, name[len(environment) :].strip("-")


WRITERS = {name: partial(write, name) for name in NAMES}
