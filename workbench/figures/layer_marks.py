"""Means by layer, each model's beside the others', over their null distribution."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go

from workbench.figures.grammar import Plot
from workbench.figures.marks import Line, Null


def layer_marks_figure(rows: pd.DataFrame, metrics: Sequence[str]) -> go.Figure:
    """A panel per metric: the mean of each model by layer, and the 95 % band of its null distribution if there is one.

    ``rows`` are those of one level (`workbench.figures.levels.at_level`), one for each model, layer and metric.
    """
    plain = rows.assign(candidate=pd.NA, convention=pd.NA)  # which of them were chosen by the caller
    return Plot(plain).metric(*metrics).add(Null(), Line()).figure("page" if len(metrics) > 1 else "column")
