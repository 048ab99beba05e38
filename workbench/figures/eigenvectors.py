"""Are the columns of V eigenvectors of the keys' Gram matrix? The published test, its floor, and the exact test."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.core.errors import InputError
from workbench.figures.frames import (
    band,
    legend_rows,
    log_ticks,
    null_traces,
    rows_of,
    series_labels,
    series_of,
)
from workbench.figures.grammar import Plot
from workbench.figures.levels import at_level, values_once
from workbench.figures.marks import Line
from workbench.figures.theme import COLOURS, GREY, translucent

CANDIDATES = {
    "true": "eigenvectors of K̃",
    "perturbed": "perturbed eigenvectors",
    "values": "from V",
}
_STYLES = {
    "true": {"color": COLOURS[0], "dash": "solid"},
    "perturbed": {"color": COLOURS[1], "dash": "dash"},
    "values": {"color": COLOURS[2], "dash": "dot"},
}
# Metric, title of its panel, whether its axis is logarithmic.
_PANELS = (
    ("gamma_abs", "|γ<sub>i</sub> − γ<sub>j</sub>|", True),
    ("gamma_rel", "|γ<sub>i</sub> − γ<sub>j</sub>| / max(|γ<sub>i</sub>|, |γ<sub>j</sub>|)", True),
    ("eigen_residual", "Eigen-residual", False),
)


def eigenvector_figure(frame: pd.DataFrame, convention: str = "as_published") -> go.Figure:
    """Differences of γ per axis, absolute and relative, and the eigen-residual: a line per candidate, a row per model.

    Lines are means over inputs, layers and heads; a band reaches one standard deviation over pairs of tokens above
    its line. In the absolute panel the dash-dotted line is mean |γ| of the true axes, which the differences are to be
    read against, and the grey dotted line what rounding alone gives. Grey bands in the last panel are the null
    distribution.

    Args:
        frame: the result of the analysis eigenvector-test without per_head.
        convention: of the relative difference: "as_published"; "as_implemented" adds 1e-10 to its denominator.

    Raises:
        InputError: no values of gamma_abs, gamma_rel and eigen_residual by rank over all inputs and layers.
    """
    names = [name for name, _, _ in _PANELS]
    needed = rows_of(frame, [*names, "gamma_floor", "gamma_size"], needs=("rank", "candidate"))
    needed = _of_convention(needed, convention)
    series = series_of(at_level(needed[needed["rank"].notna()], "overall"))
    fig = make_subplots(
        len(series),
        3,
        horizontal_spacing=0.1,
        vertical_spacing=0.2 / len(series) if len(series) > 1 else 0,
        subplot_titles=[title for _, title, _ in _PANELS],
        row_titles=[label for label, _ in series] if len(series) > 1 else None,
    )
    for line, (_, rows) in enumerate(series, start=1):
        for column, (metric, _, logarithmic) in enumerate(_PANELS, start=1):
            place = {"row": line, "col": column}
            part = rows[rows["metric"] == metric]
            if metric == "eigen_residual":  # the nulls replace V
                for trace in null_traces(part[part["candidate"] == "values"], "rank", show=line == 1):
                    fig.add_trace(trace, **place)
            values = values_once(part)
            drawn = [
                _draw(fig, values[values["candidate"] == name], name, place, line + column == 2)
                for name in CANDIDATES
            ]
            if metric == "gamma_abs":
                drawn += _references(fig, rows, place, line == 1)
            if logarithmic:
                fig.update_yaxes(type="log", **log_ticks(pd.concat(drawn)), **place)
            else:
                fig.update_yaxes(range=[-0.04, 1.04], **place)
    fig.update_xaxes(title_text="Axis", row=len(series))
    fig.update_annotations(font={"size": None})
    fig.update_layout(
        legend={
            "orientation": "h",
            "x": 0,
            "xanchor": "left",
            "y": 1.0,
            "yref": "container",
            "yanchor": "top",
        },
        height=150 * len(series) + 54 + 18 * legend_rows(fig),
        margin={"l": 50, "r": 24 if len(series) > 1 else 8, "t": 28 + 18 * legend_rows(fig), "b": 36},
    )
    return fig


def _of_convention(rows: pd.DataFrame, convention: str) -> pd.DataFrame:
    """Rows of one convention, and those that have none."""
    if "convention" not in rows or rows["convention"].isna().all():
        return rows
    chosen = rows[rows["convention"].isna() | (rows["convention"] == convention)]
    if not (chosen["convention"] == convention).any():
        raise InputError(
            f"no value has convention {convention!r}; there are {sorted(rows['convention'].dropna().unique())}"
        )
    return chosen


def _draw(fig: go.Figure, rows: pd.DataFrame, candidate: str, place: dict, legend: bool) -> pd.Series:
    """A candidate's line and band; returns what is drawn, to choose the ticks by."""
    rows = rows[rows["candidate"] == candidate].sort_values("rank")
    single = rows["statistic"].isna().all() if "statistic" in rows else True
    mean = rows if single else rows[rows["statistic"] == "mean"]
    if mean.empty:
        return pd.Series(dtype=float)
    style = _STYLES[candidate]
    drawn = mean["value"]
    if not single:
        both = mean[["rank", "value"]].merge(
            rows.loc[rows["statistic"] == "std", ["rank", "value"]], on="rank", suffixes=("", "_std")
        )
        above = both["value"] + both["value_std"]
        if not both.empty:
            fig.add_trace(
                band(both["rank"], both["value"], above, translucent(style["color"], 0.18)), **place
            )
        drawn = pd.concat([drawn, above])
    fig.add_trace(
        go.Scatter(
            x=mean["rank"],
            y=mean["value"],
            mode="lines",
            line=style,
            name=CANDIDATES[candidate],
            legendgroup=candidate,
            showlegend=legend,
            hovertemplate=f"{CANDIDATES[candidate]}<br>axis %{{x}}<br>%{{y:.3g}}<extra></extra>",
        ),
        **place,
    )
    return drawn


