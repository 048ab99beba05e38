"""Rendering notebooks that compute real numbers, and drawing a figure again."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import nbformat
import pandas as pd
import psutil
import pytest
from click.testing import CliRunner
from nbformat.v4 import new_code_cell

import workbench
from tests.browser import needs_chrome
from tests.figure_notebooks import write_notebook
from tests.hostile import imported, plant
from workbench.apps.cli import cli
from workbench.apps.rendering import render, reproduce
from workbench.apps.rendering.run import _Render
from workbench.core.children import python
from workbench.core.errors import InputError, MissingResource, UnknownName
from workbench.core.store import locked
from workbench.figures.export import WarmChrome, save_figure
from workbench.frames.provenance import read_provenance, sha256_file

pytestmark = pytest.mark.usefixtures("warm")
FIGURE_FILES = {"pdf", "svg", "png", "html", "csv", "tex", "json", "figure.json", "figure.tex"}


@pytest.fixture(scope="module", autouse=True)
def _one_chrome():
    """One Chrome prints the figures of all these renders."""
    started = []

    def chrome():
        if not started:
            started.append(WarmChrome())
            started[0].close = lambda: None
        return started[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("workbench.apps.rendering.run.WarmChrome", chrome)
        yield
    for running in started:
        WarmChrome.close(running)


@pytest.fixture(scope="module")
def rendered(warm, tmp_path_factory):
    """One render of a notebook that works and one that fails, from a path with a space in it."""
    folder = tmp_path_factory.mktemp("a folder")
    works = write_notebook(folder, "works", metadata={"presets": {"quick": {"n": 3}}})
    fails = write_notebook(folder, "fails", extra="raise ValueError('a scale of 0 is no scale')")
    # The package must hold still, or a second render would rightly run everything again.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "workbench.apps.rendering.run.shared_key",
            lambda theme, preset: {"theme": theme, "preset": preset},
        )
        report = render([works, fails], preset="quick", out=folder / "figures", workers=2, progress=False)
        yield report, [works, fails]


@needs_chrome
def test_every_file_of_a_figure_is_there(rendered):
    out = rendered[0].out
    assert {path.name.removeprefix("works.") for path in out.glob("works.*")} == FIGURE_FILES
    assert (out / "notebooks" / "works.ipynb").is_file()
    assert read_provenance(out / "works.pdf") == read_provenance(out / "works.json")


def test_a_render_has_one_font_and_one_way_of_letters_and_a_figure_is_reproduced_in_it(tmp_path):
    works = write_notebook(tmp_path, "works")
    style = {"font": "Liberation Serif", "letters": "(a)"}
    report = render(
        [works], parameters={"n": 1}, out=tmp_path / "figures", formats=[], progress=False, **style
    )
    figure = report.out / "works.json"
    assert read_provenance(figure)["figure"].items() >= style.items()
    drawing = json.loads((report.out / "works.figure.json").read_text())
    assert drawing["layout"]["font"]["family"] == "Liberation Serif, sans-serif"
    assert reproduce(figure, trust=True).same
    with pytest.raises(InputError, match="letters is 'none'"):
        render([works], out=tmp_path / "figures", letters="none")


@needs_chrome
def test_a_static_viewer_shows_the_figures_of_an_executed_notebook(rendered):
    out = rendered[0].out
    outputs = [
        output
        for cell in json.loads((out / "notebooks" / "works.ipynb").read_text())["cells"]
        for output in cell.get("outputs", [])
        if "application/vnd.plotly.v1+json" in output.get("data", {})
    ]
    assert len(outputs) == 1
    assert outputs[0]["data"]["image/svg+xml"] == (out / "works.svg").read_text()
    assert "image/png" not in outputs[0]["data"]  # JupyterLab would show it in the place of the figure


def test_no_file_of_a_render_tells_the_folders_of_this_machine(rendered):
    report, (works, _) = rendered
    out = report.out
    texts = [*out.glob("works.*"), out / "notebooks" / "works.ipynb", out / "index.html", out / "report.json"]
    for path in texts:
        assert str(works.parent).encode() not in path.read_bytes(), path.name
    for suffix in ("png", "pdf"):  # where it is packed
        if (out / f"works.{suffix}").is_file():
            assert str(works.parent) not in json.dumps(read_provenance(out / f"works.{suffix}"))
    held = read_provenance(out / "works.json")["notebook"]
    assert held["path"] == os.path.join("..", "works.ipynb")
    executed = json.loads((out / "notebooks" / "works.ipynb").read_text())
    (given,) = [
        cell for cell in executed["cells"] if "injected-parameters" in cell["metadata"].get("tags", ())
    ]
    assert 'out = ".."\n' in given["source"]
    assert executed["metadata"]["papermill"]["parameters"]["out"] == ".."


def test_one_failure_is_named_with_its_cause_and_does_not_stop_the_others(rendered):
    report, _ = rendered
    done = {outcome.name: outcome for outcome in report.outcomes}
    assert done["works"].status == "done"
    assert [outcome.name for outcome in report.failed] == ["fails"]
    failed = done["fails"]
    assert (failed.cell, failed.error, failed.message) == (4, "ValueError", "a scale of 0 is no scale")
    assert "fails: failed in cell [4]: ValueError: a scale of 0 is no scale" in str(report)
    executed = json.loads((report.out / "notebooks" / "fails.ipynb").read_text())
    assert any("no scale" in json.dumps(cell.get("outputs", [])) for cell in executed["cells"])


def test_the_preset_reaches_the_notebook_and_its_provenance(rendered):
    held = read_provenance(rendered[0].out / "works.json")
    assert held["parameters"] == {"n": 3, "seed": 0, "scale": 1, "label": None}
    assert held["parameters_from"] == "render"
    assert held["preset"] == "quick"
    assert held["notebook"]["parameters"] == {"n": 3}
    assert len(pd.read_csv(rendered[0].out / "works.csv")) == 3 * 3


def test_the_gallery_shows_the_figure_and_the_failure(rendered):
    page = rendered[0].index.read_text()
    for part in (
        "Eigenvalues of a Gram matrix.",
        'alt="Three points, falling."',
        "works.csv",
        "notebooks/works.ipynb",
    ):
        assert part in page
    assert "fails failed" in page
    assert "a scale of 0 is no scale" in page
    assert "<script" not in page
    assert "http" not in page


def test_what_is_unchanged_is_not_run_again(rendered):
    report, (works, _) = rendered
    executed = report.out / "notebooks" / "works.ipynb"
    before = executed.stat().st_mtime_ns
    again = render([works], preset="quick", out=report.out, progress=False)
    assert again.outcomes[0].status == "unchanged"
    assert executed.stat().st_mtime_ns == before


@needs_chrome
def test_a_lost_static_image_is_printed_without_running_the_notebook(rendered):
    report, (works, _) = rendered
    for suffix in ("svg", "html"):
        (report.out / f"works.{suffix}").unlink()
    again = render([works], preset="quick", out=report.out, progress=False)
    assert again.outcomes[0].status == "unchanged"
    assert read_provenance(report.out / "works.svg") == read_provenance(report.out / "works.json")
    assert read_provenance(report.out / "works.html") == read_provenance(report.out / "works.json")


def test_a_figure_is_drawn_again_and_compared(rendered, tmp_path):
    """The same notebook gives the same figure; against a changed table the difference is the change."""
    out = rendered[0].out
    perturbed = tmp_path / "kept"
    perturbed.mkdir()
    shutil.copy(rendered[1][0], perturbed)  # the figure was moved, and its notebook with it
    for suffix in ("json", "csv"):
        shutil.copy(out / f"works.{suffix}", perturbed)
    data = pd.read_csv(perturbed / "works.csv")
    data.loc[2, "value"] *= 1.25
    data.to_csv(perturbed / "works.csv", index=False)
    held = json.loads((perturbed / "works.json").read_text())
    held["data"]["sha256"] = "0" * 64
    held["versions"]["torch"] = "1.0"
    (perturbed / "works.json").write_text(json.dumps(held))

    outcome = reproduce(perturbed / "works.json", out=tmp_path / "again", trust=True)
    assert outcome.same_figure
    assert not outcome.same
    assert outcome.difference == pytest.approx(0.2)
    assert any(cause.startswith("torch 1.0 became") for cause in outcome.causes)
    # and what was drawn again is, byte for byte, what was drawn first
    assert (tmp_path / "again" / "works.csv").read_bytes() == (out / "works.csv").read_bytes()
    assert (tmp_path / "again" / "works.figure.json").read_bytes() == (out / "works.figure.json").read_bytes()


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """A package whose one notebook is `works`, in a folder of its notebooks; a figure of it; the folder of that."""
    folder, out = tmp_path / "package", tmp_path / "figures"
    (folder / "studies").mkdir(parents=True)
    path = write_notebook(folder / "studies", "works")
    monkeypatch.setattr("workbench.core.paths.notebooks_dir", lambda: folder)
    monkeypatch.chdir(tmp_path)
    render(["works"], out=out, formats=[], progress=False)
    return path, out


def _tell(figure, **changed):
    """Have a figure's provenance name another notebook."""
    held = json.loads(figure.read_text())
    held["notebook"] |= changed
    figure.write_text(json.dumps(held))


