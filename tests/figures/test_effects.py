"""What a mechanism changes, measured and published, under the same words."""

import pandas as pd
import pytest

from tests.figures.study import titles
from workbench.core.errors import InputError
from workbench.figures import effects_figure, effects_frame

PAIR = "model=digits-rpc-sym, baseline=digits-softmax-sym"
NAN = float("nan")


def claim(
    measure, measured, low, high, comparison=">", over="model - baseline", options=PAIR, verdict="undecided"
):
    return {
        "options": options, "measure": measure, "over": over, "comparison": comparison, "measured": measured,
        "low": low, "high": high, "n": 9, "verdict": verdict, "why": "for a reason",
    }  # fmt: skip


def printed(row, metric, value, baseline, model="digits-rpc-sym", **more):
    return {
        "paper": "teo2024", "table": "2", "row": row, "baseline": "SymViT", "model": model, "data": "ImageNet-1K",
        "condition": None, "metric": metric, "statistic": None, "difference": value - baseline,
        "ratio": value / baseline,
    } | more  # fmt: skip


@pytest.fixture
def claims():
    frame = pd.DataFrame(
        [
            claim("accuracy_top1[protocol=pgd,epsilon=0.02]", 0.05, -0.01, 0.11),
            claim("corruption_error[protocol=corruptions,kind=each]", -0.02, -0.05, 0.01, "<"),
            claim("accuracy[split=test]", -0.01, -0.03, -0.005, verdict="fails"),
            claim("macs[split=model]", 1.1, 1.1, 1.1, "<=", "model / baseline"),
            claim(
                "perplexity[split=test]",
                1.2,
                1.1,
                1.3,
                "<",
                "model / baseline",
                "model=prose-x, baseline=prose-y",
            ),
        ]
    )
    frame.attrs["provenance"] = [{"analysis": "training"}]
    return frame


@pytest.fixture
def pairs():
    return pd.DataFrame(
        [
            printed("RPC (4iter)", "accuracy_top1", 0.05, 0.04, condition="pgd"),
            printed("RPC (6iter)", "accuracy_top1", 0.07, 0.04, condition="pgd"),
            printed("RPC (4iter)", "accuracy_top1", 0.71, 0.70),
            printed("RPC (4iter)", "accuracy_top1", 0.42, 0.41, data="ImageNet-C", statistic="mean"),
            printed("RPC (4iter)", "accuracy_top1", 0.3, 0.29, data="ImageNet-R"),
            printed("RPC (4iter)", "accuracy_top1", 0.68, 0.67, condition="sld"),
            printed("RPC (4iter)", "aupr", 0.19, 0.17),
            printed("Asym", "aupr", 0.18, 0.17, model=None),
            printed("LM", "perplexity", 30.0, 40.0, model="prose-x", data="WikiText-103 test"),
        ]
    )


def test_differences_are_in_points_and_positive_where_the_mechanism_is_better(claims, pairs):
    frame = effects_frame(claims, pairs, "difference")
    here = frame[frame["source"] == "here"].set_index("label")
    assert here["value"].to_dict() == pytest.approx(
        {"clean images, three seeds": -1, "PGD, ε = 0.02": 5, "corruptions, mean of types": 2}
    )
    error = here.loc["corruptions, mean of types"]
    assert (error["low"], error["high"]) == pytest.approx((-1, 5))
    assert frame.attrs["provenance"] == [{"analysis": "training"}]


def test_published_configurations_stand_beside_the_claim_of_the_same_condition(claims, pairs):
    frame = effects_frame(claims, pairs, "difference")
    theirs = frame[(frame["source"] == "published") & frame["group"].str.startswith("digits")]
    found = theirs.groupby("label")["value"].apply(list).to_dict()
    assert set(found) == {"PGD, ε = 0.02", "clean images, three seeds", "corruptions, mean of types"}
    assert found["PGD, ε = 0.02"] == pytest.approx([1, 3])
    assert set(theirs["row"]) == {"RPC (4iter)", "RPC (6iter)"}
    assert set(theirs["paper"] + " " + theirs["table"]) == {"teo2024 2"}


def test_a_pair_without_a_counterpart_is_a_group_of_its_own_at_the_end(claims, pairs):
    frame = effects_frame(claims, pairs, "difference")
    assert list(frame["group"].unique()) == [
        "digits-rpc-sym less digits-softmax-sym",
        "Asym less SymViT (published only)",
    ]
    assert frame["label"].iloc[0] == "clean images, three seeds"


def test_ratios_are_of_perplexities_and_losses_only(claims, pairs):
    frame = effects_frame(claims, pairs, "ratio")
    assert list(frame["group"].unique()) == ["prose-x over prose-y"]
    assert frame.set_index("source")["value"].to_dict() == pytest.approx({"here": 1.2, "published": 0.75})


def test_what_nobody_measured_keeps_its_line_and_its_verdict(claims, pairs):
    unknown = claims.assign(measured=NAN, low=NAN, high=NAN, verdict="not tested at this scale")
    frame = effects_frame(unknown, pairs, "difference")
    fig = effects_figure(frame, "difference")
    assert not [trace for trace in fig.data if trace.error_x.array is not None and len(trace.x)]
    assert len(fig.layout.yaxis.tickvals) == 4 + 2
    assert sum("not tested" in text for text in titles(fig)) == 3


def test_a_line_shows_interval_published_values_and_verdict_at_the_same_height(claims, pairs):
    fig = effects_figure(effects_frame(claims, pairs, "difference"), "difference")
    heights = dict(zip(fig.layout.yaxis.ticktext, fig.layout.yaxis.tickvals, strict=True))
    (dots,) = (trace for trace in fig.data if trace.error_x.array is not None)
    printed = [
        trace for trace in fig.data if trace.marker.symbol == "diamond-open" and trace.x[0] is not None
    ]
    place = list(dots.y).index(heights["PGD, ε = 0.02"])
    assert dots.x[place] == pytest.approx(5)
    assert (dots.error_x.array[place], dots.error_x.arrayminus[place]) == pytest.approx((6, 6))
    assert sum(y == heights["PGD, ε = 0.02"] for trace in printed for y in trace.y) == 2
    (fails,) = [note for note in fig.layout.annotations if "fails" in note.text]
    assert fails.y == heights["clean images, three seeds"]
    assert len(set(heights.values())) == 4 + 2  # a heading for each pair


def test_nothing_to_compare_is_refused(claims, pairs):
    with pytest.raises(InputError, match="no comparison"):
        effects_figure(effects_frame(claims[:0], pairs[:0], "difference"), "difference")
