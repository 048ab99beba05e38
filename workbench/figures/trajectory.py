"""What becomes of the tokens through depth, with the layer one looks at."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from workbench.core.errors import InputError
from workbench.figures.frames import (
    LEGEND_ABOVE,
    axis_title,
    legend_rows,
    series_of,
    whole_numbers,
    without_provenance,
)
from workbench.figures.similarity import depth_range, depth_rows, depth_traces
from workbench.figures.theme import COLUMN, GREY, series_style

METRICS = ("token_cosine", "coding_rate")
PANEL = 130  # px
GAP = 22


def trajectory_figure(frame: pd.DataFrame, layer: int) -> go.Figure:
    """Mean cosine of tokens and their coding rate against the layer, one above the other; a line marks one layer.

    Each panel is `similarity_depth_figure` of its metric: a line per model, the mean over inputs with a band for their
    interquartile range, the null distribution in grey where the frame has it. A metric that the frame lacks has no
    panel.

    Args:
        frame: the results of ``token-similarity`` and ``coding-rate``, joined.
        layer: number of the layer that is marked.

    Raises:
        InputError: the frame holds neither metric by layer, or no such layer.
    """
    frame = without_provenance(frame)
    present = [metric for metric in METRICS if (frame["metric"] == metric).any()]
    if not present:
        raise InputError(
            f"the frame holds neither {' nor '.join(METRICS)}; give the results of token-similarity and coding-rate"
        )
    parts = {metric: depth_rows(frame, metric) for metric in present}
    last = max(int(rows["layer"].max()) for rows in parts.values())
    if not 0 <= layer <= last:
        raise InputError(f"no layer {layer}; there are 0 to {last}")
    series = {metric: series_of(rows) for metric, rows in parts.items()}
    models = list(dict.fromkeys(label for of_metric in series.values() for label, _ in of_metric))
    inner = len(present) * PANEL + (len(present) - 1) * GAP
    traces: list[go.Scatter] = []
    layout: dict = {"legend": LEGEND_ABOVE, "shapes": [], "annotations": []}
    shown_once = False  # the legend names the null distribution once
    for number, (metric, rows) in enumerate(parts.items()):
        axis = "" if number == 0 else str(number + 1)
        for label, part in series[metric]:
            style = series_style(models.index(label))
            line = {
                "name": label,
                "legendgroup": label,
                "showlegend": len(models) > 1 and number == 0,
                **style,
            }
            drawn = depth_traces(part, "layer", line, show_null=not shown_once, yaxis=f"y{axis}")
            shown_once = shown_once or any(trace.name == "null distribution" for trace in drawn)
            traces += drawn
        top = 1 - number * (PANEL + GAP) / inner
        layout[f"yaxis{axis}"] = {
            "title": {"text": axis_title(metric, 16)}, "range": depth_range(rows, metric),
            "domain": [max(top - PANEL / inner, 0), top],
        }  # fmt: skip
    layout["xaxis"] = {
        "title": {"text": "Layer"}, "range": [-0.3, last + 0.3], "anchor": f"y{axis}",
        **whole_numbers(last + 1),
    }  # fmt: skip
    layout["shapes"].append(
        {"type": "line", "x0": layer, "x1": layer, "y0": 0, "y1": 1, "yref": "paper"}
        | {"line": {"color": GREY, "dash": "dash", "width": 1}, "layer": "below"}
    )
    label = {"text": f"layer {layer}", "x": layer, "y": 1, "yref": "paper", "yanchor": "top"}
    side = {"xanchor": "right", "xshift": -3} if layer > last / 2 else {"xanchor": "left", "xshift": 3}
    layout["annotations"].append({**label, **side, "showarrow": False, "font": {"color": GREY}})
    fig = go.Figure(traces, layout)
    entries = len(models) > 1 or shown_once
    top = 8 + (18 * legend_rows(fig, COLUMN) if entries else 0)
    fig.layout.height = inner + top + 38
    fig.layout.margin = {"l": 66, "r": 8, "t": top, "b": 38}
    return fig
