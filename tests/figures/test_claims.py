"""Claims as a table in print."""

import pandas as pd
import pytest

from tests.figures.study import titles
from workbench.core.errors import InputError, UnknownName
from workbench.figures import claim_pages, claims_figure
from workbench.figures.claims import VERDICTS

NAN = float("nan")


def claims(model="bundled:digits-vit", **more):
    row = {
        "paper": "saritas2025", "place": "Table 1", "claim": "The largest cosine stays at most 0.32.",
        "interpretation": "", "published": 0.32, "measured": 0.3441, "low": 0.33, "high": 0.36, "null_mean": 1.5e-7,
        "null_low": 1e-7, "null_high": 2e-7, "verdict": "fails", "why": "0.33 lies above 0.32", "model": model,
    }  # fmt: skip
    second = {**row, "claim": "Training lowers J.", "published": NAN, "measured": NAN, "null_mean": NAN}
    return pd.DataFrame([row, {**second, "verdict": "not tested at this scale"}]).assign(**more)


def test_a_claim_shows_what_was_published_measured_and_the_null():
    text = titles(claims_figure(claims()))
    assert "0.32" in text
    (verdict,) = [line for line in text if "fails" in line]
    assert verdict.endswith("0.344 [0.33, 0.36]")
    assert any("null 1.5·10<sup>−7</sup>" in line for line in text)
    assert "–" in text


def test_the_interpretation_that_counts_is_marked_where_there_are_several():
    words = "entry for entry in at least half of the heads of all layers; our threshold"
    interpretations = [("up to rotation", False), (words, True)]
    rows = [claims(interpretation=text, primary=primary).iloc[:1] for text, primary in interpretations]
    text = titles(claims_figure(pd.concat(rows)))
    assert "up to rotation" in text
    (marked,) = [line for line in text if line.startswith("<b>Primary:</b> entry for entry")]
    whole = text[text.index(marked) :]
    assert " ".join(whole).removeprefix("<b>Primary:</b> ").startswith(words)
    alone = titles(claims_figure(rows[1]))
    assert any(line.startswith("entry for entry") for line in alone)


def test_a_verdict_has_a_marker_a_colour_and_its_reason_under_the_pointer():
    (marks,) = claims_figure(claims()).data
    assert list(marks.marker.symbol) == [VERDICTS[name][1] for name in ("fails", "not tested at this scale")]
    assert list(marks.text) == ["fails", "not tested at this scale"]
    assert marks.customdata[0] == "0.33 lies above 0.32"
    assert (
        len({shape for _, shape in VERDICTS.values()})
        == len({colour for colour, _ in VERDICTS.values()})
        == 4
    )


def test_rows_do_not_overlap_and_all_lie_on_the_page():
    fig = claims_figure(claims(claim="word " * 60))
    rules = sorted(shape.y0 for shape in fig.layout.shapes)
    bottom, _ = fig.layout.yaxis.range
    assert rules == sorted(set(rules))
    assert max(note.y for note in fig.layout.annotations) < bottom
    assert max(note.x for note in fig.layout.annotations) < fig.layout.xaxis.range[1]
    assert fig.layout.height >= bottom


def test_symbols_are_set_as_in_print():
    text = " ".join(titles(claims_figure(claims(claim="J_proj falls below R_c^var with num_iter"))))
    assert "J<sub>proj</sub> falls below R<sub>c</sub><sup>var</sup> with num_iter" in text


def test_models_stand_beside_each_other():
    both = pd.concat([claims(), claims("hf:google-bert/bert-base-uncased", verdict="holds")])
    fig = claims_figure(both)
    assert {"<b>digits-vit</b>", "<b>bert-base-uncased</b>"} <= set(titles(fig))
    assert len(set(fig.data[0].x)) == 2
    assert titles(fig).count("<b>Table 1: The largest cosine stays at most 0.32.</b>") == 1


def test_each_models_own_published_value_is_shown():
    both = pd.concat(
        [claims(published=float("nan")), claims("hf:google-bert/bert-base-uncased", published=0.37)]
    )
    text = titles(claims_figure(both))
    assert "0.37" in text
    assert "–" not in text


def test_interpretations_stand_under_their_claim_and_papers_apart():
    twice = pd.concat(
        [claims(interpretation="by columns"), claims(interpretation="by rows"), claims(paper="teo2024")]
    )
    text = titles(claims_figure(twice))
    assert text.count("<b>saritas2025 Table 1: The largest cosine stays at most 0.32.</b>") == 1
    assert {"by columns", "by rows"} <= set(text)
    assert any(line.startswith("<b>teo2024 Table 1") for line in text)


def test_pages_hold_every_row_once_and_keep_to_their_height():
    many = pd.concat([claims(place=f"Table {number}") for number in range(30)], ignore_index=True)
    pages = claim_pages(many, height=400)
    assert len(pages) > 2
    assert list(pd.concat(pages).index) == list(many.index)
    assert max(claims_figure(page).layout.height for page in pages) <= 400
    assert min(claims_figure(page).layout.height for page in pages[:-1]) > 300
    assert len(claim_pages(claims())) == 1


def test_what_is_no_table_of_claims_is_refused():
    with pytest.raises(InputError, match="published"):
        claims_figure(claims().drop(columns="published"))
    with pytest.raises(InputError, match="rows"):
        claims_figure(claims()[:0])
    with pytest.raises(UnknownName, match="perhaps"):
        claims_figure(claims(verdict="perhaps"))
    with pytest.raises(InputError, match="at most 3"):
        claims_figure(pd.concat([claims(f"m{number}") for number in range(4)]))
