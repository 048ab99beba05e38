"""Projection error and the two norms it compares, by layer and through training."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.core.errors import InputError
from workbench.figures.frames import (
    LEGEND_ABOVE,
    band,
    legend_rows,
    log_ticks,
    null_traces,
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
    "teo2024_as_published": ("teo2024, as published", COLOURS[1], "dash", "square"),
    "teo2024_as_implemented": ("teo2024, as implemented", COLOURS[5], "longdash", "triangle-up"),
}
BOUNDS = {
    "projection_zero_predictor": ("zero predictor", "#000000", "dashdot"),
    "projection_floor": ("floor: true projections", "#000000", "dot"),
}
_NORMS = {
    "phi_norm2": ("‖φ(q)‖²", COLOURS[0], "solid", "circle"),
    "h_norm2": ("‖h‖²", COLOURS[2], "dash", "diamond"),
}
_QUANTILES = ("q2.5", "q25", "median", "q75", "q97.5")


def projection_error_figure(frame: pd.DataFrame) -> go.Figure:
    """Projection error by layer: every convention on a log axis, and beneath the exact one over the zero predictor's.

    Where teo2024's text gives a negative number its size is drawn with an open marker. Its code's values are
    logarithms; drawn is the exponential of their mean. The lower panel shows the exact error between its floor (the
    true projections) and 1 (outputs of zeros), which an output of large norm exceeds; grey is the null distribution.
    Models stand side by side.

    Args:
        frame: the result of the analysis projection-error without per_head.

    Raises:
        InputError: no projection errors by layer.
    """
    names = ["projection_error", *BOUNDS]
    rows = at_level(rows_of(frame, names, needs=("layer",)), "layer")
    fig, series = _model_panels(rows, heights=(0.6, 0.4))
    for index, (_, own) in enumerate(series):
        upper, lower = (_place(index, len(series), part=part, parts=2) for part in (0, 1))
        drawn = [
            _add_convention(fig, own, convention, upper, index == 0)
            for convention in _CONVENTIONS
            if _is(own, convention).any()
        ]
        fig.update_yaxes(type="log", **log_ticks(pd.concat(drawn)), **upper)
        share = share_of_zero_predictor(own, "layer")
        if not share.empty:
            add_share(fig, share, "layer", lower, index == 0)
            fig.add_trace(_line(share, "exact", "exact", _CONVENTIONS["exact"], "layer"), **lower)
        for place in (upper, lower):
            fig.update_xaxes(**whole_numbers(int(own["layer"].max()) + 1), **place)
    lines = -(-len(series) // 2)
    for line in range(lines):
        fig.update_yaxes(title_text="Error J", row=2 * line + 1, col=1)
        fig.update_yaxes(title_text="Exact J<br>over ‖φ‖²", row=2 * line + 2, col=1)
    return _finish(fig, len(series), parts=2)


def _is(rows: pd.DataFrame, convention: str) -> pd.Series:
    return (rows["metric"] == "projection_error") & (rows["convention"] == convention)


def _add_convention(
    fig: go.Figure, rows: pd.DataFrame, convention: str, place: dict[str, int], legend: bool
) -> pd.Series:
    """The line of one convention; returns the sizes drawn, to choose the ticks by."""
    words, colour, dash, symbol = _CONVENTIONS[convention]
    part = values_once(rows[_is(rows, convention)]).sort_values("layer")
    value = np.exp(part["value"]) if convention == "teo2024_as_implemented" else part["value"]
    negative = value < 0
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
            showlegend=legend,
            customdata=value,
            hovertemplate=f"{words}<br>layer %{{x}}<br>%{{customdata:.4g}}<extra></extra>",
        ),
        **place,
    )
    return value.abs()


def share_of_zero_predictor(rows: pd.DataFrame, by: str) -> pd.DataFrame:
    """Exact error, floor and null distribution as shares of the zero predictor's at each place of ``by``.

    Empty without a zero predictor.
    """
    columns = ["value", *(name for name in ("null_mean", "null_low", "null_high") if name in rows)]
    zero = rows[rows["metric"] == "projection_zero_predictor"].groupby(by)["value"].first()
    exact = rows[_is(rows, "exact")].groupby(by)[columns].mean().rename(columns={"value": "exact"})
    floor = rows[rows["metric"] == "projection_floor"].groupby(by)["value"].first().rename("floor")
    return exact.join(floor).div(zero, axis=0).dropna(subset="exact").reset_index()


def add_share(fig: go.Figure, share: pd.DataFrame, by: str, place: dict[str, int], legend: bool) -> None:
    """The null distribution, floor, and the zero predictor itself, behind the exact error that the caller draws."""
    for trace in null_traces(share, by, show=legend):
        fig.add_trace(trace, **place)
    bounds = share.assign(zero_predictor=1.0)
    for name, (words, colour, dash) in BOUNDS.items():
        column = name.removeprefix("projection_")
        line = _line(bounds, column, words, (words, colour, dash, ""), by)
        fig.add_trace(line.update(showlegend=legend), **place)
    if share["exact"].max() > 10:  # a V of large norm does far worse than nothing
        fig.update_yaxes(type="log", **log_ticks(pd.concat([share["exact"], share["floor"]])), **place)
    else:
        fig.update_yaxes(rangemode="tozero", **place)


def _line(
    table: pd.DataFrame, column: str, words: str, look: tuple[str, str, str, str], by: str
) -> go.Scatter:
    _, colour, dash, symbol = look
    return go.Scatter(
        x=table[by],
        y=table[column],
        mode="lines+markers" if symbol else "lines",
        line={"color": colour, "dash": dash, **({} if symbol else {"width": 1.2})},
        marker={"color": colour, "symbol": symbol or "circle", "size": 6, "line": {"width": 0}},
        name=words,
        legendgroup=words,
        showlegend=False,
        hovertemplate=f"{words}<br>{by} %{{x}}<br>%{{y:.4g}}<extra></extra>",
    )


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


def _model_panels(
    rows: pd.DataFrame, most: int = 2, heights: tuple[float, ...] = (1.0,)
) -> tuple[go.Figure, list[tuple[str, pd.DataFrame]]]:
    """Panels for the models, at most `most` side by side, each made of parts of these relative heights."""
    series = series_of(rows)
    columns = min(len(series), most)
    lines = -(-len(series) // columns)
    titles = [label for label, _ in series] + [""] * (lines * columns - len(series))
    beneath = [""] * columns * (len(heights) - 1)
    in_order = [title for line in range(lines) for title in (*titles[line * columns :][:columns], *beneath)]
    count = lines * len(heights)
    fig = make_subplots(
        count,
        columns,
        row_heights=list(heights) * lines,
        horizontal_spacing=0.09 if columns > 1 else 0,
        vertical_spacing=36 / _height(lines, len(heights)) if count > 1 else 0,
        subplot_titles=in_order if len(series) > 1 else None,
    )
    return fig, series


def _height(lines: int, parts: int) -> float:
    """Pixels of all panels above each other: less for each where there are many."""
    return (160 if lines == 1 else 150 * lines) if parts == 1 else 270 * lines


def _place(index: int, count: int, most: int = 2, part: int = 0, parts: int = 1) -> dict[str, int]:
    columns = min(count, most)
    return {"row": index // columns * parts + part + 1, "col": index % columns + 1}


def _finish(fig: go.Figure, count: int, most: int = 2, parts: int = 1) -> go.Figure:
    columns = min(count, most)
    lines = -(-count // columns)
    for column in range(columns):  # the lowest panel of each column
        last = max(index for index in range(count) if index % columns == column)
        fig.update_xaxes(title_text="Layer", **_place(last, count, most, parts - 1, parts))
    fig.update_annotations(font={"size": None})
    top = 6 + 18 * legend_rows(fig) + (18 if count > 1 else 0)
    fig.update_layout(
        height=_height(lines, parts) + top + 36,
        legend=LEGEND_ABOVE,
        margin={"l": 52, "r": 8, "t": top, "b": 36},
    )
    return fig
