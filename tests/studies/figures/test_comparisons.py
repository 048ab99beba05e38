"""Differences of mechanisms from their baselines over seeds, a row per condition."""

import numpy as np
import pandas as pd
import pytest

from tests.figures.study import titles
from workbench.core.errors import InputError, UnknownName
from workbench.studies.figures import (
    corruptions_figure,
    corruptions_finding,
    perplexity_figure,
    perplexity_finding,
    robustness_figure,
    robustness_finding,
)
from workbench.studies.findings import largest_differences

BASELINE = "bundled:digits-vit"


def row(attention, value, reach, *, seeds=7, protocol="pgd", kind=None, metric="accuracy_top1", **more):
    """The mean over seeds with its interval, and one of these seeds, which is not drawn."""
    low, high = (value - reach, value + reach) if seeds > 1 else (np.nan, np.nan)
    about = {"model": f"bundled:digits-{attention}", "attention": attention, "protocol": protocol, "kind": kind,
             "metric": metric, "baseline": BASELINE, "seeds": seeds} | more  # fmt: skip
    mean = about | {"value": value, "low": low, "high": high, "training_seed": pd.NA}
    return [mean, about | {"value": 99.0, "low": np.nan, "high": np.nan, "training_seed": 0}]


DIFFERENCES = pd.DataFrame(
    [
        *row("tssa", 0.02, 0.05, protocol="noise"),
        *row("tssa", -0.127, 0.05),
        *row("primal", 0.3, 0.0, seeds=1),
        *row("bilateral", 0.01, 0.05, protocol="clean"),
        *row("scaled-free", 0.04, 0.01, protocol="ood", kind="noise", metric="aupr"),
        *row("scaled-free", 0.03, 0.05, protocol="clean"),
    ]
)
MEANS = pd.DataFrame(row("softmax", 0.62, 0.1, model=BASELINE, baseline=None))


def drawn(figure, axis="x"):
    """Rows of a panel → value, ends, and whether the marker is open."""
    (trace,) = [
        trace
        for trace in figure.data
        if trace.xaxis == axis and trace.error_x.array is not None and trace.text
    ]
    fills = trace.marker.color if isinstance(trace.marker.color, tuple | list) else [""] * len(trace.x)
    ends = zip(trace.text, trace.x, trace.error_x.arrayminus, trace.error_x.array, fills, strict=True)
    return {words: (x, x - down, x + up, fill == "white") for words, x, down, up, fill in ends}


def test_a_row_has_the_difference_in_points_and_the_score_of_the_baseline():
    fig = robustness_figure(DIFFERENCES, MEANS)
    heads = ["<b>Scaled (S free)</b>", "<b>token statistics</b>"]
    rows = [*fig.layout.yaxis.ticktext]
    assert [words for words in rows if words.startswith("<b>")] == heads  # one condition: not attacked
    assert rows[4:6] == ["PGD (62 %)", "noise"]
    values = drawn(fig)
    assert values["PGD (62 %)"] == pytest.approx((-12.7, -17.7, -7.7, False))
    assert values["noise"] == pytest.approx((2, -3, 7, True))
    assert values["OOD: noise"] == pytest.approx((4, 3, 5, False))


def test_the_change_of_an_error_is_in_per_cent_with_the_mean_over_kinds_last():
    ratios = pd.DataFrame(
        [
            *row("rpc-sym", 1.05, 0.1, metric="corruption_error"),
            *row("rpc-sym", 0.9, 0.2, kind="jpeg-compression", metric="corruption_error"),
            *row("rpc-sym", 1.2, 0.1, kind="gaussian-noise", metric="corruption_error"),
            *row("tssa", np.inf, 0.1, kind="jpeg-compression", metric="corruption_error"),
        ]
    )
    fig = corruptions_figure(ratios)
    assert list(fig.layout.yaxis.ticktext) == ["Gaussian noise", "JPEG compression", "<b>mean over kinds</b>"]
    assert [place[0] for place in drawn(fig).values()] == pytest.approx([20, -10, 5])
    assert corruptions_finding(ratios) == (
        "Errors under corruption change by +5.0 % [−5.0, +15.0] on average with symmetric RPC, not significantly; of 2 "
        "kinds 1 are significantly worse and none better (about 0.1 expected under the null)."
    )


