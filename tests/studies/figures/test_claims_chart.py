"""Claims as a chart: a row each, with an axis of its own."""

import pandas as pd
import pytest

from tests.figures.study import titles
from workbench.core.errors import InputError, UnknownName
from workbench.figures.theme import ALLOWED, PUBLISHED
from workbench.papers.verdicts import NOT_DIAGNOSTIC, RANDOM_TOO
from workbench.studies import claims_from_records
from workbench.studies.figures import claims_caption, claims_figure, shown_claims
from workbench.studies.figures.claims_chart import PAGE_HEIGHT, VERDICTS, _shown

NAN = float("nan")


def claims(model="bundled:digits-vit", **more):
    row = {
        "paper": "saritas2025", "place": "Table 1", "claim": "The largest cosine stays at most 0.32.", "primary": True,
        "interpretation": "by columns", "label": "V and V̇ are unlike: largest cosine", "over": "inputs",
        "measure": "MOC", "comparison": "<=", "threshold": "0.32", "published": 0.31, "measured": 0.3441, "low": 0.33,
        "high": 0.36, "n": 4, "units": "inputs", "null_mean": NAN, "verdict": "fails", "why": "0.33 lies above 0.32",
        "model": model,
    }  # fmt: skip
    second = {**row, "claim": "Training lowers J.", "measured": NAN, "verdict": "not tested at this scale"}
    return pd.DataFrame([row, second]).assign(**more)


def marks(fig, verdict):
    """The estimates with this verdict, below the key: with an interval."""
    symbol = VERDICTS[verdict][1]
    drawn = [trace for trace in fig.data if trace.marker.symbol == symbol and trace.y[0] > 30]
    return [trace for trace in drawn if trace.error_x.array[0] + trace.error_x.arrayminus[0] > 0]


def allowed(fig):
    return [shape for shape in fig.layout.shapes if shape.fillcolor == ALLOWED and shape.y0 > 30]


def test_a_row_says_what_must_hold_what_was_measured_and_the_verdict():
    text = titles(claims_figure(claims()))
    label = " ".join(text)
    assert "V and V̇ are unlike: largest cosine <b>≤ 0.32</b>" in label
    assert "Table 1</span>" in label
    assert {"0.344 [0.330, 0.360]", "<b>fails</b>", "digits-vit", "published 0.31"} <= set(text)


def test_an_estimate_lies_in_the_shading_exactly_where_its_claim_holds():
    fails = claims_figure(claims())
    (mark,), (shade,) = marks(fails, "fails"), allowed(fails)
    assert shade.x1 < mark.x[0] - mark.error_x.arrayminus[0]
    holds = claims_figure(claims(comparison=">", verdict="holds"))
    (mark,), (shade,) = marks(holds, "holds"), allowed(holds)
    assert shade.x0 < mark.x[0] - mark.error_x.arrayminus[0] < mark.x[0] + mark.error_x.array[0] < shade.x1


def test_a_claim_about_the_null_is_shaded_from_the_end_of_each_models_own_null():
    of_null = {"comparison": "> null", "threshold": "", "null_mean": 0.2, "null_low": 0.19}
    both = pd.concat([claims(**of_null, null_high=0.21), claims("other", **of_null, null_high=0.35)])
    first, second = sorted(allowed(claims_figure(both)), key=lambda shape: shape.y0)
    assert first.x0 < second.x0


@pytest.mark.parametrize(
    ("ends", "kind"),
    [((0.2, 0.1, 0.3), "linear"), ((1e-6, 1e-7, 1e-5), "log"), ((5324.0, -6201.0, 16850.0), "both")],
)
def test_an_axis_holds_everything_in_order_whatever_its_values_span(ends, kind):
    value, low, high = ends
    fig = claims_figure(
        claims(
            measured=value,
            low=low,
            high=high,
            threshold="0.15" if kind == "linear" else "0.001",
            published=NAN,
        )
    )
    (mark,) = marks(fig, "fails")
    at = mark.x[0] - mark.error_x.arrayminus[0], mark.x[0], mark.x[0] + mark.error_x.array[0]
    assert at[0] < at[1] < at[2]
    (axis,) = [shape for shape in fig.layout.shapes if shape.line.color == "#BBBBBB" and shape.y0 == shape.y1]
    words = {"linear": set(), "log": {"log"}, "both": {"signed log"}}[kind]
    assert {"log", "signed log"} & set(titles(fig)) == words
    assert axis.x0 - 0.01 <= at[0]
    assert at[2] <= axis.x1 + 0.01


