"""A person's walk through the explorer, in a real browser: JupyterLab, then the page of its own.

The tests of one place share its page and follow one another.
"""

import json
import os
import re
import time

import pytest

from tests.apps.explorer.browser import (
    BOX,
    MAIN,
    MAP,
    START_S,
    chromium,
    click_cell,
    hold_back,
    lab_server,
    labelled,
    numbers_drawn,
    open_drawer,
    open_lab,
    open_page,
    page_held_back,
    press_button,
    run_cells,
    slider,
    wait_for_figure,
    wait_until_says,
    watched,
)
from tests.browser import needs_chrome

pytestmark = needs_chrome

# What a status says is gone after two seconds, which a busy machine may take to look.
SAID = """() => {
  window.said = [];
  const look = status => new MutationObserver(() => said.push(status.textContent)).observe(status, { childList: true });
  document.querySelectorAll(".workbench-said").forEach(look);
}"""
# anywidget gives the script of a widget two seconds; while the page is slow, none.
NO_TIME = """
  window.slow = true;
  const given = AbortSignal.timeout.bind(AbortSignal);
  AbortSignal.timeout = limit => given(slow && limit === 2000 ? 0 : limit);
"""
HELD_BACK = "all-MiniLM-L6-v2"  # a model whose load takes until the file "go-on" is there
OVERVIEW_DRAWN = b"of every layer and head"  # what a screen reader is told then


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def lab(browser, tmp_path_factory):
    """The explorer in JupyterLab, its first figure drawn."""
    folder = tmp_path_factory.mktemp("lab")
    with lab_server(folder) as server, watched(browser, folder) as seen:
        hold_back(folder / "explorer.ipynb", HELD_BACK, until=folder / "go-on")
        with seen.step("start"):
            open_lab(seen.page, server)
            run_cells(seen.page, folder / "explorer.ipynb", until="Explorer(")
            wait_for_figure(seen.page)
            seen.page.wait_for_selector(f"{MAP} .main-svg")
        seen.server = server
        yield seen


@pytest.fixture(scope="module")
def page_of_its_own(tmp_path_factory):
    """The server of the explorer as a page of its own: every page that is opened has a kernel of its own.

    Its kernels load no model before the file "go-on" is in its folder.
    """
    folder = tmp_path_factory.mktemp("page")
    with page_held_back(folder, "bundled:digits-vit", until=folder / "go-on") as server:
        yield server


@pytest.fixture(scope="module")
def alone(browser, page_of_its_own):
    """A narrow window for that page."""
    with watched(browser, page_of_its_own.folder, {"width": 700, "height": 900}) as seen:
        yield seen


def _changes(page, act, plot=MAIN):
    """Do something, and wait until the plot holds other numbers."""
    before = numbers_drawn(page, plot)
    act()
    page.wait_for_function(
        "([plot, before]) => { const gd = document.querySelector(plot); return gd && gd.data && "
        "JSON.stringify(gd.data.map(trace => [trace.z, trace.y])) !== before; }",
        arg=[plot, before],
    )


def test_running_the_cell_shows_the_last_layer(lab):
    with lab.step("first") as page:
        wait_until_says(page, "Layer 3, head 0")
        assert labelled(page, "model").input_value() == "bundled:digits-vit"
        assert page.locator(f"{BOX} .workbench-error").count() == 0


def test_everything_fits_the_window(lab):
    with lab.step("fits") as page:
        wide = page.eval_on_selector(BOX, "box => [box.scrollWidth, box.clientWidth]")
        assert wide[0] <= wide[1]


def test_the_sliders_change_layer_and_head(lab):
    with lab.step("sliders") as page:
        for name in ("layer", "head"):  # as a screen reader finds them
            page.locator(BOX).get_by_role("slider", name=name, exact=True).wait_for()
        slider(page, "layer").focus()
        _changes(page, lambda: page.keyboard.press("ArrowLeft"))
        wait_until_says(page, "Layer 2, head 0")
        slider(page, "head").focus()
        _changes(page, lambda: page.keyboard.press("ArrowRight"))
        wait_until_says(page, "Layer 2, head 1")


def test_arrows_change_layer_and_head_and_leave_the_notebook_where_it_is(lab):
    with lab.step("arrows") as page:
        selected = "document.querySelector('.jp-Cell.jp-mod-selected').dataset.windowedListIndex"
        page.focus(BOX)
        before = page.evaluate(selected)
        _changes(page, lambda: page.keyboard.press("ArrowUp"))
        wait_until_says(page, "Layer 1, head 1")
        _changes(page, lambda: page.keyboard.press("ArrowRight"))
        wait_until_says(page, "Layer 1, head 2")
        page.keyboard.press("ArrowDown")
        wait_until_says(page, "Layer 2, head 2")
        assert page.evaluate(selected) == before


