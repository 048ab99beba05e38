"""The route to a prediction: what links add to its logit, and the prediction without one of them."""

import base64
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import workbench
from tests.apps.explorer.browser import HOST, traits
from tests.apps.explorer.test_page import SAYS, SHOWS
from tests.browser import needs_chrome
from tests.captures.families import FAMILIES
from workbench.apps.explorer import Explorer
from workbench.apps.explorer.ablation import without_links
from workbench.apps.explorer.page import bundle_at
from workbench.captures import intervene

LIST = ".aw-route .aw-most"
NOTE = ".aw-route .aw-note"
LINKS = f"""() => [...document.querySelectorAll("{LIST} .aw-leader")].map(one => [
  one.children[0].textContent, one.children[1].textContent, one.children[3].textContent
])"""


@pytest.fixture(scope="module")
def explorer():
    return Explorer(n=2)


@pytest.fixture(scope="module")
def bundle(explorer):
    return bundle_at(explorer.location, explorer.material, ablations=False)


@pytest.fixture(scope="module")
def links(explorer):
    """What every link of the class token adds to the logit of the predicted class."""
    model, sample = (getattr(explorer.material, name)(explorer.location) for name in ("model", "one"))
    return workbench.analyze("logit-attribution", model, sample, per="pair", query=0)


def test_a_bundle_holds_the_strongest_links_of_each_layer_and_the_sum_of_all(bundle, links):
    for layer, rows in links.groupby("layer"):
        kept = bundle.arrays[f"inputs.0.layers.{layer}.route.links"]
        assert kept.shape == (1, 12, 3)
        expected = rows.loc[
            rows["value"].abs().sort_values(ascending=False).index[:12], ["head", "key", "value"]
        ]
        np.testing.assert_allclose(kept[0], expected, rtol=1e-4)
        total = bundle.arrays[f"inputs.0.layers.{layer}.route.total"]
        assert total.shape == (1,)
        assert total[0] == pytest.approx(rows["value"].sum(), rel=1e-4)


def test_links_of_a_text_are_those_of_each_query():
    explorer = Explorer("bundled:prose-softmax", ["The tide went out."])
    held = bundle_at(explorer.location, explorer.material, ablations=False)
    model, sample = (getattr(explorer.material, name)(explorer.location) for name in ("model", "one"))
    rows = workbench.analyze("logit-attribution", model, sample, per="pair", query=7)
    for layer, of_layer in rows.groupby("layer"):
        kept = held.arrays[f"inputs.0.layers.{layer}.route.links"][7]
        most = of_layer.loc[of_layer["value"].abs().idxmax(), ["head", "key", "value"]]
        np.testing.assert_allclose(kept[0], most.to_numpy(float), rtol=1e-3)
        assert (kept[:, 1] <= 7).all()
        total = held.arrays[f"inputs.0.layers.{layer}.route.total"][7]
        assert total == pytest.approx(of_layer["value"].sum(), abs=1e-4)


def test_a_model_whose_logit_is_no_sum_of_its_stream_has_no_route():
    explorer = Explorer("bundled:digits-tssa", n=1)
    held = bundle_at(explorer.location, explorer.material, ablations=False)
    assert not [name for name in held.arrays if ".route." in name]


