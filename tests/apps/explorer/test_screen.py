"""What a person does on the saved page, each in a real browser: a comparison is exported, a link is asked for, keys."""

import re
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

from tests.apps.explorer.browser import chromium
from tests.apps.explorer.test_page import COLOURS, SAYS, SHOWS, bundle_of
from tests.browser import needs_chrome
from workbench.apps.explorer import Explorer

pytestmark = [pytest.mark.e2e, needs_chrome]


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """The page of two digits, and its bundle."""
    saved = Explorer(n=2).save_html(tmp_path_factory.mktemp("page") / "digits.html", indices=[0, 1])
    return saved.as_uri(), bundle_of(saved.read_text())


@pytest.fixture
def page(browser, digits):
    """The page of the digits, opened at a token of one head; it reports no error."""
    wrong = []
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(f"{digits[0]}#layer=2&head=1&token=5&scale=linear")
    page.wait_for_function(SAYS, arg="Layer 2, head 1")
    yield page
    page.close()
    assert wrong == []


def taken(page, folder, name):
    """The file that a button of the export box writes."""
    with page.expect_download() as download:
        page.get_by_role("button", name=name).click()
    path = folder / download.value.suggested_filename
    download.value.save_as(path)
    return path


def opacities(svg):
    """The opacity of every patch of every image in an exported view, in the order that they are drawn."""
    rects = [one for one in ElementTree.fromstring(svg.read_text()).iter() if one.tag.endswith("rect")]
    return [(one.get("fill"), float(one.get("fill-opacity"))) for one in rects if one.get("fill-opacity")]


def test_a_comparison_is_exported_as_it_is_drawn(page, digits, tmp_path):
    """Both maps and their difference, and the numbers of both."""
    bundle = digits[1]
    page.keyboard.press("m")
    page.evaluate("() => { location.hash = '#layer=1&head=0&token=5&scale=linear&against=0.2.1.5'; }")
    page.wait_for_selector(".aw-compare canvas")
    page.keyboard.press("e")
    shown = opacities(taken(page, tmp_path, "Image, SVG"))
    a, b = (bundle.attention(layer)[head, 5, 1:].astype(float) for layer, head in ((2, 1), (1, 0)))
    opacity = float(page.eval_on_selector(".aw-slider", "box => box.value"))
    limit = max(bundle.attention(layer)[head, 5].max() for layer, head in ((2, 1), (1, 0)))
    change = b - a
    full = np.abs(bundle.attention(1)[0, 5].astype(float) - bundle.attention(2)[1, 5]).max()
    expected = opacity * np.concatenate([a / limit, b / limit, np.abs(change) / full])
    np.testing.assert_allclose([value for _, value in shown[: 3 * 64]], expected, atol=0.006)
    assert len({colour for colour, _ in shown[2 * 64 : 3 * 64]}) == 2  # more here, and more in the pinned view
    rows = pd.read_csv(taken(page, tmp_path, "Attention, CSV"))
    np.testing.assert_allclose(rows["pinned"][1:], a, rtol=1e-6)
    np.testing.assert_allclose(rows["difference"][1:], change, atol=1e-6)
