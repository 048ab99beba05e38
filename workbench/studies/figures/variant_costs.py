"""Costs of attention variants: a panel per quantity, a row per variant, as multiples of a baseline."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from workbench.core.errors import InputError
from workbench.core.options import checked
from workbench.figures.grammar import Plot
from workbench.figures.marks import Interval, Published, Rule
from workbench.figures.overlays import need_columns
from workbench.figures.variants import LOOKS
from workbench.studies.figures.embedded_tasks import NAMES

_TITLES = {
    "macs": "MACs<br>(×, log)", "seconds_per_sample": "Time<br>(×, log)",
    "peak_memory": "Memory<br>(×, log)",
}  # fmt: skip
_CONDITIONS = {"training": "training", "test": "inference"}
_SYMBOLS = ("x-thin-open", "cross-thin-open")
_SOURCE = "workbench.studies.training.variant_costs"
_NEEDS = ("source", "attention", "baseline", "metric", "condition", "ratio", "low", "high")
# RPC-Attention in the words of teo2024's Table 13.
_STEPS = {
    "rpc-sym": "RPC, 4 iterations in layer 1", "rpc-sym num_iter=[5]": "RPC, 5 iterations in layer 1",
    "rpc-sym num_iter=[6]": "RPC, 6 iterations in layer 1", "rpc-sym num_iter=2": "RPC, 2 iterations in each layer",
}  # fmt: skip
_OF_TASKS = {
    "softmax": "softmax, fused", "primal layers=0-1": NAMES["primal-all"],
    **{name: NAMES[name] for name in ("primal", "primal-causal", "linformer", "nystrom")},
}  # fmt: skip
"""For a baseline of softmax attention that forms its matrix."""


@checked
def cost_figure(frame: pd.DataFrame) -> go.Figure:
    """A dot per variant in a panel for each quantity, for training and inference: multiples of the baseline.

    The bar of a dot is the range over rounds. Red × of training and + of inference are
    the papers' numbers, as multiples of their baselines. Rows are grouped by baseline, which has no row itself; a
    variant is grouped with its paper's baseline if that is not softmax attention. A frame with the column
    ``problem`` is grouped by it: the same baseline on several tasks.

    Args:
        frame: the result of `workbench.studies.training.variant_costs`, and under it as wanted `published_costs`, whose
            variants are drawn where they are measured too; the same of `task_costs` and `published_task_costs`.

    Raises:
        InputError: another frame, or one without measured rows.
    """
    need_columns(frame, _NEEDS, _SOURCE)
    measured = frame[frame["source"] == "measured"]
    if measured.empty:
        raise InputError(f"the frame holds no measured costs; give the result of {_SOURCE}")
    costs = frame[frame["metric"].isin([*_TITLES]) & frame["condition"].isin([*_CONDITIONS])]
    costs = costs[(costs["attention"] != costs["baseline"]) & ~costs["source"].str.startswith("counted")]
    other = set(measured.loc[measured["baseline"] != "softmax", "attention"]) - set(measured["baseline"])
    costs = costs[(costs["baseline"] != "softmax") | ~costs["attention"].isin(other)]
    of_tasks = "problem" in costs
    costs = costs.assign(
        variant=costs["attention"],
        of=costs["problem"] if of_tasks else "relative to " + costs["baseline"].map(_label),
    )
    drawn = costs[costs["source"] == "measured"]
    timed = drawn[(drawn["metric"] == "seconds_per_sample") & (drawn["condition"] == "training")]
    times = timed.groupby("variant")["ratio"].first()
    drawn = drawn.sort_values("variant", key=lambda names: names.map(times), kind="stable")
    drawn = drawn.sort_values("of", kind="stable")
    drawn_pairs = set(zip(drawn["of"], drawn["attention"], strict=True))
    printed = costs[costs["source"] != "measured"]
    printed = printed[[pair in drawn_pairs for pair in zip(printed["of"], printed["attention"], strict=True)]]
    reach = pd.concat([drawn, printed])[["ratio", "low", "high"]].to_numpy(dtype=float)
    reach = reach[np.isfinite(reach) & (reach > 0)]
    names = {name: _label(name) for name in drawn["attention"].unique()} | _CONDITIONS
    names |= _OF_TASKS if of_tasks else {}
    titles = {metric: title for metric, title in _TITLES.items() if (drawn["metric"] == metric).any()}
    forest = Plot(drawn, titles, "condition", y="variant", group="of", names=names)
    forest = forest.scale(
        x_log=True, x_range=(reach.min() / 1.15, reach.max() * 1.15), row=2.0 if of_tasks else 2.3
    )
    published = printed.assign(value=printed["ratio"], spread=np.nan)
    published_marks = []
    for condition, symbol in zip(_CONDITIONS, _SYMBOLS, strict=True):
        rows = published[published["condition"] == condition].drop(columns="condition")
        if len(rows):
            words = f", {_CONDITIONS[condition]}"
            published_marks.append(Published(rows, beside=True, symbol=symbol, words=words))
    words = Interval(columns=("ratio", "low", "high"), words="median and range over rounds")
    return forest.add(words, *published_marks, Rule(1, "baseline")).figure()


def cost_finding(costs: pd.DataFrame) -> str:
    """State the range of training times relative to the baseline, and how many variants are slower in every round.

    Args:
        costs: the result of `workbench.studies.training.variant_costs`.
    """
    rows = costs[(costs["metric"] == "seconds_per_sample") & (costs["condition"] == "training")]
    rows = rows[rows["attention"] != rows["baseline"]]
    rows = rows.drop_duplicates("attention", keep="last").sort_values("ratio")  # as drawn
    least, most = rows.iloc[0], rows.iloc[-1]
    slower = (rows["low"] > 1).sum()
    return (
        f"Training takes {least['ratio']:.2f} ({_label(least['attention'])}) to {most['ratio']:.2f} times "
        f"({_label(most['attention'])}) as long as with the baseline; {slower} of {len(rows)} "
        "variants are slower in every round."
    )


def _label(name: str) -> str:
    """A variant as other figures call it, RPC-Attention with its iterations, others with their options."""
    variant, _, options = name.partition(" ")
    label = LOOKS[variant].label if variant in LOOKS else variant
    return _STEPS.get(name, f"{label}, {options.replace('=', ' ')}" if options else label)
