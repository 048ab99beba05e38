"""Sensitivity of random logits against N, and of models by layer."""

import pandas as pd
import pytest

from tests.figures.study import levels, named, study, titles
from workbench.core.errors import InputError
from workbench.figures import softmax_sensitivity_figure

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


def test_sampling_stands_above_and_models_below():
    fig = softmax_sensitivity_figure(
        sampled(), FIT, pd.concat([measured(), measured("bundled:prose-softmax")])
    )
    assert titles(fig)[0] == "Random logits: Lipschitz constant"
    (pairs,) = named(fig, "pairs")
    assert list(pairs.y) == pytest.approx([0.2, 0.04, 0.004])  # of the first spread alone
    (curve,) = named(fig, "fit")
    assert list(zip(curve.x, curve.y, strict=True)) == FIT
    ends = {(trace.name, trace.y[0]) for trace in named(fig, "spread")}
    assert ends == {("spread 1", 0.49), ("spread 10", 0.4), ("spread 1", 0.3), ("spread 10", 0.3)}
    lines = {shape.y0 for shape in fig.layout.shapes}
    assert lines == {0.5, 1.0}
    assert [list(trace.y) for trace in named(fig, "digits-vit")] == [[0.1, 0.3], [0.4, 0.5], [0.2, 0.25]]
    colours = {
        trace.line.color for name in ("spread 1", "digits-vit", "prose-softmax") for trace in named(fig, name)
    }
    assert len(colours) == 4  # spread 1 and spread 10, and each model its own
    assert fig.layout.xaxis.type == "log"
    assert len(named(fig, "null distribution")) == 1


def test_random_logits_and_models_have_a_legend_each():
    fig = softmax_sensitivity_figure(
        sampled(), FIT, pd.concat([measured(), measured("bundled:prose-softmax")])
    )
    legends = {}
    for trace in fig.data:
        if trace.name and trace.showlegend is not False:
            legends.setdefault(trace.legend or "legend", []).append(trace.name)
    assert legends == {
        "legend": ["pairs, spread 1", "fit a/√N + b", "spread 1", "spread 10"],
        "legend2": ["digits-vit", "prose-softmax", "null distribution"],
    }
    assert (fig.layout.legend.title.text.strip(), fig.layout.legend2.title.text.strip()) == (
        "Random logits:",
        "Models:",
    )
    crowd = pd.concat([measured(f"bundled:a-model-with-a-long-name-{number}") for number in range(6)])
    assert softmax_sensitivity_figure(sampled(), FIT, crowd).layout.margin.t > fig.layout.margin.t


def test_a_frame_of_something_else_is_refused():
    with pytest.raises(InputError, match="no column spread"):
        softmax_sensitivity_figure(sampled().drop(columns="spread"), FIT, measured())
    with pytest.raises(InputError, match="has no rows"):
        softmax_sensitivity_figure(sampled().iloc[:0], FIT, measured())
    with pytest.raises(InputError, match="no values of"):
        softmax_sensitivity_figure(sampled(), FIT, study({"metric": "rank_90", "value": 1.0}))
