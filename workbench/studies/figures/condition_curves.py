"""Models looked into under conditions, as inputs are and changed: what is measured by layer, a line for each."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from workbench.core.options import checked
from workbench.figures.grammar import Plot
from workbench.figures.marks import Band, Line, Null

_MARKS = Null(), Band(ci=95, over="input"), Line("mean")


@checked
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
