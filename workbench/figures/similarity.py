"""How alike tokens become with depth."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from workbench.figures.estimates import titled
from workbench.figures.frames import rows_of
from workbench.figures.grammar import Plot
from workbench.figures.marks import Band, Line, Null

SITES = {"input": "attention's input", "resid_mid": "after attention", "resid_post": "after the block"}
# Title of a row of panels, and the rows meant.
_VARIANTS: dict[str, dict[str, str | None]] = {
    "Mean cosine": {"metric": "token_cosine", "axis": None, "standardize": None},
    "Mean cosine without mean token": {
        "metric": "token_cosine", "axis": None, "standardize": "without mean",
    },
}  # fmt: skip
_MARKS = (Null(), Band(quantiles=(25, 75)), Line())


def similarity_depth_figure(
    frame: pd.DataFrame, metric: str = "token_cosine", relative: bool = False
) -> go.Figure:
    """Mean pairwise cosine of tokens against layer: a line per model, a band for the interquartile range of the inputs.

    Of a frame of several sites that after the block is drawn, with all its tokens; the null distribution in grey.

    Args:
        frame: rows of `metric` with columns layer and value, one per input.
        metric: any metric that has layers and no ranks.
        relative: depth as a share of the model's own layers, to compare models of different depth.

    Raises:
        InputError: no such rows, or a missing column.
    """
    plot = Plot(frame, x="depth" if relative else "layer").metric(metric).add(*_MARKS)
    return plot.where(axis=None, standardize=None).figure()


def similarity_sites_figure(frame: pd.DataFrame) -> go.Figure:
    """Mean cosine of tokens by layer, at the attention's input, after attention and after the block.

    A column per site; a row for the tokens as they are and one without the mean token: those that the frame holds. A
    line per model with the 95 % confidence interval over its inputs.

    Args:
        frame: the result of ``token-similarity`` with ``sites`` "all", of one or several models.

    Raises:
        InputError: the frame holds no cosines by site.
    """
    rows = titled(rows_of(frame, "token_cosine", needs=("layer", "candidate")), _VARIANTS)
    shown = dict.fromkeys(rows["metric"])
    plot = Plot(rows, panel="candidate", names=SITES).metric(*shown).scale(y_zero={"Mean cosine": True})
    return plot.add(Band(), Line()).figure("page")
