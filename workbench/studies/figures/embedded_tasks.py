"""Embedded tasks: final scores beside the baseline's, by mechanism and data set, and the grid of chen2023's Table 9."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from workbench.core.errors import InputError
from workbench.core.intervals import mean_interval, welch_interval
from workbench.core.options import checked
from workbench.figures.grammar import Plot
from workbench.figures.marks import Interval, Rule
from workbench.figures.words import variant_words
from workbench.studies.findings import largest_differences

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
# metric of a record → the factor of its values, a level in words, the unit and the format of differences
_UNITS = {
    "accuracy": (100, "{:.1f} %", "points", ".1f"),
    "mean_iou": (100, "{:.1f} %", "points", ".1f"),
    "loss": (1, "{:.3f} nats", "nats", ".3f"),
}


@checked
def embedded_differences_figure(
    frame: pd.DataFrame,
    metric: str = "accuracy",
    baselines: Mapping[str, str] = MappingProxyType({}),
    columns: int = 4,
) -> go.Figure:
    """Draw final scores minus the baseline's with Welch's 95 % CI: a row per mechanism, a panel per data set.

    Each baseline has a row with its mean score; its mechanisms follow, the best mean over panels first. Mechanisms with
    one seed are not drawn, and neither are data sets on which no mechanism beats the trivial predictor, whose score is
    in the title. Data under several conditions have a panel for each condition.

    Args:
        frame: the result of `workbench.studies.records.embedded_record`. Rows of
            `workbench.studies.baselines.at_stated_budgets` stand below a heading with the budgets of each mechanism.
        metric: of its test rows: accuracy, mean_iou or loss.
        baselines: mechanism → baseline, from `workbench.studies.baselines.embedded_baselines`; softmax for the others.
        columns: panels in a row.

    Raises:
        InputError: no such rows, a metric that is none of these, or no mechanism with its baseline.
    """
    if metric not in _UNITS:
        raise InputError(f"no axis for {metric!r}; give {', '.join(_UNITS)}")
    rows = _tested(frame, metric)
    differences = _differences(rows, metric, baselines)
    if differences["value"].isna().all():
        held = ", ".join(_scores(frame, metric)["variant"].unique())
        raise InputError(f"no mechanism of several seeds stands beside its baseline; the frame holds {held}")
    forest = Plot(
        differences,
        dict(zip(differences["panel"], differences["title"], strict=True)),
        y="variant",
        group="heading" if differences["heading"].nunique() > 1 else None,
        panel="panel",
        names=NAMES | {name: f"<i>{NAMES[name]}</i>" for name in differences["baseline"].unique()},
    )
    interval = Interval(
        columns=("value", "low", "high"),
        words=f"difference of means over {_seeds(rows)} seeds, Welch's 95 % CI",
        hollow=("same", "not significant"),
    )
    forest = forest.scale(row=1.45, x_same=True, x_title=f"Δ ({_UNITS[metric][2]})").add(interval, Rule(0))
    return forest.figure(columns=min(differences["panel"].nunique(), columns))


def embedded_finding(
    frame: pd.DataFrame, metric: str, baselines: Mapping[str, str] = MappingProxyType({})
) -> str:
    """Name the largest significant differences of `embedded_differences_figure`, and how many there are.

    Arguments are those of the figure.
    """
    rows = _tested(frame, metric)
    table = _differences(rows, metric, baselines).dropna(subset=["value"])
    where = table["panel"].where(table["heading"] == "", table["heading"] + ", " + table["panel"])
    table = table.assign(mechanism=table["variant"], where=where)
    unit, digits = _UNITS[metric][2:]
    return largest_differences(table, NAMES, f" {unit}", digits)


def _tested(frame: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return final scores of mechanisms with several seeds, with the panel and the heading they are drawn under.

    Left out are data sets on which none of these beats the trivial predictor, whose score is in the panel's title.
    """
    rows = _scores(frame, metric)
    factor = _UNITS[metric][0]
    seeds = rows.groupby(["data", "variant"])["seed"].transform("nunique")
    trivial = rows[rows["variant"] == MAJORITY].groupby("data")["value"].first()
    rows = rows[(rows["variant"] != MAJORITY) & (seeds > 1)]
    parts = rows["data"].str.partition(", ")  # the data set and its condition
    conditions = parts[2] != ""
    heading = rows["budgets"] if "budgets" in rows else parts[0].where(conditions, "")
    panel = parts[2].where(conditions, parts[0])
    rows = rows.assign(panel=panel, title=panel, heading=heading)
    if conditions.any() or metric == "loss" or trivial.empty:
        return rows
    scores = rows.groupby(["data", "variant"])["value"].apply(lambda values: mean_interval(values).low)
    learned = scores.groupby("data").max() > trivial
    chance = trivial.map(lambda value: f"<br>chance {factor * value:.0f} %")
    rows = rows[rows["data"].map(learned).astype(bool)]
    return rows.assign(title=rows["panel"] + rows["data"].map(chance))


def _seeds(rows: pd.DataFrame) -> str:
    """Return the numbers of seeds, "3" or "3 or 5"."""
    return " or ".join(map(str, sorted(rows.groupby(["data", "variant"])["seed"].nunique().unique())))


def _differences(rows: pd.DataFrame, metric: str, baselines: Mapping[str, str]) -> pd.DataFrame:
    """Return a row per heading, panel and variant, in the order of the figure; baselines have their score in words."""
    factor, level, *_ = _UNITS[metric]
    keys = ["heading", "panel", "variant"]
    scores = {tuple(part[keys].iloc[0]): factor * part["value"] for _, part in rows.groupby(keys, sort=False)}
    references = {"softmax", *baselines.values()} - set(baselines)
    drawn = []
    for (heading, panel, name), values in scores.items():
        baseline = name if name in references else baselines.get(name, "softmax")
        row = {"heading": heading, "panel": panel, "variant": name, "baseline": baseline, "value": np.nan}
        if name == baseline:
            drawn.append({**row, "finding": level.format(values.mean())})
        elif (reference := scores.get((heading, panel, baseline))) is not None:
            value, low, high = welch_interval(values, reference)[:3]
            drawn.append(row | {"value": value, "low": low, "high": high, "same": low <= 0 <= high})
    table = pd.DataFrame(drawn, columns=[*keys, "baseline", "value", "low", "high", "same", "finding"])
    table["title"] = table["panel"].map(dict(zip(rows["panel"], rows["title"], strict=True)))
    groups = table.groupby(["heading", "variant"], sort=False)
    sign = 1 if metric == "loss" else -1
    mechanism = table["variant"] != table["baseline"]
    table = table.assign(
        mechanism=mechanism,
        effect=sign * groups["value"].transform("mean"),
        **{f"{name} place": pd.factorize(table[name])[0] for name in ("heading", "baseline")},
    )
    table = table[table.groupby(["heading", "baseline"])["mechanism"].transform("any")]
    return table.sort_values(["heading place", "baseline place", "mechanism", "effect"], kind="stable")


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
