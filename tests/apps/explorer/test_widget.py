"""The page as a widget: what is set in Python moves the page, and what is done there is told."""

import asyncio
import base64
import json
import re
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import traitlets

import workbench
from tests.apps.explorer.browser import HOST, chromium, traits
from tests.browser import needs_chrome
from workbench.apps.explorer import Explorer, ablation, evidence
from workbench.apps.explorer import bundle as bundles
from workbench.apps.explorer.bundle import make_bundle, read_bundle
from workbench.apps.explorer.measures import NULL_SAMPLES
from workbench.apps.explorer.page import bundle_at
from workbench.apps.explorer.widget import PageWidget
from workbench.core.errors import InputError, MissingResource

HOLDS = "([selector, words]) => document.querySelector(selector)?.textContent.includes(words)"
SAYS = "words => document.querySelector('.aw-headline')?.textContent.includes(words)"


@pytest.fixture(scope="module")
def explorer():
    return Explorer(n=2)


@pytest.fixture(scope="module")
def page(explorer):
    return explorer.page(layers=[0, -1])


@pytest.fixture
def live(explorer, tmp_path, monkeypatch):
    """A page of an explorer of its own, whose captures the others of this file share."""
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("WORKBENCH_OUT", str(tmp_path / "figures"))
    monkeypatch.setenv("WORKBENCH_DEFER_EXPORT", str(tmp_path / "queue"))
    own = Explorer(n=2)
    own.material = explorer.material
    page = own.page(ablations=False)
    page.explorer = own
    return page


def ask(page, **message):
    """What the page asks for, its buffers aside."""
    page._heard(page, message, [])


def test_it_holds_the_bundle_and_stands_where_the_explorer_stands(explorer, page):
    assert read_bundle(page.content).header == page.bundle.header
    assert [layer.index for layer in page.bundle.header.layers] == [0, 3]
    assert (page.layer, page.head, page.tokens) == (explorer.location.layer, explorer.location.head, [0])


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


def test_another_input_is_captured_when_it_is_asked_for(explorer, live):
    one = live
    before = one.content
    assert one.choices == explorer.material.inputs(explorer.location).ids
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


def test_another_model_and_inputs_of_ones_own_are_opened(live):
    one = live
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
    assert card.address["inputs"] == 'text:["The harbour was quiet before the boats came in."]'
    before = one.content
    for asked, buffers, words in (
        ({"model": "bundled:digits-tots"}, [], "digits-tost"),
        ({"image": "../<b>.png"}, [b"no image"], "takes texts"),
        ({"text": " "}, [], "there is no text"),
        ({"inputs": "images:/nowhere"}, [], "there is no folder"),
        ({"model": 3}, [], "model of an address is a name"),
        ({"inputs": "upload:0123456789abcdef"}, [], "is not on this machine; give the same file"),
        ({"inputs": "upload:../../etc"}, [], "16 digits"),
        ({"address": "{"}, [], "no saved address"),
    ):
        one._heard(one, {"open": asked}, buffers)
        assert words in one.trouble
        assert one.content == before
    with pytest.raises(InputError, match="shows one bundle"):
        PageWidget(one.bundle).move(model="bundled:digits-vit")


def test_an_explorer_and_its_page_stand_at_one_place(live):
    own, seen = live.explorer, []
    live.observe(lambda change: seen.append(change["new"]), names="layer")
    own.layer = 1
    own.head = 2
    own.token = 7
    assert (live.layer, live.head, live.tokens, seen) == (1, 2, [7], [1])
    live.layer = 0
    live.tokens = []
    live.tab = "spectra"
    place = own.location
    assert (place.layer, place.head, place.token, place.view) == (0, 2, None, "spectrum")
    with pytest.raises(InputError, match="no layer 9"):
        own.layer = 9
    assert (own.layer, live.layer) == (0, 0)


def test_numbers_of_any_analysis_are_measured_and_stay_with_another_input(live):
    ask(live, measure="gram-spectrum")
    assert live.trouble == ""
    assert live.sort == "gram-spectrum/effective_rank"
    own = live.explorer
    rows = own.material.frame("gram-spectrum", own.location, null_samples=NULL_SAMPLES)
    rows = rows[rows["metric"] == "effective_rank"]
    for number in ("value", "null_mean"):
        expected = rows.pivot_table(index="layer", columns="head", values=number).to_numpy()
        assert live.bundle.metric(live.sort, number) == pytest.approx(expected)
    before = live.bundle.metric(live.sort)
    live.index = 1
    assert live.trouble == ""
    assert live.bundle.metric("gram-spectrum/effective_rank").shape == before.shape
    assert (live.bundle.metric("gram-spectrum/effective_rank") != before).any()
    for name, words in (("subspaces", "reads the weights of a model"), ("gram", "gram-spectrum")):
        ask(live, measure=name)
        assert words in live.trouble


