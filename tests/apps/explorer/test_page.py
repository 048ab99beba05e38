"""The saved page: one file that asks nobody for anything, draws the numbers of its bundle, and keeps names as text."""

import base64
import json
import re
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

from tests.apps.explorer.browser import chromium
from tests.apps.explorer.pooled import pooled_text
from tests.browser import needs_chrome
from workbench.apps.explorer import Explorer
from workbench.apps.explorer import page as pages
from workbench.apps.explorer.bundle import POOLED, Bundle, read_bundle
from workbench.core.errors import InputError

HOSTILE = '<img src=x onerror="window.hurt = 1"></script><script>window.hurt = 2</script>'
MODULES = sorted(pages.FRONT.glob("*.js"))


@pytest.fixture(scope="module")
def explorer():
    return Explorer(n=2)


@pytest.fixture(scope="module")
def saved(explorer, tmp_path_factory):
    explorer.move(layer=2, head=1, token=5)
    return explorer.save_html(tmp_path_factory.mktemp("page") / "digits.html", indices=[0, 1])


def bundle_of(html: str) -> Bundle:
    return read_bundle(base64.b64decode(re.search(r'id="bundle">([^<]*)<', html).group(1)))


def test_one_small_file_without_an_address(saved):
    html = saved.read_text()
    assert saved.stat().st_size < 1.6e6  # of it 0.62 MB are the weights that the page runs
    code = html.replace(re.search(r'id="bundle">([^<]*)<', html).group(1), "")
    assert "http:" not in code
    assert "https:" not in code
    assert "innerHTML" not in code
    assert "default-src 'none'" in code
    assert [layer.index for layer in bundle_of(html).header.layers] == [0, 1, 2, 3]
    assert [one.id for one in bundle_of(html).header.inputs] == Explorer(n=2).material.inputs(
        Explorer(n=2).location
    ).ids


def test_every_import_names_an_export_and_every_statement_is_joined():
    exported = {
        module.stem: set(
            re.findall(r"^export (?:async )?(?:function|const|class) (\w+)", module.read_text(), re.M)
        )
        for module in MODULES
    }
    for module in MODULES:
        for names, other in re.findall(r'import \{([^}]*)\} from "\./(\w+)\.js"', module.read_text()):
            assert {name.strip() for name in names.split(",")} <= exported[other]
    for entry in ("page", "widget"):
        left = re.findall(r"^(?:import|export) .*", pages.script(entry), re.MULTILINE)
        assert left == ["export default { render };"] * (entry == "widget")


@pytest.mark.e2e
@needs_chrome
def test_joined_modules_are_what_a_browser_makes_of_them(tmp_path):
    """Two modules with a private name in common, one imported twice: as the browser itself would load them."""
    sources = {
        "first": 'export const seen = [];\nfunction own() {\n  return "first";\n}\nexport function say() {\n'
        "  seen.push(own());\n}\n",
        "second": 'import { say, seen } from "./first.js";\nconst own = "second";\nexport class Second {\n'
        "  get words() {\n    say();\n    return [...seen, own].join();\n  }\n}\n",
        "entry": 'import { seen } from "./first.js";\nimport { Second } from "./second.js";\nconst own = "entry";\n'
        'globalThis.told = [new Second().words, own, seen.length].join(" ");\n',
    }
    for name, source in sources.items():
        (tmp_path / f"{name}.js").write_text(source)
    joined = pages.script("entry", tmp_path)
    with chromium() as browser:
        page = browser.new_page()
        page.route("**/*", lambda route: route.fulfill(
            body=sources.get(route.request.url[17:].removesuffix(".js"), ""),
            content_type="text/javascript" if route.request.url.endswith(".js") else "text/html",
        ))  # fmt: skip
        page.goto("http://localhost/")
        page.evaluate('() => import("/entry.js")')
        loaded = page.evaluate("() => told")
        page.evaluate("() => { delete globalThis.told; }")
        page.evaluate(f"() => {{ {joined} }}")
        assert page.evaluate("() => told") == loaded == "first,second entry 1"


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """The page of a model of characters on a text of one's own."""
    folder = tmp_path_factory.mktemp("text")
    (folder / "mine.txt").write_text("The tea was cold and the tea was late.\n")
    own = Explorer("bundled:prose-softmax", f"text:{folder / 'mine.txt'}", n=1).move(token=7)
    return own, own.save_html(folder / "text.html")


