"""The task of offline reinforcement learning: episodes of one environment in an .npz file, with D4RL's names."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.data import Dataset, default_collate

from workbench.core.errors import InputError
from workbench.studies.training.objectives import ACTIONS
from workbench.studies.training.simulators import ENVIRONMENTS, Act, Environment, acting, returns_of
from workbench.studies.training.tasks.embedded.control import split_name
from workbench.studies.training.tasks.task import WATCHED, DataRequest, Task, spread

KEYS = ("observations", "actions", "rewards", "terminals", "timeouts")
HELD_OUT = 10
"""The last 1/HELD_OUT of the episodes are the test set."""
EPISODES = 10
"""Number of test episodes after every epoch, always with the same start states."""
FIRST_SEED = 1_000_000
"""Seed of the first test episode; no data set made here uses these seeds."""

_Episode = dict[str, Float[np.ndarray, "step *"]]


class Histories(Dataset):
    """Stretches of ``context`` steps of episodes, overlapping by half, with zeros after the end.

    Input: returns to go, observations, actions and numbers of the steps; target: the actions, NaN after the end.
    """

    def __init__(self, episodes: Sequence[_Episode], context: int, about: dict[str, Any]) -> None:
        self.episodes, self.context, self.about = episodes, context, about
        self.starts = [
            (number, start)
            for number, episode in enumerate(episodes)
            for start in range(0, max(1, len(episode["rewards"]) - context // 2), max(1, context // 2))
        ]

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> tuple[dict[str, Tensor], Tensor]:
        number, start = self.starts[index]
        episode, steps = self.episodes[number], slice(start, start + self.context)
        to_go = np.cumsum(episode["rewards"][::-1].astype(np.float64))[::-1][steps, None]
        inputs = {
            "returns": to_go / self.about["scale"],
            "observations": (episode["observations"][steps] - self.about["mean"]) / self.about["std"],
            "actions": episode["actions"][steps],
        }
        length = len(to_go)
        batch = {name: torch.zeros(self.context, values.shape[1]) for name, values in inputs.items()}
        for name, values in inputs.items():
            batch[name][:length] = torch.from_numpy(np.ascontiguousarray(values)).float()
        target = torch.full_like(batch["actions"], torch.nan)
        target[:length] = batch["actions"][:length]
        return batch | {
            "times": torch.arange(start, start + self.context).clamp(max=self.about["last"])
        }, target

    def identity(self) -> dict[str, Any]:
        """Return the numbers of stretches, episodes and steps, and a hash of the data."""
        digest = hashlib.sha256()
        for episode in self.episodes:
            for key in ("observations", "actions", "rewards"):
                digest.update(f"{key} {episode[key].shape}\n".encode())
                digest.update(episode[key].astype("<f4").tobytes())
        steps = sum(len(episode["rewards"]) for episode in self.episodes)
        return {"n": len(self), "episodes": len(self.episodes), "steps": steps, "sha256": digest.hexdigest()}

    def in_memory(self) -> tuple[Histories, dict[str, Any]]:
        """Return the data set itself, which is in memory already."""
        return self, self.identity()


def offline(request: DataRequest) -> Task:
    """Read one file ENVIRONMENT-NAME.npz; the model acts in a known environment after every epoch."""
    context, path = request.number("context"), _file(request.data)
    environment, _ = split_name(path.stem)
    kind = ENVIRONMENTS.get(environment)
    episodes = read_episodes(path)
    test_count = max(1, len(episodes) // HELD_OUT)
    if len(episodes) < 2:
        raise InputError(f"{path} holds one episode; training and testing take at least two")
    train, test = episodes[:-test_count], episodes[-test_count:]
    train = [train[number] for number in spread(len(train), request.limit)]
    seen = np.concatenate([episode["observations"] for episode in train]).astype(np.float64)
    std, longest = seen.std(0), max(len(episode["rewards"]) for episode in episodes)
    horizon = max(longest, kind.horizon if kind else 0)
    about = {
        "environment": environment,
        "mean": seen.mean(0).tolist(),
        "std": np.where(std > 0, std, 1.0).tolist(),
        "scale": max(float(abs(np.cumsum(episode["rewards"][::-1])).max()) for episode in train) or 1.0,
        "actions": train[0]["actions"].shape[1],
        "last": horizon - 1,
    }
    sets = {"train": Histories(train, context, about), "test": Histories(test, context, about)}
    watched = {}
    for split, items in sets.items():
        full_stretches = [
            number
            for number, (at, start) in enumerate(items.starts)
            if start + context <= len(items.episodes[at]["rewards"])
        ]
        if full_stretches:
            chosen = [items[full_stretches[number]][0] for number in spread(len(full_stretches), WATCHED)]
            watched[split] = default_collate(chosen)
    acted = None if kind is None else partial(normalised_return, kind=kind, about=about, context=context)
    return Task(
        name="rl",
        classes=(),
        train=sets["train"],
        test=sets["test"],
        preprocessing=about,
        data={
            "source": "episodes of an .npz file",
            **{split: part.identity() for split, part in sets.items()},
        },
        output=(context, about["actions"]),
        objective=ACTIONS,
        architecture={"observations": seen.shape[1], "actions": about["actions"], "horizon": horizon},
        watched=watched,
        collate=default_collate,
        reorder=reordered_steps,
        acting=acted,
        trivial=_mean_action,
    )


def _file(root: Path | None) -> Path:
    takes = "task rl takes a folder with one ENVIRONMENT-NAME.npz, such as hopper-medium.npz"
    if root is None or not root.is_dir():
        raise InputError(f"{root} is no folder; {takes}")
    files = sorted(root.glob("*.npz"))
    if len(files) != 1:
        inside = ", ".join(sorted(path.name for path in root.iterdir())[:6]) or "nothing"
        raise InputError(f"{root} holds {inside}; {takes}")
    return files[0]


def read_episodes(path: Path) -> list[_Episode]:
    """Read the episodes of a file: each ends at a terminal step, at a timeout, or at the end of the file."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            if absent := [key for key in KEYS if key not in archive.files]:
                raise InputError(
                    f"{path} has no {absent[0]}, but {', '.join(archive.files[:8]) or 'nothing'}; it takes "
                    + ", ".join(KEYS)
                )
            arrays = {key: archive[key] for key in KEYS}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} cannot be read as .npz: {error}; write it with numpy.savez") from error
    steps = arrays["rewards"].shape
    for key, values in arrays.items():
        wanted = 2 if key in ("observations", "actions") else 1
        if values.ndim != wanted or values.shape[:1] != steps[:1] or values.dtype.kind not in "biuf":
            raise InputError(
                f"{path}: {key} is {values.dtype} {values.shape}; it takes numbers, (step, number) for observations "
                f"and actions and (step,) for the others, the same number of steps in each (rewards {steps})"
            )
        if not np.isfinite(values).all():
            raise InputError(f"{path}: {key} holds NaN or infinity; leave those episodes out")
    if not steps[0] or not arrays["observations"].shape[1] or not arrays["actions"].shape[1]:
        raise InputError(f"{path} holds no steps; write it again")
    if np.abs(arrays["actions"]).max() > 1 + 1e-6:
        raise InputError(
            f"{path}: actions reach {np.abs(arrays['actions']).max():g}; divide them by the largest, they lie "
            "between -1 and 1"
        )
    ends = np.flatnonzero(arrays["terminals"].astype(bool) | arrays["timeouts"].astype(bool)) + 1
    parts = {key: np.split(arrays[key].astype(np.float32), ends) for key in KEYS[:3]}
    return [
        dict(zip(parts, arrays_of_episode, strict=True))
        for arrays_of_episode in zip(*parts.values(), strict=True)
        if len(arrays_of_episode[2])
    ]


