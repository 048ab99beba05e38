"""A person's walk through the explorer, in a real browser: JupyterLab, then the page of its own.

The tests of one place share its server and its page, and follow one another. What needs neither is held to on the saved
page (`test_page`) and in a host of a few lines (`test_widget`).
"""

import json
import os
import re
import shutil
import signal
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from tests.apps.explorer.browser import (
    BOX,
    LAB_ADDRESS,
    START_S,
    free_port,
    open_lab,
    page_server,
    press_button,
    run_cells,
    serve,
    wait_for_page,
    wait_until_says,
    watched,
)
from tests.browser import needs_chrome
from tests.hostile import imported, plant
from workbench.core import paths

pytestmark = needs_chrome

COMMAND = str(Path(sys.executable).with_name("workbench"))
HELD_BACK = "all-MiniLM-L6-v2"  # a model whose load takes until the file "go-on" is there
WAITING = """\
import pathlib, time
import workbench.models.loading as _models

def _load(spec, *rest, _load=_models.load, **options):
    while spec == {model!r} and not pathlib.Path({until!r}).exists():
        time.sleep(0.05)
    return _load(spec, *rest, **options)

_models.load = _load
"""
FIGURE = "import joblib, numpy\nimport plotly.graph_objects as go\n\ngo.Figure(go.Scatter(y=[1, 2]))"


FIGURES = {
    "subspaces": "Subspaces of heads",
    "squared_norms": "quared norms",
}  # notebooks, and words of their titles
DRAWN = """() => {
  const open = document.querySelector(".jp-NotebookPanel:not(.lm-mod-hidden)");
  const shown = [...open.querySelectorAll(".js-plotly-plot")].filter(plot => plot.querySelector(".main-svg"));
  return shown.map(plot => [
    plot._fullData.filter(one => one.visible === true && ["scatter", "bar", "heatmap"].includes(one.type)).length,
    plot.querySelectorAll(".scatterlayer .trace, .barlayer .trace, .heatmaplayer .hm").length,
  ]);
}"""
"""Of every figure in the open notebook how many traces it has, and how many are drawn."""


def _notebook(folder: Path) -> Path:
    """The explorer's notebook, with cells besides: one that holds a model back, one that moves, one with a figure."""
    path = Path(shutil.copy(paths.notebooks_dir() / "explorer.ipynb", folder))
    notebook = json.loads(path.read_text())
    held = WAITING.format(model=HELD_BACK, until=str(folder / "go-on"))
    last = next(cell for cell in notebook["cells"] if "".join(cell["source"]).rstrip().endswith("\nexplorer"))
    at = notebook["cells"].index(last) + 1
    cells = [
        {**last, "id": f"more-{n}", "source": text} for n, text in enumerate(("explorer.layer = 0", FIGURE))
    ]
    notebook["cells"][at:at] = cells
    last["source"] = held + "".join(last["source"])
    path.write_text(json.dumps(notebook))
    return path


def _quick(name: str, folder: Path) -> None:
    """A figure notebook with its quick preset."""
    notebook = json.loads((paths.notebooks_dir() / f"{name}.ipynb").read_text())
    parameters = next(cell for cell in notebook["cells"] if cell["cell_type"] == "code")
    preset = notebook["metadata"]["workbench"]["presets"]["quick"]
    parameters["source"] = [
        *parameters["source"],
        *(f"\n{name} = {value!r}" for name, value in preset.items()),
    ]
    (folder / f"{name}.ipynb").write_text(json.dumps(notebook))


@pytest.fixture(scope="module")
def lab(browser, tmp_path_factory):
    """`workbench explore` among modules that nothing may import, its page drawn in JupyterLab."""
    folder = tmp_path_factory.mktemp("lab")
    plant(folder)
    quiet = folder / "lab" / "@jupyterlab" / "apputils-extension" / "notification.jupyterlab-settings"
    quiet.parent.mkdir(parents=True)
    quiet.write_text('{"fetchNews": "false"}')  # Lab would ask whether it may
    notebook = _notebook(folder)
    for name in FIGURES:
        _quick(name, folder)
    command = [COMMAND, "explore", "--no-browser", f"--port={free_port()}"]
    later = {"WORKBENCH_DEFER_EXPORT": str(folder / "queue")}  # no figure is printed
    with serve(command, folder, LAB_ADDRESS, later) as server, watched(browser, folder) as seen:
        with seen.step("start"):
            open_lab(seen.page, server)
            run_cells(seen.page, notebook, until="\nexplorer")
            wait_for_page(seen.page)
        seen.server = server
        yield seen


def test_running_the_cell_shows_the_last_layer_within_its_cell(lab):
    with lab.step("first") as page:
        wait_until_says(page, "Layer 3, head 0: from [CLS]")
        wide = page.eval_on_selector(
            BOX, "box => [box.scrollWidth, box.clientWidth, box.scrollHeight, box.clientHeight]"
        )
        assert wide[0] <= wide[1]
        assert wide[2] <= wide[3] or wide[1] < 1160  # narrower, the notebook scrolls


