"""What attention variants cost: a panel per quantity, a row per variant, as multiples of a baseline."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from workbench.core.errors import InputError
from workbench.figures.forest import Forest, Interval
from workbench.figures.marks import Published, Rule
from workbench.figures.variants import LOOKS

# Panels have room for about ten letters a line.
_TITLES = {"parameters": "Parameters", "macs": "MACs", "seconds_per_sample": "Time", "peak_memory": "Memory"}
_CONDITIONS = ("", "training", "test")
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
    kinds = frame["source"].where(frame["source"] == "measured", "published")
    kinds = kinds.where(~frame["source"].str.startswith("counted"), "counted")
    known = set(zip(measured["baseline"], measured["attention"], strict=True))
    there = [pair in known for pair in zip(frame["baseline"], frame["attention"], strict=True)]
    titles = {f"{metric} {condition}": _title(metric, condition) for metric, condition in panels}
    shown = frame.assign(
        kind=kinds,
        panel=frame["metric"] + " " + frame["condition"],
        of="relative to " + frame["baseline"].map(_label),
    )[there]
    shown = shown[shown["panel"].isin([*titles])]
    drawn, printed = shown[shown["kind"] != "published"], shown[shown["kind"] == "published"]
    reach = shown[["ratio", "low", "high"]].to_numpy(dtype=float)
    reach = reach[np.isfinite(reach) & (reach > 0)]
    names = {"measured": "measured", "counted": "counted at the paper's size"}
    names |= {name: _label(name) for name in drawn["attention"].unique()}
    forest = Forest(
        drawn, y="attention", x=titles, group="of", panel="panel", names=names,
        color="kind" if drawn["kind"].nunique() > 1 else None,
    )  # fmt: skip
    forest = forest.scale(log=True, range=(reach.min() / 1.15, reach.max() * 1.15), row=1.8)
    published = printed.assign(
        value=printed["ratio"], spread=np.nan, paper=printed["source"].str.split(" ").str[0]
    )
    return forest.add(
        Interval(columns=("ratio", "low", "high"), words="relative cost (×), IQR over rounds"), Published(published),
        Rule(1, "baseline"),
    ).figure()  # fmt: skip


def _title(metric: str, condition: str) -> str:
    return _TITLES[metric] + (f",<br>{condition}" if condition else "")


def _label(name: str) -> str:
    """A variant as other figures call it; with options, "rpc-sym num_iter=[5]", shorter and with these."""
    variant, _, options = name.partition(" ")
    label = LOOKS[variant].label if variant in LOOKS else variant
    return f"{label.removeprefix('symmetric ')}, {options.replace('=', ' ')}" if options else label