def test_an_input_of_ones_own_is_told_and_layers_that_do_not_fit_too(text, tmp_path):
    own, said = text[0], []
    own_page = pages.save_page(
        tmp_path / "own.html", own.location, own.material, limit_mb=0.02, say=said.append
    )
    header = bundle_of(own_page.read_text()).header
    assert re.match(r"own\.html will hold the input .* itself \(its text\)", said[0])
    assert "layers would take more than 0.02 MB" in said[1]
    assert header.left_out
    assert own.location.layer in [layer.index for layer in header.layers]
    with pytest.raises(InputError, match=r"one layer of .* takes"):
        pages.save_page(tmp_path / "own.html", own.location, own.material, limit_mb=1e-4, say=said.append)
    with pytest.raises(InputError, match=r"saved as \.html"):
        own.save_html(tmp_path / "own.pdf")


def test_what_takes_too_much_is_pooled_before_layers_are_left_out(tmp_path):
    """Means over bins of tokens, with the flag that takes more; the page says so and its dead tabs are grey."""
    own, said = Explorer("bundled:prose-softmax", ["The tea was cold and the tea was late. " * 4]), []
    tokens = len(own.material.one(own.location).tokens.labels[0])
    whole = own.save_html(tmp_path / "whole.html", ablations=False)
    attn = bundle_of(whole.read_text()).attention(1).astype(float)
    limit = 4 * attn.size * 2 * 4 / 3 / 1e6 * 0.9  # of all layers
    pooled = pages.save_page(
        tmp_path / "pooled.html", own.location, own.material, ablations=False, limit_mb=limit, say=said.append
    )
    bundle = bundle_of(pooled.read_text())
    bins = bundle.attention(1).shape[-1]
    assert 64 <= bins < tokens
    assert bundle.header.left_out == []
    assert f"all 4 layers are saved as means of {bins} × {bins} cells" in said[1]
    assert "--max-size" in said[1]
    places = np.arange(tokens) * bins // tokens
    expected = attn[0][np.ix_(places == 5, places == 3)].mean()
    assert bundle.attention(1)[0, 5, 3] == pytest.approx(expected, abs=1e-3)
    assert pooled.stat().st_size < whole.stat().st_size


DRAWN = """async ([rows, columns]) => {
  for (let frame = 0; frame < 2; frame++) await new Promise(requestAnimationFrame);
  const canvas = document.querySelector(".aw-image");
  const pen = canvas.getContext("2d");
  const at = (place, count, size) => Math.round((place + 0.5) * size / count);
  return Array.from({ length: rows * columns }, (_, i) => [...pen.getImageData(
    at(i % columns, columns, canvas.width), at(Math.floor(i / columns), rows, canvas.height), 1, 1).data]);
}"""
EXTENT = """() => {
  const page = document.documentElement;
  return [page.scrollWidth, page.clientWidth, page.scrollHeight, page.clientHeight];
}"""
COLOURS = """selector => {
  const canvas = document.querySelector(selector);
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return new Set(new Uint32Array(data.buffer)).size;
}"""
SHOWS = "([selector, words]) => [...document.querySelectorAll(selector)].some(one => one.textContent.includes(words))"
SAYS = "words => document.querySelector('.aw-headline')?.textContent.includes(words)"