def test_a_number_under_an_axis_stands_at_its_value():
    fig = claims_figure(claims(published=0.3, threshold="0.4"))
    numbers = {note.text: note.x for note in fig.layout.annotations if note.xanchor == "center"}
    (printed,) = [
        trace for trace in fig.data if trace.marker.symbol == PUBLISHED["symbol"] and trace.y[0] > 30
    ]
    (shade,) = allowed(fig)
    assert numbers["0.3"] == pytest.approx(printed.x[0])
    assert numbers["0.4"] == pytest.approx(shade.x1)


def test_claims_about_pairs_of_models_share_an_axis_by_kind():
    pair = {
        "options": "model=digits-tssa, baseline=digits-vit",
        "units": "seeds",
        "measure": "accuracy[split=test]",
    }
    less = [
        claims(over="model - baseline", claim=f"claim {n}", measured=0.1 * n, **pair).iloc[:1] for n in (1, 2)
    ]
    over = claims(over="model / baseline", claim="costs", measured=0.34, **pair).iloc[:1]
    fig = claims_figure(pd.concat([less[0], over, less[1]]))
    assert [word for word in titles(fig) if word in ("difference, pp", "ratio")] == [
        "difference, pp",
        "ratio",
    ]


def test_differences_of_shares_are_in_points_and_name_the_baseline():
    pair = {"options": "model=digits-tssa, baseline=digits-vit", "over": "model - baseline", "units": "seeds"}
    text = " ".join(titles(claims_figure(claims(measure="accuracy[split=test]", threshold="-0.02", **pair))))
    assert "<b>≤ −2 pp</b>" in text
    assert "34.4 [33.0, 36.0]" in text
    assert "less softmax ViT" in text
    assert "4 seeds" in text


def test_models_stand_under_each_other_in_one_row_with_a_line_for_what_is_published():
    both = pd.concat([claims(), claims("hf:google-bert/bert-base-uncased", verdict="holds")])
    fig = claims_figure(both)
    heights = {note.text: note.y for note in fig.layout.annotations}
    assert heights["digits-vit"] < heights["bert-base-uncased"] < heights["published 0.31"]
    printed = [trace for trace in fig.data if trace.marker.symbol == PUBLISHED["symbol"] and trace.y[0] > 30]
    assert [len(trace.x) for trace in printed] == [1]


def test_the_caption_names_the_sample_of_each_model_once():
    of_texts = claims("all-MiniLM-L6-v2").assign(n=8)
    caption = claims_caption(pd.concat([claims(n=25), of_texts]))
    assert "95 % CI over 25 inputs (8 inputs for all-MiniLM-L6-v2);" in caption
    assert caption.count("8 inputs") == 1


def test_the_caption_counts_the_rows_left_out_of_the_chart():
    assert "Only in the table: 1 row not tested at this scale." in claims_caption(claims())
    rows = [
        claims(interpretation=str(n), primary=n % 8 == 0, claim=f"claim {n // 8}").iloc[:1] for n in range(64)
    ]
    frame = pd.concat(rows)
    assert len(shown_claims(frame)) == 8
    assert "56 further interpretations" in claims_caption(frame)
    fig = claims_figure(frame)
    assert fig.layout.height < PAGE_HEIGHT
    assert len(marks(fig, "fails")) == 8


def test_an_interpretation_that_alone_was_tested_on_a_model_is_drawn_where_the_others_are_not():
    rows = [claims(interpretation=str(n), primary=n == 0, claim="one").iloc[:1] for n in range(48)]
    alone = claims("other", interpretation="7", primary=False, claim="one").iloc[:1]
    text = titles(claims_figure(pd.concat([*rows, alone])))
    assert text.count("other") == 1


