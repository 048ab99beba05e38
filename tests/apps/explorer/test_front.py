"""The arithmetic of the explorer's scripts, called in a browser one function at a time and compared with numpy."""

import base64
import colorsys
import json
import math
import re

import numpy as np
import pytest
import torch
from safetensors.numpy import save

import workbench
from tests.apps.explorer.browser import chromium
from tests.browser import needs_chrome
from workbench.apps.explorer.bundle import SCHEMA, make_bundle, read_bundle
from workbench.apps.explorer.network import network_of
from workbench.apps.explorer.page import FRONT

pytestmark = [pytest.mark.e2e, needs_chrome]


@pytest.fixture(scope="module")
def run():
    """Run JavaScript with the exports of a script as ``m`` and Python's value as ``data``."""
    with chromium() as browser:
        page = browser.new_page()
        page.route(
            "**/*",
            lambda route: route.fulfill(
                body=(FRONT / name).read_text() if (name := route.request.url[17:]) else "",
                content_type="text/javascript" if name else "text/html",
            ),
        )
        page.goto("http://localhost/")
        yield lambda script, code, data=None: page.evaluate(
            f"async (data) => {{ const m = await import('/{script}.js'); {code} }}", data
        )


MAPS = """const { Maps } = await import('/bundle.js');
const maps = ([bits, shape, tokens]) => new Maps(Uint16Array.from(bits), shape, tokens);
"""


def bits_of(values):
    """Arguments of ``maps`` for an array (head, row, column)."""
    values = np.asarray(values, np.float16)
    return values.view(np.uint16).flatten().tolist(), list(values.shape)


def softmax(logits):
    weights = np.exp(logits)
    return weights / weights.sum(-1, keepdims=True)


def attention(heads, rows, columns, seed=0, sink=None):
    logits = np.random.default_rng(seed).normal(size=(heads, rows, columns)) * 2
    if sink is not None:
        logits[..., sink] += 3
    return softmax(logits).astype(np.float16)


# Numbers and colours --------------------------------------------------------------------------------------


def test_every_float16_is_read_as_numpy_reads_it(run):
    bits = [0, 1, 2, 1023, 1024, 1025, 15360, 31743, 31744, 31745, 32768, 32769, 33792, 48128, 64512, 65535]
    read = run(
        "bundle", MAPS + "return Array.from(maps(data).from(0, 0));", (bits, [1, 1, len(bits)], len(bits))
    )
    np.testing.assert_array_equal(read, np.array(bits, np.uint16).view(np.float16))


def test_a_scale_goes_from_0_to_1_and_a_colour_bar_back(run):
    values, limit = [0.0, 1e-5, 2e-4, 0.003, 0.05, 0.1, 0.19, 0.2, 0.9], 0.2
    code = "return data[0].map(v => ['linear', 'sqrt', 'log', 'ratio'].map(s => m.scaled(v, data[1], s)));"
    for value, shares in zip(values, run("colour", code, (values, limit)), strict=True):
        share = min(1, value / limit)
        log = 0 if value == 0 else max(0, 1 - math.log(share) / math.log(1e-3))
        ratio = 0 if value == 0 else max(0, 1 + math.log(share) / math.log(16))
        assert shares == pytest.approx([share, math.sqrt(share), log, ratio], abs=1e-12)
    back = """return ['linear', 'sqrt', 'log', 'ratio'].map(s =>
      [0.2, 0.7, 1].map(v => m.scaled(m.unscaled(v, 3, s), 3, s)));"""
    np.testing.assert_allclose(run("colour", back), [[0.2, 0.7, 1]] * 4)
    assert (
        run(
            "colour", "return [m.scaled(-1, 1, 'linear'), m.scaled(1, 0, 'linear'), m.scaled(NaN, 1, 'log')];"
        )
        == [0] * 3
    )


def test_a_quantile_is_numpys_of_the_known_values(run):
    values = [3.0, math.nan, 0.5, 2.0, math.inf, 7.0, 1.0]
    shares = [0, 0.1, 0.25, 0.5, 0.9, 0.975, 1]
    read = run("colour", "return data[1].map(share => m.quantile(data[0], share));", (values, shares))
    assert read == pytest.approx(list(np.quantile([0.5, 1, 2, 3, 7], shares)))
    assert math.isnan(run("colour", "return m.quantile([NaN], 0.5);"))


def test_a_ramp_goes_evenly_through_its_stops_and_grows_lighter_or_darker_all_the_way(run):
    code = "return ['light', 'dark'].map(t => ['from', 'to'].map(d => Array.from(m.ramp(t, d))));"
    ends = {
        (0, 0): ("f1f4f9", "07305f"),
        (0, 1): ("f8f3ee", "5f2400"),
        (1, 0): ("1a2028", "e3f1ff"),
        (1, 1): ("231d18", "fff0df"),
    }
    thirds = {
        (0, 0): ("9cc3f5", "2f78dc"),
        (0, 1): ("f9c08b", "d9660f"),
        (1, 0): ("1d4f8f", "4a9bf5"),
        (1, 1): ("8a4510", "f08c35"),
    }
    tables = run("colour", code)
    for (theme, direction), (first, last) in ends.items():
        table = np.array(tables[theme][direction]).reshape(256, 3)
        stops = [
            np.frombuffer(bytes.fromhex(stop), np.uint8) for stop in (first, *thirds[theme, direction], last)
        ]
        expected = [
            [np.interp(i / 255, np.arange(4) / 3, [stop[c] for stop in stops]) for c in range(3)]
            for i in range(256)
        ]
        assert np.abs(table - expected).max() <= 0.501
        light = [colorsys.rgb_to_hls(*(row / 255))[1] for row in table]
        assert np.all(np.diff(light) * (1 if theme else -1) > -0.01)


