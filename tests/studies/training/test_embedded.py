"""Embedded tasks: their files are what they say, and the readers of the published layouts read them."""

import dataclasses
import json
import math
import random
import re
from collections import Counter, deque
from functools import cache

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import workbench
from workbench.core import paths
from workbench.core.errors import InputError, UnknownName
from workbench.models.architectures import build
from workbench.models.catalog import bundled_models
from workbench.models.tokenizer import SPECIAL
from workbench.studies.records import EMBEDDED_COLUMNS, embedded_record
from workbench.studies.training import embedded_runs, load_recipe, train
from workbench.studies.training.feeding import feed, pad_pairs
from workbench.studies.training.recipes import Recipe
from workbench.studies.training.tasks import TASKS, load_task, usual_recipe
from workbench.studies.training.tasks.embedded import (
    EMBEDDED,
    embedded_name,
    listops,
    pathfinder,
    prose,
    series,
)
from workbench.studies.training.tasks.sequences import shuffled
from workbench.studies.training.tasks.ts_files import read_ts

SEQUENCES = ("series", "bytes", "listops", "pixels", "retrieval", "passages")


@pytest.fixture(scope="module")
def small():
    """The same tasks with a few examples."""
    with pytest.MonkeyPatch.context() as patched:
        for name, entry in EMBEDDED.items():
            patched.setitem(EMBEDDED, name, dataclasses.replace(entry, **sizes(name)))
        yield
    load.cache_clear()


def sizes(name):
    return {"train": 60 if name == "listops" else 20, "test": 18}


@cache
def load(name, **options):
    return load_task(EMBEDDED[name].task, data=f"embedded:{name}", **options)


# Every one of them ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", [name for name, entry in EMBEDDED.items() if entry.task not in ("rl", "text")]
)
def test_the_reader_of_the_published_layout_reads_it(name, small):
    task = load(name)
    assert (task.name, task.data["source"]) == (EMBEDDED[name].task, f"embedded:{name}")
    assert {split: task.data[split]["n"] for split in ("train", "test")} == sizes(name)
    recipe = load_recipe(EMBEDDED[name].recipe)
    assert recipe.task == task.name
    batch, targets = task.together([task.train[number] for number in range(5)])
    model = build(recipe.completed(task.architecture).architecture)
    assert feed(model, batch).shape == (5, *task.output)
    assert targets.shape == (5, *task.output[1:])
    assert set(task.watched) == {"train", "test"}


@pytest.mark.parametrize("name", [name for name, entry in EMBEDDED.items() if entry.task in SEQUENCES])
def test_shuffled_it_keeps_every_token_and_loses_the_order(name, small):
    plain = load(name)
    control = shuffled(plain)
    assert control.data == plain.data | {"shuffled": True}
    played = dataclasses.replace(plain, acting=lambda module, shuffled=False: shuffled)
    assert shuffled(played).acting(None) is True
    moved = 0
    for number in range(20):
        (before, label), (after, same) = plain.train[number], control.train[number]
        assert label == same
        twice = control.train[number][0]
        parts = (
            zip(before, after, twice, strict=True) if isinstance(before, tuple) else [(before, after, twice)]
        )
        for one, other, again in parts:
            assert torch.equal(other, again)
            assert Counter(map(str, one.tolist())) == Counter(map(str, other.tolist()))
            moved += not torch.equal(one, other)
    assert moved > 10


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("listops", "01fe8015a870"),
        ("same-file", "0fc4d4b08ef0"),
        ("lag", "df84e21f028d"),
        ("pathfinder", "dba81a56320a"),
        ("mosaics", "e7893c869295"),
        ("collages", "15f878dc10e4"),
    ],
)
def test_what_is_drawn_is_always_the_same(name, digest, small):
    assert load(name).data["train"]["sha256"].startswith(digest)


def test_a_task_takes_its_first_embedded_data_where_none_is_given(small):
    assert {task: embedded_name(task, None) for task in TASKS if embedded_name(task, None)} == {
        "series": "phase", "bytes": "genre", "listops": "listops", "pixels": "digits", "retrieval": "same-file",
        "segmentation": "mosaics", "rl": "pendulum-medium", "passages": "genres",
    }  # fmt: skip
    assert load_task("series").data == load("phase").data  # made again, it is the same
    assert load_task("series", shuffled=True).data["shuffled"]
    assert (usual_recipe("series"), usual_recipe("series", "FOLDER")) == ("series-embedded", "series")
    assert usual_recipe("pixels", "embedded:pathfinder") == "pathfinder-embedded"


