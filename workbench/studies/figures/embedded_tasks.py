"""Embedded tasks: final scores by mechanism and data set, and the grid of chen2023's Table 9."""

from __future__ import annotations

from collections.abc import Sequence

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
"""The mechanisms of the records of toy tasks, to their words."""
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
    """Draw final scores: a row per mechanism, a panel per data set, every seed, and the mean with its 95 % CI.

    The best mechanism comes first, by the mean over panels of its score less the panel's mean; mechanisms with one seed
    stand below the others. The interval is Student's over seeds, cut where the score can go no further. The line is the
    trivial predictor. Runs over η (chen2023, Table 9) are those of `embedded_grid`.

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
    levels = rows[rows["variant"] == MAJORITY].groupby("data")["value"].first() * factor
    rows = rows[(rows["variant"] != MAJORITY) & ~rows["variant"].str.contains("η")]
    count = rows.groupby(["data", "variant"])["seed"].nunique()
    many = " or ".join(map(str, sorted(count[count > 1].unique())))
    if "budgets" in rows:
        headings = [*rows["budgets"].unique()]
        rows = rows.rename(columns={"budgets": "heading"})
    else:
        headings = [f"{many} seeds", "1 seed"]
        alone = rows["variant"].map(count.groupby("variant").max()) == 1
        rows = rows.assign(heading=alone.map(lambda single: headings[single]))
    titles = {data: f"{data}:<br>{words}" for data in rows["data"].unique()}
    drawn, cut = [], False
    keys = ["data", "heading", "variant"]
    for _, seed_rows in _ranked(rows, headings, metric).groupby(keys, sort=False):
        about = seed_rows.iloc[0][keys].to_dict()
        values = seed_rows["value"] * factor
        drawn += [{**about, "kind": _SEED, "value": value} for value in values]
        if len(seed_rows) > 1:
            finding = mean_interval(values)
            ends = {"low": max(finding.low, least), "high": min(finding.high, most)}
            cut |= ends != {"low": finding.low, "high": finding.high}
            drawn.append({**about, "kind": _MEAN, "value": finding.value, **ends})
    forest = Plot(
        pd.DataFrame(drawn, columns=[*keys, "kind", "value", "low", "high"]),
        titles,
        y="variant",
        group="heading" if rows["heading"].nunique() > 1 else None,
        panel="data",
        color="kind",
        names={**NAMES, _MEAN: f"mean over {many} seeds", _SEED: "each seed" if many else "1 seed"},
        strokes=(_SEED,),
    )
    words_of_interval = "95 % CI (t) of the mean over seeds" + ", cut where scores end" * cut
    interval = Interval(columns=("value", "low", "high"), words=words_of_interval)
    forest = forest.scale(row=1.55, x_same=same or ())
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


def _ranked(rows: pd.DataFrame, headings: Sequence[str], metric: str) -> pd.DataFrame:
    """Return one row per seed, by heading, and below each the best mechanism first."""
    seeds = rows.drop_duplicates(["data", "heading", "variant", "seed"])
    effects = seeds["value"] - seeds.groupby(["data", "heading"])["value"].transform("mean")
    effects = effects.groupby([seeds["heading"], seeds["variant"]]).transform("mean")
    seeds = seeds.assign(effect=effects, place=seeds["heading"].map(headings.index))
    return seeds.sort_values(["place", "effect"], ascending=[True, metric == "loss"], kind="stable")
