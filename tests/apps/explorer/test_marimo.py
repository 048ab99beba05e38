"""The page in marimo, in a real browser: it is drawn there, tells the cells that read it, and follows them."""

import sys

import pytest

from tests.apps.explorer.browser import BOX, START_S, chromium, free_port, serve, watched
from tests.browser import needs_chrome

pytest.importorskip("marimo", reason="the page in marimo: marimo is not installed (the extra dev has it)")
pytestmark = needs_chrome

ADDRESS = r"http://(?:localhost|127\.0\.0\.1):\d+\S*"
NOTEBOOK = """\
import marimo

app = marimo.App()


@app.cell
def _():
    import marimo as mo
    from workbench.apps.explorer import Explorer

    page = mo.ui.anywidget(Explorer(n=2).page(layers=[2, 3], ablations=False))
    up = mo.ui.button(label="Go to layer 3", on_click=lambda _: setattr(page.widget, "layer", 3))
    page
    return mo, page, up


@app.cell
def _(mo, page, up):
    mo.vstack([up, mo.md(f"The page stands at layer {page.value['layer']}, head {page.value['head']}.")])
    return


if __name__ == "__main__":
    app.run()
"""


def test_the_page_is_drawn_tells_the_cells_and_follows_them(tmp_path):
    notebook = tmp_path / "heads.py"
    notebook.write_text(NOTEBOOK)
    port = free_port()
    command = [sys.executable, "-m", "marimo", "run", notebook.name, "--headless", f"--port={port}"]
    own = {f"XDG_{name}_HOME": str(tmp_path / name.lower()) for name in ("CONFIG", "CACHE", "STATE", "DATA")}
    with (
        chromium() as browser,
        serve(command, tmp_path, ADDRESS, own | {"MARIMO_SKIP_UPDATE_CHECK": "1"}) as server,
        watched(browser, tmp_path, {"width": 1440, "height": 1100}) as seen,
        seen.step("marimo") as page,
    ):

        def says(words):  # a locator, since marimo keeps widgets in a shadow tree
            page.locator(f"{BOX} .aw-headline", has_text=words).wait_for()

        page.goto(server.address)
        page.wait_for_selector(f"{BOX} .aw-headline:not(:empty)", timeout=START_S * 1000)
        says("Layer 3, head 0: from [CLS]")
        page.locator(f"{BOX} .aw-grid").focus()
        page.keyboard.press("ArrowUp")
        page.keyboard.press("ArrowRight")
        says("Layer 2, head 1")
        page.get_by_text("The page stands at layer 2, head 1.").wait_for()
        page.get_by_role("button", name="Go to layer 3").click()
        says("Layer 3, head 1")
