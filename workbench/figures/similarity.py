"""How alike tokens become with depth."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from workbench.figures.estimates import titled
from workbench.figures.frames import rows_of
from workbench.figures.grammar import Plot
from workbench.figures.marks import Band, Line, Null, Rule

SITES = {"input": "attention's input", "resid_mid": "after attention", "resid_post": "after the block"}
_WITHOUT = "Mean cosine without mean token"
# Title of a row of panels, and the rows meant.
_VARIANTS: dict[str, dict[str, str | None]] = {
    "Mean cosine": {"metric": "token_cosine", "axis": None, "standardize": None},
    _WITHOUT: {
        "metric": "token_cosine", "axis": None, "standardize": "without mean",
    },
}  # fmt: skip


def similarity_depth_figure(frame: pd.DataFrame, relative: bool = False) -> go.Figure:
    """Mean pairwise cosine of tokens against layer: a line per model, between quartiles of its inputs (see `Band`).

    Of a frame of several sites that after the block is drawn, with all its tokens; the null distribution in grey.

    Args:
        frame: rows of ``token_cosine`` with columns layer and value, one per input.
        relative: depth as a share of the model's own layers, to compare models of different depth.

    Raises:
        InputError: no such rows, or a missing column.
    """
    plot = Plot(frame, x="depth" if relative else "layer").metric("token_cosine")
    plot = plot.where(axis=None, standardize=None)
    return plot.add(Null(), Band(quantiles=(25, 75)), Line()).figure()


def similarity_sites_figure(frame: pd.DataFrame, tokens: int | None = None) -> go.Figure:
    """Mean cosine of tokens by layer, at the attention's input, after attention and after the block.

    A column per site; a row for the tokens as they are and one without the mean token: those that the frame holds. A
    line per model with the 95 % confidence interval over its inputs; the null distribution in grey where there is one.

    Args:
        frame: the result of ``token-similarity`` with ``sites`` "all", of one or several models.
        tokens: N of an input, for the level −1/(N − 1) of tokens of one length that share nothing but their mean.

    Raises:
        InputError: the frame holds no cosines by site.
    """
    rows = titled(rows_of(frame, "token_cosine", needs=("layer", "candidate")), _VARIANTS)
    shown = dict.fromkeys(rows["metric"])
    level, name = (-1 / (tokens - 1), f"−1/(N − 1), N = {tokens}") if tokens else (float("nan"), "")
    rows = rows.assign(level=rows["metric"].eq(_WITHOUT).map({True: level, False: float("nan")}))
    plot = Plot(rows, panel="candidate", names=SITES).metric(*shown).scale(y_zero={"Mean cosine": True})
    return plot.add(Null(), Band(), Line(), Rule(name=name, column="level")).figure("page")