def test_primary_claims_stay_with_all_their_models_where_a_page_is_too_short():
    rows = [claims(interpretation=str(n), primary=n in (2, 7), claim="one").iloc[:1] for n in range(48)]
    other = claims("other", interpretation="7", primary=True, claim="one").iloc[:1]
    kept = shown_claims(pd.concat([*rows, other]))
    assert [*kept["interpretation"]] == ["2", "7", "7"]
    # an interpretation that one model needs is drawn of every model that has it
    needed = claims("other", interpretation="5", primary=False, claim="one").iloc[:1]
    assert [*shown_claims(pd.concat([*rows, needed]))["interpretation"]] == ["2", "5", "5", "7"]


def test_what_must_hold_beside_noise_names_the_null_and_the_margin():
    null = {"null": "permutation", "null_mean": 0.2, "null_low": 0.19, "null_high": 0.21, "margin": "10%"}
    text = " ".join(titles(claims_figure(claims(comparison="> null", threshold="", **null))))
    assert "<b>&gt; null (permuted) + 10 %</b>" in text or "<b>> null (permuted) + 10 %</b>" in text
    text = " ".join(titles(claims_figure(claims(comparison="< null", measure="effective_rank", **null))))
    assert "< null (permuted) − 10 %" in text


def test_to_be_equivalent_supports_a_claim_of_equality_and_speaks_against_one_of_more():
    null = {"null": "gaussian", "null_mean": 0.34, "null_low": 0.33, "null_high": 0.35, "margin": "10%"}
    words, said = ("<b>equivalent</b>", "<b>no effect</b>"), []
    for comparison in ("<= null", "> null"):
        fig = claims_figure(claims(comparison=comparison, verdict="equivalent within the margin", **null))
        said += [(note.text, note.font.color) for note in fig.layout.annotations if note.text in words]
    assert said == [*zip(words, (VERDICTS["holds"][0], VERDICTS["fails"][0]), strict=True)]


def test_the_margin_of_equivalence_is_a_bracket_where_it_is_not_what_is_allowed():
    def brackets(fig):
        black = [shape for shape in fig.layout.shapes if shape.line.color == "black" and shape.y0 == shape.y1]
        return [shape for shape in black if shape.y0 > 30]

    null = {"null": "gaussian", "null_mean": 0.2, "null_low": 0.19, "null_high": 0.21, "margin": "10%"}
    fig = claims_figure(claims(comparison="<= null", threshold="", published=NAN, **null))
    (shade,), (bracket,) = allowed(fig), brackets(fig)
    assert bracket.x1 == shade.x1  # 0.2 + a tenth of the way to 1
    assert bracket.x0 > shade.x0
    assert "margin of equivalence" in titles(fig)
    near = {"comparison": "equals", "threshold": "0.3", "margin": "10%"}
    fig = claims_figure(claims(**near))
    assert not brackets(fig)
    assert "margin of equivalence" not in titles(fig)


def test_every_outcome_has_a_colour_of_its_own_and_its_words_in_column_key_and_caption():
    outcomes = {
        "holds": "holds",
        RANDOM_TOO: "also random",
        NOT_DIAGNOSTIC: "not diagnostic",
        "undecided": "undecided",
        "fails": "fails",
    }
    drawn = {
        verdict: claims_figure(claims(comparison=">", threshold="0.05", verdict=verdict))
        for verdict in outcomes
    }
    for verdict, words in outcomes.items():
        assert f"<b>{words}</b>" in titles(drawn[verdict])
        assert f"estimate, 95 % CI: {verdict}" in titles(drawn[verdict])
        assert marks(drawn[verdict], verdict)
    assert (
        len({VERDICTS[verdict][0] for verdict in outcomes})
        == len({VERDICTS[verdict] for verdict in outcomes})
        == 5
    )


