"""Tasks of sequences: what they read, what they refuse, and models that learn from them."""

import dataclasses
import json
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import workbench
from tests.studies.training.sequence_data import HEADER, list_folder, series_folder, text_folder
from workbench.attention import VARIANTS
from workbench.core.errors import InputError
from workbench.models.architectures import build
from workbench.models.checkpoints import read_checkpoint
from workbench.models.tokenizer import SPECIAL
from workbench.studies.training import load_recipe, train
from workbench.studies.training.costs import model_costs
from workbench.studies.training.feeding import pad_together
from workbench.studies.training.monitoring import monitor
from workbench.studies.training.recipes import Augmentation, Recipe
from workbench.studies.training.tasks import load_task
from workbench.studies.training.tasks.sequences import channel_statistics, standardised
from workbench.studies.training.trainer import Trainer

FITTING = [name for name, variant in VARIANTS.items() if variant.causality != "always"]
TINY = {"name": "sequence", "embed_dim": 12, "depth": 2, "num_heads": 3}
SIZES = {"bytes": {"context": 9}, "listops": {"context": 5}, "pixels": {"context": 16}, "series": {}}


def recipe_of(task, **changes):
    architecture = {**TINY, **SIZES[task]}
    usual = Recipe(task, architecture, epochs=1, batch_size=4, learning_rate=1e-3)
    return dataclasses.replace(usual, **changes)


def load(task, folder, **options):
    return load_task(task, data=folder, **({"architecture": SIZES[task]} | options))


# What is read -----------------------------------------------------------------------------------------------


