"""Differences from baselines as tables: numbers in cells, grey where not significant."""

import numpy as np
import pandas as pd
import pytest

from workbench.core.errors import InputError, UnknownName
from workbench.studies.figures import corruptions_figure, robustness_figure

BASELINE = "bundled:digits-vit"


def row(attention, value, reach, *, seeds=7, protocol="pgd", kind=None, metric="accuracy_top1", **more):
    """The mean over seeds with its interval, and one of these seeds, which no table shows."""
    low, high = (value - reach, value + reach) if seeds > 1 else (np.nan, np.nan)
    about = {"model": f"bundled:digits-{attention}", "attention": attention, "protocol": protocol, "kind": kind,
             "metric": metric, "baseline": BASELINE, "seeds": seeds} | more  # fmt: skip
    mean = about | {"value": value, "low": low, "high": high, "training_seed": pd.NA}
    return [mean, about | {"value": 99.0, "low": np.nan, "high": np.nan, "training_seed": 0}]


DIFFERENCES = pd.DataFrame(
    [
        *row("tssa", -0.127, 0.05),
        *row("tssa", 0.02, 0.05, protocol="noise"),
        *row("primal", 0.3, 0.0, seeds=1),
        *row("bilateral", 0.01, 0.05, protocol="clean"),
        *row("bilateral", 0.04, 0.01, protocol="ood", kind="noise", metric="aupr"),
    ]
)
MEANS = pd.DataFrame(
    [
        *row("softmax", 0.62, 0.1, model=BASELINE, baseline=None),
        *row("mssa", 0.5, 0.1, model="bundled:digits-mssa"),  # no baseline of these
    ]
)


def cells(fig):
    """Row and column of each number, in words, to its text."""
    x, y = fig.layout.xaxis.ticktext, fig.layout.yaxis.ticktext
    return {(y[note.y], x[note.x]): note for note in fig.layout.annotations if isinstance(note.y, int)}


def test_a_cell_has_the_difference_in_points_and_a_colour_where_it_is_significant():
    fig = robustness_figure(DIFFERENCES, MEANS)
    assert list(fig.layout.xaxis.ticktext) == ["Clean", "PGD", "Noise", "OOD: noise"]
    assert list(fig.layout.yaxis.ticktext) == ["softmax (%)", "bilateral", "token statistics", "Primal"]
    assert {place: note.text for place, note in cells(fig).items()} == {
        ("softmax (%)", "PGD"): "62",
        ("token statistics", "PGD"): "−13",
        ("token statistics", "Noise"): "+2.0",
        ("Primal", "PGD"): "+30",
        ("bilateral", "Clean"): "+1.0",
        ("bilateral", "OOD: noise"): "+4.0",
    }
    coloured, plain = fig.data[0].z, fig.data[1].z
    assert coloured[2][1] == pytest.approx(-12.7)
    assert coloured[1][3] == pytest.approx(4)
    assert np.isfinite(np.array(coloured, dtype=float)).sum() == 2
    assert (plain[2][2], plain[1][0]) == (0, 0)
    assert np.isfinite(np.array(plain, dtype=float)).sum() == 2  # neither one seed nor the baseline's own
    assert cells(fig)["Primal", "PGD"].font.color != cells(fig)["token statistics", "Noise"].font.color


def test_the_change_of_an_error_is_in_per_cent_with_the_mean_over_kinds_last():
    ratios = [
        *row("rpc-sym", 1.2, 0.1, kind="gaussian-noise", metric="corruption_error"),
        *row("rpc-sym", 0.9, 0.2, kind="jpeg-compression", metric="corruption_error"),
        *row("rpc-sym", 1.05, 0.1, metric="corruption_error"),
        *row("tssa", np.inf, 0.1, kind="jpeg-compression", metric="corruption_error"),
    ]
    fig = corruptions_figure(pd.DataFrame(ratios))
    assert list(fig.layout.xaxis.ticktext) == ["Gaussian noise", "JPEG compression", "mean over kinds"]
    assert [note.text for note in cells(fig).values()] == ["+20", "−10", "+5.0"]
    assert fig.data[0].z[0][0] == pytest.approx(20)
    assert list(fig.data[1].z[0][1:]) == [0, 0]


def test_frames_without_such_numbers_or_with_an_unknown_variant_are_refused():
    with pytest.raises(UnknownName, match="look"):
        robustness_figure(DIFFERENCES.assign(attention="mystery"), MEANS)
    with pytest.raises(InputError, match="accuracy_top1"):
        robustness_figure(DIFFERENCES.assign(metric="loss"), MEANS)
    with pytest.raises(InputError, match="corruption_error"):
        corruptions_figure(DIFFERENCES)
