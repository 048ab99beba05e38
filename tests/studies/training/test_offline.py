"""Offline reinforcement learning: episodes on record, scripted policies, and what an agent earns."""

import dataclasses
import math
import sys

import numpy as np
import pytest
import torch

import workbench
from workbench.core.errors import InputError, MissingResource
from workbench.studies.training import train
from workbench.studies.training.objectives import ACTIONS
from workbench.studies.training.recipes import Recipe
from workbench.studies.training.simulators import ENVIRONMENTS, Simulator, episode, returns_of
from workbench.studies.training.tasks import load_task, offline
from workbench.studies.training.tasks.embedded import EMBEDDED, control
from workbench.studies.training.tasks.offline import Histories, read_episodes

SCRIPTED = [name for name, kind in ENVIRONMENTS.items() if kind.policy]
TINY = Recipe(
    "rl",
    {"name": "decision", "context": 4, "embed_dim": 8, "depth": 1, "num_heads": 2},
    epochs=1,
    batch_size=16,
    learning_rate=1e-3,
)


def arrays(steps=7, ends=(2, 6)):
    """Episodes of 3 and 4 steps: one that is over, one out of time."""
    marks = np.zeros((2, steps), bool)
    marks[0, ends[0]], marks[1, ends[1]] = True, True
    return {
        "observations": np.arange(2.0 * steps).reshape(steps, 2),
        "actions": np.linspace(-1, 1, steps)[:, None],
        "rewards": np.arange(1.0, steps + 1),
        "terminals": marks[0],
        "timeouts": marks[1],
    }


def written(folder, name="unknown-medium", **changes):
    held = {key: value for key, value in (arrays() | changes).items() if value is not None}
    np.savez(folder / f"{name}.npz", **held)
    return folder


# Episodes on record -----------------------------------------------------------------------------------------


def test_an_episode_ends_where_it_is_over_or_out_of_time(tmp_path):
    first, second = read_episodes(written(tmp_path) / "unknown-medium.npz")
    assert first["rewards"].tolist() == [1, 2, 3]
    assert second["observations"].tolist() == [[6, 7], [8, 9], [10, 11], [12, 13]]
    task = load_task("rl", data=tmp_path, architecture={"context": 4})
    assert (task.data["train"]["episodes"], task.data["test"]["episodes"], task.acting) == (1, 1, None)
    assert task.architecture == {"observations": 2, "actions": 1, "horizon": 4}


def test_a_history_is_returns_to_go_and_actions_and_nothing_after_the_end():
    one = {
        "observations": np.ones((5, 2)),
        "actions": np.full((5, 1), 0.5),
        "rewards": np.array([1.0, 2, 3, 4, 5]),
    }
    about = {"mean": [0.0, 1.0], "std": [2.0, 1.0], "scale": 10.0, "last": 9}
    items = Histories([one], 4, about)
    assert items.starts == [(0, 0), (0, 2)]
    batch, target = items[1]
    torch.testing.assert_close(batch["returns"][:, 0], torch.tensor([1.2, 0.9, 0.5, 0.0]))
    assert batch["observations"].tolist() == [[0.5, 0.0]] * 3 + [[0.0, 0.0]]
    assert batch["times"].tolist() == [2, 3, 4, 5]
    assert target[:3, 0].tolist() == [0.5] * 3
    assert target[3].isnan().all()
    score = ACTIONS.score(torch.tensor([[[0.5], [1.5], [0.5], [9.0]]]), target[None])["loss"]
    assert score.item() == pytest.approx(1 / 2 / 3)


def test_returns_are_divided_by_the_largest_of_the_training_episodes(tmp_path):
    rewards = np.array([1.0, -4, 2, 3, 5, 6, 7])
    task = load_task("rl", data=written(tmp_path, rewards=rewards), architecture={"context": 4})
    (episode,) = task.train.episodes
    to_go = [sum(episode["rewards"][step:]) for step in range(len(episode["rewards"]))]
    assert task.train.about["scale"] == max(map(abs, to_go))


