"""Embedded tasks: final scores by mechanism and data set, and the grid of chen2023's Table 9."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from workbench.core.arguments import checked
from workbench.core.errors import InputError
from workbench.core.intervals import mean_interval
from workbench.figures.grammar import Plot
from workbench.figures.marks import Interval, Rule
from workbench.figures.words import variant_words

_LAST = {  # beside Primal in all layers
    "primal": "Primal, last layer", "primal-e": "Primal, last layer, only e",
    "primal-causal": "causal Primal, last layer",
}  # fmt: skip
_ORDER = (
    "softmax", "softmax-shuffled", "softmax-boost", "softmax-sym", "rpc-sym", "rpc-asym", "rpc-sym-tuned",
    "rpc-asym-tuned", "primal", "primal-all", "primal-independent", "primal-e", "primal-all-e", "primal-causal",
    *(f"primal-causal s={rank}" for rank in (8, 16, 64)), "tssa", "bilateral", "bilateral-boost", "alibi", "linformer",
    "nystrom",
)  # fmt: skip
NAMES = {name: _LAST.get(name) or variant_words(name) for name in _ORDER}
"""The mechanisms of the records of toy tasks, in the order of figures, to their words."""
MAJORITY = "majority"
# metric of a record → what its axis says, factor, least and largest
_AXES = {
    "accuracy": ("test accuracy (%)", 100, (0, 100)),
    "mean_iou": ("test mean IoU (%)", 100, (0, 100)),
    "loss": ("test loss (nats)", 1, (0, np.inf)),
    "normalised_return": ("normalised return (%)", 1, (-np.inf, np.inf)),  # per cent already
}
_SEED, _MEAN = "each seed", "mean over 3 seeds"


@checked
def embedded_scores_figure(
    frame: pd.DataFrame, metric: str = "accuracy", columns: int = 3, same: bool = False
) -> go.Figure:
    """A row per mechanism, a panel per data set: every seed at its last epoch, and the mean with its 95 % CI.

    The interval is Student's over seeds, cut where the score can go no further; a mechanism with one seed has a stroke,
    no interval, and "(1 seed)" beside its name. The line is the trivial predictor.

    Args:
        frame: the result of `workbench.studies.records.embedded_record`. Rows of
            `workbench.studies.baselines.at_stated_budgets` stand below a heading with the budgets of each mechanism.
        metric: of its test rows: accuracy, mean_iou, loss or normalised_return.
        columns: panels in a row.
        same: whether all panels have one axis.

    Raises:
        InputError: no such rows, or a metric that is none of these.
    """
    words, factor, (least, most) = _axis_of(metric)
    rows = _scores(frame, metric)
    headings = "budgets" in rows
    rows = rows.assign(budgets=rows["budgets"] if headings else "")
    seeds = rows[rows["variant"] != MAJORITY].drop_duplicates(["budgets", "data", "variant", "seed"])
    drawn, cut = [], False
    for (budgets, data, variant), seed_rows in seeds.groupby(["budgets", "data", "variant"], sort=False):
        about = {"budgets": budgets, "data": data, "variant": variant}
        values = seed_rows["value"] * factor
        drawn += [{**about, "kind": _SEED, "value": value} for value in values]
        if len(seed_rows) > 1:
            finding = mean_interval(values)
            ends = {"low": max(finding.low, least), "high": min(finding.high, most)}
            cut |= ends != {"low": finding.low, "high": finding.high}
            drawn.append({**about, "kind": _MEAN, "value": finding.value, **ends})
    table = pd.DataFrame(drawn, columns=["budgets", "data", "variant", "kind", "value", "low", "high"])
    order = [*table["budgets"].unique()]
    table = _in_order(table).sort_values(
        "budgets", key=lambda budgets: budgets.map(order.index), kind="stable"
    )
    count = seeds.groupby(["data", "budgets", "variant"]).size()
    many = " or ".join(map(str, sorted(count[count > 1].unique())))
    titles = {data: f"{data}:<br>{words}" for data in table["data"].unique()}
    levels = rows[rows["variant"] == MAJORITY].groupby("data")["value"].first() * factor
    most_seeds = count.groupby("variant").max()
    single = (
        {name: f"{NAMES.get(name, name)} (1 seed)" for name in most_seeds.index[most_seeds == 1]}
        if many
        else {}
    )
    forest = Plot(
        table,
        titles,
        y="variant",
        group="budgets" if headings else None,
        panel="data",
        color="kind",
        names={**NAMES, **single, _MEAN: f"mean over {many} seeds", _SEED: "each seed" if many else "1 seed"},
        strokes=(_SEED,),
    )
    words_of_interval = "95 % CI (t) of the mean over seeds" + ", cut where scores end" * cut
    interval = Interval(columns=("value", "low", "high"), words=words_of_interval)
    forest = forest.scale(row=1.7, x_same=same or ())
    forest = forest.add(interval, Rule(levels.to_dict(), "trivial predictor"))
    return forest.figure(columns=min(len(titles), columns))


def embedded_grid(frame: pd.DataFrame, metric: str = "accuracy") -> pd.DataFrame:
    """The rows of the runs over η and s (chen2023, Table 9) at their last epoch, these two as columns of numbers."""
    rows = _scores(frame, metric)
    settings = rows["variant"].str.extract(r"s=(?P<s>\d+) η=(?P<eta>[\d.]+)").astype(float)
    return rows.assign(s=settings["s"].astype("Int64"), eta=settings["eta"]).dropna(subset=["s", "eta"])


def _scores(frame: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Test rows of a metric at the last epoch of each run."""
    rows = frame[(frame["split"] == "test") & (frame["metric"] == metric)]
    if rows.empty:
        raise InputError(f"the frame has no test {metric}; give the result of embedded_record()")
    return rows[
        rows["epoch"] == rows.groupby(["data", "variant", "seed"], dropna=False)["epoch"].transform("max")
    ]


def _axis_of(metric: str) -> tuple[str, float, tuple[float, float]]:
    """Return the title of a metric's axis, the factor of its values, and their smallest and largest possible value."""
    if metric not in _AXES:
        raise InputError(f"no axis for {metric!r}; give {', '.join(_AXES)}")
    return _AXES[metric]


def _in_order(table: pd.DataFrame) -> pd.DataFrame:
    """The mechanisms of `NAMES` in their order, and after them ablations that a figure lists by their own name."""
    order = [
        *NAMES,
        *(name for name in dict.fromkeys(table["variant"]) if name not in NAMES and "η" not in name),
    ]
    kept = table[table["variant"].isin(order)]
    return kept.sort_values("variant", key=lambda names: names.map(order.index), kind="stable")
