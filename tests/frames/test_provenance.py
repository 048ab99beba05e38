"""Provenance: what is recorded, and that it comes back."""

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import nbclient
import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook
from PIL import Image

from workbench._version import __version__
from workbench.core import paths
from workbench.core.errors import InputError
from workbench.core.files import sha256_bytes, sha256_file
from workbench.frames import provenance


def built(**more):
    run = {
        "analysis": "gram-spectrum",
        "model": {"spec": "bundled:digits-vit", "checkpoint": "epoch-030", "sha256": "ab" * 32},
        "inputs": {"spec": "bundled:digits", "n": 5, "seed": 3, "sha256": "cd" * 32},
        "seed": 3,
    }
    figure = {
        "caption": "c",
        "alt": "a < b & 'c'",
        "theme": "paper",
        "width_px": 312,
        "height_px": 200,
        "sha256": "0",
    }
    arguments = {"figure": figure, "data": {"rows": 1, "columns": ["value"], "sha256": "1"}}
    return provenance.build_provenance("name", [run, run], {"n": 5, "layers": (0, 1)}, **arguments, **more)


def test_it_names_model_inputs_seed_versions_and_commit_once_each():
    held = built()
    assert [model["sha256"] for model in held["models"]] == ["ab" * 32]
    assert [inputs["n"] for inputs in held["inputs"]] == [5]
    assert held["seed"] == 3
    assert held["parameters"] == {"n": 5, "layers": [0, 1]}
    assert held["versions"]["workbench"] == __version__
    assert set(held["versions"]) >= {"python", "torch", "timm", "transformers", "plotly", "numpy"}
    assert held["git"] is None or re.fullmatch("[0-9a-f]{40}", held["git"]["commit"])
    assert json.loads(provenance.dump(held)) == held


def test_records_are_named_with_their_hash(tmp_path):
    record = tmp_path / "runs.csv"
    record.write_text("abc")
    held = built(records=[record])
    assert held["records"] == [{"path": record.name, "sha256": sha256_bytes(b"abc")}]
    bundled = paths.data_dir() / "records" / "operators" / "points.csv"
    assert built(records=[bundled])["records"][0]["path"] == "records/operators/points.csv"
    with pytest.raises(InputError, match="absent"):
        built(records=[tmp_path / "absent.csv"])


def test_the_notebook_is_what_the_render_says(monkeypatch):
    monkeypatch.delenv("WORKBENCH_NOTEBOOK", raising=False)
    assert built()["notebook"] is None
    monkeypatch.setenv("WORKBENCH_NOTEBOOK", json.dumps({"name": "gram_spectra", "parameters": {"n": 5}}))
    monkeypatch.setenv("WORKBENCH_PRESET", "quick")
    assert built()["notebook"]["parameters"] == {"n": 5}
    assert built()["preset"] == "quick"


CELLS = [
    ("n, layers = 3, (0, 1)\nseed: int = 0\nout = None", ["parameters"]),
    (
        "from workbench.frames.provenance import notebook_parameters\nn, other = 5, 2\nprint(notebook_parameters())",
        [],
    ),
    ("n, layers = 7, object\ndel seed\nprint(notebook_parameters())", []),
]


def test_in_an_interactive_notebook_the_variables_are_read_as_they_are_when_asked(tmp_path, monkeypatch):
    """Those that the tagged cell assigns, in the file that the kernel's session names; elsewhere there are none."""
    cells = [new_code_cell(source, metadata={"tags": tags}) for source, tags in CELLS]
    nbformat.write(new_notebook(cells=cells), tmp_path / "mine.ipynb")
    monkeypatch.delenv(provenance.PARAMETERS, raising=False)

    def said(path):
        monkeypatch.setenv("JPY_SESSION_NAME", str(path))
        notebook = nbformat.read(tmp_path / "mine.ipynb", as_version=4)
        nbclient.execute(notebook, cwd=tmp_path)
        return [cell.outputs[0].text.strip() for cell in notebook.cells[1:]]

    assert said(tmp_path / "mine.ipynb") == [
        "({'n': 5, 'layers': (0, 1), 'seed': 0}, 'variables')",
        "({'n': 7, 'layers': <class 'object'>}, 'variables')",
    ]
    assert said(tmp_path / "renamed.ipynb") == ["({}, None)"] * 2


