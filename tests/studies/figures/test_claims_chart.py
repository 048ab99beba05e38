"""Claims as a chart: distances from the threshold, positive where a claim holds."""

import math

import pandas as pd
import pytest

from tests.figures.study import titles
from workbench.core.errors import InputError, UnknownName
from workbench.figures.text_widths import text_width
from workbench.figures.theme import ALLOWED, GREY, PAGE, PUBLISHED
from workbench.papers.verdicts import COLUMNS, EQUIVALENT, NOT_DIAGNOSTIC, OUTCOMES, PREMISE, RANDOM_TOO
from workbench.studies import claims_from_records
from workbench.studies.figures import claims_caption, claims_figure
from workbench.studies.figures.claims_chart import VERDICTS

NAN = float("nan")
NULL = {"null": "permutation", "null_mean": 0.2, "null_low": 0.19, "null_high": 0.21, "margin": "10%"}
PAIR = {"options": "model=digits-tssa, baseline=digits-vit", "over": "model - baseline", "units": "seeds"}


def claims(model="bundled:digits-vit", **more):
    row = dict.fromkeys(COLUMNS, NAN) | {
        "paper": "saritas2025", "place": "3; Table 1; B.2", "claim": "The largest cosine stays at most 0.32.",
        "primary": True, "kind": "", "interpretation": "by columns", "label": "V and V̇ are unlike: largest cosine",
        "over": "inputs", "measure": "MOC", "comparison": "<=", "threshold": "0.32", "published": 0.31,
        "measured": 0.3441, "low": 0.33, "high": 0.36, "n": 4, "units": "inputs", "verdict": "fails",
        "why": "0.33 lies above 0.32", "model": model, "margin": "", "scope": "", "null": None,
    }  # fmt: skip
    first = pd.DataFrame([row]).assign(**more)
    second = first.assign(claim="Training lowers J.", measured=NAN, verdict="not tested at this scale")
    return pd.concat([first, second])


def marks(fig, verdict):
    """The estimates with this verdict: (x, y)."""
    colour, symbol = VERDICTS[verdict]
    drawn = [trace for trace in fig.data if not trace.showlegend and trace.mode == "markers"]
    drawn = [trace for trace in drawn if (trace.marker.symbol, trace.marker.color) == (symbol, colour)]
    return [(x, y) for trace in drawn for x, y in zip(trace.x, trace.y, strict=True)]


def strokes(fig, width, colour=None):
    """The horizontal strokes of one width: (start, end)."""
    drawn = [trace for trace in fig.data if not trace.showlegend and trace.mode == "lines"]
    drawn = [trace for trace in drawn if trace.line.width == width and colour in (None, trace.line.color)]
    ends = [tuple(trace.x[at : at + 2]) for trace in drawn for at in range(0, len(trace.x), 3)]
    return [pair for pair in ends if not any(map(math.isnan, pair))]


def intervals(fig, colour=None):
    widths = [trace.line.width for trace in fig.data if trace.showlegend and trace.mode == "lines+markers"]
    return strokes(fig, widths[0], colour)


def interval(fig):
    (pair,) = intervals(fig)
    return pair


def test_a_row_says_what_must_hold_what_was_measured_and_the_verdict():
    text = titles(claims_figure(claims()))
    label = " ".join(text)
    assert "V and V̇ are unlike: largest cosine" in label
    assert "<b>≤ 0.32</b>" in label
    for grey in ("§3;", "Table 1;", "App. B.2;", "4 inputs"):
        assert f'<span style="color:{GREY}">{grey}</span>' in label
    assert {"0.344 [0.330, 0.360]", "<b>fails</b>", "digits-vit"} <= set(text)
    assert any("published 0.31" in line for line in text)


@pytest.mark.parametrize(
    ("comparison", "more"),
    [
        ("<=", {}),
        (">", {}),
        ("equals", {"margin": "2%", "threshold": "0.34"}),
        ("between", {"threshold": "0.1..0.5"}),
    ],
)
def test_an_estimate_is_in_the_blue_exactly_where_the_claim_holds(comparison, more):
    fig = claims_figure(claims(comparison=comparison, **more))
    low, high = {
        "<=": (-math.inf, 0.32),
        ">": (0.32, math.inf),
        "equals": (0.3332, 0.3468),
        "between": (0.1, 0.5),
    }[comparison]
    one_sided = math.isinf(low) or math.isinf(high)
    middle, half = (low + high) / 2, (high - low) / 2

    def distance(value):
        return min(value - low, high - value) if one_sided else (value - middle) / half

    distances = [distance(value) for value in (0.33, 0.3441, 0.36)]
    largest = max(2.0 * (not one_sided), *map(abs, distances), abs(distance(0.31)))
    start, end = interval(fig)
    ((x, _),) = marks(fig, "fails")
    assert start == pytest.approx(min(distances) / largest)
    assert end == pytest.approx(max(distances) / largest)
    assert x == pytest.approx(distances[1] / largest)
    (shade,) = [shape for shape in fig.layout.shapes if shape.fillcolor == ALLOWED]
    held = low <= 0.3441 <= high
    assert (shade.x0 <= x <= shade.x1) == held
    assert shade.x0 == pytest.approx(0 if one_sided else -1 / largest)


