"""The studies are a room that can be taken out, and what is committed needs no torch to be drawn."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import workbench
from workbench.core.paths import data_dir, notebooks_dir

WITHOUT_TORCH = """
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "torchvision", "timm", "transformers", "accelerate"}:
            raise ImportError(f"{name} is not to be imported")

sys.meta_path.insert(0, NoTorch())
"""
DRAWN = """
import workbench
from workbench.figures import exponents_figure, robustness_models_figure, scaling_figure, effects_figure, effects_frame
from workbench.papers.published import published_pairs
from workbench.studies import claims_from_records
from workbench.studies.records import recorded, scaling_record
from workbench.studies.scaling import printed_exponents, scaling_exponents

points = scaling_record()
scaling_figure(points, ["tokens"])
exponents_figure(scaling_exponents(points), printed_exponents())
effects_figure(effects_frame(claims_from_records(), published_pairs(), "ratio"), "ratio")
evaluated = recorded(["digits-vit", "digits-rpc-sym"], "evaluation")
print(len(points), len(evaluated))
"""
NOTEBOOK = """
import json, sys
import workbench

drawn = []

class Saved:
    def show(self): pass

def save_figure(figure, name, **told):
    figure.to_json()
    drawn.append(name)
    return Saved()

workbench.save_figure = save_figure
names = {}
for cell in json.load(open(sys.argv[1], encoding="utf-8"))["cells"]:
    if cell["cell_type"] == "code":
        exec("".join(cell["source"]), names)
print(*drawn, sep="\\n")
"""
LIBRARY = """
import importlib, pkgutil
import workbench
from workbench.apps.explorer.views import VIEWS
from workbench.figures import spectrum_figure

for module in pkgutil.walk_packages(workbench.__path__, "workbench."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
for name in workbench.__all__:
    getattr(workbench, name)
frame = workbench.analyze("gram-spectrum", model="bundled:digits-vit", inputs="bundled:digits", n=2)
print(len(frame), len(spectrum_figure(frame).data), len(VIEWS))
"""


COMMANDS = """
from workbench.apps.cli import main

for words in (["--help"], ["models"], ["claims", "--paper", "wu2025", "-n", "2", "--json"]):
    try:
        main(words)
    except SystemExit as end:
        assert not end.code, end.code
    if words[0] != "claims":
        print("next")
"""


def _run(code: str, folder: Path, *arguments: str) -> list[str]:
    """The lines that a fresh interpreter prints, which finds the package in a folder."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """A folder with the package, less its studies."""
    folder = tmp_path_factory.mktemp("library")
    package = Path(workbench.__file__).parent
    shutil.copytree(package, folder / "workbench", ignore=shutil.ignore_patterns("studies", "__pycache__"))
    for place in (data_dir(), notebooks_dir()):
        if not (folder / "workbench" / "_bundled").exists():
            (folder / place.name).symlink_to(place)
    return folder


def test_the_library_works_with_the_studies_removed(library):
    assert all(map(int, _run(LIBRARY, library)[-1].split()))


def test_commands_that_look_at_models_work_with_the_studies_removed(library):
    """All in one process, since each would import for longer than it works."""
    shown = "\n".join(_run(COMMANDS, library)).split("next\n")
    for word, text in zip(("analyze", "digits-vit", "undecided"), shown, strict=True):
        assert word in text


def test_what_is_committed_is_read_and_drawn_without_torch():
    points, evaluations = _run(WITHOUT_TORCH + DRAWN, data_dir().parent)[-1].split()
    assert int(points) > 900
    assert int(evaluations) > 100


@pytest.mark.parametrize("name", ["training_curves"])
def test_notebooks_of_records_draw_all_they_have_without_torch(name):
    notebook = notebooks_dir() / f"{name}.ipynb"
    drawn = _run(WITHOUT_TORCH + NOTEBOOK, data_dir().parent, str(notebook))
    assert sum(line.startswith(name) for line in drawn) >= 4
