"""Corrupted and out-of-distribution images: errors relative to the baseline, and how well the latter are recognised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.core.errors import InputError
from workbench.figures.frames import LEGEND_ABOVE, legend_rows, rows_of
from workbench.figures.theme import COLOURS, GREY, PAGE, SYMBOLS
from workbench.figures.variants import in_order, look_of

ALL = "all types"
_RATIOS = (0.1, 0.2, 0.5, 1, 2, 5, 10)  # ticks
_FOREIGN = {"inverted": "inverted", "photographs": "photos", "noise": "noise"}
_LINE, _ROW = 21, 15  # px per corruption, per model


def corruptions_figure(
    ratios: pd.DataFrame, groups: Mapping[str, Sequence[str]], published: pd.DataFrame | None = None
) -> go.Figure:
    """Error under each corruption relative to the baseline's, a panel per group of variants; lower is better.

    Bars are 95 % intervals. The last line is the geometric mean of all types.

    Args:
        ratios: the result of `workbench.studies.baselines.ratios_to_baseline` for corruption_error, with the column
            attention.
        groups: title → attention variants of a panel; those that have no rows are left out.
        published: columns attention, kind (a corruption, or `ALL`) and ratio.

    Raises:
        InputError: no ratios of these variants.
    """
    rows = ratios[ratios["ratio"].notna()].assign(kind=ratios["kind"].fillna(ALL))
    panels = {
        title: [name for name in in_order(names) if (rows["attention"] == name).any()]
        for title, names in groups.items()
    }
    panels = {title: names for title, names in panels.items() if names}
    if not panels:
        raise InputError(
            "no errors relative to a baseline; give the result of `ratios_to_baseline` for corruption_error"
        )
    kinds = [kind for kind in dict.fromkeys(rows["kind"]) if kind != ALL] + [ALL]
    places = {kind: len(kinds) - 1 - number for number, kind in enumerate(kinds)}
    fig = make_subplots(
        1, len(panels), shared_yaxes=True, horizontal_spacing=0.03, subplot_titles=list(panels)
    )
    for column, names in enumerate(panels.values(), start=1):
        step = 0.7 / (len(names) + 1)
        for number, name in enumerate(names):
            shift = step * ((len(names) - 1) / 2 - number)
            own = rows[rows["attention"] == name]
            fig.add_trace(_ratios(own, name, places, shift), row=1, col=column)
            if published is not None and (published["attention"] == name).any():
                printed = published[(published["attention"] == name) & published["kind"].isin(kinds)]
                shown = any(trace.name == "published" for trace in fig.data)
                fig.add_trace(_published(printed, places, shift - 0.28, not shown), row=1, col=column)
        fig.add_vline(x=1, line={"color": GREY, "width": 0.75, "dash": "dot"}, row=1, col=column)
    words = [f"{ratio:g}" for ratio in _RATIOS]
    fig.update_xaxes(type="log", tickmode="array", tickvals=_RATIOS, ticktext=words, tickangle=0)
    fig.update_xaxes(title_text="Error relative to baseline (ratio)", row=1, col=(len(panels) + 1) // 2)
    fig.update_yaxes(
        tickmode="array", tickvals=list(places.values()), ticktext=list(places), range=[-0.6, len(kinds) - 0.4],
        ticks="", showgrid=True, gridcolor="#E6E6E6", gridwidth=0.5,
    )  # fmt: skip
    fig.add_hline(y=0.5, line={"color": "black", "width": 0.5})
    fig.update_annotations(font={"size": None})
    top, bottom = 24 + 18 * legend_rows(fig), 38
    return fig.update_layout(
        legend=LEGEND_ABOVE,
        margin={"l": 108, "r": 10, "t": top, "b": bottom},
        height=_LINE * len(kinds) + top + bottom,
        width=PAGE,
    )


def ood_figure(frame: pd.DataFrame) -> go.Figure:
    """AUPR of out-of-distribution images by the largest probability, a row per model; guessing gives 1/2.

    Args:
        frame: rows of an evaluation with the column attention, as `workbench.studies.records.recorded` gives them.

    Raises:
        InputError: no AUPR in the frame.
    """
    rows = rows_of(frame, "aupr", needs=("attention", "kind"))
    names = in_order(rows["attention"].unique())
    fig = go.Figure()
    for number, (kind, words) in enumerate(_FOREIGN.items()):
        own = rows[rows["kind"] == kind]
        symbol = SYMBOLS[number]
        fig.add_scatter(
            x=own["value"],
            y=[len(names) - 1 - names.index(name) for name in own["attention"]],
            mode="markers",
            marker={
                "symbol": symbol,
                "color": COLOURS[(0, 3, 2)[number]],
                "size": 6,
                "line": {"width": 1.2 if symbol.endswith("-open") else 0},
            },
            name=words,
            hovertemplate=f"{words}: %{{x:.3f}}<extra></extra>",
        )
    fig.add_vline(x=0.5, line={"color": GREY, "width": 1, "dash": "dot"})
    fig.add_annotation(
        text="chance",
        x=0.5,
        y=len(names) - 0.45,
        xanchor="left",
        xshift=2,
        showarrow=False,
        font={"color": GREY},
    )
    labels = [look_of(name).label for name in names]
    fig.update_yaxes(
        tickmode="array", tickvals=list(range(len(names))), ticktext=labels[::-1],
        range=[-0.6, len(names) - 0.1], ticks="", showgrid=True, gridcolor="#E6E6E6", gridwidth=0.5,
    )  # fmt: skip
    fig.update_xaxes(
        title_text="AUPR of out-of-distribution images",
        range=[min(0.45, float(rows["value"].min()) - 0.03), 1.01],
    )
    return fig.update_layout(
        legend=LEGEND_ABOVE,
        margin={"l": 14 + round(5.6 * max(map(len, labels))), "r": 10, "t": 46, "b": 38},
        height=_ROW * len(names) + 94,
    )


def _ratios(rows: pd.DataFrame, name: str, places: Mapping[str, float], shift: float) -> go.Scatter:
    look = look_of(name)
    return go.Scatter(
        x=rows["ratio"],
        y=[places[kind] + shift for kind in rows["kind"]],
        mode="markers",
        marker={**look.style["marker"], "size": 5},
        error_x={
            "type": "data",
            "symmetric": False,
            "array": (rows["high"] - rows["ratio"]).fillna(0),
            "arrayminus": (rows["ratio"] - rows["low"]).fillna(0),
            "color": look.colour,
            "thickness": 1,
            "width": 0,
        },
        name=look.label,
        hovertemplate=f"{look.label}: %{{x:.3g}}<extra></extra>",
    )


def _published(rows: pd.DataFrame, places: Mapping[str, float], shift: float, show: bool) -> go.Scatter:
    return go.Scatter(
        x=rows["ratio"],
        y=[places[kind] + shift for kind in rows["kind"]],
        mode="markers",
        marker={"color": COLOURS[2], "symbol": "diamond-open", "size": 5, "line": {"width": 1}},
        name="published",
        showlegend=show,
        hovertemplate="published: %{x:.3f}<extra></extra>",
    )
