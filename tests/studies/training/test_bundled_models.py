"""The model that comes with the package, and the record of how it was made."""

import json
import re
import statistics
from pathlib import Path

import pandas as pd
import pytest
import torch

import workbench
from workbench.apps import cli
from workbench.core.errors import InputError, MissingResource, UnknownName
from workbench.core.files import sha256_file
from workbench.core.paths import data_dir
from workbench.data.pools import digits_split
from workbench.models.checkpoints import FORMAT, read_checkpoint, restore
from workbench.papers.published import claim_options, stated_claims
from workbench.studies import records
from workbench.studies.evaluation.robustness import claimed, make_robustness_record
from workbench.studies.records import (
    CONFIRMED_COLUMNS,
    evaluation_record,
    read_metrics,
    training_record,
)
from workbench.studies.seeds import CONFIRMATORY, CONTINUED, SEEDS, SOFTMAX_ALTERNATIVES, WITHOUT_POSITIONS
from workbench.studies.training import load_recipe
from workbench.studies.training.bundled_models import CONFIRMED_ONLY, MODELS, bundle, make_training_records
from workbench.studies.training.run_folder import METRIC_COLUMNS
from workbench.studies.training.runs import recipe_for
from workbench.studies.training.tasks import load_task

MODEL = data_dir() / "models" / "digits-vit"
RECORD = data_dir() / "records" / "digits-vit"


@pytest.fixture(scope="module")
def model():
    return json.loads((MODEL / "model.json").read_text())


@pytest.fixture(scope="module")
def record():
    return json.loads((RECORD / "record.json").read_text())


def accuracy(path):
    module, _ = restore(path)
    test = digits_split("test")
    with torch.inference_mode():
        return (module(test.images).argmax(1) == test.labels).double().mean().item()


def test_the_bundled_model_classifies_97_percent_of_unseen_digits(model):
    assert accuracy(MODEL / model["checkpoints"][-1]["file"]) >= 0.97


def test_the_median_of_three_seeds_does_too(record):
    metrics = read_metrics(RECORD / "metrics.csv").query("split == 'test' and metric == 'accuracy'")
    last = metrics[metrics["epoch"] == record["recipe"]["epochs"]].set_index("seed")["value"]
    assert tuple(last.index) == tuple(record["seeds"]) == SEEDS
    assert statistics.median(last) == record["test_accuracy_median"] >= 0.97
    assert [run["test_accuracy"] for run in record["runs"]] == list(last)


def test_every_checkpoint_has_the_accuracy_its_table_says(model):
    assert len(model["checkpoints"]) == 10
    for row in model["checkpoints"]:
        # One image of 445 may fall either way on a machine that rounds differently.
        assert accuracy(MODEL / row["file"]) == pytest.approx(row["test_accuracy"], abs=1.5 / 445)


def test_loaded_by_name_on_the_bundled_digits_it_is_as_accurate(model):
    loaded = workbench.load("bundled:digits-vit")
    inputs = workbench.inputs("bundled:digits", loaded, n=len(digits_split("test").ids))
    with torch.inference_mode():
        predicted = loaded.module(inputs.batch).argmax(1)
    right = (predicted == torch.tensor(inputs.targets)).double().mean().item()
    assert right == pytest.approx(model["checkpoints"][-1]["test_accuracy"], abs=1.5 / 445)


@pytest.mark.parametrize("name", MODELS)
def test_files_are_the_ones_recorded(name):
    folder, models = data_dir() / "records" / name, data_dir() / "models" / name
    record, model = (json.loads(path.read_text()) for path in (folder / "record.json", models / "model.json"))
    for file, digest in record["files"].items():
        assert sha256_file(folder / file) == digest, file
    assert {(folder / file).resolve() for file in record["files"]} == {
        *(path.resolve() for path in models.iterdir()),
        (folder / "metrics.csv").resolve(),
    }
    hashes = [row["sha256"] for row in model["checkpoints"]]
    assert hashes == [sha256_file(models / row["file"]) for row in model["checkpoints"]]
    assert record["runs"][0]["last_checkpoint_sha256"] == hashes[-1]
    assert record["recipe"] == model["recipe"]
    assert record["command"] == f"workbench study records training --model bundled:{name}"
    for row in model["checkpoints"]:
        _, meta = read_checkpoint(models / row["file"])
        assert meta["format"] == model["format"] == FORMAT
        assert meta["command"] == model["command"] == record["runs"][0]["command"]


