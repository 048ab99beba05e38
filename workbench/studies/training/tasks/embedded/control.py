"""Data sets of offline reinforcement learning, by the recipe of D4RL (Fu et al. 2020) with scripted policies.

D4RL stops the training of a policy half way; here the scripted expert acts at random for a share of the time.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from workbench.studies.training.simulators import ENVIRONMENTS, episode

MEDIUM = 0.6
"""Share of random actions of the medium policy, whose returns are about half the expert's."""
_QUALITIES = ("medium", "medium-replay", "medium-expert")
NAMES = tuple(
    f"{name}-{quality}"
    for name, kind in ENVIRONMENTS.items()
    if kind.policy is not None
    for quality in _QUALITIES
)


def noises(quality: str, count: int) -> list[float]:
    """Return the share of random actions of each episode of a data set.

    "medium": the medium policy. "medium-replay": from fully random to medium. "medium-expert": half of the episodes are
    the expert's.
    """
    if quality == "medium-replay":
        return np.linspace(1, MEDIUM, count).tolist()
    return [0.0 if quality == "medium-expert" and number % 2 else MEDIUM for number in range(count)]


def write(name: str, folder: Path, sizes: dict[str, int], seed: int) -> None:
    """Write ``NAME.npz`` with all episodes in random order, with D4RL's names."""
    environment, quality = split_name(name)
    kind, draw, count = ENVIRONMENTS[environment], np.random.default_rng(seed), sum(sizes.values())
    shares = noises(quality, count)
    episodes = [episode(kind, shares[at], seed * 10_000 + int(at), draw) for at in draw.permutation(count)]
    arrays: dict[str, Any] = {
        key: np.concatenate([history[key] for history in episodes]) for key in episodes[0]
    }
    np.savez(folder / f"{name}.npz", **arrays)


def split_name(name: str) -> tuple[str, str]:
    """Split into environment and quality: ("mountain-car", "medium-replay"); an unknown environment is ""."""
    environment = next((name_start for name_start in ENVIRONMENTS if name.startswith(name_start)), "")
    return environment, name[len(environment) :].strip("-")


WRITERS = {name: partial(write, name) for name in NAMES}
