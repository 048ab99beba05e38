"""Cards of heads over many inputs: the numbers of the analyses, one by one, and what the page shows of them."""

import numpy as np
import pytest
import torch

import workbench
from tests.apps.explorer.browser import chromium
from tests.apps.explorer.test_page import COLOURS, SAYS, bundle_of, percent
from tests.browser import needs_chrome
from workbench.analyses.links import strongest_links
from workbench.apps.explorer import Explorer
from workbench.apps.explorer.cards import CLEAR, LINKS, make_cards

INPUTS = 5


@pytest.fixture(scope="module")
def model():
    return workbench.load("bundled:digits-vit")


@pytest.fixture(scope="module")
def samples(model):
    batch = workbench.inputs("bundled:digits", model, n=INPUTS)
    return [batch[index : index + 1] for index in range(INPUTS)]


@pytest.fixture(scope="module")
def made(model, samples):
    return make_cards(model, samples, [1, 3])


def test_the_strongest_links_are_the_largest_ratios_to_uniform_attention():
    """Of a causal text: weight times number of keys that the query sees, a token with itself left out."""
    model = workbench.load("bundled:prose-softmax")
    capture = workbench.capture(model, workbench.inputs(["the sea"], model), sites=["attn"])
    links = strongest_links(capture, 4)
    attn = capture[2].attn[0, 1].double()
    pairs = [(attn[q, k].item() * (q + 1), q, k) for q in range(len(attn)) for k in range(q)]
    expected = sorted(pairs, reverse=True)[:4]
    rows = links[(links["layer"] == 2) & (links["head"] == 1)]
    assert rows[["query", "key"]].to_numpy().tolist() == [[q, k] for _, q, k in expected]
    np.testing.assert_allclose(rows["ratio"], [ratio for ratio, _, _ in expected], rtol=1e-6)


def test_a_pattern_is_as_stable_as_the_share_of_inputs_that_are_clearly_above_its_null(model, samples, made):
    card = next(card for card in made[0].heads if (card.layer, card.head) == (1, 1))
    follows = []
    for sample in samples:
        frame = workbench.analyze("attention-patterns", model=model, inputs=sample, layers=[1])
        row = frame[(frame["metric"] == "pattern_local") & (frame["head"] == 1)].iloc[0]
        follows.append(row["value"] > max(row["null_high"], row["null_mean"] + CLEAR))
    assert card.stability["pattern_local"] == np.mean(follows)


def test_links_of_a_card_are_those_of_most_inputs(model, samples, made):
    counts: dict[tuple[str, str], list[float]] = {}
    for sample in samples:
        links = strongest_links(workbench.capture(model, sample, sites=["attn"]), LINKS)
        rows = links[(links["layer"] == 3) & (links["head"] == 2)]
        for row in rows.itertuples():
            counts.setdefault((row.query_label, row.key_label), []).append(row.ratio)
    card = next(card for card in made[0].heads if (card.layer, card.head) == (3, 2))
    assert len(card.links) == LINKS
    for link in card.links:
        assert len(counts[link.query, link.key]) == link.inputs
        assert np.mean(counts[link.query, link.key]) == pytest.approx(link.ratio)
    assert card.links[0].inputs == max(map(len, counts.values()))


def test_distances_in_the_plane_of_a_card_are_those_of_two_components(made):
    index, arrays = made
    q, k, share = (torch.from_numpy(arrays[f"cards.layers.1.plane.{name}"]) for name in ("q", "k", "share"))
    assert q.shape == k.shape == (3, len(index.points), 2)
    both = torch.cat([q, k], 1).double()
    gram = both.mT @ both
    assert (gram[:, 0, 1].abs() < 1e-3 * gram[:, 0, 0]).all()  # axes are uncorrelated
    torch.testing.assert_close(
        gram[:, 1, 1] / gram[:, 0, 0], (share[:, 1] / share[:, 0]).double(), rtol=1e-3, atol=0
    )


def test_circuits_of_a_card_are_those_of_the_analysis(model, made):
    frame = workbench.analyze("qk-ov-circuits", model=model, layers=[3], null_samples=0)
    rows = frame[
        (frame["metric"] == "circuit_singular_value") & (frame["candidate"] == "OV") & (frame["head"] == 2)
    ]
    expected = rows.sort_values("rank")["value"].to_numpy(float)
    np.testing.assert_allclose(made[1]["cards.layers.3.circuits.OV.value"][2], expected, rtol=1e-6)


@needs_chrome
@pytest.mark.e2e
def test_the_page_shows_the_card_of_the_chosen_head(tmp_path):
    saved = Explorer(n=1).save_html(tmp_path / "page.html", ablations=False, cards=INPUTS)
    bundle = bundle_of(saved.read_text())
    card = next(card for card in bundle.header.cards.heads if (card.layer, card.head) == (1, 1))
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(f"{saved.as_uri()}#layer=1&head=1&tab=card")
        page.wait_for_function(SAYS, arg="Layer 1, head 1")
        rows = page.locator(".aw-links .aw-leader")
        assert rows.count() == LINKS
        assert rows.first.locator(".aw-name").text_content() == f"{card.links[0].query} → {card.links[0].key}"
        headline = page.locator(".aw-follows b").all_text_contents()
        short = {metric.short: metric.name for metric in bundle.header.metrics if metric.short}
        shares = {name: card.stability[pattern] for name, pattern in short.items()}
        assert headline[0] == "sink"
        others = sorted(
            (name for name in shares if shares[name] > 0 and name not in headline), key=shares.get
        )
        patterns = sorted(headline, key=lambda name: -shares[name]) + others[::-1]
        said = ", ".join(f"{name} {percent(shares[name])}" for name in patterns)
        expected = f"Above its null level, by share of {INPUTS} inputs of bundled:digits: {said}."
        assert page.locator(".aw-body .aw-reads").first.text_content() == expected
        assert rows.first.is_disabled()  # a row of a list, and no button
        assert page.evaluate(COLOURS, ".aw-plane") > 50
        page.get_by_role("button", name="kind", exact=True).click()
        page.wait_for_function("() => document.querySelector('.aw-body').innerText.includes('■ class')")
