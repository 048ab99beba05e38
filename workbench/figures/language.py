"""Perplexities of trained variants: clean, with swapped words, and relative to the softmax baseline."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.core.errors import InputError
from workbench.figures.frames import band, log_ticks, model_label
from workbench.figures.robustness import NOW
from workbench.figures.theme import GREY, PAGE, translucent
from workbench.figures.variants import in_order, look_of

_DIGITS = (1, 1.2, 1.5, 2, 3, 4, 5, 6, 7, 8)  # ticks of a logarithmic axis of less than a decade
_METRICS = {"perplexity": "All characters", "perplexity_kept": "Characters left alone"}


def perplexity_figure(
    frame: pd.DataFrame, ratios: pd.DataFrame, training: pd.DataFrame, now: pd.DataFrame | None = None
) -> go.Figure:
    """Test perplexity of every training seed, and perplexity against the share of swapped words.

    Left a row per model; right, above, the perplexity of everything and of what no swapped word touches; below, the
    same divided by the baseline's. Bands are 95 % intervals over texts. Panels about which nothing is on record say so.

    Args:
        frame: rows of word-swap with the column attention, as `workbench.studies.records.recorded` gives them.
        ratios: the results of `workbench.studies.baselines.ratios_to_baseline` for both perplexities, joined.
        training: the training record of the models, all of which get a row.
        now: rows of `workbench.studies.evaluate` for one model, drawn as stars above.

    Raises:
        InputError: no test perplexity in `training`.
        UnknownName: an attention variant without a look.
    """
    clean = training[(training["split"] == "test") & (training["metric"] == "perplexity")]
    clean = clean[clean["epoch"] == clean["epoch"].max()]
    if clean.empty:
        raise InputError("the training record holds no test perplexity; give that of models trained on prose")
    names = in_order(clean["attention"].unique())
    fig = make_subplots(
        2,
        3,
        specs=[[{"rowspan": 2}, {}, {}], [None, {}, {}]],
        column_widths=[0.24, 0.38, 0.38],
        horizontal_spacing=0.11,
        vertical_spacing=0.13,
        subplot_titles=["Clean, each seed", *_METRICS.values(), "", ""],
    )
    for place, name in enumerate(reversed(names)):
        look = look_of(name)
        values = clean.loc[clean["attention"] == name, "value"]
        fig.add_trace(
            go.Scatter(
                x=values,
                y=[place] * len(values),
                mode="markers",
                marker={**look.style["marker"], "size": 6},
                name=look.label,
                hovertemplate=f"{look.label}: %{{x:.3f}}<extra></extra>",
            ),
            row=1,
            col=1,
        )
    for column, metric in enumerate(_METRICS, start=2):
        rows = frame[frame["metric"] == metric]
        _curves(fig, rows.assign(shown=rows["value"]), 1, column)
        _curves(fig, ratios[ratios["metric"] == metric].rename(columns={"ratio": "shown"}), 2, column)
        if (ratios["metric"] == metric).any():
            fig.add_hline(y=1, line={"color": GREY, "width": 0.75, "dash": "dot"}, row=2, col=column)
        stars = frame[:0] if now is None else now[now["metric"] == metric]
        if len(stars):
            fig.add_trace(_stars(stars), row=1, col=column)
        if len(rows) or len(stars):
            values = [rows["value"], rows["low"], rows["high"], stars["value"]]
            shown = pd.Series(np.concatenate(values).astype(float))
            fig.update_yaxes(type="log", **log_ticks(shown, digits=_DIGITS), row=1, col=column)
    fig.update_xaxes(title_text="Perplexity", nticks=4, tickangle=0, row=1, col=1)
    fig.update_xaxes(title_text="Words swapped (%)", row=2)
    fig.update_yaxes(title_text="Perplexity", row=1, col=2)
    fig.update_yaxes(title_text="Ratio to baseline", row=2, col=2)
    fig.update_yaxes(
        tickmode="array", tickvals=list(range(len(names))),
        ticktext=[look_of(name).label for name in reversed(names)], range=[-0.6, len(names) - 0.4], ticks="",
        showgrid=True, gridcolor="#E6E6E6", gridwidth=0.5, row=1, col=1,
    )  # fmt: skip
    fig.update_annotations(font={"size": None})
    longest = max(len(look_of(name).label) for name in names)
    return fig.update_layout(
        showlegend=False,
        margin={"l": 12 + round(5.6 * longest), "r": 10, "t": 22, "b": 38},
        height=330,
        width=PAGE,
    )


def _stars(rows: pd.DataFrame) -> go.Scatter:
    label = f"{model_label(rows, rows['model'].iloc[0])}, {rows['n'].iloc[0]} texts now"
    return go.Scatter(
        x=100 * rows["epsilon"],
        y=rows["value"],
        mode="markers",
        marker=NOW,
        name=label,
        hovertemplate=f"{label}<br>%{{x:g}} %: %{{y:.3f}}<extra></extra>",
    )


def _curves(fig: go.Figure, rows: pd.DataFrame, row: int, column: int) -> None:
    """A line per variant through the column shown, with its band, against the share of swapped words."""
    rows = rows[rows["shown"].notna()]
    if rows.empty:  # an invisible point keeps the panel's axes, the words stand in the middle
        fig.add_trace(go.Scatter(x=[0.5], y=[1], opacity=0, hoverinfo="skip"), row=row, col=column)
        fig.add_annotation(text="no data", x=0.5, y=1, showarrow=False, row=row, col=column)
        fig.update_xaxes(showticklabels=False, ticks="", row=row, col=column)
        fig.update_yaxes(showticklabels=False, ticks="", row=row, col=column)
    for name in in_order(rows["attention"].unique()):
        look = look_of(name)
        own = rows[rows["attention"] == name].sort_values("epsilon")
        share, shown, low, high = (100 * own["epsilon"], own["shown"], own["low"], own["high"])
        known = low.notna() & high.notna()
        if known.any():
            shade = band(share[known], low[known], high[known], translucent(look.colour, 0.13))
            fig.add_trace(shade, row=row, col=column)
        fig.add_trace(
            go.Scatter(
                x=share,
                y=shown,
                mode="lines+markers",
                **look.style,
                name=look.label,
                hovertemplate=f"{look.label}<br>%{{x:g}} %: %{{y:.3f}}<extra></extra>",
            ),
            row=row,
            col=column,
        )