def test_data_that_are_another_tasks():
    with pytest.raises(UnknownName, match="embedded data of task series 'chrip'; did you mean 'chirp'"):
        load_task("series", data="embedded:chrip")
    with pytest.raises(UnknownName, match="embedded data of task bytes 'chirp'"):
        load_task("bytes", data="embedded:chirp")
    with pytest.raises(InputError, match="task digits has no embedded data"):
        load_task("digits", data="embedded:chirp")
    with pytest.raises(InputError, match=r"task digits has no sequences .* leave shuffled out"):
        load_task("digits", 10, shuffled=True)


# ListOps ----------------------------------------------------------------------------------------------------


def value_of(words):
    """The value of an expression, from its words, by brute force."""
    word = words.popleft()
    if not word.startswith("["):
        return int(word)
    values = []
    while words[0] != "]":
        values.append(value_of(words))
    words.popleft()
    ordered = sorted(values)
    middle = (ordered[(len(values) - 1) // 2] + ordered[len(values) // 2]) // 2
    return {"[MIN": ordered[0], "[MAX": ordered[-1], "[MED": middle, "[SM": sum(values) % 10}[word]


def test_a_list_has_the_value_that_it_says():
    draw = random.Random(3)
    lengths = []
    for _ in range(60):
        text, length, value = listops.expression(draw)
        words = deque(text.replace("(", " ").replace(")", " ").split())
        assert len(words) == length
        lengths.append(length)
        assert value_of(words) == value
        assert not words
        assert text.count("(") == text.count(")")
    assert listops.SHORTEST <= min(lengths) < max(lengths) <= listops.LONGEST
    assert re.fullmatch(r"(\( )+\[(MIN|MAX|MED|SM) .* \] \)", text)


# Pathfinder -------------------------------------------------------------------------------------------------


def test_the_discs_lie_at_ends_and_their_distance_says_little():
    draw = np.random.default_rng(0)
    apart = {True: [], False: []}
    for _ in range(40):
        one = pathfinder.path_beside(draw, pathfinder.LONG, [])
        other = pathfinder.path_beside(draw, pathfinder.LONG, [one])
        if other is None:
            continue
        assert min(math.dist(here, there) for here in one for there in other) >= pathfinder.CLEAR
        assert min(math.dist(one[start], one[start + 4]) for start in range(len(one) - 4)) >= pathfinder.CLEAR
        for connected, found in apart.items():
            first, second = pathfinder.ends_marked(draw, [one, other], connected)
            mine = [
                any(np.array_equal(disc, path[end]) for end in (0, -1))
                for disc in (first, second)
                for path in (one, other)
            ]
            assert mine in ([[1, 0, 1, 0], [0, 1, 0, 1]] if connected else [[1, 0, 0, 1], [0, 1, 1, 0]])
            found.append(math.dist(first, second))
    assert len(apart[True]) > 10
    spread = np.std(apart[True])
    assert abs(np.mean(apart[True]) - np.mean(apart[False])) < 1.5 * spread


def test_a_picture_is_dashed_lines_and_two_discs():
    image = pathfinder.picture(np.random.default_rng(1), connected=True)
    assert image.shape == (16, 16)
    assert image.dtype == np.uint8
    assert 3 <= (image > 200).sum() <= 20  # the discs
    assert (image == 0).sum() > 100


# Prose ------------------------------------------------------------------------------------------------------


def test_no_file_is_in_both_splits_and_every_genre_is():
    train_files, test_files = prose.passages("train"), prose.passages("test")
    assert not set(train_files) & set(test_files)
    assert len(train_files) + len(test_files) == 18
    for numbers in prose.GENRES.values():
        assert set(numbers) & set(train_files)
        assert len(set(numbers) & set(test_files)) == 2
    assert {len(text) for texts in test_files.values() for text in texts} == {prose.LENGTH}
    assert sum(map(len, test_files.values())) >= EMBEDDED["genre"].test


def test_pairs_of_one_file_share_no_byte(tmp_path):
    prose.write_pairs(tmp_path, {"train": 60, "test": 20}, 0)
    for split in ("train", "test"):
        rows = [line.split("\t") for line in (tmp_path / f"prose.{split}.tsv").read_text().splitlines()]
        assert Counter(row[0] for row in rows) == {"0": len(rows) / 2, "1": len(rows) / 2}
        for label, first, second, left, right in rows:
            (file, at), (other, place) = first.split("_"), second.split("_")
            assert (label == "1") == (file == other)
            assert label == "0" or abs(int(at) - int(place)) * prose.STRIDE[split] >= prose.LENGTH
            assert len(left) == len(right) == prose.LENGTH


# Series -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("problem", series.PROBLEMS)
def test_a_problem_is_a_ts_file_of_series_of_different_lengths(problem, tmp_path):
    series.write(problem, tmp_path, {"train": 24, "test": 6}, 0)
    held = read_ts(tmp_path / f"{problem}_TRAIN.ts")
    classes = series.PROBLEMS[problem][1]
    assert held.classes == classes
    assert Counter(held.labels) == dict.fromkeys(classes, 24 / len(classes))
    lengths = [len(one) for one in held.series]
    assert series.SHORTEST <= min(lengths) < max(lengths) <= series.LONGEST
    assert held.channels >= 2


def test_what_tells_the_classes_is_there():
    draw = np.random.default_rng(0)
    for label, steps in enumerate(series.LAGS):
        values = series.lag(draw, label, 400)
        found = [np.corrcoef(values[10:390, 0], values[10 + by : 390 + by, 1])[0, 1] for by in range(-9, 10)]
        assert int(np.argmax(found)) - 9 == steps
    for label, turns in enumerate(series.FREQUENCIES):
        power = np.abs(np.fft.rfft(series.frequency(draw, label, 400), axis=0)) ** 2
        assert power.max(1)[1:].argmax() + 1 == pytest.approx(400 * turns, abs=1)
    for label in range(4):
        steps = np.arange(400)
        values = series.phase(np.random.default_rng(1), label, 400)
        peak = np.abs(np.fft.rfft(values[:, 0])).argmax()
        wave = np.exp(-2j * np.pi * peak * steps / 400)
        turn = np.angle((values[:, 0] @ wave) / (values[:, 1] @ wave))
        assert np.cos(turn - label * np.pi / 2) > 0.9
    for label, rising in ((0, False), (1, True)):
        waves = np.stack([series.chirp(draw, label, 80) for _ in range(40)]) @ [1j, 1]
        first, last = (
            (np.abs(np.fft.fft(part)) ** 2).mean(0)[:12].argmax() for part in (waves[:, :24], waves[:, 56:])
        )
        assert (last > first) == rising
    for label, (one, other) in enumerate(((0, 1), (0, 2), (1, 2)) * 4):
        values = series.oscillators(draw, label % 3, 1000)
        power = [np.abs(np.fft.rfft(channel))[1:].argmax() for channel in values.T]
        assert abs(power[one] - power[other]) < 3 < 15 < abs(power[3 - one - other] - power[one])


# Pairs ------------------------------------------------------------------------------------------------------


def pair_rows(*rows):
    return "".join("\t".join(row) + "\n" for row in rows)


def write_pairs(folder, train, test):
    folder.mkdir(exist_ok=True)
    (folder / "aan.train.tsv").write_text(pair_rows(*train))
    (folder / "aan.test.tsv").write_text(pair_rows(*test))
    return folder


ROW = ("1.0", "a", "b", "cat", "category")


def test_pairs_are_two_rows_of_a_batch_and_one_target(tmp_path):
    folder = write_pairs(tmp_path, [ROW, ("0", "c", "d", "xy", "z" * 9)], [('"0.0"', "e", "f", "u", "v")])
    task = load_task("retrieval", data=folder, architecture={"context": 6})
    assert (task.classes, task.train.targets, task.test.targets) == (("0", "1"), [1, 0], [0])
    assert task.data["train"]["cut"] == 2
    batch, targets = task.together([task.train[0], task.train[1]])
    assert targets.tolist() == [1, 0]
    assert batch["attention_mask"].sum(1).tolist() == [3, 6, 2, 6]
    assert batch["input_ids"][0, :3].tolist() == [len(SPECIAL) + byte for byte in b"cat"]
    swapped = write_pairs(tmp_path / "other", [("1.0", "a", "b", "category", "cat")], [ROW])
    assert load_task("retrieval", data=swapped, architecture={"context": 6}).data != task.data


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("1", "a", "b", "text"), "line 1: 4 columns; a row is 0 or 1, two names, two texts"),
        (("2", "a", "b", "text", "text"), "line 1: class '2'; a row begins with 0 or 1"),
        (("1", "a", "b", "", "text"), "line 1: a text is empty; remove the line"),
    ],
)
def test_pairs_that_are_none(row, message, tmp_path):
    with pytest.raises(InputError, match=message):
        load_task("retrieval", data=write_pairs(tmp_path, [row], [ROW]))
    with pytest.raises(InputError, match="has no rows; copy it again"):
        load_task("retrieval", data=write_pairs(tmp_path, [ROW], []))
    (tmp_path / "aan.test.tsv").unlink()
    with pytest.raises(InputError, match=r"aan.train.tsv but no aan.test.tsv; put that file beside it"):
        load_task("retrieval", data=tmp_path)