def test_untrained_weights_have_a_mark_of_their_own_at_their_mean():
    def triangles(fig):
        return [trace for trace in fig.data if trace.marker.symbol == "triangle-down-open"]

    held = {"comparison": ">", "threshold": "0.3", "published": NAN, "verdict": RANDOM_TOO, "untrained_n": 6}
    fig = claims_figure(claims(untrained=0.5, **held))
    key, mark = sorted(triangles(fig), key=lambda trace: trace.y[0])
    (estimate,) = marks(fig, RANDOM_TOO)
    assert key.y[0] < 30 < mark.y[0] == estimate.y[0]
    assert mark.x[0] > estimate.x[0]  # 0.5 and 0.3441
    assert "untrained weights, mean" in titles(fig)
    for other in (
        claims(untrained=NAN, **held),
        claims(untrained=0.5, **{**held, "over": "trained - untrained"}),
    ):
        assert not triangles(claims_figure(other))


def test_the_number_of_null_samples_stands_in_the_key():
    held = claims(null="gaussian", null_mean=0.2, null_low=0.1, null_high=0.3, analysis="one")
    assert "null (Gaussian): 95 % range" in titles(claims_figure(held))
    runs = [("one", 20), ("one", 0), ("two", 5)]
    held.attrs["provenance"] = [
        {"analysis": name, "options": {"null_samples": count}} for name, count in runs
    ]
    assert "null (Gaussian): range of 20 null samples" in titles(claims_figure(held))


def test_the_caption_names_the_rows_that_do_not_count_and_the_chart_the_data():
    assert "Rows marked" not in claims_caption(claims())
    trained = claims(options="model=digits-tssa, baseline=digits-vit", kind="count")
    assert "Rows marked exact count do not count." in claims_caption(trained)
    assert "digits;</span>" in " ".join(titles(claims_figure(trained)))
    for data, words in (("shape", "shape"), ("shape+chirp", "2 data sets")):
        embedded = claims(options=f"data={data}, model=primal, baseline=softmax")
        assert words in " ".join(titles(claims_figure(embedded))).replace("\u00a0", " ")


def test_a_verdict_that_holm_undecides_is_marked_and_the_caption_has_the_mark():
    alone = claims(verdict="undecided", p=0.02, p_adjusted=0.09)
    assert "<b>undecided†</b>" in titles(claims_figure(alone))
    assert "† undecided only after Holm's adjustment" in claims_caption(alone)
    other = claims(verdict="undecided", p=0.2, p_adjusted=0.9)
    assert "†" not in " ".join([*titles(claims_figure(other)), claims_caption(other)])


def test_the_interval_at_holm_s_level_is_a_thin_line_around_the_usual_one():
    """It crosses the threshold where Holm undecides a claim that its usual interval decides."""
    alone = {
        "verdict": "undecided",
        "p": 0.02,
        "p_adjusted": 0.09,
        "low_adjusted": 0.31,
        "high_adjusted": 0.38,
    }
    fig = claims_figure(claims(**alone))
    assert "thin: Holm-adjusted CI" in titles(fig)
    (mark,), (shade,) = marks(fig, "undecided"), allowed(fig)
    (thin,) = [
        shape
        for shape in fig.layout.shapes
        if shape.line.width == 0.7 and shape.y0 == shape.y1 == mark.y[0] and shape.x0 < shape.x1
    ]
    assert thin.line.color == mark.marker.color
    left, right = mark.x[0] - mark.error_x.arrayminus[0], mark.x[0] + mark.error_x.array[0]
    assert thin.x0 < shade.x1 < left < right < thin.x1
    for same in ({"low_adjusted": NAN, "high_adjusted": NAN}, {"low_adjusted": 0.33, "high_adjusted": 0.36}):
        assert "thin: Holm-adjusted CI" not in titles(claims_figure(claims(**{**alone, **same})))


def test_no_verdict_on_a_trained_mechanism_disagrees_with_its_thin_line():
    lanes = [lane for row in _shown(claims_from_records("teo2024"))[1] for lane in row.lanes]
    assert sum(bool(lane.thin) for lane in lanes) > 5
    for lane in lanes:
        low, high = lane.thin or lane.ends[1:]
        inside = lane.allowed[0] <= low and high <= lane.allowed[1]
        outside = high < lane.allowed[0] or lane.allowed[1] < low
        assert lane.verdict == ("holds" if inside else "fails" if outside else "undecided")


