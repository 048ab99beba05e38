"""Passages and their classes: the folders that are read, and fine-tuning from a checkpoint."""

import dataclasses
import json

import pytest
import torch

import workbench
from workbench.core.errors import InputError
from workbench.models.architectures import build
from workbench.models.checkpoints import read_checkpoint
from workbench.models.tokenizer import SPECIAL
from workbench.studies.evaluation.embedded import swapped, undergone
from workbench.studies.training import embedded_runs, load_recipe, train
from workbench.studies.training.recipes import Recipe
from workbench.studies.training.tasks import load_task
from workbench.studies.training.tasks.embedded import EMBEDDED, prose, written
from workbench.studies.training.tasks.passages import decoded, encoded

SIZES = {
    "name": "lm",
    "context": 256,
    "embed_dim": 8,
    "depth": 1,
    "num_heads": 2,
    "mlp_ratio": 1.0,
    "experts": 2,
}
BEFORE = Recipe("text", SIZES, epochs=1, batch_size=8, learning_rate=1e-3)
AFTER = Recipe("passages", SIZES, epochs=1, batch_size=8, learning_rate=1e-3)
TABLE = "label\tsentence\n1\tgood\n0\tbad day\n"


def load(folder, **options):
    return load_task("passages", data=folder, architecture={"context": 5}, **options)


def tables(folder, train_table=TABLE, test_table="label\tsentence\n1\tgold\n"):
    (folder / "train.tsv").write_text(train_table)
    (folder / "dev.tsv").write_text(test_table)
    return folder


def test_a_table_and_class_folders_hold_the_same(tmp_path):
    one = load(tables(tmp_path))
    for path, text in (("train/1/a", "good"), ("train/0/a", "bad day"), ("test/1/a", "gold")):
        place = tmp_path / "folders" / f"{path}.txt"
        place.parent.mkdir(parents=True)
        place.write_text(text)
    other = load(tmp_path / "folders")
    assert one.classes == other.classes == ("0", "1")
    assert one.preprocessing["characters"] == " abdgoy"
    assert {tuple(row) for row in map(tuple, (ids.tolist() for ids in one.train.sequences))} == {
        tuple(ids.tolist()) for ids in other.train.sequences
    }
    assert one.data["train"]["cut"] == 1
    assert decoded(encoded("gold", " abdgoy", 5), " abdgoy") == "go?d"
    assert load(tmp_path, characters="dgo").train.sequences[0].tolist() == [
        len(SPECIAL) + "dgo".index(letter) for letter in "good"
    ]


@pytest.mark.parametrize(
    ("train_table", "test_table", "message"),
    [
        (
            "text\tlabel\na\t1\n",
            TABLE,
            r"begins with \['text', 'label'\]; its columns are sentence and label",
        ),
        ("sentence\tlabel\na\t1\t2\n", TABLE, r"line 2: .*; a row has sentence, label, and a sentence"),
        ("sentence\tlabel\n", TABLE, r"has a header and no rows; copy it again"),
        (TABLE, "sentence\tlabel\na\t7\n", r"class '7' is in the test set"),
    ],
)
def test_tables_that_are_none(train_table, test_table, message, tmp_path):
    with pytest.raises(InputError, match=message):
        load(tables(tmp_path, train_table, test_table))


def test_a_folder_of_another_layout(tmp_path):
    (tmp_path / "images").mkdir()
    with pytest.raises(InputError, match=r"holds images; task passages takes a folder with train/CLASS"):
        load(tmp_path)


def test_five_files_share_no_byte_between_the_splits(tmp_path):
    prose.write_five(tmp_path, {"train": 10_000, "test": 10_000}, 0)
    for number in prose.FIVE:
        whole = prose._running_text(number)
        texts = {
            split: [path.read_text() for path in (tmp_path / split / number).iterdir()]
            for split in ("train", "test")
        }
        assert len(texts["test"]) > 10
        cut = len(whole) * 4 // 5
        assert all(text in whole[:cut] for text in texts["train"])
        assert all(text in whole[cut:] for text in texts["test"])


