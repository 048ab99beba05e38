"""Accuracy of trained variants under attack: against the budget, and model by model at one budget."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.core.errors import InputError
from workbench.figures.frames import LEGEND_ABOVE, band, legend_rows, model_label, rows_of
from workbench.figures.theme import GREY, PAGE, translucent
from workbench.figures.variants import in_order, look_of

# Protocol: what its panel is called, in the order of the panels.
ATTACKS = {
    "fgsm": "FGSM",
    "pgd": "PGD",
    "autoattack": "AutoAttack",
    "square": "Square",
    "spsa": "SPSA",
    "cw": "Carlini–Wagner",
    "noise": "Noise",
}
_NORMS = {"Linf": "Budget ε (L∞)", "L2": "Budget ε (L2)"}
_CORRUPTIONS = "Corruptions, mean of types"
# What was evaluated in this run, over lines from the record.
NOW = {"symbol": "asterisk-open", "size": 8, "color": GREY, "line": {"color": GREY, "width": 1.2}}
_COLUMNS = 4
_ROW = 15  # px per model


def robustness_figure(
    frame: pd.DataFrame, now: pd.DataFrame | None = None, chance: float | None = None
) -> go.Figure:
    """Top-1 accuracy against the budget, a panel per attack, a line per model with its 95 % interval over images.

    The last panel is accuracy against the severity of corruptions, averaged over their types (0: clean images).
    Attacks that the frame does not hold have no panel, and a model that did not undergo one has no line in it.

    Args:
        frame: rows of an evaluation with the column attention, as `workbench.studies.records.recorded` gives them.
        now: rows of `workbench.studies.evaluate` for one model, drawn as stars above the lines.
        chance: accuracy of guessing, a dotted line.

    Raises:
        InputError: no accuracies under an attack or corruption.
        UnknownName: an attention variant without a look.
    """
    rows = rows_of(frame, "accuracy_top1", needs=("attention", "protocol"))
    panels = [name for name in ATTACKS if (rows["protocol"] == name).any()]
    if rows["severity"].notna().any():
        panels.append("corruptions")
    if not panels:
        raise InputError(f"the frame holds no attack and no corruption; choose from {', '.join(ATTACKS)}")
    columns = min(_COLUMNS, len(panels))
    lines = -(-len(panels) // columns)
    height, room = 112, 56  # px: a panel, and what lies between two
    total = lines * height + (lines - 1) * room
    fig = make_subplots(
        lines,
        columns,
        shared_yaxes=True,
        horizontal_spacing=0.03,
        vertical_spacing=room / total if lines > 1 else 0,
        subplot_titles=[ATTACKS.get(name, _CORRUPTIONS) for name in panels],
    )
    shown: set[str] = set()
    for number, protocol in enumerate(panels):
        place = {"row": number // columns + 1, "col": number % columns + 1}
        curves = {str(name): _curve(own, protocol) for name, own in rows.groupby("attention")}
        title = "Severity"
        if protocol != "corruptions":
            title = _NORMS.get(rows.loc[rows["protocol"] == protocol, "kind"].iloc[0], "Budget ε")
        reach = max(curve["x"].max() for curve in curves.values() if len(curve))
        if chance is not None:
            fig.add_trace(_chance(chance, reach, "chance" not in shown), **place)
            shown.add("chance")
        for name in in_order(curves):
            if curves[name].empty:
                continue
            for trace in _traces(curves[name], name, name not in shown):
                fig.add_trace(trace, **place)
            shown.add(name)
        if now is not None:
            curve = _curve(now[now["metric"] == "accuracy_top1"], protocol)
            if not curve.empty:
                fig.add_trace(_stars(curve, now, "now" not in shown), **place)
                shown.add("now")
        pad = 0.03 * reach
        ticks = {"dtick": 1} if protocol == "corruptions" else {"nticks": 4}
        fig.update_xaxes(title_text=title, range=[-pad, reach + pad], **ticks, **place)
    fig.update_yaxes(range=[-0.03, 1.03], tickvals=[0, 0.25, 0.5, 0.75, 1])
    for line in range(lines):
        fig.update_yaxes(title_text="Top-1 accuracy", row=line + 1, col=1)
    _hide_empty(fig, len(panels), lines, columns)
    fig.update_annotations(font={"size": None})
    top, bottom = 26 + 18 * legend_rows(fig), 38
    return fig.update_layout(
        legend=LEGEND_ABOVE, margin={"l": 48, "r": 8, "t": top, "b": bottom}, height=total + top + bottom
    )


def robustness_models_figure(
    frame: pd.DataFrame, training: pd.DataFrame, budgets: Mapping[str, float]
) -> go.Figure:
    """A row per model: clean test accuracy of every training seed, and accuracy under attacks of one budget each.

    The last panel is accuracy under corruptions, mean over types and severities. Bars are 95 % intervals over
    images. A panel about which the frame says nothing says so; a model's row is empty where it did not undergo the
    attack.

    Args:
        frame: rows of an evaluation with the column attention, as `workbench.studies.records.recorded` gives them.
        training: the training record of the models, all of which get a row.
        budgets: protocol → budget ε, a panel each.

    Raises:
        InputError: no test accuracy in `training`.
        UnknownName: an attention variant without a look.
    """
    clean = rows_of(training, "accuracy", needs=("attention", "epoch"))
    clean = clean[(clean["split"] == "test") & (clean["epoch"] == clean["epoch"].max())]
    if clean.empty:
        raise InputError("the training record holds no test accuracy; give that of models trained on digits")
    names = in_order(clean["attention"].unique())
    places = {name: len(names) - 1 - number for number, name in enumerate(names)}
    titles = ["Clean, each seed", *(f"{ATTACKS[name]}, ε = {value:g}" for name, value in budgets.items())]
    titles.append("Corruptions")
    fig = make_subplots(1, len(titles), shared_yaxes=True, horizontal_spacing=0.03, subplot_titles=titles)
    for name, own in clean.groupby("attention"):
        # Two words for one thing: `accuracy` of training is `accuracy_top1` of an evaluation.
        seeds = own.assign(low=own["value"], high=own["value"])
        fig.add_trace(_dots(seeds, str(name), places[str(name)], "clean, last epoch"), row=1, col=1)
    for column, (protocol, budget) in enumerate(budgets.items(), start=2):
        chosen = (frame["metric"] == "accuracy_top1") & (frame["protocol"] == protocol)
        part = frame[chosen & (frame["epsilon"] == budget)]
        _add_models(fig, part, places, column, titles[column - 1])
    errors = frame[(frame["metric"] == "corruption_error") & frame["kind"].isna()]
    right = errors.assign(value=1 - errors["value"].astype(float))
    _add_models(fig, right, places, len(titles), titles[-1])
    fig.update_yaxes(
        tickmode="array",
        tickvals=list(places.values()),
        ticktext=[look_of(name).label for name in places],
        range=[-0.6, len(places) - 0.4],
        ticks="",
        showgrid=True,
        gridcolor="#E6E6E6",
        gridwidth=0.5,
    )
    fig.update_xaxes(nticks=4, tickangle=0)
    fig.update_xaxes(title_text="Top-1 accuracy", row=1, col=1 + len(titles) // 2)
    fig.update_annotations(font={"size": None})
    longest = max(len(look_of(name).label) for name in places)
    return fig.update_layout(
        showlegend=False,
        margin={"l": 12 + round(5.6 * longest), "r": 14, "t": 24, "b": 38},
        height=_ROW * len(places) + 16 + 62,
        width=PAGE,
    )


def _curve(rows: pd.DataFrame, protocol: str) -> pd.DataFrame:
    """x, value, low and high of one model under one protocol; of corruptions without an interval."""
    if protocol == "corruptions":
        own = rows[rows["severity"].notna()]
        curve = own.groupby("severity")["value"].mean().rename_axis("x").reset_index()
        clean = rows[rows["protocol"] == "clean"]
        first = pd.DataFrame({"x": 0, "value": clean["value"]})
        parts = [part for part in (first, curve) if len(part)]
        joined = pd.concat(parts, ignore_index=True) if parts else curve
        return joined.astype(float).assign(low=float("nan"), high=float("nan"))
    own = rows[rows["protocol"] == protocol].rename(columns={"epsilon": "x"}).sort_values("x")
    return own[["x", "value", "low", "high"]].astype(float)


def _traces(curve: pd.DataFrame, name: str, show: bool) -> Iterable[go.Scatter]:
    look = look_of(name)
    bounded = curve.dropna()
    if len(bounded):
        yield band(bounded["x"], bounded["low"], bounded["high"], translucent(look.colour, 0.13))
    yield go.Scatter(
        x=curve["x"],
        y=curve["value"],
        mode="lines+markers",
        **look.style,
        name=look.label,
        legendgroup=name,
        showlegend=show,
        hovertemplate=f"{look.label}<br>%{{x:g}}: %{{y:.3f}}<extra></extra>",
    )


def _stars(curve: pd.DataFrame, now: pd.DataFrame, show: bool) -> go.Scatter:
    label = f"{model_label(now, now['model'].iloc[0])}, {now['n'].iloc[0]} images now"
    return go.Scatter(
        x=curve["x"],
        y=curve["value"],
        mode="markers",
        marker=NOW,
        name=label,
        legendgroup="now",
        showlegend=show,
        hovertemplate=f"{label}<br>%{{x:g}}: %{{y:.3f}}<extra></extra>",
    )


def _chance(level: float, reach: float, show: bool) -> go.Scatter:
    return go.Scatter(
        x=[0, reach],
        y=[level, level],
        mode="lines",
        line={"color": GREY, "dash": "dot", "width": 1},
        name="chance",
        legendgroup="chance",
        legendrank=1001,
        showlegend=show,
        hoverinfo="skip",
    )


def _add_models(
    fig: go.Figure, rows: pd.DataFrame, places: Mapping[str, int], column: int, words: str
) -> None:
    rows = rows[rows["attention"].isin(list(places))]
    if rows.empty:  # an invisible point keeps the panel's axes, the words stand in the middle
        middle = (len(places) - 1) / 2
        fig.add_trace(go.Scatter(x=[0.5], y=[middle], opacity=0, hoverinfo="skip"), row=1, col=column)
        fig.add_annotation(text="no data", x=0.5, y=middle, showarrow=False, row=1, col=column)
        fig.update_xaxes(showticklabels=False, ticks="", row=1, col=column)
    for name, own in rows.groupby("attention"):
        fig.add_trace(_dots(own, str(name), places[str(name)], words), row=1, col=column)


def _dots(rows: pd.DataFrame, name: str, y: int, words: str) -> go.Scatter:
    """A dot per row of one model, with its interval."""
    look = look_of(name)
    value, low, high = (rows[column].astype(float) for column in ("value", "low", "high"))
    marker = look.style["marker"]
    return go.Scatter(
        x=value,
        y=[y] * len(rows),
        mode="markers",
        marker={**marker, "size": 5.5},
        error_x={
            "type": "data",
            "symmetric": False,
            "array": (high - value).fillna(0).clip(lower=0),
            "arrayminus": (value - low).fillna(0).clip(lower=0),
            "color": look.colour,
            "thickness": 1.2,
            "width": 0,
        },
        name=look.label,
        hovertemplate=f"{look.label}, {words}: %{{x:.3f}}<extra></extra>",
    )


def _hide_empty(fig: go.Figure, used: int, lines: int, columns: int) -> None:
    for number in range(used, lines * columns):
        place = {"row": number // columns + 1, "col": number % columns + 1}
        fig.update_xaxes(visible=False, **place)
        fig.update_yaxes(visible=False, **place)
