"""Spectra of attention against rank, and by layer, beside the null distribution."""

import pandas as pd
import pytest

from tests.figures.study import levels, named, study, titles
from workbench.core.errors import InputError
from workbench.figures import attention_rank_figure, attention_spectrum_figure

NULL = {"null": "gaussian", "null_low": 0.0, "null_high": 1.0}


def spectra(model="bundled:digits-vit", falls=2.0):
    rows = []
    for rank in (1, 2, 3):
        value = falls ** (1 - rank)
        more = {"rank": rank, "null_mean": 0.9 ** (rank - 1), **NULL}
        inputs = (value, value * 0.5 if rank > 1 else value)
        rows += levels(value, inputs, metric="singular_value_relative", **more)
        rows += levels(1 - 0.1 / rank, (1 - 0.1 / rank,), metric="explained_variance", **more)
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
        for metric, more in (("right_singular_share", {}), ("right_singular_angle", {"statistic": "mean"})):
            if values:
                rows += levels(
                    0.5, layers=(0.4, 0.6), metric=metric, **more, **(NULL | {"null": null}), null_mean=mean
                )
    return study(*rows, model=model)


def test_spectra_are_means_over_inputs_with_their_middle_half_and_chance():
    fig = attention_spectrum_figure(pd.concat([spectra(), spectra("bundled:digits-primal", 10.0)]))
    lines = named(fig, "digits-vit")
    assert len(lines) == 2
    assert list(lines[0].y) == [1, 0.375, 0.1875]  # of inputs 0.5 and 0.25, 0.25 and 0.125
    bands = [trace for trace in fig.data if trace.fill == "toself"]
    assert bands[0].y[:3][::-1] != bands[0].y[3:]
    assert list(bands[0].y) == [1, 0.4375, 0.21875, 0.15625, 0.3125, 1]
    thin = [trace for trace in fig.data if trace.line.width == 0.75 and trace.x[0] is not None]
    assert list(thin[0].y) == pytest.approx([1, 0.9, 0.81])
    assert thin[0].line.color == lines[0].line.color
    assert (fig.layout.yaxis.type, fig.layout.xaxis.type, fig.layout.yaxis2.type) == ("log", "log", None)
    assert len(named(fig, "null distribution")) == 1


def test_a_spectrum_without_chance_has_no_thin_line():
    bare = spectra().assign(null=None, null_mean=None, null_low=None, null_high=None)
    fig = attention_spectrum_figure(bare)
    assert not [trace for trace in fig.data if trace.line.width == 0.75 and trace.x[0] is not None]


def test_layers_have_their_own_panels_and_a_model_without_values_has_none_for_them():
    both = pd.concat([by_layer("bundled:digits-primal", values=False), by_layer()])
    fig = attention_rank_figure(both)
    assert titles(fig)[:2] == ["Effective rank", "Rank of 90 % of the variance"]
    assert len(named(fig, "digits-vit")) == 6
    assert len(named(fig, "digits-primal")) == 4
    for trace in named(fig, "digits-vit"):
        assert list(trace.x) == [0, 1]
    # two null distributions make two rows of a value, which is drawn once; the null distribution is the one of
    # permuted tokens
    last = named(fig, "digits-vit")[-1]
    assert list(last.y) == [0.4, 0.6]
    thin = [trace for trace in fig.data if trace.line.width == 0.75 and trace.x[0] is not None]
    assert list(thin[-1].y) == [0.3, 0.3]
    # a model keeps its colour where another has no line
    assert len({trace.line.color for trace in named(fig, "digits-vit")}) == 1


def test_single_heads_are_refused():
    with pytest.raises(InputError, match="without per_head"):
        attention_spectrum_figure(spectra().assign(layer=0, head=1))
    with pytest.raises(InputError, match="no values"):
        attention_rank_figure(spectra())