def test_letters_have_the_larger_contrast_of_light_and_dark(run):
    hues = {
        ("light", "from"): (20, 95, 215),
        ("light", "to"): (214, 92, 8),
        ("dark", "from"): (64, 156, 255),
        ("dark", "to"): (255, 146, 48),
    }
    grounds = {"light": (255, 255, 255), "dark": (20, 24, 30)}

    def luminance(colour):
        parts = [
            c / 255 / 12.92 if c / 255 <= 0.04045 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour
        ]
        return np.dot(parts, [0.2126, 0.7152, 0.0722])

    for (theme, direction), hue in hues.items():
        assert run("colour", "return m.hue(...data);", (theme, direction)) == list(hue)
        for alpha in np.linspace(0, 1, 41):
            light = luminance([alpha * h + (1 - alpha) * g for h, g in zip(hue, grounds[theme], strict=True)])
            white, black = 1.05 / (light + 0.05), (light + 0.05) / (luminance([22, 25, 29]) + 0.05)
            if abs(white / black - 1) > 0.03:
                assert run("colour", "return m.lightLetters(...data);", (theme, direction, float(alpha))) == (
                    white > black
                )


def test_numbers_in_words(run):
    percents = {
        0.5: "50",
        0.0995: "10",
        0.0994: "9.9",
        0.00995: "1.0",
        0.0099: "0.99",
        0.0002: "0.02",
        1: "100",
    }
    read = run("colour", "return data.map(m.percent);", [*percents])
    assert read == [f"{words}\u00a0%" for words in percents.values()]
    numbers = {
        0: "0.000",
        0.0009: "9.0e-4",
        0.001: "0.001",
        0.9994: "0.999",
        1: "1.00",
        9.99: "9.99",
        10: "10.0",
        99.94: "99.9",
        100: "100",
        99999: "99999",
        1e5: "1.0e+5",
        -2.5: "-2.50",
        math.inf: "–",
    }
    assert run("colour", "return data.map(m.number);", [*numbers]) == [*numbers.values()]
    assert run("colour", "return m.percent(NaN);") == "–"


# Maps -----------------------------------------------------------------------------------------------------


def test_rows_columns_and_means_of_a_map_are_numpys(run):
    attn = attention(3, 5, 5)
    code = (
        MAPS
        + """const one = maps(data);
    return { from: [0, 4].map(t => Array.from(one.from(1, t))), to: [0, 4].map(t => Array.from(one.to(2, t))),
             mean: Array.from(one.mean(2, [true, false, true, true, false])), sinks: one.sinks(2, Array(5).fill(true)),
             at: one.at(2, 3, 1), matrix: one.matrix(1).length, causal: one.causal };"""
    )
    read = run("bundle", code, (*bits_of(attn), 5))
    np.testing.assert_array_equal(read["from"], attn[1, [0, 4]])
    np.testing.assert_array_equal(read["to"], attn[2][:, [0, 4]].T)
    np.testing.assert_allclose(read["mean"], attn[2, [0, 2, 3]].mean(0, dtype=np.float64), rtol=1e-6)
    assert (read["at"], read["matrix"], read["causal"]) == (attn[2, 3, 1], 25, False)
    means = attn[2, [0, 2, 3]].mean(0, dtype=np.float64)
    assert read["sinks"] == [
        key for key in range(5) if means[key] > 0.3
    ]  # the mean is computed once for a head


