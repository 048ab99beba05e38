"""The mean over inputs with its interval, from rows of single inputs or from rows of statistics over them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from workbench.core.intervals import FEW_NULL_SAMPLES, Finding, mean_interval
from workbench.frames.results import provenance_of


def over_inputs(rows: pd.DataFrame) -> Finding:
    """Mean of a metric over inputs and its 95 % confidence interval; of each input the mean over all else counts.

    A frame without rows per input holds the mean and its interval; how many inputs it comes from says its run. Of
    several heads, and where only means were kept, it holds the mean over all of them, without an interval.
    """
    if rows["input"].notna().any():
        return mean_interval(rows[rows["input"].notna()].groupby("input")["value"].mean())
    whole = rows[rows["head"].isna()] if rows["head"].isna().any() else rows
    means = whole.groupby("statistic")["value"].mean()
    mean = float(means.get("mean", whole["value"].mean()))
    low, high = (float(means.get(name, math.nan)) for name in ("low", "high"))
    return Finding(mean, low, high, input_count(rows))


def first_to_last(by_layer: Mapping[int, Finding], format: str = ".2f", between: str = " and ") -> str:
    """The findings of the first and of the last layer: "0.91 [0.90, 0.92] in layer 0 and 0.79 [0.78, 0.80] in layer 3".

    A single layer is named once.
    """
    ends = dict.fromkeys((min(by_layer), max(by_layer)))
    return between.join(f"{by_layer[layer].words(format)} in layer {layer}" for layer in ends)


def beside_null(rows: pd.DataFrame, format: str = ".2f") -> str:
    """In how many layers a metric lies above and below its null distribution: its range, whose range, and its mean.

    Of rows with one kind of null distribution; "" where they have none.
    """
    known = rows[rows["layer"].notna() & rows[["null_low", "null_high"]].notna().all(axis=1)]
    if known.empty:
        return ""
    means = known[known["head"].isna() & known["input"].isna()]  # beside which single ones have wider ranges
    known = means if len(means) else known
    by_layer = known.groupby("layer")[["value", "null_mean", "null_low", "null_high"]].mean()
    unit = (
        "of one head" if known["head"].notna().any()
        else "of one input" if known["input"].notna().any()
        else "of the mean over heads"
    )  # fmt: skip
    sides = {
        "above": (by_layer["value"] > by_layer["null_high"]).sum(),
        "below": (by_layer["value"] < by_layer["null_low"]).sum(),
    }
    kind, level, layers = known["null"].iloc[0], by_layer["null_mean"].mean(), len(by_layer)
    counted = {side: count for side, count in sides.items() if count} or {"inside": layers}
    where = " and ".join(
        side
        if layers == 1
        else f"in {f'all {layers}' if count == layers else f'{count} of {layers}'} layers {side}"
        for side, count in counted.items()
    )
    return f"; {where} the {null_range(rows, kind)} ({unit}; mean {level:{format}})"


def null_range(frame: pd.DataFrame, kind: str = "", analyses: Collection[str] | None = None) -> str:
    """Return what the ends of a frame's null distribution are, by the record of its runs: "range of 20 null samples".

    From 40 samples on it is "95 % range of 100 null samples", and "95 % range" of a null that is computed exactly.
    ``kind`` names the null; ``analyses`` keeps the runs of some analyses.
    """
    runs = (run for run in provenance_of(frame) if analyses is None or run.get("analysis") in analyses)
    counts = sorted({_null_samples(run) for run in runs} - {0})
    parts = [f"{'95 % ' * (count >= FEW_NULL_SAMPLES)}range of {count}" for count in counts]
    if not parts:
        return "95 % range" + (f" of the {kind} null" if kind else "")
    return f"{' or '.join(parts)} {kind} null samples".replace("  ", " ")


def _null_samples(run: Mapping[str, Any]) -> int:
    """Return how many null samples a run drew; 0 where token-similarity computes the null of Gaussian tokens."""
    options = run.get("options") or {}
    exact = run.get("analysis") == "token-similarity" and options.get("null") != "permutation"
    return 0 if exact else options.get("null_samples") or 0


def over_everything(rows: pd.DataFrame) -> Finding:
    """Of rows at several levels of averaging the mean over layers, heads and inputs; its interval is over inputs.

    A frame without rows per input has the mean alone.
    """
    level = _whole(rows)
    if level["input"].notna().any():
        return over_inputs(level)
    value = float(level["value"].mean()) if len(level) else math.nan
    return Finding(value, math.nan, math.nan, input_count(rows))


def unit_of(finding: Finding) -> str:
    """What a mean over inputs is over, and whether it has an interval: "mean over 10 inputs with its 95 % CI"."""
    return f"mean over {finding.n} input{'s' * (finding.n != 1)}" + (
        "" if math.isnan(finding.low) else " with its 95 % CI"
    )


def with_means(rows: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Rows of single inputs and heads, and after them their means at each place of ``by``, with the null of the mean.

    For nulls of which each row has its own, drawn apart from the others', with ends as far from its mean as 1.96
    standard deviations (one end may be cut at a bound): the ends of the mean's null are closer by the root of the
    number of rows.
    """
    reach = np.maximum(rows["null_high"] - rows["null_mean"], rows["null_mean"] - rows["null_low"])
    places = rows.assign(square=reach**2).groupby([*by], sort=False)
    means = places[["value", "null_mean"]].mean()
    reach = np.sqrt(places["square"].sum()) / places.size()
    means = means.assign(null_low=means["null_mean"] - reach, null_high=means["null_mean"] + reach)
    alike = places[["metric", "null"]].first()
    whole = pd.concat([rows, means.join(alike).reset_index()], ignore_index=True)
    whole.attrs = rows.attrs
    return whole


def place_in_null(rows: pd.DataFrame) -> pd.DataFrame:
    """The means over layers, heads and inputs that have a null distribution, one row each: of the first null named.

    Columns ``above`` and ``below`` say on which side of the null's `null_range` the value lies.
    """
    level = _whole(rows)
    level = level[level["input"].isna() & level["null_low"].notna()]
    first = level[level["null"] == level["null"].iloc[0]] if len(level) else level
    return first.assign(above=first["value"] > first["null_high"], below=first["value"] < first["null_low"])


def side_of_null(rows: pd.DataFrame, format: str = ".2f") -> str:
    """On which side of its null the mean over everything lies: "; above the range of 20 null samples [0.21, 0.24]"."""
    placed = place_in_null(rows)
    if placed.empty:
        return ""
    row = placed.iloc[0]
    side = "above" if row["above"] else "below" if row["below"] else "inside"
    band = f"[{row['null_low']:{format}}, {row['null_high']:{format}}]".replace("-", "−")
    return f"; {side} the {null_range(rows, row['null'])} {band}"


def _whole(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows that average over layers and heads."""
    return rows[rows[["layer", "head"]].isna().all(axis=1)]


def input_count(frame: pd.DataFrame) -> int:
    """How many inputs the rows are of, or come from."""
    named = frame["input"].nunique()
    return named or max((run.get("inputs", {}).get("n") or 0 for run in provenance_of(frame)), default=0)
