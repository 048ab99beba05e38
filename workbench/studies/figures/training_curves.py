"""Training of several attention variants: their curves, and the final scores, beside the softmax baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from workbench.core.errors import InputError, UnknownName
from workbench.core.options import checked
from workbench.figures.grammar import Plot
from workbench.figures.marks import NOISE, Band, Interval, Line, Null, Published, Rule, Stroke
from workbench.figures.variants import in_order, look_of

# metric of a training record → what its axis says, factor, logarithmic
_AXES = {
    "accuracy": ("accuracy (%)", 100, False),
    "loss": ("loss (nats)", 1, True),
    "perplexity": ("perplexity", 1, True),
    "projection_error": ("J, mean over layers", 1, True),
    "projection_error_last": ("J, last layer", 1, True),
    "h_norm2": ("‖h‖², mean over layers", 1, True),
    "h_norm2_last": ("‖h‖², last layer", 1, True),
    "phi_norm2": ("‖φ(q)‖², mean over layers", 1, True),
    "phi_norm2_last": ("‖φ(q)‖², last layer", 1, True),
}
_BASELINE = "softmax"
_SCALED = ["value", "low", "high", "reference", "floor", "null_low", "null_high"]


@checked
def variant_curves_figure(
    frame: pd.DataFrame,
    metric: str = "loss",
    split: str = "test",
    first: int = 0,
    baselines: Mapping[str, str] | None = None,
    ends: pd.DataFrame | None = None,
) -> go.Figure:
    """Draw a metric against the epoch, a panel per variant with the curve of its baseline behind it.

    Medians over seeds, bands from least to largest. Losses, perplexities, errors and norms that span more than a decade
    are on logarithmic axes.

    Args:
        frame: rows of `training_record` with one model per variant of attention.
        metric: of the record.
        split: "test" or "train".
        first: the epoch to begin with, where the first ones would hide all differences later.
        baselines: model → its baseline; softmax attention by default.
        ends: the result of `workbench.studies.baselines.versus_baseline`, whose differences in mean loss over training
            stand below the names.

    Raises:
        InputError: no such rows, or two models with the same attention.
        UnknownName: a metric that has no axis here, or a variant without a look.
    """
    words, factor, log = _axis(metric)
    rows = frame[(frame["split"] == split) & (frame["metric"] == metric) & frame["value"].notna()]
    order = _one_model_each(rows, f"the frame has no {split} {metric}")
    rows = rows[rows["epoch"] >= first].assign(value=lambda own: own["value"] * factor)
    medians = rows.groupby(["attention", "epoch"])["value"].median()
    others = [name for name in order if name != _BASELINE] or order
    attention = dict(zip(rows["model"], rows["attention"], strict=True))
    pairs = [(model, base) for model, base in (baselines or {}).items() if {model, base} <= set(attention)]
    behind = {attention[model]: attention[base] for model, base in pairs}
    finding_of = (
        {} if ends is None else ends[ends["quantity"] == "mean_loss"].set_index("attention").to_dict("index")
    )
    parts = []
    for name in others:
        variant_rows = rows[rows["attention"].isin([behind.get(name, _BASELINE), name])]
        parts.append(variant_rows.assign(panel=f"{look_of(name).label}{_difference(finding_of.get(name))}"))
    plot = Plot(pd.concat(parts), "epoch", "attention", "panel")
    plot = plot.metric(metric)
    logs = log and medians.max() > 10 * medians.min()
    # bands of seeds that diverge for some epochs would press the lines together
    plot = plot.scale(y_title=_title(split, words), y_log=logs, y_cut=True)
    columns = len(others) if len(others) <= 5 else next((n for n in (3, 4, 5) if len(others) % n == 0), 4)
    plot = plot.add(Band(quantiles=(0, 100)), Line("median", markers=False))
    return plot.figure("page", columns=columns, labels="none")


def _difference(row: Mapping[str, Any] | None) -> str:
    """Return a difference in mean loss with its interval as the second line of a title."""
    if row is None or not np.isfinite(row["difference"]):
        return ""
    value, low, high = (row[f"difference{end}"] for end in ("", "_low", "_high"))
    return f"<br>{value:+.2f} nats [{low:.2f}, {high:.2f}]".replace("-", "−")


@checked
def versus_baseline_figure(
    frame: pd.DataFrame,
    panels: Mapping[str, str],
    *,
    log: Sequence[str] = (),
    lines: Mapping[str, float] | None = None,
    words: str = "",
) -> go.Figure:
    """Draw a row per variant, a panel per quantity: values with ranges, filled where they differ from the baseline's.

    A filled marker says that the difference from the softmax baseline, or from the panel's line, is significant, an
    open one that it is not; where there is no value stands why. The baseline's own is filled, and a line goes through
    it. A stroke is the value of another baseline, which the column ``baseline`` names. A grey bar shows the null
    distribution and a stroke the floor where there are columns ``null_low``, ``null_high`` and ``floor``.

    Args:
        frame: rows of `workbench.studies.baselines` (its `COLUMNS`), one model per variant.
        panels: quantity → title of its panel, in order. Accuracies are drawn in per cent.
        log: the quantities with logarithmic axes.
        lines: quantity → where its line stands instead, e.g. at 1 for no change.
        words: what value and range are, in the key; by default median and range over seeds.

    Raises:
        InputError: no row of some quantity, or two models with the same attention.
    """
    _one_model_each(frame, "the frame has no rows")
    quantities = frame["quantity"].unique()
    for quantity in set(panels) - {*quantities}:
        raise InputError(f"the frame has no {quantity}; its quantities: {', '.join(quantities)}")
    other = _other_baselines(frame)
    rows = frame.reindex(columns=[*dict.fromkeys([*frame.columns, *_SCALED])]).assign(reference=other)
    rows[_SCALED] = rows[_SCALED].astype(float).mul(np.where(rows["quantity"] == "accuracy", 100, 1), axis=0)
    rows["same"] = ~rows["finding"].isin(["", "lower", "higher"])
    at = rows["quantity"].map(dict(lines or {}))
    rows["same"] = rows["same"].where(at.isna(), (rows["low"] <= at) & (at <= rows["high"]))
    unpaired = rows[rows["finding"] == ""].groupby("quantity")["value"].mean()
    levels = unpaired.to_dict() | dict(lines or {})
    reference = "its baseline" if other.notna().any() else "softmax"
    hollow = ("same", "not significant" if lines else f"not significant beside {reference}")
    counts = rows.groupby("attention")["n"].max().dropna().astype(int) if "n" in rows else rows.iloc[:0]
    seeds = (
        f"{' to '.join(dict.fromkeys(map(str, (counts.min(), counts.max()))))} seeds"
        if len(counts)
        else "seeds"
    )
    words = words or f"median and range over {seeds}"
    nulls = "null_low" in rows and rows["null_low"].notna().any()
    forest = Plot(rows, y="attention", x=panels, panel="quantity")
    forest = forest.scale(
        x_log=[*log], row=2.1 if nulls else 1.5
    )  # a null is seen above and below its marker
    forest = forest.add(Null(words=NOISE), Stroke(name="floor: error of the true projections"))
    if other.notna().any():
        pairs = frame[other.notna()].drop_duplicates("model")
        attention = frame.drop_duplicates("model").set_index("model")["attention"]
        of = {
            f"{look_of(attention[row.baseline]).label}, baseline of {look_of(row.attention).label}"
            for row in pairs.itertuples()
        }
        forest = forest.add(Stroke("reference", name="; ".join(sorted(of))))
    forest = forest.add(Interval(columns=("value", "low", "high"), words=words, hollow=hollow))
    return forest.add(Rule(levels, "" if lines else "softmax")).figure()


def _other_baselines(frame: pd.DataFrame) -> pd.Series:
    """The value of each row's baseline, NaN where that has no baseline itself: a line through all rows shows it."""
    values = frame.set_index(["model", "quantity"])["value"]
    compared = set(frame.loc[frame["finding"] != "", "model"])
    keys = zip(frame.get("baseline", [None] * len(frame)), frame["quantity"], strict=True)
    return pd.Series(
        [values[key] if key[0] in compared else np.nan for key in keys], frame.index, dtype=float
    )


