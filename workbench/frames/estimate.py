"""The mean over inputs with its interval, from rows of single inputs or from rows of statistics over them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from workbench.core.intervals import FEW_NULL_SAMPLES, Finding, mean_interval
from workbench.frames.metric import bounds_of
from workbench.frames.results import provenance_of


def over_inputs(rows: pd.DataFrame) -> Finding:
    """Return the mean of a metric over inputs (each input's mean over all else) with its 95 % confidence interval.

    Without rows per input the frame's own mean and interval are used, and its run gives the number of inputs. With
    several heads, or where only means were kept, there is a mean over all of them and no interval. The interval ends at
    the bounds of the metric.
    """
    if rows["input"].notna().any():
        input_means = rows[rows["input"].notna()].groupby("input")["value"].mean()
        return mean_interval(input_means).within(*bounds_of(rows))
    head_means = rows[rows["head"].isna()] if rows["head"].isna().any() else rows
    means = head_means.groupby("statistic")["value"].mean()
    mean = float(means.get("mean", head_means["value"].mean()))
    low, high = (float(means.get(name, math.nan)) for name in ("low", "high"))
    return Finding(mean, low, high, input_count(rows))


def first_to_last(by_layer: Mapping[int, Finding], format: str = ".2f", between: str = " and ") -> str:
    """Describe the first and the last layer: "0.91 [0.90, 0.92] in layer 0 and 0.79 [0.78, 0.80] in layer 3".

    A single layer is named once.
    """
    ends = dict.fromkeys((min(by_layer), max(by_layer)))
    return between.join(f"{by_layer[layer].words(format)} in layer {layer}" for layer in ends)


def compare_with_null(rows: pd.DataFrame, format: str = ".2f") -> str:
    """Describe how many layers exceed or fall below a metric's null range, with the null's mean.

    The rows have one kind of null distribution; "" if they have none.
    """
    null_rows = _null_rows(rows)
    if null_rows.empty:
        return ""
    by_layer = null_rows.groupby("layer")[["value", "null_mean", "null_low", "null_high"]].mean()
    unit = (
        "of one head"
        if null_rows["head"].notna().any()
        else "of one input"
        if null_rows["input"].notna().any()
        else "of the mean over heads"
    )
    sides = {
        "above": (by_layer["value"] > by_layer["null_high"]).sum(),
        "below": (by_layer["value"] < by_layer["null_low"]).sum(),
    }
    kind, level, layers = null_rows["null"].iloc[0], by_layer["null_mean"].mean(), len(by_layer)
    counted = {side: count for side, count in sides.items() if count} or {"inside": layers}
    where = " and ".join(
        side
        if layers == 1
        else f"in {f'all {layers}' if count == layers else f'{count} of {layers}'} layers {side}"
        for side, count in counted.items()
    )
    return f"; {where} the {null_range(rows, kind)} ({unit}; mean {level:{format}})"


def _null_rows(rows: pd.DataFrame, each: str = "layer") -> pd.DataFrame:
    """Return the rows with a null range: of layers means if there are any, of heads single ones, else overall means."""
    with_null = rows[rows[["null_low", "null_high"]].notna().all(axis=1)]
    null_rows = with_null[with_null["layer"].notna() == (each in ("layer", "head"))]
    if each == "head":
        return null_rows[null_rows["head"].notna()]
    means = null_rows[null_rows["head"].isna() & null_rows["input"].isna()]  # single heads have wider ranges
    return means if len(means) else null_rows


def null_finding(rows: pd.DataFrame, words: str, each: str = "layer", *, both: bool = False) -> str:
    """State on which side of its null range a metric lies, and in how many layers of each model.

        null_finding(rows, "Effective rank")
        # Effective rank is below its null range in every layer of digits-vit (4.8, null 12).

    A layer counts if its 95 % CI over inputs clears the range, which the sentence adds where a mean does and its CI
    does not; without inputs its mean counts. The side is the one on which more layers lie. Each model is followed by
    its own means over the counted layers; the layers of more than three models are counted together. The rows have one
    metric and one kind of null distribution; without one the sentence has the models' means (`mean_finding`).

    ``each`` is what is counted: layers, heads ("head"), or the values of another column, which have no common mean.
    ``both`` adds the number on the other side of the range: ", and below it in none".
    """
    by_layer = _beside_null(rows, each)
    if by_layer.empty:
        return mean_finding(rows, words)
    models = [*map(str, by_layer["model"].unique())]
    if not by_layer["beyond"].any():
        return f"{words} does not clear its null range in any {each} of {_listed(models)}."
    side, criterion = by_layer.attrs["side"], by_layer.attrs["criterion"]
    if len(models) > 3:
        by_layer["model"] = f"{len(models)} models"
    parts = [_share_beyond(rows, str(name), each) for name, rows in by_layer.groupby("model", sort=False)]
    other, count = "below" if side == "above" else "above", by_layer.attrs["opposite"] or "none"
    null = f"{'the' if criterion else 'its'} null range{criterion}"
    return f"{words} is {side} {null} in {_listed(parts)}{f', and {other} it in {count}' * both}."


def counts_finding(quantities: Mapping[str, pd.DataFrame]) -> str:
    """State in how many layers of all models each of several metrics lies beyond its null range.

        counts_finding({"effective rank": ranks, "entropy": entropies})
        # Effective rank is below its null range in 13 of 14 layers, entropy above in 9 of 14.

    Layers count as in `null_finding`; the rows of each metric have one kind of null distribution.
    """
    parts = []
    for words, rows in quantities.items():
        by_layer = _beside_null(rows)
        verb, null, layers = ("", "", "") if parts else ("is ", " its null range", " layers")
        count, opposite = by_layer["beyond"].sum(), by_layer.attrs["opposite"]
        other = "below" if by_layer.attrs["side"] == "above" else "above"
        counts = f"in {count}" + f" and {other} in {opposite}" * bool(opposite)
        parts.append(f"{words} {verb}{by_layer.attrs['side']}{null} {counts} of {len(by_layer)}{layers}")
    sentence = _listed(parts) if len(parts) > 2 else ", ".join(parts)
    return f"{sentence[0].upper()}{sentence[1:]}."


def _beside_null(rows: pd.DataFrame, each: str = "layer") -> pd.DataFrame:
    """Return each model's means by layer, and whether they are beyond the null range; the side is in ``attrs``.

    ``attrs`` also has the number of layers on the opposite side.
    """
    null_rows, places = (
        _null_rows(rows, each),
        ["model", "layer", "head"] if each == "head" else ["model", each],
    )
    columns = ["value", "null_mean", "null_low", "null_high"]
    by_layer = null_rows.groupby(places, sort=False)[columns].mean()
    findings = {key: over_inputs(rows) for key, rows in rows.groupby(places, sort=False)}
    ends = [findings[key] for key in by_layer.index]
    low = pd.Series([finding.low for finding in ends], by_layer.index).fillna(by_layer["value"])
    high = pd.Series([finding.high for finding in ends], by_layer.index).fillna(by_layer["value"])
    above, below = low > by_layer["null_high"], high < by_layer["null_low"]
    side, beyond = ("above", above) if above.sum() >= below.sum() else ("below", below)
    means = by_layer["value"]
    outside = means > by_layer["null_high"] if side == "above" else means < by_layer["null_low"]
    criterion = " with its whole CI" if outside.sum() > beyond.sum() else ""
    by_layer = by_layer.assign(beyond=beyond).reset_index()
    opposite = int((below if side == "above" else above).sum())
    by_layer.attrs |= {"side": side, "criterion": criterion, "opposite": opposite}
    return by_layer


def _share_beyond(by_layer: pd.DataFrame, models: str, each: str) -> str:
    """Return how many layers are beyond their null range: "2 of 3 layers of a (3.0, null 0.50)"."""
    beyond = by_layer[by_layer["beyond"]]
    if beyond.empty:
        return f"no {each} of {models}"
    layers = f"every {each}" if len(beyond) == len(by_layer) else f"{len(beyond)} of {len(by_layer)} {each}s"
    if each not in ("layer", "head"):
        return f"{layers} of {models}"
    value, null_mean = beyond[["value", "null_mean"]].mean()
    level, null = (f"{mean:#.2g}".rstrip(".") for mean in (value, null_mean))
    digits = len(level.partition(".")[2])
    null = f"{null_mean:z.{digits}f}" if len(null.partition(".")[2]) > digits else null  # of a null near 0
    return f"{layers} of {models} ({level}, null {null})"


def mean_finding(
    rows: pd.DataFrame, words: str, format: str = ".2f", by: str = "model", null: str = ""
) -> str:
    """State the mean of a metric for each model, or each value of another column: "Entropy is 0.93 in digits-vit.".

    With ``null`` the mean of the null distribution follows in brackets, after that word.
    """
    means = rows.groupby(by, sort=False)[["value", "null_mean"] if null else ["value"]].mean()
    parts = [
        f"{value:{format}} in {name}" + "".join(f" ({null} {noise:{format}})" for noise in rest)
        for name, value, *rest in means.itertuples()
    ]
    return f"{words} is {_listed(parts)}."


def range_finding(rows: pd.DataFrame, words: str, format: str = ".2f") -> str:
    """State the heads with the smallest and the largest mean of a metric of one model."""
    means = rows.groupby(["layer", "head"])["value"].mean()
    ends = [
        f"{means[head]:{format}} (layer {head[0]:g}, head {head[1]:g})"
        for head in (means.idxmin(), means.idxmax())
    ]
    return f"{words} runs from {ends[0]} to {ends[1]}."


def _listed(parts: Sequence[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def null_range(frame: pd.DataFrame, kind: str = "", analyses: Collection[str] | None = None) -> str:
    """Name the range of a frame's null distribution, from the record of its runs: "range of 20 null samples".

    From 40 samples on it is "95 % range of 100 null samples", and for a null that is computed exactly "95 % range".
    ``kind`` names the null; ``analyses`` keeps the runs of some analyses.
    """
    runs = (run for run in provenance_of(frame) if analyses is None or run.get("analysis") in analyses)
    counts = sorted({_null_samples(run) for run in runs} - {0})
    parts = [f"{'95 % ' if count >= FEW_NULL_SAMPLES else ''}range of {count}" for count in counts]
    if not parts:
        return "95 % range" + (f" of the {kind} null" if kind else "")
    return f"{' or '.join(parts)} {kind} null samples".replace("  ", " ")


def _null_samples(run: Mapping[str, Any]) -> int:
    """Return how many null samples a run drew; 0 where token-similarity computes the null of Gaussian tokens."""
    options = run.get("options") or {}
    exact = run.get("analysis") == "token-similarity" and options.get("null") != "permutation"
    return 0 if exact else options.get("null_samples") or 0


def over_everything(rows: pd.DataFrame) -> Finding:
    """Return the mean over layers, heads and inputs from rows at several levels; its interval is over inputs.

    A frame without rows per input has no interval.
    """
    level = _overall(rows)
    if level["input"].notna().any():
        return over_inputs(level)
    value = float(level["value"].mean()) if len(level) else math.nan
    return Finding(value, math.nan, math.nan, input_count(rows))


def unit_of(finding: Finding) -> str:
    """Describe the sample and interval of a mean over inputs: "mean over 10 inputs with its 95 % CI"."""
    return f"mean over {finding.n} input{'' if finding.n == 1 else 's'}" + (
        "" if math.isnan(finding.low) else " with its 95 % CI"
    )


def with_means(rows: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Append to rows of single inputs and heads their means for each group of ``by``, with the null of the mean.

    The null of each row must be drawn independently, with ends 1.96 standard deviations from its mean (one end may be
    cut at a bound). The range of the mean's null is narrower by the root of the number of rows.
    """
    reach = np.maximum(rows["null_high"] - rows["null_mean"], rows["null_mean"] - rows["null_low"])
    places = rows.assign(square=reach**2).groupby([*by], sort=False)
    means = places[["value", "null_mean"]].mean()
    reach = np.sqrt(places["square"].sum()) / places.size()
    means = means.assign(null_low=means["null_mean"] - reach, null_high=means["null_mean"] + reach)
    alike = places[["metric", "null"]].first()
    combined = pd.concat([rows, means.join(alike).reset_index()], ignore_index=True)
    combined.attrs = rows.attrs
    return combined


def overall_null_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the overall means that have a null distribution, one row each, for the first null only.

    Boolean columns ``above`` and ``below`` compare the value with the null's `null_range`.
    """
    level = _overall(rows)
    level = level[level["input"].isna() & level["null_low"].notna()]
    first = level[level["null"] == level["null"].iloc[0]] if len(level) else level
    return first.assign(above=first["value"] > first["null_high"], below=first["value"] < first["null_low"])


def side_of_null(rows: pd.DataFrame, format: str = ".2f") -> str:
    """Compare the overall mean with its null, in words: "; above the range of 20 null samples [0.21, 0.24]"."""
    placed = overall_null_rows(rows)
    if placed.empty:
        return ""
    row = placed.iloc[0]
    side = "above" if row["above"] else "below" if row["below"] else "inside"
    band = f"[{row['null_low']:{format}}, {row['null_high']:{format}}]".replace("-", "−")
    return f"; {side} the {null_range(rows, row['null'])} {band}"


def _overall(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that average over layers and heads."""
    return rows[rows[["layer", "head"]].isna().all(axis=1)]


def input_count(frame: pd.DataFrame) -> int:
    """Return the number of inputs of the rows, or of the runs that they are means of."""
    named = frame["input"].nunique()
    return named or max((run.get("inputs", {}).get("n") or 0 for run in provenance_of(frame)), default=0)
