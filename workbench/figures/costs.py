"""What attention variants cost: a panel per quantity, a row per variant, as multiples of a baseline."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.core.errors import InputError
from workbench.figures.frames import LEGEND_ABOVE, legend_rows
from workbench.figures.theme import COLOURS, GREY, PAGE, RED
from workbench.figures.variants import LOOKS

# Panels have room for about ten letters a line.
_TITLES = {
    "parameters": "Parameters",
    "macs": "MACs",
    "seconds_per_sample": "Time",
    "peak_memory": "Memory",
}
_CONDITIONS = ("", "training", "test")
_TICKS = (0.25, 0.5, 0.7, 1, 1.5, 2, 3, 5, 10, 20, 50)
_ROW = 12.5  # px per variant
_NEEDS = ("source", "attention", "baseline", "metric", "condition", "ratio", "low", "high")


def cost_figure(frame: pd.DataFrame) -> go.Figure:
    """A dot per variant in a panel for each quantity: multiples of the baseline on one logarithmic scale.

    The bar of a dot is the interquartile range over rounds. Open diamonds are what papers print, as multiples of
    their own baselines; squares what was counted at the papers' own sizes. Rows are grouped by baseline.

    Args:
        frame: the result of `workbench.studies.training.variant_costs`, and under it as wanted `published_costs` and
            `papers_counts`, whose variants are drawn where they are measured too.

    Raises:
        InputError: another frame, or one without measured rows.
    """
    missing = [column for column in _NEEDS if column not in frame.columns]
    measured = frame[frame["source"] == "measured"] if not missing else frame.iloc[:0]
    if measured.empty:
        raise InputError(
            "the frame holds no measured costs"
            + f" (no column {', '.join(missing)})" * bool(missing)
            + "; give the "
            "result of workbench.studies.training.variant_costs"
        )
    panels = [
        (metric, condition)
        for metric in _TITLES
        for condition in _CONDITIONS
        if ((measured["metric"] == metric) & (measured["condition"] == condition)).any()
    ]
    rows = _places(measured)
    fig = make_subplots(
        1,
        len(panels),
        shared_yaxes=True,
        horizontal_spacing=0.012,
        subplot_titles=[_title(metric, condition) for metric, condition in panels],
    )
    shown: set[str] = set()
    for column, (metric, condition) in enumerate(panels, start=1):
        here = frame[(frame["metric"] == metric) & (frame["condition"] == condition)]
        for kind, style in _KINDS.items():
            part = here[_kind(here["source"]) == kind]
            part = part[[place in rows for place in _keys(part)]]
            if part.empty:
                continue
            trace = _marks(part, [rows[place] for place in _keys(part)], style, show=kind not in shown)
            shown.add(kind)
            fig.add_trace(trace, row=1, col=column)
        fig.add_vline(
            x=1, line={"color": GREY, "width": 0.8, "dash": "dot"}, layer="below", row=1, col=column
        )
    labels = {place: _label(name) for (_, name), place in rows.items()}
    longest = max(map(len, labels.values()))
    labels |= {place: f"<i>of {_label(baseline)}:</i>" for baseline, place in _headings(rows).items()}
    fig.update_yaxes(
        tickmode="array",
        tickvals=list(labels),
        ticktext=list(labels.values()),
        range=[min(labels) - 0.7, max(labels) + 0.5],
        ticks="",
        showgrid=True,
        gridcolor="#E6E6E6",
        gridwidth=0.5,
    )
    fig.update_xaxes(type="log", range=_range(frame), tickvals=list(_TICKS), tickangle=0)
    fig.update_xaxes(title_text="Relative cost (×)", col=(len(panels) + 1) // 2)
    fig.update_annotations(font={"size": None})
    margin = {"l": 10 + round(5.4 * longest), "r": 10, "t": 34 + 18 * legend_rows(fig), "b": 44}
    fig.update_layout(
        legend=LEGEND_ABOVE,
        margin=margin,
        height=round(_ROW * (max(labels) - min(labels) + 1.2)) + margin["t"] + margin["b"],
        width=PAGE,
    )
    return fig


def _title(metric: str, condition: str) -> str:
    return _TITLES[metric] + (f",<br>{condition}" if condition else "")


def _label(name: str) -> str:
    """A variant as other figures call it; with options, "rpc-sym num_iter=[5]", shorter and with these."""
    variant, _, options = name.partition(" ")
    label = LOOKS[variant].label if variant in LOOKS else variant
    return f"{label.removeprefix('symmetric ')}, {options.replace('=', ' ')}" if options else label


def _places(measured: pd.DataFrame) -> dict[tuple[str, str], float]:
    """(baseline, variant) → y, from the top down, with room for a heading above each baseline's variants."""
    places: dict[tuple[str, str], float] = {}
    y = 0.0
    for baseline, part in measured.groupby("baseline", sort=False):
        y -= 1
        for name in part["attention"].drop_duplicates():
            places[str(baseline), str(name)] = y
            y -= 1
    return places


def _headings(rows: dict[tuple[str, str], float]) -> dict[str, float]:
    first: dict[str, float] = {}
    for (baseline, _), place in rows.items():
        first.setdefault(baseline, place + 1)
    return first


def _keys(part: pd.DataFrame) -> list[tuple[str, str]]:
    return list(zip(part["baseline"], part["attention"], strict=True))


_KINDS = {
    "published": {
        "name": "published",
        "marker": {
            "symbol": "diamond-open", "size": 9, "color": RED, "line": {"width": 1.3, "color": RED}
        },
    },
    "counted": {
        "name": "counted at the paper's size",
        "marker": {
            "symbol": "square-open", "size": 7, "color": COLOURS[3], "line": {"width": 0.9, "color": COLOURS[3]}
        },
    },
    "measured": {
        "name": "measured (bar: IQR)",
        "marker": {"symbol": "circle", "size": 5.5, "color": COLOURS[0], "line": {"width": 0}},
    },
}  # fmt: skip


def _kind(sources: pd.Series) -> pd.Series:
    counted = sources.str.startswith("counted").map({True: "counted", False: "published"})
    return counted.where(sources != "measured", "measured")


def _marks(part: pd.DataFrame, y: list[float], style: dict, show: bool) -> go.Scatter:
    up, down = part["high"] - part["ratio"], part["ratio"] - part["low"]
    spread = bool((up > 0).any() or (down > 0).any())
    return go.Scatter(
        x=part["ratio"],
        y=y,
        mode="markers",
        error_x={
            "type": "data", "symmetric": False, "array": up, "arrayminus": down,
            "color": style["marker"]["color"], "thickness": 1.2, "width": 2,
        }
        if spread
        else None,
        customdata=list(zip(part["attention"], part["source"], part["value"], strict=True)),
        hovertemplate="%{customdata[0]}: %{x:.3f} (%{customdata[2]:.4g})<br>%{customdata[1]}<extra></extra>",
        legendgroup=style["name"],
        legendrank=1 if style["marker"]["symbol"] == "circle" else 2,
        showlegend=show,
        **style,
    )  # fmt: skip


def _range(frame: pd.DataFrame) -> list[float]:
    reach = frame[["ratio", "low", "high"]].to_numpy(dtype=float)
    reach = np.log10(reach[np.isfinite(reach) & (reach > 0)])
    low, high = float(reach.min()), float(reach.max())
    pad = 0.08 * ((high - low) or 1.0)
    return [low - pad, high + pad]
