"""A text that is typed and an image that is painted on: the kernel runs the model again."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from tests.apps.explorer.browser import HOST, chromium, traits
from tests.apps.explorer.test_page import SAYS
from tests.browser import needs_chrome
from workbench.apps.explorer import Explorer

FIELD = ".aw-typed"
PUT = """content => model.fromKernel("content", new DataView(
  Uint8Array.from(atob(content), letter => letter.charCodeAt(0)).buffer))"""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def ask(page, *buffers, **message):
    page._heard(page, message, [*buffers])
    assert page.trouble == ""


def seen(browser, widget):
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.evaluate(HOST, [widget._esm, widget._css, traits(widget), base64.b64encode(widget.content).decode()])
    page.wait_for_function(SAYS, arg="Layer ")
    return page


def test_a_typed_text_is_the_input_and_is_kept_in_memory(cache):
    page = Explorer("bundled:prose-softmax", ["The tide went out."]).page(ablations=False)
    layer = page.layer
    ask(page, open={"typed": "The tide turns"})
    card = page.bundle.header.inputs[0]
    assert ("".join(card.labels), page.layer) == ("The tide turns", layer)
    assert card.address["inputs"] == 'text:["The tide turns"]'
    assert not (cache / "uploads").exists()


@pytest.mark.e2e
@needs_chrome
def test_the_model_reads_a_text_once_the_hand_rests_and_the_caret_stays(cache):
    widget = Explorer("bundled:prose-softmax", ["The tide went out."]).page(ablations=False, height=900)
    with chromium() as browser:
        page = seen(browser, widget)
        assert page.input_value(FIELD) == "The tide went out."
        page.click(FIELD)
        page.keyboard.press("Control+Home")
        page.evaluate("() => { model.sent.length = 0; }")
        page.keyboard.type("All ", delay=20)
        page.wait_for_function("() => model.sent.some(([one]) => one.open)")
        page.wait_for_timeout(300)
        typed = [one["open"] for one, _ in page.evaluate("() => model.sent") if "open" in one]
        assert typed == [{"typed": "All The tide went out."}]
        ask(widget, open=typed[0])
        while widget.worker.busy:
            page.wait_for_timeout(20)
        page.evaluate(PUT, base64.b64encode(widget.content).decode())
        page.wait_for_function("() => document.querySelectorAll('.aw-text .aw-token').length === 22")
        page.keyboard.type("of ", delay=20)
        assert page.input_value(FIELD) == "All of The tide went out."
        page.close()


@pytest.mark.e2e
@needs_chrome
def test_a_stroke_on_the_image_is_what_the_model_sees_next(cache):
    widget = Explorer(n=1).page(ablations=False, height=900)
    with chromium() as browser:
        page = seen(browser, widget)
        page.get_by_role("button", name="Paint", exact=True).click()
        page.evaluate(
            """() => { model.send = (content, _, buffers) => {
              if (content.open) window.stroke = [content.open, [...new Uint8Array(buffers[0])]];
            }; }"""
        )
        before = page.evaluate("() => model.get('tokens')")
        box = page.locator(".aw-stage canvas").bounding_box()
        down = box["y"] + box["height"] * 0.9
        page.mouse.move(box["x"] + box["width"] * 0.1, down)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.9, down, steps=5)
        page.mouse.up()
        page.wait_for_function("() => window.stroke")
        what, content = page.evaluate("() => window.stroke")
        assert what == {"image": "painting.png"}
        assert page.evaluate("() => model.get('tokens')") == before
        shown = np.asarray(Image.open(io.BytesIO(bytes(content))).convert("L")).astype(int)
        height, width = widget.bundle.header.inputs[0].image
        own = widget.bundle.arrays["inputs.0.image"][..., 0].astype(int)
        assert shown.shape == (height, width)
        row = int(0.9 * height)
        assert (shown[row, 2 : width - 2] == 255).all()
        np.testing.assert_array_equal(shown[: row - 2], own[: row - 2])
        ask(widget, bytes(content), open=what)
        while widget.worker.busy:
            page.wait_for_timeout(20)
        np.testing.assert_allclose(widget.bundle.arrays["inputs.0.image"][..., 0], shown, atol=1)
        page.close()


@pytest.mark.e2e
@needs_chrome
def test_a_saved_page_of_a_small_model_runs_it_on_what_is_painted(tmp_path):
    """A stroke gives another prediction and attention of the same head; undone, all is as before."""
    saved = Explorer(n=1).save_html(tmp_path / "page.html", ablations=False)
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        wrong = []
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(f"{saved.as_uri()}#layer=2&head=1&token=5&tab=effect")
        page.wait_for_function(SAYS, arg="Layer 2, head 1")
        page.wait_for_selector(".aw-outcomes .aw-leader")
        shown = "() => ['.aw-headline', '.aw-outcomes'].map(one => document.querySelector(one).textContent)"
        before = page.evaluate(shown)
        assert page.get_by_role("button", name="Undo", exact=True).count() == 0
        page.get_by_role("button", name="Paint", exact=True).click()
        box = page.locator(".aw-stage canvas").bounding_box()
        across, down = (box["x"] + box["width"] * 0.1, box["y"] + box["height"] * 0.9)
        page.mouse.move(across, down)
        page.mouse.down()
        page.mouse.move(across + box["width"] * 0.8, down, steps=5)
        page.mouse.up()
        page.wait_for_function("() => document.querySelector('.aw-top').textContent.includes('painting')")
        page.wait_for_function(SAYS, arg="Layer 2, head 1: from patch 0,4")
        assert all(old != new for old, new in zip(before, page.evaluate(shown), strict=True))
        page.get_by_role("button", name="Undo", exact=True).click()
        page.wait_for_function(SAYS, arg=before[0])
        page.wait_for_selector(".aw-outcomes .aw-leader")
        assert page.evaluate(shown) == before
        assert wrong == []
