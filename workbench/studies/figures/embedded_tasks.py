"""Embedded tasks: final scores beside the baseline's, by mechanism and data set, and the grid of chen2023's Table 9."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from workbench.core.arguments import checked
from workbench.core.errors import InputError
from workbench.core.intervals import welch_interval
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
# metric of a record → the factor of its values, a level in words, and the unit of differences
_UNITS = {
    "accuracy": (100, "{:.1f} %", "points"),
    "mean_iou": (100, "{:.1f} %", "points"),
    "loss": (1, "{:.3f} nats", "nats"),
    "normalised_return": (1, "{:.1f} %", "points"),  # per cent already
}


@checked
def embedded_differences_figure(
    frame: pd.DataFrame,
    metric: str = "accuracy",
    baselines: Mapping[str, str] = MappingProxyType({}),
    columns: int = 4,
) -> go.Figure:
    """Draw final scores minus the baseline's with Welch's 95 % CI: a row per mechanism, a panel per data set.

    Each baseline has a row with its mean score; its mechanisms follow, the best mean over panels first, and those with
    one seed, which have no interval, last. Data under several conditions have a panel for each condition. Runs over η
    (chen2023, Table 9) are those of `embedded_grid`.

    Args:
        frame: the result of `workbench.studies.records.embedded_record`. Rows of
            `workbench.studies.baselines.at_stated_budgets` stand below a heading with the budgets of each mechanism.
        metric: of its test rows: accuracy, mean_iou, loss or normalised_return.
        baselines: mechanism → baseline, from `workbench.studies.baselines.embedded_baselines`; softmax for the others.
        columns: panels in a row.

    Raises:
        InputError: no such rows, a metric that is none of these, or no mechanism with its baseline.
    """
    if metric not in _UNITS:
        raise InputError(f"no axis for {metric!r}; give {', '.join(_UNITS)}")
    rows = _scores(frame, metric)
    rows = rows[(rows["variant"] != MAJORITY) & ~rows["variant"].str.contains("η")]
    parts = rows["data"].str.partition(", ")  # the data set and its condition
    conditions = parts[2] != ""
    heading = rows["budgets"] if "budgets" in rows else parts[0].where(conditions, "")
    rows = rows.assign(panel=parts[2].where(conditions, parts[0]), heading=heading)
    differences = _differences(rows, metric, baselines)
    if differences["value"].isna().all():
        held = ", ".join(rows["variant"].unique())
        raise InputError(f"no mechanism stands beside its baseline; the frame holds {held}")
    counts = rows.groupby(["data", "variant"])["seed"].nunique()
    many = " or ".join(map(str, sorted(counts[counts > 1].unique())))
    forest = Plot(
        differences,
        {name: name for name in differences["panel"].unique()},
        y="variant",
        group="heading" if heading.nunique() > 1 else None,
        panel="panel",
        names=NAMES | {name: f"<i>{NAMES[name]}</i>" for name in differences["baseline"].unique()},
    )
    interval = Interval(
        columns=("value", "low", "high"),
        words=f"difference of means over {many} seeds, Welch's 95 % CI",
        hollow=("same", "not significant"),
        alone="1 seed" if differences["single"].any() else "",
    )
    forest = forest.scale(row=1.45, x_same=True, x_title=f"Δ ({_UNITS[metric][2]})").add(interval, Rule(0))
    return forest.figure(columns=min(differences["panel"].nunique(), columns))


def _differences(rows: pd.DataFrame, metric: str, baselines: Mapping[str, str]) -> pd.DataFrame:
    """Return a row per heading, panel and variant, in the order of the figure; baselines have their score in words."""
    factor, level, _ = _UNITS[metric]
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
            several = min(len(values), len(reference)) > 1
            value = values.mean() - reference.mean()
            ends = welch_interval(values, reference)[1:3] if several else (np.nan, np.nan)
            row |= {"value": value, "low": ends[0], "high": ends[1], "same": ends[0] <= 0 <= ends[1]}
            drawn.append(row)
    table = pd.DataFrame(drawn, columns=[*keys, "baseline", "value", "low", "high", "same", "finding"])
    groups = table.groupby(["heading", "variant"], sort=False)
    single = groups["low"].transform("count") == 0
    sign = 1 if metric == "loss" else -1
    mechanism = table["variant"] != table["baseline"]
    table = table.assign(
        mechanism=mechanism,
        single=single & mechanism,
        effect=sign * groups["value"].transform("mean"),
        **{f"{name} place": pd.factorize(table[name])[0] for name in ("heading", "baseline")},
    )
    table = table[table.groupby(["heading", "baseline"])["mechanism"].transform("any")]
    return table.sort_values(
        ["heading place", "baseline place", "mechanism", "single", "effect"], kind="stable"
    )


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