def test_a_metric_of_the_address_is_measured_and_orders_the_heads(explorer):
    own = Explorer(n=2, metric="key_rank", view="norms")
    own.material = explorer.material
    page = own.page(ablations=False)
    assert (page.sort, page.tab) == ("gram-spectrum/effective_rank", "norms")


def test_a_figure_is_saved_and_the_code_written_of_what_is_seen(live, tmp_path):
    live.layer, live.head = 1, 2
    ask(live, lines="matrix")
    assert "layers=[1]" in live.lines
    assert "attention_matrix_figure" in live.lines
    live.against = "0.0.1.5"
    ask(live, save={"name": "my-view", "view": "compare"})
    assert live.trouble == ""
    assert live.notice.endswith(f"in {tmp_path / 'figures'}")
    address = json.loads((tmp_path / "figures" / "my-view.json").read_text())["parameters"]
    assert (address["layer"], address["head"], address["view"]) == (1, 2, "compare")
    assert (address["against"]["layer"], address["against"]["head"], address["against"]["token"]) == (0, 1, 5)
    ask(live, save={"name": "../outside", "view": "matrix"})
    assert "not a figure name" in live.trouble
    ask(live, open={"address": json.dumps({**address, "against": None, "layer": 3, "token": 12})})
    assert (live.layer, live.head, live.tokens) == (3, 2, [12])


def test_random_weights_are_offered_where_trained_ones_are_not_to_be_had(live):
    live._asked = {"model": "timm:test_vit"}
    live._fail(MissingResource("timm:test_vit is not here; pass pretrained=False for random ones"))
    assert live.missing == "timm:test_vit"
    assert "take random weights (the button here)" in live.trouble
    live._asked = {"model": "hf:gpt2", "pretrained": False}  # neither its weights nor its architecture
    live._fail(MissingResource("hf:gpt2 is not here; pass pretrained=False for random ones"))
    assert (live.missing, live.trouble) == ("", "hf:gpt2 is not here")
    ask(live, open={"model": "timm:test_vit", "pretrained": False})
    assert (live.missing, live.trouble) == ("", "")
    assert live.bundle.header.model.random_weights
    assert "pretrained=False" in live.explorer.code()
    ask(live, open={"model": "bundled:digits-vit"})
    assert live.explorer.location.pretrained


def test_a_head_is_switched_off_when_it_is_asked_for_beside_random_ones(live, monkeypatch):
    own = live.explorer
    whole = own.material.keep(own.location, ("whole",), lambda: make_bundle(*_given(own), ablations=True))
    live.layer, live.head = 1, 2
    assert live.bundle.header.ablations == {}
    monkeypatch.setattr(ablation, "RANDOM_HEADS", 4)
    ask(live, switch_off="uniform")
    assert (live.trouble, live.tab, live.ablation) == ("", "effect", "uniform")
    for number, error in (("probability", 5e-4), ("actual", 5e-4), ("divergence", 1e-5)):
        name = f"inputs.0.ablations.uniform.{number}"
        known = np.isfinite(live.bundle.arrays[name]).reshape(4, 3, -1).all(-1)
        assert known[1, 2]
        assert 4 <= known.sum() <= 5
        np.testing.assert_allclose(
            live.bundle.arrays[name][known], whole.arrays[name][known], rtol=1e-3, atol=error
        )
    # the mean over all inputs, put where the module reads it
    ask(live, switch_off="batch")
    model, one = _given(own)
    seen = workbench.capture(model, own.material.inputs(own.location), layers=[1], sites=["head_out"])
    projection = model.module.get_submodule(live.bundle.header.layers[1].path).proj

    def put(_, given):
        given[0][..., 32:48] = seen[1].head_out[:, 2].mean((0, 1))

    hook = projection.register_forward_pre_hook(put)
    try:
        with torch.no_grad():
            without = model.module(one.batch)[0].softmax(-1)
    finally:
        hook.remove()
    found = live.bundle.arrays["inputs.0.ablations.batch.probability"][1, 2, 0].astype(float)
    outcomes = [int(name) for name in live.bundle.header.inputs[0].prediction.outcomes[0]]
    np.testing.assert_allclose(found, without[outcomes].numpy(), atol=5e-4)
    for how, words in (("loud", "uniform"), ("zero", "")):
        ask(live, switch_off=how)
        assert words in live.trouble
    assert set(live.bundle.header.ablations) == {"uniform", "batch", "zero"}