def test_arrows_change_layer_and_head_and_leave_the_notebook_where_it_is(lab):
    with lab.step("arrows") as page:
        selected = "document.querySelector('.jp-Cell.jp-mod-selected').dataset.windowedListIndex"
        page.locator(f"{BOX} .aw-grid").focus()
        before = page.evaluate(selected)
        for key, words in (
            ("ArrowUp", "Layer 2, head 0"),
            ("ArrowRight", "Layer 2, head 1"),
            ("s", "Layer 2, head 1"),
        ):
            page.keyboard.press(key)
            wait_until_says(page, words)
        assert page.evaluate(selected) == before


def test_a_load_is_cancelled_and_the_view_before_stays(lab):
    with lab.step("cancel") as page:
        press_button(page, "Open")
        page.get_by_label("model", exact=True).fill(HELD_BACK)
        page.keyboard.press("Enter")
        wait_until_says(page, f"Loading {HELD_BACK}")
        press_button(page, "Cancel")
        wait_until_says(page, "Cancelled; the view is unchanged.")
        wait_until_says(page, "Layer 2, head 1")
    (lab.server.folder / "go-on").touch()


def test_a_broken_image_is_refused_in_words_and_a_whole_one_looked_at(lab, tmp_path):
    import numpy as np
    from PIL import Image

    broken, whole = tmp_path / "broken.png", tmp_path / "whole.png"
    broken.write_bytes(b"\x89PNG\r\n\x1a\n" + os.urandom(300))
    Image.fromarray(np.tile(np.arange(64, dtype=np.uint8) * 4, (64, 1))).save(whole)
    with lab.step("upload") as page:
        for file in (broken, whole):
            press_button(page, "Open")
            page.locator(f"{BOX} input[type=file]").set_input_files(file)
            if file == broken:
                page.locator(f"{BOX} .aw-wrong", has_text="broken.png").wait_for()
        page.wait_for_function("() => document.querySelector('.aw-top').innerText.includes('whole.png')")
        assert page.locator(f"{BOX} .aw-wrong").count() == 0


def test_a_line_of_python_moves_the_page_and_a_figure_is_drawn_in_the_notebook(lab):
    with lab.step("python") as page:
        page.locator(".jp-Cell", has_text="explorer.layer = 0").last.locator(".jp-InputArea-editor").click()
        page.keyboard.press("Shift+Enter")
        wait_until_says(page, "Layer 0, head 1")
        page.keyboard.press("Shift+Enter")
        page.wait_for_selector(".js-plotly-plot .main-svg")


def test_figure_notebooks_draw_every_trace(lab):
    """Opened from Lab's list of files, each in a kernel of its own that `workbench explore` starts."""
    from playwright.sync_api import TimeoutError as PlaywrightTimeout

    for name in FIGURES:
        with lab.step(name) as page:
            listed = page.locator(".jp-DirListing-item", has_text=f"{name}.ipynb")
            shown = f".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Cell:has-text('{FIGURES[name]}')"
            for seconds in (20, 20, 60):  # a list that is drawn again between two clicks takes neither
                listed.dblclick()
                try:
                    page.locator(shown).first.wait_for(timeout=seconds * 1000)
                    break
                except PlaywrightTimeout:
                    continue
            page.locator(shown).first.wait_for(timeout=1000)
            idle = page.locator(
                ".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Notebook-ExecutionIndicator[data-status='idle']"
            )
            idle.wait_for(
                state="attached"
            )  # run before its kernel is there, Lab asks for one, or does nothing
            for seconds in (20, 20, 60):
                if (asked := page.locator(".jp-Dialog button.jp-mod-accept").first).is_visible():
                    asked.click()
                page.get_by_role("menuitem", name="Run", exact=True).click()
                page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
                try:
                    page.wait_for_function(
                        f"() => ({DRAWN})().some(([known]) => known > 0)", timeout=seconds * 1000
                    )
                    break
                except PlaywrightTimeout:
                    continue
            page.wait_for_function(f"() => ({DRAWN})().some(([known]) => known > 0)", timeout=1000)
            page.wait_for_function(f"() => ({DRAWN})().every(([known, drawn]) => known === drawn)")


def test_a_kill_ends_jupyterlab_and_all_it_started(lab):
    """And nothing of it has imported modules that lie in the current folder."""
    started = psutil.Process(lab.server.process.pid).children(recursive=True)
    assert len(started) >= 2
    assert lab.server.stop(signal.SIGTERM) == 128 + signal.SIGTERM
    _, alive = psutil.wait_procs(started, timeout=60)
    assert alive == []
    assert imported(lab.server.folder) == []
    # a kernel that is at work when it is told to end finds its sockets closed, and ipykernel says so
    closed = r"[^\n]*Exception in \w+ handler:?\n(?:(?!Traceback).*\n)*Traceback(?:(?!Traceback)[^\0])*?non-socket\n"
    assert "Traceback" not in re.sub(closed, "", "".join(lab.server.said))