def test_the_finding_names_the_attacks_that_are_drawn():
    assert robustness_finding(DIFFERENCES).startswith(
        "Significant differences from the baseline are largest with token statistics: −12.7 points (PGD). 2 of 4 are"
    )


def test_no_more_differences_than_chance_explains_are_named_as_such():
    table = pd.DataFrame({"mechanism": "a", "where": "b", "value": 1.0, "low": [-7.0] * 20, "high": 4.0})
    table.loc[3, ["where", "low"]] = ["c", 0.5]
    assert largest_differences(table, {"a": "mechanism A"}, " points") == (
        "No variant differs from its baseline more often than under the null: 1 of 20 differences significant (c with "
        "mechanism A; about 1 expected under the null)."
    )
    assert largest_differences(table.drop(3), {"a": "mechanism A"}, " points") == (
        "None of 19 differences of mechanism A from the baseline is significant (about 1 expected under the null)."
    )


def test_a_ratio_of_perplexities_stands_in_the_panel_of_its_share_of_swapped_words():
    about = {"protocol": "word-swap", "metric": "perplexity", "baseline": "bundled:prose-softmax-sym"}
    frame = pd.DataFrame(
        [
            *row("rpc-sym", 0.9, 0.1, epsilon=0.0, **about),
            *row("rpc-sym", 0.9, 0.1, epsilon=0.0, **about | {"metric": "perplexity_kept"}),
            *row("rpc-sym", 0.8, 0.1, epsilon=0.05, **about),
            *row("rpc-sym", 0.7, 0.1, epsilon=0.05, **about | {"metric": "perplexity_kept"}),
            *row("tssa-causal", 0.5, 0.1, epsilon=0.05, seeds=1, **about),
        ]
    )
    fig = perplexity_figure(frame)
    assert titles(fig) == [
        "no swaps", "5 % swapped<br>all characters", "5 % swapped<br>characters outside swaps",
    ]  # fmt: skip
    assert list(fig.layout.yaxis.ticktext) == ["symmetric RPC ÷ symmetric softmax"]
    assert [drawn(fig, axis)["symmetric RPC ÷ symmetric softmax"][0] for axis in ("x", "x2", "x3")] == [
        0.9,
        0.8,
        0.7,
    ]
    assert perplexity_finding(frame) == (
        "Perplexity is not consistently different with symmetric RPC than with symmetric softmax (0 % and 5 % of the "
        "words swapped)."
    )
    assert perplexity_finding(frame.assign(high=frame["value"] + 0.05)) == (
        "Perplexity is 10 % to 20 % lower with symmetric RPC than with symmetric softmax (0 % and 5 % of the "
        "words swapped)."
    )
    later = [row("tssa-causal", 0.6, 0.1, epsilon=share, **about)[0] for share in (0.0, 0.05)]
    both = perplexity_finding(pd.concat([pd.DataFrame(later), frame]))
    assert both.startswith(
        "Perplexity is 40 % lower with token statistics than with symmetric softmax, not consistently different with "
        "symmetric RPC than with symmetric softmax ("
    )
    with pytest.raises(InputError, match="several training seeds"):
        perplexity_figure(frame[frame["seeds"] == 1])


def test_frames_without_such_numbers_or_with_an_unknown_variant_are_refused():
    with pytest.raises(UnknownName, match="look"):
        robustness_figure(DIFFERENCES.assign(attention="mystery"), MEANS)
    with pytest.raises(InputError, match="accuracy_top1"):
        robustness_figure(DIFFERENCES.assign(metric="loss"), MEANS)
    with pytest.raises(InputError, match="corruption_error"):
        corruptions_figure(DIFFERENCES)