def test_the_models_of_a_claim_share_its_scale_and_claims_do_not():
    near, far = claims(published=NAN), claims("other", published=NAN, measured=0.52, low=0.52, high=0.52)
    first, second = sorted(x for x, _ in marks(claims_figure(pd.concat([near, far])), "fails"))
    assert (first, second) == (pytest.approx(-1), pytest.approx(-(0.3441 - 0.32) / (0.52 - 0.32)))
    apart = marks(claims_figure(pd.concat([near, far.assign(claim="another")])), "fails")
    assert sorted(x for x, _ in apart)[0] == pytest.approx(-1)
    assert sorted(x for x, _ in apart)[1] == pytest.approx(-(0.3441 - 0.32) / (0.36 - 0.32))


def test_positive_quantities_over_decades_have_logarithmic_distances():
    fig = claims_figure(claims(measured=1e-3, low=1e-4, high=1e-2, threshold="1", published=NAN))
    start, end = interval(fig)
    assert start / end == pytest.approx(2 / 4)
    zero = claims_figure(
        claims(measured=0.1, low=0.001, high=0.2, comparison=">", threshold="0", published=NAN)
    )
    assert interval(zero) == (pytest.approx(0.005), 1)


def test_an_interval_far_wider_than_another_model_s_does_not_hide_it():
    near = {"comparison": "equals", "threshold": "1", "margin": "10%", "published": NAN}
    inside = claims(measured=1.0, low=0.98, high=1.02, verdict="holds", **near).iloc[:1]
    far = claims("other", measured=2e4, low=0.0, high=6e4, verdict="undecided", **near).iloc[:1]
    fig = claims_figure(pd.concat([inside, far]))
    ((held, _),), ((x, _),) = marks(fig, "holds"), marks(fig, "undecided")
    start, end = intervals(fig, VERDICTS["undecided"][0])[0]
    assert held == pytest.approx(0)
    assert start < 0 < x < end == pytest.approx(1)  # the estimate is inside its interval
    (shade,) = [shape for shape in fig.layout.shapes if shape.fillcolor == ALLOWED]
    assert shade.x1 > 0.05


def test_a_null_and_untrained_weights_are_on_the_scale_of_their_row():
    held = {"comparison": ">", "threshold": "0.3", "published": NAN, "verdict": RANDOM_TOO}
    for untrained in (0.33, 0.8):
        fig = claims_figure(claims(untrained=untrained, **NULL, **held))
        largest = max(0.11, untrained - 0.3)
        (null,) = strokes(fig, 4)
        assert null[0] < -0.11 / largest < null[1] < 0  # 0.19 to 0.21
        (triangles,) = [
            trace for trace in fig.data if trace.name is None and "triangle-down-open" in str(trace.marker)
        ]
        assert triangles.x[0] == pytest.approx((untrained - 0.3) / largest)
    for other in (claims(**held), claims(untrained=0.5, **{**held, "over": "trained - untrained"})):
        assert "untrained weights" not in [trace.name for trace in claims_figure(other).data]


def test_the_key_names_the_null_and_the_caption_its_samples():
    held = claims(**NULL, analysis="one")
    runs = [("one", 20), ("one", 0), ("two", 5)]
    held.attrs["provenance"] = [{"analysis": name, "options": {"null_samples": n}} for name, n in runs]
    fig = claims_figure(held)
    assert "null: permuted" in [trace.name for trace in fig.data]
    assert "Grey (permuted): range of 20 null samples." in fig.layout.meta["marks"]


def test_the_margin_of_equivalence_lies_around_the_value_that_it_is_about():
    of_null = claims_figure(claims(comparison="<= null", threshold="", published=NAN, **NULL))
    ((start, end),) = strokes(of_null, 10.5)
    assert start == pytest.approx(0)
    assert end > 0  # 0.2 ± a tenth of the way to 1
    more = claims_figure(claims(comparison="> null", threshold="", published=NAN, **NULL))
    ((start, end),) = strokes(more, 10.5)
    assert start < end == pytest.approx(0)
    assert not strokes(claims_figure(claims()), 10.5)