def _references(fig: go.Figure, rows: pd.DataFrame, place: dict, legend: bool) -> list[pd.Series]:
    """Mean |γ| of the true axes, and what rounding alone makes of their differences."""
    drawn = []
    for metric, words, line in (
        ("gamma_size", "mean |γ| of the eigenvectors", {"color": "#000000", "dash": "dashdot", "width": 1}),
        ("gamma_floor", "round-off", {"color": GREY, "dash": "dot", "width": 1.2}),
    ):
        own = values_once(rows[rows["metric"] == metric]).sort_values("rank")
        if own.empty:
            continue
        drawn.append(own["value"])
        fig.add_trace(
            go.Scatter(
                x=own["rank"],
                y=own["value"],
                mode="lines",
                line=line,
                name=words,
                legendgroup=metric,
                showlegend=legend,
                hovertemplate=f"{words}<br>axis %{{x}}<br>%{{y:.3g}}<extra></extra>",
            ),
            **place,
        )
    return drawn


def eigenvector_layers_figure(
    frame: pd.DataFrame, metric: str = "gamma_abs", convention: str = "as_published"
) -> go.Figure:
    """Differences of γ per axis in every layer (teo2024 Figs 2 right, 5): a column per candidate, a row per model.

    Lines are means over pairs, inputs and heads, dark for the first layer to light for the last. Every panel has an
    axis of its own: true axes differ by rounding alone, the others by ten powers of ten more.

    Args:
        frame: the result of the analysis eigenvector-test without per_head.
        metric: gamma_abs, gamma_rel or eigen_residual.
        convention: as for `eigenvector_figure`.

    Raises:
        InputError: no such values by layer and rank, or another metric.
    """
    titles = {name: title for name, title, _ in _PANELS}
    if metric not in titles:
        raise InputError(f"metric is {metric!r}; choose one of {', '.join(titles)}")
    rows = _of_convention(rows_of(frame, metric, needs=("rank", "layer", "candidate")), convention)
    rows = at_level(rows, "layer")
    rows = values_once(rows[rows["statistic"].isna() | (rows["statistic"] == "mean")])
    shown = rows[rows["candidate"].isin([*CANDIDATES])].assign(
        convention=pd.NA, statistic=pd.NA, null_mean=pd.NA
    )
    labels = series_labels(shown)
    several = labels.nunique() > 1  # a row of panels each
    words = {label: titles[metric] + (f"<br>{label}" if several else "") for label in dict.fromkeys(labels)}
    plot = Plot(
        shown.assign(metric=labels), x="rank", color="layer", panel="candidate", names=CANDIDATES | words
    )
    plot = plot.metric(*words).scale(y_free=True, y_log=metric != "eigen_residual", x_title="Axis")
    return plot.add(Line(markers=False, words="mean over pairs, inputs and heads")).figure("page")
