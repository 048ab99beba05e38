"""Committed records are read whole, with where they come from, or not at all."""

import json

import pandas as pd
import pytest

from workbench import paths, records
from workbench.errors import InputError, MissingResource, UnknownName
from workbench.records import (
    EVALUATION_COLUMNS,
    conform_evaluation,
    evaluation_record,
    trained_models,
    training_record,
)


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
