"""Modules that lie in the current folder are not imported in place of installed ones, whatever is started there."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import benchmarks
import workbench
from benchmarks.bench_memory import _in_process
from tests.apps.explorer.browser import LAB_ADDRESS, free_port, serve
from tests.figure_notebooks import write_notebook
from workbench.apps.rendering import render
from workbench.apps.rendering.kernels import POSSIBLE, own_kernels

ROOT = Path(workbench.__file__).parents[1]
COMMAND = str(Path(sys.executable).with_name("workbench"))
HOSTILE = (
    "IPython", "ipykernel", "ipykernel_launcher", "joblib", "jupyter_client", "jupyterlab", "numpy", "pandas",
    "papermill", "plotly", "torch", "workbench",
)  # fmt: skip


def plant(folder):
    for name in HOSTILE:
        (folder / f"{name}.py").write_text(
            f"open({str(folder / f'{name}.imported')!r}, 'w').close()\nraise SystemExit('{name} of the folder')\n"
        )


def imported(folder):
    return sorted(path.stem for path in folder.glob("*.imported"))


@pytest.fixture
def hostile(tmp_path, monkeypatch):
    """The current folder, with modules in it that leave a mark when they are imported."""
    plant(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # an empty part of it would be the current folder
    return tmp_path


def run(*words):
    return subprocess.run([COMMAND, *words], capture_output=True, text=True, timeout=900)


def notebooks(hostile, count):
    """Some in a folder with modules of the same names, which find helpers that lie there, after what is installed."""
    beside = hostile / "kept"
    beside.mkdir()
    plant(beside)
    (beside / "helper.py").write_text("x = 1\n")
    (hostile / "nearby.py").write_text("x = 2\n")
    return [
        write_notebook(beside, f"n{i}", extra="import helper, nearby; assert (helper.x, nearby.x) == (1, 2)")
        for i in range(count)
    ]


def test_render_of_one(hostile, cold):
    report = render(notebooks(hostile, 1), formats=("html",), progress=False)
    assert imported(hostile) == imported(hostile / "kept") == []
    assert [outcome.status for outcome in report.outcomes] == ["done"]


def test_render_of_several_whose_kernels_are_forked(hostile, cold):
    done = run("render", *map(str, notebooks(hostile, 3)), "--formats", "html")
    assert imported(hostile) == imported(hostile / "kept") == []
    assert "3 of 3 notebooks done" in done.stdout, done.stdout + done.stderr


def test_sweep(hostile):
    done = run(
        "sweep", "run", "-m", "bundled:digits-vit", "-i", "bundled:digits", "-a", "gram-spectrum",
        "-n", "4", "--shards", "2", "-j", "2", "-o", "swept",
    )  # fmt: skip
    assert imported(hostile) == []
    assert done.returncode == 0, done.stderr


def test_explore(hostile):
    with serve([COMMAND, "explore", "--no-browser", f"--port={free_port()}"], hostile, LAB_ADDRESS):
        assert imported(hostile) == []


@pytest.mark.parametrize(
    "forked", [False, pytest.param(True, marks=pytest.mark.skipif(not POSSIBLE, reason="Linux"))]
)
def test_a_kernel_of_the_explorer(hostile, monkeypatch, forked):
    from jupyter_client.manager import start_new_kernel

    monkeypatch.setattr("workbench.apps.rendering.kernels.POSSIBLE", forked)
    with own_kernels() as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        manager, client = start_new_kernel(cwd=str(hostile), startup_timeout=300)
        try:
            client.execute_interactive("import joblib, jupyterlab, numpy, torch, workbench", timeout=300)
        finally:
            client.stop_channels()
            manager.shutdown_kernel()
    assert imported(hostile) == []


def test_bench(hostile):
    assert _in_process("bare", 1) >= 0
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
