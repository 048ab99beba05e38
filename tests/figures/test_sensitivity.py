"""Sensitivity of random logits against N, and of models by layer."""

import pandas as pd
import pytest

from tests.figures.drawn import bands, key, lines
from tests.figures.study import levels, named, study, titles
from workbench.core.errors import InputError
from workbench.figures import sampled_sensitivity_figure, softmax_sensitivity_figure
from workbench.figures.theme import GREY, NULL_BAND

TOKENS, SPREADS = (2, 10, 100), (1.0, 10.0)
FIT = [(2, 0.5), (10, 0.2), (100, 0.05)]


def sampled():
    rows = []
    for spread in SPREADS:
        for tokens in TOKENS:
            place = {"tokens": tokens, "spread": spread}
            rows += [
                {"metric": "softmax_lipschitz", "candidate": "pairs", "value": 0.4 / tokens, **place},
                {"metric": "softmax_lipschitz", "candidate": "local", "value": 0.5 - spread / 100, **place},
                {"metric": "softmax_perturbation", "value": 0.3, "low": 0.2, "high": 0.4, **place},
            ]
    return pd.DataFrame(rows)


def measured(model="bundled:digits-vit"):
    null = {"null": "gaussian", "null_mean": 0.1, "null_low": 0.0, "null_high": 0.2}
    rows = [
        *levels(0.2, layers=(0.1, 0.3), metric="softmax_lipschitz", statistic="mean", **null),
        *levels(0.4, layers=(0.4, 0.5), metric="softmax_lipschitz", statistic="max", **null),
        *levels(0.2, layers=(0.2, 0.25), metric="softmax_perturbation", **null),
    ]
    return study(*rows, model=model)


def test_random_logits_have_a_line_for_each_spread_beside_the_constants():
    fig = sampled_sensitivity_figure(sampled(), FIT)
    (pairs,) = named(fig, "largest slope between two of the vectors, logits of SD 1")
    assert list(pairs.y) == pytest.approx([0.2, 0.04, 0.004])  # of the first spread alone
    (curve,) = named(fig, "fit")
    assert list(zip(curve.x, curve.y, strict=True)) == FIT
    left, right = ([trace.y[0] for trace in lines(fig) if trace.xaxis == axis] for axis in ("x", "x2"))
    assert left == [0.49, 0.4, 0.5]
    assert right == [0.3, 0.3]
    levels = {
        trace.y[0]: trace.xaxis for trace in fig.data if trace.line.color == GREY and trace.x[0] is not None
    }
    assert levels == {0.5: "x"}
    assert {axis.type for axis in fig.select_xaxes()} == {"log"}
    assert (fig.layout.yaxis.type, fig.layout.yaxis2.type) == ("log", None)
    assert (
        len([trace for trace in fig.data if trace.fill and trace.x[0] is not None]) == 2
    )  # of perturbations alone


def test_models_stand_side_by_side_each_over_its_null():
    fig = softmax_sensitivity_figure(pd.concat([measured(), measured("bundled:prose-softmax")]))
    assert titles(fig) == ["digits-vit", "prose-softmax"]
    drawn = [list(trace.y) for trace in lines(fig)]
    assert drawn == [[0.1, 0.3], [0.1, 0.3], [0.4, 0.5], [0.4, 0.5], [0.2, 0.25], [0.2, 0.25]]
    assert len(bands(fig, NULL_BAND)) == 6
    assert fig.layout.yaxis.range == fig.layout.yaxis2.range
    assert key(fig)[-1] == "null: Gaussian q and k (95 % range of the mean)"
    constants = [trace for trace in fig.data if trace.x[0] is not None and list(trace.y) == [0.5, 0.5]]
    assert len(constants) == 4  # not with the perturbation


def test_a_frame_of_something_else_is_refused():
    with pytest.raises(InputError, match="no column spread"):
        sampled_sensitivity_figure(sampled().drop(columns="spread"), FIT)
    with pytest.raises(InputError, match="has no rows"):
        sampled_sensitivity_figure(sampled().iloc[:0], FIT)
    with pytest.raises(InputError, match="no values of"):
        softmax_sensitivity_figure(study({"metric": "rank_90", "value": 1.0}))
