import dataclasses
import json

import numpy as np
import pandas as pd
import pytest
import torch

from workbench.core.errors import InputError, MissingResource, UnknownName
from workbench.core.files import sha256_file
from workbench.core.store import locked
from workbench.data.pools import digits_split
from workbench.models.architectures import build
from workbench.models.checkpoints import read_checkpoint, restore
from workbench.studies.training import train
from workbench.studies.training.monitoring import monitor
from workbench.studies.training.run_folder import METRIC_COLUMNS
from workbench.studies.training.tasks import load_task
from workbench.studies.training.trainer import Trainer, TrainingDiverged, first_non_finite

LIMIT = 480


def run(out, recipe, **options):
    return train("digits", out, recipe=recipe, limit=LIMIT, device="cpu", progress=False, **options)


@pytest.fixture(scope="module")
def trained(small, tmp_path_factory):
    return run(tmp_path_factory.mktemp("run"), small)


def numbers(result):
    """The rows that depend neither on the clock nor on what else the process holds."""
    outside = result.metrics["metric"].isin(["seconds", "peak_memory"])
    return result.metrics[~outside].reset_index(drop=True)


def assert_same_run(one, other):
    pd.testing.assert_frame_equal(numbers(one), numbers(other), check_exact=True)
    assert [p.name for p in one.checkpoints] == [p.name for p in other.checkpoints]
    assert [sha256_file(p) for p in one.checkpoints] == [sha256_file(p) for p in other.checkpoints]


def stop_at(monkeypatch, epoch, error):
    """Let training fail with `error` as soon as it is about to begin `epoch`."""
    whole = Trainer.train_epoch

    def train_epoch(self, number, *arguments):
        if number == epoch:
            raise error
        return whole(self, number, *arguments)

    monkeypatch.setattr(Trainer, "train_epoch", train_epoch)


def test_it_learns(trained):
    accuracy = trained.metrics.query("split == 'test' and metric == 'accuracy'").set_index("epoch")["value"]
    assert accuracy[0] < 0.25
    assert accuracy[3] > 0.4
    assert trained.test_accuracy == accuracy[3]


def test_metrics_are_tidy(trained):
    assert tuple(trained.metrics.columns) == METRIC_COLUMNS
    key = ["epoch", "split", "metric"]
    assert not trained.metrics.duplicated(key).any()
    assert trained.metrics["value"].notna().all()
    units = trained.metrics.groupby("metric")["unit"].unique().str.join("/").to_dict()
    assert units.pop("peak_memory") == "bytes"
    assert units.pop("seconds") == "s"
    assert units.pop("loss") == "nats"
    assert set(units.values()) == {""}
    assert {"accuracy", "accuracy_top5", "gradient_norm", "learning_rate", "parameters", "macs"} <= set(units)
    assert {"token_cosine", "token_cosine_last", "projection_error", "phi_norm2", "h_norm2"} <= set(units)
    assert set(map(tuple, trained.metrics.query("metric == 'loss'")[["epoch", "split"]].to_numpy())) == {
        (0, "test"), *((epoch, split) for epoch in (1, 2, 3) for split in ("train", "test"))
    }  # fmt: skip


def test_checkpoints_are_those_of_the_recipe_and_describe_themselves(trained, small):
    assert [path.name for path in trained.checkpoints] == [
        f"epoch-00{epoch}.safetensors" for epoch in (0, 1, 3)
    ]
    model = json.loads((trained.out / "model.json").read_text())
    assert model["complete"]
    for path, row in zip(trained.checkpoints, model["checkpoints"], strict=True):
        _, meta = read_checkpoint(path)
        assert row["sha256"] == sha256_file(path)
        assert row["epoch"] == meta["epoch"]
        assert row["test_accuracy"] == meta["metrics"]["test_accuracy"]
        assert meta["architecture"] == model["architecture"] == small.architecture
        assert meta["recipe"] == json.loads(json.dumps(small.as_dict()))
        assert meta["preprocessing"] == model["preprocessing"]
        assert {"task", "attention", "classes", "seed", "command", "versions", "data"} <= set(meta)
        measured = {"loss", "accuracy", "gradient_norm", "learning_rate"}
        assert {name.partition("_")[2] for name in meta["metrics"]} <= measured