def test_what_is_read_before_holds_no_passage_that_is_tested():
    task = load_task("text", data="embedded:unlabelled")
    assert task.data["source"] == "embedded:unlabelled"
    read = "".join(
        decoded(window.ids.tolist(), task.preprocessing["characters"]) for window in (task.train, task.test)
    )
    for name in ("genres", "five-files"):
        with written(name) as folder:
            passages = {
                split: [path.read_text(encoding="utf-8") for path in folder.glob(f"{split}/*/*.txt")]
                for split in ("train", "test")
            }
        assert len(passages["test"]) >= 100
        assert not [text for text in passages["test"] if text in read]
        assert sum(text in read for text in passages["train"]) >= 0.75 * len(passages["train"])


def test_a_folder_is_read_by_name(tmp_path):
    (tmp_path / "b.txt").write_text("second " * 100)
    (tmp_path / "a.txt").write_text("first " * 100)
    task = load_task("text", data=tmp_path, architecture={"context": 8})
    whole = "first " * 100 + "\n" + "second " * 100
    assert task.data["train"]["characters"] + task.data["test"]["characters"] == len(whole)
    assert decoded(task.train.ids[:12].tolist(), task.preprocessing["characters"]) == whole[:12]


def test_a_model_is_pre_trained_and_fine_tuned(monkeypatch, tmp_path):
    monkeypatch.setitem(EMBEDDED, "genres", dataclasses.replace(EMBEDDED["genres"], train=20, test=12))
    before = train(
        "text",
        tmp_path / "a",
        data="embedded:unlabelled",
        recipe=BEFORE,
        limit=20,
        device="cpu",
        progress=False,
    )
    start = before.checkpoints[-1]
    asked = {"recipe": AFTER, "device": "cpu", "progress": False}
    after = train("passages", tmp_path / "b", start=start, **asked)
    first, last = read_checkpoint(after.checkpoints[0]), read_checkpoint(start)
    for name, value in last[0].items():
        assert torch.equal(first[0][name], value)
    about = json.loads((tmp_path / "b" / "model.json").read_text())
    assert about["preprocessing"]["characters"] == last[1]["preprocessing"]["characters"]
    assert about["data"]["start"]["model"] == last[1]["name"]
    found = undergone(after.checkpoints[-1], "passages").set_index("split")["value"]
    assert found["word-swap 0"] == pytest.approx(after.test["accuracy"])
    assert swapped(after.checkpoints[-1], [1.0])["value"].between(0, 1).all()
    model = workbench.load(f"file:{after.checkpoints[-1]}")
    capture = workbench.capture(model, workbench.inputs("bundled:prose", model, n=2))
    assert capture.result.shape == (2, 3)
    with pytest.raises(InputError, match="holds a"):
        train("passages", tmp_path / "b", start=before.checkpoints[0], **asked)
    with pytest.raises(InputError, match=r"does not fit its architecture"):
        train("passages", tmp_path / "c", start=start, **(asked | {"recipe": dataclasses.replace(
            AFTER, architecture={**SIZES, "depth": 2})}))  # fmt: skip


def test_the_recipes_of_both_agree():
    one, other = (load_recipe(name).architecture for name in ("text-mixture", "passages-embedded"))
    assert one == other
    assert {planned.attention for planned in embedded_runs.PLAN["genres"]} == {
        "softmax",
        "softmax-sym",
        "rpc-sym",
        "rpc-asym",
    }


def test_what_is_fine_tuned_takes_the_weights_of_its_pre_training_with_softmax():
    tuned = [planned for planned in embedded_runs.PLAN["genres"] if planned.pretrained]
    assert {planned.variant for planned in tuned} == {"rpc-sym-tuned", "rpc-asym-tuned"}
    for planned in tuned:
        after = planned.recipe("genres").architecture | {"vocabulary": 9}
        assert after["attention_options"]["num_iter"] == 2  # in every layer
        before = after | {"attention": planned.pretrained, "attention_options": {}}
        one, other = (build(architecture).state_dict() for architecture in (before, after))
        assert {name: value.shape for name, value in one.items()} == {
            name: value.shape for name, value in other.items()
        }
