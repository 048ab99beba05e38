"""How alike tokens become with depth."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from workbench.figures.frames import rows_of
from workbench.figures.grammar import Plot
from workbench.figures.marks import Band, Line, Null

SITES = {"input": "attention's input", "resid_mid": "after attention", "resid_post": "after the block"}
# What a row of panels shows: metric, axis, standardize.
_VARIANTS = {
    "Mean cosine": ("token_cosine", None, None),
    "Mean cosine without special tokens": ("token_cosine", "without special tokens", None),
    "Mean cosine without mean token": ("token_cosine", None, "without mean"),
    "Effective rank": ("effective_rank", None, None),
}
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
    """Mean cosine and effective rank of tokens by layer, at the attention's input, after attention and after the block.

    A column per site; rows for the mean cosine of all tokens, without special tokens and without the mean token, and
    for the effective rank: those that the frame holds. A line per model with the interquartile range of its inputs.

    Args:
        frame: the result of ``token-similarity`` with ``sites`` "all", of one or several models.

    Raises:
        InputError: the frame holds no cosines by site.
    """
    rows = rows_of(frame, ("token_cosine", "effective_rank"), needs=("layer", "candidate"))
    keys = rows[["metric", "axis", "standardize"]].astype(object)
    found = list(keys.where(keys.notna(), None).itertuples(index=False, name=None))
    words = {key: title for title, key in _VARIANTS.items()}
    rows = rows.assign(metric=[words.get(key) for key in found], axis=pd.NA, standardize=pd.NA)
    shown = [title for title in _VARIANTS if (rows["metric"] == title).any()]
    return Plot(rows, panel="candidate", names=SITES).metric(*shown).add(*_MARKS).figure("page")
