"""What a person does on the saved page, each in a real browser: a comparison is exported, a link is asked for, keys."""

import base64
import io
import re
import shlex
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import workbench
from tests.apps.explorer.browser import HOST, traits
from tests.apps.explorer.pooled import many_heads, pooled_text
from tests.apps.explorer.test_page import COLOURS, DRAWN, SAYS, SHOWS, bundle_of, percent
from tests.browser import needs_chrome
from tests.captures.multimodal import LOOKING
from tests.folders import gpt2_folder, several_kinds_folder
from workbench.apps.explorer import Explorer, make_bundle
from workbench.apps.explorer.bundle import Bundle, MetricCard
from workbench.apps.explorer.page import page_html
from workbench.apps.explorer.widget import PageWidget
from workbench.captures import capture_generation, token_info
from workbench.captures.token_labels import image_marks
from workbench.data.batches import Inputs

pytestmark = [pytest.mark.e2e, needs_chrome]


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
    assert (
        len({colour for colour, _ in shown[2 * 64 : 3 * 64]}) == 2
    )  # more here, and more in the pinned view
    rows = pd.read_csv(taken(page, tmp_path, "Attention, CSV"))
    np.testing.assert_allclose(rows["pinned"][1:], a, rtol=1e-6)
    np.testing.assert_allclose(rows["difference"][1:], change, atol=1e-6)


def test_keys_are_heard_after_a_click_on_pin_which_a_second_click_undoes(page):
    page.get_by_role("button", name="Pin to compare", exact=True).click()
    page.wait_for_selector(".aw-pin")
    page.wait_for_function(SHOWS, arg=[".aw-follows", "Pinned: choose another head"])
    page.keyboard.press("ArrowUp")
    page.wait_for_function(SAYS, arg="Layer 1, head 1")
    page.get_by_role("button", name="Compare with layer 2, head 1", exact=True).click()
    page.wait_for_selector(".aw-compare canvas")
    assert page.get_by_role("button", name="Compare with layer 2, head 1", exact=True).is_hidden()
    page.keyboard.press("Escape")
    page.wait_for_function("() => !document.querySelector('.aw-compare')")
    page.keyboard.press("ArrowDown")
    page.get_by_role("button", name="Pinned", exact=True).click()
    page.wait_for_function("() => !document.querySelector('.aw-pin')")


def test_a_tooltip_names_the_locked_token_and_goes_with_the_next_key(page):
    box = page.locator(".aw-stage canvas").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_function(SHOWS, arg=[".aw-tip:not([hidden])", "locked: "])
    page.keyboard.press("ArrowUp")
    page.wait_for_function(SAYS, arg="Layer 1, head 1")
    assert page.locator(".aw-tip").is_hidden()


def test_the_matrix_of_several_heads_is_their_mean(page, digits):
    page.evaluate("() => { location.hash = '#layer=2&head=1&token=5&with=1.0'; }")
    page.wait_for_function(SAYS, arg="Mean of 2 heads")
    mean = (digits[1].attention(2)[1].astype(float) + digits[1].attention(1)[0]) / 2
    page.wait_for_function(SHOWS, arg=[".aw-evidence .aw-note", "Mean of 2 heads."])
    said = page.text_content(".aw-evidence .aw-note")
    assert float(re.search(r"largest ([\d.]+)\.", said).group(1)) == pytest.approx(mean.max(), abs=1e-3)


def test_the_first_hover_leaves_every_patch_where_it_is(browser, digits):
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto(digits[0])
    page.wait_for_selector(".aw-suggestions:not([hidden]) button")
    box = page.locator(".aw-stage canvas").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 3.5 / 8, box["y"] + box["height"] * 5.5 / 8)
    page.wait_for_function(SAYS, arg="from patch 5,3,")
    assert page.locator(".aw-stage canvas").bounding_box() == box
    page.close()


def test_a_pattern_of_the_list_is_that_of_bars_and_depth(page):
    page.locator(".aw-leaders .aw-leader", has_text="local").click()
    page.wait_for_function(SHOWS, arg=[".aw-model .aw-note", "Bar: local"])


def test_pictures_of_all_layers_share_the_scale_of_the_grid(page):
    full = re.search(r"full colour at ([\d.]+)", page.text_content(".aw-model .aw-note")).group(1)
    page.wait_for_function(SHOWS, arg=[".aw-depth h2", f"full colour at {full}"])


@pytest.fixture(scope="module")
def twelve(browser, tmp_path_factory):
    """A page of 12 × 12 heads on the first 40 of 3452 tokens, with attention and nothing else."""
    path = tmp_path_factory.mktemp("twelve") / "twelve.html"
    path.write_text(page_html(many_heads(12, 12, 40, 3452), "twelve"))
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto(path.as_uri())
    page.wait_for_function(SAYS, arg="ayer 11, head ")
    yield page
    page.close()


def test_all_rows_of_twelve_layers_are_in_view(twelve):
    tall, room = twelve.eval_on_selector(".aw-grid", "one => [one.offsetHeight, one.parentNode.clientHeight]")
    assert tall <= room
    assert twelve.evaluate(COLOURS, ".aw-grid") > 20


def test_a_part_of_a_text_is_called_one(twelve):
    assert "tokens 1–40 of 3452" in twelve.text_content(".aw-top")


def test_tabs_without_anything_are_grey_and_give_the_reason(twelve):
    grey = twelve.eval_on_selector_all(".aw-tabs .aw-nothing", "all => all.map(one => one.textContent)")
    assert grey == ["q·k", "Plane", "Spectra", "Metrics", "Effect", "Membership", "Card"]
    twelve.get_by_role("tab", name="q·k").click()
    twelve.wait_for_function(SHOWS, arg=[".aw-empty", "no queries and keys of this layer"])


