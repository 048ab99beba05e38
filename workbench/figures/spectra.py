"""Eigenvalue spectra of the centred Gram matrix."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from workbench.core.errors import InputError
from workbench.core.options import checked
from workbench.figures.frames import rows_of, series_labels
from workbench.figures.grammar import Plot
from workbench.figures.marks import Band, Dots, Line, Null
from workbench.figures.multipanel import multipanel
from workbench.figures.specification import SERIES
from workbench.figures.theme import even_choice

_HOLDING = "rank_90"
_HALF = 200.0  # px: the height of one of two rows of panels
_MOST_LAYERS = 3  # lines in a panel: more hide each other


@checked
def spectrum_figure(frame: pd.DataFrame) -> go.Figure:
    """Eigenvalue against rank on log axes: a line for the first, the middle and the last layer, named at its end.

    One panel per model and checkpoint. A line is the median over inputs and heads, between its quartiles (see `Band`).
    A frame without rows per input brings these itself. Below, where the frame holds them, how many eigenvalues
    hold 90 % of the spectrum, by layer: a dot per head, its mean over inputs over that of its own null distribution,
    since keys of large norm have few such eigenvalues. Without rows per head, or without a null, it is the mean over
    heads with its 95 % CI over inputs.

    An eigenvalue at or below rounding (N ε λ₁ in float64, where N is the number of ranks) is not known to be
    positive: where a quarter of a rank's values are, it is not drawn, and the title says of how many that is so.

    Args:
        frame: rows of ``eigenvalue`` with columns layer, rank and value.

    Raises:
        InputError: no such rows, or a missing column.
    """
    rows = rows_of(frame, "eigenvalue", needs=("layer", "rank"))
    rows = rows.assign(series=series_labels(rows))
    parts, titles = [], {}
    standardized = bool(rows[SERIES].str.contains(" (per-", regex=False).any())
    for name, part in rows.groupby(SERIES, sort=False):
        layers = sorted(part["layer"].unique())
        chosen = [layers[index] for index in even_choice(len(layers), _MOST_LAYERS)]
        reliable, lost, points = _above_rounding(part[part["layer"].isin(chosen)])
        parts.append(reliable)
        title, _, standard = str(name).partition(" (per-")
        if standardized:
            title += "<br>standardised keys" if standard else "<br>keys as they are"
        titles[name] = title + (f"<br>{lost} of {points} points below round-off" if lost else "")
    more = [title.partition("<br>")[2] for title in titles.values()]
    rank = "Rank" if len(more) > 1 or not more[0] else f"Rank ({more[0]})"  # one panel has no title
    plot = Plot(pd.concat(parts), x="rank", color="layer", panel=SERIES, names=titles).metric("eigenvalue")
    holding = frame[frame["metric"] == _HOLDING]
    heads = bool(holding[["input", "layer", "head", "null_mean"]].notna().all(axis=1).any())
    holding = _over_null(holding) if heads else holding
    single = bool(holding["layer"].isna().all())
    panel = "" if single else "a: "  # which of two panels an entry of the key is about
    median = Line("median", markers=False, words=f"{panel}median" if panel else "")
    plot = plot.add(Band(quantiles=(25, 75), words=f"{panel}IQR"), median)
    fig = plot.scale(x_log=2, x_title=rank, y_log=True, x_free=True).figure(
        "page", None if single else _HALF, labels="ends"
    )
    if single:
        return fig
    names = {name: title.partition("<br>")[0] if len(more) == 1 else title for name, title in titles.items()}
    held = "Number holding 90 %,<br>relative to null" if heads else "Eigenvalues that<br>hold 90 %"
    plot = Plot(holding, panel=SERIES, names=names | {_HOLDING: held})
    plot = plot.metric(_HOLDING).scale(x_free=True, y_free=True, y_zero=True)
    if heads:
        plot = plot.add(Null(bars=True), Dots())
    else:
        plot = plot.add(
            Null(), Band(words="b: 95 % CI over inputs"), Line(words="b: mean over inputs and heads")
        )
    return multipanel([fig, plot.figure("page", _HALF)], 1)


def _over_null(holding: pd.DataFrame) -> pd.DataFrame:
    """Return single heads over the mean of their null distribution, each head of a layer aside of the others."""
    single = holding[holding[["input", "layer", "head", "null_mean"]].notna().all(axis=1)].copy()
    level = single.groupby(["model", "layer", "head"])["null_mean"].transform("mean")
    ends = ["value", "null_mean", "null_low", "null_high"]
    single[ends] = single[ends].div(level, axis=0)
    count = single.groupby("model")["head"].transform("max") + 1
    return single.assign(layer=single["layer"] + 0.8 * ((single["head"] + 0.5) / count - 0.5))


def _above_rounding(part: pd.DataFrame) -> tuple[pd.DataFrame, int, int]:
    """The rows of a panel whose lower quartile is above rounding, how many ranks of layers are not, and of how many."""
    floor, places = round_off(part), ["layer", "rank"]
    single = part[part["statistic"].isna() | (part["statistic"] == "q25")] if "statistic" in part else part
    low = single.groupby(places)["value"].quantile(0.25)
    reliable = low[low > floor]
    kept = part.set_index(places).index.isin(reliable.index)
    return part[kept].assign(value=part["value"].clip(lower=floor)), len(low) - len(reliable), len(low)


def round_off(part: pd.DataFrame) -> float:
    """Below this an eigenvalue is rounding error of the largest: N ε λ₁."""
    largest = float(part["value"].max())
    if not np.isfinite(largest) or largest <= 0:
        raise InputError("no eigenvalue is positive and finite: there is nothing to draw on a log scale")
    return largest * float(np.finfo(np.float64).eps) * max(int(part["rank"].max()), 1)
