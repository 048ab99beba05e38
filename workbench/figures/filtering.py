"""Attention beside image filters: how much of it fitted kernels explain, and a photograph after each."""

from __future__ import annotations

from typing import Any

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.core.errors import InputError
from workbench.figures.frames import (
    LEGEND_ABOVE,
    axis_title,
    null_traces,
    rows_of,
    series_of,
    whole_numbers,
)
from workbench.figures.overlays import data_uri
from workbench.figures.theme import PAGE, series_style

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

    Lines are means over heads and inputs; the dotted line and its band are the same with the kernel's tokens permuted,
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
    panels = series_of(rows)
    fig = make_subplots(
        1,
        len(panels),
        shared_yaxes=True,
        horizontal_spacing=0.04,
        subplot_titles=[label for label, _ in panels],
    )
    fig.update_annotations(font={"size": None})
    for column, (_, part) in enumerate(panels, start=1):
        place = {"row": 1, "col": column}
        by_null = part.loc[part.groupby("layer")["null_high"].transform("max") == part["null_high"]]
        for trace in null_traces(by_null, "layer", show=column == 1):
            fig.add_trace(trace, **place)
        for number, ((kernel, content), name) in enumerate(_FILTERS.items()):
            own = part[part["candidate"] == kernel]
            own = own[own["convention"].isna() if content is None else own["convention"] == content]
            if own.empty:
                continue
            fig.add_trace(
                go.Scatter(
                    x=own["layer"],
                    y=own["value"],
                    mode="lines+markers",
                    name=name,
                    legendgroup=name,
                    showlegend=column == 1,
                    hovertemplate=f"{name}<br>layer %{{x}}: %{{y:.3f}}<extra></extra>",
                    **series_style(number),
                ),
                **place,
            )
        fig.update_xaxes(title_text="Layer", **whole_numbers(int(part["layer"].max()) + 1), **place)
    # Shares differ a thousandfold, and the null distribution gives a small one too.
    fig.update_yaxes(type="log", range=[-4, 0], dtick=1)
    fig.update_yaxes(title_text=axis_title("filter_share"), col=1)
    return fig.update_layout(
        legend=LEGEND_ABOVE, margin={"l": 56, "r": 8, "t": 62, "b": 40}, height=270, width=PAGE
    )


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
