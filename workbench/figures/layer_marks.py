"""Means by layer, each model's beside the others', over their null distribution."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from workbench.core.errors import InputError
from workbench.figures.grammar import Plot
from workbench.figures.levels import at_level
from workbench.figures.marks import Band, Line, Null

_NULL = ("null_mean", "null_low", "null_high")


def layer_marks_figure(rows: pd.DataFrame, metrics: Sequence[str]) -> go.Figure:
    """A panel per metric: the mean of each model by layer, and the 95 % band of its null distribution if there is one.

    Where the rows of single inputs (``single``) stand beside the means by layer, a band is the 95 % confidence
    interval over inputs; the null distribution is that of the means, which single inputs do not hold.

    Raises:
        InputError: there are no means by layer, or several of one model, layer and metric.
    """
    means = at_level(rows, "layer")
    if means.duplicated(["model", "checkpoint", "layer", "metric"]).any():
        raise InputError(
            "a layer has several means of one metric, as by several conventions; keep one for each layer"
        )
    single = rows[rows["input"].notna() & rows["layer"].notna()].assign(**dict.fromkeys(_NULL, np.nan))
    drawn = pd.concat([part.astype({"input": object}) for part in (single, means) if len(part)])
    drawn = drawn.assign(candidate=pd.NA, convention=pd.NA)  # which of them were chosen by the caller
    marks = (Null(), Band(over="input"), Line())
    return Plot(drawn).metric(*metrics).add(*marks).figure("page" if len(metrics) > 1 else "column")
