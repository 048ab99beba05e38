"""Attention beside image filters: how much of it fitted kernels explain, and a photograph after each."""

from __future__ import annotations

from typing import Any

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.core.errors import InputError
from workbench.figures.frames import rows_of, series_labels
from workbench.figures.grammar import SERIES, Plot
from workbench.figures.marks import Line, Null
from workbench.figures.overlays import data_uri
from workbench.figures.theme import PAGE

# (candidate, convention) → what a legend calls it, in the order of the lines.
_FILTERS = {
    ("gaussian", None): "Gaussian: places",
    ("nlm", "tokens"): "non-local means: tokens",
    ("bilateral", "tokens"): "bilateral: tokens",
    ("nlm", "heads"): "non-local means: q, k",
    ("bilateral", "heads"): "bilateral: q, k",
}


def filter_share_figure(frame: pd.DataFrame) -> go.Figure:
    """Share of attention that each fitted kernel explains, by layer: a panel per model.

    Lines are means over heads and inputs; the grey band is the same with the kernel's tokens permuted,
    of the kernel that gains most from the null distribution.

    Args:
        frame: the analysis ``filter-kernels`` of one or several models, without ``per_head``.

    Raises:
        InputError: the frame holds no such rows.
    """
    rows = rows_of(frame, "filter_share", needs=("layer", "candidate"))
    rows = rows[rows["input"].isna() & rows["layer"].notna()]
    if rows.empty:
        raise InputError("the frame holds single heads; leave out per_head, for means by layer")
    keys = zip(
        rows["candidate"],
        rows["convention"].astype(object).where(rows["convention"].notna(), None),
        strict=True,
    )
    shown = rows.assign(quantity=[_FILTERS.get(key) for key in keys], series=series_labels(rows))
    most = shown.groupby(["series", "layer"])["null_high"].transform("max") == shown["null_high"]
    bands = ["null_mean", "null_low", "null_high"]
    shown[bands] = shown[bands].where(most)
    names = {name: name for name in _FILTERS.values()}
    plot = Plot(shown.assign(candidate=pd.NA, convention=pd.NA), color="quantity", panel=SERIES, names=names)
    # Shares differ a thousandfold, and the null distribution gives a small one too.
    plot = plot.metric("filter_share").scale(y_log=True, y_range=(1e-4, 1))
    return plot.add(Null(), Line(words="mean over heads and inputs")).figure("page")


def filtered_figure(filtered: Any, columns: int = 4) -> go.Figure:
    """The clean and the noisy photograph and what every filter makes of it, each with its PSNR.

    Args:
        filtered: the result of `workbench.studies.evaluation.filtering.filter_photograph`.
        columns: images in a row.

    Raises:
        InputError: fewer than one column.
    """
    if columns < 1:
        raise InputError(f"at least one column of images is shown; got {columns}")
    psnr = {row["filter"]: row["psnr"] for row in filtered.rows}
    shown = {"clean": filtered.clean, **filtered.images}
    titles = [f"{name}<br>{psnr[name]:.1f} dB" if name in psnr else name for name in shown]
    lines = -(-len(shown) // columns)
    room = 34  # px above each row, for two lines of words
    side = (PAGE - 12) / columns
    total = lines * side + (lines - 1) * room
    fig = make_subplots(
        lines,
        columns,
        subplot_titles=titles,
        horizontal_spacing=0.02,
        vertical_spacing=room / total if lines > 1 else 0,
    )
    fig.update_annotations(font={"size": None})
    for number, (name, values) in enumerate(shown.items()):
        place = {"row": number // columns + 1, "col": number % columns + 1}
        fig.add_trace(go.Image(source=data_uri(values.clip(0, 1)), name=name, hoverinfo="name"), **place)
    fig.update_xaxes(visible=False)
    fig.update_yaxes(visible=False)
    return fig.update_layout(
        margin={"l": 6, "r": 6, "t": room, "b": 4}, height=round(total + room + 4), width=PAGE
    )