def test_a_checkpoint_has_the_accuracy_it_claims(trained):
    test = digits_split("test")
    for path in trained.checkpoints:
        model, meta = restore(path)
        with torch.inference_mode():
            right = (model(test.images).argmax(1) == test.labels).double().mean().item()
        assert right == pytest.approx(meta["metrics"]["test_accuracy"], abs=1e-12)


def test_epoch_0_is_the_model_before_training(trained, small):
    initial, _ = read_checkpoint(trained.checkpoints[0])
    trainer = Trainer(load_task("digits", LIMIT), small, seed=0, device="cpu")
    torch.testing.assert_close(initial, dict(trainer.module.state_dict()), rtol=0, atol=0)


def test_what_was_watched_is_what_the_analyses_say_of_the_checkpoint(trained):
    model, _ = restore(trained.checkpoints[-1])
    found = monitor(model, load_task("digits", LIMIT).watched)
    last = trained.metrics[trained.metrics["epoch"] == 3].set_index(["split", "metric"])["value"]
    for split, metrics in found.items():
        for metric, value in metrics.items():
            assert last[split, metric] == pytest.approx(value, rel=1e-6)


def test_what_the_model_costs_is_said_once(trained):
    costs = trained.metrics.query("split == 'model'")
    assert set(costs["epoch"]) == {0}
    model, _ = restore(trained.checkpoints[-1])
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert costs.set_index("metric")["value"]["parameters"] == parameters


def test_same_seed_same_numbers_another_seed_others(trained, small, tmp_path):
    torch.randn(7)  # what was drawn before must not matter
    assert_same_run(run(tmp_path / "same", small), trained)
    other = run(tmp_path / "other", small, seed=1, epochs=1)
    assert sha256_file(other.checkpoints[0]) != sha256_file(trained.checkpoints[0])