@pytest.mark.parametrize("name", ["gpt2", "llama"])  # llama: two query heads share the values of one
def test_without_a_link_its_value_is_missing_from_the_sum_of_its_query(name):
    model, batch = FAMILIES[name].build(), FAMILIES[name].batch()
    batch = {field: tensor[:1] for field, tensor in batch.items()}
    seen = workbench.capture(model, batch, sites=["v", "attn", "head_out"])
    record = seen[1]
    group = record.attn.shape[1] // record.v.shape[1]
    rows = []
    for head, query, key in ((1, 4, 2), (0, 3, 3)):
        out = record.head_out.clone()
        others = [other for other in range(query + 1) if other != key]
        out[0, head, query] = sum(
            record.attn[0, head, query, other] * record.v[0, head // group, other] for other in others
        )
        with torch.no_grad(), intervene(model, {(1, head): out[:, head]}):
            rows.append(model(**batch).logits[0].double().softmax(-1))
    held, sample = SimpleNamespace(module=model), SimpleNamespace(batch=batch)
    found = without_links(held, sample, record, [(1, 4, 2), (0, 3, 3)])
    torch.testing.assert_close(found, torch.stack(rows), rtol=1e-4, atol=1e-6)


def test_a_page_with_a_kernel_switches_a_link_off_beside_random_links(explorer, links, monkeypatch):
    page = explorer.page(layers=[3], ablations=False)
    page.layer = 3  # no later layer answers
    sent = []
    monkeypatch.setattr(page, "send", lambda content: sent.append(content["link"]))
    most = links[links["layer"] == 3].nlargest(1, "value").iloc[0]
    page._heard(page, {"link": [int(most["head"]), 0, int(most["key"])]}, [])
    assert page.trouble == ""
    (found,) = sent
    assert (found["layer"], found["head"], found["query"], found["key"]) == (3, most["head"], 0, most["key"])
    assert found["before"] == pytest.approx(
        page.bundle.arrays["inputs.0.prediction.probability"][0, 0], abs=1e-5
    )
    assert found["after"] < found["before"]
    assert len(found["random"]) == 16
    page._heard(page, {"link": [0, 0, 65]}, [])
    assert "there is no link (0, 0, 65) (head, query, key) in layer 3: (3, 65, 65)" in page.trouble


def words(token):
    return f"{'+' if token > 0 else '−'}{abs(token):#.3g}"


@pytest.mark.e2e
@needs_chrome
def test_the_map_of_a_saved_page_leads_to_its_links_and_says_that_it_runs_no_model(
    browser, explorer, links, tmp_path
):
    saved = explorer.save_html(tmp_path / "page.html", ablations=False)
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto(f"{saved.as_uri()}#layer=3&head=0&depth=route")
    page.wait_for_function(SHOWS, arg=[NOTE, "A saved page cannot switch a line off: run workbench explore"])
    labels = explorer.material.one(explorer.location).tokens.labels[0]
    order = links.loc[links["value"].abs().sort_values(ascending=False).index[:5]]
    expected = [
        [f"patch {labels[key]}", f"layer {layer}, head {head}", words(value)]
        for layer, head, key, value in order[["layer", "head", "key", "value"]].itertuples(index=False)
    ]
    assert page.evaluate(LINKS) == expected
    page.locator(f"{LIST} .aw-leader").nth(1).click()
    layer, head, key = order.iloc[1][["layer", "head", "key"]]
    page.wait_for_function(SAYS, arg=f"Layer {layer}, head {head}: ")
    assert f"link={key}" in page.evaluate("() => location.hash")
    page.close()


@pytest.mark.e2e
@needs_chrome
def test_a_click_on_a_line_asks_the_kernel_and_shows_what_moves(browser, explorer, links):
    widget = explorer.page(ablations=False, height=900)
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto("about:blank")
    state = traits(widget) | {"depth": "route", "theme": "light"}
    page.evaluate(HOST, [widget._esm, widget._css, state, base64.b64encode(widget.content).decode()])
    page.wait_for_function(SHOWS, arg=[NOTE, "Click a line to switch it off."])
    most = links.nlargest(1, "value").iloc[0]
    box = page.locator(".aw-route canvas").bounding_box()
    asked = "() => window.model.sent.map(([one]) => one.link).filter(Boolean)"
    for down in range(4, 160, 3):  # along the start of the most important line, in the first layer
        page.mouse.click(box["x"] + 110, box["y"] + down)
        page.wait_for_timeout(60)
        if page.evaluate(asked):
            break
    link = page.evaluate(asked)[0]
    assert link == [most["head"], 0, most["key"]]
    effect = {"before": 0.5, "after": 0.3, "random": [0.5, 0.51, 0.25, 0.5]}
    card = widget.bundle.header.inputs[0]
    page.evaluate(
        "link => window.model.message({ link }, [])",
        {"id": card.id, "layer": int(most["layer"]), "head": link[0], "query": 0, "key": link[2]} | effect,
    )
    page.wait_for_function(SHOWS, arg=[NOTE, "50\u00a0% → 30\u00a0% (−20.0 points). 4 random links"])
    page.wait_for_function(SHOWS, arg=[NOTE, "1 of them as far."])
    page.close()