def test_a_notebook_that_a_file_names_runs_only_when_it_is_trusted(rendered, tmp_path):
    figure, marker = tmp_path / "works.json", tmp_path / "ran"
    hostile = write_notebook(tmp_path, "claims", figure="works", extra=f"open({str(marker)!r}, 'w').close()")
    shutil.copy(rendered[0].out / "works.json", figure)
    for event in ({"path": str(hostile)}, {"path": str(hostile), "name": "claims"}):
        _tell(figure, **event)
        with pytest.raises(InputError, match="trust") as refused:
            reproduce(figure)
        assert str(hostile) in str(refused.value)
        assert sha256_file(hostile) in str(refused.value)
    assert not marker.exists()
    done = CliRunner().invoke(cli, ["reproduce", str(figure)])
    assert isinstance(done.exception, InputError)
    done = CliRunner().invoke(cli, ["reproduce", "--trust", str(figure)])
    assert "works: " in done.output
    assert marker.exists()


@pytest.mark.parametrize("name", ["../claims", "./claims.ipynb", "claims.ipynb"])
def test_a_name_without_a_path_is_no_path(rendered, tmp_path, monkeypatch, name):
    figure, folder = tmp_path / "works.json", tmp_path / "here"
    folder.mkdir()
    for place in (tmp_path, folder):
        write_notebook(place, "claims", extra=f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    shutil.copy(rendered[0].out / "works.json", figure)
    held = json.loads(figure.read_text())
    held["notebook"] = {"name": name, "parameters": {}, "sha256": ""}
    figure.write_text(json.dumps(held))
    monkeypatch.chdir(folder)
    with pytest.raises(UnknownName, match="notebook"):
        reproduce(figure, trust=True)
    assert not (tmp_path / "ran").exists()


def test_a_bundled_notebook_is_run_from_the_package(shipped, tmp_path):
    """Also where the file names a copy elsewhere; and where it has changed since, which is said."""
    path, out = shipped
    figure = out / "works.json"
    assert reproduce(figure).same
    _tell(figure, path=str(tmp_path / "elsewhere" / "works.ipynb"))
    assert reproduce(figure).same
    held = json.loads(figure.read_text())
    del held["notebook"]["path"]
    figure.write_text(json.dumps(held))
    write_notebook(path.parent, "works", extra="data['value'] *= 2")
    outcome = reproduce(figure)
    assert not outcome.same_data
    assert "the notebook has changed" in outcome.causes


def test_a_figure_without_a_notebook_cannot_be_reproduced(tmp_path, monkeypatch):
    import plotly.graph_objects as go

    monkeypatch.delenv("WORKBENCH_NOTEBOOK", raising=False)
    data = pd.DataFrame({"x": [1, 2]})
    save_figure(
        go.Figure(go.Scatter(y=data["x"])),
        "own",
        data=data,
        caption="c",
        alt="a",
        out=tmp_path,
        formats=[],
    )
    with pytest.raises(InputError, match="no notebook"):
        reproduce(tmp_path / "own.json")


def test_a_figure_that_papermill_ran_is_reproduced_from_any_folder(tmp_path, monkeypatch):
    work, elsewhere = tmp_path / "work", tmp_path / "elsewhere"
    (work / "notebooks").mkdir(parents=True)
    elsewhere.mkdir()
    reads = "import pathlib\ndata['value'] *= float(pathlib.Path('factor.txt').read_text())"
    write_notebook(work / "notebooks", "mine", extra=reads)
    (work / "factor.txt").write_text("2")
    words = ["notebooks/mine.ipynb", "run.ipynb", "-p", "n", "3", "-y", "label: null"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("WORKBENCH_", "JPY_"))}
    environment = {**clean, "PYTHONPATH": str(Path(workbench.__file__).parents[1])}
    subprocess.run(
        python("-m", "papermill", *words), cwd=work, env=environment, check=True, capture_output=True
    )
    held = json.loads((work / "figures" / "mine.json").read_text())
    assert held["parameters"] == {"n": 3, "seed": 0, "scale": 1, "label": None}
    assert held["notebook"]["parameters"] == {"n": 3, "label": None}
    assert (held["notebook"]["path"], held["notebook"]["folder"]) == ("../notebooks/mine.ipynb", "..")
    monkeypatch.chdir(elsewhere)
    assert reproduce("../work/figures/mine.json", trust=True).same
    assert [*elsewhere.iterdir()] == []


