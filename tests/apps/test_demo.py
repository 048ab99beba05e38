"""`workbench demo`: one page that shows every head and asks no network."""

import json
import re
import webbrowser
from html.parser import HTMLParser

import pytest
from click.testing import CliRunner

import workbench
from tests.browser import needs_chrome
from workbench.apps import demo
from workbench.apps.cli import cli


class Fetched(HTMLParser):
    """Addresses that a page's elements name."""

    def __init__(self, page):
        super().__init__()
        self.found = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found += [value for name, value in attrs if name in {"src", "href", "srcset"}]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page; `tests/test_core_install.py` has the command write it."""
    return demo.write_demo(tmp_path_factory.mktemp("demo") / "heads.html")


def test_it_holds_every_head_of_every_image_and_the_captured_weights(page):
    text = page.read_text(encoding="utf-8")
    data = json.loads(re.search(r"^const data = (.*);$", text, re.MULTILINE)[1])
    heads = {f"layer {layer}, head {head}" for layer in range(4) for head in range(3)}
    for figure in data["maps"]:
        assert {trace["name"] for trace in figure["data"] if trace["type"] == "heatmap"} == heads
        assert len(figure["layout"]["images"]) == 1  # once beside its maps
    assert [grid["layout"]["coloraxis"]["colorbar"]["title"]["text"].split()[0] for grid in data["grids"]] == [
        "Attention", "Mean"
    ]  # fmt: skip
    model = workbench.load(demo.MODEL)
    capture = workbench.capture(model, workbench.inputs(demo.INPUTS, model, n=6), sites=["attn"])
    assert data["attention"] == [demo._packed(capture, input) for input in range(6)]
    assert (data["labels"][0], data["first"], data["columns"]) == ("[CLS]", 1, 8)


def test_it_names_no_other_address(page):
    found = Fetched(page.read_text(encoding="utf-8")).found
    assert len(found) == 6  # the images of the digits
    assert all(address.startswith("data:image/png;base64,") for address in found)


def test_the_code_on_the_page_draws_its_figure():
    names = {}
    exec(
        demo.CODE.replace("attention_heatmap_figure(capture", "drawn = attention_heatmap_figure(capture"),
        names,
    )
    assert sum(trace.type == "heatmap" for trace in names["drawn"].data) == 4 * 3
    assert len(names["drawn"].layout.images) == 1  # the image once beside its maps


@pytest.mark.parametrize(
    ("opens", "said"), [(True, "demo.html\n"), (False, "demo.html: open it in a browser\n")]
)
def test_it_opens_the_page_or_says_where_it_is(monkeypatch, tmp_path, opens, said):
    asked = []
    monkeypatch.setattr("tempfile.mkdtemp", lambda prefix: str(tmp_path))
    monkeypatch.setattr(demo, "write_demo", lambda out: out)
    monkeypatch.setattr(webbrowser, "open", lambda address: asked.append(address) or opens)
    done = CliRunner().invoke(cli, ["demo"])
    assert asked == [(tmp_path / "demo.html").as_uri()]
    assert done.output.endswith(said)


@needs_chrome
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_click_makes_a_patch_the_query(page, scheme):
    pytest.importorskip("playwright.sync_api", reason="drives the browser")
    from tests.apps.explorer.browser import chromium

    asked, wrong = [], []
    with chromium() as browser:
        shown = browser.new_page(color_scheme=scheme, viewport={"width": 1280, "height": 1000})
        shown.set_default_timeout(60_000)
        shown.on("request", lambda request: asked.append(request.url))
        shown.on("pageerror", lambda error: wrong.append(str(error)))
        shown.goto(page.as_uri())
        shown.get_by_text("Attention from [CLS], square-root scale").wait_for()
        box = shown.locator("#maps .draglayer .x2y2 .drag").first.bounding_box()
        shown.mouse.click(box["x"] + box["width"] * 2.5 / 8, box["y"] + box["height"] * 5.5 / 8)
        shown.get_by_text("Attention from 5,2, square-root scale").wait_for()
        assert shown.locator("#query").input_value() == str(1 + 5 * 8 + 2)
        light = shown.evaluate("getComputedStyle(document.querySelector('#maps .ytitle')).fill")
        box = shown.locator("#grid0 .draglayer .drag").first.bounding_box()
        shown.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        shown.wait_for_function("document.querySelectorAll('#grid1 .shapelayer path').length === 2")
    assert wrong == []
    assert [address for address in asked if not address.startswith("data:")] == [page.as_uri()]
    assert light == {"light": "rgb(26, 26, 26)", "dark": "rgb(236, 236, 236)"}[scheme]