def test_a_pair_is_compared_as_the_formula_says():
    torch.manual_seed(0)
    model = build({"name": "sequence", "vocabulary": 9, "context": 7, "embed_dim": 6, "pairs": True}).double()
    texts = [torch.randint(9, (length,)) for length in (3, 7, 4, 5)]
    batch, _ = pad_pairs([((texts[0], texts[1]), 1), ((texts[2], texts[3]), 0)], "input_ids")
    alone = []
    head, model.head = model.head, torch.nn.Identity()
    for text in texts:
        alone.append(model(text[None])[0])
    model.head = head
    for number, logits in enumerate(model(**batch)):
        u, v = alone[2 * number], alone[2 * number + 1]
        hidden = [
            max(0.0, (row @ torch.cat([u, v, u * v, u - v]) + shift).item())
            for row, shift in zip(head.hidden.weight, head.hidden.bias, strict=True)
        ]
        expected = head.out.weight @ torch.tensor(hidden, dtype=torch.float64) + head.out.bias
        torch.testing.assert_close(logits, expected)
    with pytest.raises(InputError, match=r"compares texts two by two .* and got 3 of them"):
        model(batch["input_ids"][:3])


def test_pairs_are_trained_on_and_their_model_captured(small, tmp_path):
    recipe = Recipe(
        "retrieval",
        {"name": "sequence", "context": 20, "embed_dim": 8, "depth": 1},
        epochs=1,
        batch_size=5,
        learning_rate=1e-3,
    )
    result = train("retrieval", tmp_path, recipe=recipe, shuffled=True, device="cpu", progress=False)
    assert {"loss", "accuracy", "projection_error", "macs"} <= set(result.metrics["metric"])
    model = workbench.load(f"file:{result.checkpoints[-1]}")
    watched = load_task("retrieval", architecture={"context": 20}).watched["test"]
    capture = workbench.capture(model, watched)
    assert capture.result.shape == (len(watched["input_ids"]) / 2, 2)