def test_model_and_record_are_of_the_recipe_and_data_that_the_package_has(model, record):
    recipe = json.loads(json.dumps(load_recipe("digits").as_dict()))
    assert recipe == model["recipe"] == record["recipe"]
    assert load_task("digits").data == model["data"] == record["data"]
    assert model["complete"]


def test_the_bundled_files_stay_small():
    assert sum(path.stat().st_size for path in MODEL.iterdir()) < 6e6


def test_bundling_again_fills_the_same_folders(tmp_path, model):
    made = bundle("digits-vit", tmp_path / "data", tmp_path / "work", epochs=1, limit=40)
    folder = tmp_path / "data" / "models" / "digits-vit"
    assert sorted(path.name for path in folder.iterdir()) == [
        "epoch-000.safetensors",
        "epoch-001.safetensors",
        "model.json",
    ]
    # where it was trained stands in those of newer runs alone
    assert json.loads((folder / "model.json").read_text()).keys() == {*model, "device"}
    records = tmp_path / "data" / "records" / "digits-vit"
    assert json.loads((records / "record.json").read_text()) == made
    metrics = pd.read_csv(records / "metrics.csv")
    assert tuple(metrics.columns) == METRIC_COLUMNS
    assert set(metrics["seed"]) == set(SEEDS)


def test_of_the_other_models_only_the_last_checkpoint_is_kept(tmp_path):
    data = tmp_path / "data"
    made = bundle("digits-rpc-sym", data, tmp_path / "work", epochs=1, limit=32, seeds=[0])
    folder = data / "models" / "digits-rpc-sym"
    assert sorted(path.name for path in folder.iterdir()) == ["epoch-001.safetensors", "model.json"]
    about = json.loads((folder / "model.json").read_text())
    assert about["name"] == "digits-rpc-sym"
    assert [row["file"] for row in about["checkpoints"]] == ["epoch-001.safetensors"]
    assert (
        made["runs"][0]["command"]
        == "workbench study train digits --attention rpc-sym --limit 32 --seed 0 --epochs 1"
    )
    for name, digest in made["files"].items():
        assert sha256_file(data / "records" / "digits-rpc-sym" / name) == digest


def test_every_bundled_model_has_the_name_of_its_run():
    for name, model in MODELS.items():
        recipe = load_recipe(model.recipe or model.task, model.attention)
        assert recipe.task == model.task
        about = json.loads((data_dir() / "models" / name / "model.json").read_text())
        assert about["name"] == name


def test_a_model_that_is_not_bundled_is_refused(tmp_path):
    with pytest.raises(UnknownName, match="did you mean 'digits-rpc-sym'"):
        [*make_training_records(["digits-rpc"], tmp_path, tmp_path)]


def test_the_command_trains_all_seeds_and_cleans_up(tmp_path, capsys):
    words = ["study", "records", "training", "-m", "bundled:digits-tssa", "-o", tmp_path / "data"]
    words += ["--work", tmp_path / "work", "--epochs", 1, "--limit", 16]
    with pytest.raises(SystemExit) as left:
        cli.main([str(word) for word in words])
    assert left.value.code == 0
    assert "digits-tssa: test" in capsys.readouterr().out
    record = json.loads((tmp_path / "data" / "records" / "digits-tssa" / "record.json").read_text())
    assert record["command"] == "workbench study records training --model bundled:digits-tssa"
    assert [made["seed"] for made in record["runs"]] == list(SEEDS)
    assert not (tmp_path / "work" / "digits-tssa").exists()


def test_the_documented_numbers_are_those_on_record():
    text = (Path(__file__).parents[3] / "docs" / "training.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `((?:digits|photos|prose)-[\w-]+)` \| (.*) \|$", text, re.MULTILINE))
    assert set(rows) == set(MODELS)
    for name, row in rows.items():
        about = json.loads((data_dir() / "records" / name / "record.json").read_text())
        language = name.startswith("prose")
        metric = "test_perplexity" if language else "test_accuracy"
        values = [*(run[metric] for run in about["runs"]), about[f"{metric}_median"]]
        shown = [f"{value:.2f}" if language else f"{100 * value:.1f} %" for value in values]
        assert row == f"{', '.join(shown[:-1])} | {shown[-1]}"