def _tabs_show_the_bundles_numbers(page, bundle):
    """Queries times keys, plane, spectra and the effect of a head, on the class token in head 1 of layer 2."""
    page.evaluate("() => { location.hash = '#layer=2&head=1&token=0&tab=products'; }")
    page.wait_for_selector(".aw-product")
    start = "inputs.0.layers.2"
    q, k = (bundle.arrays[f"{start}.{site}"][1].astype(float) for site in ("q", "k"))
    attention = bundle.attention(2)[1, 0].astype(float)
    rows = page.eval_on_selector_all(
        ".aw-product", "all => all.map(one => [Number(one.dataset.token), one.children[2].textContent])"
    )
    assert [token for token, _ in rows][:5] == list(np.argsort(-attention, kind="stable")[:5])
    for token, said in rows:
        logit = float(q[0] @ k[token] * bundle.arrays[f"{start}.scale"][1])
        assert float(said.replace("−", "-")) == pytest.approx(logit, rel=6e-3, abs=6e-4)

    page.keyboard.press("3")
    share = bundle.arrays[f"{start}.plane.share"][1].sum()
    words = f"The plane holds {share * 100:.0f}\u00a0% of the variance of queries and keys"
    page.wait_for_function(SHOWS, arg=[".aw-reads", words])
    assert page.evaluate(COLOURS, ".aw-plane") > 20

    page.keyboard.press("5")
    values = bundle.arrays[f"{start}.spectra.eigenvalue.value"][1]
    held = int((values.cumsum() < 0.9 * values.sum()).sum()) + 1
    beyond = int((values > bundle.arrays[f"{start}.spectra.eigenvalue.null_high"][1]).sum())
    page.wait_for_function(
        SHOWS,
        arg=[
            ".aw-reads",
            f"{held} of the {len(values)} largest eigenvalues hold 90 % of their sum; {beyond} ",
        ],
    )
    assert page.evaluate(COLOURS, ".aw-spectra canvas") > 20

    page.keyboard.press("7")
    page.get_by_role("button", name="head uniform", exact=True).click()
    effect = bundle.arrays["inputs.0.ablations.uniform.divergence"][:, :, 0]
    rank = int((effect > effect[2, 1]).sum()) + 1
    page.wait_for_function(SHOWS, arg=[".aw-evidence .aw-body > div > .aw-reads", f"rank {rank} of 12"])
    shown = page.eval_on_selector_all(
        ".aw-outcomes .aw-leader",
        "all => all.map(one => [one.firstChild.textContent, one.children[2].textContent])",
    )
    card = bundle.header.inputs[0].prediction
    for (outcome, said), name, probability in zip(
        shown, card.outcomes[0], bundle.arrays["inputs.0.prediction.probability"][0], strict=False
    ):
        assert outcome.removesuffix(" ✓") == name
        assert outcome.endswith("✓") == (name == card.actual[0])
        assert float(said.rstrip("\u00a0%")) / 100 == pytest.approx(probability, rel=0.06, abs=1e-4)


def _tokens_are_followed_through_depth(page, bundle):
    """Numbers of whole layers, in the words of the panel and for a screen reader; a click goes to the layer."""
    page.get_by_role("button", name="tokens", exact=True).click()
    page.wait_for_selector(".aw-trajectories canvas")
    said = page.eval_on_selector_all(
        ".aw-trajectories canvas", "all => all.map(one => one.getAttribute('aria-label'))"
    )
    names = [card.name for card in bundle.header.by_layer]
    assert names[:2] == ["token_cosine", "coding_rate"]
    for name, words in zip(names, said, strict=True):
        drawn = [float(one) for one in re.findall(r": (-?[\d.]+)(?:,|$)", words.partition(" by layer")[2])]
        assert drawn == pytest.approx(bundle.arrays[f"inputs.0.by_layer.{name}.value"], rel=6e-3, abs=6e-4)
    last = page.locator(".aw-trajectories canvas").last
    last.click(position={"x": last.bounding_box()["width"] - 20, "y": 40})
    page.wait_for_function("() => location.hash.includes('layer=3')")
    assert "depth=tokens" in page.evaluate("() => location.hash")


def _patches_are_taken_out_and_belong_to_heads(page, bundle):
    """The effect of a patch beside all others, and memberships, in the page's words."""
    page.evaluate("() => { location.hash = '#layer=2&head=1&token=20&tab=effect&ablation=token'; }")
    effect = bundle.arrays["inputs.0.removal.divergence"][:, 0]
    rank = int((effect[1:] > effect[20]).sum()) + 1
    page.wait_for_function(SHOWS, arg=[".aw-evidence .aw-reads", f"rank {rank} of 64 (median patch: "])
    assert page.evaluate(COLOURS, ".aw-effects") > 20
    page.locator(".aw-evidence .aw-most .aw-leader").first.click()
    page.wait_for_function("token => location.hash.includes(`token=${token}`)", arg=int(np.nanargmax(effect)))
    page.keyboard.press("8")
    membership = bundle.arrays["inputs.0.layers.2.membership"][:, 1:]
    most, share = int((membership.argmax(0) == 1).sum()), membership[1].mean()
    words = f"{most} of 64 patches belong to head 1 more than to any other head; mean membership "
    numbers = f"{share * 100:.0f}\u00a0% (uniform: 33\u00a0%)"
    page.wait_for_function(SHOWS, arg=[".aw-evidence .aw-reads", words + numbers])


