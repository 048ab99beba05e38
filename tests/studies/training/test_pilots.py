"""Pilot runs: the validation split, the rule of what is learned, and the record."""

import dataclasses
import itertools
import json
import math
from collections import Counter

import numpy as np
import pandas as pd
import pytest
import torch

from workbench.core import paths
from workbench.core.errors import UnknownName
from workbench.core.files import sha256_bytes
from workbench.studies.records import RECORD_FILE, learned_in_pilots, learned_record
from workbench.studies.seeds import CONFIRMATORY, CONTINUED, PILOT, SEEDS
from workbench.studies.training import embedded_runs, pilots
from workbench.studies.training.embedded_runs import PLAN, Planned
from workbench.studies.training.tasks.embedded import EMBEDDED, SEED, written
from workbench.studies.training.tasks.embedded.validation import SHARE, validation_split

# The split ------------------------------------------------------------------------------------------------


def touch(folder, *names):
    """Make empty files train/NAME, and return the classes in their order."""
    for name in names:
        path = folder / "train" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    folders = sorted({name.partition("/")[0] for name in names})
    return [folders.index(name.partition("/")[0]) for name in sorted(names)], sorted(names)


def test_files_of_prose_are_held_out_as_a_whole(tmp_path):
    files = {"essay": ("01", "03", "09", "12", "13"), "report": ("05", "06", "15"), "story": ("02", "04")}
    targets, names = touch(
        tmp_path,
        *(f"{genre}/{file}_{at:03d}.txt" for genre, own in files.items() for file in own for at in range(11)),
    )
    training, validation = validation_split("genre", tmp_path, targets)
    file_of = [name.partition("/")[2].partition("_")[0] for name in names]
    held_out = {file_of[number] for number in validation}
    assert Counter(targets[names.index(next(n for n in names if f"/{f}_" in n))] for f in held_out) == {
        0: 1,
        1: 1,
        2: 1,
    }
    assert not held_out & {file_of[number] for number in training}
    assert len(training) == 7 * 11
    assert len(validation) == 3 * 3  # passages 0, 4 and 8, which do not overlap