def test_a_notebook_without_a_kernel_in_its_metadata_runs(tmp_path):
    path = write_notebook(tmp_path, "bare")
    notebook = json.loads(path.read_text())
    notebook["metadata"] = {}
    path.write_text(json.dumps(notebook))
    (outcome,) = render(
        [path], parameters={"n": 2}, out=tmp_path / "figures", formats=[], progress=False
    ).outcomes
    assert (outcome.status, [*outcome.figures]) == ("done", ["bare"]), outcome


def test_ctrl_c_keeps_what_is_finished_and_says_what_is_not(tmp_path, monkeypatch, capsys):
    write_notebook(tmp_path, "first")
    write_notebook(tmp_path, "second", extra="import time; open('reached', 'w').close(); time.sleep(300)")
    monkeypatch.chdir(tmp_path)

    def interrupt():
        while not Path("reached").exists() and time.monotonic() < until:
            time.sleep(0.05)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    until = time.monotonic() + 250  # before the second notebook would end of itself
    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        render(["first.ipynb", "second.ipynb"], out="figures", formats=["html"])
    said = capsys.readouterr().out
    assert "first: done" in said
    assert "second: interrupted" in said
    assert Path("figures", "first.html").is_file()
    assert "first" in Path("figures", "index.html").read_text()