@pytest.mark.parametrize(("steps", "context"), [(1, 4), (4, 4), (5, 4), (9, 6), (10, 6), (13, 2)])
def test_histories_overlap_by_half_until_one_reaches_the_end(steps, context):
    starts = [0]
    while starts[-1] + context < steps:
        starts.append(starts[-1] + context // 2)
    assert Histories([{"rewards": np.ones(steps)}], context, {}).starts == [(0, start) for start in starts]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"timeouts": None}, "has no timeouts, but observations, actions, rewards, terminals; it takes"),
        ({"actions": np.zeros((6, 1))}, r"actions is float64 \(6, 1\); it takes numbers"),
        ({"actions": np.zeros(7)}, r"actions is float64 \(7,\); it takes numbers, \(step, number\)"),
        ({"rewards": np.array([1, 2, np.nan, 4, 5, 6, 7])}, "rewards holds NaN or infinity"),
        ({"actions": np.full((7, 1), 2.0)}, "actions reach 2; divide them by the largest"),
        ({"terminals": np.zeros(7, bool), "timeouts": np.zeros(7, bool)}, "holds one episode"),
    ],
)
def test_files_that_are_none(changes, message, tmp_path):
    with pytest.raises(InputError, match=message):
        load_task("rl", data=written(tmp_path, **changes), architecture={"context": 4})


def test_folders_that_are_none(tmp_path):
    def load():
        return load_task("rl", data=tmp_path, architecture={"context": 4})

    with pytest.raises(
        InputError, match=r"holds nothing; task rl takes a folder with one ENVIRONMENT-NAME.npz"
    ):
        load()
    (tmp_path / "a.npz").write_bytes(b"PK")
    with pytest.raises(InputError, match=r"cannot be read as .npz"):
        load()
    np.savez(tmp_path / "a.npz", observations=np.array([{}], dtype=object))
    with pytest.raises(InputError, match=r"has no actions|cannot be read as .npz"):
        load()
    (tmp_path / "b.npz").write_bytes(b"PK")
    with pytest.raises(InputError, match=r"holds a.npz, b.npz; task rl takes"):
        load()


# Simulators -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCRIPTED)
def test_the_expert_earns_100_and_random_actions_0(name):
    kind = ENVIRONMENTS[name]
    for noise, expected, room in ((0.0, 100, 8), (1.0, 0, 8)):
        totals = [
            episode(kind, noise, seed, np.random.default_rng(seed))["rewards"].sum() for seed in range(40)
        ]
        assert kind.normalised(float(np.mean(totals))) == pytest.approx(expected, abs=room)


def test_the_return_of_an_agent_is_that_of_a_plain_loop():
    kind = dataclasses.replace(ENVIRONMENTS["cart-pole"], horizon=60)
    about = {"mean": [0.0, 0.5, 0, 0], "std": [1.0, 2.0, 1, 1], "scale": 50.0, "actions": 1}
    asked = []

    def act(batch):
        assert batch["observations"].shape[1] == min(4, len(asked) + 1)
        asked.append({key: value[:, -1].clone() for key, value in batch.items()})
        return torch.where(batch["observations"][:, -1, 2:3] > 0, 1.0, -1.0)

    found = returns_of(kind, act, about, 3, 5, 4)
    for number in range(3):
        simulator, total = Simulator(kind), 0.0
        observation = simulator.reset(5 + number)
        for step in range(60):
            seen = asked[step]["observations"][number] * torch.tensor(about["std"]) + torch.tensor(
                about["mean"]
            )
            torch.testing.assert_close(seen, torch.tensor(observation))
            assert asked[step]["returns"][number].item() == pytest.approx((200 - total) / 50)
            observation, reward, over, late = simulator.step(np.array([1.0 if observation[2] > 0 else -1.0]))
            total += reward
            if over or late:
                break
        assert found[number] == total
    assert len(set(found)) > 1


def test_data_sets_are_what_they_are_called(tmp_path):
    assert control.noises("medium", 3) == [control.MEDIUM] * 3
    assert control.noises("medium-expert", 4) == [control.MEDIUM, 0, control.MEDIUM, 0]
    replay = control.noises("medium-replay", 5)
    assert (replay[0], replay[-1]) == (1, pytest.approx(control.MEDIUM))
    assert control.split_name("mountain-car-medium-replay") == ("mountain-car", "medium-replay")
    assert control.split_name("ant-medium") == ("", "ant-medium")
    for name in ("cart-pole-medium", "cart-pole-medium-expert"):
        control.write(name, tmp_path, {"train": 9, "test": 3}, 0)
    medium, better = (
        [one["rewards"].sum() for one in read_episodes(tmp_path / f"{name}.npz")]
        for name in ("cart-pole-medium", "cart-pole-medium-expert")
    )
    assert len(medium) == len(better) == 12
    assert np.mean(medium) < np.mean(better)
    assert sum(total == 200 for total in better) >= 6
    again = tmp_path / "again"
    again.mkdir()
    control.write("cart-pole-medium", again, {"train": 9, "test": 3}, 0)
    assert [one["rewards"].sum() for one in read_episodes(again / "cart-pole-medium.npz")] == medium


