"""Committed records are read whole, with where they come from, or not at all."""

import json

import pandas as pd
import pytest

from workbench.core import paths
from workbench.core.errors import InputError, MissingResource, UnknownName
from workbench.studies import records
from workbench.studies.records import (
    CONFIRMED_COLUMNS,
    EVALUATION_COLUMNS,
    beside_softmax,
    claims_record,
    conform_evaluation,
    embedded_record,
    evaluation_record,
    read_claims,
    recorded,
    trained_alike,
    trained_models,
    training_record,
)


def test_models_alike_differ_in_their_attention_alone():
    alike = trained_alike("digits-tssa")
    assert alike == trained_alike("digits-vit")
    assert {"digits-vit", "digits-tssa", "digits-bilateral-boost"} <= set(alike)
    about = {
        name: json.loads((paths.data_dir() / "records" / name / "record.json").read_text())["recipe"]
        for name in trained_models()
    }
    plain = {"attention", "attention_layers", "attention_options", "boost"}
    body = {key: value for key, value in about["digits-vit"]["architecture"].items() if key not in plain}
    for name, recipe in about.items():
        rest = {key: value for key, value in recipe["architecture"].items() if key not in plain}
        assert (name in alike) == (recipe["task"] == "digits" and rest == body)
    with pytest.raises(UnknownName, match="digits-tssa"):
        trained_alike("digits-tsa")


def test_every_model_on_record_has_three_seeds_and_its_own_name():
    frame = training_record()
    assert set(frame["model"]) == set(trained_models()) >= {"digits-vit", "digits-rpc-sym", "digits-tssa"}
    assert (frame.groupby("model")["seed"].nunique() == 3).all()
    ends = frame[(frame["split"] == "test") & (frame["metric"] == "loss")].groupby("model")["epoch"]
    assert (ends.min() == 0).all()
    assert len(frame.attrs["records"]) == len(frame.attrs["provenance"]) == len(trained_models())


def test_one_record_tells_what_its_numbers_come_from():
    frame = training_record("digits-tssa")
    assert set(frame["attention"]) == {"tssa"}
    (run,) = frame.attrs["provenance"]
    model = json.loads((paths.data_dir() / "models" / "digits-tssa" / "model.json").read_text())
    assert run["model"]["sha256"] == model["checkpoints"][-1]["sha256"]
    assert run["seeds"] == [0, 1, 2]
    with pytest.raises(UnknownName, match="digits-tssa"):
        training_record("digits-tsa")


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setattr(records.paths, "data_dir", lambda: tmp_path)
    return tmp_path


def _write_evaluations(data, **changed):
    folder = data / "records" / "robustness"
    folder.mkdir(parents=True)
    row = {
        "model": "bundled:a",
        "n": 7,
        "seed": 0,
        "protocol": "fgsm",
        "epsilon": 0.25,
        "value": 0.5,
    } | changed
    conform_evaluation(pd.DataFrame([row])).to_csv(folder / "evaluations.csv", index=False)
    about = {
        "command": "python", "seed": 0, "notes": ["a note"], "models": {"bundled:a": {"spec": "bundled:a"}},
        "protocols": {"fgsm": {"inputs": {"spec": "x"}, "settings": {}}},
        "files": {"evaluations.csv": records.sha256_file(folder / "evaluations.csv")},
    }  # fmt: skip
    (folder / "record.json").write_text(json.dumps(about))
    return folder


def test_evaluations_come_back_with_their_types(data):
    with pytest.raises(MissingResource, match="make records"):
        evaluation_record()
    folder = _write_evaluations(data)
    frame = evaluation_record()
    assert tuple(frame.columns) == EVALUATION_COLUMNS
    assert (frame["n"].iloc[0], frame["epsilon"].iloc[0], frame["severity"].isna().all()) == (7, 0.25, True)
    assert frame.attrs["records"] == [folder / "evaluations.csv"]
    assert [run["evaluation"] for run in frame.attrs["provenance"]] == ["fgsm"]


def test_a_file_that_was_changed_is_refused(data):
    folder = _write_evaluations(data)
    text = (folder / "evaluations.csv").read_text()
    (folder / "evaluations.csv").write_text(text.replace("0.5", "0.75"))
    with pytest.raises(InputError, match="restore it"):
        evaluation_record()


def _write_training(data, name, attention):
    folder = data / "records" / name
    folder.mkdir(parents=True)
    row = {"run": f"{name}-seed0", "task": "digits", "attention": attention, "seed": 0, "epoch": 3, "split": "test",
           "metric": "accuracy", "value": 0.75, "unit": "of 1"}  # fmt: skip
    pd.DataFrame([row]).to_csv(folder / "metrics.csv", index=False)
    about = {
        "command": "python", "seeds": [0], "runs": [{"last_checkpoint_sha256": "f" * 64}],
        "recipe": {"task": "digits"}, "data": {"test": {"sha256": "e" * 64}}, "versions": {},
        "files": {"metrics.csv": records.sha256_file(folder / "metrics.csv")},
    }  # fmt: skip
    (folder / "record.json").write_text(json.dumps(about))


