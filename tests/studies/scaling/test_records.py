"""The committed record of the study: written with what it came from, and read back whole or not at all."""

import json
import shutil
from dataclasses import replace

import pandas as pd
import pytest

from tests.studies.scaling.conftest import Planted
from workbench.apps import cli
from workbench.core.errors import InputError, MissingResource
from workbench.frames.metric import METRICS
from workbench.studies import records
from workbench.studies.records import scaling_record
from workbench.studies.scaling import study


def operators(*words):
    with pytest.raises(SystemExit) as left:
        cli.main(["study", "records", "operators", *map(str, words)])
    return left.value.code


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    """The data folder that the command has written into."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "measured", Planted())
        forecast = study.forecast  # counts all layers, of which each is as the first
        patch.setattr(study, "forecast", lambda point, *more: forecast(replace(point, layers=1), *more))
        patch.setattr(records.paths, "data_dir", lambda: folder / "data")
        assert operators("--sweep", "causal", "-o", folder / "data", "--work", folder / "work") == 0
    return folder / "data"


@pytest.fixture
def made(once, tmp_path, monkeypatch):
    """The record in a data folder of the test's own."""
    shutil.copytree(once, tmp_path / "data")
    monkeypatch.setattr(records.paths, "data_dir", lambda: tmp_path / "data")
    return tmp_path / "data" / "records" / "operators"


def test_what_was_measured_comes_back_with_where_it_comes_from(made):
    frame = scaling_record()
    assert set(frame["sweep"]) == {"causal"}
    assert set(frame["operator"]) == {"softmax-causal", "softmax-eager-causal", "tssa-causal"}
    assert set(frame["metric"].dropna()) <= set(METRICS)
    assert frame.attrs["records"] == [made / "points.csv"]
    (run,) = frame.attrs["provenance"]
    assert run["command"] == "workbench study records operators"
    assert run["threads"] == 1
    assert {"torch", "workbench"} <= set(run["versions"])
    about = json.loads((made / "record.json").read_text())
    assert run["device"] == about["device"]
    assert len(about["files"]["points.csv"]) == 64


def test_a_curve_ends_once_and_says_why(made):
    frame = scaling_record()
    ends = frame[frame["ended"].notna()]
    assert not ends.duplicated(["operator", "condition"]).any()
    for end in ends.itertuples():
        same = (frame["operator"] == end.operator) & (frame["condition"] == end.condition)
        assert (frame.loc[same, "tokens"] <= end.tokens).all()


def test_a_changed_file_is_refused_and_a_missing_one_named(made):
    rows = pd.read_csv(made / "points.csv")
    rows.assign(value=rows["value"] * 2).to_csv(made / "points.csv", index=False)
    with pytest.raises(InputError, match="not the one"):
        scaling_record()
    (made / "points.csv").unlink()
    with pytest.raises(MissingResource, match="make scaling"):
        scaling_record()


def test_a_wrong_sweep_is_one_line_and_a_status(planted, tmp_path, capsys):
    assert operators("--sweep", "tokns", "-o", tmp_path, "--work", tmp_path / "work") == 2
    assert "did you mean 'tokens'" in capsys.readouterr().err