def _axis(metric: str) -> tuple[str, int, bool]:
    if metric not in _AXES:
        raise UnknownName("metric of a training curve", metric, _AXES)
    return _AXES[metric]


def _title(split: str, words: str) -> str:
    return f"{split.capitalize()} {words}" if words[0].islower() else words


def _one_model_each(rows: pd.DataFrame, nothing: str) -> list[str]:
    """Return the variants in the order of figures; each must have one model."""
    if rows.empty:
        raise InputError(f"{nothing}; give the result of workbench.studies.baselines")
    models = rows.groupby("attention")["model"].unique()
    for attention, names in models.items():
        if len(names) > 1:
            raise InputError(f"{', '.join(names)} all have {attention} attention; give one model per variant")
    return in_order(models.index)


@checked
def ablation_figure(results: pd.DataFrame, seeds: pd.DataFrame, printed: pd.DataFrame) -> go.Figure:
    """A row per model: on the left a panel per task with the accuracy of every seed and the mean, then differences.

    A difference from the row without one has its 95 % interval, filled where that leaves out zero; published
    differences are red crosses.

    Args:
        results: rows of `workbench.studies.baselines.versus_baseline` with a column ``label``, the words of a row, and
            perhaps ``group``, those of a heading, which the other frames have too; rows keep the frame's order.
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
    differences = results.drop(columns=["value", "low", "high", "finding"], errors="ignore").rename(
        columns=ends
    )
    keys = [name for name in ("task", "label", "group") if name in seeds]
    every = seeds.groupby(keys, sort=False)["value"].transform("mean")
    drawn = seeds.assign(mean=every, panel=seeds["task"], low=float("nan"), high=float("nan"), same=False)
    has_difference = differences["value"].notna()
    differences = differences.assign(
        panel="difference", same=same & has_difference, finding=has_difference.map({False: "reference"})
    )
    drawn = pd.concat([differences, drawn])
    group = "group" if "group" in results else None
    for column in ("label", *([group] if group else [])):
        order = [*dict.fromkeys(results[column])]
        drawn = drawn.sort_values(
            column, key=lambda words, order=order: words.map(order.index), kind="stable"
        )
    numbers = ["value", "low", "high", "mean"]
    drawn[numbers] = drawn[numbers].astype(float) * 100
    references = results.loc[results["difference"].isna(), "label"].str.partition(" (")[0]
    named = " or ".join(dict.fromkeys(references)) or "the reference"
    titles = {task: f"{task.capitalize()}:<br>test accuracy (%)" for task in results["task"].unique()}
    titles["difference"] = "Difference (points)" + f"<br>from {named}" * (group is None)
    published = printed.assign(value=printed["difference"] * 100, panel="difference", table=printed["where"])
    return Plot(drawn, y="label", x=titles, panel="panel", color="task", group=group).scale(row=2.2).add(
        Interval(
            columns=("value", "low", "high"), words="difference of means, 95 % CI (Welch)", alone="each seed",
            hollow=("same", "not significant"),
        ),
        Stroke("mean", "mean over seeds"), Rule({"difference": 0.0}, "no difference"),
        Published(published, ranges=True, beside=True),
    ).figure()  # fmt: skip
