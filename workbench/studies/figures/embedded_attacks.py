"""Embedded tasks under perturbation: test scores against the budget of an attack, or the share of words swapped."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import pandas as pd
import plotly.graph_objects as go

from workbench.core.errors import InputError
from workbench.figures.grammar import Plot
from workbench.figures.marks import Band, Line, Rule
from workbench.studies.figures.embedded_tasks import MAJORITY, NAMES, axis_of
from workbench.studies.figures.perturbed_inputs import ATTACKS

_BUDGET = r"(?P<protocol>[a-z-]+) (?P<epsilon>[\d.e-]+)"
_BASELINE, _MECHANISM = "softmax", "the mechanism of the panel"
_SEVERAL = "its baseline"
_CALLED = {**ATTACKS, "word-swap": "words swapped"}


def embedded_budgets_figure(
    frame: pd.DataFrame, metric: str = "accuracy", baselines: Mapping[str, str] = MappingProxyType({})
) -> go.Figure:
    """Draw the test score against the budget: a panel per mechanism, data set and attack, its baseline behind it.

    Lines are means over seeds, bands go from the least to the largest; one seed has no band. A panel shows the budgets
    that both have on record. The budget of swapped words is their share.

    Args:
        frame: the result of `workbench.studies.records.embedded_record`.
        metric: accuracy or mean_iou.
        baselines: mechanism → the variant behind it; softmax by default. A baseline has no panel.

    Raises:
        InputError: no rows of a budget, or a metric without an axis.
    """
    words, factor, _ = axis_of(metric)
    rows = frame[(frame["metric"] == metric) & frame["variant"].isin([*NAMES])]
    rows = rows.join(rows["split"].str.extract(_BUDGET)).dropna(subset="protocol")
    if rows.empty:
        raise InputError(f"the frame has no {metric} under a budget; give the result of embedded_record()")
    trivial = frame[(frame["variant"] == MAJORITY) & (frame["metric"] == metric)]
    rows = rows.assign(
        epsilon=rows["epsilon"].astype(float),
        value=rows["value"] * factor,
        trivial=rows["data"].map(trivial.groupby("data")["value"].first() * factor),
        attack=rows["data"] + ", " + rows["protocol"].map(_CALLED),
    ).drop(columns="attention")
    behind = {_BASELINE, *baselines.values()}
    mechanisms = [name for name in NAMES if name in set(rows["variant"]) - behind] or [_BASELINE]
    pairs = {name: baselines.get(name, _BASELINE) for name in mechanisms}
    several = len({*pairs.values()}) > 1
    seeds = rows.groupby(["data", "variant"])["seed"].nunique()
    panels = [
        own.assign(
            metric=attack,
            panel=NAMES[name]
            + " (one seed)" * int(seeds[held["data"].iloc[0], name] == 1)
            + f"<br>against {NAMES[baseline]}" * several,
            whose=own["variant"].map({name: _MECHANISM, baseline: _SEVERAL if several else NAMES[baseline]}),
        )
        for attack, held in rows.groupby("attack", sort=False)
        for name, baseline in pairs.items()
        if len(own := _at_shared_budgets(held, [*dict.fromkeys((name, baseline))]))
    ]
    rows = pd.concat(panels, ignore_index=True)
    swapped = rows["protocol"].eq("word-swap").unique()
    title = " or ".join("share of words" if one else "budget ε (L∞)" for one in swapped)
    attacks = [*rows["metric"].unique()]
    many = " or ".join(map(str, sorted(seeds[seeds > 1].unique()))) or "1"
    plot = Plot(rows, "epsilon", "whose", "panel").metric(*attacks)
    ends = {attack: f"{attack}:<br>{words}" for attack in attacks}
    apart = rows.groupby("panel")["epsilon"].max().nunique() > 1
    plot = plot.scale(y_title=ends, x_title=title[0].upper() + title[1:], y_log=False, x_free=apart)
    plot = plot.add(
        Band(quantiles=(0, 100), alpha=0.13, words=f"range over {many} seeds"),
        Line("mean", markers=False, words=f"mean over {many} seeds"),
        Rule(column="trivial", name="trivial predictor"),
    )
    return plot.figure("page", labels="key")


def _at_shared_budgets(rows: pd.DataFrame, variants: list[str]) -> pd.DataFrame:
    """Keep the budgets of every variant: a line between two of them says nothing about those between."""
    rows = pd.concat([rows[rows["variant"] == name] for name in variants])
    shared = rows.groupby("epsilon")["variant"].transform("nunique")
    return rows[shared == rows["variant"].nunique()]
