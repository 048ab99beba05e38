"""Simulators, scripted policies with noise, and the normalised return of a policy.

The simulators are gymnasium's (the extra ``rl``): classic control here, MuJoCo for data of D4RL.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from workbench.core.errors import MissingResource
from workbench.core.extras import require

Policy = Callable[[Float[np.ndarray, " observation"]], float]
"""An action between −1 and 1 from an observation."""


@dataclass(frozen=True)
class Environment:
    """A simulator, and the returns that correspond to 0 and 100."""

    name: str
    """Its name in gymnasium."""
    random: float
    """Mean return of uniform actions."""
    expert: float
    horizon: int
    """Steps after which an episode ends."""
    policy: Policy | None = None
    """The expert, if it is scripted here."""

    def normalised(self, total: float) -> float:
        """Return D4RL's score: 0 is the random policy, 100 the expert."""
        return 100 * (total - self.random) / (self.expert - self.random)


def _swing_up(observation: Float[np.ndarray, " observation"]) -> float:
    """Pendulum: apply torque along the speed up to the energy of the upright position, then a linear controller."""
    cosine, sine, speed = observation
    if cosine > 0.9:
        return float(np.clip(-5 * math.atan2(sine, cosine) - speed, -1, 1))
    return float(-np.sign(speed * (speed**2 / 2 + 15 * (cosine - 1))) or 1.0)


def along(observation: Float[np.ndarray, " observation"]) -> float:
    """Mountain car: push in the direction of motion."""
    return 1.0 if observation[1] >= 0 else -1.0


def balance(observation: Float[np.ndarray, " observation"]) -> float:
    """Cart and pole: push with the sign of a linear controller."""
    position, speed, angle, turning = observation
    return float(np.clip(0.5 * position + speed + 10 * angle + 2.5 * turning, -1, 1))


ENVIRONMENTS: dict[str, Environment] = {
    # random and expert: means of 200 episodes here; of D4RL's (v2) those that its authors print
    "pendulum": Environment("Pendulum-v1", -1200.0, -150.0, 200, _swing_up),
    "mountain-car": Environment("MountainCarContinuous-v0", -6.6, 89.4, 200, along),
    "cart-pole": Environment("CartPole-v1", 23.0, 200.0, 200, balance),
    "halfcheetah": Environment("HalfCheetah-v5", -280.178953, 12135.0, 1000),
    "hopper": Environment("Hopper-v5", -20.272305, 3234.3, 1000),
    "walker2d": Environment("Walker2d-v5", 1.629008, 4592.3, 1000),
}
"""By the first word of a data set's name."""


class Simulator:
    """Episodes of an environment; every action has numbers between −1 and 1."""

    def __init__(self, kind: Environment) -> None:
        require("offline reinforcement learning acts in a simulator, which", "gymnasium")
        import gymnasium

        try:
            self.env: Any = gymnasium.make(kind.name, max_episode_steps=kind.horizon)
        except gymnasium.error.DependencyNotInstalled as error:
            raise MissingResource(
                f"the simulator {kind.name} needs MuJoCo beside the extra 'rl': pip install 'gymnasium[mujoco]' "
                f"({error})"
            ) from error

    def reset(self, seed: int) -> Float[np.ndarray, " observation"]:
        """Return the first observation of the episode with this seed."""
        return self.env.reset(seed=seed)[0]

    def step(self, action: Float[np.ndarray, " action"]) -> tuple[np.ndarray, float, bool, bool]:
        """Return observation, reward, whether the episode is over, and whether time is up."""
        space = self.env.action_space
        env_action = int(action[0] > 0) if hasattr(space, "n") else (action * space.high).astype(np.float32)
        observation, reward, over, late, _ = self.env.step(env_action)
        return observation, float(reward), over, late


def episode(
    kind: Environment, noise: float, seed: int, draw: np.random.Generator
) -> dict[str, Float[np.ndarray, "step *"]]:
    """Run one episode of the expert with uniform actions at probability ``noise``; keys are D4RL's names."""
    assert kind.policy is not None
    simulator = Simulator(kind)
    observation = simulator.reset(seed)
    kept: dict[str, list[Any]] = {
        name: [] for name in ("observations", "actions", "rewards", "terminals", "timeouts")
    }
    ended = False
    while not ended:
        chosen = draw.uniform(-1, 1) if draw.random() < noise else kind.policy(observation)
        action = np.array([chosen], dtype=np.float32)
        following, reward, over, late = simulator.step(action)
        for name, value in zip(kept, (observation, action, reward, over, late and not over), strict=True):
            kept[name].append(value)
        observation, ended = following, over or late
    return {
        name: np.array(values, dtype=bool if name in ("terminals", "timeouts") else np.float32)
        for name, values in kept.items()
    }


Act = Callable[[Mapping[str, Tensor]], Float[Tensor, "episode action"]]
"""Next action of each of several episodes, from their last steps as a decision transformer takes them."""


def returns_of(
    kind: Environment, act: Act, about: Mapping[str, Any], episodes: int, seed: int, context: int
) -> list[float]:
    """Return the return of each of ``episodes`` run in parallel with the expert's return as the target.

    ``about`` holds the scales of observations and returns (``mean``, ``std``, ``scale``) and the number of actions.
    """
    simulators = [Simulator(kind) for _ in range(episodes)]
    mean, std = np.array(about["mean"]), np.array(about["std"])
    seen = [np.stack([simulator.reset(seed + number) for number, simulator in enumerate(simulators)])]
    done: list[np.ndarray] = []
    left, total = [np.full(episodes, kind.expert)], np.zeros(episodes)
    running = np.ones(episodes, dtype=bool)
    for step in range(kind.horizon):
        actions = np.stack([*done, np.zeros((episodes, about["actions"]))], axis=1)
        steps = range(max(0, step + 1 - context), step + 1)
        batch = {
            "returns": np.stack([left[at] for at in steps], axis=1)[..., None] / about["scale"],
            "observations": (np.stack([seen[at] for at in steps], axis=1) - mean) / std,
            "actions": actions[:, steps.start :],
        }
        tensors = {name: torch.from_numpy(values).float() for name, values in batch.items()}
        chosen = act(tensors | {"times": torch.tensor(steps).expand(episodes, -1)}).numpy()
        rewards, following = np.zeros(episodes), seen[-1].copy()
        for number in np.flatnonzero(running):
            following[number], rewards[number], over, late = simulators[number].step(chosen[number])
            running[number] = not (over or late)
        done.append(chosen)
        seen.append(following)
        left.append(left[-1] - rewards)
        total += rewards
        if not running.any():
            break
    return total.tolist()


def acting(model: nn.Module) -> Act:
    """Return a decision transformer's policy: the action after the last observation."""
    device = next(model.parameters()).device

    @torch.inference_mode()
    def act(batch: Mapping[str, Tensor]) -> Tensor:
        return model(**{name: tensor.to(device) for name, tensor in batch.items()})[:, -1].detach().cpu()

    return act