def test_equality_supports_a_claim_of_equality_and_refutes_one_of_more():
    words = {}
    for comparison in ("<= null", "> null"):
        equal = claims(comparison=comparison, verdict="equivalent within the margin", **NULL)
        for note in claims_figure(equal).layout.annotations:
            if note.text in ("<b>equivalent</b>", "<b>no effect</b>"):
                words[note.text] = note.font.color
    assert words == {"<b>equivalent</b>": VERDICTS["holds"][0], "<b>no effect</b>": GREY}


def test_every_outcome_has_a_colour_of_its_own_and_its_words():
    words = {RANDOM_TOO: "also untrained", NOT_DIAGNOSTIC: "noise passes", PREMISE: "no premise"}
    for verdict in OUTCOMES[:-1]:
        fig = claims_figure(claims(comparison=">", threshold="0.05", verdict=verdict))
        assert f"<b>{words.get(verdict, verdict)}</b>" in titles(fig)
        assert marks(fig, verdict)
    assert len({VERDICTS[verdict][0] for verdict in OUTCOMES[:-1]}) == len(OUTCOMES) - 1


def test_claims_that_hold_come_first():
    rows = [
        claims(claim=verdict, label=verdict, verdict=verdict).iloc[:1]
        for verdict in ("fails", "undecided", "holds")
    ]
    text = titles(claims_figure(pd.concat(rows)))
    order = [line for line in text if line in ("<b>holds</b>", "<b>undecided</b>", "<b>fails</b>")]
    assert order == ["<b>holds</b>", "<b>undecided</b>", "<b>fails</b>"]


def test_a_claim_that_its_interval_would_decide_says_why_it_is_undecided():
    def reason(why):
        text = titles(claims_figure(claims(verdict="undecided", why=why)))
        return " ".join(text[text.index("<b>undecided</b>") + 1 :])

    assert reason("fails by itself (p = 0.02), not among 5 claims (Holm: p = 0.09)").startswith("after Holm")
    carried = "one data set carries the mean: without genre it is 0.1; fails by itself (Holm: p = 0.15)"
    assert reason(carried).startswith("rests on one data set")
    assert "Holm" not in reason("0.33 [0.3, 0.4] against <= 0.32")


def test_the_interval_at_holm_s_level_is_a_thin_line_around_the_usual_one():
    fig = claims_figure(claims(verdict="undecided", low_adjusted=0.31, high_adjusted=0.38))
    colour = VERDICTS["undecided"][0]
    ((start, end),) = strokes(fig, 0.8, colour)
    assert start < interval(fig)[0] < interval(fig)[1] < 0 < end
    assert "Holm-adjusted CI" in [trace.name for trace in fig.data]
    assert "Holm-adjusted CI" not in [trace.name for trace in claims_figure(claims()).data]


def test_no_verdict_on_a_trained_mechanism_disagrees_with_its_line():
    frame = claims_from_records("teo2024")
    fig = claims_figure(frame)
    held, undecided = marks(fig, "holds"), marks(fig, "undecided")
    assert len(held) + len(undecided) == 14
    assert all(x > 0 for x, _ in held)
    thin = strokes(fig, 0.8)
    assert sum(start > 0 for start, _ in thin) == len(held)
    assert sum(start < 0 < end for start, end in thin) == len(undecided)


def test_differences_of_shares_are_in_points_and_name_the_baseline():
    text = " ".join(titles(claims_figure(claims(measure="accuracy[split=test]", threshold="-0.02", **PAIR))))
    assert "<b>≤ −2 pp</b>" in text
    assert "34.4 [33.0, 36.0]" in text
    assert "minus softmax ViT" in text
    assert "TSSA" in text
    assert "4 seeds" in text
    ratio = " ".join(titles(claims_figure(claims(**PAIR | {"over": "model / baseline"}))))
    assert "over softmax ViT" in ratio


def test_a_label_names_the_data_that_models_were_trained_on():
    for options, words in ((PAIR["options"], "digits"), ("data=shape+chirp, model=primal", "2 data sets")):
        assert words in " ".join(titles(claims_figure(claims(options=options))))


def test_models_stand_under_each_other_in_one_row_with_one_line_for_what_is_published():
    fig = claims_figure(pd.concat([claims(), claims("hf:google-bert/bert-base-uncased", verdict="holds")]))
    heights = {note.text: note.y for note in fig.layout.annotations}
    (published,) = [words for words in heights if "published" in words]
    assert heights["digits-vit"] < heights["bert-base-uncased"] < heights[published]
    printed = [
        trace
        for trace in fig.data
        if PUBLISHED["symbol"] in (trace.marker.symbol or "") and not trace.showlegend
    ]
    assert [len(trace.x) for trace in printed] == [1]


def test_a_number_printed_as_the_threshold_is_not_drawn_twice():
    fig = claims_figure(claims(published=0.32))
    assert not any("published" in text for text in titles(fig))