def reordered_steps(
    batch: dict[str, Tensor], target: Tensor, draw: np.random.Generator
) -> tuple[dict[str, Tensor], Tensor]:
    """Shuffle the steps of a stretch, each with its action; step numbers and padding stay."""
    length = int((~target[:, 0].isnan()).sum())
    order = torch.cat([torch.from_numpy(draw.permutation(length)), torch.arange(length, len(target))])
    return {name: values if name == "times" else values[order] for name, values in batch.items()}, target[
        order
    ]


def with_shuffled_past(act: Act) -> Act:
    """Return a policy that sees the steps before the last in random order."""

    def shuffled(batch: Mapping[str, Tensor]) -> Tensor:
        last = batch["times"].shape[1] - 1
        draw = np.random.default_rng(int(batch["times"].max()))
        order = torch.cat([torch.from_numpy(draw.permutation(last)), torch.tensor([last])])
        return act({name: values if name == "times" else values[:, order] for name, values in batch.items()})

    return shuffled


def normalised_return(
    model: nn.Module, kind: Environment, about: dict[str, Any], context: int, shuffled: bool = False
) -> dict[str, float]:
    """Return the mean score over `EPISODES`: 0 for uniform actions, 100 for the expert."""
    returns = episode_returns(model, kind, about, context, EPISODES, FIRST_SEED, shuffled)
    return {"normalised_return": kind.normalised(sum(returns) / len(returns))}


def episode_returns(
    model: nn.Module,
    kind: Environment,
    about: dict[str, Any],
    context: int,
    episodes: int,
    first_seed: int,
    shuffled: bool = False,
) -> list[float]:
    """Return the return of each episode that a model acts in; ``first_seed`` draws the first one's start state."""
    training = model.training
    model.eval()
    try:
        act = with_shuffled_past(acting(model)) if shuffled else acting(model)
        return returns_of(kind, act, about, episodes, first_seed, context)
    finally:
        model.train(training)


def _mean_action(task: Task) -> dict[str, float]:
    """Return the test scores of always taking the mean training action."""
    policy = ConstantAction(task.train)
    usual = policy.action.detach()
    losses = []
    for _, target in (task.test[number] for number in range(task.data["test"]["n"])):
        losses.append(float(task.objective.score(usual.expand_as(target)[None], target[None])["loss"]))
    scores = {"loss": sum(losses) / len(losses)}
    return scores if task.acting is None else scores | task.acting(policy)


class ConstantAction(nn.Module):
    """A policy that always takes the mean action of recorded episodes."""

    def __init__(self, histories: Any) -> None:
        super().__init__()
        actions = np.concatenate([episode["actions"] for episode in histories.episodes])
        self.action = nn.Parameter(torch.from_numpy(actions.mean(0)))

    def forward(self, times: Tensor, **_: Tensor) -> Tensor:
        return self.action.expand(*times.shape, -1)