@pytest.fixture(scope="module")
def alone(browser, tmp_path_factory):
    """`workbench explore --app`, and a narrow window for it."""
    folder = tmp_path_factory.mktemp("page")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        with page_server(folder) as server, watched(browser, folder, {"width": 700, "height": 900}) as seen:
            seen.server = server
            yield seen


def test_the_page_alone_takes_the_same_walk_in_a_narrow_window(alone):
    with alone.step("page") as page:
        page.goto(
            alone.server.address, wait_until="commit"
        )  # the page goes on loading while the notebook runs
        wait_for_page(page)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert "Explorer()" not in page.content()
        page.locator(f"{BOX} .aw-grid").focus()
        page.keyboard.press("ArrowUp")
        page.keyboard.press("ArrowRight")
        wait_until_says(page, "Layer 2, head 1")
        press_button(page, "Open")
        page.get_by_label("model", exact=True).fill("bundled:digits-tots")
        page.keyboard.press("Enter")
        page.locator(f"{BOX} .aw-wrong", has_text="digits-tost").wait_for()
        press_button(page, "Open")
        page.get_by_label("model", exact=True).fill("bundled:digits-xcit")
        page.keyboard.press("Enter")
        page.wait_for_function("() => document.querySelector('.aw-top h1').textContent === 'digits-xcit'")
        wait_until_says(page, "Layer 5, head 0")
        # the page's address is that of the view, and opens it again; what there is not is told in its place
        page.wait_for_function("() => location.search.includes('model=bundled%3Adigits-xcit&')")
        page.locator(f"{BOX} .aw-grid").focus()
        page.keyboard.press("ArrowRight")
        page.wait_for_function("() => location.search.includes('layer=5&head=1&')")
        assert "token=" not in page.evaluate("() => location.search")
        page.reload(wait_until="commit")
        wait_for_page(page)
        wait_until_says(page, "Layer 5, head 1")
        root = page.evaluate("() => location.pathname")
        page.evaluate("root => { location.href = `${root}?model=bundled:digits-vit&layer=last`; }", root)
        page.locator(f"{BOX} .aw-wrong", has_text="whole number, got 'last'").wait_for(timeout=START_S * 1000)
        page.evaluate("root => { location.href = `${root}?model=bundled:digits-xcit`; }", root)
        wait_for_page(page)
        until = time.monotonic() + START_S
        while len(_kernels(alone.server)) > 1:  # that of a page that was left is ended
            assert time.monotonic() < until
            time.sleep(0.1)
        # as wide as the window, without a frame around it
        page.set_viewport_size({"width": 1440, "height": 900})
        page.wait_for_function(
            "() => { const box = document.querySelector('.aw-root').getBoundingClientRect();"
            " return box.x === 0 && box.y === 0 && box.width === 1440 && box.height === 900; }"
        )


def _kernels(server):
    """The processes that compute: not the server's own children, which fork them."""
    own = psutil.Process(server.process.pid)
    return [child for child in own.children(recursive=True) if child.ppid() != own.pid]


def _answer(address, method="GET"):
    """(status, path) that a request ends at."""
    try:
        with urllib.request.urlopen(urllib.request.Request(address, method=method), timeout=60) as answer:
            return answer.status, urlsplit(answer.url).path
    except urllib.error.HTTPError as refused:
        return refused.code, urlsplit(refused.url).path


def test_the_page_asks_for_its_token_and_an_interrupt_ends_it(alone):
    server = alone.server
    root = server.address.split("?")[0]
    assert _answer(root) == (200, "/login")
    assert _answer(f"{root}?token=another") == (200, "/login")
    assert _answer(f"{root}voila/files/explorer.ipynb")[0] == 403
    # Whoever has no token can neither look at a kernel nor end one.
    kernel = f"{root}api/kernels/00000000-0000-0000-0000-000000000000"
    assert {_answer(kernel)[0], _answer(f"{kernel}/channels")[0]} == {403}
    assert _answer(f"{root}voila/api/shutdown/00000000-0000-0000-0000-000000000000", "POST")[0] == 403
    assert server.stop() == 130
    left = [path.name for path in server.folder.iterdir() if path.name.startswith(("workbench-", "voila"))]
    assert left == []
    # Of a refused request voila itself shows a traceback. A kernel that is shut down is interrupted first, of which
    # ipykernel logs a line where it was idle; a traceback would end with the name at the beginning of a line.
    assert not [line for line in "".join(server.said).splitlines() if line.startswith("KeyboardInterrupt")]
