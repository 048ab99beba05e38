"""Modules that lie in the current folder are not imported in place of installed ones, whatever is started there.

Sweeps, JupyterLab and a single render are started from such a folder by their own tests (`tests.hostile`).
"""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import benchmarks
import workbench
from tests.figure_notebooks import write_notebook
from tests.hostile import imported, plant
from workbench.apps.rendering.kernels import kernel_environment
from workbench.core.children import python

ROOT = Path(workbench.__file__).parents[1]
COMMAND = str(Path(sys.executable).with_name("workbench"))


@pytest.fixture
def hostile(tmp_path, monkeypatch):
    """The current folder, with modules in it that leave a mark when they are imported."""
    plant(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # an empty part of it would be the current folder
    return tmp_path


def test_a_child(hostile):
    done = subprocess.run(python("-c", "import numpy; print(numpy.pi)"), capture_output=True, text=True)
    assert imported(hostile) == []
    assert done.stdout.startswith("3.14"), done.stderr


def test_render_of_several_whose_kernels_are_forked(hostile):
    """Notebooks in a folder with modules of the same names find helpers that lie there, after what is installed."""
    beside = hostile / "kept"
    beside.mkdir()
    plant(beside)
    (beside / "helper.py").write_text("x = 1\n")
    (hostile / "nearby.py").write_text("x = 2\n")
    found = "import helper, nearby; assert (helper.x, nearby.x) == (1, 2)"
    notebooks = [write_notebook(beside, f"n{i}", extra=found) for i in range(2)]
    done = subprocess.run(
        [COMMAND, "render", *map(str, notebooks), "--formats", "html"],
        capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert imported(hostile) == imported(beside) == []
    assert "2 of 2 notebooks done" in done.stdout, done.stdout + done.stderr


def test_a_kernel_of_the_explorer_where_processes_cannot_be_forked(hostile, monkeypatch):
    from jupyter_client.manager import start_new_kernel

    monkeypatch.setattr("workbench.apps.rendering.kernels.POSSIBLE", False)
    with kernel_environment() as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        manager, client = start_new_kernel(cwd=str(hostile), startup_timeout=300)
        try:
            client.execute_interactive("import joblib, jupyterlab, numpy, torch, workbench", timeout=300)
        finally:
            client.stop_channels()
            manager.shutdown_kernel()
    assert imported(hostile) == []


@pytest.mark.parametrize("package", [workbench, benchmarks], ids=lambda package: package.__name__)
def test_every_command_line_of_an_interpreter_is_made_in_one_place(package):
    folder = Path(package.__file__).parent
    naming = {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr == "executable"
    }
    assert naming == ({"core/children.py"} if package is workbench else set())
