"""The page as a widget: what is set in Python moves the page, and what is done there is told."""

import json

import pytest
import traitlets

from tests.apps.explorer.browser import chromium
from tests.browser import needs_chrome
from workbench.apps.explorer import Explorer
from workbench.apps.explorer.bundle import read_bundle
from workbench.apps.explorer.page import bundle_at
from workbench.apps.explorer.widget import PageWidget
from workbench.core.errors import InputError

HOST = """async ([esm, css, state, content]) => {
  document.head.append(Object.assign(document.createElement("style"), { textContent: css }));
  const heard = {};
  state.content = new DataView(Uint8Array.from(atob(content), letter => letter.charCodeAt(0)).buffer);
  window.model = {
    saved: 0,
    sent: [],
    send(content, callbacks, buffers) { this.sent.push([content, buffers.length]); },
    get: name => state[name],
    set(name, value) { state[name] = value; },
    save_changes() { this.saved += 1; },
    on(event, act) { (heard[event] ??= []).push(act); },
    off(event, act) { heard[event] = heard[event].filter(one => one !== act); },
    fromKernel(name, value) { state[name] = value; for (const act of heard[`change:${name}`] ?? []) act(); },
    listeners: () => Object.values(heard).reduce((sum, acts) => sum + acts.length, 0),
  };
  const module = await import(URL.createObjectURL(new Blob([esm], { type: "text/javascript" })));
  const el = document.body.appendChild(document.createElement("div"));
  window.away = module.default.render({ model, el });
}"""
"""A host as anywidget's contract for modules describes it: a model that is read, set and listened to."""
SAYS = "words => document.querySelector('.aw-headline')?.textContent.includes(words)"


@pytest.fixture(scope="module")
def explorer():
    return Explorer(n=2)


@pytest.fixture(scope="module")
def page(explorer):
    return explorer.page(layers=[0, -1])


def test_it_holds_the_bundle_and_stands_where_the_explorer_stands(explorer, page):
    assert read_bundle(page.content).header == page.bundle.header
    assert [layer.index for layer in page.bundle.header.layers] == [0, 3]
    assert (page.layer, page.head, page.tokens) == (explorer.place.layer, explorer.place.head, [0])


def test_what_is_set_is_told_and_what_cannot_be_is_refused(explorer, page):
    seen = []
    page.observe(lambda change: seen.append(change["new"]), names="head")
    page.head = 2
    page.head = 0
    assert seen == [2, 0]
    with pytest.raises(traitlets.TraitError):
        page.direction = "sideways"
    with pytest.raises(InputError, match="no layer 7"):
        explorer.page(layers=[7])


def test_another_input_is_captured_when_it_is_asked_for(explorer):
    one = explorer.page(layers=[0])
    before = one.content
    assert one.choices == explorer.material.inputs(explorer.place).ids
    one.index = 1
    assert read_bundle(one.content).header.inputs[0].id == one.choices[1]
    assert one.bundle.header.inputs[0].id == one.choices[1]
    one.index = 0
    assert one.content == before
    one.index = 7
    assert (one.index, one.content) == (0, before)
    assert one.trouble == "there is no input 7: this page has 2 to choose from"
    one.index = 1
    assert one.trouble == ""


def test_another_model_and_inputs_of_ones_own_are_opened(explorer, tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path))
    one = explorer.page(layers=[0])
    assert {"here", "random"} <= {found["group"] for found in one.models}
    one.move(model="bundled:digits-tost")
    header = read_bundle(one.content).header
    assert header.model.spec == "bundled:digits-tost"
    assert one.layer == header.layers[-1].index  # of all its layers
    one._heard(one, {"open": {"model": "bundled:prose-softmax"}}, [])
    one._heard(one, {"open": {"text": "The harbour was quiet before the boats came in."}}, [])
    assert one.trouble == ""
    card = read_bundle(one.content).header.inputs[0]
    assert "".join(card.labels).startswith("The harbour")
    assert card.address["inputs"].startswith("upload:")
    before = one.content
    for asked, buffers, words in (
        ({"model": "bundled:digits-tots"}, [], "digits-tost"),
        ({"image": "../<b>.png"}, [b"no image"], "takes texts"),
        ({"text": "short"}, [], "more than 30 characters"),
        ({"inputs": "images:/nowhere"}, [], "there is no folder"),
        ({"model": 3}, [], "model of an address is a name"),
    ):
        one._heard(one, {"open": asked}, buffers)
        assert words in one.trouble
        assert one.content == before
    with pytest.raises(InputError, match="shows one bundle"):
        PageWidget(one.bundle).move(model="bundled:digits-vit")