def test_the_caller_keeps_his_choice_of_algorithms(trained):
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("epoch", [1, 2, 3])
def test_a_run_that_was_killed_ends_with_the_same_numbers(epoch, trained, small, tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        stop_at(patched, epoch, RuntimeError("killed"))
        with pytest.raises(RuntimeError, match="killed"):
            run(tmp_path, small)
    assert not json.loads((tmp_path / "model.json").read_text())["complete"]
    resumed = run(tmp_path, small)
    assert resumed.resumed_from == epoch - 1
    assert_same_run(resumed, trained)
    assert not (tmp_path / "resume.pt").exists()


def test_a_run_killed_between_its_files_ends_with_the_same_numbers(trained, small, tmp_path, monkeypatch):
    from workbench.studies.training import run_folder

    with monkeypatch.context() as patched:
        written = []

        def save(*arguments):
            written.append(arguments)
            if (
                len(written) == 3
            ):  # epochs 0 and 1 are through; epoch 2's metrics are written, its state is not
                raise RuntimeError("killed")
            torch.serialization.save(*arguments)

        patched.setattr(run_folder.torch, "save", save)
        with pytest.raises(RuntimeError, match="killed"):
            run(tmp_path, small)
    resumed = run(tmp_path, small)
    assert resumed.resumed_from == 1
    assert_same_run(resumed, trained)


def test_ctrl_c_says_where_the_run_is_and_how_to_go_on(small, tmp_path, monkeypatch, capsys):
    stop_at(monkeypatch, 2, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        train("digits", tmp_path, recipe=small, limit=LIMIT, device="cpu")
    said = capsys.readouterr().err
    assert "epoch 1/3" in said
    assert f"epoch 1 of 3 is saved in {tmp_path}; the same command goes on from there" in said


def test_a_complete_run_is_returned_as_it_is(trained, small, monkeypatch):
    stop_at(monkeypatch, 1, AssertionError("trained again"))
    assert_same_run(run(trained.out, small), trained)


def test_another_run_in_the_folder_is_refused_unless_it_may_be_replaced(small, tmp_path):
    run(tmp_path, small, epochs=1)
    with pytest.raises(
        InputError, match=r"holds a training run with other settings \(seed: 0 there, 4 asked for"
    ):
        run(tmp_path, small, seed=4, epochs=1)
    with pytest.raises(InputError, match=r'recipe: {"epochs": 1} there, {"epochs": 2} asked for'):
        run(tmp_path, small, epochs=2)
    with pytest.raises(InputError, match='attention: "softmax" there, "tssa" asked for'):
        run(tmp_path, small, epochs=1, attention="tssa")
    wider = dataclasses.replace(small, architecture={**small.architecture, "embed_dim": 16})
    with pytest.raises(
        InputError, match=r'architecture: {"embed_dim": 32} there, {"embed_dim": 16} asked for'
    ):
        run(tmp_path, wider, epochs=1)
    replaced = run(tmp_path, small, seed=4, epochs=2, restart=True)
    assert set(replaced.metrics["seed"]) == {4}
    assert sorted(path.name for path in tmp_path.glob("epoch-*")) == [
        path.name for path in replaced.checkpoints
    ]


def test_a_damaged_run_is_no_result(small, tmp_path):
    done = run(tmp_path, small, epochs=1)
    last = done.checkpoints[-1]
    last.write_bytes(last.read_bytes()[:-100])
    with pytest.raises(InputError, match=rf"{last.name} is not the file that this run wrote.*--restart"):
        run(tmp_path, small, epochs=1)
    last.unlink()
    (tmp_path / "resume.pt").write_bytes(b"PK\x03\x04 cut")
    with pytest.raises(InputError, match=r"resume\.pt is not a torch checkpoint.*start over \(--restart\)"):
        run(tmp_path, small, epochs=1)


def test_two_runs_do_not_train_into_one_folder(small, tmp_path):
    with (
        locked(tmp_path, "training run"),
        pytest.raises(InputError, match="another training run is writing into"),
    ):
        run(tmp_path, small, epochs=1)
    assert not (tmp_path / "model.json").exists()


def test_a_loss_that_is_not_finite_stops_and_keeps_the_last_good_weights(small, tmp_path, monkeypatch):
    whole = Trainer.train_epoch

    def train_epoch(self, number, *arguments):
        if number == 3:  # the layer's queries, keys and values overflow
            with torch.no_grad():
                self.module.blocks[0].attn.qkv.weight.fill_(3e38)
        return whole(self, number, *arguments)

    monkeypatch.setattr(Trainer, "train_epoch", train_epoch)
    message = r"in epoch 3, step 1: the output of blocks\.0\.attn\.qkv is the first .*/epoch-002\.safetensors"
    with pytest.raises(TrainingDiverged, match=message):
        run(tmp_path, small)
    model, meta = restore(tmp_path / "epoch-002.safetensors")
    assert meta["epoch"] == 2
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    table = json.loads((tmp_path / "model.json").read_text())["checkpoints"]
    assert [row["epoch"] for row in table] == [0, 1, 2]


def test_an_absurd_learning_rate_is_reported_as_such(small, tmp_path):
    with pytest.raises(
        TrainingDiverged, match=r"epoch 0 are kept in .*epoch-000\.safetensors; try a lower learning"
    ):
        run(tmp_path, dataclasses.replace(small, learning_rate=1e30), epochs=1)


@pytest.fixture
def layers():
    torch.manual_seed(0)
    model = build({"name": "vit", "patch_size": 8, "embed_dim": 6, "depth": 3, "num_heads": 2})
    return model, torch.randn(2, 1, 16, 16), torch.tensor([3, 8])


def test_the_first_non_finite_place_is_named(layers):
    model, images, targets = layers
    assert "did not happen again" in first_non_finite(model, images, targets)
    model.blocks[2].mlp.fc1.weight.grad = torch.full((24, 6), torch.inf)
    model.blocks[1].mlp.fc1.weight.grad = torch.full((24, 6), torch.nan)
    assert "gradient of blocks.2.mlp.fc1.weight is the first" in first_non_finite(model, images, targets)
    with torch.no_grad():
        model.blocks[1].mlp.fc2.bias[3] = 3e38
    # Finite by itself, but the variance that the next layer norm takes of it is not.
    assert "output of blocks.2.norm1 is the first" in first_non_finite(model, images, targets)
    images[1, 0, 5, 5] = torch.nan
    assert first_non_finite(model, images, targets) == "the input itself is not finite"
    with torch.no_grad():
        model.head.bias[4] = torch.inf
    assert first_non_finite(model, images, targets) == "the parameter head.bias is not finite"


def test_requests_that_cannot_be(small, tmp_path):
    with pytest.raises(UnknownName, match="did you mean 'digits'"):
        train("digit", tmp_path)
    with pytest.raises(InputError, match="epochs must be a whole number from 1 up, or none; got 0"):
        train("digits", tmp_path, epochs=0)
    with pytest.raises(InputError, match="seed must be a whole number"):
        train("digits", tmp_path, seed=-1)
    with pytest.raises(InputError, match="limit must be a whole number from 1 up, or none; got 0"):
        train("digits", tmp_path, limit=0)
    with pytest.raises(InputError, match="device 'gpu' is not one torch knows"):
        train("digits", tmp_path, device="gpu", recipe=small)
    with pytest.raises(InputError, match="the recipe is for task 'letters', not 'digits'"):
        train("digits", tmp_path, recipe=dataclasses.replace(small, task="letters"))
    with pytest.raises(UnknownName, match="did you mean 'tssa'"):
        train("digits", tmp_path, attention="tsssa")
    with pytest.raises(UnknownName, match="unknown option of attention 'tssa' 'low_rank'"):
        train("digits", tmp_path, attention="tssa", options={"low_rank": 3})
    with pytest.raises(InputError, match="there is no layer 4"):
        train("digits", tmp_path, attention="tssa", layers="4")
    with pytest.raises(InputError, match="has its own data; leave out 'x'"):
        train("digits", tmp_path, data="x")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_classes": 7}, r"gives \(1, 7\).* needs \(1, 10\)"),
        ({"img_size": 32}, r"does not take .*\(1, 1, 16, 16\)"),
    ],
)
def test_an_architecture_that_does_not_fit_the_task(change, message, small, tmp_path):
    with pytest.raises(InputError, match=message):
        run(tmp_path, dataclasses.replace(small, architecture={**small.architecture, **change}))