def test_cards_are_made_on_request_and_stay_with_another_input(live):
    ask(live, cards=3)
    assert live.trouble == ""
    assert (live.tab, live.bundle.header.cards.inputs) == ("card", 3)
    live.index = 1
    assert live.bundle.header.cards.inputs == 3
    ask(live, cards=0)
    assert "from 1" in live.trouble


def test_queries_and_keys_are_laid_out_by_umap_where_it_is_installed(live, monkeypatch):
    given = []

    class UMAP:  # what umap-learn is asked for, whether it is installed or not
        def __init__(self, **settings):
            given.append(settings)

        def fit_transform(self, vectors):
            given.append(vectors)
            return vectors[:, :2]

    monkeypatch.setitem(sys.modules, "umap", None)
    ask(live, embed=True)
    assert "pip install umap-learn" in live.trouble
    monkeypatch.setitem(sys.modules, "umap", SimpleNamespace(UMAP=UMAP))
    live.layer, live.head = 1, 2
    ask(live, embed=True)
    assert live.trouble == ""
    settings, vectors = given
    assert settings == {"n_neighbors": 15, "random_state": live.location.seed, "n_jobs": 1}
    found = live.embedding
    assert (found["id"], found["layer"], found["head"]) == (live.choices[0], 1, 2)
    np.testing.assert_array_equal([*found["q"], *found["k"]], vectors[:, :2])
    # the vectors whose principal plane the page shows: as far from one another
    plane = [live.bundle.arrays[f"inputs.0.layers.1.plane.{site}"][2] for site in ("q", "k")]
    centred = vectors - vectors.mean(0)
    variance = np.linalg.svd(centred, compute_uv=False)[:2] ** 2
    points = np.concatenate(plane).astype(float)
    np.testing.assert_allclose(((points - points.mean(0)) ** 2).sum(0), variance, rtol=1e-2)


@needs_chrome
def test_a_matrix_that_is_too_coarse_is_looked_at_closer(explorer, monkeypatch):
    """Of a pooled matrix the page asks for what is in view, and shows it token by token."""
    monkeypatch.setattr(bundles, "POOLED", 16)
    monkeypatch.setattr(evidence, "MOST_TOKENS", 0)  # no spectra: they are not in question
    own = Explorer(n=2)
    page = own.page(layers=[3], ablations=False)
    assert page.bundle.header.layers[0].pooled
    sent = []
    monkeypatch.setattr(page, "send", lambda content, buffers: sent.append((content["part"], buffers[0])))
    attn = workbench.capture(*_given(own), layers=[3], sites=["attn"])[3].attn[0, 0].numpy()
    ask(page, part=[0, 0, 65])
    whole = np.frombuffer(sent[0][1], np.float16).reshape(16, 16)
    np.testing.assert_allclose(whole, page.bundle.attention(3)[0], atol=1e-3)
    ask(page, part=[60, 3, 16])
    assert "no part of 16 tokens from 60 and 3" in page.trouble
    wrong = []
    with chromium() as browser:
        seen = browser.new_page(viewport={"width": 1440, "height": 900})
        seen.on("pageerror", lambda error: wrong.append(str(error)))
        seen.evaluate(HOST, [page._esm, page._css, traits(page), base64.b64encode(page.content).decode()])
        note = ".aw-evidence .aw-body > .aw-note"
        seen.wait_for_function(HOLDS, arg=[note, "Means of 4.1 × 4.1 tokens."])
        box = seen.locator(".aw-matrix").bounding_box()
        middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        seen.mouse.move(*middle)
        seen.mouse.wheel(0, -1500)  # nine times as large
        seen.wait_for_function("() => model.sent.at(-1)[0].part")
        asked = seen.evaluate("() => model.sent.at(-1)[0].part")
        assert asked[2] < 16
        sent.clear()
        ask(page, part=asked)
        while page.worker.busy:  # in a thread of its own, since the browser's event loop runs
            seen.wait_for_timeout(20)
        ((part, content),) = sent
        exact = np.frombuffer(content, np.float16).reshape(part["side"], part["side"])
        top, left, count = asked
        np.testing.assert_allclose(exact, attn[top : top + count, left : left + count], rtol=1e-3, atol=6e-8)
        seen.evaluate(
            """([part, content]) => model.message({ part }, [new DataView(
              Uint8Array.from(atob(content), letter => letter.charCodeAt(0)).buffer)])""",
            [part, base64.b64encode(content).decode()],
        )
        seen.wait_for_function(HOLDS, arg=[note, "Token by token."])
        seen.mouse.move(middle[0] + 1, middle[1] + 1)
        words = seen.text_content(".aw-tip span")
        labels = page.bundle.header.inputs[0].labels
        query, key = (labels.index(one) for one in re.findall(r"patch (\d+,\d+)", words))
        said = float(seen.text_content(".aw-tip b").rstrip("\u00a0%")) / 100
        assert said == pytest.approx(float(attn[query, key]), rel=0.06, abs=1e-4)
        assert (query, key) == (32, 32)
        # a link of two patches: the kernel sends it alone
        seen.evaluate("() => { model.sent.length = 0; }")
        for row, column in ((6, 1), (1, 2)):
            box = seen.locator(".aw-stage canvas").bounding_box()
            across, down = (column + 0.5) * box["width"] / 8, (row + 0.5) * box["height"] / 8
            seen.mouse.click(box["x"] + across, box["y"] + down)
            seen.wait_for_timeout(200)  # sentences change, and with them the size of the picture
        seen.mouse.move(2, 2)
        seen.wait_for_function("() => model.sent.some(([one]) => one.part?.[2] === 1)")
        asked = seen.evaluate("() => model.sent.find(([one]) => one.part)[0].part")
        assert asked == [50, 11, 1]
        sent.clear()
        ask(page, part=asked)
        while page.worker.busy:
            seen.wait_for_timeout(20)
        ((part, content),) = sent
        seen.evaluate(
            """([part, content]) => model.message({ part }, [new DataView(
              Uint8Array.from(atob(content), letter => letter.charCodeAt(0)).buffer)])""",
            [part, base64.b64encode(content).decode()],
        )
        seen.wait_for_function(SAYS, arg="tokens; the link itself has ")
        said = re.search("the link itself has ([\\d.]+)\u00a0%", seen.text_content(".aw-headline")).group(1)
        assert float(said) / 100 == pytest.approx(float(attn[50, 11]), rel=0.06, abs=1e-4)
    assert wrong == []


