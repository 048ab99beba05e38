"""What `workbench new` writes is ready: it passes lint, the tests of a contribution, and a render into a gallery."""

import importlib.util
import json
import subprocess
import sys

import nbformat
import pytest

import workbench
from tests import test_docstrings, test_notebooks
from tests.figure_notebooks import write_notebook
from tests.pages import ROOT
from workbench.analyses.registry import ANALYSES
from workbench.apps.contributions import write_files
from workbench.apps.rendering import read_notebook, render, reproduce
from workbench.core.errors import InputError
from workbench.core.files import sha256_file
from workbench.frames.metric import METRICS

NAMES = ("ab", "the_mean_of_what_all_heads_do_to_all_keys")
LINT = (("check", "--quiet"), ("format", "--check", "--quiet"))


def _checkout(folder):
    """A folder with links to the package's files, and the settings of its lint."""
    (folder / "workbench" / "analyses").mkdir(parents=True)
    for place in ("workbench", "workbench/analyses"):
        for path in (ROOT / place).iterdir():
            if not (folder / place / path.name).exists():
                (folder / place / path.name).symlink_to(path)
    (folder / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    return folder


@pytest.mark.parametrize("name", [name[:40] for name in NAMES])
@pytest.mark.parametrize("kind", ["notebook", "analysis"])
def test_files_pass_lint_as_they_are_written(tmp_path, kind, name):
    paths = write_files(kind, name, _checkout(tmp_path))
    places = {
        "notebook": [f"notebooks/{name}.py", f"notebooks/{name}.ipynb"],
        "analysis": [f"workbench/analyses/{name}.py", f"tests/analyses/test_{name}.py"],
    }
    assert paths == [tmp_path / place for place in places[kind]]
    commands = [["ruff", *words, *places[kind]] for words in LINT]
    if kind == "notebook":
        kept = "metadata.workbench cell.metadata.tags"
        commands += [["nbstripout", "--verify", "--keep-metadata-keys", kept, places[kind][1]]]
    commands += [["codespell_lib", *places[kind]]]
    for command in commands:
        done = subprocess.run(
            [sys.executable, "-P", "-m", *command], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_a_notebook_meets_what_is_asked_of_those_in_the_repository(tmp_path):
    _, path = write_files("notebook", "mine", tmp_path)
    assert test_notebooks.keeps_the_form(nbformat.read(path, as_version=4).cells) == []
    test_notebooks.test_it_is_stored_without_outputs_and_opens_without_a_question(path)
    test_notebooks.test_every_figure_is_described_and_names_no_parameters(path)
    test_notebooks.test_it_takes_the_parameters_that_all_take_and_has_its_presets(read_notebook(path))


def test_a_notebook_joins_the_gallery_with_its_module(tmp_path, warm):
    module, path = write_files("notebook", "mine", tmp_path)
    other, out = write_notebook(tmp_path, "other"), tmp_path / "figures"
    render([other], out=out, formats=[], progress=False)

    def status():
        (outcome,) = render([path], preset="quick", out=out, formats=["html"], progress=False).outcomes
        assert [*outcome.figures] == ["mine"], outcome
        return outcome.status

    assert (status(), status()) == ("done", "unchanged")
    page = (out / "index.html").read_text()
    assert all(f"{name}.csv" in page for name in ("mine", "other"))
    provenance = json.loads((out / "mine.json").read_text())
    assert provenance["notebook"]["modules"] == {"mine.py": sha256_file(module)}
    assert "Mean over heads and 2 inputs" in provenance["figure"]["caption"]
    module.write_text(module.read_text() + "# changed\n")
    outcome = reproduce(out / "mine.json", trust=True)
    assert outcome.same
    assert "the module mine.py has changed" in outcome.causes


def test_an_analysis_runs_and_its_test_passes(tmp_path, monkeypatch):
    path, test = write_files("analysis", "my-norms", tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", test.name], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
    known = {**METRICS}
    spec = importlib.util.spec_from_file_location("my_norms", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "my_norms", module)
    spec.loader.exec_module(module)
    monkeypatch.setitem(ANALYSES, "my-norms", module.ANALYSIS)
    frame = workbench.analyze("my-norms", "bundled:digits-vit", "bundled:digits", n=2)
    assert {*frame["metric"]} == {"my_norms"}
    for name in METRICS.keys() - known:
        del METRICS[name]


def test_an_analysis_is_documented_as_those_of_the_repository(tmp_path):
    path, _ = write_files("analysis", "my-norms", _checkout(tmp_path))
    for function in test_docstrings._functions(path):
        test_docstrings.test_a_tensor_has_its_shape_in_the_signature_or_docstring(path, function)
        if function.name not in test_docstrings.RUN:
            test_docstrings.test_what_is_a_paper_s_names_it_itself(path, function)


@pytest.mark.parametrize(
    ("kind", "name", "reason"),
    [
        ("notebook", "../mine", "cannot name a module"),
        ("notebook", "class", "cannot name a module"),
        ("notebook", "Mine", "cannot name a module"),
        ("notebook", "json", "installed module"),
        ("analysis", "gram-spectrum", "installed module or analysis"),
        ("notebook", "there", "there.ipynb exists"),
    ],
)
def test_a_name_that_cannot_be_is_refused_and_nothing_is_written(tmp_path, kind, name, reason):
    (tmp_path / "there.ipynb").touch()
    with pytest.raises(InputError, match=reason):
        write_files(kind, name, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["there.ipynb"]
