"""How alike tokens become with depth."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from workbench.figures.frames import (
    axis_title,
    band,
    chance_traces,
    rows_of,
    series_of,
    spread,
    whole_numbers,
)
from workbench.figures.theme import series_style, translucent


def similarity_depth_figure(
    frame: pd.DataFrame, metric: str = "token_cosine", relative: bool = False
) -> go.Figure:
    """Mean pairwise cosine of tokens against layer: a line per model, a band for the middle half of the inputs.

    The line is the mean over inputs. Where the frame carries a null, the level that chance gives is drawn as a
    grey band with a dotted line.

    Args:
        frame: rows of `metric` with columns layer and value, one per input.
        metric: any metric that has layers and no ranks.
        relative: depth as a share of the model's own layers, to compare models of different depth.

    Raises:
        InputError: no such rows, or a missing column.
    """
    rows = rows_of(frame, metric, needs=("layer",))
    series = series_of(rows)
    fig = go.Figure()
    for index, (label, part) in enumerate(series):
        last = max(int(part["layer"].max()), 1)
        part = part.assign(depth=part["layer"].astype(float) / (last if relative else 1))
        style = series_style(index)
        level = spread(part, "depth")
        for trace in chance_traces(part, "depth", show=index == 0):
            fig.add_trace(trace)
        if (level["high"] > level["low"]).any():
            fig.add_trace(
                band(level["depth"], level["low"], level["high"], translucent(style["line"]["color"], 0.18))
            )
        inputs = int(level["count"].max())
        fig.add_trace(
            go.Scatter(
                x=level["depth"],
                y=level["mean"],
                mode="lines+markers",
                name=label,
                showlegend=len(series) > 1,
                hovertemplate=f"{label}<br>%{{x}}: %{{y:.3f}}<br>mean of {inputs} inputs<extra></extra>",
                **style,
            )
        )
    lowest, highest = rows["value"].min(), rows["value"].max()
    if metric == "token_cosine":
        # The scale always shows 0 and 1, between which the papers' claims lie.
        lowest, highest = min(lowest, 0.0), max(highest, 1.0)
    pad = 0.04 * ((highest - lowest) or 1.0)
    fig.update_yaxes(title_text=axis_title(metric), range=[lowest - pad, highest + pad])
    if relative:
        fig.update_xaxes(title_text="Depth (share of layers)")
    else:
        fig.update_xaxes(title_text="Layer", **whole_numbers(int(rows["layer"].max()) + 1))
    fig.update_layout(
        legend={"orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom"},
        margin={"l": 44, "r": 8, "t": 10 + (16 * (-(-len(series) // 2)) if len(series) > 1 else 0), "b": 38},
        height=225,
    )
    return fig