def test_a_layer_that_was_left_out_is_captured_when_it_is_asked_for(live, monkeypatch):
    monkeypatch.setattr(evidence, "MOST_TOKENS", 0)  # no spectra: they are not in question
    page = live.explorer.page(layers=[-1], ablations=False)
    assert page.bundle.header.left_out == [0, 1, 2]
    ask(page, layer=1)
    assert (page.trouble, page.layer, page.bundle.header.left_out) == ("", 1, [0, 2])


def _given(explorer):
    """The model of an explorer and the one input that it shows."""
    return explorer.material.model(explorer.location), explorer.material.one(explorer.location)


def test_a_text_goes_on_and_each_new_token_has_the_attention_it_was_chosen_by(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path))
    monkeypatch.setattr(evidence, "MOST_TOKENS", 0)  # no spectra: they are not in question
    (tmp_path / "mine.txt").write_text("The tea was cold and the tea was late.\n")
    own = Explorer("bundled:prose-softmax", f"text:{tmp_path / 'mine.txt'}", n=1)
    page = own.page(layers=[3], ablations=False)
    ask(page, generate=5)
    assert page.trouble == ""
    card = page.bundle.header.inputs[0]
    model, one = _given(own)
    steps = workbench.capture_generation(model, one, 5, sites=("attn",))
    prompt = len(one.tokens.labels[0])
    assert (card.generated, card.labels) == (5, steps.tokens.labels[0])
    assert page.tokens == [prompt - 1]  # the query that chose the first of them
    rows = page.bundle.attention(3)[:, prompt - 1 : -1, :-1].astype(float)
    stated = page.bundle.header.max_error["inputs.0.layers.3.attn"]
    np.testing.assert_allclose(rows, steps[3].attn[0], atol=stated + 1e-7)
    probability = steps.generated.logits[0].double().softmax(-1)
    chosen = steps.generated.sequences[0, prompt:]
    np.testing.assert_allclose(
        page.bundle.arrays["inputs.0.prediction.actual"][prompt - 1 : -1],
        probability[torch.arange(5), chosen],
        rtol=1e-4,
    )
    page.tokens = [prompt + 1]
    own.head = 1  # the address is that of the prompt
    assert (own.location.token, page.head, len(page.bundle.header.inputs[0].labels)) == (None, 1, prompt + 5)
    for message, words in (
        ({"generate": "many"}, "whole number"),
        ({"generate": 10**6}, "reads 128 tokens"),
        ({"save": {"name": "x", "view": "matrix"}}, "the model wrote this text"),
    ):
        ask(page, **message)
        assert words in page.trouble
    page._heard(page, {"open": {"model": "bundled:digits-vit"}}, [])
    assert page.bundle.header.inputs[0].generated == 0
    ask(page, generate=5)
    assert "no text that it could go on writing" in page.trouble


