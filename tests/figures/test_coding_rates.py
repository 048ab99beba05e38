"""Coding rates against layer."""

import itertools

import pandas as pd
import pytest

from tests.figures.drawn import key, lines, thin
from workbench.core.errors import InputError
from workbench.figures import coding_rate_figure

SITES = ("input", "resid_mid", "resid_post")
METRICS = ("coding_rate_variational", "coding_rate", "coding_rate_reduction", "coding_rate_compression")


def rates(model="a", conventions=("as_published", "as_published", "ours"), shift=0.0):
    """R_c^var of layer l, input i: 4 + l + i before attention, half of it after, three times i after the block."""
    rows = []
    for (layer, convention), i, metric in itertools.product(enumerate(conventions), range(5), METRICS):
        before = 4 + layer + i
        for site, value in zip(SITES, (before, before / 2, 3 * i + shift), strict=True):
            rows.append(
                {"model": model, "checkpoint": None, "standardize": None, "input": str(i), "layer": layer,
                 "convention": convention, "candidate": site, "metric": metric, "value": value}
            )  # fmt: skip
    frame = pd.DataFrame(rows)
    bound = frame[frame["metric"] == "coding_rate_variational"].assign(standardize="orthonormal", value=1e6)
    return pd.concat([frame, bound])


def test_lines_are_means_over_inputs_by_model_and_convention():
    fig = coding_rate_figure({"training": rates(), "validation": rates(shift=1)})
    drawn = lines(fig)
    assert key(fig)[:2] == ["training: mean over 5 inputs", "validation: mean over 5 inputs"]
    outputs, change = (next(trace for trace in drawn if trace.yaxis == axis) for axis in ("y", "y2"))
    assert (list(outputs.x), list(outputs.y)) == ([0, 1], [6, 6])
    assert list(change.y) == [-50, -50]
    assert {tuple(trace.x) for trace in drawn} == {
        (0, 1)
    }  # not of the layer whose subspaces are of another kind
    validation = [trace for trace in drawn if trace.line.dash == "dash"]
    assert list(validation[0].y) == [7, 7]
    assert max(max(trace.y) for trace in drawn) < 1e3  # the rows of orthonormal subspaces are not drawn
    assert not [trace for trace in fig.data if trace.fill == "toself"]
    assert [value for value in thin(fig)[0].y if value is not None] == [0, 0, 3, 3, 6, 6, 9, 9, 12, 12]
    assert "each of 5 inputs, training" in key(fig)


def test_a_change_that_is_the_same_for_all_inputs_has_no_band():
    fig = coding_rate_figure({"validation": rates(conventions=("as_published",))})
    assert len(thin(fig)) == 3


def test_a_frame_without_rates_is_refused():
    with pytest.raises(InputError, match="no values of coding_rate_variational"):
        coding_rate_figure({"validation": rates().assign(metric="token_cosine")})