def test_the_documented_scores_of_alternatives_to_softmax_are_those_on_record():
    text = (Path(__file__).parents[3] / "docs" / "attention.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w-]+)` \| .* \|([\d., ]*)\|([\d., ]*)\|$", text, re.MULTILINE)
    assert {*SOFTMAX_ALTERNATIVES} <= {
        f"{task}-{name}" for name, *_ in rows for task in ("digits", "prose-small")
    }
    for name, accuracy, perplexity in rows:
        digits = scores_on_record("digits-vit" if name == "softmax" else f"digits-{name}", "test_accuracy")
        assert accuracy.strip() == ", ".join(f"{100 * score:.1f}" for score in digits)
        prose = scores_on_record(f"prose-small-{name}", "test_perplexity")
        assert perplexity.strip() == ", ".join(f"{score:.2f}" for score in prose)


def scores_on_record(name: str, metric: str) -> list[float]:
    """Of the first three confirmatory seeds; empty for a model without a record."""
    path = data_dir() / "confirmed" / "records" / name / "record.json"
    runs = json.loads(path.read_text())["runs"] if path.is_file() else []
    return [run[metric] for run in runs if run["seed"] in CONFIRMATORY["digits-rpc-sym"][:3]]


def test_seeds_that_confirm_are_others_for_every_model_that_a_claim_of_training_compares():
    assert set(CONFIRMATORY) <= {*MODELS, *CONFIRMED_ONLY}
    assert not {*MODELS} & {*CONFIRMED_ONLY}
    assert not {seed for seeds in CONFIRMATORY.values() for seed in seeds} & set(SEEDS)
    settings = {name for name in CONFIRMED_ONLY if name.startswith("digits-rpc-sym-")}
    settings |= {*WITHOUT_POSITIONS, *SOFTMAX_ALTERNATIVES}
    digits = {name for name in CONFIRMATORY if name.startswith("digits")}
    assert {len(CONFIRMATORY[name]) for name in digits - settings} == {5}
    assert {CONFIRMATORY[name] for name in settings} == {CONFIRMATORY["digits-rpc-sym"][:3]}
    stated = stated_claims().query("analysis in ('training', 'evaluation') and kind == ''")
    compared = {name for options in stated["options"] for name in claim_options(options).values()}
    assert set(CONFIRMATORY) == compared | {*SOFTMAX_ALTERNATIVES}  # of which no paper claims anything
    assert set(CONTINUED) == {name for name in CONFIRMATORY if not name.startswith("photos-")} - settings
    for name, seeds in CONTINUED.items():
        assert len({*seeds, *CONFIRMATORY[name]}) == 7
        assert not {*seeds} & {*CONFIRMATORY[name], *SEEDS}


def test_a_record_that_confirms_has_no_weights_and_leaves_its_runs(tmp_path, monkeypatch):
    monkeypatch.setitem(CONFIRMATORY, "digits-vit", (1907, 1912))
    monkeypatch.setitem(CONTINUED, "digits-vit", ())
    data, work = tmp_path / "data", tmp_path / "work"
    (line,) = make_training_records(["digits-vit"], data, work, epochs=1, limit=16, confirm=True)
    assert line.startswith("digits-vit: test ")
    record = json.loads((data / "records" / "digits-vit" / "record.json").read_text())
    assert record["seeds"] == [1907, 1912]
    assert record["command"].endswith("--confirm")
    assert list(record["files"]) == ["metrics.csv"]
    assert not (data / "models").exists()
    kept = sorted(work.rglob("epoch-001.safetensors"))
    assert [sha256_file(path) for path in kept] == [run["last_checkpoint_sha256"] for run in record["runs"]]
    _evaluate_the_seeds(tmp_path, data, work, monkeypatch)