def test_only_primary_claims_are_drawn_and_counted_where_there_are_some():
    rows = pd.concat([claims(), claims(interpretation="by rows", primary=False, verdict="holds")])
    assert titles(claims_figure(rows)).count("<b>fails</b>") == 1
    assert "<b>holds</b>" not in titles(claims_figure(rows))
    assert claims_caption(rows).startswith("**Of 1 claims none holds, 1 fails.**")
    assert "<b>holds</b>" in titles(claims_figure(rows[~rows["primary"]]))


def test_the_caption_names_the_claims_that_hold_and_defines_their_symbols():
    both = pd.concat([claims(verdict="holds"), claims("other", **NULL, comparison="<= null")])
    caption = claims_caption(both)
    assert caption.startswith(
        "**Of 2 verdicts 1 holds (V and V̇ are unlike in digits-vit), 1 fails.** Claims of Sarıtaş et al. (2025)"
    )
    assert "V̇: kernel PCA's values." in caption
    assert "Noise passes" not in caption
    assert "Noise passes: its null meets the threshold." in claims_caption(claims(verdict=NOT_DIAGNOSTIC))
    assert "about trained mechanisms" in claims_caption(claims(**PAIR))


def test_the_caption_tells_equivalence_from_holding():
    caption = claims_caption(claims(verdict=EQUIVALENT, comparison="near", threshold="0.05"))
    assert caption.startswith("**Of 1 claims 1 holds by equivalence, none fails.**")
    denied = claims_caption(claims(verdict=EQUIVALENT))
    assert denied.startswith("**Of 1 claims none holds, 1 fails.**")
    assert "No effect: equivalent, against the claim." in denied


def test_the_finding_counts_every_outcome_and_names_a_p_value_near_the_limit():
    close = claims(verdict="holds", p_adjusted=0.049)
    trivial = [claims("other", verdict=verdict) for verdict in (RANDOM_TOO, NOT_DIAGNOSTIC, "undecided")]
    assert claims_caption(pd.concat([close, *trivial])).startswith(
        "**Of 4 verdicts 1 holds (V and V̇ are unlike in digits-vit, adjusted p = 0.049), "
        "2 hold for noise or untrained weights too, 1 is undecided, none fails.**"
    )
    unmet = claims("other", verdict=PREMISE)
    assert (
        claims_caption(pd.concat([close, unmet]))
        .partition("0.049), ")[2]
        .startswith("none fails, 1 has no premise.**")
    )
    names = ("Boost models words better: ratio", "Boost models pixels better: ratio")
    held = [claims(claim=name, label=name, verdict="holds") for name in names]
    assert "2 hold (boost models words better; pixels better)" in claims_caption(pd.concat(held))
    cost = [claims(claim=name, verdict="holds", analysis="operators") for name in ("time", "memory")]
    assert claims_caption(pd.concat(cost)).startswith("**Of 2 claims 2 hold (both about cost), none fails.**")


def test_the_finding_has_the_effect_of_a_ratio_that_is_compared_with_one():
    ratio = claims(verdict="holds", comparison="<", threshold="1", measured=0.9908, low=0.99, high=0.991)
    assert claims_caption(ratio).startswith(
        "**Of 1 claims 1 holds (V and V̇ are unlike, by 0.92 %), none fails.**"
    )


def test_an_adjusted_interval_as_wide_as_the_usual_one_is_not_drawn():
    fig = claims_figure(claims(verdict="undecided", low_adjusted=0.33, high_adjusted=0.36))
    assert "Holm-adjusted CI" not in [trace.name for trace in fig.data]


def test_what_random_logits_show_is_one_line_of_no_model():
    for over, words in (("tokens", "random logits"), ("nothing", "mathematics")):
        both = pd.concat([claims(over=over), claims("bundled:photos-vit", over=over)])
        assert titles(claims_figure(both)).count(words) == 1


def test_no_word_leaves_its_column():
    fig = claims_figure(claims_from_records("chen2023"))
    starts = sorted({note.x for note in fig.layout.annotations if note.xref == "paper"})
    for note in fig.layout.annotations:
        if note.xref == "paper":
            end = note.x * PAGE + text_width(note.text, note.font.size)
            assert end <= PAGE * min([x for x in starts if x > note.x], default=1), note.text


def test_a_frame_that_is_not_of_claims_is_refused():
    with pytest.raises(InputError, match="no column"):
        claims_figure(claims().drop(columns="verdict"))
    with pytest.raises(InputError, match="no rows"):
        claims_figure(claims()[:0])
    with pytest.raises(InputError, match="no claim was tested"):
        claims_figure(claims()[1:])
    with pytest.raises(UnknownName, match="verdict"):
        claims_figure(claims(verdict="perhaps"))
