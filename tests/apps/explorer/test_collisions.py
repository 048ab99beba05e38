"""No words of the page lie over others, no outline is cut, and each device has hints of its own."""

import pytest

from tests.apps.explorer.pooled import many_heads
from tests.apps.explorer.test_page import SAYS
from tests.browser import needs_chrome
from workbench.apps.explorer import Explorer
from workbench.apps.explorer.bundle import Bundle
from workbench.apps.explorer.page import page_html

pytestmark = [pytest.mark.e2e, needs_chrome]
SIZES = [(1280, 800), (1440, 900), (2560, 1440), (768, 1024), (390, 844)]
TABS = ("matrix", "products", "plane", "norms", "spectra", "metrics", "effect", "membership", "card")
COLLISIONS = """() => {
  const ink = (part) => {
    const range = document.createRange();
    range.selectNodeContents(part);
    const { left, right, top, bottom } = range.getBoundingClientRect();
    const end = Math.min(right, part.getBoundingClientRect().right);
    return { left, right: end, top, bottom, words: part.textContent };
  };
  const names = ["leader", "product", "metric", "head", "controls", "top", "tabs"];
  const rows = [...document.querySelectorAll(names.map(name => `.aw-${name}`).join())];
  const shared = (a, b, start, end) => Math.min(a[end], b[end]) - Math.max(a[start], b[start]);
  const collide = (a, b) => shared(a, b, "left", "right") > 0.5 && shared(a, b, "top", "bottom") > 2;
  return rows.filter(row => row.offsetParent).flatMap(row => {
    const leaves = [...row.querySelectorAll("*")].filter(part => part.offsetParent && !part.children.length);
    const boxes = leaves.filter(part => part.textContent.trim()).map(ink);
    return boxes.flatMap((a, i) => boxes.slice(i + 1).filter(b => collide(a, b)).map(b => `${a.words} | ${b.words}`));
  });
}"""
RECORDER = """
window.drawn = { words: [], outlines: [] };
const pen = CanvasRenderingContext2D.prototype;
const box = (canvas, x, y, width, height, m) => {
  const corners = [[x, y], [x + width, y], [x, y + height], [x + width, y + height]];
  const places = corners.map(([a, b]) => [m.a * a + m.c * b + m.e, m.b * a + m.d * b + m.f]);
  const [across, down] = [0, 1].map(axis => places.map(place => place[axis]));
  return [Math.min(...across), Math.min(...down), Math.max(...across), Math.max(...down), canvas.width, canvas.height];
};
const { fillText, strokeRect, clearRect } = pen;
pen.fillText = function (words, x, y) {
  const { actualBoundingBoxAscent: up, actualBoundingBoxDescent: below, width } = this.measureText(words);
  const seen = box(this.canvas, x, y - up, width, up + below, this.getTransform());
  if (this.canvas.className === "aw-matrix") drawn.words.push([words, seen]);
  return fillText.apply(this, arguments);
};
pen.strokeRect = function (x, y, width, height) {
  const thick = this.lineWidth;
  const at = [x - thick / 2, y - thick / 2, width + thick, height + thick];
  if (this.canvas.className === "aw-grid") drawn.outlines.push(box(this.canvas, ...at, this.getTransform()));
  return strokeRect.apply(this, arguments);
};
pen.clearRect = function () {
  if (this.canvas.className === "aw-matrix") drawn.words.length = 0;
  return clearRect.apply(this, arguments);
};
"""


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    return Explorer(n=2).save_html(folder / "digits.html", indices=[0, 1], cards=2).as_uri()


@pytest.mark.parametrize(("wide", "tall"), SIZES)
def test_no_words_of_lists_and_bars_lie_over_others(browser, digits, wide, tall):
    page = browser.new_page(viewport={"width": wide, "height": tall})
    for tab in TABS:
        page.goto(f"{digits}#layer=2&head=1&token=5&tab={tab}")
        page.wait_for_function(SAYS, arg="Layer 2, head 1")
        page.wait_for_timeout(100)
        assert page.evaluate(COLLISIONS) == [], tab
        across = page.eval_on_selector(".aw-root", "one => [one.scrollWidth, one.clientWidth]")
        assert across[0] <= across[1], tab
    page.evaluate(
        "document.querySelector('.aw-leader .aw-where').style.cssText = 'position: relative; left: -110px'"
    )
    assert page.evaluate(COLLISIONS)  # words that are moved over others are noticed
    page.close()


@pytest.mark.parametrize(("wide", "tall"), SIZES[:2])
def test_names_along_the_matrix_lie_apart(browser, tmp_path, wide, tall):
    """Of 16 tokens between [CLS] and [SEP], also where the corner has the names of two rows."""
    bundle = many_heads(1, 1, 16, 0)
    words = [
        "the",
        "animal",
        "'",
        "t",
        "cross",
        "the",
        "street",
        "because",
        "it",
        "was",
        "too",
        "tired",
        "soon",
        ".",
    ]
    labels = ["[CLS]", *words, "[SEP]"]
    card = bundle.header.inputs[0].model_copy(update={"labels": labels})
    path = tmp_path / "page.html"
    held = Bundle(bundle.header.model_copy(update={"inputs": [card]}), bundle.arrays)
    path.write_text(page_html(held, "names"))
    page = browser.new_page(viewport={"width": wide, "height": tall})
    page.add_init_script(RECORDER)
    page.goto(f"{path.as_uri()}#layer=0&head=0&token=3")
    page.wait_for_function("() => drawn.words.length > 16")
    words = page.evaluate("() => drawn.words")
    assert len(words) >= 16 + 12
    for place, (name, (left, top, right, bottom, *_)) in enumerate(words):
        for other, (x0, y0, x1, y1, *_) in words[place + 1 :]:
            apart = right <= x0 + 1 or x1 <= left + 1 or bottom <= y0 + 1 or y1 <= top + 1
            assert apart, (name, other)
    page.close()


@pytest.mark.parametrize("order", ["", "attention_sink"])
@pytest.mark.parametrize(("layer", "head"), [(0, 0), (0, 2), (3, 0), (3, 2)])
def test_the_outline_of_a_head_at_the_rim_is_whole(browser, digits, order, layer, head):
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.add_init_script(RECORDER)
    page.goto(f"{digits}#layer={layer}&head={head}&sort={order}")
    page.wait_for_function(SAYS, arg=f"Layer {layer}, head {head}")
    left, top, right, bottom, width, height = page.evaluate("() => drawn.outlines.at(-1)")
    assert min(left, top, width - right, height - bottom) >= 0
    page.close()


@pytest.mark.parametrize("touch", [True, False])
def test_hints_name_the_gestures_of_the_device(browser, digits, touch):
    context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=touch, is_mobile=touch)
    page = context.new_page()
    page.goto(digits)
    page.wait_for_function(SAYS, arg="Layer ")
    hint = page.text_content(".aw-centre > .aw-note")
    assert ("Tap a token" in hint, "Hover" in hint or "Esc" in hint) == (touch, not touch)
    context.close()