@needs_chrome
def test_the_module_follows_the_kernel_and_tells_it(explorer, page):
    import base64

    names = (
        "input",
        "layer",
        "head",
        "tokens",
        "direction",
        "scale",
        "sort",
        "tab",
        "depth",
        "ablation",
        "against",
        "theme",
        "height",
        "choices",
        "index",
        "trouble",
        "models",
    )
    state = json.loads(json.dumps({name: getattr(page, name) for name in names}))
    other = bundle_at(explorer.place.moved(index=1), explorer.material, [0, 3])
    wrong = []
    with chromium() as browser:
        seen = browser.new_page(viewport={"width": 1300, "height": 900})
        seen.on("pageerror", lambda error: wrong.append(str(error)))
        seen.evaluate(HOST, [page._esm, page._css, state, base64.b64encode(page.content).decode()])
        seen.wait_for_function(SAYS, arg="Layer 3, head 0: from [CLS]")
        seen.evaluate("() => model.fromKernel('layer', 0)")
        seen.wait_for_function(SAYS, arg="Layer 0, head 0")
        seen.evaluate("() => model.fromKernel('tokens', [5, 6])")
        seen.wait_for_function(SAYS, arg="from 2 tokens (mean)")
        seen.locator(".aw-grid").focus()
        seen.keyboard.press("ArrowRight")
        seen.wait_for_function("() => model.get('head') === 1 && model.saved > 0")
        seen.keyboard.press("s")
        seen.wait_for_function("() => model.get('scale') === 'log'")
        seen.evaluate("() => model.fromKernel('against', '0.3.0.all')")
        seen.wait_for_selector(".aw-compare")
        seen.evaluate("() => model.fromKernel('against', '0.9.0.all')")  # of a layer that is not there
        seen.wait_for_function("() => model.get('against') === '' && !document.querySelector('.aw-compare')")
        # another input: what is shown stays until the kernel has it, and where it cannot have it
        seen.select_option(".aw-top select", "1")
        assert seen.evaluate("() => model.get('index')") == 1
        assert seen.text_content(".aw-said") == f"Capturing {page.choices[1]} …"
        seen.evaluate(
            "() => { model.fromKernel('index', 0); model.fromKernel('trouble', 'out of <b>memory</b>'); }"
        )
        seen.wait_for_function("() => document.querySelector('.aw-top select').value === '0'")
        assert seen.text_content(".aw-said") == "out of <b>memory</b>"
        seen.evaluate(
            """content => {
          model.set("index", 1);
          const bytes = Uint8Array.from(atob(content), letter => letter.charCodeAt(0));
          model.fromKernel("content", new DataView(bytes.buffer));
        }""",
            base64.b64encode(other.to_bytes()).decode(),
        )
        seen.wait_for_function("() => document.querySelector('.aw-top select').value === '1'")
        seen.wait_for_function(SAYS, arg="Layer 0, head 1: from [CLS]")
        # another model, by a part of its name; and a text of one's own
        seen.get_by_role("button", name="Open", exact=True).click()
        seen.get_by_label("model", exact=True).fill("digits-to")
        assert seen.locator(".aw-models .aw-leader").all_inner_texts()[0].startswith("bundled:digits-to")
        seen.locator(".aw-models .aw-leader").first.click()
        seen.get_by_role("button", name="Open", exact=True).click()
        assert seen.locator(".aw-models .aw-badge").count() > 0
        seen.get_by_label("a text of your own").fill("<img src=x onerror=alert(1)>")
        seen.get_by_role("button", name="Use this text").click()
        sent = seen.evaluate("() => model.sent")
        assert sent[0][0]["open"]["model"].startswith("bundled:digits-to")
        assert sent[1] == [{"open": {"text": "<img src=x onerror=alert(1)>"}}, 0]
        assert "Opening your text" in seen.text_content(".aw-said")
        seen.evaluate("() => away()")
        assert seen.evaluate("() => model.listeners()") == 0
        assert seen.locator(".aw-root").count() == 0
    assert wrong == []
