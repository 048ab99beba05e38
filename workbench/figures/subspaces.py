"""Subspaces of heads: their directions' cosines as blocks, their coherence by layer, the angles between them."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.core.errors import InputError
from workbench.figures.frames import (
    axis_title,
    band,
    model_label,
    null_traces,
    rows_of,
    series_of,
    spread,
    whole_numbers,
)
from workbench.figures.overlays import shared_scale
from workbench.figures.theme import PAGE, series_style, translucent

COLUMNS = ("model", "layer", "head", "direction", "other_head", "other_direction", "value")
MOST = 6  # layers in a row of panels
COHERENCE = ("coherence_inside", "coherence_between", "subspace_angle")


def subspace_figure(frame: pd.DataFrame) -> go.Figure:
    """|cos| of every two directions as a square per layer, heads apart by lines (wu2025 Fig. 11).

    Diagonal blocks are within a head. A model's panels follow one another; all share one colour scale from 0 to 1.

    Args:
        frame: the result of ``subspaces`` per pair, of one or several models.

    Raises:
        InputError: a column is missing, or there are no rows.
    """
    missing = [name for name in COLUMNS if name not in frame]
    if missing or frame.empty:
        raise InputError(
            f"the frame has no {'column ' + ', '.join(missing) if missing else 'rows'}; give the frame of "
            '`workbench.analyze("subspaces", …, per="pair")`'
        )
    panels = [
        (str(model), layer, part)
        for model, of_model in frame.groupby("model", sort=False)
        for layer, part in of_model.groupby("layer", sort=True)
    ]
    layers = [sum(model == name for model, *_ in panels) for name in dict.fromkeys(frame["model"])]
    width = min(max(layers), MOST)
    places, line = [], 0  # (row, column), each model beginning a row of its own
    for count in layers:
        places += [(line + number // width, number % width) for number in range(count)]
        line += -(-count // width)
    grid = [[""] * width for _ in range(line)]
    for (row, column), (model, layer, _) in zip(places, panels, strict=True):
        grid[row][column] = f"{model_label(frame, model)}, layer {layer}" if column == 0 else f"layer {layer}"
    margin = {"l": 34, "r": 62, "t": 20, "b": 34}
    side = (PAGE - margin["l"] - margin["r"]) / max(width, 3)
    height = round(side * line + 22 * (line - 1) + margin["t"] + margin["b"])
    fig = make_subplots(
        line,
        width,
        horizontal_spacing=0.03,
        vertical_spacing=40 / (height - 54) if line > 1 else 0,
        subplot_titles=[title for row in grid for title in row],
    )
    for (row, column), (model, layer, part) in zip(places, panels, strict=True):
        _add_blocks(fig, part, f"{model_label(frame, model)}, layer {layer}", row + 1, column + 1)
    fig.update_yaxes(title_text="head", col=1)
    for column in range(1, width + 1):
        lowest = max(row for row, at in places if at == column - 1) + 1
        fig.update_xaxes(title_text="head", row=lowest, col=column)
    fig.update_annotations(font={"size": None})
    fig.update_layout(coloraxis=shared_scale(None, 1.0, "|cos|"), margin=margin, height=height)
    return fig


def _add_blocks(fig: go.Figure, part: pd.DataFrame, label: str, row: int, column: int) -> None:
    table = part.pivot_table(
        index=["head", "direction"], columns=["other_head", "other_direction"], values="value", sort=True
    )
    heads = [head for head, _ in table.index]
    names = [f"head {head}, direction {direction}" for head, direction in table.index]
    fig.add_trace(
        go.Heatmap(
            z=table.to_numpy(),
            coloraxis="coloraxis",
            customdata=[[[one, other] for other in names] for one in names],
            name=label,
            hovertemplate=f"{label}<br>%{{customdata[0]}}<br>%{{customdata[1]}}<br>%{{z:.3f}}<extra></extra>",
        ),
        row=row,
        col=column,
    )
    known = sorted(set(heads))
    starts = [heads.index(head) for head in known]
    middles = [start + heads.count(head) / 2 - 0.5 for start, head in zip(starts, known, strict=True)]
    for start in starts[1:]:
        line = {"color": "white", "width": 1.5}
        fig.add_hline(y=start - 0.5, line=line, row=row, col=column)
        fig.add_vline(x=start - 0.5, line=line, row=row, col=column)
    ticks = {
        "tickvals": middles,
        "ticktext": [str(head) for head in known],
        "ticks": "",
        "constrain": "domain",
    }
    edge = len(heads) - 0.5
    fig.update_xaxes(range=[-0.5, edge], **ticks, row=row, col=column)
    fig.update_yaxes(range=[edge, -0.5], **ticks, row=row, col=column)
    axis = next(fig.select_yaxes(row=row, col=column))
    axis.update(scaleanchor=axis.anchor, scaleratio=1)


def subspace_coherence_figure(frame: pd.DataFrame, metrics: Sequence[str] = COHERENCE) -> go.Figure:
    """Coherence inside and between heads by layer, and the angles between heads by rank, beside random directions.

    A line per model. Angles are means over layers and pairs of heads, their band the interquartile range of these;
    the null distribution is the 95 % band of random directions (grey), averaged over layers for the angles.

    Args:
        frame: the result of ``subspaces``, of one or several models.
        metrics: which of the three, in this order.

    Raises:
        InputError: the frame holds none of them.
    """
    rows = rows_of(frame, metrics)
    present = [metric for metric in metrics if (rows["metric"] == metric).any()]
    fig = make_subplots(1, len(present), horizontal_spacing=0.1)
    for column, metric in enumerate(present, start=1):
        by = "rank" if metric == "subspace_angle" else "layer"
        series = series_of(rows[rows["metric"] == metric])
        for index, (label, part) in enumerate(series):
            place, style = {"row": 1, "col": column}, series_style(index)
            for trace in null_traces(part, by, show=index == 0 and column == 1):
                fig.add_trace(trace, **place)
            level = spread(part, by)
            if (level["high"] > level["low"]).any():
                shade = translucent(style["line"]["color"], 0.16)
                fig.add_trace(band(level[by], level["low"], level["high"], shade), **place)
            fig.add_trace(
                go.Scatter(
                    x=level[by],
                    y=level["mean"],
                    mode="lines+markers",
                    name=label,
                    legendgroup=label,
                    showlegend=column == 1,
                    hovertemplate=f"{label}<br>%{{x}}: %{{y:.3f}}<extra></extra>",
                    **style,
                ),
                **place,
            )
        fig.update_yaxes(title_text=axis_title(metric, 24), rangemode="tozero", row=1, col=column)
        count, first = int(rows.loc[rows["metric"] == metric, by].max()), int(by == "rank")
        title = "Angle, smallest first" if by == "rank" else "Layer"
        fig.update_xaxes(title_text=title, **whole_numbers(count + 1 - first, first), row=1, col=column)
    fig.update_layout(
        legend={"orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom"},
        margin={"l": 50, "r": 8, "t": 28, "b": 38},
        height=215,
    )
    return fig