def test_a_device_that_is_not_here(small, tmp_path):
    absent = "cuda" if not torch.cuda.is_available() else "mps"
    with pytest.raises(MissingResource, match=f"device '{absent}' was asked for, but torch"):
        train("digits", tmp_path, device=absent, recipe=small)
    run(tmp_path, small)  # and another can be trained on after it


def test_a_place_that_cannot_be_written(small, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file; give a folder"):
        run(tmp_path / "file", small)
    with pytest.raises(MissingResource, match="cannot write"):
        run(tmp_path / "file" / "run", small)


@pytest.fixture
def trainer(small):
    recipe = dataclasses.replace(
        small, drop_path=0.5, clip_norm=1e-3, architecture={**small.architecture, "depth": 2}
    )
    return Trainer(load_task("digits", limit=24), recipe, seed=3, device="cpu")


def test_chance_and_order_of_an_epoch_follow_from_seed_and_epoch_alone(trainer):
    def drawn(seed, epoch):
        trainer.seed = seed
        trainer._seed_everything(epoch)
        return torch.rand(3).tolist(), np.random.rand(), torch.rand(3, generator=trainer._order).tolist()  # noqa: NPY002 - what an epoch draws from

    one, other, later, again = drawn(0, 1), drawn(1, 1), drawn(0, 2), drawn(0, 1)
    assert one == again
    for part in range(3):
        assert one[part] != other[part]
        assert one[part] != later[part]
        assert other[part] != later[part]


def test_a_test_runs_the_whole_model_and_an_epoch_drops_its_paths(trainer):
    first = trainer.evaluate()
    assert not trainer.module.training
    assert trainer.evaluate() == first  # no path of it is dropped by chance
    modes = []
    trainer.module.blocks[0].register_forward_hook(lambda block, *given: modes.append(block.training))
    trainer.train_epoch(1)
    assert modes == [True] * 3


def test_a_step_goes_along_a_gradient_that_is_cut_to_its_length(trainer):
    row = trainer.train_epoch(1)
    norm = torch.stack([parameter.grad.norm() for parameter in trainer.module.parameters()]).norm()
    assert row["gradient_norm"] > 0.1  # before it is cut
    assert norm == pytest.approx(1e-3, rel=1e-3)


def test_what_is_watched_of_the_last_layer_is_that_layers(trainer):
    import workbench

    images = torch.rand(2, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    found = monitor(trainer.module, {"test": images})["test"]
    frame = workbench.analyze("token-similarity", model=trainer.module.eval(), inputs=images, null_samples=0)
    rows = frame[(frame["metric"] == "token_cosine") & frame["layer"].notna()]
    layers = rows.groupby("layer")["value"].mean()
    assert layers.index.tolist() == [0, 1]
    assert found["token_cosine_last"] == pytest.approx(layers[1])
    assert found["token_cosine_last"] != pytest.approx(layers[0])