def test_an_axis_is_cut_where_the_allowed_range_would_be_a_line():
    near = {"comparison": "equals", "threshold": "1", "margin": "10%", "published": NAN}
    inside = claims(measured=1.0, low=0.98, high=1.02, verdict="holds", **near).iloc[:1]
    far = claims("other", measured=2e4, low=0.0, high=6e4, verdict="undecided", **near).iloc[:1]
    fig = claims_figure(pd.concat([inside, far]))
    shade = allowed(fig)[0]
    assert shade.x1 - shade.x0 > 30
    arrows = [trace.marker for trace in fig.data if str(trace.marker.symbol).startswith("triangle")]
    assert [arrow.symbol for arrow in arrows] == [
        "triangle-right",
        "triangle-right",
        "triangle-left",
    ]  # key first
    assert arrows[1].size > arrows[2].size  # the estimate, and an end of its interval
    assert "estimate beyond the axis; small: an end of its CI" in titles(fig)


def test_a_null_is_not_drawn_on_a_logarithm_because_an_interval_ends_near_0():
    null = {"null": "permutation", "null_mean": 0.0, "null_low": -0.003, "null_high": 0.002, "margin": "10%"}
    fig = claims_figure(
        claims(
            comparison="> null", threshold="", measured=0.0057, low=3e-6, high=0.0113, published=NAN, **null
        )
    )
    assert "signed log" not in titles(fig)


def test_a_small_published_number_makes_no_axis_logarithmic():
    fig = claims_figure(claims(measured=-12.0, low=-25.0, high=10.0, threshold="0", published=0.1))
    assert "signed log" not in titles(fig)


def test_what_is_not_primary_says_why():
    text = " ".join(titles(claims_figure(claims(kind="identity"))))
    assert "mathematics</span>" in text
    assert "secondary</span>" in " ".join(titles(claims_figure(claims(primary=False))))
    assert "secondary" not in " ".join(titles(claims_figure(claims())))


def test_no_text_reaches_beyond_the_page_and_rows_follow_each_other():
    fig = claims_figure(claims(label="word " * 40))
    bottom, _ = fig.layout.yaxis.range
    assert max(note.y for note in fig.layout.annotations) < bottom
    rules = [shape.y0 for shape in fig.layout.shapes if shape.line.color == "#CCCCCC"]
    assert rules == sorted(set(rules))


def test_what_is_no_table_of_claims_is_refused():
    with pytest.raises(InputError, match="published"):
        claims_figure(claims().drop(columns="published"))
    with pytest.raises(InputError, match="rows"):
        claims_figure(claims()[:0])
    with pytest.raises(InputError, match="no claim was tested"):
        claims_figure(claims()[1:])
    with pytest.raises(UnknownName, match="perhaps"):
        claims_figure(claims(verdict="perhaps"))


def test_what_is_sampled_without_a_model_has_one_line_and_rows_keep_the_order_of_the_claims():
    rows = claims(verdict="holds", measured=0.3441).assign(
        over=["inputs", "tokens"], label=["first", "second"]
    )
    others = claims("other", verdict="holds", measured=0.3441).assign(
        over=["inputs", "tokens"], label=["first", "second"]
    )
    untested = rows.assign(verdict=["not tested at this scale", "holds"])
    text = titles(claims_figure(pd.concat([untested, others])))
    assert [word.split()[0] for word in text if word.startswith(("first", "second"))] == ["first", "second"]
    assert text.count("random logits") == 1
    assert text.count("other") == 1


def test_what_random_logits_show_is_one_line_of_no_model():
    for over in ("tokens", "nothing"):
        both = pd.concat([claims(over=over), claims("bundled:photos-vit", over=over)])
        assert len(shown_claims(both)) == 1
    assert len(shown_claims(both.assign(over="inputs"))) == 2
