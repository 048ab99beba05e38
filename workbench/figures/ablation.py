"""Models that differ in one part: every training seed of each, and how far each is from a reference."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from workbench.core.errors import InputError
from workbench.figures.forest import Forest, Interval, Stroke
from workbench.figures.marks import Published, Rule


def ablation_figure(results: pd.DataFrame, seeds: pd.DataFrame, printed: pd.DataFrame) -> go.Figure:
    """A row per model: on the left a panel per task with the accuracy of every seed and the mean, then differences.

    A difference from the row without one has its 95 % interval, filled where that leaves out zero; published
    differences are open diamonds.

    Args:
        results: rows of `workbench.studies.baselines.versus_baseline` with a column ``label``, the words of a row; rows
            stand in the order of the frame.
        seeds: rows of `workbench.studies.baselines.ends_and_speed` with the same column.
        printed: columns label, where, difference: what a paper prints, in the unit of `results`. May be empty.

    Raises:
        InputError: no accuracies.
    """
    results, seeds = (frame[frame["quantity"] == "accuracy"] for frame in (results, seeds))
    if results.empty:
        raise InputError(
            "the frame has no accuracy; give the result of workbench.studies.baselines.versus_baseline"
        )
    ends = {"difference": "value", "difference_low": "low", "difference_high": "high"}
    same = ~results["finding"].isin(["lower", "higher"])
    beside = results.drop(columns=["value", "low", "high", "finding"], errors="ignore").rename(columns=ends)
    every = seeds.groupby(["task", "label"], sort=False)["value"].transform("mean")
    drawn = seeds.assign(mean=every, panel=seeds["task"], low=float("nan"), high=float("nan"), same=False)
    known = beside["value"].notna()
    beside = beside.assign(panel="difference", same=same & known, finding=known.map({False: "reference"}))
    drawn = pd.concat([beside, drawn])
    order = [*dict.fromkeys(results["label"])]
    drawn = drawn.sort_values("label", key=lambda labels: labels.map(order.index), kind="stable")
    numbers = ["value", "low", "high", "mean"]
    drawn[numbers] = drawn[numbers].astype(float) * 100
    references = results.loc[results["difference"].isna(), "label"].str.partition(" (")[0]
    named = " or ".join(dict.fromkeys(references)) or "the reference"
    titles = {task: f"{task.capitalize()}:<br>test accuracy (%)" for task in results["task"].unique()}
    titles["difference"] = f"Difference (points)<br>from {named}"
    published = printed.assign(value=printed["difference"] * 100, panel="difference", table=printed["where"])
    return Forest(drawn, y="label", x=titles, panel="panel", color="task").scale(row=2.7).add(
        Interval(
            columns=("value", "low", "high"), words="difference of means, 95 % CI (Welch)", alone="each seed",
            hollow=("same", "not significant"),
        ),
        Stroke("mean", "mean over seeds"), Rule({"difference": 0.0}, "no difference"),
        Published(published, ranges=True, beside=True, words=_printed(published)),
    ).figure()  # fmt: skip


def _printed(published: pd.DataFrame) -> str:
    """What the diamonds are, for the key: other models than those of the row, and of several the median and range."""
    most = max((len(own) for _, own in published.groupby("label")), default=1)
    many = f": median and range of {most} differences" if most > 1 else ""
    return f", paper's model{'s' * (most > 1)}, without a test{many}"
