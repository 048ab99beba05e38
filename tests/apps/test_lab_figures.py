"""Figures of notebooks in JupyterLab, before anybody has touched them: as wide and high as they are meant to be."""

import dataclasses
import json
from pathlib import Path

import pytest

from tests.apps.explorer.browser import LAB_ADDRESS, START_S, chromium, free_port, open_lab, serve, watched
from tests.browser import needs_chrome
from workbench.apps.explorer.launch import lab_command, server_environment
from workbench.apps.rendering import render
from workbench.core import paths

pytestmark = needs_chrome

SETTINGS = {
    "apputils-extension/notification": {"fetchNews": "false"},  # Lab would ask whether it may
    "notebook-extension/tracker": {"windowingMode": "none"},  # cells out of sight are drawn too
}
NOTEBOOKS = ("subspaces", "squared_norms")
SHOWN = """() => [...document.querySelectorAll(".jp-NotebookPanel .jp-RenderedPlotly")].map(output => {
  const image = output.querySelector(".plot-img");
  const drawn = image.src && image.style.display !== "none" ? image : output.querySelector(".main-svg");
  const box = drawn?.getBoundingClientRect();
  return box ? [box.width, box.height] : null;
})"""
"""Of every figure in the open notebook the size of its image, or of its drawing where that is what is seen."""


def _copy_quick(name: str, path: Path) -> None:
    """Copy a notebook to a file, its quick preset at the end of its parameters."""
    notebook = json.loads((paths.notebooks_dir() / f"{name}.ipynb").read_text())
    parameters = next(cell for cell in notebook["cells"] if cell["cell_type"] == "code")
    preset = notebook["metadata"]["workbench"]["presets"]["quick"]
    parameters["source"] = [
        *parameters["source"],
        *(f"\n{key} = {value!r}" for key, value in preset.items()),
    ]
    path.write_text(json.dumps(notebook))


def _intended(folder: Path, name: str) -> list[list[float]]:
    """Return width and height of every figure that a notebook saved."""
    figures = [json.loads(path.read_text()) for path in folder.glob(f"{name}*.json")]
    figures = [held["figure"] for held in figures if isinstance(held, dict) and "figure" in held]
    return sorted([figure["width_px"], figure["height_px"]] for figure in figures)


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def lab(warm, tmp_path_factory):
    """A server of JupyterLab in a folder with the notebooks, and with the executed copy of the first one's render."""
    folder = tmp_path_factory.mktemp("lab")
    for name in NOTEBOOKS:
        _copy_quick(name, folder / f"{name}.ipynb")
    rendered = folder / "rendered"
    render(NOTEBOOKS[0], preset="quick", out=rendered, formats=[], progress=False)
    (rendered / "notebooks" / f"{NOTEBOOKS[0]}.ipynb").rename(folder / "executed.ipynb")
    for file, setting in SETTINGS.items():
        path = folder / "lab" / "@jupyterlab" / f"{file}.jupyterlab-settings"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(setting))
    command = lab_command(folder / "executed.ipynb", free_port(), browser=False)
    with server_environment() as variables, serve(command, folder, LAB_ADDRESS, variables) as server:
        yield server


@pytest.mark.parametrize("name", ["executed", *NOTEBOOKS])
def test_a_figure_has_its_own_size_before_it_is_touched(browser, lab, tmp_path, name):
    """In the executed copy of a render, and in notebooks that a person runs."""
    # a workspace of its own: Lab opens again what was open before
    address = lab.address.replace("/lab/tree/executed", f"/lab/workspaces/{name}/tree/{name}")
    with watched(browser, tmp_path) as seen, seen.step(name) as page:
        open_lab(page, dataclasses.replace(lab, address=address))
        if name != "executed":
            page.get_by_role("menuitem", name="Run", exact=True).click()
            page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
        page.mouse.move(2, 2)  # a pointer over an image would have it drawn
        page.wait_for_function(f"() => ({SHOWN})().length", timeout=START_S * 1000)
        page.wait_for_selector("#jp-main-statusbar >> text=| Idle", timeout=START_S * 1000)
        page.wait_for_function(f"() => ({SHOWN})().every(size => size && size[0] > 0)")
        page.locator(".jp-RenderedPlotly").first.scroll_into_view_if_needed()
        page.screenshot(path=tmp_path / "shown.png")
        sizes = page.evaluate(SHOWN)
    assert sizes
    if name == "executed":
        assert sorted(sizes) == _intended(lab.folder / "rendered", NOTEBOOKS[0])
    else:
        assert sorted(sizes) == _intended(lab.folder / "figures", name)
