"""Whatever the page draws lies inside its canvas, at finite places, and no two texts of a canvas lie on each other."""

import math
from itertools import combinations

import pytest

from tests.apps.explorer.browser import chromium
from tests.apps.explorer.test_page import SAYS, SHOWS
from tests.browser import needs_chrome
from workbench.apps.explorer import Explorer

pytestmark = [pytest.mark.e2e, needs_chrome]

RECORD = """(() => {
  const pens = CanvasRenderingContext2D.prototype;
  globalThis.drawn = new Map();
  for (const kind of ["clearRect", "fillText", "fillRect", "strokeRect", "moveTo", "lineTo", "arc"]) {
    const plain = pens[kind];
    pens[kind] = function (...values) {
      if (kind === "clearRect" || !drawn.has(this.canvas)) drawn.set(this.canvas, []);
      if (kind !== "clearRect") {
        const words = kind === "fillText" ? String(values[0]) : "";
        const places = kind === "fillText" ? values.slice(1, 3) : values;
        const { width } = this.measureText(words);
        const start = { center: width / 2, right: width, end: width }[this.textAlign] ?? 0;
        const size = parseFloat(/([\\d.]+)px/.exec(this.font)[1]);
        drawn.get(this.canvas).push({ kind, words, places, width, start, size, turned: this.getTransform().b !== 0 });
      }
      return plain.apply(this, values);
    };
  }
})();"""
DRAWN = """() => [...drawn].filter(([canvas, calls]) => canvas.isConnected && canvas.offsetWidth && calls.length).map(
  ([canvas, calls]) => ({ name: canvas.className, width: canvas.offsetWidth, height: canvas.offsetHeight, calls }))"""
FRAMES = "async () => { for (let i = 0; i < 3; i++) await new Promise(requestAnimationFrame); }"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    saved = Explorer(n=1).save_html(tmp_path_factory.mktemp("page") / "digits.html")
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.add_init_script(RECORD)
        page.goto(saved.as_uri())
        yield page


def ends(call):
    """Left, right, top and bottom of what a call draws."""
    x, y, *sizes = call["places"]
    if call["kind"] in ("fillRect", "strokeRect"):
        across, down = sorted([x, x + sizes[0]]), sorted([y, y + sizes[1]])
        return *across, *down
    return x - call["start"], x - call["start"] + call["width"], y, y


@pytest.mark.parametrize("depth", ["", "&depth=tokens"])
@pytest.mark.parametrize("tab", ["matrix", "products", "plane", "norms", "spectra", "metrics", "effect"])
def test_what_is_drawn_lies_inside_its_canvas_and_no_two_texts_on_each_other(page, tab, depth):
    page.evaluate(f"() => {{ location.hash = '#layer=2&head=1&token=5&scale=linear&tab={tab}{depth}'; }}")
    page.wait_for_function(SAYS, arg="Layer 2, head 1")
    page.evaluate(FRAMES)
    canvases = page.evaluate(DRAWN)
    assert len(canvases) >= 3
    for canvas in canvases:
        level = [call for call in canvas["calls"] if not call["turned"]]
        for call in level:
            left, right, top, bottom = ends(call)
            assert all(
                isinstance(end, int | float) and math.isfinite(end) for end in (left, right, top, bottom)
            ), call
            assert left > -2, (canvas["name"], call)
            assert right < canvas["width"] + 2, (canvas["name"], call)
            assert top > -2, (canvas["name"], call)
            assert bottom < canvas["height"] + 2, (canvas["name"], call)
        texts = {(*ends(call), call["size"], call["words"]) for call in level if call["words"].strip()}
        for one, other in combinations(texts, 2):
            apart = one[1] <= other[0] + 1 or other[1] <= one[0] + 1 or abs(one[2] - other[2]) > 0.6 * one[4]
            assert apart, (canvas["name"], one, other)


def test_null_levels_of_the_depth_chart_lie_within_its_axis(page):
    """Of entropy the null lies above every head: the axis ends at the highest of both."""
    page.evaluate("() => { location.hash = '#layer=2&head=1&token=5&sort=attention_entropy'; }")
    page.wait_for_function(SHOWS, arg=[".aw-model .aw-note", "entropy"])
    page.evaluate(FRAMES)
    (chart,) = page.evaluate(
        f"() => ({DRAWN})().filter(({{ calls }}) => calls.some(one => /every head by layer/.test(one.words)))"
    )
    rects = [call["places"] for call in chart["calls"] if call["kind"] == "fillRect"]
    axis = min(top for _, top, _, tall in rects if tall == 1)
    levels = [top for _, top, _, tall in rects if tall == 1.2]
    assert len(levels) == 4
    assert min(levels) > axis - 2
