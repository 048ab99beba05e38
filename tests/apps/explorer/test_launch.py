"""How the explorer is started: what it needs, whom it lets in, and that it leaves nothing behind."""

import json
import os
import signal
import sys
import threading
import time

import pandas as pd
import plotly.graph_objects as go
import pytest
from click.testing import CliRunner

import workbench.figures
from workbench.apps.cli import cli
from workbench.apps.explorer import Explorer, launch
from workbench.apps.explorer.address import address_of_figure
from workbench.apps.explorer.bundle import ANALYSES, BY_LAYER
from workbench.apps.explorer.evidence import SPECTRA
from workbench.core.errors import InputError, MissingResource, UnknownName


def test_a_missing_voila_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "voila", None)
    with pytest.raises(MissingResource, match=r"needs voila.* pip install -e \".*\[explore\]\"") as error:
        launch.open_page()
    assert error.value.exit_code == 3


def test_an_unknown_theme_is_refused_before_anything_starts(monkeypatch):
    monkeypatch.setenv("WORKBENCH_THEME", "tlak")
    with pytest.raises(UnknownName, match="talk"):
        launch.open_page(browser=False)


def test_the_page_is_one_cell_that_works_where_it_was_started(tmp_path):
    start = tmp_path / 'it\'s "here"'
    (cell,) = json.loads(launch.page_notebook(tmp_path, start).read_text())["cells"]
    code = "".join(cell["source"])
    compile(code, "cell", "exec")
    assert f"os.chdir({str(start)!r})" in code
    assert "save" not in code


@pytest.mark.parametrize(("options", "opened"), [([], "open_explorer"), (["--app"], "open_page")])
def test_the_command_opens_one_or_the_other(monkeypatch, options, opened):
    asked = []
    for name in ("open_explorer", "open_page"):
        monkeypatch.setattr(
            launch, name, lambda figure, name=name, **given: asked.append((name, figure, given)) or 0
        )
    done = CliRunner().invoke(cli, ["explore", *options, "--port", "9", "--no-browser", "--theme", "talk"])
    assert done.exit_code == 0
    assert asked == [(opened, None, {"port": 9, "browser": False, "theme": "talk"})]


@pytest.mark.parametrize("ends", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_or_a_kill_ends_the_server(tmp_path, monkeypatch, ends):
    """Lab itself is killed in `test_browser`; here a server that says how it was ended."""
    monkeypatch.chdir(tmp_path)
    server = "import signal, sys, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    server += "signal.signal(signal.SIGTERM, lambda *_: (open('ended', 'w').close(), sys.exit()))\n"
    server += "open('up', 'w').close()\ntime.sleep(60)"
    monkeypatch.setattr(launch, "lab_command", lambda *given: [sys.executable, "-c", server])

    def end():
        while not (tmp_path / "up").exists():
            time.sleep(0.02)
        os.kill(os.getpid(), ends)

    before = signal.getsignal(signal.SIGTERM)
    threading.Thread(target=end, daemon=True).start()
    assert launch.open_explorer(browser=False) == 128 + ends
    assert (tmp_path / "ended").exists()
    assert signal.getsignal(signal.SIGTERM) is before


def test_what_the_first_picture_measures_is_imported_early():
    measured = {*ANALYSES, *BY_LAYER, *(name for name, _ in SPECTRA.values()), "membership"}
    assert {f"workbench.analyses.{name.replace('-', '_')}" for name in measured} <= set(launch.IMPORTS)


@pytest.mark.parametrize("folder", [".", "notebooks", "notebooks/studies"])
def test_a_checkouts_notebooks_are_not_written_to(tmp_path, monkeypatch, folder):
    (tmp_path / "notebooks" / "studies").mkdir(parents=True)
    (tmp_path / "pyproject.toml").touch()
    tracked = tmp_path / "notebooks" / "explorer.ipynb"
    tracked.write_text("{}")
    monkeypatch.setattr(launch.paths, "notebooks_dir", lambda: tracked.parent)
    opened = launch.notebook_to_open(tmp_path / folder)
    assert opened == tmp_path / "explorer.ipynb"
    assert opened.read_text() == "{}"
    opened.write_text('{"cells": []}')  # what a person typed
    assert launch.notebook_to_open(tmp_path / folder).read_text() == '{"cells": []}'
    assert tracked.read_text() == "{}"


@pytest.fixture(scope="module")
def figure(tmp_path_factory):
    """A figure that an explorer saved."""
    folder = tmp_path_factory.mktemp("figures")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORKBENCH_DEFER_EXPORT", str(folder / "queue"))
        Explorer(layer=1, head=2, token="all", view="matrix", n=3, seed=5, index=2).save("seen", out=folder)
    return folder / "seen.json"


def test_a_saved_figure_opens_at_its_layer_and_head(figure, tmp_path):
    opened = launch.notebook_to_open(tmp_path, figure)
    assert opened == tmp_path / "explorer-seen.ipynb"
    names = {}
    cells = [cell for cell in json.loads(opened.read_text())["cells"] if cell["cell_type"] == "code"]
    for cell in cells[:-1]:  # the last saves a figure
        exec("".join(cell["source"]), names)
    place = names["explorer"].location
    assert (place.layer, place.head, place.token, place.view, place.n, place.seed, place.index) == (
        1, 2, None, "matrix", 3, 5, 2
    )  # fmt: skip
    page = launch.page_notebook(tmp_path, tmp_path, address_of_figure(figure))
    (cell,) = json.loads(page.read_text())["cells"]
    assert f"Explorer.at({address_of_figure(figure)!r})" in "".join(cell["source"])


def test_a_figure_of_a_notebook_opens_where_it_measured(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_DEFER_EXPORT", str(tmp_path / "queue"))
    frame = workbench.analyze(
        "gram-spectrum",
        model="bundled:digits-softmax-sym",
        inputs="bundled:digits",
        n=2,
        seed=3,
        layers="1,2",
    )
    go_figure = workbench.figures.spectrum_figure(frame)
    workbench.save_figure(
        go_figure,
        "spectra",
        data=frame,
        out=tmp_path,
        parameters={"layers": "1,2"},
        caption="Spectra.",
        alt="Spectra.",
    )
    address = address_of_figure(tmp_path / "spectra.json")
    assert address == {
        "model": "bundled:digits-softmax-sym@epoch-030",
        "inputs": "bundled:digits", "n": 2, "seed": 3, "layer": 1, "view": "spectrum",
    }  # fmt: skip
    assert Explorer.at(address).location.layer == 1


def test_a_figure_of_no_model_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_DEFER_EXPORT", str(tmp_path / "queue"))
    data = pd.DataFrame({"x": [1.0, 2.0]})
    workbench.save_figure(
        go.Figure(go.Scatter(y=[1, 2])),
        "plain",
        data=data,
        out=tmp_path,
        caption="A line.",
        alt="A line.",
        parameters={},
    )
    with pytest.raises(InputError, match="shows no layer of a model"):
        launch.notebook_to_open(tmp_path, tmp_path / "plain.json")
