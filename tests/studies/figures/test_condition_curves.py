"""Conditions beside each other: their means over inputs, a panel per attention, and the null distribution of a mean."""

import numpy as np
import pandas as pd
import pytest

from tests.figures.drawn import bands, ends, key, lines, said
from workbench.core.errors import InputError
from workbench.figures.estimates import null_of_means
from workbench.figures.theme import NULL_BAND
from workbench.frames.estimate import with_means
from workbench.frames.results import make_frame
from workbench.studies.figures import conditions_figure

INPUTS, LAYERS, HEADS = ["a", "b", "c"], [0, 1, 2], [0, 1]
ATTENTIONS = ("softmax-sym", "rpc-sym")


def measured(metric, conditions=("clean", "changed"), attentions=ATTENTIONS):
    """Values that differ by input, layer, head, condition and attention, each with a null of its own."""
    draw, frames = np.random.default_rng(0), []
    for condition in conditions:
        for attention in attentions:
            values = draw.uniform(0.2, 0.8, (len(INPUTS), len(LAYERS), len(HEADS)))
            index = {"input": INPUTS, "layer": LAYERS, "head": HEADS}
            frames.append(
                make_frame(values, metric, index, model="m", null="permutation").assign(
                    condition=condition, attention=attention
                )
            )
    frame = pd.concat(frames, ignore_index=True)
    return frame.assign(null_mean=0.1, null_low=0.06, null_high=0.14)


def test_a_condition_is_a_line_of_means_in_the_panel_of_its_attention():
    frame = measured("attention_entropy_share").assign(
        null=None, null_mean=np.nan, null_low=np.nan, null_high=np.nan
    )
    fig = conditions_figure(frame, "attention_entropy_share")
    means = frame.groupby(["attention", "condition", "layer"])["value"].mean()
    expected = [
        means[attention, condition].tolist() for attention in ATTENTIONS for condition in ("clean", "changed")
    ]
    drawn = [list(trace.y) for trace in lines(fig)]
    assert sorted(drawn) == [pytest.approx(own) for own in sorted(expected)]
    assert {"clean", "changed"} <= {*key(fig)}
    assert "symmetric RPC" in said(fig)
    with pytest.raises(InputError):
        conditions_figure(frame, "token_cosine")


def test_the_null_of_segments_is_that_of_the_mean():
    frame = measured("pattern_segment", ("own segments", "another image's segments"))
    means = null_of_means(with_means(frame, ["attention", "condition", "layer"]))
    fig = conditions_figure(means, "pattern_segment")
    means = frame.groupby(["attention", "condition", "layer"])["value"].mean()
    shown = {round(float(value), 12) for trace in lines(fig) for value in trace.y}
    assert shown == {round(float(value), 12) for value in means}
    _, low, high = ends(bands(fig, NULL_BAND)[0])
    reach = 0.04 / np.sqrt(len(INPUTS) * len(HEADS))
    assert low == pytest.approx(0.1 - reach)
    assert high == pytest.approx(0.1 + reach)