def test_series_are_padded_and_standardised_by_the_training_set(tmp_path):
    (tmp_path / "Made_TRAIN.ts").write_text(HEADER + "1,3:5,5:up\n2,?,2:5,5,5:down\n")
    (tmp_path / "Made_TEST.ts").write_text(HEADER + "2,4,6,8:5,6,?,5:up\n")
    task = load("series", tmp_path)
    assert task.classes == ("down", "up")
    assert task.architecture == {"channels": 2, "context": 4, "num_classes": 2}
    # Mean 2 and variance (1 + 1 + 0 + 0)/4 over the four values that are there; the second channel never changes.
    std = 0.5**0.5
    assert task.preprocessing == {"mean": [2.0, 5.0], "std": [pytest.approx(std), 1.0], "missing": "mean"}
    first, label = task.train[0]
    torch.testing.assert_close(first, torch.tensor([[-1 / std, 0.0], [1 / std, 0.0]]))
    assert label == 1
    torch.testing.assert_close(task.train[1][0], torch.zeros(3, 2))  # the missing value among them
    torch.testing.assert_close(task.test[0][0][:, 1], torch.tensor([0.0, 1.0, 0.0, 0.0]))
    batch, labels = task.collate([task.train[0], task.train[1]])
    assert labels.tolist() == [1, 0]
    assert batch["values"].shape == (2, 3, 2)
    assert batch["attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1]]
    assert {split: task.data[split]["lengths"] for split in ("train", "test")} == {
        "train": [2, 3],
        "test": [4, 4],
    }


def test_statistics_of_channels_leave_out_what_is_missing():
    nan = np.nan
    series = [np.array([[1.0, nan], [nan, nan]]), np.array([[5.0, nan]])]
    mean, std = channel_statistics(series)
    assert mean.tolist() == [3.0, 0.0]
    assert std.tolist() == [2.0, 1.0]
    assert standardised(series[0], mean, std).tolist() == [[-1, 0], [0, 0]]


def test_what_is_not_padded_has_no_mask():
    batch, targets = pad_together([(torch.ones(3, 2), 1), (torch.zeros(3, 2), 0)], "values")
    assert set(batch) == {"values"}
    assert targets.tolist() == [1, 0]


def test_texts_are_their_bytes_cut_at_the_context(tmp_path):
    task = load("bytes", text_folder(tmp_path))
    assert task.classes == ("neg", "pos")
    assert task.architecture == {"vocabulary": 258, "num_classes": 2}
    assert [task.train.targets, task.test.targets] == [[0, 0, 0, 1, 1, 1], [0, 0, 1, 1]]
    assert task.train[3][0].tolist() == [len(SPECIAL) + byte for byte in "gut ß 0 ".encode()]
    assert task.train[4][0].tolist() == [len(SPECIAL) + byte for byte in "gut ß 1 gut ß 1 ".encode()[:9]]
    assert (task.data["train"]["cut"], task.data["test"]["cut"]) == (4, 2)
    assert task.data["train"]["lengths"] == [6, 9]
    assert load("bytes", tmp_path).data == task.data
    (tmp_path / "train" / "neg" / "0_7.txt").write_text("other")
    assert load("bytes", tmp_path).data["train"] != task.data["train"]


def test_lists_are_their_words_without_round_brackets(tmp_path):
    task = load("listops", list_folder(tmp_path))
    assert task.classes == ("3", "10")  # as numbers are ordered
    assert task.preprocessing["words"] == ["[MAX", "3", "10", "]", "[MIN"]
    assert task.architecture == {"vocabulary": 7, "num_classes": 2}
    assert [task.train[number][0].tolist() for number in range(3)] == [[2, 3, 4, 5], [6, 3, 4, 5], [2, 3, 5]]
    assert task.test[0][0].tolist() == [SPECIAL.index("[UNK]"), 3, 4, 5]
    assert (task.train.targets, task.test.targets) == ([1, 0, 0], [1, 0, 1])


def test_images_are_their_grey_levels_in_reading_order(tmp_path):
    for split in ("train", "test"):
        for label, level in (("a", 0), ("b", 200)):
            (tmp_path / split / label).mkdir(parents=True)
            pixels = level + np.arange(16, dtype=np.uint8).reshape(4, 4)
            Image.fromarray(pixels).convert("RGB").save(tmp_path / split / label / "0.png")
    task = load("pixels", tmp_path)
    assert task.classes == ("a", "b")
    assert task.architecture == {"vocabulary": 258, "num_classes": 2}
    assert task.train[1][0].tolist() == [len(SPECIAL) + 200 + level for level in range(16)]
    assert set(task.watched["test"]) == {"input_ids"}
    smaller = load("pixels", tmp_path, architecture={"context": 4})
    assert smaller.train[0][0].shape == (4,)
    with pytest.raises(InputError, match="that of a square image; got 5, next is 4"):
        load("pixels", tmp_path, architecture={"context": 5})


@pytest.mark.parametrize(("task", "make"), [("series", series_folder), ("bytes", text_folder)])
def test_a_limit_keeps_examples_of_every_class(task, make, tmp_path):
    found = load(task, make(tmp_path), limit=3)
    assert len(found.train) == found.data["train"]["n"] == 3
    assert set(found.train.targets) == {0, 1}
    assert len(found.test) == found.data["test"]["n"] > 3


# What is refused --------------------------------------------------------------------------------------------


def broken(folder, task, change):
    {"series": series_folder, "bytes": text_folder, "listops": list_folder}[task](folder)
    change(folder)


@pytest.mark.parametrize(
    ("task", "change", "message"),
    [
        (
            "series",
            lambda root: [path.unlink() for path in root.iterdir()],
            "holds nothing; task series takes a folder with NAME_TRAIN.ts and NAME_TEST.ts",
        ),
        (
            "series",
            lambda root: [path.rename(path.with_suffix(".arff")) for path in root.iterdir()],
            "holds Made_TEST.arff, Made_TRAIN.arff; task series takes",
        ),
        (
            "series",
            lambda root: (root / "Made_TEST.ts").unlink(),
            "holds Made_TRAIN.ts but no Made_TEST.ts; put that file beside it",
        ),
        (
            "series",
            lambda root: (root / "More_TEST.ts").write_text(""),
            "holds files of Made, More; task series takes .*: move the others elsewhere",
        ),
        (
            "series",
            lambda root: (root / "Made_TEST.ts").write_text(
                HEADER.replace("down up", "down sideways") + "1:2:3:sideways\n"
            ),
            "Made_TEST.ts: class 'sideways' is in the test set, and the training set has only down, up; take both",
        ),
        (
            "series",
            lambda root: (root / "Made_TEST.ts").write_text(HEADER + "1:2:up\n"),
            "Made_TEST.ts: series of 2 channels, and those of Made_TRAIN.ts have 3; take both files from the same",
        ),
        (
            "series",
            lambda root: (root / "Made_TEST.ts").write_text("no series"),
            "line 1: 'no series' is neither a comment",
        ),
        ("series", lambda root: (root / "Made_TRAIN.ts").write_text(""), "has nothing in it"),
        (
            "bytes",
            lambda root: (root / "test").rename(root / "val"),
            "holds train, val; task bytes takes a folder with train/CLASS/.* and test/CLASS/.*, such as aclImdb/",
        ),
        (
            "bytes",
            lambda root: (root / "test" / "pos").rename(root / "test" / "good"),
            "class 'good' is in the test set, and the training set has only neg, pos",
        ),
        (
            "bytes",
            lambda root: (root / "train" / "other").mkdir(),
            "other holds no .txt file; a class folder holds its texts, or is removed",
        ),
        (
            "bytes",
            lambda root: [shutil.rmtree(path) for path in (root / "test").iterdir()],
            "test holds no class folders; texts lie in test/CLASS/",
        ),
        (
            "bytes",
            lambda root: (root / "train" / "neg" / "1_7.txt").write_text(""),
            "1_7.txt is empty; remove it, or copy it again",
        ),
        (
            "listops",
            lambda root: (root / "basic_test.tsv").unlink(),
            "holds basic_train.tsv but no basic_test.tsv",
        ),
        (
            "listops",
            lambda root: (root / "basic_train.tsv").write_text("a\tb\n1\t2\n"),
            r"begins with \['a', 'b'\]; a file of lists begins with a line Source<TAB>Target",
        ),
        ("listops", lambda root: (root / "basic_train.tsv").write_text(""), r"begins with \[''\]"),
        (
            "listops",
            lambda root: (root / "basic_test.tsv").write_text("Source\tTarget\n"),
            "has a header and no rows; copy it again",
        ),
        (
            "listops",
            lambda root: (root / "basic_test.tsv").write_text("Source\tTarget\n3\t3\n3\n"),
            "line 3: 1 columns, and the header has 2",
        ),
        (
            "listops",
            lambda root: (root / "basic_test.tsv").write_text("Source\tTarget\n( )\t3\n"),
            "line 2: the sequence is empty",
        ),
        (
            "listops",
            lambda root: (root / "basic_test.tsv").write_text("Source\tTarget\n3\t4\n"),
            "class '4' is in the test set, and the training set has only 10, 3",
        ),
        (
            "listops",
            lambda root: (root / "basic_test.tsv").write_text("Source\tTarget\n3\t3\n1 2 3 4 5 6\t3\n"),
            "line 3: a sequence of 6 words, and the recipe's context is 5; set at least 6",
        ),
    ],
)
def test_folders_that_will_not_do(task, change, message, tmp_path):
    broken(tmp_path, task, change)
    with pytest.raises(InputError, match=message) as caught:
        load(task, tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("task", ["series", "bytes", "listops"])
def test_a_file_in_the_place_of_a_folder(task, tmp_path):
    path = tmp_path / "one.ts"
    path.write_text("@data\n")
    with pytest.raises(InputError, match=f"task {task} takes a folder with"):
        load(task, path)


def test_series_longer_than_the_recipes_positions_are_refused_with_both_numbers(tmp_path):
    folder = series_folder(tmp_path)
    with pytest.raises(
        InputError, match="a series of 9 steps, and the recipe's context is 7; leave context out"
    ):
        load("series", folder, architecture={"context": 7})
    with pytest.raises(InputError, match="context, a whole number above 0"):
        load("series", folder, architecture={"context": "long"})
    assert load("series", folder, architecture={"context": 20}).architecture["context"] == 9


def test_what_changes_images_is_refused(tmp_path):
    task = load("series", series_folder(tmp_path))
    architecture = {**TINY, **task.architecture}
    for change in ({"augmentation": Augmentation(shift=0.1)}, {"mixup": 0.2}):
        recipe = recipe_of("series", architecture=architecture, **change)
        with pytest.raises(
            InputError, match="change images, and task 'series' has sequences; leave them out"
        ):
            Trainer(task, recipe, 0, "cpu")


def test_an_architecture_for_other_sequences_is_refused(tmp_path):
    task = load("series", series_folder(tmp_path))
    recipe = recipe_of("series", architecture={**TINY, **task.architecture, "channels": 2})
    with pytest.raises(InputError, match=r"does not take what task 'series' gives, values \(1, 5, 3\)"):
        Trainer(task, recipe, 0, "cpu")


# Training ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return series_folder(tmp_path_factory.mktemp("series"))


def run(folder, out, recipe=None, **options):
    recipe = recipe or recipe_of("series")
    return train("series", out, data=folder, recipe=recipe, device="cpu", progress=False, **options)


def test_the_direction_of_a_series_is_learned(folder, tmp_path):
    architecture = {**TINY, "pos_embed_std": 0.5}
    recipe = recipe_of("series", architecture=architecture, epochs=12, learning_rate=1e-2)
    result = run(folder, tmp_path, recipe)
    assert result.test_accuracy >= 11 / 12
    before = result.metrics.query("epoch == 0 and split == 'test' and metric == 'accuracy'")["value"].item()
    assert before < 0.8


@pytest.mark.parametrize("name", FITTING)
def test_every_variant_trains_on_padded_sequences(name, folder, tmp_path):
    options = {"options": {"low_rank": 4}} if "primal" in name else {}
    result = run(folder, tmp_path, attention=name, limit=8, boost=name == "softmax", **options)
    before, meta = read_checkpoint(result.checkpoints[0])
    after, _ = read_checkpoint(result.checkpoints[-1])
    still = {key for key in before if torch.equal(before[key], after[key])}
    # Λ of primal attention enters the penalty alone; in the first block the boost adds nothing.
    assert not {key for key in still if not key.endswith(("log_lam", "blocks.0.boost.t"))}
    assert (meta["attention"], meta["task"], meta["classes"]) == (name, "series", ["down", "up"])
    watched = set(result.metrics["metric"])
    assert {"loss", "accuracy", "token_cosine", "parameters", "macs"} <= watched
    assert ("projection_error" in watched) == (VARIANTS[name].attends == "token")


def test_a_run_that_was_killed_ends_with_the_same_numbers(folder, tmp_path, monkeypatch):
    recipe = recipe_of("series", epochs=3)
    whole = run(folder, tmp_path / "whole", recipe)
    one = Trainer.train_epoch

    def killed(self, number, *arguments):
        if number == 2:
            raise RuntimeError("killed")
        return one(self, number, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "train_epoch", killed)
        with pytest.raises(RuntimeError, match="killed"):
            run(folder, tmp_path / "cut", recipe)
    resumed = run(folder, tmp_path / "cut", recipe)
    assert resumed.resumed_from == 1
    frames = [result.metrics.query("metric not in ['seconds', 'peak_memory']") for result in (whole, resumed)]
    pd.testing.assert_frame_equal(*(frame.reset_index(drop=True) for frame in frames), check_exact=True)


def test_what_is_watched_does_not_see_padding():
    torch.manual_seed(0)
    model = build({**TINY, "channels": 2, "context": 9}).double()
    examples = [(torch.randn(length, 2, dtype=torch.float64), 0) for length in (4, 9)]
    together = monitor(model, {"test": pad_together(examples, "values")[0]})["test"]
    alone = [monitor(model, {"test": pad_together([one], "values")[0]})["test"] for one in examples]
    for metric in ("projection_error", "phi_norm2", "h_norm2", "token_cosine", "token_cosine_last"):
        assert together[metric] == pytest.approx(np.mean([found[metric] for found in alone]), rel=1e-9)


def test_costs_are_those_counted_by_hand():
    model = build({**TINY, "channels": 2, "context": 9})
    costs = model_costs(model, pad_together([(torch.randn(7, 2), 0)], "values")[0])
    width, tokens, depth, classes = 12, 7, 2, 2
    linear = tokens * width * (4 * width + 4 * width)  # qkv and proj, the MLP of twice the width
    assert costs["macs"] == depth * (linear + 2 * tokens**2 * width) + tokens * 2 * width + width * classes


def test_the_papers_recipes_hold_their_settings():
    uea, arena = load_recipe("series", "primal"), load_recipe("listops", "primal")
    for recipe, heads, width in ((uea, 8, 64), (arena, 2, 32)):  # chen2023, Table 13
        held = recipe.architecture
        assert (held["depth"], held["num_heads"]) == (2, heads)
        assert held["embed_dim"] // heads == width
        assert held["attention_layers"] == [1]
        assert recipe.ksvd_weight > 0
    arena = load_recipe("bytes").architecture
    assert arena["mlp_ratio"] * arena["embed_dim"] == 128
    sizes = {"listops": (6, 512, 8, 2048), "bytes": (4, 256, 4, 1024), "pixels": (8, 64, 8, 128)}
    for task, expected in sizes.items():  # wu2025, Table 7
        held = load_recipe(f"{task}-tost").architecture
        hidden = held["mlp_ratio"] * held["embed_dim"]
        assert (held["depth"], held["embed_dim"], held["num_heads"], hidden) == expected


# From the command line --------------------------------------------------------------------------------------


def command(*words):
    from workbench.apps import cli

    with pytest.raises(SystemExit) as left:
        cli.main(["study", "train", *(str(word) for word in words), "--device", "cpu"])
    return left.value.code


@pytest.mark.parametrize(
    ("task", "make", "attention"),
    [("series", series_folder, "primal"), ("bytes", text_folder, "alibi"), ("listops", list_folder, "tssa")],
)
def test_a_folder_is_trained_on_and_its_model_captured(task, make, attention, tmp_path, capsys):
    data, recipe, out = make(tmp_path / "my data"), tmp_path / "tiny.toml", tmp_path / "run"
    sizes = "".join(f"{key} = {json.dumps(value)}\n" for key, value in {**TINY, **SIZES[task]}.items())
    recipe.write_text(
        f'task = "{task}"\nepochs = 1\nbatch_size = 4\nlearning_rate = 1e-3\n[architecture]\n{sizes}'
        '[attention.primal]\nlayers = "-1"\noptions = { low_rank = 4 }\nksvd_weight = 0.1\n'
    )
    asked = (task, "--data", data, "--attention", attention, "--recipe", recipe, "-o", out)
    assert command(*asked) == 0, capsys.readouterr().err
    assert "test accuracy" in capsys.readouterr().out
    about = json.loads((out / "model.json").read_text())
    assert f"--data '{data}'" in about["command"]
    model = workbench.load(f"file:{out / 'epoch-001.safetensors'}")
    assert model.modality == ("other" if task == "series" else "text")
    watched = load(task, data).watched["test"]
    capture = workbench.capture(model, watched)
    assert len(capture) == model.num_layers == 2
    torch.testing.assert_close(capture.result, model.module(**watched))
    padding = watched["attention_mask"] == 0
    kinds = np.array(capture.tokens.kinds)
    assert (kinds[padding.numpy()] == "padding").all()
    assert "padding" not in kinds[~padding.numpy()]
    if task == "series":
        with pytest.raises(InputError, match="takes neither images nor texts, nor both together"):
            workbench.inputs("bundled:prose", model)
    else:
        inputs = workbench.inputs("bundled:prose", model, n=2, max_length=5)
        assert inputs.batch["input_ids"].shape[1] <= 5
        assert workbench.capture(model, inputs).result.shape == (2, 2)


def test_bytes_of_a_text_have_the_numbers_they_were_trained_with(tmp_path):
    out, data = tmp_path / "run", text_folder(tmp_path / "data")
    train("bytes", out, data=data, recipe=recipe_of("bytes"), device="cpu", progress=False)
    model = workbench.load(f"file:{out / 'epoch-001.safetensors'}")
    assert model.max_length == 9
    assert model.tokenizer("gut ß 0 ")["input_ids"] == load("bytes", data).train[3][0].tolist()


def test_a_wrong_folder_is_one_line(tmp_path, capsys):
    assert command("series", "--data", tmp_path, "--attention", "primal") == 2
    error = capsys.readouterr().err
    assert "holds nothing; task series takes a folder with NAME_TRAIN.ts and NAME_TEST.ts" in error
    assert "Traceback" not in error
