"""Spectra of attention against rank, and by layer, beside the null distribution."""

import numpy as np
import pandas as pd
import pytest

from tests.figures.drawn import bands, ends, key, lines, thin
from tests.figures.study import levels, study, titles
from workbench.core.errors import InputError
from workbench.figures import attention_rank_figure, attention_spectrum_figure
from workbench.figures.theme import GREY, NULL_BAND

NULL = {"null": "gaussian", "null_low": 0.0, "null_high": 1.0}


def spectra(model="bundled:digits-vit", falls=2.0):
    rows = []
    for rank in (1, 2, 3):
        value = falls ** (1 - rank)
        more = {"rank": rank, "null_mean": 0.9 ** (rank - 1), **NULL}
        inputs = (value, value * 0.5 if rank > 1 else value)
        rows += levels(value, inputs, metric="singular_value_relative", **more)
        null = {"null": "gaussian", "null_low": 0.5, "null_high": 0.9, "null_mean": 0.7, "rank": rank}
        rows += levels(1 - 0.1 / rank, [1 - 0.1 / rank] * 2, metric="explained_variance", **null)
    return study(*rows, model=model)


def by_layer(model="bundled:digits-vit", values=True):
    rows = []
    for metric, more in (
        ("effective_rank", {}),
        ("rank_90", {}),
        ("r_score_share", {"candidate": "e_scores"}),
        ("r_score_share", {"candidate": "head_out"}),
    ):
        rows += levels(2.0, layers=(3.0, 1.5), metric=metric, **more, null_mean=0.7, **NULL)
    for null, mean in (("gaussian", 0.25), ("permutation", 0.3)):
        if values:
            rows += levels(
                0.5,
                layers=(0.4, 0.6),
                metric="right_singular_share",
                **(NULL | {"null": null}),
                null_mean=mean,
            )
    return study(*rows, model=model)


def test_spectra_are_means_over_inputs_with_their_interquartile_range_and_null():
    fig = attention_spectrum_figure(pd.concat([spectra(), spectra("bundled:digits-primal", 10.0)]))
    assert titles(fig) == ["digits-vit", "digits-primal"]
    first = [trace for trace in fig.data if trace.xaxis == "x" and trace.x[0] is not None]
    (line,) = [trace for trace in lines(fig) if trace.xaxis == "x"]
    assert list(line.y) == [1, 0.375, 0.1875]  # of inputs 0.5 and 0.25, 0.25 and 0.125
    singles = [value for value in thin(fig)[0].y if value is not None]
    np.testing.assert_allclose(singles, [1, 0.5, 0.25, 1, 0.25, 0.125])
    (null,) = [trace for trace in first if trace.line.color == GREY]
    assert list(null.y) == pytest.approx([1, 0.9, 0.81])
    assert [axis.type for axis in fig.select_yaxes()] == ["log"] * 4
    assert {axis.type for axis in fig.select_xaxes()} == {"log"}
    left = [list(trace.y) for trace in lines(fig) if trace.yaxis == "y3"]
    np.testing.assert_allclose(left, [[0.1, 0.05, 0.1 / 3]])
    (below,) = [trace for trace in bands(fig, NULL_BAND) if trace.yaxis == "y3"]
    np.testing.assert_allclose(ends(below)[1:], [[0.1] * 3, [0.5] * 3])
    assert key(fig) == [
        "mean over 2 inputs",
        "each of 2 inputs",
        "null: random q and k (95 % range of one input)",
        "to 0 or less (log axis)",
    ]


def test_a_spectrum_without_a_null_draws_none():
    bare = spectra().assign(null=None, null_mean=None, null_low=None, null_high=None)
    fig = attention_spectrum_figure(bare)
    assert not bands(fig, NULL_BAND)
    assert not any("null" in words for words in key(fig))


def test_layers_have_a_row_of_panels_each_and_a_model_without_values_says_so():
    both = pd.concat([by_layer("bundled:digits-primal", values=False), by_layer()])
    fig = attention_rank_figure(both)
    assert titles(fig) == ["digits-primal", "digits-vit", "no data"]
    rows = [axis.title.text for axis in fig.select_yaxes() if axis.title.text]
    assert len(rows) == 3
    assert (rows[0], rows[2]) == ("Effective rank<br>(log)", "V in span(H<sub>r</sub>)<br>(share)")
    drawn = lines(fig)
    assert len(drawn) == 3 + 2
    assert all(list(trace.x) == [0, 1] for trace in drawn)
    # two null distributions make two rows of a value, which is drawn once; the null is that of permuted tokens
    assert list(drawn[-1].y) == [0.4, 0.6]
    nulls = [trace for trace in fig.data if trace.line.color == GREY and trace.x[0] is not None]
    assert list(nulls[-1].y) == [0.3, 0.3]
    assert sum("null: another in each row" in words for words in key(fig)) == 1


def test_single_heads_are_refused():
    with pytest.raises(InputError, match="without per_head"):
        attention_spectrum_figure(spectra().assign(layer=0, head=1))
    with pytest.raises(InputError, match="no values"):
        attention_rank_figure(spectra())