def test_a_pooled_map_gives_each_token_its_bin(run):
    attn = attention(2, 3, 4)
    code = (
        MAPS
        + """const one = maps(data);
    return [...[0, 3, 4, 9].map(t => Array.from(one.from(1, t))), Array.from(one.to(1, 7))];"""
    )
    *rows, column = run("bundle", code, (*bits_of(attn), 10))
    for token, row in zip([0, 3, 4, 9], rows, strict=True):
        assert row == [attn[1, token * 3 // 10, key * 4 // 10] for key in range(10)]
    assert column == [attn[1, query * 3 // 10, 7 * 4 // 10] for query in range(10)]
    single = attention(2, 1, 4)
    code = (
        MAPS
        + """const one = maps(data);
    return [Array.from(one.from(1, 3)), Array.from(one.to(1, 2)), Array.from(one.mean(1, []))];"""
    )
    row, column, mean = run("bundle", code, (*bits_of(single), 4))
    assert (row, column, mean) == (list(single[1, 0]), [single[1, 0, 2]], list(single[1, 0]))


def test_uniform_attention_counts_the_real_keys_that_a_query_may_see(run):
    real = [True, True, False, True, True]
    code = MAPS + "const one = maps(data[0]); return [one.causal, one.even([0, 3, 4], data[1])];"
    causal = np.tril(attention(2, 5, 5)).astype(np.float16)
    assert run("bundle", code, ((*bits_of(causal), 5), real)) == [
        True,
        pytest.approx((1 + 1 / 3 + 1 / 4) / 3),
    ]
    assert run("bundle", code, ((*bits_of(attention(2, 5, 5)), 5), real)) == [False, pytest.approx(1 / 4)]
    later = causal.copy()
    later[1, 0, 1] = 0.5
    assert run("bundle", code, ((*bits_of(later), 5), real))[0] is False
    assert run("bundle", code, ((*bits_of(attention(1, 1, 5)), 5), real))[0] is False


def test_the_extent_is_the_maximum_and_a_share_of_all_values(run):
    values = np.random.default_rng(3).normal(size=(2, 4, 5)).astype(np.float16)
    code = MAPS + "return data[1].map(share => maps(data[0]).extent(1, share));"
    for share, read in zip(
        [0.6, 0.9, 0.99], run("bundle", code, ((*bits_of(values), 5), [0.6, 0.9, 0.99])), strict=True
    ):
        ordered = np.sort(values[1].flatten())
        assert read["most"] == ordered[-1]
        assert read["limit"] == max(0, ordered[math.ceil(share * 20) - 1])


def test_the_mean_of_heads_is_rounded_up_to_float16(run):
    first, second = attention(2, 3, 3), attention(3, 3, 3, seed=1)
    code = (
        MAPS
        + """const [a, b, c] = data.map(maps);
    return Array.from(Maps.mean([[a, 1], [b, 2], [c, 0]]).matrix(0), (bits) => bits);"""
    )
    read = run("bundle", code, [(*bits_of(part), 3) for part in (first, second, attention(1, 2, 3))])
    mean = (first[1].astype(float) + second[2]) / 2
    read = np.array(read, np.uint16).view(np.float16).reshape(3, 3)
    assert np.all(read >= mean)
    assert np.all(np.nextafter(read, np.float16(0)) < mean)


# Questions ------------------------------------------------------------------------------------------------

ONE = (
    MAPS
    + """const { heads, count, kinds } = data;
const layer = { index: 3, heads };
const norms = data.norms && { values: data.norms.flat(), shape: [data.norms.length, data.norms[0].length] };
const one = { maps: () => maps(data.maps), norms: () => norms, kinds,
  real: data.real ?? kinds.map(() => true), grid: data.grid ?? null, count, labels: data.labels ?? kinds, asks: null };
one.at = () => one;
"""
)


def test_a_link_is_compared_with_all_other_pairs_of_its_head(run):
    attn = np.tril(attention(4, 6, 6)).astype(np.float16)
    lengths = np.random.default_rng(5).uniform(1, 2, size=(2, 6))  # two groups of two heads
    data = {
        "heads": 4,
        "count": 6,
        "kinds": ["word"] * 6,
        "maps": (*bits_of(attn), 6),
        "norms": lengths.tolist(),
    }
    link = run("links", ONE + "return m.linkOf(one, layer, 3, 4, 2);", data)
    head = attn[3].astype(float)
    ratios = head * (head > 0).sum(-1, keepdims=True)
    others = [ratios[i, j] for i in range(6) for j in range(6) if (i, j) != (4, 2) and head[i, j] > 0]
    alike = [head[i, i - 2] for i in (2, 3, 5)]
    written = head[4] * lengths[1]
    assert (link["attention"], link["ratio"]) == (head[4, 2], pytest.approx(ratios[4, 2]))
    assert link["sameDistance"] == pytest.approx(np.mean(alike))
    assert link["written"] == pytest.approx(written[2] / written.sum())
    assert link["p"] == pytest.approx(
        (1 + sum(other >= ratios[4, 2] for other in others)) / (1 + len(others))
    )
    assert link["nullMean"] == pytest.approx(np.mean(others))
    assert link["nullHigh"] == pytest.approx(np.quantile(others, 0.975))
    assert run("links", ONE + "return m.linkOf(one, layer, 4, 4, 2);", data) is None
    assert run("links", ONE + "return m.linkOf({ ...one, asks: one }, layer, 3, 4, 2);", data) is None


def test_a_link_counts_keys_whose_weight_float16_rounds_to_nothing(run):
    """Uniform attention is one over the keys that the query may see; a key that the mask hides is no link."""
    attn = np.tril(attention(1, 6, 6)).astype(np.float16)
    attn[0, 4, [0, 3]] = 0
    data = {"heads": 1, "count": 6, "kinds": ["word"] * 6, "maps": (*bits_of(attn), 6)}
    code = ONE + "return data.pairs.map(([query, key]) => m.linkOf(one, layer, 0, query, key));"
    seen, nothing, later = run("links", code, {**data, "pairs": [[4, 2], [4, 3], [2, 4]]})
    assert seen["ratio"] == pytest.approx(attn[0, 4, 2] * 5)
    assert (nothing["ratio"], nothing["p"], later) == (0, 1, None)
    ratios = attn[0].astype(float) * np.arange(1, 7)[:, None]
    others = [ratios[i, j] for i in range(6) for j in range(i + 1) if (i, j) != (4, 2)]
    assert seen["nullMean"] == pytest.approx(np.mean(others))
    hides = (
        MAPS + "const one = maps(data.maps); return [[2, 4], [4, 2], [3, 3]].map(pair => one.hides(...pair));"
    )
    assert run("bundle", hides, data) == [True, False, False]


FOUND = {
    "Sink": {"0.1", "1.2"},  # the first is above its null level, and the second has the highest score
    "PREV": {"1.0"},
    "previous token": {"1.0"},
    "token": {"1.0", "1.2"},
    "entropy": {"0.0"},
    "entropy > 1.5": {"0.0", "1.1"},
    "Attention entropy < 1": {"0.2", "1.2"},
    "sink>=0.5": {"0.1", "1.2"},
    "> .65": {"1.2"},
    "1.2": {"1.2"},
    "layer 1": {"1.0", "1.1", "1.2"},
    "L1 H0": {"1.0"},
    "head 2": {"0.2", "1.2"},
    "layer 9": set(),
    "spiral": set(),
    "spiral > 0.1": set(),
}


@pytest.mark.parametrize("typed", FOUND)
def test_heads_are_found_by_their_number_a_pattern_or_a_bound(run, typed):
    metrics = [
        {"name": "attention_sink", "short": "sink", "label": "Largest share on one key", "null": True},
        {"name": "pattern_previous", "short": "previous token", "label": "Attention on it", "null": True},
        {"name": "attention_entropy", "short": "", "label": "Attention entropy", "null": True},
        {"name": "class_token", "short": "", "label": "Attention on the class token", "null": False},
    ]
    scores = {
        "attention_sink": [[0.1, 0.6, 0.2], [0.3, 0.2, 0.7]],
        "pattern_previous": [[0.1, 0.2, 0.2], [0.9, 0.2, 0.1]],
        "attention_entropy": [[2.5, 1.1, 0.9], [1.2, 1.6, 0.3]],
        "class_token": [[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]],
    }
    code = """const layers = [{ index: 0, heads: 3 }, { index: 1, heads: 3 }];
    const metric = (name, which, layer, head) => which === "value" ? data.scores[name][layer.index][head] : data.level;
    const state = { bundle: { layers, metrics: data.metrics }, one: { metric } };
    const heads = m.headsNamed(state, data.typed, data.metrics[0]);
    return [...heads];"""
    data = {"typed": typed, "metrics": metrics, "scores": scores, "level": 0.5}
    found = run("links", code, data)
    assert set(found) == FOUND[typed]
    assert run("links", code.replace("[...heads]", "heads"), {**data, "typed": " "}) is None


def test_the_strongest_link_is_the_largest_multiple_of_uniform_attention_off_the_diagonal(run):
    attn = np.tril(attention(2, 6, 6, seed=8)).astype(np.float16)
    real = [True, True, True, False, True, True]
    data = {"heads": 2, "count": 6, "kinds": ["word"] * 6, "maps": (*bits_of(attn), 6), "real": real}
    best = run("links", ONE + "return m.strongest({ at: () => one }, layer, 1);", data)
    ratios = {
        (i, j): attn[1, i, j] * sum(real[: i + 1]) for i in range(6) for j in range(6) if i != j and real[i]
    }
    place = max(ratios, key=ratios.get)
    assert (best["query"], best["key"], best["ratio"]) == (*place, pytest.approx(ratios[place]))
    kinds = ["word", "patch", "patch", "word", "patch", "patch"]
    of_image = {
        **data,
        "kinds": kinds,
        "grid": [2, 2],
        "real": [True] * 6,
        "maps": (*bits_of(attention(2, 6, 6)), 6),
    }
    best = run("links", ONE + "return m.strongest({ at: () => one }, layer, 0);", of_image)
    assert (kinds[best["query"]], kinds[best["key"]]) == ("word", "patch")


def test_patterns_stand_clearly_above_their_null_levels_farthest_first(run):
    scores = {
        "a": (0.5, 0.1, 0.2),
        "b": (0.2, 0.1, 0.25),
        "c": (0.9, 0.2, 0.3),
        "d": (0.14, 0.1, 0.11),
        "e": (0.3, 0.1, math.nan),
    }
    metrics = [{"name": name, "short": name, "null": True} for name in scores] + [
        {"name": "f", "short": "f", "null": False}
    ]
    code = """const which = { value: 0, null_mean: 1, null_high: 2 };
    const one = { metric: (name, number) => data.scores[name][which[number]] };
    return m.patternsAbove(data, one, {}, 0).map(found => [found.metric.name, found.ratio]);"""
    found = run("links", code, {"scores": scores, "metrics": metrics})
    assert found == [["c", pytest.approx(4.5)], ["a", pytest.approx(5)], ["e", pytest.approx(3)]]


def test_the_rollout_is_the_product_of_half_identity_and_mean_attention(run):
    attns = [attention(3, 5, 5, seed) for seed in range(3)]
    code = (
        MAPS
        + """const kept = data.maps.map(maps);
    const layers = kept.map((_, index) => ({ index }));
    const one = { count: 5, real: data.real, maps: (layer) => kept[layer.index] };
    one.at = () => one;
    return [data.asked, []].map(asked => Array.from(m.rollout({ bundle: { layers }, one, asked }, 2)));"""
    )
    real = [True, False, True, True, True]
    asked, all_real = run(
        "depth", code, {"maps": [(*bits_of(a), 5) for a in attns], "asked": [1, 3], "real": real}
    )
    product = np.eye(5)
    for attn in attns:
        product = (np.eye(5) + attn.astype(float).mean(0)) / 2 @ product
    np.testing.assert_allclose(asked, product[[1, 3]].mean(0), rtol=1e-5)
    np.testing.assert_allclose(all_real, product[real].mean(0), rtol=1e-5)


def test_the_largest_values_that_count_come_first(run):
    values = [0.2, 0.9, math.nan, 0.9, 0.1, 0.5, 0.7]
    code = "return [m.largest(data, 3), m.largest(data, 9), m.largest(data, 2, (i) => i !== 1), m.largest(data, 0)];"
    first, every, without, none = run("state", code, values)
    assert (first, every) == ([1, 3, 6], [1, 3, 6, 5, 0, 4])
    assert (without, none) == ([3, 6], [])


# Places ---------------------------------------------------------------------------------------------------


def test_patches_stand_on_their_grid_and_are_found_under_the_pointer(run):
    labels = ["[CLS]", "1,2", "0,0", "0,2", "1,0", "0,1", "1,1"]
    data = {
        "heads": 1,
        "count": 7,
        "kinds": ["class"] + ["patch"] * 6,
        "maps": ([], [1, 1, 1], 1),
        "labels": labels,
        "grid": [2, 3],
    }
    code = (
        ONE
        + """const canvas = { getBoundingClientRect: () => ({ left: 10, top: 20, width: 60, height: 80 }) };
    const at = ([x, y]) => m.patchAt({ clientX: x, clientY: y }, canvas, one);
    return [m.patchesOf(one), data.points.map(at)];"""
    )
    points = {
        (10, 20): "0,0",
        (29, 59): "0,0",
        (31, 20): "0,1",
        (69, 61): "1,2",
        (11, 99): "1,0",
        (70, 30): None,
        (9, 30): None,
        (20, 100): None,
        (20, 19): None,
    }
    order, found = run("image", code, {**data, "points": [*map(list, points)]})
    assert [labels[token] for token in order] == ["0,0", "0,1", "0,2", "1,0", "1,1", "1,2"]
    assert [None if token is None else labels[token] for token in found] == [*points.values()]


def test_values_are_arranged_on_the_grid_or_in_a_square(run):
    labels = ["[CLS]", "1,1", "0,0", "0,1", "1,0"]
    data = {
        "heads": 1,
        "count": 5,
        "kinds": ["class"] + ["patch"] * 4,
        "maps": ([], [1, 1, 1], 1),
        "labels": labels,
        "grid": [2, 2],
    }
    code = (
        ONE
        + "const found = m.arranged(data.values, one); return { ...found, values: Array.from(found.values) };"
    )
    values = [9.0, 4.0, 1.0, 2.0, 3.0]
    assert run("grid", code, {**data, "values": values}) == {
        "values": [1, 2, 3, 4],
        "rows": 2,
        "columns": 2,
        "most": 4,
    }
    text = {
        **data,
        "kinds": ["word"] * 5,
        "grid": None,
        "real": [True, True, False, True, True],
        "values": values,
    }
    assert run("grid", code, text) == {"values": [9, 4, 2, 3], "rows": 2, "columns": 2, "most": 9}
    wide = {**text, "real": [True] * 5}
    assert run("grid", code, wide) == {"values": values, "rows": 2, "columns": 3, "most": 9}


def test_arrow_keys_stop_at_the_first_and_last_head(run):
    code = """return data.map(([place, head, down, across]) => {
      const layers = [{ index: 2, heads: 3 }, { index: 5, heads: 2 }, { index: 6, heads: 4 }];
      let found;
      const state = { bundle: { layers }, layer: layers[place].index, head, more: [], set: (to) => (found = to) };
      m.moveHead(state, down, across);
      return [found.layer, found.head];
    });"""
    moves = {
        (0, 2, 1, 0): [5, 1],
        (1, 0, 1, 1): [6, 1],
        (2, 3, 1, 1): [6, 3],
        (0, 0, -1, -1): [2, 0],
        (1, 1, -1, 1): [2, 2],
    }
    assert run("grid", code, [*map(list, moves)]) == [*moves.values()]


def test_the_ground_of_a_word_is_its_share_in_opacity(run):
    code = "return data.map(share => m.wordColours({ theme: 'light', look: { direction: 'from' } }, share));"
    nothing, faint, half, whole = run("grid", code, [0.011, 0.2, 0.5, 1])
    assert nothing == ["", ""]
    assert faint == ["rgba(20,95,215,0.180)", ""]
    assert half == ["rgba(20,95,215,0.450)", "#16191d"]
    assert whole == ["rgba(20,95,215,0.900)", "#ffffff"]


def test_a_view_is_read_back_from_its_key_and_others_are_refused(run):
    code = """const card = { index: 4, heads: 3 };
    const layers = [{ index: 1, heads: 9, without: "left out" }, card];
    const bundle = { layers, inputs: [null, { at: () => ({ count: 6 }) }] };
    return data.map(key => { const view = m.viewOf(key, bundle); return view && m.viewKey(view); });"""
    good = ["1.4.2.all", "1.4.0.5", "1.4.1.0+5+3"]
    bad = [
        "1.4.3.all",
        "1.1.0.all",
        "2.4.0.all",
        "1.5.0.all",
        "1.4.0.6",
        "1.4.0.1+6",
        "1.4.0.",
        "1.4.0",
        "x1.4.0.all",
    ]
    assert run("state", code, [*good, *bad]) == good + [None] * len(bad)


def test_a_pointer_is_placed_in_the_pixels_of_an_element_that_is_zoomed(run):
    code = """const box = { left: 10, top: 30, width: 200 };
    return m.placeOn({ getBoundingClientRect: () => box, offsetWidth: 100 }, { clientX: 60, clientY: 80 });"""
    assert run("state", code) == [25, 25]


def test_a_csv_quotes_what_a_spreadsheet_would_read_otherwise(run):
    rows = [["a", 1.5, math.nan], ['say "x", y', "=1+1", "line\nbreak"], ["'-3", -3, ""]]
    assert run("export", "return m.csv(data);", rows) == (
        'a,1.5,\n"say ""x"", y",\'=1+1,"line\nbreak"\n\'\'-3,-3,\n'
    )


# A bundle -------------------------------------------------------------------------------------------------

HEADS, GROUPS, COUNT, LAYERS = 4, 2, 5, (3, 6)
SPECTRUM = ("value", "null_mean", "null_low", "null_high")
READ = """const { readBundle } = await import('/bundle.js');
const bundle = readBundle(Uint8Array.from(atob(data.bundle), (letter) => letter.charCodeAt(0)).buffer);
const [layer, one] = [bundle.layers[1], bundle.inputs[0]];
"""


@pytest.fixture(scope="module")
def arrays():
    """Arrays of a bundle of one input, each number another one."""
    draw = np.random.default_rng(11)

    def some(*shape, dtype=np.float32):
        return draw.uniform(0.1, 1, shape).astype(dtype)

    start = f"inputs.0.layers.{LAYERS[1]}."
    return {
        **{
            f"inputs.0.layers.{index}.attn": attention(HEADS, COUNT, COUNT, index, sink=1) for index in LAYERS
        },
        start + "q": some(HEADS, COUNT, 3),
        start + "k": some(GROUPS, COUNT, 3, dtype=np.float16),
        start + "scale": some(HEADS),
        start + "norms.v": some(GROUPS, COUNT),
        start + "norms.written": some(HEADS, COUNT),
        start + "membership": some(2, COUNT),
        start + "plane.q": some(HEADS, COUNT, 2),
        start + "plane.k": some(HEADS, COUNT, 2),
        start + "plane.share": some(HEADS, 2),
        start + "route.links": some(COUNT, 3, 3),
        start + "route.total": some(COUNT),
        **{f"{start}spectra.rank.{which}": some(GROUPS, 6) for which in SPECTRUM},
        "inputs.0.prediction.probability": some(COUNT, 3),
        "inputs.0.prediction.actual": some(COUNT),
        "inputs.0.ablations.zero.probability": some(len(LAYERS), HEADS, 2, 3, dtype=np.float16),
        "inputs.0.removal.probability": some(COUNT, 2, 3),
        "inputs.0.metrics.sink.value": some(len(LAYERS), HEADS),
        "inputs.0.by_layer.cosine.value": some(len(LAYERS)),
    }


@pytest.fixture(scope="module")
def bundle(arrays):
    layers = [{"index": index, "heads": HEADS, "queries": 0, "keys": 0, "pooled": False} for index in LAYERS]
    card = {
        "labels": list("abcde"),
        "kinds": ["word"] * COUNT,
        "real": [True, True, False, True, True],
        "grid": None,
        "image": None,
        "streams": [],
        "id": "text/0",
    }
    header = {
        "format": "attention-bundle",
        "bundle_schema": SCHEMA,
        "layers": layers,
        "inputs": [card],
        "metrics": [],
        "ablations": {},
        "removal": False,
        "by_layer": [],
        "model": {"spec": "x"},
    }
    return base64.b64encode(save(arrays, {"workbench": json.dumps(header)})).decode()


def test_arrays_of_a_bundle_are_read_by_head_group_and_position(run, arrays, bundle):
    code = (
        READ
        + """const list = (values) => Array.from(values);
    const spectrum = one.spectrum(layer, 3, 'rank');
    return {
      q: one.operand(layer, 'q', 2), k: one.operand(layer, 'k', 2), scale: one.scale(layer, 3),
      plane: one.plane(layer, 2), membership: one.membership(layer).map(list), route: one.route(layer, 2),
      spectrum: ['value', 'null_mean', 'null_low', 'null_high'].map((which) => list(spectrum[which])),
      predicted: list(one.predicted(3)), actual: one.predictedActual(4),
      without: list(one.without(2, 'probability', 1, 3)),
      ablated: list(one.ablated('zero', 'probability', layer, 2, 1, 3)), metric: one.metric('sink', 'value', layer, 2),
      cosine: one.ofLayer('cosine', 'value', layer), norms: list(one.norms(layer, 'v').values),
      absent: [one.operand(layer, 'v', 0), one.metric('x', 'value', layer, 0), one.ofLayer('x', 'value', layer),
        one.has(bundle.layers[0], 'q'), one.has(layer, 'q')],
    };"""
    )
    read = run("bundle", code, {"bundle": bundle})
    start = f"inputs.0.layers.{LAYERS[1]}."

    def close(found, expected):
        np.testing.assert_allclose(found, np.asarray(expected, np.float64), rtol=1e-6)

    close(read["q"], arrays[start + "q"][2])
    close(read["k"], arrays[start + "k"][1])
    close(read["scale"], arrays[start + "scale"][3])
    close(read["plane"]["q"], arrays[start + "plane.q"][2])
    close(read["plane"]["k"], arrays[start + "plane.k"][2])
    close(read["plane"]["share"], arrays[start + "plane.share"][2])
    close(read["membership"], arrays[start + "membership"])
    close(read["route"]["links"], arrays[start + "route.links"][2])
    close(read["route"]["total"], arrays[start + "route.total"][2])
    close(
        read["spectrum"],
        [arrays[f"{start}spectra.rank.{which}"][1] for which in SPECTRUM],
    )
    close(read["predicted"], arrays["inputs.0.prediction.probability"][3])
    close(read["actual"], arrays["inputs.0.prediction.actual"][4])
    close(read["without"], arrays["inputs.0.removal.probability"][2, 1])
    close(read["ablated"], arrays["inputs.0.ablations.zero.probability"][1, 2, 1])
    close(read["metric"], arrays["inputs.0.metrics.sink.value"][1, 2])
    close(read["cosine"], arrays["inputs.0.by_layer.cosine.value"][1])
    close(read["norms"], arrays[start + "norms.v"].flatten())
    assert read["absent"][0] is None
    assert [math.isnan(value) for value in read["absent"][1:3]] == [True, True]
    assert read["absent"][3:] == [False, True]


def test_a_bundle_that_is_cut_or_of_another_schema_is_refused(run, bundle):
    code = """const { readBundle } = await import('/bundle.js');
    const bytes = Uint8Array.from(atob(data.bundle), (letter) => letter.charCodeAt(0)).slice(0, data.length);
    try {
      const one = readBundle(bytes.buffer).inputs[0];
      return String(one.predicted(0).length + one.scale(one.layerAt(6), 0));
    } catch (error) { return error.message; }"""
    size = len(base64.b64decode(bundle))
    assert "cut short" not in run("bundle", code, {"bundle": bundle, "length": size})
    for length in (0, 7, 8, 100, size // 2):
        assert re.search(
            "cut short|cannot be read", run("bundle", code, {"bundle": bundle, "length": length})
        ), length


def test_attention_of_several_queries_and_heads_is_their_mean_and_without_sinks(run, arrays, bundle):
    code = (
        READ
        + """const m2 = await import('/state.js');
    const view = (more) => Object.assign(Object.create(m2.State.prototype),
      { bundle, input: 0, layer: 6, head: 1, tokens: [], hover: null, direction: 'from', scale: 'linear', sinks: 'on',
        more: [] }, more);
    const values = (more, tokens) => Array.from(view(more).values(6, 1, tokens));
    return { single: values({}, [3]), several: values({}, [1, 3, 4]), all: values({}, []),
      to: values({ direction: 'to' }, [1, 3]), off: values({ sinks: 'off' }, [3]),
      both: Array.from(view({ tokens: [3], more: [[3, 2]] }).shown()),
      ratio: Array.from(view({ scale: 'ratio' }).relative([0.5, 1], 6, [3])), bound: view({}).sinksOf(6, 1) };"""
    )
    read = run("state", code, {"bundle": bundle})
    head = arrays["inputs.0.layers.6.attn"][1].astype(float)
    real = [0, 1, 3, 4]
    sinks = [key for key in range(COUNT) if head[real].mean(0)[key] > 0.3]
    np.testing.assert_allclose(read["single"], head[3], rtol=1e-6)
    np.testing.assert_allclose(read["several"], head[[1, 3, 4]].mean(0), rtol=1e-6)
    np.testing.assert_allclose(read["all"], head[real].mean(0), rtol=1e-6)
    np.testing.assert_allclose(read["to"], head[:, 1] + head[:, 3], rtol=1e-6)
    assert read["bound"] == sinks == [1]
    np.testing.assert_allclose(
        read["off"], [0 if key in sinks else head[3, key] for key in range(COUNT)], rtol=1e-6
    )
    both = (head[3] + arrays["inputs.0.layers.3.attn"][2, 3]) / 2
    np.testing.assert_allclose(read["both"], both, rtol=1e-6)
    assert read["ratio"] == pytest.approx([0.5 * 4, 4])  # four real keys


def test_what_heads_write_is_attention_times_the_norm_of_the_value_by_row(run, arrays, bundle):
    """Rows sum to 1; the weights of a layer without these norms are null, and attention is unchanged."""
    code = (
        READ
        + """const m2 = await import('/state.js');
    const view = (more) => Object.assign(Object.create(m2.State.prototype),
      { bundle, input: 0, layer: 6, head: 2, tokens: [], hover: null, direction: 'from', sinks: 'on',
        weights: 'written', more: [] }, more);
    const values = (more, tokens) => Array.from(view(more).values(6, 2, tokens));
    return { from: values({}, [3]), to: values({ direction: 'to' }, [1, 4]),
      attention: Array.from(view({}).attention(6, 2, [3])), absent: view({}).values(3, 2, [3]),
      reasons: [view({}).unwritten, view({ layer: 3 }).unwritten],
      matrix: Array.from({ length: 25 }, (_, i) => view({}).maps().at(2, Math.floor(i / 5), i % 5)) };"""
    )
    read = run("state", code, {"bundle": bundle})
    start = "inputs.0.layers.6."
    head = arrays[start + "attn"][2].astype(float)
    parts = head * arrays[start + "norms.written"][2]
    written = parts / parts.sum(-1, keepdims=True)
    np.testing.assert_allclose(np.reshape(read["matrix"], (5, 5)), written, rtol=2**-11)
    np.testing.assert_allclose(read["from"], written[3], rtol=2**-11)
    np.testing.assert_allclose(read["to"], written[:, [1, 4]].sum(-1), rtol=2**-11)
    np.testing.assert_allclose(read["attention"], head[3], rtol=1e-6)
    assert np.abs(written - head).max() > 0.02
    assert read["absent"] is None
    assert read["reasons"][0] == ""
    assert "layer 3" in read["reasons"][1]


def test_steps_of_a_continuation_are_numbered_from_the_token_that_chose_the_first(run):
    code = """return data.map(([token, go]) => {
      const state = { one: { count: 9, generated: 4 }, tokens: token === null ? [] : [token] };
      state.set = (to) => (state.set_ = to.tokens);
      const steps = Object.assign(Object.create(m.Steps.prototype), { state });
      steps.go(go);
      return [steps.first, steps.step, steps.fresh, state.set_[0]];
    });"""
    # of 9 tokens the last 4 were generated; token 4 chose the first of them, token 5
    assert run("steps", code, [[4, 1], [7, 4], [3, 0], [8, 9], [None, 2]]) == [
        [5, 1, 5, 4],
        [5, 4, 8, 7],
        [5, 0, None, 4],
        [5, 0, None, 7],
        [5, 0, None, 5],
    ]


def test_a_grey_image_has_the_luminance_of_its_pixels_between_two_greys(run):
    pixels = np.random.default_rng(0).integers(0, 256, (2, 3, 3))
    code = """const one = { image: [2, 3], pixels: data, cells: null, grid: [1, 1] };
    const drawn = (grey) => m.inputImage(one, grey).getContext("2d").getImageData(0, 0, 3, 2).data;
    return [true, false].map((grey) => Array.from(drawn(grey)));"""
    grey, own = (np.reshape(part, (2, 3, 4)) for part in run("image", code, pixels.ravel().tolist()))
    assert np.array_equal(own[..., :3], pixels)
    assert (grey[..., 3] == 255).all()
    expected = 48 + 0.74 * (pixels @ [0.2126, 0.7152, 0.0722])
    assert np.abs(grey[..., :3] - expected[..., None]).max() <= 0.5


def test_the_page_runs_a_small_network_as_torch_does(run):
    """Attention, queries, keys and probabilities of an image of noise, to 1e-4 and the rounding of the file."""
    model = workbench.load("bundled:digits-vit")
    inputs = workbench.inputs("bundled:digits", model, n=1)
    bundle = make_bundle(model, inputs, measured=False).with_network(*network_of(model, inputs))
    image = np.random.default_rng(3).integers(0, 256, (16, 16), np.uint8)
    data = np.stack([image, image, image, np.full_like(image, 255)], -1)
    code = """const { readBundle } = await import('/bundle.js');
    const bundle = readBundle(Uint8Array.from(atob(data.bundle), (letter) => letter.charCodeAt(0)).buffer);
    const found = m.paintedBundle(bundle, bundle.header.inputs[0], { data: data.pixels, width: 16, height: 16 });
    return [...new Uint8Array(found)];"""
    content = {"bundle": base64.b64encode(bundle.to_bytes()).decode(), "pixels": data.flatten().tolist()}
    painted = read_bundle(bytes(run("vit", code, content)))
    (mean, *_), (std, *_) = inputs.normalization
    batch = torch.from_numpy((image / 255 - mean) / std).float()[None, None]
    assert (painted.arrays["inputs.0.image"] == image[..., None]).all()
    probabilities = model.module(batch).softmax(-1)[0].detach().numpy()
    order = np.argsort(-probabilities)
    shown = painted.arrays["inputs.0.prediction.probability"][0]
    np.testing.assert_allclose(shown, probabilities[order], atol=1e-4)
    assert painted.header.inputs[0].prediction.outcomes == [[str(place) for place in order]]
    seen = workbench.capture(model, batch, sites=["q", "k", "v", "attn"])
    assert [record.index for record in seen] == [layer.index for layer in painted.header.layers]
    for record in seen:
        start = f"inputs.0.layers.{record.index}"
        rounded = record.attn[0].detach().half().numpy()
        np.testing.assert_allclose(
            painted.attention(record.index).astype(float), rounded.astype(float), rtol=1e-3, atol=1e-4
        )
        weight = model.module.blocks[record.index].attn.proj.weight.detach().numpy()
        for head, v in enumerate(record.v[0].detach().numpy()):
            size = v.shape[-1]
            written = np.linalg.norm(v @ weight[:, head * size : (head + 1) * size].T, axis=-1)
            np.testing.assert_allclose(painted.arrays[f"{start}.norms.written"][head], written, atol=1e-4)
        for site in ("q", "k", "v"):
            operand = getattr(record, site)[0].detach().numpy()
            if site != "v":
                found = painted.arrays[f"{start}.{site}"].astype(float)
                np.testing.assert_allclose(found, operand, rtol=1e-3, atol=1e-4)
                error = np.abs(found - operand).max()
                assert painted.header.max_error[f"{start}.{site}"] == pytest.approx(error, abs=1e-5)
            lengths = np.linalg.norm(operand, axis=-1)
            np.testing.assert_allclose(painted.arrays[f"{start}.norms.{site}"], lengths, atol=1e-4)
