"""Notebooks before they run: parameters, presets, names."""

import json
import os
from types import SimpleNamespace

import pytest

from tests.figure_notebooks import write_notebook
from workbench.apps.rendering import (
    Outcome,
    find_notebooks,
    notebooks,
    read_notebook,
    read_parameters,
    render,
)
from workbench.apps.rendering.notebooks import resolve_parameters
from workbench.apps.rendering.run import _Render
from workbench.apps.rendering.state import result_key, write_report
from workbench.core import paths
from workbench.core.errors import InputError, UnknownName


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "notebooks_dir", lambda: tmp_path)
    return tmp_path


def test_parameters_are_read_from_assignments_pairs_and_annotations(tmp_path):
    found = read_notebook(write_notebook(tmp_path, "one")).parameters
    assert {name: parameter.default for name, parameter in found.items()} == {
        "n": 7, "seed": 0, "scale": 1, "label": None, "out": "figures",
    }  # fmt: skip
    assert found["n"].kinds == {"int"}
    assert found["scale"].kinds == {"float"}
    assert found["label"].kinds == {"str", "None"}


@pytest.mark.parametrize(
    ("name", "value", "fits"),
    [
        ("n", 3, True), ("n", 3.5, False), ("n", "3", False), ("n", True, False), ("n", None, False),
        ("scale", 3, True), ("scale", 0.5, True), ("scale", False, False),
        ("label", None, True), ("label", "x", True), ("label", 3, False),
    ],
)  # fmt: skip
def test_a_value_must_be_of_the_default_s_kind(tmp_path, name, value, fits):
    notebook = read_notebook(write_notebook(tmp_path, "one"))
    assert notebook.parameters[name].accepts(value) is fits
    if not fits:
        with pytest.raises(InputError, match=f"'{name}'.*takes"):
            resolve_parameters([notebook], {name: value}, "default", named=True)


def test_requests_that_cannot_be_rendered_are_refused_first(tmp_path):
    notebook = read_notebook(write_notebook(tmp_path, "one"))
    with pytest.raises(InputError, match="parameters: n of notebook one is 0; take 1"):
        resolve_parameters([notebook], {"n": 0}, "default", named=True)
    for names in (5, [5], object()):
        with pytest.raises(InputError, match="a notebook is a bundled name or a path"):
            render(names)


def test_an_unknown_parameter_offers_the_nearest_and_nothing_runs(tmp_path):
    path = write_notebook(tmp_path, "one")
    with pytest.raises(UnknownName, match="'seed'"):
        render([path], parameters={"sed": 1}, out=tmp_path / "figures")
    assert not (tmp_path / "figures").exists()


def test_notebooks_in_folders_are_found_by_their_names_alone(folder):
    for place in (
        "studies",
        ".ipynb_checkpoints",
        "figures/notebooks",
    ):  # a study, Jupyter's copy, a render's copy
        (folder / place).mkdir(parents=True)
        write_notebook(folder / place, "two")
    write_notebook(folder, "one")
    assert list(paths.bundled_notebooks()) == ["one", "two"]
    (found,) = find_notebooks(["two"])
    assert found.path == folder / "studies" / "two.ipynb"
    assert [notebook.name for notebook in find_notebooks()] == ["one", "two"]


def test_two_bundled_notebooks_of_one_name_are_refused(folder):
    (folder / "studies").mkdir()
    for place in (folder, folder / "studies"):
        write_notebook(place, "one")
    with pytest.raises(InputError, match=r"called 'one': .*studies.*rename"):
        find_notebooks()


def test_a_named_notebook_takes_every_parameter_or_none_runs(folder):
    write_notebook(folder, "one")
    write_notebook(folder, "two", parameters="n, seed, scale, out, extra = 7, 0, 1.0, 'figures', 5")
    both = find_notebooks(["one", "two"])
    with pytest.raises(UnknownName, match="one"):
        resolve_parameters(both, {"extra": 6}, "default", named=True)
    spread = resolve_parameters(find_notebooks(), {"extra": 6, "n": 3}, "default", named=False)
    assert spread == {"one": {"n": 3}, "two": {"extra": 6, "n": 3}}


def test_what_is_given_goes_before_the_preset(tmp_path):
    path = write_notebook(tmp_path, "one", metadata={"presets": {"quick": {"n": 2, "seed": 5}}})
    notebook = read_notebook(path)
    assert resolve_parameters([notebook], {"n": 3}, "quick", True) == {"one": {"n": 3, "seed": 5}}
    assert resolve_parameters([notebook], {}, "paper", True) == {"one": {}}
    with pytest.raises(UnknownName, match="quick"):
        resolve_parameters([notebook], {}, "quik", True)
    with pytest.raises(InputError, match="--out"):
        resolve_parameters([notebook], {"out": "x"}, "default", True)


@pytest.mark.parametrize("presets", [{"quick": {"m": 2}}, {"quick": {"n": "two"}}, {"fast": {}}])
def test_a_preset_that_does_not_fit_its_notebook_is_refused(tmp_path, presets):
    path = write_notebook(tmp_path, "one", metadata={"presets": presets})
    with pytest.raises(InputError):
        read_notebook(path)


