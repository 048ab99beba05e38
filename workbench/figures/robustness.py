"""Accuracy of trained variants under attack: against the budget, and model by model at one budget."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from workbench.core.errors import InputError
from workbench.core.intervals import mean_interval
from workbench.figures.forest import Forest, Interval
from workbench.figures.frames import model_label, rows_of
from workbench.figures.grammar import Plot
from workbench.figures.marks import Band, Line, Points, Rule
from workbench.figures.variants import in_order

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
_LAST = "corruptions"


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
    in_order(rows["attention"].dropna().unique())
    curves = pd.concat(
        _curve(own, protocol).assign(attention=name, protocol=protocol)
        for protocol in panels
        for name, own in rows.groupby("attention")
    )
    kinds = rows[rows["protocol"].isin(panels)].groupby("protocol")["kind"].first()
    words = {name: _NORMS.get(kind, "Budget ε") for name, kind in kinds.items()} | {_LAST: "Severity"}
    names = {name: ATTACKS.get(name, _CORRUPTIONS) for name in panels}
    plot = Plot(
        curves.assign(metric="accuracy_top1"), x="x", color="attention", panel="protocol", names=names
    )
    plot = plot.metric("accuracy_top1").scale(x_free=True, x_title=words)
    plot = plot.add(
        Band(columns=("low", "high"), words="95 % CI over images", alpha=0.13), Line(words="top-1 accuracy")
    )
    if chance is not None:
        plot = plot.add(Rule(chance, "chance"))
    if now is not None:
        own = now[now["metric"] == "accuracy_top1"]
        label = f"{model_label(now, now['model'].iloc[0])}, {now['n'].iloc[0]} images now"
        stars = pd.concat([_curve(own, name).assign(protocol=name) for name in panels])
        plot = plot.add(Points(stars, label, by=("protocol",)))
    return plot.figure("page")


def robustness_models_figure(
    frame: pd.DataFrame, training: pd.DataFrame, budgets: Mapping[str, float]
) -> go.Figure:
    """A row per model: clean test accuracy of every training seed, and accuracy under attacks of one budget each.

    The last panel is accuracy under corruptions, mean over types and severities. Bars are 95 % intervals over
    images, there over types. What the frame says nothing about has no panel; a model's row is empty where it did not
    undergo the attack.

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
    # Two words for one thing: `accuracy` of training is `accuracy_top1` of an evaluation.
    parts = {"Clean, each seed": clean.assign(low=np.nan, high=np.nan)}
    for protocol, budget in budgets.items():
        chosen = (frame["metric"] == "accuracy_top1") & (frame["protocol"] == protocol)
        parts[f"{ATTACKS[protocol]}, ε = {budget:g}"] = frame[chosen & (frame["epsilon"] == budget)]
    types = frame[(frame["metric"] == "corruption_error") & frame["kind"].notna()]
    found = [
        {"attention": name, **mean_interval(1 - own["value"].astype(float))._asdict()}
        for name, own in types.groupby("attention", sort=False)
    ]
    parts["Corruptions,<br>CI over types"] = pd.DataFrame(found)
    shown = [own.assign(panel=title, metric="accuracy_top1") for title, own in parts.items()]
    rows = pd.concat([own[own["attention"].isin(names)] for own in shown if len(own)])
    titles = {title: title for title in parts if (rows["panel"] == title).any()}
    words = "top-1 accuracy, 95 % CI over images"
    forest = Forest(rows, y="attention", x=titles, panel="panel")
    return forest.add(Interval(columns=("value", "low", "high"), words=words)).figure()


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
