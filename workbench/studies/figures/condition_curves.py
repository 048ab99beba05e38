"""Models looked into under conditions, as inputs are and changed: what is measured by layer, a line for each."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from workbench.figures.estimates import null_of_means
from workbench.figures.grammar import Plot
from workbench.figures.marks import Band, Line, Null
from workbench.figures.words import variant_words

_MARKS = Null(), Band(ci=95, over="input"), Line("mean")


def conditions_figure(frame: pd.DataFrame, *metrics: str) -> go.Figure:
    """Metrics by layer, a line for each condition: mean over inputs with its 95 % CI, over the null distribution.

    A panel per attention, a row of them per metric.

    Args:
        frame: a result frame with columns ``attention`` and ``condition``: the result of
            `workbench.studies.evaluation.conditions.under_conditions` or its like.
        metrics: some of its metrics.

    Raises:
        InputError: no such rows.
    """
    plot = Plot(frame, color="condition", panel="attention").metric(*metrics).add(*_MARKS)
    return plot.figure("page", columns=3 if len(metrics) == 1 else None)


def swapped_share_figure(frame: pd.DataFrame) -> go.Figure:
    """The share of attention on swapped words by layer, a line for each mechanism, over the null of the mean.

    Args:
        frame: the result of `workbench.studies.evaluation.embedded_passages.attention_on_swapped`.

    Raises:
        InputError: no such rows.
    """
    names = {name: variant_words(name) for name in frame["mechanism"].unique()}
    names = {"swapped_share": "Attention on swapped words", **names}
    plot = Plot(null_of_means(frame), color="mechanism", names=names)
    return plot.metric("swapped_share").add(*_MARKS).figure("column")
