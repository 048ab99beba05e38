"""Coding rates against layer."""

import itertools
import re

import pandas as pd
import pytest

from tests.figures.drawn import lines
from workbench.core.errors import InputError
from workbench.figures import coding_rate_figure
from workbench.figures.theme import WIDTHS

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


def test_a_line_is_the_mean_change_over_inputs_in_layers_of_one_convention():
    fig = coding_rate_figure(rates())
    drawn = [trace for trace in lines(fig) if trace.name == "a"]
    assert [(list(trace.x), list(trace.y)) for trace in drawn] == [([0, 1], [-50, -50])]
    assert any(trace.y == (0, 0) for trace in fig.data if trace.mode == "lines")  # no change


def test_every_model_has_a_line_named_at_its_end():
    frame = pd.concat([rates(), rates("b")])
    fig = coding_rate_figure(frame)
    words = [re.sub("<.*?>", "", note.text) for note in fig.layout.annotations]
    assert words == ["a", "b"]
    assert fig.layout.width == WIDTHS["column"]


def test_a_frame_without_rates_is_refused():
    with pytest.raises(InputError, match="no values of coding_rate_variational"):
        coding_rate_figure(rates().assign(metric="token_cosine"))