# Trained ----------------------------------------------------------------------------------------------------


def test_an_embedded_task_from_the_command_line(small, tmp_path, monkeypatch, capsys):
    from workbench.apps import cli

    monkeypatch.chdir(tmp_path)
    words = ["series", "--data", "embedded:lag", "--attention", "primal", "-s", "low_rank=4", "--shuffled"]
    with pytest.raises(SystemExit) as left:
        cli.main(["study", "train", *words, "--epochs", "1", "--device", "cpu"])
    assert left.value.code == 0, capsys.readouterr().err
    folder = tmp_path / "runs" / "lag-embedded-primal-shuffled-seed0"
    about = (folder / "model.json").read_text()
    assert "--recipe series-embedded --data embedded:lag --shuffled --seed 0 --epochs 1" in about
    assert '"name": "lag-embedded-primal-4' in about


def test_a_picture_keeps_its_pixels(tmp_path):
    pathfinder.write(tmp_path, {"train": 2, "test": 2}, 0)
    again = [
        pathfinder.picture(draw, label == "connected")
        for draw in [np.random.default_rng([0, 0])]
        for label in pathfinder.CLASSES
    ]
    for number, label in enumerate(pathfinder.CLASSES):
        with Image.open(tmp_path / "train" / label / f"{number:05d}.png") as image:
            assert np.array_equal(np.asarray(image), again[number])


