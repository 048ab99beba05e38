"""Attention beside image filters: how much of it fitted kernels explain, and a photograph after each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from workbench.core.errors import InputError
from workbench.figures.composition import Axis, Panel, compose
from workbench.figures.estimates import titled
from workbench.figures.frames import rows_of, series_labels
from workbench.figures.grammar import SERIES, Plot
from workbench.figures.marks import Line, Null
from workbench.figures.overlays import data_uri
from workbench.figures.theme import PAGE, theme_of

# What the key calls a kernel, in the order of the lines.
_FILTERS: dict[str, dict[str, str | None]] = {
    "Gaussian: places": {"candidate": "gaussian", "convention": None},
    "non-local means: tokens": {"candidate": "nlm", "convention": "tokens"},
    "bilateral: tokens": {"candidate": "bilateral", "convention": "tokens"},
    "non-local means: q, k": {"candidate": "nlm", "convention": "heads"},
    "bilateral: q, k": {"candidate": "bilateral", "convention": "heads"},
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
    shown = titled(rows.assign(series=series_labels(rows)), _FILTERS, "quantity")
    most = shown.groupby(["series", "layer"])["null_high"].transform("max") == shown["null_high"]
    bands = ["null_mean", "null_low", "null_high"]
    shown[bands] = shown[bands].where(most)
    plot = Plot(shown, color="quantity", panel=SERIES)
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
    panels = []
    for name, values in {"clean": filtered.clean, **filtered.images}.items():
        tall, across = np.shape(values)[:2]
        title = f"{name}<br>{psnr[name]:.1f} dB" if name in psnr else name
        picture = go.Image(source=data_uri(values.clip(0, 1)), name=name, hoverinfo="name")
        x, y = Axis("", -0.5, across - 0.5, bare=True), Axis("", tall - 0.5, -0.5, bare=True)
        panels.append(Panel([picture], x, y, title))
    columns = min(columns, len(panels))
    gap, edges = 10, 1.2 * theme_of("page").font
    side = min((PAGE - edges + gap) / columns - gap, PAGE / 3)
    rest = (PAGE - edges + gap - columns * (side + gap)) / 2
    fig = compose(
        panels,
        columns,
        width="page",
        shared="xy",
        inner=side * tall / across,
        gap=gap,
        right=rest,
        before={0: rest},
    )
    return fig.update_xaxes(visible=False, matches=None).update_yaxes(visible=False, matches=None)