def test_a_fault_is_told_and_the_page_stays_usable(live, monkeypatch):
    def broken(*given):
        raise ValueError("the roof is leaking")

    monkeypatch.setattr(live.explorer, "after", broken)
    ask(live, open={"inputs": "bundled:digits"})
    assert "the roof is leaking" in live.trouble
    monkeypatch.undo()
    live.index = 1
    assert (live.trouble, live.explorer.location.index) == ("", 1)


def test_work_is_told_and_cancelled_where_an_event_loop_runs(live):
    async def scene():
        own = live.explorer
        page = own.page(wait=False, ablations=False, layers=[1, 3])  # as no other test has captured it
        assert page.content == b""
        seen = []
        page.observe(lambda change: seen.append(page.bundle.header.unmeasured), names="content")
        while not page.content:
            await asyncio.sleep(0.01)
        ask(page, lines="matrix")  # for which measuring gives way, and goes on
        while page.worker.busy:
            await asyncio.sleep(0.01)
        assert "attention_matrix_figure" in page.lines
        assert (page.layer, page.trouble) == (3, "")
        assert seen == [True, False]  # attention first, then what takes longer
        before = page.content
        own.material._running.acquire()  # as another capture does
        page.start({"model": "bundled:digits-xcit"})
        while not page.busy.startswith("looking for layers"):
            assert page.worker.busy
            await asyncio.sleep(0.01)
        ask(page, measure="gram-spectrum")
        assert "wait for the running work" in page.trouble
        ask(page, cancel=True)
        own.material._running.release()
        assert page.notice == "Cancelled; the view is unchanged."
        assert (page.busy, page.content, page.index) == ("", before, 0)
        page.start({"layer": 1})
        page.start({"index": 1})  # neither is lost
        while page.worker.busy:
            await asyncio.sleep(0.01)
        assert (own.location.layer, own.location.index) == (1, 1)

    asyncio.run(scene())


def test_a_figure_is_saved_while_its_lines_are_being_written(live, monkeypatch):
    """The export box asks for the lines as it opens: a click on "Save" does not wait for them."""
    page, written = live, threading.Event()
    monkeypatch.setattr(page._explorer, "code_at", lambda address: str(written.wait(60)))
    monkeypatch.setattr(page._explorer, "save_at", lambda *given: None)

    async def scene():
        ask(page, lines="attention")
        assert page.worker.busy
        ask(page, save={"name": "mine", "view": "attention"})
        assert page.trouble == ""
        written.set()
        while page.worker.busy:
            await asyncio.sleep(0.01)
        assert page.notice.startswith("Saved mine ")

    asyncio.run(scene())


def test_a_page_that_comes_up_late_is_told_again(live, monkeypatch):
    sent = []
    monkeypatch.setattr(live, "send_state", lambda *given: sent.append(given))
    ask(live, shown=[len(live.content), "", ""])
    assert sent == []
    ask(live, shown=[0, "", ""])
    assert sent == [()]


def _everything_is_larger_and_is_hit_where_it_is(seen):
    """In a lecture hall: the same head under the pointer, and nothing beyond the page."""
    seen.evaluate("() => { model.fromKernel('trouble', ''); model.fromKernel('talk', true); }")
    seen.wait_for_timeout(150)
    box = seen.locator(".aw-grid").bounding_box()
    shown = json.loads(seen.evaluate("() => JSON.stringify([model.get('layer'), model.get('head')])"))
    seen.mouse.move(box["x"] + box["width"] * 0.2, box["y"] + 40)  # the first cell of the first layer
    assert seen.text_content(".aw-tip b") == "Layer 0, head 0"
    assert shown != [0, 0]
    seen.mouse.down()
    seen.mouse.up()
    seen.wait_for_function("() => model.get('layer') === 0 && model.get('head') === 0")
    size = seen.evaluate("() => parseFloat(getComputedStyle(document.querySelector('.aw-headline')).fontSize)"
                         " * document.querySelector('.aw-headline').currentCSSZoom")  # fmt: skip
    assert size >= 20
    wide = seen.eval_on_selector(".aw-root", "box => [box.scrollWidth, box.clientWidth]")
    assert wide[0] <= wide[1]