# On record --------------------------------------------------------------------------------------------------


def test_the_plan_can_be_built_and_names_every_run_once():
    for name, planned in embedded_runs.PLAN.items():
        variants = [one.variant for one in planned]
        assert len(set(variants)) == len(variants)
        assert {one.seeds for one in planned if one.variant in ("softmax", "primal")} == {embedded_runs.SEEDS}
        for one in planned:
            recipe = one.recipe(name)
            assert recipe.attention == one.attention
            assert one.ksvd_weight in (None, recipe.ksvd_weight)
    layers = {
        one.variant: one.recipe("lag").architecture.get("attention_layers")
        for one in embedded_runs.PLAN["lag"]
    }
    assert (layers["primal"], layers["primal-all"]) == ([1], None)


def test_the_trivial_predictor_by_hand():
    found = embedded_runs.trivial([0, 0, 0, 1], [0, 1, 1])
    assert found["accuracy"] == pytest.approx(1 / 3)
    assert found["loss"] == pytest.approx(-(math.log(3 / 4) + 2 * math.log(1 / 4)) / 3)


def test_a_record_is_written_once_its_runs_are_complete_and_read_back(small, tmp_path, monkeypatch):
    plan = (
        embedded_runs.Planned("softmax", seeds=(3, 4)),
        embedded_runs.Planned("softmax-shuffled", shuffled=True),
        embedded_runs.Planned("primal s=4", "primal", "0-1", {"low_rank": 4}, ksvd_weight=0.3),
    )
    monkeypatch.setitem(embedded_runs.PLAN, "lag", plan)
    data, work = tmp_path / "data", tmp_path / "work"

    def make():
        return list(embedded_runs.make_embedded_records(["lag"], data, work, epochs=1))

    (line,) = make()
    assert line.startswith("lag: test accuracy softmax 0.")
    monkeypatch.setattr(paths, "data_dir", lambda: data)
    frame = embedded_record("lag")
    assert list(frame.columns) == list(EMBEDDED_COLUMNS)
    assert set(zip(frame["variant"], frame["seed"].fillna(-1), strict=True)) == {
        ("majority", -1), ("softmax", 3), ("softmax", 4), ("softmax-shuffled", 1907), ("primal s=4", 1907)
    }  # fmt: skip
    about = json.loads((data / "records" / "embedded" / "lag" / "record.json").read_text())
    assert about["recipes"]["primal s=4"]["ksvd_weight"] == 0.3
    assert "--shuffled" in about["runs"][2]["command"]
    last = frame.query(
        "variant == 'softmax' and seed == 4 and epoch == 1 and split == 'test' and metric == 'accuracy'"
    )
    assert last["value"].item() == about["runs"][1]["test_accuracy"]
    # what is complete is not trained again, and data that changed are noticed
    monkeypatch.setattr(embedded_runs, "train", None)
    assert make() == [line]
    assert embedded_record().equals(frame)
    monkeypatch.setitem(EMBEDDED, "lag", dataclasses.replace(EMBEDDED["lag"], test=24))
    with pytest.raises(InputError, match="was trained on other data than embedded:lag is now"):
        make()
    with pytest.raises(UnknownName, match="embedded data 'lagg'"):
        list(embedded_runs.make_embedded_records(["lagg"], data, work))
    with pytest.raises(UnknownName, match="embedded data on record 'chirp'"):
        embedded_record("chirp")