def test_a_click_in_the_overview_opens_that_head(lab):
    with lab.step("overview") as page:
        _changes(page, lambda: click_cell(page, MAP, x=1, y=0))
        wait_until_says(page, "Layer 0, head 1")


def test_another_metric_colours_the_overview_anew(lab):
    with lab.step("metric") as page:
        _changes(page, lambda: labelled(page, "colour").select_option("Effective rank of the keys"), MAP)


def test_a_click_on_a_patch_asks_from_there(lab):
    with lab.step("patch") as page:
        _changes(page, lambda: click_cell(page, MAIN, x=3, y=5))
        wait_until_says(page, "From row 5, column 3")


@pytest.mark.parametrize(
    "name", ["Matrix", "Norms", "Spectrum", "Singular values", "Membership", "Trajectory", "From / to"]
)
def test_every_view_draws(lab, name):
    with lab.step(name) as page:
        _changes(page, lambda: press_button(page, name))
        assert page.locator(f"{BOX} .workbench-error").count() == 0


def test_a_pinned_view_is_compared_with_another(lab):
    with lab.step("compare") as page:
        press_button(page, "Pin this view")
        page.get_by_role("button", name="Back to it").wait_for()
        page.focus(BOX)
        _changes(page, lambda: page.keyboard.press("ArrowDown"))
        _changes(page, lambda: press_button(page, "Compare"))
        wait_until_says(page, "to other tokens than")
        press_button(page, "From / to")
        wait_until_says(page, "most attention goes to")


def test_another_input_is_looked_at(lab):
    with lab.step("input") as page:
        names = labelled(page, "input").locator("option").all_inner_texts()
        _changes(page, lambda: labelled(page, "input").select_option(names[2]))
        wait_until_says(page, names[2])


def test_the_lines_that_make_the_view_are_copied(lab):
    with lab.step("copy") as page:
        open_drawer(page, "Export")
        page.evaluate(SAID)
        press_button(page, "Copy as code")
        page.wait_for_function("said.includes('copied')")
        assert (
            "workbench.capture(model, inputs, layers=[1]"
            in page.locator(f"{BOX} textarea").last.input_value()
        )


def test_the_view_is_saved_as_a_figure_of_every_format(lab):
    with lab.step("save") as page:
        labelled(page, "name").fill("my-view")
        press_button(page, "Save figure")
        wait_until_says(page, "Saved my-view")
    files = {path.suffix: path.stat().st_size for path in lab.server.figures.glob("my-view.*")}
    assert min(files[suffix] for suffix in (".pdf", ".svg", ".png", ".html", ".csv")) > 500
    provenance = json.loads((lab.server.figures / "my-view.json").read_text())
    assert provenance["parameters"]["layer"] == 1
    assert provenance["parameters"]["head"] == 1


def test_a_load_is_cancelled_and_the_view_before_stays(lab):
    with lab.step("cancel") as page:
        before = numbers_drawn(page)
        labelled(page, "model").fill(HELD_BACK)
        page.keyboard.press("Enter")
        press_button(page, "Cancel")
        wait_until_says(page, "Cancelled")
        assert labelled(page, "model").input_value() == "bundled:digits-vit"
        assert numbers_drawn(page) == before
        page.focus(BOX)
        _changes(page, lambda: page.keyboard.press("ArrowDown"))  # and it works on
        wait_until_says(page, "Layer 2, head 1")
    (lab.server.folder / "go-on").touch()


def test_a_broken_image_is_refused_in_words_and_a_whole_one_looked_at(lab, tmp_path):
    import numpy as np
    from PIL import Image

    broken, whole = tmp_path / "broken.png", tmp_path / "whole.png"
    broken.write_bytes(b"\x89PNG\r\n\x1a\n" + os.urandom(300))
    Image.fromarray(np.tile(np.arange(64, dtype=np.uint8) * 4, (64, 1))).save(whole)
    with lab.step("upload") as page:
        open_drawer(page, "of your own")
        for file, words in ((broken, "broken.png"), (whole, "whole")):
            with page.expect_file_chooser() as asked:
                page.click(f"{BOX} .widget-upload")
            asked.value.set_files(file)
            wait_until_says(page, words)
            assert page.locator(f"{BOX} .workbench-error").count() == (file == broken)


