"""Training of several attention variants: their curves, and what the curves come to, beside the softmax baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.core.errors import InputError, UnknownName
from workbench.figures.frames import LEGEND_ABOVE, band, legend_rows, log_ticks
from workbench.figures.theme import GREY, NULL_BAND, PAGE, translucent
from workbench.figures.variants import in_order, look_of

# metric of a training record → what its axis says, factor, logarithmic
_AXES = {
    "accuracy": ("accuracy (%)", 100, False),
    "loss": ("loss (nats)", 1, True),
    "perplexity": ("perplexity", 1, True),
    "projection_error": ("J, all layers", 1, True),
    "projection_error_last": ("J, last layer", 1, True),
    "h_norm2": ("‖h‖², all layers", 1, True),
    "h_norm2_last": ("‖h‖², last layer", 1, True),
    "phi_norm2": ("‖φ(q)‖², all layers", 1, True),
    "phi_norm2_last": ("‖φ(q)‖², last layer", 1, True),
}
_PANEL, _GAP = 165, 48  # px: a panel's height, and the room between rows of panels
_ROW = 17  # px of a variant in the dot chart
_SIDE = 118  # px for the words beside it
_DRAWN = ["value", "low", "high", "floor", "null_low", "null_high"]
_BESIDE = {"x": 1, "xref": "paper", "xanchor": "left", "xshift": 8, "showarrow": False, "align": "left"}


def training_curves_figure(
    frame: pd.DataFrame, metrics: Sequence[str] = ("accuracy", "loss"), split: str = "test", columns: int = 2
) -> go.Figure:
    """A panel per metric against the epoch: median over seeds of each variant, and a band from least to largest.

    Losses, perplexities, errors and norms that span more than a decade are on logarithmic axes. Variants look as in
    `variants.LOOKS`.

    Args:
        frame: rows of `training_record` with one model per variant of attention.
        metrics: of the record, one panel each.
        split: "test" or "train".
        columns: panels side by side.

    Raises:
        InputError: no such rows, or two models with the same attention.
        UnknownName: a metric that has no axis here, or a variant without a look.
    """
    for metric in metrics:
        if metric not in _AXES:
            raise UnknownName("metric of a training curve", metric, _AXES)
    rows = frame[(frame["split"] == split) & frame["metric"].isin(metrics) & frame["value"].notna()]
    variants = _one_model_each(rows, f"the frame has no {split} {' or '.join(metrics)}")
    columns = min(columns, len(metrics))
    lines = -(-len(metrics) // columns)
    tall = lines * _PANEL + (lines - 1) * _GAP
    fig = make_subplots(
        lines, columns, horizontal_spacing=0.1, vertical_spacing=_GAP / tall if lines > 1 else 0
    )
    for number, metric in enumerate(metrics):
        place = {"row": number // columns + 1, "col": number % columns + 1}
        words, factor, log = _AXES[metric]
        own = rows[rows["metric"] == metric].assign(value=lambda part, factor=factor: part["value"] * factor)
        for attention in variants:
            curve = own[own["attention"] == attention].groupby("epoch")["value"].agg(["median", "min", "max"])
            if curve.empty:
                continue
            look = look_of(attention)
            fig.add_trace(
                band(curve.index, curve["min"], curve["max"], translucent(look.colour, 0.13)), **place
            )
            style = look.style
            fig.add_trace(
                go.Scatter(
                    x=curve.index,
                    y=curve["median"],
                    mode="lines+markers",
                    line=style["line"],
                    marker={**style["marker"], "size": 5, "maxdisplayed": 7},
                    name=look.label,
                    legendgroup=attention,
                    showlegend=number == 0,
                    hovertemplate=f"{look.label}<br>epoch %{{x}}<br>{words} %{{y:.4g}}<extra></extra>",
                ),
                **place,
            )
        if log and own["value"].max() > 10 * own["value"].min():
            fig.update_yaxes(type="log", **log_ticks(own["value"]), **place)
        elif metric == "accuracy":
            fig.update_yaxes(dtick=25, **place)
        fig.update_yaxes(title_text=f"{split.capitalize()} {words}" if words[0].islower() else words, **place)
    fig.update_xaxes(title_text="Epoch", row=lines)
    top = 8 + 18 * legend_rows(fig)
    return fig.update_layout(
        height=tall + top + 40, legend=LEGEND_ABOVE, margin={"l": 52, "r": 8, "t": top, "b": 40}, width=PAGE
    )


def versus_baseline_figure(
    frame: pd.DataFrame,
    panels: Mapping[str, str],
    *,
    log: Sequence[str] = (),
    lines: Mapping[str, float] | None = None,
    side: Mapping[str, str] | None = None,
    side_title: str = "",
) -> go.Figure:
    """A row per variant, a panel per quantity: the value with its range, filled where it differs from the baseline's.

    A filled marker says that the difference from the softmax baseline is significant, an open one that it is
    not; where there is no value stands why. The baseline's own is filled, and a dotted line goes through it. A grey bar
    shows chance and a stroke the floor where there are columns ``null_low``, ``null_high`` and ``floor``.

    Args:
        frame: rows of `workbench.studies.baselines` (its `COLUMNS`), one model per variant.
        panels: quantity → title of its panel, in order. Accuracies are drawn in per cent.
        log: the quantities with logarithmic axes.
        lines: quantity → where its dotted line stands instead, e.g. at 1 for no change.
        side: attention → words at the right end of its row, under ``side_title``.

    Raises:
        InputError: no row of some quantity, or two models with the same attention.
    """
    variants = _one_model_each(frame, "the frame has no rows")
    for quantity in panels:
        if quantity not in set(frame["quantity"]):
            known = ", ".join(frame["quantity"].unique())
            raise InputError(f"the frame has no {quantity}; its quantities: {known}")
    titles = [*panels.values(), *([side_title] if side else [])]
    deepest = max(title.count("<br>") + 1 for title in titles)
    left, top, bottom = 108, 8 + 14 * deepest, 28
    fig = make_subplots(
        1, len(panels), shared_yaxes=True, horizontal_spacing=0.045, subplot_titles=[*panels.values()]
    )
    for number, quantity in enumerate(panels, start=1):
        place = {"row": 1, "col": number}
        own = frame[frame["quantity"] == quantity].set_index("attention")
        factor = 100 if quantity == "accuracy" else 1
        own[_DRAWN] = own.reindex(columns=_DRAWN) * factor
        for y, attention in enumerate(reversed(variants)):
            if attention in own.index and np.isfinite(own.loc[attention, "value"]):
                for trace in _row(attention, own.loc[attention], y):
                    fig.add_trace(trace, **place)
            elif attention in own.index:
                fig.add_annotation(
                    text=own.loc[attention, "finding"],
                    x=0.5,
                    y=y,
                    xref="x domain",
                    yref="y",
                    showarrow=False,
                    **place,
                )
        level = (lines or {}).get(quantity, own.loc[own["finding"] == "", "value"].mean())
        if np.isfinite(level):
            fig.add_vline(level, line={"color": GREY, "dash": "dot", "width": 1}, layer="below", **place)
        values = pd.concat([*(own[name] for name in _DRAWN), pd.Series([level])]).dropna()
        fig.update_xaxes(**(_log_axis(values) if quantity in log else {"nticks": 5}), **place)
    names = [look_of(attention).label for attention in variants]
    fig.update_yaxes(
        tickmode="array", tickvals=list(range(len(names))), ticktext=names[::-1], ticks="", showgrid=True,
        range=[-0.6, len(names) - 0.4], gridcolor="#E6E6E6", gridwidth=0.5,
    )  # fmt: skip
    fig.update_annotations(font={"size": None})
    for attention, words in (side or {}).items():
        if attention in variants:
            y = len(variants) - 1 - variants.index(attention)
            fig.add_annotation(text=words, y=y, yref="y", yanchor="middle", **_BESIDE)
    if side:
        fig.add_annotation(text=side_title, y=1, yref="paper", yanchor="bottom", **_BESIDE)
    return fig.update_layout(
        height=_ROW * len(variants) + top + bottom,
        width=PAGE,
        showlegend=False,
        margin={"l": left, "r": _SIDE if side else 10, "t": top, "b": bottom},
    )


def _log_axis(values: pd.Series) -> dict:
    """Ticks for the narrow panels of the dot chart."""
    decades = np.log10(values.max() / values.min())
    return {"type": "log", **log_ticks(values, most=4, digits=(1, 2, 5) if decades < 1 else (1, 3))}


def _row(attention: str, row: pd.Series, y: int) -> list[go.Scatter]:
    """Chance and floor where there are any; the value with its range, open where its difference is not significant."""
    look = look_of(attention)
    value = row["value"]
    low, high = row[["low", "high"]].astype(float).fillna(value)
    dot = go.Scatter(
        x=[value],
        y=[y],
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [high - value],
            "arrayminus": [value - low],
            "color": look.colour,
            "thickness": 1.2,
            "width": 0,
        },
        mode="markers",
        marker={
            "symbol": "circle",
            "size": 7,
            "color": look.colour if row["finding"] in ("", "lower", "higher") else "white",
            "line": {"color": look.colour, "width": 1.4},
        },
        name=look.label,
        customdata=[[low, high, row["finding"]]],
        hovertemplate=f"{look.label}<br>%{{x:.4g}} [%{{customdata[0]:.4g}}, %{{customdata[1]:.4g}}]"
        "<br>%{customdata[2]}<extra></extra>",
        showlegend=False,
    )
    behind = []
    if np.isfinite(row["null_low"]):
        ends = [row["null_low"], row["null_high"]]
        behind.append(band(ends, [y - 0.36] * 2, [y + 0.36] * 2, NULL_BAND))
    if np.isfinite(row["floor"]):
        behind.append(_stroke(row["floor"], y))
    return [*behind, dot]


def _stroke(value: float, y: int) -> go.Scatter:
    return go.Scatter(
        x=[value],
        y=[y],
        mode="markers",
        marker={"symbol": "line-ns-open", "size": 10, "color": GREY, "line": {"color": GREY, "width": 1.5}},
        hovertemplate="floor %{x:.4g}<extra></extra>",
        showlegend=False,
    )


def _one_model_each(rows: pd.DataFrame, nothing: str) -> list[str]:
    """The variants in the order of figures, each of which must stand for one model."""
    if rows.empty:
        raise InputError(f"{nothing}; give the result of workbench.studies.baselines")
    models = rows.groupby("attention")["model"].unique()
    for attention, own in models.items():
        if len(own) > 1:
            raise InputError(f"{', '.join(own)} all have {attention} attention; give one model per variant")
    return in_order(models.index)