def test_what_a_kernel_put_out_before_it_died_is_in_the_executed_copy(tmp_path):
    path = write_notebook(tmp_path, "dies", extra="print('so far', flush=True)")
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.insert(-1, new_code_cell("import os; os._exit(3)"))
    nbformat.write(notebook, path)
    (outcome,) = render([path], out=tmp_path / "figures", formats=["html"], progress=False).outcomes
    assert (outcome.status, outcome.error) == ("failed", "DeadKernelError")
    executed = nbformat.read(tmp_path / "figures" / "notebooks" / "dies.ipynb", as_version=4)
    printed = [output.get("text") for cell in executed.cells for output in cell.get("outputs", ())]
    assert "so far\n" in printed


def test_a_render_that_is_killed_leaves_no_kernel_behind(tmp_path):
    write_notebook(
        tmp_path,
        "long",
        extra="import os; print(os.getpid(), file=open('number', 'w'), flush=True); import time; time.sleep(600)",
    )
    code = (
        "from workbench.apps.rendering import render\nrender('long.ipynb', out='figures', formats=['html'])"
    )
    process = subprocess.Popen(python("-c", code), cwd=tmp_path, stdout=subprocess.DEVNULL)
    number = tmp_path / "number"
    until = time.monotonic() + 600
    while not (number.exists() and number.read_text().endswith("\n")) and time.monotonic() < until:
        time.sleep(0.1)
    kernel = psutil.Process(int(number.read_text()))
    around = [parent for parent in kernel.parents() if process.pid in {one.pid for one in parent.parents()}]
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs([kernel, *around], timeout=120)
    assert around
    assert alive == []


def test_other_files_in_the_folder_are_left_alone_and_named(tmp_path):
    path, out = write_notebook(tmp_path, "mine"), tmp_path / "figures"
    out.mkdir()
    others = {"other.json": '{"schema": 1, "figure": {}}', "report.json": '{"notebooks": ["one"]}'}
    for name, text in others.items():
        (out / name).write_text(text)
    report = render([path], out=out, formats=["html"], progress=False)
    assert str(report.outcomes[0]).startswith("mine: done")
    assert '<article id="mine"' in report.index.read_text()
    assert "'other.json', 'report.json'" in str(report)
    assert {name: (out / name).read_text() for name in others} == others