def test_one_mechanism_is_made_again_beside_the_others_on_record(small, tmp_path, monkeypatch):
    plan = tuple(embedded_runs.Planned(name, name, seeds=(3,)) for name in ("softmax", "alibi"))
    monkeypatch.setitem(embedded_runs.PLAN, "lag", plan)
    data = tmp_path / "data"
    monkeypatch.setattr(paths, "data_dir", lambda: data)
    folder = data / "records" / "embedded" / "lag"

    def make(work, **given):
        (line,) = embedded_runs.make_embedded_records(["lag"], data, tmp_path / work, epochs=1, **given)
        return line, embedded_record("lag"), json.loads((folder / "record.json").read_text())

    _, before, about = make("one")
    about["versions"]["torch"] = "1.0"  # of another machine
    (folder / "record.json").write_text(json.dumps(about))
    more = embedded_runs.Planned("alibi", "alibi", seeds=(3, 4))
    monkeypatch.setitem(embedded_runs.PLAN, "lag", (plan[0], more))
    line, after, about = make("other", variants=["alibi"])
    assert "softmax 0." in line
    assert not (tmp_path / "other" / "lag" / "softmax").exists()
    named = ["variant", "seed", "epoch", "split", "metric"]
    rows = [frame[frame["variant"] != "majority"].sort_values(named) for frame in (before, after)]
    same = rows[1][rows[1]["seed"] == 3]
    pd.testing.assert_frame_equal(rows[0].reset_index(drop=True), same.reset_index(drop=True))
    assert (after["variant"] == "majority").sum() == (before["variant"] == "majority").sum()
    runs = [(run["variant"], run["seed"], run.get("versions", {}).get("torch")) for run in about["runs"]]
    assert runs == [("softmax", 3, "1.0"), ("alibi", 3, None), ("alibi", 4, None)]
    with pytest.raises(UnknownName, match="mechanism 'nystrom'"):
        make("other", variants=["nystrom"])


def test_what_is_on_record_is_found_by_the_data_whose_question_it_asks(monkeypatch):
    def known(*names):
        record = pd.DataFrame({"data": names}, dtype=object)
        monkeypatch.setattr(embedded_runs, "embedded_record", lambda: record)

    known("chirp", "genre", "pathfinder", "digits")
    assert embedded_runs.names_on_record("Long Range Arena") == [
        "genre",
        "digits",
        "pathfinder",
    ]  # as planned
    assert embedded_runs.names_on_record("UEA archive") == ["chirp"]
    known("chirp")
    with pytest.raises(
        InputError, match=r"no data .* Long Range Arena; .*study records embedded --name NAME, .* listops"
    ):
        embedded_runs.names_on_record("Long Range Arena")
    with pytest.raises(UnknownName, match="GLUE"):
        embedded_runs.names_on_record("GLUE")


@pytest.mark.parametrize(
    ("name", "metric", "splits", "modality"),
    [
        ("mosaics", "mean_iou", {"train", "test", "corruptions", "fgsm 0.01", "pgd 0.06"}, "image"),
        ("genres", "accuracy", {"train", "test", "word-swap 0", "word-swap 0.1"}, "text"),
        ("cart-pole-medium", "normalised_return", {"test"}, "other"),
        ("genre", "accuracy", {"test"}, "text"),
    ],
)
def test_a_record_has_what_the_task_is_judged_by(
    name, metric, splits, modality, small, tmp_path, monkeypatch
):
    from workbench.studies.evaluation.embedded import undergone
    from workbench.studies.training.tasks import offline

    monkeypatch.setattr(offline, "EPISODES", 2)
    monkeypatch.setitem(embedded_runs.PLAN, name, (embedded_runs.Planned("softmax", seeds=(3,)),))
    monkeypatch.setattr(embedded_runs, "KEPT", {name: ("softmax", "tssa")})  # of these what is planned
    made = embedded_runs.make_embedded_records(
        [name], tmp_path / "data", tmp_path / "work", epochs=1, limit=4, undergone=undergone
    )
    assert next(made).startswith(f"{name}: test {metric} softmax ")
    monkeypatch.setattr(paths, "data_dir", lambda: tmp_path / "data")
    frame = embedded_record(name)
    assert splits <= set(frame.loc[frame["metric"] == metric, "split"])
    held = frame[(frame["variant"] == "majority") & (frame["metric"] == metric)]
    assert held["value"].item() <= 100
    (kept,) = bundled_models()
    assert (kept.spec, kept.modality) == (f"bundled:embedded-{name}-softmax", modality)
    assert workbench.load(kept.spec).modality == modality
