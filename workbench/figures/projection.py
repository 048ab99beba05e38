"""Projection error and the two norms it compares, by layer and through training."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from workbench.core.errors import InputError
from workbench.figures.frames import log_ticks, null_traces, rows_of, series_labels
from workbench.figures.grammar import SERIES, Plot
from workbench.figures.levels import at_level, values_once
from workbench.figures.marks import Band, Line, Null

_CONVENTIONS = {
    "exact": "exact",
    "saritas2025": "saritas2025",
    "teo2024_as_published": "teo2024, as published",
    "teo2024_as_implemented": "teo2024, as implemented",
}
BOUNDS = {
    "projection_zero_predictor": ("zero predictor", "#000000", "dashdot"),
    "projection_floor": ("floor: true projections", "#000000", "dot"),
}
_NORMS = {"phi_norm2": "‖φ(q)‖²", "h_norm2": "‖h‖²"}
_SHARE = "Exact J over ‖φ‖²"
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
    rows = rows.assign(series=series_labels(rows))
    errors = values_once(rows[rows["metric"] == "projection_error"])
    errors = errors.assign(
        quantity=errors["convention"].map(_CONVENTIONS), negative=errors["value"] < 0,
        value=errors["value"].abs().where(errors["convention"] != "teo2024_as_implemented", np.exp(errors["value"])),
        null_mean=np.nan, null_low=np.nan, null_high=np.nan,
    )  # fmt: skip
    errors = errors.assign(negative=errors["negative"] & (errors["convention"] != "teo2024_as_implemented"))
    shares = [_shares(own).assign(series=name) for name, own in rows.groupby("series", sort=False)]
    drawn = pd.concat([errors.assign(convention=pd.NA, null=pd.NA), *shares])
    names = {word: word for word in _CONVENTIONS.values()} | {"projection_error": "Error J"}
    plot = Plot(drawn, color="quantity", panel=SERIES, names=names)
    present = ["projection_error", _SHARE] if (drawn["metric"] == _SHARE).any() else ["projection_error"]
    plot = plot.metric(*present).scale(
        y_log={"projection_error": True, _SHARE: _wide(drawn)}, y_zero={_SHARE: True}
    )
    line = Line(words="mean over inputs and heads", hollow=("negative", "negative: its size"))
    return plot.add(Null("gaussian"), line).figure("page")


def _wide(drawn: pd.DataFrame) -> bool:
    """Whether a V of large norm does so much worse than nothing that its error needs a log axis."""
    exact = drawn[(drawn["metric"] == _SHARE) & (drawn["quantity"] == "exact")]
    return bool((exact["value"] > 10).any())


def _shares(rows: pd.DataFrame) -> pd.DataFrame:
    """Exact error with its null distribution, floor and zero predictor as shares of the zero predictor's error."""
    share = share_of_zero_predictor(rows, "layer")
    nulls = {name: share[name] for name in ("null_mean", "null_low", "null_high") if name in share}
    parts = [
        pd.DataFrame(
            {
                "layer": share["layer"],
                "quantity": "exact",
                "value": share["exact"],
                "null": "gaussian",
                **nulls,
            }
        ),
        pd.DataFrame(
            {"layer": share["layer"], "quantity": "floor: true projections", "value": share["floor"]}
        ),
        pd.DataFrame({"layer": share["layer"], "quantity": "zero predictor", "value": 1.0}),
    ]
    return pd.concat(parts).assign(metric=_SHARE, negative=False)


def _is(rows: pd.DataFrame, convention: str) -> pd.Series:
    return (rows["metric"] == "projection_error") & (rows["convention"] == convention)


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
    rows = rows.assign(series=series_labels(rows))
    table = rows.pivot_table(
        index=["series", "layer", "metric"], columns="statistic", values="value", sort=False
    )
    for label, own in table.groupby(level="series", sort=False):
        missing = [name for name in _QUANTILES if name not in own or own[name].isna().any()]
        if missing:
            raise InputError(f"{label} has no {', '.join(missing)} of its norms by layer")
    table = table.reset_index()
    drawn = table.assign(value=table["median"], quantity=table["metric"], metric="Squared norm")
    plot = Plot(drawn, color="quantity", panel=SERIES, names=_NORMS).metric("Squared norm").scale(y_log=True)
    return plot.add(
        Band(columns=("q2.5", "q97.5"), words="95 % of tokens", alpha=0.13),
        Band(columns=("q25", "q75"), words="IQR of tokens", alpha=0.27),
        Line(words="median over tokens"),
    ).figure("page")
