"""The built wheels are whole: outside the checkout they find their own notebooks, models and tables."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from workbench.core.paths import bundled_notebooks, notebooks_dir

ROOT = Path(__file__).parents[1]


BYTES = 25_000_000
BUNDLED_DATA = "workbench/_bundled/data/"


def _build(folder, source):
    """Build a wheel into a folder, and return its path."""
    command = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(folder),
        str(source),
    ]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with the unpacked wheel of the package, as an installer would lay it out."""
    folder = tmp_path_factory.mktemp("wheel")
    with zipfile.ZipFile(_build(folder, ROOT)) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def _workbench(installed, cwd, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    command = [sys.executable, "-m", "workbench", *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)


def test_the_wheel_is_what_answers(installed, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    code = "from workbench.core import paths as p; print(p.__file__, p.data_dir(), p.notebooks_dir())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert all(part.startswith(str(installed)) for part in done.stdout.split())


def test_a_notebook_renders_from_the_wheel(installed, tmp_path):
    """Its kernel analyses the bundled model."""
    done = _workbench(
        installed,
        tmp_path,
        "render",
        "cosine_decay",
        "--preset",
        "quick",
        "--formats",
        "html",
        "-o",
        "figures",
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "figures" / "index.html").is_file()
    assert (tmp_path / "figures" / "cosine_decay.csv").stat().st_size > 1000
    provenance = json.loads((tmp_path / "figures" / "cosine_decay.json").read_text())
    assert provenance["models"][0]["spec"] == "bundled:digits-vit"
    cited = _workbench(installed, tmp_path, "cite", "figures/cosine_decay.json")
    assert "@software{attention_workbench" in cited.stdout, cited.stderr


def test_files_to_start_from_are_written_from_the_wheel(installed, tmp_path):
    for kind in ("notebook", "analysis"):
        done = _workbench(installed, tmp_path, "new", kind, f"my_{kind}")
        assert done.returncode == 0, done.stderr
    assert {path.suffix for path in tmp_path.glob("my_notebook.*")} == {".py", ".ipynb"}
    assert (tmp_path / "test_my_analysis.py").is_file()


def test_two_small_wheels_share_the_bundled_data(installed, tmp_path):
    (package,) = installed.parent.glob("*.whl")
    wheels = [package, _build(tmp_path, ROOT / "data")]
    assert max(wheel.stat().st_size for wheel in wheels) <= BYTES
    names = []
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            names += [name for name in archive.namelist() if name.startswith(BUNDLED_DATA)]
    tracked = subprocess.run(
        ["git", "ls-files", "data"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    expected = {BUNDLED_DATA + name.removeprefix("data/") for name in tracked} - {
        BUNDLED_DATA + "pyproject.toml"
    }
    assert sorted(names) == sorted(expected)


def test_weights_of_the_other_wheel_are_named_with_its_extra(installed, tmp_path):
    done = _workbench(
        installed,
        tmp_path,
        "capture",
        "-m",
        "bundled:prose-tssa-causal",
        "-i",
        "bundled:prose",
        "-o",
        "x.safetensors",
    )
    assert done.returncode == 3, done.stderr
    assert "the weights of bundled:prose-tssa-causal are not installed" in done.stderr
    assert "install the extra 'models'" in done.stderr


def test_every_module_travels(installed):
    held = {path.relative_to(installed) for path in (installed / "workbench").rglob("*.py")}
    assert held == {path.relative_to(ROOT) for path in (ROOT / "workbench").rglob("*.py")}


def test_every_notebook_travels(installed):
    held = installed / "workbench" / "_bundled" / "notebooks"
    ours = {path.relative_to(notebooks_dir()) for path in bundled_notebooks().values()}
    assert {path.relative_to(held) for path in held.rglob("*.ipynb")} == ours


def test_the_templates_travel(installed):
    templates = installed / "workbench" / "apps" / "templates"
    assert all((templates / name).is_file() for name in ("gallery.html", "demo.html"))
    page = templates / "voila" / "templates" / "explorer"
    assert {path.name for path in page.iterdir()} == {"conf.json", "index.html.j2", "page.html"}


def test_no_byte_code_and_no_tests_travel(installed):
    (wheel,) = installed.parent.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = [Path(name) for name in archive.namelist()]
    assert names
    assert [name for name in names if name.suffix == ".pyc" or name.name.startswith("test_")] == []
