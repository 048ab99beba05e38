"""Projection error and the two norms it compares, by layer and through training."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.errors import InputError
from workbench.figures.frames import (
    band,
    chance_traces,
    legend_rows,
    log_ticks,
    rows_of,
    series_of,
    whole_numbers,
)
from workbench.figures.levels import at_level, values_once
from workbench.figures.theme import COLOURS, translucent

# Convention: its words, colour, dash, marker.
_CONVENTIONS = {
    "exact": ("exact", COLOURS[0], "solid", "circle"),
    "saritas2025": ("saritas2025", COLOURS[2], "dot", "diamond"),
    "teo2024-text": ("teo2024, text", COLOURS[1], "dash", "square"),
    "teo2024-code": ("teo2024, code", COLOURS[5], "longdash", "triangle-up"),
}
BOUNDS = {
    "projection_baseline": ("baseline: predict nothing", "#000000", "dashdot"),
    "projection_floor": ("floor: true projections", "#000000", "dot"),
}
_NORMS = {
    "phi_norm2": ("‖φ(q)‖²", COLOURS[0], "solid", "circle"),
    "h_norm2": ("‖h‖²", COLOURS[2], "dash", "diamond"),
}
_QUANTILES = ("q2.5", "q25", "median", "q75", "q97.5")
LEGEND = {
    "orientation": "h",
    "x": 0.01,
    "xref": "container",
    "xanchor": "left",
    "y": 1,
    "yref": "container",
    "yanchor": "top",
}


def projection_error_figure(frame: pd.DataFrame) -> go.Figure:
    """Projection error by layer on a log axis, a line per convention; a panel per model.

    The exact error stands between its floor (the true projections) and, unless the output is worse than nothing, its
    baseline; grey is chance. Where teo2024's text gives a negative number its size is drawn with an open marker. Its
    code's values are logarithms; drawn is the exponential of their mean.

    Args:
        frame: the result of the analysis projection-error without per_head.

    Raises:
        InputError: no projection errors by layer.
    """
    names = ["projection_error", *BOUNDS]
    rows = at_level(rows_of(frame, names, needs=("layer",)), "layer")
    fig, series = _model_panels(rows)
    for index, (_, own) in enumerate(series):
        place = _place(index, len(series))
        drawn = []
        errors = own[own["metric"] == "projection_error"]
        exact = errors[errors["convention"] == "exact"]
        for trace in chance_traces(exact, "layer", show=index == 0):
            fig.add_trace(trace, **place)
            drawn.append(pd.Series(trace.y, dtype=float))
        for convention, (words, colour, dash, symbol) in _CONVENTIONS.items():
            part = values_once(errors[errors["convention"] == convention]).sort_values("layer")
            if part.empty:
                continue
            value = np.exp(part["value"]) if convention == "teo2024-code" else part["value"]
            negative = value < 0
            drawn.append(value.abs())
            fig.add_trace(
                go.Scatter(
                    x=part["layer"],
                    y=value.abs(),
                    mode="lines+markers",
                    line={"color": colour, "dash": dash},
                    marker={
                        "symbol": np.where(negative, f"{symbol}-open", symbol),
                        "size": 6,
                        "color": colour,
                        "line": {"width": np.where(negative, 1.2, 0), "color": colour},
                    },
                    name=words,
                    legendgroup=convention,
                    showlegend=index == 0,
                    customdata=value,
                    hovertemplate=f"{words}<br>layer %{{x}}<br>%{{customdata:.4g}}<extra></extra>",
                ),
                **place,
            )
        for metric, (words, colour, dash) in BOUNDS.items():
            part = values_once(own[own["metric"] == metric]).sort_values("layer")
            if not part.empty:
                drawn.append(part["value"])
                fig.add_trace(
                    bound_line(part["layer"], part["value"], words, colour, dash, index == 0, "layer"),
                    **place,
                )
        fig.update_yaxes(type="log", **log_ticks(pd.concat(drawn)), **place)
        fig.update_xaxes(**whole_numbers(int(own["layer"].max()) + 1), **place)
    fig.update_yaxes(title_text="Projection error J", col=1)
    return _finish(fig, len(series))


def norms_figure(frame: pd.DataFrame) -> go.Figure:
    """‖φ(q)‖² and ‖h‖² by layer on a log axis: median over tokens, bands 25–75 % and 2.5–97.5 %; a panel per model.

    saritas2025 Figs 2 and 5. Each quantile is taken over the tokens of a head, then averaged over inputs and heads.

    Args:
        frame: phi_norm2 and h_norm2 of the analysis projection-error without per_head.

    Raises:
        InputError: no quantiles of them by layer.
    """
    rows = values_once(at_level(rows_of(frame, list(_NORMS), needs=("layer", "statistic")), "layer"))
    rows = rows[rows["statistic"].isin(_QUANTILES)]
    fig, series = _model_panels(rows, most=3)
    for index, (label, own) in enumerate(series):
        place = _place(index, len(series), most=3)
        for metric, (words, colour, dash, symbol) in _NORMS.items():
            part = own[own["metric"] == metric]
            table = part.pivot_table(index="layer", columns="statistic", values="value").sort_index()
            missing = [name for name in _QUANTILES if name not in table]
            if missing:
                raise InputError(f"{label} has no {', '.join(missing)} of {metric} by layer")
            for low, high, alpha in (("q2.5", "q97.5", 0.16), ("q25", "q75", 0.3)):
                shade = translucent(colour, alpha)
                fig.add_trace(band(table.index, table[low], table[high], shade), **place)
            fig.add_trace(
                go.Scatter(
                    x=table.index,
                    y=table["median"],
                    mode="lines+markers",
                    line={"color": colour, "dash": dash},
                    marker={"color": colour, "symbol": symbol, "size": 4, "line": {"width": 0}},
                    name=words,
                    legendgroup=metric,
                    showlegend=index == 0,
                    hovertemplate=f"{label}, {words}<br>layer %{{x}}<br>median %{{y:.3g}}<extra></extra>",
                ),
                **place,
            )
        fig.update_yaxes(type="log", **log_ticks(own["value"]), **place)
        fig.update_xaxes(**whole_numbers(int(own["layer"].max()) + 1), **place)
    fig.update_yaxes(title_text="Squared norm", col=1)
    return _finish(fig, len(series), most=3)


def bound_line(
    x: pd.Series, y: pd.Series, words: str, colour: str, dash: str, legend: bool, by: str
) -> go.Scatter:
    return go.Scatter(
        x=x,
        y=y,
        mode="lines",
        line={"color": colour, "dash": dash, "width": 1.2},
        name=words,
        legendgroup=words,
        showlegend=legend,
        hovertemplate=f"{words}<br>{by} %{{x}}<br>%{{y:.4g}}<extra></extra>",
    )


def _model_panels(rows: pd.DataFrame, most: int = 2) -> tuple[go.Figure, list[tuple[str, pd.DataFrame]]]:
    series = series_of(rows)
    columns = min(len(series), most)
    lines = -(-len(series) // columns)
    fig = make_subplots(
        lines,
        columns,
        horizontal_spacing=0.09 if columns > 1 else 0,
        vertical_spacing=40 / (150 * lines) if lines > 1 else 0,
        subplot_titles=[label for label, _ in series] if len(series) > 1 else None,
    )
    return fig, series


def _place(index: int, count: int, most: int = 2) -> dict[str, int]:
    columns = min(count, most)
    return {"row": index // columns + 1, "col": index % columns + 1}


def _finish(fig: go.Figure, count: int, most: int = 2) -> go.Figure:
    columns = min(count, most)
    lines = -(-count // columns)
    for column in range(columns):  # the lowest panel of each column
        last = max(index for index in range(count) if index % columns == column)
        fig.update_xaxes(title_text="Layer", **_place(last, count, most))
    fig.update_annotations(font={"size": None})
    top = 6 + 18 * legend_rows(fig) + (18 if count > 1 else 0)
    fig.update_layout(
        height=(160 if lines == 1 else 150 * lines) + top + 36,
        legend=LEGEND,
        margin={"l": 52, "r": 8, "t": top, "b": 36},
    )
    return fig