def test_without_the_simulator_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(MissingResource, match=r"needs gymnasium, .* install the extra 'rl' with"):
        load_task("rl", architecture={"context": 4})


def test_without_mujoco_what_to_install_is_said(monkeypatch):
    import gymnasium

    def make(name, **_):
        raise gymnasium.error.DependencyNotInstalled("no mujoco")

    monkeypatch.setattr(gymnasium, "make", make)
    with pytest.raises(MissingResource, match=r"Hopper-v5 needs MuJoCo .* 'gymnasium\[mujoco\]'"):
        Simulator(ENVIRONMENTS["hopper"])


# Trained ----------------------------------------------------------------------------------------------------


def test_it_is_trained_acts_and_is_captured(monkeypatch, tmp_path):
    monkeypatch.setitem(
        EMBEDDED, "cart-pole-medium", dataclasses.replace(EMBEDDED["cart-pole-medium"], train=9, test=3)
    )
    monkeypatch.setattr(offline, "EPISODES", 2)
    result = train(
        "rl", tmp_path, data="embedded:cart-pole-medium", recipe=TINY, device="cpu", progress=False
    )
    assert {"loss", "normalised_return", "projection_error", "macs"} <= set(result.metrics["metric"])
    assert (
        result.test["normalised_return"]
        == result.metrics.query("metric == 'normalised_return' and epoch == 1")["value"].item()
    )
    task = load_task("rl", data="embedded:cart-pole-medium", architecture={"context": 4})
    model = workbench.load(f"file:{result.checkpoints[-1]}")
    assert task.acting(model.module)["normalised_return"] == pytest.approx(result.test["normalised_return"])
    capture = workbench.capture(model, task.watched["test"])
    assert capture[0].attn.shape[-2:] == (12, 12)
    trivial = task.trivial(task)
    assert trivial["loss"] > 0
    assert trivial["normalised_return"] < 30
    control = load_task("rl", data="embedded:cart-pole-medium", architecture={"context": 4}, shuffled=True)
    assert control.data["shuffled"]
    assert math.isfinite(control.acting(model.module)["normalised_return"])


def test_shuffled_steps_keep_their_actions_and_lose_their_order():
    batch = {
        "returns": torch.arange(5.0)[:, None],
        "observations": torch.arange(10.0).reshape(5, 2),
        "actions": 10 * torch.arange(5.0)[:, None],
        "times": torch.arange(7, 12),
    }
    target = 10 * torch.arange(5.0)[:, None]
    target[4] = torch.nan  # padding
    found, actions = offline.reordered_steps(batch, target, np.random.default_rng(3))
    order = found["returns"][:, 0].long()
    assert order.tolist() != [0, 1, 2, 3, 4]
    assert sorted(order[:4].tolist()) == [0, 1, 2, 3]
    assert order[4] == 4
    assert torch.equal(found["times"], batch["times"])
    for name in ("returns", "observations", "actions"):
        assert torch.equal(found[name], batch[name][order])
    assert torch.equal(actions[:4], 10.0 * order[:4, None])


def test_an_agent_with_a_shuffled_past_sees_the_last_observation_last():
    seen = []

    def act(batch):
        seen.append(batch)
        return batch["observations"][:, -1]

    batch = {
        "returns": torch.arange(12.0).reshape(2, 6, 1),
        "observations": torch.arange(12.0).reshape(2, 6, 1),
        "times": torch.arange(30, 36).expand(2, -1),
    }
    agent = offline.with_shuffled_past(act)
    assert torch.equal(agent(batch), batch["observations"][:, -1])
    assert torch.equal(seen[0]["times"], batch["times"])
    assert seen[0]["observations"][0, :5].sum() == 10
    assert not torch.equal(seen[0]["observations"], batch["observations"])
    assert torch.equal(seen[0]["observations"], seen[0]["returns"])