def test_what_is_on_record_of_models_comes_with_their_attention_and_the_rest_with_a_reason(data):
    _write_training(data, "a", "softmax+boost")
    _write_training(data, "b", "tssa")
    _write_evaluations(data)
    frame = recorded(["c", "b", "a"], "evaluation")
    assert list(frame["model"]) == ["bundled:a"]
    assert list(frame["attention"]) == ["softmax+boost"]
    assert set(frame.attrs["absent"]) == {"b", "c"}
    assert "make records" in frame.attrs["absent"]["b"]
    assert "make train FLAGS='-m bundled:c'" in frame.attrs["absent"]["c"]
    assert [run["model"]["spec"] for run in frame.attrs["provenance"]] == ["bundled:a"]
    trained = recorded(["c", "b", "a"], "training")
    assert list(trained["model"]) == ["b", "a"]
    assert set(trained.attrs["absent"]) == {"c"}


def _write_confirmed(data, seeds):
    folder = data / "confirmed" / "records" / "robustness"
    folder.mkdir(parents=True)
    row = {"model": "bundled:a", "protocol": "fgsm", "epsilon": 0.25, "value": 0.25, "outcomes": "0001"}
    rows = [{**row, "training_seed": seed} for seed in seeds]
    conform_evaluation(pd.DataFrame(rows), CONFIRMED_COLUMNS).to_csv(folder / "evaluations.csv", index=False)
    about = {
        "command": "python", "seed": 0, "notes": [], "models": {f"a-{seed}": {"spec": "bundled:a"} for seed in seeds},
        "protocols": {"fgsm": {"inputs": {"spec": "x"}, "settings": {}}},
        "files": {"evaluations.csv": records.sha256_file(folder / "evaluations.csv")},
    }  # fmt: skip
    (folder / "record.json").write_text(json.dumps(about))


@pytest.mark.parametrize(
    ("on_record", "expected"), [((7, 8, 9), {7, 8}), ((7, 9), set()), ((7, 8, 9, 10), {7, 8, 9, 10})]
)
def test_confirmatory_seeds_join_the_exploratory_one_where_all_of_them_are_on_record(
    data, monkeypatch, on_record, expected
):
    monkeypatch.setattr(records, "CONFIRMATORY", {"a": (7, 8)})  # 9 is of a second stage that is not complete
    monkeypatch.setattr(records, "CONTINUED", {"a": (9, 10)})
    _write_training(data, "a", "softmax")
    _write_evaluations(data)
    _write_confirmed(data, on_record)
    frame = recorded(["a"], "evaluation")
    by_kind = frame.groupby("seed_kind")["training_seed"].agg(set).to_dict()
    assert by_kind == {"exploratory": {0}} | ({"confirmatory": expected} if expected else {})
    assert len(frame.attrs["records"]) == 2


def test_training_holds_the_confirmatory_seeds_of_the_models_that_have_them_all():
    frame = recorded(["digits-rpc-sym", "digits-rpc-asym"], "training")
    by_model = frame.groupby(["model", "seed_kind"])["seed"].agg(set)
    assert (
        by_model["digits-rpc-sym", "exploratory"] == by_model["digits-rpc-asym", "exploratory"] == {0, 1, 2}
    )
    fixed = set(records.CONFIRMATORY["digits-rpc-sym"])
    assert by_model["digits-rpc-sym", "confirmatory"] in (
        fixed,
        fixed | set(records.CONTINUED["digits-rpc-sym"]),
    )
    assert ("digits-rpc-asym", "confirmatory") not in by_model


def test_without_any_record_there_are_columns_and_reasons(data):
    _write_training(data, "a", "softmax")
    frame = recorded(["a"], "evaluation")
    assert tuple(frame.columns) == (*CONFIRMED_COLUMNS, "attention", "seed_kind")
    assert len(frame) == 0
    assert "make records" in frame.attrs["absent"]["a"]
    assert len(recorded([], "training")) == len(recorded(["z"], "training")) == 0


def test_costs_are_multiples_of_softmax_on_the_same_data():
    rows = [
        ("easy", "softmax", 1, "macs", 10.0),
        ("easy", "softmax", 2, "macs", 30.0),
        ("easy", "new", 1, "macs", 5.0),
        ("hard", "softmax", 1, "macs", 100.0),
        ("hard", "new", 1, "macs", 150.0),
        ("hard", "new", 1, "accuracy", 0.5),
    ]
    record = pd.DataFrame(rows, columns=["data", "variant", "seed", "metric", "value"])
    record.attrs = {"records": ["epochs.csv"]}
    found = beside_softmax(record, ["macs"])
    assert found["value"].tolist() == [0.5, 1.5, 0.25, 1.0, 1.5]
    assert found.drop(columns="value").equals(record[:5].drop(columns="value"))
    assert found.attrs == record.attrs
    with pytest.raises(InputError, match="no accuracy, parameters of softmax"):
        beside_softmax(record, ["macs", "accuracy", "parameters"])
    known = beside_softmax(embedded_record("digits"), ["parameters"])
    assert set(known.loc[known["variant"] == "softmax", "value"]) == {1.0}


def test_texts_of_claims_stay_texts_and_empty_ones_empty(tmp_path):
    frame = claims_record().head(3).assign(why=["", "NA", "nan"], null=["", "gaussian", ""])
    frame.to_csv(tmp_path / "claims.csv", index=False)
    read = read_claims(tmp_path / "claims.csv")
    assert list(read["why"]) == ["", "NA", "nan"]
    assert list(read["null"].isna()) == [True, False, True]
    pd.testing.assert_frame_equal(
        read[["measured", "low", "high", "n"]], frame[["measured", "low", "high", "n"]]
    )