def _a_view_of_another_bundle_stands_beside_this_one(seen, before, now):
    """A view that was pinned before another input was taken: the difference, and that of random heads of each."""
    seen.locator(".aw-pin").last.click()
    a = before.attention(0)[1, [5, 6]].astype(float).mean(0)
    b = now.attention(0)[1, 0].astype(float)
    moved = abs(a - b).sum() / (a + b).sum()
    seen.wait_for_function(SAYS, arg=f"{moved * 100:.0f}\u00a0% of the attention goes to different tokens")
    seen.wait_for_function(SAYS, arg="; a random head of each: ")
    assert "digits-vit, layer 0, head 1, digits/" in seen.text_content(".aw-pane h3")
    seen.locator(".aw-grid").focus()
    seen.keyboard.press("e")
    assert seen.get_by_label("figure", exact=True).input_value() == "compare"
    seen.keyboard.press("Escape")
    asked = seen.evaluate("() => model.sent.pop()")[0]
    view = {
        "model": "bundled:digits-vit",
        "id": before.header.inputs[0].id,
        "layer": 0,
        "head": 1,
        "token": 5,
    }
    assert asked == {"lines": "compare", "against": view}
    # a bundle that arrives while a box is open waits until it is closed; the grid keeps the keys
    seen.keyboard.press("e")
    seen.evaluate("() => model.fromKernel('content', model.get('content'))")
    assert seen.locator("dialog[open]").count() == 1
    seen.keyboard.press("Escape")
    seen.wait_for_function(
        "() => document.activeElement.className === 'aw-grid' && !document.querySelector('dialog[open]')"
    )
    seen.evaluate("() => model.sent.pop()")
    seen.locator(".aw-grid").focus()
    seen.keyboard.press("Escape")
    seen.wait_for_function("() => !document.querySelector('.aw-compare')")


