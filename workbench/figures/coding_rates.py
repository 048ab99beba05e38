"""Coding rates of tokens by layer, and what attention does to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.figures.frames import (
    LEGEND_ABOVE,
    band,
    legend_rows,
    rows_of,
    series_of,
    spread,
    whole_numbers,
)
from workbench.figures.theme import COLOURS, GREY, SYMBOLS, batch_style, translucent

RATES = ("coding_rate_variational", "coding_rate", "coding_rate_reduction")
# metric, panel, title, axis
_PANELS = (
    ("coding_rate_variational", (1, 1), "R<sub>c</sub><sup>var</sup> of the outputs", "nats"),
    ("change", (1, 2), "Change of R<sub>c</sub><sup>var</sup> by attention", "%"),
    ("coding_rate", (2, 1), "R of the outputs", "nats"),
    ("coding_rate_reduction", (2, 2), "ΔR = R − R<sub>c</sub> of the outputs", "nats"),
)


def coding_rate_figure(frames: Mapping[str, pd.DataFrame]) -> go.Figure:
    """Coding rates against layer: mean over inputs, and a band that holds their interquartile range (wu2025 Fig. 4a).

    Four panels: R_c^var of each layer's output with that layer's U_k; by how much attention changes it, from what it
    receives to the stream after it; R and ΔR of the outputs. A colour per model and way of grouping the tokens
    (convention): R_c^var by the layer's own subspaces does not compare between these.

    Args:
        frames: batch (training, validation, …) to the result of ``coding-rate``, of one or several models; the first
            is drawn with solid lines and filled markers, the second dashed and open.

    Raises:
        InputError: a frame holds no coding rates.
    """
    fig = make_subplots(
        2,
        2,
        horizontal_spacing=0.11,
        vertical_spacing=0.17,
        subplot_titles=[title for _, _, title, _ in _PANELS],
    )
    depth = 0
    for number, (batch, frame) in enumerate(frames.items()):
        for index, (label, rows) in enumerate(_series(frame)):
            depth = max(depth, int(rows["layer"].max()) + 1)
            colour, symbol = (
                COLOURS[index % len(COLOURS)],
                SYMBOLS[index % len(SYMBOLS)].removesuffix("-open"),
            )
            for metric, (row, column), _, _ in _PANELS:
                level = spread(_values(rows, metric), "layer")
                place = {"row": row, "col": column}
                if (level["high"] > level["low"]).any():
                    shade = translucent(colour, 0.14)
                    fig.add_trace(band(level["layer"], level["low"], level["high"], shade), **place)
                fig.add_trace(
                    go.Scatter(
                        x=level["layer"],
                        y=level["mean"],
                        mode="lines+markers",
                        **batch_style(number, colour, symbol),
                        name=label,
                        legendgroup=label,
                        showlegend=number == 0 and metric == "coding_rate_variational",
                        hovertemplate=f"{label}, {batch}<br>layer %{{x}}<br>%{{y:.4g}}<extra></extra>",
                    ),
                    **place,
                )
        fig.add_trace(  # the legend's key to the batches: a curve that is nowhere
            go.Scatter(
                x=[None],
                y=[None],
                mode="lines+markers",
                **batch_style(number, GREY, "circle"),
                name=batch,
                legendrank=1001,
            ),
            row=1,
            col=1,
        )
    for _, (row, column), _, unit in _PANELS:
        fig.update_yaxes(
            title_text=unit, rangemode="normal" if unit == "%" else "tozero", row=row, col=column
        )
    fig.add_hline(y=0, line={"color": GREY, "width": 0.75}, row=1, col=2)
    fig.update_xaxes(**whole_numbers(depth))
    fig.update_xaxes(title_text="Layer", row=2)
    fig.update_annotations(font={"size": None})
    fig.update_layout(
        height=390, legend=LEGEND_ABOVE, margin={"l": 46, "r": 8, "t": 24 + 18 * legend_rows(fig), "b": 36}
    )
    return fig


def _series(frame: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """One (label, rows) per model and convention."""
    rows = rows_of(frame, RATES, needs=("layer", "candidate"))
    rows = rows[rows["standardize"].isna()]
    for label, part in series_of(rows):
        for convention, of_convention in part.groupby("convention", sort=False):
            yield f"{label} ({str(convention).replace('_', ' ')})", of_convention


def _values(rows: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Rows (layer, input, value) of a panel: of the outputs, or the relative change by attention in per cent."""
    if metric != "change":
        return rows[(rows["metric"] == metric) & (rows["candidate"] == "resid_post")]
    variational = rows[rows["metric"] == "coding_rate_variational"]
    streams = variational.pivot_table(
        index=["layer", "input"], columns="candidate", values="value", sort=False
    )
    change = 100 * (streams["resid_mid"] / streams["input"] - 1)
    return change.rename("value").reset_index()