def _evaluate_the_seeds(tmp_path, data, work, monkeypatch):
    """Every seed on record under what is claimed of its model, and which images it had right."""
    where = {"data": data, "work": tmp_path / "evaluations", "runs": work, "limit": 5}
    made = make_robustness_record(["bundled:digits-vit"], ["fgsm"], **where)
    assert set(made["models"]) == {"digits-vit-1907", "digits-vit-1912"}
    assert str(tmp_path) not in json.dumps(made)
    (tmp_path / "confirmed").symlink_to(data)
    for name in ("records", "published"):
        (tmp_path / name).symlink_to(data_dir() / name)
    monkeypatch.setattr("workbench.core.paths.data_dir", lambda: tmp_path)
    frame = evaluation_record(confirmed=True)
    assert tuple(frame.columns) == CONFIRMED_COLUMNS
    assert set(frame["model"]) == {"bundled:digits-vit"}
    assert set(frame["epsilon"]) == set(claimed()["digits-vit"]["fgsm"]) == {0.0, 0.02}
    rows = frame[frame["metric"] == "accuracy_top1"]
    assert rows["training_seed"].tolist() == [1907, 1907, 1912, 1912]
    assert [text.count("1") / 5 for text in rows["outcomes"]] == rows["value"].tolist()
    again = [path.stat().st_mtime_ns for path in sorted(where["work"].iterdir())]
    make_robustness_record(["bundled:digits-vit"], ["fgsm"], **where)
    assert [path.stat().st_mtime_ns for path in sorted(where["work"].iterdir())] == again
    made = make_robustness_record(
        ["bundled:digits-vit"], ["pgd"], **where
    )  # beside the other protocol on record
    assert set(made["seconds"]) == {
        f"digits-vit-{seed} {name}" for seed in (1907, 1912) for name in ("fgsm", "pgd")
    }
    assert set(made["protocols"]) == {"fgsm", "pgd"}
    both = evaluation_record(confirmed=True)
    pd.testing.assert_frame_equal(both[both["protocol"] == "fgsm"].reset_index(drop=True), frame)
    with pytest.raises(InputError, match="another recipe"):  # one epoch: these are no confirmatory seeds
        training_record("digits-vit", confirmed=True)
    # beside them a seed of the second stage, where the weights of the first are elsewhere
    monkeypatch.setitem(CONTINUED, "digits-vit", (1987,))
    elsewhere = tmp_path / "elsewhere"
    assert (
        len([*make_training_records(["digits-vit"], data, elsewhere, epochs=1, limit=16, confirm=True)]) == 1
    )
    record = json.loads((data / "records" / "digits-vit" / "record.json").read_text())
    assert record["seeds"] == [run["seed"] for run in record["runs"]] == [1907, 1912, 1987]
    assert sorted(path.name for path in (elsewhere / "digits-vit").iterdir()) == ["seed-1987"]
    metrics = pd.read_csv(data / "records" / "digits-vit" / "metrics.csv")
    assert metrics.groupby("seed").size().nunique() == 1
    made = make_robustness_record(["bundled:digits-vit"], ["fgsm"], **where | {"runs": elsewhere})
    assert {"digits-vit-1987 fgsm", "digits-vit-1907 pgd", "digits-vit-1907 fgsm"} <= set(made["seconds"])
    third = evaluation_record(confirmed=True).query("protocol == 'fgsm' and training_seed != 1987")
    pd.testing.assert_frame_equal(third.reset_index(drop=True), frame)
    (work / "digits-vit" / "seed-1912" / "epoch-001.safetensors").write_bytes(b"another")
    with pytest.raises(InputError, match="does not hold the weights"):
        make_robustness_record(None, None, **where)
    with pytest.raises(UnknownName, match="digits-tost"):
        make_robustness_record(["bundled:digits-tost"], None, **where)
    with pytest.raises(MissingResource, match="make confirm"):
        make_robustness_record(["bundled:digits-rpc-sym"], None, **where)


def test_a_confirmatory_seed_is_trained_by_the_recipe_on_record():
    given = {task: load_task(task).architecture for task in ("digits", "photos", "prose")}
    for name in CONFIRMATORY:
        model = (MODELS | CONFIRMED_ONLY)[name]
        asked = recipe_for(model.task, model.recipe, model.attention, None, model.options, model.boost)
        on_record = records._described(name, confirmed=name in CONFIRMED_ONLY)["recipe"]
        assert json.loads(json.dumps(asked.completed(given[model.task]).as_dict())) == on_record