@pytest.mark.parametrize("workers", [1, 2])  # kernels of their own, and forked ones
def test_modules_beside_a_notebook_are_part_of_it(tmp_path, workers):
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "__init__.py").touch()
    (tmp_path / "parts" / "deep.py").write_text("factor = 2\n")
    (tmp_path / "mine.py").write_text("import json, pandas\n\nfrom parts.deep import factor\n")
    uses = write_notebook(tmp_path, "uses", extra="import mine\ndata['value'] *= mine.factor")
    others = [write_notebook(tmp_path, f"other{number}") for number in range(workers - 1)]
    out = tmp_path / "figures"

    def statuses():
        report = render([uses, *others], out=out, formats=[], workers=workers, progress=False)
        return [outcome.status for outcome in report.outcomes]

    assert statuses() == ["done"] * workers
    held = json.loads((out / "report.json").read_text())["notebooks"]
    assert {*held["uses"]["modules"]} == {
        os.path.join("..", name) for name in ("mine.py", "parts/__init__.py", "parts/deep.py")
    }
    assert all(held[path.stem]["modules"] == {} for path in others)
    before = pd.read_csv(out / "uses.csv")["value"]
    modules = json.loads((out / "uses.json").read_text())["notebook"]["modules"]
    files = ("mine.py", "parts/__init__.py", "parts/deep.py")
    assert modules == {name: sha256_file(tmp_path / name) for name in files}
    assert statuses() == ["unchanged"] * workers
    (tmp_path / "parts" / "deep.py").write_text("factor = 4\n")
    assert statuses() == ["done", *["unchanged"] * len(others)]
    assert pd.read_csv(out / "uses.csv")["value"].to_numpy() == pytest.approx(2 * before.to_numpy())
    assert statuses() == ["unchanged"] * workers
    (tmp_path / "parts" / "deep.py").unlink()
    (tmp_path / "parts" / "deep").mkdir()
    (tmp_path / "parts" / "deep" / "__init__.py").write_text("factor = 4\n")
    assert statuses() == ["done", *["unchanged"] * len(others)]


def test_two_renders_do_not_write_into_one_folder(tmp_path):
    with locked(tmp_path, "render"), pytest.raises(InputError, match="another render is writing into"):
        render("attention_heatmaps", out=tmp_path, preset="quick", restart=True, progress=False)
    assert not list(tmp_path.iterdir())


def test_copies_that_a_killed_render_left_go_at_the_next_one(tmp_path, monkeypatch):
    from workbench.apps.rendering.process import PARTIAL

    path, notebooks = write_notebook(tmp_path, "one"), tmp_path / "figures" / "notebooks"
    notebooks.mkdir(parents=True)
    ended = subprocess.Popen([sys.executable, "-S", "-c", ""])
    ended.wait()
    left, mine = (
        notebooks / f".one.workbench-{PARTIAL}-{ended.pid}.ipynb",
        notebooks / f".one.{ended.pid}.ipynb",
    )
    left.touch()
    mine.touch()
    monkeypatch.setattr("workbench.apps.rendering.run._Render.run", lambda *given: "rendered")
    assert render([path], out=tmp_path / "figures", progress=False) == "rendered"
    assert [item.name for item in notebooks.iterdir()] == [mine.name]


def test_no_notebook_starts_while_all_are_stopped(tmp_path, monkeypatch):
    path = write_notebook(tmp_path, "late", extra="open('started', 'w').close()")
    monkeypatch.chdir(tmp_path)
    environment = _Render._environment

    def interrupted(self, *arguments):
        self._stop_processes()  # as the main thread does after Ctrl-C, and this one is about to start a process
        return environment(self, *arguments)

    monkeypatch.setattr(_Render, "_environment", interrupted)
    (outcome,) = render([path], out="figures", formats=["html"], progress=False).outcomes
    assert outcome.status == "interrupted"
    assert not Path("started").exists()


def test_a_notebook_that_ends_as_ctrl_c_comes_is_not_run_again(tmp_path, monkeypatch):
    path = write_notebook(tmp_path, "ended")
    monkeypatch.setattr("workbench.apps.rendering.run.shared_key", lambda style, preset: {})

    def interrupted(self, outcome):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(_Render, "_finish", interrupted)
        with pytest.raises(KeyboardInterrupt):
            render([path], out=tmp_path / "figures", formats=["html"], progress=False)
    (again,) = render([path], out=tmp_path / "figures", formats=["html"], progress=False).outcomes
    assert again.status == "unchanged"
    assert [*again.figures] == ["ended"]


def test_a_folder_that_cannot_be_written_is_found_out_first(tmp_path):
    path = write_notebook(tmp_path, "one")
    (tmp_path / "figures").write_text("a file is in the way")
    with pytest.raises(MissingResource, match="figures"):
        render([path], out=tmp_path / "figures")


def test_the_kernel_is_this_python_and_works_where_it_was_called(tmp_path, cold, monkeypatch):
    """But does not import what lies there in place of what is installed."""
    plant(tmp_path)
    path = write_notebook(
        tmp_path,
        "where",
        extra="import os, sys; open('where.txt', 'w').write(sys.executable + '\\n' + os.getcwd())",
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(workbench.__file__).parents[1]))
    report = render([path], out="figures", formats=["html"], progress=False)
    assert report.outcomes[0].status == "done"
    assert imported(tmp_path) == []
    interpreter, folder = Path("where.txt").read_text().splitlines()
    assert os.path.realpath(interpreter) == os.path.realpath(sys.executable)
    assert os.path.realpath(folder) == os.path.realpath(tmp_path)