def test_a_wrong_name_is_answered_with_the_right_one(lab):
    with lab.step("name") as page:
        labelled(page, "model").fill("bundled:digits-tots")
        page.keyboard.press("Enter")
        wait_until_says(page, "digits-tost")
        assert labelled(page, "model").input_value() == "bundled:digits-vit"


def test_another_model_comes_with_inputs_of_its_kind(lab):
    with lab.step("model") as page:
        labelled(page, "model").fill("bundled:prose-softmax")
        _changes(page, lambda: page.keyboard.press("Enter"))
        wait_until_says(page, "prose/")
        assert labelled(page, "inputs").input_value() == "bundled:prose"


def test_a_typed_text_is_looked_at(lab):
    with lab.step("text") as page:
        page.locator(f"{BOX} textarea").first.fill("the cat sat on the mat, and the dog lay on the rug")
        _changes(page, lambda: press_button(page, "Use this text"))
        wait_until_says(page, "text.txt")


def test_what_is_drawn_while_the_page_fetches_its_scripts_is_shown(alone, page_of_its_own):
    """The page drops what widgets are told before their scripts are there: it is held back there while all is drawn."""
    started, held, heard = [], [], []

    def connected(socket):
        started.append(socket)
        socket.on("framereceived", lambda frame: heard.append(OVERVIEW_DRAWN in bytes(frame)))

    alone.page.on("websocket", connected)
    scripts = re.compile(r"/@jupyter-widgets/.*\.js")
    alone.page.route(scripts, lambda route: held.append(route) if started else route.continue_())
    with alone.step("held-back") as page:
        page.goto(page_of_its_own.address, wait_until="commit")
        _until(page, lambda: held)
        (page_of_its_own.folder / "go-on").touch()
        _until(page, lambda: any(heard))
        started.clear()
        for route in held:
            route.continue_()
        wait_for_figure(page)
        page.wait_for_selector(f"{MAP} .main-svg")
        wait_until_says(page, "Layer 3, head 0")


def test_the_page_alone_takes_the_same_walk_in_a_narrow_window(alone):
    with alone.step("page") as page:
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert "Explorer()" not in page.content()
        slider(page, "layer").focus()
        _changes(page, lambda: page.keyboard.press("ArrowLeft"))
        page.focus(BOX)
        _changes(page, lambda: page.keyboard.press("ArrowRight"))
        wait_until_says(page, "Layer 2, head 1")
        _changes(page, lambda: click_cell(page, MAIN, x=3, y=5))
        wait_until_says(page, "From row 5, column 3")
        labelled(page, "model").fill("bundled:digits-tost")
        page.keyboard.press("Enter")
        wait_until_says(page, "Layer 5, head 0")
        labelled(page, "model").fill("bundled:digits-tots")
        page.keyboard.press("Enter")
        wait_until_says(page, "digits-tost")
        assert page.locator(f"{BOX} .workbench-error").count() == 1


def test_a_slow_page_shows_every_figure(browser, page_of_its_own, tmp_path):
    """Scripts of figures take longer than anywidget gives them, as plotly's does on a busy machine."""
    late = []
    (page_of_its_own.folder / "go-on").touch()
    with watched(browser, tmp_path) as seen:
        seen.page.add_init_script(NO_TIME)
        seen.page.on("pageerror", lambda error: late.append("Failed to initialize model" in str(error)))

        def one_layer_up(figures):
            _until(seen.page, lambda: sum(late) >= figures)
            seen.page.evaluate("slow = false")
            slider(seen.page, "layer").focus()
            _changes(seen.page, lambda: seen.page.keyboard.press("ArrowLeft"))

        with_traces = "plot => (document.querySelector(plot)?.data ?? []).length > 0"
        open_page(seen.page, page_of_its_own)
        seen.page.wait_for_function(with_traces, arg=MAP)
        one_layer_up(figures=2)
        late.clear()
        seen.page.evaluate("slow = true")
        labelled(seen.page, "model").fill("bundled:photos-tost")
        seen.page.keyboard.press("Enter")
        wait_until_says(seen.page, "Layer 5, head 0")
        seen.page.wait_for_function(with_traces, arg=MAIN)
        one_layer_up(figures=1)


def _until(page, true):
    """Wait until something is so on our side of the browser."""
    end = time.monotonic() + START_S
    while not true():
        assert time.monotonic() < end
        page.wait_for_timeout(50)
