"""The folder of one run: it goes on with the same, refuses another, and loses nothing."""

import json
import multiprocessing
import time

import pytest

from workbench.core.errors import InputError, MissingResource
from workbench.core.store import RunStore, differences, locked, set_aside

SETTINGS = {"model": "a", "seed": 0, "recipe": {"rate": 1e-3, "steps": (1, 2)}}


def store_at(path, **more):
    return RunStore(path, "trial", "trial.json", format=2, **more)


@pytest.fixture
def store(tmp_path):
    made = store_at(tmp_path / "runs" / "one")
    assert made.open(SETTINGS) == {}
    made.write({**SETTINGS, "done": 3})
    return made


def test_the_same_run_goes_on(store):
    held = store_at(store.path).open(SETTINGS)
    assert (held["done"], held["seed"], held["format"]) == (3, 0, 2)


def test_other_settings_are_refused_with_both_said(store):
    asked = {**SETTINGS, "seed": 1, "recipe": {"rate": 0.002, "steps": [1, 2]}}
    with pytest.raises(InputError, match=r"holds a trial with other settings") as caught:
        store.open(asked)
    assert "seed: 0 there, 1 asked for" in str(caught.value)
    assert 'recipe: {"rate": 0.001} there, {"rate": 0.002} asked for' in str(caught.value)
    assert "--restart" in str(caught.value)
    assert store.open({**SETTINGS, "seed": 1}, ignored=("seed",))["done"] == 3


def test_a_setting_that_only_the_folder_has_counts_where_the_identity_is_a_table_of_its_own(tmp_path):
    store = store_at(tmp_path, under="plan")
    store.open(SETTINGS)
    store.write({"plan": {**SETTINGS, "layers": "0"}})
    with pytest.raises(InputError, match='layers: "0" there, null asked for'):
        store.open(SETTINGS)


def test_beginning_anew_moves_everything_aside_and_deletes_nothing(store):
    (store.path / "parts").mkdir()
    (store.path / "parts" / "0.csv").write_text("1")
    other = {**SETTINGS, "seed": 1}
    with store.locked():
        assert store.open(other, restart=True) == {}
    store.write(other)
    assert {item.name for item in store.path.iterdir()} == {"trial.json"}
    assert (store.path.parent / "one.before-1" / "parts" / "0.csv").read_text() == "1"
    assert store_at(store.path.parent / "one.before-1").open(SETTINGS)["done"] == 3
    assert set_aside(store.path) == store.path.parent / "one.before-2"
    assert set_aside(store.path) is None


def test_what_stays_is_not_moved_aside(tmp_path):
    folder = tmp_path / "figures"
    folder.mkdir()
    for name in ("README.md", "index.html"):
        (folder / name).write_text(name)
    assert set_aside(folder, stays=("README.md", "examples")) == tmp_path / "figures.before-1"
    assert [item.name for item in folder.iterdir()] == ["README.md"]
    assert [item.name for item in (tmp_path / "figures.before-1").iterdir()] == ["index.html"]
    assert set_aside(folder, stays=("README.md", "examples")) is None


def test_files_that_say_nothing_of_their_run_are_refused(tmp_path):
    (tmp_path / "parts").mkdir()
    assert store_at(tmp_path, unknown="results*").open(SETTINGS) == {}
    with pytest.raises(InputError, match=r"holds parts and no trial\.json, which identifies its trial"):
        store_at(tmp_path, unknown="*").open(SETTINGS)


@pytest.mark.parametrize("content", ["[1]", "{", '{"model": "a"}', '{"format": "new"}'])
def test_a_file_of_another_kind_is_refused(store, content):
    store.file.write_text(content)
    with pytest.raises(InputError, match=r"trial\.json does not describe a trial"):
        store.open(SETTINGS)


@pytest.mark.parametrize(("number", "advice"), [(3, "update the workbench"), (1, "write the file again")])
def test_another_format_is_refused(store, number, advice):
    store.file.write_text(json.dumps({**SETTINGS, "format": number}))
    with pytest.raises(InputError, match=f"has format {number}; this workbench reads format 2: {advice}"):
        store.open(SETTINGS)


def test_a_file_that_fails_the_check_is_refused(store):
    def check(content):
        raise ValueError("model: Input should be a number")

    with pytest.raises(InputError, match=r"does not describe a trial \(model: Input should be a number\)"):
        store_at(store.path, check=check).open(SETTINGS)


def test_long_settings_are_written_from_where_they_differ():
    before = [{"name": f"größe-{number}"} for number in range(20)]
    (text,) = differences({"models": before}, {"models": [*before[:-1], {"name": "other"}]}, ["models"])
    assert text == 'models: …öße-18"}, {"name": "größe-19"}] there, …öße-18"}, {"name": "other"}] asked for'
    assert differences({"a": 1, "b": 2}, {"a": 1, "b": 3}, ["a", "b"]) == ["b: 2 there, 3 asked for"]


def test_a_file_is_not_locked_as_a_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file is a file; give a folder"), locked(tmp_path / "file", "sweep"):
        pass


def test_a_place_that_is_no_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file; give a folder"):
        store_at(tmp_path / "file").open(SETTINGS)
    with pytest.raises(MissingResource, match="cannot write"):
        store_at(tmp_path / "file" / "below").open(SETTINGS)


def _hold(path, ready):
    with store_at(path).locked():
        ready.set()
        time.sleep(600)  # until it is killed: an event that a killed process waits for cannot be set any more


def test_only_one_process_writes_at_a_time(store):
    assert not store.is_locked()
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    other = context.Process(target=_hold, args=(store.path, ready))
    other.start()
    try:
        assert ready.wait(30)
        assert store.is_locked()
        with pytest.raises(InputError, match="another trial is writing"), store.locked(patience=0):
            pass
        other.kill()
        other.join()
        with store.locked():
            assert not store_at(store.path.parent / "two").is_locked()
    finally:
        other.kill()
        other.join()