def test_the_address_of_a_page_of_its_own_holds_the_whole_view(browser, digits):
    """Both tokens, direction, scale and tab; the server's own token is no part of it, and keys need no click."""
    widget = PageWidget(digits[1])
    page = browser.new_page()
    page.route("**/*", lambda route: route.fulfill(body="<body data-voila>", content_type="text/html"))
    page.goto("http://localhost/?token=3&layer=1&head=0&query=5,9&direction=to&scale=log&tab=norms")
    page.evaluate(HOST, [widget._esm, widget._css, traits(widget), base64.b64encode(widget.content).decode()])
    page.wait_for_function("() => location.search.includes('query=5%2C9&')")
    page.wait_for_function("() => model.get('scale') === 'log'")
    assert page.evaluate("() => ['tokens', 'direction', 'tab'].map(model.get)") == [[5, 9], "to", "norms"]
    assert "&token=" not in page.evaluate("() => location.search")
    page.keyboard.press("s")
    page.wait_for_function("() => location.search.includes('scale=ratio')")
    page.close()


def test_two_clicks_rank_the_heads_that_link_two_patches(page, digits):
    """The first locks a patch, the second asks: the numbers of `find_link`, strongest first, and a click on a head.

    What is written is the share of `value-output`, of values after the output projection.
    """
    model = workbench.load("bundled:digits-vit")
    inputs = workbench.inputs("bundled:digits", model, n=2)[:1]
    links = workbench.find_link(workbench.capture(model, inputs, sites=["attn", "v"]), 30, 21)
    norms = workbench.analyze("value-output", model, inputs, per="pair", query=30)
    norms = norms.pivot_table(index=["layer", "head"], columns="key", values="value")
    shares = norms[21] / norms.sum(axis=1)
    box = page.locator(".aw-stage canvas").bounding_box()
    for patch in (29, 20):
        across, down = (patch % 8 + 0.5) / 8, (patch // 8 + 0.5) / 8
        page.mouse.click(box["x"] + across * box["width"], box["y"] + down * box["height"])
    page.mouse.move(2, 2)
    page.wait_for_function("() => location.hash.includes('token=30&link=21')")
    page.wait_for_function("() => document.querySelectorAll('.aw-linking .aw-leader').length === 12")
    rows = page.eval_on_selector_all(
        ".aw-linking .aw-leader", "all => all.map(one => [...one.children].map(part => part.textContent))"
    )
    hints = page.eval_on_selector_all(".aw-linking .aw-leader", "all => all.map(one => one.title)")
    for (name, p, _, value), hint, link in zip(rows, hints, links.itertuples(), strict=True):
        assert name == f"layer {link.layer}, head {link.head}"
        assert float(p.removeprefix("p ")) == pytest.approx(link.p, abs=6e-4)
        assert float(value.rstrip("\u00a0%")) / 100 == pytest.approx(link.attention, rel=0.03, abs=6e-5)
        numbers = [float(each) for each in re.findall(r"([\d.]+) ×", hint)]
        assert numbers == pytest.approx([link.ratio, link.null_mean, link.null_high], rel=6e-3, abs=6e-4)
        written = float(re.search(r"value writes: ([\d.]+)\u00a0% of the row", hint).group(1)) / 100
        assert written == pytest.approx(shares[link.layer, link.head], rel=0.03, abs=6e-5)
    page.locator(".aw-linking .aw-leader").first.click()
    first = links.iloc[0]
    page.wait_for_function(SAYS, arg=f"Layer {first.layer:.0f}, head {first['head']:.0f}: patch ")
    assert f"{percent(first.attention)} of its attention" in page.text_content(".aw-headline")
    suggested = page.locator(".aw-suggestions button").first.text_content()
    assert suggested == f"layer {first.layer:.0f}, head {first['head']:.0f} ({percent(first.attention)})"
    page.keyboard.press("Escape")
    page.wait_for_function(SAYS, arg="from all queries (mean), ")
    assert page.locator(".aw-linking").count() == 0


def test_a_key_that_the_mask_hides_is_called_masked(browser, tmp_path):
    """In headline, list, matrix and both tooltips; the question the other way is one click."""
    bundle = many_heads(1, 2, 8, 0)
    attn = np.tril(bundle.arrays["inputs.0.layers.0.attn"].astype(float)) + np.eye(8)
    bundle.arrays["inputs.0.layers.0.attn"] = (attn / attn.sum(-1, keepdims=True)).astype(np.float16)
    path = tmp_path / "page.html"
    path.write_text(page_html(bundle, "masked"))
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto(f"{path.as_uri()}#layer=0&head=0&token=2&link=5")
    page.wait_for_function(SAYS, arg="masked: “w2” cannot see “w5”, which comes later")
    assert "the mask hides this key" in page.text_content(".aw-linking h3")
    assert page.locator(".aw-linking .aw-leader").count() == 0
    box = page.locator(".aw-matrix").bounding_box()
    for query, key, said in ((1, 6, "masked"), (6, 1, "\u00a0%")):
        page.mouse.move(
            box["x"] + box["width"] * (key + 0.5) / 8, box["y"] + box["height"] * (query + 0.5) / 8
        )
        page.wait_for_function(SHOWS, arg=[".aw-tip:not([hidden]) b", said])
    clear = page.evaluate(
        """() => {
          const canvas = document.querySelector(".aw-matrix");
          const side = canvas.width;
          const alpha = (x, y) => canvas.getContext("2d").getImageData(x * side, y * side, 1, 1).data[3];
          return [alpha(0.8, 0.1), alpha(0.1, 0.6)];
        }"""
    )
    assert clear == [0, 255]
    page.locator(".aw-token", has_text="w7").hover()
    page.wait_for_function(SHOWS, arg=[".aw-tip:not([hidden])", "masked: “w2” cannot see “w7”"])
    page.get_by_role("button", name="which heads link “w5” to “w2”?").click()
    page.wait_for_function(SAYS, arg=" of its attention to “w2”")
    page.close()


def test_two_words_of_a_pooled_text_are_linked_by_means_and_the_page_says_so(browser, tmp_path):
    """The numbers are those of the cells that hold them, strongest head first."""
    bundle = pooled_text(1200, 5)
    path = tmp_path / "page.html"
    path.write_text(page_html(bundle, "pooled"))
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto(f"{path.as_uri()}#layer=0&head=0&token=700&link=90")
    page.wait_for_selector(".aw-linking .aw-leader")
    rows = page.eval_on_selector_all(
        ".aw-linking .aw-leader", "all => all.map(one => [...one.children].map(part => part.textContent))"
    )
    cell = bundle.attention(0).astype(float)[:, 700 * 512 // 1200, 90 * 512 // 1200]
    order = np.argsort(-cell)
    assert [row[0] for row in rows] == [f"layer 0, head {head}" for head in order]
    assert [row[3] for row in rows] == [percent(cell[head]) for head in order]
    assert "(means of 2.3 × 2.3 tokens)" in page.text_content(".aw-linking h3")
    said = page.text_content(".aw-headline")
    assert said.startswith(f"Layer 0, head 0: “w700” gives {percent(cell[0])} of its attention to “w90”")
    assert "(these are means of 2.3 × 2.3 tokens, the link itself is not in the file)" in said
    page.close()


def test_the_page_opens_at_the_largest_multiple_of_a_null_level_and_suggests_three_views(browser, digits):
    address, bundle = digits
    best = max(
        (
            bundle.metric(card.name)[layer, head] / bundle.metric(card.name, "null_mean")[layer, head],
            layer,
            head,
        )
        for card in bundle.header.metrics
        if card.short and card.null
        for layer in range(4)
        for head in range(3)
        if bundle.metric(card.name)[layer, head]
        > np.fmax(
            bundle.metric(card.name, "null_high")[layer, head],
            bundle.metric(card.name, "null_mean")[layer, head] + 0.05,
        )
    )
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto(address)
    page.wait_for_function(SAYS, arg=f"Layer {best[1]}, head {best[2]}: ")
    words = page.text_content(".aw-suggestions")
    assert float(re.search(r"is ([\d.]+)\u00a0× its null level", words).group(1)) == pytest.approx(
        best[0], rel=6e-3
    )
    matrix = bundle.attention(best[1])[best[2]].astype(float)
    np.fill_diagonal(matrix, 0)
    query = np.unravel_index(matrix.argmax(), matrix.shape)[0]
    assert f"token={query}" in page.evaluate("() => location.hash")
    assert page.locator(".aw-suggestions button").count() == 3
    page.locator(".aw-suggestions button").last.click()
    page.wait_for_selector(".aw-linking")
    page.close()


@pytest.mark.parametrize("name", ["t5", "clip"])
def test_layers_of_other_streams_show_their_own_tokens(browser, tmp_path, name):
    """A decoder's cross attention as a matrix over the encoder's words, a second tower over its image."""
    folder = several_kinds_folder(tmp_path / name, name)
    saved = Explorer(f"hf:{folder}", n=1).save_html(tmp_path / "page.html", ablations=False)
    bundle = bundle_of(saved.read_text())
    card, layers = bundle.header.inputs[0], bundle.header.layers
    assert [layer.without for layer in layers] == [""] * len(layers)
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    cross = name == "t5"
    layer = 3 if cross else 1
    page.goto(f"{saved.as_uri()}#layer={layer}&head=1&token={'all' if cross else 3}&scale=linear")
    row = bundle.attention(layer)[1].astype(float)
    row = row.mean(0) if cross else row[3]
    labels = card.labels if cross else card.streams[0].labels
    who = "all queries of the other stream (mean)" if cross else f"patch {labels[3]}"
    page.wait_for_function(SAYS, arg=f"Layer {layer}, head 1: from {who}, the most attention goes to ")
    times = re.search(r"([\d.]+)\u00a0× uniform", page.text_content(".aw-headline")).group(1)
    assert float(times) == pytest.approx(row.max() * len(row), rel=0.05)
    most = page.eval_on_selector(".aw-most .aw-leader", "one => Number(one.children[1].textContent)")
    assert row[most] == pytest.approx(row.max(), rel=1e-3)
    assert page.evaluate(COLOURS, ".aw-matrix") > 20
    assert [(card.queries, card.keys) for card in layers[-2:]] == (
        [(1, 1), (1, 0)] if cross else [(0, 0), (0, 0)]
    )
    page.evaluate("() => { location.hash = '#layer=2&head=0'; }")
    page.wait_for_function(SAYS, arg="Layer 2, head 0: from ")
    shown = page.eval_on_selector_all(".aw-text .aw-token", "all => all.length")
    assert shown == len(card.streams[0].labels if cross else card.labels)
    page.close()


@pytest.mark.parametrize(
    ("direction", "scale", "theme"),
    [("from", "linear", "light"), ("to", "sqrt", "dark"), ("from", "log", "dark")],
)
def test_exported_pictures_have_the_pixels_of_the_page(page, digits, tmp_path, direction, scale, theme):
    """The head view patch by patch, in its colours; the grid of heads pixel by pixel."""
    page.evaluate(
        f"() => {{ location.hash = '#layer=2&head=1&token=5,9&direction={direction}&scale={scale}'; }}"
    )
    if theme == "dark":
        page.get_by_role("button", name="Dark", exact=True).click()
    page.wait_for_function(SAYS, arg="2 tokens")
    page.keyboard.press("e")
    shown = np.array(page.evaluate(DRAWN, [8, 8]))[:, :3].astype(float)
    file = taken(page, tmp_path, "Image, SVG").read_text()
    top = float(re.search(r"translate\(20,([\d.]+)\)", file).group(1))
    picture = np.asarray(Image.open(taken(page, tmp_path, "Image, PNG")).convert("RGB")).astype(float)
    centres = [(top + 680 * (i // 8 + 0.5) / 8, 20 + 680 * (i % 8 + 0.5) / 8) for i in range(64)]
    exported = np.array([picture[round(2 * down), round(2 * across)] for down, across in centres])
    assert np.abs(exported - shown).max() <= 2
    words = [one.text for one in ElementTree.fromstring(file).iter() if one.tag.endswith("text")]
    assert "digits-vit · layer 2, head 1 · digits/test/1647" in words
    scale_name = {
        "linear": "attention",
        "sqrt": "attention (square-root scale)",
        "log": "attention (logarithmic scale)",
    }
    assert scale_name[scale] in words
    grid = np.asarray(Image.open(taken(page, tmp_path, "All heads, PNG")).convert("RGB")).astype(int)
    assert grid.shape[1] >= 1400
    content = page.eval_on_selector(".aw-grid", "one => one.toDataURL()").partition(",")[2]
    drawn = np.asarray(Image.open(io.BytesIO(base64.b64decode(content))).convert("RGB")).astype(int)
    side = (len(drawn) - 16) / 4 - 10  # four rows of cells, each with a bar and gaps
    for layer, head in ((0, 1), (1, 1), (3, 2)):  # not the one that has a frame
        places = [((i // 8 + 0.5) / 8, (i % 8 + 0.5) / 8) for i in range(64)]
        small, large = (
            np.array(
                [
                    picture[
                        round(times * (above + 16 + layer * (size + 10) + down * size)),
                        round(times * (before + 24 + head * (size + 3) + across * size)),
                    ]
                    for down, across in places
                ]
            )
            for picture, size, times, above, before in ((drawn, side, 1, 0, 0), (grid, 176, 2, 78, 20))
        )
        assert np.abs(small - large).max() <= 2
        assert len(np.unique(large, axis=0)) > 5


def grey_image_with_words(model):
    """A model with words and a grey image as an input; the first of its batch."""
    module, batch = model.build(), model.batch()
    packed = batch["pixel_values"].ndim == 2
    one = {
        name: value[: len(value) // 2] if packed and name == "pixel_values" else value[:1]
        for name, value in batch.items()
    }
    tokens = token_info(module, one)
    ((rows, columns),) = tokens.image_grids[0]
    image = np.full((16 * rows, 16 * columns, 3), 128, np.uint8)
    packs = {"pixel_values": [len(one["pixel_values"])]} if packed else {}
    inputs = Inputs(
        "grey", 1, 0, "model", ["grey"], one, tokens, [image], ["words"], digests=[b"grey"], rows=packs
    )
    return workbench.wrap(module, name=model.name), inputs


@pytest.fixture(scope="module")
def looking(browser):
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    yield page
    page.close()


@pytest.mark.parametrize("model", LOOKING, ids=lambda model: model.name)
def test_attention_of_a_word_lies_over_the_image(looking, tmp_path, model):
    """Hovered, each word of the prompt colours most the cell whose label its attention goes to most."""
    page = looking
    bundle = make_bundle(*grey_image_with_words(model), ablations=False, measured=False)
    card, layer = bundle.header.inputs[0], bundle.header.layers[-1]
    rows, columns = card.grid
    path = tmp_path / "page.html"
    path.write_text(page_html(bundle, model.name))
    page.goto(f"{path.as_uri()}#layer={layer.index}&head=1&scale=linear")
    page.wait_for_selector(".aw-prompt .aw-token")
    attention = bundle.attention(layer.index)[1].astype(float)
    patches = [token for token, kind in enumerate(card.kinds) if kind == "patch"]
    words = page.locator(".aw-prompt .aw-token")
    asked = [int(token) for token in words.evaluate_all("all => all.map(one => one.dataset.token)")]
    assert asked == [token for token in range(len(card.labels)) if card.real[token] and token not in patches]
    for place, token in enumerate(asked):
        if not attention[token, patches].any():  # a word before the image
            continue
        words.nth(place).hover()
        page.wait_for_function(
            "token => document.querySelector(`[data-token='${token}']`).matches('.aw-asked')", arg=token
        )
        drawn = np.array(page.evaluate(DRAWN, [rows, columns])).astype(float)
        row, column = divmod(int((drawn[:, 2] - drawn[:, 0]).argmax()), columns)
        assert card.labels[patches[int(attention[token, patches].argmax())]] == f"{row},{column}"


@pytest.mark.parametrize("name", ["llava", "smolvlm", "qwen2.5-vl"])
def test_each_step_of_an_answer_lies_over_the_image_that_it_is_about(looking, tmp_path, name):
    """The cell of full colour is the patch with most attention when the word was chosen."""
    page = looking
    image = np.random.default_rng(0).integers(0, 256, (48, 64, 3), np.uint8)
    explorer = Explorer(f"hf:{several_kinds_folder(tmp_path / name, name)}", [(image, "w1 w2 w3")])
    saved = explorer.save_html(tmp_path / "page.html", generate=3, ablations=False)
    bundle = bundle_of(saved.read_text())
    card, layer = bundle.header.inputs[0], bundle.header.layers[-1]
    rows, columns = card.grid
    patches = [token for token, kind in enumerate(card.kinds) if kind == "patch"]
    assert (card.generated, len(patches)) == (3, rows * columns)
    model, sample = (getattr(explorer.material, name)(explorer.location) for name in ("model", "one"))
    greedy = {"do_sample": False, "suppress_tokens": image_marks(model.module)}
    steps = capture_generation(model, sample, 3, sites=["attn"], **greedy)
    chosen = next(record for record in steps if record.index == layer.index).attn[0, 1]
    page.goto(f"{saved.as_uri()}#layer={layer.index}&head=1&scale=linear&token={len(card.labels) - 4}")
    for step in range(3):
        page.wait_for_function(SHOWS, arg=[".aw-steps", f"Step {step + 1} of 3"])
        page.wait_for_function("() => document.querySelector('.aw-prompt .aw-fresh')")
        drawn = np.array(page.evaluate(DRAWN, [rows, columns])).astype(float)
        row, column = divmod(int((drawn[:, 2] - drawn[:, 0]).argmax()), columns)
        most = patches[int(chosen[step][patches].argmax())]
        assert card.labels[most] == f"{row},{column}"
        page.get_by_label("next step").click()


def test_sinks_are_taken_out_of_the_picture_of_a_text(browser, tmp_path):
    """A key with more than 0.3 of a head's attention has no colour, and the next one has full colour."""
    bundle = many_heads(1, 2, 7, 0)
    attn = bundle.arrays["inputs.0.layers.0.attn"].astype(float)
    attn[1, :, 2] = 1.5
    attn[1] /= attn[1].sum(-1, keepdims=True)
    bundle.arrays["inputs.0.layers.0.attn"] = attn.astype(np.float16)
    path = tmp_path / "page.html"
    path.write_text(page_html(bundle, "sinks"))
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto(f"{path.as_uri()}#layer=0&head=1&token=4&scale=linear")
    page.wait_for_function(SAYS, arg="most attention goes to “w2”")
    page.get_by_role("button", name="Hide sinks", exact=True).click()
    following = int(np.argsort(attn[1, 4])[-2])
    page.wait_for_function(SAYS, arg=f"most attention goes to “w{following}”")
    assert "Taken out: “w2”." in page.text_content(".aw-follows")
    assert page.get_by_role("button", name="Show sinks", exact=True).count() == 1
    colour = "token => document.querySelector(`[data-token='${token}']`).style.backgroundColor"
    assert page.evaluate(colour, 2) == ""
    assert page.evaluate(colour, following).endswith("0.9)")
    assert "sinks=off" in page.evaluate("() => location.hash")
    page.close()


def test_what_a_head_writes_is_drawn_in_words_matrix_and_address(browser, tmp_path):
    """A key with a long value leads over the most attended one; a layer without the norms greys the choice."""
    bundle = many_heads(2, 2, 7, 0)
    attn = bundle.arrays["inputs.0.layers.0.attn"].astype(float)
    attended = int(attn[1, 4].argmax())
    leading = (attended + 1) % 7
    norms = np.ones((2, 7), np.float32)
    norms[1, leading] = 2 * attn[1, 4, attended] / attn[1, 4, leading]
    bundle.arrays["inputs.0.layers.0.norms.written"] = norms
    share = attn[1, 4] * norms[1] / (attn[1, 4] * norms[1]).sum()
    path = tmp_path / "page.html"
    path.write_text(page_html(bundle, "written"))
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto(f"{path.as_uri()}#layer=0&head=1&token=4&scale=linear")
    page.wait_for_function(SAYS, arg=f"most attention goes to “w{attended}”")
    choice = page.get_by_role("button", name="what it writes", exact=True)
    choice.click()
    page.wait_for_function(SAYS, arg=f"“w{leading}” has the largest share: {percent(share[leading])}")
    address = page.url
    assert "weights=written" in address
    opacity = "token => document.querySelector(`[data-token='${token}']`).style.backgroundColor"
    assert page.evaluate(opacity, leading).endswith("0.9)")
    assert "Share of the summed norms that the head writes" in page.text_content(".aw-evidence .aw-note")
    page.keyboard.press("e")
    rows = pd.read_csv(taken(page, tmp_path, "Attention, CSV"))
    np.testing.assert_allclose(rows["written"], share, rtol=2**-10)
    page.goto("about:blank")
    page.goto(address)
    page.wait_for_function(SAYS, arg=f"“w{leading}” has the largest share")
    page.goto(f"{path.as_uri()}#layer=1&head=1&token=4&weights=written")
    page.wait_for_function(SAYS, arg="no norms of values after the output projection of layer 1")
    assert choice.is_disabled()
    page.get_by_role("button", name="attention", exact=True).click()
    page.wait_for_function(SAYS, arg="most attention goes to")
    page.close()


def test_no_line_breaks_within_a_word(browser, tmp_path):
    """Of a model of characters: the letters of a word stand on one line."""
    text = "The tide went out and the boats lay on the sand beside the harbour wall"
    saved = Explorer("bundled:prose-softmax", [text]).save_html(tmp_path / "page.html", ablations=False)
    page = browser.new_page(viewport={"width": 390, "height": 844})
    page.goto(saved.as_uri())
    page.wait_for_selector(".aw-text .aw-token")
    tops = page.eval_on_selector_all(".aw-text .aw-token", "all => all.map(one => one.offsetTop)")
    assert len(tops) == len(text)
    assert len(set(tops)) > 1
    for word in re.finditer(r"\S+", text):
        assert len(set(tops[word.start() : word.end()])) == 1, word.group()
    page.close()


def by_ratio(times):
    """Share of full colour at a multiple of uniform attention: none up to 1, full from 16."""
    return np.clip(np.log(np.maximum(times, 1e-9)) / np.log(16), 0, 1)


def test_colour_by_ratio_is_transparent_at_uniform_attention_and_full_at_sixteen_times(
    page, digits, tmp_path
):
    page.evaluate("() => { location.hash = '#layer=1&head=1&token=0&scale=ratio'; }")
    page.wait_for_function(SHOWS, arg=[".aw-depth h2", "no colour at 1 × uniform, full at 16 ×"])
    page.keyboard.press("e")
    shown = [value for _, value in opacities(taken(page, tmp_path, "Image, SVG"))[:64]]
    opacity = float(page.eval_on_selector(".aw-slider", "box => box.value"))
    expected = opacity * by_ratio(65 * digits[1].attention(1)[1, 0, 1:].astype(float))
    assert (expected == 0).any()
    assert (expected == opacity).any()
    np.testing.assert_allclose(shown, expected, atol=0.006)


def test_colour_by_ratio_to_a_word_counts_the_keys_that_each_query_may_see(browser, tmp_path):
    bundle = many_heads(1, 1, 8, 0)
    attn = np.tril(bundle.arrays["inputs.0.layers.0.attn"].astype(float))
    attn /= attn.sum(-1, keepdims=True)
    bundle.arrays["inputs.0.layers.0.attn"] = attn.astype(np.float16)
    path = tmp_path / "page.html"
    path.write_text(page_html(bundle, "ratio"))
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto(f"{path.as_uri()}#layer=0&head=0&token=1&direction=to&scale=ratio")
    page.wait_for_function(SAYS, arg="to “w1”")
    colours = page.eval_on_selector_all(
        ".aw-text .aw-token", "all => all.map(one => one.style.backgroundColor)"
    )
    shown = [
        float(colour.rstrip(")").split(",")[3]) if colour.startswith("rgba") else 0.9 * bool(colour)
        for colour in colours
    ]
    expected = 0.9 * by_ratio(attn[0, :, 1] * np.arange(1, 9))
    np.testing.assert_allclose(shown, np.where(expected > 0.01, expected, 0), atol=0.006)
    page.close()


def test_a_slider_goes_through_the_checkpoints_of_a_training(browser, tmp_path):
    """Each checkpoint shows its own attention; layer, head and token stay."""
    explorer = Explorer("bundled:digits-vit", n=2, layer=1, head=2, token=7)
    saved = explorer.save_html(
        tmp_path / "page.html", layers=[1], indices=[0, 1], ablations=False, checkpoints=True
    )
    bundle = bundle_of(saved.read_text())
    cards = bundle.header.inputs
    names = sorted({card.checkpoint for card in cards})
    assert (len(cards), len(names), cards[0].checkpoint) == (20, 10, names[-1])
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto(f"{saved.as_uri()}#layer=1&head=2&token=7&input=1")
    slider = page.get_by_label("checkpoint of the training")
    model = workbench.load("bundled:digits-vit@epoch-000")
    digit = workbench.inputs("bundled:digits", model, n=2)[1:2]
    for place, name in ((0, "epoch-000"), (9, names[-1])):
        slider.fill(str(place))
        page.wait_for_function(SHOWS, arg=[".aw-training", f"{name} ({place + 1} of 10)"])
        index = next(i for i, card in enumerate(cards) if (card.id, card.checkpoint) == (cards[1].id, name))
        row = bundle.attention(1, index)[2, 7].astype(float)
        if name == "epoch-000":
            captured = workbench.capture(model, digit, sites=["attn"])[1].attn[0, 2, 7].numpy()
            np.testing.assert_allclose(row, captured, atol=5e-4)
        most = cards[1].labels[int(row.argmax())]
        page.wait_for_function(
            SAYS,
            arg=f"Layer 1, head 2: from patch {cards[1].labels[7]}, the most attention goes to patch {most}",
        )
        assert cards[1].id in page.text_content(".aw-top")
    assert page.locator(".aw-input").count() == 2
    page.close()


@pytest.mark.parametrize(("wide", "query"), [(700, ""), (740, "?embed"), (380, "")])
def test_a_page_in_a_frame_shows_the_grid_and_one_head(browser, digits, tmp_path, wide, query):
    """Without bars; a click on the grid still chooses the head."""
    frame = f'<iframe src="{digits[0]}{query}" width="{wide}" height="460"></iframe>'
    outer = tmp_path / "post.html"
    outer.write_text(f"<!doctype html><body>{frame}")
    page = browser.new_page(viewport={"width": 1000, "height": 700})
    page.goto(outer.as_uri())
    inner = page.frame_locator("iframe")
    inner.locator(".aw-embed .aw-headline:not(:empty)").wait_for()
    shown = {
        name: inner.locator(f".aw-{name}").is_visible()
        for name in ("model", "centre", "top", "evidence", "depth", "leaders")
    }
    assert [name for name, is_shown in shown.items() if is_shown] == ["model", "centre"]
    grid, head = (inner.locator(f".aw-{name}").bounding_box() for name in ("model", "centre"))
    assert grid["x"] + grid["width"] <= head["x"] or grid["y"] + grid["height"] <= head["y"]
    canvas = inner.locator(".aw-grid").bounding_box()
    inner.locator(".aw-grid").click(position={"x": 32, "y": 24})
    assert canvas["width"] > 100
    inner.locator(".aw-headline", has_text="Layer 0, head 0").wait_for()
    page.close()


def test_a_wide_page_of_its_own_is_whole(page):
    assert page.locator(".aw-embed").count() == 0
    assert page.locator(".aw-evidence").is_visible()


def test_nothing_jumps_while_the_steps_of_a_text_are_played(browser, tmp_path):
    folder = gpt2_folder(tmp_path / "gpt2")
    explorer = Explorer(f"hf:{folder}", ["the harbour was quiet"])
    saved = explorer.save_html(tmp_path / "page.html", generate=5, ablations=False)
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto(saved.as_uri())
    tops = []
    for step in range(1, 6):
        page.wait_for_function(SHOWS, arg=[".aw-steps", f"Step {step} of 5"])
        tops.append(page.eval_on_selector(".aw-stage", "one => one.offsetTop"))
        page.get_by_label("next step").click()
    assert tops == tops[:1] * 5
    page.close()


def test_a_form_filters_heads_by_a_metric_and_a_number(page, digits):
    """Above a number of one metric: those heads stay, also while the bars show another."""
    bundle = digits[1]
    scores = bundle.metric("pattern_local")
    bound = float(np.quantile(scores, 0.7).round(3))
    page.get_by_role("button", name="Filter", exact=True).click()
    page.get_by_label("filter: metric").select_option("pattern_local")
    page.get_by_label("filter: number").fill(str(bound))
    written = "words => document.querySelector('.aw-find').value === words"
    page.wait_for_function(written, arg=f"local > {bound}")
    page.locator(".aw-select[aria-label='order of heads']").select_option("attention_sink")
    page.wait_for_function(SHOWS, arg=[".aw-model .aw-note", "Bar: sink"])
    assert (scores > bound).sum() == 4
    page.get_by_label("filter: above or below").select_option("<")
    page.get_by_label("filter: number").fill("-1")
    page.wait_for_function(SHOWS, arg=[".aw-model .aw-note", "No head matches “local < -1”"])


def test_examples_of_the_search_find_heads(page, digits):
    """As its field names them, in whatever case: the number of heads that match is counted with numpy."""
    bundle = digits[1]
    sink, null = (bundle.metric("attention_sink", which) for which in ("value", "null_mean"))
    above = (sink > null + 0.05) | (sink == sink.max())
    entropy = bundle.metric("attention_entropy") > 3.9
    for words, match in (("SINK", above), ("Entropy > 3.9", entropy)):
        page.locator(".aw-find").fill(words)
        assert 0 < match.sum() < 12
        said = f"{match.sum()} of 12 heads match “{words}”."
        page.wait_for_function(SHOWS, arg=[".aw-model .aw-note", said])


def test_enter_goes_to_the_heads_that_match_one_after_another(page, digits):
    scores = digits[1].metric("pattern_local")
    bound = float(np.quantile(scores, 0.7).round(3))
    page.locator(".aw-find").fill(f"local > {bound}")
    matches = [tuple(map(int, place)) for place in np.argwhere(scores > bound)]
    assert len(matches) == 4
    for layer, head in [*matches, matches[0]]:
        page.locator(".aw-find").press("Enter")
        page.wait_for_function(SAYS, arg=f"Layer {layer}, head {head}: ")


def test_the_help_opens_at_its_start(browser, digits):
    page = browser.new_page(viewport={"width": 900, "height": 420})
    page.goto(digits[0])
    page.get_by_role("button", name="?", exact=True).click()
    page.wait_for_selector(".aw-keys[open]")
    tall, room, top = page.eval_on_selector(
        ".aw-keys", "one => [one.scrollHeight, one.clientHeight, one.scrollTop]"
    )
    assert tall > room
    assert top == 0
    page.keyboard.press("Escape")
    page.wait_for_selector(".aw-keys", state="hidden")
    page.close()


@pytest.mark.parametrize(("wide", "tall"), [(1280, 800), (1440, 900), (768, 1024), (390, 844)])
def test_no_row_and_no_name_of_the_heads_is_cut(browser, tmp_path, wide, tall):
    """Heads in order of a score: the list ends between two rows. Names of patterns and of the model are whole."""
    folder = gpt2_folder(tmp_path / "gpt2")
    saved = Explorer(f"hf:{folder}", ["the harbour was quiet"]).save_html(
        tmp_path / "page.html", ablations=False
    )
    page = browser.new_page(viewport={"width": wide, "height": tall})
    page.goto(saved.as_uri())
    page.wait_for_selector(".aw-leaders .aw-leader")
    cut = "all => all.filter(one => one.scrollWidth > one.clientWidth + 1).map(one => one.textContent)"
    assert (
        page.eval_on_selector_all(".aw-leaders .aw-leader .aw-name, .aw-top h1, .aw-top .aw-facts", cut) == []
    )
    page.locator(".aw-select[aria-label='order of heads']").select_option("attention_sink")
    page.wait_for_function(SHOWS, arg=[".aw-model .aw-note", "highest score first"])
    page.wait_for_timeout(200)
    end, last = page.eval_on_selector(".aw-grid-scroll", "one => [one.clientHeight, one.scrollHeight]")
    assert end == last
    page.close()


def test_rows_of_many_heads_in_order_end_between_two(browser, tmp_path):
    bundle = many_heads(24, 16, 6, 0)
    card = MetricCard(
        name="spread", label="Spread", short="", definition="", source="", unit="", low=0, high=1, null=""
    )
    header = bundle.header.model_copy(update={"metrics": [card]})
    scores = np.random.default_rng(1).random((24, 16))
    path = tmp_path / "page.html"
    path.write_text(
        page_html(Bundle(header, {**bundle.arrays, "inputs.0.metrics.spread.value": scores}), "many")
    )
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.goto(f"{path.as_uri()}#layer=0&head=0&sort=spread")
    page.wait_for_function(SHOWS, arg=[".aw-model .aw-note", "highest score first"])
    page.wait_for_timeout(200)
    room, tall = page.eval_on_selector(".aw-grid-scroll", "one => [one.clientHeight, one.scrollHeight]")
    assert tall > room  # 384 heads are scrolled
    blank = """room => {
      const canvas = document.querySelector(".aw-grid");
      const row = Math.round((room - 4) * canvas.height / canvas.offsetHeight); // within the box: above its lower rim
      return [...canvas.getContext("2d").getImageData(0, row, canvas.width, 1).data].every(byte => byte === 0);
    }"""
    assert page.evaluate(blank, room)
    page.close()


def test_a_phone_keeps_the_answer_in_view(browser, digits):
    """The headline stays at the top while a person scrolls to the image and taps two patches."""
    context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    page = context.new_page()
    page.goto(digits[0])
    page.wait_for_selector(".aw-stage canvas")
    page.locator(".aw-stage canvas").evaluate("one => one.scrollIntoView({ block: 'end' })")
    page.mouse.wheel(0, 120)
    page.wait_for_timeout(100)
    for share in (0.3, 0.7):
        box = page.locator(".aw-stage canvas").bounding_box()
        page.touchscreen.tap(box["x"] + share * box["width"], box["y"] + share * box["height"])
        page.wait_for_timeout(100)
    page.wait_for_function(SAYS, arg=" of its attention")
    answer = page.locator(".aw-headline").bounding_box()
    assert 0 <= answer["y"] < answer["y"] + answer["height"] < 844
    context.close()


@pytest.mark.parametrize("words", ["layer 2, head 1", "2.1", "L2h1", "layer 2"])
def test_a_head_is_found_by_its_name(page, words):
    page.locator(".aw-find").fill("layer 9")
    page.wait_for_function(SHOWS, arg=[".aw-model .aw-note", "No head matches “layer 9”: write a head"])
    page.locator(".aw-find").fill(words)
    page.wait_for_function(SHOWS, arg=[".aw-model .aw-note", "Cell:"])


VIEWS = {
    "head": "layer=2&head=1&token=5,9&direction=to&scale=log",
    "heads": "layer=2&head=1&token=5,9&direction=to&scale=log",
    "compared": "layer=1&head=0&token=5&scale=linear&against=1.2.1.5",
    "written": "layer=2&head=1&token=5&weights=written",
    "depth": "layer=1&head=2&token=7&depth=rollout",
    **{
        tab: f"layer=2&head=1&token=5&tab={tab}"
        for tab in ("matrix", "products", "plane", "norms", "spectra", "metrics", "effect", "membership")
    },
}
PARTS = {"head": ".aw-stage", "heads": ".aw-grid", "depth": ".aw-through", "tab": ".aw-body"}


def best_distance(picture, shown):
    """Mean distance per channel of a part of a picture from pixels that are shown, where it is least."""
    tall, wide = shown.shape[:2]
    rows, columns = range(picture.shape[0] - tall + 1), range(picture.shape[1] - wide + 1)
    return min(np.abs(picture[y : y + tall, x : x + wide] - shown).mean() for y in rows for x in columns)


def exported_view(page, folder, name):
    """Go to a view and export its part of the page: what was shown, the picture, and the command for it."""
    part = {"compared": "head", "written": "head"}.get(name, name if name in PARTS else "tab")
    page.evaluate("view => { location.hash = view; }", VIEWS[name])
    page.wait_for_function(SAYS, arg=f"ayer {re.search('layer=(.)', VIEWS[name]).group(1)}")
    page.mouse.move(2, 2)
    page.add_style_tag(content=".aw-root :is(.aw-hint, .aw-choice) { display: none; }")  # of a screen only
    page.wait_for_timeout(300)
    with Image.open(io.BytesIO(page.locator(PARTS[part]).screenshot())) as image:
        shown = np.asarray(image.convert("RGB")).astype(float)
    page.keyboard.press("e")
    tab = page.get_by_role("tab", selected=True).text_content()
    button = {"head": "Image", "heads": "All heads", "depth": "Depth", "tab": tab}[part]
    with Image.open(taken(page, folder, f"{button}, PNG")) as image:
        exported = image.convert("RGB")
    page.get_by_label("figure", exact=True).select_option(part)
    return shown, exported, page.get_by_label("command that draws this view for print").input_value()


@pytest.mark.parametrize(
    "name", [name for name in VIEWS if name not in ("head", "heads", "compared", "written")]
)
def test_the_picture_of_a_tab_and_of_depth_is_what_the_page_shows(page, tmp_path, name):
    shown, exported, _ = exported_view(page, tmp_path, name)
    assert exported.width >= 1400
    times = round(exported.width / (shown.shape[1] + 24))
    small = exported.resize([side // times for side in exported.size], Image.Resampling.BOX)
    height, width = shown.shape[0] - 30, shown.shape[1] - 16  # without the rim and a bar to scroll
    pixels = np.asarray(small).astype(float)[: shown.shape[0] + 80]
    assert np.asarray(small.convert("L"))[12:30].min() < 90  # the title
    assert best_distance(pixels, shown[:height, :width]) < 8  # letters of another size of pixels


@pytest.mark.parametrize("name", ["head", "heads", "compared", "written", "norms", "depth"])
def test_the_command_of_a_view_draws_its_picture(page, tmp_path, name):
    """Palette, tokens, direction, scale and the pinned view: the picture that the page exports."""
    _, exported, line = exported_view(page, tmp_path, name)
    command = shlex.split(line)
    assert command[:2] == ["workbench", "explore"]
    saved = Explorer.at(command[2]).save_picture(tmp_path / "view.png", command[-1])
    with Image.open(saved) as image:
        drawn = image.convert("RGB")
    assert drawn.size == exported.size
    assert np.abs(np.asarray(drawn).astype(float) - exported).mean() < 0.5


@pytest.mark.parametrize("layers", [1, 2, 4])
def test_numbers_of_few_layers_are_a_sentence_or_two_dots_and_no_title_is_cut(browser, tmp_path, layers):
    """One layer has no chart, two have dots without a line; the whole name stands above, at every width."""
    bundle = many_heads(layers, 2, 7, 0)
    label = "Similarity of the tokens after every block of the model, mean over all pairs of tokens of a text"
    card = MetricCard(
        name="long",
        label=label,
        short="",
        definition="",
        source="",
        unit="nats",
        low=None,
        high=None,
        null="",
    )
    values = np.linspace(-0.25, 0.5, layers)
    header = bundle.header.model_copy(update={"by_layer": [card]})
    path = tmp_path / "page.html"
    path.write_text(
        page_html(Bundle(header, bundle.arrays | {"inputs.0.by_layer.long.value": values}), "few")
    )
    for width in (390, 768, 1280):
        page = browser.new_page(viewport={"width": width, "height": 900})
        page.goto(f"{path.as_uri()}#layer=0&head=0&depth=tokens")
        page.wait_for_selector(".aw-trajectory h3:not(:empty)")
        assert page.text_content(".aw-trajectory h3") == f"{label} (nats), layer 0: −0.250"
        cut = "one => one.scrollWidth > one.clientWidth || one.scrollHeight > one.clientHeight"
        assert not page.eval_on_selector(".aw-trajectory h3", cut)
        assert page.locator(".aw-trajectory canvas").is_visible() == (layers > 1)
        if layers > 1:
            blue = page.evaluate(
                """() => {
                  const canvas = document.querySelector(".aw-trajectory canvas");
                  const x = Math.round((44 + (canvas.width - 54) * 0.5));
                  const { data } = canvas.getContext("2d").getImageData(x, 0, 1, canvas.height);
                  return Array.from({ length: canvas.height }, (_, i) => data.slice(4 * i, 4 * i + 4))
                    .some(([red, , blue, alpha]) => alpha > 100 && blue - red > 100);
                }"""
            )
            assert blue == (layers > 2)  # halfway along there is a line or nothing
        page.close()
