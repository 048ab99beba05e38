"""Means by layer as marks, each model's beside the others', over bars of their null distribution."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.figures.frames import axis_title, series_of, whole_numbers
from workbench.figures.theme import NULL_BAND, series_style


def layer_marks_figure(rows: pd.DataFrame, metrics: Sequence[str]) -> go.Figure:
    """A panel per metric: a mark per model and layer, and the 95 % band of its null distribution where there is one.

    ``rows`` are those of one level (`workbench.figures.levels.at_level`), one for each model, layer and metric.
    """
    series = series_of(rows)
    across = 3 if len(metrics) == 3 else min(len(metrics), 2)
    lines = -(-len(metrics) // across)
    fig = make_subplots(lines, across, horizontal_spacing=0.3 / across, vertical_spacing=0.24 / lines)
    shown_once = False  # the legend names the null distribution once
    for panel, metric in enumerate(metrics):
        place = {"row": panel // across + 1, "col": panel % across + 1}
        for index, (label, part) in enumerate(series):
            own = part[part["metric"] == metric].sort_values("layer")
            x = own["layer"].astype(float) + 0.16 * (index - (len(series) - 1) / 2)
            if own["null_low"].notna().any():
                fig.add_trace(
                    go.Bar(
                        x=x,
                        base=own["null_low"],
                        y=own["null_high"] - own["null_low"],
                        width=0.12,
                        marker={"color": NULL_BAND, "line": {"width": 0}},
                        name="null distribution (95 %)",
                        legendgroup="null distribution",
                        showlegend=not shown_once,
                        hoverinfo="skip",
                    ),
                    **place,
                )
                shown_once = True
            style = series_style(index)
            fig.add_trace(
                go.Scatter(
                    x=x,
                    y=own["value"],
                    mode="markers",
                    marker={**style["marker"], "size": 7},
                    name=label,
                    legendgroup=label,
                    showlegend=panel == 0,
                    hovertemplate=f"{label}<br>%{{y:.3f}}<extra></extra>",
                ),
                **place,
            )
        fig.update_yaxes(title_text=axis_title(metric, 22), **place)
    count = int(rows["layer"].max()) + 1
    fig.update_xaxes(title_text="Layer", range=[-0.5, count - 0.5], **whole_numbers(count))
    fig.update_layout(
        legend={"orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom"},
        barmode="overlay",
        margin={"l": 64, "r": 8, "t": 28, "b": 38},
        height=66 + 159 * lines,
    )
    return fig
