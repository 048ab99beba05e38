"""Accuracy of trained variants under attack: against the budget, and model by model at one budget."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from workbench.core.errors import InputError
from workbench.core.intervals import Finding, mean_interval, newcombe_interval, paired_interval
from workbench.figures.forest import Forest, Interval
from workbench.figures.frames import rows_of
from workbench.figures.grammar import Plot
from workbench.figures.marks import Band, Line, Rule
from workbench.figures.variants import in_order, look_of

# Protocol of an attack: what it is called, in the order of panels.
ATTACKS = {
    "fgsm": "FGSM", "pgd": "PGD", "autoattack": "AutoAttack", "square": "Square", "spsa": "SPSA",
    "cw": "Carlini–Wagner", "sld": "SLD", "noise": "Noise",
}  # fmt: skip
_NORMS = {"Linf": "Budget ε (L∞)", "L2": "Budget ε (L2)", "L1": "Budget ε (L1)"}
_CORRUPTIONS = "Corruptions"
_LAST = "corruptions"


def robustness_figure(
    frame: pd.DataFrame, chance: float | None = None, baseline: str | None = None
) -> go.Figure:
    """Top-1 accuracy against the budget, a panel per attack, a line per model with its 95 % interval over images.

    The last panel is accuracy against the severity of corruptions, averaged over their types with the interval over
    these (0: clean images). Attacks that the frame does not hold have no panel, and a model that did not undergo one
    has no line in it.

    Args:
        frame: rows of an evaluation with the column attention, as `workbench.studies.records.recorded` gives them.
        chance: accuracy of guessing, a line.
        baseline: the attention whose accuracy is taken off that of the others, in percentage points, with Newcombe's
            interval (of corruptions a paired one over their types). For variants whose curves lie on each other.

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
    order = [name for name in in_order(rows["attention"].dropna().unique()) if name != baseline]
    base = rows[rows["attention"] == baseline]
    parts = []
    for protocol in panels:
        for number, name in enumerate(order):
            curve = _curve(rows[rows["attention"] == name], protocol, base if baseline else None)
            aside = (
                (number - (len(order) - 1) / 2) * 0.05 / len(order) * (curve["x"].max() - curve["x"].min())
            )
            parts.append(curve.assign(x=curve["x"] + aside, attention=name, protocol=protocol))
    curves = pd.concat(parts)
    kinds = rows[rows["protocol"].isin(panels)].groupby("protocol")["kind"].first()
    words = {name: _NORMS.get(kind, "Budget ε") for name, kind in kinds.items()} | {_LAST: "Severity"}
    names = {name: ATTACKS.get(name, _CORRUPTIONS) for name in panels}
    types = f"corruptions: over {rows.loc[rows['severity'].notna(), 'kind'].nunique()} types"
    words_of_bars = f"95 % CI over {images_of(rows, types * (_LAST in panels))}"
    plot = Plot(curves.assign(metric="accuracy_top1"), "x", "attention", "protocol", names=names)
    title = {"y_title": "Difference in<br>accuracy (pp)"} if baseline else {}
    plot = plot.metric("accuracy_top1").scale(x_free=True, x_title=words, **title)
    plot = plot.add(
        Band(columns=("low", "high"), words=words_of_bars, bars=True), Line(words="one training seed")
    )
    if baseline:
        plot = plot.add(Rule(0, f"no difference from {look_of(baseline).label}"))
    elif chance is not None:
        plot = plot.add(Rule(chance, "chance"))
    return plot.figure("page")


