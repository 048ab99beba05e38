"""The core works without its extras: in a process where none of their modules can be imported."""

import os
import subprocess
import sys

import pytest

from tests.pages import ROOT

WITHOUT = '''
import sys
from workbench.core.extras import EXTRAS

missing = {module for modules in EXTRAS.values() for module in modules}

class Without:
    """A finder that finds all but the modules of the extras."""

    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in missing else self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)

assert not missing & set(sys.modules)
sys.meta_path[:] = map(Without, sys.meta_path)
'''
CORE = """
import workbench
from workbench.figures import attention_heatmap_figure, attention_summary_figure

model = workbench.load("bundled:digits-vit")
digits = workbench.inputs("bundled:digits", model, n=2)
capture = workbench.capture(model, digits)
assert all(hasattr(workbench, name) for name in workbench.__all__)
assert capture[3].attn.shape == (2, 3, 65, 65)
frame = workbench.analyze("attention-map", model=model, inputs=digits)
assert len(attention_summary_figure(frame).data) > 2
assert sum(trace.type == "heatmap" for trace in attention_heatmap_figure(capture).data) == 12
workbench.save_figure(attention_summary_figure(frame), "maps", data=frame)
assert "torch._dynamo" not in sys.modules  # the compiler: half of the time that a start would take
"""
DEMO = """
import contextlib

from workbench.apps.cli import main

with open("said.txt", "w") as said, contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
    main(["demo", "--no-browser", "--out", "heads.html"])
"""
ASKED = """
import workbench
from workbench.core.errors import MissingResource

def photographs():
    from workbench.data.pools import photo_files
    photo_files()

def explorer():
    from workbench.apps.explorer import Explorer

def rendering():
    workbench.render(["gram_spectra"])

def training():
    from workbench.studies.training import train
    train("digits", "run")

for work in (photographs, explorer, rendering, training):
    try:
        work()
    except MissingResource as error:
        print(work.__name__, str(error).partition("the extra '")[2].partition("'")[0])
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """All in one process, since each would import for longer than it works; and the folder it works in."""
    folder = tmp_path_factory.mktemp("core")
    command = [sys.executable, "-c", WITHOUT + CORE + DEMO + ASKED]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return ended, folder


def test_load_capture_analyze_and_figures_need_no_extra(done):
    ended, folder = done
    written = {path.name for path in (folder / "figures").iterdir()}
    assert {"maps.html", "maps.csv", "maps.tex", "maps.json"} <= written
    assert "maps.pdf" not in written
    assert "install the extra 'figures'" in ended.stderr  # a warning: what needs no printing is written


def test_the_page_of_every_head_is_written_and_said_where(done):
    page = done[1] / "heads.html"
    assert page.stat().st_size > 1e6  # with plotly.js inside
    assert (done[1] / "said.txt").read_text() == (
        f"Every head of the model is in {page}: open it in a browser\n"
    )


def test_what_needs_an_extra_names_it(done):
    assert dict(line.split() for line in done[0].stdout.splitlines()) == {
        "photographs": "figures",
        "explorer": "figures",
        "rendering": "figures",
        "training": "studies",
    }