@pytest.mark.parametrize(
    "arguments",
    [["-p", "n", "2"], ["-r", "text", "a b"], ["-y", "{n: 2, layers: [0, 1]}"], ["-f", "given.yaml"], []],
    ids=" ".join,
)
def test_papermill_by_itself_leaves_notebook_and_parameters(tmp_path, arguments):
    """Name, hash and defaults of a bundled notebook and of one's own: from any folder, with any of its options."""
    bundled = tmp_path / "bundled"
    bundled.mkdir()
    cells = [
        new_code_cell("n, text = 3, None\nlayers = None\nout = None", metadata={"tags": ["parameters"]}),
        new_code_cell(
            "import json, pathlib\nfrom workbench.core import paths\n"
            f"paths.notebooks_dir = lambda: pathlib.Path({str(bundled)!r})\n"
            "from workbench.frames.provenance import notebook_parameters, notebook_run"
        ),
        new_code_cell("print(json.dumps([notebook_parameters(), notebook_run()]))"),
    ]
    about = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(new_notebook(cells=cells, metadata=about), bundled / "counts.ipynb")
    cells[2].source = "\n" + cells[2].source + "  # mine"
    nbformat.write(new_notebook(cells=cells, metadata=about), tmp_path / "mine.ipynb")
    (tmp_path / "given.yaml").write_text("n: 2\nout: here\n")
    injected = {"-p": {"n": 2}, "-r": {"text": "a b"}, "-y": {"n": 2, "layers": [0, 1]}, "-f": {"n": 2}}
    injected = injected[arguments[0]] if arguments else {}
    whole = {"n": 3, "text": None, "layers": None} | injected
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in (provenance.PARAMETERS, "WORKBENCH_NOTEBOOK", "JPY_SESSION_NAME")
    }
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    said = {}
    for path in (bundled / "counts.ipynb", tmp_path / "mine.ipynb"):
        command = [sys.executable, "-m", "papermill", str(path), "o.ipynb", *arguments]
        subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
        executed = nbformat.read(tmp_path / "o.ipynb", as_version=4)
        said[path.stem] = json.loads(executed.cells[-1].outputs[0].text)
    (parameters, source), run = said["counts"]
    assert (parameters, source) == (whole, "variables")
    assert (run["name"], run["parameters"]) == ("counts", injected)
    assert run["sha256"] == sha256_file(bundled / "counts.ipynb")
    own = {"name": "mine", "path": "mine.ipynb", "sha256": sha256_file(tmp_path / "mine.ipynb")}
    assert said["mine"] == [[whole, "variables"], {**own, "parameters": injected}]


def test_a_script_has_no_parameters_but_those_it_names(monkeypatch):
    monkeypatch.delenv(provenance.PARAMETERS, raising=False)
    about = {"figure": {}, "data": {}}
    held = provenance.build_provenance("name", [], None, **about)
    assert (held["parameters"], held["parameters_from"]) == ({}, None)
    held = provenance.build_provenance("name", [], {"n": 2}, **about)
    assert (held["parameters"], held["parameters_from"]) == ({"n": 2}, "call")
    monkeypatch.setenv(provenance.PARAMETERS, '{"n": 4, "seed": 1}')
    held = provenance.build_provenance("name", [], None, **about)
    assert (held["parameters"], held["parameters_from"]) == ({"n": 4, "seed": 1}, "render")
    assert held["seed"] == 1


def test_it_survives_markup(tmp_path):
    held = built() | {"parameters": {"text": "</script><b>&amp; ]]> é λ"}}
    page = tmp_path / "x.html"
    page.write_text(f"<html>{provenance.html_element(held)}</html>")
    assert "</script><b>" not in page.read_text()
    assert provenance.read_provenance(page) == held
    drawing = tmp_path / "x.svg"
    drawing.write_bytes(provenance.embed(b'<svg width="1"><path/></svg>', "svg", held))
    assert provenance.read_provenance(drawing) == held


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.png", b"not a picture", "cannot be read"),
        ("a.pdf", b"not a pdf", "cannot be read"),
        ("a.json", b"[1, 2]", "no workbench provenance"),
        ("a.json", b"{", "cannot be read"),
        ("a.svg", b"<svg></svg>", "no workbench provenance"),
        ("a.gif", b"GIF", "ending in"),
        ("a.csv", b"1,2", "no file at"),
        ("a.json", b'{"schema": 99, "figure": {}}', "provenance schema 99; .* update the workbench"),
        ("a.json", b'{"schema": 1, "figure": {}}', "provenance schema 1; .* write the file again"),
    ],
)
def test_a_file_without_it_is_refused(tmp_path, name, content, says):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError, match=says):
        provenance.read_provenance(path)


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"models": [3]}, "models.0"), ({"notebook": {"name": []}}, "notebook.name"),
        ({"figure": {}}, "figure.caption"),
        ({"records": ["x"]}, "records.0"), ({"parameters": "x"}, "parameters"),
        ({"runs": {}}, "runs"), ({"runs": [{"analysis": []}]}, "runs.0.analysis"),
        ({"versions": {"torch": 2}}, "versions.torch"), ({"git": {"commit": "c"}}, "git.dirty"),
    ],
)  # fmt: skip
def test_a_provenance_that_says_anything_is_refused_with_the_place(tmp_path, change, place):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(built() | change))
    with pytest.raises(InputError, match=rf"does not hold \({place}"):
        provenance.read_provenance(path)


def test_an_image_has_its_provenance_title_and_resolution_and_the_same_pixels():
    image, plain = Image.new("RGB", (3, 2), (10, 200, 30)), io.BytesIO()
    image.save(plain, "png")
    with Image.open(io.BytesIO(provenance.embed(plain.getvalue(), "png", built(), dpi=254))) as found:
        assert found.info["Title"] == "name"
        assert found.info["Description"] == "a < b & 'c'"
        assert json.loads(found.info[provenance.PNG_KEY])["name"] == "name"
        assert found.info["dpi"] == pytest.approx((254, 254))
        assert found.tobytes() == image.tobytes()


def test_a_file_beside_the_package_is_local_and_one_inside_is_not():
    assert provenance._is_local(str(Path(__file__)))
    assert not provenance._is_local(str(Path(provenance.__file__)))
    assert not provenance._is_local(pytest.__file__)


def test_a_checkout_without_a_commit_has_none_to_name(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "workbench" / "frames" / "provenance.py"))
    assert provenance._git_commit() is None
    (tmp_path / ".git").mkdir()
    assert provenance._git_commit() is None
