"""How the cost of attention operators grows: time and memory along sweeps, and the exponents fitted to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.core.errors import InputError
from workbench.figures.frames import LEGEND_ABOVE, band, legend_rows, log_ticks
from workbench.figures.theme import GREY, PAGE, translucent
from workbench.figures.variants import LOOKS, Look
from workbench.papers.operators import CONDITIONS, SWEEPS

_OPERATORS: dict[str, Look] = {
    "softmax": LOOKS["softmax"],
    "softmax-eager": Look("softmax, eager", "#BB5566", "dash", "circle-open"),
    **{name: LOOKS[name] for name in ("softmax-sym", "mssa", "xca", "tssa", "primal")},
}
"""Operators in the order of the figures; a causal one looks like the one it is the causal form of."""
_METRICS = {"seconds_per_sample": ("Time", "s", 1.0), "device_memory": ("Peak memory", "MiB", 2**-20)}
_AXES = {"tokens": "Tokens n", "width": "Width d"}
_ROW, _PANEL = 15, 150  # px: of an operator among exponents, of a panel of curves


def scaling_figure(frame: pd.DataFrame, sweeps: Sequence[str]) -> go.Figure:
    """Time and peak memory along sweeps, on logarithmic axes: a row of panels per condition, a line per operator.

    Bands hold the interquartile range of the passes. A cross after the last point of a line says that the next size
    would take too long, or not fit.

    Args:
        frame: the result of `workbench.studies.scaling.scaling_study`, or `workbench.studies.records.scaling_record`.
        sweeps: those to draw, two columns of panels each.

    Raises:
        InputError: no measured point of a sweep.
    """
    conditions = [name for name in CONDITIONS if (frame["condition"] == name).any()]
    columns = [(sweep, metric) for sweep in sweeps for metric in _METRICS]
    fig = make_subplots(
        max(1, len(conditions)), len(columns), shared_xaxes=True, horizontal_spacing=0.075, vertical_spacing=0.06
    )  # fmt: skip
    shown_once: set[str] = set()
    for column, (sweep, metric) in enumerate(columns, start=1):
        rows = frame[frame["sweep"] == sweep]
        drawn = rows[rows["metric"] == metric]
        if drawn.empty:
            raise InputError(
                f"the frame holds no {metric} of the sweep {sweep!r}; give the result of "
                "workbench.studies.scaling.scaling_study"
            )
        name, unit, factor = _METRICS[metric]
        axis = SWEEPS[sweep].axis
        for row, condition in enumerate(conditions, start=1):
            here = rows[rows["condition"] == condition]
            for operator in _in_order(here["operator"]):
                for trace in _curve(here[here["operator"] == operator], operator, metric, axis, factor):
                    trace.showlegend = trace.showlegend is not False and trace.name not in shown_once
                    shown_once.add(str(trace.name))
                    fig.add_trace(trace, row=row, col=column)
            place = {"row": row, "col": column}
            values = factor * here.loc[here["metric"] == metric, ["value", "low", "high"]].stack()
            ticks = log_ticks(values[values > 0], most=5) if (values > 0).any() else {}
            fig.update_yaxes(type="log", **ticks, **place)
            fig.update_xaxes(type="log", **_doublings(drawn[axis]), **place)
        fig.update_xaxes(title_text=_AXES[axis], row=len(conditions), col=column)
        fig.add_annotation(
            text=f"{name} ({unit})<br>{_heading(sweep)}", x=0.5, y=1, xref="x domain", yref="y domain",
            yanchor="bottom", yshift=2, showarrow=False, row=1, col=column,
        )  # fmt: skip
    for row, condition in enumerate(conditions, start=1):
        fig.update_yaxes(title_text=condition.capitalize(), title_standoff=4, row=row, col=1)
    top = 38 + 18 * legend_rows(fig)
    return fig.update_layout(
        height=_PANEL * len(conditions) + top + 40,
        width=PAGE,
        legend=LEGEND_ABOVE,
        margin={"l": 52, "r": 14, "t": top, "b": 40},
    )


def _curve(rows: pd.DataFrame, operator: str, metric: str, axis: str, factor: float) -> list[go.Scatter]:
    """The band and the line of an operator, and the cross where it ended."""
    look = _look(operator)
    own = rows[rows["metric"] == metric].sort_values(axis)
    if own.empty:
        return []
    traces = []
    if own["low"].notna().all():
        shade = translucent(look.colour, 0.2)
        traces.append(band(own[axis], factor * own["low"], factor * own["high"], shade))
    style = look.style
    traces.append(
        go.Scatter(
            x=own[axis],
            y=factor * own["value"],
            mode="lines+markers",
            line={**style["line"], "width": 1.3},
            marker={**style["marker"], "size": 4.5},
            name=look.label,
            legendgroup=look.label,
            hovertemplate=f"{look.label}<br>%{{x}}: %{{y:.3g}}<extra></extra>",
        )
    )
    ended = rows[rows["ended"].notna()]
    if len(ended):
        traces.append(
            go.Scatter(
                x=own[axis].tail(1),
                y=factor * own["value"].tail(1),
                mode="markers",
                marker={"symbol": "x-thin-open", "size": 8, "color": GREY, "line": {"color": GREY, "width": 1}},
                name="ended: the next size would pass 30 s, or not fit",
                legendgroup="ended",
                legendrank=2000,
                text=ended["ended"].head(1),
                hovertemplate=f"{look.label} ends: %{{text}}<extra></extra>",
            )
        )  # fmt: skip
    return traces


def exponents_figure(exponents: pd.DataFrame, printed: pd.DataFrame) -> go.Figure:
    """A row per operator and a panel per sweep, above for time, below for memory: fitted exponents with intervals.

    Filled dots are of a forward pass, open ones of forward and backward, with 95 % intervals of the fit; strokes what
    the counted multiply–accumulates, or bytes of tensors, come to at the same sizes; diamonds what is printed.

    Args:
        exponents: the result of `workbench.studies.scaling.scaling_exponents`.
        printed: that of `workbench.studies.scaling.printed_exponents`.

    Raises:
        InputError: no fitted exponent.
    """
    if exponents.empty:
        raise InputError(
            "no curve has the three sizes that a fit needs; measure more sizes, or raise the budget"
        )
    sweeps = list(dict.fromkeys(exponents["sweep"]))
    operators = _in_order(exponents["operator"].map(_plain))
    places = {name: -place for place, name in enumerate(operators)}
    frame = pd.concat([printed[printed["sweep"].isin(sweeps)], exponents], ignore_index=True)
    fig = make_subplots(
        2, len(sweeps), shared_yaxes=True, shared_xaxes="rows", horizontal_spacing=0.03, vertical_spacing=0.13
    )  # fmt: skip
    shown_once: set[str] = set()
    for column, sweep in enumerate(sweeps, start=1):
        for row, quantity in enumerate(("time", "memory"), start=1):
            here = frame[(frame["sweep"] == sweep) & frame["metric"].str.startswith(quantity)]
            here = here[here["operator"].map(_plain).isin(places)]
            for kind, style in _KINDS.items():
                part = here[_kind(here) == kind]
                if part.empty:
                    continue
                y = part["operator"].map(_plain).map(places) + style["shift"]
                trace = _exponents(part, y, style)
                trace.showlegend = style["name"] not in shown_once
                shown_once.add(style["name"])
                fig.add_trace(trace, row=row, col=column)
            axis = "d" if here["metric"].str.endswith("head_dim").any() else "n"
            words = f"{quantity.capitalize()}, power of {axis}"
            fig.update_xaxes(title_text=words, title_standoff=3, dtick=1, row=row, col=column)
        fig.add_annotation(
            text=_heading(sweep), x=0.5, y=1, xref="x domain", yref="y domain", yanchor="bottom", yshift=2,
            showarrow=False, row=1, col=column,
        )  # fmt: skip
    labels = [_look(name).label for name in operators]
    fig.update_yaxes(
        tickmode="array", tickvals=list(places.values()), ticktext=labels, ticks="", showgrid=True,
        gridcolor="#E6E6E6", gridwidth=0.5, range=[0.6 - len(operators), 0.6],
    )  # fmt: skip
    fig.update_xaxes(range=_reach(frame))
    top = 38 + 18 * legend_rows(fig)
    return fig.update_layout(
        height=2 * (_ROW * len(operators) + 26) + top + 56,
        width=PAGE,
        legend=LEGEND_ABOVE,
        margin={"l": 12 + round(5.6 * max(map(len, labels))), "r": 16, "t": top, "b": 40},
    )


def _heading(sweep: str) -> str:
    """What stays as it is along a sweep."""
    known = SWEEPS[sweep]
    causal = "causal, " * all(name.endswith("-causal") for name in known.operators)
    return f"{causal}{'d' if known.axis == 'tokens' else 'n'} = {known.fixed}, {known.heads} heads"


_KINDS: dict[str, dict[str, Any]] = {
    "counted": {
        "name": "counted", "shift": 0,
        "marker": {"symbol": "line-ns-open", "size": 10, "color": GREY, "line": {"color": GREY, "width": 1.5}},
    },
    "printed": {
        "name": "wu2025 Table 1 (one head)", "shift": 0,
        "marker": {
            "symbol": "diamond-open", "size": 9, "color": "#BB5566", "line": {"color": "#BB5566", "width": 1.2}
        },
    },
    "forward": {
        "name": "fitted, forward", "shift": 0.17,
        "marker": {"symbol": "circle", "size": 5.5, "color": "#004488", "line": {"width": 0}},
    },
    "forward + backward": {
        "name": "fitted, forward + backward", "shift": -0.17,
        "marker": {
            "symbol": "circle", "size": 5.5, "color": "white", "line": {"color": "#004488", "width": 1.3}
        },
    },
}  # fmt: skip


def _kind(rows: pd.DataFrame) -> pd.Series:
    """Either "printed", "counted", or the condition of what was measured; counts of a pass stand for both."""
    kinds = rows["condition"].astype(object).where(rows["source"] == "measured", "printed")
    counted = rows["source"] == "counted"
    return kinds.mask(counted & (rows["condition"] == CONDITIONS[0]), "counted").mask(
        counted & (rows["condition"] != CONDITIONS[0]), ""
    )


def _exponents(part: pd.DataFrame, y: pd.Series, style: dict[str, Any]) -> go.Scatter:
    known = part["low"].notna().any()
    return go.Scatter(
        x=part["value"],
        y=y,
        mode="markers",
        error_x={
            "type": "data", "symmetric": False, "array": part["high"] - part["value"],
            "arrayminus": part["value"] - part["low"], "color": "#004488", "thickness": 1.1, "width": 0,
        }
        if known
        else None,
        customdata=part["operator"].map(lambda name: _look(name).label),
        hovertemplate="%{customdata}: %{x:.2f}<extra>" + style["name"] + "</extra>",
        name=style["name"],
        legendgroup=style["name"],
        legendrank=1 if part["source"].iloc[0] == "measured" else 2,
        marker=style["marker"],
    )  # fmt: skip


def _reach(frame: pd.DataFrame) -> list[float]:
    """All exponents; intervals only as far as three: of three points, some reach across the page."""
    values = frame["value"].dropna()
    ends = frame[["low", "high"]].stack().dropna().clip(-0.5, 3)
    reach = np.concatenate([values, ends, [0, 2]])
    return [float(reach.min()) - 0.2, float(reach.max()) + 0.2]


def _plain(operator: str) -> str:
    return operator.removesuffix("-causal")


def _look(operator: str) -> Look:
    return _OPERATORS[_plain(operator)]


def _in_order(operators: pd.Series) -> list[str]:
    """The operators in the order of figures, each once."""
    return sorted(set(operators), key=lambda name: [*_OPERATORS].index(_plain(name)))


def _doublings(sizes: pd.Series) -> dict:
    """Ticks at every second or so of the sizes, which double; thousands as k = 1024."""
    known = sorted(set(sizes.astype(int)))
    step = max(1, -(-len(known) // 4))
    shown = known[::-1][::step][::-1]
    return {
        "tickmode": "array",
        "tickvals": shown,
        "ticktext": [f"{size // 1024}k" if size % 1024 == 0 else str(size) for size in shown],
        "tickangle": 0,
    }