def _what_is_seen_is_taken_away(page, bundle, folder):
    """SVG, PNG and CSV files hold what the head view shows; the command names it; another model's address is told."""
    page.evaluate("() => { location.hash = '#layer=2&head=1&token=5&scale=linear'; }")
    page.wait_for_function(SAYS, arg="Layer 2, head 1")
    page.keyboard.press("e")
    command = page.eval_on_selector(".aw-command", "box => box.value")
    assert "-p model bundled:digits-vit -p inputs bundled:digits -p n 2 -p seed 0 -p index 0" in command
    assert command.endswith("-p layer 2 -p head 1 -p token 5 -p view attention")
    files = {}
    for name in ("Image, SVG", "Image, PNG", "Attention, CSV", "Metrics, CSV"):
        with page.expect_download() as got:
            page.get_by_role("button", name=name).click()
        files[name] = folder / got.value.suggested_filename
        got.value.save_as(files[name])
    page.keyboard.press("Escape")
    svg = ElementTree.fromstring(files["Image, SVG"].read_text())
    cells = [
        one for one in svg.iter() if one.tag.endswith("rect") and float(one.get("fill-opacity", "-1")) >= 0
    ]
    row = bundle.attention(2)[1, 5].astype(float)
    opacity = float(page.eval_on_selector(".aw-slider", "box => box.value"))
    shown = [float(one.get("fill-opacity")) for one in cells[:64]]
    np.testing.assert_allclose(shown, opacity * row[1:] / row.max(), atol=0.006)
    assert files["Image, PNG"].read_bytes().startswith(b"\x89PNG")
    seen = pd.read_csv(files["Attention, CSV"])
    np.testing.assert_allclose(seen["attention"], row, rtol=1e-6)
    assert list(seen["label"]) == bundle.header.inputs[0].labels
    metrics = pd.read_csv(files["Metrics, CSV"]).set_index(["metric", "layer", "head"])
    name = bundle.header.metrics[0].name
    assert metrics.loc[(name, 2, 1), "value"] == pytest.approx(bundle.metric(name)[2, 1])
    page.evaluate("() => { location.hash = '#model=gpt2&layer=0'; }")
    page.wait_for_function(
        SHOWS, arg=[".aw-notice", "That address is of gpt2; this page holds bundled:digits-vit"]
    )
    assert "Layer 2, head 1" in page.text_content(".aw-headline")


def _a_slow_machine_answers(page, saved):
    """Four times slower, opened by an address after a question mark: a head and a layer by keys."""
    tools = page.context.new_cdp_session(page)
    tools.send("Emulation.setCPUThrottlingRate", {"rate": 4})
    page.goto(f"{saved.as_uri()}?layer=1&head=2&query=7")
    page.wait_for_function(SAYS, arg="Layer 1, head 2")
    assert "token=7" in page.evaluate("() => location.hash")
    page.keyboard.press("ArrowDown")
    page.wait_for_function(SAYS, arg="Layer 2, head 2")
    tools.send("Emulation.setCPUThrottlingRate", {"rate": 1})