def test_notebooks_go_by_name_or_path_and_the_nearest_is_offered(folder):
    path = write_notebook(folder, "gram_spectra")
    write_notebook(folder, "explorer", metadata={"render": False})
    assert [item.name for item in find_notebooks()] == ["gram_spectra"]
    assert find_notebooks(["explorer"])[0].name == "explorer"
    assert [item.name for item in find_notebooks("explorer")] == ["explorer"]  # one, and not its letters
    assert [item.path for item in find_notebooks(path)] == [path.resolve()]
    assert find_notebooks([path])[0].path == find_notebooks(["gram_spectra.ipynb"])[0].path == path.resolve()
    with pytest.raises(UnknownName, match="gram_spectra"):
        find_notebooks(["gram_spectrum"])


@pytest.mark.parametrize("source", ["import os", "n = len('x')", "n = (", "x.y = 3"])
def test_a_parameters_cell_holds_plain_assignments(tmp_path, source):
    with pytest.raises(InputError, match="parameters cell"):
        read_notebook(write_notebook(tmp_path, "one", parameters=source))


@pytest.mark.parametrize("content", ["", "{}", "[]", "not json"])
def test_a_file_that_is_no_notebook_is_refused(tmp_path, content):
    path = tmp_path / "one.ipynb"
    path.write_text(content)
    with pytest.raises(InputError, match="not a Jupyter notebook"):
        read_notebook(path)


def test_two_notebooks_of_one_name_are_refused(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    paths = [write_notebook(tmp_path / part, "one") for part in ("a", "b")]
    with pytest.raises(InputError, match="two notebooks"):
        find_notebooks(paths)


def test_parameters_come_from_yaml_or_json(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text("n: 3\nmodel: bundled:digits-vit\nlayers: [0, 3]\n")
    assert read_parameters(path) == {"n": 3, "model": "bundled:digits-vit", "layers": [0, 3]}
    path.write_text(json.dumps({"n": 3}))
    assert read_parameters(path) == {"n": 3}
    path.write_text("- 1\n- 2\n")
    with pytest.raises(InputError, match="one mapping"):
        read_parameters(path)
    path.write_text("n: [")
    with pytest.raises(InputError, match="not YAML"):
        read_parameters(path)
    with pytest.raises(InputError, match="absent"):
        read_parameters(tmp_path / "absent.yaml")


@pytest.mark.parametrize(
    "change",
    [
        {"cells": {}}, {"cells": ["x"]}, {"cells": [{"cell_type": "code"}]}, {"metadata": []},
        {"cells": [{"cell_type": "code", "source": 3, "metadata": {}}]},
        {"cells": [{"cell_type": "code", "source": "n = 1", "metadata": {"tags": "parameters"}}]},
        {"metadata": {"workbench": "render"}}, {"metadata": {"workbench": {"presets": ["quick"]}}},
        {"metadata": {"workbench": {"presets": {"quick": 3}}}},
    ],
)  # fmt: skip
def test_a_notebook_with_malformed_cells_or_metadata_is_refused_with_the_place(tmp_path, change):
    path = write_notebook(tmp_path, "one")
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InputError, match=r"one\.ipynb is not a Jupyter notebook: (cells|metadata)"):
        read_notebook(path)


@pytest.mark.parametrize("text", ["[" * 600, "{a: " * 600, "a: &x [1]\nb: *x\n", "a: 2024-13-45\n"])
def test_parameters_of_any_depth_and_with_aliases_are_refused(tmp_path, text):
    (tmp_path / "p.yaml").write_text(text)
    with pytest.raises(InputError, match=r"p\.yaml"):
        read_parameters(tmp_path / "p.yaml")


def test_what_took_longest_in_the_last_report_begins_first(tmp_path):
    notebooks = [read_notebook(write_notebook(tmp_path, name)) for name in ("short", "long", "middle", "new")]
    seconds = {"short": 1.0, "long": 30.0, "middle": 7.5}

    def order():
        renderer = _Render(tmp_path, [], "paper", "default", 2, None, progress=False)
        return [notebook.name for notebook in renderer._longest_first(notebooks)]

    assert order() == ["short", "long", "middle", "new"]
    write_report(tmp_path, {name: Outcome(name, seconds=time) for name, time in seconds.items()})
    assert order() == ["new", "long", "middle", "short"]


def test_a_typed_value_is_read_as_every_notebook_takes_it(monkeypatch):
    def taking(*kinds):
        return SimpleNamespace(accepts=lambda value: type(value) in kinds)

    found = [
        SimpleNamespace(parameters={"n": taking(int, str), "x": taking(int)}),
        SimpleNamespace(parameters={"n": taking(str)}),
    ]
    monkeypatch.setattr(notebooks, "find_notebooks", lambda names: found)
    assert notebooks.read_typed_parameters(None, [("n", "3"), ("x", "4")]) == {"n": "3", "x": 4}
    assert notebooks.read_typed_parameters(None, []) == {}


def test_a_key_changes_with_a_file_or_folder_named_by_a_parameter_and_not_with_a_word(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    notebook = read_notebook(write_notebook(tmp_path, "one"))
    for folder in ("sweep", "word"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "one.csv").write_text("1")

    def keys():
        values = ("sweep:sweep", f"sweep{os.sep}", "word", "sweep/one.csv")
        return {value: result_key(notebook, {"label": value}, {}) for value in values}

    before = keys()
    for folder in ("sweep", "word"):
        (tmp_path / folder / "one.csv").write_text("longer")
    assert {value for value, key in keys().items() if key != before[value]} == {*before} - {"word"}
