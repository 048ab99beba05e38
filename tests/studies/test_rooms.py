"""The studies are a room that can be taken out, and what is committed needs no torch to be drawn."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import workbench
from workbench.core.paths import bundled_notebooks, data_dir, notebooks_dir

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
from workbench.studies.figures import claims_figure, exponents_figure, scaling_figure
from workbench.studies import claims_from_records
from workbench.studies.records import recorded, scaling_record
from workbench.studies.scaling import printed_exponents, scaling_exponents

points = scaling_record()
scaling_figure(points, ["tokens"])
exponents_figure(scaling_exponents(points), printed_exponents())
claims_figure(claims_from_records("wu2025"))
evaluated = recorded(["digits-vit", "digits-rpc-sym"], "evaluation")
print(len(points), len(evaluated))
"""
NOTEBOOK = """
import json, sys
import workbench

drawn = []

class Saved:
    def show(self): pass

def save_figure(figure, name, **about):
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
from workbench.apps.cli import main
from workbench.apps.explorer.views import VIEWS
from workbench.figures import spectrum_figure

for module in pkgutil.walk_packages(workbench.__path__, "workbench."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
for name in workbench.__all__:
    getattr(workbench, name)
frame = workbench.analyze("gram-spectrum", model="bundled:digits-vit", inputs="bundled:digits", n=2)
print(len(frame), len(spectrum_figure(frame).data), len(VIEWS))

for words in (
    ["--help"],
    ["models"],
    ["claims", "--paper", "wu2025", "-n", "2", "--json"],
    ["analyze", "gram-spectrum", "-m", "bundled:digits-vit", "-i", "bundled:digits", "-n", "1", "-o", "one.csv"],
    ["study", "train", "digits"],
):
    print("next")
    try:
        main(words)
    except SystemExit as end:
        print("status", end.code or 0)
"""


def _run(code: str, folder: Path, *arguments: str) -> tuple[list[str], str]:
    """The lines that a fresh interpreter prints, which finds the package in a folder; and what it says of errors."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr


def test_the_library_works_with_the_studies_removed(tmp_path):
    """All in one process, since each would import for longer than it works."""
    package = Path(workbench.__file__).parent
    shutil.copytree(package, tmp_path / "workbench", ignore=shutil.ignore_patterns("studies", "__pycache__"))
    for place in (data_dir(), notebooks_dir()):
        if not (tmp_path / "workbench" / "_bundled").exists():
            (tmp_path / place.name).symlink_to(place)
    lines, refused = _run(LIBRARY, tmp_path)
    counts, *shown = "\n".join(lines).split("next\n")
    assert all(map(int, counts.splitlines()[-1].split()))
    words = ("analyze", "digits-vit", "wu2025", "one.csv", "")
    for word, status, text in zip(words, (0, 0, 0, 0, 2), shown, strict=True):
        assert word in text
        assert text.splitlines()[-1] == f"status {status}"
    assert "plug-in left out: command 'study'" in refused
    assert "No such command 'study'" in refused
    assert (tmp_path / "one.csv").is_file()


def test_the_rooms_below_hold_no_word_of_studies():
    """Nor of what they are about: a figure, a command or a metric of theirs is in their folder."""
    word = re.compile(r"robustness|training curve|scaling exponent|workbench.studies import", re.I)
    package = Path(workbench.__file__).parent
    for room in ("figures", "apps", "frames"):
        for path in sorted((package / room).rglob("*.py")):
            assert not word.findall(path.read_text(encoding="utf-8")), path


def test_what_is_committed_is_read_and_drawn_without_torch_also_by_its_notebook():
    lines, _ = _run(
        WITHOUT_TORCH + DRAWN + NOTEBOOK, data_dir().parent, str(bundled_notebooks()["training_curves"])
    )
    counts, *drawn = lines
    points, evaluations = counts.split()
    assert int(points) > 900
    assert int(evaluations) > 100
    assert sum(line.startswith("training_curves") for line in drawn) >= 2