def _a_long_text_is_coloured_where_it_is_seen(page, folder):
    """2000 tokens, pooled: what is in view has its colour, and the end of the text when it is scrolled there."""
    bundle = pooled_text(2000, 2)
    (folder / "long.html").write_text(pages.page_html(bundle, "long", "#layer=0&head=1&token=0&scale=linear"))
    page.goto((folder / "long.html").as_uri())
    page.wait_for_function(SAYS, arg="means of 3.9 × 3.9 tokens")
    row = bundle.attention(0)[1, 0].astype(float)
    colour = "token => document.querySelector(`.aw-text [data-token='${token}']`).style.backgroundColor"
    token = next(t for t in range(1999, 0, -1) if row[t * POOLED // 2000] > 0.1 * row.max())  # near the end
    assert page.evaluate(colour, token) == ""
    page.eval_on_selector(".aw-stage", "stage => { stage.scrollTop = stage.scrollHeight; }")
    page.wait_for_function(f"token => ({colour})(token) !== ''", arg=token)
    alpha = float(re.findall(r"[\d.]+", page.evaluate(colour, token))[-1])
    assert alpha == pytest.approx(0.9 * row[token * POOLED // 2000] / row.max(), abs=0.011)


def _a_pinned_view_stands_beside_another(page, bundle):
    """A pin of head 1 of layer 2, dropped on head 0 of layer 1: their difference, in the drawn colours too."""
    page.keyboard.press("m")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowLeft")
    page.locator(".aw-pin").drag_to(page.locator(".aw-centre"))
    a, b = (bundle.attention(layer)[head, 0].astype(float) for layer, head in ((2, 1), (1, 0)))
    moved = np.abs(a - b).sum() / (a.sum() + b.sum())
    page.wait_for_function(SAYS, arg=f"{moved * 100:.0f}\u00a0% of the attention goes to different tokens")
    assert "against=0.2.1.0" in page.evaluate("() => location.hash")
    difference = page.evaluate(DRAWN.replace(
        'document.querySelector(".aw-image")', 'document.querySelectorAll(".aw-compare canvas")[2]'
    ), list(bundle.header.inputs[0].grid))  # fmt: skip
    signs = np.array([green - (red + blue) / 2 for red, green, blue, _ in difference])  # purple: negative
    change = (b - a)[1:]
    strong = np.abs(change) > 0.1 * np.abs(change).max()
    assert strong.sum() >= 3
    assert (np.sign(signs[strong]) == np.sign(change[strong])).all()
    page.evaluate("() => { location.hash += '&direction=to'; }")
    page.wait_for_function(SAYS, arg="To [CLS], ")
    page.evaluate("() => { location.hash = location.hash.replace('&direction=to', ''); }")
    page.wait_for_function(SAYS, arg="From [CLS], ")
    page.keyboard.press("Escape")
    page.wait_for_function("() => !document.querySelector('.aw-compare')")
    assert page.evaluate("() => document.querySelector('.aw-stage canvas').className") == "aw-image"
    page.get_by_role("button", name=re.compile("^Unpin")).click()
    page.wait_for_function("() => !document.querySelector('.aw-pin')")


def _a_filter_says_where_no_head_matches(page):
    for words, note in (
        ("99.1", "No head matches “99.1”"),
        ("2.1", "Cell:"),
        ("> 99", "No head matches"),
        ("uniform", "Cell:"),
    ):
        page.locator(".aw-find").fill(words)
        page.wait_for_function(SHOWS, arg=[".aw-model .aw-note", note])
    page.locator(".aw-find").fill("")


def percent(value):
    """As the page writes it."""
    return f"{value * 100:.{0 if value >= 0.0995 else 1 if value >= 0.00995 else 2}f}\u00a0%"


@pytest.mark.e2e
@needs_chrome
def test_two_texts_of_as_many_tokens_are_compared_token_by_token(tmp_path):
    """A view of one is pinned, then the other looked at: the difference in their order, beside that of other heads."""
    (tmp_path / "mine.txt").write_text(
        "The tea was cold and the tea was late.\nThe sea was gold and the sea was lone.\n"
        "The tea was cold and it was late.\n"
    )
    own = Explorer("bundled:prose-softmax", f"text:{tmp_path / 'mine.txt'}", n=3).move(
        layer=1, head=1, token=33
    )
    saved = own.save_html(tmp_path / "texts.html", layers=[0, 1], indices=[0, 1, 2], ablations=False)
    bundle = bundle_of(saved.read_text())
    ids = [card.id for card in bundle.header.inputs]
    one, other, short = (ids.index(f"mine.txt:{line}") for line in (1, 2, 3))
    counts = [sum(card.real) for card in bundle.header.inputs]
    assert counts[one] == counts[other] > counts[short]
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(saved.as_uri())
        page.wait_for_function(SAYS, arg="Layer 1, head 1: from")
        page.get_by_role("button", name="linear").click()
        go = "place => { location.hash = `#layer=1&head=1&input=${place}&token=33&scale=linear`; }"
        page.evaluate(go, one)
        page.wait_for_function(
            "() => document.querySelector('.aw-text')?.textContent.endsWith('tea␣was␣late.')"
        )
        page.keyboard.press("m")
        page.evaluate(go, other)
        page.wait_for_function("() => document.querySelector('.aw-text')?.textContent.startsWith('The␣sea')")
        page.locator(".aw-pin").click()
        a, b = (bundle.attention(1, place)[:, 33].astype(float) for place in (one, other))
        moved = np.abs(a - b).sum(-1) / (a + b).sum(-1)
        others = [np.abs(x - y).sum() / (x + y).sum() for layer in (0, 1) for x, y in zip(
            *(bundle.attention(layer, place)[:, 33].astype(float) for place in (one, other)), strict=True)]  # fmt: skip
        page.wait_for_function(SAYS, arg=f"{percent(moved[1])} of the attention goes to different tokens")
        page.wait_for_function(SAYS, arg=f"; in other heads: {percent(np.median(others))}")
        page.wait_for_function(SAYS, arg="token by token in their order, ")
        shown = page.eval_on_selector_all(
            ".aw-pane:last-child .aw-token", "all => all.map(one => one.style.backgroundColor)"
        )
        change = (b - a)[1]
        strong = np.abs(change) > 0.1 * np.abs(change).max()
        assert strong.sum() >= 2
        for colour, value in zip(shown, change, strict=True):
            red, green, _, alpha = map(float, re.findall(r"[\d.]+", colour)) if colour else (0, 0, 0, 0)
            assert alpha == pytest.approx(0.9 * abs(value) / np.abs(change).max(), abs=0.012)
            assert not colour or (green > red) == (value > 0)
        page.evaluate(
            f"() => {{ location.hash = '#layer=1&head=1&input={short}&token=33&against={one}.1.1.33'; }}"
        )
        page.wait_for_function(SAYS, arg="their inputs differ in the number of tokens")


@pytest.mark.e2e
@needs_chrome
def test_the_page_draws_its_numbers_at_every_size(saved, text, tmp_path):
    bundle = bundle_of(saved.read_text())
    row = bundle.attention(2)[1, 5].astype(float)
    patches = row[1:]
    wrong = []
    with chromium() as browser:
        context = browser.new_context(viewport={"width": 1440, "height": 900}, offline=True)
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
        page.goto(saved.as_uri())
        page.wait_for_function(
            "() => document.querySelector('.aw-headline')?.textContent.startsWith('Layer 2, head 1')"
        )
        top = int(row.argmax())
        assert bundle.header.inputs[0].labels[top] in page.text_content(".aw-headline")
        assert page.evaluate("() => location.hash").startswith("#layer=2&head=1&token=5")

        # linear scale, full opacity: over a grey ground g a share s of the hue h gives g + s (h − g)
        page.get_by_role("button", name="linear").click()
        page.eval_on_selector(
            ".aw-slider", "box => { box.value = 1; box.dispatchEvent(new Event('input')); }"
        )
        page.mouse.move(2, 2)
        drawn = page.evaluate(DRAWN, list(bundle.header.inputs[0].grid))
        hue = [20, 95, 215]
        limit = row.max()
        for place, (red, _, blue, _) in enumerate(drawn):
            share = patches[place] / limit
            # what separates blue from red is the hue's alone, whatever the grey below
            assert blue - red == pytest.approx(share * (hue[2] - hue[0]), abs=6), place

        for width, height in ((1440, 900), (1920, 1080), (1024, 768), (390, 844)):
            page.set_viewport_size({"width": width, "height": height})
            page.wait_for_timeout(120)
            across, inner, down, tall = page.evaluate(EXTENT)
            assert across <= inner, (width, across)
            if width >= 1440:
                assert down <= tall, (width, down)

        page.set_viewport_size({"width": 1440, "height": 900})
        for key, words in (
            ("ArrowUp", "Layer 1, head 1"),
            ("ArrowRight", "Layer 1, head 2"),
            ("a", "all queries"),
        ):
            page.keyboard.press(key)
            page.wait_for_function(SAYS, arg=words)
        for key, part in (
            (",", "token=64"),
            (".", "token=64"),
            ("<", "token=64%2C63"),
            ("Shift+ArrowLeft", "with=1.2"),
        ):
            page.keyboard.press(key)
            page.wait_for_function("part => location.hash.includes(part)", arg=part)
        page.keyboard.press("?")
        assert page.locator("dialog[open]").count() == 1
        page.keyboard.press("Escape")
        for key in ("2", "6", "t", "p", "d"):
            page.keyboard.press(key)
        page.wait_for_function("() => document.documentElement.dataset.theme === 'dark'")
        assert page.locator(".aw-metric").count() == len(bundle.header.metrics)

        _tabs_show_the_bundles_numbers(page, bundle)
        _patches_are_taken_out_and_belong_to_heads(page, bundle)
        _tokens_are_followed_through_depth(page, bundle)
        _what_is_seen_is_taken_away(page, bundle, tmp_path)
        page.evaluate("() => { location.hash = '#layer=2&head=1&token=0'; }")
        page.wait_for_function(SAYS, arg="Layer 2, head 1: from [CLS]")  # the address is read, not only there
        _a_pinned_view_stands_beside_another(page, bundle)
        _a_filter_says_where_no_head_matches(page)
        page.get_by_role("button", name=bundle.header.inputs[1].id).click()
        page.wait_for_function("() => location.hash.includes('input=1')")

        _a_slow_machine_answers(page, saved)
        _a_long_text_is_coloured_where_it_is_seen(page, tmp_path)

        # a text: every token, whole and in order, and behind each its attention
        words = bundle_of(text[1].read_text())
        card, place = words.header.inputs[0], text[0].location
        page.goto(text[1].as_uri())
        page.wait_for_function(SAYS, arg=f"Layer {place.layer}, head {place.head}")
        page.get_by_role("button", name="linear").click()
        page.mouse.move(2, 2)
        page.wait_for_function("() => document.querySelectorAll('.aw-asked').length === 1")
        page.wait_for_timeout(100)
        shown = page.eval_on_selector_all(
            ".aw-text .aw-token", "all => all.map(one => [one.textContent, one.style.backgroundColor])"
        )
        assert [word for word, _ in shown] == [label.replace(" ", "␣") for label in card.labels]
        row = words.attention(place.layer)[place.head, 7].astype(float)
        times = row.max() * 8  # uniform attention of a causal head is among the tokens up to the query
        assert f" {times:.1f}\u00a0× uniform attention" in page.text_content(".aw-headline")
        for (_, colour), value in zip(shown, row, strict=True):
            alpha = float((re.findall(r"[\d.]+", colour) or ["0"])[-1])
            assert alpha == pytest.approx(0.9 * value / row.max(), abs=0.011)

        # the same page with names that would be markup, and with a bundle of another schema
        header = bundle.header
        card = header.inputs[0]
        labels = [HOSTILE, *card.labels[1:]]
        names = {"label": HOSTILE, "short": HOSTILE, "definition": HOSTILE, "unit": HOSTILE}
        outcomes = [[HOSTILE, *row[1:]] for row in card.prediction.outcomes]
        prediction = card.prediction.model_copy(update={"outcomes": outcomes, "actual": [HOSTILE]})
        hostile = Bundle(
            header.model_copy(
                update={
                    "inputs": [
                        card.model_copy(update={"id": HOSTILE, "labels": labels, "prediction": prediction}),
                        *header.inputs[1:],
                    ],
                    "metrics": [metric.model_copy(update=names) for metric in header.metrics],
                    "spectra": [metric.model_copy(update=names) for metric in header.spectra],
                    "ablations": dict.fromkeys(header.ablations, HOSTILE),
                    "sentences": dict.fromkeys(header.sentences, HOSTILE + "{key}{toString}"),
                    "model": header.model.model_copy(update={"spec": HOSTILE}),
                }
            ),
            bundle.arrays,
        )
        path = tmp_path / "hostile.html"
        path.write_text(pages.page_html(hostile, HOSTILE, '#layer="><script>window.hurt = 3</script>'))
        page.goto(path.as_uri())
        page.wait_for_selector(".aw-special .aw-token")
        assert page.text_content(".aw-special .aw-token") == HOSTILE
        assert page.title() == HOSTILE
        for key in "12345687m":
            page.keyboard.press(key)
            page.wait_for_timeout(40)
        page.locator(".aw-pin").click()
        page.wait_for_selector(".aw-compare")
        assert HOSTILE in page.text_content(".aw-outcomes")
        assert page.locator("#explorer img").count() == 0
        assert page.evaluate("() => window.hurt") is None

        other = json.loads(hostile.header.model_dump_json()) | {"bundle_schema": 9}
        content = bundle.to_bytes()
        length = int.from_bytes(content[:8], "little")
        outer = json.loads(content[8 : 8 + length])
        outer["__metadata__"]["workbench"] = json.dumps(other)
        packed = json.dumps(outer).encode()
        html = pages.page_html(bundle, "another schema")
        old = re.search(r'id="bundle">([^<]*)<', html).group(1)
        new = base64.b64encode(len(packed).to_bytes(8, "little") + packed + content[8 + length :]).decode()
        path.write_text(html.replace(old, new))
        page.goto(path.as_uri())
        page.wait_for_function("() => document.body.innerText.includes('schema 9; this page reads schema 5')")
        assert wrong == []