def test_no_two_passages_of_five_files_overlap_across_the_parts(tmp_path):
    targets, names = touch(
        tmp_path, *(f"{file}/{file}_{at:03d}.txt" for file in ("02", "13") for at in range(0, 70, 2))
    )
    training, validation = validation_split("five-files", tmp_path, targets)
    start = [(name[:2], 64 * int(name[-7:-4])) for name in names]
    for one, other in itertools.chain(
        itertools.product(training, validation), itertools.combinations(validation, 2)
    ):
        assert start[one][0] != start[other][0] or abs(start[one][1] - start[other][1]) >= 256
    for file in ("02", "13"):
        held_out = [start[number][1] // 64 for number in validation if start[number][0] == file]
        assert len({place * 5 // 69 for place in held_out}) == 1  # one fifth of each file
        assert len(held_out) == 4


def test_tiles_of_a_photograph_are_held_out_as_a_whole(tmp_path):
    targets, names = touch(
        tmp_path, *(f"{photo}/{at + 108 * photo:05d}.png" for photo in (0, 1, 2) for at in range(108))
    )
    training, validation = validation_split("cuts", tmp_path, targets)
    tile = [int(name[2:7]) // 9 for name in names]
    held_out = {tile[number] for number in validation}
    assert not held_out & {tile[number] for number in training}
    assert (len(training), len(validation)) == (3 * 10 * 9, 3 * 2)  # one cut of each of two tiles


def test_pairs_are_in_a_part_with_both_files(tmp_path):
    with written("same-file") as folder:
        rows = [line.split("\t") for line in next(folder.glob("*.train.tsv")).read_text().splitlines()]
        targets = [int(row[0]) for row in rows]
        parts = validation_split("same-file", folder, targets)
    files = [{row[at][:2] for row in (rows[number] for number in part) for at in (1, 2)} for part in parts]
    assert not files[0] & files[1]
    assert (len(files[0]), len(files[1])) == (9, 3)
    for part in parts:
        (one, other) = Counter(targets[number] for number in part).values()
        assert one == other > 50


def test_single_examples_are_drawn_by_class_and_always_the_same(tmp_path):
    targets = [0] * 35 + [1] * 20 + [2] * 5
    training, validation = validation_split("lag", tmp_path, targets)
    assert sorted(training + validation) == [*range(60)]
    assert Counter(targets[number] for number in validation) == {0: 7, 1: 4, 2: 1}
    assert validation_split("lag", tmp_path, targets) == (training, validation)
    assert SHARE == 0.2


# The rule --------------------------------------------------------------------------------------------------


def test_the_lower_end_of_an_accuracy_is_wilson_s_at_the_level():
    outcomes = np.array([1.0] * 13 + [0.0] * 7)
    found = pilots.lower_end({"loss": outcomes, "accuracy": outcomes}, "accuracy", dict, 1 - 0.05 / 8)
    n, p, z = 20, 13 / 20, 2.7343687865  # normal quantile at 1 − 0.05/16
    centre, spread = p + z**2 / (2 * n), z * math.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    assert found == pytest.approx((centre - spread) / (1 + z**2 / n), abs=1e-6)


def test_the_lower_end_of_other_scores_is_a_percentile_over_examples():
    values = np.random.default_rng(3).normal(2, 0.5, 150)
    found = pilots.lower_end({"score": values}, "score", dict, 0.95)
    assert found == pytest.approx(values.mean() - 1.96 * values.std() / math.sqrt(150), abs=0.01)
    # of a ratio of means, as of a mean IoU: every resample takes both parts of the same examples
    pairs = {"part": values, "whole": 2 * values}
    ratio = pilots.lower_end(pairs, "ratio", lambda m: {"ratio": m["part"] / m["whole"]}, 0.95)
    assert ratio == pytest.approx(0.5)


def test_a_mechanism_learns_with_one_epoch_above_the_trivial_predictor():
    frame = pd.DataFrame(
        [("a", "x", 0.5, 0.5), ("a", "x", 0.6, 0.5), ("a", "y", 0.5, 0.5), ("b", "x", 0.1, 0.5)],
        columns=["data", "variant", "low", "trivial"],
    )
    assert learned_in_pilots(frame) == {("a", "x"): True, ("a", "y"): False, ("b", "x"): False}


# The runs --------------------------------------------------------------------------------------------------


class Unread(torch.utils.data.Dataset):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        raise AssertionError("the test set was read")


def test_a_pilot_reads_no_test_set_and_ends_once_it_has_learned(tmp_path, monkeypatch):
    whole, seen = pilots.load_task, []

    def load(*arguments, **options):
        return dataclasses.replace(whole(*arguments, **options), test=Unread())

    class Watched(pilots.Trainer):
        def __init__(self, task, recipe, seed, device):
            super().__init__(task, recipe, seed, device)
            seen.append((task, seed))

    monkeypatch.setitem(EMBEDDED, "lag", dataclasses.replace(EMBEDDED["lag"], train=45, test=6))
    monkeypatch.setattr(pilots, "load_task", load)
    monkeypatch.setattr(pilots, "Trainer", Watched)
    lows = iter([0.1, 0.9, 0.9])
    monkeypatch.setattr(pilots, "lower_end", lambda *_: next(lows))
    frame, about = pilots.pilot("lag", Planned("softmax"), tmp_path, epochs=3)
    ((task, seed),) = seen
    assert frame["epoch"].tolist() == [1, 2]
    assert set(frame["trivial"]) == {1 / 3}
    assert frame["value"].between(0, 1).all()
    parts = {*task.train.indices}, {*task.test.indices}
    assert not parts[0] & parts[1]
    assert parts[0] | parts[1] == {*range(45)}
    assert (about["training"]["n"], about["validation"]["n"]) == (36, 9)
    assert about["level"] == pytest.approx(1 - 0.05 / 3)
    assert seed == PILOT
    assert PILOT not in {
        *SEEDS,
        *embedded_runs.SEEDS,
        *sum([*CONFIRMATORY.values(), *CONTINUED.values()], ()),
    }
    assert PILOT not in {seed for plan in PLAN.values() for planned in plan for seed in planned.seeds}


@pytest.mark.parametrize(
    ("name", "score"), [("collages", "mean_iou"), ("cart-pole-medium", "normalised_return")]
)
def test_other_scores_have_a_trivial_predictor_and_an_interval(name, score, tmp_path, monkeypatch):
    if score == "normalised_return":
        pytest.importorskip("gymnasium", reason="agents act in an extra package")
    monkeypatch.setitem(EMBEDDED, name, dataclasses.replace(EMBEDDED[name], train=20, test=2))
    monkeypatch.setattr(pilots, "EPISODES", 3)
    monkeypatch.setattr(pilots, "RESAMPLES", 200)
    frame, about = pilots.pilot(name, Planned("softmax"), tmp_path, epochs=1)
    (row,) = frame.to_dict("records")
    assert row["metric"] == score
    assert row["low"] <= row["value"]
    assert math.isfinite(row["trivial"])
    assert about["validation"]["n"] == (4 if score == "mean_iou" else 0)


def test_the_other_mechanism_is_piloted_only_where_the_baseline_does_not_learn(tmp_path, monkeypatch):
    trained = []

    def pilot(name, planned, work, *, epochs):
        trained.append((name, planned.variant))
        low = {"lag": 0.9, "shape": 0.1}[name] if planned.variant == "softmax" else 0.9
        row = {"data": name, "variant": planned.variant, "epoch": 1, "metric": "accuracy", "value": 0.95}
        return pd.DataFrame([{**row, "low": low, "trivial": 0.3}]), {"data": name, "variant": planned.variant}

    monkeypatch.setattr(pilots, "pilot", pilot)
    monkeypatch.setattr(
        pilots,
        "compared_on",
        lambda: {name: [("softmax", "primal"), ("softmax", "primal-all")] for name in ("lag", "shape")},
    )
    lines = [*pilots.make_learned_record(["shape"], tmp_path, tmp_path / "work")]
    assert trained == [("shape", "softmax"), ("shape", "primal"), ("shape", "primal-all")]
    assert lines[0] == (
        "shape, softmax: not learned, validation accuracy 0.950 in epoch 1, at least 0.100, trivial 0.300"
    )
    assert len([*pilots.make_learned_record([], tmp_path, tmp_path / "work")]) == 1  # what is on record stays
    assert trained[3:] == [("lag", "softmax")]
    monkeypatch.setattr(paths, "data_dir", lambda: tmp_path)
    assert learned_in_pilots(learned_record())["lag", "softmax"]
    about = json.loads((tmp_path / "records" / "learned" / RECORD_FILE).read_text())
    assert [entry["data"] for entry in about["pilots"]] == ["shape"] * 3 + ["lag"]
    assert len([*pilots.make_learned_record(["lag"], tmp_path, tmp_path / "work", restart=True)]) == 1
    with pytest.raises(UnknownName, match="embedded data of claims 'chirp'"):
        next(pilots.make_learned_record(["chirp"], tmp_path, tmp_path / "work"))


# The record ------------------------------------------------------------------------------------------------


def test_the_record_has_pilots_of_what_is_trained_and_the_split_made_here(tmp_path):
    frame = learned_record()
    assert set(frame["seed"]) == {PILOT}
    trained = {path.name for path in (paths.data_dir() / "records" / "embedded").iterdir()}
    classified = {name for name in trained & {*pilots.compared_on()} if EMBEDDED[name].task != "rl"}
    assert classified <= {*frame["data"]} <= trained
    for _, rows in frame.groupby(["data", "variant"]):
        assert not (rows["low"] > rows["trivial"]).iloc[:-1].any()  # the run ended with the first
    about = json.loads((paths.data_dir() / "records" / "learned" / RECORD_FILE).read_text())
    assert about["seed_of_split"] == SEED
    (split,) = (entry for entry in about["pilots"] if (entry["data"], entry["variant"]) == ("lag", "softmax"))
    parts = validation_split("lag", tmp_path, [number % 3 for number in range(300)])
    for part, numbers in zip(("training", "validation"), parts, strict=True):
        assert split[part] == {
            "n": len(numbers),
            "numbers_sha256": sha256_bytes(" ".join(map(str, numbers)).encode()),
        }
