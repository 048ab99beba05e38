"""Attention logits as a sum of content and position: the matrices of one head, and their shares by layer."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.core.errors import InputError
from workbench.figures.frames import (
    LEGEND_ABOVE,
    axis_title,
    legend_rows,
    null_traces,
    rows_of,
    series_of,
    whole_numbers,
)
from workbench.figures.levels import at_level
from workbench.figures.theme import DIVERGING, GREY, PAGE, series_style

COLUMNS = ("model", "input", "layer", "head", "term", "query", "key", "value")
# Query, then key, as in the matrix of products; what they add up to stands beside them.
_PANELS = {
    "token-token": (1, 1), "token-position": (1, 2), "sum": (1, 3),
    "position-token": (2, 1), "position-position": (2, 2), "model": (2, 3),
}  # fmt: skip
_TITLES = {"sum": "sum of the four", "model": "logits of the model"}
SHARES = ("token-token", "token-position", "position-token", "position-position", "covariances")


def position_logit_figure(frame: pd.DataFrame) -> go.Figure:
    """The four matrices of one head's logits, their sum, and the logits of the model (abdullaev2025 Fig. 2).

    Rows of panels are the query's content and position, columns the key's. All share one colour scale around 0; each
    row of a matrix is less its mean. Keys that a query may not attend to are blank.

    Args:
        frame: the result of ``position-logits`` per pair, for one model, input, layer and head.

    Raises:
        InputError: a column is missing, or there are no rows, or those of several inputs or heads.
    """
    missing = [name for name in COLUMNS if name not in frame]
    if missing or frame.empty or len(frame[["model", "input", "layer", "head"]].drop_duplicates()) > 1:
        raise InputError(
            'give the frame of `workbench.analyze("position-logits", …, per="pair")` for one model, input, layer and '
            "head"
        )
    margin = {"l": 44, "r": 64, "t": 20, "b": 36}
    side = (PAGE - margin["l"] - margin["r"]) / 3.16
    titles = {place: _TITLES.get(term, term.replace("-", "–")) for term, place in _PANELS.items()}
    fig = make_subplots(
        2,
        3,
        horizontal_spacing=0.04,
        vertical_spacing=0.09,
        subplot_titles=[titles[row, column] for row in (1, 2) for column in (1, 2, 3)],
    )
    for term, (row, column) in _PANELS.items():
        table = frame[frame["term"] == term].pivot(index="query", columns="key", values="value")
        fig.add_trace(
            go.Heatmap(
                z=table.to_numpy(),
                x=list(range(table.shape[1])),
                y=list(range(table.shape[0])),
                coloraxis="coloraxis",
                name=term,
                hoverongaps=False,
                hovertemplate=f"{term}<br>query %{{y}}, key %{{x}}<br>%{{z:.3f}}<extra></extra>",
            ),
            row=row,
            col=column,
        )
        axis = next(fig.select_yaxes(row=row, col=column))
        axis.update(scaleanchor=axis.anchor, scaleratio=1, constrain="domain", autorange="reversed")
    fig.update_xaxes(constrain="domain", nticks=5)
    fig.update_yaxes(nticks=5, showticklabels=False)
    fig.update_yaxes(title_text="query token", showticklabels=True, col=1)
    fig.update_xaxes(showticklabels=False, row=1)
    fig.update_xaxes(title_text="key token", row=2)
    fig.update_annotations(font={"size": None})
    highest = float(frame["value"].abs().max()) or 1.0
    bar = {"title": {"text": "row-centred logit", "side": "right"}, "len": 1, "ypad": 0, "nticks": 7}
    fig.update_layout(
        coloraxis={"colorscale": DIVERGING, "cmin": -highest, "cmax": highest, "colorbar": bar},
        margin=margin,
        height=round(2.16 * side + margin["t"] + margin["b"]),
    )
    return fig


def position_share_figure(frame: pd.DataFrame) -> go.Figure:
    """Shares of the logit variance by layer, and how the cross terms correlate with the others, beside the null.

    A row of panels per model: the four terms and their covariances, which add up to 1 (mean over inputs and heads); and
    mean |r| over inputs and heads of both cross terms together, with that of shuffled positions (95 % band).

    Args:
        frame: the result of ``position-logits`` (means, not ``per_head``), of one or several models.

    Raises:
        InputError: the frame holds no such rows.
    """
    rows = at_level(rows_of(frame, ("logit_share", "logit_correlation"), needs=("candidate",)), "layer")
    series = series_of(rows)
    fig = make_subplots(
        len(series),
        2,
        horizontal_spacing=0.12,
        vertical_spacing=0.13,
        subplot_titles=[
            title
            for label, _ in series
            for title in (f"{label}: shares", f"{label}: cross terms and the others")
        ],
    )
    for line, (label, part) in enumerate(series, start=1):
        shares = part[part["metric"] == "logit_share"]
        for index, candidate in enumerate(SHARES):
            own = shares[shares["candidate"] == candidate].sort_values("layer")
            fig.add_trace(
                go.Scatter(
                    x=own["layer"],
                    y=own["value"],
                    mode="lines+markers",
                    name=candidate.replace("-", "–"),
                    legendgroup=candidate,
                    showlegend=line == 1,
                    hovertemplate=f"{label}, {candidate}<br>layer %{{x}}: %{{y:.3f}}<extra></extra>",
                    **series_style(index),
                ),
                row=line,
                col=1,
            )
        found = part[(part["metric"] == "logit_correlation") & (part["statistic"] == "abs")]
        found = found[found["candidate"] == "cross"].sort_values("layer")
        for trace in null_traces(found, "layer", show=line == 1):
            fig.add_trace(trace, row=line, col=2)
        fig.add_trace(
            go.Scatter(
                x=found["layer"],
                y=found["value"],
                mode="lines+markers",
                name="|r|",
                showlegend=False,
                hovertemplate=f"{label}<br>layer %{{x}}: %{{y:.3f}}<extra></extra>",
                **series_style(0),
            ),
            row=line,
            col=2,
        )
        fig.add_hline(y=0, line={"color": GREY, "width": 0.75}, row=line, col=1)
        fig.update_yaxes(title_text=axis_title("logit_share"), row=line, col=1)
        fig.update_yaxes(title_text="|r|, mean", rangemode="tozero", row=line, col=2)
        fig.update_xaxes(**whole_numbers(int(part["layer"].max()) + 1), row=line)
    fig.update_xaxes(title_text="Layer", row=len(series))
    fig.update_annotations(font={"size": None})
    top = 24 + 18 * legend_rows(fig)
    fig.update_layout(
        height=top + 165 * len(series) + 36, legend=LEGEND_ABOVE, margin={"l": 50, "r": 8, "t": top, "b": 36}
    )
    return fig