def robustness_models_figure(
    frame: pd.DataFrame, training: pd.DataFrame, budgets: Mapping[str, float]
) -> go.Figure:
    """A row per model: clean test accuracy, mean over training seeds, and accuracy under attacks of one budget each.

    The last panel is accuracy under corruptions, mean over types and severities. Bars are 95 % intervals: of clean
    accuracy over seeds, of corruptions over types, else over images. All panels but the first have the same axis.
    What the frame says nothing about has no panel; a model's row is empty where it did not undergo the attack.

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
    seeds = clean.groupby("attention")["value"]
    found = [{"attention": name, **mean_interval(own).within(0, 1)._asdict()} for name, own in seeds]
    clean_title = f"Clean, mean of<br>{seeds.size().max()} seeds (enlarged)"
    parts = {clean_title: pd.DataFrame(found)}
    for protocol, budget in budgets.items():
        chosen = (frame["metric"] == "accuracy_top1") & (frame["protocol"] == protocol)
        parts[f"{ATTACKS[protocol]},<br>ε = {budget:g}"] = frame[chosen & (frame["epsilon"] == budget)]
    types = frame[(frame["metric"] == "corruption_error") & frame["kind"].notna()]
    found = [
        {"attention": name, **mean_interval(1 - own["value"].astype(float))._asdict()}
        for name, own in types.groupby("attention", sort=False)
    ]
    parts["Corruptions,<br>mean of types"] = pd.DataFrame(found)
    shown = [own.assign(panel=title, metric="accuracy_top1") for title, own in parts.items()]
    rows = pd.concat([own[own["attention"].isin(names)] for own in shown if len(own)])
    titles = {title: title for title in parts if (rows["panel"] == title).any()}
    others = f"clean: over {seeds.size().max()} seeds; corruptions: over {types['kind'].nunique()} types"
    words = f"top-1 accuracy, one training seed, 95 % CI over {images_of(rows, others)}"
    ends = np.floor(10 * np.nanmin(rows[["value", "low"]].to_numpy(dtype=float)) - 0.2) / 10, 1.02
    attacked = {title: ends for title in titles if title != clean_title}
    forest = Forest(rows, y="attention", x=titles, panel="panel").scale(range=attacked)
    return forest.add(Interval(columns=("value", "low", "high"), words=words)).figure()


def images_of(rows: pd.DataFrame, more: str = "") -> str:
    """Over how many images the accuracies of an evaluation are, attacks on fewer named: "445 images (PGD: 100)".

    ``more`` stands in the same brackets.
    """
    if not {"n", "protocol"} <= set(rows) or rows["n"].isna().all():
        return "images" + f" ({more})" * bool(more)
    counts = rows.dropna(subset="n").groupby("protocol", sort=False)["n"].max().astype(int)
    usual = counts.max()
    fewer = {name: ", ".join(ATTACKS[one] for one in own) for name, own in _by_count(counts[counts < usual])}
    said = "; ".join([*(f"{names}: {count}" for count, names in fewer.items()), *[more] * bool(more)])
    return f"{usual} images" + f" ({said})" * bool(said)


def _by_count(counts: pd.Series) -> list[tuple[int, list[str]]]:
    """The protocols of each number of images, in the order of panels."""
    order = [name for name in ATTACKS if name in counts]
    return [
        (count, [name for name in order if counts[name] == count])
        for count in sorted(counts.unique(), reverse=True)
    ]


def _curve(rows: pd.DataFrame, protocol: str, base: pd.DataFrame | None) -> pd.DataFrame:
    """x, value, low and high of one model under one protocol; of corruptions mean and interval over their types."""
    if base is not None:
        return _less(rows, base, protocol)
    if protocol == "corruptions":
        own = rows[rows["severity"].notna()]
        clean = rows.loc[rows["protocol"] == "clean", ["value", "low", "high"]].assign(x=0)
        found = [
            {"x": severity, **mean_interval(each["value"]).within(0, 1)._asdict()}
            for severity, each in own.groupby("severity")
        ]
        return pd.concat([clean, pd.DataFrame(found)])[["x", "value", "low", "high"]].astype(float)
    own = rows[rows["protocol"] == protocol].rename(columns={"epsilon": "x"}).sort_values("x")
    return own[["x", "value", "low", "high"]].astype(float)


def _less(rows: pd.DataFrame, base: pd.DataFrame, protocol: str) -> pd.DataFrame:
    """The same less the baseline's, in percentage points."""
    names = ["x", "value", "low", "high"]
    both = _curve(rows, protocol, None).merge(_curve(base, protocol, None), on="x", suffixes=("", "_base"))
    found = []
    for row in both.to_dict("records"):
        own, other = (Finding(*(row[f"{name}{end}"] for name in names[1:]), 0) for end in ("", "_base"))
        less = newcombe_interval(own, other)
        if protocol == _LAST and row["x"]:
            pair = (part[part["severity"] == row["x"]].set_index("kind")["value"] for part in (rows, base))
            less = paired_interval(*pair)
        found.append([row["x"], *(100 * end for end in less[:3])])
    return pd.DataFrame(found, columns=names)