def _the_plane_is_that_of_umap_where_it_was_asked_for(seen, now):
    """Queries and keys where UMAP has put them; another head has its principal components until it is asked for."""
    seen.keyboard.press("3")
    seen.get_by_role("button", name="UMAP", exact=True).click()
    assert seen.evaluate("() => model.sent.pop()")[0] == {"embed": True}
    points = [[float(i % 8), float(i // 8)] for i in range(65)]
    card = now.header.inputs[0]
    seen.evaluate(
        "found => model.fromKernel('embedding', found)",
        {"id": card.id, "layer": 0, "head": 1, "q": points, "k": [[x + 20, y] for x, y in points]},
    )
    reads = "words => document.querySelector('.aw-evidence .aw-reads').textContent.includes(words)"
    seen.wait_for_function(reads, arg="UMAP of 65 keys and their queries.")
    box = seen.locator(".aw-plane").bounding_box()
    seen.mouse.move(
        box["x"] + box["width"] - 12, box["y"] + box["height"] / 2 + 0.2 * (box["width"] - 24) / 27
    )
    assert seen.text_content(".aw-tip b").startswith("Key ")  # keys lie on the right
    seen.locator(".aw-grid").focus()
    seen.keyboard.press("ArrowLeft")
    seen.wait_for_function(reads, arg="The plane holds")
    seen.keyboard.press("ArrowRight")
    seen.wait_for_function(reads, arg="UMAP of 65 keys")
    seen.keyboard.press("1")


@needs_chrome
def test_the_module_follows_the_kernel_and_tells_it(explorer, page):
    state = traits(page) | {"umap": True}
    other = bundle_at(explorer.location.moved(index=1), explorer.material, [0, 3])
    wrong = []
    with chromium() as browser:
        seen = browser.new_page(viewport={"width": 1300, "height": 900})
        seen.on("pageerror", lambda error: wrong.append(str(error)))
        empty = seen.evaluate(HOST, [page._esm, page._css, {**state, "busy": "loading x"}, ""])
        assert empty is None
        assert seen.text_content(".aw-notice p") == "Loading x …"  # before the first bundle
        seen.evaluate("() => away()")
        seen.evaluate(HOST, [page._esm, page._css, state, base64.b64encode(page.content).decode()])
        seen.wait_for_function(SAYS, arg="Layer 3, head 0: from [CLS]")
        seen.evaluate("() => model.fromKernel('layer', 0)")
        seen.wait_for_function(SAYS, arg="Layer 0, head 0")
        seen.evaluate("() => model.fromKernel('tokens', [5, 6])")
        seen.wait_for_function(SAYS, arg="from 2 tokens (mean)")
        seen.locator(".aw-grid").focus()
        seen.keyboard.press("ArrowRight")
        seen.wait_for_function("() => model.get('head') === 1 && model.saved > 0")
        for key, head in (
            ("ArrowRight", 2),
            ("ArrowLeft", 1),
        ):  # set just before a bundle with more in it comes
            seen.evaluate(
                """([content, key]) => {
              document.querySelector(".aw-grid").dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
              const bytes = Uint8Array.from(atob(content), letter => letter.charCodeAt(0));
              model.fromKernel("content", new DataView(bytes.buffer));
            }""",
                [base64.b64encode(page.content).decode(), key],
            )
            seen.wait_for_function("head => model.get('head') === head", arg=head)
            seen.wait_for_function(SAYS, arg=f"Layer 0, head {head}")
        seen.locator(".aw-grid").focus()
        seen.keyboard.press("s")
        seen.wait_for_function("() => model.get('scale') === 'log'")
        seen.evaluate("() => model.fromKernel('against', '0.3.0.all')")
        seen.wait_for_selector(".aw-compare")
        seen.evaluate("() => model.fromKernel('against', '0.9.0.all')")  # of a layer that is not there
        seen.wait_for_function("() => model.get('against') === '' && !document.querySelector('.aw-compare')")
        seen.keyboard.press("m")  # layer 0, head 1, tokens 5 and 6
        seen.wait_for_selector(".aw-pin")
        # another input: what is shown stays until the kernel has it, and where it cannot have it
        seen.select_option(".aw-top select", "1")
        assert seen.evaluate("() => model.get('index')") == 1
        assert seen.text_content(".aw-notice p") == f"Capturing {page.choices[1]} …"
        seen.evaluate(
            "() => { model.fromKernel('index', 0); model.fromKernel('trouble', 'out of <b>memory</b>'); }"
        )
        seen.wait_for_function("() => document.querySelector('.aw-top select').value === '0'")
        assert seen.text_content(".aw-notice p") == "out of <b>memory</b>"
        colour = "() => getComputedStyle(document.querySelector('.aw-notice p')).color"
        for theme, said in (("light", "rgb(161, 29, 29)"), ("dark", "rgb(255, 154, 144)")):
            seen.evaluate("theme => model.fromKernel('theme', theme)", theme)
            seen.wait_for_function(f"said => ({colour})() === said", arg=said)
        seen.evaluate(
            """content => {
          model.set("index", 1);
          model.set("tokens", [0]);
          const bytes = Uint8Array.from(atob(content), letter => letter.charCodeAt(0));
          model.fromKernel("content", new DataView(bytes.buffer));
        }""",
            base64.b64encode(other.to_bytes()).decode(),
        )
        seen.wait_for_function("() => document.querySelector('.aw-top select').value === '1'")
        seen.wait_for_function(SAYS, arg="Layer 0, head 1: from [CLS]")
        _a_view_of_another_bundle_stands_beside_this_one(seen, page.bundle, other)
        _the_plane_is_that_of_umap_where_it_was_asked_for(seen, other)
        # another model, by a part of its name; and a text of one's own
        seen.get_by_role("button", name="Open", exact=True).click()
        seen.get_by_label("model", exact=True).fill("digits-to")
        assert seen.locator(".aw-models .aw-leader").all_inner_texts()[0].startswith("bundled:digits-to")
        seen.locator(".aw-models .aw-leader").first.click()
        seen.get_by_role("button", name="Open", exact=True).click()
        assert seen.locator(".aw-models .aw-badge").count() > 0
        seen.get_by_label("your text").fill("<img src=x onerror=alert(1)>")
        seen.get_by_role("button", name="Use this text").click()
        sent = seen.evaluate("() => model.sent")
        assert sent[0] == [{"shown": [len(page.content), "", ""]}, 0]
        assert sent[1][0]["open"]["model"].startswith("bundled:digits-to")
        assert sent[2] == [{"open": {"text": "<img src=x onerror=alert(1)>"}}, 0]
        assert "Opening your text" in seen.text_content(".aw-notice p")
        # what a kernel is asked for besides, and what it answers
        seen.evaluate("() => { model.fromKernel('busy', 'capturing x'); model.fromKernel('share', 0.4); }")
        assert seen.text_content(".aw-notice p") == "Capturing x …"
        assert seen.eval_on_selector(".aw-notice progress", "bar => bar.value") == 0.4
        seen.get_by_role("button", name="Cancel").click()
        seen.evaluate("() => { model.fromKernel('share', null); model.fromKernel('busy', ''); }")
        assert seen.locator(".aw-notice").is_hidden()
        seen.evaluate(
            "() => { model.fromKernel('missing', 'timm:x'); model.fromKernel('trouble', 'not here'); }"
        )
        seen.get_by_role("button", name="Take random weights").click()
        seen.get_by_label("layers that were left out").select_option("1")
        seen.get_by_label("order of heads").select_option("measure gram-spectrum")
        seen.locator(".aw-grid").focus()
        seen.keyboard.press("e")
        assert seen.get_by_label("figure", exact=True).input_value() == "attention"
        seen.get_by_label("figure", exact=True).select_option("norms")
        seen.evaluate("() => model.fromKernel('lines', 'figure  # <b>')")
        assert seen.get_by_label("lines of Python that make this figure").input_value() == "figure  # <b>"
        seen.get_by_label("name of the figure").fill("mine")
        seen.keyboard.press("Enter")
        assert [message for message, _ in seen.evaluate("() => model.sent")[3:]] == [
            {"cancel": True},
            {"open": {"model": "timm:x", "pretrained": False}},
            {"layer": 1},
            {"measure": "gram-spectrum"},
            {"lines": "attention"},
            {"lines": "norms"},
            {"save": {"name": "mine", "view": "norms"}},
        ]
        _everything_is_larger_and_is_hit_where_it_is(seen)
        seen.evaluate("() => away()")
        assert seen.evaluate("() => model.listeners()") == 0
        assert seen.locator(".aw-root").count() == 0
    assert wrong == []


def test_another_checkpoint_shows_the_same_view(live):
    """What the slider of the page asks for: the address of the view, with the checkpoint's name in its model."""
    assert len(live.checkpoints) == 10
    address = {**live.location.to_dict(), "against": None, "layer": 1, "head": 2, "token": 7}
    ask(live, open={"address": json.dumps({**address, "model": f"bundled:digits-vit@{live.checkpoints[0]}"})})
    assert live.trouble == ""
    assert live.bundle.header.model.checkpoint == "epoch-000"
    assert (live.layer, live.head, live.tokens, len(live.checkpoints)) == (1, 2, [7], 10)


@pytest.fixture(scope="module")
def long_text():
    """A page of a text of 940 characters, which the model reads in windows of 128."""
    return Explorer("bundled:prose-softmax", ["The harbour was quiet and the boats lay still. " * 20]).page(
        layers=[0], ablations=False
    )


def test_the_window_of_a_text_moves_and_is_named(long_text):
    page, text = long_text, long_text.location.inputs
    shown = []
    for window in (0, 1, 7):
        ask(page, open={"window": window})
        card = read_bundle(page.content).header.inputs[0]
        assert (page.trouble, card.whole, card.first) == ("", 940, 128 * window)
        assert card.address.get("window", 0) == page.location.window == window
        shown.append((card.id, "".join(card.labels)))
    whole = "The harbour was quiet and the boats lay still. " * 20
    assert shown == [
        ("text:1", whole[:128]),
        ("text:1, tokens 129–256", whole[128:256]),
        ("text:1, tokens 897–940", whole[896:]),
    ]
    assert "window=7)[0:1]" in page._host().code_at(page.location)
    ask(page, open={"window": 8})
    assert page.trouble == "window 8 was asked for; the longest text has 8 of 128 tokens, from 0"
    assert page.location.window == 7
    ask(page, open={"inputs": "bundled:prose"})
    assert page.location.window == 0
    ask(page, open={"inputs": text})


@needs_chrome
def test_two_buttons_move_the_window_of_a_text(long_text):
    page, contents, wrong = long_text, [], []
    for window in (0, 6, 7):
        ask(page, open={"window": window})
        contents.append(base64.b64encode(page.content).decode())
    shown = ["tokens 1–128 of 940", "tokens 769–896 of 940", "tokens 897–940 of 940"]
    neighbours = [{"later tokens": 1}, {"earlier tokens": 5, "later tokens": 7}, {"earlier tokens": 6}]
    with chromium() as browser:
        seen = browser.new_page(viewport={"width": 1300, "height": 900})
        seen.on("pageerror", lambda error: wrong.append(str(error)))
        for content, words, windows in zip(contents, shown, neighbours, strict=True):
            seen.evaluate(HOST, [page._esm, page._css, traits(page), content])
            seen.wait_for_function(HOLDS, arg=[".aw-top", words])
            for name, window in windows.items():
                seen.get_by_role("button", name=name, exact=True).click()
                assert seen.evaluate("() => model.sent.at(-1)") == [{"open": {"window": window}}, 0]
                assert f"Opening window {window} of the text" in seen.text_content(".aw-notice p")
            disabled = [name for name in neighbours[1] if name not in windows]
            labels = "buttons => buttons.map(button => button.ariaLabel)"
            assert seen.eval_on_selector_all(".aw-top button:disabled", labels) == disabled
            seen.evaluate("() => away()")
    assert wrong == []
